"""Scenes by the place they are at: Pascal VOC, COCO, or one's own in either layout, told by what is there."""

import os
from collections.abc import Callable
from pathlib import Path

from frontrank.data.built import unfinished
from frontrank.data.image_table import shown
from frontrank.data.stored_arrays import did_you_mean
from frontrank.detection.coco import coco_classes, find_coco, read_coco
from frontrank.detection.scenes import SceneTable
from frontrank.detection.voc import home_of, is_published, read_voc, read_voc_folder
from frontrank.errors import InputError

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
    if layout not in LAYOUTS:
        raise InputError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}; {did_you_mean(layout, LAYOUTS)}")
    if split not in SPLITS:
        raise InputError(f"split must be train or test, got {split!r}")
    root = Path(path)
    if not root.exists():
        raise InputError(f"{shown(root)} is not there; give the folder of a data set, or a JSON file of COCO")
    if command := unfinished(root):
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
