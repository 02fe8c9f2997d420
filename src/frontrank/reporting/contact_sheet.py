"""The results of searches as one picture: a row per query, the query first, then what was found, best first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

    Font = FreeTypeFont | ImageFont

_SIDE, _GAP, _FRAME, _LINE = 128, 14, 4, 16  # pixels
_INK, _FAINT, _PAPER = (28, 30, 36), (108, 112, 122), (255, 255, 255)
_QUERY, _RIGHT, _WRONG, _UNKNOWN = (70, 90, 170), (22, 128, 62), (190, 38, 38), (205, 208, 214)


@dataclass(frozen=True)
class Cell:
    """A picture of the sheet with its lines of text. picture: None where it cannot be read.

    right: whether it is what was searched for; None where nobody knows
    """

    picture: "Image | None"
    lines: tuple[str, ...]
    right: bool | None = None


def contact_sheet(rows: Sequence[tuple[Cell, Sequence[Cell]]], per_line: int = 10) -> "Image":
    """Draw the rows; those of more than `per_line` results go on in the next line, below their first.

    Right results have a green frame and a tick, wrong ones a red frame and a cross: colour alone says nothing to some.
    """
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=12)
    height = _SIDE + 2 * _FRAME + 2 * _LINE + _GAP
    width = _SIDE + 2 * _FRAME + _GAP
    lines = [max(1, -(-len(cells) // per_line)) for _, cells in rows]
    longest = max((min(per_line, len(cells)) for _, cells in rows), default=0)
    sheet = Image.new("RGB", (_GAP + (1 + longest) * width + _GAP, _GAP + sum(lines) * height), _PAPER)
    draw, top = ImageDraw.Draw(sheet), _GAP
    for (query, cells), count in zip(rows, lines, strict=True):
        _draw(sheet, draw, font, query, _GAP, top, _QUERY)
        for place, cell in enumerate(cells):
            line, column = divmod(place, per_line)
            colour = {True: _RIGHT, False: _WRONG, None: _UNKNOWN}[cell.right]
            _draw(sheet, draw, font, cell, 2 * _GAP + (1 + column) * width, top + line * height, colour)
        top += count * height
    return sheet


def _draw(
    sheet: "Image", draw: "ImageDraw", font: "Font", cell: Cell, left: int, top: int, frame: tuple[int, int, int]
) -> None:
    from PIL import Image

    outer = _SIDE + 2 * _FRAME
    draw.rectangle((left, top, left + outer - 1, top + outer - 1), fill=_PAPER, outline=frame, width=_FRAME)
    if cell.picture is None:
        draw.text((left + outer / 2, top + outer / 2), "not readable", fill=_FAINT, font=font, anchor="mm")
    else:
        picture = cell.picture.copy()
        picture.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
        if max(picture.size) < _SIDE:  # a small one is drawn large, so that all can be compared
            scale = _SIDE / max(picture.size)
            picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
        place = left + _FRAME + (_SIDE - picture.width) // 2, top + _FRAME + (_SIDE - picture.height) // 2
        sheet.paste(picture, place)
    if cell.right is not None:
        _sign(draw, left + outer - 22, top + 2, cell.right, frame)
    for number, line in enumerate(cell.lines[:2]):
        text = _shortened(draw, font, line, outer)
        draw.text((left, top + outer + 2 + number * _LINE), text, fill=_FAINT if number else _INK, font=font)


def _sign(draw: "ImageDraw", left: int, top: int, right: bool, colour: tuple[int, int, int]) -> None:
    """A tick or a cross, drawn rather than written: not every font has them."""
    draw.ellipse((left, top, left + 19, top + 19), fill=colour)
    if right:
        draw.line([(left + 5, top + 10), (left + 9, top + 14), (left + 15, top + 6)], fill=_PAPER, width=2)
    else:
        draw.line([(left + 6, top + 6), (left + 13, top + 13)], fill=_PAPER, width=2)
        draw.line([(left + 13, top + 6), (left + 6, top + 13)], fill=_PAPER, width=2)


def _shortened(draw: "ImageDraw", font: "Font", text: str, width: int) -> str:
    """The text, or as much of it as there is room for."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if draw.textlength(text, font=font) <= width:
        return text
    while text and draw.textlength(f"{text}...", font=font) > width:
        text = text[:-1]
    return f"{text}..."
