"""The runs of a comparison: what is planned and done, the learning rate chosen, and each task as a process of its own.

A process of its own has its memory and its crashes for itself. Run as a module, this file is that process:
`python -m frontrank.comparison.tasks TASK RECIPE TARGET`.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from frontrank.comparison.plan import Plan, Way
from frontrank.data.table import ImageTable
from frontrank.errors import DivergenceError, FrontrankError, InputError, InterruptedRunError
from frontrank.evaluation import evaluate
from frontrank.evaluation.evaluate import has_small_levels
from frontrank.evaluation.measures import BY_LEVEL, GROUP_METRICS
from frontrank.evaluation.report import Report
from frontrank.files import atomic_write, load_json, read_json, write_json
from frontrank.models import Embedder
from frontrank.progress import progress
from frontrank.reporting.findings import search_roles
from frontrank.settings import TrainConfig, as_yaml, read_config, read_recipe
from frontrank.training.checkpoints import latest_checkpoint
from frontrank.training.distributed import build_device
from frontrank.training.embedding import embed_table
from frontrank.training.images import build_images
from frontrank.training.logs import read_log
from frontrank.training.loop import StopRequest
from frontrank.training.run import frozen_model, read_facts, resume, train

Task = Literal["train", "test", "frozen"]

PLAN, IMAGES, FROZEN = "comparison.json", "images.csv", "frozen.json"
COST, TEST = "cost.json", "test.json"
FACTS = ("command", "notes", "steps", "pictures")
_KIND, _VERSION = "comparison plan", 1
_REFUSED, _DIVERGENCE, _INTERRUPTED = 2, 3, 130  # exit status of a task
_ATTEMPTS = 2  # after which a failure that may pass counts as lasting
_RECALL = (1, 10, 100)
_OF_QUERIES = ("mAP", "mAP@R", "R-precision")
_LOOK = 0.3  # seconds between looks at a task
_READ = 20_000  # bytes of its output to look at


@dataclass(frozen=True)
class Job:
    """A run: a way to train at a learning rate, with a seed (from 0), and whether it is one of a shorter search."""

    way: Way
    lr: float
    seed: int
    short: bool = False

    def folder(self, out: Path) -> Path:
        """Return the folder of the run; its recipe, output and failure are beside it."""
        return out / "runs" / self.way.folder / f"lr-{self.lr:g}-seed-{self.seed}{'-search' * self.short}"

    def beside(self, out: Path, ending: str) -> Path:
        """Return a file beside the folder of the run."""
        folder = self.folder(out)
        return folder.with_name(folder.name + ending)

    def is_done(self, out: Path, *, tested: bool) -> bool:
        """Tell whether it is trained, or trained and tested."""
        return (self.folder(out) / (TEST if tested else COST)).is_file() and (self.folder(out) / COST).is_file()

    def failures(self, out: Path) -> list[str]:
        """Return why it failed, attempt by attempt; none where it did not."""
        path = self.beside(out, ".failed")
        return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []

    def is_given_up(self, out: Path) -> bool:
        """Tell whether it failed in a way that another attempt would not mend."""
        failures = self.failures(out)
        return len(failures) >= _ATTEMPTS or any(map(is_divergence, failures))


def is_divergence(failure: str) -> bool:
    """Tell whether a run failed as it diverged, which it would again; failure: as of `failure_reason`."""
    return failure.startswith("diverged: ")


def search_jobs(plan: Plan, way: Way) -> list[Job]:
    """Return the runs that choose the learning rate of a way, one seed each; none where there is one rate."""
    return [Job(way, lr, 0, bool(plan.search_steps)) for lr in way.lrs] if len(way.lrs) > 1 else []


def seed_jobs(plan: Plan, way: Way, out: Path) -> list[Job]:
    """Return the runs of a way at its learning rate, one per seed; none while that is not chosen."""
    lr = read_lr(way, out)
    return [] if lr is None else [Job(way, lr, seed) for seed in range(plan.seeds)]


def write_plan(out: Path, plan: Plan, facts: Mapping[str, Any]) -> None:
    """Store a plan. facts: the command, notes, steps of each way, a digest of the pictures."""
    write_json(out / PLAN, _KIND, _VERSION, {**facts, "plan": plan.as_json()}, overwrite=True)


def read_stored(out: Path) -> tuple[Plan, dict[str, Any]]:
    """Read the plan of a comparison's folder, and the facts beside it."""
    if not (out / PLAN).is_file():
        raise InputError(f"{out} is not a comparison (it has no {PLAN}); give the folder of --out")
    content = read_json(out / PLAN, _KIND, _VERSION)
    try:
        return Plan.from_json(content["plan"]), {key: content[key] for key in FACTS}
    except (KeyError, TypeError) as error:
        raise InputError(f"{out / PLAN} is damaged ({error}); compare into another folder") from error


def command_to_resume(out: Path) -> str:
    """Return the command that continues a comparison."""
    return f"frontrank compare --resume {shlex.quote(str(out))}"


# Learning rates


def search_results(plan: Plan, way: Way, out: Path) -> dict[float, tuple[float, float]]:
    """Return metric and mAP of the held-out classes at the best checkpoint, per learning rate of a search."""
    results = {}
    for job in search_jobs(plan, way):
        if job.is_done(out, tested=False):
            run, log = read_facts(job.folder(out)), read_log(job.folder(out) / "log.jsonl")
            averages = {line["step"]: line["validation mAP"] for line in reversed(log) if "validation mAP" in line}
            results[job.lr] = (float(run["best"]), float(averages.get(run["best_step"], 0.0)))
    return results


def choose_lr(plan: Plan, way: Way, out: Path) -> float | None:
    """Choose the learning rate of a way once, and store it.

    None where no run of the search is done, or one failed once, for a reason that may pass. The best on the held-out
    classes is chosen; of equal ones the one with more mAP, then the smaller one.
    """
    if (lr := read_lr(way, out)) is not None:
        return lr
    values, jobs = search_results(plan, way, out), search_jobs(plan, way)
    if not values or not all(job.lr in values or job.is_given_up(out) for job in jobs):
        return None
    lr = max(sorted(values), key=lambda each: values[each])
    atomic_write(_lr_path(way, out), json.dumps({"lr": lr}) + "\n")
    for job in jobs:
        if job.short or job.lr != lr:  # nobody will ask for its network
            shutil.rmtree(job.folder(out) / "model", ignore_errors=True)
    return lr


def read_lr(way: Way, out: Path) -> float | None:
    """Return the learning rate of a way; None while it is not chosen."""
    if len(way.lrs) == 1:
        return way.lrs[0]
    path = _lr_path(way, out)
    return float(load_json(path)["lr"]) if path.is_file() else None


def _lr_path(way: Way, out: Path) -> Path:
    return out / "runs" / way.folder / "lr.json"


# Test images


def query_labels(table: ImageTable) -> np.ndarray:
    """Return the labels of the queries among the test images, in their order."""
    test = table.of("test")
    return np.asarray(test.labels[search_roles(test)[0]])


def require_tests(table: ImageTable) -> None:
    """Raise if no metric can be computed from the test images."""
    table.require_one_label("a comparison")
    test = table.of("test")
    queries, gallery, _ = search_roles(test)
    sizes = np.unique(test.labels[queries], return_counts=True)[1]
    classes = set(test.labels.tolist()) - {""}
    if len(classes) < 2 or (gallery is None and (len(sizes) < 2 or sizes.max() < 2)):
        raise InputError(
            f"there are {len(test)} test images of {len(classes)} classes; give two classes or more, and one of them "
            "with two images or more"
        )
    if gallery is not None and not np.isin(test.labels[queries], test.labels[gallery]).any():
        raise InputError("no query of the test images has a class of the gallery; give images of the same classes")


def report_on_tests(model: Embedder, config: TrainConfig) -> Report:
    """Evaluate a model on the test images, by their roles."""
    table = build_images(config.data).of("test")
    embeddings = embed_table(model, table, workers=config.data.workers, precision=config.precision, show=False)
    queries, gallery, _ = search_roles(table)
    longest = len(queries) - 1 if gallery is None else len(gallery)
    recalls = [f"R@{k}" for k in _RECALL if k == 1 or k < longest]  # not of a whole list
    names = dict.fromkeys((*recalls, *_OF_QUERIES, config.metric))
    of_queries = [name for name in names if name not in GROUP_METRICS]

    def measure(labels: np.ndarray, metrics: Sequence[str]) -> Report:
        own = embeddings[queries], labels[queries]
        if gallery is None:
            return evaluate(*own, metrics=metrics, progress=False)
        other: Any = {"gallery": embeddings[gallery], "gallery_labels": labels[gallery]}
        return evaluate(*own, **other, metrics=metrics, progress=False)

    report, levels, with_label = measure(table.labels, of_queries), table.level_labels(), table.labels != ""
    per_query = dict(report.per_query)
    sides = levels[queries], None if gallery is None else levels[gallery]
    if has_small_levels(*sides):
        per_query |= measure(levels, BY_LEVEL).per_query
    groups = evaluate(embeddings[with_label], table.labels[with_label], metrics=GROUP_METRICS, progress=False)
    return Report.of(per_query, report.positives, report.gallery_size, dict(groups))


# A task, seen from the process that starts it


def run_task(
    task: Task, config: TrainConfig, target: Path, beside: Path, title: str, *, stop: StopRequest, held: tuple[int, ...]
) -> str | None:
    """Run a task in a process of its own; return why it failed, "" if it did not, None if it was stopped.

    target: where its results go; beside: what its recipe (.yaml) and its output (.txt) are named after
    title:  of a progress bar, "" for none
    stop:   passed on to the process, which saves its run; held: files that stay open as long as it lives
    """
    beside.parent.mkdir(parents=True, exist_ok=True)
    recipe, log = (beside.with_name(beside.name + ending) for ending in (".yaml", ".txt"))
    recipe.write_text(as_yaml(config), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "frontrank.comparison.tasks", task, str(recipe), str(target)]
    # Its stdin ends with this process; a signal of the terminal reaches it through here only.
    apart: Any = {"stdin": subprocess.PIPE, "start_new_session": True, "pass_fds": held}
    with log.open("a", encoding="utf-8") as output:
        start = output.tell()
        with subprocess.Popen(command, stdout=output, stderr=output, **apart) as child:
            try:
                _watch(child, log, start, title if sys.stderr.isatty() else "", stop)
            finally:
                child.kill()  # unless it has ended
    if stop.asked or child.returncode == _INTERRUPTED:
        return None
    return "" if child.returncode == 0 else failure_reason(child.returncode, _tail(log, start))


def _watch(child: "subprocess.Popen[bytes]", log: Path, start: int, title: str, stop: StopRequest) -> None:
    """Wait for the end and draw the progress; a stop that is asked for is passed on once."""
    stopped, done, tick = False, 0, None
    with ExitStack() as bar:
        while True:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_LOOK)
                return
            if stop.asked and not stopped:
                stopped = True
                child.terminate()
            steps = re.findall(r"step (\d+)/(\d+)", _tail(log, start)) if title else []
            if steps and tick is None:
                tick = bar.enter_context(progress(title, int(steps[-1][1])))
            if steps and tick is not None:
                tick(int(steps[-1][0]) - done)
                done = int(steps[-1][0])


def _tail(path: Path, start: int) -> str:
    """Return the end of what was written to a file after a place."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - _READ))
        return file.read().decode("utf-8", "replace")


def failure_reason(status: int, output: str) -> str:
    """Return why a process failed, in a line: its signal, or the last line of its output.

    >>> failure_reason(3, "step 1/4\\nthe gradient is not finite\\n"), failure_reason(-9, "")
    ('diverged: the gradient is not finite', 'ended by the signal SIGKILL, perhaps because memory ran out')
    """
    if status < 0:
        memory = ", perhaps because memory ran out" if -status == signal.SIGKILL else ""
        return f"ended by the signal {signal.Signals(-status).name}{memory}"
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
    if status == _DIVERGENCE:
        return f"diverged: {last[:300] or 'without a message'}"
    return last[:300] or f"ended with status {status} and without a message"


# A task, in its own process


def do_task(task: str, recipe: str, target: str) -> int:
    """Do a task and return the exit status; the last line of stderr is the error, if there is one."""
    try:
        config = read_config(read_recipe(Path(recipe)))
        if task == "frozen":
            model = frozen_model(config).to(build_device(config.device))
            report_on_tests(model, config).save(target, overwrite=True)
        else:
            train_once(config, Path(target))
        if task == "test" and not (Path(target) / TEST).is_file():
            model = Embedder.load(Path(target) / "model", build_device(config.device))
            report_on_tests(model, config).save(Path(target) / TEST, overwrite=True)
    except InterruptedRunError:
        return _INTERRUPTED
    except (FrontrankError, MemoryError) as error:
        print(f"\n{str(error) or 'out of memory'}", file=sys.stderr)
        return _DIVERGENCE if isinstance(error, DivergenceError) else _REFUSED
    return 0


def train_once(config: TrainConfig, folder: Path) -> None:
    """Train, from the last checkpoint if there is one; store the cost, and delete the checkpoints, which are big."""
    if not (folder / COST).is_file():
        started = time.monotonic()
        if latest_checkpoint(folder / "checkpoints") is None:
            shutil.rmtree(folder, ignore_errors=True)
            train(config, folder)
        else:
            resume(folder, {"data.path": config.data.path})  # which may have moved
        log = read_log(folder / "log.jsonl")
        times = [line["seconds per step"] for line in log if "seconds per step" in line]
        costs = {
            "seconds": median(times[1:] or times),  # the first line is of the first step, which warms up
            "megabytes": max(line["peak MB"] for line in log if "peak MB" in line),
            "wall": time.monotonic() - started,
        }
        atomic_write(folder / COST, json.dumps(costs) + "\n")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would still be held at the end
        pass
    os._exit(_REFUSED)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(do_task(*sys.argv[1:]))
