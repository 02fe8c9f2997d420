"""Scenes of emoji on photographs, to detect objects in, in the layout of Pascal VOC."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from frontrank.checks import check_integer
from frontrank.data.published import list_names
from frontrank.errors import InputError
from frontrank.files import PathLike, atomic_write, write_errors
from frontrank.packages import Package, fetch, members
from frontrank.progress import progress
from frontrank.samples.build import (
    PINNED,
    SCENES,
    SOURCES,
    finish_build,
    has_content,
    read_build_state,
    start_build,
)
from frontrank.samples.emoji import (
    INDEPENDENT,
    OPENMOJI,
    Archives,
    Design,
    draw_transparent,
    read_drawings,
    require_emoji_drawing,
)
from frontrank.tables import Table

if TYPE_CHECKING:
    from PIL.Image import Image

# The parts of scenes: twenty classes, other emoji that are no class, drawings of vendors, and photographs.

CLASSES: Mapping[str, str] = {  # name -> code points; drawn by every vendor, spread over the groups of Unicode
    **{"heart-eyes": "1F60D", "crying": "1F62D", "heart": "2764"},
    **{"cat": "1F431", "dog": "1F436", "frog": "1F438", "rose": "1F339", "cactus": "1F335"},
    **{"apple": "1F34E", "pizza": "1F355", "hamburger": "1F354", "beer": "1F37A"},
    **{"car": "1F697", "airplane": "2708", "rocket": "1F680", "house": "1F3E0"},
    **{"soccer-ball": "26BD", "trophy": "1F3C6", "guitar": "1F3B8", "key": "1F511"},
}
OTHERS = (  # which are in scenes too, but are no class
    *("1F60E", "1F427", "1F41D", "1F422", "1F419", "1F33B", "1F34C", "1F369", "1F382", "1F6B2", "1F3C0", "1F388"),
    *("1F4F7", "1F4A1", "1F451", "1F514", "1F4D5", "1F3A9"),
)
_VENDORS = {"train": ("noto", "twemoji", "openmoji", "fluent-3d"), "test": ("noto-v1", "emojione-1", "fxemoji")}


@dataclass(frozen=True)
class Photographs:
    """Photographs of one package.

    of:     split -> files; landscapes, towns and things, without faces
    credit: who made the package, and what is known of the pictures
    """

    package: Package
    of: Mapping[str, tuple[str, ...]]
    licence: str
    credit: str


PHOTOGRAPHS = tuple(
    Photographs(
        PINNED[row["package"]],
        {split: tuple(f"package/{name}" for name in row[split]) for split in ("train", "test")},
        row["licence"],
        row["credit"],
    )
    for row in SOURCES["scenes"]["photographs"]
)


@dataclass(frozen=True)
class Parts:
    """The parts of the scenes of one split.

    classes: name -> its drawings, one per vendor; others: drawings that are of no class; photographs: backgrounds
    """

    classes: Mapping[str, tuple["Image", ...]]
    others: tuple["Image", ...]
    photographs: tuple["Image", ...]


def scene_designs(split: str) -> tuple[Design, ...]:
    """Return the designs of a split."""
    return tuple(design for design in INDEPENDENT if design.name in _VENDORS[split])


def scene_packages() -> list[Package]:
    """Return all packages that scenes need."""
    drawings = [design.package for split in _VENDORS for design in scene_designs(split)]
    return list(dict.fromkeys([OPENMOJI, *drawings, *(each.package for each in PHOTOGRAPHS)]))


def read_parts(archives: Archives, split: str, side: int, shorter: int) -> Parts:
    """Read the drawings of a split at about `side` pixels, without empty margins, and its photographs.

    shorter: pixels of a photograph's shorter side that are enough
    """
    labels = [*CLASSES.values(), *OTHERS]
    pictures: dict[str, list[Image]] = {label: [] for label in labels}
    for design in scene_designs(split):
        drawings = read_drawings(design, archives, labels)
        for label in labels:
            if label not in drawings:
                raise InputError(f"{design.package} has no drawing of {label}; use the version that frontrank names")
            pictures[label].append(_draw_trimmed(drawings[label], side))
    classes = {name: tuple(pictures[label]) for name, label in CLASSES.items()}
    others = tuple(picture for label in OTHERS for picture in pictures[label])
    albums = (_photographs(archives[each.package], each.of[split], shorter) for each in PHOTOGRAPHS)
    return Parts(classes, others, tuple(picture for album in albums for picture in album))


def _draw_trimmed(drawing: bytes, side: int) -> "Image":
    picture = draw_transparent(drawing, side)
    return picture.crop(picture.getchannel("A").point(lambda alpha: 255 * (alpha >= 8)).getbbox())


def _photographs(archive: Path, names: Sequence[str], shorter: int) -> list["Image"]:
    from PIL import Image

    files = dict(members(archive, names))
    missing = [name for name in names if name not in files]
    if missing:
        raise InputError(f"{archive} has no {missing[0]}; delete it, and run this again")
    pictures = [Image.open(io.BytesIO(files[name])) for name in names]
    for picture in pictures:
        picture.draft("RGB", (shorter, shorter))  # decode at 1/2, 1/4 or 1/8 if both sides stay as large
    return [picture.convert("RGB") for picture in pictures]


# One scene: emoji at random sizes and angles, in front of and behind each other, on a part of a photograph.

LARGEST, _SMALLEST = 0.5, 0.14  # of a drawing's longer side, as a part of the scene's
_MOST = 6  # objects of a scene
_OTHERS = (0.5, 0.35, 0.15)  # probabilities of 0, 1 and 2 emoji of no class
_ANGLE = 35.0  # degrees, to either side
_SPARED = 0.5  # how often a place is searched where little is hidden
_TRIES = 4
_OUTSIDE = 0.25  # of a drawing, at most, on each axis
_SEEN = 0.01  # part of an object in view, below which it does not count
_HARD = 0.35  # part of an object in view, below which it is difficult
_CUT = 0.95  # part of an object inside (not hidden), below which it is truncated (occluded)
_THIN = 4  # pixels of a side, below which an object is difficult
_SOLID = 128  # of the opacity, from which a pixel counts as drawn
_PART = 0.35  # of a photograph's shorter side, at least, is the background


@dataclass(frozen=True)
class EmojiObject:
    """An object of a scene.

    box:     left, top, right, bottom of what is in view, in pixels from 0; right and bottom exclusive
    visible: the part of it that is in view
    """

    name: str
    box: tuple[int, int, int, int]
    visible: float
    truncated: bool
    occluded: bool

    @property
    def difficult(self) -> bool:
        """Whether so little is in view that a detector need not find it."""
        left, top, right, bottom = self.box
        return self.visible < _HARD or min(right - left, bottom - top) < _THIN


def draw_scene(parts: Parts, size: int, random: Generator) -> tuple["Image", list[EmojiObject]]:
    """Draw a scene of size x size pixels; return it and its objects in the order of drawing: later ones hide others."""
    picture = _draw_background(parts, size, random)
    names = list(parts.classes)
    drawings: list[tuple[str, Image]] = []
    for _ in range(int(random.integers(1, _MOST + 1))):
        name = names[random.integers(len(names))]
        drawings.append((name, _one(parts.classes[name], random)))
    for _ in range(int(random.choice(len(_OTHERS), p=_OTHERS))):
        drawings.insert(int(random.integers(len(drawings) + 1)), ("", _one(parts.others, random)))
    owner = np.full((size, size), -1)
    areas: list[tuple[str, int, int]] = []  # name, pixels of the whole drawing, those of it inside
    for number, (name, drawing) in enumerate(drawings):
        varied = _vary(drawing, size, random)
        left, top = _place(varied, owner, size, random)
        picture.paste(varied, (left, top), varied)
        solid = np.asarray(varied.getchannel("A")) >= _SOLID
        rows, columns, inside = _inside(solid, left, top, size)
        owner[rows, columns][inside] = number
        areas.append((name, int(solid.sum()), int(inside.sum())))
    objects = [_visible_object(owner, number, *area) for number, area in enumerate(areas) if area[0]]
    return picture, [each for each in objects if each is not None]


def _draw_background(parts: Parts, size: int, random: Generator) -> "Image":
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


def _vary(drawing: "Image", size: int, random: Generator) -> "Image":
    """Return a drawing at a random size and angle, perhaps mirrored, with another brightness and colour strength."""
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
    """Return a random place (left, top) for a drawing; half of the time one where it hides little of the others."""
    solid = np.asarray(drawing.getchannel("A")) >= _SOLID
    tries = _TRIES if random.random() < _SPARED else 1
    places = []
    for _ in range(tries):
        bounds = [(-_OUTSIDE * length, size - (1 - _OUTSIDE) * length) for length in drawing.size]
        left, top = (round(random.uniform(*of)) for of in bounds)
        rows, columns, part = _inside(solid, left, top, size)
        places.append((int(((owner[rows, columns] >= 0) & part).sum()), left, top))
    return min(places)[1:]


def _inside(solid: NDArray[np.bool_], left: int, top: int, size: int) -> tuple[slice, slice, NDArray[np.bool_]]:
    """Return the rows and columns of a drawing in the scene, and the part of it that is inside."""
    height, width = solid.shape
    rows, columns = slice(max(top, 0), min(top + height, size)), slice(max(left, 0), min(left + width, size))
    return rows, columns, solid[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]


def _visible_object(owner: NDArray[np.int64], number: int, name: str, whole: int, inside: int) -> EmojiObject | None:
    """Return the object of a drawing as it is in view at the end; None if almost nothing is."""
    rows, columns = np.nonzero(owner == number)
    if not len(rows) or len(rows) < _SEEN * whole:
        return None
    box = int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1
    return EmojiObject(name, box, len(rows) / whole, inside < _CUT * whole, len(rows) < _CUT * inside)


def _one(among: tuple["Image", ...], random: Generator) -> "Image":
    return among[random.integers(len(among))]


# The data set

SCENES_TO_TRAIN, SIZE = 2_000, 128
_PER_TEST = 4  # scenes to train on for each of the test
_VALIDATION = 5  # every fifth training scene is in val.txt, the others in train.txt
_QUALITY = 92
_DETAIL = 4  # a photograph is decoded at up to this many times the size of a scene
_STREAMS = {"train": 0, "test": 1}  # of random numbers
_LICENCES = """\
# Licences of the emoji scenes

Each scene is composed of drawings of several of these sets, made small, turned and recoloured a little,
on a part of a photograph out of a package. The packages of the photographs are under the MIT licence;
they do not say more of single photographs. Whoever passes scenes on passes this list on with them.

| what | in | package | licence | by |
|---|---|---|---|---|"""


@dataclass(frozen=True)
class SceneCounts:
    """The number of scenes, of objects and of difficult objects of each split."""

    scenes: Mapping[str, int]
    objects: Mapping[str, int]
    difficult: Mapping[str, int]

    def describe(self) -> str:
        """Return the counts as a table of text."""
        columns = (self.scenes, self.objects, self.difficult)
        rows = [[split, *(f"{of[split]:,}" for of in columns)] for split in self.scenes]
        return Table(["split", "scenes", "objects", "difficult"], rows, "lrrr").render("text")


def build_emoji_scenes(
    out: PathLike, *, scenes: int = SCENES_TO_TRAIN, size: int = SIZE, seed: int = 0, show: bool | None = None
) -> SceneCounts:
    """Draw scenes into the folder `out`, `scenes` for training and a quarter as many for the test; existing ones stay.

    size: pixels of a side
    seed: a scene is a function of it, its split and its number, so that fewer scenes are the first of more
    show: progress, as in `frontrank.progress`
    """
    check_integer("scenes", scenes, at_least=4, at_most=10**5)
    check_integer("size", size, at_least=64, at_most=2048)
    check_integer("seed", seed, at_least=0, at_most=2**31)
    require_emoji_drawing()
    settings: dict[str, object] = {"data": "emoji-scenes", "scenes": scenes, "size": size, "seed": seed}
    folder, home = Path(out), Path(out) / SCENES
    names = [f"{number:06d}" for number in range(1, scenes + scenes // _PER_TEST + 1)]
    numbers = {"train": names[:scenes], "test": names[scenes:]}
    state = read_build_state(folder, settings)
    if state is not None and "scenes" in state:
        files = list_names(home / "Annotations") | list_names(home / "JPEGImages")
        if files >= {f"{name}{ending}" for name in names for ending in (".xml", ".jpg")}:
            return SceneCounts(**state["scenes"])
    with start_build(folder, settings):
        packages = scene_packages()
        archives = dict(zip(packages, fetch(packages, show=show), strict=True))
        with write_errors(folder):
            for place in ("Annotations", "JPEGImages", "ImageSets/Main"):
                (home / place).mkdir(parents=True, exist_ok=True)
            _draw_all(home, numbers, archives, size, seed, show)
            counts = _write_lists(home, numbers)
        finish_build(folder, _licences(), {"scenes": vars(counts), "settings": settings}, packages)
        return counts


def _draw_all(
    home: Path, numbers: Mapping[str, Sequence[str]], archives: Archives, size: int, seed: int, show: bool | None
) -> None:
    """Draw the missing scenes; the annotation of a scene is written after its picture."""
    with progress("drawing scenes", sum(map(len, numbers.values())), show) as advance:
        for split, names in numbers.items():
            parts = None
            for number, name in enumerate(names):
                advance(1)
                image, annotation = home / "JPEGImages" / f"{name}.jpg", home / "Annotations" / f"{name}.xml"
                if has_content(image) and has_content(annotation):
                    continue
                parts = parts or read_parts(archives, split, max(64, round(LARGEST * size)), _DETAIL * size)
                picture, objects = draw_scene(parts, size, np.random.default_rng([seed, _STREAMS[split], number]))
                save = partial(picture.save, format="JPEG", quality=_QUALITY, subsampling=0)
                atomic_write(image, save, sync=False)
                atomic_write(annotation, _annotation(name, size, objects), sync=False)


def _annotation(name: str, size: int, objects: Sequence[EmojiObject]) -> str:
    """Return the annotation of a picture in the format of Pascal VOC, which counts pixels from 1, the last included."""
    root = ElementTree.Element("annotation")
    _add(root, folder=SCENES, filename=f"{name}.jpg")
    _add(ElementTree.SubElement(root, "source"), database="Emoji scenes of Frontrank", image="composed")
    _add(ElementTree.SubElement(root, "size"), width=size, height=size, depth=3)
    _add(root, segmented=0)
    for each in objects:
        left, top, right, bottom = each.box
        element = ElementTree.SubElement(root, "object")
        flags = {"truncated": int(each.truncated), "occluded": int(each.occluded), "difficult": int(each.difficult)}
        _add(element, name=each.name, pose="Unspecified", **flags)
        _add(ElementTree.SubElement(element, "bndbox"), xmin=left + 1, ymin=top + 1, xmax=right, ymax=bottom)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _add(element: ElementTree.Element, **texts: object) -> None:
    for tag, text in texts.items():
        ElementTree.SubElement(element, tag).text = str(text)


def _write_lists(home: Path, numbers: Mapping[str, Sequence[str]]) -> SceneCounts:
    """Write the lists of scenes, also for each class: 1 if it is there, 0 if only difficult ones are, -1 if not."""
    objects: dict[str, list[tuple[str, bool]]] = {}  # of each scene: the class, and whether it is difficult
    for name in (name for of in numbers.values() for name in of):
        root = ElementTree.parse(home / "Annotations" / f"{name}.xml").getroot()
        objects[name] = [(each.findtext("name", ""), each.findtext("difficult") == "1") for each in root.iter("object")]
    train = numbers["train"]
    lists = {"trainval": train, "val": train[_VALIDATION - 1 :: _VALIDATION], "test": numbers["test"]}
    lists["train"] = [name for name in train if name not in set(lists["val"])]
    for title, names in lists.items():
        texts = {title: "".join(f"{name}\n" for name in names)}
        for each in CLASSES:
            lines = (f"{name} {_presence(each, objects[name]):2d}\n" for name in names)
            texts[f"{each}_{title}"] = "".join(lines)
        for stem, text in texts.items():
            atomic_write(home / "ImageSets" / "Main" / f"{stem}.txt", text, sync=False)
    flags = {split: [flag for name in names for _, flag in objects[name]] for split, names in numbers.items()}
    scenes, sizes = ({split: len(of) for split, of in column.items()} for column in (numbers, flags))
    return SceneCounts(scenes, sizes, {split: sum(of) for split, of in flags.items()})


def _presence(name: str, objects: Sequence[tuple[str, bool]]) -> int:
    return 1 if (name, False) in objects else 0 if (name, True) in objects else -1


def _licences() -> str:
    rows: list[tuple[str, str, Design | Photographs]] = []
    rows += [(each.name, split, each) for each in INDEPENDENT for split in _VENDORS if each.name in _VENDORS[split]]
    rows += [("photographs", "train, test", each) for each in PHOTOGRAPHS]
    lines = [f"| {what} | {where} | {by.package} | {by.licence} | {by.credit} |" for what, where, by in rows]
    return "\n".join([_LICENCES, *lines, ""])
