"""What goes wrong: the score to look from, the kinds of mistakes, the pictures in numbers."""

import numpy as np
import pytest

from frontrank.detection.evaluation import (
    MISTAKES,
    Tally,
    best_score,
    count_mistakes,
    judge_detections,
    overlaps,
    tally_scenes,
)
from tests.detection.scenes import found_of, random_scenes, table_of
from tests.reference.detection import overlap

BOX, OTHER = [10, 10, 30, 30], [50, 50, 70, 70]


def made(objects, found):
    table, found = table_of(objects), found_of(found)
    return table, found, judge_detections(table, found)


@pytest.mark.parametrize("seed", range(5))
def test_the_score_of_the_best_f1(seed):
    objects, found = random_scenes(np.random.default_rng(seed))
    table, found, verdicts = made(objects, found)
    scores = sorted({float(score) for each in found for score in each.scores})

    def f1(least):
        sums = [
            sum(getattr(each, name) for each in tally_scenes(table, found, verdicts, least))
            for name in Tally.__annotations__
        ]
        right, wrong, missed, _ = sums
        return 2 * right / (2 * right + wrong + missed)

    assert f1(best_score(table, found, verdicts)) == pytest.approx(max(map(f1, scores)), abs=1e-12)


def test_equal_scores_are_taken_together():
    """From 0.5 on there are two right and three wrong: worse than the one right from 0.9 on."""
    wrong = [([80, 10 * number, 90, 10 * number + 9], 1, 0.5) for number in range(3)]
    objects = [[(BOX, 1, False), (OTHER, 1, False)]]
    table, found, verdicts = made(objects, [[(BOX, 1, 0.9), (OTHER, 1, 0.5), *wrong]])
    assert best_score(table, found, verdicts) == 0.9


def test_nothing_found():
    table, found, verdicts = made([[(BOX, 1, False)]], [[]])
    assert best_score(table, found, verdicts) == 0.5
    assert tally_scenes(table, found, verdicts, 0.5) == [Tally(0, 0, 1, 0.0)]
    assert count_mistakes(table, found, verdicts, 0.0) == dict.fromkeys(MISTAKES, 0)


def test_a_picture_in_numbers():
    objects = [[(BOX, 1, False), (OTHER, 2, False), ([10, 50, 30, 70], 2, True)]]
    found = [[(BOX, 1, 0.9), (BOX, 1, 0.8), (OTHER, 1, 0.7), ([10, 50, 30, 70], 2, 0.6), (OTHER, 2, 0.3)]]
    table, found, verdicts = made(objects, found)
    assert tally_scenes(table, found, verdicts, 0.5) == [Tally(right=1, wrong=2, missed=1, worst=0.8)]
    assert tally_scenes(table, found, verdicts, 0.0) == [Tally(right=2, wrong=2, missed=0, worst=0.8)]


def test_kinds():
    found = [
        (BOX, 1, 0.9),  # right
        (BOX, 1, 0.8),  # twice
        (OTHER, 1, 0.7),  # another class
        ([20, 20, 40, 40], 1, 0.6),  # misplaced
        ([80, 80, 90, 90], 1, 0.5),  # background
        ([80, 80, 90, 90], 2, 0.1),  # below the score
    ]
    table, found, verdicts = made([[(BOX, 1, False), (OTHER, 2, False)]], [found])
    assert count_mistakes(table, found, verdicts, 0.4) == dict.fromkeys(MISTAKES, 1)


def test_overlaps():
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 50, (40, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0, 30, (40, 2))], axis=1)
    expected = [overlap(boxes[0], other) for other in boxes]
    assert overlaps(boxes[0], boxes).tolist() == pytest.approx(expected)
    assert overlaps(np.zeros(4), np.zeros((1, 4))).tolist() == [0.0]
    assert overlaps(np.zeros(4), np.zeros((0, 4))).shape == (0,)
