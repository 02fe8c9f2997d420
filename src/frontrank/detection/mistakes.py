"""What goes wrong where objects are found: which score to look from, what the wrong boxes are, and where to look."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frontrank.detection.matching import Detections, Verdicts
from frontrank.detection.scenes import SceneTable

KINDS = {  # as a page lists them; what is both "twice" and "another class" counts as the former
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


def tallies(table: SceneTable, found: Sequence[Detections], verdicts: Sequence[Verdicts], least: float) -> list[Tally]:
    """Each picture in numbers."""
    counted = []
    for ignored, each, of in zip(table.ignored, found, verdicts, strict=True):
        taken = np.asarray(each.scores) >= least
        wrong = taken & ~of.right & ~of.ignored
        right = int((taken & of.right).sum())
        worst = float(np.asarray(each.scores)[wrong].max()) if wrong.any() else 0.0
        counted.append(Tally(right, int(wrong.sum()), int((~ignored).sum()) - right, worst))
    return counted


def kinds_of_mistakes(
    table: SceneTable, found: Sequence[Detections], verdicts: Sequence[Verdicts], least: float
) -> dict[str, int]:
    """How many wrong detections there are of each kind, from some score on."""
    counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
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
