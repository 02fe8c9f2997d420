import numpy as np
import pytest
import torch

from frontrank.data import read_embeddings, read_labels
from tests.data.files import ALL, IDS, LABELS, NAMED, ROWS, SPLIT, X, refusal, written


@pytest.mark.parametrize("ending", ALL)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_embeddings_of_each_kind_come_back_as_they_were(tmp_path, ending, dtype):
    path = written(tmp_path / f"test{ending}", embeddings=X.astype(dtype))
    file = read_embeddings(str(path))
    assert file.path == path
    assert np.asarray(file.embeddings).dtype == dtype
    assert np.array_equal(np.asarray(file.embeddings), X.astype(dtype))
    assert file.labels is None
    assert file.ids is None
    assert len(file.columns) == 0


@pytest.mark.parametrize("ending", NAMED)
def test_labels_ids_and_columns_are_found_by_name(tmp_path, ending):
    path = written(tmp_path / f"test{ending}", embeddings=X, labels=LABELS, ids=LABELS + 9, split=SPLIT)
    file = read_embeddings(path)
    assert np.array_equal(np.asarray(file.embeddings), X)
    assert file.labels.tolist() == LABELS.tolist()
    assert file.labels.dtype == np.int64
    assert file.ids.tolist() == (LABELS + 9).tolist()
    assert {name: values.tolist() for name, values in file.columns.items()} == {"split": SPLIT.tolist()}


@pytest.mark.parametrize("ending", NAMED)
@pytest.mark.parametrize(("name", "kind"), [("labels", "labels"), ("label", "labels"), ("ids", "ids"), ("id", "ids")])
def test_each_name_of_labels_and_ids(tmp_path, ending, name, kind):
    file = read_embeddings(written(tmp_path / f"test{ending}", **{"embedding": X, name: SPLIT}))
    assert getattr(file, kind).tolist() == SPLIT.tolist()
    assert name not in file.columns


def test_the_first_of_two_names_is_taken_and_the_other_is_a_column(tmp_path):
    path = tmp_path / "test.npz"
    np.savez(path, labels=SPLIT, label=LABELS, path=IDS, id=SPLIT + 1, embedding=X + 1, embeddings=X)
    file = read_embeddings(path)
    assert np.array_equal(file.embeddings, X)
    assert file.labels.tolist() == LABELS.tolist()
    assert file.ids.tolist() == (SPLIT + 1).tolist()
    assert sorted(file.columns) == ["labels", "path"]
    assert file.columns["path"].tolist() == IDS.tolist()


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_text(tmp_path, ending):
    file = read_embeddings(
        written(tmp_path / f"test{ending}", embeddings=X, label=["ä", "b", "cc", "b", "b"], path=IDS)
    )
    assert file.labels.tolist() == ["ä", "b", "cc", "b", "b"]
    assert file.ids.tolist() == IDS.tolist()
    assert file.labels.dtype.kind == file.ids.dtype.kind == "U"


@pytest.mark.parametrize("ending", NAMED)
def test_a_key_or_the_only_array_that_can_be_meant(tmp_path, ending):
    path = written(tmp_path / f"test{ending}", features=X, pixels=np.ones((ROWS, 2), dtype=np.int64), weights=X[:, 0])
    assert np.array_equal(np.asarray(read_embeddings(path).embeddings), X)
    assert list(read_embeddings(path, "features").columns) == ["weights"]
    path = written(tmp_path / f"two{ending}", embeddings=X, whitened=2 * X)
    assert np.array_equal(np.asarray(read_embeddings(path, "whitened").embeddings), 2 * X)
    assert np.array_equal(np.asarray(read_embeddings(path).embeddings), X)


def test_only_arrays_of_one_entry_per_row_are_columns(tmp_path):
    path = tmp_path / "test.npz"
    np.savez(path, embeddings=X, short=SPLIT[:4], boxes=X, scale=3.0, role=SPLIT)
    assert list(read_embeddings(path).columns) == ["role"]


def test_endings_in_capitals_and_arrays_in_other_orders(tmp_path):
    path = tmp_path / "TEST.NPY"
    with path.open("wb") as file:
        np.save(file, np.asfortranarray(X).astype(">f4"))
    assert np.array_equal(read_embeddings(path).embeddings, X)
    np.savez(tmp_path / "test.npz", embeddings=X, labels=LABELS.astype(">i2"), ids=IDS.astype(">U9"), split=IDS == "")
    file = read_embeddings(tmp_path / "test.npz")
    assert file.labels.dtype == np.int64
    assert file.labels.tolist() == LABELS.tolist()
    assert file.ids.dtype.isnative
    assert file.ids.tolist() == IDS.tolist()
    assert read_labels("split", file, ROWS).tolist() == [0] * ROWS


def test_bytes_are_text(tmp_path):
    np.savez(tmp_path / "text.npz", embeddings=X, label=np.char.encode(["ä", "b", "b", "b", "b"], "utf-8"))
    assert read_embeddings(tmp_path / "text.npz").labels.tolist() == ["ä", "b", "b", "b", "b"]


WRONG_ARRAYS = {
    "a vector": ({"embeddings": X[0]}, None, ["shape (3,)", "(items, dimensions)"]),
    "three axes": ({"embeddings": X[None]}, None, ["shape (1, 5, 3)", "(items, dimensions)"]),
    "a number": ({"embeddings": np.float32(1)}, None, ["shape ()", "(items, dimensions)"]),
    "whole numbers": ({"embeddings": LABELS[:, None]}, None, ["int64 of shape (5, 1)", "floating point", "float32"]),
    "complex": ({"embeddings": X.astype(np.complex64)}, None, ["complex64", "floating point"]),
    "long double": ({"embeddings": X.astype(np.longdouble)}, None, ["floating point", "64 bits"]),
    "text": ({"embeddings": IDS[:, None]}, None, ["<U5", "floating point"]),
    "no rows": ({"embeddings": X[:0]}, None, ["no rows"]),
    "no dimensions": ({"embeddings": X[:, :0]}, None, ["no numbers"]),
    "two candidates": (
        {"a": X, "b": X, "c": SPLIT},
        None,
        ["2 that could", "'a' (float32 of shape (5, 3))", "'c'", "key"],
    ),
    "no candidate": ({"a": LABELS, "b": X[0]}, None, ["none that could", "'a' (int64", "'b'", "2-D floating point"]),
    "nothing": ({}, None, ["nothing", "key"]),
    "key: unknown": ({"embeddings": X, "split": SPLIT}, "embedings", ["no 'embedings'", "did you mean 'embeddings'?"]),
    "key: far off": ({"embeddings": X, "split": SPLIT}, "xyz", ["no 'xyz'", "'embeddings', 'split'", "another key"]),
    "key: labels": ({"embeddings": X, "split": SPLIT}, "split", [":split", "floating point", "int64"]),
    "labels: too few": ({"embeddings": X, "labels": LABELS[:4]}, None, [":labels", "4 entries", "5 rows"]),
    "labels: too many": ({"embeddings": X[:4], "label": LABELS}, None, [":label", "5 entries", "4 rows"]),
    "labels: a table": ({"embeddings": X, "labels": X}, None, [":labels", "one entry per row", "shape (5, 3)"]),
    "labels: floats": (
        {"embeddings": X, "labels": X[:, 0]},
        None,
        [":labels", "integers or text", "float32", "astype"],
    ),
    "labels: blank": (
        {"embeddings": X, "labels": np.array(["a", "", "b", " ", "c"])},
        None,
        ["blank", "rows 1, 3 (from 0)"],
    ),
    "labels: 64 bits": ({"embeddings": X, "labels": np.full(5, 2**63, np.uint64)}, None, ["63 bits", "as text"]),
    "labels: bad bytes": ({"embeddings": X, "labels": np.array([b"\xff"] * 5)}, None, ["utf-8"]),
    "ids: too few": ({"embeddings": X, "path": IDS[:3]}, None, [":path", "3 entries", "5 rows"]),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_wrong_arrays(tmp_path, case):
    arrays, key, parts = WRONG_ARRAYS[case]
    path = written(tmp_path / "test.npz", **arrays)
    refusal(lambda: read_embeddings(path, key), path, *parts)
    if arrays.keys() == {"embeddings"}:
        path = written(tmp_path / "test.npy", **arrays)
        refusal(lambda: read_embeddings(path), path, *parts)


def test_wrong_safetensors(tmp_path):
    wrong = {
        "I64 of shape (5, 1)": LABELS[:, None],
        "F32 of shape (3,)": X[0],
        "no rows": X[:0],
        "no numbers": X[:, :0],
    }
    for part, array in wrong.items():
        path = written(tmp_path / "test.safetensors", embeddings=np.ascontiguousarray(array))
        refusal(lambda path=path: read_embeddings(path), f"{path}:embeddings", part)
    path = written(tmp_path / "test.safetensors", embeddings=torch.tensor(X).to(torch.float8_e4m3fn))
    refusal(lambda: read_embeddings(path), "F8_E4M3", "floating point numbers (16, 32 or 64 bits)")


def test_a_key_for_npy(tmp_path):
    path = written(tmp_path / "test.npy", embeddings=X)
    refusal(lambda: read_embeddings(path, "embeddings"), path, "without a name", "leave out")
