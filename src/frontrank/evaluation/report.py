"""A report of metrics: their values, how sure they are, and tables and files of them."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation.statistics import (
    Floats,
    mean_of_defined,
    percentile_interval,
    require_settings,
    resampled_means,
)
from frontrank.files import PathLike, field_of, read_json, write_json
from frontrank.tables import Table, TableFormat, aligned, joined

# ==== The fields of a report: every check of them, and its message.


Setting = str | int | float | bool | None

_ROUNDING = 1e-6  # what a fraction computed in float32 can be off


def is_distance(name: str) -> bool:
    """Whether a metric is a cosine distance and not a fraction."""
    return name.startswith("dists@")


def checked_positives(positives: Any, gallery_size: int) -> NDArray[np.int64]:
    """How many positives each query has, as a constant array; refuses what cannot be that."""
    if isinstance(gallery_size, bool) or not isinstance(gallery_size, int):
        raise InputTypeError(f"gallery_size must be a whole number, got {gallery_size!r}")
    try:
        found = np.array(positives)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"positives must be whole numbers, one per query; {error}") from error
    if found.ndim != 1 or len(found) == 0:
        raise InputError(f"positives must have one number per query and at least one query, got shape {found.shape}")
    if found.dtype.kind not in "iu":
        raise InputTypeError(f"positives must be whole numbers, got {found.dtype}")
    if found.min() < 0 or found.max() > gallery_size:
        raise InputError(
            f"positives must be from 0 to gallery_size = {gallery_size}, got {found.min()} to {found.max()}"
        )
    counts = found.astype(np.int64)
    counts.flags.writeable = False
    return counts


def checked_values(name: str, values: Any, queries: int) -> Floats:
    """A metric's value for each query, as a constant array; refuses what is no fraction or NaN."""
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputTypeError(f"per_query of {name} must be numbers, one per query; {error}") from error
    if found.shape != (queries,):
        raise InputError(f"per_query of {name} must have one value per query, shape ({queries},), got {found.shape}")
    if np.isnan(found).all():
        raise InputError(f"{name} is not defined for any query; does any have a positive? Else leave the metric out")
    _require_fractions(f"per_query of {name}", np.nanmin(found), np.nanmax(found))
    found.flags.writeable = False  # intervals are computed once
    return found


def checked_metrics(metrics: Mapping[str, Any], per_query: dict[str, Floats]) -> dict[str, float]:
    """The values of the metrics as floats; refuses any that is not the mean of its values per query."""
    if not metrics:
        raise InputError("a report must have at least one metric")
    missing = [name for name in per_query if name not in metrics]
    if missing:
        raise InputError(f"metrics must have every metric of per_query, lacks {joined(missing)}; use Report.of")
    checked = {name: _finite(name, value) for name, value in metrics.items()}
    for name, value in checked.items():
        if not is_distance(name):
            _require_fractions(name, value, value)
        if name in per_query and abs(value - mean_of_defined(per_query[name])) > _ROUNDING:
            raise InputError(f"{name} is {value}, but its values per query have another mean; use Report.of")
    return checked


def _finite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
        raise InputTypeError(f"{name} must be a number, got {value!r}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise InputError(f"{name} must be finite, got {found}; leave out a metric that is not defined")
    return found


def _require_fractions(what: str, low: float, high: float) -> None:
    if not -_ROUNDING <= low <= high <= 1 + _ROUNDING:
        raise InputError(f"{what} must be in [0, 1], got {low:g} to {high:g}; divide percentages by 100")


def checked_notes(name: Any, notes: Any) -> tuple[str, ...]:
    """The notes as a tuple; refuses what is no text."""
    if not isinstance(notes, tuple | list) or not all(isinstance(text, str) for text in (name, *notes)):
        raise InputTypeError(f"name must be a string and notes a tuple of them, got {name!r} and {notes!r}")
    return tuple(notes)


def checked_settings(settings: Mapping[str, Any]) -> dict[str, Setting]:
    """A copy of the settings; refuses what a JSON file cannot hold."""
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | None):
            raise InputTypeError(
                f"settings must be strings, numbers, booleans or None under a name, got {name!r}: {value!r}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"settings must be finite, got {name}: {value}")
    return dict(settings)


def read_values(name: str, values: Any) -> Floats:
    """A list of a JSON file with NaN for null."""
    if not isinstance(values, list) or not all(type(value) in (int, float, type(None)) for value in values):
        raise InputError(f"its per_query of {name} must be a list of numbers and null")
    try:
        return np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    except OverflowError as error:
        raise InputError(f"its per_query of {name} has a number too large") from error


# ==== A report of metrics: their values, how sure they are, and tables and files of them.


_KIND, _VERSION = "report", 1


@dataclass(frozen=True, eq=False, repr=False)
class Report(Mapping[str, float]):
    """Metrics of one evaluation: a mapping of name to value, a fraction in [0, 1] (`dists@*`: a cosine distance).

    metrics: name ─► value, as `report[name]` gives it.
    per_query: name ─► one value per query, NaN where the metric is not defined for it; the metric is the mean of the
        others. Metrics that are no means over queries (NMI, `dists@*`) have no entry, and no interval.
    positives: how many relevant items each query has.
    gallery_size: how many items a query is searched in.
    name, notes, settings: what was evaluated; remarks of one line; free facts such as a seed.

    >>> report = Report.of({"R@1": [1, 0, 0, 1], "mAP": [1.0, 0.5, np.nan, 0.75]}, [1, 2, 0, 1], 9, {"NMI": 0.9})
    >>> report["mAP"], report["NMI"], report.queries, report.without_positive
    (0.75, 0.9, 4, 1)
    >>> print(report)
    4 queries, gallery of 9 items
    1 query has no positive: R@k counts it as a miss; mAP leaves it out
    <BLANKLINE>
    metric      %  95 % interval
    R@1     50.00  [ 0.00, 100.00]
    mAP     75.00  [50.00, 100.00]
    NMI     90.00
    """

    metrics: dict[str, float]
    per_query: dict[str, Floats]
    positives: NDArray[np.int64]
    gallery_size: int
    name: str = ""
    notes: tuple[str, ...] = ()
    settings: dict[str, Setting] = field(default_factory=dict)
    _means: dict[tuple[int, int], Floats] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        positives = checked_positives(self.positives, self.gallery_size)
        per_query = {name: checked_values(name, of, len(positives)) for name, of in self.per_query.items()}
        checked = {
            "positives": positives,
            "per_query": per_query,
            "metrics": checked_metrics(self.metrics, per_query),
            "notes": checked_notes(self.name, self.notes),
            "settings": checked_settings(self.settings),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(
        cls,
        per_query: Mapping[str, Any],
        positives: Any,
        gallery_size: int,
        whole: Mapping[str, float] | None = None,
        *,
        name: str = "",
        notes: tuple[str, ...] = (),
        settings: Mapping[str, Setting] | None = None,
    ) -> "Report":
        """A report whose metrics are the means of per-query values, and `whole`, those that are no means."""
        twice = sorted(set(per_query) & set(whole or {}))
        if twice:
            raise InputError(f"whole and per_query both have {joined(twice)}; give each metric once")
        count = len(checked_positives(positives, gallery_size))
        values = {metric: checked_values(metric, of, count) for metric, of in per_query.items()}
        means = {metric: mean_of_defined(of) for metric, of in values.items()}
        return cls({**means, **(whole or {})}, values, positives, gallery_size, name, notes, dict(settings or {}))

    def __getitem__(self, name: str) -> float:
        try:
            return self.metrics[name]
        except KeyError:
            raise KeyError(f"no metric {name!r} in this report; it has {joined(list(self.metrics))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value:.4f}" for name, value in self.items())
        return f"Report({values}; {self.queries} queries)"

    def __str__(self) -> str:
        return self.table()

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return len(self.positives)

    @property
    def without_positive(self) -> int:
        """How many queries have no relevant item."""
        return int((self.positives == 0).sum())

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % interval of every metric that is a mean over queries."""
        return {name: self.interval(name) for name in self.per_query}

    def interval(self, name: str, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
        """Bootstrap interval of a metric over queries: where it would lie, had other such queries been asked.

        The percentiles of its mean over queries drawn with replacement; the same draws serve all metrics.
        """
        require_settings(level=level, resamples=resamples, seed=seed)
        value = self[name]
        if name not in self.per_query:
            raise InputError(f"{name} ({value:.4f}) is no mean over queries, so it has no interval over them")
        if (resamples, seed) not in self._means:
            self._means[resamples, seed] = resampled_means(np.stack([*self.per_query.values()], 1), resamples, seed)
        return percentile_interval(self._means[resamples, seed][:, list(self.per_query).index(name)], level)

    def with_notes(self, notes: tuple[str, ...]) -> "Report":
        """The same report with more remarks."""
        return replace(self, notes=(*self.notes, *notes))

    def table(self, format: TableFormat = "text") -> str:
        """The metrics in percent with their 95 % intervals, as "text", "markdown" or "latex" (booktabs)."""
        return _table(self).rendered(format)

    def save(self, path: PathLike, overwrite: bool = False) -> None:
        """Write everything to a JSON file; one that exists is replaced only with overwrite=True."""
        content = {
            "name": self.name,
            "metrics": self.metrics,
            "gallery_size": self.gallery_size,
            "notes": self.notes,
            "settings": self.settings,
            "positives": self.positives.tolist(),
            "per_query": {
                name: [None if math.isnan(x) else x for x in of.tolist()] for name, of in self.per_query.items()
            },
        }
        write_json(path, _KIND, _VERSION, content, overwrite)

    @classmethod
    def load(cls, path: PathLike) -> "Report":
        """The report in a file, exactly as it was saved."""
        content = read_json(path, _KIND, _VERSION)
        try:
            values = {name: read_values(name, of) for name, of in field_of(content, "per_query", dict).items()}
            return cls(
                field_of(content, "metrics", dict),
                values,
                field_of(content, "positives", list),
                field_of(content, "gallery_size", int),
                field_of(content, "name", str),
                tuple(field_of(content, "notes", list)),
                field_of(content, "settings", dict),
            )
        except (InputError, InputTypeError) as error:
            raise InputError(f"{path} is not a whole report: {error}") from error


def percent(name: str, value: float) -> str:
    """The value as it is printed: in percent, and a distance as it is."""
    return f"{value:.3f}" if is_distance(name) else f"{100 * value:.2f}"


def searched(report: Report) -> str:
    """How many queries were asked, and in how many items."""
    queries = "1 query" if report.queries == 1 else f"{report.queries:,} queries"
    return f"{queries}, gallery of {report.gallery_size:,} item{'s' * (report.gallery_size != 1)}"


def _table(report: Report) -> Table:
    intervals = report.intervals
    ends = {name: [percent(name, end) for end in interval] for name, interval in intervals.items()}
    lows, highs = (aligned(end[side] for end in ends.values()) for side in (0, 1))
    remarks = {name: f"[{low}, {high}]" for name, low, high in zip(intervals, lows, highs, strict=True)}
    remarks |= {name: "cosine distance" for name in report if is_distance(name)}
    facts = ", ".join(f"{name}: {value}" for name, value in report.settings.items())
    return Table(
        ["metric", "%", "95 % interval" if intervals else ""],
        [[name, percent(name, value), remarks.get(name, "")] for name, value in report.items()],
        "lrl",
        before=tuple(filter(None, [report.name, searched(report), _without_positive(report)])),
        after=tuple(filter(None, [facts, *report.notes])),
    )


def _without_positive(report: Report) -> str:
    """Which metrics count the queries without a positive, and which leave them out."""
    count = report.without_positive
    if count == 0:
        return "every query has a positive"
    it, have, as_misses = ("it", "query has", "as a miss") if count == 1 else ("them", "queries have", "as misses")
    lacking = report.positives == 0
    left_out = [name for name, values in report.per_query.items() if np.isnan(values[lacking]).all()]
    counted = [name for name in report.per_query if name not in left_out]
    said = [
        f"{joined(family)} {verb}{'s' * (len(family) == 1)} {rest}"
        for family, verb, rest in (
            (_families(counted), "count", f"{it} {as_misses}"),
            (_families(left_out), "leave", f"{it} out"),
        )
        if family
    ]
    return f"{count:,} {have} no positive" + (": " + "; ".join(said) if said else "")


def _families(names: list[str]) -> list[str]:
    """Metric names with any number k written as k, each once."""
    return list(dict.fromkeys(re.sub(r"@\d+$", "@k", name) for name in names))
