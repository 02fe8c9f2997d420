"""Published data sets: what is read from each layout, what is missing, and lines that cannot be used."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest

from frontrank.data import published
from frontrank.data.published import PUBLISHED, detect_layout, list_names, read_published
from frontrank.errors import FrontrankWarning
from tests.data import published_trees as trees
from tests.data.published_trees import TREES, write, write_images
from tests.data.test_table import assert_same
from tests.errors import refusal

READERS = {name: dataset.read for name, dataset in PUBLISHED.items()}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Writes a data set in miniature, with its counts as the official ones."""

    def write_tree(name, folder=""):
        expect(monkeypatch, name, TREES[name](tmp_path / folder))
        return tmp_path

    return write_tree


def expect(monkeypatch, name, *counts):
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], counts=counts))


def partial(name, root):
    """The table of what is there, and the warning."""
    with pytest.warns(FrontrankWarning) as caught:
        table = read_published(name, root, allow_partial=True)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    message = str(caught[0].message)
    assert "\n" not in message
    return table, message


# What is read from each layout


def rows(table):
    """Path, label, category, split and role of each image."""
    columns = (table.paths, table.labels, table.categories, table.splits, table.roles)
    return list(zip(*(column.tolist() for column in columns), strict=True))


ROWS = {
    "sop": [
        ("bicycle_final/111_0.JPG", "1", "bicycle", "train", ""),
        ("bicycle_final/111_1.JPG", "1", "bicycle", "train", ""),
        ("bicycle_final/222_0.JPG", "2", "bicycle", "train", ""),
        ("cabinet_final/333_0.JPG", "3", "cabinet", "train", ""),
        ("bicycle_final/444_0.JPG", "4", "bicycle", "test", ""),
        ("bicycle_final/444_1.JPG", "4", "bicycle", "test", ""),
        ("cabinet_final/555_0.JPG", "5", "cabinet", "test", ""),
    ],
    "vggface2": [
        *((f"train/n00000{i}/000{j}_01.jpg", f"n00000{i}", "", "train", "") for i in (2, 3) for j in (1, 2)),
        *(
            (f"test/n000001/000{j}_01.{end}", "n000001", "", "test", "")
            for j, end in ((1, "jpg"), (2, "jpg"), (3, "JPG"))
        ),
    ],
    "roxford5k": [
        ("jpg/all_souls_000026.jpg", "", "", "test", "query"),
        ("jpg/q.jpg", "", "", "test", "query"),
        ("jpg/all_souls_000013.jpg", "", "", "test", "gallery"),
        ("jpg/oxford_002985.jpg", "", "", "test", "gallery"),
        ("jpg/b.jpg", "", "", "test", "gallery"),
    ],
    "revisited-1m": [(f"jpg/{name}", "", "", "test", "distractor") for name in ("1/a.jpg", "1/b.jpg", "2/c.jpg")],
    "landmarks-clean": [
        (name, label, "", "train", "")
        for name, label in zip(trees.LANDMARK_IMAGES, ["17", "17", "4", "4"], strict=True)
    ],
    "cub": [(f"images/{path}", str(label), "", "train" if label <= 100 else "test", "") for path, label in trees.CUB],
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(tmp_path, name):
    TREES[name](tmp_path)
    if name == "vggface2":  # an ending in capitals
        (tmp_path / "test/n000001/0003_01.jpg").rename(tmp_path / "test/n000001/0003_01.JPG")
    if name == "cub":  # images go by their number, not by the line
        lines = (tmp_path / "image_class_labels.txt").read_text().splitlines()
        write(tmp_path, {"image_class_labels.txt": lines[::-1]})
    table = READERS[name](tmp_path)
    assert table.root == tmp_path
    assert rows(table) == ROWS[name]
    if name == "roxford5k":
        assert table.extra["box"].tolist() == ["136.5 34.1 648.5 955.7", "1 2 3 4", "", "", ""]
        assert table.extra["index"].tolist() == [0, 1, 0, 1, 2]


SHIRT = ("id_00000001", "WOMEN/Blouses_Shirts", "test")


@pytest.mark.parametrize("above", ["Img/", ""], ids=["Img/img", "img"])
def test_in_shop(tmp_path, above):
    trees.in_shop(tmp_path, above)
    assert rows(published.read_in_shop(tmp_path)) == [
        (f"{above}img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "WOMEN/Dresses", "train", ""),
        (f"{above}img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "WOMEN/Dresses", "train", ""),
        (f"{above}img/MEN/Denim/id_00000003/01_1_front.jpg", "id_00000003", "MEN/Denim", "train", ""),
        (f"{above}img/WOMEN/Blouses_Shirts/id_00000001/02_1_front.jpg", *SHIRT, "query"),
        (f"{above}img/WOMEN/Blouses_Shirts/id_00000001/02_2_side.jpg", *SHIRT, "gallery"),
        (f"{above}img/WOMEN/Blouses_Shirts/id_00000001/02_3_back.jpg", *SHIRT, "gallery"),
    ]


def test_vehicleid(tmp_path):
    trees.vehicleid(tmp_path)
    table = published.read_vehicleid(tmp_path)
    assert rows(table) == [
        ("image/0000001.jpg", "10", "3", "train", ""),
        ("image/0000002.jpg", "10", "3", "train", ""),
        ("image/0000003.jpg", "11", "", "train", ""),
        ("image/0000004.jpg", "20", "3", "test", ""),
        ("image/0000005.jpg", "20", "3", "test", ""),
        ("image/0000006.jpg", "21", "0", "test", ""),
        ("image/0000007.jpg", "21", "0", "test", ""),
        ("image/0000008.jpg", "22", "", "test", ""),
    ]
    inside = {size: np.flatnonzero(table.extra[size]).tolist() for size in table.extra}
    assert inside == {"small": [3, 4], "medium": [4, 5, 6], "large": [3, 5, 7]}
    assert all(column.dtype == bool for column in table.extra.values())
    (tmp_path / "attribute/model_attr.txt").unlink()
    assert set(published.read_vehicleid(tmp_path).categories) == {""}


@pytest.mark.parametrize("name", ["Inaturalist_{}_set1.txt", None])
def test_inaturalist(tmp_path, name):
    trees.inaturalist(tmp_path)
    for split in ("train", "test") if name else ():
        (tmp_path / f"Inat_dataset_splits/Inaturalist_{split}_set1.txt").rename(tmp_path / name.format(split))
    assert rows(published.read_inaturalist(tmp_path)) == [
        ("train_val2018/Plantae/5221/a0.jpg", "Plantae/5221", "Plantae", "train", ""),
        ("train_val2018/Plantae/5221/a1.jpg", "Plantae/5221", "Plantae", "train", ""),
        ("train_val2018/Aves/77/b0.jpg", "Aves/77", "Aves", "train", ""),
        ("train_val2018/Aves/78/c0.jpg", "Aves/78", "Aves", "test", ""),
        ("train_val2018/Insecta/9/d0.jpg", "Insecta/9", "Insecta", "test", ""),
        ("train_val2018/Insecta/9/d1.jpg", "Insecta/9", "Insecta", "test", ""),
        ("train_val2018/Insecta/9/d2.jpg", "Insecta/9", "Insecta", "test", ""),
    ]


FACES = [  # file, subject, template, box
    ("img/1.jpg", "1", "1/img/1.jpg", "10 20 40 60"),
    ("img/2.jpg", "1", "1/img/2.jpg", "1 2 4 6"),
    ("img/3.jpg", "1", "1/img/3.jpg", "1 2 4 6"),
    ("frames/1.jpg", "1", "1/104", "1 2 4 6"),
    ("frames/2.jpg", "1", "1/104", "1 2 4 6"),
    ("frames/3.jpg", "1", "1/105", "1 2 4 6"),
    ("frames/3.jpg", "2", "2/106", "50 2 53 6"),
    ("img/4.jpg", "2", "2/img/4.jpg", "1 2 4 6"),
    ("img/5.jpg", "2", "2/img/5.jpg", "1 2 4 6"),
    ("frames/4.jpg", "2", "2/106", "1 2 4 6"),
    ("img/6.jpg", "2", "2/img/6.jpg", ""),
    ("img/8.jpg", "3", "3/img/8.jpg", "1 2 4 6"),
]


def faces(table):
    columns = (table.paths, table.labels, table.extra["template"], table.extra["box"])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_ijb_c(tmp_path):
    trees.ijb_c(tmp_path)
    table = published.read_ijb_c(tmp_path)
    assert faces(table) == [(f"images/{name}", *others) for name, *others in FACES]
    assert set(table.splits) == {"test"}
    assert set(table.roles) == {""}


def test_ijb_c_prefers_the_sighting_to_the_template(tmp_path):
    lines = ["TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID", "7,1,frames/1.png,3", "7,1,frames/2.png,4"]
    lines += ["7,1,frames/3.png,", ",1,frames/4.png,"]
    write(tmp_path, {"protocols/ijbc_metadata.csv": lines})
    table = published.read_ijb_c(tmp_path)
    assert table.extra["template"].tolist() == ["1/3", "1/4", "1/7", "1/frames/4.png"]
    assert table.extra["box"].tolist() == [""] * 4


# Lines that cannot be used

LISTS = {  # name, list, which line of it is of an image
    "sop": ("Ebay_test.txt", 3),
    "in-shop": ("Eval/list_eval_partition.txt", 4),
    "vehicleid": ("train_test_split/test_list_1600.txt", 2),
    "inaturalist": ("Inat_dataset_splits/Inaturalist_train_set1.txt", 2),
    "cub": ("images.txt", 2),
    "ijb-c": ("protocols/ijbc_metadata.csv", 3),
    "landmarks-clean": ("annotation_clean_train.txt", 2),
    "revisited-1m": ("revisitop1m.txt", 2),
}


def change_line(root, name, change):
    """The list of a data set with another line in it, as bytes."""
    trees.TREES[name](root)
    path, line = LISTS[name]
    lines = (root / path).read_bytes().split(b"\n")
    lines[line - 1] = change(lines[line - 1])
    (root / path).write_bytes(b"\n".join(lines))
    return root / path, line


@pytest.mark.parametrize("name", LISTS)
def test_lists_in_other_forms_and_damaged_ones(tmp_path, name):
    """Line ends and blank lines at the end do not matter; other bytes, blank lines and numbers of fields do."""
    TREES[name](tmp_path)
    plain = READERS[name](tmp_path)
    path = tmp_path / LISTS[name][0]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\n \n")
    assert_same(READERS[name](tmp_path), plain)
    changes = [lambda line: line + b"\xff"]
    if name != "ijb-c":
        changes.append(lambda line: b" ")
    if name not in ("inaturalist", "revisited-1m"):
        changes += [lambda line: line + b" x,y", lambda line: line.split(b",")[0].split()[0]]
    for change in changes:
        path, line = change_line(tmp_path, name, change)
        refusal(lambda: READERS[name](tmp_path), path, f"line {line} ")


OUTSIDE = ["/etc/a/b/c.jpg", "a/../../b/c.jpg", "a/b\\c/d/e.jpg", "a/b/c/\0.jpg"]
BELOW_IMAGES = ("vehicleid", "revisited-1m")  # whose names are below the folder of images also if they begin with /


@pytest.mark.parametrize("name", LISTS)
def test_an_image_outside_the_folder(tmp_path, name):
    for bad in OUTSIDE[name in BELOW_IMAGES :]:

        def change(line, bad=bad):
            if name in ("inaturalist", "revisited-1m"):
                return bad.encode()
            between = b"," if name == "ijb-c" else None
            fields = line.split(between)
            fields[{"sop": 3, "cub": 1, "ijb-c": 1}.get(name, 0)] = bad.encode()
            return (between or b" ").join(fields)

        path, line = change_line(tmp_path, name, change)
        refusal(lambda: READERS[name](tmp_path), path, f"line {line} ", "folder")


@pytest.mark.parametrize("name", [name for name in LISTS if name != "ijb-c"])
def test_an_image_listed_twice(tmp_path, name):
    trees.TREES[name](tmp_path)
    file = LISTS[name][0]
    lines = (tmp_path / file).read_text().splitlines()
    if name == "in-shop":
        lines[0] = str(len(lines) - 1)
    if name == "cub":  # by another number
        lines.append("6 " + lines[-1].split()[1])
        write(tmp_path, {file: lines, "image_class_labels.txt": [f"{i} 1" for i in range(1, 7)]})
    else:
        write(tmp_path, {file: [*lines, lines[-1]]})
    refusal(lambda: READERS[name](tmp_path), tmp_path)


PARTITION = "Eval/list_eval_partition.txt"
VEHICLES = "train_test_split/train_list.txt"
LABELS = "image_class_labels.txt"
METADATA = "protocols/ijbc_metadata.csv"
ADDRESSES = "annotation_clean_train.txt"
INAT = "Inat_dataset_splits/Inaturalist_test_set1.txt"
TRUTH = "gnd_roxford5k.pkl"
SOP, SHOP, FACE = [trees.SOP_HEADER], trees.IN_SHOP_HEADER, trees.IJBC_HEADER
WRONG = {  # data set, file, its content, what the message names
    "sop: no header": ("sop", "Ebay_train.txt", trees.SOP_TRAIN, "line 1"),
    "sop: a class that is no number": ("sop", "Ebay_train.txt", [*SOP, "1 x 1 a/b.JPG"], "line 2"),
    "sop: blank": ("sop", "Ebay_train.txt", b" \r\n\n", "Ebay_train.txt"),
    "sop: in train and test": ("sop", "Ebay_train.txt", [*SOP, trees.SOP_TEST[0]], "444_0.JPG"),
    "sop: headers alone": ("sop", "Ebay_train.txt", SOP, "image"),
    "in-shop: cut": ("in-shop", PARTITION, [6, SHOP, *trees.IN_SHOP[:5]], "line 1"),
    "in-shop: validation": ("in-shop", PARTITION, [1, SHOP, "img/a/b/c/d.jpg id_1 val"], "line 3"),
    "vehicleid: another digit": ("vehicleid", VEHICLES, ["0000001 ٣"], "vehicle_id"),
    "vehicleid: two vehicles": ("vehicleid", "train_test_split/test_list_800.txt", ["0000004 21"], "0000004.jpg"),
    "vehicleid: in train and test": ("vehicleid", VEHICLES, ["0000004 20"], "0000004.jpg"),
    "inaturalist: no category": ("inaturalist", INAT, ["train_val2018/78/c0.jpg"], "line 1"),
    "cub: a number twice": ("cub", "images.txt", ["1 a/b.jpg", "1 a/c.jpg"], "images.txt line 2"),
    "cub: an image without a class": ("cub", LABELS, ["1 1", "2 1", "3 100", "5 200"], "image_id 4"),
    "ijb-c: no header": ("ijb-c", METADATA, trees.IJBC, "SUBJECT_ID"),
    "ijb-c: no media": ("ijb-c", METADATA, ["SUBJECT_ID,FILENAME", "1,a.jpg"], "SIGHTING_ID"),
    "ijb-c: no box": ("ijb-c", METADATA, [FACE, "1,img/1.jpg,1,1,x,3,4,"], "line 2"),
    "ijb-c: an open quote": ("ijb-c", METADATA, [FACE, '1,"img/1.jpg,1,1,x,3,4,'], "CSV"),
    "landmarks-clean: alike": ("landmarks-clean", ADDRESSES, ["http://a/1.jpg 3", "http://b/1.jpg 3"], "3/1.jpg"),
    "roxford5k: three numbers": ("roxford5k", TRUTH, trees.truth(boxes=[[1, 2, 3], [1, 2, 3, 4]]), "gnd[0]"),
    "roxford5k: a query in the gallery": ("roxford5k", TRUTH, trees.truth(queries=("b", "q")), "jpg/b.jpg"),
    "roxford5k: a path": ("roxford5k", TRUTH, trees.truth(images=("../a",)), "'../a'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used(tmp_path, case):
    name, file, content, part = WRONG[case]
    TREES[name](tmp_path)
    write(tmp_path, {file: pickle.dumps(content) if isinstance(content, dict) else content})
    if case == "sop: headers alone":
        write(tmp_path, {"Ebay_test.txt": content})
    refusal(lambda: READERS[name](tmp_path), tmp_path, part)


def test_no_faces_and_names_in_a_folder(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split / "n000001").mkdir(parents=True)
    refusal(lambda: READERS["vggface2"](tmp_path), tmp_path, "image")
    write_images(tmp_path, ["a/b.jpg", "a/c d.jpg", "a/e/f.jpg", "g.jpg"])
    assert list_names(tmp_path / "a") == {"b.jpg", "c d.jpg", "e"}
    assert list_names(tmp_path / "nowhere") == list_names(tmp_path / "g.jpg") == set()


# Counts, and what is missing


@pytest.mark.parametrize("name", TREES)
def test_a_whole_data_set(tree, name):
    root = tree(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = read_published(name, str(root))
        same = read_published(name, root, allow_partial=True)
    assert table.name == PUBLISHED[name].title
    assert table.root == root
    assert table.paths.tolist() == same.paths.tolist()
    assert_same(table, PUBLISHED[name].read(root))
    if name != "ijb-c":  # a frame of several faces
        table.check(labelled=name not in ("roxford5k", "rparis6k"))
    assert all((root / path).is_file() for path in table.paths)
    assert detect_layout(root) == name


def test_what_is_detected(tmp_path, tree):
    root = tree("sop", "unpacked/Stanford_Online_Products") / "unpacked"
    home = root / PUBLISHED["sop"].folder  # the one that the archive makes
    assert detect_layout(root) == detect_layout(str(home)) == "sop"
    assert read_published("sop", root).root == home
    assert detect_layout(tmp_path) is None
    assert detect_layout(tmp_path / "nowhere") is None
    write_images(tmp_path, ["train/cat/1.jpg", "test/dog/1.jpg", "Eval/list_eval_partition.txt", "images.txt"])
    assert detect_layout(tmp_path) is None
    assert detect_layout(tmp_path / "images.txt") is None
    nabirds = ["images.txt", "image_class_labels.txt", "train_test_split.txt", "images/0295/0a1b.jpg"]
    write_images(tmp_path / "nabirds", nabirds)  # it has the lists of another data set
    assert detect_layout(tmp_path / "nabirds") is None
    write_images(tmp_path / "two", ["image_class_labels.txt", "images/200.Wren/1.jpg", "Ebay_test.txt"])
    refusal(lambda: detect_layout(tmp_path / "two"), "sop", "cub")


def test_names_and_roots(tmp_path):
    refusal(lambda: read_published("in_shop", tmp_path), "name", "'in_shop'", "mean in-shop?")
    write_images(tmp_path, ["file"])
    for root in (tmp_path / "nowhere", tmp_path / "file"):
        refusal(lambda root=root: read_published("sop", root), root, "Ebay_train.txt")


REQUIRED = {
    "sop": ["Ebay_train.txt", "Ebay_test.txt"],
    "in-shop": ["Eval/list_eval_partition.txt"],
    "vehicleid": [f"train_test_split/{name}.txt" for name in trees.VEHICLES],
    "inaturalist": [f"Inat_dataset_splits/Inaturalist_{split}_set1.txt" for split in ("train", "test")],
    "cub": ["images.txt", "image_class_labels.txt"],
    "vggface2": ["train", "test"],
    "ijb-c": ["protocols/ijbc_metadata.csv"],
    "landmarks-clean": ["annotation_clean_train.txt"],
    "roxford5k": ["gnd_roxford5k.pkl"],
    "rparis6k": ["gnd_rparis6k.pkl"],
    "revisited-1m": ["revisitop1m.txt"],
}


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_list(tree, name):
    root = tree(name)
    for file in REQUIRED[name]:
        (root / file).rename(root / "away")
        for allow_partial in (False, True):
            refusal(lambda file=file, allow=allow_partial: read_published(name, root, allow), root / file)
        assert file.partition("_")[0] in PUBLISHED[name].layout
        (root / "away").rename(root / file)


@pytest.mark.parametrize("call", ["frontrank.data.published.os.listdir", "pathlib.Path.read_bytes"])
def test_what_may_not_be_read(tree, monkeypatch, call):
    root = tree("sop")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(call, refuse)
    refusal(lambda: read_published("sop", root), root, "Permission denied")


LOST = {  # an image, the counts that are then wrong, and a class that is gone with it
    "sop": ("cabinet_final/555_0.JPG", ["2 images of 1 class", "3 images of 2 classes"], "5"),
    "vehicleid": ("image/0000008.jpg", ["large", "2 images of 2 classes", "3 images of 3 classes"], "22"),
    "revisited-1m": ("jpg/1/b.jpg", ["distractor", "2 images"], ""),
}


@pytest.mark.parametrize("name", LOST)
def test_a_missing_image(tree, name):
    root = tree(name)
    image, counts, label = LOST[name]
    (root / image).unlink()
    parts = [PUBLISHED[name].title, str(root), *counts, image]
    message = refusal(lambda: read_published(name, root), *parts, "--allow-partial (allow_partial=True)")
    assert message.count(" instead of ") == 1
    assert (f": {label};" in message) == bool(label)
    table, message = partial(name, root)
    whole = PUBLISHED[name].read(root)
    assert table.paths.tolist() == [path for path in whole.paths.tolist() if path != image]
    assert all(part in message for part in parts)
    assert f" {len(whole) - 1} images" in message
    assert table.name == PUBLISHED[name].title


def test_no_image_is_there(tree):
    root = tree("cub")
    (root / "images").rename(root / "pictures")
    for allow_partial in (False, True):
        message = refusal(
            lambda allow=allow_partial: read_published("cub", root, allow), "5 listed", "1, 100, 101, ..."
        )
        assert "allow" not in message
