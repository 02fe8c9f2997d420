"""The runs of a comparison: what is planned, what is done, and which learning rate was chosen."""

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontrank.errors import InputError
from frontrank.evaluation.files import read_json, write_json
from frontrank.jobs.comparison_plan import Plan, Way
from frontrank.jobs.comparison_run import COST, TEST
from frontrank.training.checkpoints import atomic_write
from frontrank.training.logs import read_log

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
