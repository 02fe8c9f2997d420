"""Objects in pictures: the files, their numbers, that nothing is written over, and boxes on pictures."""

import json

import numpy as np
import pytest
from PIL import Image, ImageColor

from frontrank.detection.evaluation import Detections, judge_detections
from frontrank.detection.predict import COLOURS, LEAST, Mark, detection_marks, draw_marks, predict, scene_marks
from frontrank.errors import FrontrankWarning, InputError
from tests.detection.scenes import CLASSES, found_of, table_of
from tests.errors import refusal


class Finder:
    """Finds a box at the left for each ten pixels of width, with the scores 0.9, 0.8, ..."""

    classes = ("ant", "bee")

    def __init__(self):
        self.batches = []

    def detect(self, pictures):
        self.batches.append(len(pictures))
        detections = []
        for picture in pictures:
            count = picture.width // 10
            boxes = np.array([[0, number, 8, number + 6.5] for number in range(count)], dtype=np.float32).reshape(-1, 4)
            detections.append(Detections(boxes, 0.9 - 0.1 * np.arange(count), np.arange(count) % 2 + 1))
        return detections


@pytest.fixture
def photos(tmp_path):
    for name, width in (("in/a.jpg", 30), ("in/deep/b.png", 5), ("in/deep/a.png", 10)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (width, 20)).save(path)
    return tmp_path / "in"


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_what_is_written(photos, tmp_path):
    finder = Finder()
    assert predict(finder, [photos], tmp_path / "out", batch=2, show=False) == (3, 4)
    assert finder.batches == [2, 1]
    images = {each["id"]: each for each in read(tmp_path / "out/pictures.json")["images"]}
    assert read(tmp_path / "out/pictures.json")["categories"] == [{"id": 1, "name": "ant"}, {"id": 2, "name": "bee"}]
    results = read(tmp_path / "out/detections.json")
    assert all(images[row["image_id"]]["file_name"] == row["file_name"] for row in results)
    first = [row for row in results if row["file_name"].endswith("in/a.jpg")]
    assert [row["score"] for row in first] == pytest.approx([0.9, 0.8, 0.7])
    assert [(row["category_id"], row["category"]) for row in first] == [(1, "ant"), (2, "bee"), (1, "ant")]
    assert first[1]["bbox"] == [0.0, 1.0, 8.0, 6.5]
    assert len(list((tmp_path / "out/drawn").iterdir())) == 3  # two of the same name among them


def test_nothing_is_written_over(photos, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/detections.json").write_text("mine")
    refusal(lambda: predict(Finder(), [photos], tmp_path / "out", show=False), "--force")
    assert (tmp_path / "out/detections.json").read_text() == "mine"
    (tmp_path / "out/letter.txt").write_text("dear")
    predict(Finder(), [photos], tmp_path / "out", overwrite=True, draw=False, show=False)
    assert len(read(tmp_path / "out/detections.json")) == 4
    assert (tmp_path / "out/letter.txt").read_text() == "dear"
    assert not (tmp_path / "out/drawn").exists()
    for out in ("out/letter.txt", "out/letter.txt/deeper"):
        refusal(lambda out=out: predict(Finder(), [photos], tmp_path / out, show=False), "letter.txt")


def test_pictures_that_are_broken_or_missing(photos, tmp_path):
    (photos / "deep/b.png").write_bytes(b"no picture")
    with pytest.warns(FrontrankWarning, match=r"1 of 3 pictures .*b\.png"):
        assert predict(Finder(), [photos], tmp_path / "out", show=False) == (2, 4)
    (tmp_path / "empty").mkdir()
    for path, match in (("in/deep/b.png", r"b\.png"), ("empty", "empty"), ("none.jpg", r"none\.jpg")):
        with pytest.raises(InputError, match=match):
            predict(Finder(), [tmp_path / path], tmp_path / "other", show=False)


# Boxes on pictures

BOX = (60.0, 80.0, 200.0, 220.0)


def near(picture, at, colour):
    """Whether a pixel has this colour."""
    return max(abs(a - b) for a, b in zip(picture.getpixel(at), ImageColor.getrgb(colour), strict=True)) <= 3


def test_marks_of_a_picture():
    objects = [([10, 10, 30, 30], 1, False), ([50, 50, 70, 70], 2, False), ([50, 10, 70, 30], 2, True)]
    found = [([10, 10, 30, 30], 1, 0.9), ([50, 10, 70, 30], 2, 0.8), ([80, 80, 90, 90], 3, 0.7)]
    found += [([50, 50, 70, 70], 2, 0.4)]  # below the score: its object is missed
    table, detections = table_of([[*objects, ([10, 70, 30, 90], 2, True)]]), found_of([found])
    marks = scene_marks(table, 0, detections[0], judge_detections(table, detections)[0], least=0.5)
    assert [(mark.kind, mark.text) for mark in marks] == [
        ("missed", "bee missed"),
        ("wrong", "cat 0.70"),
        ("ignored", "bee 0.80"),
        ("right", "ant 0.90"),
    ]
    assert [mark.kind for mark in detection_marks(detections[0], CLASSES, 0.5)] == ["found"] * 3


def test_pictures_are_scaled_with_their_boxes():
    drawing = draw_marks(Image.new("RGB", (100, 50)), [Mark((10, 10, 40, 40), "", "right")])
    assert drawing.size == (LEAST, LEAST // 2)
    factor = LEAST / 100
    assert near(drawing, (round(25 * factor), round(40 * factor) - 1), COLOURS["right"])
    drawing = draw_marks(Image.new("RGB", (1000, 500)), [Mark((100, 100, 400, 400), "", "right")], most=500)
    assert drawing.size == (500, 250)
    assert near(drawing, (125, 199), COLOURS["right"])
