"""Embeddings are kept for the images and the model they are of, and for no others."""

import os

import numpy as np
import pytest

from frontrank.data.table import ImageTable
from frontrank.reporting.run import images_digest, read_or_make_embeddings

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def table(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.png").write_text(name)
    return table_of(tmp_path)


def table_of(folder, **extra):
    nothing = np.full(3, "")
    return ImageTable(folder, ["a.png", "b.png", "c.png"], ["x", "x", "y"], nothing, ["test"] * 3, nothing, extra)


class Maker:
    calls = 0

    def __call__(self):
        self.calls += 1
        return ROWS + self.calls


def touch(table):
    os.utime(table.root / "b.png", ns=(1, 1))
    return table


def move(table):
    (table.root / "elsewhere").mkdir()
    for name in "abc":
        (table.root / f"{name}.png").rename(table.root / "elsewhere" / f"{name}.png")
    return table_of(table.root / "elsewhere")


CHANGES = {
    "a picture": touch,
    "the order": lambda table: table.rows(np.array([1, 0, 2])),
    "the root": move,
    "a box": lambda table: table_of(table.root, box=np.array(["", "0 0 1 1", ""])),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_they_are_made_once_and_other_images_have_their_own(tmp_path, table, change):
    make = Maker()
    for _ in range(2):
        rows = read_or_make_embeddings(tmp_path / "kept", "after", "model", table, make)
        assert (make.calls, rows.dtype) == (1, np.float32)
        assert np.array_equal(rows, ROWS + 1)
    rows = read_or_make_embeddings(tmp_path / "kept", "after", "model", change(table), make)
    assert np.array_equal(rows, ROWS + 2)


def test_another_model_takes_the_place_of_the_first(tmp_path, table):
    make = Maker()
    for model in ("one", "two", "two"):
        read_or_make_embeddings(tmp_path / "kept", "after", model, table, make)
    read_or_make_embeddings(tmp_path / "kept", "before", "one", table, make)
    assert make.calls == 3
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "kept").iterdir()) == ["after", "before"]


DAMAGES = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-4]),
    "no array": lambda path: path.write_text("hello"),
    "other rows": lambda path: np.save(path, ROWS[:2]),
    "not finite": lambda path: np.save(path, ROWS * np.float32("nan")),
    "objects": lambda path: np.save(path, np.array([{}], dtype=object), allow_pickle=True),
    "double": lambda path: np.save(path, ROWS.astype(float)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_ones_are_made_again(tmp_path, table, damage):
    make = Maker()
    read_or_make_embeddings(tmp_path / "kept", "after", "model", table, make)
    damage(next((tmp_path / "kept").iterdir()))
    assert np.array_equal(read_or_make_embeddings(tmp_path / "kept", "after", "model", table, make), ROWS + 2)


def test_where_nothing_can_be_written_they_are_made_all_the_same(tmp_path, table):
    (tmp_path / "kept").write_text("a file")
    assert np.array_equal(read_or_make_embeddings(tmp_path / "kept", "after", "model", table, Maker()), ROWS + 1)
    assert (tmp_path / "kept").read_text() == "a file"


def test_a_picture_that_is_missing_has_a_digest_of_its_own(table):
    before = images_digest(table)
    (table.root / "c.png").unlink()
    assert images_digest(table) != before
