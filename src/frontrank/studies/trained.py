"""Studies that train: comparisons of settings on real images, over several seeds, run by the code of `compare`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from frontrank.build import build_images
from frontrank.config import DataConfig
from frontrank.data.image_table import ImageTable
from frontrank.data.splits import hold_out_classes, split_test_classes
from frontrank.jobs.comparison import compare
from frontrank.jobs.comparison_plan import read_plan
from frontrank.reporting.compared import Compared
from frontrank.settings import find_recipe, read_recipe
from frontrank.studies.study import Effort

RECIPE = "emoji-demo"
BUDGET: Mapping[str, str] = {  # of every run on emoji, unless a study says otherwise
    "batches.size": "112",
    "iterations": "80",
    "optimizer.warmup": "20",
    "evaluations": "2",
    "data.validation": "0.2",
    "data.check": "quick",
}
_QUICK: Mapping[str, str] = {"batches.size": "32", "iterations": "4", "optimizer.warmup": "1", "evaluations": "1"}
_QUICK_CLASSES = 60


def emoji(effort: Effort) -> str:
    """The folder of emoji: the one that was given, or one that is built."""
    from frontrank.data.emoji import build_emoji

    if effort.data:
        return effort.data
    classes = _QUICK_CLASSES if effort.quick else None
    return str(build_emoji(effort.work / "emoji", classes=classes, show=effort.show).root)


def training_images(effort: Effort, data: str, held_out: float = float(BUDGET["data.validation"])) -> ImageTable:
    """The images that the runs of a comparison learn from: without the classes that choose, and that test."""
    table = build_images(DataConfig(path=data))
    if not len(table.of("test")):
        table = split_test_classes(table, seed=effort.seed)
    return hold_out_classes(table, held_out, effort.seed).of("train")


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
) -> dict[str, Any]:
    """Every run of a comparison, kept in `effort.work`/name, so that what is done is not done again.

    losses, axes, lrs: as --losses, --axis and --lr of frontrank compare; settings: those all runs share, beside BUDGET
    A quick one has the first of the learning rates.

    Gives {"frozen": {metric: value}, "entries": [{"name", "settings", "lr", "seeds", "values": {metric: [...]},
    "seconds", "megabytes"}]}
    """
    shared = {**BUDGET, **(settings or {}), **(_QUICK if effort.quick else {}), "data.path": data}
    shared["seed"] = str(effort.seed)
    seeds, lrs = (1, lrs.partition(",")[0]) if effort.quick else (effort.seeds, lrs)
    plan = read_plan(read_recipe(find_recipe(recipe)), shared, losses=losses, axes=axes, lrs=lrs, seeds=seeds)
    out = effort.work / name
    out.parent.mkdir(parents=True, exist_ok=True)
    return as_plain(compare(plan, out, quiet=effort.show is False))


def as_plain(found: Compared) -> dict[str, Any]:
    """What a study keeps of a comparison."""
    entries = [
        {
            "name": entry.name,
            "settings": dict(entry.settings),
            "lr": entry.lr,
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


def percent(values: Sequence[float]) -> str:
    """Values over seeds as a cell of a table: 62.9 ± 0.5."""
    mean, spread = mean_and_spread(values)
    return f"{100 * mean:.1f}" + (f" ± {100 * spread:.1f}" if len(values) > 1 else "")


def work_folder(effort: Effort, name: str) -> Path:
    """Where a measurement that is no comparison keeps what it has."""
    folder = effort.work / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
