"""The results of a comparison: rows, and how they are rendered."""

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

import numpy as np

from frontrank.comparison.plan import Plan, Way
from frontrank.comparison.tasks import (
    COST,
    FROZEN,
    IMAGES,
    TEST,
    Job,
    chosen_lr,
    finished,
    query_labels,
    read_stored,
    run_facts,
    searched,
)
from frontrank.data.table import ImageTable, read_table
from frontrank.evaluation.report import Report, is_distance, percent
from frontrank.evaluation.statistics import holm, paired_over_seeds
from frontrank.files import atomic_write
from frontrank.reporting.findings import Curve
from frontrank.reporting.run import licences
from frontrank.settings import as_yaml
from frontrank.tables import Table, TableFormat
from frontrank.training.logs import read_log

# ==== What the report of a comparison shows: several ways to train, each over several seeds, on the same images.


UNFINISHED = "not finished yet"


class Against(NamedTuple):
    """The difference to the reference entry: mean, interval, p-value (corrected for the number of entries)."""

    difference: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, eq=False)
class Entry:
    """One way to train.

    name: "PNP-D_q", "triplet", or "loss.temperature=0.01"
    settings: where it differs from the base
    lr, searched: the learning rate that was chosen, and the validation metric of each one tried
    seeds, values: metric -> one value per finished seed, on the test images
    seconds: median time of a step, per seed; megabytes: peak memory, per seed
    curves: validation metric over steps, per seed
    against: metric -> difference to the reference; empty for the reference itself
    failed: why it has no values, if it has none; UNFINISHED where they are still to come
    folder: of one of its runs, whose own report shows pictures
    """

    name: str
    settings: Mapping[str, Any]
    lr: float
    searched: Mapping[float, float]
    seeds: tuple[int, ...]
    values: Mapping[str, tuple[float, ...]]
    seconds: tuple[float, ...]
    megabytes: tuple[float, ...]
    curves: tuple[Curve, ...]
    against: Mapping[str, Against] = field(default_factory=dict)
    failed: str = ""
    folder: str = ""


@dataclass(frozen=True, eq=False)
class Compared:
    """A comparison. axis: the setting that varies ("loss.temperature"), or "" where the losses do.

    metric: that chose learning rates and checkpoints, on validation classes; reference: name of the entry that the
    others are set against; frozen: metric -> value of the backbone before training, same images
    """

    title: str
    axis: str
    metric: str
    reference: str
    entries: tuple[Entry, ...]
    frozen: Mapping[str, float]
    images: str
    command: str
    settings: str
    versions: Mapping[str, str]
    licences: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


# ==== What the runs of a comparison found, for tables and reports.


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


# ==== Tables and files of what a comparison found.


_SHOWN = ("R@1", "R@10", "R@100", "mAP", "NMI", "dists@intra", "dists@inter")


def spread(name: str, values: tuple[float, ...]) -> str:
    """The mean, and how far seeds differ: the standard deviation, or of fewer than three the least and the most.

    >>> spread("R@1", (0.5, 0.52, 0.51)), spread("mAP", (0.5, 0.52)), spread("mAP", (0.5,))
    ('51.00 ± 1.00', '51.00 (50.00 .. 52.00)', '50.00')
    """
    said = percent(name, fmean(values))
    if len(values) == 1:
        return said
    if len(values) == 2:
        return f"{said} ({percent(name, min(values))} .. {percent(name, max(values))})"
    return f"{said} ± {percent(name, stdev(values))}"


def comparison_table(compared: Compared, format: TableFormat = "text", *, metrics: tuple[str, ...] = _SHOWN) -> str:
    """A row for each entry: what it reaches on the test images, over seeds, what it costs, and how sure it is.

    metrics: those shown, as far as they are there
    """
    known = dict.fromkeys(name for entry in compared.entries for name in entry.values) or dict.fromkeys(compared.frozen)
    names = [name for name in metrics if name in known]
    of_queries = {name for entry in compared.entries for name in entry.against}
    judged = compared.metric if compared.metric in of_queries else "R@1"
    header = ["", *names, f"{judged} against {compared.reference}", "p", "lr", "s/step", "MB"]
    rows = [["frozen backbone", *_frozen_cells(compared, names), "", "", "", "", ""]]
    rows = rows if compared.frozen else []
    first = len(rows)
    for entry in compared.entries:
        lr = "" if math.isnan(entry.lr) else f"{entry.lr:g}"
        if not entry.values:
            said = UNFINISHED if entry.failed == UNFINISHED else "failed"
            rows.append([entry.name, *("-" for _ in names), said, "", lr, "", ""])
            continue
        found = [spread(name, entry.values[name]) for name in names]
        costs = [f"{median(entry.seconds):.3g}", f"{median(entry.megabytes):,.0f}"]
        rows.append([entry.name, *found, *_judged(compared, entry, judged), lr, *costs])
    best = {
        (first + i, j)
        for j, name in enumerate(names, 1)
        for i, entry in enumerate(compared.entries)
        if entry.values and not is_distance(name) and fmean(entry.values[name]) == _most(compared, name)
    }
    unit = "dists@* are cosine distances, other metrics are in %; differences are in percentage points"
    before = (compared.images, unit)
    return Table(header, rows, "l" + "r" * (len(header) - 1), before, compared.notes, frozenset(best)).rendered(format)


def _frozen_cells(compared: Compared, names: list[str]) -> list[str]:
    return [percent(name, compared.frozen[name]) if name in compared.frozen else "-" for name in names]


def _judged(compared: Compared, entry: Entry, metric: str) -> list[str]:
    if metric not in entry.against:
        return ["reference" if entry.name == compared.reference else "", ""]
    found = entry.against[metric]
    ends = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    return [f"{100 * found.difference:+.2f} {ends}", "<0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}"]


def _most(compared: Compared, name: str) -> float:
    return max(fmean(entry.values[name]) for entry in compared.entries if entry.values)


def write_results(out: Path, compared: Compared) -> None:
    """Write results.json, results.csv (a line per run) and results.md."""
    atomic_write(out / "results.json", (json.dumps(_as_json(compared), indent=1) + "\n").encode())
    everything = tuple(dict.fromkeys(name for entry in compared.entries for name in entry.values))
    text = f"# {compared.title}\n\n{comparison_table(compared, 'markdown', metrics=everything or _SHOWN)}\n\n"
    text += f"```\n{compared.command}\n```\n"
    atomic_write(out / "results.md", text.encode())
    file = io.StringIO(newline="")
    lines = csv.writer(file)
    lines.writerow(["name", "lr", "seed", *everything, "seconds per step", "peak MB"])
    if compared.frozen:
        lines.writerow(["frozen backbone", "", "", *(compared.frozen.get(name, "") for name in everything), "", ""])
    for entry in compared.entries:
        for i, seed in enumerate(entry.seeds):
            values = (of[i] for of in entry.values.values())
            lines.writerow([entry.name, entry.lr, seed, *values, entry.seconds[i], entry.megabytes[i]])
    atomic_write(out / "results.csv", file.getvalue().encode())


def _as_json(compared: Compared) -> dict[str, Any]:
    entries = []
    for entry in compared.entries:
        curves = [{"x": curve.x.tolist(), "y": curve.y.tolist()} for curve in entry.curves]
        against = {name: each._asdict() for name, each in entry.against.items()}
        means = {name: fmean(values) for name, values in entry.values.items()}
        own: dict[str, Any] = {"name": entry.name}
        own |= {"settings": dict(entry.settings), "lr": None if math.isnan(entry.lr) else entry.lr}
        own |= {"searched": [{"lr": lr, "value": value} for lr, value in entry.searched.items()]}
        own |= {"seeds": entry.seeds, "mean": means, "values": dict(entry.values), "seconds per step": entry.seconds}
        own |= {"peak MB": entry.megabytes, "curves": curves, "against": against, "failed": entry.failed}
        entries.append(own)
    plain = {key: value for key, value in asdict(replace(compared, entries=())).items() if key != "entries"}
    return {"format": "frontrank comparison results", "version": 1, **plain, "entries": entries}


def write_page(out: Path, compared: Compared) -> Path:
    """Write report.html, the page of a comparison."""
    from frontrank.comparison.report import comparison_page

    page = out / "report.html"
    atomic_write(page, comparison_page(compared).encode())
    return page
