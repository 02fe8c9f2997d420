"""What the runs of a comparison found, for tables and reports."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from frontrank.data.folders import read_table
from frontrank.data.image_table import ImageTable
from frontrank.evaluation.paired_classes import holm, paired_over_seeds
from frontrank.evaluation.report import Report
from frontrank.jobs.comparison_jobs import FROZEN, IMAGES, Job, chosen_lr, finished, read_stored, run_facts, searched
from frontrank.jobs.comparison_plan import Plan, Way
from frontrank.jobs.comparison_run import COST, TEST, query_labels
from frontrank.jobs.run_facts import licences
from frontrank.reporting.compared import UNFINISHED, Against, Compared, Entry
from frontrank.reporting.findings import Curve
from frontrank.settings import as_yaml
from frontrank.training.logs import read_log


def read_comparison(out: str | Path) -> Compared:
    """What is found in a comparison's folder so far, for tables and reports."""
    out = Path(out)
    plan, facts = read_stored(out)
    table = read_table(out / IMAGES)
    reports = {way.name: _reports(plan, way, out) for way in plan.ways}
    entries = [_entry(plan, way, out, list(reports[way.name].values())) for way in plan.ways]
    reference = plan.reference or _best_by_validation(plan, out, entries)
    entries = _against(entries, reports, reference, query_labels(table))
    frozen = dict(Report.load(out / FROZEN)) if (out / FROZEN).is_file() else {}
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
        licences=licences(table),
        notes=(*facts["notes"], *_notes(plan, out, entries, table)),
    )


def _reports(plan: Plan, way: Way, out: Path) -> dict[int, Report]:
    return {seed: Report.load(job.folder(out) / TEST) for seed, job in finished(plan, way, out).items()}


def _entry(plan: Plan, way: Way, out: Path, reports: list[Report]) -> Entry:
    jobs = finished(plan, way, out)
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
        folder=next((str(job.folder(out)) for job in jobs.values()), ""),
        failed="" if reports else next(iter(failures(plan, way, out)), UNFINISHED),
    )


def failures(plan: Plan, way: Way, out: Path) -> list[str]:
    """Why runs of a way lack: those of its learning rate, or of the search where none could be chosen."""
    lr = chosen_lr(way, out)
    tried = [Job(way, each, 0, bool(plan.search_steps)) for each in way.lrs if len(way.lrs) > 1]
    jobs = tried if lr is None else [Job(way, lr, seed) for seed in range(plan.seeds)]
    return [said for job in jobs if not job.is_done(out, tested=lr is not None) and (said := job.failure(out))]


def _curve(folder: Path, metric: str) -> Curve:
    name = f"validation {metric}"
    points = [(line["step"], line[name]) for line in read_log(folder / "log.jsonl") if name in line]
    x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return Curve(x, y)


def _best_by_validation(plan: Plan, out: Path, entries: list[Entry]) -> str:
    """The entry whose runs are best on the held-out classes: to choose by the test images would flatter it."""
    means = {}
    for way in plan.ways:
        found = [run_facts(job.folder(out))["best"] for job in finished(plan, way, out).values()]
        if found and None not in found:
            means[way.name] = fmean(found)
    done = [entry.name for entry in entries if entry.values]
    return max(means, key=lambda name: means[name]) if means else (done or [entries[0].name])[0]


def _against(
    entries: list[Entry], reports: Mapping[str, Mapping[int, Report]], reference: str, classes: np.ndarray
) -> list[Entry]:
    """The entries with their differences to the reference, over the seeds that both have.

    p-values are Holm's over the entries, metric by metric.
    """
    theirs = reports.get(reference, {})
    shared = {name: [seed for seed in of if seed in theirs] for name, of in reports.items() if name != reference}
    others = [name for name, seeds in shared.items() if seeds]
    if not others:
        return entries
    found: dict[str, dict[str, Against]] = {name: {} for name in others}
    for metric in next(iter(theirs.values())).per_query:
        values = {name: [_stacked(of, shared[name], metric) for of in (theirs, reports[name])] for name in others}
        differences = [paired_over_seeds(a, b, classes) for a, b in values.values()]
        corrected = holm([each.p_value for each in differences])
        for name, each, p_value in zip(others, differences, corrected, strict=True):
            found[name][metric] = Against(each.difference, each.low, each.high, p_value)
    return [replace(entry, against=found.get(entry.name, {})) for entry in entries]


def _stacked(reports: Mapping[int, Report], seeds: list[int], metric: str) -> np.ndarray:
    """The values of a metric [seed, query]."""
    return np.stack([reports[seed].per_query[metric] for seed in seeds])


def _versions(plan: Plan, out: Path) -> dict[str, str]:
    for job in (job for way in plan.ways for job in finished(plan, way, out).values()):
        return dict(run_facts(job.folder(out))["versions"])
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
    return [*notes, *_differing(plan, out), *_of_differences(plan, len(set(query_labels(table).tolist())))]


def _of_differences(plan: Plan, classes: int) -> list[str]:
    """What intervals and p-values are, and when they can say nothing."""
    if len(plan.ways) < 2:
        return []
    over = f"{classes:,} test classes" + f" and {plan.seeds} seeds" * (plan.seeds > 1)
    notes = [f"intervals and p-values are of differences over {over}; p is corrected for the number of entries (Holm)"]
    if plan.seeds == 1:
        notes.append("of one seed nothing is known of how much another would differ: give --seeds 3 or more")
    if 2 / 2**classes >= 0.05:
        notes.append(f"with {classes} test classes no p can be below 0.05; differences need 6 classes or more")
    return notes


def _differing(plan: Plan, out: Path) -> list[str]:
    """Versions, commits, machines and devices that are not the same in all runs."""
    seen: dict[str, list[str]] = {}
    for way in plan.ways:
        for job in finished(plan, way, out).values():
            facts = run_facts(job.folder(out))
            for told in (facts, *facts.get("resumed", [])):
                named = {"commit": told["commit"], "machine": told["machine"], "device": told["device"]}
                for name, value in {**told["versions"], **named}.items():
                    seen.setdefault(name, []).append(str(value)[:60])
    return [
        f"runs were made with different {name}: {', '.join(dict.fromkeys(values))}; they may not be alike"
        for name, values in seen.items()
        if len(set(values)) > 1
    ]


def _key(job: Job) -> tuple[float, int, bool]:
    return job.lr, job.seed, job.short
