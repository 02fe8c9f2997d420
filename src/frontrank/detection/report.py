"""The report of a detector: its facts, the page, and pictures with boxes drawn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from frontrank.data.table import Box
from frontrank.detection.data import SceneTable
from frontrank.detection.evaluation import Detections, Verdicts

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont
import csv
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from frontrank.data.images import map_images, read_image
from frontrank.data.table import shown
from frontrank.detection.evaluation import (
    KINDS,
    DetectionReport,
    Tally,
    best_score,
    evaluate_detections,
    judged,
    kinds_of_mistakes,
    tallies,
)
from frontrank.detection.settings import ClassifierConfig, DetectConfig
from frontrank.errors import FrontrankError, InputError
from frontrank.files import atomic_write
from frontrank.models import storage
from frontrank.reporting.charts import HUES, Chart, Line, Scale, chart
from frontrank.reporting.findings import Curve, RunFacts
from frontrank.reporting.pages import as_uri, counted, faults_note, rendered
from frontrank.reporting.run import credits_beside, path_name, read_run, require_target, training_charts
from frontrank.settings import read_config, read_recipe
from frontrank.training.logs import read_log

# ==== Pictures with boxes drawn: right ones green with a tick, wrong ones red with a cross, missed objects dashed.


COLOURS = {"right": "#0a7d38", "wrong": "#c8102e", "missed": "#b35c00", "ignored": "#5f6b7a", "found": "#1d4ed8"}
_DASHED = ("missed", "ignored")
LEAST = 480  # pixels that the longer side of a drawn picture has at least, so that names can be read
TEXT = 0.036  # of the longer side, is the height of a name
_HALO = "#ffffff"


@dataclass(frozen=True)
class Mark:
    """A box to draw and what is written at it; kind is one of COLOURS ("found" where nothing says what is right)."""

    box: Box
    text: str
    kind: str


def marks_of(
    table: SceneTable, row: int, found: Detections, verdicts: Verdicts | None = None, least: float = 0.0
) -> list[Mark]:
    """What is to be drawn of a picture: its detections from a score on, and the objects that none of them found.

    verdicts: of all detections, as `judged` gives them; None where the table has no objects to compare with
    """
    marks = []
    seen = set()
    for place in np.flatnonzero(found.scores >= least).tolist():
        kind = "found"
        if verdicts is not None:
            kind = "right" if verdicts.right[place] else "ignored" if verdicts.ignored[place] else "wrong"
            seen.add(int(verdicts.objects[place]))
        name = table.classes[int(found.labels[place]) - 1]
        marks.append(Mark(_box(found.boxes[place]), f"{name} {found.scores[place]:.2f}", kind))
    if verdicts is None:
        return marks
    missed = [
        Mark(_box(box), f"{table.classes[int(label) - 1]} missed", "missed")
        for place, (box, label, aside) in enumerate(
            zip(table.boxes[row], table.labels[row], table.ignored[row], strict=True)
        )
        if place not in seen and not aside
    ]
    return [*missed, *reversed(marks)]  # the best on top


def draw_marks(
    picture: "Image", marks: Sequence[Mark], least: int = LEAST, most: int | None = None, text: float = TEXT
) -> "Image":
    """The picture with the marks on it, enlarged or made smaller if its longer side is not within these pixels.

    text: height of the names, as a part of the longer side
    """
    from PIL import Image, ImageDraw

    longer = max(picture.size)
    scale = min(max(longer, least), most or math.inf) / longer
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    drawn = picture.convert("RGB") if scale == 1 else picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)
    pen, width = ImageDraw.Draw(drawn), max(3, round(max(size) / 115))
    boxes = [_whole(mark.box, scale, size) for mark in marks]
    for mark, box in zip(marks, boxes, strict=True):
        if mark.kind in _DASHED:
            _dashes(pen, box, COLOURS[mark.kind], width)
        else:
            left, top, right, bottom = box
            pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_HALO, width=width + 2)
            pen.rectangle(box, outline=COLOURS[mark.kind], width=width)
    taken: list[tuple[int, int, int, int]] = []
    for mark, box in reversed(list(zip(marks, boxes, strict=True))):  # the last has the first choice of a place
        taken.append(_name(pen, mark, box, size, max(12, round(text * max(size))), taken))
    return drawn


def _box(edges: "np.ndarray") -> Box:
    left, top, right, bottom = (float(edge) for edge in edges)
    return left, top, right, bottom


def _whole(box: Box, scale: float, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """A box in pixels of the drawing, inside it and of some size."""
    left, top = (max(min(round(edge * scale), side - 4), 0) for edge, side in zip(box[:2], size, strict=True))
    right, bottom = (min(max(round(edge * scale), 0), side) - 1 for edge, side in zip(box[2:], size, strict=True))
    return left, top, max(right, left + 3), max(bottom, top + 3)


def _dashes(pen: "ImageDraw", box: tuple[int, int, int, int], colour: str, width: int) -> None:
    left, top, right, bottom = box
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    for (x, y), (to_x, to_y) in pairwise(corners):
        length = math.hypot(to_x - x, to_y - y)
        dashes = max(1, round(length / (5 * width)))
        for dash in range(dashes):
            ends = [(dash + part) / (dashes - 1 + 0.6) if dashes > 1 else part for part in (0.0, 0.6)]
            points = [(x + (to_x - x) * min(end, 1), y + (to_y - y) * min(end, 1)) for end in ends]
            for paint, wide in ((_HALO, width + 2), (colour, width)):
                pen.line(points, fill=paint, width=wide)


def _name(
    pen: "ImageDraw",
    mark: Mark,
    box: tuple[int, int, int, int],
    size: tuple[int, int],
    height: int,
    taken: Sequence[tuple[int, int, int, int]],
) -> tuple[int, int, int, int]:
    """Write what a box is on a ground of its colour, where it hides no other name if there is such a place."""
    font = _font(height)
    sign = round(0.95 * height) if mark.kind in ("right", "wrong") else 0
    pad = max(2, height // 6)
    wide, high = math.ceil(pen.textlength(mark.text, font=font)) + sign + 2 * pad, height + 2 * pad
    left, top, right, bottom = box
    places = [(left, top - high), (left, bottom + 1), (right - wide, top - high), (right - wide, bottom + 1)]
    places += [(left, top + step * high) for step in range(8)]
    inside = [(min(max(x, 0), max(size[0] - wide, 0)), min(max(y, 0), max(size[1] - high, 0))) for x, y in places]
    x, y = min(inside, key=lambda at: sum(_common((*at, at[0] + wide, at[1] + high), other) for other in taken))
    pen.rectangle((x, y, x + wide, y + high), fill=COLOURS[mark.kind])
    if sign:
        _sign(pen, mark.kind == "right", x + pad, y + pad, round(0.65 * height), height)
    pen.text((x + pad + sign, y + high / 2), mark.text, fill="white", font=font, anchor="lm")
    return x, y, x + wide, y + high


def _sign(pen: "ImageDraw", right: bool, x: int, y: int, side: int, height: int) -> None:
    """A tick or a cross, drawn, as fonts may have neither."""
    top, width = y + (height - side) / 2, max(2, side // 6)
    if right:
        points = [(x, top + 0.55 * side), (x + 0.35 * side, top + 0.9 * side), (x + side, top + 0.1 * side)]
        pen.line(points, fill="white", width=width, joint="curve")
    else:
        pen.line([(x, top), (x + side, top + side)], fill="white", width=width)
        pen.line([(x, top + side), (x + side, top)], fill="white", width=width)


def _common(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> int:
    return max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))


@cache
def _font(height: int) -> "FreeTypeFont | ImageFont":
    """DejaVu where matplotlib brings it, which has most alphabets; else Pillow's own, which has the Latin one."""
    from PIL import ImageFont

    found = find_spec("matplotlib")
    for place in (found.submodule_search_locations or []) if found is not None else []:
        file = Path(place) / "mpl-data/fonts/ttf/DejaVuSans-Bold.ttf"
        if file.is_file():
            return ImageFont.truetype(str(file), round(0.85 * height))
    return ImageFont.load_default(height)


# ==== The report of a detector as one HTML page: how much it finds, class by class, and pictures with its boxes.


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
        training=_training_charts(facts.curves),
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


def _training_charts(curves: Mapping[str, Curve]) -> list[Chart]:
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


# ==== The page of a detector: what it finds in pictures, and, for that of a run, how it was trained.


_CURVES = ("loss", "classifier", "boxes", "objectness", "proposals", "learning rate")  # and all of validation


@dataclass(frozen=True)
class DetectorPlace:
    """Where a detector is.

    model: its folder
    run:   the folder of the run that trained it, if it is in one
    """

    model: Path
    run: Path | None

    @property
    def name(self) -> str:
        """What to call it in tables."""
        return (self.run or self.model).resolve().name

    def config(self) -> DetectConfig | None:
        """The settings of its run."""
        if self.run is None:
            return None
        return read_config(read_recipe(self.run / "config.yaml", DetectConfig), None, DetectConfig)

    def scenes(self, split: str) -> set[str]:
        """The pictures that its run trained on ("train") or held out ("validation"), as far as that is known."""
        file = None if self.run is None else self.run / "scenes.csv"
        if file is None or not file.is_file():
            return set()
        with file.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
            return {os.path.realpath(row["path"]) for row in csv.DictReader(text) if row.get("split") == split}


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What a detector found, and how well.

    data: where the pictures are from
    """

    data: str
    table: SceneTable
    found: Sequence[Detections]
    report: DetectionReport


def find_detector(path: str | os.PathLike[str]) -> DetectorPlace:
    """The detector of a run's folder, or of a folder it was saved to."""
    folder = Path(path)
    if (folder / "config.yaml").is_file():
        if not storage.is_model(folder / "model"):
            again = f"frontrank detect train --resume {shlex.quote(str(folder))}"
            raise InputError(f"{shown(folder)} has no detector yet; go on with the run: {again}")
        return DetectorPlace(folder / "model", folder)
    beside = folder.parent if folder.name == "model" and (folder.parent / "config.yaml").is_file() else None
    return DetectorPlace(folder, beside)


def require_page(page: Path, overwrite: bool) -> None:
    """Refuse before the work a page that could not be written after it."""
    if find_spec("jinja2") is None:
        raise InputError("a page needs jinja2; pip install 'frontrank[report]'")
    require_target(page, overwrite)


def write_detection_page(page: Path, place: DetectorPlace, of: Evaluated, show: bool | None = None) -> None:
    """Write the page of a detector on the pictures that it was evaluated on."""
    pass

    findings = find_detections(of.table, of.found, report=of.report, notes=of.report.notes, show=show)
    atomic_write(page, detection_page(findings, detection_facts(place, of.data, of.table)).encode())


def detection_facts(place: DetectorPlace, data: str, table: SceneTable) -> RunFacts:
    """Where the findings come from, as far as the folders say it."""
    said = {} if place.run is None else read_run(place.run)
    config = place.config()
    versions = {str(name): str(value) for name, value in _part(said, "versions").items()}
    versions |= {name: str(said[name]) for name in ("commit", "machine") if said.get(name)}
    facts = {
        "pictures": f"{len(table):,} with {counted(table.objects, 'object')} of {path_name(data)}",
        "trained on": _trained(said),
        "detector": _detector(place.model),
        "classifier": "" if config is None else _loss(config.loss),
        "training": "" if config is None else _training(config, said),
    }
    loss = place.name if config is None else config.loss.name
    return RunFacts(
        title=f"{loss} on {path_name(data)}",
        command=_command(place, said, data),
        settings="" if place.run is None else (place.run / "config.yaml").read_text(encoding="utf-8"),
        curves={} if place.run is None else log_curves(place.run),
        facts={name: text for name, text in facts.items() if text},
        versions=versions,
        credits=credits_beside(data),
    )


def log_curves(run: Path) -> dict[str, Curve]:
    """The curves of a run's log; none where it cannot be read, which a page can do without."""
    points: dict[str, list[tuple[int, float]]] = {}
    with suppress(FrontrankError):
        for line in read_log(run / "log.jsonl"):
            for name, value in line.items():
                known = name in _CURVES or name.startswith("validation ")
                if known and isinstance(value, int | float) and np.isfinite(value):
                    points.setdefault(name, []).append((line["step"], float(value)))
    order = sorted(points, key=lambda name: _CURVES.index(name) if name in _CURVES else -1)
    found = {name: np.array(points[name], dtype=np.float64) for name in order}
    return {name: Curve(of[:, 0], of[:, 1]) for name, of in found.items()}


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = of.get(name)
    return part if isinstance(part, Mapping) else {}


def _trained(said: Mapping[str, Any]) -> str:
    pictures, name = _part(said, "pictures").get("train"), said.get("data")
    return f"{counted(pictures, 'picture')}{f' of {name}' if name else ''}" if isinstance(pictures, int) else ""


def _detector(model: Path) -> str:
    settings = _part(storage.read_model_config(model, storage.DETECTOR), "settings")
    if not {"backbone", "short_side", "long_side"} <= set(settings):
        return "Faster R-CNN"
    sides = dict.fromkeys((settings["short_side"], settings["long_side"]))
    return f"Faster R-CNN on {settings['backbone']}; pictures of {' to '.join(map(str, sides))} px"


def _loss(loss: ClassifierConfig) -> str:
    if loss.name != "RaMBO":
        return loss.name
    return f"{loss.name} (lambda {loss.lam:g}, margin {loss.margin:g}, memory of {loss.memory} batches, {loss.scores})"


def _training(config: DetectConfig, said: Mapping[str, Any]) -> str:
    steps, optimizer = said.get("steps"), config.optimizer
    begun = f"{steps:,} steps of {counted(config.batch, 'picture')}" if isinstance(steps, int) else "not finished"
    return f"{begun}, {optimizer.name}, learning rate {optimizer.lr:g} ({optimizer.schedule}), seed {config.seed}"


def _command(place: DetectorPlace, said: Mapping[str, Any], data: str) -> str:
    """The command that trained as it was typed, and the one that evaluated."""
    lines = []
    with suppress(ValueError):
        program, *words = shlex.split(str(said.get("command", ""))) or [""]
        if Path(program).name in ("frontrank", "__main__.py") and words:
            lines.append(shlex.join(["frontrank", *words]))
    config = place.config()
    own = config is not None and config.data.path == data
    words = ["frontrank", "detect", "evaluate", str(place.run or place.model), *([] if own else ["--data", data])]
    return "\n".join([*lines, shlex.join(words)])
