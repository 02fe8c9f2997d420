"""Which layout a folder has, and what is said where it has none."""

import json

import pytest

from frontrank.detection import data as voc
from frontrank.detection.data import read_scenes
from frontrank.errors import InputError
from tests.detection.scenes import write_voc
from tests.detection.test_coco import CATEGORIES, write

DOG = {"a": [("dog", (1, 1, 9, 9), 0)]}
LISTS = {"trainval": ["a"], "test": ["a"]}


@pytest.fixture
def devkit(tmp_path, monkeypatch):
    monkeypatch.setattr(voc, "COUNTS", {(2007, "train"): 1, (2012, "train"): 1, (2007, "test"): 1})
    per_class = {f"{name}_trainval": ["a 1"] for name in voc.CLASSES}
    for year in (2007, 2012):
        write_voc(tmp_path / f"VOC{year}", DOG, LISTS | per_class)
    return tmp_path


def test_published(devkit):
    assert read_scenes(devkit).name == "VOC 07+12 trainval"
    assert read_scenes(devkit, "voc07").name == "VOC 07 trainval"
    assert read_scenes(devkit, "voc0712", "test").name == "VOC 07 test"
    assert read_scenes(devkit / "VOC2007").name == "VOC 07 trainval"
    assert read_scenes(devkit, "voc").classes == ("dog",)


def test_own_scenes_in_the_folder_of_a_year(tmp_path):
    """As those of emoji: the layout of VOC 2007 with other classes, and no count is asked for."""
    write_voc(tmp_path / "VOC2007", {"a": [("rocket", (1, 1, 9, 9), 0)]}, LISTS | {"rocket_trainval": ["a 1"]})
    table = read_scenes(tmp_path)
    assert table.classes == ("rocket",)
    assert table.name == tmp_path.name
    assert len(read_scenes(tmp_path, split="test")) == 1


def test_coco(tmp_path):
    write(tmp_path)
    write(tmp_path, "test.json", categories=[{"id": 3, "name": "dog"}, {"id": 44, "name": "cat"}])
    assert read_scenes(tmp_path).classes == ("cat", "dog")
    test = read_scenes(tmp_path, split="test")
    assert test.classes == ("cat", "dog")  # as in training, although the ids are the other way round
    assert test.labels[1].tolist() == [1, 2]
    assert read_scenes(tmp_path / "test.json").classes == ("dog", "cat")


def test_classes_of_the_test_that_were_not_trained(tmp_path):
    write(tmp_path)
    elk = [{"id": 5, "name": "elk"}]
    write(tmp_path, "test.json", categories=CATEGORIES + elk)
    assert read_scenes(tmp_path, split="test").classes == ("cat", "dog")  # as there is no elk in it
    annotations = [{"image_id": 7, "category_id": 5, "bbox": [1, 2, 3, 4]}]
    write(tmp_path, "test.json", categories=CATEGORIES + elk, annotations=annotations)
    with pytest.raises(InputError, match="has objects of elk, not known here"):
        read_scenes(tmp_path, split="test")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"layout": "vok"}, "layout must be one of auto, voc07, voc0712, voc, coco, got 'vok'; did you mean 'voc'?"),
        ({"split": "val"}, "split must be train or test, got 'val'"),
        ({}, "has neither annotations of Pascal VOC .* nor of COCO"),
        ({"layout": "coco"}, "has no JSON file of COCO for the split train; name it train.json"),
        ({"layout": "voc"}, "has no .xml files"),
        ({"layout": "voc07"}, "has no VOC2007"),
    ],
)
def test_what_is_refused(tmp_path, arguments, said):
    with pytest.raises(InputError, match=said):
        read_scenes(tmp_path, **arguments)


def test_a_place_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="is not there; give the folder of a data set"):
        read_scenes(tmp_path / "none")


def test_scenes_that_are_not_finished(tmp_path):
    settings = {"data": "emoji-scenes", "scenes": 8, "size": 64, "seed": 0}
    state = {"format": "frontrank.data.1", "finished": False, "settings": settings}
    (tmp_path / "data.json").write_text(json.dumps(state))
    with pytest.raises(
        InputError, match=r"not finished; go on with it: frontrank data emoji-scenes .* --scenes 8 --size 64 --seed 0"
    ):
        read_scenes(tmp_path)
