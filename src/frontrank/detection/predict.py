"""Objects in pictures without annotations: files in COCO's layout, and pictures with boxes drawn.

Right boxes are drawn green with a tick, wrong ones red with a cross, missed objects dashed.
"""

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from frontrank.checks import printable
from frontrank.data.table import read_unlabelled
from frontrank.detection.data import SceneTable, collect_fault
from frontrank.detection.evaluation import Detections, Verdicts
from frontrank.errors import FrontrankWarning, InputError
from frontrank.files import PathLike, atomic_write, write_errors
from frontrank.pictures.decode import read_image
from frontrank.pictures.fonts import font_for
from frontrank.progress import progress

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

    from frontrank.detection.model import Detector

RESULTS, IMAGES, DRAWN = "detections.json", "pictures.json", "drawn"
COLOURS = {"right": "#0a7d38", "wrong": "#c8102e", "missed": "#b35c00", "ignored": "#5f6b7a", "found": "#1d4ed8"}
LEAST = 480  # pixels of the longer side of a drawn picture, at least, so that names can be read
TEXT = 0.036  # height of a name, as a part of the longer side
_DASHED = ("missed", "ignored")
_HALO = "#ffffff"

PixelBox = tuple[int, int, int, int]


def predict(
    detector: "Detector",
    pictures: Sequence[PathLike],
    out: PathLike,
    *,
    least: float = 0.5,
    draw: bool = True,
    overwrite: bool = False,
    batch: int = 4,
    show: bool | None = None,
) -> tuple[int, int]:
    """Find objects in pictures, write them to the folder `out`, and return the numbers of pictures and of boxes.

    pictures:  files, and folders with all pictures in them; those that cannot be read are left out, with a warning
    least:     the lowest score of a box that is drawn; detections.json has all
    draw:      also write the pictures with boxes, to OUT/drawn
    overwrite: write into a folder that has something in it; files of other names stay

    detections.json is a list like COCO's results, with the names of files and classes beside their numbers.
    pictures.json has the numbers of pictures and classes, like a COCO file.
    """
    folder = Path(out)
    files = read_unlabelled(pictures).paths.tolist()
    _make_folder(folder, draw, overwrite)
    names, classes = _drawing_names(files), detector.classes
    images: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    faults: list[str] = []
    with progress("detecting", len(files), show) as advance:
        for start in range(0, len(files), batch):
            numbers = range(start, min(start + batch, len(files)))
            readable = {}
            for number in numbers:
                with collect_fault(faults):
                    readable[number] = read_image(files[number])
            detections = detector.detect(list(readable.values()))
            for (number, picture), each in zip(readable.items(), detections, strict=True):
                size = {"width": picture.width, "height": picture.height}
                images.append({"id": number + 1, "file_name": files[number], **size})
                results += _result_rows(number + 1, files[number], each, classes)
                if draw:
                    drawing = draw_marks(picture, detection_marks(each, classes, least)[::-1])  # best on top
                    atomic_write(folder / DRAWN / names[number], partial(drawing.save, format="JPEG", quality=90))
            advance(len(numbers))
    if not images:
        raise InputError(f"none of {len(files):,} pictures can be read; the first: {faults[0]}")
    categories = [{"id": label, "name": name} for label, name in enumerate(classes, start=1)]
    numbered = {"images": images, "annotations": [], "categories": categories}
    for name, content in ((RESULTS, results), (IMAGES, numbered)):
        text = json.dumps(content, ensure_ascii=False) + "\n"
        atomic_write(folder / name, text.encode("utf-8", "surrogateescape"))
    if faults:
        count = f"{len(faults):,} of {len(files):,} pictures could not be read and were left out"
        warnings.warn(f"{count}; the first: {faults[0]}", FrontrankWarning, stacklevel=2)
    return len(images), len(results)


def _make_folder(folder: Path, draw: bool, overwrite: bool) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise InputError(f"--out {printable(folder)} is not empty; choose another, or add --force to write into it")
    with write_errors(folder):
        (folder / DRAWN if draw else folder).mkdir(parents=True, exist_ok=True)


def _drawing_names(files: Sequence[str]) -> list[str]:
    """Return a name for each drawn picture: its own, with a number if several pictures have the same."""
    stems = [os.path.splitext(os.path.basename(file))[0] for file in files]
    counts = Counter(stems)
    return [f"{stem}.jpg" if counts[stem] == 1 else f"{stem}-{number}.jpg" for number, stem in enumerate(stems, 1)]


def _result_rows(number: int, file: str, detections: Detections, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows as in COCO's results, with the names of file and class."""
    rows = []
    columns = (column.tolist() for column in (detections.boxes, detections.scores, detections.labels))
    for box, score, label in zip(*columns, strict=True):
        left, top, right, bottom = (round(edge, 3) for edge in box)
        sides = [left, top, round(right - left, 3), round(bottom - top, 3)]
        row = {"image_id": number, "category_id": label, "bbox": sides, "score": round(score, 9)}
        rows.append(row | {"file_name": file, "category": classes[label - 1]})
    return rows


# Pictures with boxes


@dataclass(frozen=True)
class Mark:
    """A box to draw and the text at it; kind is one of COLOURS ("found" if it is not known what is right)."""

    box: Sequence[float]
    text: str
    kind: str


def detection_marks(
    detections: Detections, classes: Sequence[str], least: float = 0.0, verdicts: Verdicts | None = None
) -> list[Mark]:
    """Return the marks of the detections from a score on, best first; verdicts: of all, if there are annotations."""
    marks = []
    for place in np.flatnonzero(detections.scores >= least).tolist():
        kind = "found"
        if verdicts is not None:
            kind = "right" if verdicts.right[place] else "ignored" if verdicts.ignored[place] else "wrong"
        text = f"{classes[int(detections.labels[place]) - 1]} {detections.scores[place]:.2f}"
        marks.append(Mark(detections.boxes[place].tolist(), text, kind))
    return marks


def scene_marks(table: SceneTable, row: int, detections: Detections, verdicts: Verdicts, least: float) -> list[Mark]:
    """Return the marks of an annotated picture: objects that were missed, then all detections, best last (on top)."""
    right = set(verdicts.objects[np.flatnonzero(detections.scores >= least)].tolist())
    missed = [
        Mark(table.boxes[row][place].tolist(), f"{table.classes[int(table.labels[row][place]) - 1]} missed", "missed")
        for place in np.flatnonzero(~table.ignored[row]).tolist()
        if place not in right
    ]
    return [*missed, *reversed(detection_marks(detections, table.classes, least, verdicts))]


def draw_marks(
    picture: "Image", marks: Sequence[Mark], least: int = LEAST, most: int | None = None, text: float = TEXT
) -> "Image":
    """Return the picture with marks drawn on it, scaled so that its longer side has from `least` to `most` pixels.

    text: height of the names, as a part of the longer side
    """
    from PIL import Image, ImageDraw

    longer = max(picture.size)
    scale = min(max(longer, least), most or math.inf) / longer
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    drawing = picture.convert("RGB") if scale == 1 else picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)
    pen, width = ImageDraw.Draw(drawing), max(3, round(max(size) / 115))
    boxes = [_scale_box(mark.box, scale, size) for mark in marks]
    for mark, box in zip(marks, boxes, strict=True):
        if mark.kind in _DASHED:
            _draw_dashes(pen, box, COLOURS[mark.kind], width)
        else:
            left, top, right, bottom = box
            pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_HALO, width=width + 2)
            pen.rectangle(box, outline=COLOURS[mark.kind], width=width)
    names: list[PixelBox] = []
    for mark, box in reversed(list(zip(marks, boxes, strict=True))):  # the last has the first choice of a place
        names.append(_draw_name(pen, mark, box, size, max(12, round(text * max(size))), names))
    return drawing


def _scale_box(box: Sequence[float], scale: float, size: tuple[int, int]) -> PixelBox:
    """Return a box in pixels of the drawing, inside it and not too small to see."""
    left, top = (max(min(round(edge * scale), side - 4), 0) for edge, side in zip(box[:2], size, strict=True))
    right, bottom = (min(max(round(edge * scale), 0), side) - 1 for edge, side in zip(box[2:], size, strict=True))
    return left, top, max(right, left + 3), max(bottom, top + 3)


def _draw_dashes(pen: "ImageDraw", box: PixelBox, colour: str, width: int) -> None:
    left, top, right, bottom = box
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    for (x, y), (to_x, to_y) in pairwise(corners):
        length = math.hypot(to_x - x, to_y - y)
        dashes = max(1, round(length / (5 * width)))
        for dash in range(dashes):
            ends = [(dash + part) / (dashes - 1 + 0.6) if dashes > 1 else part for part in (0.0, 0.6)]
            points = [(x + (to_x - x) * min(end, 1), y + (to_y - y) * min(end, 1)) for end in ends]
            for paint, wide in ((_HALO, width + 2), (colour, width)):
                pen.line(points, fill=paint, width=wide)


def _draw_name(
    pen: "ImageDraw", mark: Mark, box: PixelBox, size: tuple[int, int], height: int, others: Sequence[PixelBox]
) -> PixelBox:
    """Write the text of a mark on a ground of its colour, where it hides as little of other names as possible."""
    font = font_for(mark.text, height)
    sign = round(0.95 * height) if mark.kind in ("right", "wrong") else 0
    pad = max(2, height // 6)
    wide, high = math.ceil(pen.textlength(mark.text, font=font)) + sign + 2 * pad, height + 2 * pad
    left, top, right, bottom = box
    places = [(left, top - high), (left, bottom + 1), (right - wide, top - high), (right - wide, bottom + 1)]
    places += [(left, top + step * high) for step in range(8)]
    inside = [(min(max(x, 0), max(size[0] - wide, 0)), min(max(y, 0), max(size[1] - high, 0))) for x, y in places]
    x, y = min(inside, key=lambda at: sum(_common_area((*at, at[0] + wide, at[1] + high), other) for other in others))
    pen.rectangle((x, y, x + wide, y + high), fill=COLOURS[mark.kind])
    if sign:
        _draw_sign(pen, mark.kind == "right", x + pad, y + pad, round(0.65 * height), height)
    pen.text((x + pad + sign, y + high / 2), mark.text, fill="white", font=font, anchor="lm")
    return x, y, x + wide, y + high


def _draw_sign(pen: "ImageDraw", right: bool, x: int, y: int, side: int, height: int) -> None:
    """Draw a tick or a cross, as fonts may have neither."""
    top, width = y + (height - side) / 2, max(2, side // 6)
    if right:
        points = [(x, top + 0.55 * side), (x + 0.35 * side, top + 0.9 * side), (x + side, top + 0.1 * side)]
        pen.line(points, fill="white", width=width, joint="curve")
    else:
        pen.line([(x, top), (x + side, top + side)], fill="white", width=width)
        pen.line([(x, top + side), (x + side, top)], fill="white", width=width)


def _common_area(a: PixelBox, b: PixelBox) -> int:
    return max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))
