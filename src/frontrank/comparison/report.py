"""The report of a comparison as one HTML page."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from frontrank.comparison.results import UNFINISHED, Against, Compared, Entry
from frontrank.evaluation.report import is_distance
from frontrank.reporting.charts import Chart, Line, Scale, Tick, chart, finite
from frontrank.reporting.findings import Curve
from frontrank.reporting.pages import metric_text, rendered

_SIGNIFICANT = 0.05
_FOLDED = ("R-precision", "mAP@R")  # metrics that, like distances, stand in a table of their own
_LOG_FROM = 20  # largest over smallest value of an axis, from which on its scale is logarithmic


@dataclass(frozen=True)
class Cell:
    """A metric of an entry: mean and standard deviation over seeds as text; `best`: none is higher, as printed."""

    mean: float
    text: str
    spread: str
    best: bool = False


@dataclass(frozen=True)
class Row:
    """An entry in the tables; `against` is its difference to the reference in the headline metric."""

    entry: Entry
    cells: tuple[Cell | None, ...]
    against: Against | None
    milliseconds: float
    megabytes: float

    @property
    def verdict(self) -> str:
        """What is known of it against the reference; both the interval and the corrected p must say so."""
        if self.against is None:
            return ""
        if self.against.p_value >= _SIGNIFICANT or self.against.low <= 0 <= self.against.high:
            return "no clear difference"
        return "higher" if self.against.difference > 0 else "lower"


@dataclass(frozen=True)
class Strip:
    """The seeds of each entry on one scale."""

    low: float
    high: float
    ticks: tuple[Tick, ...]
    frozen: float | None


def comparison_page(compared: Compared) -> str:
    """The page that shows a comparison: a whole HTML file, to be written as UTF-8.

    Parts for which there is nothing to show are left out.
    """
    done = [entry for entry in compared.entries if any(map(len, entry.values.values()))]
    metrics = list(dict.fromkeys(metric for entry in done for metric in entry.values))
    headline = next((name for name in (compared.metric, "R@1") if name in metrics), metrics[0] if metrics else "")
    metrics.sort(key=lambda name: (name != headline, is_distance(name) or name in _FOLDED))
    folded = [name for name in metrics[1:] if is_distance(name) or name in _FOLDED]
    rows = table_rows(done, metrics, headline)
    ranked = sorted(rows, key=lambda row: -cell.mean if (cell := row.cells[0]) else math.inf)
    axis_charts = axis_plots(compared.axis, done, metrics) if compared.axis else []
    return rendered(
        "comparison.html.j2",
        title=compared.title,
        compared=compared,
        metrics=metrics,
        main=[name for name in metrics if name not in folded],
        folded=folded,
        headline=headline,
        done=len(done),
        waiting=[entry.name for entry in compared.entries if entry.failed == UNFINISHED],
        commands=[(entry.name, shlex.join(["frontrank", "report", entry.folder])) for entry in done if entry.folder],
        is_distance=is_distance,
        distances=any(map(is_distance, metrics)),
        below=bool(ranked) and _is_below(ranked[0].cells[0], compared.frozen.get(headline)),
        rows=rows if compared.axis else ranked,
        winner=ranked[0] if ranked else None,
        unclear=[row.entry.name for row in ranked if row.verdict == "no clear difference"],
        strip=seed_strip(done, headline, compared.frozen.get(headline)),
        axis_charts=axis_charts,
        curves=validation_plots(done, compared.metric),
        rates=sorted({rate for entry in compared.entries for rate in entry.searched}),
        failed=[entry for entry in compared.entries if entry.failed and entry.failed != UNFINISHED],
        most={
            "ms": max((row.milliseconds for row in rows if math.isfinite(row.milliseconds)), default=0.0),
            "MB": max((row.megabytes for row in rows if math.isfinite(row.megabytes)), default=0.0),
        },
    )


def table_rows(entries: Sequence[Entry], metrics: Sequence[str], headline: str) -> list[Row]:
    """The entries with their means; the best of each metric is marked, but of a distance none is."""
    rows = [
        Row(
            entry,
            tuple(_cell(metric, entry.values.get(metric, ())) for metric in metrics),
            entry.against.get(headline),
            1000 * _median(entry.seconds),
            _median(entry.megabytes),
        )
        for entry in entries
    ]
    best = [
        None
        if is_distance(metric) or len(rows) < 2
        else max((cell.text for cell in column if cell), key=float, default=None)
        for metric, column in zip(metrics, zip(*(row.cells for row in rows), strict=True), strict=True)
    ]
    return [
        replace(
            row,
            cells=tuple(
                cell and replace(cell, best=cell.text == top) for cell, top in zip(row.cells, best, strict=True)
            ),
        )
        for row in rows
    ]


def _is_below(best: Cell | None, frozen: float | None) -> bool:
    return best is not None and frozen is not None and best.mean < frozen


def _cell(metric: str, values: Sequence[float]) -> Cell | None:
    if not len(values) or not np.isfinite(values).all():
        return None
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    mean = _mean(values)
    return Cell(mean, metric_text(metric, mean), "" if math.isnan(spread) else metric_text(metric, spread))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else math.nan


def seed_strip(entries: Sequence[Entry], metric: str, frozen: float | None) -> Strip | None:
    """The scale on which the seeds of all entries are drawn; None if there is none."""
    values = [
        v for entry in entries for v in (*entry.values.get(metric, ()), *([frozen] if frozen is not None else []))
    ]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return None
    room = (max(values) - min(values)) * 0.06 or 0.01
    low, high = min(values) - room, max(values) + room
    scale = Scale(metric, percent=not is_distance(metric), span=(low, high))
    return Strip(low, high, scale.axis(np.array(values), 0, 100)[1], frozen)


def validation_plots(entries: Sequence[Entry], metric: str) -> list[tuple[Entry, Chart]]:
    """For each entry its validation curves, one per seed, before those of all others."""
    curves = [finite(curve) for entry in entries for curve in entry.curves]
    ys = np.concatenate([curve.y for curve in curves]) if curves else np.zeros(0)
    if not len(ys):
        return []
    room = float(ys.max() - ys.min()) * 0.05 or 0.05
    span = float(ys.min()) - room, float(ys.max()) + room
    xs = np.concatenate([curve.x for curve in curves])
    found = []
    for entry in entries:
        others = [Line("", c, "faint") for other in entries if other is not entry for c in other.curves]
        own = [Line(f"seed {seed}", c, "after") for seed, c in zip(entry.seeds, entry.curves, strict=False)]
        drawn = chart(
            entry.name,
            own,
            Scale("step", span=(float(xs.min()), float(xs.max())) if xs.min() < xs.max() else None),
            Scale(metric, percent=not is_distance(metric), span=span),
            behind=others,
            size=(300.0, 190.0),
        )
        if drawn is not None:
            found.append((entry, drawn))
    return found


def axis_plots(axis: str, entries: Sequence[Entry], metrics: Sequence[str]) -> list[Chart]:
    """Each metric over the values of the setting that varies, a line per loss; none if those are no numbers."""
    values = [entry.settings.get(axis) for entry in entries]
    if len(set(values)) < 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return []
    xs = [float(value) for value in values if value is not None]
    log = min(xs) > 0 and max(xs) / min(xs) >= _LOG_FROM
    losses: dict[str, list[tuple[float, Entry]]] = {}
    for x, entry in zip(xs, entries, strict=True):  # "SmoothAP, loss.temperature=0.1": what is before the axis
        before, found_it, _ = entry.name.partition(f"{axis}=")
        losses.setdefault(before.removesuffix(", ") if found_it else "", []).append((x, entry))
    found = []
    for metric in metrics:
        drawn = chart(
            metric,
            [
                line
                for place, (name, of) in enumerate(losses.items())
                for line in _axis_lines(name, place, of, metric, len(losses) > 1)
            ],
            Scale(axis, log=log, marks=tuple(sorted(set(xs))) if len(set(xs)) <= 7 else ()),
            Scale(metric, percent=not is_distance(metric)),
        )
        if drawn is not None:
            found.append(drawn)
    return found


def _axis_lines(name: str, place: int, of: Sequence[tuple[float, Entry]], metric: str, several: bool) -> list[Line]:
    """The mean of a loss over an axis and, where it is the only one, its seeds."""
    with_values = sorted((x, entry.values[metric]) for x, entry in of if entry.values.get(metric))
    seeds = [(x, value) for x, many in with_values for value in many]
    mean = Curve(np.array([x for x, _ in with_values]), np.array([_mean(many) for _, many in with_values]))
    if several:
        return [Line(name, mean, f"hue{place % 9}", dotted=True)]
    each = Curve(np.array([x for x, _ in seeds]), np.array([value for _, value in seeds]))
    lines = [Line("mean", mean, "after", dotted=True), Line("seeds", each, "scattered", dotted=True)]
    return lines if len(seeds) > len(with_values) else lines[:1]
