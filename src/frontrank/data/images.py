"""The check of all images of a table before work begins."""

import csv
import io
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from frontrank.checks import check_choice, check_integer, printable
from frontrank.data.table import Box, ImageTable
from frontrank.errors import FrontrankWarning, InputError
from frontrank.files import PathLike, atomic_write
from frontrank.pictures.decode import box_faults, image_fault, require_pillow
from frontrank.progress import progress

T = TypeVar("T")

_CHUNK = 32  # files a worker takes at once
_NAMED = 3  # broken images that an error message names
_FORMAT = "frontrank.good-images.1"

_Crop = tuple[str, Box | None]  # a file, and the part of it that is used
_Stamp = tuple[int, int]  # size and time of the last change: a file with the same stamp is the same


def map_images(
    function: Callable[[str], T], files: Sequence[str], workers: int, what: str, show: bool | None = None
) -> Iterator[T]:
    """Yield function(file) for each file, in order, computed by threads (Pillow decodes outside Python's lock)."""

    def some(start: int) -> list[T]:
        return [function(file) for file in files[start : start + _CHUNK]]

    starts = range(0, len(files), _CHUNK)
    pool = ThreadPoolExecutor(max(1, workers))
    try:
        with progress(what, len(files), show) as step:
            for results in pool.map(some, starts) if workers > 1 else map(some, starts):
                step(len(results))
                yield from results
    finally:
        pool.shutdown(cancel_futures=True)  # what is left after an error or Ctrl-C


@dataclass(frozen=True, eq=False)
class ImageCheck:
    """The result of a check: the table without broken images, those with the reason, and a summary in one line."""

    table: ImageTable
    broken: list[tuple[str, str]]
    note: str


def check_images(
    table: ImageTable,
    how: Literal["full", "quick", "none"] = "full",
    broken: Literal["fail", "skip", "list"] = "fail",
    workers: int = 2,
    remembered: PathLike | None = None,
    show: bool | None = None,
) -> ImageCheck:
    """Check that all images of a table can be read, and that each box of its column "box" is inside its image.

    how:        "full" decodes each image, "quick" reads its header (this finds missing files, but not those cut
                short), "none" checks nothing
    broken:     "fail" raises one error that counts and names them, "skip" leaves them out, "list" does so too, even if
                no image is left
    remembered: a file that stores which images a full check found good, by path, size and time of change; the next
                check skips them. It is written even if the check is interrupted
    """
    check_choice("how", how, ("full", "quick", "none"))
    check_choice("broken", broken, ("fail", "skip", "list"))
    check_integer("workers", workers, at_least=0)
    boxes = table.boxes()
    if how == "none":
        return ImageCheck(table, [], f"{len(table):,} images, not checked")
    require_pillow()
    rows = [os.path.abspath(file) for file in table.files()]
    crops = list(zip(rows, boxes, strict=True))
    paths = dict(zip(crops, table.paths.tolist(), strict=True))  # a crop of several rows once
    files = list(dict.fromkeys(rows))
    memory = {} if remembered is None else _read_memory(Path(remembered))
    new = [file for file in files if file not in memory or memory[file] != _stamp(file)]
    cache = Path(remembered) if remembered is not None and how == "full" else None
    faults = _file_faults(new, how == "full", workers, cache, memory, show)
    crop_faults = _crop_faults(list(paths), faults, workers, show)
    broken_images = [(paths[crop], fault) for crop, fault in crop_faults.items()]
    if not broken_images:
        known = f" ({len(files) - len(new):,} remembered)" if len(new) < len(files) else ""
        return ImageCheck(table, [], f"{len(files):,} images, all of them good{known}")
    note = broken_note(broken_images, len(paths))
    if broken == "fail":
        raise InputError(f"{note}; replace them, or leave them out (broken: skip)")
    if broken == "skip" and len(broken_images) == len(paths):
        raise InputError(f"{note}; no image is left: check the root {printable(table.root)}")
    good = np.array([crop not in crop_faults for crop in crops])
    return ImageCheck(table.rows(good), broken_images, f"{note}; left out")


def _file_faults(
    files: list[str], decode: bool, workers: int, cache: Path | None, memory: Mapping[str, _Stamp], show: bool | None
) -> dict[str, str]:
    """Return why files cannot be read; the others are stored in the cache with those of the memory."""
    good, faults = dict[str, _Stamp](), dict[str, str]()

    def look(file: str) -> tuple[str, _Stamp | None, str | None]:
        return file, _stamp(file), image_fault(file, decode)  # one that changes while it is read is checked again

    try:
        for file, stamp, fault in map_images(look, files, workers, "checking images", show):
            if fault is not None:
                faults[file] = fault
            elif stamp is not None:
                good[file] = stamp
    finally:
        if cache is not None and good:
            try:
                atomic_write(cache, json.dumps({"format": _FORMAT, "good": {**memory, **good}}), sync=False)
            except InputError as error:
                warnings.warn(f"{error}; the images will be checked again next time", FrontrankWarning, stacklevel=3)
    return faults


def _crop_faults(crops: list[_Crop], faults: Mapping[str, str], workers: int, show: bool | None) -> dict[_Crop, str]:
    """Return why crops cannot be read: the fault of the file, or a box outside the picture."""
    crop_faults = {(file, box): faults[file] for file, box in crops if file in faults}
    boxes: dict[str, list[Box]] = {}
    for file, box in crops:
        if box is not None and file not in faults:
            boxes.setdefault(file, []).append(box)
    results = map_images(lambda file: box_faults(file, boxes[file]), list(boxes), workers, "checking boxes", show)
    for file, answers in zip(boxes, results, strict=True):
        crop_faults |= {
            (file, box): fault for box, fault in zip(boxes[file], answers, strict=True) if fault is not None
        }
    return crop_faults


def _stamp(file: str) -> _Stamp | None:
    try:
        status = os.stat(file)
        return status.st_size, status.st_mtime_ns
    except (OSError, ValueError):
        return None


def broken_note(broken: list[tuple[str, str]], images: int) -> str:
    """Return in one line how many images cannot be read, and the first of them."""
    named = "; ".join(f"{printable(path)} {reason}" for path, reason in broken[:_NAMED])
    more = f"; and {len(broken) - _NAMED:,} more" if len(broken) > _NAMED else ""
    return f"{len(broken):,} of {images:,} images cannot be read: {named}{more}"


def write_report(path: Path, broken: list[tuple[str, str]]) -> Path:
    """Write the broken images and their reasons as a .csv file."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["path", "reason"], *broken])
    atomic_write(path, text.getvalue().encode(errors="backslashreplace"))
    return path


def _read_memory(path: Path) -> dict[str, _Stamp]:
    if not path.exists():
        return {}
    try:
        memory = json.loads(path.read_text(encoding="utf-8"))
        if memory["format"] != _FORMAT:
            raise ValueError("another format")
        return {os.fspath(file): (int(size), int(changed)) for file, (size, changed) in memory["good"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"{printable(path)} cannot be read as a list of good images ({type(error).__name__})"
        warnings.warn(f"{reason}; all images are checked again", FrontrankWarning, stacklevel=3)
        return {}
