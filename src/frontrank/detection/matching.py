"""What was found against what is there, by pycocotools: which boxes are right, and precision over recall.

pycocotools goes through the detections of a class, best score first; each takes the object of its class that it
overlaps most, among those that nobody took and that it overlaps by the threshold at least.
"""

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frontrank.data.image_table import shown
from frontrank.detection.scenes import SceneTable
from frontrank.errors import InputError

Floats = NDArray[np.float64]

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of the overlap (intersection over union), as COCO has them
COCO_MOST = 100  # detections of a class and picture that COCO counts
_UNBOUNDED = 10**6  # for Pascal VOC, which counts all
_ALL_SIZES = [[0.0, 1e10]]


@dataclass(frozen=True, eq=False)
class Detections:
    """What was found in one picture, best first.

    boxes:  [n, 4]: left, top, right, bottom in pixels of the picture
    scores: [n]
    labels: [n], from 1
    """

    boxes: NDArray[Any]
    scores: NDArray[Any]
    labels: NDArray[Any]

    def __len__(self) -> int:
        return len(self.scores)

    def above(self, score: float) -> "Detections":
        """Those with this score at least."""
        keep = self.scores >= score
        return Detections(self.boxes[keep], self.scores[keep], self.labels[keep])


@dataclass(frozen=True, eq=False)
class Verdicts:
    """One picture judged at an overlap of a half.

    right:   per detection: it has an object of its own
    ignored: per detection: it lies on an ignored object, and is neither right nor wrong
    objects: per detection: the object it has, by its place in the table; -1 for none
    """

    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    objects: NDArray[np.int64]


class ClassMatches:
    """The detections of one class matched to its objects, at all thresholds."""

    def __init__(self, evaluation: Any, objects: int) -> None:
        self._evaluation, self.objects = evaluation, objects

    def precision(self, recalls: Floats, most: int | None = None) -> Floats:
        """Interpolated precision [threshold, recall]: the best at this recall or a greater one, 0 beyond the greatest.

        most: detections per picture that count; all by default
        """
        self._evaluation.params.recThrs = recalls
        with redirect_stdout(io.StringIO()):
            self._evaluation.accumulate()
        found = self._evaluation.eval["precision"][:, :, 0, 0, 1 if most is None else 0]
        return np.asarray(np.round(found, 12), dtype=np.float64)  # pycocotools divides by a little too much

    @property
    def recall(self) -> float:
        """The part of the objects that is found at all, at an overlap of a half; after `precision`."""
        return float(self._evaluation.eval["recall"][0, 0, 0, 1])

    def pictures(self) -> list[dict[str, Any]]:
        """Per picture with objects or detections of the class: who was matched to whom."""
        return [found for found in self._evaluation.evalImgs if found is not None]


def match_classes(table: SceneTable, found: Sequence[Detections]) -> list[ClassMatches | None]:
    """The matches of each class; None for one of which there is nothing, neither object nor detection."""
    check_detections(table, found)
    coco = _required()
    objects, detections = _objects(table), _detections(found)
    matches: list[ClassMatches | None] = []
    for label in range(1, len(table.classes) + 1):
        own, seen = objects.get(label, []), detections.get(label, [])
        count = sum(not each["iscrowd"] for each in own)
        matches.append(ClassMatches(_evaluated(coco, table, own, seen), count) if own or seen else None)
    return matches


def judged(table: SceneTable, found: Sequence[Detections]) -> list[Verdicts]:
    """Which detections of each picture are right, at an overlap of a half.

    A detection's verdict depends on better ones only, so that it stays when those below some score are left out.
    """
    verdicts = [
        Verdicts(np.zeros(len(each), bool), np.zeros(len(each), bool), np.full(len(each), -1)) for each in found
    ]
    ends = np.cumsum([0, *(len(each) for each in found)])
    starts = np.cumsum([0, *(len(each) for each in table.labels)])
    for matches in match_classes(table, found):
        for picture in matches.pictures() if matches is not None else ():
            row = picture["image_id"] - 1
            of = verdicts[row]
            for detection, matched, ignored in zip(
                picture["dtIds"], picture["dtMatches"][0], picture["dtIgnore"][0], strict=True
            ):
                place = detection - 1 - ends[row]
                of.right[place] = bool(matched) and not ignored
                of.ignored[place] = bool(ignored)
                of.objects[place] = int(matched) - 1 - starts[row] if matched else -1
    return verdicts


def check_detections(table: SceneTable, found: Sequence[Detections]) -> None:
    """Refuse detections that cannot be those of the table's pictures."""
    if len(found) != len(table):
        raise InputError(f"found has {len(found):,} entries for {len(table):,} pictures; give one per picture")
    for file, each in zip(table.files, found, strict=True):
        count = len(each.scores)
        if np.shape(each.boxes) != (count, 4) or np.shape(each.labels) != (count,):
            shapes = [list(np.shape(part)) for part in (each.boxes, each.scores, each.labels)]
            raise InputError(f"found for {shown(file)}: boxes, scores and labels are {shapes}; give [n, 4], [n], [n]")
        if not (np.isfinite(each.boxes).all() and np.isfinite(each.scores).all()):
            raise InputError(f"found for {shown(file)} has numbers that are not finite; look at the model")
        if count and not (each.labels.min() >= 1 and each.labels.max() <= len(table.classes)):
            raise InputError(f"found for {shown(file)}: labels must be from 1 to {len(table.classes)}")


@cache
def _required() -> Any:
    try:
        from pycocotools import coco, cocoeval, mask  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("evaluating detections needs pycocotools; pip install 'frontrank[detect]'") from None

    class Evaluation(cocoeval.COCOeval):
        """Difficult objects of Pascal VOC are overlapped as all are; only a crowd is by what lies within it."""

        crowds = False

        def computeIoU(self, imgId: int, catId: int) -> Any:  # noqa: N802, N803 - its name and arguments there
            if self.crowds:
                return super().computeIoU(imgId, catId)
            objects, seen = self._gts[imgId, catId], self._dts[imgId, catId]
            if not objects and not seen:
                return []
            best = np.argsort([-each["score"] for each in seen], kind="mergesort")[: self.params.maxDets[-1]]
            return mask.iou([seen[i]["bbox"] for i in best], [each["bbox"] for each in objects], [0] * len(objects))

    return coco.COCO, Evaluation


def _evaluated(coco: Any, table: SceneTable, objects: list[Any], detections: list[Any]) -> Any:
    """A COCOeval of one class that has matched; it only looks at the pictures which have something of the class."""
    make, evaluation = coco
    rows = sorted({each["image_id"] for each in (*objects, *detections)})
    with redirect_stdout(io.StringIO()):  # pycocotools prints
        sides = []
        for annotations in (objects, detections):
            side = make()
            side.dataset = {
                "images": [{"id": row} for row in rows],
                "annotations": annotations,
                "categories": [{"id": 1}],
            }
            side.createIndex()
            sides.append(side)
        found = evaluation(*sides, "bbox")
        found.crowds = table.crowds
        found.params.iouThrs, found.params.maxDets = THRESHOLDS, [COCO_MOST, _UNBOUNDED]
        found.params.areaRng, found.params.areaRngLbl = _ALL_SIZES, ["all"]
        found.evaluate()
    return found


def _objects(table: SceneTable) -> dict[int, list[dict[str, Any]]]:
    """Annotations by label. Ids count through the table from 1, as 0 means "no match" to pycocotools."""
    found: dict[int, list[dict[str, Any]]] = {}
    number = 0
    for row, (boxes, labels, ignored) in enumerate(zip(table.boxes, table.labels, table.ignored, strict=True)):
        for box, label, aside in zip(boxes.astype(np.float64), labels.tolist(), ignored.tolist(), strict=True):
            number += 1
            found.setdefault(label, []).append({**_annotation(number, row, box), "iscrowd": int(aside)})
    return found


def _detections(found: Sequence[Detections]) -> dict[int, list[dict[str, Any]]]:
    by_label: dict[int, list[dict[str, Any]]] = {}
    number = 0
    for row, each in enumerate(found):
        boxes, scores = np.asarray(each.boxes, dtype=np.float64), np.asarray(each.scores).tolist()
        for box, score, label in zip(boxes, scores, np.asarray(each.labels).tolist(), strict=True):
            number += 1
            by_label.setdefault(label, []).append({**_annotation(number, row, box), "score": score, "iscrowd": 0})
    return by_label


def _annotation(number: int, row: int, box: Floats) -> dict[str, Any]:
    left, top, right, bottom = box.tolist()
    width, height = max(right - left, 0.0), max(bottom - top, 0.0)
    return {
        "id": number,
        "image_id": row + 1,
        "category_id": 1,
        "bbox": [left, top, width, height],
        "area": width * height,
    }
