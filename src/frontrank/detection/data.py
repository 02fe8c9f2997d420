"""Pictures with boxes: SceneTable, read from Pascal VOC or COCO files, and loaded in batches."""

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from frontrank.checks import check_choice, format_count, printable
from frontrank.data.loading import Key, WholeBatches, read_batches, training_keys
from frontrank.data.published import list_names, read_lines
from frontrank.data.samplers import BatchPlan, EpochBatches
from frontrank.data.table import Box
from frontrank.errors import FrontrankWarning, InputError
from frontrank.files import PathLike
from frontrank.pictures.decode import image_size, read_image
from frontrank.progress import progress
from frontrank.samples.build import resume_command
from frontrank.tables import Table

SPLITS = ("train", "test")
LAYOUTS = ("auto", "voc07", "voc0712", "voc", "coco")  # the years of Pascal VOC as published; data of a user
VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
VOC_COUNTS: Mapping[tuple[int, str], int] = {(2007, "train"): 5_011, (2012, "train"): 11_540, (2007, "test"): 4_952}
_VOC_LISTS = {  # (split, whether there is a list test.txt) -> names of its list, the best first
    ("train", True): ("trainval", "train"),
    ("test", True): ("test",),
    ("train", False): ("train", "trainval"),
    ("test", False): ("val", "valid"),
}
_PICTURE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif")
_PICTURE_FOLDERS = ("JPEGImages", "images", "Images", "")
_COCO_SPLITS = {"train": ("train",), "test": ("test", "val", "valid")}  # names of the splits, the best first

Boxes = NDArray[np.float32]
Labels = NDArray[np.int64]
Flags = NDArray[np.bool_]
Target = dict[str, Tensor]
Batch = tuple[list[Tensor], list[Target]]


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
             and a detection of it is neither right nor wrong
    crowds:  the ignored objects are crowds, as in COCO: any detection within one is neither right nor wrong

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
        """Raise if the columns do not fit together."""
        count, most = len(self.files), len(self.classes)
        for name in ("sizes", "boxes", "labels", "ignored"):
            if len(getattr(self, name)) != count:
                raise InputError(f"{name} has {len(getattr(self, name))} rows, files has {count}; give one per picture")
        if count and np.shape(self.sizes) != (count, 2):
            raise InputError(f"sizes must be [{count}, 2] (width, height), got {list(np.shape(self.sizes))}")
        for file, boxes, labels, ignored in zip(self.files, self.boxes, self.labels, self.ignored, strict=True):
            if boxes.shape != (len(labels), 4) or ignored.shape != labels.shape:
                shapes = f"{list(boxes.shape)}, {list(labels.shape)}, {list(ignored.shape)}"
                raise InputError(f"{printable(file)}: boxes, labels, ignored are {shapes}; give [n, 4], [n] and [n]")
            if len(labels) and not (labels.min() >= 1 and labels.max() <= most):
                given = sorted(set(labels.tolist()))
                raise InputError(f"{printable(file)}: labels must be from 1 to {most}, got {given}")

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, which: Sequence[int] | NDArray[Any] | slice) -> "SceneTable":
        """Return some of the pictures, by their places or by a mask."""
        if not isinstance(which, slice):
            which = np.asarray(which, dtype=np.int64 if len(which) == 0 else None)
        places = np.arange(len(self))[which].tolist()
        names = ("files", "boxes", "labels", "ignored")
        columns: dict[str, Any] = {name: tuple(getattr(self, name)[row] for row in places) for name in names}
        return replace(self, sizes=self.sizes[places], **columns)

    def of_classes(self, classes: Sequence[str]) -> "SceneTable":
        """Return the same with the labels of these classes, such as those of a model; it must have all objects."""
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
        """The number of objects that are not ignored."""
        return sum(int((~ignored).sum()) for ignored in self.ignored)

    def counts(self) -> NDArray[np.int64]:
        """Count objects, ignored objects, and pictures with either, per class [class, 3]."""
        counts = np.zeros((len(self.classes) + 1, 3), dtype=np.int64)
        for labels, ignored in zip(self.labels, self.ignored, strict=True):
            np.add.at(counts, (labels, ignored.astype(np.int64)), 1)
            counts[np.unique(labels), 2] += 1
        return counts[1:]

    def describe(self) -> str:
        """Return a text with the numbers of pictures and objects, in all and per class."""
        counts, empty = self.counts(), sum(not len(labels) for labels in self.labels)
        without = f" ({empty:,} without objects)" if empty else ""
        pictures, objects = format_count(len(self), "picture"), format_count(self.objects, "object")
        head = f"{self.name}: {pictures}{without}, {objects} of {len(self.classes)} classes"
        rows = [[name, *(f"{n:,}" for n in row)] for name, row in zip(self.classes, counts.tolist(), strict=True)]
        table = Table(["class", "objects", "ignored", "pictures"], rows, "lrrr").render("text")
        return f"{head}, {int(counts[:, 1].sum()):,} ignored\n{table}"


# Any layout


def read_scenes(
    path: PathLike, layout: str = "auto", split: str = "train", allow_partial: bool = False, show: bool | None = None
) -> SceneTable:
    """Read the scenes of a split of a data set: "train" or "test".

    path:          a folder; or a JSON file of COCO, which is then the split that is asked for
    layout:        one of LAYOUTS; "auto" takes both years of Pascal VOC if both are there
    allow_partial: go on with those that are there and can be read; a warning counts the others

    >>> read_scenes("nowhere")
    Traceback (most recent call last):
    frontrank.errors.InputError: nowhere does not exist; give the folder of a data set, or a JSON file of COCO
    """
    check_choice("layout", layout, LAYOUTS)
    check_choice("split", split, SPLITS)
    root = Path(path)
    if not root.exists():
        raise InputError(f"{printable(root)} does not exist; give the folder of a data set, or a JSON file of COCO")
    if command := resume_command(root):
        raise InputError(f"{printable(root)} is not finished; continue with: {command}")
    layout = _detect_layout(root) if layout == "auto" else layout
    if layout == "coco":
        return _read_coco_split(root, split, allow_partial)
    if layout == "voc":
        return read_voc_folder(root, split, allow_partial, show)
    return read_voc(root, split, (2007,) if layout == "voc07" else (2007, 2012), allow_partial, show)


def _detect_layout(root: Path) -> str:
    if root.is_file():
        return "coco"
    homes = [home for year in (2007, 2012) if (home := _voc_home(root, year))]
    if any(_is_published(home) for home in homes):
        return "voc0712" if len(homes) == 2 else "voc07"
    if any(find_coco(root, split) for split in SPLITS):
        return "coco"
    places = [*homes, root, root / "train", root / "test"]
    if any((place / "Annotations").is_dir() or any(place.glob("*.xml")) for place in places):
        return "voc"
    kinds = "annotations of Pascal VOC (Annotations/*.xml) nor of COCO (*.json)"
    raise InputError(f"{printable(root)} has neither {kinds}; give a folder that has")


# From annotations to a table


class AnnotatedObject(NamedTuple):
    """An object as its file describes it: the name of its class, and its box in pixels from 0, as in SceneTable."""

    name: str
    box: Box
    ignored: bool


class Scene(NamedTuple):
    """A picture and its objects, as a file describes it."""

    file: str
    source: str  # the file that describes it, and the place in it, for messages
    size: tuple[int, int] | None  # width and height, if they are known
    objects: Sequence[AnnotatedObject]


def _build_table(
    name: str, classes: Sequence[str], scenes: Iterable[Scene], allow_partial: bool, crowds: bool, check_sizes: bool
) -> SceneTable:
    """Build the table of these scenes.

    allow_partial: leave out pictures that cannot be used, and warn about them
    check_sizes:   compare the size of a scene with that of the picture; a size that is missing is always read

    Boxes that reach out of their picture are cut; boxes that lie outside of it are left out. A warning counts both.
    """
    label_of = {each: label for label, each in enumerate(classes, start=1)}
    usable: list[tuple[Scene, tuple[int, int]]] = []
    faults: list[str] = []
    for scene in scenes:
        with collect_fault(faults, allow_partial):
            usable.append((scene, _scene_size(scene, check_sizes)))
    if not usable:
        raise InputError(f"{name} has no pictures that can be used; give at least one")
    boxes, labels, ignored, cut, empty = [], [], [], [], []
    for scene, size in usable:
        objects = []
        for each in scene.objects:
            inside = _cut_box(each.box, size)
            if inside is None:
                empty.append(f"{each.name} of {scene.source}")
                continue
            if inside != each.box:
                cut.append(f"{each.name} of {scene.source}")
            if each.name not in label_of:
                known = ", ".join(label_of) if len(label_of) <= 20 else f"{len(label_of)} others"
                raise InputError(f"{scene.source}: the class {each.name!r} is none of {known}; correct the name")
            objects.append((label_of[each.name], inside, each.ignored))
        boxes.append(np.array([box for _, box, _ in objects], dtype=np.float32).reshape(-1, 4))
        labels.append(np.array([label for label, _, _ in objects], dtype=np.int64))
        ignored.append(np.array([flag for _, _, flag in objects], dtype=bool))
    _warn(name, faults, "picture", "pictures", "cannot be used and {} left out")
    _warn(name, cut, "box", "boxes", "reached out of the picture and {} cut")
    _warn(name, empty, "box", "boxes", "without area inside the picture {} left out")
    sizes = np.array([size for _, size in usable], dtype=np.int64)
    files = tuple(scene.file for scene, _ in usable)
    return SceneTable(name, tuple(classes), files, sizes, tuple(boxes), tuple(labels), tuple(ignored), crowds)


@contextmanager
def collect_fault(faults: list[str], allow_partial: bool = True) -> Iterator[None]:
    """Add what is wrong with a picture to the faults, if it may be left out."""
    try:
        yield
    except InputError as error:
        if not allow_partial:
            raise
        faults.append(str(error).split(";")[0])


def _warn(name: str, cases: Sequence[str], noun: str, nouns: str, predicate: str) -> None:
    """Warn with the number of cases and the first of them, if there are any."""
    if cases:
        was, first = ("was", "") if len(cases) == 1 else ("were", "first: ")
        sentence = f"{format_count(len(cases), noun, nouns)} {predicate.format(was)} ({first}{cases[0]})"
        warnings.warn(f"{name}: {sentence}", FrontrankWarning, stacklevel=4)


def _scene_size(scene: Scene, check: bool) -> tuple[int, int]:
    """Return width and height of the picture."""
    if scene.size is not None and not check:
        return scene.size
    size = image_size(scene.file)
    _check_size(scene.file, size, scene.size or size, scene.source)
    return size


def _check_size(file: str, size: tuple[int, int], expected: tuple[int, int], source: str) -> None:
    if size != expected:
        own, other = (f"{width} x {height}" for width, height in (size, expected))
        text = f"{printable(file)} has {own} pixels (upright), but {source} is for {other}"
        raise InputError(f"{text}; correct the picture, or the size and the boxes")


def _cut_box(box: Box, size: tuple[int, int]) -> Box | None:
    """Return the part of a box inside its picture; None if it has no area, also as float32."""
    left, top, right, bottom = box
    inside = max(left, 0.0), max(top, 0.0), min(right, float(size[0])), min(bottom, float(size[1]))
    if inside[0] >= inside[2] or inside[1] >= inside[3]:
        return None
    narrow = np.array(inside, dtype=np.float32)
    return inside if (narrow[:2] < narrow[2:]).all() else None


def _read_box(source: str, edges: Sequence[object], what: str) -> Box:
    """Return four finite numbers."""
    try:
        left, top, right, bottom = (float(edge) for edge in edges)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"{source}: {what} must be four numbers, got {list(edges)}; correct it") from None
    if not all(map(math.isfinite, (left, top, right, bottom))):
        raise InputError(f"{source}: {what} must be finite, got {[left, top, right, bottom]}; correct it")
    return left, top, right, bottom


def _read_size(source: str, *sides: Any) -> tuple[int, int] | None:
    """Return width and height; None if one is missing or 0, which some tools write if they do not know it."""
    try:
        width, height = (int(float(side or 0)) for side in sides)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{source}: the size must be two whole numbers, got {list(sides)}; correct it") from None
    return (width, height) if width > 0 and height > 0 else None


# Pascal VOC: the data sets of 2007 and 2012 with their counts checked, and folders of a user in the same layout


def read_voc(
    root: PathLike, split: str, years: tuple[int, ...], allow_partial: bool = False, show: bool | None = None
) -> SceneTable:
    """Read Pascal VOC as published: trainval of some years, or the test of 2007; each must have all its pictures.

    root:          VOCdevkit, the folder it is in, or VOC2007 itself if that is all
    allow_partial: go on with the pictures that are there and can be read
    """
    years = years if split == "train" else (2007,)
    list_name = "trainval" if split == "train" else "test"
    scenes: list[Scene] = []
    for year in years:
        home = _voc_home(root, year)
        if home is None:
            raise InputError(f"{printable(root)} has no VOC{year}; give the folder VOCdevkit with VOC{year} in it")
        names = _read_list(home / "ImageSets" / "Main" / f"{list_name}.txt")
        of_year = _read_voc_scenes(home, names, allow_partial, show)
        if len(of_year) != VOC_COUNTS[year, split] and not allow_partial:
            text = f"{printable(home)} has {len(of_year):,} pictures to {split}, not {VOC_COUNTS[year, split]:,}"
            raise InputError(f"{text}; unpack it again, pass layout='voc' for your own data, or allow_partial=True")
        scenes += of_year
    name = f"VOC {'+'.join(f'{year % 100:02d}' for year in years)} {list_name}"
    return _build_table(name, VOC_CLASSES, scenes, allow_partial, crowds=False, check_sizes=False)


def read_voc_folder(
    root: PathLike, split: str = "train", allow_partial: bool = False, show: bool | None = None
) -> SceneTable:
    """Read a folder of a user with a VOC XML file per picture.

    Its lists are ImageSets/Main/trainval.txt and test.txt, else train.txt and val.txt. Without lists, the folders train
    and test (or valid, val) are the splits; without these too, all pictures are for training. The classes are all names
    in both splits, in alphabetical order, so that the labels of both agree.
    """
    home = _voc_home(root, 2007) or _voc_home(root, 2012) or Path(root)
    parts = {each: _voc_split(home, each) for each in SPLITS}
    if parts[split] is None:
        lists = home / "ImageSets" / "Main"
        missing = lists / f"{'trainval' if split == 'train' else 'test'}.txt" if lists.is_dir() else home / split
        use = "to train on" if split == "train" else "for the test"
        raise InputError(f"{printable(home)} has no pictures {use}: there is no {printable(missing)}; add it")
    scenes = {each: _read_voc_scenes(*part, allow_partial, show) for each, part in parts.items() if part is not None}
    classes = sorted({each.name for part in scenes.values() for scene in part for each in scene.objects})
    if not classes:
        raise InputError(f"{printable(home)} has no objects in its annotations; label some")
    name = Path(os.path.abspath(root)).name
    return _build_table(name, classes, scenes[split], allow_partial, crowds=False, check_sizes=True)


def _voc_home(root: PathLike, year: int) -> Path | None:
    """Return the folder of a year of VOC: root/VOC2007, root/VOCdevkit/VOC2007, or root if that is its name."""
    name, root = f"VOC{year}", Path(root)
    places = (root / name, root / "VOCdevkit" / name, *([root] if root.name == name else []))
    return next((place for place in places if (place / "Annotations").is_dir()), None)


def _is_published(home: Path) -> bool:
    """Whether the folder of a year is VOC as published: there are lists for each of its classes."""
    names = list_names(home / "ImageSets/Main")
    return all({f"{name}_trainval.txt", f"{name}_test.txt"} & names for name in VOC_CLASSES)


def _voc_split(home: Path, split: str) -> tuple[Path, list[str]] | None:
    """Return the folder of a split and the names of its annotations; None if there is no such split."""
    lists = home / "ImageSets" / "Main"
    if lists.is_dir():
        files = (lists / f"{name}.txt" for name in _VOC_LISTS[split, (lists / "test.txt").is_file()])
        return next(((home, _read_list(file)) for file in files if file.is_file()), None)
    folders = [home / name for name in (("train",) if split == "train" else ("test", "valid", "val"))]
    place = next((folder for folder in folders if folder.is_dir()), home if split == "train" else None)
    if place is None:
        return None
    folder = _annotation_folder(place)
    names = sorted(name[:-4] for name in list_names(folder) if name.lower().endswith(".xml"))
    if not names:
        raise InputError(f"{printable(folder)} has no .xml files; give a folder of annotations of Pascal VOC")
    return place, names


def _annotation_folder(home: Path) -> Path:
    return home / "Annotations" if (home / "Annotations").is_dir() else home


def _read_list(path: Path) -> list[str]:
    """Read the names in a list, which may have spaces; some lists have a last column of -1, 0 and 1 on every line."""
    try:
        names = [line for _, line in read_lines(path)]
    except OSError as error:
        raise InputError(f"{printable(path)} cannot be read ({error.strerror}); copy it again") from error
    parts = [name.rsplit(maxsplit=1) for name in names]
    if all(part[1:] in (["-1"], ["0"], ["1"]) for part in parts):
        names = [part[0] for part in parts]
    for name in names:
        if "/" in name or "\\" in name or name in (".", ".."):
            raise InputError(f"{printable(path)} has {name!r}, which cannot be the name of a picture; copy it again")
    return names


def _read_voc_scenes(home: Path, names: Sequence[str], allow_partial: bool, show: bool | None) -> list[Scene]:
    """Read the scenes of some names; allow_partial leaves out those that cannot be used, with a warning."""
    scenes: list[Scene] = []
    faults: list[str] = []
    folder, pictures = _annotation_folder(home), _find_pictures(home)
    annotations = list_names(folder)
    with progress(f"reading {printable(home.name)}", len(names), show) as advance:
        for name in names:
            advance(1)
            with collect_fault(faults, allow_partial):
                path = folder / f"{name}.xml"
                if path.name not in annotations:
                    raise InputError(f"{printable(path)} is missing; add it, or go on without it: allow_partial=True")
                size, objects, file = _read_annotation(path)
                picture = pictures.get(name) or pictures.get(os.path.splitext(os.path.basename(file))[0])
                if picture is None:
                    raise InputError(f"{printable(path)} has no picture; add it, or go on: allow_partial=True")
                scenes.append(Scene(picture, printable(path), size, objects))
    _warn(home.name, faults, "annotation", "annotations", "cannot be used and {} left out")
    return scenes


def _find_pictures(home: Path) -> dict[str, str]:
    """Return the pictures of a folder by their names without ending; those in JPEGImages go before others."""
    pictures: dict[str, str] = {}
    for folder in _PICTURE_FOLDERS:
        for name in sorted(list_names(home / folder)):
            stem, ending = os.path.splitext(name)
            if ending.lower() in _PICTURE_ENDINGS:
                pictures.setdefault(stem, os.path.join(home, folder, name))
    return pictures


def _read_annotation(path: Path) -> tuple[tuple[int, int] | None, list[AnnotatedObject], str]:
    """Read the size of a picture, its objects, and the name of its file from an XML file."""
    source = printable(path)
    try:
        root = ElementTree.parse(path).getroot()
    except OSError as error:
        raise InputError(f"{source} cannot be read ({error.strerror}); copy it again") from error
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the latter: an encoding that is not known
        raise InputError(f"{source} is not valid XML ({error}); write it again") from None
    if root.tag != "annotation":
        raise InputError(f"{source} is XML of {root.tag!r}, not an annotation of Pascal VOC; write it again")
    objects = []
    for number, element in enumerate(root.findall("object"), start=1):
        name = element.findtext("name", "").strip()
        if not name:
            raise InputError(f"{source}: object {number} has no name; give it one")
        edges = [element.findtext(f"bndbox/{edge}", "") for edge in ("xmin", "ymin", "xmax", "ymax")]
        left, top, right, bottom = _read_box(source, edges, f"the box of object {number} ({name})")
        difficult = element.findtext("difficult", "0").strip() == "1"
        objects.append(AnnotatedObject(name, (left - 1, top - 1, right, bottom), difficult))
    size = _read_size(source, *(root.findtext(f"size/{side}", "").strip() for side in ("width", "height")))
    return size, objects, root.findtext("filename", "").strip()


# COCO: one JSON file with the pictures, classes and boxes of a split


def read_coco(file: PathLike, name: str = "", allow_partial: bool = False) -> SceneTable:
    """Read the scenes of a JSON file in the layout of COCO's instances.

    allow_partial: leave out pictures that are missing

    Classes are the categories of the file in the order of their ids, which may have gaps. Objects with "iscrowd" are
    ignored. The pictures are beside the file or above it.
    """
    path = Path(file)
    content = _read_coco_file(path)
    categories = _read_categories(path, content)
    images = _texts_by_id(path, content["images"], "images", "file_name")
    folder = _picture_folder(path, next(iter(images.values())))
    objects = _read_coco_objects(path, content["annotations"], images, categories)
    scenes = []
    for (number, picture), row in zip(images.items(), content["images"], strict=True):
        source = f"{printable(path)} image {number}"
        size = _read_size(source, row.get("width"), row.get("height"))
        scenes.append(Scene(os.path.join(folder, picture), source, size, objects[number]))
    classes = tuple(categories.values())
    return _build_table(name or path.stem, classes, scenes, allow_partial, crowds=True, check_sizes=True)


def _read_coco_split(root: Path, split: str, allow_partial: bool) -> SceneTable:
    """Read a split of a folder with JSON files, or a file; the labels of both splits are those of training."""
    if root.is_file():
        return read_coco(root, allow_partial=allow_partial)
    file, training = find_coco(root, split), find_coco(root, "train")
    if file is None:
        names = f"{split}.json, or annotations/instances_{split}.json"
        raise InputError(f"{printable(root)} has no JSON file of COCO for the split {split}; name it {names}")
    table = read_coco(file, Path(os.path.abspath(root)).name, allow_partial)
    if split == "test" and training is not None:
        table = table.of_classes(tuple(_read_categories(training, _read_coco_file(training)).values()))
    return table


def find_coco(root: PathLike, split: str) -> Path | None:
    """Find the JSON file of a split; None if there is none. Several are refused.

    It is annotations/instances_train2017.json, annotations/train.json, train.json or train/*.json. A single .json in
    the folder is for training.
    """
    root = Path(root)
    for word in _COCO_SPLITS[split]:
        for folder in (root / "annotations", root):
            files = [file for file in _json_files(folder) if file.stem == word or file.match(f"instances_{word}*")]
            if len(files) > 1:
                few = ", ".join(each.name for each in files[:3])
                raise InputError(f"{printable(folder)} has several files for the split {split}: {few}; give one")
            if files:
                return files[0]
        files = _json_files(root / word)
        if len(files) == 1:
            return files[0]
    files = [] if split == "test" else [path for path in _json_files(root) if _is_coco(path)]
    return files[0] if len(files) == 1 else None


def _json_files(folder: Path) -> list[Path]:
    return [folder / name for name in sorted(list_names(folder)) if name.lower().endswith(".json")]


def _is_coco(path: Path) -> bool:
    with suppress(InputError):
        return bool(_read_coco_file(path))
    return False


def _read_coco_file(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{printable(path)} cannot be read ({error.strerror}); give a JSON file of COCO") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{printable(path)} is not valid JSON ({error}); write it again") from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise InputError(f"{printable(path)} has no list {key!r}; give a file in the layout of COCO's instances")
    return dict(content)


def _read_categories(path: Path, content: Mapping[str, Any]) -> dict[Any, str]:
    """Return the names of the classes by id, in the order of the ids."""
    names = _texts_by_id(path, content["categories"], "categories", "name")
    for name, count in Counter(names.values()).items():
        if count > 1:
            raise InputError(f"{printable(path)}: {count} categories are called {name!r}; rename them")
    return dict(sorted(names.items(), key=lambda item: (isinstance(item[0], str), item[0])))


def _texts_by_id(path: Path, rows: list[Any], what: str, key: str) -> dict[Any, str]:
    """Return the text under a key of each row by its id, in the order of the file; there must be some."""
    if not rows:
        raise InputError(f"{printable(path)} has no {what}; give a file that has some")
    texts: dict[Any, str] = {}
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping) or not isinstance(row.get("id"), int | str) or not row.get(key):
            raise InputError(f"{printable(path)}: {what}[{place}] must have an id and a {key}; correct it")
        if row["id"] in texts:
            raise InputError(f"{printable(path)}: {what}[{place}] has the id {row['id']} of another; give it its own")
        texts[row["id"]] = str(row[key])
    return texts


def _read_coco_objects(
    path: Path, rows: list[Any], images: Mapping[Any, str], categories: Mapping[Any, str]
) -> dict[Any, list[AnnotatedObject]]:
    """Return the objects of each picture, by its id."""
    objects: dict[Any, list[AnnotatedObject]] = {number: [] for number in images}
    for place, row in enumerate(rows):
        source = f"{printable(path)}: annotations[{place}]"
        if not isinstance(row, Mapping) or not isinstance(row.get("bbox"), list):
            raise InputError(f"{source} has no bbox; give it one (left, top, width, height)")
        for key, known in (("image_id", images), ("category_id", categories)):
            if not isinstance(row.get(key), int | str) or row[key] not in known:
                raise InputError(f"{source} has the {key} {row.get(key)!r}, which is not in the file; correct it")
        left, top, width, height = _read_box(source, row["bbox"], "bbox")
        box = (left, top, left + width, top + height)
        objects[row["image_id"]].append(AnnotatedObject(categories[row["category_id"]], box, bool(row.get("iscrowd"))))
    return objects


def _picture_folder(path: Path, picture: str) -> Path:
    """Find the folder of the pictures by one of them: that of the file or the one above, or one of the file's split."""
    split = path.stem.rpartition("_")[2] if path.stem.startswith("instances_") else path.stem
    for base in (path.parent, path.parent.parent):
        for folder in (base, base / "images", base / split, base / "images" / split):
            if (folder / picture).is_file():
                return folder
    return path.parent


# Batches, read by worker processes


class SceneBatches(EpochBatches):
    """Sampler of all pictures in a random order; what is left over at the end of an epoch is left out of it.

    >>> batches = SceneBatches(pictures=7, size=3)
    >>> len(batches), [len(batch) for batch in batches]
    (2, [3, 3])
    """

    def __init__(self, pictures: int, size: int, seed: int = 0) -> None:
        if size > pictures:
            raise InputError(f"batch is {size}, but there are {pictures} pictures to train with; make it less")
        self.size = size
        super().__init__(np.zeros(pictures, dtype=np.int64), pictures // size, size, f"size={size}", seed, None, None)

    def _plan(self, rng: np.random.Generator) -> BatchPlan:
        one = np.zeros((len(self), 1), dtype=np.int64)
        return BatchPlan.table(one, np.full_like(one, self.size))


class SceneDataset(Dataset[tuple[Tensor, Target]]):
    """Pictures [3, height, width] as bytes, with the boxes and labels to train on, by (row, seed).

    flip: mirror half of them, by the seed
    Ignored objects are left out: what covers them counts as background.
    """

    def __init__(self, table: SceneTable, flip: bool) -> None:
        self.table, self.flip = table, flip

    def __getitem__(self, key: Key) -> tuple[Tensor, Target]:
        row, seed = key
        image, (width, height) = read_image(self.table.files[row]), self.table.sizes[row].tolist()
        _check_size(self.table.files[row], image.size, (width, height), "its annotation")
        picture = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        wanted = ~self.table.ignored[row]
        boxes = torch.from_numpy(self.table.boxes[row][wanted].astype(np.float32))
        target = {"boxes": boxes, "labels": torch.from_numpy(self.table.labels[row][wanted].astype(np.int64))}
        mirrored = self.flip and np.random.default_rng(seed).random() < 0.5
        return mirror(picture, target) if mirrored else (picture, target)


def mirror(picture: Tensor, target: Target) -> tuple[Tensor, Target]:
    """Exchange left and right of a picture and its boxes.

    >>> _, target = mirror(torch.zeros(3, 4, 10), {"boxes": torch.tensor([[1.0, 0.0, 4.0, 2.0]])})
    >>> target["boxes"]
    tensor([[6., 0., 9., 2.]])
    """
    left, top, right, bottom = target["boxes"].unbind(1)
    width = picture.shape[-1]
    return picture.flip(-1), target | {"boxes": torch.stack([width - right, top, width - left, bottom], 1)}


def training_scenes(
    table: SceneTable, sampler: SceneBatches, seed: int, flip: bool, workers: int, start: int, stop: int
) -> Iterator[Batch]:
    """Iterate over this process's share of the batches from `start` to before `stop`, counted from epoch 0."""
    dataset = WholeBatches(SceneDataset(table, flip), _as_lists)
    return read_batches(dataset, training_keys(sampler, seed, start, stop), workers)


def all_scenes(table: SceneTable, size: int, workers: int) -> Iterator[list[Tensor]]:
    """Iterate over all pictures once, in order, so many at a time."""
    starts = range(0, len(table), size)
    keys = ([(row, 0) for row in range(start, min(start + size, len(table)))] for start in starts)
    dataset = WholeBatches(SceneDataset(table, False), _as_lists)
    for pictures, _ in read_batches(dataset, keys, min(workers, len(starts))):
        yield pictures


def _as_lists(parts: list[Any]) -> Batch:
    return [picture for picture, _ in parts], [target for _, target in parts]
