"""Differences over seeds, and how settings of a comparison are drawn: for studies that train."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from frontrank.evaluation.statistics import t_quantile
from studies.style import MARKS, look
from studies.trained import mean_and_spread

LEAST = 0.5  # points, below which no difference is called one
RULE = (
    f"A difference counts where it is more than {LEAST:g} points and its 95 % interval (Welch's t) does not reach 0, "
    "so never with one seed. The interval is over training seeds, on these test classes: other classes, and the number "
    "of comparisons on a page, are not in it. ± is the standard deviation over seeds, and of a difference its standard "
    "error."
)
Entry = Mapping[str, Any]


class Gap(NamedTuple):
    """A difference of two means over seeds in points, 100 times what metrics give.

    error: its standard error; freedom: the degrees of freedom of that, 0 where one of both has a single seed
    """

    points: float
    error: float
    freedom: float

    @property
    def reach(self) -> float:
        """Half of the 95 % interval."""
        return t_quantile(0.05, self.freedom) * self.error if self.freedom else math.inf

    @property
    def counts(self) -> bool:
        return abs(self.points) > max(LEAST, self.reach)

    @property
    def is_more(self) -> bool:
        return self.counts and self.points > 0

    @property
    def is_less(self) -> bool:
        return self.counts and self.points < 0

    def __str__(self) -> str:
        return f"{self.points:+.1f}" + (f" ± {self.error:.1f}" if self.freedom else " (one seed)")


def gap(first: Sequence[float], second: Sequence[float]) -> Gap:
    """How much the first is above the second, both over seeds, with Welch's degrees of freedom.

    >>> gap([0.62, 0.64], [0.6, 0.6])
    Gap(points=3.0, error=1.0, freedom=1.0)
    """
    (one, spread), (other, other_spread) = mean_and_spread(first), mean_and_spread(second)
    parts = [(spread**2 / len(first), len(first) - 1), (other_spread**2 / len(second), len(second) - 1)]
    return _gap(one - other, parts)


def gap_of_gaps(one: Gap, other: Gap) -> Gap:
    """How much the first difference is above the second."""
    parts = [((each.error / 100) ** 2, each.freedom) for each in (one, other)]
    return _gap((one.points - other.points) / 100, parts)


def mean_of_gaps(gaps: Sequence[Gap]) -> Gap:
    """The mean of several differences, with the errors of all; they are taken to be independent of each other."""
    parts = [((each.error / 100 / len(gaps)) ** 2, each.freedom) for each in gaps]
    return _gap(sum(each.points for each in gaps) / len(gaps) / 100, parts)


def _gap(difference: float, parts: Sequence[tuple[float, float]]) -> Gap:
    """parts: the squared standard errors that add up, and the degrees of freedom of each"""
    whole, freedom = sum(square for square, _ in parts), float(min(own for _, own in parts))
    if freedom and whole:
        freedom = whole**2 / sum(square**2 / own for square, own in parts)
    return Gap(round(100 * difference, 6), round(100 * math.sqrt(whole), 6), round(freedom, 6))


def by_setting(entries: Sequence[Entry], name: str, metric: str, **others: Any) -> dict[Any, list[float]]:
    """The values of a metric over seeds by the value of a setting, of entries that came to an end.

    others: further settings, with _ for the dot ("loss_bins"), that entries must have
    """
    wanted = {key.replace("_", ".", 1): value for key, value in others.items()}
    return {
        entry["settings"][name]: entry["values"][metric]
        for entry in entries
        if entry["values"] and all(entry["settings"].get(key) == value for key, value in wanted.items())
    }


def draw_over(axes: Any, found: Mapping[Any, Sequence[float]], label: str, place: int, *, logarithmic: bool) -> None:
    """A line of means in percent over a setting, with whiskers for the seeds."""
    points = [(x, *mean_and_spread(values)) for x, values in sorted(found.items())]
    xs, means, spreads = ([point[part] for point in points] for part in range(3))
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.set_xticks(xs, [f"{x:,g}" for x in xs])
        axes.minorticks_off()
    axes.errorbar(
        xs,
        [100 * mean for mean in means],
        [100 * spread for spread in spreads],
        label=label,
        marker=MARKS[place],
        capsize=3,
        **look(place),
    )


def answer(gaps: Sequence[Gap]) -> str:
    """Whether one thing is better throughout: what is not shown is told from what is the other way round.

    >>> answer([gap([0.62, 0.62], [0.6, 0.6])]), answer([gap([0.6, 0.6], [0.62, 0.62])])
    ('yes', 'no, the other way round')
    """
    if all(each.is_more for each in gaps):
        return "yes"
    if all(each.is_less for each in gaps):
        return "no, the other way round"
    return "no" if any(each.is_less for each in gaps) else "not shown"


def verdict(agreeing: Sequence[bool]) -> str:
    """The verdict on several claims of equal weight, of which there must be some."""
    if not agreeing:
        raise ValueError("there is no claim to agree with")
    if all(agreeing):
        return "**Agrees**"
    return "**Agrees in part**" if any(agreeing) else "**Does not agree**"
