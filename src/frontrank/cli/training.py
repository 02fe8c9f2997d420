"""What `frontrank train` does with its options: train, go on, or print the plan."""

import argparse
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from frontrank.cli.train import overrides
from frontrank.detection.settings import DetectConfig
from frontrank.errors import InterruptedRunError
from frontrank.settings import TrainConfig, as_yaml, find_recipe, read_config, read_recipe
from frontrank.training import distributed
from frontrank.training.loop import Standing, images_that_fit, steps_of
from frontrank.training.run import RetrievalRun, build_run, processes, require_new, resume, train


def run(options: argparse.Namespace) -> None:
    """Train, go on, or print the plan."""
    if options.resume is not None:
        folder = Path(options.resume)
        _report(folder, lambda: resume(folder, overrides(options), quiet=options.quiet))
        return
    config = _config(options)
    folder = Path(options.out) if options.out else default_folder(options, config)
    if options.dry_run:
        require_new(folder)
        with processes(config.device) as device:
            _print_plan(build_run(config, folder, device, quiet=options.quiet, remember=False))
        return
    _report(folder, lambda: train(config, folder, quiet=options.quiet))


def _config(options: argparse.Namespace) -> TrainConfig:
    recipe = None if options.recipe is None else read_recipe(find_recipe(options.recipe))
    return read_config(recipe, overrides(options))


def default_folder(options: argparse.Namespace, config: TrainConfig | DetectConfig) -> Path:
    """Where a run is left, if nothing is said: runs/ and the name of its recipe, or of its data and its loss."""
    own = f"{Path(config.data.path).resolve().stem}-{config.loss.name}"
    return Path("runs") / (Path(options.recipe).stem if options.recipe else own)


def _report(folder: Path, work: Callable[[], Standing]) -> None:
    """Do the work and say how it went; where it was told to stop, the error says how to go on."""
    with told_how_to_go_on("frontrank train", folder):
        standing = work()
    if os.environ.get("RANK", "0") != "0":
        return
    if standing.best is None:
        print(f"trained {standing.step:,} steps; there were no held-out classes to choose a checkpoint by")
    else:
        early = ", stopped early" if standing.stopped_early else ""
        print(
            f"trained {standing.step:,} steps{early}; held-out classes: {standing.before:.4f} before, "
            f"{standing.best:.4f} at the best checkpoint (step {standing.best_step:,})"
        )
        if standing.before is not None and standing.best <= standing.before:
            print("the training did not help on the held-out classes: try another learning rate, or more steps")
    model = _word(folder / "model")
    print(f"model: {model}    try: frontrank evaluate {model} --data PATH")


@contextmanager
def told_how_to_go_on(command: str, folder: Path) -> Iterator[None]:
    """Within, the error of a run that was told to stop says how to go on with it."""
    try:
        yield
    except InterruptedRunError as error:
        raise InterruptedRunError(f"{error}; go on with: {command} --resume {_word(folder)}") from error


def _word(path: Path) -> str:
    """A path as it is written in a shell."""
    return shlex.quote(str(path))


def _print_plan(run: RetrievalRun) -> None:
    """What would be done, and whether it fits."""
    if not distributed.is_main():
        return
    config, batches, model = run.config, run.config.batches, run.model
    steps, weights = steps_of(run), sum(each.numel() for each in model.parameters())
    lines = {
        "batches": f"{batches.size} images each ({batches.kind}), {len(run.sampler):,} an epoch; {steps:,} steps",
        "model": f"{config.model.backbone}, {weights / 1e6:.1f} M weights, {model.dim} dimensions; {model.origin}",
        "loss": str(run.loss),
        "device": f"{run.device}, {distributed.world_size()} process(es), {config.precision}",
        "memory": _memory(run),
        "out": str(run.folder),
    }
    print_plan(run.images.all.describe(), lines, config)


def print_plan(data: str, lines: Mapping[str, str], config: TrainConfig | DetectConfig) -> None:
    """What a run would work with, a line for each part, and all settings."""
    print(f"{data}\n")
    for name, text in lines.items():
        print(f"{name:9} {text}")
    print(f"\nsettings, as a recipe:\n\n{as_yaml(config)}", end="")


def _memory(run: RetrievalRun) -> str:
    size = run.config.data.size
    each, most = images_that_fit(run.model, torch.zeros(2, 3, size, size, device=run.device), run.device)
    own = math.ceil(run.config.batches.size / distributed.world_size())
    said = f"images of a batch {own * 3 * size**2 / 1e6:,.0f} MB; activations about {each / 1e6:,.1f} MB per image"
    if most is None:
        return f"{said}; this device does not tell how much it has"
    chunk = min(run.config.batches.chunk or own, own)
    said += f"; about {most:,} images fit at once"
    if chunk <= most:
        return f"{said}, {chunk:,} are needed"
    if most < 1:
        return f"{said}; use a smaller model, data.size, or another device"
    return f"{said}, but {chunk:,} are asked for: set batches.chunk to {most:,} or less (the gradient stays exact)"
