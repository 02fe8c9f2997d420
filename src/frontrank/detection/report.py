"""The report of a detector as one HTML page: how much it finds, class by class, and pictures with its boxes."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.checks import format_count, import_extra
from frontrank.data.images import map_images
from frontrank.detection.data import SceneTable
from frontrank.detection.evaluation import (
    MISTAKES,
    DetectionReport,
    Detections,
    Tally,
    best_score,
    count_mistakes,
    judge_detections,
    tally_scenes,
)
from frontrank.detection.predict import COLOURS, draw_marks, scene_marks
from frontrank.detection.run import DetectorEvaluation, DetectorPlace
from frontrank.detection.settings import ClassifierConfig, DetectConfig
from frontrank.errors import InputError
from frontrank.files import atomic_write
from frontrank.models import storage
from frontrank.pictures.decode import read_image
from frontrank.reporting.charts import HUES, Chart, Line, Scale, chart
from frontrank.reporting.findings import Curve
from frontrank.reporting.pages import as_uri, faults_note, render_page
from frontrank.reporting.run import (
    RunFacts,
    command_of_run,
    log_curves,
    path_name,
    read_credits,
    read_run_log,
    require_target,
    run_versions,
    training_charts,
)
from frontrank.training.run import read_facts

_GROUP_SIZE = 6  # pictures
_PIXELS = 480  # of the longer side of a picture
_TEXT = 0.045  # height of names, as a part of that; three pictures share a row
_CLASS_CHART = (280.0, 190.0)
_RECALLS = np.linspace(0, 1, 101)
_LOSSES = ("classifier", "boxes", "objectness", "proposals")  # parts of the loss, in a chart of their own
_CURVES = ("loss", *_LOSSES, "learning rate")  # of the log, beside all validation values
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
class SceneCard:
    """A picture with its boxes drawn, and the same in words; without a uri, but a fault, if it cannot be read."""

    name: str
    uri: str
    width: int
    height: int
    tally: Tally
    text: str
    fault: str = ""


@dataclass(frozen=True, eq=False)
class DetectionFindings:
    """What a detector finds in pictures it has not seen.

    least:    the lowest score of boxes in pictures and mistakes
    mistakes: kind -> count
    scenes:   group -> pictures
    """

    report: DetectionReport
    least: float
    mistakes: Mapping[str, int]
    scenes: Mapping[str, tuple[SceneCard, ...]]
    notes: tuple[str, ...] = ()


def require_page(page: Path, overwrite: bool) -> None:
    """Raise before the work if a page could not be written after it."""
    import_extra("jinja2", "report", "a page")
    require_target(page, overwrite)


def write_detection_page(page: Path, place: DetectorPlace, evaluation: DetectorEvaluation, show: bool | None) -> None:
    """Write the page of a detector and the pictures that it was evaluated on."""
    findings = detection_findings(evaluation.table, evaluation.detections, evaluation.report, show)
    atomic_write(page, detection_page(findings, detection_facts(place, evaluation.data, evaluation.table)))


def detection_findings(
    table: SceneTable, detections: Sequence[Detections], report: DetectionReport, show: bool | None = None
) -> DetectionFindings:
    """Collect what the page shows; report: of these detections."""
    verdicts = judge_detections(table, detections)
    least = best_score(table, detections, verdicts)
    tallies = tally_scenes(table, detections, verdicts, least)

    def draw(number: str) -> SceneCard:
        row = int(number)
        name, tally = os.path.basename(table.files[row]), tallies[row]
        marks = scene_marks(table, row, detections[row], verdicts[row], least)
        words = {kind: ", ".join(mark.text for mark in marks if mark.kind == kind) for kind in COLOURS}
        text = f"{name}. " + "; ".join(f"{kind}: {names}" for kind, names in words.items() if names)
        try:
            picture = draw_marks(read_image(table.files[row]), marks, _PIXELS, _PIXELS, _TEXT)
        except InputError as error:
            return SceneCard(name, "", 4, 3, tally, text, str(error).split(";")[0])
        return SceneCard(name, as_uri(picture, _PIXELS), *picture.size, tally, text)

    groups = choose_scenes(tallies)
    rows = [row for group in groups.values() for row in group]
    cards = dict(zip(rows, map_images(draw, [str(row) for row in rows], 2, "pictures", show), strict=True))
    scenes = {name: tuple(cards[row] for row in group) for name, group in groups.items() if group}
    mistakes = count_mistakes(table, detections, verdicts, least)
    faults = [card.fault for card in cards.values() if card.fault]
    return DetectionFindings(report, least, mistakes, scenes, (*report.notes, *faults_note(faults)))


def choose_scenes(tallies: Sequence[Tally], size: int = _GROUP_SIZE) -> dict[str, list[int]]:
    """Choose the rows of the pictures of each group; a picture is in one group only."""
    rows = list(enumerate(tallies))
    orders: dict[str, list[tuple[float, int]]] = {
        "sure and wrong": [(-tally.worst, row) for row, tally in rows if tally.wrong],
        "missed": [(-tally.missed, row) for row, tally in rows if tally.missed],
        "all found": [(-tally.right, row) for row, tally in rows if tally.right and not tally.wrong + tally.missed],
    }
    used: set[int] = set()
    groups: dict[str, list[int]] = {}
    for name, order in orders.items():
        groups[name] = [row for _, row in sorted(order) if row not in used][:size]
        used |= set(groups[name])
    return {name: groups[name] for name in _GROUPS}


def detection_page(findings: DetectionFindings, facts: RunFacts) -> str:
    """Return the page of some findings and where they come from: a whole HTML file, to be written as UTF-8."""
    report = findings.report
    classes = sorted(report.per_class.items(), key=lambda item: -item[1].metrics.get("AP50", -1.0))
    return render_page(
        "detection.html.j2",
        title=facts.title,
        facts=facts,
        findings=findings,
        report=report,
        meanings=_MEANINGS,
        groups=_GROUPS,
        kinds=MISTAKES,
        classes=classes,
        overall=mean_curve(report),
        curves=class_charts(report, [name for name, _ in classes]),
        training=_training_charts(facts.curves),
        notes=tuple(dict.fromkeys(findings.notes)),
    )


# Charts


def mean_curve(report: DetectionReport) -> Chart | None:
    """Plot interpolated precision over recall, the mean of all classes."""
    rows = []
    for curve in report.curves.values():
        places = np.searchsorted(curve.recall, _RECALLS - 1e-12)
        rows.append(np.append(curve.precision, 0.0)[np.minimum(places, len(curve.precision))])
    scales = [Scale(axis, percent=True, span=(0.0, 1.0)) for axis in ("recall", "precision")]
    note = "The mean over the classes, at an overlap of 50 %."
    return chart("precision over recall", [Line("", Curve(_RECALLS, np.mean(rows, axis=0)))], *scales, note=note)


def class_charts(report: DetectionReport, names: Sequence[str]) -> list[Chart]:
    """Plot interpolated precision over recall of each class; where it falls to 0, no further objects are found."""
    charts = []
    for name in names:
        if name not in report.curves:
            continue
        recall, precision = report.curves[name].recall, report.curves[name].precision
        first, end = (precision[0], recall[-1]) if len(recall) else (0.0, 0.0)
        line = Curve(np.array([0.0, *recall, end]), np.array([first, *precision, 0.0 if end < 1 else precision[-1]]))
        scales = [Scale(axis, percent=True, span=(0.0, 1.0), marks=(0.0, 0.5, 1.0)) for axis in ("recall", "precision")]
        charts.append(chart(name, [Line("", line)], *scales, size=_CLASS_CHART))
    return [each for each in charts if each is not None]


def _training_charts(curves: Mapping[str, Curve]) -> list[Chart]:
    """Plot the log of a run; the parts of the loss share a chart."""
    parts = [name for name in _LOSSES if name in curves]
    others = {name: curve for name, curve in curves.items() if name not in parts}
    charts = training_charts(others, held_out="pictures")
    lines = [Line(name, curves[name], f"hue{place % HUES}") for place, name in enumerate(parts)]
    together = chart("parts of the loss", lines, Scale("step"), Scale("loss")) if lines else None
    return [*charts[:1], *([together] if together else []), *charts[1:]]


# Facts


def detection_facts(place: DetectorPlace, data: str, table: SceneTable) -> RunFacts:
    """Return where findings come from, as far as the folders say."""
    run, config, model = place.run, place.config(), storage.read_model_config(place.model, storage.DETECTOR)["settings"]
    facts = {} if run is None else read_facts(run)
    sides = " to ".join(map(str, dict.fromkeys((model["short_side"], model["long_side"]))))
    rows = {
        "pictures": f"{len(table):,} with {format_count(table.objects, 'object')} of {path_name(data)}",
        "trained on": _training_data(facts),
        "detector": f"Faster R-CNN on {model['backbone']}; pictures of {sides} px",
        "classifier": "" if config is None else _loss_title(config.loss),
        "training": "" if config is None else _training_title(config, facts),
    }
    own = [] if config is not None and config.data.path == data else ["--data", data]
    evaluation = shlex.join(["frontrank", "detect", "evaluate", str(run or place.model), *own])
    return RunFacts(
        title=f"{place.name if config is None else config.loss.name} on {path_name(data)}",
        command="\n".join(filter(None, [command_of_run(facts), evaluation])),
        settings="" if run is None else (run / "config.yaml").read_text(encoding="utf-8"),
        curves={} if run is None else log_curves(read_run_log(run), _CURVES),
        facts={name: text for name, text in rows.items() if text},
        versions=run_versions(facts),
        credits=read_credits(data),
    )


def _training_data(facts: Mapping[str, Any]) -> str:
    counts, name = facts.get("pictures"), facts.get("data")
    count = counts.get("train") if isinstance(counts, Mapping) else None
    return f"{format_count(count, 'picture')}{f' of {name}' if name else ''}" if isinstance(count, int) else ""


def _loss_title(loss: ClassifierConfig) -> str:
    if loss.name != "RaMBO":
        return loss.name
    return f"{loss.name} (lambda {loss.lam:g}, margin {loss.margin:g}, memory of {loss.memory} batches, {loss.scores})"


def _training_title(config: DetectConfig, facts: Mapping[str, Any]) -> str:
    count, optimizer = facts.get("steps"), config.optimizer
    steps = f"{count:,} steps of {format_count(config.batch, 'picture')}" if isinstance(count, int) else "not finished"
    return f"{steps}, {optimizer.name}, learning rate {optimizer.lr:g} ({optimizer.schedule}), seed {config.seed}"
