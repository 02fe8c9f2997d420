"""The report of a comparison as one HTML page."""

import math
import shlex
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from frontrank.comparison.plan import loss_of_way
from frontrank.comparison.results import COSTS, UNFINISHED, ComparisonResults, Entry, ResultColumn, metric_column
from frontrank.evaluation.report import is_distance
from frontrank.evaluation.statistics import PairedDifference
from frontrank.reporting.charts import HUES, Chart, Line, Scale, Tick, chart, finite_points
from frontrank.reporting.findings import Curve
from frontrank.reporting.pages import render_page

_SIGNIFICANT = 0.05
_FOLDED = ("R-precision", "mAP@R", "nDCG")  # metrics that, like distances, are in a table of their own
_LOG_FROM = 20  # largest over smallest value of an axis from which on its scale is logarithmic


class ColumnCell(NamedTuple):
    """A number of an entry: average and standard deviation over seeds as text; `best`: none is higher, as printed."""

    value: float
    text: str
    spread: str
    best: bool = False


class EntryRow(NamedTuple):
    """An entry in the tables; `against` is its difference to the reference in the headline metric."""

    entry: Entry
    cells: dict[str, ColumnCell | None]
    against: PairedDifference | None

    @property
    def verdict(self) -> str:
        """Verdict against the reference; both the interval and the corrected p must be clear."""
        if self.against is None:
            return ""
        if self.against.p_value >= _SIGNIFICANT or self.against.low <= 0 <= self.against.high:
            return "no clear difference"
        return "higher" if self.against.difference > 0 else "lower"


class SeedStrip(NamedTuple):
    """The scale on which the seeds of all entries are drawn."""

    low: float
    high: float
    ticks: tuple[Tick, ...]
    frozen: float | None


def render_comparison_page(results: ComparisonResults) -> str:
    """Render the page of a comparison: a whole HTML file, to be written as UTF-8.

    Parts for which there is nothing to show are left out.
    """
    done = [entry for entry in results.entries if any(map(len, entry.values.values()))]
    metrics = list(dict.fromkeys(metric for entry in done for metric in entry.values))
    headline = next((name for name in (results.metric, "R@1") if name in metrics), metrics[0] if metrics else "")
    metrics.sort(key=lambda name: (name != headline, _is_folded(name)))
    folded = [name for name in metrics[1:] if _is_folded(name)]
    rows = table_rows(done, [*map(metric_column, metrics), *COSTS], headline)
    ranked = sorted(rows, key=lambda row: -cell.value if (cell := row.cells[headline]) else math.inf)
    frozen = results.frozen.get(headline)
    best = ranked[0].cells[headline] if ranked else None
    costs = {cost.name: [cell.value for row in rows if (cell := row.cells[cost.name])] for cost in COSTS}
    return render_page(
        "comparison.html.j2",
        title=results.title,
        results=results,
        metrics=metrics,
        main=[name for name in metrics if name not in folded],
        folded=folded,
        headline=headline,
        done=len(done),
        waiting=[entry.name for entry in results.entries if entry.failed == UNFINISHED],
        commands=[(entry.name, shlex.join(["frontrank", "report", entry.folder])) for entry in done if entry.folder],
        below=best is not None and frozen is not None and best.value < frozen,
        rows=rows if results.axis else ranked,
        winner=ranked[0] if ranked else None,
        unclear=[row.entry.name for row in ranked if row.verdict == "no clear difference"],
        strip=seed_strip(done, headline, frozen),
        axis_charts=axis_charts(results.axis, done, metrics) if results.axis else [],
        curves=validation_charts(done, results.metric),
        rates=sorted({rate for entry in results.entries for rate in entry.searched}),
        failed=[entry for entry in results.entries if entry.failed and entry.failed != UNFINISHED],
        costs=COSTS,
        most={name: max(values, default=0.0) for name, values in costs.items()},
    )


def _is_folded(name: str) -> bool:
    return is_distance(name) or name in _FOLDED or " (level " in name


def table_rows(entries: Sequence[Entry], columns: Sequence[ResultColumn], headline: str) -> list[EntryRow]:
    """Return the entries with a cell for each column; the best of a column is marked where higher is better."""
    rows = [
        EntryRow(entry, {column.name: _cell(column, entry) for column in columns}, entry.against.get(headline))
        for entry in entries
    ]
    for name in [column.name for column in columns if column.is_better and len(rows) > 1]:
        top = max((cell.text for row in rows if (cell := row.cells[name])), key=float, default="")
        for row in rows:
            if (cell := row.cells[name]) and cell.text == top:
                row.cells[name] = cell._replace(best=True)
    return rows


def _cell(column: ResultColumn, entry: Entry) -> ColumnCell | None:
    values = column.values(entry)
    if not len(values) or not np.isfinite(values).all():
        return None
    average = column.average(values)
    spread = column.page_text(float(np.std(values, ddof=1))) if len(values) > 1 else ""
    return ColumnCell(average, column.page_text(average), spread)


def seed_strip(entries: Sequence[Entry], metric: str, frozen: float | None) -> SeedStrip | None:
    """Return the scale on which the seeds of all entries are drawn; None if there are none."""
    values = [value for entry in entries for value in entry.values.get(metric, ())]
    if entries and frozen is not None:
        values.append(frozen)
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return None
    room = (max(values) - min(values)) * 0.06 or 0.01
    low, high = min(values) - room, max(values) + room
    ticks = _metric_scale(metric, (low, high)).axis(np.array(values), 0, 100)[1]
    return SeedStrip(low, high, ticks, frozen)


def _metric_scale(metric: str, span: tuple[float, float] | None = None) -> Scale:
    return Scale(metric, percent=not is_distance(metric), span=span)


def validation_charts(entries: Sequence[Entry], metric: str) -> list[tuple[Entry, Chart]]:
    """Return for each entry a chart of its validation curves, one per seed, with those of all others behind."""
    curves = [finite_points(curve) for entry in entries for curve in entry.curves]
    ys = np.concatenate([curve.y for curve in curves]) if curves else np.zeros(0)
    if not len(ys):
        return []
    room = float(ys.max() - ys.min()) * 0.05 or 0.05
    scale = _metric_scale(metric, (float(ys.min()) - room, float(ys.max()) + room))
    xs = np.concatenate([curve.x for curve in curves])
    steps = Scale("step", span=(float(xs.min()), float(xs.max())) if xs.min() < xs.max() else None)
    charts = []
    for entry in entries:
        own = [Line(f"seed {seed}", c, "after") for seed, c in zip(entry.seeds, entry.curves, strict=False)]
        others = [Line("", c, "faint") for other in entries if other is not entry for c in other.curves]
        if drawing := chart(entry.name, own, steps, scale, behind=others, size=(300.0, 190.0)):
            charts.append((entry, drawing))
    return charts


def axis_charts(axis: str, entries: Sequence[Entry], metrics: Sequence[str]) -> list[Chart]:
    """Return a chart of each metric over the setting that varies, a line per loss; none if it has values of text."""
    values = [entry.settings.get(axis) for entry in entries]
    if len(set(values)) < 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return []
    xs = [float(value) for value in values if value is not None]
    log = min(xs) > 0 and max(xs) / min(xs) >= _LOG_FROM
    scale = Scale(axis, log=log, marks=tuple(sorted(set(xs))) if len(set(xs)) <= 7 else ())
    losses: dict[str, list[tuple[float, Entry]]] = {}
    for x, entry in zip(xs, entries, strict=True):
        losses.setdefault(loss_of_way(entry.name, [axis]), []).append((x, entry))
    charts = []
    for metric in metrics:
        lines = [_axis_lines(name, i, of, metric, len(losses) > 1) for i, (name, of) in enumerate(losses.items())]
        charts.append(chart(metric, [line for some in lines for line in some], scale, _metric_scale(metric)))
    return [one for one in charts if one is not None]


def _axis_lines(name: str, place: int, of: Sequence[tuple[float, Entry]], metric: str, several: bool) -> list[Line]:
    """Return the mean of a loss over an axis and, where it is the only one, its seeds."""
    points = sorted((x, entry.values[metric]) for x, entry in of if entry.values.get(metric))
    mean = _curve([(x, fmean(values)) for x, values in points])
    if several:
        return [Line(name, mean, f"hue{place % HUES}", dotted=True)]
    seeds = [(x, value) for x, values in points for value in values]
    lines = [Line("mean", mean, "after", dotted=True), Line("seeds", _curve(seeds), "scattered", dotted=True)]
    return lines if len(seeds) > len(points) else lines[:1]


def _curve(points: Sequence[tuple[float, float]]) -> Curve:
    return Curve(*np.array(points, dtype=np.float64).reshape(-1, 2).T)
