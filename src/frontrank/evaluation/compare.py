"""Comparison of reports: paired differences of two, and a table of several."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from frontrank.checks import join_words
from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation.report import Report, describe_search, format_metric, is_distance
from frontrank.evaluation.statistics import (
    DEFAULT_RESAMPLING,
    Resampling,
    bootstrap_means,
    difference_over_classes,
    mean_of_defined,
    percentile_interval,
    sign_flip_p_values,
)
from frontrank.files import PathLike, write_json
from frontrank.tables import Table, TableFormat, align_right

_KIND, _VERSION = "comparison", 1
_UNCLEAR = "no clear difference"
_COLUMNS = 80  # of a terminal
_SAME_QUERIES = "both reports must be of the same queries in the same order"


class Difference(NamedTuple):
    """A metric in both reports, the difference b - a, its interval, and its p-value."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float

    @property
    def verdict(self) -> str:
        """Verdict on b: "better" or "worse" if 0 is outside the interval, else "no clear difference"."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else _UNCLEAR


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Mapping[str, Difference]):
    """The paired difference b - a of each metric, as `compare` returns it."""

    differences: dict[str, Difference]
    queries: int
    level: float
    names: tuple[str, str]
    settings: dict[str, int]
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Difference:
        try:
            return self.differences[name]
        except KeyError:
            raise KeyError(f"no metric {name!r} in this comparison; it has {join_words(self, 'and')}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.differences)

    def __len__(self) -> int:
        return len(self.differences)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={d.difference:+.4f} ({d.verdict})" for name, d in self.items())
        return f"Comparison({values}; {self.queries} queries)"

    def __str__(self) -> str:
        return self.table()

    def table(self, format: TableFormat = "text") -> str:
        """Return both values in percent, the difference with its interval, p and a verdict on b, as a table.

        As text it has at most 80 columns: long names stand above it, and are a and b in it.
        """
        short = format == "text"
        table = self._table(self.names, short)
        if short and max(map(len, replace(table, before=(), after=()).render(format).splitlines())) > _COLUMNS:
            table = self._table(("a", "b"), short)
        return table.render(format)

    def _table(self, names: tuple[str, str], short: bool) -> Table:
        a, b = names
        lows, highs = (align_right(_points(getattr(d, end)) for d in self.values()) for end in ("low", "high"))
        rows = []
        for (name, d), low, high in zip(self.items(), lows, highs, strict=True):
            values = [format_metric(name, d.a), format_metric(name, d.b), _points(d.difference)]
            p = "<0.0001" if d.p_value < 0.00005 else f"{d.p_value:.4f}"
            verdict = "unclear" if short and d.verdict == _UNCLEAR else d.verdict
            rows.append([name, *values, f"[{low}, {high}]", p, verdict])
        header = ["metric", a, b, "difference", f"{100 * self.level:g} % interval", "p", f"{b} is"]
        queries = "1 query" if self.queries == 1 else f"the same {self.queries:,} queries"
        letters = [f"{x} = {name}" for x, name in zip(names, self.names, strict=True) if names != self.names]
        first, last = "{1} against {0} on".format(*self.names), f"difference = {b} - {a}, in percentage points"
        return Table(header, rows, "lrrrlrl", (f"{first} {queries}", *letters, last), self.notes)

    def save(self, path: PathLike, overwrite: bool = False) -> None:
        """Write everything to a JSON file; an existing one is replaced only with overwrite=True."""
        content = {name: getattr(self, name) for name in ("names", "queries", "level", "settings", "notes")}
        content["differences"] = {name: {**d._asdict(), "verdict": d.verdict} for name, d in self.items()}
        write_json(path, _KIND, _VERSION, content, overwrite)


def compare(
    report_a: Report,
    report_b: Report,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    flips: int = 4999,
    seed: int = 0,
    names: tuple[str, str] = ("a", "b"),
) -> Comparison:
    """Return the difference b - a, query by query, of every metric that both reports have per query.

    The interval is the bootstrap's over queries, of the paired difference; p is that of a two-sided sign-flip test.
    They ask slightly different questions, so at the margin one may see a difference where the other does not.

    >>> before = Report.of({"R@1": [0, 0, 0, 1, 1, 0]}, [1] * 6, 9)
    >>> after = Report.of({"R@1": [1, 1, 0, 1, 1, 1]}, [1] * 6, 9)
    >>> change = compare(before, after)["R@1"]
    >>> change.difference, change.p_value  # three queries won, none lost: two of the 8 sign patterns go as far
    (0.5, 0.25)
    """
    for name, report in (("report_a", report_a), ("report_b", report_b)):
        if not isinstance(report, Report):
            raise InputTypeError(f"{name} must be a Report, got {type(report).__name__}; use Report.load for a file")
    Resampling(level, resamples, flips, seed).check()
    if len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise InputTypeError(f"names must be two strings, one for each report, got {names!r}")
    _check_same_queries(report_a, report_b)
    metrics = _shared_metrics(report_a, report_b)
    paired = np.stack([report_b.per_query[name] - report_a.per_query[name] for name in metrics], 1)
    means = bootstrap_means(paired, resamples, seed)
    p_values = sign_flip_p_values(paired, flips, seed)
    differences = {}
    for i, name in enumerate(metrics):
        change = mean_of_defined(paired[:, i]), *percentile_interval(means[:, i], level), float(p_values[i])
        differences[name] = Difference(report_a[name], report_b[name], *change)
    settings = {"resamples": resamples, "flips": flips, "seed": seed}
    sizes = report_a.gallery_size, report_b.gallery_size
    notes = () if sizes[0] == sizes[1] else (f"the galleries differ: {sizes[0]:,} items and {sizes[1]:,}",)
    return Comparison(differences, report_a.queries, level, (names[0], names[1]), settings, notes)


def compare_over_classes(a: Report, b: Report, classes: NDArray[np.generic], names: tuple[str, str]) -> Comparison:
    """Return the paired difference b - a of each metric per query, with its interval and p over classes.

    classes: of each query; queries of a class are alike. With a single class a difference is known to be from -1 to 1.
    """
    count = len(np.unique(classes))
    differences = {}
    for name in (name for name in b.per_query if name in a.per_query):
        change = difference_over_classes(a.per_query[name], b.per_query[name], classes)
        if len(np.unique(classes[~np.isnan(b.per_query[name])])) < 2:
            change = change._replace(low=-1.0, high=1.0)
        differences[name] = Difference(a[name], b[name], *change)
    note = f"intervals and p are over {count:,} {'class' if count == 1 else 'classes'}, as queries of a class are alike"
    settings = {**DEFAULT_RESAMPLING._asdict(), "classes": count}
    return Comparison(differences, b.queries, settings.pop("level"), names, settings, (note,))


def _check_same_queries(a: Report, b: Report) -> None:
    if a.queries != b.queries:
        raise InputError(f"report_a has {a.queries} queries and report_b has {b.queries}; {_SAME_QUERIES}")
    differ = np.flatnonzero(a.positives != b.positives)
    if len(differ):
        first = f"number {differ[0]}: {a.positives[differ[0]]} in report_a, {b.positives[differ[0]]} in report_b"
        raise InputError(f"positives differ for {len(differ)} queries (first for {first}); {_SAME_QUERIES}")


def _shared_metrics(a: Report, b: Report) -> list[str]:
    shared = [name for name in a.per_query if name in b.per_query]
    if not shared:
        of_a, of_b = (join_words(report.per_query or ["none"], "and") for report in (a, b))
        has = f"report_a has {of_a} and report_b has {of_b}"
        raise InputError(f"no metric has values per query in both reports ({has}); evaluate one in both")
    for name in shared:
        differ = np.flatnonzero(np.isnan(a.per_query[name]) != np.isnan(b.per_query[name]))
        if len(differ):
            where = f"for {len(differ)} queries (first for number {differ[0]})"
            raise InputError(f"{name} is defined in only one of the reports {where}; {_SAME_QUERIES}")
    return shared


def table_of(reports: Mapping[str, Report], format: TableFormat = "text") -> str:
    """Return a table of several reports: a row for each, metrics in percent as columns.

    The best value of a column is bold where the format can show it, if all reports are of the same queries in as large
    a gallery; a distance is neither good nor bad.

    >>> ours, theirs = (Report.of({"R@1": hits, "mAP": hits}, [1, 1], 9) for hits in ([1, 1], [1, 0]))
    >>> print(table_of({"ours": ours, "theirs": theirs}, "markdown"))
    2 queries, gallery of 9 items; in %
    <BLANKLINE>
    |        |        R@1 |        mAP |
    | ------ | ---------: | ---------: |
    | ours   | **100.00** | **100.00** |
    | theirs |      50.00 |      50.00 |
    """
    if not reports:
        raise InputError("reports is empty; give at least one report, under its name")
    for name, report in reports.items():
        if not isinstance(report, Report):
            raise InputTypeError(f"reports[{name!r}] must be a Report, got {type(report).__name__}")
    metrics = list(dict.fromkeys(metric for report in reports.values() for metric in report))
    columns = [[format_metric(m, report[m]) if m in report else "-" for report in reports.values()] for m in metrics]
    first, *others = reports.values()
    same_gallery = len({report.gallery_size for report in reports.values()}) == 1
    alike = same_gallery and all(np.array_equal(first.positives, other.positives) for other in others)
    counts = zip(*((report.queries, report.gallery_size) for report in reports.values()), strict=True)
    sizes = [] if alike else [[f"{n:,}" for n in column] for column in counts]
    header = ["", *metrics, *(["queries", "gallery"] if sizes else [])]
    rows = [[name, *cells] for name, *cells in zip(reports, *columns, *sizes, strict=True)]
    unit = "dists@* are cosine distances, the rest is in %" if any(map(is_distance, metrics)) else "in %"
    before = f"{describe_search(first)}; {unit}" if alike else unit
    bold = _best(reports, metrics) if alike and others else frozenset()
    return Table(header, rows, "l" + "r" * (len(header) - 1), (before,), bold=bold).render(format)


def _best(reports: Mapping[str, Report], metrics: list[str]) -> frozenset[tuple[int, int]]:
    """Return the cells (row, column) that show the best value of their column, as printed."""
    best = {m: format_metric(m, max(report[m] for report in reports.values() if m in report)) for m in metrics}
    return frozenset(
        (i, j)
        for j, m in enumerate(metrics, start=1)
        for i, report in enumerate(reports.values())
        if m in report and not is_distance(m) and format_metric(m, report[m]) == best[m]
    )


def _points(difference: float) -> str:
    """Write a difference in percentage points, with its sign unless it is printed as 0."""
    text = f"{100 * difference:+.2f}"
    return "0.00" if float(text) == 0 else text
