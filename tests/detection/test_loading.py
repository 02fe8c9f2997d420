"""Pictures and their boxes as batches: the right ones, mirrored together, the same for any number of workers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from frontrank.detection.data import (
    SceneBatches,
    SceneDataset,
    SceneTable,
    all_scenes,
    check_boxes,
    mirrored,
    training_scenes,
)
from frontrank.errors import InputError


def table_of(folder, count=10):
    """Pictures whose every pixel says which they are, each with one box; the first without."""
    files, boxes, labels = [], [], []
    for number in range(count):
        pixels = np.full((20, 30, 3), number * 10, np.uint8)
        pixels[4:8, 2:12] = 255
        Image.fromarray(pixels).save(folder / f"{number}.png")
        files.append(str(folder / f"{number}.png"))
        boxes.append(np.array([[2, 4, 12, 8]] * (number > 0), np.float32).reshape(-1, 4))
        labels.append(np.ones(int(number > 0), np.int64))
    ignored = tuple(np.zeros(len(each), bool) for each in labels)
    return SceneTable(
        "few", ("a", "b"), tuple(files), np.array([[30, 20]] * count), tuple(boxes), tuple(labels), ignored
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return table_of(tmp_path_factory.mktemp("scenes"))


def names(batch):
    return [int(each[0, 0, 0]) // 10 for each in batch[0]]


def test_an_epoch_has_every_picture_once():
    batches = SceneBatches(10, 5, seed=3)
    epochs = [[row for batch in batches for row in batch] for _ in range(3)]
    assert [sorted(each) for each in epochs] == [list(range(10))] * 3
    assert len({tuple(each) for each in epochs}) == 3
    assert len(SceneBatches(10, 4)) == 2
    with pytest.raises(InputError, match="batch is 11, but there are 10 pictures to train with"):
        SceneBatches(10, 11)


def test_flipped_boxes_lie_on_what_they_lay_on(table):
    picture, target = SceneDataset(table, flip=False)[3, 0]
    again, moved = mirrored(picture, target)
    for image, boxes in ((picture, target["boxes"]), (again, moved["boxes"])):
        left, top, right, bottom = boxes[0].int().tolist()
        inside = torch.zeros(20, 30, dtype=torch.bool)
        inside[top:bottom, left:right] = True
        assert torch.equal(image[0] == 255, inside)
    assert torch.equal(mirrored(again, moved)[1]["boxes"], target["boxes"])


def test_half_of_the_pictures_are_mirrored_as_their_seed_says(table):
    dataset = SceneDataset(table, flip=True)
    lefts = [dataset[1, seed][1]["boxes"][0, 0].item() for seed in range(200)]
    assert {*lefts} == {2.0, 18.0}
    assert 70 < lefts.count(2.0) < 130
    assert lefts == [dataset[1, seed][1]["boxes"][0, 0].item() for seed in range(200)]
    assert {SceneDataset(table, flip=False)[1, seed][1]["boxes"][0, 0].item() for seed in range(20)} == {2.0}


def test_a_picture_without_objects(table):
    for flip in (True, False):
        picture, target = SceneDataset(table, flip)[0, 1]
        assert picture.shape == (3, 20, 30)
        assert target["boxes"].shape == (0, 4)
        assert target["labels"].shape == (0,)
        assert target["labels"].dtype == torch.int64


def test_ignored_objects_are_not_trained_on(table):
    changed = replace(table, ignored=tuple(np.ones(len(each), bool) for each in table.labels))
    assert len(SceneDataset(changed, False)[3, 0][1]["labels"]) == 0
    assert len(SceneDataset(table, False)[3, 0][1]["labels"]) == 1


def test_batches_are_the_same_with_workers_and_when_resumed(table):
    def read(workers, start):
        batches = training_scenes(table, SceneBatches(10, 3, seed=1), seed=1, workers=workers, start=start, stop=7)
        return [(names(each), [t["boxes"].tolist() for t in each[1]]) for each in batches]

    whole = read(0, 0)
    assert len(whole) == 7
    assert read(2, 0) == whole
    assert read(0, 4) == whole[4:]


def test_all_pictures_in_order(table):
    found = [int(each[0, 0, 0]) // 10 for pictures in all_scenes(table, 4, 0) for each in pictures]
    assert found == list(range(10))
    assert list(all_scenes(table.rows([]), 4, 2)) == []


def test_a_picture_of_another_size_is_refused(table):
    wrong = replace(table, sizes=table.sizes + np.array([1, 0]))
    with pytest.raises(InputError, match=r"3.png is 30 x 20 px .* but its boxes are for 31 x 20; mend the annotation"):
        SceneDataset(wrong, False)[3, 0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_is_one_line(tmp_path, workers):
    table = table_of(tmp_path, 3)
    (tmp_path / "1.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"1.png") as caught:
        list(training_scenes(table, SceneBatches(3, 3), workers=workers, stop=1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "box", [[-1, 0, 5, 5], [0, 0, 31, 5], [0, 3, 5, 3], [7, 0, 5, 5], [0, 0, 5, 21], [0, 0, float("nan"), 5]]
)
def test_boxes_that_cannot_be(table, box):
    check_boxes(table)
    boxes = [*table.boxes]
    boxes[4] = np.array([box], np.float32)
    with pytest.raises(InputError, match=r"4.png: object 1 has the box .* without an area or not within 30 x 20"):
        check_boxes(replace(table, boxes=tuple(boxes)))
