"""One scene: emoji at random sizes and angles, before and behind each other, on a part of a photograph.

Everything is drawn from one random generator, so that a scene is a function of its seed.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from frontrank.data.scene_parts import Parts

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST, _SMALLEST = 0.5, 0.14  # of a drawing's longer side, as a part of the scene's
_MOST = 6  # objects of a scene
_OTHERS = (0.5, 0.35, 0.15)  # how probable 0, 1, 2 things of no class are
_ANGLE = 35.0  # degrees, to either side
_SPARED = 0.5  # how often a place is looked for where little is hidden
_TRIES = 4
_OUTSIDE = 0.25  # of a drawing, at most, on each axis
_SEEN = 0.01  # of an object, below which it is not there
_HARD = 0.35  # of an object to be seen, below which it is difficult
_CUT = 0.95  # of an object inside, or not hidden, below which that is said
_THIN = 4  # pixels of a side, below which an object is difficult
_SOLID = 128  # of the opacity, from which a pixel counts as drawn
_PART = 0.35  # of a photograph's shorter side, at least, is the background


@dataclass(frozen=True)
class Placed:
    """An object of a scene.

    box:  left, top, right, bottom of what is to be seen of it, in pixels from 0; right and bottom exclusive
    seen: the part of it that is to be seen
    """

    name: str
    box: tuple[int, int, int, int]
    seen: float
    truncated: bool
    occluded: bool

    @property
    def difficult(self) -> bool:
        """Whether so little is to be seen of it that nobody need find it."""
        left, top, right, bottom = self.box
        return self.seen < _HARD or min(right - left, bottom - top) < _THIN


def draw_scene(parts: Parts, size: int, random: Generator) -> tuple["Image", list[Placed]]:
    """A scene of size x size pixels and its objects, in the order they were drawn: later ones hide earlier ones."""
    picture = _background(parts, size, random)
    names = list(parts.classes)
    chosen: list[tuple[str, Image]] = []
    for _ in range(int(random.integers(1, _MOST + 1))):
        name = names[random.integers(len(names))]
        chosen.append((name, _one(parts.classes[name], random)))
    for _ in range(int(random.choice(len(_OTHERS), p=_OTHERS))):
        chosen.insert(int(random.integers(len(chosen) + 1)), ("", _one(parts.others, random)))
    owner = np.full((size, size), -1)
    drawn: list[tuple[str, int, int]] = []  # name, pixels of the whole drawing, those of it inside
    for number, (name, drawing) in enumerate(chosen):
        turned = _turned(drawing, size, random)
        left, top = _place(turned, owner, size, random)
        picture.paste(turned, (left, top), turned)
        solid = np.asarray(turned.getchannel("A")) >= _SOLID
        whole, inside = int(solid.sum()), _claim(owner, solid, left, top, number)
        drawn.append((name, whole, inside))
    return picture, [found for number, of in enumerate(drawn) if of[0] and (found := _found(owner, number, *of))]


def _background(parts: Parts, size: int, random: Generator) -> "Image":
    from PIL import Image, ImageEnhance

    photograph = _one(parts.photographs, random)
    shorter = min(photograph.size)
    side = int(random.uniform(max(_PART * shorter, min(size, shorter)), shorter))
    left, top = (int(random.integers(length - side + 1)) for length in photograph.size)
    box = (left, top, left + side, top + side)
    picture = photograph.resize((size, size), Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)
    if random.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return ImageEnhance.Brightness(picture).enhance(random.uniform(0.7, 1.3))


def _turned(drawing: "Image", size: int, random: Generator) -> "Image":
    """A drawing at a random size and angle, perhaps mirrored, a little lighter or darker, and less or more coloured."""
    from PIL import Image, ImageEnhance

    length = size * math.exp(random.uniform(math.log(_SMALLEST), math.log(LARGEST)))
    scale = length / max(drawing.size)
    sides = tuple(max(2, round(side * scale)) for side in drawing.size)
    small = drawing.resize((sides[0], sides[1]), Image.Resampling.LANCZOS)
    if random.random() < 0.5:
        small = small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    turned = small.rotate(random.uniform(-_ANGLE, _ANGLE), Image.Resampling.BICUBIC, expand=True)
    alpha = turned.getchannel("A")
    for change in (ImageEnhance.Brightness, ImageEnhance.Color):
        turned = change(turned).enhance(random.uniform(0.75, 1.2))
    turned.putalpha(alpha)
    return turned.crop(alpha.point(lambda value: 255 * (value >= _SOLID)).getbbox() or (0, 0, *turned.size))


def _place(drawing: "Image", owner: NDArray[np.int64], size: int, random: Generator) -> tuple[int, int]:
    """Left and top of a drawing, somewhere; half of the time where it hides little of what is there."""
    solid = np.asarray(drawing.getchannel("A")) >= _SOLID
    tries = _TRIES if random.random() < _SPARED else 1
    found = []
    for _ in range(tries):
        left, top = (
            round(random.uniform(-_OUTSIDE * length, size - (1 - _OUTSIDE) * length)) for length in drawing.size
        )
        rows, columns, part = _inside(solid, left, top, size)
        found.append((int(((owner[rows, columns] >= 0) & part).sum()), left, top))
    return min(found)[1:]


def _claim(owner: NDArray[np.int64], solid: NDArray[np.bool_], left: int, top: int, number: int) -> int:
    """Make the pixels of a drawing its own; how many they are."""
    rows, columns, part = _inside(solid, left, top, len(owner))
    owner[rows, columns][part] = number
    return int(part.sum())


def _inside(solid: NDArray[np.bool_], left: int, top: int, size: int) -> tuple[slice, slice, NDArray[np.bool_]]:
    """Where a drawing lies in the scene, and the part of it that does."""
    height, width = solid.shape
    rows, columns = slice(max(top, 0), min(top + height, size)), slice(max(left, 0), min(left + width, size))
    return rows, columns, solid[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]


def _found(owner: NDArray[np.int64], number: int, name: str, whole: int, inside: int) -> Placed | None:
    """What is to be seen of a drawing in the end; None for almost nothing."""
    rows, columns = np.nonzero(owner == number)
    if not len(rows) or len(rows) < _SEEN * whole:
        return None
    box = int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1
    return Placed(name, box, len(rows) / whole, inside < _CUT * whole, len(rows) < _CUT * inside)


def _one(among: tuple["Image", ...], random: Generator) -> "Image":
    return among[random.integers(len(among))]
