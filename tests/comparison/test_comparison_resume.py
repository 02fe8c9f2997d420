"""`compare` goes on: after its end, with more seeds, after failures, and killed at any moment."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from frontrank.comparison import runner as comparison
from frontrank.comparison.results import comparison_table, read_comparison
from frontrank.comparison.runner import compare, resume_comparison, run_count
from frontrank.errors import InputError, InterruptedRunError
from tests.comparison.comparisons import (
    METRICS,
    PER_QUERY,
    count_tasks,
    done_here,
    done_without_training,
    log_of,
    plan_of,
)


def test_a_finished_comparison_does_nothing_again(compared_before, tasks, tmp_path):
    folder, compared, _ = compared_before
    shutil.copytree(folder, tmp_path / "copy")
    again = resume_comparison(tmp_path / "copy", quiet=True)
    assert tasks == []
    assert again.entries[0].values == compared.entries[0].values


def test_more_seeds_and_another_reference(compared_before, untrained, tmp_path):
    folder, compared, _ = compared_before
    shutil.copytree(folder, tmp_path / "copy")
    other = next(entry.name for entry in compared.entries if entry.name != compared.reference)
    again = resume_comparison(tmp_path / "copy", seeds=4, reference=other, quiet=True)
    assert [task for task, _ in untrained] == ["test", "test"]
    assert again.entries[1].values["mAP"][:3] == compared.entries[1].values["mAP"]
    assert again.entries[1].seeds == (0, 1, 2, 3)
    assert again.reference == other == read_comparison(tmp_path / "copy").reference
    with pytest.raises(InputError, match="--seeds 2 is fewer than the 4 of"):
        resume_comparison(tmp_path / "copy", seeds=2)
    with pytest.raises(InputError, match="--reference 'x' is none of the ways to train; there are PNP-D_s"):
        resume_comparison(tmp_path / "copy", reference="x")


def test_other_settings_are_refused_by_name(compared_before, images, tasks):
    folder, _, _ = compared_before
    for plan, message in (
        (plan_of(images, lrs="1e-3,1e-2", overrides={"iterations": "5"}), "iterations is 4 there and 5 now; choose"),
        (
            plan_of(images, lrs="1e-3"),
            r"--lr of PNP-D_s\(temperature=0.05\) is \[0.001, 0.01\] there and \[0.001\] now",
        ),
        (plan_of(images, "FastAP", lrs="1e-3,1e-2"), r"is {.*} there and none now \(and"),
        (plan_of(images, lrs="1e-3,1e-2", search_steps=2), "--search-iterations is 0 there and 2 now"),
    ):
        with pytest.raises(InputError, match=message):
            compare(plan, folder, quiet=True)
    assert tasks == []
    assert compare(plan_of(images, lrs="1e-3,1e-2", seeds=3), folder, quiet=True).entries[0].seeds == (0, 1, 2)


def test_a_shorter_search_is_no_run_of_a_seed(images, untrained, tmp_path):
    plan = plan_of(images, "SmoothAP", lrs="1e-3,1e-2", seeds=1, search_steps=2)
    compared = compare(plan, tmp_path / "out", quiet=True)
    assert [task for task, _ in untrained] == ["frozen", "train", "train", "test"]
    assert run_count(plan) == 3
    assert set(compared.entries[0].searched) == {1e-3, 1e-2}
    steps = {path.name: log_of(path)[-1]["step"] for path in tmp_path.glob("out/runs/*/lr-*") if path.is_dir()}
    chosen = f"{compared.entries[0].lr:g}"
    assert steps == {"lr-0.001-seed-0-search": 2, "lr-0.01-seed-0-search": 2, f"lr-{chosen}-seed-0": 4}


def test_one_learning_rate_is_not_searched_for(images, untrained, tmp_path):
    plan = plan_of(images, None, axes=["loss.temperature=0.05,1"], lrs="1e-3", seeds=2)
    compared = compare(plan, tmp_path / "out", quiet=True)
    assert [task for task, _ in untrained] == ["frozen"] + ["test"] * 4
    assert [entry.searched for entry in compared.entries] == [{}, {}]
    assert compared.axis == "loss.temperature"
    assert [entry.name for entry in compared.entries] == ["loss.temperature=0.05", "loss.temperature=1"]
    assert compared.entries[0].values != compared.entries[1].values
    assert "(" in comparison_table(compared)  # of two seeds: least and most
    assert not any("is the largest of those tried" in note for note in compared.notes)


# What goes wrong


def test_a_loss_that_fails_is_noted_and_the_others_go_on(images, monkeypatch, tmp_path, capsys):
    def only_the_second_is_real(task, config, *rest, **others):
        do = done_here if "ProxyAnchor" in config.loss.name else done_without_training
        return do(task, config, *rest, **others)

    tasks = count_tasks(monkeypatch, only_the_second_is_real)
    losses = "SmoothAP,pml.ProxyAnchorLoss,FastAP"  # the second one cannot rank a memory
    plan = plan_of(images, losses, overrides={"batches.memory": "16"}, lrs="1e-3", seeds=1)
    compared = compare(plan, tmp_path / "out")
    said = "ProxyAnchorLoss of pytorch-metric-learning cannot rank a gallery beside the batch"
    assert [bool(entry.values) for entry in compared.entries] == [True, False, True]
    assert said in compared.entries[1].failed
    assert any("pml.ProxyAnchorLoss: the run at learning rate 0.001, seed 0, failed: " in n for n in compared.notes)
    assert compared.reference in ("SmoothAP", "FastAP")
    (line,) = (x for x in comparison_table(compared).splitlines() if x.startswith("pml.ProxyAnchorLoss "))
    assert line.split() == ["pml.ProxyAnchorLoss", *"------", "failed", "0.001"]
    err = capsys.readouterr().err
    assert "run 2 of 3: pml.ProxyAnchorLoss, learning rate 0.001, seed 0; about" in err
    assert f"failed: {said}" in err
    tasks.clear()
    resume_comparison(tmp_path / "out", quiet=True)
    assert tasks == [("test", "02-pml.ProxyAnchorLoss/lr-0.001-seed-0")]  # tried again, and nothing else


def test_a_learning_rate_that_fails_is_not_chosen(images, monkeypatch, tmp_path):
    tasks = count_tasks(monkeypatch, done_without_training)
    here = comparison.done_apart

    def some_fail(task, config, *rest, **others):
        return "the gradient is not finite" if config.optimizer.lr > 0.1 else here(task, config, *rest, **others)

    monkeypatch.setattr(comparison, "done_apart", some_fail)
    compared = compare(plan_of(images, "SmoothAP", lrs="1e-3,1", seeds=1), tmp_path / "out", quiet=True)
    assert (compared.entries[0].lr, list(compared.entries[0].searched)) == (1e-3, [1e-3])
    assert "SmoothAP: the run at learning rate 1, seed 0, failed: the gradient is not finite" in compared.notes
    tasks.clear()
    resume_comparison(tmp_path / "out", quiet=True)
    assert tasks == []  # the choice stands


def test_all_learning_rates_fail(images, monkeypatch, tmp_path):
    def failing(task, config, target, beside, what, **_):
        beside.parent.mkdir(parents=True, exist_ok=True)
        return "" if task == "frozen" else "no memory"

    monkeypatch.setattr(comparison, "done_apart", failing)
    compared = compare(plan_of(images, "SmoothAP", lrs="1e-3,1", seeds=2), tmp_path / "out", quiet=True)
    assert (compared.entries[0].failed, compared.entries[0].values) == ("no memory", {})
    assert np.isnan(compared.entries[0].lr)
    assert "failed" in comparison_table(compared)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["entries"][0]["lr"] is None


def test_a_failure_that_is_mended_is_forgotten(images, monkeypatch, tmp_path):
    count_tasks(monkeypatch, done_without_training)
    here = comparison.done_apart

    def full(task, *rest, **others):
        said = here(task, *rest, **others) if task == "frozen" else "the disk is full"
        rest[2].parent.mkdir(parents=True, exist_ok=True)
        return said

    monkeypatch.setattr(comparison, "done_apart", full)
    failed = compare(plan_of(images, "SmoothAP", lrs="1e-3", seeds=1), tmp_path / "out", quiet=True)
    assert failed.entries[0].failed == "the disk is full"
    monkeypatch.setattr(comparison, "done_apart", here)
    mended = resume_comparison(tmp_path / "out", quiet=True)
    assert (mended.entries[0].failed, mended.entries[0].seeds) == ("", (0,))
    assert not any("failed" in note for note in mended.notes)


def test_a_backbone_that_cannot_be_evaluated_ends_it_all(images, monkeypatch, tmp_path):
    monkeypatch.setattr(comparison, "done_apart", lambda *_, **__: "no memory")
    with pytest.raises(InputError, match="the backbone cannot be evaluated: no memory"):
        compare(plan_of(images, "SmoothAP"), tmp_path / "out", quiet=True)


def test_a_search_that_failed_for_a_passing_reason_is_tried_again(images, monkeypatch, tmp_path):
    """Else the rate would be chosen among the others for ever, because a machine ran full once."""
    passing = ["ended by the signal SIGKILL, perhaps for want of memory"]
    real = count_tasks(monkeypatch, done_without_training)
    here = comparison.done_apart

    def full_once(task, config, target, beside, *rest, **others):
        beside.parent.mkdir(parents=True, exist_ok=True)
        if config.loss.name == "SmoothAP" and config.optimizer.lr == 1e-2 and passing:
            return passing[-1]
        return here(task, config, target, beside, *rest, **others)

    monkeypatch.setattr(comparison, "done_apart", full_once)
    plan = plan_of(images, "SmoothAP,FastAP", lrs="1e-3,1e-2", seeds=2)
    first = compare(plan, tmp_path / "out", quiet=True)
    assert first.entries[0].failed == passing[0]
    assert first.entries[0].searched.keys() == {1e-3}
    assert first.entries[1].values
    again, twice = tmp_path / "again", tmp_path / "twice"
    for copy in (again, twice):
        shutil.copytree(tmp_path / "out", copy)

    assert resume_comparison(twice, quiet=True).entries[0].lr == 1e-3  # failed twice: it is given up
    real.clear()
    passing.clear()
    mended = resume_comparison(again, quiet=True)
    assert real[0] == ("train", "01-SmoothAP/lr-0.01-seed-0")
    assert mended.entries[0].searched.keys() == {1e-3, 1e-2}
    assert mended.entries[0].seeds == (0, 1)
    assert not any("failed" in note for note in mended.notes)


def test_statistics_are_made_once_at_the_end(images, untrained, monkeypatch, tmp_path):
    made = []
    own = comparison.read_comparison
    monkeypatch.setattr(comparison, "read_comparison", lambda out: made.append(out) or own(out))
    compare(plan_of(images, lrs="1e-3", seeds=3), tmp_path / "out", quiet=True)
    assert len(made) == 1


def test_the_time_left_is_by_steps(images, untrained, monkeypatch, tmp_path, capsys):
    """2 short searches of 2 steps and 2 runs of 100: what the short ones took says little of the others."""
    clock = iter(range(0, 10_000, 10))  # every run takes 10 seconds
    monkeypatch.setattr(comparison.time, "monotonic", lambda: float(next(clock)))
    plan = plan_of(images, "SmoothAP", {"iterations": "100"}, lrs="1e-3,1e-2", seeds=2, search_steps=2)
    compare(plan, tmp_path / "out")
    said = [line.split("; about ")[-1] for line in capsys.readouterr().err.splitlines() if line.startswith("run ")]
    assert said[1] == "16.8 minutes left"  # 5 s a step, 2 + 100 + 100 are left: 1010 s
    assert said[2] == "16.7 minutes left"
    assert said[3] == "5.6 minutes left"  # of 5, 5 and 0.1 s a step the mean is 3.37, and 100 are left: 337 s


def test_differences_of_versions_and_pictures_are_noted(images, untrained, tmp_path):
    shutil.copytree(Path(images).parent, tmp_path / "glyphs")
    plan = plan_of(tmp_path / "glyphs" / "images.csv", lrs="1e-3", seeds=1)
    compared = compare(plan, tmp_path / "out", quiet=True)
    assert not any("different" in note or "changed" in note for note in compared.notes)
    run = next((tmp_path / "out").glob("runs/02-*/*/run.json"))
    facts = json.loads(run.read_text())
    run.write_text(json.dumps({**facts, "resumed": [{**facts, "commit": "b", "versions": {"torch": "3"}}]}))
    next((tmp_path / "glyphs").rglob("*.png")).touch()
    for _ in range(2):
        notes = resume_comparison(tmp_path / "out", quiet=True).notes
        assert "runs were made with different commit: a, b; they may not be alike" in notes
        assert "runs were made with different torch: 2, 3; they may not be alike" in notes
        assert sum("files of the pictures changed" in note for note in notes) == 1
    assert untrained[1:] == [("test", f"{way.folder}/lr-0.001-seed-0") for way in plan.ways]


def test_the_folder_is_held_before_the_images_are_looked_at(images, untrained, monkeypatch, tmp_path):
    own, wait = comparison.prepare, monkeypatch.setattr(comparison, "_WAIT", 0.4)

    def looked(plan, **others):
        with pytest.raises(InputError, match="is being worked on by another process"):
            compare(plan, tmp_path / "new" / "out", quiet=True)
        raise InputError("enough")

    monkeypatch.setattr(comparison, "prepare", looked)
    with pytest.raises(InputError, match="enough"):
        compare(plan_of(images, lrs="1e-3", seeds=1), tmp_path / "new" / "out", quiet=True)
    assert not (tmp_path / "new").exists()  # it leaves nothing
    monkeypatch.setattr(comparison, "prepare", own)
    assert wait is None
    assert compare(plan_of(images, lrs="1e-3", seeds=1), tmp_path / "new" / "out", quiet=True).entries[0].values


def test_stopped_between_runs(images, monkeypatch, tmp_path):
    tasks = count_tasks(monkeypatch, done_without_training)
    here = comparison.done_apart
    monkeypatch.setattr(comparison, "done_apart", lambda *a, **k: None if len(tasks) == 2 else here(*a, **k))
    plan = plan_of(images, lrs="1e-3", seeds=1)
    with pytest.raises(
        InterruptedRunError, match=r"1 of 2 runs are done; go on with: frontrank compare --resume .*out"
    ):
        compare(plan, tmp_path / "out", quiet=True)
    half = read_comparison(tmp_path / "out")
    assert [entry.failed for entry in half.entries] == ["", "not finished yet"]
    assert (tmp_path / "out" / "results.md").is_file()  # what there is so far
    assert "not finished yet" in comparison_table(half)
    monkeypatch.setattr(comparison, "done_apart", here)
    assert all(entry.values for entry in resume_comparison(tmp_path / "out", quiet=True).entries)
    assert len(tasks) == 3


def test_a_folder_of_something_else(images, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty; choose another name"):
        compare(plan_of(images), tmp_path / "out")
    with pytest.raises(InputError, match="holds no comparison"):
        resume_comparison(tmp_path / "out")
    (tmp_path / "out" / "comparison.json").write_text('{"format": "frontrank comparison plan", "version": 1}')
    with pytest.raises(InputError, match="is damaged"):
        resume_comparison(tmp_path / "out")


def test_the_metric_that_chooses_is_measured_and_judged(images, tasks, tmp_path):
    plan = plan_of(images, "SmoothAP,FastAP", {"metric": "P@2"}, lrs="1e-3", seeds=1)
    compared = compare(plan, tmp_path / "out", quiet=True)
    assert list(compared.entries[0].values) == [*PER_QUERY, "P@2", *METRICS[5:]]
    assert f"P@2 against {compared.reference}" in comparison_table(compared)
    assert compared.entries[0].curves[0].y.size == 5


def test_several_processes_are_refused(compared_before, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="start it without torchrun"):
        resume_comparison(compared_before[0])


# Real processes, really killed


def waited_for(condition, process=None, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come"
        assert process is None or process.poll() is None, "it ended too early"
        time.sleep(0.02)


def steps_in(folder):
    text = (folder / "log.jsonl").read_text() if (folder / "log.jsonl").is_file() else ""
    return max((json.loads(line)["step"] for line in text.splitlines()[:-1]), default=0)


def alive(folder):
    """Whether a process works on a run, as the system tells."""
    found = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return any("comparison_run" in line and str(folder) in line for line in found.splitlines())


def test_killed_and_stopped_it_goes_on_to_the_same_results(images, monkeypatch, tmp_path):
    """Killed in the middle of a run, and stopped by Ctrl-C later in it; against one that nobody disturbed."""
    count_tasks(monkeypatch)
    plan = plan_of(images, "triplet", overrides={"iterations": "30"}, lrs="1e-3", seeds=1)
    whole = compare(plan, tmp_path / "whole", quiet=True)
    out = tmp_path / "out"
    here = comparison.done_apart
    monkeypatch.setattr(comparison, "done_apart", lambda t, *a, **k: here(t, *a, **k) if t == "frozen" else None)
    with pytest.raises(InterruptedRunError):
        compare(plan, out, quiet=True)
    run = out / "runs" / plan.ways[0].folder / "lr-0.001-seed-0"
    command = [sys.executable, "-m", "frontrank", "compare", "--resume", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def started():
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with started() as process:
        waited_for(lambda: steps_in(run) >= 3, process)
        process.kill()
    waited_for(lambda: not alive(run))
    reached = steps_in(run)
    assert 3 <= reached < 30
    assert not (run / "cost.json").exists()

    with started() as process:
        waited_for(lambda: steps_in(run) > reached, process)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130
    assert said.endswith(f"stopped, 0 of 1 runs are done; go on with: frontrank compare --resume {out}\n")
    assert "run 1 of 1: triplet, learning rate 0.001, seed 0\n" in said
    assert list((run / "checkpoints").iterdir())
    assert not (run / "cost.json").exists()

    monkeypatch.setattr(comparison, "done_apart", here)
    (one,), (other,) = whole.entries, resume_comparison(out, quiet=True).entries
    assert (one.values, one.lr) == (other.values, other.lr)
    assert [curve.y.tolist() for curve in one.curves] == [curve.y.tolist() for curve in other.curves]


def test_two_at_once_are_refused(compared_before, monkeypatch, tmp_path):
    folder, _, _ = compared_before
    monkeypatch.setattr(comparison, "_WAIT", 0.4)
    with comparison._alone(folder), pytest.raises(InputError, match="is being worked on by another process"):
        resume_comparison(folder)
