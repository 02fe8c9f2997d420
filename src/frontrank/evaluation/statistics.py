"""How sure a mean over queries is: bootstrap intervals, and sign-flip tests of paired differences.

Values are [query, metric] in float64; NaN is where a metric is not defined for a query.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from frontrank.errors import InputTypeError, require_number

Floats = NDArray[np.float64]

_CELLS = 4_000_000  # of a matrix of counts or signs held at once: 32 MB
_ENUMERATED = 12  # differences other than 0 up to which all sign patterns are looked at
_ROUNDING = 1e-10  # sums this close, as a share of the sum of sizes, are equal


def mean_of_defined(values: Floats) -> float:
    """Mean over the queries for which the metric is defined [query] -> number; at least one must be.

    >>> mean_of_defined(np.array([1.0, np.nan, 0.5]))
    0.75
    """
    defined = values[~np.isnan(values)]
    # rounding can push the mean of equal numbers off them, and then off their own interval
    return float(np.clip(defined.mean(), defined.min(), defined.max()))


def resampled_means(values: Floats, resamples: int, seed: int) -> Floats:
    """Means over as many queries as there are, drawn with replacement [resample, metric].

    The bootstrap of Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics 1979. All
    metrics see the same draws. NaN is where no query drawn has a defined value.
    """
    queries = len(values)
    defined = ~np.isnan(values)
    summands = np.concatenate([np.where(defined, values, 0), defined], axis=1)
    rng = np.random.default_rng(seed)
    totals = np.empty((resamples, summands.shape[1]))
    for rows in _blocks(resamples, queries):
        counts = np.empty((rows.stop - rows.start, queries))
        for row in counts:
            row[:] = np.bincount(rng.integers(queries, size=queries), minlength=queries)
        totals[rows] = counts @ summands
    sums, sizes = np.split(totals, 2, axis=1)
    means = np.divide(sums, sizes, out=np.full_like(sums, np.nan), where=sizes > 0)
    return np.clip(means, np.nanmin(values, axis=0), np.nanmax(values, axis=0))


def percentile_interval(means: Floats, level: float) -> tuple[float, float]:
    """The middle `level` of resampled means [resample] of one metric."""
    low, high = np.quantile(means[~np.isnan(means)], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def sign_flip_p_values(differences: Floats, flips: int, seed: int) -> Floats:
    """Two-sided p-values of "the difference is as likely up as down" [metric], for paired differences.

    If it is, then every pattern of signs of the differences was as likely as the one seen: p is the share of patterns
    whose mean is at least as far from 0 (Fisher, "The Design of Experiments", 1935, Sec. 21; for retrieval Smucker,
    Allan and Carterette, CIKM 2007). Up to 12 differences other than 0, all patterns are looked at; else `flips` random
    ones, and p = (1 + as far) / (1 + flips), which is never 0 (Phipson and Smyth, SAGMB 2010, Eq. 2).

    >>> sign_flip_p_values(np.array([[0.5], [0.25], [0.0], [0.25]]), flips=99, seed=0)  # + + + or - - - of 8
    array([0.25])
    """
    known = np.nan_to_num(differences)
    few = np.count_nonzero(known, axis=0) <= _ENUMERATED
    p_values = np.empty(known.shape[1])
    for metric in np.flatnonzero(few):
        p_values[metric] = _share_of_all_patterns(known[:, metric])
    if not few.all():
        p_values[~few] = _share_of_random_patterns(known[:, ~few], flips, seed)
    return p_values


def _share_of_all_patterns(differences: Floats) -> float:
    nonzero = differences[differences != 0]
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=len(nonzero))))
    return float(np.mean(np.abs(signs @ nonzero) >= _reach(nonzero)))


def _share_of_random_patterns(differences: Floats, flips: int, seed: int) -> Floats:
    queries = len(differences)
    total, reach = differences.sum(0), _reach(differences)
    rng = np.random.default_rng(seed)
    width = -(-queries // 32) * 4  # whole draws of the generator, so that blocks do not change what is drawn
    as_far = np.zeros(differences.shape[1])
    for rows in _blocks(flips, queries):
        drawn = np.frombuffer(rng.bytes((rows.stop - rows.start) * width), np.uint8).reshape(-1, width)
        kept = np.unpackbits(drawn, axis=1, count=queries).astype(np.float64)
        as_far += (np.abs(2 * (kept @ differences) - total) >= reach).sum(0)
    return (1 + as_far) / (1 + flips)


def _reach(differences: Floats) -> Floats:
    """How far from 0 a sum must be to count as being as far as that of the differences."""
    return np.abs(differences.sum(0)) - _ROUNDING * np.abs(differences).sum(0)


def _blocks(rows: int, width: int) -> Iterator[slice]:
    """Ranges of rows that cover all, of bounded size."""
    step = max(1, _CELLS // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def require_settings(*, level: float, resamples: int, seed: int, flips: int = 99) -> None:
    """Refuse settings no interval or test can be made with."""
    require_number("level", level, above=0, at_most=0.999)
    for name, value, least in (("resamples", resamples, 100), ("seed", seed, 0), ("flips", flips, 99)):
        require_number(name, value, at_least=least)
        if not isinstance(value, int):
            raise InputTypeError(f"{name} must be a whole number, got {value!r}")
