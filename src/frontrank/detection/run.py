"""Runs of detectors: from settings to a trained detector, and how well it finds the objects of annotated pictures."""

import csv
import io
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.checks import printable
from frontrank.detection.data import Batch, SceneBatches, SceneTable, read_scenes, training_scenes
from frontrank.detection.evaluation import DetectionReport, Detections, evaluate_detections
from frontrank.detection.model import Detector, DetectorSettings, ProposalAP, find_objects
from frontrank.detection.settings import ClassifierConfig, DetectConfig, DetectorConfig
from frontrank.errors import InputError
from frontrank.files import PathLike, atomic_write, count_shared_files
from frontrank.losses import ClassifierAP
from frontrank.models import storage
from frontrank.settings import check_config, read_config, read_recipe
from frontrank.training import distributed
from frontrank.training.distributed import build_device
from frontrank.training.logs import check_trackers
from frontrank.training.loop import Budget, Standing, count_steps
from frontrank.training.optimizers import build_optimizer, check_warmup
from frontrank.training.run import announce_weights, continue_run, environment_facts, start_run

_LOG_NAMES = {
    "loss_classifier": "classifier",
    "loss_box_reg": "boxes",
    "loss_objectness": "objectness",
    "loss_rpn_box_reg": "proposals",
}
_WARNINGS = {  # split of the run -> what to say if its pictures are evaluated
    "train": "were trained on: the figures are too good",
    "validation": "are held-out pictures, which also chose the checkpoint: the figures may be too good",
}


def train_detector(config: DetectConfig, out: PathLike, *, quiet: bool = False) -> Standing:
    """Train a detector, leave everything in the folder `out`, and return how it went.

    The detector is then `Detector.load(out + "/model")`.
    """
    return start_run(build_detection_run, config, out, quiet)


def resume_detector(out: PathLike, overrides: Mapping[str, str] | None = None, *, quiet: bool = False) -> Standing:
    """Continue the run in `out` from its last checkpoint; only a few of its settings can change."""
    return continue_run(build_detection_run, out, overrides or {}, DetectConfig, quiet)


@dataclass
class DetectionRun:
    """A run that trains a detector; `build_detection_run` makes it from the settings."""

    config: DetectConfig
    folder: Path
    training: SceneTable
    validation: SceneTable
    model: Detector
    sampler: SceneBatches
    optimizer: torch.optim.Optimizer
    device: torch.device
    quiet: bool = False
    metric: str = "AP50"
    tie_breaker: str = ""
    evaluate_first: bool = False
    patience: int = 0
    accumulate: int = 1
    scaler: torch.amp.GradScaler | None = None
    budget: Budget | None = None

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        seed, data = self.config.seed, self.config.data
        return training_scenes(self.training, self.sampler, seed, data.flip, data.workers, start, stop)

    def gradient(self, network: nn.Module, batch: Batch, step: int) -> tuple[int, Callable[[], dict[str, float]]]:
        """Add the gradient of the four losses, the classifier's times its weight."""
        loss = self.model.classifier_loss
        if loss is not None:
            loss.begin_step(step)
        pictures, targets = batch
        inputs = [each.to(self.device, non_blocking=True) for each in pictures]
        wanted = [{name: x.to(self.device, non_blocking=True) for name, x in target.items()} for target in targets]
        losses: dict[str, Tensor] = network(inputs, wanted)
        weights = {"loss_classifier": self.config.loss.weight}
        total = torch.stack([each * weights.get(name, 1.0) for name, each in losses.items()]).sum()
        total.backward()
        values = {_LOG_NAMES.get(name, name): each.detach() for name, each in {"loss": total, **losses}.items()}
        last = {} if loss is None else loss.last
        return self.config.batch, lambda: {name: float(each) for name, each in values.items()} | last

    def evaluate(self) -> dict[str, float]:
        """Find the objects of the held-out pictures; the main process does it alone."""
        distributed.share_buffers(self.model)
        if not distributed.is_main():
            return {}
        with torch.random.fork_rng(devices=[]):  # so that an evaluation has no effect on the training
            workers = self.config.data.workers
            detections = find_objects(self.model, self.validation, batch=self.config.batch, workers=workers, show=False)
        return dict(evaluate_detections(self.validation, detections))

    def save_model(self) -> None:
        self.model.save(self.folder / "model", overwrite=True)

    def state(self) -> dict[str, Any]:
        loss = self.model.classifier_loss
        return {"detector": self.model.state_dict(), "loss": None if loss is None else loss.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["detector"])
        loss = self.model.classifier_loss
        if (loss is None) != (state["loss"] is None):
            raise ValueError("another loss")
        if loss is not None:
            loss.load_state_dict(state["loss"])

    def fingerprints(self) -> dict[str, Any]:
        scenes = [scenes_digest(self.training), scenes_digest(self.validation)]
        return {"sampler": self.sampler.state_dict()["fingerprint"], "scenes": scenes}

    def facts(self) -> dict[str, Any]:
        return {
            **environment_facts(self.device, self.config.seed),
            "kind": "detection",
            "data": self.training.name,
            "classes": list(self.training.classes),
            "pictures": {"train": len(self.training), "validation": len(self.validation)},
            "weights": self.model.origin,
        }

    def write_data(self) -> None:
        """Write scenes.csv with whole paths: the run may be evaluated from another working folder."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["path", "split"])
        for split, table in (("train", self.training), ("validation", self.validation)):
            rows.writerows([os.path.abspath(file), split] for file in table.files)
        atomic_write(self.folder / "scenes.csv", text.getvalue().encode("utf-8", "surrogateescape"))


def scenes_digest(table: SceneTable) -> str:
    """Return a digest of the classes, file names, boxes and labels of a table; folders do not count."""
    names = (Path(file).name for file in table.files)
    digest = sha256("\0".join((*table.classes, "", *names)).encode("utf-8", "surrogateescape"))
    for columns in (table.boxes, table.labels, table.ignored):
        for each in columns:
            digest.update(f"{each.shape}".encode() + np.ascontiguousarray(each).tobytes())
    return digest.hexdigest()


# Settings to objects


def build_detection_run(config: DetectConfig, folder: Path, device: torch.device, quiet: bool = False) -> DetectionRun:
    """Build everything that a run works with; reads the annotations, writes nothing to the folder."""
    check_config(config)
    check_trackers(config.log)
    data = config.data
    if not data.path:
        raise InputError("there are no pictures; give --data, a folder in the layout of Pascal VOC or COCO")
    show = None if distributed.is_main() and not quiet else False
    table = read_scenes(data.path, data.layout, "train", data.allow_partial, show=show)
    training, validation = split_scenes(table, data.validation, config.seed)
    if config.batch % (count := distributed.world_size()):
        raise InputError(f"batch {config.batch} cannot be shared by {count} processes; make it a multiple of that")
    sampler = SceneBatches(len(training), config.batch, config.seed)
    steps = count_steps(config, len(sampler))
    if config.optimizer.warmup == DetectConfig().optimizer.warmup:  # as published; short runs are tried first
        config = replace(config, optimizer=replace(config.optimizer, warmup=min(config.optimizer.warmup, steps)))
    check_warmup(config.optimizer, steps)
    if not quiet:
        announce_weights(config.model.backbone, config.model.weights)
    torch.manual_seed(config.seed)  # the same first weights in every process
    detector = build_detector(config, table.classes).to(device)
    config = replace(config, model=replace(config.model, batch_norm=_batch_norm(config.model)))
    named = list(detector.network.named_parameters())
    body, rest = ([pair for pair in named if pair[0].startswith("backbone.body.") is own] for own in (True, False))
    optimizer = build_optimizer(config.optimizer, body, rest)
    return DetectionRun(config, folder, training, validation, detector, sampler, optimizer, device, quiet)


def build_detector(config: DetectConfig, classes: tuple[str, ...]) -> Detector:
    """Build the detector with its first weights, and the loss of its classifier."""
    model, data = config.model, config.data
    names = {each.name for each in fields(DetectorSettings)}
    own = {name: value for name, value in (*vars(data).items(), *vars(model).items()) if name in names}
    scores = config.loss.scores if config.loss.name == "RaMBO" else "softmax"
    settings = DetectorSettings(**own | {"classes": classes, "batch_norm": _batch_norm(model), "scores": scores})
    detector = Detector.build(settings, model.weights, model.trainable_layers)
    detector.classifier_loss = build_classifier_loss(config.loss)
    return detector


def build_classifier_loss(config: ClassifierConfig) -> ProposalAP | None:
    """Build the loss of the classifier; None is torchvision's own cross-entropy."""
    if config.name == "cross-entropy":
        return None
    ap = ClassifierAP(config.lam, config.margin, config.memory, config.across_classes, relative=True)
    return ProposalAP(ap, config.scores, config.warmup)


def split_scenes(table: SceneTable, share: float, seed: int) -> tuple[SceneTable, SceneTable]:
    """Split pictures into those to train with and a random share that is held out."""
    count = round(share * len(table))
    if share and not 0 < count < len(table):
        raise InputError(f"data.validation {share} of {len(table)} pictures is {count}; take another share")
    held_out = np.zeros(len(table), dtype=bool)
    held_out[np.random.default_rng([seed, len(table)]).permutation(len(table))[:count]] = True
    training, validation = table.rows(~held_out), table.rows(held_out)
    if not training.objects:
        raise InputError(f"{table.name} has no object to train with; give pictures with boxes that are not ignored")
    if count and not validation.objects:
        raise InputError(f"data.validation {share}: held-out pictures have no object to find; take a larger share")
    return training, validation


def _batch_norm(model: DetectorConfig) -> Any:
    if model.batch_norm != "auto":
        return model.batch_norm
    return "train" if model.weights == "none" else "frozen"


# Evaluation of a trained detector


@dataclass(frozen=True)
class DetectorPlace:
    """The folder of a saved detector, and that of the run that trained it, if it is in one."""

    model: Path
    run: Path | None

    @property
    def name(self) -> str:
        """The name of the detector in tables."""
        return (self.run or self.model).resolve().name

    def config(self) -> DetectConfig | None:
        """Read the settings of its run."""
        if self.run is None:
            return None
        return read_config(read_recipe(self.run / "config.yaml", DetectConfig), None, DetectConfig)

    def scenes(self, split: str) -> set[str]:
        """Return the pictures that its run trained on ("train") or held out ("validation"), as far as that is known."""
        file = None if self.run is None else self.run / "scenes.csv"
        if file is None or not file.is_file():
            return set()
        with file.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
            return {os.path.realpath(row["path"]) for row in csv.DictReader(text) if row.get("split") == split}


@dataclass(frozen=True, eq=False)
class DetectorEvaluation:
    """What a detector found in annotated pictures, whose path is `data`, and how well."""

    data: str
    table: SceneTable
    detections: Sequence[Detections]
    report: DetectionReport


def find_detector(path: PathLike) -> DetectorPlace:
    """Find the detector of a run's folder, or of the folder it was saved to."""
    folder = Path(path)
    if (folder / "config.yaml").is_file():
        if not storage.is_model(folder / "model"):
            command = f"frontrank detect train --resume {shlex.quote(str(folder))}"
            raise InputError(f"{printable(folder)} has no detector yet; continue the run: {command}")
        return DetectorPlace(folder / "model", folder)
    in_run = folder.name == "model" and (folder.parent / "config.yaml").is_file()
    return DetectorPlace(folder, folder.parent if in_run else None)


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
) -> DetectorEvaluation:
    """Find the objects of annotated pictures, and compare them with the annotations.

    data: the pictures; by default those of the detector's run. If these are one file, which has no splits, they are the
          ones that the run held out
    """
    detector = Detector.load(place.model, device=build_device(device))
    data, table = _evaluation_scenes(place, data, layout, split, allow_partial, show)
    counts = {split: count_shared_files(table.files, place.scenes(split)) for split in _WARNINGS}
    notes = (f"{count:,} of the {len(table.files):,} pictures {_WARNINGS[of]}" for of, count in counts.items() if count)
    table = table.of_classes(detector.classes)
    detections = find_objects(detector, table, batch=batch, workers=workers, show=show)
    report = evaluate_detections(table, detections, f"{place.name} on {table.name}")
    return DetectorEvaluation(data, table, detections, replace(report, notes=tuple(notes)))


def _evaluation_scenes(
    place: DetectorPlace, data: str | None, layout: str | None, split: str, allow_partial: bool, show: bool | None
) -> tuple[str, SceneTable]:
    """Return the path of the pictures, and their table."""
    if data is not None:
        return data, read_scenes(data, layout or "auto", split, allow_partial, show)
    config = place.config()
    if config is None or not config.data.path:
        raise InputError(f"{printable(place.model)} does not say which pictures it is for; give --data")
    path = config.data.path
    table = read_scenes(path, layout or config.data.layout, split, allow_partial, show)
    if split == "test" and Path(path).is_file():
        held_out = place.scenes("validation")
        rows = [row for row, file in enumerate(table.files) if os.path.realpath(file) in held_out]
        if not rows:
            command = f"frontrank detect evaluate {printable(place.run or place.model)} --split train"
            raise InputError(f"all of {printable(path)} was trained on; give --data TEST.json, or try {command}")
        table = table.rows(rows)
    return path, table
