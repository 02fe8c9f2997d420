"""How sure a report's metrics are, with classes as what chance draws: queries of a class rise and fall together."""

import numpy as np
from numpy.typing import NDArray

from frontrank.evaluation import Comparison, Report
from frontrank.evaluation.compare import Difference
from frontrank.evaluation.paired_classes import paired_over_classes
from frontrank.evaluation.statistics import percentile_interval, resampled_means

_LEVEL, _RESAMPLES, _FLIPS, _SEED = 0.95, 1000, 4999, 0


def class_intervals(report: Report, classes: NDArray[np.generic]) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each metric that is a mean over queries: whole classes are drawn with replacement.

    classes: of each query. None where there are fewer than two of them that have a value: nothing is known then

    >>> report = Report.of({"R@1": [1, 1, 0, 0]}, [1] * 4, 9)
    >>> class_intervals(report, np.array(["a", "a", "b", "b"])), class_intervals(report, np.array(["a"] * 4))
    ({'R@1': (0.0, 1.0)}, {})
    """
    found = {}
    for name, values in report.per_query.items():
        defined = ~np.isnan(values)
        codes = np.unique(classes[defined], return_inverse=True)[1]
        sums, sizes = np.bincount(codes, values[defined]), np.bincount(codes)
        if len(sums) > 1:
            drawn = resampled_means(np.stack([sums, sizes], 1).astype(np.float64), _RESAMPLES, _SEED)
            found[name] = percentile_interval(drawn[:, 0] / drawn[:, 1], _LEVEL)
    return found


def change_over_classes(a: Report, b: Report, classes: NDArray[np.generic], names: tuple[str, str]) -> Comparison:
    """The paired difference b - a of each metric per query, its interval and p over classes.

    Of a single class nothing is known but that a difference is from -1 to 1.
    """
    count = len(np.unique(classes))
    differences = {}
    for name in (name for name in b.per_query if name in a.per_query):
        found = paired_over_classes(
            a.per_query[name], b.per_query[name], classes, level=_LEVEL, resamples=_RESAMPLES, flips=_FLIPS, seed=_SEED
        )
        known = len(np.unique(classes[~np.isnan(b.per_query[name])])) > 1
        low, high = (found.low, found.high) if known else (-1.0, 1.0)
        differences[name] = Difference(a[name], b[name], found.difference, low, high, found.p_value)
    note = f"intervals and p are over {count:,} {'class' if count == 1 else 'classes'}, as queries of a class are alike"
    settings = {"resamples": _RESAMPLES, "flips": _FLIPS, "seed": _SEED, "classes": count}
    return Comparison(differences, b.queries, _LEVEL, names, settings, (note,))
