"""Pascal VOC: its boxes, its lists, its counts, and files that are not as they should be."""

import warnings

import numpy as np
import pytest
from PIL import Image

from frontrank.detection import data as voc
from frontrank.detection.data import CLASSES, read_voc, read_voc_folder
from frontrank.errors import FrontrankWarning, InputError
from tests.detection.scenes import voc_xml, write_voc

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
    for name in CLASSES:
        lists = {f"{name}_trainval": ["000001  1"]}
        write_voc(tmp_path / "VOCdevkit/VOC2007", {}, lists)
    write_voc(tmp_path / "VOCdevkit/VOC2007", TWO, LISTS)
    write_voc(
        tmp_path / "VOCdevkit/VOC2012", {"2008_000001": [("bus", (1, 1, 9, 9), 0)]}, {"trainval": ["2008_000001"]}
    )
    monkeypatch.setattr(voc, "COUNTS", {(2007, "train"): 2, (2012, "train"): 1, (2007, "test"): 1})
    return tmp_path / "VOCdevkit"


def test_the_official_counts():
    assert voc.COUNTS == {(2007, "train"): 5011, (2012, "train"): 11540, (2007, "test"): 4952}
    assert len(CLASSES) == 20
    assert list(CLASSES) == sorted(CLASSES)


def test_boxes_count_from_zero_and_exclude_their_end(own):
    table = read_voc_folder(own)
    assert table.classes == ("cat", "dog")
    assert table.name == "own"
    assert table.boxes[0].tolist() == [[0, 0, 40, 30], [4, 5, 10, 12]]
    assert table.boxes[0].dtype == np.float32
    assert table.labels[0].dtype == np.int64
    assert table.labels[0].tolist() == [2, 1]
    assert table.ignored[0].tolist() == [False, True]
    assert table.boxes[1].shape == (0, 4)
    assert table.sizes.tolist() == [[40, 30], [40, 30]]


def test_both_splits_have_the_same_labels(own):
    test = read_voc_folder(own, "test")
    assert test.classes == ("cat", "dog")  # although no cat is in it
    assert test.labels[0].tolist() == [2]
    assert test.boxes[0].tolist() == [[1.5, 2.5, 20.25, 21.0]]


def test_published(published):
    table = read_voc(published, "train", (2007,))
    assert len(table) == 2
    assert table.classes == CLASSES
    assert table.name == "VOC 07 trainval"
    both = read_voc(published.parent, "train", (2007, 2012))
    assert len(both) == 3
    assert both.name == "VOC 07+12 trainval"
    assert both.labels[2].tolist() == [CLASSES.index("bus") + 1]
    assert read_voc(published / "VOC2007", "test").name == "VOC 07 test"
    assert len(read_voc(published, "test", (2007, 2012))) == 1  # the test is that of 2007


def test_published_counts_must_be_those(published, monkeypatch):
    monkeypatch.setattr(voc, "COUNTS", {(2007, "train"): 5011})
    with pytest.raises(InputError, match=r"VOC2007 has 2 pictures to train, not 5,011 as published; .*layout='voc'"):
        read_voc(published)
    assert len(read_voc(published, allow_partial=True)) == 2


def test_a_year_that_is_not_there(own):
    with pytest.raises(InputError, match="has no VOC2012; give the folder VOCdevkit"):
        read_voc(own, "train", (2012,))


def test_another_class_in_a_published_set(published):
    path = published / "VOC2007/Annotations/000001.xml"
    path.write_text(path.read_text().replace(">dog<", ">wolf<"))
    with pytest.raises(InputError, match=r"000001.xml: the class 'wolf' is none of aeroplane, "):
        read_voc(published)


def test_lists_of_train_and_val(tmp_path):
    own = write_voc(tmp_path / "own", TWO, {"trainval": list(TWO), "train": ["000001"], "val": ["000003"]})
    assert len(read_voc_folder(own)) == len(read_voc_folder(own, "test")) == 1  # not trainval, which has them both


def test_folders_in_place_of_lists(tmp_path):
    for split, name in (("train", "000001"), ("valid", "000003")):
        (tmp_path / split).mkdir()
        Image.new("RGB", (40, 30)).save(tmp_path / split / f"{name}.png")
        (tmp_path / split / f"{name}.xml").write_text(voc_xml(name, TWO[name], (40, 30)))
    assert read_voc_folder(tmp_path).files[0].endswith("000001.png")
    assert read_voc_folder(tmp_path, "test").files[0].endswith("000003.png")


def test_no_pictures_for_the_test(tmp_path):
    own = write_voc(tmp_path / "own", TWO, {"trainval": ["000001"]})
    with pytest.raises(InputError, match=r"has no pictures for the test: there is no .*test\.txt"):
        read_voc_folder(own, "test")


def test_no_pictures_to_train_on(tmp_path):
    own = write_voc(tmp_path / "own", TWO, {"test": ["000001"]})
    with pytest.raises(InputError, match=r"own has no pictures to train on: there is no .*Main/trainval\.txt; add it"):
        read_voc_folder(own)


def test_boxes_that_reach_out_or_are_empty_are_told_once(tmp_path):
    objects = [
        ("dog", (-3, 5, 60, 12), 0),
        ("dog", (1, 1, 5, 5), 0),
        ("cat", (9, 9, 4, 20), 0),
        ("cat", (50, 1, 60, 9), 0),
    ]
    own = write_voc(tmp_path / "own", {"a": objects}, {"train": ["a"]})
    said = (
        r"own: 1 box reached out of the picture and was cut \(dog of .*a.xml\); 2 boxes without area inside the picture"
    )
    with pytest.warns(FrontrankWarning, match=said):
        table = read_voc_folder(own)
    assert table.boxes[0].tolist() == [[0, 4, 40, 12], [0, 0, 5, 5]]
    assert table.labels[0].tolist() == [2, 2]


def broken(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<annotation>\n<object>\n<name>dog", r"000001.xml line 3 is no whole XML \(.*\); write it again"),
        ("", "000001.xml line 1 is no whole XML"),
        ("<html></html>", "is XML of 'html', not of an annotation"),
        ("<annotation><object/></annotation>", "object 1 has no name"),
        ("<annotation><object><name>dog</name></object></annotation>", r"the box of object 1 \(dog\) must be four"),
        (voc_xml("a", [("dog", ("x", 1, 2, 3), 0)], (4, 3)), r"the box of object 1 \(dog\) must be four numbers"),
        (voc_xml("a", [("dog", ("nan", 1, 2, 3), 0)], (4, 3)), r"the box of object 1 \(dog\) must be finite"),
        (voc_xml("a", [("dog", (1, 1, 2, 3), 0)], ("wide", 3)), "the size must be two whole numbers"),
    ],
)
def test_damaged_annotations(own, text, said):
    broken(own / "Annotations" / "000001.xml", text)
    with pytest.raises(InputError, match=said):
        read_voc_folder(own)


def test_damaged_annotations_may_be_left_out(own):
    broken(own / "Annotations" / "000002.xml", "<annotation>")
    said = r"own: 1 annotation cannot be used and was left out \(.*000002.xml line 1 is no whole XML"
    with pytest.warns(FrontrankWarning, match=said):
        assert len(read_voc_folder(own, allow_partial=True)) == 1


def test_bytes_that_are_no_text(own):
    (own / "Annotations" / "000001.xml").write_bytes(
        b"<?xml version='1.0' encoding='utf-8'?><annotation>\xff\xfe</annotation>"
    )
    with pytest.raises(InputError, match=r"000001.xml"):
        read_voc_folder(own)


def test_what_is_missing(own):
    (own / "JPEGImages" / "000002.jpg").unlink()
    with pytest.raises(InputError, match=r"the picture of .*000002.xml is missing"):
        read_voc_folder(own)
    assert len(read_voc_folder(own, allow_partial=True)) == 1
    (own / "Annotations" / "000001.xml").unlink()
    with pytest.raises(InputError, match=r"000001.xml is missing; add it"):
        read_voc_folder(own)


def test_sizes_that_do_not_agree(own):
    Image.new("RGB", (30, 40)).save(own / "JPEGImages" / "000001.jpg")
    with pytest.raises(InputError, match=r"000001.xml says 40 x 30 pixels, .*000001.jpg has 30 x 40 \(upright\)"):
        read_voc_folder(own)
    with pytest.warns(FrontrankWarning, match="1 picture cannot be used and was left out"):
        assert len(read_voc_folder(own, allow_partial=True)) == 1


def test_a_size_of_zero_is_looked_up(own):
    path = own / "Annotations" / "000001.xml"
    path.write_text(path.read_text().replace("<width>40</width>", "<width>0</width>"))
    assert read_voc_folder(own).sizes.tolist() == [[40, 30], [40, 30]]


def test_a_picture_that_is_none(own):
    (own / "JPEGImages" / "000001.jpg").write_bytes(b"<html>")
    with pytest.raises(InputError, match=r"000001.jpg is a web page"):
        read_voc_folder(own)


def test_lists_cannot_lead_elsewhere(own):
    (own / "ImageSets/Main/trainval.txt").write_text("../../etc/passwd\n")
    with pytest.raises(InputError, match="which is no picture's name"):
        read_voc_folder(own)


def test_lists_may_have_a_second_column(own):
    (own / "ImageSets/Main/trainval.txt").write_text("000001 -1\n000002  1\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_voc_folder(own)) == 2


def test_names_may_have_spaces(tmp_path):
    names = ["my dog 1", "my dog 2"]
    own = write_voc(tmp_path / "own", dict.fromkeys(names, TWO["000001"]), {"trainval": names})
    assert [file[-12:] for file in read_voc_folder(own).files] == [f"{name}.jpg" for name in names]
    (own / "ImageSets/Main/trainval.txt").write_text("my dog 1  1\nmy dog 2 -1\n")
    assert len(read_voc_folder(own)) == 2


def test_nothing_but_background(tmp_path):
    own = write_voc(tmp_path / "own", {"a": []}, {"train": ["a"]})
    with pytest.raises(InputError, match="has no objects in its annotations"):
        read_voc_folder(own)
