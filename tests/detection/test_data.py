"""Scenes: the table, Pascal VOC and COCO files as they are and as they should not be, layouts, and batches."""

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from frontrank.detection import data
from frontrank.detection.data import (
    VOC_CLASSES,
    SceneBatches,
    SceneDataset,
    all_scenes,
    find_coco,
    mirror,
    read_coco,
    read_scenes,
    read_voc,
    read_voc_folder,
    training_scenes,
)
from frontrank.errors import FrontrankWarning, InputError
from tests.detection.scenes import table_of, voc_xml, write_voc
from tests.errors import refusal

BOX = [1, 2, 3, 4]


# The table


@pytest.fixture
def table():
    return table_of([[(BOX, 1, False), (BOX, 3, True)], [], [(BOX, 2, False)]])


def test_rows(table):
    for which in ([2, 0], np.array([2, 0]), [np.int64(-1), 0]):
        some = table.rows(which)
        assert some.files == ("2.jpg", "0.jpg")
        assert [each.tolist() for each in some.labels] == [[2], [1, 3]]
        assert some.ignored[1].tolist() == [False, True]
    assert table.rows(np.array([True, False, True])).files == ("0.jpg", "2.jpg")
    assert table.rows(slice(1, None)).files == ("1.jpg", "2.jpg")
    assert table.rows([]).sizes.shape == (0, 2)


def test_counts(table):
    assert (len(table), table.objects) == (3, 2)
    assert table.counts().tolist() == [[1, 0, 1], [1, 0, 1], [0, 1, 1]]
    assert re.findall(r"\d+", table.describe().splitlines()[0]) == ["3", "1", "2", "3", "1"]


def test_labels_of_other_classes(table):
    other = table.of_classes(["cat", "dog", "ant", "bee"])
    assert [each.tolist() for each in other.labels] == [[3, 1], [], [4]]
    assert other.classes == ("cat", "dog", "ant", "bee")
    refusal(lambda: table.of_classes(["ant"]), "bee, cat")
    assert table.rows([2]).of_classes(["bee"]).labels[0].tolist() == [1]  # there is nothing of the other classes


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("boxes", ()),
        ("sizes", np.array([9])),
        ("labels", (np.array([1, 1]),)),
        ("ignored", (np.zeros(2, bool),)),
        ("labels", (np.array([0]),)),
    ],
)
def test_columns_that_do_not_fit_together(name, column):
    refusal(lambda: replace(table_of([[(BOX, 1, False)]], classes=("ant",)), **{name: column}), name)


# Pascal VOC

TWO = {
    "000001": [("dog", (1, 1, 40, 30), 0), ("cat", (5, 6, 10, 12), 1)],
    "000002": [],
    "000003": [("dog", (2.5, 3.5, 20.25, 21), 0)],
}
LISTS = {"trainval": ["000001", "000002"], "test": ["000003"]}


@pytest.fixture
def own(tmp_path):
    return write_voc(tmp_path / "own", TWO, LISTS)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """VOC 2007 and 2012 in small, with counts to match."""
    bus = {"2008_000001": [("bus", (1, 1, 9, 9), 0)]}
    per_class = {f"{name}_trainval": ["000001  1"] for name in VOC_CLASSES}
    write_voc(tmp_path / "VOCdevkit/VOC2007", TWO, LISTS | per_class)
    write_voc(tmp_path / "VOCdevkit/VOC2012", bus, {"trainval": list(bus)} | per_class)
    monkeypatch.setattr(data, "VOC_COUNTS", {(2007, "train"): 2, (2012, "train"): 1, (2007, "test"): 1})
    return tmp_path / "VOCdevkit"


def test_boxes_count_from_zero_and_exclude_their_end(own):
    table, test = read_voc_folder(own), read_voc_folder(own, "test")
    assert (table.classes, table.name) == (("cat", "dog"), "own")
    assert test.classes == ("cat", "dog")  # although no cat is in it
    assert table.boxes[0].tolist() == [[0, 0, 40, 30], [4, 5, 10, 12]]
    assert test.boxes[0].tolist() == [[1.5, 2.5, 20.25, 21.0]]
    assert (table.boxes[0].dtype, table.labels[0].dtype) == (np.float32, np.int64)
    assert (table.labels[0].tolist(), test.labels[0].tolist()) == ([2, 1], [2])
    assert table.ignored[0].tolist() == [False, True]
    assert table.boxes[1].shape == (0, 4)
    assert table.sizes.tolist() == [[40, 30], [40, 30]]


def test_published(published):
    both = read_scenes(published)
    assert (len(both), both.classes, both.name) == (3, VOC_CLASSES, "VOC 07+12 trainval")
    assert both.labels[2].tolist() == [VOC_CLASSES.index("bus") + 1]
    assert read_scenes(published.parent, "voc07").name == read_scenes(published / "VOC2007").name == "VOC 07 trainval"
    test = read_scenes(published, "voc0712", "test")
    assert (len(test), test.name) == (1, "VOC 07 test")  # there is no other
    assert read_scenes(published, "voc").classes == ("cat", "dog")


def test_published_sets_that_are_not_as_published(published, own, monkeypatch):
    refusal(lambda: read_voc(own, "train", (2012,)), "VOC2012")
    monkeypatch.setattr(data, "VOC_COUNTS", {(2007, "train"): 5011})
    refusal(lambda: read_voc(published, "train", (2007,)), "5,011")
    assert len(read_voc(published, "train", (2007,), allow_partial=True)) == 2
    path = published / "VOC2007/Annotations/000001.xml"
    path.write_text(path.read_text().replace(">dog<", ">wolf<"))
    refusal(lambda: read_voc(published, "train", (2007,), allow_partial=True), "000001.xml:", "'wolf'")


def test_lists_and_folders_of_train_and_val(tmp_path):
    own = write_voc(tmp_path / "own", TWO, {"trainval": list(TWO), "train": ["000001"], "val": ["000003"]})
    assert len(read_voc_folder(own)) == len(read_voc_folder(own, "test")) == 1  # not trainval, which has them both
    for split, name in (("train", "000001"), ("valid", "000003")):
        (tmp_path / split).mkdir()
        Image.new("RGB", (40, 30)).save(tmp_path / split / f"{name}.png")
        (tmp_path / split / f"{name}.xml").write_text(voc_xml(name, TWO[name], (40, 30)))
    assert read_voc_folder(tmp_path).files[0].endswith("000001.png")
    assert read_voc_folder(tmp_path, "test").files[0].endswith("000003.png")


def test_lists_may_have_spaces_and_a_second_column(tmp_path):
    names = ["my dog 1", "my dog 2"]
    own = write_voc(tmp_path / "own", dict.fromkeys(names, TWO["000001"]), {"trainval": names})
    for text in (None, "my dog 1  1\nmy dog 2 -1\n"):
        if text is not None:
            (own / "ImageSets/Main/trainval.txt").write_text(text)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [file[-12:] for file in read_voc_folder(own).files] == [f"{name}.jpg" for name in names]


def test_splits_and_objects_that_are_missing(tmp_path):
    for missing, lists in (("test", {"trainval": ["000001"]}), ("trainval", {"test": ["000001"]})):
        own = write_voc(tmp_path / missing, TWO, lists)
        with pytest.raises(InputError, match=rf"{missing}\.txt"):
            read_voc_folder(own, "test" if missing == "test" else "train")
    own = write_voc(tmp_path / "background", {"a": []}, {"train": ["a"]})
    refusal(lambda: read_voc_folder(own), "background")


def test_boxes_that_reach_out_or_are_empty_are_counted_once(tmp_path):
    objects = [
        ("dog", (-3, 5, 60, 12), 0),
        ("dog", (1, 1, 5, 5), 0),
        ("cat", (9, 9, 4, 20), 0),
        ("cat", (50, 1, 60, 9), 0),
        ("cat", (21, 1, 20.000000001, 9), 0),  # as float32 it has no area
    ]
    own = write_voc(tmp_path / "own", {"a": objects}, {"train": ["a"]})
    with pytest.warns(FrontrankWarning, match="own: ") as caught:
        table = read_voc_folder(own)
    assert [re.search(r"\d box(es)?", str(each.message))[0] for each in caught] == ["1 box", "3 boxes"]
    assert table.boxes[0].tolist() == [[0, 4, 40, 12], [0, 0, 5, 5]]
    assert table.labels[0].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("<annotation>\n<object>\n<name>dog", "line 3"),
        ("<html></html>", "'html'"),
        ("<annotation><object/></annotation>", "object 1"),
        (voc_xml("a", [("dog", ("nan", 1, 2, 3), 0)], (4, 3)), r"object 1 \(dog\)"),
        (voc_xml("a", [("dog", (1, 1, 2, 3), 0)], ("wide", 3)), "size"),
        ("<?xml version='1.0' encoding='utf-8'?><annotation>\udcff</annotation>", "line 1"),
    ],
)
def test_damaged_annotations(own, text, match):
    (own / "Annotations" / "000001.xml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=rf"000001\.xml.*({match})"):
        read_voc_folder(own)


def test_files_that_are_missing(own):
    (own / "JPEGImages" / "000002.jpg").unlink()
    refusal(lambda: read_voc_folder(own), "000002.xml")
    with pytest.warns(FrontrankWarning, match=r"1 annotation .*000002\.xml"):
        assert len(read_voc_folder(own, allow_partial=True)) == 1
    (own / "Annotations" / "000001.xml").unlink()
    refusal(lambda: read_voc_folder(own), "000001.xml")
    with pytest.raises(InputError, match="own"), pytest.warns(FrontrankWarning, match="2 annotations"):
        read_voc_folder(own, allow_partial=True)  # no picture is left


def test_sizes_that_do_not_agree_and_sizes_of_zero(own):
    Image.new("RGB", (30, 40)).save(own / "JPEGImages" / "000001.jpg")
    refusal(lambda: read_voc_folder(own), "000001.jpg has 30 x 40", "000001.xml", "40 x 30")
    with pytest.warns(FrontrankWarning, match="1 picture"):
        assert len(read_voc_folder(own, allow_partial=True)) == 1
    path = own / "Annotations" / "000001.xml"
    path.write_text(path.read_text().replace("<width>40</width>", "<width>0</width>"))
    with pytest.warns(FrontrankWarning, match="1 box"):  # it is cut to the size of the picture
        assert read_voc_folder(own).sizes.tolist() == [[30, 40], [40, 30]]


def test_pictures_and_lists_that_are_none(own):
    (own / "JPEGImages" / "000001.jpg").write_bytes(b"<html>")
    refusal(lambda: read_voc_folder(own), "000001.jpg")
    (own / "ImageSets/Main/trainval.txt").write_text("../../etc/passwd\n")
    refusal(lambda: read_voc_folder(own), "trainval.txt")


# COCO

CATEGORIES = [{"id": 44, "name": "dog"}, {"id": 3, "name": "cat"}]


def write_coco(folder, name="train.json", pictures="", **changed):
    """A JSON file of COCO with two pictures, of which the second has two objects."""
    content = {
        "images": [
            {"id": 12, "file_name": "b.jpg", "width": 40, "height": 30},
            {"id": 7, "file_name": "a.jpg", "width": 40, "height": 30},
        ],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 44, "bbox": [1.5, 2, 10, 20], "iscrowd": 0},
            {"id": 2, "image_id": 7, "category_id": 3, "bbox": [0, 0, 40, 30], "iscrowd": 1},
        ],
        "categories": CATEGORIES,
    }
    (folder / pictures).mkdir(parents=True, exist_ok=True)
    for each in ("a", "b"):
        Image.new("RGB", (40, 30)).save(folder / pictures / f"{each}.jpg")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | changed))
    return path


def test_what_is_read_from_coco(tmp_path):
    table = read_coco(write_coco(tmp_path))
    assert (table.classes, table.name, table.crowds) == (("cat", "dog"), "train", True)  # classes by their ids
    assert [file[-5:] for file in table.files] == ["b.jpg", "a.jpg"]
    assert table.boxes[0].shape == (0, 4)
    assert table.boxes[1].tolist() == [[1.5, 2, 11.5, 22], [0, 0, 40, 30]]
    assert table.labels[1].tolist() == [2, 1]
    assert table.ignored[1].tolist() == [False, True]
    assert table.sizes.tolist() == [[40, 30]] * 2


@pytest.mark.parametrize(
    ("name", "pictures"),
    [
        ("annotations/instances_val2017.json", "val2017"),
        ("valid/_annotations.coco.json", "valid"),
        ("test.json", "images"),
    ],
)
def test_where_coco_files_are(tmp_path, name, pictures):
    path = write_coco(tmp_path, name, pictures)
    assert find_coco(tmp_path, "test") == path
    assert find_coco(tmp_path, "train") is None or name == "test.json"
    assert len(read_coco(path)) == 2


def test_files_of_two_years_are_refused(tmp_path):
    for year in (2014, 2017):
        write_coco(tmp_path, f"annotations/instances_train{year}.json", f"train{year}")
    refusal(lambda: find_coco(tmp_path, "train"), "instances_train2014.json, instances_train2017.json")


def test_pictures_of_coco(tmp_path):
    path = write_coco(tmp_path, "train.json", "train")
    (tmp_path / "train" / "a.jpg").unlink()
    refusal(lambda: read_coco(path), "a.jpg")
    with pytest.warns(FrontrankWarning, match=r"1 picture .*a\.jpg"):
        assert len(read_coco(path, allow_partial=True)) == 1
    for size in ({}, {"width": 0, "height": 0}):  # sizes that are not known are read from the pictures
        images = [{"id": 7, "file_name": "a.jpg", **size}]
        assert read_coco(write_coco(tmp_path / "other", images=images)).sizes.tolist() == [[40, 30]]


def annotation(**changed):
    return {"annotations": [{"image_id": 7, "category_id": 3, "bbox": [0, 0, 1, 1]} | changed]}


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"categories": [], "annotations": []}, "categories"),
        ({"categories": [*CATEGORIES, {"id": 5, "name": "dog"}]}, "'dog'"),
        ({"categories": [{"id": 1}]}, r"categories\[0\]"),
        ({"images": [{"id": 7, "file_name": "a.jpg"}] * 2}, r"images\[1\]"),
        (annotation(image_id=9), r"annotations\[0\] .*image_id 9"),
        (annotation(category_id=4), "category_id 4"),
        (annotation(bbox=None), r"annotations\[0\] .*bbox"),
        (annotation(bbox=[0, 0, None, 1]), "bbox"),
        ({"images": [{"id": 7, "file_name": "a.jpg", "width": "x", "height": 9}]}, "image 7"),
        ({"images": [{"id": 7, "file_name": "a.jpg", "width": 30, "height": 40}]}, "30 x 40"),
    ],
)
def test_coco_files_that_are_refused(tmp_path, changed, match):
    if "images" in changed and "annotations" not in changed:
        changed = changed | {"annotations": []}
    with pytest.raises(InputError, match=match):
        read_coco(write_coco(tmp_path, **changed))


@pytest.mark.parametrize(
    ("text", "match"), [('{"images": [\n1,', "line 2"), ("[]", "'images'"), ("", "line 1"), ("[" * 99_999, "")]
)
def test_damaged_coco_files(tmp_path, text, match):
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"train\.json.*{match}"):
        read_coco(path)
    refusal(lambda: read_coco(tmp_path / "none.json"), "none.json")


# Layouts


def test_own_scenes_in_the_folder_of_a_year(tmp_path):
    """As those of emoji: the layout of VOC 2007 with other classes, and no count is asked for."""
    lists = {"trainval": ["a"], "test": ["a"], "rocket_trainval": ["a 1"]}
    write_voc(tmp_path / "VOC2007", {"a": [("rocket", (1, 1, 9, 9), 0)]}, lists)
    table = read_scenes(tmp_path)
    assert (table.classes, table.name) == (("rocket",), tmp_path.name)
    assert len(read_scenes(tmp_path, split="test")) == 1


def test_classes_of_both_splits_of_coco(tmp_path):
    write_coco(tmp_path)
    write_coco(tmp_path, "test.json", categories=[{"id": 3, "name": "dog"}, {"id": 44, "name": "cat"}])
    assert read_scenes(tmp_path).classes == ("cat", "dog")
    test = read_scenes(tmp_path, split="test")
    assert test.classes == ("cat", "dog")  # as in training, although the ids are the other way round
    assert test.labels[1].tolist() == [1, 2]
    assert read_scenes(tmp_path / "test.json").classes == ("dog", "cat")
    elk = [{"id": 5, "name": "elk"}]
    write_coco(tmp_path, "test.json", categories=CATEGORIES + elk)
    assert read_scenes(tmp_path, split="test").classes == ("cat", "dog")  # as there is no elk in it
    write_coco(tmp_path, "test.json", categories=CATEGORIES + elk, **annotation(category_id=5))
    refusal(lambda: read_scenes(tmp_path, split="test"), "elk")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"layout": "vok"}, "layout"),
        ({"split": "val"}, "split"),
        ({}, "empty"),
        ({"layout": "coco"}, "train.json"),
        ({"layout": "voc"}, ".xml"),
        ({"layout": "voc07"}, "VOC2007"),
    ],
)
def test_folders_without_scenes(tmp_path, arguments, match):
    (tmp_path / "empty").mkdir()
    refusal(lambda: read_scenes(tmp_path / "empty", **arguments), match)
    refusal(lambda: read_scenes(tmp_path / "nowhere"), "nowhere")


# Batches


def numbered_scenes(folder, count=10):
    """Pictures whose every pixel is their number, each with one box; the first without."""
    table = table_of([[([2, 4, 12, 8], 1, False)] * (number > 0) for number in range(count)], size=(30, 20))
    files = tuple(str(folder / f"{number}.png") for number in range(count))
    for number, file in enumerate(files):
        pixels = np.full((20, 30, 3), number * 10, np.uint8)
        pixels[4:8, 2:12] = 255
        Image.fromarray(pixels).save(file)
    return replace(table, files=files)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    return numbered_scenes(tmp_path_factory.mktemp("scenes"))


def numbers(pictures):
    return [int(each[0, 0, 0]) // 10 for each in pictures]


def test_an_epoch_has_every_picture_once():
    batches = SceneBatches(10, 5, seed=3)
    epochs = [[row for batch in batches for row in batch] for _ in range(3)]
    assert [sorted(each) for each in epochs] == [list(range(10))] * 3
    assert len({tuple(each) for each in epochs}) == 3
    assert len(SceneBatches(10, 4)) == 2
    refusal(lambda: SceneBatches(10, 11), "batch is 11")


def test_mirrored_boxes_lie_on_what_they_lay_on(numbered):
    picture, target = SceneDataset(numbered, flip=False)[3, 0]
    again, moved = mirror(picture, target)
    for image, boxes in ((picture, target["boxes"]), (again, moved["boxes"])):
        left, top, right, bottom = boxes[0].int().tolist()
        inside = torch.zeros(20, 30, dtype=torch.bool)
        inside[top:bottom, left:right] = True
        assert torch.equal(image[0] == 255, inside)
    assert torch.equal(mirror(again, moved)[1]["boxes"], target["boxes"])


def test_pictures_without_objects_and_ignored_ones(numbered):
    ignored = replace(numbered, ignored=tuple(np.ones(len(each), bool) for each in numbered.labels))
    for table, row in ((numbered, 0), (ignored, 3)):
        picture, target = SceneDataset(table, flip=True)[row, 1]
        assert picture.shape == (3, 20, 30)
        assert (target["boxes"].shape, target["labels"].shape) == ((0, 4), (0,))
        assert target["labels"].dtype == torch.int64


@pytest.mark.processes
def test_batches_are_the_same_with_workers_and_when_resumed(numbered):
    def read(workers, start):
        batches = training_scenes(numbered, SceneBatches(10, 3, seed=1), 1, True, workers, start, 7)
        return [(numbers(pictures), [t["boxes"].tolist() for t in targets]) for pictures, targets in batches]

    whole = read(0, 0)
    assert len(whole) == 7
    assert read(2, 0) == whole
    assert read(0, 4) == whole[4:]


def test_all_pictures_in_order(numbered):
    assert [number for pictures in all_scenes(numbered, 4, 0) for number in numbers(pictures)] == list(range(10))
    assert list(all_scenes(numbered.rows([]), 4, 2)) == []


@pytest.mark.processes
def test_pictures_of_another_size_and_broken_ones(numbered, tmp_path):
    with pytest.raises(InputError, match=r"3\.png .*31 x 20"):
        SceneDataset(replace(numbered, sizes=numbered.sizes + np.array([1, 0])), False)[3, 0]
    table = numbered_scenes(tmp_path, 3)
    (tmp_path / "1.png").write_bytes(b"no picture")
    for workers in (0, 1):
        with pytest.raises(InputError, match=r"1\.png") as caught:
            list(training_scenes(table, SceneBatches(3, 3), 0, True, workers, 0, 1))
        assert "\n" not in str(caught.value)
