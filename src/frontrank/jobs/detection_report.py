"""The page of a detector: what it finds in pictures, and, for that of a run, how it was trained."""

import csv
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.config_detection import ClassifierConfig, DetectConfig
from frontrank.data.image_table import shown
from frontrank.detection.evaluation import DetectionReport
from frontrank.detection.matching import Detections
from frontrank.detection.scenes import SceneTable
from frontrank.errors import FrontrankError, InputError
from frontrank.jobs.run_facts import credits_beside, path_name, read_run
from frontrank.jobs.run_report import require_target
from frontrank.models import storage
from frontrank.reporting.findings import Curve, RunFacts
from frontrank.reporting.wording import counted
from frontrank.settings import read_config, read_recipe
from frontrank.training.checkpoints import atomic_write
from frontrank.training.logs import read_log

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
    from frontrank.reporting.detection_page import detection_page, find_detections

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
    settings = _part(storage.read_config(model, storage.DETECTOR), "settings")
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
