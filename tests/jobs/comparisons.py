"""Small comparisons for tests: glyphs of 32 px, a tiny network, a few steps; runs in this process, to save time."""

import json
from contextlib import redirect_stderr, redirect_stdout

from frontrank.jobs import comparison, comparison_run
from frontrank.jobs.comparison_plan import read_plan
from frontrank.jobs.comparison_process import reason
from frontrank.settings import as_yaml

METRICS = [
    "R@1",
    "R@10",
    "mAP",
    "mAP@R",
    "R-precision",
    "NMI",
    "dists@intra",
    "dists@inter",
]  # 64 test images: no R@100
PER_QUERY = METRICS[:5]
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
    "iterations": "4",
    "checkpoint_every": "1",
    "log_every": "1",
    "device": "cpu",
}


def plan_of(path, losses="PNP-D_s(temperature=0.05),triplet", overrides=None, recipe=None, **others):
    """A plan on images, with small settings."""
    return read_plan(recipe, {**SMALL, "data.path": str(path), **(overrides or {})}, losses=losses, **others)


def done_here(task, config, target, beside, what, *, stop, held=(), quiet=False):
    """What `done_apart` does, in this process."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    recipe, said = (beside.with_name(beside.name + ending) for ending in (".yaml", ".txt"))
    recipe.write_text(as_yaml(config))
    with said.open("a") as output, redirect_stdout(output), redirect_stderr(output):
        status = comparison_run.do(task, str(recipe), str(target))
    return reason(status, said.read_text()) if status else ""


def count_tasks(monkeypatch):
    """Let runs be done in this process; gives the list that every task done is added to, as (task, folder)."""
    tasks = []

    def done(task, config, target, beside, what, **others):
        tasks.append((task, "/".join(target.parts[-2:])))
        return done_here(task, config, target, beside, what, **others)

    monkeypatch.setattr(comparison, "done_apart", done)
    return tasks


def log_of(folder):
    """The lines of a run's log."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
