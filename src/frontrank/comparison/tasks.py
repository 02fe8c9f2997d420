"""One run of a comparison, in a process of its own, and the runs that are planned and done."""

import json
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from frontrank.comparison.plan import Plan, Way
from frontrank.data.table import ImageTable
from frontrank.errors import FrontrankError, InputError, InterruptedRunError
from frontrank.evaluation import evaluate
from frontrank.evaluation.measures import GROUP_METRICS
from frontrank.evaluation.report import Report
from frontrank.files import atomic_write, read_json, write_json
from frontrank.models import Embedder
from frontrank.settings import TrainConfig, read_config, read_recipe
from frontrank.training.checkpoints import latest_checkpoint
from frontrank.training.embedding import embed_table
from frontrank.training.logs import read_log
from frontrank.training.run import build_device, build_images, frozen_model, resume, train

# ==== One run of a comparison, as a process of its own: its memory is its own, and a crash is its own.


COST, TEST = "cost.json", "test.json"
REFUSED, INTERRUPTED = 2, 130
_RECALL = (1, 10, 100)
_OF_QUERIES = ("mAP", "mAP@R", "R-precision")


def do(job: str, recipe: str, target: str) -> int:
    """Do the job, and give the exit status; what went wrong is the last line of stderr."""
    try:
        config = read_config(read_recipe(Path(recipe)))
        if job == "frozen":
            model = frozen_model(config).to(build_device(config.device))
            report_on_tests(model, config).save(target, overwrite=True)
        else:
            train_once(config, Path(target))
        if job == "test":
            evaluate_once(config, Path(target))
    except InterruptedRunError:
        return INTERRUPTED
    except (FrontrankError, MemoryError) as error:
        print(f"\n{str(error) or 'out of memory'}", file=sys.stderr)
        return REFUSED
    return 0


def train_once(config: TrainConfig, folder: Path) -> None:
    """Train, from the last checkpoint if there is one; say what it cost, and drop the checkpoints, which are big."""
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
        atomic_write(folder / COST, (json.dumps(costs) + "\n").encode())
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def evaluate_once(config: TrainConfig, folder: Path) -> None:
    """Evaluate the trained model on the test images, and keep the values of every query."""
    if not (folder / TEST).is_file():
        model = Embedder.load(folder / "model", build_device(config.device))
        report_on_tests(model, config).save(folder / TEST, overwrite=True)


def report_on_tests(model: Embedder, config: TrainConfig) -> Report:
    """How a model ranks the test images, by their roles."""
    table = build_images(config.data).of("test")
    embeddings = embed_table(model, table, workers=config.data.workers, precision=config.precision, show=False)
    asked, searched = sides(table)
    metrics = metrics_on_tests(table, config.metric)
    if searched is None:
        return evaluate(embeddings[asked], table.labels[asked], metrics=metrics, progress=False)
    of_ranks = [name for name in metrics if name not in GROUP_METRICS]
    report = evaluate(
        embeddings[asked],
        table.labels[asked],
        gallery=embeddings[searched],
        gallery_labels=table.labels[searched],
        metrics=of_ranks,
        progress=False,
    )
    named = table.labels != ""
    groups = evaluate(embeddings[named], table.labels[named], metrics=GROUP_METRICS, progress=False)
    return Report.of(report.per_query, report.positives, report.gallery_size, dict(groups))


def sides(table: ImageTable) -> tuple[np.ndarray, np.ndarray | None]:
    """Masks of the queries and of the gallery, by their roles; no gallery where each query searches the others.

    Only images of the role gallery make one, with distractors beside them: in another an image would find itself.
    """
    asked = np.isin(table.roles, ("", "query")) & (table.labels != "")
    if not (table.roles == "gallery").any():
        return asked, None
    return asked, np.isin(table.roles, ("gallery", "distractor"))


def metrics_on_tests(table: ImageTable, chosen: str) -> list[str]:
    """The metrics of the test images, and that of the held-out classes; R@k only where a list is longer than k."""
    asked, searched = sides(table)
    longest = int(asked.sum()) - 1 if searched is None else int(searched.sum())
    recalls = [f"R@{k}" for k in _RECALL if k == 1 or k < longest]
    return list(dict.fromkeys([*recalls, *_OF_QUERIES, *([] if chosen in GROUP_METRICS else [chosen]), *GROUP_METRICS]))


def query_labels(table: ImageTable) -> np.ndarray:
    """The labels of the queries among the test images, in their order."""
    test = table.of("test")
    return np.asarray(test.labels[sides(test)[0]])


def require_tests(table: ImageTable) -> None:
    """Refuse test images that no metric can be made of."""
    test = table.of("test")
    asked, searched = sides(test)
    sizes = np.unique(test.labels[asked], return_counts=True)[1]
    classes = set(test.labels.tolist()) - {""}
    if len(classes) < 2 or (searched is None and (len(sizes) < 2 or sizes.max() < 2)):
        raise InputError(
            f"the test images are {len(test)} of {len(classes)} classes; there must be two classes at least, and one "
            "of two images or more"
        )
    if searched is not None and not set(test.labels[asked].tolist()) & set(test.labels[searched].tolist()):
        raise InputError("no query of the test images has a class of the gallery; give images of the same classes")


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would still be held at the end
        pass
    os._exit(REFUSED)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(do(*sys.argv[1:]))


# ==== The runs of a comparison: what is planned, what is done, and which learning rate was chosen.


PLAN, IMAGES, FROZEN = "comparison.json", "images.csv", "frozen.json"
FACTS = ("command", "notes", "steps", "pictures")
DIVERGED = "not finite"  # says a run that diverged, and would again
_ATTEMPTS = 2  # after which a failure that may have been a passing one is taken for a lasting one
_KIND, _VERSION = "comparison plan", 1


@dataclass(frozen=True)
class Job:
    """A run: a way to train at a learning rate, with a seed (from 0), and whether it is one of a shorter search."""

    way: Way
    lr: float
    seed: int
    short: bool = False

    def folder(self, out: Path) -> Path:
        """Where the run is; its recipe, output and failure stand beside it."""
        return out / "runs" / self.way.folder / f"lr-{self.lr:g}-seed-{self.seed}{'-search' * self.short}"

    def beside(self, out: Path, ending: str) -> Path:
        """A file beside the folder of the run."""
        folder = self.folder(out)
        return folder.with_name(folder.name + ending)

    def is_done(self, out: Path, *, tested: bool) -> bool:
        """Whether it was trained, or trained and tested."""
        return (self.folder(out) / (TEST if tested else COST)).is_file() and (self.folder(out) / COST).is_file()

    def failure(self, out: Path) -> str:
        """Why it failed; nothing where it did not."""
        return (self._failures(out) or [""])[-1]

    def is_given_up(self, out: Path) -> bool:
        """Whether it failed in a way that another attempt would not mend."""
        said = self._failures(out)
        return len(said) >= _ATTEMPTS or any(DIVERGED in each for each in said)

    def _failures(self, out: Path) -> list[str]:
        path = self.beside(out, ".failed")
        return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []

    def drop_model(self, out: Path) -> None:
        """Delete the trained network, which nobody will ask for."""
        shutil.rmtree(self.folder(out) / "model", ignore_errors=True)


def searches(plan: Plan) -> list[Job]:
    """The runs that choose learning rates, one seed each."""
    short = bool(plan.search_steps)
    return [Job(way, lr, 0, short) for way in plan.ways if len(way.lrs) > 1 for lr in way.lrs]


def write_plan(out: Path, plan: Plan, facts: Mapping[str, Any]) -> None:
    """Store what is compared. facts: the command, notes, steps of each way, a digest of the pictures."""
    write_json(out / PLAN, _KIND, _VERSION, {**facts, "plan": plan.as_json()}, overwrite=True)


def read_stored(out: Path) -> tuple[Plan, dict[str, Any]]:
    """What is compared in a folder, and the facts beside it."""
    if not (out / PLAN).is_file():
        raise InputError(f"{out} holds no comparison (there is no {PLAN}); give the folder of --out")
    found = read_json(out / PLAN, _KIND, _VERSION)
    try:
        return Plan.of_json(found["plan"]), {**found, **{key: found[key] for key in FACTS}}
    except (KeyError, TypeError) as error:
        raise InputError(f"{out / PLAN} is damaged ({error}); compare into another folder") from error


def searched(plan: Plan, way: Way, out: Path) -> dict[float, tuple[float, float]]:
    """Per learning rate of a search that is done: the metric and mAP of the held-out classes at the best checkpoint."""
    found = {}
    for lr in way.lrs:
        job = Job(way, lr, 0, bool(plan.search_steps))
        if job.is_done(out, tested=False):
            facts = run_facts(job.folder(out))
            lines = [line for line in read_log(job.folder(out) / "log.jsonl") if line["step"] == facts["best_step"]]
            average = next((line["validation mAP"] for line in lines if "validation mAP" in line), 0.0)
            found[lr] = (float(facts["best"]), float(average))
    return found


def choose_lr(plan: Plan, way: Way, out: Path) -> float | None:
    """The learning rate of a way, chosen once and then kept; None where no run of the search is done, or one is not
    and may yet be: it failed once, for a reason that may pass.

    The best on the held-out classes; of equal ones that of more mAP, then the smaller one.
    """
    if len(way.lrs) == 1:
        return way.lrs[0]
    kept = out / "runs" / way.folder / "lr.json"
    if kept.is_file():
        return float(json.loads(kept.read_text(encoding="utf-8"))["lr"])
    values = searched(plan, way, out)
    jobs = [Job(way, lr, 0, bool(plan.search_steps)) for lr in way.lrs]
    if not values or not all(job.lr in values or job.is_given_up(out) for job in jobs):
        return None
    lr = max(sorted(values), key=lambda each: values[each])
    atomic_write(kept, (json.dumps({"lr": lr}) + "\n").encode())
    for job in jobs:
        if job.short or job.lr != lr:
            job.drop_model(out)
    return lr


def chosen_lr(way: Way, out: Path) -> float | None:
    """The learning rate that was chosen; None before that."""
    kept = out / "runs" / way.folder / "lr.json"
    if len(way.lrs) == 1:
        return way.lrs[0]
    return float(json.loads(kept.read_text(encoding="utf-8"))["lr"]) if kept.is_file() else None


def finished(plan: Plan, way: Way, out: Path) -> dict[int, Job]:
    """The runs of a way that are done, by seed."""
    lr = chosen_lr(way, out)
    jobs = [] if lr is None else [Job(way, lr, seed) for seed in range(plan.seeds)]
    return {job.seed: job for job in jobs if job.is_done(out, tested=True)}


def run_facts(folder: Path) -> dict[str, Any]:
    """What a run says of itself."""
    return dict(json.loads((folder / "run.json").read_text(encoding="utf-8")))


def command_to_go_on(out: Path) -> str:
    """What a user types to go on."""
    return f"frontrank compare --resume {shlex.quote(str(out))}"
