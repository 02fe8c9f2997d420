"""A report of metrics: their values, how sure they are, and tables and files of them."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frontrank.checks import check_integer, check_number, join_words
from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation.statistics import Floats, Resampling, bootstrap_means, mean_of_defined, percentile_interval
from frontrank.files import PathLike, field_of, read_json, write_json
from frontrank.tables import Table, TableFormat, align_right

SettingValue = str | int | float | bool | None

_KIND, _VERSION = "report", 1
_ROUNDING = 1e-6  # what a fraction computed in float32 can be off


@dataclass(frozen=True, eq=False, repr=False)
class Report(Mapping[str, float]):
    """Metrics of one evaluation: a mapping of name to value, a fraction in [0, 1] (`dists@*`: a cosine distance).

    metrics:      name ─► value, as in `report[name]`; those of `per_query` may be left out
    per_query:    name ─► one value per query, NaN where the metric is not defined for it; the metric is the mean of
                  the others. Metrics that are not means over queries (NMI, `dists@*`) have no entry, and no interval.
    positives:    how many relevant items each query has
    gallery_size: how many items a query searches
    name, notes, settings: what was evaluated; remarks of one line; free facts such as a seed

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
    settings: dict[str, SettingValue] = field(default_factory=dict)
    _means: dict[tuple[int, int], Floats] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        positives = _check_positives(self.positives, self.gallery_size)
        per_query = {name: _check_values(name, of, len(positives)) for name, of in self.per_query.items()}
        fields = {
            "gallery_size": int(self.gallery_size),
            "positives": positives,
            "per_query": per_query,
            "metrics": _check_metrics(self.metrics, per_query),
            "notes": _check_notes(self.name, self.notes),
            "settings": _check_settings(self.settings),
        }
        for name, value in fields.items():
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
        settings: Mapping[str, SettingValue] | None = None,
    ) -> "Report":
        """Make a report whose metrics are the means of per-query values, and `whole`, those that are not means."""
        return cls(dict(whole or {}), dict(per_query), positives, gallery_size, name, notes, dict(settings or {}))

    def __getitem__(self, name: str) -> float:
        try:
            return self.metrics[name]
        except KeyError:
            raise KeyError(f"no metric {name!r} in this report; it has {join_words(self.metrics, 'and')}") from None

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
        """Number of queries."""
        return len(self.positives)

    @property
    def without_positive(self) -> int:
        """Number of queries without a relevant item."""
        return int((self.positives == 0).sum())

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % interval of every metric that is a mean over queries."""
        return {name: self.interval(name) for name in self.per_query}

    def interval(self, name: str, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
        """Return the bootstrap interval of a metric: where it would lie if other such queries had been asked.

        It is the percentiles of the mean over queries drawn with replacement; the same draws serve all metrics.
        """
        Resampling(level, resamples, seed=seed).check()
        value = self[name]
        if name not in self.per_query:
            raise InputError(f"{name} ({value:.4f}) is not a mean over queries, so it has no interval")
        if (resamples, seed) not in self._means:
            self._means[resamples, seed] = bootstrap_means(np.stack([*self.per_query.values()], 1), resamples, seed)
        return percentile_interval(self._means[resamples, seed][:, list(self.per_query).index(name)], level)

    def with_notes(self, notes: tuple[str, ...]) -> "Report":
        """Return the same report with more remarks."""
        return replace(self, notes=(*self.notes, *notes))

    def table(self, format: TableFormat = "text") -> str:
        """Return the metrics in percent with their 95 % intervals, in a format of `Table.render`."""
        ends = {name: [format_metric(name, end) for end in interval] for name, interval in self.intervals.items()}
        lows, highs = (align_right(end[side] for end in ends.values()) for side in (0, 1))
        remarks = {name: f"[{low}, {high}]" for name, low, high in zip(ends, lows, highs, strict=True)}
        remarks |= {name: "cosine distance" for name in self if is_distance(name)}
        facts = ", ".join(f"{name}: {value}" for name, value in self.settings.items())
        return Table(
            ["metric", "%", "95 % interval" if ends else ""],
            [[name, format_metric(name, value), remarks.get(name, "")] for name, value in self.items()],
            "lrl",
            before=tuple(filter(None, [self.name, describe_search(self), _describe_without_positive(self)])),
            after=tuple(filter(None, [facts, *self.notes])),
        ).render(format)

    def save(self, path: PathLike, overwrite: bool = False) -> None:
        """Write everything to a JSON file; an existing one is replaced only with overwrite=True."""
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
        """Read a report from a file, exactly as it was saved."""
        content = read_json(path, _KIND, _VERSION)
        try:
            per_query, metrics = (field_of(content, name, dict) for name in ("per_query", "metrics"))
            if missing := [name for name in per_query if name not in metrics]:
                raise InputError(f"metrics has no {join_words(missing, 'and')}, which is in per_query")
            values = {name: _read_values(name, of) for name, of in per_query.items()}
            kinds = {"positives": list, "gallery_size": int, "name": str, "notes": list, "settings": dict}
            return cls(metrics, values, **{name: field_of(content, name, kind) for name, kind in kinds.items()})
        except (InputError, InputTypeError) as error:
            raise InputError(f"{path} is not a whole report: {error}") from error


def is_distance(name: str) -> bool:
    """Tell whether a metric is a cosine distance and not a fraction."""
    return name.startswith("dists@")


def format_metric(name: str, value: float, decimals: int = 2) -> str:
    """Write a value of a metric: in percent without the sign, a distance as it is, NaN as -.

    >>> format_metric("mAP", 0.6123), format_metric("mAP", 0.6123, 1), format_metric("dists@intra", 0.6123)
    ('61.23', '61.2', '0.612')
    """
    if math.isnan(value):
        return "-"
    return f"{value:.3f}" if is_distance(name) else f"{100 * value:.{decimals}f}"


def describe_search(report: Report) -> str:
    """Write how many queries were asked, and in how many items."""
    queries = "1 query" if report.queries == 1 else f"{report.queries:,} queries"
    return f"{queries}, gallery of {report.gallery_size:,} item{'s' * (report.gallery_size != 1)}"


def _describe_without_positive(report: Report) -> str:
    """Write which metrics count the queries without a positive, and which leave them out."""
    count = report.without_positive
    if count == 0:
        return "every query has a positive"
    it, have, as_misses = ("it", "query has", "as a miss") if count == 1 else ("them", "queries have", "as misses")
    lacking = report.positives == 0
    at_finest = {name: of[lacking] for name, of in report.per_query.items() if "(level" not in name}
    without = [name for name, values in at_finest.items() if np.isnan(values).all()]
    others = [name for name, values in at_finest.items() if not values.any() and not name.startswith("nDCG")]
    parts = []
    for metrics, verb, rest in ((others, "count", f"{it} {as_misses}"), (without, "leave", f"{it} out")):
        if names := list(dict.fromkeys(re.sub(r"@\d+$", "@k", name) for name in metrics)):  # any k is written as k
            parts.append(f"{join_words(names, 'and')} {verb}{'s' * (len(names) == 1)} {rest}")
    return f"{count:,} {have} no positive" + (": " + "; ".join(parts) if parts else "")


# Checks of the fields of a report


def _check_positives(positives: Any, gallery_size: int) -> NDArray[np.int64]:
    """Return how many positives each query has, as a constant array."""
    check_integer("gallery_size", gallery_size)
    try:
        counts = np.array(positives)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"positives must be whole numbers, one per query; {error}") from error
    if counts.ndim != 1 or len(counts) == 0:
        raise InputError(f"positives must have one number per query and at least one query, got shape {counts.shape}")
    if counts.dtype.kind not in "iu":
        raise InputTypeError(f"positives must be whole numbers, got {counts.dtype}")
    low, high = counts.min(), counts.max()
    if low < 0 or high > gallery_size:
        raise InputError(f"positives must be from 0 to gallery_size = {gallery_size}, got {low} to {high}")
    counts = counts.astype(np.int64)
    counts.flags.writeable = False
    return counts


def _check_values(name: str, values: Any, queries: int) -> Floats:
    """Return a metric's value for each query, a fraction or NaN, as a constant array."""
    try:
        fractions = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputTypeError(f"per_query of {name} must be numbers, one per query; {error}") from error
    if fractions.shape != (queries,):
        raise InputError(f"per_query of {name} must have one value per query ({queries}), got {fractions.shape}")
    if np.isnan(fractions).all():
        raise InputError(f"{name} is not defined for any query, as none has a positive; leave the metric out")
    _check_fractions(f"per_query of {name}", np.nanmin(fractions), np.nanmax(fractions))
    fractions.flags.writeable = False  # intervals are computed once
    return fractions


def _check_metrics(metrics: Mapping[str, Any], per_query: dict[str, Floats]) -> dict[str, float]:
    """Return the values of the metrics as floats; one with values per query is their mean."""
    means = {name: mean_of_defined(of) for name, of in per_query.items()}
    values = {name: mean for name, mean in means.items() if name not in metrics}
    for name, given in metrics.items():
        value = check_number(name, given.item() if isinstance(given, np.generic) else given)
        if not is_distance(name):
            _check_fractions(name, value, value)
        if abs(value - means.get(name, value)) > _ROUNDING:
            raise InputError(f"{name} is {value}, but its values per query have another mean; leave it out of metrics")
        values[name] = value
    if not values:
        raise InputError("a report must have at least one metric")
    return values


def _check_fractions(what: str, low: float, high: float) -> None:
    if not -_ROUNDING <= low <= high <= 1 + _ROUNDING:
        raise InputError(f"{what} must be in [0, 1], got {low:g} to {high:g}; divide percentages by 100")


def _check_notes(name: Any, notes: Any) -> tuple[str, ...]:
    if not isinstance(notes, tuple | list) or not all(isinstance(text, str) for text in (name, *notes)):
        raise InputTypeError(f"name must be a string and notes a tuple of them, got {name!r} and {notes!r}")
    return tuple(notes)


def _check_settings(settings: Mapping[str, Any]) -> dict[str, SettingValue]:
    """Return a copy of the settings, which a JSON file must be able to hold."""
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | None):
            raise InputTypeError(f"settings must be text, numbers, booleans or None by name, got {name!r}: {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"settings must be finite, got {name}: {value}")
    return dict(settings)


def _read_values(name: str, values: Any) -> Any:
    """Return a list of a JSON file with NaN for null."""
    if not isinstance(values, list) or not all(type(value) in (int, float, type(None)) for value in values):
        raise InputError(f"its per_query of {name} must be a list of numbers and null")
    return [math.nan if value is None else value for value in values]
