"""Detections against objects: equal to slow loops, and what is defined where there is little or nothing."""

import json

import numpy as np
import pytest

from frontrank.detection.evaluation import (
    THRESHOLDS,
    DetectionReport,
    Detections,
    as_coco_results,
    evaluate_detections,
    judge_detections,
)
from frontrank.errors import InputError
from tests.detection.scenes import CLASSES, found_of, random_scenes, table_of
from tests.reference import detection as slow

BOX = [10, 10, 30, 30]


def evaluated(objects, found, **more):
    return evaluate_detections(table_of(objects, **more), found_of(found))


@pytest.mark.parametrize("seed", range(12))
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
    for metric, value in report.items():
        means = [report.per_class[name].metrics[metric] for name in with_objects]
        assert value == pytest.approx(np.mean(means), abs=1e-12)


def test_that_the_scenes_are_a_test():
    """The random scenes have right, wrong and ignored detections, and AP is neither 0 nor 1."""
    objects, found = random_scenes(np.random.default_rng(1))
    verdicts = judge_detections(table_of(objects), found_of(found))
    right, ignored = (np.concatenate([getattr(each, name) for each in verdicts]) for name in ("right", "ignored"))
    assert right.any()
    assert ignored.any()
    assert (~right & ~ignored).any()
    assert 0.1 < evaluated(objects, found)["AP50"] < 0.9


def test_recall_that_is_a_tenth_counts_at_that_tenth():
    """3 of 10 found: recall is 0.3 exactly, and the eleven points at 0, 0.1, 0.2 and 0.3 count."""
    objects = [[(BOX, 1, False)] for _ in range(10)]
    found = [[(BOX, 1, 0.9 - 0.1 * number)] if number < 3 else [] for number in range(10)]
    report = evaluated(objects, found)
    assert report["AP50-07"] == pytest.approx(4 / 11)
    assert report["AP50"] == pytest.approx(0.3)


def test_a_difference_to_the_devkit_a_second_object_may_be_taken():
    """The better of two boxes takes the object both overlap most; the other takes what is left, and is right here."""
    objects = [[([0, 0, 20, 20], 1, False), ([4, 0, 24, 20], 1, False)]]
    found = [[([1, 0, 21, 20], 1, 0.9), ([1, 0, 21, 20], 1, 0.8)]]
    scenes = list(zip(objects, found, strict=True))
    assert evaluated(objects, found)["AP50"] == pytest.approx(1.0)
    assert slow.ap_all_points(scenes, 1) == 0.5


def test_a_difference_to_the_devkit_an_ignored_object_is_the_last_choice():
    """A box that overlaps an ignored object more than another by half finds the other one."""
    objects = [[([0, 0, 20, 20], 1, True), ([5, 0, 25, 20], 1, False)]]
    found = [[([1, 0, 21, 20], 1, 0.9)]]
    scenes = list(zip(objects, found, strict=True))
    assert evaluated(objects, found)["AP50"] == pytest.approx(1.0)
    assert slow.ap_all_points(scenes, 1) == 0.0


def test_ignored_objects_are_neither_right_nor_wrong():
    objects = [[(BOX, 1, True), ([50, 50, 70, 70], 1, False)]]
    several = [(BOX, 1, 0.9), (BOX, 1, 0.8), ([50, 50, 70, 70], 1, 0.7)]
    report = evaluated(objects, [several])
    assert report["AP50"] == pytest.approx(1.0)  # although two better ones lie on the ignored one
    assert report.per_class["ant"].objects == 1
    inside = [([12, 12, 18, 18], 1, 0.9), ([50, 50, 70, 70], 1, 0.7)]  # within it, and not by half of it
    assert evaluated(objects, [inside])["AP50"] == pytest.approx(0.5)
    assert evaluated(objects, [inside], crowds=True)["AP50"] == pytest.approx(1.0)


def test_coco_counts_a_hundred_of_a_picture():
    wrong = [([60, 60, 61 + number % 30, 70], 1, 0.9 - number / 1000) for number in range(100)]
    report = evaluated([[(BOX, 1, False)]], [[*wrong, (BOX, 1, 0.1)]])
    assert report["mAP"] == 0 < report["AP50"]


def test_nothing_found_is_zero_and_finite():
    report = evaluated([[(BOX, 1, False)], []], [[], []])
    assert dict(report) == dict.fromkeys(("AP50", "AP50-07", "mAP", "AP75"), 0.0)
    assert len(report.curves["ant"].recall) == 0
    assert report.per_class["ant"].recall == 0


def test_classes_without_objects_are_in_no_mean():
    objects = [[(BOX, 1, False), (BOX, 3, True)]]
    found = [[(BOX, 1, 0.9), (BOX, 2, 0.8), (BOX, 3, 0.7)]]
    report = evaluated(objects, found)
    assert report["AP50"] == pytest.approx(1.0)
    assert report.per_class["bee"].metrics == {}
    assert report.per_class["bee"].detections == 1
    assert report.per_class["cat"].recall is None
    assert "not in the means: bee, cat" in str(report)
    assert list(report.curves) == ["ant"]


def test_a_table_without_objects_is_refused():
    with pytest.raises(InputError, match="made has no objects to find; give pictures with objects"):
        evaluated([[], [(BOX, 1, True)]], [[], []])


def test_boxes_of_no_area_and_outside_are_wrong():
    found = [[([5, 5, 5, 9], 1, 0.9), ([9, 9, 3, 3], 1, 0.8), ([-50, -50, -10, -10], 1, 0.7), (BOX, 1, 0.6)]]
    assert evaluated([[(BOX, 1, False)]], found)["AP50"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "found has 0 entries for 1 pictures"),
        ([Detections(np.zeros((2, 4)), np.zeros(1), np.ones(1))], r"boxes, scores and labels are \[\[2, 4\], \[1\]"),
        ([Detections(np.full((1, 4), np.nan), np.zeros(1), np.ones(1))], "not finite"),
        ([Detections(np.zeros((1, 4)), np.array([np.inf]), np.ones(1))], "not finite"),
        ([Detections(np.zeros((1, 4)), np.zeros(1), np.zeros(1, int))], "labels must be from 1 to 3"),
        ([Detections(np.zeros((1, 4)), np.zeros(1), np.full(1, 4))], "labels must be from 1 to 3"),
    ],
)
def test_detections_that_cannot_be(found, said):
    with pytest.raises(InputError, match=said):
        evaluate_detections(table_of([[(BOX, 1, False)]]), found)


def test_verdicts():
    objects = [[], [(BOX, 1, False), ([50, 50, 70, 70], 2, False), ([50, 10, 70, 30], 2, True)]]
    found = [[(BOX, 1, 0.5)], [(BOX, 1, 0.9), (BOX, 1, 0.8), (BOX, 2, 0.7), ([50, 10, 70, 30], 2, 0.6)]]
    first, second = judge_detections(table_of(objects), found_of(found))
    assert first.right.tolist() == [False]
    assert first.objects.tolist() == [-1]
    assert second.right.tolist() == [True, False, False, False]
    assert second.ignored.tolist() == [False, False, False, True]
    assert second.objects.tolist() == [0, -1, -1, 2]


def test_a_verdict_does_not_depend_on_worse_detections():
    objects, found = random_scenes(np.random.default_rng(4))
    whole = judge_detections(table_of(objects), found_of(found))
    kept = [[each for each in scene if each[2] >= 0.4] for scene in found]
    fewer = judge_detections(table_of(objects), found_of(kept))
    for scene, one, other in zip(found, whole, fewer, strict=True):
        left = np.array([each[2] >= 0.4 for each in scene], dtype=bool)
        assert one.right[left].tolist() == other.right.tolist()
        assert one.ignored[left].tolist() == other.ignored.tolist()


def test_a_report_comes_back_from_its_file(tmp_path):
    objects, found = random_scenes(np.random.default_rng(5))
    report = evaluated(objects, found)
    report.save(tmp_path / "ap.json")
    again = DetectionReport.load(tmp_path / "ap.json")
    assert dict(again) == dict(report)
    assert again.per_class == report.per_class
    assert str(again) == str(report)
    for name, curve in report.curves.items():
        assert np.array_equal(again.curves[name].precision, curve.precision)
    with pytest.raises(InputError, match="exists already"):
        report.save(tmp_path / "ap.json")
    content = json.loads((tmp_path / "ap.json").read_text())
    del content["per_class"]["ant"]["objects"]
    (tmp_path / "cut.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="is not a whole detection report"):
        DetectionReport.load(tmp_path / "cut.json")


def test_tables():
    report = evaluated([[(BOX, 1, False)]], [[(BOX, 1, 0.9)]])
    assert report.table("text").splitlines()[1] == "1 picture, 1 object; in percent"
    assert "| ant   | 100.0 |   100.0 | 100.0 | 100.0 |" in report.table("markdown")
    with pytest.raises(KeyError, match="no metric 'AP'"):
        report["AP"]


def test_curves_are_interpolated_precision():
    objects = [[(BOX, 1, False), ([50, 50, 70, 70], 1, False), ([50, 10, 70, 30], 1, False)]]
    found = [[(BOX, 1, 0.9), ([80, 80, 90, 90], 1, 0.8), ([50, 50, 70, 70], 1, 0.7)]]
    curve = evaluated(objects, found).curves["ant"]
    assert curve.recall.tolist() == [1 / 3, 2 / 3]
    assert curve.precision.tolist() == pytest.approx([1.0, 2 / 3])


def test_results_as_coco_writes_them():
    (one,) = found_of([[([1.5, 2, 11.5, 22], 2, 0.75)]])
    (row,) = as_coco_results([one], [7], [10, 20, 30])
    assert row == {"image_id": 7, "category_id": 20, "bbox": [1.5, 2.0, 10.0, 20.0], "score": 0.75}
