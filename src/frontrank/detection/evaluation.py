"""How well objects are found: AP of Pascal VOC and of COCO, per class and over all, and precision over recall.

AP50     area under the interpolated precision at an overlap of .5, as Pascal VOC has it since 2010; mean over classes
AP50-07  the same at eleven recalls 0, .1, ..., 1, as Pascal VOC 2007 has it
mAP      mean over the overlaps .5, .55, ..., .95 at 101 recalls, 100 detections a picture, as COCO has it
AP75     that of COCO at an overlap of .75
"""

import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frontrank.data.table import shown
from frontrank.detection.data import SceneTable
from frontrank.errors import InputError
from frontrank.files import PathLike, field_of, read_json, write_json
from frontrank.tables import Table, TableFormat, joined

# ==== What was found against what is there, by pycocotools: which boxes are right, and precision over recall.


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


def judge_detections(table: SceneTable, found: Sequence[Detections]) -> list[Verdicts]:
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


# ==== How well objects are found: AP of Pascal VOC and of COCO, per class and over all, and precision over recall.


__all__ = ["ClassResult", "DetectionReport", "Detections", "Verdicts", "evaluate_detections", "judge_detections"]

METRICS = ("AP50", "AP50-07", "mAP", "AP75")
_KIND, _VERSION = "detection report", 1
_ELEVEN = np.arange(11) / 10  # the very fractions that recalls are, which linspace is not
_COCO_RECALLS = np.linspace(0, 1, 101)
_AT_75 = int(np.argmin(abs(THRESHOLDS - 0.75)))


@dataclass(frozen=True)
class ClassResult:
    """What was found of one class.

    objects:    to find, without the ignored
    detections: all of them, of any score
    metrics:    by name; empty for a class without an object to find
    recall:     the part of the objects that is found at all, at an overlap of .5
    """

    objects: int
    detections: int
    metrics: Mapping[str, float]
    recall: float | None


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Interpolated precision at an overlap of .5 after each object that is found."""

    recall: Floats
    precision: Floats


@dataclass(frozen=True, eq=False, repr=False)
class DetectionReport(Mapping[str, float]):
    """Metrics by name, each the mean over the classes that have objects to find, a fraction in [0, 1].

    per_class: by name, in the order of the table's classes
    curves:    precision over recall, of the classes that have objects
    pictures:  how many there were
    notes:     what is to be said of the numbers, such as that some pictures were trained on
    """

    metrics: Mapping[str, float]
    per_class: Mapping[str, ClassResult]
    curves: Mapping[str, PrecisionRecall]
    pictures: int
    name: str = ""
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> float:
        if name not in self.metrics:
            raise KeyError(f"no metric {name!r} in this report; it has {joined(list(self.metrics))}")
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def __str__(self) -> str:
        return self.table("text")

    __repr__ = __str__

    @property
    def objects(self) -> int:
        """How many objects were to be found."""
        return sum(each.objects for each in self.per_class.values())

    def table(self, format: TableFormat = "text") -> str:
        """The metrics, of all classes and of each, in percent."""
        names = list(self.metrics)
        rows = [["all", *(f"{100 * self[name]:.1f}" for name in names), f"{self.objects:,}", ""]]
        for name, found in self.per_class.items():
            values = [f"{100 * found.metrics[metric]:.1f}" if found.metrics else "-" for metric in names]
            recall = f"{100 * found.recall:.1f}" if found.recall is not None else "-"
            rows.append([name, *values, f"{found.objects:,}", recall])
        without = [name for name, found in self.per_class.items() if not found.objects]
        after = (f"no object to find, and not in the means: {', '.join(without)}",) if without else ()
        counts = f"{_many(self.pictures, 'picture')}, {_many(self.objects, 'object')}; in percent"
        before = tuple(filter(None, [self.name, counts]))
        return Table(["class", *names, "objects", "found"], rows, "l" + "r" * (len(names) + 2), before, after).rendered(
            format
        )

    def save(self, path: PathLike, overwrite: bool = False) -> None:
        """Write all of it as JSON."""
        content = {
            "name": self.name,
            "pictures": self.pictures,
            "notes": list(self.notes),
            "metrics": dict(self.metrics),
            "per_class": {
                name: {"objects": of.objects, "detections": of.detections, "recall": of.recall, **of.metrics}
                for name, of in self.per_class.items()
            },
            "curves": {
                name: {"recall": of.recall.tolist(), "precision": of.precision.tolist()}
                for name, of in self.curves.items()
            },
        }
        write_json(path, _KIND, _VERSION, content, overwrite)

    @classmethod
    def load(cls, path: PathLike) -> "DetectionReport":
        """The report in a file, exactly as it was saved."""
        content = read_json(path, _KIND, _VERSION)
        try:
            metrics = {name: float(value) for name, value in field_of(content, "metrics", dict).items()}
            per_class = {
                name: ClassResult(
                    int(of["objects"]),
                    int(of["detections"]),
                    {metric: float(of[metric]) for metric in metrics if metric in of},
                    of["recall"],
                )
                for name, of in field_of(content, "per_class", dict).items()
            }
            curves = {
                name: PrecisionRecall(np.array(of["recall"], dtype=float), np.array(of["precision"], dtype=float))
                for name, of in field_of(content, "curves", dict).items()
            }
            pictures, name = field_of(content, "pictures", int), field_of(content, "name", str)
            return cls(metrics, per_class, curves, pictures, name, tuple(map(str, content.get("notes", []))))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is not a whole detection report: {error}") from error


def evaluate_detections(table: SceneTable, found: Sequence[Detections], name: str = "") -> DetectionReport:
    """How well the objects of the pictures were found; a mapping of "AP50", "AP50-07", "mAP" and "AP75".

    found: the detections of each picture, in the order of the table
    name:  what was evaluated, for tables

    Ignored objects count neither as found nor as missed, nor do detections on them. A class without an object to find
    is in no mean.

    >>> box = np.array([[10, 10, 30, 30]], dtype=np.float32)
    >>> labels, ignored = np.array([1]), np.array([False])
    >>> table = SceneTable("one", ("cat",), ("a.jpg",), np.array([[64, 48]]), (box,), (labels,), (ignored,))
    >>> found = Detections(np.array([[0, 0, 9, 9], [10, 10, 30, 28]]), np.array([0.9, 0.8]), np.array([1, 1]))
    >>> report = evaluate_detections(table, [found])
    >>> {name: round(value, 3) for name, value in report.items()}
    {'AP50': 0.5, 'AP50-07': 0.5, 'mAP': 0.45, 'AP75': 0.5}
    """
    if not table.objects:
        raise InputError(f"{table.name} has no objects to find; give pictures with objects")
    per_class: dict[str, ClassResult] = {}
    curves: dict[str, PrecisionRecall] = {}
    labels = np.concatenate([np.asarray(each.labels, dtype=np.int64) for each in found]) if len(found) else np.zeros(0)
    for label, (each, matches) in enumerate(zip(table.classes, match_classes(table, found), strict=True), start=1):
        detections = int((labels == label).sum())
        if matches is None or not matches.objects:
            per_class[each] = ClassResult(0, detections, {}, None)
        else:
            values, curves[each] = _measured(matches)
            per_class[each] = ClassResult(matches.objects, detections, values, matches.recall)
    means = {
        metric: math.fsum(of.metrics[metric] for of in per_class.values() if of.metrics) / len(curves)
        for metric in METRICS
    }
    return DetectionReport(means, per_class, curves, len(table), name or table.name)


def _measured(matches: ClassMatches) -> tuple[dict[str, float], PrecisionRecall]:
    """The metrics of a class, and its curve.

    The area under interpolated precision is its mean over the recalls 1/n, 2/n, ..., 1 of n objects, as it only changes
    there.
    """
    recalls = np.arange(1, matches.objects + 1) / matches.objects
    whole = matches.precision(recalls)[0]
    eleven = matches.precision(_ELEVEN)[0]
    coco = matches.precision(_COCO_RECALLS, COCO_MOST)
    values = {
        "AP50": float(whole.mean()),
        "AP50-07": float(eleven.mean()),
        "mAP": float(coco.mean()),
        "AP75": float(coco[_AT_75].mean()),
    }
    reached = int((whole > 0).sum())
    return values, PrecisionRecall(recalls[:reached], whole[:reached])


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def as_coco_results(found: Sequence[Detections], image_ids: Sequence[Any], category_ids: Sequence[int]) -> list[Any]:
    """Detections as COCO writes results: a list of image_id, category_id, bbox (left, top, width, height) and score."""
    rows = []
    for image, each in zip(image_ids, found, strict=True):
        for box, score, label in zip(
            np.asarray(each.boxes).tolist(), each.scores.tolist(), each.labels.tolist(), strict=True
        ):
            left, top, right, bottom = (round(edge, 3) for edge in box)
            sides = [left, top, round(right - left, 3), round(bottom - top, 3)]
            category = category_ids[label - 1]
            rows.append({"image_id": image, "category_id": category, "bbox": sides, "score": round(score, 9)})
    return rows


# ==== What goes wrong where objects are found: which score to look from, what the wrong boxes are, and where to look.


MISTAKES = {  # as a page lists them; what is both "twice" and "another class" counts as the former
    "another class": "overlaps an object of another class by half or more",
    "twice": "an object that a better box has found already",
    "misplaced": "overlaps an object of its class, but by less than half",
    "background": "hardly overlaps any object of its class",
}
_TOUCHES = 0.1  # of the overlap, from which a box is misplaced and not on the background


@dataclass(frozen=True)
class Tally:
    """A picture in numbers, from some score on; `worst` is the best score of a wrong box, 0 without one."""

    right: int
    wrong: int
    missed: int
    worst: float


def best_score(table: SceneTable, found: Sequence[Detections], verdicts: Sequence[Verdicts]) -> float:
    """The score from which on detections are to be taken, for the best F1: few wrong, few missed.

    >>> box, labels = np.array([[0, 0, 9, 9]], dtype=np.float32), np.array([1])
    >>> table = SceneTable("one", ("cat",), ("a.jpg",), np.array([[9, 9]]), (box,), (labels,), (np.array([False]),))
    >>> found = Detections(np.array([[0, 0, 9, 9], [1, 5, 3, 9]]), np.array([0.7, 0.6]), np.array([1, 1]))
    >>> best_score(table, [found], [Verdicts(np.array([True, False]), np.array([False, False]), np.array([0, -1]))])
    0.7
    """
    if not sum(len(each) for each in found):
        return 0.5
    scores = np.concatenate([np.asarray(each.scores, dtype=np.float64) for each in found])
    right = np.concatenate([each.right for each in verdicts])
    counted = ~np.concatenate([each.ignored for each in verdicts])
    order = np.argsort(-scores, kind="stable")
    hits, taken = np.cumsum(right[order]), np.cumsum(counted[order])
    f1 = 2 * hits / np.maximum(taken + table.objects, 1)
    last = np.append(np.diff(scores[order]) != 0, True)  # equal scores are taken together
    return float(scores[order][np.argmax(np.where(last, f1, -1.0))])


def tally_scenes(
    table: SceneTable, found: Sequence[Detections], verdicts: Sequence[Verdicts], least: float
) -> list[Tally]:
    """Each picture in numbers."""
    counted = []
    for ignored, each, of in zip(table.ignored, found, verdicts, strict=True):
        taken = np.asarray(each.scores) >= least
        wrong = taken & ~of.right & ~of.ignored
        right = int((taken & of.right).sum())
        worst = float(np.asarray(each.scores)[wrong].max()) if wrong.any() else 0.0
        counted.append(Tally(right, int(wrong.sum()), int((~ignored).sum()) - right, worst))
    return counted


def count_mistakes(
    table: SceneTable, found: Sequence[Detections], verdicts: Sequence[Verdicts], least: float
) -> dict[str, int]:
    """How many wrong detections there are of each kind, from some score on."""
    counts: Counter[str] = Counter(dict.fromkeys(MISTAKES, 0))
    for row, (each, of) in enumerate(zip(found, verdicts, strict=True)):
        for place in np.flatnonzero((np.asarray(each.scores) >= least) & ~of.right & ~of.ignored).tolist():
            own = table.labels[row] == each.labels[place]
            counts[_kind(overlaps(each.boxes[place], table.boxes[row]), own)] += 1
    return dict(counts)


def overlaps(box: NDArray[np.floating], others: NDArray[np.floating]) -> NDArray[np.float64]:
    """Intersection over union of a box with each of others."""
    box, others = np.asarray(box, dtype=np.float64), np.asarray(others, dtype=np.float64).reshape(-1, 4)
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = np.prod(np.maximum(sides, 0), axis=1)
    areas = np.prod(np.maximum(others[:, 2:] - others[:, :2], 0), axis=1)
    union = np.prod(np.maximum(box[2:] - box[:2], 0)) + areas - common
    return np.asarray(common / np.maximum(union, 1e-12))


def _kind(overlap: NDArray[np.float64], own: NDArray[np.bool_]) -> str:
    if (overlap[own] >= 0.5).any():
        return "twice"
    if (overlap[~own] >= 0.5).any():
        return "another class"
    return "misplaced" if (overlap[own] >= _TOUCHES).any() else "background"
