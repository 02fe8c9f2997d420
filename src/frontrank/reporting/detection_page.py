"""The report of a detector as one HTML page: how much it finds, class by class, and pictures with its boxes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from frontrank.data.images import map_images, read_image
from frontrank.detection.drawing import COLOURS, draw_marks, marks_of
from frontrank.detection.evaluation import DetectionReport, evaluate_detections
from frontrank.detection.matching import Detections, Verdicts, judged
from frontrank.detection.mistakes import KINDS, Tally, best_score, kinds_of_mistakes, tallies
from frontrank.detection.scenes import SceneTable
from frontrank.errors import InputError
from frontrank.reporting.charts import HUES, Chart, Line, Scale, chart
from frontrank.reporting.findings import Curve, RunFacts
from frontrank.reporting.page import training_charts
from frontrank.reporting.rendering import rendered
from frontrank.reporting.thumbnails import as_uri, faults_note

_EACH = 6  # pictures of a group
_PIXELS = 480  # of a picture's longer side
_TEXT = 0.045  # of that, is the height of names, as three pictures share a row
_SMALL = (280.0, 190.0)  # of a class's chart
_RECALLS = np.linspace(0, 1, 101)
_PARTS = ("classifier", "boxes", "objectness", "proposals")  # of the loss, in a chart of their own
_MEANINGS = {
    "AP50": "precision averaged over recall; a box is right from an overlap of 50 % on",
    "AP50-07": "the same at eleven recalls, as Pascal VOC 2007 has it",
    "mAP": "averaged over overlaps from 50 to 95 %, as COCO has it",
    "AP75": "a box is right from an overlap of 75 % on",
}
_GROUPS = {
    "all found": "Every object found, nothing wrong; those with the most objects.",
    "sure and wrong": "Those with the wrong boxes of the highest scores.",
    "missed": "Those with the most objects that were not found.",
}


@dataclass(frozen=True)
class ShownScene:
    """A picture with its boxes drawn, as data, "" where its file could not be read, and in words."""

    name: str
    uri: str
    width: int
    height: int
    tally: Tally
    text: str


@dataclass(frozen=True, eq=False)
class DetectionFindings:
    """What a detector finds in pictures it has not seen.

    least:    the score that pictures and mistakes are shown from
    mistakes: kind -> how many
    scenes:   group -> pictures
    """

    table: SceneTable
    report: DetectionReport
    least: float
    mistakes: Mapping[str, int]
    scenes: Mapping[str, tuple[ShownScene, ...]]
    notes: tuple[str, ...] = ()


def find_detections(
    table: SceneTable,
    found: Sequence[Detections],
    *,
    report: DetectionReport | None = None,
    notes: Sequence[str] = (),
    show: bool | None = None,
) -> DetectionFindings:
    """All that the page shows of what was found; report: if it is known already."""
    report = evaluate_detections(table, found) if report is None else report
    verdicts = judged(table, found)
    least = best_score(table, found, verdicts)
    counts = tallies(table, found, verdicts, least)
    rows = chosen(counts)
    drawn, faults = _drawn(table, found, verdicts, counts, least, [row for of in rows.values() for row in of], show)
    scenes = {group: tuple(drawn[row] for row in of) for group, of in rows.items() if of}
    mistakes = kinds_of_mistakes(table, found, verdicts, least)
    return DetectionFindings(table, report, least, mistakes, scenes, (*notes, *faults_note(faults)))


def chosen(counts: Sequence[Tally], each: int = _EACH) -> dict[str, list[int]]:
    """The rows of the pictures of each group; a picture is in one only."""
    orders = {
        "sure and wrong": sorted(
            (row for row, of in enumerate(counts) if of.wrong), key=lambda row: (-counts[row].worst, row)
        ),
        "missed": sorted(
            (row for row, of in enumerate(counts) if of.missed), key=lambda row: (-counts[row].missed, row)
        ),
        "all found": sorted(
            (row for row, of in enumerate(counts) if of.right and not of.wrong and not of.missed),
            key=lambda row: (-counts[row].right, row),
        ),
    }
    taken: set[int] = set()
    found: dict[str, list[int]] = {}
    for group, order in orders.items():
        found[group] = [row for row in order if row not in taken][:each]
        taken |= set(found[group])
    return {group: found[group] for group in _GROUPS}


def detection_page(findings: DetectionFindings, facts: RunFacts) -> str:
    """The page that shows findings and where they come from: a whole HTML file, to be written as UTF-8."""
    report = findings.report
    classes = sorted(report.per_class.items(), key=lambda item: -item[1].metrics.get("AP50", -1.0))
    return rendered(
        "detection.html.j2",
        title=facts.title,
        facts=facts,
        findings=findings,
        report=report,
        meanings=_MEANINGS,
        groups=_GROUPS,
        kinds=KINDS,
        colours=COLOURS,
        classes=classes,
        overall=mean_curve(report),
        curves=class_charts(report, [name for name, _ in classes]),
        training=_training(facts.curves),
        notes=tuple(dict.fromkeys(findings.notes)),
    )


def mean_curve(report: DetectionReport) -> Chart | None:
    """Interpolated precision over recall, the mean of all classes."""
    means = np.mean([_at_recalls(of.recall, of.precision) for of in report.curves.values()], axis=0)
    return chart(
        "precision over recall",
        [Line("", Curve(_RECALLS, means))],
        Scale("recall", percent=True, span=(0.0, 1.0)),
        Scale("precision", percent=True, span=(0.0, 1.0)),
        note="The mean over the classes, at an overlap of 50 %.",
    )


def class_charts(report: DetectionReport, names: Sequence[str]) -> list[Chart]:
    """Interpolated precision over recall of each class; where it falls to 0, no further objects are found."""
    found = []
    for name in names:
        of = report.curves.get(name)
        if of is None:
            continue
        recall, precision = (np.asarray(axis, dtype=np.float64) for axis in (of.recall, of.precision))
        first, end = (precision[0], recall[-1]) if len(recall) else (0.0, 0.0)
        curve = Curve(np.array([0.0, *recall, end]), np.array([first, *precision, 0.0 if end < 1 else precision[-1]]))
        ends = Scale("recall", percent=True, span=(0.0, 1.0), marks=(0.0, 0.5, 1.0))
        made = chart(
            name,
            [Line("", curve)],
            ends,
            Scale("precision", percent=True, span=(0.0, 1.0), marks=(0.0, 0.5, 1.0)),
            size=_SMALL,
        )
        found += [made] if made is not None else []
    return found


def _at_recalls(recall: np.ndarray, precision: np.ndarray) -> np.ndarray:
    places = np.searchsorted(recall, _RECALLS - 1e-12)
    return np.append(precision, 0.0)[np.minimum(places, len(precision))]


def _training(curves: Mapping[str, Curve]) -> list[Chart]:
    """The charts of a run's log, in which the parts of the loss share one."""
    parts = [name for name in _PARTS if name in curves]
    rest = {name: of for name, of in curves.items() if name not in parts}
    found = training_charts(rest, held_out="pictures")
    lines = [Line(name, curves[name], f"hue{place % HUES}") for place, name in enumerate(parts)]
    together = chart("parts of the loss", lines, Scale("step"), Scale("loss")) if lines else None
    return [*found[:1], *([together] if together else []), *found[1:]]


def _drawn(
    table: SceneTable,
    found: Sequence[Detections],
    verdicts: Sequence[Verdicts],
    counts: Sequence[Tally],
    least: float,
    rows: Sequence[int],
    show: bool | None,
) -> tuple[dict[int, ShownScene], list[str]]:
    def made(number: str) -> tuple[ShownScene, str]:
        row = int(number)
        name, tally = os.path.basename(table.files[row]), counts[row]
        marks = marks_of(table, row, found[row], verdicts[row], least)
        words = {kind: ", ".join(mark.text for mark in marks if mark.kind == kind) for kind in COLOURS}
        text = f"{name}. " + "; ".join(f"{kind}: {said}" for kind, said in words.items() if said)
        try:
            picture = draw_marks(read_image(table.files[row]), marks, _PIXELS, _PIXELS, _TEXT)
        except InputError as error:
            return ShownScene(name, "", 4, 3, tally, text), str(error).split(";")[0]
        return ShownScene(name, as_uri(picture, _PIXELS), *picture.size, tally, text), ""

    results = list(map_images(made, [str(row) for row in rows], 2, "pictures", show))
    return {row: scene for row, (scene, _) in zip(rows, results, strict=True)}, [fault for _, fault in results if fault]
