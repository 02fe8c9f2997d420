"""How well a detector finds the objects of annotated pictures: those of its run, or others."""

import os
from dataclasses import replace
from pathlib import Path

from frontrank.build import build_device
from frontrank.data.image_table import shown
from frontrank.detection.evaluation import evaluate_detections
from frontrank.detection.finding import find_objects
from frontrank.detection.model import Detector
from frontrank.detection.reading import read_scenes
from frontrank.detection.scenes import SceneTable
from frontrank.errors import InputError
from frontrank.jobs.detection_report import DetectorPlace, Evaluated

_SEEN = {  # split of the run -> what is to be said where its pictures are evaluated
    "train": "were trained on: the figures are too good",
    "validation": "are held-out pictures, which also chose the checkpoint: the figures may be too good",
}


def evaluate_detector(
    place: DetectorPlace,
    data: str | None = None,
    layout: str | None = None,
    split: str = "test",
    *,
    allow_partial: bool = False,
    device: str = "auto",
    batch: int = 8,
    workers: int = 2,
    show: bool | None = None,
) -> Evaluated:
    """Find the objects of annotated pictures, and judge what is found.

    data: the pictures; those of the detector's run by default. Where these are one file, which has no splits, they are
          the ones that the run held out
    """
    detector = Detector.load(place.model, device=build_device(device))
    data, table = _scenes(place, data, layout, split, allow_partial, show)
    notes = _notes(place, table)
    table = table.of_classes(detector.classes)
    found = find_objects(detector, table, batch=batch, workers=workers, show=show)
    report = evaluate_detections(table, found, f"{place.name} on {table.name}")
    return Evaluated(data, table, found, replace(report, notes=notes))


def _scenes(
    place: DetectorPlace, data: str | None, layout: str | None, split: str, allow_partial: bool, show: bool | None
) -> tuple[str, SceneTable]:
    """The pictures, after where they are from."""
    if data is not None:
        return data, read_scenes(data, layout or "auto", split, allow_partial, show)
    config = place.config()
    if config is None or not config.data.path:
        raise InputError(f"{shown(place.model)} does not say which pictures it is for; give --data")
    table = read_scenes(config.data.path, layout or config.data.layout, split, allow_partial, show)
    if split == "test" and Path(config.data.path).is_file():
        table = _held_out(place, table, config.data.path)
    return config.data.path, table


def _held_out(place: DetectorPlace, table: SceneTable, path: str) -> SceneTable:
    held_out = place.scenes("validation")
    rows = [row for row, file in enumerate(table.files) if os.path.realpath(file) in held_out]
    if not rows:
        look = f"frontrank detect evaluate {shown(place.run or place.model)} --split train"
        raise InputError(
            f"the run was trained on all of {shown(path)}; give --data TEST.json, or look at what it learnt: {look}"
        )
    return table.rows(rows)


def _notes(place: DetectorPlace, table: SceneTable) -> tuple[str, ...]:
    """What is to be said of pictures that the run has seen."""
    files = [os.path.realpath(file) for file in table.files]
    counts = {split: sum(file in seen for file in files) for split in _SEEN if (seen := place.scenes(split))}
    return tuple(f"{count:,} of the {len(files):,} pictures {_SEEN[split]}" for split, count in counts.items() if count)
