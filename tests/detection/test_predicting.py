"""What a detector finds in pictures: the files, their numbers, and that nothing is written over."""

import json

import numpy as np
import pytest
from PIL import Image

from frontrank.detection.evaluation import Detections
from frontrank.detection.predict import predict
from frontrank.errors import FrontrankWarning, InputError


class Finder:
    """Finds a box at the left for each ten pixels of width, with the scores 0.9, 0.8, ..."""

    classes = ("ant", "bee")

    def __init__(self):
        self.batches = []

    def detect(self, pictures):
        self.batches.append(len(pictures))
        found = []
        for picture in pictures:
            count = picture.width // 10
            boxes = np.array([[0, number, 8, number + 6.5] for number in range(count)], dtype=np.float32).reshape(-1, 4)
            found.append(Detections(boxes, 0.9 - 0.1 * np.arange(count), np.arange(count) % 2 + 1))
        return found


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
    done = predict(finder, [photos], tmp_path / "out", batch=2, show=False)
    assert (done.pictures, done.broken, done.boxes) == (3, 0, 4)
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


def test_only_boxes_from_the_score_on_are_drawn(photos, tmp_path):
    for folder, least in (("none", 0.95), ("some", 0.75), ("all", 0.0)):
        predict(Finder(), [photos / "a.jpg"], tmp_path / folder, least=least, show=False)
        assert len(read(tmp_path / folder / "detections.json")) == 3
    none, some, every = (
        np.asarray(Image.open(tmp_path / folder / "drawn/a.jpg").convert("L")).astype(int).sum()
        for folder in ("none", "some", "all")
    )
    assert none < some
    assert some != every


def test_nothing_is_written_over(photos, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/detections.json").write_text("mine")
    with pytest.raises(InputError, match="is not empty; choose another name, or add --force"):
        predict(Finder(), [photos], tmp_path / "out", show=False)
    assert (tmp_path / "out/detections.json").read_text() == "mine"
    (tmp_path / "out/letter.txt").write_text("dear")
    predict(Finder(), [photos], tmp_path / "out", overwrite=True, draw=False, show=False)
    assert len(read(tmp_path / "out/detections.json")) == 4
    assert (tmp_path / "out/letter.txt").read_text() == "dear"
    assert not (tmp_path / "out/drawn").exists()
    with pytest.raises(InputError, match="is a file; give a folder"):
        predict(Finder(), [photos], tmp_path / "out/letter.txt", show=False)


def test_broken_pictures_are_left_out(photos, tmp_path):
    (photos / "deep/b.png").write_bytes(b"no picture")
    with pytest.warns(
        FrontrankWarning, match=r"1 of 3 pictures could not be read and were left out; the first: .*b.png"
    ):
        done = predict(Finder(), [photos], tmp_path / "out", show=False)
    assert (done.pictures, done.broken) == (2, 1)
    with pytest.raises(InputError, match="none of 1 pictures can be read"):
        predict(Finder(), [photos / "deep/b.png"], tmp_path / "other", show=False)


def test_no_pictures(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no images"):
        predict(Finder(), [tmp_path / "empty"], tmp_path / "out", show=False)
    with pytest.raises(InputError, match="is not there"):
        predict(Finder(), [tmp_path / "none.jpg"], tmp_path / "out", show=False)
    assert not (tmp_path / "out").exists()
