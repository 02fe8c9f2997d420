"""Pictures with boxes drawn: right ones green with a tick, wrong ones red with a cross, missed objects dashed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from frontrank.data.image_table import Box
from frontrank.detection.matching import Detections, Verdicts
from frontrank.detection.scenes import SceneTable

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

COLOURS = {"right": "#0a7d38", "wrong": "#c8102e", "missed": "#b35c00", "ignored": "#5f6b7a", "found": "#1d4ed8"}
_DASHED = ("missed", "ignored")
LEAST = 480  # pixels that the longer side of a drawn picture has at least, so that names can be read
TEXT = 0.036  # of the longer side, is the height of a name
_HALO = "#ffffff"


@dataclass(frozen=True)
class Mark:
    """A box to draw and what is written at it; kind is one of COLOURS ("found" where nothing says what is right)."""

    box: Box
    text: str
    kind: str


def marks_of(
    table: SceneTable, row: int, found: Detections, verdicts: Verdicts | None = None, least: float = 0.0
) -> list[Mark]:
    """What is to be drawn of a picture: its detections from a score on, and the objects that none of them found.

    verdicts: of all detections, as `judged` gives them; None where the table has no objects to compare with
    """
    marks = []
    seen = set()
    for place in np.flatnonzero(found.scores >= least).tolist():
        kind = "found"
        if verdicts is not None:
            kind = "right" if verdicts.right[place] else "ignored" if verdicts.ignored[place] else "wrong"
            seen.add(int(verdicts.objects[place]))
        name = table.classes[int(found.labels[place]) - 1]
        marks.append(Mark(_box(found.boxes[place]), f"{name} {found.scores[place]:.2f}", kind))
    if verdicts is None:
        return marks
    missed = [
        Mark(_box(box), f"{table.classes[int(label) - 1]} missed", "missed")
        for place, (box, label, aside) in enumerate(
            zip(table.boxes[row], table.labels[row], table.ignored[row], strict=True)
        )
        if place not in seen and not aside
    ]
    return [*missed, *reversed(marks)]  # the best on top


def draw_marks(
    picture: "Image", marks: Sequence[Mark], least: int = LEAST, most: int | None = None, text: float = TEXT
) -> "Image":
    """The picture with the marks on it, enlarged or made smaller if its longer side is not within these pixels.

    text: height of the names, as a part of the longer side
    """
    from PIL import Image, ImageDraw

    longer = max(picture.size)
    scale = min(max(longer, least), most or math.inf) / longer
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    drawn = picture.convert("RGB") if scale == 1 else picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)
    pen, width = ImageDraw.Draw(drawn), max(3, round(max(size) / 115))
    boxes = [_whole(mark.box, scale, size) for mark in marks]
    for mark, box in zip(marks, boxes, strict=True):
        if mark.kind in _DASHED:
            _dashes(pen, box, COLOURS[mark.kind], width)
        else:
            left, top, right, bottom = box
            pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_HALO, width=width + 2)
            pen.rectangle(box, outline=COLOURS[mark.kind], width=width)
    taken: list[tuple[int, int, int, int]] = []
    for mark, box in reversed(list(zip(marks, boxes, strict=True))):  # the last has the first choice of a place
        taken.append(_name(pen, mark, box, size, max(12, round(text * max(size))), taken))
    return drawn


def _box(edges: "np.ndarray") -> Box:
    left, top, right, bottom = (float(edge) for edge in edges)
    return left, top, right, bottom


def _whole(box: Box, scale: float, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """A box in pixels of the drawing, inside it and of some size."""
    left, top = (max(min(round(edge * scale), side - 4), 0) for edge, side in zip(box[:2], size, strict=True))
    right, bottom = (min(max(round(edge * scale), 0), side) - 1 for edge, side in zip(box[2:], size, strict=True))
    return left, top, max(right, left + 3), max(bottom, top + 3)


def _dashes(pen: "ImageDraw", box: tuple[int, int, int, int], colour: str, width: int) -> None:
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


def _name(
    pen: "ImageDraw",
    mark: Mark,
    box: tuple[int, int, int, int],
    size: tuple[int, int],
    height: int,
    taken: Sequence[tuple[int, int, int, int]],
) -> tuple[int, int, int, int]:
    """Write what a box is on a ground of its colour, where it hides no other name if there is such a place."""
    font = _font(height)
    sign = round(0.95 * height) if mark.kind in ("right", "wrong") else 0
    pad = max(2, height // 6)
    wide, high = math.ceil(pen.textlength(mark.text, font=font)) + sign + 2 * pad, height + 2 * pad
    left, top, right, bottom = box
    places = [(left, top - high), (left, bottom + 1), (right - wide, top - high), (right - wide, bottom + 1)]
    places += [(left, top + step * high) for step in range(8)]
    inside = [(min(max(x, 0), max(size[0] - wide, 0)), min(max(y, 0), max(size[1] - high, 0))) for x, y in places]
    x, y = min(inside, key=lambda at: sum(_common((*at, at[0] + wide, at[1] + high), other) for other in taken))
    pen.rectangle((x, y, x + wide, y + high), fill=COLOURS[mark.kind])
    if sign:
        _sign(pen, mark.kind == "right", x + pad, y + pad, round(0.65 * height), height)
    pen.text((x + pad + sign, y + high / 2), mark.text, fill="white", font=font, anchor="lm")
    return x, y, x + wide, y + high


def _sign(pen: "ImageDraw", right: bool, x: int, y: int, side: int, height: int) -> None:
    """A tick or a cross, drawn, as fonts may have neither."""
    top, width = y + (height - side) / 2, max(2, side // 6)
    if right:
        points = [(x, top + 0.55 * side), (x + 0.35 * side, top + 0.9 * side), (x + side, top + 0.1 * side)]
        pen.line(points, fill="white", width=width, joint="curve")
    else:
        pen.line([(x, top), (x + side, top + side)], fill="white", width=width)
        pen.line([(x, top + side), (x + side, top)], fill="white", width=width)


def _common(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> int:
    return max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))


@cache
def _font(height: int) -> "FreeTypeFont | ImageFont":
    """DejaVu where matplotlib brings it, which has most alphabets; else Pillow's own, which has the Latin one."""
    from PIL import ImageFont

    found = find_spec("matplotlib")
    for place in (found.submodule_search_locations or []) if found is not None else []:
        file = Path(place) / "mpl-data/fonts/ttf/DejaVuSans-Bold.ttf"
        if file.is_file():
            return ImageFont.truetype(str(file), round(0.85 * height))
    return ImageFont.load_default(height)
