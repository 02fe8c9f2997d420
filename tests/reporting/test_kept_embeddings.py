"""Embeddings are kept for the images and the model they are of, and for no others."""

import os
from pathlib import Path

import numpy as np
import pytest

from frontrank.data.table import ImageTable
from frontrank.reporting.run import images_digest, kept_embeddings

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def table(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.png").write_text(name)
    nothing = np.full(3, "")
    return ImageTable(tmp_path, ["a.png", "b.png", "c.png"], ["x", "x", "y"], nothing, ["test"] * 3, nothing)


class Maker:
    calls = 0

    def __call__(self):
        self.calls += 1
        return ROWS + self.calls


def test_they_are_made_once(tmp_path, table):
    make = Maker()
    found = [kept_embeddings(tmp_path / "kept", "after", "model", table, make) for _ in range(2)]
    assert make.calls == 1
    assert np.array_equal(found[0], ROWS + 1)
    assert np.array_equal(found[1], ROWS + 1)
    assert found[1].dtype == np.float32


def touched(table):
    os.utime(table.root / "b.png", ns=(1, 1))
    return table


def moved(table):
    folder = table.root / "elsewhere"
    folder.mkdir()
    for name in "abc":
        (table.root / f"{name}.png").rename(folder / f"{name}.png")
    return ImageTable(folder, *(getattr(table, of) for of in ("paths", "labels", "categories", "splits", "roles")))


def boxed(table):
    columns = (getattr(table, of) for of in ("paths", "labels", "categories", "splits", "roles"))
    return ImageTable(table.root, *columns, extra={"box": np.array(["", "0 0 1 1", ""])})


CHANGED = {
    "a picture": touched,
    "the order": lambda table: table.rows(np.array([1, 0, 2])),
    "the root": moved,
    "a box": boxed,
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED.keys())
def test_other_images_have_their_own(tmp_path, table, change):
    make = Maker()
    kept_embeddings(tmp_path / "kept", "after", "model", table, make)
    found = kept_embeddings(tmp_path / "kept", "after", "model", change(table), make)
    assert make.calls == 2
    assert np.array_equal(found, ROWS + 2)


def test_another_model_takes_the_place_of_the_first(tmp_path, table):
    make = Maker()
    for model in ("one", "two", "two"):
        kept_embeddings(tmp_path / "kept", "after", model, table, make)
    kept_embeddings(tmp_path / "kept", "before", "one", table, make)
    assert make.calls == 3
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "kept").iterdir()) == ["after", "before"]


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-4]),
    "no array": lambda path: path.write_text("hello"),
    "other rows": lambda path: np.save(path, ROWS[:2]),
    "not finite": lambda path: np.save(path, ROWS * np.float32("nan")),
    "objects": lambda path: np.save(path, np.array([{}], dtype=object), allow_pickle=True),
    "double": lambda path: np.save(path, ROWS.astype(float)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_ones_are_made_again(tmp_path, table, damage):
    make = Maker()
    kept_embeddings(tmp_path / "kept", "after", "model", table, make)
    damage(next((tmp_path / "kept").iterdir()))
    assert np.array_equal(kept_embeddings(tmp_path / "kept", "after", "model", table, make), ROWS + 2)
    kept_embeddings(tmp_path / "kept", "after", "model", table, make)
    assert make.calls == 2


def test_where_nothing_can_be_written_they_are_made_all_the_same(tmp_path, table):
    (tmp_path / "kept").write_text("a file")
    make = Maker()
    assert np.array_equal(kept_embeddings(tmp_path / "kept", "after", "model", table, make), ROWS + 1)
    assert (tmp_path / "kept").read_text() == "a file"


def test_a_picture_that_is_missing_has_a_digest_of_its_own(table):
    before = images_digest(table)
    Path(table.root / "c.png").unlink()
    assert images_digest(table) != before
