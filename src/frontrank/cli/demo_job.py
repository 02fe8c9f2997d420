"""The demonstration: real pictures, a model trained to rank them, and a folder for each run of it."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from frontrank.data.table import ImageTable, shown
from frontrank.errors import InputError
from frontrank.samples.emoji import build_emoji
from frontrank.settings import TrainConfig, find_recipe, read_config, read_recipe
from frontrank.training.loop import Standing
from frontrank.training.run import resume, split_images, train

RECIPE = "emoji-demo"


def demo_images(out: Path, classes: int | None = None, *, show: bool | None = None) -> ImageTable:
    """The emoji, in `out`/emoji; or in `out`/emoji-N where only so many classes are wanted."""
    if out.is_file():
        raise InputError(f"--out {shown(out)} is a file; choose another name")
    return build_emoji(out / ("emoji" if classes is None else f"emoji-{classes}"), classes=classes, show=show)


def demo_config(images: ImageTable, iterations: int | None = None) -> TrainConfig:
    """The settings of the recipe, for these images: of few classes, batches have what there is."""
    config = read_config(read_recipe(find_recipe(RECIPE)), {"data.path": str(images.root)})
    classes = len(set(split_images(images, config).of("train").labels))
    size = min(config.batches.size, classes * config.batches.per_class)
    config = replace(config, batches=replace(config.batches, size=size))
    if iterations is None:
        return config
    warmup = min(config.optimizer.warmup, iterations // 4)
    return replace(config, iterations=iterations, optimizer=replace(config.optimizer, warmup=warmup))


def own_options(config: TrainConfig) -> str:
    """What a command with the recipe needs beside it to train on the images of this demonstration."""
    size = read_config(read_recipe(find_recipe(RECIPE))).batches.size
    return "" if config.batches.size == size else f" --batches.size {config.batches.size}"


def demo_run(out: Path, config: TrainConfig) -> Path:
    """The first folder of `out`/run, run-2, ... that is free, or holds a run with these settings that was stopped.

    Also one that was stopped after training, before its report was there.
    """
    number = 1
    while (folder := out / ("run" if number == 1 else f"run-{number}")).exists():
        if _begun(folder) == _identity(config):
            return folder
        number += 1
    return folder


def train_demo(config: TrainConfig, folder: Path) -> Standing:
    """Train in the folder, or go on with the run that is there."""
    return resume(folder) if folder.exists() else train(config, folder)


def _begun(folder: Path) -> TrainConfig | None:
    """The settings of a run that has not come to its end, the report; None where there is none such."""
    with suppress(InputError, OSError, ValueError):
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if "steps" not in facts or not (folder / "report.html").is_file():
            return _identity(read_config(read_recipe(folder / "config.yaml")))
    return None


def _identity(config: TrainConfig) -> TrainConfig:
    """Settings without what a run writes in another way than it was given."""
    data = replace(config.data, path=str(Path(config.data.path).resolve()))
    return replace(
        config, data=data, model=replace(config.model, batch_norm="auto"), batches=replace(config.batches, size=0)
    )
