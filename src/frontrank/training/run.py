"""A training run: from settings to objects, its folder, and how it starts and continues."""

import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.checks import format_count
from frontrank.data.images import write_report
from frontrank.data.loading import training_loader
from frontrank.data.samplers import AllClassesBatches, BalancedBatches, CategoryBatches, EpochBatches
from frontrank.data.table import ImageTable
from frontrank.data.transforms import training_transform
from frontrank.errors import FrontrankWarning, InputError
from frontrank.evaluation import ap_error, evaluate
from frontrank.evaluation.evaluate import has_small_levels
from frontrank.evaluation.measures import BY_LEVEL, OF_LEVELS, read_metrics
from frontrank.files import atomic_write, load_json
from frontrank.losses import FastAP, QuantizedAP, RankLoss, registry
from frontrank.models import Embedder
from frontrank.models.fine_tuning import block_depths, check_train, count_parameters, prepare_training
from frontrank.models.weights import WORDS, published_images
from frontrank.settings import (
    AUTO,
    BatchConfig,
    Config,
    DataConfig,
    LossConfig,
    ModelConfig,
    TrainConfig,
    as_yaml,
    check_config,
    read_config,
    read_recipe,
)
from frontrank.training import defaults, distributed
from frontrank.training.checkpoints import latest_checkpoint
from frontrank.training.embedding import PRECISIONS, embed_table
from frontrank.training.first_model import Reading, choose_reading, start_head
from frontrank.training.gradient import SharedLabels, Step, step_gradient
from frontrank.training.images import RunImages, build_images, check_run_images, leave_out, split_images, table_digest
from frontrank.training.logs import check_trackers
from frontrank.training.loop import Budget, Run, Standing, count_steps, restore, train_loop
from frontrank.training.memory import EmbeddingMemory
from frontrank.training.optimizers import build_optimizer, check_warmup
from frontrank.training.peer_losses import peer_loss
from frontrank.version import __version__

_TIMED_STEPS = 3
_MOST_STEPS = 4  # times as many as fit by the first measurement: it may have been slowed down by other work
_AHEAD_BYTES = 1 << 30  # of images that are read ahead of their batch
_OF_CLASSES = 0.01  # of the variance of R@1 of an image: that of the gain of a class
_LEVEL_PAIRS = 1_000_000  # of a coarse level that is measured in each epoch without being asked for: some seconds
_PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "pytorch-metric-learning")
_START_FILES = {"run.json", "images.csv", "broken.csv", "scenes.csv"}  # written before config.yaml
_CHANGEABLE = (
    "epochs",
    "iterations",
    "patience",
    "checkpoint_every",
    "log_every",
    "log",
    "device",
    "data.path",
    "data.workers",
)


# Start and continue


def train(config: TrainConfig, out: str | os.PathLike[str], *, quiet: bool = False) -> Standing:
    """Train a model for retrieval, leave everything in the folder `out`, and return how it went.

    The model is then `fr.Embedder.load(out + "/model")`.
    """
    return start_run(build_run, config, out, quiet)


def resume(out: str | os.PathLike[str], overrides: Mapping[str, str] | None = None, *, quiet: bool = False) -> Standing:
    """Continue the run in `out` from its last checkpoint; only a few of its settings can change."""
    return continue_run(build_run, out, overrides or {}, TrainConfig, quiet)


def start_run(build: Callable[..., Run], config: Any, out: str | os.PathLike[str], quiet: bool) -> Standing:
    """Train in a new folder; build: `build_run`, or that of another kind of run."""
    folder = Path(out)
    require_new(folder)
    with processes(config.device) as device:
        run = build(config, folder, device, quiet=quiet)
        if distributed.is_main():
            make_folder(folder)
            write_facts(folder, run.facts())
            run.write_data()
            # last: a folder with settings is a run that can continue
            atomic_write(folder / "config.yaml", as_yaml(with_whole_paths(run.config)))
        distributed.barrier()
        return _train_to_end(run, Standing())


def continue_run(
    build: Callable[..., Run], out: str | os.PathLike[str], overrides: Mapping[str, str], kind: type[Any], quiet: bool
) -> Standing:
    """Train on from the newest checkpoint; kind: of settings."""
    folder = Path(out)
    config = read_run_config(folder, overrides, kind)
    with processes(config.device) as device:
        run = build(config, folder, device, quiet=quiet)
        standing, randomness = restore(run)
        if distributed.is_main():
            atomic_write(folder / "config.yaml", as_yaml(with_whole_paths(run.config)))
            run.write_data()  # data.path may have changed
            facts = run.facts()
            earlier = read_facts(folder, facts)
            write_facts(folder, {**earlier, "resumed": [*earlier.get("resumed", []), facts]})
        return _train_to_end(run, standing, randomness)


def _train_to_end(run: Run, standing: Standing, randomness: Any = None) -> Standing:
    """Train, save the frozen network if no step is as good, and add the results to run.json."""
    if isinstance(run, RetrievalRun):
        standing.frozen = standing.frozen or run.choices.get("frozen")
    standing = train_loop(run, standing, randomness)
    if distributed.is_main():
        before = {"before": standing.before} if run.evaluate_first else {}
        best = {"best": standing.best, "best_step": standing.best_step}
        results: dict[str, Any] = {"metric": run.metric, "steps": standing.step, **before, **best}
        if isinstance(run, RetrievalRun) and standing.frozen is not None:
            results |= {"frozen": standing.frozen, "frozen is the model": standing.is_frozen_best}
            if standing.is_frozen_best:
                run.save_frozen(standing.frozen)
        write_facts(run.folder, read_facts(run.folder, run.facts()) | results)
    return standing


@contextmanager
def processes(device: str) -> Iterator[torch.device]:
    """Join the other processes that torchrun started, if any, and yield the device of this one."""
    own = not torch.distributed.is_initialized()
    done = False
    try:
        yield distributed.start(distributed.build_device(device))
        done = True
    finally:
        if own:
            distributed.stop(together=done)


# A run of retrieval


@dataclass
class RetrievalRun:
    """A run that trains a model for retrieval; `build_run` makes it from the settings."""

    config: TrainConfig
    folder: Path
    images: RunImages
    model: Embedder
    loss: nn.Module
    sampler: EpochBatches
    optimizer: torch.optim.Optimizer
    device: torch.device
    quiet: bool = False
    choices: dict[str, Any] = field(default_factory=dict)
    tie_breaker: str = "mAP"
    evaluate_first: bool = True
    budget: Budget | None = None

    def __post_init__(self) -> None:
        config, size = self.config, self.config.batches.memory
        self.metric, self.patience, self.accumulate = config.metric, config.patience, config.batches.accumulate
        self.validation = self.images.used.of("validation")
        self.memory = EmbeddingMemory(size) if size else None
        self.scaler = torch.amp.GradScaler(self.device.type) if config.precision == "fp16" else None
        train = self.images.used.of("train")
        members = _label_members(train)
        self.levels = _label_levels(train) if members is None and getattr(self.loss, "graded", False) else None
        self.loss_of_batch = self.loss if members is None else SharedLabels(self.loss, members.to(self.device))

    def batches(self, start: int, stop: int) -> Any:
        """Iterate over images as bytes, which the model normalises on its device, and labels."""
        config = self.config
        chunk = config.batches.chunk
        return training_loader(
            self.images.used.of("train"),
            self.sampler,
            training_transform(_with_room(config.data, self.model)),
            seed=config.seed,
            workers=config.data.workers,
            start=start,
            stop=stop,
            chunk=chunk or None,
            ahead=_chunks_ahead(config) if chunk else 2,
            channels_last=config.channels_last,
        )

    def gradient(
        self, network: nn.Module, batch: tuple[Tensor | list[Tensor], Tensor], step: int
    ) -> tuple[int, Callable[[], dict[str, float]]]:
        """Add the gradient of a batch, which is compared with the memory of earlier ones too."""
        config = self.config
        use_memory = self.memory is not None and step >= config.batches.memory_after
        images, labels = batch
        result = step_gradient(
            network,
            self.loss_of_batch,
            images,
            labels if self.levels is None else self.levels[labels],
            chunk=config.batches.chunk or None,
            memory=self.memory if use_memory else None,
            memory_weight=config.batches.memory_weight,
            mix=config.batches.mix,
            autocast=PRECISIONS[config.precision],
            scaler=self.scaler,
            weight=1 / config.batches.accumulate,
        )
        if self.memory is not None:
            self.memory.add(result.embeddings, result.labels)

        def values() -> dict[str, float]:
            last: dict[str, int] = getattr(self.loss, "last", {})
            error = _approximation_error(self.loss, result) if self.loss_of_batch is self.loss else {}
            return {"loss": float(result.loss), **last, **error}

        return len(result.labels), values

    def evaluate(self) -> dict[str, float]:
        """Rank the held-out classes; each process embeds its share of the images and ranks its share of the queries."""
        distributed.share_buffers(self.model)  # live BatchNorm: the statistics that will be saved
        return self.measure(self.model)

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return how well a model ranks the held-out classes."""
        config = self.config
        settings: Any = {"device": self.device, "workers": config.data.workers, "precision": config.precision}
        embeddings = embed_table(model, self.validation, show=False, **settings)
        metrics = tuple(dict.fromkeys((config.metric, "R@1", "mAP", "mAP@R")))
        with distributed.share_queries():
            if sets := self.validation.label_sets():
                return dict(evaluate(embeddings, sets, metrics=metrics, progress=False))
            labels = self.validation.level_labels()
            if labels.ndim == 1:
                return dict(evaluate(embeddings, labels, metrics=metrics, progress=False))
            values = dict(evaluate(embeddings, labels[:, 0], metrics=metrics, progress=False))
            asked = getattr(self.loss, "graded", False) or config.metric.startswith(OF_LEVELS)
            if asked or has_small_levels(labels, most=_LEVEL_PAIRS):
                coarse = dict.fromkeys((*BY_LEVEL, config.metric))
                values |= evaluate(embeddings, labels, metrics=coarse, progress=False)
            return values

    def save_model(self) -> None:
        self.model.save(self.folder / "model", overwrite=True)

    def save_frozen(self, reading: Mapping[str, Any]) -> None:
        """Write the frozen network with a stage and a pooling, without a head."""
        frozen_model(_with_reading(self.config, reading)).save(self.folder / "model", overwrite=True)

    def change_steps(self, steps: int) -> None:
        """Train for another number of steps; a run that continues has it, too."""
        self.config = replace(self.config, iterations=steps)
        if distributed.is_main():
            atomic_write(self.folder / "config.yaml", as_yaml(with_whole_paths(self.config)))

    def state(self) -> dict[str, Any]:
        return {name: None if part is None else part.state_dict() for name, part in self._parts().items()}

    def load_state(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            if part is not None and state[name] is not None:
                part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        return {"model": self.model, "loss": self.loss, "memory": self.memory, "scaler": self.scaler}

    def fingerprints(self) -> dict[str, Any]:
        return {"sampler": self.sampler.state_dict()["fingerprint"], "images": table_digest(self.images.used)}

    def facts(self) -> dict[str, Any]:
        facts = {**environment_facts(self.device, self.config.seed), "broken_images": len(self.images.broken)}
        return {**facts, "parameters": count_parameters(self.model)._asdict(), **self.choices}

    def write_data(self) -> None:
        """Write images.csv, and broken.csv if some images cannot be read."""
        leave_out(self.images.all, self.images.broken).save(self.folder / "images.csv", overwrite=True)
        if self.images.broken:
            report = write_report(self.folder / "broken.csv", self.images.broken)
            note = f"{self.images.note()}; left out, and listed in {report}"
            warnings.warn(note, FrontrankWarning, stacklevel=2)


def _with_room(data: DataConfig, model: Embedder) -> DataConfig:
    """Return the settings with the model's resize; a random crop needs room, even if the model itself crops nothing."""
    room = model.image_size * 8 // 7 if data.augment in ("crop", "landmarks") else 0
    return replace(data, resize=max(model.resize, room) if data.resize == AUTO else data.resize)


def _label_levels(table: ImageTable) -> Tensor | None:
    """Return the levels of each class number [class, level], for losses of several levels, if there are any."""
    labels = table.level_labels()
    if labels.ndim == 1:
        return None
    codes = torch.as_tensor(table.codes())
    coarser = [torch.as_tensor(np.unique(column, return_inverse=True)[1]) for column in labels.T[1:]]
    levels = torch.zeros(len(set(table.labels)), labels.shape[1], dtype=torch.int64)
    levels[codes] = torch.stack([codes, *coarser], 1)
    return levels


def _label_members(table: ImageTable) -> Tensor | None:
    """Return the labels of each class number [number, label], filled up with -1, if images have several labels."""
    if (sets := table.label_sets()) is None:
        return None
    numbers = {label: number for number, label in enumerate(sorted(set().union(*sets)))}
    codes = table.codes().tolist()
    members = torch.full((max(codes) + 1, max(map(len, sets))), -1)
    for code, names in dict(zip(codes, sets, strict=True)).items():
        members[code, : len(names)] = torch.tensor(sorted(numbers[name] for name in names))
    return members


def _check_several_labels(table: ImageTable, config: TrainConfig) -> None:
    """Raise if a setting needs one label per image, and images have several."""
    if table.label_sets() is None:
        return
    if config.loss.name.startswith(registry.PEERS):
        table.require_one_label(f"loss.name {config.loss.name}")
    if config.batches.memory:
        table.require_one_label("batches.memory")
    if config.batches.kind == "categories":
        table.require_one_label("batches.kind categories")


def _chunks_ahead(config: TrainConfig) -> int:
    """Return the chunks that each worker reads ahead: a whole batch in all, if that is no more than a gigabyte."""
    chunk, workers = config.batches.chunk, max(1, config.data.workers)
    share = math.ceil(config.batches.size / distributed.world_size())
    fit = _AHEAD_BYTES // (chunk * 3 * config.data.size**2)
    return max(1, math.ceil(min(math.ceil(share / chunk), fit) / workers))


def _approximation_error(loss: nn.Module, step: Step) -> dict[str, float]:
    """Return |AP as the loss sees it - AP| on the batch (Smooth-AP, Eq. 8), for losses that approximate AP."""
    labels = step.labels if step.labels.dim() == 1 else step.labels[:, 0]
    counts = labels.unique(return_counts=True)[1]
    if not isinstance(loss, RankLoss | FastAP | QuantizedAP) or not bool((counts > 1).any()):
        return {}
    approximation = loss.relaxation if isinstance(loss, RankLoss) else loss
    return {"AP error": ap_error(step.embeddings, labels, approximation).mean}


# Settings to objects


def build_run(
    config: TrainConfig, folder: Path, device: torch.device, *, quiet: bool = False, remember: bool = True
) -> RetrievalRun:
    """Build everything that a run works with; reads and checks the images, writes nothing to the folder.

    What takes long comes last: a misspelt name is found before a million images are decoded.
    """
    started = time.monotonic()
    check_config(config)
    check_trackers(config.log)
    check_train(config.model.train)
    require_metric(config.metric)
    config = replace(config, data=fill_image_size(config))
    table = split_images(build_images(config.data), config)
    training = table.of("train")
    _check_several_labels(training, config)
    config = replace(config, data=defaults.fill_resize(config.data, training, config.seed))
    config = defaults.fill_temperature(config, len(set(training.labels)))
    # again when the speed is known; now for a mistake in them
    batches = defaults.fill_batches(config.batches, training)
    sampler = build_sampler(batches, training, config.seed)
    config = defaults.fill_alpha(config, batches.per_class or batches.size / len(set(training.first_labels())))
    if not config.minutes:
        planned = defaults.fill_steps(config, len(sampler))
        check_warmup(planned.optimizer, count_steps(planned, len(sampler), config.batches.accumulate))
    loss = build_loss(config.loss, 2, 2, gallery=config.batches.memory > 0)
    graded = getattr(loss, "graded", False)
    if (graded or config.metric.startswith(OF_LEVELS)) and training.label_sets() is None:
        training.warn_of_levels(config.loss.name if graded else config.metric)
    if not quiet:
        announce_weights(config.model.backbone, config.model.weights)
    config, model = _first_model(config, device)
    show = None if distributed.is_main() and not quiet else False
    images = check_run_images(table, config, remember=remember, show=show)
    training = images.used.of("train")
    say = (lambda text: None) if show is False else (lambda text: print(text, file=sys.stderr, flush=True))
    from_features = config.head != "random" and is_pretrained(config.model, model)
    config, model, choices = _begin(config, model, images.used, device, say, folder)
    sampler = build_sampler(config.batches, training, config.seed)
    loss = build_loss(config.loss, len(set(training.labels)), model.dim).to(device)
    parts = model.backbone_parameters(), model.head_parameters(), list(loss.parameters())
    if not config.minutes or config.iterations:
        config = defaults.fill_steps(config, len(sampler))
    exempt = model.names_without_decay()
    optimizer = build_optimizer(config.optimizer, *parts, without_decay=exempt, depths=block_depths(model))
    run = RetrievalRun(config, folder, images, model, loss, sampler, optimizer, device, quiet, choices)
    if from_features and len(run.validation) and latest_checkpoint(folder / "checkpoints") is None:
        choices["frozen"] = _measure_frozen(run, say)
    if config.minutes and not config.iterations:
        _fit_budget(run, started, say)
    return run


def _first_model(config: TrainConfig, device: torch.device) -> tuple[TrainConfig, Embedder]:
    """Build the model as it is before anything is chosen: the same weights in every process.

    Also returns the settings with its precision and memory layout.
    """
    torch.manual_seed(config.seed)
    model = build_model(defaults.fill_reading(config.model), config.data).to(device)
    config = defaults.fill_device(config, model, device)
    return config, model.to(memory_format=torch.channels_last) if config.channels_last else model


def _begin(
    config: TrainConfig,
    model: Embedder,
    table: ImageTable,
    device: torch.device,
    say: Callable[[str], None],
    folder: Path,
) -> tuple[TrainConfig, Embedder, dict[str, Any]]:
    """Choose what is left open by looking at the images and the network; return all settings, the model, and why.

    A run that continues has everything but the weights, which its checkpoint holds.
    """
    embedding: Any = {"device": device, "workers": config.data.workers, "precision": config.precision}
    choices: dict[str, Any] = {}
    if (config.model.stage, config.model.pooling) == (AUTO, AUTO) and is_pretrained(config.model, model):
        readings = choose_reading(model, table, config.metric, config.minutes, **embedding)
        choices["readings"] = [asdict(each) for each in readings]
        best = readings[0]
        chosen: Any = {"stage": best.stage, "pooling": best.pooling}
        say(f"frozen {config.model.backbone}, {config.metric} of {best.images:,} images: "
            + "; ".join(f"{each} {each.value:.3f}" for each in readings))  # fmt: skip
        config = replace(config, model=replace(config.model, **chosen))
        say(f"chosen: {best} (model.stage {best.stage}, model.pooling {best.pooling})")
        if (best.stage, best.pooling) != (model.settings.stage, model.settings.pooling):
            model = _first_model(config, device)[1]
    prepare_training(model, config.model.train, config.model.lora, config.model.checkpointing)
    frozen = model.settings.batch_norm == "frozen"
    network = replace(defaults.fill_reading(config.model), batch_norm="frozen" if frozen else "train")
    data = defaults.fill_augmentation(config.data, model.settings.pooling)
    config = replace(config, model=network, data=data)
    training, held_out = table.of("train"), table.of("validation")
    if config.batches.size == 0 or AUTO in (config.batches.chunk, config.batches.per_class):
        speed = defaults.images_per_second(model, data.size, device)
        most = (defaults.largest_batch(speed, config.minutes),) if config.batches.chunk == AUTO else ()
        batches = defaults.fill_batches(config.batches, training, *most)
        config = replace(config, batches=defaults.fill_chunk(batches, model, data.size, device))
    config = replace(
        config, optimizer=defaults.fill_rates(config.optimizer, model, config.batches.size, config.model.lora > 0)
    )
    if model.origin.startswith("backbone and head"):
        config = replace(config, head="random")  # it has weights already
    elif config.head != "random" and latest_checkpoint(folder / "checkpoints") is None:
        parts = training, held_out, config.metric, config.minutes
        kind, values, choices["seconds per image"] = start_head(model, config.head, *parts, **embedding)
        if values:
            choices["heads"] = values
            of = "held-out classes" if len(held_out) else "training images"
            say(f"first weights of the head, {config.metric} of {of}: "
                + "; ".join(f"{name} {value:.3f}" for name, value in values.items()))  # fmt: skip
            if values[kind] < values["none"]:
                say("no head ranks as well as the features do; try a larger --model.dim, or 0, or more --minutes")
        fitted: Any = {"head": kind}
        config = replace(config, **fitted)
    say(str(count_parameters(model)))
    return config, model, choices


def _measure_frozen(run: RetrievalRun, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the best of the frozen network as published and as it is read here, both without a head.

    Its margin is about the standard error of the difference to a trained network, on other images of other classes.
    """
    own = {"stage": run.config.model.stage, "pooling": run.config.model.pooling}
    results: list[dict[str, Any]] = []
    for reading in ({"stage": 0, "pooling": "native"}, own):
        if reading not in [{name: each[name] for name in reading} for each in results]:
            layout = torch.channels_last if run.config.channels_last else torch.contiguous_format
            values = run.measure(frozen_model(_with_reading(run.config, reading)).to(memory_format=layout))
            results.append(reading | {"value": values[run.metric], "tie_breaker": values.get(run.tie_breaker, 0.0)})
    say(f"frozen backbone without a head, {run.metric} of all held-out classes: "
        + "; ".join(f"{Reading(each['stage'], each['pooling'])} {each['value']:.3f}" for each in results))  # fmt: skip
    best: dict[str, Any] = distributed.from_main(max(results, key=lambda each: (each["value"], each["tie_breaker"])))
    images, classes, value = len(run.validation), len(set(run.validation.first_labels().tolist())), best["value"]
    return best | {"margin": math.sqrt(max(0.0, value * (1 - value)) * (1 / images + _OF_CLASSES / classes))}


def _with_reading(config: TrainConfig, reading: Mapping[str, Any]) -> TrainConfig:
    return replace(config, model=replace(config.model, stage=reading["stage"], pooling=reading["pooling"]))


def is_pretrained(config: ModelConfig, model: Embedder) -> bool:
    """Whether a backbone has weights that were trained, without a head of its own."""
    return config.weights != "none" and not model.origin.startswith("backbone and head")


def _fit_budget(run: RetrievalRun, started: float, say: Callable[[str], None]) -> None:
    """Choose as many steps as fit into the minutes of a run, by the time that a few of them take."""
    config, memory, scaler = run.config, run.memory, run.scaler
    run.memory, run.scaler = None, None
    seconds = []
    run.model.train()
    with defaults.unchanged_state(run.model):
        for batch in run.batches(0, _TIMED_STEPS):
            begun = time.monotonic()
            run.gradient(run.model, batch, 0)
            seconds.append(time.monotonic() - begun)
    run.optimizer.zero_grad(set_to_none=True)
    run.memory, run.scaler = memory, scaler
    per_step = 1.1 * min(seconds) * config.batches.accumulate  # beside the gradient: the update, and the log
    per_image = run.choices.get("seconds per image") or min(seconds) / config.batches.size
    left = 60 * config.minutes - (time.monotonic() - started)
    evaluation = per_image * len(run.validation)
    steps, evaluations = defaults.steps_in(left - evaluation, per_step, evaluation, config.evaluations)
    whole = steps if config.epochs == AUTO else count_steps(config, len(run.sampler), config.batches.accumulate)
    steps = min(steps, whole)
    steps, evaluations = distributed.from_main((steps, evaluations))
    number = format_count(steps, "step")
    say(f"--minutes {config.minutes:g}: {number} of {config.batches.size} images, {per_step:.1f} s each")
    config = replace(config, iterations=steps, evaluations=evaluations)
    run.config = defaults.fill_steps(config, len(run.sampler))
    check_warmup(run.config.optimizer, steps)
    most = _MOST_STEPS * steps if config.epochs == AUTO else whole
    run.budget = Budget(started + 60 * config.minutes - evaluation, evaluation, most, run.change_steps)


def announce_weights(backbone: str, weights: str) -> None:
    """Print that pretrained weights may have to be downloaded."""
    if weights == "pretrained" and distributed.is_main():
        print(f"fetching pretrained weights of {backbone}, unless they are here already", file=sys.stderr)


def build_sampler(config: BatchConfig, table: ImageTable, seed: int) -> EpochBatches:
    """Build the sampler of training batches; of an image with several labels the first one counts."""
    if config.kind == "categories":
        if not any(table.categories):
            raise InputError("batches.kind categories needs images with categories; use batches.kind balanced")
        return CategoryBatches(
            table.first_labels(),
            table.categories,
            config.size,
            config.per_class or None,
            categories_per_batch=config.categories,
            batches_per_group=config.per_group,
            groups_per_epoch=config.groups or None,
            seed=seed,
        )
    if config.kind == "all-classes":
        return AllClassesBatches(table.first_labels(), config.size, seed=seed)
    return BalancedBatches(table.first_labels(), config.size, config.per_class, seed=seed)


def fill_image_size(config: TrainConfig) -> DataConfig:
    """Return the settings of the images with the size and the interpolation of the backbone, if none were set."""
    data = config.data
    if AUTO not in (data.size, data.interpolation):
        return data
    published = published_images(config.model.backbone, config.model.weights)
    size = published["image_size"] if data.size == AUTO else data.size
    interpolation = published["interpolation"] if data.interpolation == AUTO else data.interpolation
    return replace(data, size=size, interpolation=interpolation)


def build_model(config: ModelConfig, data: DataConfig) -> Embedder:
    """Build the network with its first weights."""
    named = {name: value for name, value in vars(config).items() if name not in ("train", "lora", "checkpointing")}
    settings: dict[str, Any] = named | {"weights": None if config.weights == "none" else config.weights}
    images = {"image_size": data.size, "resize": data.resize, "interpolation": data.interpolation}
    settings |= {name: None if value == AUTO else value for name, value in images.items()}
    return Embedder(**settings)


def frozen_model(config: TrainConfig) -> Embedder:
    """Build the model that a run starts from, to compare what it learnt with.

    It has no new head, as a random projection would only blur the features; a saved model keeps its own head. Random
    weights are those of the seed.
    """
    weights = config.model.weights
    with torch.random.fork_rng(devices=[]):
        if weights not in ("none", "pretrained", "package") and not Path(weights).is_file():
            torch.manual_seed(config.seed)
            model = build_model(defaults.fill_reading(config.model), config.data)
            if model.origin.startswith("backbone and head"):
                return model.eval()
        torch.manual_seed(config.seed)
        bare = replace(defaults.fill_reading(config.model), dim=0, layer_norm=False, dropout=0.0)
        return build_model(bare, config.data).eval()


def frozen_title(config: TrainConfig) -> str:
    """Return the name of that model in tables.

    >>> frozen_title(TrainConfig())
    'resnet50, not trained further'
    """
    random = config.model.weights == "none"
    return f"{config.model.backbone}{' with random weights' if random else ', not trained further'}"


def build_loss(config: LossConfig, classes: int = 0, dim: int = 0, *, gallery: bool = False) -> nn.Module:
    """Return the loss of the settings.

    classes, dim: of the training images and the embeddings, for losses that learn a proxy per class
    gallery: the loss will rank a memory too; raise an error if it cannot

    >>> build_loss(LossConfig("SmoothAP", temperature=0.1))
    SmoothAP(metric=AveragePrecision(), relaxation=Sigmoid(temperature=0.1), include_query=False)
    """
    if not config.name.startswith(registry.PEERS):
        return registry.build(config.name, config.settings)
    registry.check_arguments(config.name, config.settings)
    options, miner = config.settings.get("options"), config.settings.get("miner")
    loss = peer_loss(config.name.removeprefix(registry.PEERS), options, miner=miner, classes=classes, dim=dim)
    loss.try_out(dim, gallery=gallery)
    return loss


def require_metric(name: str) -> None:
    """Raise if a name is not a metric, or one of which less is better."""
    read_metrics((name,))
    if name.startswith("dists@"):
        raise InputError(f"metric {name} cannot choose a checkpoint, as more of it is not better; use R@1 or mAP")


# The folder of a run


def require_new(folder: Path) -> None:
    """Raise if a folder has more in it than what a run that was killed at its start leaves: run.json and tables."""
    if folder.is_file():
        raise InputError(f"--out {folder} is a file; choose another name")
    names = {name for name in os.listdir(folder) if not name.startswith(".")} if folder.is_dir() else set()
    if names and not ("run.json" in names and names <= _START_FILES):
        if (folder / "config.yaml").exists():
            raise InputError(f"--out {folder} holds a run; go on with --resume {folder}, or choose another name")
        raise InputError(f"--out {folder} is not empty; choose another name")


def make_folder(folder: Path) -> None:
    """Make the folder of a run and those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be written to ({error.strerror}); choose another folder") from error


def with_whole_paths(config: Any) -> Any:
    """Return settings with whole paths: a run may continue from another working folder."""
    path, weights = config.data.path, config.model.weights
    if path:
        config = replace(config, data=replace(config.data, path=str(Path(path).resolve())))
    if weights not in WORDS and Path(weights).exists():
        config = replace(config, model=replace(config.model, weights=str(Path(weights).resolve())))
    return config


def read_run_config(folder: Path, overrides: Mapping[str, str], kind: type[Config]) -> Config:
    """Read the settings that the run of a folder continues with; only a few of them can change."""
    if not (folder / "config.yaml").is_file():
        raise InputError(f"--resume {folder} holds no run (there is no config.yaml); give the folder of --out")
    for name in overrides:
        if name not in _CHANGEABLE:
            raise InputError(f"--{name} cannot change when a run continues; leave it out, or start a new run (--out)")
    recipe = read_recipe(folder / "config.yaml", kind)
    unit, other = ("iterations", "epochs") if recipe.get("iterations") else ("epochs", "iterations")
    if other in overrides:  # milestones are counted in the same unit
        raise InputError(f"--{other} cannot be given to a run that counts {unit}; give --{unit}")
    return read_config(recipe, overrides, kind)


def read_facts(folder: Path, otherwise: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read the run.json of a folder; return `otherwise`, or nothing, if it is missing or damaged."""
    with suppress(OSError, ValueError):
        facts = load_json(folder / "run.json")
        if isinstance(facts, dict):
            return facts
    return otherwise or {}


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the run.json of a folder."""
    atomic_write(folder / "run.json", json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def environment_facts(device: object, seed: int) -> dict[str, Any]:
    """Return what is needed to repeat a run, beside its settings and its images."""
    versions = {"python": platform.python_version(), "frontrank": __version__}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "command": shlex.join(sys.argv),
        "commit": _commit(),
        "versions": versions,
        "machine": platform.platform(),
        "device": str(device),
        "processes": distributed.world_size(),
        "seed": seed,
    }


def _commit() -> str | None:
    """Return the commit of the checkout that holds this package, if there is one."""
    with suppress(OSError, subprocess.SubprocessError):
        git = partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5)
        if git(["git", "ls-files", "--error-unmatch", __file__]).returncode == 0:
            return git(["git", "rev-parse", "HEAD"]).stdout.strip() or None
    return None
