"""What a detector finds in pictures without annotations: files as of COCO, and the pictures with boxes drawn."""

import json
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrank.data.images import read_image
from frontrank.data.table import Box, read_unlabelled, shown
from frontrank.detection.evaluation import Detections, as_coco_results
from frontrank.detection.report import Mark, draw_marks
from frontrank.errors import FrontrankWarning, InputError
from frontrank.files import atomic_write
from frontrank.progress import progress

if TYPE_CHECKING:
    from PIL.Image import Image

    from frontrank.detection.model import Detector


RESULTS, IMAGES, DRAWN = "detections.json", "pictures.json", "drawn"


@dataclass(frozen=True)
class Prediction:
    """How many pictures were looked at, how many could not be read, and how many boxes were found in them."""

    pictures: int
    broken: int
    boxes: int


def predict(
    detector: "Detector",
    pictures: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    least: float = 0.5,
    draw: bool = True,
    overwrite: bool = False,
    batch: int = 4,
    show: bool | None = None,
) -> Prediction:
    """Look for objects in pictures, and write what is found to the folder `out`.

    pictures:  files, and folders with all pictures in them; those that cannot be read are left out, with a warning
    least:     the score from which on a box is drawn; detections.json has all
    draw:      also the pictures with boxes, in OUT/drawn
    overwrite: write into a folder that has something in it; what has other names stays

    detections.json is a list as of COCO's results, with the names of files and classes beside their numbers;
    pictures.json has the numbers of pictures and classes, as a COCO file has them.
    """
    folder = Path(out)
    files = read_unlabelled(pictures).paths.tolist()
    _require_target(folder, draw, overwrite)
    names = _names(files)
    images: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    broken: list[str] = []
    with progress("detecting", len(files), show) as advance:
        for start in range(0, len(files), batch):
            some = list(range(start, min(start + batch, len(files))))
            read = {number: picture for number in some if (picture := _read(files[number], broken)) is not None}
            found = detector.detect(list(read.values()))
            for (number, picture), each in zip(read.items(), found, strict=True):
                images.append(
                    {"id": number + 1, "file_name": files[number], "width": picture.width, "height": picture.height}
                )
                results += _results(number + 1, files[number], each, detector.classes)
                if draw:
                    _save(draw_marks(picture, _marks(each, detector.classes, least)), folder / DRAWN / names[number])
            advance(len(some))
    if not images:
        raise InputError(f"none of {len(files):,} pictures can be read; the first: {broken[0]}")
    categories = [{"id": label, "name": name} for label, name in enumerate(detector.classes, start=1)]
    _write(folder / RESULTS, results)
    _write(folder / IMAGES, {"images": images, "annotations": [], "categories": categories})
    if broken:
        many = f"{len(broken):,} of {len(files):,} pictures could not be read and were left out"
        warnings.warn(f"{many}; the first: {broken[0]}", FrontrankWarning, stacklevel=2)
    return Prediction(len(images), len(broken), len(results))


def _require_target(folder: Path, draw: bool, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {shown(folder)} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise InputError(f"--out {shown(folder)} is not empty; choose another name, or add --force to write into it")
    try:
        (folder / DRAWN if draw else folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {shown(folder)} cannot be written ({error.strerror}); choose another") from error


def _names(files: Sequence[str]) -> list[str]:
    """A name for each drawn picture: its own, with a number where two have the same."""
    stems = [os.path.splitext(os.path.basename(file))[0] for file in files]
    counts = Counter(stems)
    return [
        f"{stem}.jpg" if counts[stem] == 1 else f"{stem}-{number}.jpg" for number, stem in enumerate(stems, start=1)
    ]


def _read(file: str, broken: list[str]) -> "Image | None":
    try:
        return read_image(file)
    except InputError as error:
        broken.append(str(error).split(";")[0])
        return None


def _results(number: int, file: str, found: Detections, classes: Sequence[str]) -> list[dict[str, Any]]:
    rows = as_coco_results([found], [number], range(1, len(classes) + 1))
    return [{**row, "file_name": file, "category": classes[row["category_id"] - 1]} for row in rows]


def _marks(found: Detections, classes: Sequence[str], least: float) -> list[Mark]:
    taken = found.above(least)
    marks = []
    for box, score, label in zip(taken.boxes, taken.scores, taken.labels, strict=True):
        left, top, right, bottom = map(float, box)
        edges: Box = (left, top, right, bottom)
        marks.append(Mark(edges, f"{classes[int(label) - 1]} {score:.2f}", "found"))
    return marks[::-1]  # the best on top


def _save(picture: "Image", path: Path) -> None:
    atomic_write(path, lambda file: picture.save(file, "JPEG", quality=90))


def _write(path: Path, content: object) -> None:
    atomic_write(path, (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape"))
