"""Real pictures for tests: characters as several typefaces draw them, from the fonts that matplotlib brings along.

Class = character, image = one typeface's drawing of it, category = script: as in a data set of products, there are many
classes of a few images that differ in style. Each drawing is turned, scaled, moved, coloured and made noisy at random.
"""

import sys
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from frontrank.data.table import ImageTable

TYPEFACES = (
    "DejaVuSans",
    "DejaVuSans-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-BoldItalic",
    "DejaVuSansMono",
    "STIXGeneral",
    "STIXGeneralBolIta",
    "STIXGeneralItalic",
)
SCRIPTS = {"latin": (0x30, 0xFF), "latin-extended": (0x100, 0x17F), "greek": (0x391, 0x3F5), "cyrillic": (0x400, 0x45F)}
_LARGE = 64  # pixels of the drawing that is turned and made small


def glyph_pictures(folder, classes=60, size=32, seed=0):
    """The table of pictures written as folder/<script>/U+<code point>/<typeface>.png; half of the classes are for test.

    The classes are drawn by the seed, as many of each script as of the others, and each script is halved.
    """
    folder = Path(folder)
    rng = np.random.default_rng(seed)
    rows = []
    for number, script in enumerate(SCRIPTS):
        wanted = classes // len(SCRIPTS) + (number < classes % len(SCRIPTS))
        characters = drawable()[script]
        if wanted > len(characters):
            raise ValueError(f"{script} has {len(characters)} characters, {wanted} were asked for")
        for place, code in enumerate(rng.permutation(characters)[:wanted]):
            name = f"U+{code:04X}"
            (folder / script / name).mkdir(parents=True, exist_ok=True)
            for typeface in TYPEFACES:
                path = f"{script}/{name}/{typeface}.png"
                _vary(_drawing(typeface, chr(code)), size, rng).save(folder / path)
                rows.append((path, name, script, "train" if place < wanted / 2 else "test", ""))
    columns = (np.array(column) for column in zip(*sorted(rows), strict=True))
    return ImageTable(folder, *columns, name="glyphs")


@cache
def drawable():
    """Per script the code points that every typeface draws, none of them drawn like an earlier one."""
    blank = Image.new("L", (_LARGE, _LARGE), 0)
    seen = {blank.tobytes(), *(_drawing(typeface, "\uffff").tobytes() for typeface in TYPEFACES)}  # no such character
    codes = {script: [] for script in SCRIPTS}
    for script, (first, last) in SCRIPTS.items():
        for code in range(first, last + 1):
            drawings = [_drawing(typeface, chr(code)).tobytes() for typeface in TYPEFACES]
            if chr(code).isalnum() and not seen.intersection(drawings):
                codes[script].append(code)
            seen.update(drawings)
    return codes


@cache
def _font(typeface):
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{typeface}.ttf")
    return ImageFont.truetype(path, _LARGE * 5 // 8, layout_engine=ImageFont.Layout.BASIC)


def _drawing(typeface, character):
    """The character in white on black, its box in the middle, so that small letters and capitals keep their sizes."""
    picture = Image.new("L", (_LARGE, _LARGE), 0)
    left, top, right, bottom = _font(typeface).getbbox(character)
    corner = (_LARGE - left - right) / 2, (_LARGE - top - bottom) / 2
    ImageDraw.Draw(picture).text(corner, character, fill=255, font=_font(typeface))
    return picture


def _vary(drawing, size, rng):
    """The drawing at some angle, scale and place, in two random colours, with noise."""
    angle, scale = np.radians(rng.uniform(-8, 8)), rng.uniform(0.9, 1.1)
    shift = rng.uniform(-0.05, 0.05, 2) * _LARGE
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) / scale
    offset = _LARGE / 2 - turn @ (np.full(2, _LARGE / 2) + shift)
    affine = (*turn[0], offset[0], *turn[1], offset[1])
    turned = drawing.transform(drawing.size, Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
    ink = np.asarray(turned.resize((size, size), Image.Resampling.BOX), dtype=np.float64)[..., None] / 255
    front, back = rng.uniform(0, 60) + rng.uniform(0, 30, 3), rng.uniform(190, 225) + rng.uniform(0, 30, 3)
    noisy = back + (front - back) * ink + rng.normal(0, 10, (size, size, 3))
    return Image.fromarray(noisy.clip(0, 255).round().astype(np.uint8))


if __name__ == "__main__":
    table = glyph_pictures(sys.argv[1], classes=120)
    table.save(Path(sys.argv[1]) / "images.csv", overwrite=True)
    print(table.describe())
