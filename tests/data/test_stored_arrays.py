import os
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from frontrank.data import embedding_files as stored_arrays
from frontrank.data import read_embeddings, read_labels
from tests.data.files import DIM, IDS, LABELS, ROWS, SPLIT, X, refusal, written


def test_npy_is_mapped_and_may_be_larger_than_memory(tmp_path):
    path = tmp_path / "test.npy"
    rows = 2**38 // 256
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, 64)})
        file.truncate(file.tell() + rows * 256)  # a hole: 256 GiB that take no room
    embeddings = read_embeddings(path).embeddings
    assert isinstance(embeddings, np.memmap)
    assert embeddings.shape == (rows, 64)
    assert not embeddings.flags.writeable
    assert not embeddings[-1].any()
    path.unlink()  # pytest keeps its folders, and not everything that copies them knows holes


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="only Linux lists what is mapped")
def test_safetensors_are_mapped(tmp_path):
    path = written(tmp_path / "test.safetensors", embeddings=torch.randn(3000, 64))
    file = read_embeddings(path)
    assert str(path) in Path("/proc/self/maps").read_text()
    assert file.embeddings.shape == (3000, 64)


def test_safetensors_in_bfloat16(tmp_path):
    tensors = {"embeddings": torch.tensor(X).bfloat16(), "weight": torch.arange(ROWS).bfloat16()}
    file = read_embeddings(written(tmp_path / "test.safetensors", **tensors))
    assert file.embeddings.dtype == torch.bfloat16
    assert torch.equal(file.embeddings, tensors["embeddings"])
    assert file.columns["weight"].tolist() == [0, 1, 2, 3, 4]


def test_columns_are_read_when_asked_for(tmp_path):
    path = tmp_path / "test.npz"
    np.savez(path, embeddings=X, role=SPLIT, note=np.array([None] * ROWS))
    file = read_embeddings(path)
    assert "note" in file.columns
    assert "embeddings" not in file.columns
    assert len(file.columns) == 2
    refusal(lambda: file.columns["note"], path, ":note", "pickled", "save it as")
    path.write_bytes(path.read_bytes()[:300])
    refusal(lambda: file.columns["role"], path, "damaged")
    with pytest.raises(KeyError):
        file.columns["other"]


def test_other_versions_and_other_members(tmp_path):
    with (tmp_path / "test.npy").open("wb") as file:
        np.lib.format.write_array(file, X, version=(2, 0))
    assert np.array_equal(read_embeddings(tmp_path / "test.npy").embeddings, X)
    with zipfile.ZipFile(tmp_path / "test.npz", "w") as archive:
        archive.write(tmp_path / "test.npy", "embeddings.npy")
        archive.writestr("readme.txt", "made by hand")
    file = read_embeddings(tmp_path / "test.npz")
    assert np.array_equal(file.embeddings, X)
    assert len(file.columns) == 0


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(tmp_path):
    sprung = tmp_path / "sprung"
    trap = np.empty(ROWS, dtype=object)
    trap[:] = [Trap(sprung)] * ROWS
    np.save(tmp_path / "trap.npy", trap)
    (tmp_path / "raw.npy").write_bytes(trap.dumps())
    (tmp_path / "raw.npz").write_bytes(trap.dumps())
    np.savez(tmp_path / "embeddings.npz", embeddings=trap)
    np.savez(tmp_path / "labels.npz", embeddings=X, labels=trap)
    np.savez(tmp_path / "good.npz", embeddings=X, other=trap)
    for name in ("trap.npy", "embeddings.npz", "labels.npz"):
        refusal(lambda name=name: read_embeddings(tmp_path / name), name, "pickled", "save it as")
    for name in ("raw.npy", "raw.npz"):
        refusal(lambda name=name: read_embeddings(tmp_path / name), name, "write it again")
    file = read_embeddings(tmp_path / "good.npz")
    for source in ("other", tmp_path / "trap.npy", f"{tmp_path}/good.npz:other"):
        refusal(lambda source=source: read_labels(source, file, ROWS), "pickled")
    refusal(lambda: read_labels(tmp_path / "raw.npy", None, ROWS), "raw.npy")
    np.savez(tmp_path / "good.npz", embeddings=X, other=LABELS)
    file = read_embeddings(tmp_path / "good.npz")
    np.savez(tmp_path / "good.npz", embeddings=X, other=trap)  # after a look at its header
    refusal(lambda: file.columns["other"], "good.npz")
    assert not sprung.exists()
    np.load(tmp_path / "trap.npy", allow_pickle=True)
    assert sprung.exists()  # so it would have been seen


LISTS = {
    "list": pa.list_(pa.float32()),
    "large": pa.large_list(pa.float64()),
    "fixed": pa.list_(pa.float16(), DIM),
}


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
@pytest.mark.parametrize("kind", LISTS)
def test_parquet_lists_in_groups_and_batches(tmp_path, monkeypatch, kind, batch):
    monkeypatch.setattr(stored_arrays, "_BATCH", batch)
    x = X.astype(LISTS[kind].value_type.to_pandas_dtype())
    chunks = [
        pa.array(list(x[:1]), LISTS[kind]),
        pa.array(list(x[1:4]), LISTS[kind]),
        pa.array(list(x[4:]), LISTS[kind]),
    ]
    table = pa.table({"label": LABELS, "embedding": pa.chunked_array(chunks)})
    pq.write_table(table, tmp_path / "test.parquet", row_group_size=2)
    file = read_embeddings(tmp_path / "test.parquet")
    assert file.embeddings.dtype == x.dtype
    assert np.array_equal(file.embeddings, x)
    assert file.labels.tolist() == LABELS.tolist()


def test_parquet_columns_of_other_kinds(tmp_path):
    columns = {
        "label": pa.chunked_array(
            [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "a", "a"]).dictionary_encode()]
        ),
        "id": pa.array(IDS, pa.large_string()),
        "number": pa.array(SPLIT).dictionary_encode(),
        "raw": pa.array([b"x", b"y", b"y", b"y", b"y"]),
        "a.b": pa.array(SPLIT),
        "seen": pa.array([True, False, False, True, True]),
        "nested": pa.array([{"x": 1}] * ROWS),
        "lists": pa.array([[1]] * ROWS),
    }
    file = read_embeddings(written(tmp_path / "test.parquet", embedding=X, **columns))
    assert file.labels.tolist() == ["a", "b", "c", "a", "a"]
    assert file.ids.tolist() == IDS.tolist()
    assert {name: values.tolist() for name, values in file.columns.items()} == {
        "number": SPLIT.tolist(),
        "raw": ["x", "y", "y", "y", "y"],
        "a.b": SPLIT.tolist(),
        "seen": [True, False, False, True, True],
    }


def lists(*rows):
    return pa.array(rows, pa.list_(pa.float32()))


FIXED = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
WRONG_LISTS = {
    "null rows": (lists([1, 2], None, [3, 4], None), ["no embedding", "rows 1, 3 (from 0)", "drop them"]),
    "a null row of fixed length": (FIXED, ["no embedding", "row 1 (from 0)", "drop it"]),
    "a null number": (lists([1, 2], [3, 4], [5, None], [6, 7]), ["lacks numbers", "row 2 (from 0)"]),
    "unequal rows": (lists([1, 2], [3, 4], [5, 6], [7]), ["1 numbers in row 3", "2 in row 0", "same model"]),
    "no dimension": (lists([], []), ["no numbers", "at least one"]),
    "no rows": (lists(), ["no rows", "at least one"]),
    "lists of lists": (pa.array([[[1.0]], [[2.0]]]), ["(items, dimensions)", "list<"]),
    "whole numbers": (pa.array([[1], [2]]), ["floating point", "int64", "float32"]),
    "a column of numbers": (pa.array([1.0, 2.0]), ["(items, dimensions)", "double"]),
    "text": (pa.array(["1.0 2.0"]), ["floating point", "string"]),
    "records": (pa.array([{"x": 1.0}]), ["floating point", "struct"]),
}


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize("case", WRONG_LISTS)
def test_wrong_parquet_lists(tmp_path, monkeypatch, case, batch):
    monkeypatch.setattr(stored_arrays, "_BATCH", batch)
    values, parts = WRONG_LISTS[case]
    path = written(tmp_path / "test.parquet", embedding=values)
    if batch < 4 and case == "null rows":
        parts = ["no embedding", "row 1 (from 0)"]  # the first batch that has one
    refusal(lambda: read_embeddings(path), f"{path}:embedding", *parts)


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1])
def test_a_wrong_number_of_rows_in_the_footer(tmp_path, monkeypatch, batch, rows):
    monkeypatch.setattr(stored_arrays, "_BATCH", batch)
    path = written(tmp_path / "test.parquet", embedding=X)
    right, wrong = (bytes([0x16, 2 * count, 0x19]) for count in (ROWS, rows))  # num_rows, then a list: row_groups
    content = path.read_bytes()
    assert content.count(right) == 1
    path.write_bytes(content.replace(right, wrong))
    refusal(lambda: read_embeddings(path), path, "write it again")


def test_null_labels_of_parquet(tmp_path):
    path = written(tmp_path / "test.parquet", embedding=X, label=pa.array([1, None, 2, None, 3]))
    refusal(lambda: read_embeddings(path), f"{path}:label", "rows 1, 3 (from 0)", "fill or drop")
    words = pa.array(["a", "b", None, "a", "a"]).dictionary_encode()
    file = read_embeddings(written(path, embedding=X, role=words))
    refusal(lambda: read_labels("role", file, ROWS), f"{path}:role", "row 2 (from 0)")
