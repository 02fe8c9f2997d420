"""What `frontrank detect evaluate` and `predict` do with their options."""

import argparse
import os
from pathlib import Path

from frontrank.cli.rows import print_page, say
from frontrank.data.table import shown
from frontrank.detection.model import Detector
from frontrank.detection.predict import DRAWN, RESULTS, predict
from frontrank.detection.report import require_page, write_detection_page
from frontrank.detection.run import evaluate_detector, find_detector
from frontrank.errors import InputError
from frontrank.training.run import build_device


def evaluate(options: argparse.Namespace) -> None:
    """Find the objects of annotated pictures, print how well, and save what is asked for."""
    place = find_detector(options.detector)
    _require_targets(options)
    show = False if options.quiet else None
    evaluated = evaluate_detector(
        place,
        options.data,
        options.layout,
        options.split,
        allow_partial=options.allow_partial,
        device=options.device,
        batch=options.batch,
        workers=options.workers,
        show=show,
    )
    report = evaluated.report
    print(report.table(options.table))
    for note in report.notes:
        say(False, f"note: {note}")  # in any case: without it the figures would be taken for others
    if options.json is not None:
        report.save(options.json, overwrite=options.force)
        say(options.quiet, f"wrote {options.json}")
    if options.page is not None:
        page = Path(options.page)
        write_detection_page(page, place, evaluated, show)
        print_page(page, options.quiet)


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
