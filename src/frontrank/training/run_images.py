"""The images of a run: which classes train, which are held out, and whether all of them can be read."""

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from frontrank.config import TrainConfig
from frontrank.data.image_check import broken_note, check_images
from frontrank.data.image_table import ImageTable, shown
from frontrank.data.splits import hold_out_classes, merge_classes, split_test_classes
from frontrank.errors import InputError
from frontrank.packages import cache_folder
from frontrank.training import distributed
from frontrank.training.embedding import on_all_ranks


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
    with on_all_ranks():
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
