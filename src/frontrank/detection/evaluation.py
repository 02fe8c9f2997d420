"""How well objects are found: AP of Pascal VOC and of COCO per class and over all, and what goes wrong.

AP50     area under the interpolated precision at an overlap of .5, as in Pascal VOC since 2010; mean over classes
AP50-07  the same at eleven recalls 0, .1, ..., 1, as in Pascal VOC 2007
mAP      mean over the overlaps .5, .55, ..., .95 at 101 recalls, 100 detections a picture, as in COCO
AP75     that of COCO at an overlap of .75
"""

import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frontrank.checks import format_count, import_extra, join_words, printable
from frontrank.detection.data import SceneTable
from frontrank.errors import InputError
from frontrank.files import PathLike, field_of, read_json, write_json
from frontrank.tables import Table, TableFormat

Floats = NDArray[np.float64]

METRICS = ("AP50", "AP50-07", "mAP", "AP75")
THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of the overlap (intersection over union), as in COCO
MISTAKES = {  # in the order of a page; what is both "twice" and "another class" counts as the former
    "another class": "overlaps an object of another class by half or more",
    "twice": "an object that a better box has found already",
    "misplaced": "overlaps an object of its class, but by less than half",
    "background": "hardly overlaps any object of its class",
}
_AT_75 = int(np.argmin(abs(THRESHOLDS - 0.75)))
_LIMITS = [100, 10**6]  # detections of a class and picture that count, in COCO and in Pascal VOC
_FIRST_100, _ALL = 0, 1  # their places
_ALL_SIZES = [[0.0, 1e10]]
_VOC_RECALLS = np.arange(11) / 10  # exactly the fractions that recalls are; linspace is not
_COCO_RECALLS = np.linspace(0, 1, 101)
_LEAST_OVERLAP = 0.1  # of a misplaced box; with less it is on the background
_KIND, _VERSION = "detection report", 1


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
        """Return those with at least this score."""
        high = self.scores >= score
        return Detections(self.boxes[high], self.scores[high], self.labels[high])


# Detections matched to objects, by pycocotools


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The detections of one picture, judged at an overlap of a half.

    right:   per detection: it has an object of its own
    ignored: per detection: it lies on an ignored object, and is neither right nor wrong
    objects: per detection: its object, by the place in the table; -1 for none
    """

    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    objects: NDArray[np.int64]

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Per detection: neither right nor on an ignored object."""
        return ~self.right & ~self.ignored


def match_classes(table: SceneTable, detections: Sequence[Detections]) -> list[Any]:
    """Return for each class a COCOeval that has matched its detections to its objects; None if it has neither."""
    check_detections(table, detections)
    objects = zip(table.boxes, table.labels, table.ignored, strict=True)
    objects_of = _coco_rows(objects, lambda ignored: {"iscrowd": int(ignored)})
    triples = ((each.boxes, each.labels, each.scores) for each in detections)
    detections_of = _coco_rows(triples, lambda score: {"score": score, "iscrowd": 0})
    both = [(objects_of.get(label, []), detections_of.get(label, [])) for label in range(1, len(table.classes) + 1)]
    return [_match(table.crowds, *pair) if any(pair) else None for pair in both]


def judge_detections(table: SceneTable, detections: Sequence[Detections]) -> list[Verdicts]:
    """Return which detections of each picture are right, at an overlap of a half.

    A verdict depends on better detections only, so it stays the same when those below some score are left out.
    """
    counts = [len(each) for each in detections]
    verdicts = [Verdicts(np.zeros(n, bool), np.zeros(n, bool), np.full(n, -1)) for n in counts]
    first_detection = np.cumsum([0, *counts])
    first_object = np.cumsum([0, *(len(each) for each in table.labels)])
    evaluations = filter(None, match_classes(table, detections))
    for picture in (each for evaluation in evaluations for each in evaluation.evalImgs if each is not None):
        row = picture["image_id"] - 1
        verdict = verdicts[row]
        columns = picture["dtIds"], picture["dtMatches"][0], picture["dtIgnore"][0]
        for number, match, ignored in zip(*columns, strict=True):
            place = number - 1 - first_detection[row]
            verdict.right[place] = bool(match) and not ignored
            verdict.ignored[place] = bool(ignored)
            verdict.objects[place] = int(match) - 1 - first_object[row] if match else -1
    return verdicts


def check_detections(table: SceneTable, detections: Sequence[Detections]) -> None:
    """Raise if detections cannot be those of the table's pictures."""
    if len(detections) != len(table):
        raise InputError(f"detections has {len(detections):,} rows for {len(table):,} pictures; give one per picture")
    for file, each in zip(table.files, detections, strict=True):
        count, source = len(each.scores), f"detections of {printable(file)}"
        shapes = [list(np.shape(part)) for part in (each.boxes, each.scores, each.labels)]
        if shapes != [[count, 4], [count], [count]]:
            raise InputError(f"{source}: boxes, scores and labels are {shapes}; give [n, 4], [n], [n]")
        if not (np.isfinite(each.boxes).all() and np.isfinite(each.scores).all()):
            raise InputError(f"{source}: boxes and scores must be finite; look at the model")
        if count and not (each.labels.min() >= 1 and each.labels.max() <= len(table.classes)):
            raise InputError(f"{source}: labels must be from 1 to {len(table.classes)}")


@cache
def _coco_tools() -> Any:
    """Return pycocotools' COCO and a COCOeval that treats difficult objects as Pascal VOC does."""
    modules = (f"pycocotools.{name}" for name in ("coco", "cocoeval", "mask"))
    coco, cocoeval, mask = (import_extra(module, "detect", "evaluating detections") for module in modules)

    class Evaluation(cocoeval.COCOeval):  # type: ignore[name-defined]
        """Difficult objects of Pascal VOC overlap as all others; only a crowd counts what lies within it."""

        crowds = False

        def computeIoU(self, imgId: int, catId: int) -> Any:  # noqa: N802, N803 - its name and arguments there
            if self.crowds:
                return super().computeIoU(imgId, catId)
            objects, detections = self._gts[imgId, catId], self._dts[imgId, catId]
            if not objects and not detections:
                return []
            best = np.argsort([-each["score"] for each in detections], kind="mergesort")[: self.params.maxDets[-1]]
            boxes = [detections[i]["bbox"] for i in best]
            return mask.iou(boxes, [each["bbox"] for each in objects], [0] * len(objects))

    return coco.COCO, Evaluation


def _match(crowds: bool, objects: list[Any], detections: list[Any]) -> Any:
    """Return a COCOeval of one class that has matched; it only knows the pictures that have something of the class."""
    coco, evaluation_type = _coco_tools()
    images = [{"id": number} for number in sorted({each["image_id"] for each in (*objects, *detections)})]
    with redirect_stdout(io.StringIO()):  # pycocotools prints
        sides = []
        for annotations in (objects, detections):
            side = coco()
            side.dataset = {"images": images, "annotations": annotations, "categories": [{"id": 1}]}
            side.createIndex()
            sides.append(side)
        evaluation = evaluation_type(*sides, "bbox")
        evaluation.crowds = crowds
        evaluation.params.iouThrs, evaluation.params.maxDets = THRESHOLDS, _LIMITS
        evaluation.params.areaRng, evaluation.params.areaRngLbl = _ALL_SIZES, ["all"]
        evaluation.evaluate()
    return evaluation


def _coco_rows(
    scenes: Iterable[tuple[Any, Any, Any]], fields: Callable[[Any], dict[str, Any]]
) -> dict[int, list[dict[str, Any]]]:
    """Return boxes, labels and a column with more fields, of each picture, as pycocotools' annotations, by label.

    Ids count through all pictures from 1, as 0 means "no match" to pycocotools.
    """
    by_label: dict[int, list[dict[str, Any]]] = defaultdict(list)
    number = 0
    for image, (boxes, labels, column) in enumerate(scenes, start=1):
        edges = np.asarray(boxes, dtype=np.float64).tolist()
        for box, label, value in zip(edges, np.asarray(labels).tolist(), np.asarray(column).tolist(), strict=True):
            number += 1
            left, top, right, bottom = box
            width, height = max(right - left, 0.0), max(bottom - top, 0.0)
            row = {"id": number, "image_id": image, "category_id": 1, "bbox": [left, top, width, height]}
            by_label[label].append(row | {"area": width * height} | fields(value))
    return by_label


# Metrics


@dataclass(frozen=True)
class ClassResult:
    """How well one class is found.

    objects:    to find, without the ignored
    detections: all of them, of any score
    recall:     the part of the objects that is found at all, at an overlap of .5; None for a class without objects
    metrics:    by name; empty for a class without objects
    """

    objects: int
    detections: int
    recall: float | None
    metrics: Mapping[str, float]


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
    pictures:  the number of pictures
    notes:     remarks on the numbers, such as that some pictures were trained on
    """

    metrics: Mapping[str, float]
    per_class: Mapping[str, ClassResult]
    curves: Mapping[str, PrecisionRecall]
    pictures: int
    name: str = ""
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> float:
        if name not in self.metrics:
            raise KeyError(f"no metric {name!r} in this report; it has {join_words(self.metrics, 'and')}")
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
        """The number of objects to find."""
        return sum(each.objects for each in self.per_class.values())

    def table(self, format: TableFormat = "text") -> str:
        """Return the metrics of all classes and of each, in percent."""
        names = list(self.metrics)
        rows = [["all", *(f"{100 * self[name]:.1f}" for name in names), f"{self.objects:,}", ""]]
        for name, result in self.per_class.items():
            values = [f"{100 * result.metrics[metric]:.1f}" if result.metrics else "-" for metric in names]
            recall = f"{100 * result.recall:.1f}" if result.recall is not None else "-"
            rows.append([name, *values, f"{result.objects:,}", recall])
        without = [name for name, result in self.per_class.items() if not result.objects]
        after = (f"no object to find, and not in the means: {', '.join(without)}",) if without else ()
        counts = f"{format_count(self.pictures, 'picture')}, {format_count(self.objects, 'object')}; in percent"
        before = tuple(filter(None, [self.name, counts]))
        header, align = ["class", *names, "objects", "found"], "l" + "r" * (len(names) + 2)
        return Table(header, rows, align, before, after).render(format)

    def save(self, path: PathLike, overwrite: bool = False) -> None:
        """Write the report as JSON."""
        head = {"name": self.name, "pictures": self.pictures, "notes": list(self.notes), "metrics": dict(self.metrics)}
        content = head | {
            "per_class": {
                name: {"objects": of.objects, "detections": of.detections, "recall": of.recall, **of.metrics}
                for name, of in self.per_class.items()
            },
            "curves": {name: {axis: x.tolist() for axis, x in vars(of).items()} for name, of in self.curves.items()},
        }
        write_json(path, _KIND, _VERSION, content, overwrite)

    @classmethod
    def load(cls, path: PathLike) -> "DetectionReport":
        """Read a report, exactly as it was saved."""
        content = read_json(path, _KIND, _VERSION)
        try:
            metrics = {name: float(value) for name, value in field_of(content, "metrics", dict).items()}
            per_class, curves = {}, {}
            for name, of in field_of(content, "per_class", dict).items():
                own = {metric: float(of[metric]) for metric in metrics if metric in of}
                per_class[name] = ClassResult(int(of["objects"]), int(of["detections"]), of["recall"], own)
            for name, of in field_of(content, "curves", dict).items():
                curves[name] = PrecisionRecall(*(np.array(of[axis], dtype=float) for axis in ("recall", "precision")))
            pictures, name = field_of(content, "pictures", int), field_of(content, "name", str)
            return cls(metrics, per_class, curves, pictures, name, tuple(map(str, content.get("notes", []))))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is not a whole detection report: {error}") from error


def evaluate_detections(table: SceneTable, detections: Sequence[Detections], name: str = "") -> DetectionReport:
    """Measure how well the objects of pictures were found: "AP50", "AP50-07", "mAP" and "AP75".

    detections: of each picture, in the order of the table
    name:       what was evaluated, for tables

    Ignored objects count neither as found nor as missed, nor do detections on them. A class without an object to find
    is in no mean.

    >>> box = np.array([[10, 10, 30, 30]], dtype=np.float32)
    >>> labels, ignored = np.array([1]), np.array([False])
    >>> table = SceneTable("one", ("cat",), ("a.jpg",), np.array([[64, 48]]), (box,), (labels,), (ignored,))
    >>> two = Detections(np.array([[0, 0, 9, 9], [10, 10, 30, 28]]), np.array([0.9, 0.8]), np.array([1, 1]))
    >>> report = evaluate_detections(table, [two])
    >>> {name: round(value, 3) for name, value in report.items()}
    {'AP50': 0.5, 'AP50-07': 0.5, 'mAP': 0.45, 'AP75': 0.5}
    """
    if not table.objects:
        raise InputError(f"{table.name} has no objects to find; give pictures with objects")
    per_class: dict[str, ClassResult] = {}
    curves: dict[str, PrecisionRecall] = {}
    evaluations = match_classes(table, detections)
    labels = np.concatenate([each.labels for each in detections]).astype(np.int64)
    counts = np.bincount(labels, minlength=len(evaluations) + 1)[1:].tolist()
    columns = table.classes, table.counts()[:, 0].tolist(), counts, evaluations
    for each, objects, count, evaluation in zip(*columns, strict=True):
        if not objects:
            per_class[each] = ClassResult(0, count, None, {})
        else:
            recall, metrics, curves[each] = _measure_class(evaluation, objects)
            per_class[each] = ClassResult(objects, count, recall, metrics)
    means = {
        metric: math.fsum(of.metrics[metric] for of in per_class.values() if of.metrics) / len(curves)
        for metric in METRICS
    }
    return DetectionReport(means, per_class, curves, len(table), name or table.name)


def _measure_class(evaluation: Any, objects: int) -> tuple[float, dict[str, float], PrecisionRecall]:
    """Return the recall of a class, its metrics, and its curve.

    The area under interpolated precision is its mean over the recalls 1/n, 2/n, ..., 1 of n objects, as it only changes
    there.
    """

    def precision_at(recalls: Floats, limit: int) -> Floats:
        """Return the best precision at these recalls or greater ones, else 0 [threshold, recall]."""
        evaluation.params.recThrs = recalls
        with redirect_stdout(io.StringIO()):
            evaluation.accumulate()
        precision = evaluation.eval["precision"][:, :, 0, 0, limit]
        return np.asarray(np.round(precision, 12), dtype=np.float64)  # pycocotools divides by a little too much

    recalls = np.arange(1, objects + 1) / objects
    precision, eleven = (precision_at(each, _ALL)[0] for each in (recalls, _VOC_RECALLS))
    coco = precision_at(_COCO_RECALLS, _FIRST_100)
    means = precision.mean(), eleven.mean(), coco.mean(), coco[_AT_75].mean()
    reached = int((precision > 0).sum())
    curve = PrecisionRecall(recalls[:reached], precision[:reached])
    metrics = {name: float(mean) for name, mean in zip(METRICS, means, strict=True)}
    return float(evaluation.eval["recall"][0, 0, 0, _ALL]), metrics, curve


# Mistakes


@dataclass(frozen=True)
class Tally:
    """The numbers of one picture, from some score on; `worst` is the best score of a wrong box, 0 without one."""

    right: int
    wrong: int
    missed: int
    worst: float


def best_score(table: SceneTable, detections: Sequence[Detections], verdicts: Sequence[Verdicts]) -> float:
    """Return the lowest score to take detections from for the best F1: few wrong, few missed.

    >>> box, labels = np.array([[0, 0, 9, 9]], dtype=np.float32), np.array([1])
    >>> table = SceneTable("one", ("cat",), ("a.jpg",), np.array([[9, 9]]), (box,), (labels,), (np.array([False]),))
    >>> two = Detections(np.array([[0, 0, 9, 9], [1, 5, 3, 9]]), np.array([0.7, 0.6]), np.array([1, 1]))
    >>> best_score(table, [two], [Verdicts(np.array([True, False]), np.array([False, False]), np.array([0, -1]))])
    0.7
    """
    if not sum(len(each) for each in detections):
        return 0.5
    scores = np.concatenate([np.asarray(each.scores, dtype=np.float64) for each in detections])
    right = np.concatenate([each.right for each in verdicts])
    counted = ~np.concatenate([each.ignored for each in verdicts])
    order = np.argsort(-scores, kind="stable")
    hits, taken = np.cumsum(right[order]), np.cumsum(counted[order])
    f1 = 2 * hits / np.maximum(taken + table.objects, 1)
    last = np.append(np.diff(scores[order]) != 0, True)  # equal scores are taken together
    return float(scores[order][np.argmax(np.where(last, f1, -1.0))])


def tally_scenes(
    table: SceneTable, detections: Sequence[Detections], verdicts: Sequence[Verdicts], least: float
) -> list[Tally]:
    """Count right, wrong and missed in each picture, from a score on."""
    tallies = []
    for ignored, each, verdict in zip(table.ignored, detections, verdicts, strict=True):
        scores = np.asarray(each.scores)
        wrong = verdict.wrong & (scores >= least)
        right = int((verdict.right & (scores >= least)).sum())
        worst = float(scores[wrong].max()) if wrong.any() else 0.0
        tallies.append(Tally(right, int(wrong.sum()), int((~ignored).sum()) - right, worst))
    return tallies


def count_mistakes(
    table: SceneTable, detections: Sequence[Detections], verdicts: Sequence[Verdicts], least: float
) -> dict[str, int]:
    """Count the wrong detections of each kind of MISTAKES, from a score on."""
    counts = dict.fromkeys(MISTAKES, 0)
    for row, (each, verdict) in enumerate(zip(detections, verdicts, strict=True)):
        for place in np.flatnonzero(verdict.wrong & (np.asarray(each.scores) >= least)).tolist():
            overlap, same_class = overlaps(each.boxes[place], table.boxes[row]), table.labels[row] == each.labels[place]
            if (overlap[same_class] >= 0.5).any():
                counts["twice"] += 1
            elif (overlap[~same_class] >= 0.5).any():
                counts["another class"] += 1
            else:
                counts["misplaced" if (overlap[same_class] >= _LEAST_OVERLAP).any() else "background"] += 1
    return counts


def overlaps(box: NDArray[np.floating], others: NDArray[np.floating]) -> Floats:
    """Return the intersection over union of a box with each of the others."""
    box, others = np.asarray(box, dtype=np.float64), np.asarray(others, dtype=np.float64).reshape(-1, 4)
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = np.prod(np.maximum(sides, 0), axis=1)
    areas = np.prod(np.maximum(others[:, 2:] - others[:, :2], 0), axis=1)
    union = np.prod(np.maximum(box[2:] - box[:2], 0)) + areas - common
    return np.asarray(common / np.maximum(union, 1e-12))
