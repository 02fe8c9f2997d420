"""What `frontrank detect evaluate` and `predict` do with their options."""

import argparse
import os
from pathlib import Path

from frontrank.build import build_device
from frontrank.cli.rows import say
from frontrank.data.image_table import shown
from frontrank.detection.evaluation import evaluate_detections
from frontrank.detection.finding import find_objects
from frontrank.detection.model import Detector
from frontrank.detection.reading import read_scenes
from frontrank.detection.scenes import SceneTable
from frontrank.errors import InputError
from frontrank.jobs.detection_report import DetectorPlace, find_detector, require_page, write_detection_page
from frontrank.jobs.predicting import DRAWN, RESULTS, predict


def evaluate(options: argparse.Namespace) -> None:
    """Find the objects of annotated pictures, print how well, and save what is asked for."""
    place = find_detector(options.detector)
    _require_targets(options)
    data, layout = _data(options, place)
    detector = Detector.load(place.model, device=build_device(options.device))
    show = False if options.quiet else None
    table = read_scenes(data, layout, options.split, options.allow_partial, show)
    notes = _notes(place, table)
    table = table.of_classes(detector.classes)
    found = find_objects(detector, table, batch=options.batch, workers=options.workers, show=show)
    report = evaluate_detections(table, found, f"{place.name} on {table.name}")
    print(report.table(options.table))
    for note in notes:
        say(options.quiet, f"note: {note}")
    if options.json is not None:
        report.save(options.json, overwrite=options.force)
        say(options.quiet, f"wrote {options.json}")
    if options.page is not None:
        page = Path(options.page)
        write_detection_page(page, place, data, table, found, report, notes=notes, show=show)
        print(page if options.quiet else f"report: {page}    open it in a browser")


def predict_pictures(options: argparse.Namespace) -> None:
    """Find objects in pictures without annotations."""
    place = find_detector(options.detector)
    detector = Detector.load(place.model, device=build_device(options.device))
    drawn = not options.no_drawn
    done = predict(
        detector,
        options.pictures,
        options.out,
        least=options.score,
        draw=drawn,
        overwrite=options.force,
        batch=options.batch,
        show=False if options.quiet else None,
    )
    pictures = f"{done.pictures:,} picture{'s' * (done.pictures != 1)}"
    print(f"{done.boxes:,} boxes in {pictures}: {os.path.join(options.out, RESULTS)}")
    if drawn:
        say(options.quiet, f"those with a score of {options.score:g} or more are drawn in {Path(options.out) / DRAWN}")


def _require_targets(options: argparse.Namespace) -> None:
    """Refuse before the work what could not be written after it."""
    if options.json is not None:
        target = Path(options.json)
        if target.suffix.lower() != ".json":
            raise InputError(f"--json {shown(target)} must end in .json; choose such a name")
        if os.path.lexists(target) and not options.force:
            raise InputError(f"--json {shown(target)} exists already; choose another name, or add --force")
        if not target.parent.is_dir():
            raise InputError(f"--json: the folder {shown(target.parent)} is not there; make it first")
    if options.page is not None:
        require_page(Path(options.page), options.force)


def _data(options: argparse.Namespace, place: DetectorPlace) -> tuple[str, str]:
    """The pictures and their layout: as given, else those of the run."""
    config = place.config()
    if options.data is not None:
        return options.data, options.layout or "auto"
    if config is None or not config.data.path:
        raise InputError(f"{shown(options.detector)} does not say which pictures it is for; give --data")
    return config.data.path, options.layout or config.data.layout


def _notes(place: DetectorPlace, table: SceneTable) -> list[str]:
    """What is to be said of pictures that the detector has seen."""
    trained = place.trained_on()
    seen = sum(os.path.realpath(file) in trained for file in table.files)
    return [f"{seen:,} of the {len(table):,} pictures were trained on: the figures are too good"] if seen else []
