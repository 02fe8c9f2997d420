"""What is read from each layout, and lines that cannot be used."""

import pickle

import numpy as np
import pytest

from frontrank.data import published as layouts
from frontrank.data.published import names_in
from tests.data import published_trees as trees
from tests.data.files import refusal
from tests.data.published_trees import write, write_images


def rows(table):
    """Path, label, category, split and role of each image."""
    columns = (table.paths, table.labels, table.categories, table.splits, table.roles)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_sop(tmp_path):
    trees.sop(tmp_path)
    table = layouts.sop(tmp_path)
    assert table.root == tmp_path
    assert rows(table) == [
        ("bicycle_final/111_0.JPG", "1", "bicycle", "train", ""),
        ("bicycle_final/111_1.JPG", "1", "bicycle", "train", ""),
        ("bicycle_final/222_0.JPG", "2", "bicycle", "train", ""),
        ("cabinet_final/333_0.JPG", "3", "cabinet", "train", ""),
        ("bicycle_final/444_0.JPG", "4", "bicycle", "test", ""),
        ("bicycle_final/444_1.JPG", "4", "bicycle", "test", ""),
        ("cabinet_final/555_0.JPG", "5", "cabinet", "test", ""),
    ]


SHIRT = ("id_00000001", "WOMEN/Blouses_Shirts", "test")


@pytest.mark.parametrize("above", ["Img/", ""], ids=["Img/img", "img"])
def test_in_shop(tmp_path, above):
    trees.in_shop(tmp_path, above)
    assert rows(layouts.in_shop(tmp_path)) == [
        (f"{above}img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "WOMEN/Dresses", "train", ""),
        (f"{above}img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "WOMEN/Dresses", "train", ""),
        (f"{above}img/MEN/Denim/id_00000003/01_1_front.jpg", "id_00000003", "MEN/Denim", "train", ""),
        (f"{above}img/WOMEN/Blouses_Shirts/id_00000001/02_1_front.jpg", *SHIRT, "query"),
        (f"{above}img/WOMEN/Blouses_Shirts/id_00000001/02_2_side.jpg", *SHIRT, "gallery"),
        (f"{above}img/WOMEN/Blouses_Shirts/id_00000001/02_3_back.jpg", *SHIRT, "gallery"),
    ]


def test_in_shop_without_images_or_with_its_list_in_the_root(tmp_path):
    trees.in_shop(tmp_path)
    (tmp_path / "Img").rename(tmp_path / "elsewhere")
    (tmp_path / "Eval/list_eval_partition.txt").rename(tmp_path / "list_eval_partition.txt")
    assert layouts.in_shop(tmp_path).paths[2] == "Img/img/MEN/Denim/id_00000003/01_1_front.jpg"
    (tmp_path / "img").mkdir()
    assert layouts.in_shop(tmp_path).paths[2] == "img/MEN/Denim/id_00000003/01_1_front.jpg"
    (tmp_path / "Img/img").mkdir(parents=True)
    assert layouts.in_shop(tmp_path).paths[2] == "Img/img/MEN/Denim/id_00000003/01_1_front.jpg"


def test_vehicleid(tmp_path):
    trees.vehicleid(tmp_path)
    table = layouts.vehicleid(tmp_path)
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


def test_vehicleid_without_models(tmp_path):
    trees.vehicleid(tmp_path)
    (tmp_path / "attribute/model_attr.txt").unlink()
    assert set(layouts.vehicleid(tmp_path).categories) == {""}


@pytest.mark.parametrize("name", ["Inat_dataset_splits/Inat_{}_set1.txt", "Inaturalist_{}_set1.txt", None])
def test_inaturalist(tmp_path, name):
    trees.inaturalist(tmp_path)
    for split in ("train", "test") if name else ():
        (tmp_path / f"Inat_dataset_splits/Inaturalist_{split}_set1.txt").rename(tmp_path / name.format(split))
    assert rows(layouts.inaturalist(tmp_path)) == [
        ("train_val2018/Plantae/5221/a0.jpg", "Plantae/5221", "Plantae", "train", ""),
        ("train_val2018/Plantae/5221/a1.jpg", "Plantae/5221", "Plantae", "train", ""),
        ("train_val2018/Aves/77/b0.jpg", "Aves/77", "Aves", "train", ""),
        ("train_val2018/Aves/78/c0.jpg", "Aves/78", "Aves", "test", ""),
        ("train_val2018/Insecta/9/d0.jpg", "Insecta/9", "Insecta", "test", ""),
        ("train_val2018/Insecta/9/d1.jpg", "Insecta/9", "Insecta", "test", ""),
        ("train_val2018/Insecta/9/d2.jpg", "Insecta/9", "Insecta", "test", ""),
    ]


def test_cub(tmp_path):
    trees.cub(tmp_path)
    lines = (tmp_path / "image_class_labels.txt").read_text().splitlines()
    write(tmp_path, {"image_class_labels.txt": lines[::-1]})  # images go by their number, not by the line
    assert rows(layouts.cub(tmp_path)) == [
        (f"images/{path}", str(label), "", split, "")
        for (path, label), split in zip(trees.CUB, ["train"] * 3 + ["test"] * 2, strict=True)
    ]


def test_vggface2(tmp_path):
    trees.vggface2(tmp_path)
    (tmp_path / "test/n000001/0003_01.jpg").rename(tmp_path / "test/n000001/0003_01.JPG")
    assert rows(layouts.vggface2(tmp_path)) == [
        ("train/n000002/0001_01.jpg", "n000002", "", "train", ""),
        ("train/n000002/0002_01.jpg", "n000002", "", "train", ""),
        ("train/n000003/0001_01.jpg", "n000003", "", "train", ""),
        ("train/n000003/0002_01.jpg", "n000003", "", "train", ""),
        ("test/n000001/0001_01.jpg", "n000001", "", "test", ""),
        ("test/n000001/0002_01.jpg", "n000001", "", "test", ""),
        ("test/n000001/0003_01.JPG", "n000001", "", "test", ""),
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
    table = layouts.ijb_c(tmp_path)
    assert faces(table) == [(f"images/{name}", *others) for name, *others in FACES]
    assert set(table.splits) == {"test"}
    assert set(table.roles) == {""}


@pytest.mark.parametrize("column", ["MEDIA_ID", "Template_ID"])
def test_ijb_c_by_another_column_and_in_other_places(tmp_path, column):
    header = trees.IJBC_HEADER.replace("SIGHTING_ID", column).lower()
    write(tmp_path, {"ijbc_metadata_with_age.csv": [header, *trees.IJBC, "", ""]})
    (tmp_path / "img").mkdir()
    assert faces(layouts.ijb_c(tmp_path)) == FACES
    (tmp_path / "images").mkdir()
    assert layouts.ijb_c(tmp_path).paths[0] == "images/img/1.jpg"


def test_ijb_c_prefers_the_sighting_to_the_template(tmp_path):
    lines = ["TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID", "7,1,frames/1.png,3", "7,1,frames/2.png,4"]
    lines += ["7,1,frames/3.png,", ",1,frames/4.png,"]
    write(tmp_path, {"protocols/ijbc_metadata.csv": lines})
    table = layouts.ijb_c(tmp_path)
    assert table.extra["template"].tolist() == ["1/3", "1/4", "1/7", "1/frames/4.png"]
    assert table.extra["box"].tolist() == [""] * 4


@pytest.mark.parametrize("folder", ["", "annotations", "annotations_landmarks"])
def test_landmarks_clean(tmp_path, folder):
    write(tmp_path / folder, {"annotation_clean_train.txt": trees.LANDMARKS})
    assert rows(layouts.landmarks_clean(tmp_path)) == [
        (name, label, "", "train", "")
        for name, label in zip(trees.LANDMARK_IMAGES, ["17", "17", "4", "4"], strict=True)
    ]


@pytest.mark.parametrize("name", ["roxford5k", "rparis6k"])
def test_revisited(tmp_path, name):
    trees.TREES[name](tmp_path)
    table = layouts.revisited(name)(tmp_path)
    assert rows(table) == [
        ("jpg/all_souls_000026.jpg", "", "", "test", "query"),
        ("jpg/q.jpg", "", "", "test", "query"),
        ("jpg/all_souls_000013.jpg", "", "", "test", "gallery"),
        ("jpg/oxford_002985.jpg", "", "", "test", "gallery"),
        ("jpg/b.jpg", "", "", "test", "gallery"),
    ]
    assert table.extra["box"].tolist() == ["136.5 34.1 648.5 955.7", "1 2 3 4", "", "", ""]
    assert table.extra["index"].tolist() == [0, 1, 0, 1, 2]


def test_distractors(tmp_path):
    trees.distractors(tmp_path)
    assert rows(layouts.distractors(tmp_path)) == [
        (f"jpg/{name}", "", "", "test", "distractor") for name in ("1/a.jpg", "1/b.jpg", "2/c.jpg")
    ]


READERS = {
    name: getattr(layouts, {"revisited-1m": "distractors"}.get(name, name.replace("-", "_")))
    for name in trees.TREES
    if name not in ("roxford5k", "rparis6k")
}
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


def changed(root, name, change):
    """The list of a data set with another line in it, as bytes."""
    trees.TREES[name](root)
    path, line = LISTS[name]
    lines = (root / path).read_bytes().split(b"\n")
    lines[line - 1] = change(lines[line - 1])
    (root / path).write_bytes(b"\n".join(lines))
    return root / path, line


@pytest.mark.parametrize("name", LISTS)
def test_line_ends_and_blank_lines_do_not_matter(tmp_path, name):
    trees.TREES[name](tmp_path)
    plain = READERS[name](tmp_path)
    path = tmp_path / LISTS[name][0]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\n \n")
    again = READERS[name](tmp_path)
    assert rows(again) == rows(plain)
    assert {key: column.tolist() for key, column in again.extra.items()} == {
        key: column.tolist() for key, column in plain.extra.items()
    }


@pytest.mark.parametrize("name", LISTS)
def test_bytes_that_are_no_text(tmp_path, name):
    path, line = changed(tmp_path, name, lambda said: said + b"\xff")
    refusal(lambda: READERS[name](tmp_path), path, f"line {line} is not UTF-8", "copy the file again")


@pytest.mark.parametrize("name", [name for name in LISTS if name != "ijb-c"])
def test_a_blank_line_in_between(tmp_path, name):
    path, line = changed(tmp_path, name, lambda said: b" ")
    refusal(lambda: READERS[name](tmp_path), path, f"line {line} is blank")


@pytest.mark.parametrize("name", [name for name in LISTS if name not in ("inaturalist", "revisited-1m")])
@pytest.mark.parametrize(
    "change", [lambda said: said + b" x,y", lambda said: said.split(b",")[0].split()[0]], ids=["more", "cut"]
)
def test_a_wrong_number_of_fields(tmp_path, name, change):
    path, line = changed(tmp_path, name, change)
    refusal(lambda: READERS[name](tmp_path), path, f"line {line} has ", " of ", " fields", "copy the file again")


OUTSIDE = ["/etc/a/b/c.jpg", "a/../../b/c.jpg", "a/b\\c/d/e.jpg", "a/b/c/\0.jpg", "../b/c/d.jpg"]
BELOW_IMAGES = ("vehicleid", "revisited-1m")  # whose names are below the folder of images also if they begin with /


@pytest.mark.parametrize(
    ("name", "bad"),
    [(name, bad) for name in LISTS for bad in OUTSIDE if not (bad[0] == "/" and name in BELOW_IMAGES)],
    ids=ascii,
)
def test_an_image_outside_the_folder(tmp_path, name, bad):
    def change(said):
        if name in ("inaturalist", "revisited-1m"):
            return bad.encode()
        between = b"," if name == "ijb-c" else None
        fields = said.split(between)
        fields[{"sop": 3, "cub": 1, "ijb-c": 1}.get(name, 0)] = bad.encode()
        return (between or b" ").join(fields)

    path, line = changed(tmp_path, name, change)
    refusal(lambda: READERS[name](tmp_path), path, f"line {line} names the image", "no path inside")


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
    said = "line 4 has the image '0000007' of line 3 again" if name == "vehicleid" else "twice; "
    refusal(lambda: READERS[name](tmp_path), tmp_path, said)


PARTITION = "Eval/list_eval_partition.txt"
VEHICLES = "train_test_split/train_list.txt"
LABELS = "image_class_labels.txt"
METADATA = "protocols/ijbc_metadata.csv"
WRONG = {  # data set, file, its content, what the error says
    "sop: no header": (
        "sop",
        "Ebay_train.txt",
        trees.SOP_TRAIN,
        "Ebay_train.txt line 1 must be the header 'image_id class_id",
    ),
    "sop: a class that is no number": (
        "sop",
        "Ebay_train.txt",
        [trees.SOP_HEADER, "1 x 1 a/b.JPG"],
        "line 2 has 'x' as class_id",
    ),
    "sop: an image in no folder": (
        "sop",
        "Ebay_train.txt",
        [trees.SOP_HEADER, "1 1 1 b.JPG"],
        "line 2 names the image 'b.JPG' without a folder",
    ),
    "sop: empty": ("sop", "Ebay_train.txt", b"", "Ebay_train.txt is empty"),
    "sop: blank": ("sop", "Ebay_train.txt", b" \r\n\n", "Ebay_train.txt is empty"),
    "sop: in train and test": (
        "sop",
        "Ebay_train.txt",
        [trees.SOP_HEADER, trees.SOP_TEST[0]],
        "names bicycle_final/444_0.JPG twice",
    ),
    "in-shop: cut": (
        "in-shop",
        PARTITION,
        [6, trees.IN_SHOP_HEADER, *trees.IN_SHOP[:5]],
        "line 1 says '6', but 5 images follow",
    ),
    "in-shop: not counted": ("in-shop", PARTITION, [trees.IN_SHOP_HEADER, *trees.IN_SHOP], "line 2 must be the header"),
    "in-shop: of CelebA": ("in-shop", PARTITION, ["000001.jpg 0", "000002.jpg 0"], "line 2 must be the header"),
    "in-shop: one line": ("in-shop", PARTITION, ["6"], "line 2 must be the header"),
    "in-shop: validation": (
        "in-shop",
        PARTITION,
        [1, trees.IN_SHOP_HEADER, "img/a/b/c/d.jpg id_1 val"],
        "line 3 has the evaluation_status 'val'",
    ),
    "in-shop: no item": (
        "in-shop",
        PARTITION,
        [1, trees.IN_SHOP_HEADER, "img/a/b/d.jpg id_1 train"],
        "line 3 names the image 'img/a/b/d.jpg', not img/<gender>",
    ),
    "vehicleid: no number": ("vehicleid", VEHICLES, ["0000001 x1"], "line 1 has 'x1' as vehicle_id"),
    "vehicleid: another digit": ("vehicleid", VEHICLES, ["0000001 ٣"], "line 1 has '٣' as vehicle_id"),
    "vehicleid: two vehicles": (
        "vehicleid",
        "train_test_split/test_list_800.txt",
        ["0000004 21"],
        "image/0000004.jpg shows two vehicles",
    ),
    "vehicleid: in train and test": ("vehicleid", VEHICLES, ["0000004 20"], "image/0000004.jpg in train and test"),
    "vehicleid: a model too many": (
        "vehicleid",
        "attribute/model_attr.txt",
        ["10 3 4"],
        "model_attr.txt line 1 has 3 of 2 fields (vehicle_id model_id)",
    ),
    "inaturalist: no category": (
        "inaturalist",
        "Inat_dataset_splits/Inaturalist_test_set1.txt",
        ["train_val2018/78/c0.jpg"],
        "line 1 is 'train_val2018/78/c0.jpg', not",
    ),
    "cub: a class that is no number": (
        "cub",
        LABELS,
        ["1 1", "2 one", "3 1", "4 1", "5 1"],
        "line 2 has 'one' as class_id",
    ),
    "cub: an image in no folder": (
        "cub",
        "images.txt",
        ["1 b.jpg", *(f"{i} a/{i}.jpg" for i in range(2, 6))],
        "images.txt line 1 names the image 'b.jpg' without a folder",
    ),
    "cub: a number twice": (
        "cub",
        "images.txt",
        ["1 a/b.jpg", "1 a/c.jpg"],
        "images.txt line 2 has the image_id '1' of line 1 again",
    ),
    "cub: a class twice": (
        "cub",
        LABELS,
        ["1 1", "2 1", "2 3"],
        "image_class_labels.txt line 3 has the image_id '2' of line 2 again",
    ),
    "cub: an image without a class": (
        "cub",
        LABELS,
        ["1 1", "2 1", "3 100", "5 200"],
        "image_class_labels.txt does not have the image_id 4",
    ),
    "cub: a class without an image": ("cub", "images.txt", ["1 a/b.jpg"], "images.txt does not have the image_id 2"),
    "ijb-c: no header": ("ijb-c", METADATA, trees.IJBC, "line 1 must be a header with SUBJECT_ID"),
    "ijb-c: no files": ("ijb-c", METADATA, ["SUBJECT_ID,SIGHTING_ID", "1,2"], "line 1 must be a header with FILENAME"),
    "ijb-c: no media": (
        "ijb-c",
        METADATA,
        ["SUBJECT_ID,FILENAME", "1,a.jpg"],
        "line 1 must be a header with SIGHTING_ID or MEDIA_ID or TEMPLATE_ID",
    ),
    "ijb-c: empty": ("ijb-c", METADATA, b"", "line 1 must be a header"),
    "ijb-c: a subject that is no number": (
        "ijb-c",
        METADATA,
        [trees.IJBC_HEADER, "one,img/1.jpg,1,1,2,3,4,"],
        "line 2 has 'one' as SUBJECT_ID",
    ),
    "ijb-c: no box": (
        "ijb-c",
        METADATA,
        [trees.IJBC_HEADER, "1,img/1.jpg,1,1,x,3,4,"],
        "line 2 has a face that is no box",
    ),
    "ijb-c: an open quote": ("ijb-c", METADATA, [trees.IJBC_HEADER, '1,"img/1.jpg,1,1,x,3,4,'], "is no CSV"),
    "ijb-c: nobody": ("ijb-c", METADATA, [trees.IJBC_HEADER, ",img/1.jpg,1,1,2,3,4,"], "has no image in its lists"),
    "landmarks-clean: an address of a folder": (
        "landmarks-clean",
        "annotation_clean_train.txt",
        ["http://a.org/b/ 3"],
        "line 1 has an address that ends without",
    ),
    "landmarks-clean: addresses that end alike": (
        "landmarks-clean",
        "annotation_clean_train.txt",
        ["http://a.org/1.jpg 3", "http://b.org/1.jpg 3"],
        "names images/3/1.jpg twice; write paths instead",
    ),
    "sop: headers alone": ("sop", "Ebay_train.txt", [trees.SOP_HEADER], "has no image in its lists or folders"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used(tmp_path, case):
    name, file, content, said = WRONG[case]
    trees.TREES[name](tmp_path)
    write(tmp_path, {file: content})
    if case == "sop: headers alone":
        write(tmp_path, {"Ebay_test.txt": content})
    refusal(lambda: READERS[name](tmp_path), tmp_path, said)


PICKLES = {
    "not a pickle": (b"hello", "is not a ground-truth pickle"),
    "a box of three numbers": (
        pickle.dumps(trees.truth(boxes=[[1, 2, 3], [1, 2, 3, 4]])),
        "has 3 numbers as bbx of gnd[0]",
    ),
    "a query in the gallery": (pickle.dumps(trees.truth(queries=("b", "q"))), "names jpg/b.jpg twice"),
    "a path": (pickle.dumps(trees.truth(images=("../a",))), "has '../a' as the name of a gallery image"),
    "a name of two lines": (
        pickle.dumps(trees.truth(queries=("a\nb", "q"))),
        r"has 'a\nb' as the name of a query image",
    ),
    "no name": (pickle.dumps(trees.truth(images=("",))), "has '' as the name of a gallery image"),
    "nothing": (pickle.dumps({"imlist": [], "qimlist": [], "gnd": []}), "has no image in its lists"),
}


@pytest.mark.parametrize("case", PICKLES)
def test_ground_truth_that_cannot_be_used(tmp_path, case):
    content, said = PICKLES[case]
    write(tmp_path, {"gnd_roxford5k.pkl": content})
    refusal(lambda: layouts.revisited("roxford5k")(tmp_path), tmp_path, said)


def test_a_query_without_a_box(tmp_path):
    write(tmp_path, {"gnd_roxford5k.pkl": pickle.dumps(trees.truth(boxes=[[], [1, 2, 3, 4]]))})
    assert layouts.revisited("roxford5k")(tmp_path).extra["box"].tolist() == ["", "1 2 3 4", "", "", ""]


def test_no_faces(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split / "n000001").mkdir(parents=True)
    refusal(lambda: layouts.vggface2(tmp_path), tmp_path, "has no image")


def test_names_in_a_folder(tmp_path):
    write_images(tmp_path, ["a/b.jpg", "a/c d.jpg", "a/e/f.jpg", "g.jpg"])
    assert names_in(tmp_path / "a") == {"b.jpg", "c d.jpg", "e"}
    assert names_in(tmp_path / "nowhere") == names_in(tmp_path / "g.jpg") == set()
