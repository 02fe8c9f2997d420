"""Training a detector, from settings to a run's folder."""

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from frontrank.build import processes, say_fetching
from frontrank.config_detection import ClassifierConfig, DetectConfig, DetectorConfig
from frontrank.detection.classifier_loss import ProposalAP
from frontrank.detection.loading import SceneBatches, check_boxes
from frontrank.detection.loop import METRIC, DetectionRun, DetectionStanding, steps_of
from frontrank.detection.loop import train_detector as train_run
from frontrank.detection.model import Detector, DetectorSettings
from frontrank.detection.reading import read_scenes
from frontrank.detection.scenes import SceneTable
from frontrank.errors import InputError
from frontrank.losses import ClassifierAP
from frontrank.settings import check_config
from frontrank.training import distributed
from frontrank.training.checkpoints import atomic_write
from frontrank.training.optimizers import build_optimizer, check_optimizer
from frontrank.training.run_folder import (
    add_resumption,
    make_folder,
    read_facts,
    require_new,
    resumed_config,
    run_facts,
    write_config,
    write_facts,
)

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
    standing = train_run(run)
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
