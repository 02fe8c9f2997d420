"""Studies that train: stopped they go on, what is done is not done again, and a run that fails has no figures."""

import json
from dataclasses import replace

import numpy as np
import pytest

from frontrank.data.table import read_table
from frontrank.errors import FrontrankError, InputError, InterruptedRunError
from studies.study import Effort
from studies.trained import at_an_end, mean_and_spread, percent, split_images, trained, training_images
from tests.comparison.comparisons import SMALL, count_tasks, done_here, done_without_training
from tests.studies.made import TRAINED, done, without_training

SETTINGS = {**SMALL, "model.pooling": "average", "model.stage": "0", "optimizer.warmup": "0", "evaluations": "1"}


def small(effort, images, **others):
    """Two temperatures of Smooth-AP, two seeds, four steps."""
    given = {"losses": "SmoothAP", "axes": ["loss.temperature=0.05,0.5"], "settings": SETTINGS, "lrs": "1e-3"}
    return trained(effort, "temperatures", data=images, **{**given, **others})


def stopping(after, do):
    """Do so many tasks, and be stopped in the next."""
    tasks = []

    def done_or_stopped(task, *rest, **others):
        tasks.append(task)
        return None if len(tasks) > after else do(task, *rest, **others)

    return done_or_stopped


def test_it_goes_on_to_the_same_values(images, monkeypatch, tmp_path):
    effort = Effort(tmp_path / "whole", seeds=2, show=False)
    count_tasks(monkeypatch)
    whole = small(effort, images)
    assert [entry["settings"]["loss.temperature"] for entry in whole["entries"]] == [0.05, 0.5]
    assert [entry["seeds"] for entry in whole["entries"]] == [[0, 1], [0, 1]]
    assert all(len(values) == 2 for entry in whole["entries"] for values in entry["values"].values())
    assert set(whole["frozen"]) >= {"R@1", "mAP"}
    json.dumps(whole, allow_nan=False)

    effort = Effort(tmp_path / "parts", seeds=2, show=False)
    count_tasks(monkeypatch, stopping(2, done_here))
    with pytest.raises(InterruptedRunError, match="stopped, 1 of 4 runs are done"):
        small(effort, images)
    tasks = count_tasks(monkeypatch)
    parts = small(effort, images)
    assert len(tasks) == 3  # two of five were done: the frozen backbone, and a run
    assert [entry["values"] for entry in parts["entries"]] == [entry["values"] for entry in whole["entries"]]
    tasks.clear()
    small(effort, images)
    assert tasks == []


def test_seeds_begin_at_that_of_the_study(images, monkeypatch, tmp_path):
    count_tasks(monkeypatch, done_without_training)
    found = small(Effort(tmp_path / "a", seed=5, seeds=2, show=False), images)
    assert found["entries"][0]["seeds"] == [5, 6]
    quick = small(Effort(tmp_path / "b", quick=True, seeds=3, show=False), images)
    assert quick["entries"][0]["seeds"] == [0]


def test_other_settings_are_not_taken_for_the_same(images, monkeypatch, tmp_path):
    count_tasks(monkeypatch, done_without_training)
    effort = Effort(tmp_path / "work", seeds=1, show=False)
    small(effort, images)
    with pytest.raises(InputError, match="iterations is 4 there and 5 now"):
        small(effort, images, settings={**SETTINGS, "iterations": "5"})


def failing(said):
    """Runs of one temperature fail."""

    def done_or_failed(task, config, target, beside, what, **others):
        beside.parent.mkdir(parents=True, exist_ok=True)
        if config.loss.temperature == 0.5 and task != "frozen":
            return said
        return done_without_training(task, config, target, beside, what, **others)

    return done_or_failed


def test_a_run_that_diverges_has_no_values(images, monkeypatch, tmp_path):
    count_tasks(monkeypatch, failing("the loss is not finite"))
    found = small(Effort(tmp_path / "work", seeds=1, show=False), images, may_diverge=True)
    assert [bool(entry["values"].get("R@1")) for entry in found["entries"]] == [True, False]
    assert found["entries"][1]["failed"] == "the loss is not finite"
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("said", "may_diverge"), [("the loss is not finite", False), ("ended by the signal SIGKILL", True)]
)
def test_a_run_that_fails_is_an_error(images, monkeypatch, tmp_path, said, may_diverge):
    effort = Effort(tmp_path / "work", seeds=2, show=False)
    count_tasks(monkeypatch, failing(said))
    with pytest.raises(FrontrankError, match=f"1 of 2 ways to train did not come to an end, such as .*{said}"):
        small(effort, images, may_diverge=may_diverge)


def test_a_seed_that_crashed_is_not_taken_for_one_that_diverged(images, monkeypatch, tmp_path):
    effort = Effort(tmp_path / "work", seeds=2, show=False)

    def second_seed(said):
        def done_or_failed(task, config, target, beside, what, **others):
            beside.parent.mkdir(parents=True, exist_ok=True)
            if config.loss.temperature == 0.5 and config.seed == 1 and task != "frozen":
                return said
            return done_without_training(task, config, target, beside, what, **others)

        return done_or_failed

    count_tasks(monkeypatch, second_seed("the loss is not finite"))
    found = small(effort, images, may_diverge=True)
    assert [len(entry["seeds"]) for entry in found["entries"]] == [2, 1]
    assert [entry["planned"] for entry in found["entries"]] == [2, 2]
    effort = Effort(tmp_path / "other", seeds=2, show=False)
    count_tasks(monkeypatch, second_seed("ended by the signal SIGKILL"))
    with pytest.raises(FrontrankError, match=r"1 of 2 ways .*ended by the signal SIGKILL"):
        small(effort, images, may_diverge=True)


def test_mean_and_spread():
    assert mean_and_spread([0.5]) == (0.5, 0.0)
    assert mean_and_spread([0.5, 0.7]) == (pytest.approx(0.6), pytest.approx(0.02**0.5))
    assert percent([0.5, 0.7]) == "60.0 ± 14.1"
    assert percent([0.629]) == "62.9"


def test_a_cell_says_where_seeds_are_missing():
    assert percent([0.5, 0.7], 3) == "60.0 ± 14.1 (2 of 3 seeds)"
    assert percent([0.629], 2) == "62.9 (1 of 2 seeds)"
    assert percent([0.5, 0.7], 2) == percent([0.5, 0.7]) == "60.0 ± 14.1"


@pytest.mark.parametrize("name", TRAINED)
def test_a_stopped_study_goes_on_and_trains_nothing_twice(name, images, study_done, monkeypatch, tmp_path):
    without_training(monkeypatch, stopping(2, done_without_training))
    with pytest.raises(InterruptedRunError, match=r"; the same command goes on where it was$"):
        done(name, tmp_path / "out", images)
    assert not (tmp_path / "out" / "results.json").exists()
    monkeypatch.undo()
    tasks = without_training(monkeypatch)
    page = done(name, tmp_path / "out", images)
    assert tasks
    assert page.read_bytes() == (study_done(name) / "README.md").read_bytes()
    all_of_them = [*(tmp_path / "out" / "work").rglob("frozen.json"), *(tmp_path / "out" / "work").rglob("test.json")]
    assert len(tasks) == len(all_of_them) - 2  # none of those before it was stopped
    tasks.clear()
    for path in (tmp_path / "out").iterdir():
        if path.name != "work":
            path.unlink()
    assert done(name, tmp_path / "out", images).read_bytes() == (study_done(name) / "README.md").read_bytes()
    assert tasks == []


@pytest.mark.parametrize(
    ("chosen", "lrs", "said"),
    [
        ({"a": 1e-4, "b": 3e-4, "c": 1e-3}, "3e-4,1e-4,1e-3", "2 chose the lowest or the highest of 3 tried, so these"),
        ({"a": 3e-4, "b": 3e-4}, "1e-4,3e-4,1e-3", "Of 2 searches for a learning rate, none chose"),
        ({"a": 1e-4, "b": 1e-3}, "1e-4,3e-4,1e-3", "all chose the lowest or the highest of 3 tried, so all could"),
        ({"a": 3e-4, "b": None}, "1e-4,3e-4,1e-3", "Of 1 searches for a learning rate, none chose"),
    ],
)
def test_searches_that_ended_at_an_end_are_told(chosen, lrs, said):
    assert said in at_an_end(chosen, lrs)


def test_which_searches_could_still_gain():
    assert at_an_end({"a": 1e-4, "b": 3e-4, "c": 1e-3}, "1e-4,3e-4,1e-3").endswith("could still gain: a; c.")


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"a": 3e-4, "b": 3e-4, "c": 1e-3}, "2 chose the lower, 1 the higher."),
        ({"a": 1e-3, "b": None}, "0 chose the lower, 1 the higher."),
    ],
)
def test_of_two_rates_none_is_known_to_be_the_best(chosen, said):
    told = at_an_end(chosen, "3e-4,1e-3")
    assert told == f"Only two learning rates were tried, so none is known to be the best: {said}"


def test_images_without_a_test_split_get_the_one_of_a_comparison(images, tmp_path):
    effort = Effort(tmp_path, seed=1)
    given = read_table(images)
    assert np.array_equal(split_images(effort, images).splits, given.splits)
    replace(given, splits=np.full(len(given), "train")).save(tmp_path / "images.csv")
    split = split_images(effort, str(tmp_path / "images.csv"))
    tested = set(split.of("test").labels)
    assert tested
    assert not tested & set(training_images(effort, str(tmp_path / "images.csv")).labels)


def test_a_single_rate_is_no_search():
    assert at_an_end({"a": 3e-4}, "3e-4") == ""
    assert at_an_end({"a": None}, "1e-4,3e-4") == ""
