"""Pascal VOC: its data sets of 2007 and 2012 with their counts checked, and folders of one's own in the same layout.

    VOC2007/Annotations/000001.xml   VOC2007/JPEGImages/000001.jpg   VOC2007/ImageSets/Main/trainval.txt, test.txt

The XML counts pixels from 1 and includes the last; a SceneTable counts from 0 and excludes it.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from frontrank.data.image_table import shown
from frontrank.data.list_files import names_in, read_lines
from frontrank.detection.gathering import Scene, Thing, box_of, gathered, warn_left_out
from frontrank.detection.scenes import SceneTable
from frontrank.errors import InputError
from frontrank.progress import progress

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
    lists = [names_in(home / "ImageSets/Main") for year in (2007, 2012) if (home := home_of(root, year))]
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
    names = sorted(name[:-4] for name in names_in(place) if name.lower().endswith(".xml"))
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
    found, told = [], names_in(annotations)
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
        for name in sorted(names_in(home / folder)):
            stem, ending = os.path.splitext(name)
            if ending.lower() in PICTURES:
                found.setdefault(stem, os.path.join(home, folder, name))
    return found
