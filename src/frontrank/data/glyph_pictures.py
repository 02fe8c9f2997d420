"""Pictures of single characters: looked at by their fingerprints, and written."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.data.image_table import shown
from frontrank.errors import InputError
from frontrank.packages import remedy

_EM = 5 / 6  # of the side of a picture: most glyphs then have a margin, as printed characters have


def draw_glyph(font: Any, character: str, size: int) -> Any:
    """A character as a white picture with the ink black and in the middle; None where the font draws nothing.

    font: of Pillow, with 5/6 of `size` as its size; what is larger than the picture all the same is shrunk to fit
    """
    from PIL import Image, ImageChops, ImageDraw

    canvas = Image.new("L", (4 * size, 4 * size))
    ImageDraw.Draw(canvas).text((3 * size // 2, 3 * size // 2), character, fill=255, font=font)
    box = canvas.getbbox()
    if box is None:
        return None
    ink = canvas.crop(box)
    if max(ink.size) > size:
        ink.thumbnail((size, size), Image.Resampling.BOX)
    picture = Image.new("L", (size, size))
    picture.paste(ink, ((size - ink.width) // 2, (size - ink.height) // 2))
    return ImageChops.invert(picture)


@lru_cache(maxsize=2)
def open_font(file: str, index: int, size: int) -> Any:
    """A font of Pillow for pictures of this size."""
    from PIL import ImageFont

    try:
        return ImageFont.truetype(file, round(size * _EM), index=index, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise InputError(f"{shown(file)} cannot be read as a font ({error}); leave that typeface out") from error


def fingerprints(file: str, index: int, size: int, codes: np.ndarray, kept: Path) -> np.ndarray:
    """A number for the pixels of each character [character], the same for the same pixels; 0 if the font draws nothing.

    kept: a file that remembers the result, for the next call
    """
    if kept.exists():
        return np.load(kept)
    font, found = open_font(file, index, size), []
    for code in codes.tolist():
        picture = draw_glyph(font, chr(code), size)
        digest = b"" if picture is None else hashlib.blake2b(picture.tobytes(), digest_size=8).digest()
        found.append(int.from_bytes(digest, "big"))
    numbers = np.array(found, dtype=np.uint64)
    with written(kept, kept.parent) as unfinished, unfinished.open("wb") as stream:
        np.save(stream, numbers)
    return numbers


def write_pictures(file: str, index: int, size: int, codes: np.ndarray, targets: Sequence[str], work: Path) -> None:
    """Write characters as PNG files."""
    font = open_font(file, index, size)
    for code, target in zip(codes.tolist(), targets, strict=True):
        with written(Path(target), work) as unfinished:
            draw_glyph(font, chr(code), size).save(unfinished, format="png")


@contextmanager
def written(path: Path, work: Path) -> Iterator[Path]:
    """A place in the folder `work` to write a file at; it goes to its path when it is whole."""
    unfinished = work / f"{os.getpid()}.unfinished"
    try:
        work.mkdir(parents=True, exist_ok=True)
        yield unfinished
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.replace(path)
    except OSError as error:
        raise InputError(f"{shown(path)} cannot be written ({error.strerror}); {remedy(error)}") from error
