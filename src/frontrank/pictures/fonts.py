"""The font for a text in a picture: Pillow's own, or one of the system where that lacks letters."""

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont, ImageFont

    Font = FreeTypeFont | ImageFont

_NO_LETTER = "\U0010ffff"  # what no font has
# Fonts of systems for what Pillow's own font lacks, which is all but ASCII
_FONTS = (
    "NotoSansCJK-Regular.ttc",
    "wqy-microhei.ttc",
    "DroidSansFallbackFull.ttf",
    "msyh.ttc",
    "PingFang.ttc",
    "DejaVuSans.ttf",
)


def font_for(text: str, size: int) -> "Font":
    """Return Pillow's own font, or the first one of the system that has more letters of a text."""

    def letters(font: "Font") -> int:  # a missing one looks like a letter that no font has
        nothing = bytes(font.getmask(_NO_LETTER))
        return sum(bytes(font.getmask(letter)) != nothing for letter in text if letter.isprintable())

    usual, *others = _fonts(size)
    return usual if text.isascii() else max((usual, *others), key=letters)


@lru_cache(maxsize=8)
def _fonts(size: int) -> "tuple[Font, ...]":
    from PIL import ImageFont

    fonts: list[Font] = [ImageFont.load_default(size)]
    for name in _FONTS:
        with suppress(OSError):  # it is not installed
            fonts.append(ImageFont.truetype(name, size))
    return tuple(fonts)
