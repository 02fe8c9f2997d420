"""The training run of a detector, from settings to its folder."""

import csv
import io
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frontrank.data.loading import worker_errors
from frontrank.data.table import shown
from frontrank.detection.data import Batch, SceneBatches, SceneTable, check_boxes, read_scenes, training_scenes
from frontrank.detection.evaluation import evaluate_detections
from frontrank.detection.model import Detector, DetectorSettings, ProposalAP, ScoresNotFiniteError, find_objects
from frontrank.detection.report import DetectorPlace, Evaluated
from frontrank.detection.settings import ClassifierConfig, DetectConfig, DetectorConfig
from frontrank.errors import InputError, InterruptedRunError
from frontrank.files import atomic_write
from frontrank.losses import ClassifierAP
from frontrank.progress import progress
from frontrank.settings import check_config
from frontrank.training import distributed
from frontrank.training.checkpoints import newest_state, random_state, save_checkpoint, start_randomness
from frontrank.training.logs import Log, print_line
from frontrank.training.loop import StepMemory, StopRequest, is_due
from frontrank.training.optimizers import (
    build_optimizer,
    check_optimizer,
    clip_gradient,
    learning_rate,
    set_learning_rate,
)
from frontrank.training.run import (
    add_resumption,
    build_device,
    make_folder,
    processes,
    read_facts,
    require_new,
    resumed_config,
    run_facts,
    say_fetching,
    write_config,
    write_facts,
)

# ==== The training loop of a detector: batches in, better weights out, and nothing lost when it stops.


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


def run_detector_loop(run: DetectionRun) -> DetectionStanding:
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
        self.network = distributed.wrap_model(self.run.detector)
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


# ==== Training a detector, from settings to a run's folder.


_CHANGEABLE = ("epochs", "iterations", "checkpoint_every", "log_every", "device", "data.path", "data.workers")


def train_detector(config: DetectConfig, out: str | os.PathLike[str], *, quiet: bool = False) -> DetectionStanding:
    """Train as the settings say, and leave everything in the folder `out`; gives how it went.

    The detector is then `Detector.load(out + "/model")`.
    """
    folder = Path(out)
    require_new(folder)
    with processes(config.device) as device:
        run = build_detection_run(config, folder, device, quiet=quiet)
        if distributed.is_main():
            _write_beginning(run)
        distributed.barrier()
        return _trained(run)


def resume_detector(
    out: str | os.PathLike[str], overrides: Mapping[str, str] | None = None, *, quiet: bool = False
) -> DetectionStanding:
    """Go on with the run in `out` from its last checkpoint; of its settings only a few can change."""
    folder = Path(out)
    config = resumed_config(folder, overrides or {}, DetectConfig, _CHANGEABLE)
    with processes(config.device) as device:
        run = build_detection_run(config, folder, device, quiet=quiet)
        if distributed.is_main():
            write_config(folder, run.config)
            _write_scenes(run)  # data.path may have changed
            add_resumption(folder, _facts(run))
        return _trained(run)


def build_detection_run(
    config: DetectConfig, folder: Path, device: torch.device, *, quiet: bool = False
) -> DetectionRun:
    """All that a run works with; reads the annotations, writes nothing to the folder."""
    check_config(config)
    if not config.data.path:
        raise InputError("there are no pictures; give --data, a folder in the layout of Pascal VOC or COCO")
    show = None if distributed.is_main() and not quiet else False
    data = config.data
    table = read_scenes(data.path, data.layout, "train", data.allow_partial, show=show)
    check_boxes(table)
    training, validation = split_scenes(table, data.validation, config.seed)
    if config.batch % distributed.world_size():
        raise InputError(
            f"batch {config.batch} cannot be shared by {distributed.world_size()} processes; make it a multiple of that"
        )
    sampler = SceneBatches(len(training), config.batch, config.seed)
    check_optimizer(config.optimizer, steps_of(config, len(sampler)))
    if not quiet:
        say_fetching(config.model)
    torch.manual_seed(config.seed)  # the same first weights in every process
    detector = build_detector(config, table.classes).to(device)
    config = replace(config, model=replace(config.model, batch_norm=_batch_norm(config.model)))
    optimizer = build_optimizer(config.optimizer, *_parts(detector))
    return DetectionRun(config, folder, training, validation, detector, sampler, optimizer, device, quiet)


def build_detector(config: DetectConfig, classes: tuple[str, ...]) -> Detector:
    """The detector with its first weights, and the loss of its classifier."""
    model, data = config.model, config.data
    settings = DetectorSettings(
        classes,
        model.backbone,
        _batch_norm(model),
        model.channels,
        model.head_dim,
        model.anchor_scale,
        data.short_side,
        data.long_side,
        model.proposals,
        model.proposals_test,
        model.samples,
        model.positives,
        config.loss.scores if config.loss.name == "RaMBO" else "softmax",
        model.score_threshold,
        detections=model.detections,
    )
    detector = Detector.build(settings, model.weights, model.trainable_layers)
    detector.classifier_loss = build_classifier_loss(config.loss)
    return detector


def build_classifier_loss(config: ClassifierConfig) -> ProposalAP | None:
    """The loss of the classifier; None is torchvision's own cross-entropy."""
    if config.name == "cross-entropy":
        return None
    ap = ClassifierAP(config.lam, config.margin, config.memory, config.across_classes, relative=True)
    return ProposalAP(ap, config.scores, config.warmup)


def split_scenes(table: SceneTable, share: float, seed: int) -> tuple[SceneTable, SceneTable]:
    """Pictures that train, and a random share of them that is held out."""
    count = round(share * len(table))
    if share and not 0 < count < len(table):
        raise InputError(f"data.validation {share} of {len(table)} pictures is {count}; take another share")
    held_out = np.zeros(len(table), dtype=bool)
    held_out[np.random.default_rng([seed, len(table)]).permutation(len(table))[:count]] = True
    training, validation = table.rows(~held_out), table.rows(held_out)
    if not training.objects:
        raise InputError(f"{table.name} has no object to train with; give pictures with boxes that are not ignored")
    if count and not validation.objects:
        said = f"data.validation {share}: there is no object to find in the {count} held-out pictures"
        raise InputError(f"{said}; take a larger share, or another seed")
    return training, validation


def _batch_norm(model: DetectorConfig) -> Any:
    if model.batch_norm != "auto":
        return model.batch_norm
    return "train" if model.weights == "none" else "frozen"


def _parts(detector: Detector) -> tuple[list[Any], list[Any]]:
    """Names and parameters of the backbone's body, and of all else."""
    named = list(detector.network.named_parameters())
    body = [pair for pair in named if pair[0].startswith("backbone.body.")]
    return body, [pair for pair in named if not pair[0].startswith("backbone.body.")]


def _trained(run: DetectionRun) -> DetectionStanding:
    standing = run_detector_loop(run)
    if distributed.is_main():
        found = {"metric": METRIC, "steps": standing.step, "best": standing.best, "best_step": standing.best_step}
        write_facts(run.folder, read_facts(run.folder, _facts(run)) | found)
    return standing


def _write_beginning(run: DetectionRun) -> None:
    """What a run is, before it begins; its settings last, as a folder with them is a run that can go on."""
    make_folder(run.folder)
    _write_scenes(run)
    write_facts(run.folder, _facts(run))
    write_config(run.folder, run.config)


def _write_scenes(run: DetectionRun) -> None:
    """The pictures that train and those that are held out, by whole paths: a run may be evaluated elsewhere."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["path", "split"])
    for split, table in (("train", run.training), ("validation", run.validation)):
        rows.writerows([os.path.abspath(file), split] for file in table.files)
    atomic_write(run.folder / "scenes.csv", text.getvalue().encode("utf-8", "surrogateescape"))


def _facts(run: DetectionRun) -> dict[str, Any]:
    return {
        **run_facts(run.device, run.config.seed),
        "kind": "detection",
        "data": run.training.name,
        "classes": list(run.training.classes),
        "pictures": {"train": len(run.training), "validation": len(run.validation)},
        "weights": run.detector.origin,
    }


# ==== How well a detector finds the objects of annotated pictures: those of its run, or others.


_SEEN = {  # split of the run -> what is to be said where its pictures are evaluated
    "train": "were trained on: the figures are too good",
    "validation": "are held-out pictures, which also chose the checkpoint: the figures may be too good",
}


def evaluate_detector(
    place: DetectorPlace,
    data: str | None = None,
    layout: str | None = None,
    split: str = "test",
    *,
    allow_partial: bool = False,
    device: str = "auto",
    batch: int = 8,
    workers: int = 2,
    show: bool | None = None,
) -> Evaluated:
    """Find the objects of annotated pictures, and judge what is found.

    data: the pictures; those of the detector's run by default. Where these are one file, which has no splits, they are
          the ones that the run held out
    """
    detector = Detector.load(place.model, device=build_device(device))
    data, table = _scenes(place, data, layout, split, allow_partial, show)
    notes = _notes(place, table)
    table = table.of_classes(detector.classes)
    found = find_objects(detector, table, batch=batch, workers=workers, show=show)
    report = evaluate_detections(table, found, f"{place.name} on {table.name}")
    return Evaluated(data, table, found, replace(report, notes=notes))


def _scenes(
    place: DetectorPlace, data: str | None, layout: str | None, split: str, allow_partial: bool, show: bool | None
) -> tuple[str, SceneTable]:
    """The pictures, after where they are from."""
    if data is not None:
        return data, read_scenes(data, layout or "auto", split, allow_partial, show)
    config = place.config()
    if config is None or not config.data.path:
        raise InputError(f"{shown(place.model)} does not say which pictures it is for; give --data")
    table = read_scenes(config.data.path, layout or config.data.layout, split, allow_partial, show)
    if split == "test" and Path(config.data.path).is_file():
        table = _held_out(place, table, config.data.path)
    return config.data.path, table


def _held_out(place: DetectorPlace, table: SceneTable, path: str) -> SceneTable:
    held_out = place.scenes("validation")
    rows = [row for row, file in enumerate(table.files) if os.path.realpath(file) in held_out]
    if not rows:
        look = f"frontrank detect evaluate {shown(place.run or place.model)} --split train"
        raise InputError(
            f"the run was trained on all of {shown(path)}; give --data TEST.json, or look at what it learnt: {look}"
        )
    return table.rows(rows)


def _notes(place: DetectorPlace, table: SceneTable) -> tuple[str, ...]:
    """What is to be said of pictures that the run has seen."""
    files = [os.path.realpath(file) for file in table.files]
    counts = {split: sum(file in seen for file in files) for split in _SEEN if (seen := place.scenes(split))}
    return tuple(f"{count:,} of the {len(files):,} pictures {_SEEN[split]}" for split, count in counts.items() if count)
