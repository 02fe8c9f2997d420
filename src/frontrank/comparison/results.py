"""The results of a comparison: an entry for each way to train, and the columns of its tables and files.

A number that every run has is one `ResultColumn`: it appears in the text table, in results.md, results.csv,
results.json and on the page. A new one is an entry of `COSTS`, or a metric of the evaluation.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from frontrank.comparison import tasks
from frontrank.comparison.plan import Plan, Way
from frontrank.comparison.tasks import Job, search_jobs, seed_jobs
from frontrank.data.table import read_table
from frontrank.evaluation.report import Report, format_metric, is_distance
from frontrank.evaluation.statistics import PairedDifference, difference_over_seeds, holm
from frontrank.files import atomic_write
from frontrank.reporting.findings import Curve
from frontrank.reporting.pages import number
from frontrank.reporting.run import count_classes, count_licences, log_curves
from frontrank.settings import as_yaml
from frontrank.tables import Table, TableFormat
from frontrank.training.logs import read_log
from frontrank.training.run import read_facts

UNFINISHED = "not finished yet"
_USES = {"test": "test", "train": "train with", "validation": "choose by"}  # of the splits


@dataclass(frozen=True, eq=False)
class Entry:
    """One way to train, with what its finished seeds have: test metrics, median seconds of a step, peak memory, curves.

    settings: where it differs from the base
    lr, searched: the learning rate that was chosen, and the validation metric of each one tried
    curves:   validation metric over steps
    against:  metric -> difference to the reference, with a corrected p; empty for the reference itself
    failed:   why it has no values, if it has none; UNFINISHED where they are still to come
    folder:   of one of its runs, whose own report shows pictures
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
    against: Mapping[str, PairedDifference] = field(default_factory=dict)
    failed: str = ""
    folder: str = ""


@dataclass(frozen=True, eq=False)
class ComparisonResults:
    """Results of a comparison. axis: the setting that varies ("loss.temperature"), or "" where the losses do.

    metric:    chose learning rates and checkpoints, on validation classes
    reference: name of the entry that the others are compared with
    frozen:    metric -> value of the backbone before training, on the same images
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

    @property
    def metrics(self) -> list[str]:
        """All metrics of the entries."""
        return list(dict.fromkeys(name for entry in self.entries for name in entry.values))


# Columns


@dataclass(frozen=True)
class ResultColumn:
    """A number that every run has, in all tables and files of a comparison.

    name:   in results.csv and results.json; title, heading: in the text table and in that of the page
    values: of an entry, one per finished seed
    text:   cell of the text table, from the values; page_text: cell of the page, from their average
    is_better: whether a higher number is better, so that the highest is marked
    """

    name: str
    title: str
    heading: str
    values: Callable[[Entry], Sequence[float]]
    text: Callable[[Sequence[float]], str]
    page_text: Callable[[float], str]
    average: Callable[[Sequence[float]], float] = median
    is_better: bool = False


def metric_column(name: str) -> ResultColumn:
    """Return the column of a metric on the test images."""
    texts = partial(mean_and_spread, name), partial(format_metric, name, decimals=1)
    return ResultColumn(
        name, name, name, lambda entry: entry.values.get(name, ()), *texts, fmean, is_better=not is_distance(name)
    )


COSTS = (
    ResultColumn(
        *("seconds per step", "s/step", "time per step", attrgetter("seconds")),
        text=lambda values: f"{median(values):.3g}",
        page_text=lambda value: f"{number(1000 * value)} ms",
    ),
    ResultColumn(
        *("peak MB", "MB", "peak memory", attrgetter("megabytes")),
        text=lambda values: f"{median(values):,.0f}",
        page_text=lambda value: f"{number(value)} MB",
    ),
)
_METRICS = ("R@1", "R@10", "R@100", "mAP", "H-AP", "NMI", "dists@intra", "dists@inter")  # of the text table


def mean_and_spread(name: str, values: Sequence[float]) -> str:
    """Write the mean and how far seeds differ: the standard deviation, or least and most of two.

    >>> mean_and_spread("R@1", (0.5, 0.52, 0.51)), mean_and_spread("mAP", (0.5, 0.52)), mean_and_spread("mAP", (0.5,))
    ('51.00 ± 1.00', '51.00 (50.00 .. 52.00)', '50.00')
    """
    mean = format_metric(name, fmean(values))
    if len(values) == 1:
        return mean
    if len(values) == 2:
        return f"{mean} ({format_metric(name, min(values))} .. {format_metric(name, max(values))})"
    return f"{mean} ± {format_metric(name, stdev(values))}"


# Tables and files


def comparison_table(
    results: ComparisonResults, format: TableFormat = "text", *, metrics: Sequence[str] = _METRICS
) -> str:
    """Return a table with a row for each entry: its metrics over seeds, its difference to the reference, its costs.

    metrics: those to show, as far as they are there
    """
    names = [name for name in metrics if name in (results.metrics or results.frozen)]
    columns = [*map(metric_column, names), *COSTS]
    with_difference = {name for entry in results.entries for name in entry.against}
    judge = results.metric if results.metric in with_difference else "R@1"
    header = ["", *names, f"{judge} against {results.reference}", "p", "lr", *(cost.title for cost in COSTS)]
    blank = [""] * len(COSTS)
    rows = []
    if results.frozen:
        cells = [format_metric(name, results.frozen.get(name, math.nan)) for name in names]
        rows.append(["frozen backbone", *cells, "", "", "", *blank])
    done = [entry for entry in results.entries if entry.values]
    best = {
        each.name: max(each.average(each.values(entry)) for entry in done)
        for each in columns
        if each.is_better and done
    }
    bold = set()
    for entry in results.entries:
        lr = "" if math.isnan(entry.lr) else f"{entry.lr:g}"
        if not entry.values:
            state = UNFINISHED if entry.failed == UNFINISHED else "failed"
            rows.append([entry.name, *("-" for _ in names), state, "", lr, *blank])
            continue
        cells = [column.text(column.values(entry)) for column in columns]
        averages = {column.name: column.average(column.values(entry)) for column in columns}
        bold |= {(len(rows), place) for place, name in enumerate(averages, 1) if averages[name] == best.get(name)}
        against = _against_cells(results, entry, judge)
        rows.append([entry.name, *cells[: len(names)], *against, lr, *cells[len(names) :]])
    unit = "dists@* are cosine distances, other metrics are in %; differences are in percentage points"
    before, align = (results.images, unit), "l" + "r" * (len(header) - 1)
    return Table(header, rows, align, before, results.notes, frozenset(bold)).render(format)


def _against_cells(results: ComparisonResults, entry: Entry, metric: str) -> list[str]:
    if metric not in entry.against:
        return ["reference" if entry.name == results.reference else "", ""]
    change = entry.against[metric]
    ends = f"[{100 * change.low:+.2f}, {100 * change.high:+.2f}]"
    return [f"{100 * change.difference:+.2f} {ends}", "<0.001" if change.p_value < 0.001 else f"{change.p_value:.3f}"]


def write_results(out: Path, results: ComparisonResults) -> None:
    """Write results.json, results.csv (a line per run) and results.md."""
    atomic_write(out / "results.json", json.dumps(_as_json(results), indent=1) + "\n")
    table = comparison_table(results, "markdown", metrics=results.metrics or _METRICS)
    atomic_write(out / "results.md", f"# {results.title}\n\n{table}\n\n```\n{results.command}\n```\n")
    atomic_write(out / "results.csv", _run_table(results).render("csv"))


def _run_table(results: ComparisonResults) -> Table:
    """Return a table with a row for each run."""
    columns = [*map(metric_column, results.metrics), *COSTS]
    header = ["name", "lr", "seed", *(column.name for column in columns)]
    rows = [
        [entry.name, str(entry.lr), str(seed), *(str(column.values(entry)[place]) for column in columns)]
        for entry in results.entries
        for place, seed in enumerate(entry.seeds)
    ]
    if results.frozen:
        rows.insert(0, ["frozen backbone", "", "", *(str(results.frozen.get(column.name, "")) for column in columns)])
    return Table(header, rows, "l" + "r" * (len(header) - 1))


def _as_json(results: ComparisonResults) -> dict[str, Any]:
    entries = [
        {
            "name": entry.name,
            "settings": dict(entry.settings),
            "lr": None if math.isnan(entry.lr) else entry.lr,
            "searched": [{"lr": lr, "value": value} for lr, value in entry.searched.items()],
            "seeds": entry.seeds,
            "mean": {name: fmean(values) for name, values in entry.values.items()},
            "values": dict(entry.values),
            **{cost.name: cost.values(entry) for cost in COSTS},
            "curves": [{"x": curve.x.tolist(), "y": curve.y.tolist()} for curve in entry.curves],
            "against": {name: change._asdict() for name, change in entry.against.items()},
            "failed": entry.failed,
        }
        for entry in results.entries
    ]
    content = asdict(replace(results, entries=()))
    del content["entries"]
    return {"format": "frontrank comparison results", "version": 1, **content, "entries": entries}


# Results from the folders of the runs


def read_results(out: str | Path) -> ComparisonResults:
    """Read the results of a comparison from its folder, as far as it is done."""
    out = Path(out)
    plan, facts = tasks.read_stored(out)
    table = read_table(out / tasks.IMAGES)
    classes = tasks.query_labels(table)
    parts = [(table.of(split), use) for split, use in _USES.items()]
    jobs = {way.name: [job for job in seed_jobs(plan, way, out) if job.is_done(out, tested=True)] for way in plan.ways}
    runs = {name: [read_facts(job.folder(out)) for job in of] for name, of in jobs.items()}
    reports = {name: {job.seed: Report.load(job.folder(out) / tasks.TEST) for job in of} for name, of in jobs.items()}
    entries = [_read_entry(plan, way, out, jobs[way.name], list(reports[way.name].values())) for way in plan.ways]
    reference = plan.reference or _best_by_validation(runs, entries)
    entries = compare_with_reference(entries, reports, reference, classes)
    all_runs = [run for some in runs.values() for run in some]
    return ComparisonResults(
        title=plan.title,
        axis=", ".join(plan.axes),
        metric=plan.base.metric,
        reference=reference,
        entries=tuple(entries),
        frozen=dict(Report.load(out / tasks.FROZEN)) if (out / tasks.FROZEN).is_file() else {},
        images="; ".join(f"{len(part):,} images of {count_classes(part)} to {use}" for part, use in parts if len(part)),
        command=facts["command"],
        settings=as_yaml(plan.base, changed_only=True),
        versions=dict(all_runs[0]["versions"]) if all_runs else {},
        licences=count_licences(table),
        notes=(
            *facts["notes"],
            *_note_runs(plan, out, entries),
            *_note_versions(all_runs),
            *note_differences(plan, len(set(classes.tolist()))),
        ),
    )


def _shared_metrics(reports: Sequence[Report]) -> list[str]:
    """Return the metrics that all reports have; seeds that were added later may have others."""
    return [name for name in (reports[0] if reports else ()) if all(name in report for report in reports)]


def _read_entry(plan: Plan, way: Way, out: Path, jobs: list[Job], reports: list[Report]) -> Entry:
    folders = [job.folder(out) for job in jobs]
    costs = [json.loads((folder / tasks.COST).read_text(encoding="utf-8")) for folder in folders]
    curves = [log_curves(read_log(folder / "log.jsonl")).get(f"validation {plan.base.metric}") for folder in folders]
    lr = tasks.read_lr(way, out)
    return Entry(
        name=way.name,
        settings=dict(way.settings),
        lr=math.nan if lr is None else lr,
        searched={rate: value for rate, (value, _) in tasks.search_results(plan, way, out).items()},
        seeds=tuple(plan.base.seed + job.seed for job in jobs),
        values={name: tuple(report[name] for report in reports) for name in _shared_metrics(reports)},
        seconds=tuple(cost["seconds"] for cost in costs),
        megabytes=tuple(cost["megabytes"] for cost in costs),
        curves=tuple(curve or Curve(np.zeros(0), np.zeros(0)) for curve in curves),
        folder=str(folders[0]) if folders else "",
        failed="" if reports else next(iter(failures(plan, way, out)), UNFINISHED),
    )


def failures(plan: Plan, way: Way, out: Path) -> list[str]:
    """Return why runs of a way are missing: those of its learning rate, or of the search where none was chosen."""
    tests = seed_jobs(plan, way, out)
    jobs = [job for job in tests or search_jobs(plan, way) if not job.is_done(out, tested=bool(tests))]
    return [reason for job in jobs for reason in job.failures(out)[-1:]]


def _best_by_validation(runs: Mapping[str, list[dict[str, Any]]], entries: list[Entry]) -> str:
    """Return the entry whose runs are best on the held-out classes: a choice by the test images would flatter it."""
    bests = {name: [run["best"] for run in of] for name, of in runs.items() if of}
    means = {name: fmean(values) for name, values in bests.items() if None not in values}
    done = [entry.name for entry in entries if entry.values]
    return max(means, key=means.__getitem__) if means else (done or [entries[0].name])[0]


def compare_with_reference(
    entries: list[Entry], reports: Mapping[str, Mapping[int, Report]], reference: str, classes: np.ndarray
) -> list[Entry]:
    """Return the entries with their differences to the reference, over the seeds that both have.

    p-values are corrected by Holm's method over the entries, metric by metric.
    """
    theirs = reports.get(reference, {})
    shared = {name: [seed for seed in of if seed in theirs] for name, of in reports.items() if name != reference}
    others = [name for name, seeds in shared.items() if seeds]
    if not others:
        return entries
    against: dict[str, dict[str, PairedDifference]] = {name: {} for name in others}
    for metric in _shared_metrics([report for of in reports.values() for report in of.values()]):
        if metric not in next(iter(theirs.values())).per_query:
            continue  # of groups
        changes = []
        for name in others:
            a, b = (np.stack([of[seed].per_query[metric] for seed in shared[name]]) for of in (theirs, reports[name]))
            changes.append(difference_over_seeds(a, b, classes))
        corrected = holm([change.p_value for change in changes])
        for name, change, p_value in zip(others, changes, corrected, strict=True):
            against[name][metric] = change._replace(p_value=p_value)
    return [replace(entry, against=against.get(entry.name, {})) for entry in entries]


def _note_runs(plan: Plan, out: Path, entries: list[Entry]) -> list[str]:
    """Return notes on learning rates at an end of those tried, on failures and on missing seeds."""
    notes = []
    for way, entry in zip(plan.ways, entries, strict=True):
        if len(way.lrs) > 1 and entry.lr in (min(way.lrs), max(way.lrs)):
            side = "smallest" if entry.lr == min(way.lrs) else "largest"
            notes.append(f"{way.name}: the learning rate chosen, {entry.lr:g}, is the {side} of those tried")
        notes += dict.fromkeys(  # a run may be one of the search and one of a seed
            f"{way.name}: the run at learning rate {job.lr:g}, seed {job.seed}, failed: {failure}"
            for job in (*search_jobs(plan, way), *seed_jobs(plan, way, out))
            for failure in job.failures(out)[-1:]
        )
        missing = plan.seeds - len(entry.seeds)
        if entry.values and missing:
            notes.append(f"{way.name}: {missing} of {plan.seeds} seeds are missing")
    return notes


def note_differences(plan: Plan, classes: int) -> list[str]:
    """Return notes on what intervals and p-values mean, and on when they can say nothing."""
    if len(plan.ways) < 2:
        return []
    over = f"{classes:,} test classes" + f" and {plan.seeds} seeds" * (plan.seeds > 1)
    notes = [f"intervals and p-values are of differences over {over}; p is corrected for the number of entries (Holm)"]
    if plan.seeds == 1:
        notes.append("with one seed it is not known how much another would differ: give --seeds 3 or more")
    if 2 / 2**classes >= 0.05:
        notes.append(f"with {classes} test classes no p can be below 0.05; differences need 6 classes or more")
    return notes


def _note_versions(runs: list[dict[str, Any]]) -> list[str]:
    """Return notes on versions, commits, machines and devices that are not the same in all runs."""
    seen: dict[str, list[str]] = {}
    for part in (part for run in runs for part in (run, *run.get("resumed", []))):
        for name, value in {**part["versions"], **{key: part[key] for key in ("commit", "machine", "device")}}.items():
            seen.setdefault(name, []).append(str(value)[:60])
    return [
        f"runs were made with different {name}: {', '.join(dict.fromkeys(values))}; they may not be alike"
        for name, values in seen.items()
        if len(set(values)) > 1
    ]
