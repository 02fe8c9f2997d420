"""Bootstrap intervals and sign-flip tests in plain loops."""

import itertools
import math
from fractions import Fraction

import numpy as np


def percentile(numbers, share):
    """Linear between the two neighbours of place share * (n - 1) of the sorted numbers."""
    ordered = sorted(numbers)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def bootstrap_interval(values, level, resamples, seed):
    """Percentiles of the mean of values drawn with replacement; NaN values are drawn, but not averaged."""
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(resamples):
        drawn = [values[i] for i in rng.integers(len(values), size=len(values))]
        defined = [value for value in drawn if not math.isnan(value)]
        if defined:
            means.append(math.fsum(defined) / len(defined))
    return percentile(means, (1 - level) / 2), percentile(means, (1 + level) / 2)


def sign_flip_p_value(differences):
    """Share of all sign patterns whose sum is at least as far from 0, in exact arithmetic."""
    exact = [Fraction(float(d)) for d in differences if not math.isnan(d)]
    seen = abs(sum(exact))
    patterns = list(itertools.product([-1, 1], repeat=len(exact)))
    as_far = sum(abs(sum(s * d for s, d in zip(signs, exact, strict=True))) >= seen for signs in patterns)
    return as_far / len(patterns)
