"""Settings that are left to a run ("auto"): chosen by the images, the network, and the speed and memory of the machine.

The figures behind them are in docs/defaults.md.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.data.table import ImageTable
from frontrank.errors import InputError
from frontrank.files import PathLike
from frontrank.machine import free_memory
from frontrank.models import Embedder
from frontrank.models.backbone import module_mode
from frontrank.pictures.decode import image_size
from frontrank.settings import AUTO, BatchConfig, DataConfig, ModelConfig, OptimizerConfig, TrainConfig
from frontrank.training import distributed

_SMALL_IMAGE = 160  # pixels of the shorter side: such images show their subject whole, and are not cropped
_BATCHES = (112, 448)  # the least and the most images of a batch
_SECONDS_PER_STEP = 15.0
_STEPS_OF_A_BUDGET = 80  # that a run of some minutes has at least, if its batches can be smaller
_PER_CLASS = 4
_FEW = 128  # images of a batch, where classes are too few for that with 4 images each
_EPOCHS, _LEAST_STEPS = 20, 200
_USABLE_MEMORY = 0.8  # of the free memory; the rest is for the working space of single operations
_TRIED_IMAGES, _TIMED_IMAGES = 32, 16  # whose sides are read; of a step that is timed
_WARMUP = 0.05
_LARGE = 80_000_000  # weights
_RATES = {"convolution": (3e-4, 10.0), "transformer": (3e-5, 10.0)}  # lr at a batch of 448, and head_lr
_LORA = 10.0  # times the rate of a backbone
_TEMPERATURES = (0.02, 0.05)  # for many classes and for few
_MANY_CLASSES = 100


def plain_settings(config: TrainConfig) -> TrainConfig:
    """Return settings that are "auto" as values that need no look at images or network.

    A comparison begins with these, so that all ways to train share them. The head and the steps are left to each run.
    """
    data, batches, model, optimizer = config.data, config.batches, config.model, config.optimizer
    lr, head_lr = _RATES["convolution"]
    return replace(
        config,
        data=_fill(data, augment="crop", flip=True),
        batches=_fill(batches, per_class=_PER_CLASS, chunk=0),
        model=fill_reading(model),
        optimizer=_fill(optimizer, lr=lr * math.sqrt(_BATCHES[0] / _BATCHES[1]), head_lr=head_lr, warmup=0),
        epochs=_EPOCHS if config.epochs == AUTO else config.epochs,
        precision="float32" if config.precision == AUTO else config.precision,
        channels_last=False if config.channels_last == AUTO else config.channels_last,
    )


def fill_reading(config: ModelConfig) -> ModelConfig:
    """Return the settings with features as the network's authors meant them where stage and pooling are not set."""
    filled: ModelConfig = _fill(config, stage=0, pooling="native")
    return filled


def _fill(config: Any, **values: Any) -> Any:
    """Return settings with these values in place of "auto"."""
    return replace(config, **{name: value for name, value in values.items() if getattr(config, name) == AUTO})


# By the images


def fill_resize(config: DataConfig, table: ImageTable, seed: int) -> DataConfig:
    """Choose not to crop small images, if the size before the crop is not set; for others the model chooses it."""
    if config.resize != AUTO:
        return config
    sides = _short_sides(table, seed)
    small = bool(sides) and float(np.median(sides)) < _SMALL_IMAGE
    return replace(config, resize=config.size) if small else config


def _short_sides(table: ImageTable, seed: int) -> list[int]:
    """Return the shorter side of a few images; images that cannot be read are found later."""
    sides = []
    for row in np.random.default_rng(seed).permutation(len(table))[:_TRIED_IMAGES]:
        with suppress(InputError):
            sides.append(min(image_size(table.files()[row])))
    return sides


def fill_augmentation(config: DataConfig, pooling: str) -> DataConfig:
    """Choose how images vary: not at all where it matters what is where, else by a crop, or shifts of small images."""
    aligned = pooling == "flat"
    vary = "none" if aligned else "crop" if config.resize == AUTO or config.resize > config.size else "shift"
    return _fill(config, augment=vary, flip=not aligned)


def fill_batches(config: BatchConfig, table: ImageTable, most: int = _BATCHES[0]) -> BatchConfig:
    """Choose images per class and the size of a batch, if they are not set; most: images of a batch."""
    counts = np.unique(table.first_labels(), return_counts=True)[1]
    if config.per_class == AUTO:
        few = config.kind == "balanced" and _PER_CLASS * len(counts) < _FEW
        each = max(_PER_CLASS, min(_FEW // len(counts), int(np.median(counts)))) if few else _PER_CLASS
        if config.size and config.size % each:
            each = next((number for number in (4, 3, 2) if config.size % number == 0), _PER_CLASS)
        config = replace(config, per_class=each)
    if config.size:
        if config.kind == "balanced" and config.size % config.per_class:
            raise InputError(f"batches.size {config.size} is not a multiple of 2, 3 or 4; make it one")
        return config
    per_class = config.per_class or _PER_CLASS
    fits = len(table) if config.kind == "all-classes" else len(counts) * per_class
    return replace(config, size=min(most, fits) // per_class * per_class)


def fill_temperature(config: TrainConfig, classes: int) -> TrainConfig:
    """Choose the temperature of the loss by the number of classes, if it has one and none was given."""
    loss = config.loss
    if "temperature" not in loss.arguments() or "temperature" in loss.settings:
        return config
    many, few = _TEMPERATURES
    temperature = many if classes >= _MANY_CLASSES else few
    return replace(config, loss=type(loss)(loss.name, {**loss.settings, "temperature": temperature}))


def fill_alpha(config: TrainConfig, images_per_class: float) -> TrainConfig:
    """Choose alpha of PNP-D_q by the images of a class in a batch, if it was not given.

    Its slope reaches positives with up to about 1 / alpha negatives before them. With 4 images per class that is one of
    three positives, often; with dozens only a few of them learn, unless alpha is smaller.
    """
    loss = config.loss
    if loss.name != "PNP" or loss.all_settings()["variant"] != "D_q" or "alpha" in loss.settings:
        return config
    default = loss.all_settings()["alpha"]
    alpha = max(1.0, float(f"{default * min(1.0, (_PER_CLASS - 1) / max(1, images_per_class - 1)):.2g}"))
    if alpha == default:
        return config
    return replace(config, loss=type(loss)(loss.name, {**loss.settings, "alpha": alpha}))


# By the network and the machine


def family(model: Embedder) -> str:
    """Return the kind of a backbone that learning rates depend on: "convolution" or "transformer".

    >>> family(Embedder("test_resnet", image_size=64)), family(Embedder("test_vit", image_size=160))
    ('convolution', 'transformer')
    """
    kinds = [type(each).__name__.lower() for each in model.backbone.modules()]
    attention = any("attention" in kind or "attn" in kind for kind in kinds)
    normalised = any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in model.backbone.modules())
    return "transformer" if attention and not normalised else "convolution"


def fill_device(config: TrainConfig, model: Embedder, device: torch.device) -> TrainConfig:
    """Choose precision and memory layout by the device and the family of the backbone, if they are not set."""
    half = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    layout = _is_faster_with_channels_last(model, device)
    filled: TrainConfig = _fill(config, precision="bf16" if half else "float32", channels_last=layout)
    return filled


def _is_faster_with_channels_last(model: Embedder, device: torch.device) -> bool:
    return device.type in ("cpu", "cuda") and family(model) == "convolution"


def load_model(path: PathLike, device: str | torch.device = "cpu") -> Embedder:
    """Load a saved model, in evaluation mode and the memory layout that suits it."""
    model = Embedder.load(path, device=device)
    return (
        model.to(memory_format=torch.channels_last)
        if _is_faster_with_channels_last(model, torch.device(device))
        else model
    )


def fill_rates(config: OptimizerConfig, model: Embedder, batch: int, lora: bool = False) -> OptimizerConfig:
    """Choose learning rates by the family of the backbone and the size of a batch, if they are not set.

    lora: low-rank updates are trained in place of the backbone: they learn faster, the head as fast as ever
    """
    lr, head_lr = _RATES[family(model)]
    if lora:
        lr, head_lr = lr * _LORA, head_lr / _LORA
    large = sum(each.numel() for each in model.backbone.parameters()) > _LARGE
    lr = float(f"{lr * (0.5 if large else 1) * math.sqrt(batch / _BATCHES[1]):.2g}")
    return _fill(config, lr=lr, head_lr=head_lr)


def fill_chunk(config: BatchConfig, model: Embedder, size: int, device: torch.device) -> BatchConfig:
    """Choose how many images are in memory at once, if that is not set: the whole batch (0) if it fits."""
    if config.chunk != AUTO:
        return config
    own = math.ceil(config.size / distributed.world_size())
    fit = images_that_fit(model, torch.zeros(2, 3, size, size, device=device), device)[1]
    fit = min(distributed.gather_objects(own if fit is None else fit))
    return replace(config, chunk=0 if own <= fit else max(1, fit))


def images_per_second(model: Embedder, size: int, device: torch.device) -> float:
    """Return how many images a training step takes per second, without reading them; the same in all processes."""
    images = torch.zeros(_TIMED_IMAGES, 3, size, size, dtype=torch.uint8, device=device)
    with unchanged_state(model):
        for _ in range(2):  # the first one is slower
            started = time.monotonic()
            model(images).sum().backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.monotonic() - started
    model.zero_grad(set_to_none=True)
    return float(distributed.from_main(_TIMED_IMAGES * distributed.world_size() / max(seconds, 1e-6)))


def largest_batch(speed: float, minutes: float) -> int:
    """Return the most images of a batch at a speed (images per second), for a run of some minutes if they are set."""
    seconds = min(_SECONDS_PER_STEP, minutes * 60 / _STEPS_OF_A_BUDGET) if minutes else _SECONDS_PER_STEP
    least, most = _BATCHES
    return int(min(max(speed * seconds, least), most))


# Steps


def fill_steps(config: TrainConfig, batches_per_epoch: int) -> TrainConfig:
    """Choose the number of steps by epochs, and the warm-up by the number of steps, if they are not set."""
    if config.iterations or config.epochs != AUTO:
        epochs = 1 if config.epochs == AUTO else config.epochs  # beside iterations it has no meaning
    else:
        of_epoch = batches_per_epoch / config.batches.accumulate
        steps = max(_LEAST_STEPS, math.ceil(_EPOCHS * of_epoch))
        epochs = max(1, round(steps / of_epoch))
        config = replace(config, iterations=steps)
    return fill_warmup(replace(config, epochs=epochs), batches_per_epoch)


def fill_warmup(config: TrainConfig, batches_per_epoch: int) -> TrainConfig:
    """Choose the steps in which the learning rate rises, if they are not set."""
    steps = config.iterations or math.ceil(config.epochs * batches_per_epoch / config.batches.accumulate)
    return replace(config, optimizer=_fill(config.optimizer, warmup=math.ceil(_WARMUP * steps)))


def steps_in(seconds: float, per_step: float, per_evaluation: float, evaluations: int) -> tuple[int, int]:
    """Return how many steps and evaluations fit into some seconds; evaluations take a fifth of them at most.

    >>> steps_in(100, per_step=0.5, per_evaluation=1.0, evaluations=10)
    (180, 10)
    >>> steps_in(100, per_step=0.5, per_evaluation=10.0, evaluations=10)
    (160, 2)
    """
    evaluations = max(1, min(evaluations, int(0.2 * seconds / max(per_evaluation, 1e-6))))
    steps = int((seconds - evaluations * per_evaluation) / max(per_step, 1e-6))
    return max(evaluations, steps, 1), evaluations


# Trials: how many images fit


def bytes_per_image(model: nn.Module, images: Tensor) -> int:
    """Return the bytes that a forward pass in training keeps for its backward pass, for one of these images.

    A tensor that is kept several times counts once; weights do not count.
    """
    weights = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # or an address could be used twice

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with module_mode(model, training=True), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model(images)
    return sum(sizes.values()) // len(images)


@contextmanager
def unchanged_state(model: nn.Module) -> Iterator[None]:
    """Undo what a trial does to buffers, such as running means, and to random numbers: it must not change a run."""
    buffers = {name: each.clone() for name, each in model.named_buffers()}
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for name, each in model.named_buffers():
            each.copy_(buffers[name])


def images_that_fit(model: nn.Module, images: Tensor, device: torch.device) -> tuple[int, int | None]:
    """Return the bytes per image of a training step, and how many images fit beside weights, gradient and optimizer.

    This is an estimate: it does not know the working space of single operations.
    """
    with unchanged_state(model):
        each = bytes_per_image(model, images)
    free = free_memory(device)
    if free is None:
        return each, None
    state = 3 * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return each, max(0, int((_USABLE_MEMORY * free - state) // max(1, each)))
