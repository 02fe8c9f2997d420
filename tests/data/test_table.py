import os
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.data.splits import hold_out_classes, merge_classes
from frontrank.data.table import (
    COLUMNS,
    IMAGE_ENDINGS,
    ROLES,
    SPLITS,
    ImageTable,
    level_faults,
    list_images,
    read_folder,
    read_table,
    read_unlabelled,
)
from frontrank.errors import FrontrankWarning, InputTypeError
from frontrank.evaluation import evaluate
from tests.errors import refusal

# Tables


def table_of(labels=("a", "a", "b"), root="pets", **columns):
    """A table of as many training images as there are labels; given columns replace the usual ones."""
    rows = len(labels)
    usual = {
        "paths": [f"{label if isinstance(label, str) else 'x'}/{row}.jpg" for row, label in enumerate(labels)],
        "labels": list(labels),
        "categories": [""] * rows,
        "splits": ["train"] * rows,
        "roles": [""] * rows,
    }
    return ImageTable(Path(root), **{**usual, **columns})


def assert_same(one, other):
    assert rows_of(one) == rows_of(other)
    assert extra_of(one) == extra_of(other)


def extra_of(table):
    return {name: column.tolist() for name, column in table.extra.items()}


def rows_of(table):
    columns = (table.paths, table.labels, table.categories, table.splits, table.roles)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_the_wrong_kind_or_length(name):
    for column in ([1, 2, 3], np.array([["a"], ["b"], ["c"]]), np.array(["a", None, "b"], dtype=object)):
        with pytest.raises(InputTypeError, match=name):
            table_of(**{name: column})
    if name != "paths":
        refusal(lambda: table_of(**{"paths": list("123"), name: ["train"] * 2}), name, "2", "3")
    for column in ([1, 2], 7):
        refusal(lambda column=column: table_of(extra={"box": column}), "box")


def test_rows_and_parts():
    table = table_of(
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
    assert table_of(["a"], paths=["/x/1.jpg"]).files() == ["/x/1.jpg"]


FAULTS = {
    "empty": ({"labels": []}, ["pets"]),
    "split": ({"splits": ["train", "tset", "x"]}, ["a/1.jpg", "'tset'", "mean test?"]),
    "role": ({"roles": ["", "", "Gallery"]}, ["b/2.jpg", "'Gallery'", "mean gallery?"]),
    "label": ({"labels": ["a", "", "b"]}, ["/1.jpg", "label"]),
    "path": ({"paths": ["1", "", "2"]}, ["row 1"]),
    "twice": ({"paths": ["1", "2", "2"]}, ["pets", "2"]),
    "twice, spelt otherwise": ({"paths": ["a/1", "a/2", "./a//1"]}, ["./a//1"]),
    "relative and absolute": ({"paths": ["1", "2", os.path.abspath("pets/1")]}, ["pets/1"]),
    "a name of two lines": ({"paths": ["a\nb", "2", "a\nb"]}, ["'a\\nb'"]),
    "a name that is no text": ({"labels": ["\udc80", "a"], "splits": ["x", "train"]}, ["split"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_check_refuses(name):
    columns, parts = FAULTS[name]
    refusal(lambda: table_of(**columns).check(), *parts).encode()


def test_check_accepts():
    table = table_of(["a", "A", "", "b"], roles=["", "query", "distractor", ""], categories=["x", "y", "", ""])
    assert table.check() is table
    assert table_of(["", ""]).check(labelled=False)
    assert table_of(paths=["a/1", "A/1", "a/1."]).check()
    assert table_of(paths=["a/1", "/a/1", os.path.abspath("a/1")]).check()
    assert table_of(paths=["a/1", "../a/1", os.path.abspath("petsa/1")]).check()
    refusal(lambda: table_of(paths=["a/1", "b", "/a/1"], root="/").check(), "/a/1")
    assert table_of(["u\u0308", "\u00fc"]).check()
    refusal(lambda: table_of(["", ""], name="photos").check(), "photos: /0.jpg")


def test_counts_by_hand():
    table = table_of(
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
    assert table_of([]).describe() == "no images"
    assert "1,000" in table_of(["a"] * 1000).describe()


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=6)
ROW = st.tuples(TEXT.filter(bool), TEXT.filter(bool), TEXT, st.sampled_from(SPLITS), st.sampled_from(ROLES), TEXT)


@pytest.mark.parametrize("ending", [".CSV", ".parquet"])
@given(rows=st.lists(ROW, min_size=1, max_size=5))
def test_what_is_saved_is_read_back(tmp_path_factory, ending, rows):
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    columns[:3] = [np.array([f"<{text}>" for text in column]) for column in columns[:3]]  # blanks around are dropped
    names = [f"{number}/{text}" for number, text in enumerate(columns[0].tolist())]
    folder = tmp_path_factory.mktemp("t")
    table = ImageTable(folder, np.array(names), *columns[1:5], extra={"note ü": columns[5]})
    table.save(folder / f"t{ending}")
    again = read_table(folder / f"t{ending}")
    assert_same(again, table)
    assert again.root == folder
    assert again.name == "t"


def test_paths_are_relative_to_the_folder_of_the_table(tmp_path, monkeypatch):
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "tables").mkdir()
    (tmp_path / "images" / "a" / "1.jpg").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "tables")
    table = table_of(["a", "b"], tmp_path / "images", paths=["a/1.jpg", "/x/2.jpg"])
    for target in ("images/t.csv", "tables/t.csv", "t.parquet", "link/u.csv"):
        table.save(tmp_path / target)
        read = read_table(tmp_path / target)
        assert Path(read.files()[0]).read_bytes() == b"1"
        assert read.files()[1] == "/x/2.jpg"
    assert read_table(tmp_path / "images/t.csv").paths[0] == "a/1.jpg"
    assert read_table(tmp_path / "tables/t.csv").paths[0] == "../images/a/1.jpg"
    assert read_table(tmp_path / "t.parquet").paths[0] == "images/a/1.jpg"
    monkeypatch.chdir(tmp_path)
    table_of(["a"], "images").save("relative.csv")
    assert read_table("relative.csv").paths.tolist() == ["images/a/0.jpg"]


def test_nothing_is_overwritten_unasked(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("mine")
    refusal(lambda: table_of().save(path), path, "overwrite=True")
    assert path.read_text() == "mine"
    table_of().save(path, overwrite=True)
    assert read_table(path).labels.tolist() == ["a", "a", "b"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]


def test_tables_that_cannot_be_saved(tmp_path, monkeypatch):
    refusal(lambda: table_of().save(tmp_path / "t.txt"), "t.txt", ".csv", ".parquet")
    refusal(lambda: table_of().save(tmp_path / "no" / "t.csv"), "t.csv", "No such file")
    (tmp_path / "file").touch()
    refusal(lambda: table_of().save(tmp_path / "file" / "t.csv"), "t.csv", "Not a directory")
    (tmp_path / "file").unlink()
    refusal(lambda: table_of(extra={"box": np.eye(3)}).save(tmp_path / "t.csv"), "'box'")
    refusal(lambda: table_of(extra={"label": [1, 2, 3]}).save(tmp_path / "t.csv"), "'label'")
    for ending in (".csv", ".parquet"):
        refusal(lambda ending=ending: table_of(["\udc80"]).save(tmp_path / f"t{ending}"), f"t{ending}", "UTF-8")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refusal(lambda: table_of().save(tmp_path / "t.parquet"), "pyarrow", "frontrank[train]")
    assert list(tmp_path.iterdir()) == []


BOXES = {
    "text": np.array(["1 2 3.5 4", " 1,2, 3.5 ,4 ", ""]),
    "text of any length": np.array(["1 2 3.5 4", "1 2 3.50 4", "  "], dtype=object),
    "numbers or nothing": np.array([(1, 2, 3.5, 4), np.array([1, 2, 3.5, 4]), None, None], dtype=object)[:3],
    "lists": np.array([[1, 2, 3.5, 4], [1, 2, 3.5, 4], []], dtype=object),
}


@pytest.mark.parametrize("name", BOXES)
def test_boxes(name):
    assert table_of(extra={"box": BOXES[name]}).boxes() == [(1, 2, 3.5, 4), (1, 2, 3.5, 4), None]


@pytest.mark.parametrize(
    ("box", "part"), [("left", "'left'"), ("1 2 3 nan", "nan"), ("x" * 500, "'" + "x" * 80 + "'"), ("1\n2", "'1\\n2'")]
)
def test_columns_that_are_no_boxes(box, part):
    refusal(table_of(extra={"box": np.array([box] * 3)}).boxes, "a/0.jpg", part)


# Folders


def tree(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    return root


def test_a_folder_of_classes_in_any_order(tmp_path, monkeypatch):
    table = read_folder(tree(tmp_path, "dog/b.png", "cat/2.jpg", "cat/10.jpg", "Cat/1.jpg"))
    assert rows_of(table) == [
        ("Cat/1.jpg", "Cat", "", "train", ""),
        ("cat/10.jpg", "cat", "", "train", ""),
        ("cat/2.jpg", "cat", "", "train", ""),
        ("dog/b.png", "dog", "", "train", ""),
    ]
    assert table.root == tmp_path
    assert table.name == tmp_path.name
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: sorted(scandir(path), key=lambda entry: entry.name, reverse=True))
    assert rows_of(read_folder(str(tmp_path))) == rows_of(table)


@pytest.mark.parametrize("category", ["", "fruit/"])
def test_splits_and_roles_at_the_top(tmp_path, category):
    tops = {"train": ("train", ""), "Test": ("test", ""), "query": ("test", "query"), "gallery": ("test", "gallery")}
    tops |= dict.fromkeys(("val", "validation", "valid"), ("validation", ""))
    table = read_folder(tree(tmp_path, *(f"{top}/{category}fig/1.jpg" for top in tops)))
    label = f"{category}fig"
    assert sorted(rows_of(table)) == sorted(
        (f"{top}/{label}/1.jpg", label, category.rstrip("/"), *use) for top, use in tops.items()
    )


def test_a_split_name_among_others_is_a_class(tmp_path):
    table = read_folder(tree(tmp_path / "a", "bus/1.jpg", "Train/1.jpg", "query/1.jpg"))
    assert table.labels.tolist() == ["Train", "bus", "query"]
    assert set(table.splits) == {"train"}
    with pytest.warns(FrontrankWarning, match="dev"):  # perhaps meant as a split
        table = read_folder(tree(tmp_path / "b", "train/cat/1.jpg", "dev/cat/1.jpg"))
    assert table.labels.tolist() == ["dev/cat", "train/cat"]


@pytest.mark.parametrize(("inside", "category"), [("", ""), ("cat/", "train")])
def test_the_layout_of_classes_knows_no_splits(tmp_path, inside, category):
    tree(tmp_path, f"train/{inside}1.jpg", f"test/{inside}1.jpg")
    table = read_folder(tmp_path, classes=True)
    assert table.labels.tolist() == [f"{top}/{inside}".rstrip("/") for top in ("test", "train")]
    assert (table.categories[1], set(table.splits)) == (category, {"train"})


def test_endings_and_what_is_passed_over(tmp_path):
    images = [f"a/{number}{ending}" for number, ending in enumerate(IMAGE_ENDINGS)]
    images += ["a/UP.JPG", "a/b.JpEg", "a/with space.png", "a/ünï.png", "a/u\u0308.png", "a/line\nbreak.jpg"]
    junk = ["a/.hidden.jpg", ".git/1.jpg", "__MACOSX/a/1.jpg", "a/Thumbs.db", "a/desktop.ini", ".DS_Store"]
    tree(tmp_path, *images, *junk, "a/notes.txt", "labels.csv", "a/jpg", "more.csv")
    assert list_images(tmp_path) == (sorted(images), {"": 1, ".csv": 2, ".txt": 1})
    assert read_folder(tmp_path).paths.tolist() == sorted(images)


def test_pictures_of_other_formats_are_a_warning(tmp_path):
    tree(tmp_path, "a/1.jpg", "a/readme.txt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_folder(tmp_path)
    tree(tmp_path, "a/2.heic", "b/3.HEIC", "b/1.svg", "b/1.jpg")
    with pytest.warns(FrontrankWarning, match=r"3 pictures .*\.heic, \.svg") as caught:
        assert len(read_folder(tmp_path)) == 2
    assert caught[0].filename == __file__


DEPTHS = {  # files, what the message names
    "no class": (["1.jpg", "a/1.jpg"], ["1.jpg", "<class>/<image>"]),
    "a split but no class": (["train/a/1.jpg", "test/2.jpg"], ["test/2.jpg", "train/<class>/<image>"]),
    "mixed": (["a/1.jpg", "b/c/1.jpg"], ["a/1.jpg", "b/c/1.jpg"]),
    "too deep": (["a/1.jpg", "b/c/d/1.jpg"], ["b/c/d/1.jpg"]),
    "empty": ([], ["is empty"]),
    "no images": (["a/1.txt", "a/2.txt", "b/3.svg"], ["3", ".jpg, .jpeg, .png"]),
}


@pytest.mark.parametrize("name", DEPTHS)
def test_folders_that_cannot_be_used(tmp_path, name):
    files, parts = DEPTHS[name]
    refusal(lambda: read_folder(tree(tmp_path, *files)), tmp_path, *parts)


def test_what_is_no_folder(tmp_path, monkeypatch):
    tree(tmp_path, "t.csv", "1.jpg")
    for name in ("no", "t.csv", "1.jpg"):
        refusal(lambda name=name: read_folder(tmp_path / name), tmp_path / name)
    refusal(lambda: read_folder(7), "path", error=InputTypeError)

    def denied(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", denied)
    refusal(lambda: read_folder(tmp_path), tmp_path, "Permission denied")


def test_links(tmp_path):
    tree(tmp_path, "real/1.jpg", "root/a/1.jpg")
    root = tmp_path / "root"
    (root / "b").symlink_to(tmp_path / "real")
    (root / "a" / "2.jpg").symlink_to(tmp_path / "real" / "1.jpg")
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "here").symlink_to(root / "a")
    (root / "a" / "itself.jpg").symlink_to("itself.jpg")
    assert list_images(root)[0] == ["a/1.jpg", "a/2.jpg", "a/itself.jpg", "b/1.jpg"]


def test_unlabelled(tmp_path, monkeypatch):
    tree(tmp_path, "in/1.jpg", "in/deep/er/2.PNG", "in/.no.jpg", "in/x.txt", "one.jpg", "odd.name")
    monkeypatch.chdir(tmp_path)
    table = read_unlabelled(["odd.name", "in", tmp_path / "one.jpg", "in/1.jpg", "./in/"])
    assert rows_of(table) == [
        (path, "", "", "test", "") for path in ("odd.name", "in/1.jpg", "in/deep/er/2.PNG", str(tmp_path / "one.jpg"))
    ]
    tree(tmp_path, "no/x.txt")
    for path in ("gone.jpg", "no"):
        refusal(lambda path=path: read_unlabelled([path]), path)
    refusal(lambda: read_unlabelled([]), "images")
    assert len(read_unlabelled(["no", "one.jpg"])) == 1
    monkeypatch.chdir("/")
    assert all(Path(file).read_bytes() == b"x" for file in table.files())
    assert read_unlabelled(tmp_path / "in").paths.tolist() == [f"{tmp_path}/in/1.jpg", f"{tmp_path}/in/deep/er/2.PNG"]


# Files of tables


def csv_file(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    return path


def parquet(tmp_path, **columns):
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def test_a_table_with_all_columns(tmp_path):
    path = csv_file(
        tmp_path,
        "label,path,role,split,category,photographer\n"
        'cat,1.jpg,query,test,pet,"A, B"\n'
        "cat,2.jpg,gallery,test,pet,\n"
        "dog,3.jpg,,val,,C\n"
        ",4.jpg,distractor,test,,C\n"
        "dog,5.jpg,,,,C\n",
    )
    table = read_table(path)
    assert rows_of(table) == [
        ("1.jpg", "cat", "pet", "test", "query"),
        ("2.jpg", "cat", "pet", "test", "gallery"),
        ("3.jpg", "dog", "", "validation", ""),
        ("4.jpg", "", "", "test", "distractor"),
        ("5.jpg", "dog", "", "train", ""),
    ]
    assert extra_of(table) == {"photographer": ["A, B", "", "C", "C", "C"]}
    assert (table.root, table.name) == (tmp_path, "t")


def test_names_of_columns_in_capitals_and_blanks_around(tmp_path):
    header = " Path ,LABEL, Category,Split ,ROLE,Box,Note"
    lines = " 1.jpg , cat ,\tpet, test , query , 1 2 3 4 , n ", "2.jpg,cat,,valid ,,,"
    table = read_table(csv_file(tmp_path, "\n".join([header, *lines])))
    assert rows_of(table) == [("1.jpg", "cat", "pet", "test", "query"), ("2.jpg", "cat", "", "validation", "")]
    assert extra_of(table) == {"box": [" 1 2 3 4 ", ""], "Note": [" n ", ""]}
    assert table.boxes() == [(1, 2, 3, 4), None]
    path = parquet(tmp_path, Path=["1 ", "2"], Label=["a", "b"], SPLIT=["test", " "], Weight=[1, 2])
    assert rows_of(read_table(path)) == [("1", "a", "", "test", ""), ("2", "b", "", "train", "")]
    assert list(read_table(path).extra) == ["Weight"]


@pytest.mark.parametrize(
    ("name", "meant"), [("splits", "split"), ("Splitt", "split"), ("Rolle", "role"), ("catagory", "category")]
)
def test_columns_that_are_misspelt(tmp_path, name, meant):
    path = csv_file(tmp_path, f"path,label,{name}\n1.jpg,a,test\n")
    refusal(lambda: read_table(path), "t.csv", f"'{name}'", f"mean {meant}?")
    table = read_table(csv_file(tmp_path, f"path,label,{name},{meant}\n1.jpg,a,b,{'test' * (meant == 'split')}\n"))
    assert list(table.extra) == [name]


LABELS = ["007", "7", "in side", "a, b", "naïve 漢字", "u\u0308", "1.50", 'q"q', "two\nlines", "NA"]


def test_labels_are_text_as_it_stands(tmp_path):
    quoted = ['"' + label.replace('"', '""') + '"' for label in LABELS]
    lines = ["path, label", *(f"{number}.jpg,{label}" for number, label in enumerate(quoted)), "", ""]
    for encoding, end in (("utf-8", "\n"), ("utf-8-sig", "\r\n")):
        table = read_table(csv_file(tmp_path, end.join(lines), encoding))
        assert table.labels.tolist() == LABELS
        assert set(table.splits) == {"train"}
        assert set(table.roles) == set(table.categories) == {""}


def test_another_root_and_absolute_paths(tmp_path):
    tree(tmp_path, "images/1.jpg")
    path = csv_file(tmp_path, f"path,label\n1.jpg,a\n{tmp_path}/2.jpg,b\n")
    table = read_table(path, root=tmp_path / "images")
    assert table.files() == [str(tmp_path / "images/1.jpg"), str(tmp_path / "2.jpg")]
    refusal(lambda: read_table(path, root=tmp_path / "no"), tmp_path / "no")


BAD = {  # text, what the message names
    "file,label\n1,a\n": ["'path'", "'file', 'label'"],
    "path,lable\n1,a\n": ["'label'", "mean lable?"],
    "path;label\n1;a\n": ["t.csv", "semicolons", "commas"],
    "path;label, x\n1;a,2\n": ["t.csv", "semicolons"],
    "path,label\n1," + "a" * 100_000 + "\n" + "2,b\n" * 10_000: ["t.csv", "'label'"],
    "path,label\n": ["t"],
    "path,label\n1,a\n2\n": ["line 3"],
    'path,label\n1,"a\n': ["t.csv"],
    "": ["t.csv"],
}


def test_files_that_are_no_tables(tmp_path):
    for text, parts in BAD.items():
        refusal(lambda text=text: read_table(csv_file(tmp_path, text)), *parts)
    refusal(lambda: read_table(tmp_path / "no.csv"), "no.csv")
    refusal(lambda: read_table(csv_file(tmp_path, "path,label\n1,é\n", "latin-1")), "t.csv", "UTF-8")
    (tmp_path / "t.xlsx").write_bytes(b"x")
    refusal(lambda: read_table(tmp_path / "t.xlsx"), "'.xlsx'", ".csv, .parquet")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    refusal(lambda: read_table(tmp_path / "t.parquet"), "t.parquet")


def test_a_parquet_table(tmp_path):
    path = parquet(
        tmp_path,
        path=["1", "2", "3"],
        label=pa.array([10, 9, 9]),
        category=pa.array(["x", None, "y"]),
        split=pa.array(["train", "val", None]).dictionary_encode(),
        weight=[0.5, 1, 2],
        seen=pa.array([1, None, 3]),
        note=pa.array(["ä", None, ""]),
        embedding=[[1.0], [2.0], [3.0]],
    )
    table = read_table(path)
    assert rows_of(table) == [
        ("1", "10", "x", "train", ""),
        ("2", "9", "", "validation", ""),
        ("3", "9", "y", "train", ""),
    ]
    assert extra_of(table) == {"weight": [0.5, 1, 2], "seen": ["1", "", "3"], "note": ["ä", "", ""]}


def test_parquet_tables_that_cannot_be_used(tmp_path, monkeypatch):
    for labels in ([1.0, 2.0], [True, False]):
        path = parquet(tmp_path, path=["1", "2"], label=labels)
        refusal(lambda path=path: read_table(path), "t.parquet", "'label'")
    nothing = pa.array([], pa.string())
    refusal(lambda: read_table(parquet(tmp_path, path=nothing, label=nothing)), "images")
    refusal(lambda: read_table(parquet(tmp_path, path=["1"], label=pa.array([None], pa.string()))), "label")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refusal(lambda: read_table(tmp_path / "t.parquet"), "pyarrow", "frontrank[train]")


def test_boxes_as_lists(tmp_path):
    lists = [[1, 2, 3, 4], None, []]
    wanted = [(1, 2, 3, 4), None, None]
    for kind in (pa.list_(pa.int64()), pa.large_list(pa.float32()), pa.list_(pa.float64())):
        table = read_table(parquet(tmp_path, path=list("123"), label=list("aab"), Box=pa.array(lists, kind)))
        assert table.boxes() == wanted
        assert table.extra["box"].dtype.kind == "U"
    fixed = pa.array([[0.1, 2, 3, 4.25]] * 2, pa.list_(pa.float64(), 4))
    table = read_table(parquet(tmp_path, path=list("12"), label=list("aa"), box=fixed))
    assert table.extra["box"].tolist() == ["0.1 2.0 3.0 4.25"] * 2


@pytest.mark.parametrize(
    ("level2", "category", "names", "others"),
    [
        (["a", "a", "b", "b"], ["x", "x", "x", "y"], ("label", "level2"), ["category"]),  # b is in x and y
        (["a", "a", "b", "c"], ["x", "x", "x", "y"], ("label", "level2", "category"), []),
        (["a", "", "b", "c"], ["x", "x", "x", "y"], ("label", "category"), ["level2"]),
        (["a", "a", "a", "a"], ["", "", "", ""], ("label",), ["level2"]),
    ],
)
def test_levels_are_the_columns_that_hold_classes_whole(level2, category, names, others):
    paths, labels, extra = list("1234"), list("pqrs"), {"level2": np.array(level2)}
    table = ImageTable("x", paths, labels, category, ["test"] * 4, [""] * 4, extra)
    assert table.level_names() == names
    faults = level_faults(table.labels, {**extra, "category": table.categories})
    assert [re.search("level2|category", fault)[0] for fault in faults] == others
    assert table.level_labels().shape == ((4, len(names)) if len(names) > 1 else (4,))


def test_a_distractor_is_in_no_class_of_any_level():
    paths, roles = list("1234"), ["query", "gallery", "query", "distractor"]
    table = table_of(paths=paths, labels=["p", "p", "q", ""], categories=["x", "x", "y", "x"], roles=roles)
    levels = table.level_labels()
    assert levels.tolist() == [["p", "x"], ["p", "x"], ["q", "y"], ["", ""]]
    report = evaluate(np.eye(4)[::2], levels[::2], gallery=np.eye(4)[1:], gallery_labels=levels[1:], metrics=["R@1"])
    assert report.per_query["R@1 (level 2)"].tolist() == [0, 1]


# Several labels per image

LISTS = [["cat", "dog"], "dog", ["oak", "cat", "oak"], ["elm"]]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_lists_of_labels_are_saved_and_read(tmp_path, ending):
    table = table_of(LISTS)
    table.save(tmp_path / f"t{ending}")
    again = read_table(tmp_path / f"t{ending}")
    assert again.label_sets() == table.label_sets() == [{"cat", "dog"}, {"dog"}, {"oak", "cat"}, {"elm"}]
    assert again.first_labels().tolist() == ["cat", "dog", "oak", "elm"]
    assert sorted(again.class_sizes()) == [1, 1, 2, 2]
    assert again.counts()[0]["classes"] == 4
    assert again.rows(np.array([1, 3])).label_sets() is None


def test_a_column_of_lists_in_parquet(tmp_path):
    columns = {"path": ["1.jpg", "2.jpg"], "label": [["a", "b"], ["b"]]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").label_sets() == [{"a", "b"}, {"b"}]
    columns["label"][1] = []
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    refusal(lambda: read_table(tmp_path / "t.parquet"), "2.jpg", "label")


@pytest.mark.parametrize("label", ["[draft]", '["cat"', '[["cat"], "dog"]', "[1, 2]"])
def test_a_text_that_is_no_list_of_labels_is_one_label(label):
    table = table_of([label, "b"])
    assert table.label_sets() is None
    assert table.first_labels().tolist() == [label, "b"]


@pytest.mark.parametrize(
    "use", [ImageTable.level_labels, lambda table: hold_out_classes(table, 0.5), lambda table: merge_classes(table, 2)]
)
def test_what_needs_one_label_refuses_several(use):
    refusal(lambda: use(table_of(LISTS)), "0.jpg")


def test_labels_that_begin_as_a_deep_list(tmp_path):
    label = '["a",' + "[" * 50_000
    quoted = label.replace('"', '""')
    (tmp_path / "t.csv").write_text(f'path,label\n1,"{quoted}"\n')
    assert read_table(tmp_path / "t.csv").labels.tolist() == [label]
