"""Studies that train: comparisons of settings on real images over several seeds, and the differences between them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from frontrank.comparison import runner
from frontrank.comparison.plan import Plan, read_plan
from frontrank.comparison.results import ComparisonResults, failures
from frontrank.comparison.tasks import Job, is_divergence, read_lr, read_stored
from frontrank.data.splits import hold_out_classes, split_test_classes
from frontrank.data.table import ImageTable
from frontrank.errors import FrontrankError
from frontrank.settings import DataConfig, find_recipe, read_recipe
from frontrank.training.images import build_images
from studies.study import MARKS, Effort, line_style

RECIPE = "emoji-demo"
NETWORK: Mapping[str, str] = {  # half the time of the recipe's on 48 pixels, and as good after as few steps
    "data.size": "32",
    "data.resize": "32",
    "model.stage": "3",
}
BUDGET: Mapping[str, str] = {  # of every run on emoji, unless a study says otherwise
    **NETWORK,
    "batches.size": "112",
    "iterations": "80",
    "optimizer.warmup": "20",
    "evaluations": "2",
    "data.validation": "0.2",
    "data.check": "quick",
}
LEAST = 0.5  # points, below which no difference counts
_QUICK: Mapping[str, str] = {"batches.size": "32", "iterations": "4", "optimizer.warmup": "1", "evaluations": "1"}
_QUICK_CLASSES = 60
EntryValues = Mapping[str, Any]


def budget_steps(effort: Effort) -> int:
    """Return the steps of every run, unless a study says otherwise."""
    return int((_QUICK if effort.quick else BUDGET)["iterations"])


def emoji_folder(effort: Effort) -> str:
    """Return the folder of emoji: that of --data, or a new one."""
    from frontrank.samples.emoji import build_emoji

    if effort.data:
        return effort.data
    classes = _QUICK_CLASSES if effort.quick else None
    return str(build_emoji(effort.work / "emoji", classes=classes, show=effort.show).root)


def training_images(effort: Effort, data: str, held_out: float = float(BUDGET["data.validation"])) -> ImageTable:
    """Return the images that the runs of a comparison learn from: without the classes for validation and test."""
    return hold_out_classes(split_images(effort, data), held_out, effort.seed).of("train")


def split_images(effort: Effort, data: str) -> ImageTable:
    """Return all images with their test classes: those of the table, or as a comparison draws them if it has none."""
    table = build_images(DataConfig(path=data))
    return table if len(table.of("test")) else split_test_classes(table, seed=effort.seed)


def work_folder(effort: Effort, name: str) -> Path:
    """Make the folder of a measurement that is no comparison."""
    folder = effort.work / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_comparison(
    effort: Effort,
    name: str,
    *,
    data: str,
    losses: str | None = None,
    axes: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    lrs: str = "3e-4",
    recipe: str = RECIPE,
    may_diverge: bool = False,
) -> dict[str, Any]:
    """Run a comparison in the folder `effort.work`/name; runs that are done already are not repeated.

    losses, axes, lrs: as --losses, --axis and --lr of frontrank compare; settings: those all runs share, beside BUDGET
    may_diverge: runs that diverge are a result, without values; else they are an error, as any other failure is
    A quick comparison has the first of the learning rates.

    Returns {"frozen": {metric: value}, "entries": [{"name", "settings", "lr", "seeds", "values": {metric: [...]},
    "seconds", "megabytes", "planned"}]}; planned: the number of seeds, "seeds": those of them that finished
    """
    shared = {**BUDGET, **(settings or {}), **(_QUICK if effort.quick else {}), "data.path": data}
    shared["seed"] = str(effort.seed)
    seeds, lrs = (1, lrs.partition(",")[0]) if effort.quick else (effort.seeds, lrs)
    plan = read_plan(read_recipe(find_recipe(recipe)), shared, losses=losses, axes=axes, lrs=lrs, seeds=seeds)
    out = effort.work / name
    out.parent.mkdir(parents=True, exist_ok=True)
    results = plain_results(runner.run_comparison(plan, out, quiet=effort.show is False))
    _require_all(plan, results["entries"], out, may_diverge)
    for entry in results["entries"]:
        entry["planned"] = plan.seeds
    return results


def model_folders(effort: Effort, name: str) -> list[Path]:
    """Return the trained networks of a comparison of one setting, by seed."""
    out = effort.work / name
    plan, _ = read_stored(out)
    (way,) = plan.ways
    lr = read_lr(way, out)
    if lr is None:
        raise FrontrankError(f"{out} has no network, as no learning rate was chosen; give the command again")
    return [Job(way, lr, seed).folder(out) / "model" for seed in range(plan.seeds)]


def _require_all(plan: Plan, entries: Sequence[EntryValues], folder: Path, may_diverge: bool) -> None:
    """Refuse a comparison that lacks runs: what a study says of the others would be wrong."""
    seeds = {entry["name"]: len(entry["seeds"]) for entry in entries}
    lost = {}
    for way in plan.ways:
        missing = max(0, plan.seeds - seeds[way.name])
        messages = failures(plan, way, folder) if missing else []
        others = [each for each in messages if not (may_diverge and is_divergence(each))]
        known_why = bool(messages) and (len(messages) == missing or not seeds[way.name])
        if missing and (others or not known_why or not may_diverge):
            lost[way.name] = (others or [f"has {seeds[way.name]} of {plan.seeds} runs"])[0]
    if lost:
        name, why = next(iter(lost.items()))
        raise FrontrankError(
            f"{len(lost)} of {len(entries)} settings did not finish, such as {name} ({why}); "
            f"look at the runs in {folder}, then give the command again to continue"
        )


def plain_results(compared: ComparisonResults) -> dict[str, Any]:
    """Return what a study keeps of a comparison, as plain JSON."""
    entries = [
        {
            "name": entry.name,
            "settings": dict(entry.settings),
            "lr": entry.lr if math.isfinite(entry.lr) else None,  # all rates failed
            "seeds": list(entry.seeds),
            "values": {metric: list(values) for metric, values in entry.values.items()},
            "seconds": list(entry.seconds),
            "megabytes": list(entry.megabytes),
            **({"failed": entry.failed} if entry.failed else {}),
        }
        for entry in compared.entries
    ]
    return {"frozen": dict(compared.frozen), "entries": entries}


# Values over seeds


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation over seeds; 0 for the latter if there is only one seed."""
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def percent(values: Sequence[float], planned: int = 0, digits: int = 1) -> str:
    """Return values over seeds as a cell of a table: 62.9 ± 0.5.

    planned: how many seeds were to be trained; if fewer finished, the cell says so. 0: not known

    >>> percent([0.62, 0.64], planned=3)
    '63.0 ± 1.4 (2 of 3 seeds)'
    """
    mean, spread = mean_and_spread(values)
    some = f" ({len(values)} of {planned} seeds)" if len(values) < planned else ""
    return f"{100 * mean:.{digits}f}" + (f" ± {100 * spread:.{digits}f}" if len(values) > 1 else "") + some


def values_by_setting(entries: Sequence[EntryValues], name: str, metric: str, **others: Any) -> dict[Any, list[float]]:
    """Return the values of a metric over seeds by the value of a setting, of entries that finished.

    others: further settings, with _ for the dot ("loss_bins"), that entries must have
    """
    wanted = {key.replace("_", ".", 1): value for key, value in others.items()}
    return {
        entry["settings"][name]: entry["values"][metric]
        for entry in entries
        if entry["values"] and all(entry["settings"].get(key) == value for key, value in wanted.items())
    }


def draw_over(axes: Any, values: Mapping[Any, Sequence[float]], label: str, place: int, *, logarithmic: bool) -> None:
    """Draw a line of means in percent over a setting, with whiskers for the seeds."""
    points = [(x, *mean_and_spread(over_seeds)) for x, over_seeds in sorted(values.items())]
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
        **line_style(place),
    )


def rate_search(chosen: Mapping[str, float | None], lrs: str) -> dict[str, Any] | None:
    """Return how many searches for a learning rate chose the lowest or highest one, beyond which none was tried.

    chosen: by the name of what was searched for, None where all rates failed; lrs: those tried, as `run_comparison`
    takes them. None if there was a single rate, which is no search.

    >>> rate_search({"a": 1e-4, "b": 3e-4}, "1e-4,3e-4,1e-3")["ends"]
    ['a']
    """
    tried = {float(rate) for rate in lrs.split(",")}
    rates = {name: rate for name, rate in chosen.items() if rate is not None}
    if len(tried) < 2 or not rates:
        return None
    return {
        "tried": len(tried),
        "searches": len(rates),
        "lower": sum(rate == min(tried) for rate in rates.values()),
        "higher": sum(rate == max(tried) for rate in rates.values()),
        "ends": [name for name, rate in rates.items() if not min(tried) < rate < max(tried)],
    }


# Differences over seeds


class Gap(NamedTuple):
    """Difference of two means over seeds in points, 100 times what metrics return.

    error: its standard error; freedom: the degrees of freedom of that, 0 where one of both has a single seed
    """

    points: float
    error: float
    freedom: float

    @property
    def reach(self) -> float:
        """Half of the 95 % interval."""
        from scipy.stats import t

        return float(t.ppf(0.975, self.freedom)) * self.error if self.freedom else math.inf

    @property
    def counts(self) -> bool:
        return abs(self.points) > max(LEAST, self.reach)

    @property
    def is_more(self) -> bool:
        return self.counts and self.points > 0

    @property
    def is_less(self) -> bool:
        return self.counts and self.points < 0

    def text(self, digits: int = 1) -> str:
        return f"{self.points:+.{digits}f}" + (f" ± {self.error:.{digits}f}" if self.freedom else " (one seed)")

    def __str__(self) -> str:
        return self.text()


def gap(first: Sequence[float], second: Sequence[float]) -> Gap:
    """Return how much the first is above the second, both over seeds, with Welch's degrees of freedom.

    >>> gap([0.62, 0.64], [0.6, 0.6])
    Gap(points=3.0, error=1.0, freedom=1.0)
    """
    (one, spread), (other, other_spread) = mean_and_spread(first), mean_and_spread(second)
    parts = [(spread**2 / len(first), len(first) - 1), (other_spread**2 / len(second), len(second) - 1)]
    return _sum_gap(one - other, parts)


def gap_of_gaps(one: Gap, other: Gap) -> Gap:
    """Return how much the first difference is above the second."""
    parts = [((each.error / 100) ** 2, each.freedom) for each in (one, other)]
    return _sum_gap((one.points - other.points) / 100, parts)


def mean_of_gaps(gaps: Sequence[Gap]) -> Gap:
    """Return the mean of several differences, which are taken to be independent of each other."""
    parts = [((each.error / 100 / len(gaps)) ** 2, each.freedom) for each in gaps]
    return _sum_gap(sum(each.points for each in gaps) / len(gaps) / 100, parts)


def _sum_gap(difference: float, parts: Sequence[tuple[float, float]]) -> Gap:
    """parts: the squared standard errors that add up, and the degrees of freedom of each"""
    whole, freedom = sum(square for square, _ in parts), float(min(own for _, own in parts))
    if freedom and whole:
        freedom = whole**2 / sum(square**2 / own for square, own in parts)
    return Gap(round(100 * difference, 6), round(100 * math.sqrt(whole), 6), round(freedom, 6))


def answer(gaps: Sequence[Gap]) -> str:
    """Return whether one thing is better throughout; "not shown" differs from "no".

    >>> answer([gap([0.62, 0.62], [0.6, 0.6])]), answer([gap([0.6, 0.6], [0.62, 0.62])])
    ('yes', 'no, the other way round')
    """
    if all(each.is_more for each in gaps):
        return "yes"
    if all(each.is_less for each in gaps):
        return "no, the other way round"
    return "no" if any(each.is_less for each in gaps) else "not shown"
