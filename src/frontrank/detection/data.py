"""Pictures with boxes: SceneTable, read from Pascal VOC or COCO files, and loaded in batches."""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from frontrank.checks import check_choice
from frontrank.data.images import image_size, read_image
from frontrank.data.loading import Key, WholeBatches, read_batches, training_keys
from frontrank.data.published import list_names, read_lines
from frontrank.data.samplers import BatchPlan, EpochBatches
from frontrank.data.table import Box, shown
from frontrank.errors import FrontrankWarning, InputError
from frontrank.progress import progress
from frontrank.samples.build import resume_command

# ==== SceneTable: pictures, and the boxes and names of the objects in them; what every reader gives and all else tak


Boxes = NDArray[np.float32]
Labels = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SceneTable:
    """Pictures with the objects in them.

    name:    of the data set, or of its folder
    classes: label c of an object is classes[c - 1]; 0 is the background and never the label of an object
    files:   the pictures
    sizes:   [picture, 2]: width and height
    boxes:   per picture float32 [object, 4]: left, top, right, bottom in pixels from 0; right and bottom are exclusive
    labels:  per picture int64 [object], from 1 to the number of classes
    ignored: per picture bool [object]: "difficult" of Pascal VOC, "iscrowd" of COCO. Such an object is not trained on,
             and finding it is neither right nor wrong
    crowds:  the ignored are crowds, as of COCO: whatever is found within one is neither right nor wrong

    >>> boxes = np.array([[1, 2, 30, 40], [5, 5, 9, 9]], dtype=np.float32)
    >>> labels, ignored = np.array([2, 1]), np.array([False, True])
    >>> table = SceneTable("two", ("cat", "dog"), ("a.jpg",), np.array([[64, 48]]), (boxes,), (labels,), (ignored,))
    >>> print(table.describe())
    two: 1 picture, 1 object of 2 classes, 1 ignored
    class  objects  ignored  pictures
    cat          0        1         1
    dog          1        0         1
    """

    name: str
    classes: tuple[str, ...]
    files: tuple[str, ...]
    sizes: NDArray[np.int64]
    boxes: tuple[Boxes, ...]
    labels: tuple[Labels, ...]
    ignored: tuple[Flags, ...]
    crowds: bool = False

    def __post_init__(self) -> None:
        """Refuse a table that does not fit together: readers and users build it alike."""
        count, most = len(self.files), len(self.classes)
        for name in ("sizes", "boxes", "labels", "ignored"):
            if len(getattr(self, name)) != count:
                raise InputError(f"{name} has {len(getattr(self, name))} rows, files has {count}; give one per picture")
        if count and np.shape(self.sizes) != (count, 2):
            raise InputError(f"sizes must be [{count}, 2] (width, height), got {list(np.shape(self.sizes))}")
        for file, boxes, labels, ignored in zip(self.files, self.boxes, self.labels, self.ignored, strict=True):
            if boxes.shape != (len(labels), 4) or ignored.shape != labels.shape:
                shapes = f"boxes {list(boxes.shape)}, labels {list(labels.shape)}, ignored {list(ignored.shape)}"
                raise InputError(f"{shown(file)}: {shapes} do not go together; give [n, 4], [n] and [n]")
            if len(labels) and not (labels.min() >= 1 and labels.max() <= most):
                raise InputError(f"{shown(file)}: labels must be from 1 to {most}, got {sorted(set(labels.tolist()))}")

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, which: Sequence[int] | NDArray[Any] | slice) -> "SceneTable":
        """Some of the pictures, by their places or by a mask."""
        if not isinstance(which, slice):
            which = np.asarray(which, dtype=np.int64 if len(which) == 0 else None)
        places = np.arange(len(self))[which].tolist()
        return replace(
            self,
            files=tuple(self.files[row] for row in places),
            sizes=self.sizes[places],
            boxes=tuple(self.boxes[row] for row in places),
            labels=tuple(self.labels[row] for row in places),
            ignored=tuple(self.ignored[row] for row in places),
        )

    def of_classes(self, classes: Sequence[str]) -> "SceneTable":
        """The same with the labels of these classes, such as those a model knows; all objects must be of them."""
        counts = self.counts()[:, :2].sum(axis=1)
        unknown = [name for name, count in zip(self.classes, counts, strict=True) if count and name not in classes]
        if unknown:
            few = ", ".join(unknown[:3]) + ", ..." * (len(unknown) > 3)
            raise InputError(f"{self.name} has objects of {few}, not known here; give data of {', '.join(classes)}")
        places = {name: label for label, name in enumerate(classes, start=1)}
        label_of = np.array([0, *(places.get(name, 0) for name in self.classes)], dtype=np.int64)
        return replace(self, classes=tuple(classes), labels=tuple(label_of[labels] for labels in self.labels))

    @property
    def objects(self) -> int:
        """How many objects there are, without the ignored."""
        return sum(int((~ignored).sum()) for ignored in self.ignored)

    def counts(self) -> NDArray[np.int64]:
        """Per class: objects, ignored objects, and pictures with either [class, 3]."""
        found = np.zeros((len(self.classes) + 1, 3), dtype=np.int64)
        for labels, ignored in zip(self.labels, self.ignored, strict=True):
            np.add.at(found, (labels, ignored.astype(np.int64)), 1)
            found[np.unique(labels), 2] += 1
        return found[1:]

    def describe(self) -> str:
        """Pictures and objects, per class too, as a table of text."""
        counts, empty = self.counts(), sum(not len(labels) for labels in self.labels)
        without = f" ({empty:,} without objects)" if empty else ""
        pictures, objects = (_many(n, what) for n, what in ((len(self), "picture"), (self.objects, "object")))
        head = f"{self.name}: {pictures}{without}, {objects} of {len(self.classes)} classes"
        width = max([len("class"), *map(len, self.classes)])
        rows = [f"{'class':<{width}}  objects  ignored  pictures"] + [
            f"{name:<{width}}  {row[0]:>7,}  {row[1]:>7,}  {row[2]:>8,}"
            for name, row in zip(self.classes, counts.tolist(), strict=True)
        ]
        return "\n".join([f"{head}, {int(counts[:, 1].sum()):,} ignored", *rows])


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


# ==== From annotations as files have them to a SceneTable: boxes cut to their pictures, and what was odd said once.


@dataclass(frozen=True)
class Thing:
    """An object as its file says it: its class by name, and its box in pixels from 0, right and bottom exclusive."""

    name: str
    box: Box
    ignored: bool


@dataclass(frozen=True)
class Scene:
    """A picture and its objects, as its file says it.

    told:  the file that says it, and where, for messages
    size:  width and height as told; None where they are not
    """

    file: str
    told: str
    size: tuple[int, int] | None
    things: tuple[Thing, ...]


def gathered(
    name: str,
    classes: Sequence[str],
    scenes: Iterable[Scene],
    *,
    crowds: bool = False,
    look: bool = True,
    allow_partial: bool = False,
) -> SceneTable:
    """The table of these scenes.

    look:          compare the size as told with that of the picture; where none is told, this is always done
    allow_partial: leave out pictures that cannot be used, and say how many

    Boxes that reach out of their picture are cut; those of which nothing is left then are left out. Both are counted in
    a warning.
    """
    labels = {each: label for label, each in enumerate(classes, start=1)}
    kept: list[tuple[Scene, tuple[int, int]]] = []
    lost: list[str] = []
    for scene in scenes:
        try:
            kept.append((scene, _size(scene, look)))
        except InputError as error:
            if not allow_partial:
                raise
            lost.append(str(error).split(";")[0])
    if not kept:
        raise InputError(f"{name} has no pictures that can be used; give at least one")
    boxes, found, ignored, oddities = [], [], [], _Oddities()
    for scene, size in kept:
        cut = [(thing, oddities.cut(scene, thing, size)) for thing in scene.things]
        whole = [(thing, box) for thing, box in cut if box is not None]
        boxes.append(np.array([box for _, box in whole], dtype=np.float32).reshape(-1, 4))
        found.append(np.array([_label(labels, scene, thing) for thing, _ in whole], dtype=np.int64))
        ignored.append(np.array([thing.ignored for thing, _ in whole], dtype=bool))
    warn_left_out(name, lost, "picture")
    _warn(name, oddities.said())
    sizes = np.array([size for _, size in kept], dtype=np.int64)
    files = tuple(scene.file for scene, _ in kept)
    return SceneTable(name, tuple(classes), files, sizes, tuple(boxes), tuple(found), tuple(ignored), crowds)


def warn_left_out(name: str, cases: Sequence[str], what: str) -> None:
    """Say how many pictures, or annotations, were left out, and why the first was."""
    _warn(name, _said(cases, "{0} cannot be used and {1} left out", what))


def box_of(told: str, edges: Sequence[object], what: str) -> Box:
    """Four finite numbers, as floats."""
    try:
        left, top, right, bottom = (float(edge) for edge in edges)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"{told}: {what} must be four numbers, got {list(edges)}; correct it") from None
    if not all(map(math.isfinite, (left, top, right, bottom))):
        raise InputError(f"{told}: {what} must be finite, got {[left, top, right, bottom]}; correct it")
    return left, top, right, bottom


class _Oddities:
    """What was odd about boxes, to be said once and not for each."""

    def __init__(self) -> None:
        self._reaching: list[str] = []
        self._empty: list[str] = []

    def cut(self, scene: Scene, thing: Thing, size: tuple[int, int]) -> Box | None:
        """The part of a box inside its picture; None if there is none."""
        left, top, right, bottom = thing.box
        inside = max(left, 0.0), max(top, 0.0), min(right, float(size[0])), min(bottom, float(size[1]))
        if inside[0] >= inside[2] or inside[1] >= inside[3]:
            self._empty.append(f"{thing.name} of {scene.told}")
            return None
        if inside != thing.box:
            self._reaching.append(f"{thing.name} of {scene.told}")
        return inside

    def said(self) -> list[str]:
        reaching = _said(self._reaching, "{0} reached out of the picture and {1} cut", "box")
        return [*reaching, *_said(self._empty, "{0} without area inside the picture {1} left out", "box")]


def _said(cases: Sequence[str], text: str, what: str) -> list[str]:
    if not cases:
        return []
    several = f"{what}es" if what.endswith("x") else f"{what}s"
    many = f"1 {what}" if len(cases) == 1 else f"{len(cases):,} {several}"
    was = "was" if len(cases) == 1 else "were"
    return [f"{text.format(many, was)} ({'' if len(cases) == 1 else 'first: '}{cases[0]})"]


def _warn(name: str, said: Sequence[str]) -> None:
    if said:
        warnings.warn(f"{name}: {'; '.join(said)}", FrontrankWarning, stacklevel=4)


def _label(labels: dict[str, int], scene: Scene, thing: Thing) -> int:
    if thing.name not in labels:
        known = ", ".join(labels) if len(labels) <= 20 else f"{len(labels)} others"
        raise InputError(f"{scene.told}: the class {thing.name!r} is none of {known}; correct the name")
    return labels[thing.name]


def _size(scene: Scene, look: bool) -> tuple[int, int]:
    """Width and height of the picture."""
    if scene.size is not None and not look:
        return scene.size
    found = image_size(scene.file)
    if scene.size is not None and found != scene.size:
        said = f"{scene.told} says {scene.size[0]} x {scene.size[1]} pixels, {shown(scene.file)} has"
        raise InputError(f"{said} {found[0]} x {found[1]} (upright); correct the size and the boxes, or the picture")
    return found


# ==== Pascal VOC: its data sets of 2007 and 2012 with their counts checked, and folders of one's own in the same lay


CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
COUNTS: Mapping[tuple[int, str], int] = {(2007, "train"): 5_011, (2012, "train"): 11_540, (2007, "test"): 4_952}
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif")
_FOLDERS = ("JPEGImages", "images", "Images", "")
_LISTS = {  # split -> the lists it is, by whether there is one for the test
    ("train", True): ("trainval", "train"),
    ("test", True): ("test",),
    ("train", False): ("train", "trainval"),
    ("test", False): ("val", "valid"),
}


def read_voc(
    root: str | os.PathLike[str],
    split: str = "train",
    years: Sequence[int] = (2007,),
    *,
    allow_partial: bool = False,
    show: bool | None = None,
) -> SceneTable:
    """Pascal VOC as published: trainval of some years, or the test of 2007; each must have all its pictures.

    root:          VOCdevkit, the folder it is in, or VOC2007 itself where that is all
    allow_partial: go on with the pictures that are there and can be read
    """
    homes = {year: home_of(root, year) for year in (years if split == "train" else (2007,))}
    scenes: list[Scene] = []
    for year, home in homes.items():
        if home is None:
            raise InputError(f"{shown(root)} has no VOC{year}; give the folder VOCdevkit with VOC{year} in it")
        names = _listed(home / "ImageSets" / "Main" / f"{'trainval' if split == 'train' else 'test'}.txt")
        found = _scenes(home, names, allow_partial, show)
        if len(found) != COUNTS[year, split] and not allow_partial:
            said = f"{shown(home)} has {len(found):,} pictures to {split}, not {COUNTS[year, split]:,} as published"
            raise InputError(f"{said}; unpack it again, pass layout='voc' for data of your own, or allow_partial=True")
        scenes += found
    name = f"VOC {'+'.join(f'{year % 100:02d}' for year in homes)} {'trainval' if split == 'train' else 'test'}"
    return gathered(name, CLASSES, scenes, look=False, allow_partial=allow_partial)


def read_voc_folder(
    root: str | os.PathLike[str], split: str = "train", *, allow_partial: bool = False, show: bool | None = None
) -> SceneTable:
    """A folder of one's own with a VOC XML file per picture.

    Its lists are ImageSets/Main/trainval.txt and test.txt, else train.txt and val.txt. Without lists, the folders train
    and test (or valid, val) are the splits; without these too, all is for training. The classes are all names that
    occur in either, in alphabetical order, so that the labels of both splits agree.
    """
    home = home_of(root, 2007) or home_of(root, 2012) or Path(root)
    parts = {each: _part(home, each) for each in ("train", "test")}
    chosen = parts[split]
    if chosen is None:
        lists = home / "ImageSets" / "Main"
        where = shown(lists / f"{'trainval' if split == 'train' else 'test'}.txt" if lists.is_dir() else home / split)
        use = "to train on" if split == "train" else "for the test"
        raise InputError(f"{shown(home)} has no pictures {use}: there is no {where}; add it")
    read = {each: _scenes(*part, allow_partial, show) for each, part in parts.items() if part is not None}
    classes = sorted({thing.name for scenes in read.values() for scene in scenes for thing in scene.things})
    if not classes:
        raise InputError(f"{shown(home)} has no objects in its annotations; label some")
    return gathered(Path(os.path.abspath(root)).name, classes, read[split], allow_partial=allow_partial)


def home_of(root: str | os.PathLike[str], year: int) -> Path | None:
    """The folder of a year of VOC: root/VOC2007, root/VOCdevkit/VOC2007, or root if that is its name."""
    name, root = f"VOC{year}", Path(root)
    places = (root / name, root / "VOCdevkit" / name, *([root] if root.name == name else []))
    return next((place for place in places if (place / "Annotations").is_dir()), None)


def is_published(root: str | os.PathLike[str]) -> bool:
    """Whether a folder is VOC 2007 or 2012 as published, by the lists of its classes."""
    lists = [list_names(home / "ImageSets/Main") for year in (2007, 2012) if (home := home_of(root, year))]
    return any(all({f"{name}_trainval.txt", f"{name}_test.txt"} & names for name in CLASSES) for names in lists)


def read_annotation(path: Path) -> tuple[tuple[int, int] | None, tuple[Thing, ...], str]:
    """The size of a picture as its XML says it, its objects, and the name of its file."""
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        line = error.position[0]
        raise InputError(f"{shown(path)} line {line} is no whole XML ({error}); write it again") from None
    except OSError as error:
        raise InputError(f"{shown(path)} cannot be read ({error.strerror}); copy it again") from error
    except (LookupError, ValueError) as error:  # of an encoding that is not known, or not the one it says
        raise InputError(f"{shown(path)} is no XML ({error}); write it again") from None
    if root.tag != "annotation":
        raise InputError(f"{shown(path)} is XML of {root.tag!r}, not of an annotation of Pascal VOC; write it again")
    things = tuple(_thing(path, number, each) for number, each in enumerate(root.findall("object"), start=1))
    return _told_size(path, root), things, root.findtext("filename", "").strip()


def _thing(path: Path, number: int, element: ElementTree.Element) -> Thing:
    name = element.findtext("name", "").strip()
    if not name:
        raise InputError(f"{shown(path)}: object {number} has no name; give it one")
    what = f"object {number} ({name})"
    edges = [element.findtext(f"bndbox/{edge}", "") for edge in ("xmin", "ymin", "xmax", "ymax")]
    left, top, right, bottom = box_of(shown(path), edges, f"the box of {what}")
    return Thing(name, (left - 1, top - 1, right, bottom), element.findtext("difficult", "0").strip() == "1")


def _told_size(path: Path, root: ElementTree.Element) -> tuple[int, int] | None:
    """Width and height; some tools write zeros where they do not know."""
    texts = [root.findtext(f"size/{side}", "").strip() for side in ("width", "height")]
    try:
        width, height = (int(float(text)) if text else 0 for text in texts)
    except (ValueError, OverflowError):
        raise InputError(f"{shown(path)}: the size must be two whole numbers, got {texts}; correct it") from None
    return (width, height) if width > 0 and height > 0 else None


def _part(home: Path, split: str) -> tuple[Path, list[str]] | None:
    """The folder of a split and the names of its annotations; None if there is no such split."""
    lists = home / "ImageSets" / "Main"
    if lists.is_dir():
        for name in _LISTS[split, (lists / "test.txt").is_file()]:
            if (lists / f"{name}.txt").is_file():
                return home, _listed(lists / f"{name}.txt")
        return None
    for name in ("train",) if split == "train" else ("test", "valid", "val"):
        if (home / name).is_dir():
            return home / name, _annotated(home / name)
    return (home, _annotated(home)) if split == "train" else None


def _annotated(home: Path) -> list[str]:
    place = home / "Annotations" if (home / "Annotations").is_dir() else home
    names = sorted(name[:-4] for name in list_names(place) if name.lower().endswith(".xml"))
    if not names:
        raise InputError(f"{shown(place)} has no .xml files; give a folder of annotations of Pascal VOC")
    return names


def _listed(path: Path) -> list[str]:
    """The names in a list, which may have spaces; some lists have a last column of -1, 0 and 1 on every line."""
    try:
        names = [line for _, line in read_lines(path)]
    except OSError as error:
        raise InputError(f"{shown(path)} cannot be read ({error.strerror}); copy it again") from error
    parts = [name.rsplit(maxsplit=1) for name in names]
    if all(part[1:] in (["-1"], ["0"], ["1"]) for part in parts):
        names = [part[0] for part in parts]
    for name in names:
        if "/" in name or "\\" in name or name in (".", ".."):
            raise InputError(f"{shown(path)} names {name!r}, which is no picture's name; copy it again")
    return names


def _scenes(home: Path, names: Iterable[str], allow_partial: bool, show: bool | None) -> list[Scene]:
    """The scenes of some names.

    With `allow_partial` those without their picture or their annotation are left out, and damaged annotations too, with
    a warning.
    """
    names, lost = list(names), []
    annotations = home / "Annotations" if (home / "Annotations").is_dir() else home
    pictures = _pictures(home)
    found, told = [], list_names(annotations)
    with progress(f"reading {shown(home.name)}", len(names), show) as advance:
        for name in names:
            advance(1)
            path = annotations / f"{name}.xml"
            if path.name not in told:
                if allow_partial:
                    continue
                raise InputError(f"{shown(path)} is missing; add it, or go on without it: allow_partial=True")
            try:
                size, things, file = read_annotation(path)
            except InputError as error:
                if not allow_partial:
                    raise
                lost.append(str(error).split(";")[0])
                continue
            picture = pictures.get(name) or pictures.get(os.path.splitext(os.path.basename(file))[0])
            if picture is None:
                if allow_partial:
                    continue
                raise InputError(f"the picture of {shown(path)} is missing; add it, or go on: allow_partial=True")
            found.append(Scene(picture, shown(path), size, things))
    warn_left_out(home.name, lost, "annotation")
    return found


def _pictures(home: Path) -> dict[str, str]:
    """The pictures of a folder by their names without ending; those in JPEGImages go before others."""
    found: dict[str, str] = {}
    for folder in _FOLDERS:
        for name in sorted(list_names(home / folder)):
            stem, ending = os.path.splitext(name)
            if ending.lower() in PICTURES:
                found.setdefault(stem, os.path.join(home, folder, name))
    return found


# ==== COCO: one JSON file with the pictures, classes and boxes of a split, as published or of one's own.


_SPLITS = {"train": ("train",), "test": ("test", "val", "valid")}  # how others call them; the first there is taken


def read_coco(
    file: str | os.PathLike[str],
    pictures: str | os.PathLike[str] | None = None,
    *,
    name: str = "",
    allow_partial: bool = False,
) -> SceneTable:
    """The scenes of a JSON file in the layout of COCO's instances.

    pictures:      the folder of the pictures; by default looked for beside the file and above it
    allow_partial: leave out pictures that are missing

    Classes are the categories of the file in the order of their ids, which need not be without gaps. Objects with
    "iscrowd" are ignored, and whatever is found within one is neither right nor wrong.
    """
    path = Path(file)
    content = _content(path)
    categories = _categories(path, content)
    images = _by_id(path, content["images"], "images", "file_name")
    if not images:
        raise InputError(f"{shown(path)} has no images; give a file that has some")
    folder = Path(pictures) if pictures is not None else _folder(path, next(iter(images.values())))
    things = _things(path, content["annotations"], images, categories)
    scenes = (
        Scene(os.path.join(folder, of), f"{shown(path)} image {number}", _coco_size(path, row), tuple(things[number]))
        for (number, of), row in zip(images.items(), content["images"], strict=True)
    )
    return gathered(name or path.stem, tuple(categories.values()), scenes, crowds=True, allow_partial=allow_partial)


def coco_classes(file: str | os.PathLike[str]) -> tuple[str, ...]:
    """The classes of a JSON file of COCO, in the order of their labels."""
    return tuple(_categories(Path(file), _content(Path(file))).values())


def find_coco(root: str | os.PathLike[str], split: str) -> Path | None:
    """The JSON file of a split: annotations/instances_train2017.json, annotations/train.json, train.json or
    train/*.json; a single .json in the folder is for training. None if there is none; several are refused.
    """
    root = Path(root)
    for word in _SPLITS[split]:
        for place in (root / "annotations", root):
            named = [each for each in _json_files(place) if _is_named(each, word)]
            if len(named) > 1:
                few = ", ".join(each.name for each in named[:3])
                raise InputError(f"{shown(place)} has several files for the split {split}: {few}; give one of them")
            if named:
                return named[0]
        beside = _json_files(root / word)
        if len(beside) == 1:
            return beside[0]
    only = [] if split == "test" else [path for path in _json_files(root) if _is_coco(path)]
    return only[0] if len(only) == 1 else None


def _is_named(path: Path, word: str) -> bool:
    """Whether a file is that of a split by its name."""
    return path.stem == word or path.stem.startswith(f"instances_{word}")


def _json_files(folder: Path) -> list[Path]:
    return [folder / name for name in sorted(list_names(folder)) if name.lower().endswith(".json")]


def _is_coco(path: Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"images", "annotations", "categories"} <= set(content)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{shown(path)} cannot be read ({error.strerror}); give a JSON file of COCO") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{shown(path)} line {error.lineno} is no whole JSON ({error.msg}); write it again") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shown(path)} is no JSON ({error}); write it again") from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise InputError(f"{shown(path)} has no list {key!r}; give a file in the layout of COCO's instances")
    return dict(content)


def _categories(path: Path, content: Mapping[str, Any]) -> dict[Any, str]:
    """Names by id, in the order of the ids."""
    found = _by_id(path, content["categories"], "categories", "name")
    if not found:
        raise InputError(f"{shown(path)} has no categories; give a file that has some")
    names = list(found.values())
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{shown(path)}: two categories are called {twice!r}; rename one")
    return dict(sorted(found.items(), key=lambda item: (isinstance(item[0], str), item[0])))


def _by_id(path: Path, rows: list[Any], what: str, key: str) -> dict[Any, str]:
    """The text under a key, by id, in the order of the file."""
    found: dict[Any, str] = {}
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping) or not isinstance(row.get("id"), int | str) or not row.get(key):
            raise InputError(f"{shown(path)}: {what}[{place}] must have an id and a {key}; correct it")
        if row["id"] in found:
            raise InputError(f"{shown(path)}: {what}[{place}] has the id {row['id']} of another; give it its own")
        found[row["id"]] = str(row[key])
    return found


def _things(
    path: Path, rows: list[Any], images: Mapping[Any, str], categories: Mapping[Any, str]
) -> dict[Any, list[Thing]]:
    """The objects of each picture, by its id."""
    found: dict[Any, list[Thing]] = {number: [] for number in images}
    for place, row in enumerate(rows):
        where = f"{shown(path)}: annotations[{place}]"
        if not isinstance(row, Mapping):
            raise InputError(f"{where} is no object; correct it")
        for key, known in (("image_id", images), ("category_id", categories)):
            if not isinstance(row.get(key), int | str) or row[key] not in known:
                raise InputError(f"{where} has the {key} {row.get(key)!r}, which is not in the file; correct it")
        edges = row.get("bbox")
        if not isinstance(edges, list | tuple):
            raise InputError(f"{where} has no bbox; give it one (left, top, width, height)")
        left, top, width, height = box_of(where, edges, "bbox")
        thing = Thing(categories[row["category_id"]], (left, top, left + width, top + height), bool(row.get("iscrowd")))
        found[row["image_id"]].append(thing)
    return found


def _coco_size(path: Path, row: Mapping[str, Any]) -> tuple[int, int] | None:
    sides = row.get("width"), row.get("height")
    if any(side is None for side in sides):
        return None
    if not all(isinstance(side, int) and side > 0 for side in sides):
        raise InputError(f"{shown(path)}: image {row['id']} is {sides[0]} x {sides[1]} pixels; correct it")
    return int(row["width"]), int(row["height"])


def _folder(path: Path, first: str) -> Path:
    """Where the pictures are: the first place that has the first of them."""
    return next((place for place in _places(path) if (place / first).is_file()), path.parent)


def _places(path: Path) -> Iterator[Path]:
    """Such as annotations/instances_val2017.json ─► annotations, annotations/images, ., ./images, ./val2017."""
    split = path.stem.rpartition("_")[2] if path.stem.startswith("instances_") else path.stem
    for base in (path.parent, path.parent.parent):
        yield from (base, base / "images", base / split, base / "images" / split)


# ==== Scenes by the place they are at: Pascal VOC, COCO, or one's own in either layout, told by what is there.


SPLITS = ("train", "test")
LAYOUTS = {
    "auto": "found out",
    "voc07": "Pascal VOC 2007: trainval (5,011 pictures) and test (4,952)",
    "voc0712": "Pascal VOC 2007 and 2012: trainval of both (16,551 pictures) and test of 2007",
    "voc": "a folder of your own with an XML file per picture, as of Pascal VOC",
    "coco": "COCO, or a folder of your own with a JSON file as of COCO",
}


def read_scenes(
    path: str | os.PathLike[str],
    layout: str = "auto",
    split: str = "train",
    allow_partial: bool = False,
    show: bool | None = None,
) -> SceneTable:
    """The scenes of a split of a data set: "train" or "test".

    path:          a folder; or a JSON file of COCO, which then is whichever split is asked for
    layout:        one of LAYOUTS; "auto" takes Pascal VOC with both years where both are there
    allow_partial: go on with those that are there and can be read

    >>> read_scenes("nowhere")
    Traceback (most recent call last):
    frontrank.errors.InputError: nowhere is not there; give the folder of a data set, or a JSON file of COCO
    """
    check_choice("layout", layout, LAYOUTS)
    if split not in SPLITS:
        raise InputError(f"split must be train or test, got {split!r}")
    root = Path(path)
    if not root.exists():
        raise InputError(f"{shown(root)} is not there; give the folder of a data set, or a JSON file of COCO")
    if command := resume_command(root):
        raise InputError(f"{shown(root)} is not finished; go on with it: {command}")
    layout = _told(root) if layout == "auto" else layout
    readers: dict[str, Callable[[], SceneTable]] = {
        "voc07": lambda: read_voc(root, split, (2007,), allow_partial=allow_partial, show=show),
        "voc0712": lambda: read_voc(root, split, (2007, 2012), allow_partial=allow_partial, show=show),
        "voc": lambda: read_voc_folder(root, split, allow_partial=allow_partial, show=show),
        "coco": lambda: _coco(root, split, allow_partial),
    }
    return readers[layout]()


def _told(root: Path) -> str:
    """The layout of what is there."""
    if root.is_file():
        return "coco"
    if is_published(root):
        return "voc0712" if home_of(root, 2007) and home_of(root, 2012) else "voc07"
    if any(find_coco(root, split) for split in SPLITS):
        return "coco"
    places = [
        place for place in (home_of(root, 2007), home_of(root, 2012), root, root / "train", root / "test") if place
    ]
    if any((place / "Annotations").is_dir() or any(place.glob("*.xml")) for place in places):
        return "voc"
    raise InputError(
        f"{shown(root)} has neither annotations of Pascal VOC (Annotations/*.xml) nor of COCO (*.json); "
        "give a folder that has"
    )


def _coco(root: Path, split: str, allow_partial: bool) -> SceneTable:
    if root.is_file():
        return read_coco(root, allow_partial=allow_partial)
    files = {each: find_coco(root, each) for each in SPLITS}
    file = files[split]
    if file is None:
        said = f"{shown(root)} has no JSON file of COCO for the split {split}"
        raise InputError(f"{said}; name it {split}.json, or annotations/instances_{split}.json")
    name = Path(os.path.abspath(root)).name
    table = read_coco(file, name=name, allow_partial=allow_partial)
    other = files["train"] if split == "test" else None
    if other is not None:  # the labels of both splits are those of training
        table = table.of_classes(coco_classes(other))
    return table


# ==== Pictures of a table with their boxes as batches, read by worker processes.


Target = dict[str, Tensor]
Batch = tuple[list[Tensor], list[Target]]


class SceneBatches(EpochBatches):
    """All pictures in a random order, so many at a time; what is left over at the end of an epoch is left out of it.

    >>> batches = SceneBatches(pictures=7, size=3)
    >>> len(batches), [len(batch) for batch in batches]
    (2, [3, 3])
    """

    def __init__(
        self, pictures: int, size: int, seed: int = 0, rank: int | None = None, world_size: int | None = None
    ) -> None:
        if size > pictures:
            raise InputError(f"batch is {size}, but there are {pictures} pictures to train with; make it less")
        self.size = size
        codes = np.zeros(pictures, dtype=np.int64)
        super().__init__(codes, pictures // size, size, f"size={size}", seed, rank, world_size)

    def _plan(self, rng: np.random.Generator) -> BatchPlan:
        one = np.zeros((len(self), 1), dtype=np.int64)
        return BatchPlan.table(one, np.full_like(one, self.size))


class SceneDataset(Dataset[tuple[Tensor, Target]]):
    """Pictures [3, height, width] as bytes, with the boxes and labels that are trained on, by (row, seed).

    flip: mirror half of them; which, the seed says
    Objects that the table says to ignore are left out: what covers them counts as background.
    """

    def __init__(self, table: SceneTable, flip: bool) -> None:
        self.table, self.flip = table, flip

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, key: Key) -> tuple[Tensor, Target]:
        row, seed = key
        kept = ~self.table.ignored[row]
        boxes = torch.from_numpy(self.table.boxes[row][kept].astype(np.float32))
        target = {"boxes": boxes, "labels": torch.from_numpy(self.table.labels[row][kept].astype(np.int64))}
        picture = read_scene(self.table, row)
        if self.flip and np.random.default_rng(seed).random() < 0.5:
            return mirrored(picture, target)
        return picture, target


def read_scene(table: SceneTable, row: int) -> Tensor:
    """A picture as bytes [3, height, width]; refused if it is not as large as its annotation says."""
    picture = read_image(table.files[row])
    expected = tuple(int(side) for side in table.sizes[row])
    if picture.size != expected:
        raise InputError(
            f"{shown(table.files[row])} is {picture.width} x {picture.height} px (turned upright, where it says so), "
            f"but its boxes are for {expected[0]} x {expected[1]}; mend the annotation, or leave the picture out"
        )
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def mirrored(picture: Tensor, target: Target) -> tuple[Tensor, Target]:
    """The picture and its boxes, left and right exchanged.

    >>> _, target = mirrored(torch.zeros(3, 4, 10), {"boxes": torch.tensor([[1.0, 0.0, 4.0, 2.0]])})
    >>> target["boxes"]
    tensor([[6., 0., 9., 2.]])
    """
    left, top, right, bottom = target["boxes"].unbind(1)
    width = picture.shape[-1]
    return picture.flip(-1), target | {"boxes": torch.stack([width - right, top, width - left, bottom], 1)}


def training_scenes(
    table: SceneTable,
    sampler: SceneBatches,
    *,
    seed: int = 0,
    flip: bool = True,
    workers: int = 2,
    start: int | None = None,
    stop: int | None = None,
) -> Iterator[Batch]:
    """This process's pictures and targets of one batch of the sampler after another.

    start, stop: batches since the start of epoch 0 that are done already, and after which it ends
    """
    dataset = WholeBatches(SceneDataset(table, flip), _as_lists)
    return read_batches(dataset, training_keys(sampler, seed, start, stop), workers)


def all_scenes(table: SceneTable, size: int = 8, workers: int = 2) -> Iterator[list[Tensor]]:
    """The pictures of all rows once, in order, so many at a time."""
    starts = range(0, len(table), size)
    keys = ([(row, 0) for row in range(start, min(start + size, len(table)))] for start in starts)
    for pictures, _ in read_batches(
        WholeBatches(SceneDataset(table, False), _as_lists), keys, min(workers, len(starts))
    ):
        yield pictures


def _as_lists(parts: list[Any]) -> Batch:
    return [picture for picture, _ in parts], [target for _, target in parts]


def check_boxes(table: SceneTable) -> None:
    """Refuse objects without an area or outside of their picture, which readers have clipped or left out."""
    for row, file in enumerate(table.files):
        boxes, (width, height) = table.boxes[row], table.sizes[row]
        left, top, right, bottom = boxes.T if len(boxes) else np.zeros((4, 0))
        wrong = ~((left >= 0) & (top >= 0) & (right <= width) & (bottom <= height) & (left < right) & (top < bottom))
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"{shown(file)}: object {place + 1} has the box {boxes[place].tolist()}, without an area or not within "
                f"{width} x {height}; clip it, or leave it out"
            )
