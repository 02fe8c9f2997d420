"""Studies that train: they continue, repeat no run, and a run that fails has no figures; differences over seeds."""

import json
from dataclasses import replace

import numpy as np
import pytest

from frontrank.data.table import read_table
from frontrank.errors import FrontrankError, InputError, InterruptedRunError
from studies.study import Effort
from studies.trained import answer, gap, gap_of_gaps, run_comparison, split_images, training_images, values_by_setting
from tests.comparison.comparisons import SMALL, count_tasks, done_without_training
from tests.studies.samples import entry, failed_entry

SETTINGS = {**SMALL, "model.pooling": "average", "model.stage": "0", "optimizer.warmup": "0", "evaluations": "1"}


def compare_small(effort, images, **others):
    """Two temperatures of Smooth-AP, two seeds, four steps."""
    given = {"losses": "SmoothAP", "axes": ["loss.temperature=0.05,0.5"], "settings": SETTINGS, "lrs": "1e-3"}
    return run_comparison(effort, "temperatures", data=images, **{**given, **others})


@pytest.mark.training
def test_a_comparison_continues_where_it_was_stopped(images, monkeypatch, tmp_path):
    effort, tasks = Effort(tmp_path / "work", seeds=2, show=False), []

    def stop_after_two(task, *rest, **others):
        tasks.append(task)
        return None if len(tasks) > 2 else done_without_training(task, *rest, **others)

    count_tasks(monkeypatch, stop_after_two)
    with pytest.raises(InterruptedRunError, match="1 of 4"):
        compare_small(effort, images)
    tasks = count_tasks(monkeypatch, done_without_training)
    results = compare_small(effort, images)
    assert len(tasks) == 3  # two of five were done: the frozen backbone, and a run
    assert [entry["settings"]["loss.temperature"] for entry in results["entries"]] == [0.05, 0.5]
    assert [entry["seeds"] for entry in results["entries"]] == [[0, 1], [0, 1]]
    assert all(len(values) == 2 for entry in results["entries"] for values in entry["values"].values())
    assert set(results["frozen"]) >= {"R@1", "mAP"}
    tasks.clear()
    with pytest.raises(InputError, match="iterations"):
        compare_small(effort, images, settings={**SETTINGS, "iterations": "5"})
    assert tasks == []


def fail_high_temperature(message, seeds=(0, 1)):
    """Return a task that fails for one temperature and these seeds."""

    def run(task, config, target, beside, what, **others):
        beside.parent.mkdir(parents=True, exist_ok=True)
        if config.loss.temperature == 0.5 and config.seed in seeds and task != "frozen":
            return message
        return done_without_training(task, config, target, beside, what, **others)

    return run


DIVERGED, KILLED = "diverged: the loss is not finite", "ended by the signal SIGKILL"


def test_a_run_that_diverges_has_no_values(images, monkeypatch, tmp_path):
    count_tasks(monkeypatch, fail_high_temperature(DIVERGED))
    results = compare_small(Effort(tmp_path / "all", seeds=1, show=False), images, may_diverge=True)
    assert [bool(entry["values"].get("R@1")) for entry in results["entries"]] == [True, False]
    assert results["entries"][1]["failed"] == DIVERGED
    json.dumps(results, allow_nan=False)
    count_tasks(monkeypatch, fail_high_temperature(DIVERGED, seeds=(1,)))
    results = compare_small(Effort(tmp_path / "one", seeds=2, show=False), images, may_diverge=True)
    assert [(len(entry["seeds"]), entry["planned"]) for entry in results["entries"]] == [(2, 2), (1, 2)]


@pytest.mark.parametrize(("message", "seeds", "may_diverge"), [(DIVERGED, (0, 1), False), (KILLED, (1,), True)])
def test_a_run_that_fails_is_an_error(images, monkeypatch, tmp_path, message, seeds, may_diverge):
    count_tasks(monkeypatch, fail_high_temperature(message, seeds))
    with pytest.raises(FrontrankError, match=f"1 of 2 .*{message}"):
        compare_small(Effort(tmp_path / "work", seeds=2, show=False), images, may_diverge=may_diverge)


def test_images_without_a_test_split_get_the_one_of_a_comparison(images, tmp_path):
    effort = Effort(tmp_path, seed=1)
    given = read_table(images)
    assert np.array_equal(split_images(effort, images).splits, given.splits)
    replace(given, splits=np.full(len(given), "train")).save(tmp_path / "images.csv")
    test_classes = set(split_images(effort, str(tmp_path / "images.csv")).of("test").labels)
    assert test_classes
    assert not test_classes & set(training_images(effort, str(tmp_path / "images.csv")).labels)


def test_values_by_a_setting_are_of_entries_that_finished():
    entries = [
        entry({"loss.bins": 5, "loss.tie_aware": True}, 0.5),
        entry({"loss.bins": 5, "loss.tie_aware": False}, 0.6),
        failed_entry({"loss.bins": 10, "loss.tie_aware": False}),
    ]
    assert values_by_setting(entries, "loss.bins", "mAP", loss_tie_aware=False) == {5: [0.6] * 3}


# Differences over seeds


def test_a_gap_is_in_points_with_its_standard_error():
    """Tables of Student's t, of Welch's degrees of freedom: 4.303 for 2, of the spread of one alone; 2.776 for 4."""
    change = gap([0.63, 0.64, 0.65], [0.60, 0.60, 0.60])
    assert change.points == pytest.approx(4.0)
    assert (change.freedom, change.reach) == (pytest.approx(2), pytest.approx(4.3027 * change.error, rel=1e-4))
    both = gap([0.61, 0.62, 0.63], [0.60, 0.61, 0.62])
    assert (both.freedom, both.reach) == (pytest.approx(4), pytest.approx(2.7764 * both.error, rel=1e-4))
    assert change.error == pytest.approx(100 * 0.01 / 3**0.5, abs=1e-5)  # the spread of the first alone
    assert (change.counts, change.is_more, change.is_less) == (True, True, False)
    assert (str(change), change.text(2)) == ("+4.0 ± 0.6", "+4.00 ± 0.58")
    assert gap([0.6, 0.6], [0.62, 0.62]).is_less


def test_which_gaps_count():
    assert gap([0.606] * 2, [0.6] * 2).counts
    assert not gap([0.604] * 2, [0.6] * 2).counts  # less than half a point
    assert not gap([0.58, 0.62, 0.66], [0.6] * 3).counts  # +2.0 ± 2.3
    assert not gap([0.9] * 3, [0.6]).counts  # one seed


def test_the_gap_of_two_gaps_has_the_errors_of_both():
    lost, other = gap([0.5, 0.51, 0.52], [0.6, 0.6, 0.6]), gap([0.4, 0.41, 0.42], [0.6, 0.61, 0.62])
    change, variances = gap_of_gaps(lost, other), (lost.error**2, other.error**2)
    assert change.points == pytest.approx(11.0)
    assert change.error == pytest.approx(sum(variances) ** 0.5)
    by_hand = sum(variances) ** 2 / (variances[0] ** 2 / 2 + variances[1] ** 2 / 4)
    assert change.freedom == pytest.approx(by_hand, rel=1e-4)
    assert not gap_of_gaps(lost, gap([0.5], [0.6])).counts


def test_an_answer_separates_what_is_not_shown_from_the_other_way_round():
    more, less, none = (gap([0.6 + by] * 3, [0.6] * 3) for by in (0.02, -0.02, 0.001))
    assert answer([more, more]) == "yes"
    assert answer([less]).startswith("no, ")
    assert answer([more, less]) == answer([none, less]) == "no"
    assert answer([none]) == answer([more, none]) == "not shown"
