"""The runs of a comparison: the choice of a learning rate, the test images, and tasks in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import frontrank as fr
from frontrank.comparison import runner, tasks
from frontrank.comparison.runner import resume_comparison, run_comparison
from frontrank.comparison.tasks import choose_lr, failure_reason, query_labels, read_lr, require_tests
from frontrank.errors import InputError, InterruptedRunError
from frontrank.reporting.findings import search_roles
from frontrank.settings import TrainConfig
from tests.comparison.comparisons import count_tasks, plan_of
from tests.reporting.samples import table_of


@pytest.mark.parametrize(
    ("results", "chosen"),
    [
        ({1e-3: (0.5, 0.2), 1e-2: (0.4, 0.9), 1e-1: (0.3, 0.1)}, 1e-3),
        ({1e-3: (0.5, 0.2), 1e-2: (0.5, 0.3), 1e-1: (0.4, 0.9)}, 1e-2),
        ({1e-3: (0.4, 0.2), 1e-2: (0.5, 0.3), 1e-1: (0.5, 0.3)}, 1e-2),
        ({1e-2: (0.1, 0.3)}, 1e-2),
        ({}, None),
    ],
    ids=["the metric first", "then mAP", "then the smaller", "others failed", "all failed"],
)
def test_the_choice_of_a_learning_rate(tmp_path, results, chosen):
    plan = plan_of(tmp_path, "SmoothAP", lrs="1e-3,1e-2,1e-1")
    runs = tmp_path / "runs" / plan.ways[0].folder
    for lr, (best, average) in results.items():
        run = runs / f"lr-{lr:g}-seed-0"
        (run / "model").mkdir(parents=True)
        (run / "cost.json").write_text("{}")
        (run / "run.json").write_text(json.dumps({"best": best, "best_step": 2}))
        lines = ({"step": step, "validation mAP": average if step == 2 else 1.0} for step in (1, 2, 3))
        (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs.mkdir(parents=True, exist_ok=True)
    for lr in {1e-3, 1e-2, 1e-1} - set(results):
        (runs / f"lr-{lr:g}-seed-0.failed").write_text(tasks.failure_reason(3, "the gradient") + "\n")
    assert choose_lr(plan, plan.ways[0], tmp_path) == chosen
    assert read_lr(plan.ways[0], tmp_path) == chosen  # and stored
    models = [path.parent.name for path in tmp_path.glob("runs/*/*/model")]
    assert models == [f"lr-{lr:g}-seed-0" for lr in results if lr == chosen]  # others are of no use


# Test images


@pytest.mark.parametrize("role", ["distractor", "query"])
def test_without_a_gallery_no_image_finds_itself(role, monkeypatch):
    """60 random vectors, whose pairs are found by chance only: were each in its own list, R@1 would be 1."""
    labels = [f"c{i // 2}" for i in range(60)] + ([""] * 10 if role == "distractor" else [])
    roles = [""] * 60 + ["distractor"] * 10 if role == "distractor" else ["query"] * 30 + [""] * 30
    table, rng = table_of(labels, roles=roles), np.random.default_rng(0)
    monkeypatch.setattr(tasks, "build_images", lambda _: table)
    monkeypatch.setattr(tasks, "embed_table", lambda *_, **__: rng.normal(size=(len(table), 8)))
    report = tasks.report_on_tests(None, TrainConfig())
    assert (report.queries, report.gallery_size) == (60, 60)
    assert report["R@1"] < 0.2
    assert ("R@10" in report, "R@100" in report) == (True, False)
    assert query_labels(table).tolist() == labels[:60]


def test_a_gallery_is_searched_with_its_distractors(monkeypatch):
    table = table_of(["a", "b", "a", "b", "", ""], roles=["query", "", "gallery", "gallery", "distractor", "query"])
    queries, gallery, _ = search_roles(table)
    assert (queries.tolist(), gallery.tolist()) == ([0, 1], [2, 3, 4])  # without a label it has nothing to find
    vectors = np.random.default_rng(0).normal(size=(6, 8))
    monkeypatch.setattr(tasks, "build_images", lambda _: table)
    monkeypatch.setattr(tasks, "embed_table", lambda *_, **__: vectors)
    report = tasks.report_on_tests(None, TrainConfig())
    own = fr.evaluate(vectors[:2], ["a", "b"], gallery=vectors[2:5], gallery_labels=["a", "b", "no"], metrics=["mAP"])
    assert (report["mAP"], report.gallery_size) == (own["mAP"], 3)
    groups = fr.evaluate(vectors[:4], ["a", "b", "a", "b"], metrics=["dists@intra"])
    assert report["dists@intra"] == groups["dists@intra"]


@pytest.mark.parametrize(
    ("labels", "roles", "word"),
    [
        (["a", "a"], ["", ""], "1 classes"),
        (["a", "b"], ["", ""], "2 classes"),
        (["a", "b"], ["query", "gallery"], "gallery"),
        (["a", "a", "b", "b"], ["gallery"] * 4, "query"),
        (["a", "a", "b"], ["distractor"] * 3, "classes"),
    ],
    ids=["one class", "of one each", "apart", "no query", "distractors"],
)
def test_test_images_of_which_nothing_can_be_found(labels, roles, word):
    with pytest.raises(InputError, match=word):
        require_tests(table_of(labels, roles=roles))


# Processes


@pytest.mark.parametrize(
    ("status", "output", "word"), [(1, "step 1\nno space\n\n", "no space"), (-9, "", "SIGKILL"), (4, " ", "4")]
)
def test_why_a_process_failed(status, output, word):
    assert word in failure_reason(status, output)


def wait_for(condition, process=None, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come"
        assert process is None or process.poll() is None, "it ended too early"
        time.sleep(0.02)


def steps_in(folder):
    text = (folder / "log.jsonl").read_text() if (folder / "log.jsonl").is_file() else ""
    return max((json.loads(line)["step"] for line in text.splitlines()[:-1]), default=0)


def is_alive(folder):
    """Whether a process works on a run, as the system tells."""
    processes = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return any(tasks.__name__ in line and str(folder) in line for line in processes.splitlines())


@pytest.mark.processes
@pytest.mark.training
def test_killed_and_stopped_it_goes_on_to_the_same_results(images, monkeypatch, tmp_path):
    """Killed in the middle of a run, and stopped by Ctrl-C later in it; against one that nobody disturbed."""
    count_tasks(monkeypatch)
    plan = plan_of(images, "triplet", overrides={"iterations": "12"}, lrs="1e-3", seeds=1)
    whole = run_comparison(plan, tmp_path / "whole", quiet=True)
    out = tmp_path / "out"
    here = runner.run_task
    monkeypatch.setattr(runner, "run_task", lambda t, *a, **k: here(t, *a, **k) if t == "frozen" else None)
    with pytest.raises(InterruptedRunError):
        run_comparison(plan, out, quiet=True)
    run = out / "runs" / plan.ways[0].folder / "lr-0.001-seed-0"
    command = [sys.executable, "-m", "frontrank", "compare", "--resume", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start():
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with start() as process:
        wait_for(lambda: steps_in(run) >= 2, process)
        assert is_alive(run)
        process.kill()
    wait_for(lambda: not is_alive(run))
    reached = steps_in(run)
    assert 2 <= reached < 12
    assert not (run / "cost.json").exists()

    with start() as process:
        wait_for(lambda: steps_in(run) > reached, process)
        process.send_signal(signal.SIGINT)
        error = process.communicate()[1]
    assert process.returncode == 130
    assert error.endswith(f"frontrank compare --resume {out}\n")
    assert list((run / "checkpoints").iterdir())
    assert not (run / "cost.json").exists()

    monkeypatch.setattr(runner, "run_task", here)
    (one,), (other,) = whole.entries, resume_comparison(out, quiet=True).entries
    assert (one.values, one.lr) == (other.values, other.lr)
    assert [curve.y.tolist() for curve in one.curves] == [curve.y.tolist() for curve in other.curves]
