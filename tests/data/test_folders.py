import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frontrank.data.table import IMAGE_ENDINGS, list_images, read_folder, read_table, read_unlabelled
from frontrank.errors import FrontrankWarning, InputTypeError
from tests.data.files import refusal


def tree(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    return root


def rows(table):
    columns = (table.paths, table.labels, table.categories, table.splits, table.roles)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_folder_of_classes(tmp_path):
    table = read_folder(tree(tmp_path, "dog/b.png", "cat/2.jpg", "cat/10.jpg", "Cat/1.jpg"))
    assert rows(table) == [
        ("Cat/1.jpg", "Cat", "", "train", ""),
        ("cat/10.jpg", "cat", "", "train", ""),
        ("cat/2.jpg", "cat", "", "train", ""),
        ("dog/b.png", "dog", "", "train", ""),
    ]
    assert table.root == tmp_path
    assert table.name == tmp_path.name
    assert rows(read_folder(str(tmp_path))) == rows(table)


def test_a_folder_of_categories(tmp_path):
    table = read_folder(tree(tmp_path, "shoe/1/a.jpg", "shoe/2/a.jpg", "bag/1/a.jpg"))
    assert rows(table) == [
        ("bag/1/a.jpg", "bag/1", "bag", "train", ""),
        ("shoe/1/a.jpg", "shoe/1", "shoe", "train", ""),
        ("shoe/2/a.jpg", "shoe/2", "shoe", "train", ""),
    ]


@pytest.mark.parametrize("category", ["", "fruit/"])
def test_splits_and_roles_at_the_top(tmp_path, category):
    tops = {
        "train": ("train", ""),
        "val": ("validation", ""),
        "validation": ("validation", ""),
        "valid": ("validation", ""),
        "Test": ("test", ""),
        "query": ("test", "query"),
        "gallery": ("test", "gallery"),
    }
    table = read_folder(tree(tmp_path, *(f"{top}/{category}fig/1.jpg" for top in tops)))
    label = f"{category}fig"
    assert sorted(rows(table)) == sorted(
        (f"{top}/{label}/1.jpg", label, category.rstrip("/"), *use) for top, use in tops.items()
    )


ODD = {
    "another name of a split": (["train/cat/1.jpg", "dev/cat/1.jpg"], "dev", "train"),
    "a class": (["bus/1.jpg", "car/1.jpg", "Train/1.jpg"], "bus", "Train"),
    "a category": (["shoe/1/a.jpg", "Test/1/a.jpg"], "shoe", "Test"),
    "pictures of something else": (["query/a/1.jpg", "gallery/a/1.jpg", "docs/plot.png"], "docs", "gallery"),
}


@pytest.mark.parametrize("name", ODD)
def test_splits_beside_other_folders(tmp_path, name):
    paths, other, use = ODD[name]
    refusal(
        lambda: read_folder(tree(tmp_path, *paths)),
        f"{tmp_path} has the folder {other} beside {use}, ",
        f"rename {other} to train, validation, test, query or gallery",
        f"if {use} is a class, rename that, or use a table",
    )


def test_names_of_splits_inside_are_classes(tmp_path):
    table = read_folder(tree(tmp_path, "a/train/1.jpg", "a/test/1.jpg", "train2/bus/1.jpg"))
    assert table.labels.tolist() == ["a/test", "a/train", "train2/bus"]
    assert set(table.splits) == {"train"}


def test_a_folder_without_images_at_the_top_does_not_count(tmp_path):
    table = read_folder(tree(tmp_path, "train/a/1.jpg", "test/b/1.jpg", "docs/readme.txt"))
    assert table.splits.tolist() == ["test", "train"]


def test_endings_and_what_is_passed_over(tmp_path):
    images = [f"a/{number}{ending}" for number, ending in enumerate(IMAGE_ENDINGS)]
    images += ["a/UP.JPG", "a/b.JpEg", "a/with space.png", "a/ünï.png", "a/u\u0308.png", "a/line\nbreak.jpg"]
    junk = ["a/.hidden.jpg", ".git/1.jpg", "__MACOSX/a/1.jpg", "a/Thumbs.db", "a/desktop.ini", ".DS_Store"]
    tree(tmp_path, *images, *junk, "a/notes.txt", "labels.csv", "a/jpg", "more.csv")
    listing = list_images(tmp_path)
    assert list(listing.images) == sorted(images)
    assert listing.others == {"": 1, ".csv": 2, ".txt": 1}
    assert read_folder(tmp_path).paths.tolist() == sorted(images)


def test_the_order_of_the_file_system_does_not_matter(tmp_path, monkeypatch):
    tree(tmp_path, *(f"{label}/{number}.jpg" for label in "cab" for number in (3, 1, 2)))
    expected = read_folder(tmp_path).paths.tolist()
    assert expected == sorted(expected)
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: sorted(scandir(path), key=lambda entry: entry.name, reverse=True))
    assert read_folder(tmp_path).paths.tolist() == expected


def test_pictures_of_formats_that_are_not_read_are_told_of(tmp_path):
    tree(tmp_path, "a/1.jpg", "a/2.heic", "b/3.HEIC", "b/1.svg", "b/1.jpg")
    with pytest.warns(FrontrankWarning, match=r"3 pictures that end in \.heic, \.svg are left out") as caught:
        assert len(read_folder(tmp_path)) == 2
    assert caught[0].filename == __file__


def test_images_in_no_class(tmp_path):
    tree(tmp_path, "1.jpg")
    refusal(lambda: read_folder(tmp_path), tmp_path / "1.jpg", "in no folder of a class", f"{tmp_path}/<class>/<image>")
    tree(tmp_path, "a/1.jpg")
    refusal(lambda: read_folder(tmp_path), tmp_path / "1.jpg", "in no folder of a class")


@pytest.mark.parametrize("path", ["2.jpg", "test/2.jpg"])
def test_images_in_a_split_but_no_class(tmp_path, path):
    tree(tmp_path, "train/a/1.jpg", path)
    refusal(lambda: read_folder(tmp_path), tmp_path / path, "in no folder of a class", "/train/<class>/<image>")


def test_mixed_and_too_many_levels(tmp_path):
    tree(tmp_path, "a/1.jpg", "a/2.jpg", "b/c/1.jpg", "b/c/2.jpg")
    refusal(lambda: read_folder(tmp_path), tmp_path, "(a/1.jpg)", "(b/c/1.jpg)", "use one of the two")
    tree(tmp_path, "b/c/d/1.jpg")
    refusal(lambda: read_folder(tmp_path), tmp_path / "b/c/d/1.jpg", "too deep")


def test_splits_of_different_depth(tmp_path):
    tree(tmp_path, "train/a/1.jpg", "test/x/b/1.jpg")
    refusal(lambda: read_folder(tmp_path), "(train/a/1.jpg)", "(test/x/b/1.jpg)")


def test_folders_without_images(tmp_path):
    refusal(lambda: read_folder(tmp_path), tmp_path, "has no images but no files", ".jpg, .jpeg, .png")
    tree(tmp_path, "a/1.txt", "a/2.txt", "b/3.svg")
    refusal(lambda: read_folder(tmp_path), "no images but 3 other files")


def test_what_is_no_folder(tmp_path):
    refusal(lambda: read_folder(tmp_path / "no"), tmp_path / "no", "is not there", "give the folder")
    refusal(lambda: read_folder(tmp_path / "no.csv"), "is not there; give the folder")
    tree(tmp_path, "t.csv", "1.jpg")
    refusal(lambda: read_folder(tmp_path / "t.csv"), "is a file, not a folder; read it as a table")
    refusal(lambda: read_folder(tmp_path / "1.jpg"), "is a file, not a folder; give the folder")
    with pytest.raises(InputTypeError, match="must be a path"):
        read_folder(7)


def test_a_folder_that_may_not_be_listed(tmp_path, monkeypatch):
    tree(tmp_path, "a/1.jpg")

    def denied(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", denied)
    refusal(lambda: read_folder(tmp_path), tmp_path, "cannot be listed (Permission denied)", "may read")


def test_links(tmp_path):
    tree(tmp_path, "real/1.jpg", "root/a/1.jpg")
    root = tmp_path / "root"
    (root / "b").symlink_to(tmp_path / "real")
    (root / "a" / "2.jpg").symlink_to(tmp_path / "real" / "1.jpg")
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "here").symlink_to(root / "a")
    (root / "a" / "itself.jpg").symlink_to("itself.jpg")
    assert list_images(root).images == ("a/1.jpg", "a/2.jpg", "a/itself.jpg", "b/1.jpg")


def test_unlabelled(tmp_path, monkeypatch):
    tree(tmp_path, "in/1.jpg", "in/deep/er/2.PNG", "in/.no.jpg", "in/x.txt", "one.jpg", "odd.name")
    monkeypatch.chdir(tmp_path)
    table = read_unlabelled(["odd.name", "in", tmp_path / "one.jpg", "in/1.jpg", "./in/"])
    assert rows(table) == [
        (path, "", "", "test", "") for path in ("odd.name", "in/1.jpg", "in/deep/er/2.PNG", str(tmp_path / "one.jpg"))
    ]
    monkeypatch.chdir("/")
    assert all(Path(file).read_bytes() == b"x" for file in table.files())
    assert read_unlabelled(tmp_path / "in").paths.tolist() == [f"{tmp_path}/in/1.jpg", f"{tmp_path}/in/deep/er/2.PNG"]


def test_unlabelled_refuses(tmp_path):
    tree(tmp_path, "in/x.txt", "1.jpg")
    refusal(lambda: read_unlabelled([tmp_path / "no.jpg"]), tmp_path / "no.jpg", "is not there")
    refusal(lambda: read_unlabelled([tmp_path / "in"]), tmp_path / "in", "has no images but 1 other files")
    refusal(lambda: read_unlabelled([]), "has no images")
    assert len(read_unlabelled([tmp_path / "in", tmp_path / "1.jpg"])) == 1


def csv_file(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    return path


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
    assert rows(table) == [
        ("1.jpg", "cat", "pet", "test", "query"),
        ("2.jpg", "cat", "pet", "test", "gallery"),
        ("3.jpg", "dog", "", "validation", ""),
        ("4.jpg", "", "", "test", "distractor"),
        ("5.jpg", "dog", "", "train", ""),
    ]
    assert {name: column.tolist() for name, column in table.extra.items()} == {
        "photographer": ["A, B", "", "C", "C", "C"]
    }
    assert (table.root, table.name) == (tmp_path, "t")


def test_names_of_columns_in_capitals_and_blanks_around(tmp_path):
    header = " Path ,LABEL, Category,Split ,ROLE,Box,Note"
    lines = " 1.jpg , cat ,\tpet, test , query , 1 2 3 4 , n ", "2.jpg,cat,,valid ,,,"
    table = read_table(csv_file(tmp_path, "\n".join([header, *lines])))
    assert rows(table) == [("1.jpg", "cat", "pet", "test", "query"), ("2.jpg", "cat", "", "validation", "")]
    assert {name: column.tolist() for name, column in table.extra.items()} == {
        "box": [" 1 2 3 4 ", ""], "Note": [" n ", ""],
    }  # fmt: skip
    assert table.boxes() == [(1, 2, 3, 4), None]
    path = parquet(tmp_path, Path=["1 ", "2"], Label=["a", "b"], SPLIT=["test", " "], Weight=[1, 2])
    assert rows(read_table(path)) == [("1", "a", "", "test", ""), ("2", "b", "", "train", "")]
    assert list(read_table(path).extra) == ["Weight"]


@pytest.mark.parametrize(
    "name", ["note", "category_id", "split_date", "subcategory", "rule", "labels", "Paths", "text"]
)
def test_columns_of_other_names_are_extra(tmp_path, name):
    assert list(read_table(csv_file(tmp_path, f"path,label,{name}\n1.jpg,a,b\n")).extra) == [name]


MISSPELT = {"splits": "split", "spilt": "split", "Splitt": "split", "roles": "role", "Rolle": "role"}
MISSPELT |= {"categories": "category", "catagory": "category", "categorys": "category", "categorie": "category"}


@pytest.mark.parametrize("name", MISSPELT)
def test_columns_that_are_misspelt(tmp_path, name):
    meant = MISSPELT[name]
    refusal(
        lambda: read_table(csv_file(tmp_path, f"path,label,{name}\n1.jpg,a,test\n")),
        f"t.csv has a column '{name}'; did you mean '{meant}'? Else rename it",
    )
    table = read_table(csv_file(tmp_path, f"path,label,{name},{meant}\n1.jpg,a,b,{'test' * (meant == 'split')}\n"))
    assert list(table.extra) == [name]


LABELS = ["007", "7", "in side", "a, b", "naïve 漢字", "u\u0308", "1.50", 'q"q', "two\nlines", "NA"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_labels_are_text_as_it_stands(tmp_path, encoding, end):
    quoted = ['"' + label.replace('"', '""') + '"' for label in LABELS]
    lines = ["path, label", *(f"{number}.jpg,{label}" for number, label in enumerate(quoted)), "", ""]
    table = read_table(csv_file(tmp_path, end.join(lines), encoding))
    assert table.labels.tolist() == LABELS
    assert set(table.splits) == {"train"}
    assert set(table.roles) == set(table.categories) == {""}


def test_another_root_and_absolute_paths(tmp_path):
    tree(tmp_path, "images/1.jpg")
    path = csv_file(tmp_path, f"path,label\n1.jpg,a\n{tmp_path}/2.jpg,b\n")
    table = read_table(path, root=tmp_path / "images")
    assert table.files() == [str(tmp_path / "images/1.jpg"), str(tmp_path / "2.jpg")]
    refusal(lambda: read_table(path, root=tmp_path / "no"), tmp_path / "no", "is not there")


BAD = {
    "no path": ("file,label\n1,a\n", "no column 'path', only 'file', 'label'"),
    "misspelt": ("path,lable\n1,a\n", "no column 'label'", "did you mean 'lable'?"),
    "semicolons": ("path;label\n1;a\n", "only 'path;label'", "commas"),
    "header only": ("path,label\n", "t has no images"),
    "twice in capitals": ("path,label,Label\n1,a,b\n", "several columns 'label'"),
    "only blanks": ("path,label\n1.jpg,  \n", "1.jpg has no label"),
    "same but for blanks": ("path,label\n1.jpg,a\n 1.jpg,b\n", "1.jpg in more than one row"),
    "box": ("path,label,box\n0.jpg,a,\n1.jpg,a,1 2 3\n", "1.jpg has the box '1 2 3'; write left top right bottom"),
    "twice the column": ("path,label,label\n1,a,b\n", "several columns 'label'"),
    "short line": ("path,label\n1,a\n2\n", "1 fields in line 3 and 2 in its first"),
    "long line": ("path,label\n1,a,b\n", "3 fields in line 2"),
    "open quote": ('path,label\n1,"a\n', "cannot be read"),
    "no label": ("path,label\n1.jpg,\n", "1.jpg has no label"),
    "no path in a row": ("path,label\n,a\n", "no path in row 0"),
    "split": ("path,label,split\n1.jpg,a,Train\n", "1.jpg has the split 'Train'; did you mean 'train'?"),
    "role": ("path,label,role\n1.jpg,a,probe\n", "1.jpg has the role 'probe'"),
    "same path": ("path,label\n1.jpg,a\n./1.jpg,b\n", "./1.jpg in more than one row"),
}


@pytest.mark.parametrize("name", BAD)
def test_tables_that_cannot_be_used(tmp_path, name):
    text, *parts = BAD[name]
    refusal(lambda: read_table(csv_file(tmp_path, text)), *parts)


def test_files_that_are_no_tables(tmp_path):
    refusal(lambda: read_table(tmp_path / "no.csv"), "is not there")
    refusal(lambda: read_table(csv_file(tmp_path, "")), "is empty")
    refusal(lambda: read_table(csv_file(tmp_path, "path,label\n1,é\n", "latin-1")), "is not UTF-8", "CSV UTF-8")
    refusal(lambda: read_table(csv_file(tmp_path, "path,label\n1,a\n", "utf-16")), "is not UTF-8")
    (tmp_path / "t.xlsx").write_bytes(b"x")
    refusal(lambda: read_table(tmp_path / "t.xlsx"), "ends in '.xlsx'", ".csv, .parquet")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    refusal(lambda: read_table(tmp_path / "t.parquet"), "t.parquet cannot be read")


def parquet(tmp_path, **columns):
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


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
    assert rows(table) == [
        ("1", "10", "x", "train", ""),
        ("2", "9", "", "validation", ""),
        ("3", "9", "y", "train", ""),
    ]
    extra = {name: column.tolist() for name, column in table.extra.items()}
    assert extra == {"weight": [0.5, 1, 2], "seen": ["1", "", "3"], "note": ["ä", "", ""]}


@pytest.mark.parametrize("labels", [[1.0, 2.0], [True, False]], ids=["floats", "booleans"])
def test_parquet_labels_that_are_neither_text_nor_integers(tmp_path, labels):
    refusal(lambda: read_table(parquet(tmp_path, path=["1", "2"], label=labels)), "column 'label'", "text or integers")


def test_parquet_without_rows_labels_or_pyarrow(tmp_path, monkeypatch):
    nothing = pa.array([], pa.string())
    refusal(lambda: read_table(parquet(tmp_path, path=nothing, label=nothing)), "has no images")
    refusal(lambda: read_table(parquet(tmp_path, path=["1"], label=pa.array([None], pa.string()))), "1 has no label")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refusal(lambda: read_table(tmp_path / "t.parquet"), "pyarrow", "pip install 'frontrank[train]'")


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


NO_BOXES = {
    "integers": ([7, 8], "'7'"),
    "floats": ([0.5, 8], "'0.5'"),
    "three": ([[1, 2, 3], [1, 2, 3, 4]], "'1 2 3'"),
    "a gap": ([[1, None, 3, 4], [1, 2, 3, 4]], "'1 None 3 4'"),
    "words": ([list("abcd"), list("abcd")], "'a b c d'"),
    "records": ([{"x": 1}, {"x": 2}], "x"),
    "points": ([[[1, 2], [3, 4]], [[1, 2], [3, 4]]], "'[1, 2] [3, 4]'"),
}


@pytest.mark.parametrize("name", NO_BOXES)
def test_parquet_columns_that_are_no_boxes(tmp_path, name):
    boxes, said = NO_BOXES[name]
    path = parquet(tmp_path, path=["1.jpg", "2.jpg"], label=["a", "b"], box=boxes)
    refusal(lambda: read_table(path), "1.jpg has the box", said, "write left top right bottom")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_long_text_does_not_make_its_whole_column_long(tmp_path, ending):
    count = 2000
    columns = {
        "path": [f"{row}.jpg" for row in range(count)], "label": ["a"] * count,
        "note": ["", "x" * 10_000] + ["b"] * (count - 2), "short": ["y" * 128] * count,
    }  # fmt: skip
    lines = "\n".join(map(",".join, zip(*columns.values(), strict=True)))
    path = csv_file(tmp_path, f"{','.join(columns)}\n{lines}") if ending == "csv" else parquet(tmp_path, **columns)
    extra = read_table(path).extra
    assert extra["note"].tolist() == columns["note"]
    assert extra["note"].nbytes < 20 * count
    assert extra["short"].dtype.kind == "U"


def test_long_paths_and_labels_are_text_too(tmp_path):
    path, label = "d/" * 90 + "1.jpg", "x" * 200
    table = read_table(csv_file(tmp_path, f"path,label\n{path},{label}\n2.jpg,b\n"))
    assert (table.paths.tolist(), table.labels.tolist()) == ([path, "2.jpg"], [label, "b"])
    assert table.labels.dtype.kind == "U"


def test_no_warning_without_a_reason(tmp_path):
    tree(tmp_path, "a/1.jpg", "a/readme.txt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_folder(tmp_path)
    assert caught == []
    assert np.array_equal(read_folder(tmp_path).codes(), [0])
