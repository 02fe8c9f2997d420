"""What `frontrank detect train` does with its options: train, go on, or print the plan."""

import argparse
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import torch

from frontrank.cli.train import overrides
from frontrank.cli.training import default_folder, print_plan, told_how_to_go_on
from frontrank.detection.run import (
    DetectionRun,
    build_detection_run,
    resume_detector,
    train_detector,
)
from frontrank.detection.settings import DetectConfig
from frontrank.settings import find_recipe, read_config, read_recipe
from frontrank.training import distributed
from frontrank.training.loop import Standing, steps_of
from frontrank.training.run import processes, require_new


def run(options: argparse.Namespace) -> None:
    """Train, go on, or print the plan."""
    given = overrides(options, DetectConfig)
    if options.resume is not None:
        folder = Path(options.resume)
        _report(folder, lambda: resume_detector(folder, given, quiet=options.quiet))
        return
    recipe = None if options.recipe is None else read_recipe(find_recipe(options.recipe, DetectConfig), DetectConfig)
    config = read_config(recipe, given, DetectConfig)
    folder = Path(options.out) if options.out else default_folder(options, config)
    if options.dry_run:
        require_new(folder)
        with processes(config.device) as device:
            _print_plan(build_detection_run(config, folder, device, quiet=options.quiet))
        return
    _report(folder, lambda: train_detector(config, folder, quiet=options.quiet))


def _report(folder: Path, work: Callable[[], Standing]) -> None:
    """Do the work and say how it went; where it was told to stop, the error says how to go on."""
    with told_how_to_go_on("frontrank detect train", folder):
        standing = work()
    if os.environ.get("RANK", "0") != "0":
        return
    chosen = ""
    if standing.best is not None:
        best = f"{DetectionRun.metric} {standing.best:.4f} at the best checkpoint (step {standing.best_step:,})"
        chosen = f"; held-out pictures: {best}"
    print(f"trained {standing.step:,} steps{chosen}")
    word = shlex.quote(str(folder))
    print(f"detector: {shlex.quote(str(folder / 'model'))}    try: frontrank detect evaluate {word}")


def _print_plan(run: DetectionRun) -> None:
    """What would be done."""
    if not distributed.is_main():
        return
    config, detector = run.config, run.model
    steps, weights = steps_of(run), sum(each.numel() for each in detector.parameters())
    held_out = f"{len(run.validation):,} held out to choose the checkpoint" if len(run.validation) else "none held out"
    loss = detector.classifier_loss
    lines = {
        "pictures": f"{len(run.training):,} to train with, {held_out}",
        "batches": f"{config.batch} pictures each, {len(run.sampler):,} an epoch; {steps:,} steps",
        "model": f"Faster R-CNN, {config.model.backbone}, {weights / 1e6:.1f} M weights; {detector.origin}",
        "loss": "cross-entropy" if loss is None else str(loss),
        "lists": _lists(run),
        "device": f"{run.device}, {distributed.world_size()} process(es)",
        "out": str(run.folder),
    }
    print_plan(run.training.describe(), lines, config)


def _lists(run: DetectionRun) -> str:
    """How many scores are ranked in a step, and what the memory of them takes."""
    if run.model.classifier_loss is None:
        return "none are ranked"
    config, classes = run.config, len(run.model.classes)
    each = config.batch * config.model.samples * classes
    size = torch.float32.itemsize + torch.bool.itemsize
    held = each * config.loss.memory * size / 1e6
    return f"up to {each * (1 + config.loss.memory):,} scores a step; those of past batches take {held:,.1f} MB"
