"""Whether one way to rank is better than another, class by class: queries of a class are no independent witnesses."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from frontrank.errors import InputError
from frontrank.evaluation.statistics import (
    Floats,
    percentile_interval,
    require_settings,
    resampled_means,
    sign_flip_p_values,
)


class PairedDifference(NamedTuple):
    """A mean over queries of b - a, its interval, and how often chance alone would go as far."""

    difference: float
    low: float
    high: float
    p_value: float


def paired_over_classes(
    a: Floats,
    b: Floats,
    classes: NDArray[np.generic],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    flips: int = 4999,
    seed: int = 0,
) -> PairedDifference:
    """The mean difference b - a over queries [query], with classes as the units that chance draws.

    Images of a class are alike, and each is a positive of the others, so their values rise and fall together: a
    bootstrap or a test over queries would be far too sure. Here whole classes are drawn with replacement (the interval
    is of the mean over all queries drawn), and whole classes change sign (the test asks whether the sum of a class's
    differences is as likely up as down). NaN, where a metric is not defined for a query, must be in both.

    >>> a, b = np.array([0.0, 0.0, 0.0, 1.0, 0.5, 0.5]), np.array([1.0, 1.0, 0.5, 1.0, 1.0, 1.0])
    >>> paired_over_classes(a, b, np.array(["x", "x", "y", "y", "z", "z"]))[0::3]  # all 3 classes up: 2 of 8 patterns
    (0.5833333333333334, 0.25)
    """
    require_settings(level=level, resamples=resamples, seed=seed, flips=flips)
    if not len(a) == len(b) == len(classes) > 0:
        raise InputError(f"a has {len(a)} queries, b {len(b)} and classes {len(classes)}; give one value per query")
    paired = b - a
    if (np.isnan(a) != np.isnan(b)).any():
        raise InputError("a and b are not defined for the same queries; evaluate both on the same images")
    defined = ~np.isnan(paired)
    if not defined.any():
        raise InputError("a and b are defined for no query; give values that are numbers")
    codes = np.unique(classes[defined], return_inverse=True)[1]
    sums = np.bincount(codes, paired[defined]).astype(np.float64)
    sizes = np.bincount(codes).astype(np.float64)
    drawn = resampled_means(np.stack([sums, sizes], 1), resamples, seed)
    low, high = percentile_interval(drawn[:, 0] / drawn[:, 1], level)
    p_value = float(sign_flip_p_values(sums[:, None], flips, seed)[0])
    return PairedDifference(float(sums.sum() / sizes.sum()), low, high, p_value)


def paired_over_seeds(
    a: Floats,
    b: Floats,
    classes: NDArray[np.generic],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    flips: int = 4999,
    seed: int = 0,
) -> PairedDifference:
    """The mean difference b - a over runs and queries [run, query], with runs and classes as what chance draws.

    a, b: a row per run, those of the same place paired (the same seed)

    `paired_over_classes` asks of these runs whether other classes would say the same. Other runs of the same two ways
    would differ too, and of two or three runs no bootstrap can tell how much. So a second answer has both in it: the
    interval is the difference and, to both sides,

        sqrt((t_runs s_runs)^2 + (t_classes s_classes)^2)

    with s_runs the standard error of the runs' differences, s_classes that of the classes' (of a ratio, as classes are
    of different size), and t_n the quantile of Student's t of n - 1 degrees of freedom: two runs that agree by luck are
    little evidence. p is that of the level at which the interval ends at 0. What is given is the more careful of both
    answers: the larger p, and of each end of the interval the farther one. Of a single run, the first alone.

    >>> a = np.zeros((3, 4))
    >>> b = np.array([[0.1, 0.3, 0.1, 0.3], [0.3, 0.5, 0.3, 0.5], [0.3, 0.3, 0.3, 0.3]])
    >>> [round(x, 3) for x in paired_over_seeds(a, b, np.array(["w", "x", "y", "z"]))]
    [0.3, 0.023, 0.577, 0.125]
    """
    if np.shape(a) != np.shape(b) or np.ndim(a) != 2 or not len(a):
        raise InputError(f"a is {np.shape(a)} and b {np.shape(b)}; give both [run, query], of the same runs")
    own = paired_over_classes(a.mean(0), b.mean(0), classes, level=level, resamples=resamples, flips=flips, seed=seed)
    if len(a) == 1:
        return own
    paired = (b - a)[:, ~np.isnan(b.mean(0))]
    codes = np.unique(classes[~np.isnan(b.mean(0))], return_inverse=True)[1]
    of_runs = float(np.var(paired.mean(1), ddof=1)) / len(a)
    sums, sizes = np.bincount(codes, paired.mean(0)), np.bincount(codes)
    count = len(sizes)
    residuals = sums - own.difference * sizes
    of_classes = count / (count - 1) * float(residuals @ residuals) / paired.shape[1] ** 2 if count > 1 else 0.0
    if of_runs + of_classes < 1e-24:  # all the same, but for rounding
        return own

    def reach(beyond: float) -> float:
        parts = (of_runs, len(a) - 1), (of_classes, max(1, count - 1))
        return math.sqrt(sum(variance * t_quantile(beyond, freedom) ** 2 for variance, freedom in parts))

    low, high = 1e-9, 1.0  # the p at which the interval ends at 0
    while high / low > 1 + 1e-5:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if reach(middle) > abs(own.difference) else (low, middle)
    wide = reach(1 - level)
    return PairedDifference(
        own.difference,
        min(own.low, own.difference - wide),
        max(own.high, own.difference + wide),
        max(own.p_value, high),
    )


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(120)


def _t_beyond(t: float, freedom: float) -> float:
    """How often Student's t of so many degrees of freedom (at least 1) is farther from 0 than t.

    With t = sqrt(freedom) tan(angle), its density is cos(angle)^(freedom - 1) but for a factor.

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
    """The t that is exceeded so often, on both sides together.

    >>> round(t_quantile(0.05, 4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while _t_beyond(high, freedom) > beyond:
        low, high = high, 2 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _t_beyond(middle, freedom) > beyond else (low, middle)
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for being several: that of none but true null hypotheses being called false stays as said.

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
