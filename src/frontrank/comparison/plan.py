"""The plan of a comparison: losses by name or values of settings, learning rates and seeds, all checked."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from frontrank.checks import check_choice, check_integer, check_number, suggestion
from frontrank.errors import InputError
from frontrank.losses import registry
from frontrank.reporting.run import path_name
from frontrank.settings import TrainConfig, check_config, read_config, settings, value_of, values_of
from frontrank.training.defaults import plain_settings
from frontrank.training.run import build_loss, with_whole_paths

DEFAULT_LOSSES = "PNP-D_q,PNP-D_s,SmoothAP,FastAP,QuantizedAP,BlackboxRecall-loglog,contrastive,triplet"


def parse_loss(text: str) -> dict[str, str]:
    """Return the settings that a loss on the command line stands for, as words.

    >>> parse_loss("PNP-D_q(alpha=2)")
    {'loss.name': 'PNP', 'loss.variant': 'D_q', 'loss.alpha': '2'}
    """
    match = re.fullmatch(r"([^()]+?)\s*(?:\((.*)\))?", text.strip(), re.DOTALL)
    if match is None:
        raise InputError(f"--losses {text!r} cannot be read; write NAME or NAME(setting=value,setting=value)")
    name, inside = match[1], match[2] or ""
    is_name = name in registry.LOSSES or name.startswith(registry.PEERS)
    preset = registry.presets().get(name, {"name": name} if is_name else {})
    if not preset:
        near = suggestion(name, [*registry.presets(), *registry.LOSSES], 0.4) or f"; there are {_all_names()}"
        raise InputError(f"--losses: there is no loss {name!r}{near}")
    words = {f"loss.{key}": value for key, value in preset.items() if key != "options"}
    options = dict(preset.get("options", {}))
    for part in split_list(inside):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise InputError(f"--losses {text!r}: {part!r} is no setting; write NAME(setting=value)")
        if words["loss.name"].startswith(registry.PEERS) and key != "miner":
            options[key] = value
        elif f"loss.{key}" not in settings():
            names = ", ".join(each.removeprefix("loss.") for each in settings_of(words))
            raise InputError(f"--losses {text!r}: there is no setting {key!r}; {name} has {names}")
        else:
            words[f"loss.{key}"] = value
    if options:
        words["loss.options"] = "{" + ", ".join(f"{key}: {value}" for key, value in options.items()) + "}"
    return words


def settings_of(words: Mapping[str, str]) -> list[str]:
    """Return the settings of a loss by their full names; words: as of `parse_loss`."""
    parts = {part: words.get(f"loss.{part}") for part in registry.PARTS}
    return [f"loss.{name}" for name in registry.arguments(words["loss.name"], parts)]


def _all_names() -> str:
    return f"{', '.join(registry.presets())}, and {registry.PEERS}NAME"


def split_list(text: str) -> list[str]:
    """The parts between commas, but for those within brackets.

    >>> split_list("PNP-D_q(alpha=2,b=3), triplet")
    ['PNP-D_q(alpha=2,b=3)', 'triplet']
    """
    parts, depth = [""], 0
    for mark in text:
        depth += (mark in "([{") - (mark in ")]}")
        if mark == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += mark
    return [part.strip() for part in parts if part.strip()]


# The plan

_OF_THE_LOSS = (  # what a name stands for
    *("loss.name", "loss.variant", "loss.weighting", "loss.options", "loss.miner"),
    *("loss.metric", "loss.relaxation"),
)
_OF_THE_TABLE = ("path", "layout", "test", "validation", "merge_classes", "allow_partial", "broken", "check")
_USED_BY = {  # settings that have an effect only where another one has one of these values
    "loss.alpha": ("loss.variant", "D_q"),
    "loss.b": ("loss.variant", "I_b"),
    "optimizer.gamma": ("optimizer.schedule", "multistep"),
    "optimizer.milestones": ("optimizer.schedule", "multistep"),
    "optimizer.momentum": ("optimizer.name", "sgd"),
    "batches.categories": ("batches.kind", "categories"),
    "batches.per_group": ("batches.kind", "categories"),
    "batches.groups": ("batches.kind", "categories"),
}
_NO_AXES = {
    "loss.name": "give --losses",
    "seed": "give --seeds",
    "device": "compare on one device",
    "metric": "it chooses among all of them",
    **{f"data.{name}": "all ways to train see the same images; make a comparison for each" for name in _OF_THE_TABLE},
}


@dataclass(frozen=True)
class Way:
    """One way to train; settings: those that differ from the base; a single learning rate is not searched for."""

    name: str
    folder: str
    settings: Mapping[str, Any]
    lrs: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """The plan of a comparison.

    base:         the settings that all ways share, with the data as the user gave them
    axes:         the settings that vary, none where the losses do
    search_steps: of a search for the learning rate; 0 is the whole budget, and then its runs count as those of a seed
    """

    base: TrainConfig
    ways: tuple[Way, ...]
    axes: tuple[str, ...]
    seeds: int
    search_steps: int
    reference: str = ""

    @property
    def title(self) -> str:
        """What varies, and on which data."""
        losses = self.losses
        of_losses = f"{len(losses)} loss{'es' * (len(losses) > 1)}"
        what = ", ".join(self.axes) + f" of {of_losses}" * (len(losses) > 1) if self.axes else of_losses
        return f"{what} on {path_name(self.base.data.path)}"

    @property
    def losses(self) -> list[str]:
        """Names of the losses; without axes those are the names of the ways."""
        return list(dict.fromkeys(loss_of_way(way.name, self.axes) for way in self.ways))

    def config(self, way: Way, lr: float, seed: int, table: Path, *, search: bool = False) -> TrainConfig:
        """Return the settings of one run. table: of the images with their splits, which all runs share."""
        base = _plain(self.base)
        if "loss.name" in way.settings:
            base = _without_loss(base)
        config = self.config_on(table, read_config({**base, **way.settings}))
        if search and self.search_steps:
            config = replace(config, iterations=self.search_steps)
        return replace(config, seed=self.base.seed + seed, optimizer=replace(config.optimizer, lr=lr))

    def first_config(self, way: Way, lr: float | None = None) -> TrainConfig:
        """Return the settings of a way's first run, on any table, to check them."""
        return self.config(way, lr or way.lrs[0], 0, Path("images.csv"))

    def config_on(self, table: Path, config: TrainConfig | None = None) -> TrainConfig:
        """Return settings, by default those of the base, for images that are split, merged and checked already."""
        config = config or self.base
        own: dict[str, Any] = {"path": str(table), "layout": "table", "test": 0.0, "merge_classes": 1, "check": "none"}
        return replace(config, data=replace(config.data, **own))

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON holds it."""
        stored = {name: value for name, value in asdict(self).items() if name != "base"}
        return {"settings": _plain(self.base), **stored}

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> "Plan":
        """Return the plan that `as_json` stored."""
        ways = tuple(Way(**{**way, "lrs": tuple(way["lrs"])}) for way in plan["ways"])
        base = read_config(plan["settings"])
        return cls(base, ways, tuple(plan["axes"]), plan["seeds"], plan["search_steps"], plan["reference"])


def read_plan(
    recipe: Mapping[str, Any] | None,
    overrides: Mapping[str, str],
    *,
    losses: str | None = None,
    axes: Sequence[str] = (),
    lrs: str | None = None,
    seeds: int = 3,
    search_steps: int = 0,
    reference: str = "",
) -> Plan:
    """Read a plan from a command line, and check every way to train.

    recipe, overrides: as in `read_config`; those of the loss go to all losses that have them
    losses: names, with commas; by default one of each family, or with axes the loss of the settings
    axes:   "loss.temperature=0.001,0.01"; several make a grid
    lrs:    learning rates to choose from, with commas; by default optimizer.lr / 3, itself, and times 3
    """
    check_integer("--seeds", seeds, at_least=1)
    check_integer("--search-iterations", search_steps, at_least=0)
    grid = _grid(axes)
    if lrs is not None and "optimizer.lr" in overrides:
        raise InputError("--optimizer.lr has no effect beside --lr, which gives the learning rates; leave one out")
    recipe = dict(recipe or {})
    if losses is None and not grid:
        losses = DEFAULT_LOSSES
    base, configs = _read_losses(recipe, overrides, losses)
    if base.minutes:
        raise InputError("minutes does not go with a comparison, whose runs take as many steps; give iterations")
    base = with_whole_paths(base)
    rates = _rates(lrs, base)
    ways = [
        _way(base, name, config, point, rates, len(configs) == 1)
        for (name, config), point in itertools.product(configs, grid or [{}])
    ]
    _refuse_twice("--losses" if losses else "--axis", [way.name for way in ways])
    ways = [replace(way, folder=f"{place:02d}-{way.folder}") for place, way in enumerate(ways, 1)]
    plan = Plan(base, tuple(ways), tuple(grid[0]) if grid else (), seeds, search_steps, reference)
    _check_plan(plan)
    return plan


def _read_losses(
    recipe: Mapping[str, Any], overrides: Mapping[str, str], losses: str | None
) -> tuple[TrainConfig, list[tuple[str, TrainConfig]]]:
    """Return the base without a loss, and per loss its name and all settings; losses None: that of the settings."""
    if losses is None:
        base = plain_settings(read_config(recipe, overrides))
        return base, [("", base)]
    for name in _OF_THE_LOSS:
        if name in overrides:
            raise InputError(f"--{name} does not go with several losses; write it in --losses, as NAME(setting=value)")
    shared = {name: value for name, value in overrides.items() if name.startswith("loss.")}
    base = plain_settings(read_config(_without_loss(recipe), _without_loss(overrides)))
    of_recipe = {k: v for k, v in recipe.items() if k.startswith("loss.") and k not in _OF_THE_LOSS and v is not None}
    given = _without_loss(_plain(base))
    configs: list[tuple[str, TrainConfig]] = []
    used: set[str] = set()
    for text in split_list(losses):
        words = parse_loss(text)
        has = settings_of(words)
        mine = {name: value for name, value in shared.items() if name in has}
        used |= mine.keys()
        config = read_config({**given, **{k: v for k, v in of_recipe.items() if k in has}}, {**mine, **words})
        configs.append((text, config))
    if unused := [name for name in shared if name not in used]:
        raise InputError(f"--{unused[0]} is not a setting of any of the losses; leave it out")
    if not configs:
        raise InputError(f"--losses is empty; there are {_all_names()}")
    return base, configs


def _without_loss(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if not name.startswith("loss.")}


def _way(
    base: TrainConfig, name: str, config: TrainConfig, point: Mapping[str, str], rates: tuple[float, ...], single: bool
) -> Way:
    """Return the way of a loss and a point of the grid."""
    if point:
        config = read_config(_plain(config), point)
        _refuse_unused(name or config.loss.name, config, point)
        place = ", ".join(f"{key}={value}" for key, value in point.items())
        name = place if single else f"{name}, {place}"
    shared, own = _plain(base), _plain(config)
    is_loss = bool(name) and not (point and single)
    changed = {
        key: value
        for key, value in own.items()
        if key != "data.path" and (value != shared.get(key) or (is_loss and key.startswith("loss.")))
    }
    changed |= {key: own.get(key, value_of(config, key)) for key in point}
    folder = re.sub(r"[^\w.=+-]+", "-", name).strip("-")[:60]
    return Way(name, folder, changed, (config.optimizer.lr,) if "optimizer.lr" in point else rates)


def _refuse_unused(name: str, config: TrainConfig, point: Mapping[str, str]) -> None:
    """Raise for an axis without effect: all its values would train the same model."""
    for axis in point:
        other, needed = _USED_BY.get(axis, ("", ""))
        if other and (other != "loss.variant" or config.loss.name == "PNP") and value_of(config, other) != needed:
            remedy = f"--losses PNP-{needed}" if other == "loss.variant" else f"--{other} {needed}"
            why = f"has no effect on {name} with {other} {value_of(config, other)}"
            raise InputError(f"--axis {axis} {why}; leave it out, or give {remedy}")


def loss_of_way(name: str, axes: Sequence[str]) -> str:
    """Return the loss of a way, whose name ends with the values of axes."""
    return name.split(f"{axes[0]}=")[0].removesuffix(", ") if axes else name


def _grid(axes: Sequence[str]) -> list[dict[str, str]]:
    """Return every point of the grid: the value of each axis, as a word."""
    values: dict[str, list[str]] = {}
    for axis in axes:
        name, equals, listed = axis.partition("=")
        name = name.strip().removeprefix("--")
        words = split_list(listed)
        if not equals or not words:
            raise InputError(f"--axis {axis!r} has no values; write --axis loss.temperature=0.001,0.01,0.1")
        if name in _NO_AXES:
            raise InputError(f"--axis {name} cannot vary in a comparison; {_NO_AXES[name]}")
        if name in values:
            raise InputError(f"--axis {name} is given twice; give all values in one")
        _refuse_twice(f"--axis {name}", words)
        values[name] = words
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())] if values else []


def _rates(lrs: str | None, base: TrainConfig) -> tuple[float, ...]:
    if lrs is None:
        return tuple(float(f"{base.optimizer.lr * factor:.2g}") for factor in (1 / 3, 1, 3))
    try:
        rates = [float(word) for word in split_list(lrs)]
    except ValueError:
        raise InputError(f"--lr takes numbers with commas, such as 1e-4,3e-4,1e-3, got {lrs!r}") from None
    for rate in rates:
        check_number("--lr", rate, above=0)
    if not rates:
        raise InputError("--lr is empty; write --lr 1e-4,3e-4,1e-3, or leave it out")
    _refuse_twice("--lr", [f"{lr:g}" for lr in rates])
    return tuple(sorted(rates))


def _check_plan(plan: Plan) -> None:
    """Raise now for what would fail only when its run starts."""
    if plan.reference:
        check_choice("--reference", plan.reference, [way.name for way in plan.ways])
    if plan.search_steps and plan.base.optimizer.schedule == "multistep":
        raise InputError("--search-iterations does not go with milestones, which count from the start; leave it out")
    for way in plan.ways:
        for lr in way.lrs:
            config = plan.first_config(way, lr)
            with errors_of_way(way.name):
                check_config(config)
                build_loss(config.loss, 2, 2)


@contextmanager
def errors_of_way(name: str) -> Iterator[None]:
    """Let errors begin with the name of a way, unless it is ""."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}" if name else str(error)) from error


def _refuse_twice(what: str, names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{what} has {twice[0]} twice; leave one out")


def _plain(config: TrainConfig) -> dict[str, Any]:
    """Return settings as JSON holds them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values_of(config).items()}
