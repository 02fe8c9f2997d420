"""Detections against objects: equal to slow loops, defined where there is little or nothing, and what goes wrong."""

import json

import numpy as np
import pytest

from frontrank.detection.evaluation import (
    MISTAKES,
    THRESHOLDS,
    DetectionReport,
    Detections,
    Tally,
    best_score,
    count_mistakes,
    evaluate_detections,
    judge_detections,
    overlaps,
    tally_scenes,
)
from frontrank.errors import InputError
from tests.detection.scenes import CLASSES, found_of, random_scenes, table_of
from tests.errors import refusal
from tests.reference import detection as slow

BOX, OTHER, THIRD, FAR = [10, 10, 30, 30], [50, 50, 70, 70], [50, 10, 70, 30], [80, 80, 90, 90]


def evaluated(objects, found, **more):
    return evaluate_detections(table_of(objects, **more), found_of(found))


def judged(objects, found):
    table, detections = table_of(objects), found_of(found)
    return table, detections, judge_detections(table, detections)


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_the_devkit(seed):
    """Where no detection overlaps two objects by half, pycocotools and the devkit of Pascal VOC agree."""
    objects, found = random_scenes(np.random.default_rng(seed), ignored=0.0 if seed % 3 == 0 else 0.25)
    report = evaluated(objects, found)
    scenes = list(zip(objects, found, strict=True))
    recalls = np.linspace(0, 1, 101)
    with_objects = [name for name in CLASSES if report.per_class[name].objects]
    for label, name in enumerate(CLASSES, start=1):
        if name not in with_objects:
            continue
        of = report.per_class[name].metrics
        assert of["AP50"] == pytest.approx(slow.ap_all_points(scenes, label), abs=1e-12)
        assert of["AP50-07"] == pytest.approx(slow.ap_eleven_points(scenes, label), abs=1e-12)
        assert of["mAP"] == pytest.approx(slow.ap_coco(scenes, label, THRESHOLDS, recalls), abs=1e-12)
        assert of["AP75"] == pytest.approx(slow.ap_coco(scenes, label, THRESHOLDS[5:6], recalls), abs=1e-12)
    assert 0.1 < report["AP50"] < 0.9
    for metric, value in report.items():
        means = [report.per_class[name].metrics[metric] for name in with_objects]
        assert value == pytest.approx(np.mean(means), abs=1e-12)


def test_recall_that_is_a_tenth_counts_at_that_tenth():
    """3 of 10 found: recall is 0.3 exactly, and the eleven points at 0, 0.1, 0.2 and 0.3 count."""
    objects = [[(BOX, 1, False)] for _ in range(10)]
    found = [[(BOX, 1, 0.9 - 0.1 * number)] if number < 3 else [] for number in range(10)]
    report = evaluated(objects, found)
    assert report["AP50-07"] == pytest.approx(4 / 11)
    assert report["AP50"] == pytest.approx(0.3)


def test_differences_to_the_devkit():
    """A detection takes the best object that is left; in the devkit only the one it overlaps most, ignored or not."""
    two = [[([0, 0, 20, 20], 1, False), ([4, 0, 24, 20], 1, False)]]
    twice = [[([1, 0, 21, 20], 1, 0.9), ([1, 0, 21, 20], 1, 0.8)]]
    assert evaluated(two, twice)["AP50"] == pytest.approx(1.0)
    assert slow.ap_all_points(list(zip(two, twice, strict=True)), 1) == 0.5
    aside = [[([0, 0, 20, 20], 1, True), ([5, 0, 25, 20], 1, False)]]
    once = [[([1, 0, 21, 20], 1, 0.9)]]
    assert evaluated(aside, once)["AP50"] == pytest.approx(1.0)
    assert slow.ap_all_points(list(zip(aside, once, strict=True)), 1) == 0.0


def test_ignored_objects_are_neither_right_nor_wrong():
    objects = [[(BOX, 1, True), (OTHER, 1, False)]]
    report = evaluated(objects, [[(BOX, 1, 0.9), (BOX, 1, 0.8), (OTHER, 1, 0.7)]])
    assert report["AP50"] == pytest.approx(1.0)  # although two better ones lie on the ignored one
    assert report.per_class["ant"].objects == 1
    inside = [([12, 12, 18, 18], 1, 0.9), (OTHER, 1, 0.7)]  # within it, and not by half of it
    assert evaluated(objects, [inside])["AP50"] == pytest.approx(0.5)
    assert evaluated(objects, [inside], crowds=True)["AP50"] == pytest.approx(1.0)


def test_coco_counts_a_hundred_of_a_picture():
    wrong = [([60, 60, 61 + number % 30, 70], 1, 0.9 - number / 1000) for number in range(100)]
    report = evaluated([[(BOX, 1, False)]], [[*wrong, (BOX, 1, 0.1)]])
    assert report["mAP"] == 0 < report["AP50"]


def test_nothing_found_is_zero_and_finite():
    scenes = judged([[(BOX, 1, False)], []], [[], []])
    report = evaluate_detections(*scenes[:2])
    assert dict(report) == dict.fromkeys(("AP50", "AP50-07", "mAP", "AP75"), 0.0)
    assert len(report.curves["ant"].recall) == 0
    assert report.per_class["ant"].recall == 0
    assert best_score(*scenes) == 0.5
    assert tally_scenes(*scenes, 0.5) == [Tally(0, 0, 1, 0.0), Tally(0, 0, 0, 0.0)]
    assert count_mistakes(*scenes, 0.0) == dict.fromkeys(MISTAKES, 0)


def test_classes_without_objects_are_in_no_mean():
    report = evaluated([[(BOX, 1, False), (BOX, 3, True)]], [[(BOX, 1, 0.9), (BOX, 2, 0.8), (BOX, 3, 0.7)]])
    assert report["AP50"] == pytest.approx(1.0)
    assert (report.per_class["bee"].metrics, report.per_class["bee"].detections) == ({}, 1)
    assert report.per_class["cat"].recall is None
    assert str(report).endswith("bee, cat")
    assert list(report.curves) == ["ant"]
    refusal(lambda: evaluated([[], [(BOX, 1, True)]], [[], []]), "made")


@pytest.mark.parametrize(
    ("detections", "match"),
    [
        ([], "detections"),
        ([Detections(np.zeros((2, 4)), np.zeros(1), np.ones(1))], r"\[2, 4\], \[1\]"),
        ([Detections(np.full((1, 4), np.nan), np.zeros(1), np.ones(1))], "finite"),
        ([Detections(np.zeros((1, 4)), np.zeros(1), np.zeros(1, int))], "labels"),
    ],
)
def test_detections_that_cannot_be(detections, match):
    with pytest.raises(InputError, match=match):
        evaluate_detections(table_of([[(BOX, 1, False)]]), detections)


def test_verdicts():
    objects = [[], [(BOX, 1, False), (OTHER, 2, False), (THIRD, 2, True)]]
    found = [[(BOX, 1, 0.5)], [(BOX, 1, 0.9), (BOX, 1, 0.8), (BOX, 2, 0.7), (THIRD, 2, 0.6)]]
    first, second = judge_detections(table_of(objects), found_of(found))
    assert (first.right.tolist(), first.objects.tolist()) == ([False], [-1])
    assert second.right.tolist() == [True, False, False, False]
    assert second.ignored.tolist() == [False, False, False, True]
    assert second.objects.tolist() == [0, -1, -1, 2]


def test_a_report_comes_back_from_its_file(tmp_path):
    report = evaluated(*random_scenes(np.random.default_rng(5)))
    report.save(tmp_path / "ap.json")
    again = DetectionReport.load(tmp_path / "ap.json")
    assert dict(again) == dict(report)
    assert again.per_class == report.per_class
    assert str(again) == str(report)
    for name, curve in report.curves.items():
        assert np.array_equal(again.curves[name].precision, curve.precision)
    refusal(lambda: report.save(tmp_path / "ap.json"), "ap.json")
    content = json.loads((tmp_path / "ap.json").read_text())
    del content["per_class"]["ant"]["objects"]
    (tmp_path / "cut.json").write_text(json.dumps(content))
    refusal(lambda: DetectionReport.load(tmp_path / "cut.json"), "cut.json")


def test_tables():
    report = evaluated([[(BOX, 1, False)]], [[(BOX, 1, 0.9)]])
    assert report.table("text").splitlines()[1].startswith("1 picture, 1 object")
    assert "| ant   | 100.0 |   100.0 | 100.0 | 100.0 |" in report.table("markdown")
    with pytest.raises(KeyError, match="'AP'"):
        report["AP"]


def test_curves_are_interpolated_precision():
    objects = [[(BOX, 1, False), (OTHER, 1, False), (THIRD, 1, False)]]
    curve = evaluated(objects, [[(BOX, 1, 0.9), (FAR, 1, 0.8), (OTHER, 1, 0.7)]]).curves["ant"]
    assert curve.recall.tolist() == [1 / 3, 2 / 3]
    assert curve.precision.tolist() == pytest.approx([1.0, 2 / 3])


# Mistakes


@pytest.mark.parametrize("seed", range(2))
def test_the_score_of_the_best_f1(seed):
    scenes = judged(*random_scenes(np.random.default_rng(seed)))
    scores = sorted({float(score) for each in scenes[1] for score in each.scores})

    def f1(least):
        tallies = tally_scenes(*scenes, least)
        right, wrong, missed = (sum(getattr(each, name) for each in tallies) for name in ("right", "wrong", "missed"))
        return 2 * right / (2 * right + wrong + missed)

    assert f1(best_score(*scenes)) == pytest.approx(max(map(f1, scores)), abs=1e-12)


def test_equal_scores_are_taken_together():
    """From 0.5 on there are two right and three wrong: worse than the one right from 0.9 on."""
    wrong = [([80, 10 * number, 90, 10 * number + 9], 1, 0.5) for number in range(3)]
    objects = [[(BOX, 1, False), (OTHER, 1, False)]]
    assert best_score(*judged(objects, [[(BOX, 1, 0.9), (OTHER, 1, 0.5), *wrong]])) == 0.9


def test_a_picture_in_numbers():
    objects = [[(BOX, 1, False), (OTHER, 2, False), (THIRD, 2, True)]]
    scenes = judged(objects, [[(BOX, 1, 0.9), (BOX, 1, 0.8), (OTHER, 1, 0.7), (THIRD, 2, 0.6), (OTHER, 2, 0.3)]])
    assert tally_scenes(*scenes, 0.5) == [Tally(right=1, wrong=2, missed=1, worst=0.8)]
    assert tally_scenes(*scenes, 0.0) == [Tally(right=2, wrong=2, missed=0, worst=0.8)]


def test_kinds_of_mistakes():
    found = [
        (BOX, 1, 0.9),  # right
        (BOX, 1, 0.8),  # twice
        (OTHER, 1, 0.7),  # another class
        ([20, 20, 40, 40], 1, 0.6),  # misplaced
        (FAR, 1, 0.5),  # background
        (FAR, 2, 0.1),  # below the score
    ]
    scenes = judged([[(BOX, 1, False), (OTHER, 2, False)]], [found])
    assert count_mistakes(*scenes, 0.4) == dict.fromkeys(MISTAKES, 1)


def test_overlaps():
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 50, (40, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0, 30, (40, 2))], axis=1)
    assert overlaps(boxes[0], boxes).tolist() == pytest.approx([slow.overlap(boxes[0], other) for other in boxes])
    assert overlaps(np.zeros(4), np.zeros((1, 4))).tolist() == [0.0]
    assert overlaps(np.zeros(4), np.zeros((0, 4))).shape == (0,)
