"""Paired differences over classes, and Holm's correction, in plain loops."""

import itertools
import math
from fractions import Fraction

import numpy as np

from tests.reference.statistics import percentile


def by_class(a, b, classes):
    """Per class, in sorted order, the differences b - a of its queries that are defined."""
    found = {}
    for x, y, name in zip(a, b, classes, strict=True):
        if not math.isnan(x):
            found.setdefault(name, []).append(y - x)
    return [found[name] for name in sorted(found)]


def mean_difference(a, b, classes):
    every = [each for group in by_class(a, b, classes) for each in group]
    return math.fsum(every) / len(every)


def interval(a, b, classes, level, resamples, seed):
    """Whole classes are drawn; the mean is over all queries of those drawn."""
    groups = by_class(a, b, classes)
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(resamples):
        drawn = [each for i in rng.integers(len(groups), size=len(groups)) for each in groups[i]]
        means.append(math.fsum(drawn) / len(drawn))
    return percentile(means, (1 - level) / 2), percentile(means, (1 + level) / 2)


def p_value(a, b, classes):
    """Share of all patterns of signs of classes whose sum is as far from 0, in exact arithmetic on simple fractions."""
    sums = [sum(Fraction(each).limit_denominator(10**8) for each in group) for group in by_class(a, b, classes)]
    patterns = list(itertools.product([-1, 1], repeat=len(sums)))
    as_far = [abs(sum(s * x for s, x in zip(signs, sums, strict=True))) >= abs(sum(sums)) for signs in patterns]
    return sum(as_far) / len(patterns)


def over_seeds(a, b, classes, level, resamples, seed):
    """The interval and p-value of values [run, query]: of classes alone, or of runs and classes if that is wider."""
    from scipy import optimize, stats

    means = [[math.fsum(column) / len(column) for column in zip(*rows, strict=True)] for rows in (a, b)]
    low, high = interval(*means, classes, level, resamples, seed)
    p = p_value(*means, classes)
    difference = mean_difference(*means, classes)
    groups, runs = by_class(*means, classes), [mean_difference(x, y, classes) for x, y in zip(a, b, strict=True)]
    if len(runs) == 1:
        return low, high, p
    of_runs = sum((each - difference) ** 2 for each in runs) / (len(runs) - 1) / len(runs)
    queries = sum(map(len, groups))
    off = [(sum(group) - difference * len(group)) / queries for group in groups]
    of_classes = len(groups) / (len(groups) - 1) * sum(each**2 for each in off) if len(groups) > 1 else 0
    if of_runs + of_classes < 1e-24:
        return low, high, p

    def reach(beyond):
        of = (of_runs, len(runs) - 1), (of_classes, max(1, len(groups) - 1))
        return math.sqrt(sum(variance * stats.t.isf(beyond / 2, freedom) ** 2 for variance, freedom in of))

    zero = optimize.brentq(lambda log: reach(math.exp(log)) - abs(difference), -50, 0, xtol=1e-9) if difference else 0
    wide = reach(1 - level)
    return min(low, difference - wide), max(high, difference + wide), max(p, math.exp(zero))


def holm(p_values):
    """The largest, over all p-values up to it, of p times how many are not smaller than that one; ties in order."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [None] * len(p_values)
    for place, i in enumerate(order):
        corrected[i] = min(1.0, max((len(order) - k) * p_values[order[k]] for k in range(place + 1)))
    return corrected
