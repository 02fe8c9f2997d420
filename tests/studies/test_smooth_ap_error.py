"""smooth-ap-error: a run of its own settings on a few glyphs, and the verdict."""

import json
import re
from dataclasses import replace

import pytest

from frontrank.models.weights import PACKAGES
from studies import smooth_ap_error
from studies.smooth_ap_error import STUDY, ends, measure, trained
from studies.study import Effort
from tests.fetch import require_packages
from tests.pictures import glyph_pictures


def test_errors_of_each_step_are_kept(tmp_path, images, monkeypatch):
    require_packages([PACKAGES["tf_efficientnet_lite0"]])
    effort = Effort(work=tmp_path / "work", quick=True, data=images, show=False)
    found = measure(effort)
    low, high = found["errors"].values()
    assert [len(run) for run in (*low, *high)] == [4, 4]
    assert max(low[0]) < min(high[0])
    kept = [path.name for path in sorted((tmp_path / "work" / "epochs").iterdir())]
    assert [re.fullmatch(r"(.*)-[0-9a-f]{8}\.json", name)[1] for name in kept] == ["0.001-0", "0.1-0"]
    monkeypatch.setattr(smooth_ap_error, "train", None)
    assert measure(effort) == found


def test_a_whole_run_is_one_epoch(tmp_path, monkeypatch):
    require_packages([PACKAGES["tf_efficientnet_lite0"]])
    monkeypatch.setitem(smooth_ap_error._EPOCH, "optimizer.warmup", "0")  # an epoch of so few images is too short
    glyph_pictures(tmp_path, classes=60).save(tmp_path / "images.csv")
    errors = trained(Effort(work=tmp_path / "work", data=str(tmp_path)), str(tmp_path / "images.csv"), 0.01, seed=0)
    assert len(errors) == 3  # 30 classes of 8 images, 28 classes of 4 images a batch: 60 / 28, rounded up
    assert all(0 < each < 0.5 for each in errors)


def test_runs_of_other_settings_are_not_taken_up(tmp_path, monkeypatch):
    ran = []

    def noted(config, run, quiet):
        ran.append(config)
        run.mkdir()
        (run / "log.jsonl").write_text(json.dumps({"step": 1, "AP error": len(ran)}) + "\n")

    monkeypatch.setattr(smooth_ap_error, "train", noted)
    monkeypatch.chdir(tmp_path)
    whole = Effort(work=tmp_path / "work", data="one", show=False)
    efforts = [replace(whole, quick=True), whole, replace(whole, data="two")]
    first = [trained(effort, effort.data, 0.01, seed=0) for effort in efforts]
    assert first == [[1], [2], [3]]
    assert [trained(effort, effort.data, 0.01, seed=0) for effort in efforts] == first
    assert trained(whole, str(tmp_path / "one"), 0.01, seed=0) == [2]  # the same folder by another name
    assert len(ran) == 3


@pytest.mark.parametrize(("quick", "seeds", "runs"), [(False, 1, [4]), (False, 4, [4, 5, 6, 7]), (True, 4, [4])])
def test_it_has_as_many_seeds_as_are_asked_for(tmp_path, monkeypatch, quick, seeds, runs):
    monkeypatch.setattr(smooth_ap_error, "trained", lambda effort, data, temperature, seed: [seed, temperature])
    found = measure(Effort(tmp_path, quick=quick, seed=4, seeds=seeds, data="none", show=False))
    assert found["seeds"] == runs
    assert found["errors"]["0.1"] == [[seed, 0.1] for seed in runs]


def test_ends_are_a_fourth_of_a_short_run():
    first, last, whole = ends([[1.0, 2.0, 3.0, 6.0]])
    assert (first, last, whole) == ([1.0], [6.0], [3.0])


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ((0.1, 0.2, 0.3), "**Agrees**"),
        ((0.1, 0.3, 0.2), "**Does not agree**"),
        ((0.1, 0.09, 0.3), "**Does not agree**"),
    ],
)
def test_verdict(errors, verdict):
    found = {"seeds": [0], "errors": {str(place): [[each] * 8] for place, each in enumerate(errors)}}
    assert verdict in STUDY.told(found)


@pytest.mark.parametrize(("steps", "said"), [(57, "10 steps"), (8, "2 steps"), (4, "1 step")])
def test_how_many_steps_are_first_and_last_is_told(steps, said):
    found = {"seeds": [0], "errors": {"0.1": [[0.1] * steps], "1": [[0.5] * steps]}}
    assert f"| first {said} | last {said} |" in STUDY.told(found)


def test_crossing_lines_agree_in_part():
    found = {"seeds": [0], "errors": {"0.1": [[0.1, 0.1]], "1": [[0.05, 0.5]]}}
    assert "**Agrees in part**" in STUDY.told(found)
