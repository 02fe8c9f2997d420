"""Studies that train: comparisons of settings on real images, over several seeds, run by the code of `compare`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from frontrank.comparison.plan import Plan, read_plan
from frontrank.comparison.results import Compared, failures
from frontrank.comparison.runner import compare
from frontrank.comparison.tasks import DIVERGED, Job, chosen_lr, read_stored
from frontrank.data.splits import hold_out_classes, split_test_classes
from frontrank.data.table import ImageTable
from frontrank.errors import FrontrankError
from frontrank.settings import DataConfig, find_recipe, read_recipe
from frontrank.training.run import build_images
from studies.study import Effort

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
_QUICK: Mapping[str, str] = {"batches.size": "32", "iterations": "4", "optimizer.warmup": "1", "evaluations": "1"}
_QUICK_CLASSES = 60


def budget_steps(effort: Effort) -> int:
    """The steps of every run, unless a study says otherwise."""
    return int((_QUICK if effort.quick else BUDGET)["iterations"])


def emoji(effort: Effort) -> str:
    """The folder of emoji: the one that was given, or one that is built."""
    from frontrank.samples.emoji import build_emoji

    if effort.data:
        return effort.data
    classes = _QUICK_CLASSES if effort.quick else None
    return str(build_emoji(effort.work / "emoji", classes=classes, show=effort.show).root)


def training_images(effort: Effort, data: str, held_out: float = float(BUDGET["data.validation"])) -> ImageTable:
    """The images that the runs of a comparison learn from: without the classes that choose, and that test."""
    return hold_out_classes(split_images(effort, data), held_out, effort.seed).of("train")


def split_images(effort: Effort, data: str) -> ImageTable:
    """All images, with the classes that test: those of the table, or as a comparison draws them where it has none."""
    table = build_images(DataConfig(path=data))
    return table if len(table.of("test")) else split_test_classes(table, seed=effort.seed)


def trained(
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
    """Every run of a comparison, kept in `effort.work`/name, so that what is done is not done again.

    losses, axes, lrs: as --losses, --axis and --lr of frontrank compare; settings: those all runs share, beside BUDGET
    may_diverge: runs that diverge are a finding, without values; else they are an error, as any other failure is
    A quick one has the first of the learning rates.

    Gives {"frozen": {metric: value}, "entries": [{"name", "settings", "lr", "seeds", "values": {metric: [...]},
    "seconds", "megabytes", "planned"}]}; planned: the number of seeds, of which "seeds" are those that came to an end
    """
    shared = {**BUDGET, **(settings or {}), **(_QUICK if effort.quick else {}), "data.path": data}
    shared["seed"] = str(effort.seed)
    seeds, lrs = (1, lrs.partition(",")[0]) if effort.quick else (effort.seeds, lrs)
    plan = read_plan(read_recipe(find_recipe(recipe)), shared, losses=losses, axes=axes, lrs=lrs, seeds=seeds)
    out = effort.work / name
    out.parent.mkdir(parents=True, exist_ok=True)
    found = as_plain(compare(plan, out, quiet=effort.show is False))
    _require_all(plan, found["entries"], out, may_diverge)
    for entry in found["entries"]:
        entry["planned"] = plan.seeds
    return found


def trained_models(effort: Effort, name: str) -> list[Path]:
    """The networks of a comparison of one way to train, by seed."""
    out = effort.work / name
    plan, _ = read_stored(out)
    (way,) = plan.ways
    lr = chosen_lr(way, out)
    if lr is None:
        raise FrontrankError(f"{out} has no network, as no learning rate was chosen; give the command again")
    return [Job(way, lr, seed).folder(out) / "model" for seed in range(plan.seeds)]


def _require_all(plan: Plan, entries: Sequence[Mapping[str, Any]], folder: Path, may_diverge: bool) -> None:
    """Refuse a comparison that lacks runs: what a study says of the others would be wrong."""
    have = {entry["name"]: len(entry["seeds"]) for entry in entries}
    lost = {}
    for way in plan.ways:
        missing = max(0, plan.seeds - have[way.name])
        said = failures(plan, way, folder) if missing else []
        diverged = [DIVERGED in each for each in said]
        known_why = bool(said) and (len(said) == missing or not have[way.name])
        if missing and not (may_diverge and all(diverged) and known_why):
            others = [each for each, known in zip(said, diverged, strict=True) if not (known and may_diverge)]
            lost[way.name] = (others or [f"has {have[way.name]} of {plan.seeds} runs"])[0]
    if lost:
        name, why = next(iter(lost.items()))
        raise FrontrankError(
            f"{len(lost)} of {len(entries)} ways to train did not come to an end, such as {name} ({why}); "
            f"look at the runs in {folder}, and give the command again, which goes on"
        )


def as_plain(found: Compared) -> dict[str, Any]:
    """What a study keeps of a comparison."""
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
        for entry in found.entries
    ]
    return {"frozen": dict(found.frozen), "entries": entries}


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds; that of a single one is 0."""
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def percent(values: Sequence[float], planned: int = 0) -> str:
    """Values over seeds as a cell of a table: 62.9 ± 0.5.

    planned: how many seeds were to be trained; where fewer came to an end, the cell says so. 0: not known

    >>> percent([0.62, 0.64], planned=3)
    '63.0 ± 1.4 (2 of 3 seeds)'
    """
    mean, spread = mean_and_spread(values)
    some = f" ({len(values)} of {planned} seeds)" if len(values) < planned else ""
    return f"{100 * mean:.1f}" + (f" ± {100 * spread:.1f}" if len(values) > 1 else "") + some


def work_folder(effort: Effort, name: str) -> Path:
    """Where a measurement that is no comparison keeps what it has."""
    folder = effort.work / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def at_an_end(chosen: Mapping[str, float | None], lrs: str) -> str:
    """A sentence on how many searches for a learning rate chose the lowest or highest one, beyond which none was tried.

    chosen: by the name of what was searched for, None where all rates failed; lrs: those tried, as `trained` takes them
    A single rate is no search, and gives nothing to say; of two, each is an end.

    >>> at_an_end({"a": 1e-4, "b": 3e-4}, "1e-4,3e-4,1e-3")
    'Of 2 searches for a learning rate, 1 chose the lowest or the highest of 3 tried, so these could still gain: a.'
    """
    tried = {float(rate) for rate in lrs.split(",")}
    rates = {name: rate for name, rate in chosen.items() if rate is not None}
    if len(tried) < 2 or not rates:
        return ""
    if len(tried) == 2:
        lower = sum(rate == min(tried) for rate in rates.values())
        chose = f"{lower} chose the lower, {len(rates) - lower} the higher"
        return f"Only two learning rates were tried, so none is known to be the best: {chose}."
    ends = [name for name, rate in rates.items() if not min(tried) < rate < max(tried)]
    many, so = str(len(ends)), f", so these could still gain: {'; '.join(ends)}"
    if not ends:
        many, so = "none", ""
    elif len(ends) == len(rates):
        many, so = "all", ", so all could still gain"
    searches = f"Of {len(rates)} searches for a learning rate, {many}"
    return f"{searches} chose the lowest or the highest of {len(tried)} tried{so}."
