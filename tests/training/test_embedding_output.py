import sys
from dataclasses import replace

import numpy as np
import pytest

import frontrank as fr
from frontrank.data.embedding_files import read_embeddings, read_labels
from frontrank.errors import InputError
from frontrank.training.embedding import write_embeddings
from tests.training.small_model import noise_table

ENDINGS = (".npy", ".npz", ".parquet", ".safetensors")
ROWS = 7
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return noise_table(tmp_path_factory.mktemp("images"), rows=ROWS)


def blocks(*sizes):
    return iter(np.split(X, np.cumsum(sizes)[:-1]))


def read(path):
    """Embeddings, labels and ids, whether they are in the file or beside it."""
    file = read_embeddings(path)
    found = {"labels": file.labels, "ids": file.ids}
    for kind in found:
        beside = path.with_suffix(f".{kind}.json")
        if beside.exists():
            found[kind] = read_labels(beside, file, len(file.embeddings), kind)
    return np.asarray(file.embeddings), found["labels"], found["ids"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("sizes", [(7,), (3, 4), (1, 5, 1), (0, 7), (7, 0)], ids=str)
def test_what_is_written_is_read(table, tmp_path, ending, sizes):
    path = tmp_path / f"test{ending}"
    assert write_embeddings(path, blocks(*sizes), table) == path
    embeddings, labels, ids = read(path)
    np.testing.assert_array_equal(embeddings, X)
    assert embeddings.dtype == np.float32
    assert labels.tolist() == table.labels.tolist()
    assert ids.tolist() == table.paths.tolist()
    report = fr.evaluate(embeddings, labels, metrics=("R@1",), progress=False)
    assert report["R@1"] == fr.evaluate(X, table.codes(), metrics=("R@1",), progress=False)["R@1"]


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_the_other_columns_are_there_too(table, tmp_path, ending):
    roles, frames = ["query"] * 3 + ["gallery"] * 4, list(range(ROWS))
    extra = {"frame": frames, "small": [True] * ROWS, "box": np.ones((ROWS, 4)), "path": ["x"] * ROWS}
    given = replace(table, roles=roles, extra=extra)
    file = read_embeddings(write_embeddings(tmp_path / f"x{ending}", blocks(3, 4), given))
    assert file.ids.tolist() == table.paths.tolist()
    assert {name: file.columns[name].tolist() for name in sorted(file.columns)} == {
        "category": ["all"] * ROWS,
        "frame": frames,
        "role": roles,
        "small": [True] * ROWS,
        "split": ["test"] * ROWS,
    }
    assert [path.name for path in tmp_path.iterdir()] == [f"x{ending}"]


def test_labels_of_safetensors_are_numbers_that_go_by_the_text(table, tmp_path):
    """Queries and gallery in two files go together."""
    whole = read_embeddings(write_embeddings(tmp_path / "whole.safetensors", blocks(7), table)).labels
    assert whole.dtype == np.int64
    np.testing.assert_array_equal(whole[:, None] == whole, table.codes()[:, None] == table.codes())
    last = table.rows(np.arange(4, 7))
    np.testing.assert_array_equal(
        read_embeddings(write_embeddings(tmp_path / "last.SAFETENSORS", iter([X[4:]]), last)).labels, whole[4:]
    )
    none = write_embeddings(tmp_path / "none.safetensors", blocks(7), replace(table, labels=[""] * ROWS))
    assert read_embeddings(none).labels is None


@pytest.mark.parametrize("ending", ENDINGS)
def test_rows_without_a_label(table, tmp_path, ending):
    some = replace(table, labels=["a", "", "a", "b", "", "b", "b"])
    _, labels, _ = read(write_embeddings(tmp_path / f"some{ending}", blocks(7), some))
    assert labels.tolist() == ["a", "1.png", "a", "b", "4.png", "b", "b"]
    _, labels, ids = read(write_embeddings(tmp_path / f"none{ending}", blocks(7), replace(table, labels=[""] * ROWS)))
    assert labels is None
    assert ids.tolist() == table.paths.tolist()


@pytest.mark.parametrize("ending", ENDINGS)
def test_text_of_any_language(table, tmp_path, ending):
    labels = ["чай", "a, b", 'say "x"', "é", "e\u0301", "花", "x"]
    assert (
        read(write_embeddings(tmp_path / f"x{ending}", blocks(7), replace(table, labels=labels)))[1].tolist() == labels
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_overwritten_without_asking(table, tmp_path, ending):
    path = write_embeddings(tmp_path / f"x{ending}", blocks(7), table)
    before = {entry: entry.read_bytes() for entry in tmp_path.iterdir()}
    for entry in before:  # one that is left is enough to refuse
        for other in before:
            if other != entry:
                other.unlink()
        with pytest.raises(InputError, match="exists already; give another path, or overwrite=True") as caught:
            write_embeddings(path, blocks(7), table)
        assert str(caught.value).startswith(str(entry))
        for other, content in before.items():
            other.write_bytes(content)
    write_embeddings(path, iter([2 * X]), table, overwrite=True)
    np.testing.assert_array_equal(read(path)[0], 2 * X)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("sizes", "rows"), [((3, 3), 6), ((7, 2), 9), ((2,), 2)], ids=str)
def test_another_number_of_rows_leaves_no_file(table, tmp_path, ending, sizes, rows):
    given = (np.ones((size, 4), dtype=np.float32) for size in sizes)
    with pytest.raises(InputError, match=f"embeddings has {rows} rows for 7 images; give one per image"):
        write_embeddings(tmp_path / f"x{ending}", given, table)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_blocks(table, tmp_path, ending):
    with pytest.raises(InputError, match="embeddings has 0 rows for 7 images"):
        write_embeddings(tmp_path / f"x{ending}", iter(()), table)


def test_another_ending(table, tmp_path):
    with pytest.raises(InputError, match=r"x\.csv must end in \.npy, \.npz, \.parquet, \.safetensors; rename it"):
        write_embeddings(tmp_path / "x.csv", blocks(7), table)


def test_without_pyarrow(table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs pyarrow; pip install 'frontrank\[train\]'"):
        write_embeddings(tmp_path / "x.parquet", blocks(7), table)
    assert not list(tmp_path.iterdir())
