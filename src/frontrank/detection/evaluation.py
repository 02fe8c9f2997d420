"""How well objects are found: AP of Pascal VOC and of COCO, per class and over all, and precision over recall.

AP50     area under the interpolated precision at an overlap of .5, as Pascal VOC has it since 2010; mean over classes
AP50-07  the same at eleven recalls 0, .1, ..., 1, as Pascal VOC 2007 has it
mAP      mean over the overlaps .5, .55, ..., .95 at 101 recalls, 100 detections a picture, as COCO has it
AP75     that of COCO at an overlap of .75
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frontrank.detection.matching import (
    COCO_MOST,
    THRESHOLDS,
    ClassMatches,
    Detections,
    Floats,
    Verdicts,
    judged,
    match_classes,
)
from frontrank.detection.scenes import SceneTable
from frontrank.errors import InputError
from frontrank.evaluation.files import PathLike, field_of, read_json, write_json
from frontrank.evaluation.tables import Table, TableFormat, joined

__all__ = ["ClassResult", "DetectionReport", "Detections", "Verdicts", "evaluate_detections", "judged"]

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
