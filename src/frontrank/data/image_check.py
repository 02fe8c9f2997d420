"""Every image of a table is looked at before the work begins, so that it does not fail in the middle."""

import csv
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from frontrank.data.image_table import Box, ImageTable, shown
from frontrank.data.images import box_faults, image_fault, map_images, require_pillow
from frontrank.errors import FrontrankWarning, InputError, require_number

_REPORT = ["path", "reason"]
_NAMED = 3  # broken images that an error message names
_FORMAT = "frontrank.good-images.1"

Crop = tuple[str, Box | None]  # a file, and the part of it that is looked at
Print = tuple[int, int]  # size and time of the last change: a file with the same ones is the same


@dataclass(frozen=True, eq=False)
class Checked:
    """What a check found: the table without broken images, those with the reason, and a line that says so."""

    table: ImageTable
    broken: list[tuple[str, str]]
    note: str


def check_images(
    table: ImageTable,
    how: Literal["full", "quick", "none"] = "full",
    broken: Literal["fail", "skip", "list"] = "fail",
    workers: int = 2,
    remembered: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    show: bool | None = None,
) -> Checked:
    """Look at all images of a table, and see that each box of its column "box" has something of its image in it.

    how:        "full" decodes each, "quick" reads its header (which finds missing files, but not those cut short),
                "none" trusts them
    broken:     "fail" raises one error that counts and names them, "skip" leaves them out, "list" does so too, even if
                that is all of them
    remembered: a file that keeps which images a full check found good, by path, size and time of change, so that the
                next check passes over them; it is written even if the check is broken off
    report:     a .csv file for the whole list of broken images
    """
    _require_one_of("how", how, "full", "quick", "none")
    _require_one_of("broken", broken, "fail", "skip", "list")
    require_number("workers", workers, at_least=0)
    boxes = table.boxes()
    if how == "none":
        return Checked(table, [], f"{len(table):,} images, not checked")
    require_pillow()
    _refuse_other_file(report)
    rows = [os.path.abspath(file) for file in table.files()]
    crops = list(zip(rows, boxes, strict=True))
    paths = dict(zip(crops, table.paths.tolist(), strict=True))  # a crop of several rows once
    files = list(dict.fromkeys(rows))
    memory = {} if remembered is None else _read_memory(Path(remembered))
    new = [file for file in files if file not in memory or memory[file] != _print(file)]
    faults = _faults(new, how == "full", workers, remembered, memory, show)
    of_crops = _crop_faults(list(paths), faults, workers, show)
    found = [(paths[crop], fault) for crop, fault in of_crops.items()]
    if not found:
        passed = f" ({len(files) - len(new):,} remembered)" if len(new) < len(files) else ""
        return Checked(table, [], f"{len(files):,} images, all of them good{passed}")
    said = broken_note(found, len(paths), None if report is None else write_report(Path(report), found))
    if broken == "fail":
        raise InputError(f"{said}; replace them, or leave them out (broken: skip)")
    if broken == "skip" and len(found) == len(paths):
        raise InputError(f"{said}; no image is left: check the root {shown(table.root)}")
    keep = np.array([crop not in of_crops for crop in crops])
    return Checked(table.rows(keep), found, f"{said}; left out")


def _faults(
    files: list[str],
    decode: bool,
    workers: int,
    remembered: str | os.PathLike[str] | None,
    memory: Mapping[str, Print],
    show: bool | None,
) -> dict[str, str]:
    """Why files cannot be read; those that can are remembered, if they were decoded."""
    good: dict[str, Print] = {}
    faults: dict[str, str] = {}

    def look(file: str) -> tuple[str, Print | None, str | None]:
        before = _print(file)  # a file that changes while it is read is looked at again next time
        return file, before, image_fault(file, decode)

    try:
        for file, before, fault in map_images(look, files, workers, "checking images", show):
            if fault is not None:
                faults[file] = fault
            elif before is not None:
                good[file] = before
    finally:
        if remembered is not None and decode and good:
            _write_memory(Path(remembered), {**memory, **good})
    return faults


def _crop_faults(crops: list[Crop], faults: Mapping[str, str], workers: int, show: bool | None) -> dict[Crop, str]:
    """Why crops cannot be read: the fault of the file, or that the box has nothing of the picture in it."""
    found = {(file, box): faults[file] for file, box in crops if file in faults}
    boxes: dict[str, list[Box]] = {}
    for file, box in crops:
        if box is not None and file not in faults:
            boxes.setdefault(file, []).append(box)

    def look(file: str) -> list[str | None]:
        return box_faults(file, boxes[file])

    if boxes:
        looks = map_images(look, list(boxes), workers, "checking boxes", show)
        for (file, of_file), said in zip(boxes.items(), looks, strict=True):
            found |= {(file, box): fault for box, fault in zip(of_file, said, strict=True) if fault is not None}
    return found


def _require_one_of(name: str, value: str, *known: str) -> None:
    if value not in known:
        raise InputError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")


def _print(file: str) -> Print | None:
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns


def broken_note(found: list[tuple[str, str]], images: int, report: Path | None = None) -> str:
    """How many of the images cannot be read, the first of them, and where all are listed, in one line."""
    named = "; ".join(f"{shown(path)} {reason}" for path, reason in found[:_NAMED])
    more = f"; and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    where = "" if report is None else f"; all are listed in {shown(report)}"
    return f"{len(found):,} of {images:,} images cannot be read: {named}{more}{where}"


def _refuse_other_file(report: str | os.PathLike[str] | None) -> None:
    """Only a report is replaced by a report."""
    if report is None or not os.path.exists(report):
        return
    try:
        with open(report, encoding="utf-8", errors="replace") as file:
            ours = file.readline().strip() == ",".join(_REPORT)
    except OSError:
        ours = False
    if not ours:
        raise InputError(f"{shown(report)} exists already and is no list of broken images; give another path")


def write_report(path: Path, found: list[tuple[str, str]]) -> Path:
    """Write the broken images and their reasons as a .csv file."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            csv.writer(file).writerows([_REPORT, *found])
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise InputError(f"{shown(path)} cannot be written ({error.strerror}); give another path") from error
    return path


def _read_memory(path: Path) -> dict[str, Print]:
    if not path.exists():
        return {}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["format"] != _FORMAT:
            raise ValueError("another format")
        return {os.fspath(file): (int(size), int(changed)) for file, (size, changed) in kept["good"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        _warn(
            f"{shown(path)} cannot be read as a list of good images ({type(error).__name__}); all are checked again", 4
        )
        return {}


def _write_memory(path: Path, good: Mapping[str, Print]) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps({"format": _FORMAT, "good": good}), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        _warn(f"{shown(path)} cannot be written ({error.strerror}); the images will be checked again next time", 5)


def _warn(message: str, level: int) -> None:
    """A warning at the line of the user's call, so many calls up."""
    warnings.warn(message, FrontrankWarning, stacklevel=level)
