"""The fields of a report: every check of them, and its message."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation.statistics import Floats, mean_of_defined
from frontrank.evaluation.tables import joined

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
