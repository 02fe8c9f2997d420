"""Whether one way to rank is better than another, class by class: queries of a class are no independent witnesses."""

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
