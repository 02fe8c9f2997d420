"""All that a comparison can be refused for, before its first run; and the images that its runs share."""

import os
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from frontrank.build import build_device, build_images, build_model, build_sampler, require_metric, sized_batches
from frontrank.config import ModelConfig, TrainConfig
from frontrank.data.image_check import check_images
from frontrank.data.image_table import ImageTable
from frontrank.errors import InputError
from frontrank.jobs.comparison_plan import Plan, Way
from frontrank.jobs.comparison_run import require_tests, sides
from frontrank.training.loop import steps_of
from frontrank.training.optimizers import check_optimizer
from frontrank.training.run_images import checked_images_file, split_images

_TEST_SHARE = 0.5  # of the classes, where the data set says nothing of test images
_LEAST = 8  # classes of two images: two to train with, two to choose by and, of as many again, half to test
_OF_FROZEN = ("model.backbone", "model.weights", "model.pooling", "model.stage", "data.size", "data.resize")


@dataclass(frozen=True, eq=False)
class Prepared:
    """The images with the splits that all runs share, what there is to say of them, and the steps of each way."""

    table: ImageTable
    notes: tuple[str, ...]
    steps: dict[str, int]


def prepare(plan: Plan, *, show: bool | None = None) -> Prepared:
    """Check all settings with the images, and these; what takes long comes last."""
    require_metric(plan.base.metric)
    build_device(plan.base.device)
    table = build_images(plan.base.data)
    parted, notes = _parted(table, plan)
    steps = {way.name: _steps(plan, way, parted) for way in plan.ways}
    _check_models(plan)
    data = plan.base.data
    memory = checked_images_file(table.root, 0, 1)
    found = check_images(table, data.check, data.broken, max(1, data.workers), remembered=memory, show=show)
    if found.broken:  # a split of images of which some are missing could leave a class of one
        parted, notes = _parted(found.table, plan)
        steps = {way.name: _steps(plan, way, parted) for way in plan.ways}
        notes.append(found.note)
    if not has_frozen(plan):
        notes.append("there is no line of the backbone before training, as the backbone or its images vary")
    return Prepared(parted, tuple(notes), steps)


def has_frozen(plan: Plan) -> bool:
    """Whether the backbone before training is the same for all ways."""
    return not any(axis in _OF_FROZEN for axis in plan.axes)


def pictures_digest(table: ImageTable) -> str:
    """What tells pictures from others of the same names: size and time of change of every file."""
    found = sha256()
    for file in table.files():
        try:
            told = os.stat(file)
            found.update(f"{told.st_size} {told.st_mtime_ns}\n".encode())
        except OSError:
            found.update(b"missing\n")
    return found.hexdigest()


def _parted(table: ImageTable, plan: Plan) -> tuple[ImageTable, list[str]]:
    """The table with its splits, and what was done to it."""
    config, notes = plan.base, []
    if not len(table.of("test")) and not config.data.test:
        _require_classes(table, config)
        config = replace(config, data=replace(config.data, test=_TEST_SHARE))
        notes.append(f"{_TEST_SHARE:.0%} of the classes, drawn by the seed, are test images, as there were none")
    parted = split_images(table, config)
    if not len(parted.of("validation")) and any(len(way.lrs) > 1 for way in plan.ways):
        raise InputError(
            "no classes are held out to choose learning rates by; set data.validation above 0, or give one --lr"
        )
    require_tests(parted)
    test = parted.of("test")
    left = int((test.roles == "distractor").sum())
    if left and sides(test)[1] is None:
        notes.append(f"{left:,} distractors are left out, as there is no gallery beside them")
    if config.data.merge_classes > 1:
        notes.append(f"every {config.data.merge_classes} training classes are merged into one")
    return parted, notes


def _require_classes(table: ImageTable, config: TrainConfig) -> None:
    """Refuse too few classes to draw those for test from."""
    train = table.of("train")
    sizes = np.unique(train.labels[train.labels != ""], return_counts=True)[1]
    several, chosen = int((sizes > 1).sum()), config.data.validation > 0 and not len(table.of("validation"))
    least = _LEAST if chosen else _LEAST // 2
    if several < least:
        less = f" ({_LEAST // 2} with --data.validation 0 and one --lr)" if chosen else ""
        raise InputError(
            f"--data {config.data.path} has {several} classes of two images or more; compare needs test images, or at "
            f"least {least} classes of two images{less}"
        )


def _steps(plan: Plan, way: Way, table: ImageTable) -> int:
    """The steps of a run of a way; refuses batches and schedules that the images do not allow."""
    training = table.of("train")
    config = plan.config(way, way.lrs[0], 0, Path("images.csv"))
    try:
        config = replace(config, batches=sized_batches(config.batches, training))
        sampler = build_sampler(config.batches, training, config.seed)
        steps = steps_of(config, len(sampler))
        check_optimizer(config.optimizer, steps)
        if plan.search_steps and len(way.lrs) > 1:
            check_optimizer(config.optimizer, plan.search_steps)
    except InputError as error:
        raise InputError(f"{way.name}: {error}") from error
    return steps


def _check_models(plan: Plan) -> None:
    """Build every network of the plan once: a wrong name is found now, and weights are fetched."""
    built: list[tuple[ModelConfig, int, int]] = []
    for way in plan.ways:
        config = plan.config(way, way.lrs[0], 0, Path("images.csv"))
        wanted = (config.model, config.data.size, config.data.resize)
        if wanted in built:
            continue
        with torch.random.fork_rng(devices=[]):
            try:
                build_model(config.model, config.data)
            except InputError as error:
                raise InputError(f"{way.name}: {error}" if plan.axes else str(error)) from error
        built.append(wanted)
