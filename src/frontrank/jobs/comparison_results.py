"""What a comparison's folder says: which runs are done, what they found, and tables of it."""

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from frontrank.data.folders import read_table
from frontrank.data.image_table import ImageTable
from frontrank.errors import InputError
from frontrank.evaluation.files import read_json, write_json
from frontrank.evaluation.paired_classes import holm, paired_over_classes
from frontrank.evaluation.report import Report
from frontrank.jobs.comparison_plan import Plan, Way
from frontrank.jobs.comparison_run import COST, TEST, query_labels
from frontrank.reporting.compared import Against, Compared, Entry
from frontrank.reporting.findings import Curve
from frontrank.settings import as_yaml
from frontrank.training.checkpoints import atomic_write
from frontrank.training.logs import read_log

PLAN, IMAGES, FROZEN = "comparison.json", "images.csv", "frozen.json"
UNFINISHED = "not finished yet"
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
        path = self.beside(out, ".failed")
        return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def searches(plan: Plan) -> list[Job]:
    """The runs that choose learning rates, one seed each."""
    short = bool(plan.search_steps)
    return [Job(way, lr, 0, short) for way in plan.ways if len(way.lrs) > 1 for lr in way.lrs]


def write_plan(out: Path, plan: Plan, facts: Mapping[str, Any]) -> None:
    """Store what is compared. facts: the command, notes."""
    write_json(out / PLAN, _KIND, _VERSION, {**facts, "plan": plan.as_json()}, overwrite=True)


def read_stored(out: Path) -> tuple[Plan, dict[str, Any]]:
    """What is compared in a folder, and the facts beside it."""
    if not (out / PLAN).is_file():
        raise InputError(f"{out} holds no comparison (there is no {PLAN}); give the folder of --out")
    found = read_json(out / PLAN, _KIND, _VERSION)
    try:
        return Plan.of_json(found["plan"]), found
    except (KeyError, TypeError) as error:
        raise InputError(f"{out / PLAN} is damaged ({error}); compare into another folder") from error


def searched(plan: Plan, way: Way, out: Path) -> dict[float, tuple[float, float]]:
    """Per learning rate of a search that is done: the metric and mAP of the held-out classes at the best checkpoint."""
    found = {}
    for lr in way.lrs:
        job = Job(way, lr, 0, bool(plan.search_steps))
        if job.is_done(out, tested=False):
            facts = _run_facts(job.folder(out))
            lines = [line for line in read_log(job.folder(out) / "log.jsonl") if line["step"] == facts["best_step"]]
            average = next((line["validation mAP"] for line in lines if "validation mAP" in line), 0.0)
            found[lr] = (float(facts["best"]), float(average))
    return found


def choose_lr(plan: Plan, way: Way, out: Path) -> float | None:
    """The learning rate of a way, chosen once and then kept; None where every run of the search failed.

    The best on the held-out classes; of equal ones that of more mAP, then the smaller one.
    """
    if len(way.lrs) == 1:
        return way.lrs[0]
    kept = out / "runs" / way.folder / "lr.json"
    if kept.is_file():
        return float(json.loads(kept.read_text(encoding="utf-8"))["lr"])
    values = searched(plan, way, out)
    if not values:
        return None
    lr = max(sorted(values), key=lambda each: values[each])
    atomic_write(kept, (json.dumps({"lr": lr}) + "\n").encode())
    return lr


def chosen_lr(way: Way, out: Path) -> float | None:
    """The learning rate that was chosen; None before that."""
    kept = out / "runs" / way.folder / "lr.json"
    if len(way.lrs) == 1:
        return way.lrs[0]
    return float(json.loads(kept.read_text(encoding="utf-8"))["lr"]) if kept.is_file() else None


def read_comparison(out: str | Path) -> Compared:
    """What is found in a comparison's folder so far, for tables and reports."""
    out = Path(out)
    plan, facts = read_stored(out)
    table = read_table(out / IMAGES)
    reports = {way.name: _reports(plan, way, out) for way in plan.ways}
    entries = [_entry(plan, way, out, reports[way.name]) for way in plan.ways]
    reference = plan.reference or _best_by_validation(plan, out, entries)
    entries = _against(entries, reports, reference, query_labels(table))
    frozen = dict(Report.load(out / FROZEN)) if (out / FROZEN).is_file() else {}
    licences = table.extra.get("licence", np.array([]))
    return Compared(
        title=plan.title,
        axis=", ".join(plan.axes),
        metric=plan.base.metric,
        reference=reference,
        entries=tuple(entries),
        frozen=frozen,
        images=_images(table),
        command=facts["command"],
        settings=as_yaml(plan.base, changed_only=True),
        versions=_versions(plan, out),
        licences={str(name): int(count) for name, count in zip(*np.unique(licences, return_counts=True), strict=True)},
        notes=(*facts["notes"], *_notes(plan, out, entries, table)),
    )


def _finished(plan: Plan, way: Way, out: Path) -> dict[int, Job]:
    """The runs of a way that are done, by seed."""
    lr = chosen_lr(way, out)
    jobs = [] if lr is None else [Job(way, lr, seed) for seed in range(plan.seeds)]
    return {job.seed: job for job in jobs if job.is_done(out, tested=True)}


def _reports(plan: Plan, way: Way, out: Path) -> list[Report]:
    return [Report.load(job.folder(out) / TEST) for job in _finished(plan, way, out).values()]


def _entry(plan: Plan, way: Way, out: Path, reports: list[Report]) -> Entry:
    jobs = _finished(plan, way, out)
    costs = [json.loads((job.folder(out) / COST).read_text(encoding="utf-8")) for job in jobs.values()]
    lr = chosen_lr(way, out)
    return Entry(
        name=way.name,
        settings=dict(way.settings),
        lr=math.nan if lr is None else lr,
        searched={rate: value for rate, (value, _) in searched(plan, way, out).items()} if len(way.lrs) > 1 else {},
        seeds=tuple(plan.base.seed + seed for seed in jobs),
        values={name: tuple(report[name] for report in reports) for name in (reports[0] if reports else ())},
        seconds=tuple(cost["seconds"] for cost in costs),
        megabytes=tuple(cost["megabytes"] for cost in costs),
        curves=tuple(_curve(job.folder(out), plan.base.metric) for job in jobs.values()),
        failed="" if reports else _failure(plan, way, out) or UNFINISHED,
    )


def _failure(plan: Plan, way: Way, out: Path) -> str:
    lr = chosen_lr(way, out)
    tried = [Job(way, each, 0, bool(plan.search_steps)) for each in way.lrs if len(way.lrs) > 1]
    jobs = tried if lr is None else [Job(way, lr, seed) for seed in range(plan.seeds)]
    return next((said for job in jobs if (said := job.failure(out))), "")


def _curve(folder: Path, metric: str) -> Curve:
    name = f"validation {metric}"
    points = [(line["step"], line[name]) for line in read_log(folder / "log.jsonl") if name in line]
    x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return Curve(x, y)


def _best_by_validation(plan: Plan, out: Path, entries: list[Entry]) -> str:
    """The entry whose runs are best on the held-out classes: to choose by the test images would flatter it."""
    means = {}
    for way in plan.ways:
        found = [_run_facts(job.folder(out))["best"] for job in _finished(plan, way, out).values()]
        if found and None not in found:
            means[way.name] = fmean(found)
    done = [entry.name for entry in entries if entry.values]
    return max(means, key=lambda name: means[name]) if means else (done or [entries[0].name])[0]


def _against(
    entries: list[Entry], reports: Mapping[str, list[Report]], reference: str, classes: np.ndarray
) -> list[Entry]:
    """The entries with their differences to the reference; p-values are Holm's over the entries, metric by metric."""
    averages = {name: _averaged(of) for name, of in reports.items() if of}
    others = [name for name in averages if name != reference]
    if reference not in averages or not others:
        return entries
    found: dict[str, dict[str, Against]] = {name: {} for name in others}
    for metric, theirs in averages[reference].items():
        differences = [paired_over_classes(theirs, averages[name][metric], classes) for name in others]
        corrected = holm([each.p_value for each in differences])
        for name, each, p_value in zip(others, differences, corrected, strict=True):
            found[name][metric] = Against(each.difference, each.low, each.high, p_value)
    return [replace(entry, against=found.get(entry.name, {})) for entry in entries]


def _averaged(reports: list[Report]) -> dict[str, np.ndarray]:
    """The values of each query, averaged over seeds."""
    return {name: np.mean([report.per_query[name] for report in reports], axis=0) for name in reports[0].per_query}


def _run_facts(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text(encoding="utf-8")))


def _versions(plan: Plan, out: Path) -> dict[str, str]:
    for job in (job for way in plan.ways for job in _finished(plan, way, out).values()):
        return dict(_run_facts(job.folder(out))["versions"])
    return {}


def _images(table: ImageTable) -> str:
    parts = []
    for split, said in (("test", "test"), ("train", "train with"), ("validation", "choose by")):
        part = table.of(split)
        if len(part):
            parts.append(f"{len(part):,} images of {len(set(part.labels.tolist()) - {''}):,} classes to {said}")
    return "; ".join(parts)


def _notes(plan: Plan, out: Path, entries: list[Entry], table: ImageTable) -> list[str]:
    notes = []
    for way, entry in zip(plan.ways, entries, strict=True):
        if len(way.lrs) > 1 and entry.lr in (min(way.lrs), max(way.lrs)):
            side = "smallest" if entry.lr == min(way.lrs) else "largest"
            notes.append(f"{way.name}: the learning rate chosen, {entry.lr:g}, is the {side} of those tried")
        jobs = [Job(way, lr, 0, bool(plan.search_steps)) for lr in way.lrs if len(way.lrs) > 1]
        jobs += [Job(way, entry.lr, seed) for seed in range(plan.seeds) if not math.isnan(entry.lr)]
        for job in dict.fromkeys(map(_key, jobs)):
            found = Job(way, *job)
            if said := found.failure(out):
                notes.append(f"{way.name}: the run at learning rate {found.lr:g}, seed {found.seed}, failed: {said}")
        missing = plan.seeds - len(entry.seeds)
        if entry.values and missing:
            notes.append(f"{way.name}: {missing} of {plan.seeds} seeds are missing")
    sizes = np.unique(query_labels(table), return_counts=True)[1]
    notes.append(
        f"intervals and p-values are of differences over {len(sizes):,} test classes, of values averaged over seeds; "
        "p is corrected for the number of entries (Holm). They say nothing of how much seeds differ: see the spread"
    )
    return notes


def _key(job: Job) -> tuple[float, int, bool]:
    return job.lr, job.seed, job.short


def command_to_go_on(out: Path) -> str:
    """What a user types to go on."""
    return f"frontrank compare --resume {shlex.quote(str(out))}"
