import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.data.table import COLUMNS, ROLES, SPLITS, ImageTable, read_table, shown
from frontrank.errors import InputError, InputTypeError
from tests.data.files import refusal


def made(labels=("a", "a", "b"), root="pets", **columns):
    """A table of as many training images as there are labels; columns given take the place of the usual ones."""
    rows = len(labels)
    usual = {
        "paths": [f"{label}/{row}.jpg" for row, label in enumerate(labels)],
        "labels": list(labels),
        "categories": [""] * rows,
        "splits": ["train"] * rows,
        "roles": [""] * rows,
    }
    return ImageTable(Path(root), **{**usual, **columns})


def same(one, other):
    for name in COLUMNS:
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    assert {name: column.tolist() for name, column in one.extra.items()} == {
        name: column.tolist() for name, column in other.extra.items()
    }


def test_columns_become_arrays_of_text():
    table = made(root="pets", labels=["a", "b"], categories=np.array(["x", "y"], dtype=object), extra={"box": [1, 2]})
    assert table.root == Path("pets")
    assert all(getattr(table, name).dtype.kind == "U" for name in COLUMNS)
    assert table.extra["box"].tolist() == [1, 2]
    assert made([]).labels.dtype.kind == "U"


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_the_wrong_kind_or_length(name):
    with pytest.raises(InputTypeError, match=f"^{name} must be an array of text"):
        made(**{name: [1, 2, 3]})
    with pytest.raises(InputTypeError, match=f"^{name} must be an array of text"):
        made(**{name: [["a"], ["b"], ["c"]]})
    with pytest.raises(InputTypeError, match=f"^{name} must be an array of text"):
        made(**{name: np.array(["a", None, "b"], dtype=object)})
    if name != "paths":
        refusal(
            lambda: made(**{"paths": list("123"), name: ["train"] * 2}),
            f"{name} has 2 rows, paths has 3",
            "one entry per image",
        )


def test_extra_columns_of_another_length():
    refusal(lambda: made(extra={"box": [1, 2]}), "box has 2 rows, paths has 3")
    refusal(lambda: made(extra={"box": 7}), "box has no rows, paths has 3")


def test_rows_and_parts():
    table = made(
        labels=list("abcd"), splits=["train", "test", "test", "test"], roles=["", "query", "gallery", "query"],
        extra={"n": np.arange(4)}, name="pets",
    )  # fmt: skip
    part = table.of("test", "query")
    assert part.labels.tolist() == ["b", "d"]
    assert part.extra["n"].tolist() == [1, 3]
    assert part.name == "pets"
    assert table.of("test").labels.tolist() == ["b", "c", "d"]
    assert table.of(role="").labels.tolist() == ["a"]
    assert len(table.of("validation")) == 0
    assert len(table.of()) == 4
    assert table.rows(np.array([3, 0])).paths.tolist() == ["d/3.jpg", "a/0.jpg"]
    assert table.files() == [os.path.join("pets", path) for path in table.paths]
    assert made(["a"], paths=["/x/1.jpg"]).files() == ["/x/1.jpg"]


def test_codes_go_by_the_sorted_labels():
    codes = made(["b", "a", "B", "b", "10", "9"]).codes()
    assert codes.tolist() == [4, 3, 2, 4, 0, 1]
    assert codes.dtype == np.int64


FAULTS = {
    "empty": ({"labels": []}, "pets has no images"),
    "split": ({"splits": ["train", "tset", "x"]}, "a/1.jpg has the split 'tset'; did you mean 'test'?"),
    "blank split": ({"splits": ["", "test", "test"]}, "the split ''; use one of 'train', 'validation', 'test'"),
    "role": ({"roles": ["", "", "Gallery"]}, "b/2.jpg has the role 'Gallery'; did you mean 'gallery'?"),
    "other role": ({"roles": ["", "", "zzz"]}, "the role 'zzz'; use one of '', 'query', 'gallery', 'distractor'"),
    "label": ({"labels": ["a", "", "b"]}, "/1.jpg has no label; give it one, or the role 'distractor'"),
    "path": ({"paths": ["1", "", "2"]}, "no path in row 1"),
    "twice": ({"paths": ["1", "2", "2"]}, "pets has 2 in more than one row"),
    "twice, spelt otherwise": ({"paths": ["a/1", "a/2", "./a//1"]}, "has ./a//1 in more than one row"),
    "up and down": ({"paths": ["1", "a/../1", "3"]}, "has a/../1 in more than one row"),
    "relative and absolute": ({"paths": ["1", "2", os.path.abspath("pets/1")]}, "pets/1 in more than one row"),
    "absolute and relative": ({"paths": [os.path.abspath("pets//a/1"), "2", "a/1"]}, "has a/1 in more than one row"),
    "outside": ({"paths": ["../x/1", "2", os.path.abspath("x/1")]}, "x/1 in more than one row"),
    "a name of two lines": ({"paths": ["a\nb", "2", "a\nb"]}, "has 'a\\nb' in more than one row"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_check_refuses(name):
    columns, message = FAULTS[name]
    refusal(lambda: made(**columns).check(), message)


def test_check_accepts():
    table = made(["a", "A", "", "b"], roles=["", "query", "distractor", ""], categories=["x", "y", "", ""])
    assert table.check() is table
    assert made(["", ""]).check(labelled=False)
    assert made(paths=["1", "1", "1"]).check(repeats=True)
    assert made(paths=["a/1", "A/1", "a/1."]).check()
    assert made(paths=["a/1", "/a/1", os.path.abspath("a/1")]).check()
    assert made(paths=["a/1", "../a/1", os.path.abspath("petsa/1")]).check()
    refusal(lambda: made(paths=["a/1", "b", "/a/1"], root="/").check(), "/a/1 in more than one row")
    assert made(["u\u0308", "\u00fc"]).check()
    refusal(lambda: made(["", ""], name="photos").check(), "photos: /0.jpg")


def test_counts_by_hand():
    table = made(
        ["a", "a", "a", "b", "c", "c", "d", "c", ""],
        splits=["train"] * 4 + ["test"] * 5,
        roles=[""] * 4 + ["query", "gallery", "gallery", "gallery", "distractor"],
        categories=["x", "x", "x", "", "x", "y", "z", "y", ""],
    )
    rows = [tuple(row.values()) for row in table.counts()]
    assert rows == [
        ("train", "", 4, 2, 1, 1, 2.0, 3, 1),
        ("test", "query", 1, 1, 1, 1, 1.0, 1, 1),
        ("test", "gallery", 3, 2, 2, 1, 1.5, 2, 1),
        ("test", "distractor", 1, 0, 0, 0, 0.0, 0, 0),
    ]
    lines = table.describe().split("\n")
    assert len({len(line) for line in lines}) == 1
    assert lines[3].split() == ["test", "gallery", "3", "2", "2", "1,", "1.5,", "2", "1"]
    assert lines[0].startswith("split  role        images")
    assert made([]).describe() == "no images"
    assert "1,000" in made(["a"] * 1000).describe()


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=6)
ROW = st.tuples(TEXT.filter(bool), TEXT.filter(bool), TEXT, st.sampled_from(SPLITS), st.sampled_from(ROLES), TEXT)


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".CSV"])
@given(rows=st.lists(ROW, min_size=1, max_size=5))
def test_what_is_saved_is_read_back(tmp_path_factory, ending, rows):
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    columns[:3] = [np.array([f"<{text}>" for text in column]) for column in columns[:3]]  # blanks around are dropped
    names = [f"{number}/{text}" for number, text in enumerate(columns[0].tolist())]
    folder = tmp_path_factory.mktemp("t")
    table = ImageTable(folder, np.array(names), *columns[1:5], extra={"note ü": columns[5]})
    table.save(folder / f"t{ending}")
    again = read_table(folder / f"t{ending}")
    same(again, table)
    assert again.root == folder
    assert again.name == "t"


def test_paths_are_seen_from_the_folder_of_the_table(tmp_path):
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "tables").mkdir()
    (tmp_path / "images" / "a" / "1.jpg").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "tables")
    table = made(["a", "b"], tmp_path / "images", paths=["a/1.jpg", "/x/2.jpg"])
    for target in ("images/t.csv", "tables/t.csv", "t.parquet", "link/u.csv"):
        table.save(tmp_path / target)
        read = read_table(tmp_path / target)
        assert Path(read.files()[0]).read_bytes() == b"1"
        assert read.files()[1] == "/x/2.jpg"
    assert read_table(tmp_path / "images/t.csv").paths[0] == "a/1.jpg"
    assert read_table(tmp_path / "tables/t.csv").paths[0] == "../images/a/1.jpg"
    assert read_table(tmp_path / "t.parquet").paths[0] == "images/a/1.jpg"


def test_a_relative_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made(["a"], "images").save("t.csv")
    assert read_table("t.csv").paths.tolist() == ["images/a/0.jpg"]


def test_nothing_is_overwritten_unasked(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("mine")
    refusal(lambda: made().save(path), path, "exists already", "overwrite=True")
    assert path.read_text() == "mine"
    made().save(path, overwrite=True)
    assert read_table(path).labels.tolist() == ["a", "a", "b"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]


def test_tables_that_cannot_be_saved(tmp_path, monkeypatch):
    refusal(lambda: made().save(tmp_path / "t.txt"), "must end in .csv or .parquet")
    refusal(lambda: made().save(tmp_path / "no" / "t.csv"), "cannot be written (No such file or directory)")
    (tmp_path / "file").touch()
    refusal(lambda: made().save(tmp_path / "file" / "t.csv"), "t.csv cannot be written (Not a directory)")
    (tmp_path / "file").unlink()
    refusal(lambda: made(extra={"box": np.eye(3)}).save(tmp_path / "t.csv"), "'box' must have one entry per row")
    refusal(lambda: made(extra={"label": [1, 2, 3]}).save(tmp_path / "t.csv"), "'label'", "a name of its own")
    for ending in (".csv", ".parquet"):
        refusal(lambda ending=ending: made(["\udc80"]).save(tmp_path / f"t{ending}"), "not UTF-8", "rename it")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refusal(lambda: made().save(tmp_path / "t.parquet"), "pyarrow", "pip install 'frontrank[train]'")
    assert list(tmp_path.iterdir()) == []


def test_numbers_in_extra_columns(tmp_path):
    table = made(extra={"n": np.array([1, 2, 3]), "x": np.array([0.5, 1, 2]), "y": np.array([True, False, True])})
    table.save(tmp_path / "t.parquet")
    table.save(tmp_path / "t.csv")
    assert {name: column.tolist() for name, column in read_table(tmp_path / "t.parquet").extra.items()} == {
        "n": [1, 2, 3], "x": [0.5, 1, 2], "y": [True, False, True],
    }  # fmt: skip
    assert read_table(tmp_path / "t.csv").extra["x"].tolist() == ["0.5", "1.0", "2.0"]


def test_a_path_in_one_line():
    assert shown(Path("a b/ü.jpg")) == "a b/ü.jpg"
    assert shown("a\nb") == "'a\\nb'"
    assert "\udc80" not in shown("\udc80")
    with pytest.raises(InputError) as caught:
        made(["\udc80", "a"], splits=["x", "train"]).check()
    str(caught.value).encode()


BOXES = {
    "text": np.array(["1 2 3.5 4", " 1,2, 3.5 ,4 ", ""]),
    "text of any length": np.array(["1 2 3.5 4", "1 2 3.50 4", "  "], dtype=object),
    "numbers or nothing": np.array([(1, 2, 3.5, 4), np.array([1, 2, 3.5, 4]), None, None], dtype=object)[:3],
    "lists": np.array([[1, 2, 3.5, 4], [1, 2, 3.5, 4], []], dtype=object),
}


@pytest.mark.parametrize("name", BOXES)
def test_boxes(name):
    assert made(extra={"box": BOXES[name]}).boxes() == [(1, 2, 3.5, 4), (1, 2, 3.5, 4), None]


def test_boxes_as_a_matrix_or_none_at_all():
    assert made(extra={"box": np.arange(12).reshape(3, 4)}).boxes() == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
    assert made().boxes() == [None] * 3
    assert made([]).boxes() == []


@pytest.mark.parametrize("box", ["left", "1 2 3", "1 2 3 4 5", "1 2 3 nan", "1 2 inf 4", "[1, 2, 3, 4]", "1;2;3;4"])
def test_text_that_is_no_box(box):
    table = made(extra={"box": np.array(["", box, "bad too"])})
    refusal(table.boxes, f"a/1.jpg has the box '{box}'; write left top right bottom")


NO_BOXES = {
    "numbers": (np.arange(3), "'0'"),
    "three columns": (np.eye(3), "'[1.0, 0.0, 0.0]'"),
    "booleans": (np.array([True, False, True]), "'True'"),
    "long": (np.array(["x" * 500] * 3), "'" + "x" * 80 + "'"),
    "lines": (np.array(["1\n2"] * 3), "'1\\n2'"),
}


@pytest.mark.parametrize("name", NO_BOXES)
def test_columns_that_are_no_boxes(name):
    column, said = NO_BOXES[name]
    refusal(made(extra={"box": column}).boxes, f"a/0.jpg has the box {said}; write")


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_column_of_objects_is_kept_saved_and_read(tmp_path, ending):
    notes = np.array(["x" * 10_000, "", "ü"], dtype=object)
    table = made(extra={"note": notes, "box": np.array(["1 2 3 4", "", ""], dtype=object)}, root=tmp_path)
    table.save(tmp_path / f"t{ending}")
    again = read_table(tmp_path / f"t{ending}")
    same(again, table)
    assert again.rows(np.array([2, 0])).extra["note"].tolist() == ["ü", "x" * 10_000]
    assert again.boxes() == table.boxes() == [(1, 2, 3, 4), None, None]
