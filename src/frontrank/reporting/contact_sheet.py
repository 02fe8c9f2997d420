"""Contact sheet of searches: one picture with a row per query, the query first, then its results, best first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frontrank.pictures.fonts import font_for

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

    from frontrank.pictures.fonts import Font

PER_LINE = 10  # results
_SIDE, _GAP, _FRAME, _LINE = 128, 14, 4, 16  # pixels
_SIGN, _FINER = 20, 4  # pixels of a tick or a cross, and how much larger it is drawn, for smooth edges
_INK, _FAINT, _PAPER, _MOUNT = (28, 30, 36), (96, 100, 110), (255, 255, 255), (241, 242, 245)
_QUERY, _RIGHT, _WRONG, _UNKNOWN = (70, 90, 170), (22, 128, 62), (190, 38, 38), (205, 208, 214)
_SIZE = 12  # of letters


@dataclass(frozen=True)
class Cell:
    """A picture of the sheet with its lines of text. picture: None where it cannot be read.

    right: whether it is what was searched for; None where that is not known
    """

    picture: "Image | None"
    lines: tuple[str, ...]
    right: bool | None = None


def contact_sheet(rows: Sequence[tuple[Cell, Sequence[Cell]]], per_line: int = PER_LINE) -> "Image":
    """Draw the rows; a row with more than `per_line` results continues on the next line.

    Right results have a green frame and a tick, wrong ones a red frame and a cross: not everyone can see the colours.
    """
    from PIL import Image, ImageDraw

    height = _SIDE + 2 * _FRAME + 2 * _LINE + _GAP
    width = _SIDE + 2 * _FRAME + _GAP
    lines = [max(1, -(-len(cells) // per_line)) for _, cells in rows]
    longest = max((min(per_line, len(cells)) for _, cells in rows), default=0)
    across, rules = _GAP + (1 + longest) * width + _GAP, max(0, len(rows) - 1)
    sheet = Image.new("RGB", (across, _GAP + sum(lines) * height + rules * _GAP), _PAPER)
    draw, top = ImageDraw.Draw(sheet), _GAP
    for number, ((query, cells), count) in enumerate(zip(rows, lines, strict=True)):
        if number:  # a rule, as a query's second line is no further from its first
            draw.line([(_GAP, top), (across - _GAP, top)], fill=_UNKNOWN)
            top += _GAP
        _draw(sheet, draw, query, _GAP, top, _QUERY)
        for place, cell in enumerate(cells):
            line, column = divmod(place, per_line)
            colour = {True: _RIGHT, False: _WRONG, None: _UNKNOWN}[cell.right]
            _draw(sheet, draw, cell, 2 * _GAP + (1 + column) * width, top + line * height, colour)
        top += count * height
    return sheet


def _draw(sheet: "Image", draw: "ImageDraw", cell: Cell, left: int, top: int, frame: tuple[int, int, int]) -> None:
    from PIL import Image

    outer = _SIDE + 2 * _FRAME
    draw.rectangle((left, top, left + outer - 1, top + outer - 1), fill=_MOUNT, outline=frame, width=_FRAME)
    if cell.picture is None:
        draw.text(
            (left + outer / 2, top + outer / 2), "not readable", fill=_FAINT, font=font_for("", _SIZE), anchor="mm"
        )
    else:
        picture = cell.picture.copy()
        picture.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
        if max(picture.size) < _SIDE:  # a small one is drawn large, so that all can be compared
            scale = _SIDE / max(picture.size)
            picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
        place = left + _FRAME + (_SIDE - picture.width) // 2, top + _FRAME + (_SIDE - picture.height) // 2
        sheet.paste(picture, place)
    if cell.right is not None:
        sign, mask = _sign(cell.right, frame)
        sheet.paste(sign, (left + outer - _SIGN - 2, top + 2), mask)
    for number, line in enumerate(cell.lines[:2]):
        font = font_for(line, _SIZE)
        text = _shorten(draw, font, line, outer)
        draw.text((left, top + outer + 2 + number * _LINE), text, fill=_FAINT if number else _INK, font=font)


def _sign(right: bool, colour: tuple[int, int, int]) -> "tuple[Image, Image]":
    """Return a tick or a cross and its mask; drawn, as not every font has them."""
    from PIL import Image, ImageDraw

    side = _SIGN * _FINER
    sign, mask = Image.new("RGB", (side, side), colour), Image.new("L", (side, side), 0)
    strokes = [[(5, 10), (9, 14), (15, 6)]] if right else [[(6, 6), (14, 14)], [(14, 6), (6, 14)]]
    for stroke in strokes:
        points = [(_FINER * x, _FINER * y) for x, y in stroke]
        ImageDraw.Draw(sign).line(points, fill=_PAPER, width=2 * _FINER, joint="curve")
    ImageDraw.Draw(mask).ellipse((0, 0, side - 1, side - 1), fill=255)
    return sign.resize((_SIGN, _SIGN), Image.Resampling.BOX), mask.resize((_SIGN, _SIGN), Image.Resampling.BOX)


def _shorten(draw: "ImageDraw", font: "Font", text: str, width: int) -> str:
    """Return the text, or as much of it as there is room for."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if draw.textlength(text, font=font) <= width:
        return text
    while text and draw.textlength(f"{text}...", font=font) > width:
        text = text[:-1]
    return f"{text}..."
