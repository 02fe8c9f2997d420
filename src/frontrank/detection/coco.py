"""COCO: one JSON file with the pictures, classes and boxes of a split, as published or of one's own."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from frontrank.data.image_table import shown
from frontrank.data.list_files import names_in
from frontrank.detection.gathering import Scene, Thing, box_of, gathered
from frontrank.detection.scenes import SceneTable
from frontrank.errors import InputError

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
        Scene(os.path.join(folder, of), f"{shown(path)} image {number}", _size(path, row), tuple(things[number]))
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
    return [folder / name for name in sorted(names_in(folder)) if name.lower().endswith(".json")]


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


def _size(path: Path, row: Mapping[str, Any]) -> tuple[int, int] | None:
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
