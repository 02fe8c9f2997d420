"""How sure a mean over queries is: bootstrap intervals, sign-flip tests of paired differences, Holm's correction.

Values are [query, metric] in float64; NaN is where a metric is not defined for a query.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from frontrank.checks import check_integer, check_number
from frontrank.errors import InputError

Floats = NDArray[np.float64]

_CELLS = 4_000_000  # of a matrix of counts or signs held at once: 32 MB
_ENUMERATED = 12  # differences other than 0 up to which all sign patterns are looked at
_ROUNDING = 1e-10  # sums this close, as a share of the sum of sizes, are equal


def mean_of_defined(values: Floats) -> float:
    """Return the mean over the queries for which the metric is defined [query] -> number; at least one must be.

    >>> mean_of_defined(np.array([1.0, np.nan, 0.5]))
    0.75
    """
    defined = values[~np.isnan(values)]
    # rounding can push the mean of equal numbers off them, and then off their own interval
    return float(np.clip(defined.mean(), defined.min(), defined.max()))


def bootstrap_means(values: Floats, resamples: int, seed: int) -> Floats:
    """Return means over as many queries as there are, drawn with replacement [resample, metric].

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
    """Return the ends of the middle `level` of the bootstrap means [resample] of one metric."""
    low, high = np.quantile(means[~np.isnan(means)], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def sign_flip_p_values(differences: Floats, flips: int, seed: int) -> Floats:
    """Return two-sided p-values of "the difference is as likely up as down" [metric], for paired differences.

    If it is, every pattern of signs of the differences is equally likely: p is the share of patterns whose mean is at
    least as far from 0 (Fisher, "The Design of Experiments", 1935, Sec. 21; for retrieval Smucker, Allan and
    Carterette, CIKM 2007). With up to 12 differences other than 0 all patterns are enumerated; with more, `flips`
    random ones are drawn, and p = (1 + as far) / (1 + flips), which is never 0 (Phipson and Smyth, SAGMB 2010, Eq. 2).

    >>> sign_flip_p_values(np.array([[0.5], [0.25], [0.0], [0.25]]), flips=99, seed=0)  # + + + or - - - of 8
    array([0.25])
    """
    differences = np.nan_to_num(differences)
    few = np.count_nonzero(differences, axis=0) <= _ENUMERATED
    p_values = np.empty(differences.shape[1])
    for metric in np.flatnonzero(few):
        nonzero = differences[differences[:, metric] != 0, metric]
        signs = np.array(list(itertools.product([-1.0, 1.0], repeat=len(nonzero))))
        p_values[metric] = np.mean(np.abs(signs @ nonzero) >= _reach(nonzero))
    if not few.all():
        p_values[~few] = _share_of_random_patterns(differences[:, ~few], flips, seed)
    return p_values


def _share_of_random_patterns(differences: Floats, flips: int, seed: int) -> Floats:
    queries = len(differences)
    total, reach = differences.sum(0), _reach(differences)
    rng = np.random.default_rng(seed)
    width = -(-queries // 32) * 4  # whole draws of the generator, so that blocks do not change what is drawn
    as_far = np.zeros(differences.shape[1])
    for rows in _blocks(flips, queries):
        bits = np.frombuffer(rng.bytes((rows.stop - rows.start) * width), np.uint8).reshape(-1, width)
        positive = np.unpackbits(bits, axis=1, count=queries).astype(np.float64)
        as_far += (np.abs(2 * (positive @ differences) - total) >= reach).sum(0)
    return (1 + as_far) / (1 + flips)


def _reach(differences: Floats) -> Floats:
    """Return how far from 0 a sum must be to count as being as far as that of the differences."""
    return np.abs(differences.sum(0)) - _ROUNDING * np.abs(differences).sum(0)


def _blocks(rows: int, width: int) -> Iterator[slice]:
    """Return ranges of rows that together cover all, of bounded size."""
    step = max(1, _CELLS // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


class Resampling(NamedTuple):
    """How intervals and tests are made: the middle `level` of bootstrap means of resamples, and random sign flips."""

    level: float = 0.95
    resamples: int = 1000
    flips: int = 4999
    seed: int = 0

    def check(self) -> None:
        """Raise if no interval or test can be made with these settings."""
        check_number("level", self.level, above=0, at_most=0.999)
        for name, least in (("resamples", 100), ("seed", 0), ("flips", 99)):
            check_integer(name, getattr(self, name), at_least=least)


DEFAULT_RESAMPLING = Resampling()


class PairedDifference(NamedTuple):
    """Mean over queries of b - a, its interval, and its p-value: how often chance alone would go as far."""

    difference: float
    low: float
    high: float
    p_value: float


def difference_over_classes(
    a: Floats, b: Floats, classes: NDArray[np.generic], how: Resampling = DEFAULT_RESAMPLING
) -> PairedDifference:
    """Return the mean difference b - a over queries [query], its interval and p-value, with classes as random units.

    Images of a class are alike, and each is a positive of the others, so their values rise and fall together: a
    bootstrap or a test over queries would be far too sure. Here whole classes are drawn with replacement (the interval
    is of the mean over all queries drawn), and whole classes change sign (the test asks whether the sum of a class's
    differences is as likely up as down). NaN, where a metric is not defined for a query, must be in both.

    >>> a, b = np.array([0.0, 0.0, 0.0, 1.0, 0.5, 0.5]), np.array([1.0, 1.0, 0.5, 1.0, 1.0, 1.0])
    >>> difference_over_classes(a, b, np.array(list("xxyyzz")))[0::3]  # all 3 classes up: 2 of 8 patterns
    (0.5833333333333334, 0.25)
    """
    if not len(a) == len(b) == len(classes) > 0:
        raise InputError(f"a has {len(a)} queries, b {len(b)} and classes {len(classes)}; give one value per query")
    paired = b - a
    if (np.isnan(a) != np.isnan(b)).any():
        raise InputError("a and b are not defined for the same queries; evaluate both on the same images")
    if np.isnan(paired).all():
        raise InputError("a and b are defined for no query; give values that are numbers")
    sums, sizes = _class_sums(paired, classes)
    p_value = float(sign_flip_p_values(sums[:, None], how.flips, how.seed)[0])
    return PairedDifference(float(sums.sum() / sizes.sum()), *_class_interval(sums, sizes, how), p_value)


def interval_over_classes(values: Floats, classes: NDArray[np.generic]) -> tuple[float, float] | None:
    """Return the interval of a mean over queries [query] when whole classes are drawn with replacement.

    None where fewer than two classes have a value: nothing is known then.

    >>> interval_over_classes(np.array([1.0, 1.0, 0.0, 0.0]), np.array(list("aabb")))
    (0.0, 1.0)
    """
    sums, sizes = _class_sums(values, classes)
    return _class_interval(sums, sizes, DEFAULT_RESAMPLING) if len(sums) > 1 else None


def _class_sums(values: Floats, classes: NDArray[np.generic]) -> tuple[Floats, Floats]:
    """Return the sum of the defined values of each class, and how many there are."""
    defined = ~np.isnan(values)
    codes = np.unique(classes[defined], return_inverse=True)[1]
    return np.bincount(codes, values[defined]).astype(np.float64), np.bincount(codes).astype(np.float64)


def _class_interval(sums: Floats, sizes: Floats, how: Resampling) -> tuple[float, float]:
    means = bootstrap_means(np.stack([sums, sizes], 1), how.resamples, how.seed)
    return percentile_interval(means[:, 0] / means[:, 1], how.level)


def difference_over_seeds(
    a: Floats, b: Floats, classes: NDArray[np.generic], how: Resampling = DEFAULT_RESAMPLING
) -> PairedDifference:
    """Return the mean difference b - a over runs and queries [run, query], with runs and classes as random units.

    a, b: a row per run; rows at the same place are a pair (the same seed)

    `difference_over_classes` asks whether other classes would give the same answer for these runs. Other runs would
    differ too, and a bootstrap over two or three runs cannot tell how much. So a second interval includes both. It
    reaches from the difference, on both sides, as far as

        sqrt((t_runs s_runs)^2 + (t_classes s_classes)^2)

    with s_runs the standard error of the runs' differences, s_classes that of the classes' (of a ratio, as classes
    differ in size), and t_n the quantile of Student's t with n - 1 degrees of freedom: two runs that agree by luck are
    little evidence. Its p is that of the level at which the interval ends at 0. The result is the more careful of both
    answers: the larger p, and the farther one of each end of the interval. With a single run it is the first answer.

    >>> a = np.zeros((3, 4))
    >>> b = np.array([[0.1, 0.3, 0.1, 0.3], [0.3, 0.5, 0.3, 0.5], [0.3, 0.3, 0.3, 0.3]])
    >>> [round(x, 3) for x in difference_over_seeds(a, b, np.array(["w", "x", "y", "z"]))]
    [0.3, 0.023, 0.577, 0.125]
    """
    if np.shape(a) != np.shape(b) or np.ndim(a) != 2 or not len(a):
        raise InputError(f"a is {np.shape(a)} and b {np.shape(b)}; give both [run, query], of the same runs")
    own = difference_over_classes(a.mean(0), b.mean(0), classes, how)
    if len(a) == 1:
        return own
    paired = b - a
    of_runs = float(np.var(paired[:, ~np.isnan(b.mean(0))].mean(1), ddof=1)) / len(a)
    sums, sizes = _class_sums(paired.mean(0), classes)
    count, residuals = len(sizes), sums - own.difference * sizes
    of_classes = count / (count - 1) * float(residuals @ residuals) / sizes.sum() ** 2 if count > 1 else 0.0
    if of_runs + of_classes < 1e-24:  # all the same, but for rounding
        return own

    def reach(beyond: float) -> float:
        parts = (of_runs, len(a) - 1), (of_classes, max(1, count - 1))
        return math.sqrt(sum(variance * t_quantile(beyond, freedom) ** 2 for variance, freedom in parts))

    low, high = 1e-9, 1.0  # the p at which the interval ends at 0
    while high / low > 1 + 1e-5:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if reach(middle) > abs(own.difference) else (low, middle)
    wide, middle = reach(1 - how.level), own.difference
    return PairedDifference(middle, min(own.low, middle - wide), max(own.high, middle + wide), max(own.p_value, high))


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(120)


def _t_beyond(t: float, freedom: float) -> float:
    """Return how often Student's t with so many degrees of freedom (at least 1) is farther from 0 than t.

    With t = sqrt(freedom) tan(angle), its density is cos(angle)^(freedom - 1) but for a factor. Written out here, as
    evaluation needs torch and numpy only; tests compare it with scipy.

    >>> round(_t_beyond(12.706, 1), 4), round(_t_beyond(1.96, 10**6), 4)
    (0.05, 0.05)
    """
    if freedom > 10_000:
        return math.erfc(t / math.sqrt(2))

    def area(start: float) -> float:
        half = (math.pi / 2 - start) / 2
        return half * float(_WEIGHTS @ np.cos(start + half * (_NODES + 1)) ** (freedom - 1))

    return area(math.atan(t / math.sqrt(freedom))) / area(0.0)


def t_quantile(beyond: float, freedom: float) -> float:
    """Return the t that is exceeded so often, on both sides together.

    >>> round(t_quantile(0.05, 4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while _t_beyond(high, freedom) > beyond:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _t_beyond(middle, freedom) > beyond else (low, middle)
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for being several tests, so that the chance of any false alarm stays as stated.

    The k-th smallest of n is multiplied by n - k + 1, is no less than the one before, and at most 1 (S. Holm, "A Simple
    Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        least = min(1.0, max(least, (len(p_values) - rank) * p_values[place]))
        corrected[place] = least
    return corrected
