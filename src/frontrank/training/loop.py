"""The training loop: batches in, better weights out, and nothing lost when it stops.

A run's folder:

    config.yaml     all settings, as a recipe
    run.json        the command, versions, commit, and what the run found
    images.csv      the images and their splits; broken.csv those that were left out
    log.jsonl       a line per logged step; tensorboard/ holds the same
    checkpoints/    the whole state; the newest one is where a run goes on
    model/          the best model so far on the held-out classes (without those, the last)
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.data.images import broken_note, check_images
from frontrank.data.loading import training_loader, worker_errors
from frontrank.data.samplers import EpochBatches
from frontrank.data.splits import hold_out_classes, merge_classes, split_test_classes
from frontrank.data.table import ImageTable, shown
from frontrank.data.transforms import training_transform
from frontrank.errors import InputError, InterruptedRunError
from frontrank.evaluation import ap_error, evaluate
from frontrank.losses import FastAP, QuantizedAP, RankLoss
from frontrank.models import Embedder
from frontrank.packages import cache_folder
from frontrank.progress import progress
from frontrank.settings import TrainConfig
from frontrank.training import distributed
from frontrank.training.checkpoints import newest_state, random_state, save_checkpoint, start_randomness
from frontrank.training.embedding import PRECISIONS, embed_table
from frontrank.training.gradient import Step, step_gradient
from frontrank.training.logs import Log, print_line
from frontrank.training.memory import EmbeddingMemory
from frontrank.training.optimizers import Unit, clip_gradient, learning_rate, set_learning_rate

# ==== Ctrl-C and the signal that ends a job, held back until a run has saved itself.


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While it is open, the first signal sets `asked`; a second one interrupts at once.

    Signals are handled in the main thread only; elsewhere this changes nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._ask) for each in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\nstopping after this step, to save the run (again: stop at once) ...", file=sys.stderr, flush=True)


# ==== How many images fit, counted from what a forward pass keeps for its backward pass; and what steps took at most.


_RESERVE = 0.8  # of the free memory is ours to fill


def bytes_per_image(model: nn.Module, images: Tensor) -> int:
    """Memory that a forward pass in training holds for one of these images, in bytes.

    Tensors that are kept several times count once, and weights, which are there anyhow, not at all.
    """
    weights = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # else an address could be given out twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    was_training = model.training
    model.train()
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(images)
    finally:
        model.train(was_training)
    return sum(kept.values()) // len(images)


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device, as far as it tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def images_that_fit(model: nn.Module, images: Tensor, device: torch.device) -> tuple[int, int | None]:
    """Bytes per image of a training step, and how many images fit at once beside weights, gradient and optimizer.

    An estimate: the working space of single operations is not in it, which is why a fifth of the memory is left free.
    """
    each = bytes_per_image(model, images)
    free = free_bytes(device)
    if free is None:
        return each, None
    state = 3 * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return each, max(0, int((_RESERVE * free - state) // max(1, each)))


class StepMemory:
    """The most memory that training steps took beyond what was held before the first of them, in megabytes.

    On a GPU that is what torch holds there, else the machine's own memory that this process has. What happens between
    `rest` and `go_on`, an evaluation for instance, does not count. Where the system cannot forget a peak (all but Linux
    and GPUs), it does, and so does what came before the first step, if it held more at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = _held_megabytes(device)
        self.most = 0.0
        self.resting = False
        _forget_peak(device)

    def so_far(self) -> float:
        """What it is up to now."""
        if not self.resting:
            self.most = max(self.most, _peak_megabytes(self.device) - self.before)
        return self.most

    def rest(self) -> None:
        """What comes now is no step."""
        self.so_far()
        self.resting = True

    def go_on(self) -> None:
        """Steps come again."""
        self.resting = False
        _forget_peak(self.device)


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed
        Path("/proc/self/clear_refs").write_text("5")


def _held_megabytes(device: torch.device) -> float:
    """What is held now; where the system does not tell, what was held at most."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device) / 1e6
    return _told_by_linux("VmRSS") or _peak_megabytes(device)


def _peak_megabytes(device: torch.device) -> float:
    """The most that this process has held, or since it was forgotten.

    Linux tells it of the program alone; `ru_maxrss`, which others have, begins with that of the program it came from.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if told := _told_by_linux("VmHWM"):
        return told
    try:
        import resource
    except ImportError:  # a system that does not tell
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _told_by_linux(name: str) -> float:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))
    return 0.0


# ==== The images of a run: which classes train, which are held out, and whether all of them can be read.


@dataclass(frozen=True, eq=False)
class RunImages:
    """All images with their splits, those of train and validation that can be read, and the others with the reason."""

    all: ImageTable
    used: ImageTable
    broken: list[tuple[str, str]]

    def readable(self) -> ImageTable:
        """All images but the broken ones."""
        lost = {path for path, _ in self.broken}
        return self.all.rows(np.array([path not in lost for path in self.all.paths.tolist()]))

    def note(self) -> str:
        """The broken ones in a line."""
        return broken_note(self.broken, len(self.used) + len(self.broken))


def split_images(table: ImageTable, config: TrainConfig) -> ImageTable:
    """The table with the classes of a run set aside for test and validation, and merged, as its settings say."""
    if not len(table.of("train")):
        raise InputError(f"--data {config.data.path} has no images to train with; give some the split train")
    if config.data.test:
        if len(table.of("test")):
            raise InputError(f"--data {config.data.path} has test images already; leave out data.test")
        table = split_test_classes(table, config.data.test, config.seed)
    table = hold_out_classes(table, config.data.validation, config.seed)
    if config.data.merge_classes > 1:
        table = merge_classes(table, config.data.merge_classes, config.seed)
    held_out = table.of("validation")
    if len(held_out) and np.unique(held_out.labels, return_counts=True)[1].max() < 2:
        raise InputError(
            f"--data {config.data.path} has no class of two images in its split validation, so none can be found; "
            "give it some, or move all of it to train"
        )
    return table


def check_run_images(table: ImageTable, config: TrainConfig, *, remember: bool, show: bool | None) -> RunImages:
    """Look at all images that train or choose; each process at its share, and all of them know what was found."""
    used = table.rows(np.isin(table.splits, ("train", "validation")))
    rank, world = distributed.rank(), distributed.world_size()
    share = used.rows(np.arange(rank, len(used), world))
    with distributed.fail_together():
        memory = checked_images_file(used.root, rank, world) if remember else None
        found = _broken(share, config, memory, show)
    broken = sorted({each for part in distributed.gather_objects(found) for each in part})
    lost = {path for path, _ in broken}
    images = RunImages(table, used.rows(np.array([path not in lost for path in used.paths.tolist()])), broken)
    if broken and config.data.broken == "fail":
        raise InputError(f"{images.note()}; replace them, or leave them out (data.broken skip)")
    if broken and not len(images.used.of("train")):
        raise InputError(f"{images.note()}; no image to train with is left: check the root {shown(table.root)}")
    return images


def _broken(share: ImageTable, config: TrainConfig, memory: Path | None, show: bool | None) -> list[tuple[str, str]]:
    if not len(share):
        return []
    workers = max(1, config.data.workers)
    return check_images(share, config.data.check, "list", workers, remembered=memory, show=show).broken


def digest(table: ImageTable) -> str:
    """What tells a table of images from another: paths, labels and splits."""
    found = sha256()
    for column in (table.paths, table.labels, table.splits):
        found.update("\0".join(column.tolist()).encode("utf-8", "surrogateescape") + b"\1")
    return found.hexdigest()


def checked_images_file(root: Path, rank: int, world: int) -> Path | None:
    """Where is remembered which images were found good; None where nothing can be kept."""
    try:
        cache = cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, InputError):  # no home, or none that can be written to
        return None
    share = "" if world == 1 else f"-{rank}-of-{world}"
    return cache / f"checked-{sha256(os.fsencode(root.resolve())).hexdigest()[:16]}{share}.json"


# ==== The training loop: batches in, better weights out, and nothing lost when it stops.


_AHEAD_BYTES = 1 << 30  # of images that are read ahead of their batch


@dataclass
class Run:
    """What a run works with; build.py makes it from the settings."""

    config: TrainConfig
    folder: Path
    images: RunImages
    model: Embedder
    loss: nn.Module
    sampler: EpochBatches
    optimizer: torch.optim.Optimizer
    device: torch.device
    quiet: bool = False


@dataclass
class Standing:
    """How far a run is. All of it is in its checkpoints."""

    step: int = 0
    before: float | None = None
    best: float | None = None
    best_map: float = 0.0
    best_step: int = 0
    since_best: int = 0
    stopped_early: bool = False
    history: list[dict[str, float]] = field(default_factory=list)


def train(run: Run) -> Standing:
    """Train from where the run's folder says it is, to the end; gives how it went.

    The checkpoint whose held-out training classes rank best becomes the model; test classes are never looked at.
    """
    return _Training(run).to_the_end()


def steps_of(config: TrainConfig, batches_per_epoch: int) -> int:
    """Optimizer steps of a run."""
    return config.iterations or math.ceil(config.epochs * batches_per_epoch / config.batches.accumulate)


def is_due(step: int, size: int, times: int) -> bool:
    """Whether one of the parts ends at a step, where `size` steps are cut into `times` even ones.

    >>> [step for step in range(1, 13) if is_due(step, 5, 2)]
    [3, 5, 8, 10]
    """
    return step * times // size > (step - 1) * times // size


class _Training:
    def __init__(self, run: Run) -> None:
        self.run, self.config = run, run.config
        self.standing = Standing()
        self.steps = steps_of(run.config, len(run.sampler))
        size = run.config.batches.memory
        self.memory = EmbeddingMemory(size) if size else None
        self.validation = run.images.used.of("validation")
        self.main = distributed.is_main()
        self.scaler = torch.amp.GradScaler(run.device.type) if run.config.precision == "fp16" else None
        self.checkpoints = run.folder / "checkpoints"
        self.seconds: list[float] = []  # of the steps since the last line of the log

    def to_the_end(self) -> Standing:
        self._go_on()
        if self._is_over():
            return self._finished()
        self.network = distributed.wrap_model(self.run.model)
        batches = iter(self._batches())
        start_randomness(self.config.seed, self.standing.step, distributed.rank(), self._randomness)
        self.log = Log(self.run.folder, resume_step=self.standing.step or -1, enabled=self.main)
        with StopRequest() as stop, self.log, worker_errors(self.config.data.workers):
            if self.standing.before is None and len(self.validation):
                self._evaluate()
            self.taken = StepMemory(self.run.device)
            with progress("training", self.steps, show=self._shows()) as done:
                done(self.standing.step)
                while not self._is_over():
                    self._step(batches)
                    done(1)
                    if distributed.any_rank(stop.asked) and not self._is_over():
                        self._save()
                        raise InterruptedRunError(f"stopped at step {self.standing.step} of {self.steps}, and saved")
        return self._finished()

    # A step

    def _step(self, batches: Iterator[tuple[Tensor | list[Tensor], Tensor]]) -> None:
        config, standing = self.config, self.standing
        started, waited, images = time.monotonic(), 0.0, 0
        factor = self._learning_rate()
        set_learning_rate(self.run.optimizer, factor)
        self.run.optimizer.zero_grad(set_to_none=True)
        self.run.model.train()
        for _ in range(config.batches.accumulate):
            asked = time.monotonic()
            pictures, labels = next(batches)
            waited += time.monotonic() - asked
            step = self._gradient(pictures, labels)
            images += len(step.labels)
        norm = self._update()
        standing.step += 1
        seconds = time.monotonic() - started
        self.seconds.append(seconds)
        if standing.step % config.log_every == 0 or standing.step in (1, self.steps):
            self._log_step(step, norm, factor, images / seconds, waited / seconds)
        self._after_step()

    def _gradient(self, pictures: Tensor | list[Tensor], labels: Tensor) -> Step:
        config = self.config
        use_memory = self.memory is not None and self.standing.step >= config.batches.memory_after
        step = step_gradient(
            self.network,
            self.run.loss,
            pictures,
            labels,
            chunk=config.batches.chunk or None,
            memory=self.memory if use_memory else None,
            autocast=PRECISIONS[config.precision],
            scaler=self.scaler,
            weight=1 / config.batches.accumulate,
        )
        if self.memory is not None:
            self.memory.add(step.embeddings, step.labels)
        return step

    def _update(self) -> float:
        """Step the optimizer; gives the norm of the gradient before it was clipped."""
        optimizer, clip = self.run.optimizer, self.config.optimizer.clip
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        norm = clip_gradient(optimizer, clip)
        if self.scaler is not None:
            self.scaler.step(optimizer)
            self.scaler.update()
            return norm
        if not math.isfinite(norm):
            raise InputError(
                f"the gradient is not finite at step {self.standing.step + 1}; lower optimizer.lr, set optimizer.clip, "
                "or use precision float32"
            )
        optimizer.step()
        return norm

    def _learning_rate(self) -> float:
        per_epoch = len(self.run.sampler) / self.config.batches.accumulate
        unit: Unit = "iterations" if self.config.iterations else "epochs"
        return learning_rate(self.config.optimizer, self.standing.step, self.steps, per_epoch, unit)

    # After a step

    def _after_step(self) -> None:
        standing, config = self.standing, self.config
        due = self._is_evaluation_due()
        saved = due or standing.step % config.checkpoint_every == 0
        if saved:
            self.taken.rest()
        if due and len(self.validation):
            self._evaluate()
        if saved:
            self._save()
            self.taken.go_on()

    def _is_evaluation_due(self) -> bool:
        """At the ends of epochs, or at even distances where a run is counted in iterations."""
        step, config = self.standing.step, self.config
        if step >= self.steps:
            return True
        if config.iterations:
            return is_due(step, config.iterations, config.evaluations)
        return is_due(step, len(self.run.sampler) * config.evaluate_every, config.batches.accumulate)

    def _evaluate(self) -> None:
        """Rank the held-out classes; keep the model where it is the best so far.

        Of equal ones it is that of more mAP, then the later one. The model as it was before training is measured and
        never kept: it has not learnt anything.
        """
        standing, metric = self.standing, self.config.metric
        report = distributed.from_main(self._report())
        value, average = report[metric], report["mAP"]
        standing.history.append({"step": standing.step, metric: value})
        self._write({f"validation {name}": found for name, found in report.items()})
        if standing.step == 0:
            standing.before = value
        elif standing.best is None or (value, average) >= (standing.best, standing.best_map):
            standing.best, standing.best_map, standing.best_step = value, average, standing.step
            standing.since_best = 0
            self._keep_model()
        else:
            standing.since_best += 1

    def _report(self) -> dict[str, float]:
        """By the main process alone; the others only embed."""
        model, table, config = self.run.model, self.validation, self.config
        distributed.share_buffers(model)  # live BatchNorm: the statistics that will be saved
        embeddings = embed_table(
            model, table, device=self.run.device, workers=config.data.workers, precision=config.precision, show=False
        )
        metrics = tuple(dict.fromkeys((config.metric, "R@1", "mAP", "mAP@R")))
        return dict(evaluate(embeddings, table.codes(), metrics=metrics, progress=False)) if self.main else {}

    def _keep_model(self) -> None:
        if self.main:
            self.run.model.save(self.run.folder / "model", overwrite=True)

    def _is_over(self) -> bool:
        patience = self.config.patience
        return self.standing.step >= self.steps or bool(patience and self.standing.since_best >= patience)

    def _finished(self) -> Standing:
        if not len(self.validation):
            self._keep_model()
        self.standing.stopped_early = self.standing.step < self.steps
        return self.standing

    # Logs

    def _log_step(self, step: Step, norm: float, factor: float, speed: float, waiting: float) -> None:
        """`step` is the last of the batches of this step."""
        if not self.main:
            return
        values: dict[str, float] = {"loss": float(step.loss)}
        values |= getattr(self.run.loss, "last", {})
        if (error := _approximation_error(self.run.loss, step)) is not None:
            values["AP error"] = error
        values |= {"gradient norm": norm, "learning rate": self.config.optimizer.lr * factor}
        values |= {"images/s": speed, "waiting for images": waiting}
        costs = {"seconds per step": float(np.median(self.seconds)), "peak MB": self.taken.so_far()}
        self.seconds.clear()
        self._write(values, costs)

    def _write(self, values: dict[str, float], unsaid: dict[str, float] | None = None) -> None:
        """A line of the log, and of the terminal; `unsaid` is in the former only."""
        if not self.main:
            return
        step = self.standing.step
        epoch = step * self.config.batches.accumulate / len(self.run.sampler)
        self.log.write(step, values | (unsaid or {}), epoch=epoch)
        if not self.run.quiet:
            print_line(step, self.steps, epoch, values)

    def _shows(self) -> bool | None:
        """A bar for a terminal; None leaves it to the bar to find out."""
        return None if self.main and not self.run.quiet else False

    # The state

    def _batches(self) -> Any:
        config, run = self.config, self.run
        accumulate, chunk = config.batches.accumulate, config.batches.chunk
        return training_loader(
            run.images.used.of("train"),
            run.sampler,
            training_transform(config.data, None, None),  # bytes: the model normalises them where it is
            seed=config.seed,
            workers=config.data.workers,
            start=self.standing.step * accumulate,
            stop=self.steps * accumulate,
            chunk=chunk or None,
            ahead=_ahead(config) if chunk else 2,
            channels_last=config.channels_last,
        )

    def _save(self) -> None:
        standing = self.standing
        randomness = distributed.gather_objects(random_state())
        if not self.main:
            return
        state = {
            "standing": asdict(standing),
            "model": self.run.model.state_dict(),
            "loss": self.run.loss.state_dict(),
            "optimizer": self.run.optimizer.state_dict(),
            "memory": None if self.memory is None else self.memory.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "random": randomness,
        }
        save_checkpoint(self.checkpoints, standing.step, state | self._fingerprints())

    def _fingerprints(self) -> dict[str, Any]:
        """What must be the same where a run goes on."""
        return {"sampler": self.run.sampler.state_dict()["fingerprint"], "images": digest(self.run.images.used)}

    def _go_on(self) -> None:
        """Take up the newest checkpoint, if there is one."""
        self._randomness = None
        found = newest_state(self.checkpoints, self._fingerprints(), "images or batches")
        if found is None:
            return
        path, state = found
        self.standing = Standing(**state["standing"])
        try:
            self._load(state)
        except (RuntimeError, ValueError, KeyError) as error:
            raise InputError(
                f"{path} does not fit the settings of the run; undo what changed in config.yaml"
            ) from error
        self._randomness = state["random"]

    def _load(self, state: dict[str, Any]) -> None:
        self.run.model.load_state_dict(state["model"])
        self.run.loss.load_state_dict(state["loss"])
        self.run.optimizer.load_state_dict(state["optimizer"])
        if self.memory is not None and state["memory"] is not None:
            self.memory.load_state_dict(state["memory"])
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])


def _ahead(config: TrainConfig) -> int:
    """Chunks that each worker reads ahead: a whole batch in all, as long as that is no more than a gigabyte."""
    chunk, workers = config.batches.chunk, max(1, config.data.workers)
    share = math.ceil(config.batches.size / distributed.world_size())
    fit = _AHEAD_BYTES // (chunk * 3 * config.data.size**2)
    return max(1, math.ceil(min(math.ceil(share / chunk), fit) / workers))


def _approximation_error(loss: nn.Module, step: Step) -> float | None:
    """|AP as the loss sees it - AP| on the batch (smooth_ap Eq. 8); None for losses that approximate no AP."""
    if not isinstance(loss, RankLoss | FastAP | QuantizedAP):
        return None
    counts = step.labels.unique(return_counts=True)[1]
    approximation = loss.relaxation if isinstance(loss, RankLoss) else loss
    return ap_error(step.embeddings, step.labels, approximation).mean if bool((counts > 1).any()) else None
