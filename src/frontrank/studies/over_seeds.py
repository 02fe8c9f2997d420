"""Differences over seeds, and how settings of a comparison are drawn: for studies that train."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from frontrank.studies.style import MARKS, look
from frontrank.studies.trained import mean_and_spread

LEAST = 0.5  # points, below which no difference is called one
RULE = (
    f"A difference counts where it is more than {LEAST:g} points and more than twice its standard error over seeds; "
    "± is the standard deviation over seeds, and of a difference its standard error."
)
Entry = Mapping[str, Any]


class Gap(NamedTuple):
    """A difference of two means over seeds in points, 100 times what metrics give, and its standard error."""

    points: float
    error: float

    @property
    def counts(self) -> bool:
        return abs(self.points) > max(LEAST, 2 * self.error)

    @property
    def is_more(self) -> bool:
        return self.counts and self.points > 0

    @property
    def is_less(self) -> bool:
        return self.counts and self.points < 0

    def __str__(self) -> str:
        return f"{self.points:+.1f} ± {self.error:.1f}"


def gap(first: Sequence[float], second: Sequence[float]) -> Gap:
    """How much the first is above the second, both over seeds.

    >>> gap([0.62, 0.64], [0.6, 0.6])
    Gap(points=3.0, error=1.0)
    """
    (one, spread), (other, other_spread) = mean_and_spread(first), mean_and_spread(second)
    error = math.sqrt(spread**2 / len(first) + other_spread**2 / len(second))
    return Gap(round(100 * (one - other), 6), round(100 * error, 6))


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


def verdict(agreeing: Sequence[bool]) -> str:
    """The verdict on several claims of equal weight."""
    if all(agreeing):
        return "**Agrees**"
    return "**Agrees in part**" if any(agreeing) else "**Does not agree**"
