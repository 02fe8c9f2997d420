"""The images of a run: read by the settings, split into training, validation and test, and checked."""

import os
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.checks import printable, suggestion
from frontrank.data.images import broken_note, check_images
from frontrank.data.published import PUBLISHED, detect_layout, read_published
from frontrank.data.splits import hold_out_classes, merge_classes, split_test_classes
from frontrank.data.table import ImageTable, read_folder, read_table
from frontrank.errors import InputError
from frontrank.packages import cache_folder
from frontrank.samples.build import TABLE as OWN_TABLE  # a folder that holds it is that table
from frontrank.samples.build import resume_command
from frontrank.settings import DataConfig, TrainConfig
from frontrank.training import distributed


@dataclass(frozen=True, eq=False)
class RunImages:
    """The images of a run.

    all:    with their splits
    used:   those of train and validation that can be read
    broken: the others of these splits, with the reason
    """

    all: ImageTable
    used: ImageTable
    broken: list[tuple[str, str]]

    def note(self) -> str:
        """Return one line about the broken images."""
        return broken_note(self.broken, len(self.used) + len(self.broken))


def build_images(config: DataConfig) -> ImageTable:
    """Read the table of images at a path, by its layout."""
    if not config.path:
        raise InputError("there are no images; give --data, a folder of images by class, a table, or a data set's root")
    path = Path(config.path)
    if not os.path.exists(path):
        raise InputError(f"--data {path} does not exist; give a folder of images, a table, or a data set's root")
    if command := resume_command(path.parent if path.name == OWN_TABLE else path):
        raise InputError(f"--data {path} is not finished yet; continue with: {command}")
    layout = config.layout
    if layout == "auto" and path.is_dir():
        layout = detect_layout(path) or ("table" if (path / OWN_TABLE).is_file() else "folder")
    if layout in ("folder", "classes"):
        return read_folder(path, classes=layout == "classes")
    if layout in ("auto", "table"):
        return _read_table(path, guessed=config.layout == "auto" and path.is_dir())
    if layout in PUBLISHED:
        return read_published(layout, path, allow_partial=config.allow_partial)
    near = suggestion(layout, ["auto", "folder", "classes", "table", *PUBLISHED])
    raise InputError(f"data.layout {layout!r} is not known{near}")


def _read_table(path: Path, guessed: bool) -> ImageTable:
    """Read a table, or the one in a folder of images, such as `frontrank data` builds.

    guessed: the user did not say that the table of the folder is meant
    """
    file = path / OWN_TABLE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise InputError(f"{path} is a folder without {OWN_TABLE}; give a table, or leave out data.layout")
    try:
        table = read_table(file)
    except InputError as error:
        if not guessed:
            raise
        raise InputError(f"{error}; or, if {file.name} is not about these images, move it away") from error
    return replace(table, name=file.parent.resolve().name) if file.name == OWN_TABLE else table


def split_images(table: ImageTable, config: TrainConfig) -> ImageTable:
    """Set aside the classes for test and validation, and merge classes, as the settings say."""
    if not len(table.of("train")):
        raise InputError(f"--data {config.data.path} has no images to train with; give some the split train")
    if config.data.test:
        if len(table.of("test")):
            raise InputError(f"--data {config.data.path} has test images already; leave out data.test")
        table = split_test_classes(table, config.data.test, config.seed)
    table = hold_out_classes(table, config.data.validation, config.seed)
    if table.of("train").class_sizes().max(initial=0) < 2:
        fault = "has no class of two images to train with, and there is nothing to rank"
        raise InputError(f"--data {config.data.path} {fault}; add images, or check that folders are classes")
    if config.data.merge_classes > 1:
        table = merge_classes(table, config.data.merge_classes, config.seed)
    held_out = table.of("validation")
    if len(held_out) and held_out.class_sizes().max(initial=0) < 2:
        raise InputError(
            f"--data {config.data.path} has no class of two images in its split validation, so nothing can be "
            "evaluated; add images, or move all of it to train"
        )
    return table


def check_run_images(table: ImageTable, config: TrainConfig, *, remember: bool, show: bool | None) -> RunImages:
    """Read all images of train and validation once."""
    used = table.rows(np.isin(table.splits, ("train", "validation")))
    broken = find_broken(used, config.data.workers, config.data.check, remember=remember, show=show)
    images = RunImages(table, leave_out(used, broken), broken)
    if broken and config.data.broken == "fail":
        raise InputError(f"{images.note()}; replace them, or leave them out (data.broken skip)")
    if broken and not len(images.used.of("train")):
        raise InputError(f"{images.note()}; no image to train with is left: check the root {printable(table.root)}")
    return images


def find_broken(
    table: ImageTable, workers: int, check: Any = "full", *, remember: bool = True, show: bool | None = None
) -> list[tuple[str, str]]:
    """Return the images that cannot be read, and why. Each process checks a share, and all get the same result.

    remember: which images are good, so that they are not checked again
    """
    rank, world = distributed.rank(), distributed.world_size()
    share = table.rows(np.arange(rank, len(table), world))
    own: list[tuple[str, str]] = []
    with distributed.fail_together():
        cache = image_check_cache(table.root, rank, world) if remember else None
        if len(share):
            own = check_images(share, check, "list", max(1, workers), remembered=cache, show=show).broken
    return sorted({each for part in distributed.gather_objects(own) for each in part})


def leave_out(table: ImageTable, broken: list[tuple[str, str]]) -> ImageTable:
    """Return the table without the broken images."""
    paths = {path for path, _ in broken}
    return table.rows(np.array([path not in paths for path in table.paths.tolist()]))


def image_check_cache(root: Path, rank: int, world: int) -> Path | None:
    """Return the file that remembers which images could be read; None if there is no cache folder."""
    try:
        cache = cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, InputError):  # no home, or none that can be written to
        return None
    share = "" if world == 1 else f"-{rank}-of-{world}"
    return cache / f"checked-{sha256(os.fsencode(root.resolve())).hexdigest()[:16]}{share}.json"


def table_digest(table: ImageTable) -> str:
    """Return a digest of the paths, labels and splits of a table."""
    digest = sha256()
    for column in (table.paths, table.labels, table.splits):
        digest.update("\0".join(column.tolist()).encode("utf-8", "surrogateescape") + b"\1")
    return digest.hexdigest()
