"""Small comparisons for tests: glyphs of 32 px, a tiny network, a few steps; runs in this process, to save time."""

import json
from contextlib import redirect_stderr, redirect_stdout
from zlib import crc32

import numpy as np

from frontrank.comparison import runner as comparison
from frontrank.comparison import tasks as comparison_run
from frontrank.comparison.plan import read_plan
from frontrank.comparison.tasks import failure_reason, query_labels
from frontrank.data.table import read_table
from frontrank.evaluation.report import Report
from frontrank.settings import as_yaml

PER_QUERY = ["R@1", "R@10", "mAP", "mAP@R", "R-precision"]  # of 64 test images: no R@100
OF_LEVELS = ["R@1 (level 2)", "mAP (level 2)", "nDCG", "H-AP"]
METRICS = [*PER_QUERY, "NMI", "dists@intra", "dists@inter"]
SMALL = {
    "data.validation": "0.3",
    "data.resize": "32",
    "data.size": "32",
    "data.augment": "shift",
    "data.workers": "0",
    "batches.size": "16",
    "model.backbone": "test_resnet",
    "model.weights": "none",
    "model.dim": "16",
    "model.batch_norm": "frozen",
    "iterations": "3",
    "checkpoint_every": "1",
    "log_every": "1",
    "device": "cpu",
}


def plan_of(path, losses="PNP-D_s(temperature=0.05),triplet", overrides=None, recipe=None, **others):
    """A plan on images, with small settings."""
    return read_plan(recipe, {**SMALL, "data.path": str(path), **(overrides or {})}, losses=losses, **others)


def done_here(task, config, target, beside, what, *, stop, held=(), quiet=False):
    """What `run_task` does, in this process."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    recipe, said = (beside.with_name(beside.name + ending) for ending in (".yaml", ".txt"))
    recipe.write_text(as_yaml(config))
    with said.open("a") as output, redirect_stdout(output), redirect_stderr(output):
        status = comparison_run.do_task(task, str(recipe), str(target))
    return failure_reason(status, said.read_text()) if status else ""


def count_tasks(monkeypatch, do=None):
    """Let runs be done in this process; gives the list that every task done is added to, as (task, folder).

    do: does one, `done_here` by default
    """
    tasks = []

    def done(task, config, target, beside, what, **others):
        tasks.append((task, "/".join(target.parts[-2:])))
        return (do or done_here)(task, config, target, beside, what, **others)

    monkeypatch.setattr(comparison, "run_task", done)
    return tasks


def done_without_training(task, config, target, beside, what, **_):
    """What a run leaves, without one: its values are drawn by loss, learning rate and seed."""
    rng = np.random.default_rng(crc32(f"{config.loss} {config.optimizer.lr} {config.seed}".encode()))
    labels = query_labels(read_table(config.data.path))
    of_queries = {name: (rng.random(len(labels)) < 0.5).astype(float) for name in PER_QUERY}
    report = Report.of(of_queries, [1] * len(labels), len(labels) - 1, dict.fromkeys(METRICS[5:], 0.5))
    if task == "frozen":
        report.save(target, overwrite=True)
        return ""
    (target / "model").mkdir(parents=True, exist_ok=True)
    best, steps = float(rng.random()), config.iterations
    line = {"seconds per step": 0.25, "peak MB": 8.0, "validation mAP": 0.5, f"validation {config.metric}": best}
    (target / "log.jsonl").write_text("".join(json.dumps({"step": i, **line}) + "\n" for i in range(1, steps + 1)))
    facts = {"best": best, "best_step": 1, "steps": steps, "versions": {"torch": "2"}, "commit": "a"}
    (target / "run.json").write_text(json.dumps({**facts, "machine": "m", "device": config.device}))
    (target / "cost.json").write_text(json.dumps({"seconds": 0.25, "megabytes": 8.0, "wall": 0.5 * steps}))
    if task == "test":
        report.save(target / "test.json", overwrite=True)
    return ""


def log_of(folder):
    """The lines of a run's log."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
