"""Boxes on pictures: where their pixels are, in which colour, and that every name has room."""

import numpy as np
import pytest
from PIL import Image, ImageColor

from frontrank.detection.evaluation import judge_detections
from frontrank.detection.predict import COLOURS, LEAST, Mark, draw_marks, scene_marks
from tests.detection.scenes import found_of, table_of

BOX = (60.0, 80.0, 200.0, 220.0)


def near(picture, at, colour):
    """Whether a pixel has this colour."""
    return max(abs(a - b) for a, b in zip(picture.getpixel(at), ImageColor.getrgb(colour), strict=True)) <= 3


def test_marks_of_a_picture():
    objects = [
        [
            ([10, 10, 30, 30], 1, False),
            ([50, 50, 70, 70], 2, False),
            ([50, 10, 70, 30], 2, True),
            ([10, 70, 30, 90], 2, True),
        ]
    ]
    found = [
        [([10, 10, 30, 30], 1, 0.9), ([50, 10, 70, 30], 2, 0.8), ([80, 80, 90, 90], 3, 0.7), ([0, 0, 9, 9], 3, 0.1)]
    ]
    table, found = table_of(objects), found_of(found)
    marks = scene_marks(table, 0, found[0], judge_detections(table, found)[0], least=0.5)
    assert [(mark.kind, mark.text) for mark in marks] == [
        ("missed", "bee missed"),
        ("wrong", "cat 0.70"),
        ("ignored", "bee 0.80"),
        ("right", "ant 0.90"),
    ]
    assert {mark.kind for mark in scene_marks(table, 0, found[0])} == {"found"}


def test_an_object_is_missed_if_its_box_is_below_the_score():
    table, found = table_of([[([10, 10, 30, 30], 1, False)]]), found_of([[([10, 10, 30, 30], 1, 0.4)]])
    marks = scene_marks(table, 0, found[0], judge_detections(table, found)[0], least=0.5)
    assert [mark.kind for mark in marks] == ["missed"]


@pytest.mark.parametrize("kind", COLOURS)
def test_a_box_has_its_colour(kind):
    picture = Image.new("RGB", (600, 400), "black")
    drawn = draw_marks(picture, [Mark(BOX, "", kind)])
    assert drawn.size == (600, 400)
    assert picture.getextrema() == ((0, 0),) * 3
    edge = [near(drawn, (x, 219), COLOURS[kind]) for x in range(60, 200)]
    share = np.mean(edge)
    assert 0.4 < share < 0.8 if kind in ("missed", "ignored") else share == 1  # dashed, or not
    assert drawn.getpixel((130, 150)) == (0, 0, 0)


def test_small_pictures_are_enlarged_and_large_ones_made_smaller_with_their_boxes():
    drawn = draw_marks(Image.new("RGB", (100, 50)), [Mark((10, 10, 40, 40), "", "right")])
    assert drawn.size == (LEAST, LEAST // 2)
    factor = LEAST / 100
    assert near(drawn, (round(25 * factor), round(40 * factor) - 1), COLOURS["right"])
    drawn = draw_marks(Image.new("RGB", (1000, 500)), [Mark((100, 100, 400, 400), "", "right")], most=500)
    assert drawn.size == (500, 250)
    assert near(drawn, (125, 199), COLOURS["right"])


def test_names_do_not_hide_each_other():
    """Three boxes at one place: the ground of each name can be seen in full."""
    marks = [Mark(BOX, "first", "right"), Mark(BOX, "second", "wrong"), Mark(BOX, "third", "missed")]
    drawn = np.asarray(draw_marks(Image.new("RGB", (600, 400), "black"), marks)).astype(int)
    alone = {}
    for mark in marks:
        one = np.asarray(draw_marks(Image.new("RGB", (600, 400), "black"), [mark])).astype(int)
        alone[mark.kind] = _ground(one, mark.kind)
    for kind, count in alone.items():
        assert count > 500
        assert _ground(drawn, kind) == pytest.approx(count, rel=0.1)


def _ground(pixels, kind):
    """How many pixels around the box have a colour: those of names, not of frames."""
    same = abs(pixels - ImageColor.getrgb(COLOURS[kind])).max(axis=2) <= 3
    same[75:226, 55:206] = False
    return int(same.sum())


@pytest.mark.parametrize(
    "box",
    [(-20, -20, 5, 5), (590, 390, 700, 500), (-9, -9, 700, 500), (5, 5, 5, 5), (700, 700, 800, 800), (9, 9, 2, 2)],
)
def test_boxes_beyond_the_edges(box):
    drawn = draw_marks(Image.new("RGB", (600, 400)), [Mark(box, "a very long name " * 9, "wrong")])
    assert drawn.size == (600, 400)
    assert (np.asarray(drawn).max(axis=2) > 0).any()


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (4, 3)])
def test_odd_pictures(size):
    draw_marks(Image.new("L", size), [Mark((0, 0, 1, 1), "ünïcode 猫", "right")])
