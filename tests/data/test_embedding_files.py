import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from frontrank.data import check_ids, embedding_files, read_embeddings, read_labels
from tests.data.files import ALL, DIM, IDS, LABELS, NAMED, ROWS, SPLIT, X, write_arrays
from tests.errors import refusal

# Embeddings


@pytest.mark.parametrize("ending", ALL)
def test_embeddings_of_each_kind_come_back_as_they_were(tmp_path, ending):
    for dtype in (np.float16, np.float32, np.float64):
        path = write_arrays(tmp_path / f"test{ending}", embeddings=X.astype(dtype))
        file = read_embeddings(str(path))
        assert file.path == path
        assert np.asarray(file.embeddings).dtype == dtype
        assert np.array_equal(np.asarray(file.embeddings), X.astype(dtype))
        assert (file.labels, file.ids, len(file.columns)) == (None, None, 0)


@pytest.mark.parametrize("ending", NAMED)
def test_labels_ids_and_columns_have_names(tmp_path, ending):
    path = write_arrays(tmp_path / f"test{ending}", embeddings=X, labels=LABELS, ids=LABELS + 9, split=SPLIT)
    file = read_embeddings(path)
    assert np.array_equal(np.asarray(file.embeddings), X)
    assert file.labels.tolist() == LABELS.tolist()
    assert file.labels.dtype == np.int64
    assert file.ids.tolist() == (LABELS + 9).tolist()
    assert {name: values.tolist() for name, values in file.columns.items()} == {"split": SPLIT.tolist()}
    for name, kind in (("label", "labels"), ("id", "ids")):
        file = read_embeddings(write_arrays(tmp_path / f"other{ending}", **{"embedding": X, name: SPLIT}))
        assert getattr(file, kind).tolist() == SPLIT.tolist()
        assert name not in file.columns


@pytest.mark.parametrize("ending", NAMED)
def test_a_key_or_the_only_array_that_can_be_meant(tmp_path, ending):
    pixels = np.ones((ROWS, 2), dtype=np.int64)
    path = write_arrays(tmp_path / f"test{ending}", features=X, pixels=pixels, weights=X[:, 0])
    assert np.array_equal(np.asarray(read_embeddings(path).embeddings), X)
    assert list(read_embeddings(path, "features").columns) == ["weights"]
    path = write_arrays(tmp_path / f"two{ending}", embeddings=X, whitened=2 * X)
    assert np.array_equal(np.asarray(read_embeddings(path, "whitened").embeddings), 2 * X)
    assert np.array_equal(np.asarray(read_embeddings(path).embeddings), X)


def test_text_bytes_and_other_byte_orders(tmp_path):
    words = ["ä", "b", "cc", "b", "b"]
    for ending in (".npz", ".parquet"):
        file = read_embeddings(write_arrays(tmp_path / f"test{ending}", embeddings=X, label=words, path=IDS))
        assert (file.labels.tolist(), file.ids.tolist()) == (words, IDS.tolist())
        assert file.labels.dtype.kind == file.ids.dtype.kind == "U"
    np.savez(tmp_path / "bytes.npz", embeddings=X, label=np.char.encode(words, "utf-8"))
    assert read_embeddings(tmp_path / "bytes.npz").labels.tolist() == words
    path = tmp_path / "TEST.NPY"  # an ending in capitals
    with path.open("wb") as stream:
        np.save(stream, np.asfortranarray(X).astype(">f4"))
    assert np.array_equal(read_embeddings(path).embeddings, X)
    np.savez(tmp_path / "test.npz", embeddings=X, labels=LABELS.astype(">i2"), ids=IDS.astype(">U9"), split=IDS == "")
    file = read_embeddings(tmp_path / "test.npz")
    assert file.labels.dtype == np.int64
    assert file.labels.tolist() == LABELS.tolist()
    assert file.ids.dtype.isnative
    assert file.ids.tolist() == IDS.tolist()
    assert read_labels("split", file, ROWS).tolist() == [0] * ROWS


WRONG_ARRAYS = {  # arrays, key, what the message names
    "a vector": ({"embeddings": X[0]}, None, ["(3,)"]),
    "whole numbers": ({"embeddings": LABELS[:, None]}, None, ["int64", "float32"]),
    "no rows": ({"embeddings": X[:0]}, None, ["embeddings"]),
    "no dimensions": ({"embeddings": X[:, :0]}, None, ["embeddings"]),
    "two candidates": ({"a": X, "b": X, "c": SPLIT}, None, ["'a' (float32 of shape (5, 3))", "'c'", "key"]),
    "a key that is nearly right": ({"embeddings": X, "split": SPLIT}, "embedings", ["'embedings'", "mean embeddings?"]),
    "the key of labels": ({"embeddings": X, "split": SPLIT}, "split", [":split", "int64"]),
    "too few labels": ({"embeddings": X, "labels": LABELS[:4]}, None, [":labels", "4", "5"]),
    "labels of floats": ({"embeddings": X, "labels": X[:, 0]}, None, [":labels", "float32"]),
    "blank labels": ({"embeddings": X, "labels": np.array(["a", "", "b", " ", "c"])}, None, [":labels", "1, 3"]),
    "labels of 64 bits": ({"embeddings": X, "labels": np.full(5, 2**63, np.uint64)}, None, [":labels"]),
    "labels that are no UTF-8": ({"embeddings": X, "labels": np.array([b"\xff"] * 5)}, None, ["UTF-8"]),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_wrong_arrays(tmp_path, case):
    arrays, key, parts = WRONG_ARRAYS[case]
    path = write_arrays(tmp_path / "test.npz", **arrays)
    refusal(lambda: read_embeddings(path, key), path, *parts)
    if arrays.keys() == {"embeddings"}:
        path = write_arrays(tmp_path / "test.npy", **arrays)
        refusal(lambda: read_embeddings(path), path, *(part for part in parts if part != "embeddings"))
        refusal(lambda: read_embeddings(path, "embeddings"), path, "key")


def test_wrong_safetensors(tmp_path):
    for array in (LABELS[:, None], X[0], X[:0], torch.tensor(X).to(torch.float8_e4m3fn)):
        path = write_arrays(tmp_path / "test.safetensors", embeddings=torch.as_tensor(array).contiguous())
        refusal(lambda path=path: read_embeddings(path), f"{path}:embeddings")


# Kinds of files


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


def test_safetensors_in_bfloat16_are_mapped(tmp_path):
    tensors = {"embeddings": torch.tensor(X).bfloat16(), "weight": torch.arange(ROWS).bfloat16()}
    path = write_arrays(tmp_path / "test.safetensors", **tensors)
    file = read_embeddings(path)
    assert sys.platform != "linux" or str(path) in Path("/proc/self/maps").read_text()
    assert file.embeddings.dtype == torch.bfloat16
    assert torch.equal(file.embeddings, tensors["embeddings"])
    assert file.columns["weight"].tolist() == [0, 1, 2, 3, 4]


def test_columns_have_one_entry_per_row_and_are_read_on_demand(tmp_path):
    path = tmp_path / "test.npz"
    np.savez(path, embeddings=X, role=SPLIT, note=np.array([None] * ROWS), short=SPLIT[:4], boxes=X, scale=3.0)
    file = read_embeddings(path)
    assert sorted(file.columns) == ["note", "role"]
    assert "embeddings" not in file.columns
    refusal(lambda: file.columns["note"], path, ":note")
    path.write_bytes(path.read_bytes()[:300])
    refusal(lambda: file.columns["role"], path)
    with pytest.raises(KeyError):
        file.columns["other"]


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
    for name in ("trap.npy", "embeddings.npz", "labels.npz", "raw.npy", "raw.npz"):
        refusal(lambda name=name: read_embeddings(tmp_path / name), name)
    file = read_embeddings(tmp_path / "good.npz")
    for source in ("other", tmp_path / "trap.npy", f"{tmp_path}/good.npz:other", tmp_path / "raw.npy"):
        refusal(lambda source=source: read_labels(source, file, ROWS), Path(source).name.split(":")[0])
    np.savez(tmp_path / "good.npz", embeddings=X, other=LABELS)
    file = read_embeddings(tmp_path / "good.npz")
    np.savez(tmp_path / "good.npz", embeddings=X, other=trap)  # after a look at its header
    refusal(lambda: file.columns["other"], "good.npz")
    assert not sprung.exists()
    np.load(tmp_path / "trap.npy", allow_pickle=True)
    assert sprung.exists()  # so it would have been seen


LISTS = {"list": pa.list_(pa.float32()), "large": pa.large_list(pa.float64()), "fixed": pa.list_(pa.float16(), DIM)}


@pytest.mark.parametrize("kind", LISTS)
def test_parquet_lists_in_groups_and_batches(tmp_path, monkeypatch, kind):
    x = X.astype(LISTS[kind].value_type.to_pandas_dtype())
    chunks = [pa.array(list(part), LISTS[kind]) for part in (x[:1], x[1:4], x[4:])]
    table = pa.table({"label": LABELS, "embedding": pa.chunked_array(chunks)})
    pq.write_table(table, tmp_path / "test.parquet", row_group_size=2)
    for batch in (1, 3, 100):
        monkeypatch.setattr(embedding_files, "_BATCH", batch)
        file = read_embeddings(tmp_path / "test.parquet")
        assert file.embeddings.dtype == x.dtype
        assert np.array_equal(file.embeddings, x)
        assert file.labels.tolist() == LABELS.tolist()


def test_parquet_columns_of_other_kinds(tmp_path):
    words = [pa.array(part).dictionary_encode() for part in (["a", "b"], ["c", "a", "a"])]
    columns = {
        "label": pa.chunked_array(words),
        "id": pa.array(IDS, pa.large_string()),
        "number": pa.array(SPLIT).dictionary_encode(),
        "raw": pa.array([b"x", b"y", b"y", b"y", b"y"]),
        "a.b": pa.array(SPLIT),
        "seen": pa.array([True, False, False, True, True]),
        "nested": pa.array([{"x": 1}] * ROWS),
        "lists": pa.array([[1]] * ROWS),
    }
    file = read_embeddings(write_arrays(tmp_path / "test.parquet", embedding=X, **columns))
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


WRONG_LISTS = {
    "null rows": (lists([1, 2], None, [3, 4], None), "1"),
    "a null number": (lists([1, 2], [3, 4], [5, None], [6, 7]), "row 2"),
    "unequal rows": (lists([1, 2], [3, 4], [5, 6], [7]), "row 3"),
    "no dimension": (lists([], []), ""),
    "lists of lists": (pa.array([[[1.0]], [[2.0]]]), "list<"),
    "whole numbers": (pa.array([[1], [2]]), "int64"),
    "records": (pa.array([{"x": 1.0}]), "struct"),
}


@pytest.mark.parametrize("case", WRONG_LISTS)
def test_wrong_parquet_lists(tmp_path, monkeypatch, case):
    values, part = WRONG_LISTS[case]
    path = write_arrays(tmp_path / "test.parquet", embedding=values)
    for batch in (1, 3, 100):
        monkeypatch.setattr(embedding_files, "_BATCH", batch)
        refusal(lambda: read_embeddings(path), f"{path}:embedding", part)


def test_null_labels_of_parquet(tmp_path):
    path = write_arrays(tmp_path / "test.parquet", embedding=X, label=pa.array([1, None, 2, None, 3]))
    refusal(lambda: read_embeddings(path), f"{path}:label", "1, 3")
    words = pa.array(["a", "b", None, "a", "a"]).dictionary_encode()
    file = read_embeddings(write_arrays(path, embedding=X, role=words))
    refusal(lambda: read_labels("role", file, ROWS), f"{path}:role", "row 2")


# Labels


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "test.npz"
    np.savez(path, embeddings=X, label=LABELS, path=IDS, split=SPLIT, score=X[:, 0], boxes=X, short=SPLIT[:2])
    return read_embeddings(path)


TEXT = {
    "words": ("l.txt", "cat\ndog\n3\n", ["cat", "dog", "3"]),
    "a mark at the start": ("L.TXT", "\ufeff1\n2\n2\n", [1, 2, 2]),
    "leading zeros": ("l.txt", "001\n002\n001\n", [1, 2, 1]),
    "two spellings": ("l.txt", "01\n1\n2\n", ["01", "1", "2"]),
    "too long for 64 bits": ("l.txt", "9223372036854775808\n1\n1\n", ["9223372036854775808", "1", "1"]),
    "other digits": ("l.txt", "1_0\n²\n٣\n", ["1_0", "²", "٣"]),
    "json integers": ("l.json", "[1, 2, 2]", [1, 2, 2]),
    "csv": ("l.csv", "id,label\na,1\nb,2\nc,2\n\n\n", [1, 2, 2]),
    "csv: quotes": ("l.csv", '\ufefflabel,n\r\n"a, b", 1\r\n"c\r\nd",2\r\n a ,3', ["a, b", "c\r\nd", "a"]),
    "csv: a column": ("l.csv:super class", "label, super class\n1,a\n2,b\n3,c\n", ["a", "b", "c"]),
}


@pytest.mark.parametrize("case", TEXT)
def test_labels_of_text(tmp_path, case):
    name, content, expected = TEXT[case]
    (tmp_path / name.partition(":")[0]).write_bytes(content.encode())
    labels = read_labels(f"{tmp_path}/{name}", None, 3)
    assert labels.tolist() == expected
    assert labels.dtype == np.int64 or labels.dtype.kind == "U"


@pytest.mark.parametrize("ending", ALL)
def test_labels_of_arrays(tmp_path, file, ending):
    path = write_arrays(tmp_path / f"labels{ending}", labels=LABELS)
    assert read_labels(path, file, ROWS).tolist() == LABELS.tolist()
    if ending != ".npy":
        path = write_arrays(tmp_path / f"labels{ending}", label=LABELS, other=SPLIT, ids=LABELS + 5, split=LABELS + 6)
        assert read_labels(path, file, ROWS, "gallery labels").tolist() == LABELS.tolist()
        assert read_labels(f"{path}:other", file, ROWS).tolist() == SPLIT.tolist()
        assert read_labels(path, file, ROWS, "ids").tolist() == (LABELS + 5).tolist()
        assert read_labels(path, file, ROWS, "split").tolist() == (LABELS + 6).tolist()
    if ending != ".safetensors":
        path = write_arrays(tmp_path / f"words{ending}", labels=IDS)
        assert read_labels(path, None, ROWS).tolist() == IDS.tolist()


WRONG_LABELS = {
    "blank lines": ("l.txt", "1\n\n3\n \n5\n", ["1, 3"]),
    "not UTF-8": ("l.txt", b"\xff\xfe1\x00", ["UTF-8"]),
    "json: null": ("l.json", "[1, null, 3, null, 5]", ["null", "1, 3"]),
    "json: mixed": ("l.json", '[1, "a", 2, 3, 4]', ["int, str"]),
    "json: an object": ("l.json", '{"labels": [1, 2]}', ["dict"]),
    "json: deep": ("l.json", "[" * 100000, []),
    "csv: no such column": ("l.csv:lable", "id,label\na,1\n", ["'lable'", "'id', 'label'", "mean label?"]),
    "csv: no label": ("l.csv", "id,class\na,1\n", ["'label'", "'id', 'class'", "l.csv:COLUMN"]),
    "csv: two of a name": ("l.csv", "label,label\n1,2\n", ["'label'"]),
    "csv: a short line": ("l.csv", "label,id\n1,2\n\n3\n", ["line 4"]),
    "csv: an open quote": ("l.csv", 'label\n"a\nb\n', []),
}


@pytest.mark.parametrize("case", WRONG_LABELS)
def test_wrong_labels(tmp_path, file, case):
    name, content, parts = WRONG_LABELS[case]
    path = tmp_path / name.partition(":")[0]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refusal(lambda: read_labels(f"{tmp_path}/{name}", file, ROWS), path, *parts)


def test_wrong_arrays_of_labels(tmp_path, file):
    np.savez(tmp_path / "l.npz", labls=LABELS, table=X, short=LABELS[:3])
    np.save(tmp_path / "l.npy", X)
    refusal(lambda: read_labels(tmp_path / "l.npz", file, ROWS), "'label'", "mean labls?")
    refusal(lambda: read_labels(tmp_path / "l.npz", file, ROWS, "template"), "'template'", "l.npz:NAME")
    refusal(lambda: read_labels(f"{tmp_path}/l.npz:table", file, ROWS), "l.npz:table", "(5, 3)")
    refusal(lambda: read_labels(f"{tmp_path}/l.npz:short", file, ROWS), "l.npz:short", "3", "5")
    refusal(lambda: read_labels(tmp_path / "l.npy", file, ROWS), "l.npy")
    refusal(lambda: read_labels("score", file, ROWS), f"labels: {file.path}:score", "float32")
    refusal(lambda: read_labels("split", file, 4, "roles"), f"roles: {file.path}:split", "5", "4")


def test_neither_an_array_nor_a_file(tmp_path, file):
    held = "'score', 'labels', 'ids'"
    refusal(lambda: read_labels("splitt", file, ROWS), "'splitt'", file.path, held, "mean split?")
    refusal(lambda: read_labels("zzz", file, ROWS, "gallery labels"), "gallery labels: 'zzz'", held)
    refusal(lambda: read_labels("zzz", None, ROWS), "zzz")
    refusal(lambda: read_labels(f"{tmp_path}/tset.npz:split", None, ROWS), "tset.npz", "mean test.npz?")
    np.save(tmp_path / "test.npy", X)
    refusal(lambda: read_labels("label", read_embeddings(tmp_path / "test.npy"), ROWS), "'label'", "test.npy")


def test_ids_must_differ():
    for ids in (IDS, SPLIT[:0], [3, 1, 2]):
        check_ids(ids)
    refusal(
        lambda: check_ids(np.array(["b", "a", "c", "b", "a", "b"]), "gallery ids"), "gallery ids", "0, 3, 5", "1, 4"
    )
    refusal(lambda: check_ids([4, 7, 7]), "ids", "7", "1, 2")
    refusal(lambda: check_ids(np.array(["x", "x"], dtype=object)), "'x'", "0, 1")
    many = refusal(lambda: check_ids(np.arange(40) % 4), "0, 4, 8, 12, 16, ...")
    assert "3 in rows" not in many  # the first three are named


# Missing and damaged files


@pytest.mark.parametrize("ending", [".npz", ".csv"])
def test_missing_files_folders_and_empty_files(tmp_path, ending):
    def read(name):
        path = tmp_path / f"{name}{ending}"
        call = (lambda: read_embeddings(path)) if ending in ALL else (lambda: read_labels(path, None, ROWS))
        return refusal(call, path.name)

    (tmp_path / f"features_test{ending}").write_bytes(b"")
    (tmp_path / f"folder{ending}").mkdir()
    assert f"mean features_test{ending}?" in read("feature_tset")
    for name in ("zzz", "nowhere/zzz", "z" * 5000, "features_test", "folder"):
        assert "mean" not in read(name)


def test_the_nearest_file_is_one_that_can_be_read(tmp_path):
    for name in ("tests.npz", "test.npz.bak", "test.jpg", "test.parquet", "features.npy", "photos.jpg"):
        (tmp_path / name).write_bytes(b"x")
    refusal(lambda: read_embeddings(tmp_path / "test.npy"), "mean test.parquet?")
    assert "mean" not in refusal(lambda: read_embeddings(tmp_path / "photo.npy"))
    (tmp_path / "test.npz").write_bytes(b"x")
    refusal(lambda: read_embeddings(tmp_path / "tesst.npz"), "mean test.npz?")
    refusal(lambda: read_embeddings(tmp_path / "tesst.parquet"), "mean test.parquet?")


def test_a_file_that_is_of_no_kind_may_not_be_read_or_does_not_fit(tmp_path, monkeypatch):
    for name in ("test.pkl", "test"):
        (tmp_path / name).write_bytes(b"x")
        refusal(lambda name=name: read_embeddings(tmp_path / name), name, ".npy, .npz, .parquet, .safetensors")
        refusal(lambda name=name: read_labels(tmp_path / name, None, 1), name, ".csv, .json, .txt")
    path = write_arrays(tmp_path / "test.npz", embeddings=X)

    def fail(error):
        def function(*args, **kwargs):
            raise error

        return function

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail(PermissionError(13, "Permission denied")))
        refusal(lambda: read_embeddings(path), path, "Permission denied")
    monkeypatch.setattr(np.lib.format, "read_array", fail(MemoryError()))
    refusal(lambda: read_embeddings(path), path, "memory")


@pytest.mark.parametrize(("ending", "library"), [(".parquet", "pyarrow"), (".safetensors", "safetensors")])
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, ending, library):
    path = write_arrays(tmp_path / f"test{ending}", embeddings=X)
    monkeypatch.setitem(sys.modules, library, None)
    refusal(lambda: read_embeddings(path), library, "frontrank[train]")


def whole_file(path):
    arrays = {"embeddings": X} if path.suffix == ".npy" else {"embeddings": X, "labels": LABELS, "split": SPLIT}
    return write_arrays(path, **arrays).read_bytes()


@pytest.mark.parametrize("ending", ALL)
def test_files_cut_short(tmp_path, ending):
    path = tmp_path / f"bad{ending}"
    whole = whole_file(path)
    for length in [*range(0, len(whole), 1 + len(whole) // 40), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refusal(lambda: read_embeddings(path), path)
        refusal(lambda: read_labels(f"{path}:labels" if ending != ".npy" else path, None, ROWS), path)
