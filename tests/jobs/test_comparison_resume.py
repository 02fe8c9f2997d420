"""`compare` goes on: after its end, with more seeds, after failures, and killed at any moment."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from frontrank.errors import InputError, InterruptedRunError
from frontrank.jobs import comparison
from frontrank.jobs.comparison import compare, resume_comparison, run_count
from frontrank.jobs.comparison_results import read_comparison
from frontrank.jobs.comparison_tables import comparison_table
from tests.jobs.comparisons import METRICS, PER_QUERY, count_tasks, log_of, plan_of


def test_a_finished_comparison_does_nothing_again(compared_before, tasks, tmp_path):
    folder, compared, _ = compared_before
    shutil.copytree(folder, tmp_path / "copy")
    again = resume_comparison(tmp_path / "copy", quiet=True)
    assert tasks == []
    assert again.entries[0].values == compared.entries[0].values


def test_more_seeds_and_another_reference(compared_before, tasks, tmp_path):
    folder, compared, _ = compared_before
    shutil.copytree(folder, tmp_path / "copy")
    other = next(entry.name for entry in compared.entries if entry.name != compared.reference)
    again = resume_comparison(tmp_path / "copy", seeds=4, reference=other, quiet=True)
    assert [task for task, _ in tasks] == ["test", "test"]
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


def test_a_shorter_search_is_no_run_of_a_seed(images, tasks, tmp_path):
    plan = plan_of(images, "SmoothAP", lrs="1e-3,1e-2", seeds=1, search_steps=2)
    compared = compare(plan, tmp_path / "out", quiet=True)
    assert [task for task, _ in tasks] == ["frozen", "train", "train", "test"]
    assert run_count(plan) == 3
    assert set(compared.entries[0].searched) == {1e-3, 1e-2}
    steps = {path.name: log_of(path)[-1]["step"] for path in tmp_path.glob("out/runs/*/lr-*") if path.is_dir()}
    chosen = f"{compared.entries[0].lr:g}"
    assert steps == {"lr-0.001-seed-0-search": 2, "lr-0.01-seed-0-search": 2, f"lr-{chosen}-seed-0": 4}


def test_one_learning_rate_is_not_searched_for(images, tasks, tmp_path):
    plan = plan_of(images, None, axes=["loss.temperature=0.05,1"], lrs="1e-3", seeds=2)
    compared = compare(plan, tmp_path / "out", quiet=True)
    assert [task for task, _ in tasks] == ["frozen"] + ["test"] * 4
    assert [entry.searched for entry in compared.entries] == [{}, {}]
    assert compared.axis == "loss.temperature"
    assert [entry.name for entry in compared.entries] == ["loss.temperature=0.05", "loss.temperature=1"]
    assert compared.entries[0].values != compared.entries[1].values
    assert "(" in comparison_table(compared)  # of two seeds: least and most
    assert not any("is the largest of those tried" in note for note in compared.notes)


# What goes wrong


def test_a_loss_that_fails_is_noted_and_the_others_go_on(images, tasks, tmp_path, capsys):
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
    tasks = count_tasks(monkeypatch)
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
    count_tasks(monkeypatch)
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


def test_a_backbone_that_cannot_be_built_ends_it_all(images, tasks, tmp_path):
    plan = plan_of(images, "SmoothAP", overrides={"model.backbone": "resnt50"})
    with pytest.raises(InputError, match=r"the backbone cannot be evaluated: .*resnt50"):
        compare(plan, tmp_path / "out", quiet=True)
    assert [task for task, _ in tasks] == ["frozen"]


def test_stopped_between_runs(images, monkeypatch, tmp_path):
    tasks = count_tasks(monkeypatch)
    here = comparison.done_apart
    monkeypatch.setattr(comparison, "done_apart", lambda *a, **k: None if len(tasks) == 2 else here(*a, **k))
    plan = plan_of(images, lrs="1e-3", seeds=1)
    with pytest.raises(
        InterruptedRunError, match=r"1 of 2 runs are done; go on with: frontrank compare --resume .*out"
    ):
        compare(plan, tmp_path / "out", quiet=True)
    half = read_comparison(tmp_path / "out")
    assert [entry.failed for entry in half.entries] == ["", "not finished yet"]
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


def test_killed_at_any_moment_it_goes_on_to_the_same_results(images, monkeypatch, tmp_path):
    """In the middle of a run, between two runs, and by Ctrl-C; against a comparison that nobody disturbed."""
    count_tasks(monkeypatch)
    overrides = {"iterations": "40", "evaluate_every": "1"}
    plan = plan_of(images, overrides=overrides, lrs="1e-3", seeds=1)
    whole = compare(plan, tmp_path / "whole", quiet=True)
    out = tmp_path / "out"
    here = comparison.done_apart
    monkeypatch.setattr(comparison, "done_apart", lambda t, *a, **k: here(t, *a, **k) if t == "frozen" else None)
    with pytest.raises(InterruptedRunError):
        compare(plan, out, quiet=True)
    first, second = (out / "runs" / way.folder / "lr-0.001-seed-0" for way in plan.ways)

    command = [sys.executable, "-m", "frontrank", "compare", "--resume", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def started():
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with started() as process:
        waited_for(lambda: steps_in(first) >= 5, process)
        process.kill()
    waited_for(lambda: not alive(first))
    assert 5 <= steps_in(first) < 40
    assert not (first / "cost.json").exists()

    with started() as process:
        waited_for(lambda: (first / "test.json").is_file(), process)
        process.kill()
    waited_for(lambda: not alive(out))
    assert not (first / "checkpoints").exists()

    with started() as process:
        waited_for(lambda: steps_in(second) >= 5, process)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130
    assert said.endswith(f"stopped, 1 of 2 runs are done; go on with: frontrank compare --resume {out}\n")
    assert "run 2 of 2: triplet, learning rate 0.001, seed 0; about" in said
    assert list((second / "checkpoints").iterdir())
    assert not (second / "cost.json").exists()

    monkeypatch.setattr(comparison, "done_apart", here)
    again = resume_comparison(out, quiet=True)
    for one, other in zip(whole.entries, again.entries, strict=True):
        assert one.values == other.values
        assert (one.against, one.lr) == (other.against, other.lr)
        assert [curve.y.tolist() for curve in one.curves] == [curve.y.tolist() for curve in other.curves]
    assert whole.frozen == again.frozen


def test_two_at_once_are_refused(compared_before, monkeypatch, tmp_path):
    folder, _, _ = compared_before
    monkeypatch.setattr(comparison, "_WAIT", 0.4)
    with comparison._alone(folder), pytest.raises(InputError, match="is being worked on by another process"):
        resume_comparison(folder)
