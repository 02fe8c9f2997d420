"""Scenes of emoji on photographs, to detect objects in, in the layout of Pascal VOC.

OUT/VOC2007/{Annotations,ImageSets/Main,JPEGImages}, OUT/LICENCES.md, OUT/data.json. Drawings and photographs come from
pinned registry packages; what is trained on and what is tested share neither a drawing nor a photograph.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from frontrank.data.built import SCENES, begun, finished_scenes, is_there, started_scenes
from frontrank.data.emoji_designs import INDEPENDENT, Archives
from frontrank.data.image_table import shown
from frontrank.data.images import require_pillow
from frontrank.data.list_files import names_in
from frontrank.data.scene_drawing import LARGEST, Placed, draw_scene
from frontrank.data.scene_parts import CLASSES, PHOTOGRAPHS, designs, packages, read_parts
from frontrank.errors import InputError, InputTypeError, require_number
from frontrank.packages import fetch, remedy
from frontrank.progress import progress

SCENES_TO_TRAIN, SIZE = 2_000, 128
_PER_TEST = 4  # scenes to train on for each of the test
_VALIDATION = 5  # each so-manieth scene to train on is in val.txt, the others in train.txt
_QUALITY = 92
_DETAIL = 4  # a photograph is this many times as large as a scene, or as large as it is
_STREAMS = {"train": 0, "test": 1}  # of random numbers


@dataclass(frozen=True)
class SceneCounts:
    """How many there are: per split scenes, objects, and those of them that are difficult."""

    scenes: Mapping[str, int]
    objects: Mapping[str, int]
    difficult: Mapping[str, int]

    def describe(self) -> str:
        """As a table of text."""
        rows = [f"{split:5}  {self.scenes[split]:>7,}  {self.objects[split]:>7,}  {self.difficult[split]:>9,}"
                for split in self.scenes]  # fmt: skip
        return "\n".join(["split   scenes  objects  difficult", *rows])


def build_emoji_scenes(
    out: str | os.PathLike[str],
    *,
    scenes: int = SCENES_TO_TRAIN,
    size: int = SIZE,
    seed: int = 0,
    show: bool | None = None,
) -> SceneCounts:
    """Scenes in the folder `out`, `scenes` to train on and a quarter as many for the test; what is there is kept.

    size: pixels of a side
    seed: a scene is a function of it, its split and its number, so that fewer scenes are the first of more
    show: progress, as in `frontrank.progress`
    """
    settings = _checked(scenes, size, seed)
    folder, numbers = Path(out), _numbers(scenes)
    state = started_scenes(folder, settings)
    if state is not None and not _missing(folder, numbers):
        return SceneCounts(state["scenes"], state["objects"], state["difficult"])
    with begun(folder, settings):
        wanted = packages()
        archives = dict(zip(wanted, fetch(wanted, show=show), strict=True))
        try:
            home = folder / SCENES
            for place in ("Annotations", "JPEGImages", "ImageSets/Main"):
                (home / place).mkdir(parents=True, exist_ok=True)
            _sweep(home)
            _draw_all(home, numbers, archives, size, seed, show)
            found = _write_lists(home, numbers)
        except OSError as error:
            raise InputError(f"{shown(folder)} cannot be written ({error.strerror}); {remedy(error)}") from error
        finished_scenes(folder, vars(found), settings, wanted, _licences())
        return found


def _checked(scenes: int, size: int, seed: int) -> dict[str, object]:
    """The settings as data.json has them, unless one of them cannot be, or a library is missing."""
    for name, value, least, most in (("scenes", scenes, 4, 10**5), ("size", size, 64, 2048), ("seed", seed, 0, 2**31)):
        require_number(name, value, at_least=least, at_most=most)
        if not isinstance(value, int):
            raise InputTypeError(f"{name} must be a whole number, got {value!r}")
    require_pillow()
    try:
        import_module("resvg_py")
    except ImportError:
        raise InputError("drawing emoji needs resvg_py; pip install 'frontrank[emoji]'") from None
    return {"data": "emoji-scenes", "scenes": scenes, "size": size, "seed": seed}


def _numbers(scenes: int) -> dict[str, list[str]]:
    """The names of the scenes of each split."""
    names = [f"{number:06d}" for number in range(1, scenes + scenes // _PER_TEST + 1)]
    return {"train": names[:scenes], "test": names[scenes:]}


def _missing(folder: Path, numbers: Mapping[str, Sequence[str]]) -> bool:
    home = folder / SCENES
    told, seen = names_in(home / "Annotations"), names_in(home / "JPEGImages")
    return any(f"{name}.xml" not in told or f"{name}.jpg" not in seen for of in numbers.values() for name in of)


def _sweep(home: Path) -> None:
    for left in (*home.glob("*/.*"), *home.glob("ImageSets/Main/.*")):  # of a build that was killed
        left.unlink(missing_ok=True)


def _draw_all(
    home: Path, numbers: Mapping[str, Sequence[str]], archives: Archives, size: int, seed: int, show: bool | None
) -> None:
    """Draw the scenes that are not there; the annotation of one is written after its picture."""
    with progress("drawing scenes", sum(map(len, numbers.values())), show) as advance:
        for split, names in numbers.items():
            parts = None
            for number, name in enumerate(names):
                advance(1)
                picture, told = home / "JPEGImages" / f"{name}.jpg", home / "Annotations" / f"{name}.xml"
                if is_there(picture) and is_there(told):
                    continue
                parts = parts or read_parts(archives, split, max(64, round(LARGEST * size)), _DETAIL * size)
                drawn, placed = draw_scene(parts, size, np.random.default_rng([seed, _STREAMS[split], number]))
                partial = picture.with_name(f".{name}")
                drawn.save(partial, "JPEG", quality=_QUALITY, subsampling=0)
                partial.replace(picture)
                _write(told, _annotation(name, size, placed))


def _annotation(name: str, size: int, placed: Sequence[Placed]) -> str:
    """What Pascal VOC says of a picture; it counts pixels from 1 and includes the last."""
    root = ElementTree.Element("annotation")
    _add(root, folder=SCENES, filename=f"{name}.jpg")
    _add(ElementTree.SubElement(root, "source"), database="Emoji scenes of Frontrank", image="composed")
    _add(ElementTree.SubElement(root, "size"), width=size, height=size, depth=3)
    _add(root, segmented=0)
    for each in placed:
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
    """The lists of scenes, for each class too: 1 where it is, 0 where it is difficult only, -1 where it is not."""
    hard: dict[str, list[tuple[str, bool]]] = {}
    for name in (name for of in numbers.values() for name in of):
        root = ElementTree.parse(home / "Annotations" / f"{name}.xml").getroot()
        hard[name] = [(each.findtext("name", ""), each.findtext("difficult") == "1") for each in root.iter("object")]
    train = numbers["train"]
    lists = {
        "trainval": train,
        "train": [name for place, name in enumerate(train, start=1) if place % _VALIDATION],
        "val": train[_VALIDATION - 1 :: _VALIDATION],
        "test": numbers["test"],
    }
    for title, names in lists.items():
        _write(home / "ImageSets" / "Main" / f"{title}.txt", "".join(f"{name}\n" for name in names))
        for each in CLASSES:
            lines = [f"{name} {_presence(each, hard[name]):2d}\n" for name in names]
            _write(home / "ImageSets" / "Main" / f"{each}_{title}.txt", "".join(lines))
    objects = {split: [flag for name in names for _, flag in hard[name]] for split, names in numbers.items()}
    return SceneCounts(
        {split: len(names) for split, names in numbers.items()},
        {split: len(flags) for split, flags in objects.items()},
        {split: sum(flags) for split, flags in objects.items()},
    )


def _presence(name: str, found: Sequence[tuple[str, bool]]) -> int:
    flags = [flag for each, flag in found if each == name]
    return -1 if not flags else 0 if all(flags) else 1


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _licences() -> str:
    vendors = {design.name: split for split in _STREAMS for design in designs(split)}
    drawn = [
        f"| {design.name} | {vendors[design.name]} | {design.package} | {design.licence} | {design.credit} |"
        for design in INDEPENDENT
        if design.name in vendors
    ]
    taken = [f"| photographs | train, test | {each.package} | {each.licence} | {each.credit} |" for each in PHOTOGRAPHS]
    return "\n".join(
        [
            "# Licences of the emoji scenes",
            "",
            "Each scene is composed of drawings of several of these sets, made small, turned and recoloured a little,",
            "on a part of a photograph out of a package. The packages of the photographs are under the MIT licence;",
            "they do not say more of single photographs. Whoever passes scenes on passes this list on with them.",
            "",
            "| what | in | package | licence | by |",
            "|---|---|---|---|---|",
            *drawn,
            *taken,
            "",
        ]
    )
