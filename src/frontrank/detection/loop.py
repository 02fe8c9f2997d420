"""The training loop of a detector: batches in, better weights out, and nothing lost when it stops.

A run's folder:

    config.yaml     all settings, as a recipe
    run.json        the command, versions, commit, classes, and what the run found
    scenes.csv      the pictures that train and those that are held out
    log.jsonl       a line per logged step; tensorboard/ holds the same
    checkpoints/    the whole state; the newest one is where a run goes on
    model/          the best detector so far on the held-out pictures (without those, the last)
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frontrank.config_detection import DetectConfig
from frontrank.data.loading import worker_errors
from frontrank.detection.classifier_loss import ScoresNotFiniteError
from frontrank.detection.evaluation import evaluate_detections
from frontrank.detection.finding import find_objects
from frontrank.detection.loading import Batch, SceneBatches, training_scenes
from frontrank.detection.model import Detector
from frontrank.detection.scenes import SceneTable
from frontrank.errors import InputError, InterruptedRunError
from frontrank.progress import progress
from frontrank.training import distributed
from frontrank.training.checkpoints import newest_state, random_state, save_checkpoint, start_randomness
from frontrank.training.fit import StepMemory
from frontrank.training.logs import Log, print_line
from frontrank.training.loop import is_due
from frontrank.training.optimizers import clip_gradient, learning_rate, set_learning_rate
from frontrank.training.signals import StopRequest

METRIC = "AP50"  # that chooses the checkpoint
_PARTS = {
    "loss_classifier": "classifier",
    "loss_box_reg": "boxes",
    "loss_objectness": "objectness",
    "loss_rpn_box_reg": "proposals",
}


@dataclass
class DetectionRun:
    """What a run works with."""

    config: DetectConfig
    folder: Path
    training: SceneTable
    validation: SceneTable
    detector: Detector
    sampler: SceneBatches
    optimizer: torch.optim.Optimizer
    device: torch.device
    quiet: bool = False


@dataclass
class DetectionStanding:
    """How far a run is. All of it is in its checkpoints."""

    step: int = 0
    best: float | None = None
    best_step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def train_detector(run: DetectionRun) -> DetectionStanding:
    """Train from where the run's folder says it is, to the end; gives how it went."""
    return _Training(run).to_the_end()


def steps_of(config: DetectConfig, batches_per_epoch: int) -> int:
    """Optimizer steps of a run."""
    return config.iterations or config.epochs * batches_per_epoch


class _Training:
    def __init__(self, run: DetectionRun) -> None:
        self.run, self.config = run, run.config
        self.standing = DetectionStanding()
        self.steps = steps_of(run.config, len(run.sampler))
        self.main = distributed.is_main()
        self.checkpoints = run.folder / "checkpoints"
        self.seconds: list[float] = []  # of the steps since the last line of the log
        self._randomness: list[dict[str, Any]] | None = None

    def to_the_end(self) -> DetectionStanding:
        self._go_on()
        if self._is_over():
            return self._finished()
        self.network = distributed.wrapped(self.run.detector)
        batches = iter(self._batches())
        start_randomness(self.config.seed, self.standing.step, distributed.rank(), self._randomness)
        self.log = Log(self.run.folder, resume_step=self.standing.step or -1, enabled=self.main)
        with StopRequest() as stop, self.log, worker_errors(self.config.data.workers):
            self.taken = StepMemory(self.run.device)
            show = None if self.main and not self.run.quiet else False
            with progress("training", self.steps, show=show) as done:
                done(self.standing.step)
                while not self._is_over():
                    self._step(batches)
                    done(1)
                    if distributed.any_rank(stop.asked) and not self._is_over():
                        self._save()
                        raise InterruptedRunError(f"stopped at step {self.standing.step} of {self.steps}, and saved")
        return self._finished()

    # A step

    def _step(self, batches: Iterator[Batch]) -> None:
        config, standing = self.config, self.standing
        started = time.monotonic()
        unit: Any = "iterations" if config.iterations else "epochs"
        factor = learning_rate(config.optimizer, standing.step, self.steps, len(self.run.sampler), unit)
        set_learning_rate(self.run.optimizer, factor)
        self.run.optimizer.zero_grad(set_to_none=True)
        self.run.detector.train()
        pictures, targets = next(batches)
        waited = time.monotonic() - started
        if self.run.detector.classifier_loss is not None:
            self.run.detector.classifier_loss.begin_step(standing.step)
        losses = self._losses(pictures, targets)
        total = torch.stack([each * self._weight(name) for name, each in losses.items()]).sum()
        total.backward()
        norm = self._update()
        standing.step += 1
        self.seconds.append(time.monotonic() - started)
        if standing.step % config.log_every == 0 or standing.step in (1, self.steps):
            speed = {"images/s": config.batch / self.seconds[-1], "waiting for images": waited / self.seconds[-1]}
            self._log_step(total, losses, {"gradient norm": norm, "learning rate": config.optimizer.lr * factor}, speed)
        self._after_step()

    def _losses(self, pictures: list[Tensor], targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        device = self.run.device
        there = [each.to(device, non_blocking=True) for each in pictures]
        wanted = [{name: x.to(device, non_blocking=True) for name, x in target.items()} for target in targets]
        try:
            return self.network(there, wanted)
        except ScoresNotFiniteError as error:  # on all processes alike, as they rank the scores of all
            raise InputError(
                f"the scores of classes are not finite at step {self.standing.step + 1}; "
                "lower optimizer.lr, or set optimizer.clip"
            ) from error

    def _weight(self, name: str) -> float:
        return self.config.loss.weight if name == "loss_classifier" else 1.0

    def _update(self) -> float:
        """Step the optimizer; gives the norm of the gradient before it was clipped."""
        norm = clip_gradient(self.run.optimizer, self.config.optimizer.clip)
        if not math.isfinite(norm):
            raise InputError(
                f"the gradient is not finite at step {self.standing.step + 1}; "
                "lower optimizer.lr, or set optimizer.clip"
            )
        self.run.optimizer.step()
        return norm

    # After a step

    def _after_step(self) -> None:
        due = self._is_evaluation_due()
        if not due and self.standing.step % self.config.checkpoint_every:
            return
        self.taken.rest()
        if due and len(self.run.validation):
            self._evaluate()
        self._save()
        self.taken.go_on()

    def _is_evaluation_due(self) -> bool:
        """At the ends of epochs, or at even distances where a run is counted in iterations."""
        step, config = self.standing.step, self.config
        if step >= self.steps:
            return True
        if config.iterations:
            return is_due(step, config.iterations, config.evaluations)
        return is_due(step, len(self.run.sampler) * config.evaluate_every, 1)

    def _evaluate(self) -> None:
        """Judge what is found in the held-out pictures; keep the detector where it is the best so far, or as good."""
        standing = self.standing
        distributed.share_buffers(self.run.detector)
        report = distributed.from_main(self._report() if self.main else {})
        standing.history.append({"step": standing.step, **report})
        self._write({f"validation {name}": value for name, value in report.items()})
        if standing.best is None or report[METRIC] >= standing.best:
            standing.best, standing.best_step = report[METRIC], standing.step
            self._keep_detector()

    def _report(self) -> dict[str, float]:
        table, config = self.run.validation, self.config
        with torch.random.fork_rng(devices=[]):  # so that what is found here has no effect on the training
            found = find_objects(self.run.detector, table, batch=config.batch, workers=config.data.workers, show=False)
        return {name: float(value) for name, value in dict(evaluate_detections(table, found)).items()}

    def _keep_detector(self) -> None:
        if self.main:
            self.run.detector.save(self.run.folder / "model", overwrite=True)

    def _is_over(self) -> bool:
        return self.standing.step >= self.steps

    def _finished(self) -> DetectionStanding:
        if not len(self.run.validation):
            self._keep_detector()
        return self.standing

    # Logs

    def _log_step(
        self, total: Tensor, losses: dict[str, Tensor], more: dict[str, float], speed: dict[str, float]
    ) -> None:
        if not self.main:
            return
        values: dict[str, float] = {"loss": float(total.detach())}
        values |= {_PARTS.get(name, name): float(each.detach()) for name, each in losses.items()}
        if self.run.detector.classifier_loss is not None:
            values |= self.run.detector.classifier_loss.last
        costs = {"seconds per step": float(np.median(self.seconds)), "peak MB": self.taken.so_far()}
        self.seconds.clear()
        self._write(values | more | speed, costs)

    def _write(self, values: dict[str, float], unsaid: dict[str, float] | None = None) -> None:
        """A line of the log, and of the terminal; `unsaid` is in the former only."""
        if not self.main:
            return
        step = self.standing.step
        epoch = step / len(self.run.sampler)
        self.log.write(step, values | (unsaid or {}), epoch=epoch)
        if not self.run.quiet:
            print_line(step, self.steps, epoch, values)

    # The state

    def _batches(self) -> Iterator[Batch]:
        config, run = self.config, self.run
        return training_scenes(
            run.training,
            run.sampler,
            seed=config.seed,
            flip=config.data.flip,
            workers=config.data.workers,
            start=self.standing.step,
            stop=self.steps,
        )

    def _save(self) -> None:
        randomness = distributed.gather_objects(random_state())
        if not self.main:
            return
        loss = self.run.detector.classifier_loss
        state = {
            "standing": asdict(self.standing),
            "detector": self.run.detector.state_dict(),
            "loss": None if loss is None else loss.state_dict(),
            "optimizer": self.run.optimizer.state_dict(),
            "random": randomness,
        }
        save_checkpoint(self.checkpoints, self.standing.step, state | self._fingerprints())

    def _fingerprints(self) -> dict[str, Any]:
        """What must be the same where a run goes on."""
        scenes = [digest(self.run.training), digest(self.run.validation)]
        return {"sampler": self.run.sampler.state_dict()["fingerprint"], "scenes": scenes}

    def _go_on(self) -> None:
        """Take up the newest checkpoint, if there is one."""
        found = newest_state(self.checkpoints, self._fingerprints(), "pictures, boxes or batches")
        if found is None:
            return
        path, state = found
        self.standing = DetectionStanding(**state["standing"])
        try:
            self._load(state)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} does not fit the settings of the run; undo what changed in config.yaml"
            ) from error
        self._randomness = state["random"]

    def _load(self, state: dict[str, Any]) -> None:
        self.run.detector.load_state_dict(state["detector"])
        self.run.optimizer.load_state_dict(state["optimizer"])
        loss = self.run.detector.classifier_loss
        if (loss is None) != (state["loss"] is None):
            raise ValueError("another loss")
        if loss is not None:
            loss.load_state_dict(state["loss"])


def digest(table: SceneTable) -> str:
    """What tells a table of scenes from another: names of classes and files, boxes and labels; not the folder."""
    names = (Path(file).name for file in table.files)
    found = sha256("\0".join((*table.classes, "", *names)).encode("utf-8", "surrogateescape"))
    for columns in (table.boxes, table.labels, table.ignored):
        for each in columns:
            found.update(f"{each.shape}".encode() + np.ascontiguousarray(each).tobytes())
    return found.hexdigest()
