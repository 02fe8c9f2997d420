"""`frontrank detect`: train a detector, evaluate it, find objects with it."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.checks import check_integer, check_number
from frontrank.cli.inputs import check_output, print_page, say
from frontrank.cli.train import (
    add_run_arguments,
    check_start,
    overrides,
    print_plan,
    read_options,
    resume_hint,
    run_folder,
)
from frontrank.detection.settings import DetectConfig

if TYPE_CHECKING:
    from frontrank.detection.run import DetectionRun
    from frontrank.training.loop import Standing

DESCRIPTION = """\
Find objects in pictures. The classifier of a Faster R-CNN learns by RaMBO's loss
of average precision, or by cross-entropy, with all else equal."""

EPILOG = """\
examples:
  frontrank data emoji-scenes scenes
  frontrank detect train --recipe detect-emoji-rambo --data scenes
  frontrank detect evaluate runs/detect-emoji-rambo --page report.html
  frontrank detect predict runs/detect-emoji-rambo my_photos --out found

frontrank detect ACTION --help explains an action and shows more.
"""

TRAIN = """\
Train a detector: torchvision's Faster R-CNN, whose classifier learns to rank by
RaMBO's loss of average precision (or by cross-entropy: --loss.name)."""

TRAIN_EPILOG = """\
pictures: Pascal VOC, a folder like it, or COCO's JSON; see docs/detect_data.md

examples:
  frontrank detect train --data VOCdevkit --recipe detect-r50-voc07-rambo
  frontrank detect train --data scenes --recipe detect-emoji-rambo --dry-run
  frontrank detect train --data scenes --recipe detect-emoji-cross-entropy
  frontrank detect train --data my_photos --data.validation 0.1 --out runs/mine
  frontrank detect train --resume runs/mine
  torchrun --nproc-per-node 2 -m frontrank detect train --data my_photos

All settings are listed above with their defaults. A recipe is a YAML file of
those that differ; the command line comes before the recipe. All files of a run
are in its folder, and a run that was stopped goes on from there.
"""

EVALUATE = """\
Measure how well a detector finds objects: AP50 of Pascal VOC (all-point, and at
eleven recalls as in 2007), AP75 and mAP of COCO, for each class and over all. A
page shows the pictures with its boxes, right and wrong, and precision over recall."""

EVALUATE_EPILOG = """\
examples:
  frontrank detect evaluate runs/detect
  frontrank detect evaluate runs/detect --page report.html
  frontrank detect evaluate runs/detect/model --data VOCdevkit --layout voc07
  frontrank detect evaluate runs/detect --data my_photos/test.json --json ap.json
"""

PREDICT = """\
Find objects in pictures: OUT/detections.json has the boxes as COCO writes
results, OUT/drawn the pictures with boxes drawn."""

PREDICT_EPILOG = """\
examples:
  frontrank detect predict runs/detect photo.jpg --out found
  frontrank detect predict runs/detect my_photos --out found --score 0.7
  frontrank detect predict runs/detect my_photos --out found --no-drawn
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command, and their options."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank detect ACTION ..."
    actions = parser.add_subparsers(prog=parser.prog, title="actions", metavar="ACTION", required=True)

    train = actions.add_parser("train", help="train a detector", description=TRAIN, epilog=TRAIN_EPILOG)
    train.set_defaults(action=_train)
    train.usage = "frontrank detect train --data PATH [--recipe NAME] [--out DIR] [--SETTING VALUE]"
    add_run_arguments(train, "the pictures with their boxes; see below", DetectConfig)

    evaluate = actions.add_parser(
        "evaluate", help="AP per class, and a page", description=EVALUATE, epilog=EVALUATE_EPILOG
    )
    evaluate.set_defaults(action=_evaluate)
    evaluate.add_argument("detector", metavar="RUN|MODEL", help="folder of a run, or of a saved detector")
    evaluate.add_argument("--data", metavar="PATH", help="pictures with boxes; those of the run by default")
    evaluate.add_argument("--layout", metavar="NAME", help="detected by default: voc07, voc0712, voc, coco")
    evaluate.add_argument("--split", choices=("train", "test"), default="test", help="test by default")
    evaluate.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    evaluate.add_argument("--table", choices=("text", "markdown", "latex"), default="text", help="format of the table")
    evaluate.add_argument("--json", metavar="OUT", help="save all numbers and curves as OUT.json")
    evaluate.add_argument("--page", metavar="OUT", help="write a page with pictures and curves, as OUT.html")
    evaluate.add_argument("--force", action="store_true", help="let --json and --page replace other files")
    evaluate.add_argument("--workers", metavar="N", type=int, default=2, help="processes that read pictures; 2")
    _add_running_arguments(evaluate, 8)

    predict = actions.add_parser("predict", help="find objects in pictures", description=PREDICT, epilog=PREDICT_EPILOG)
    predict.set_defaults(action=_predict)
    predict.add_argument("detector", metavar="RUN|MODEL", help="folder of a run, or of a saved detector")
    predict.add_argument("pictures", metavar="PICTURE", nargs="+", help="files, or folders with all pictures in them")
    predict.add_argument("--out", metavar="DIR", required=True, help="new folder for the results")
    predict.add_argument("--score", metavar="S", type=float, default=0.5, help="draw boxes from this score on; 0.5")
    predict.add_argument("--no-drawn", action="store_true", help="detections.json only, no drawn pictures")
    predict.add_argument("--force", action="store_true", help="write into a folder that has something in it")
    _add_running_arguments(predict, 4)


def _add_running_arguments(parser: argparse.ArgumentParser, batch: int) -> None:
    parser.add_argument("--batch", metavar="N", type=int, default=batch, help=f"pictures at a time; {batch} by default")
    parser.add_argument("--device", metavar="NAME", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("--quiet", action="store_true", help="print nothing but results and errors")


def run(options: argparse.Namespace) -> None:
    """Do the action."""
    options.action(options)


def _train(options: argparse.Namespace) -> None:
    """Train, go on, or print the plan."""
    check_start(options, "pictures; give --data, a folder in the layout of Pascal VOC or COCO")
    from frontrank.detection.run import build_detection_run, resume_detector, train_detector
    from frontrank.training.run import processes, require_new

    if options.resume is not None:
        folder = Path(options.resume)
        _report(folder, lambda: resume_detector(folder, overrides(options, DetectConfig), quiet=options.quiet))
        return
    config = read_options(options, DetectConfig)
    folder = run_folder(options, config)
    if options.dry_run:
        require_new(folder)
        with processes(config.device) as device:
            _print_plan(build_detection_run(config, folder, device, quiet=options.quiet))
        return
    _report(folder, lambda: train_detector(config, folder, quiet=options.quiet))


def _report(folder: Path, work: Callable[[], Standing]) -> None:
    """Do the work and print how it went."""
    from frontrank.detection.run import DetectionRun

    with resume_hint("frontrank detect train", folder):
        standing = work()
    if os.environ.get("RANK", "0") != "0":
        return
    best = ""
    if standing.best is not None:
        value = f"{DetectionRun.metric} {standing.best:.4f}"
        best = f"; held-out pictures: {value} at the best checkpoint (step {standing.best_step:,})"
    print(f"trained {standing.step:,} steps{best}")
    model, word = shlex.quote(str(folder / "model")), shlex.quote(str(folder))
    print(f"detector: {model}    try: frontrank detect evaluate {word}")


def _print_plan(run: DetectionRun) -> None:
    """Print what would be done."""
    from frontrank.training import distributed
    from frontrank.training.loop import steps_of

    if not distributed.is_main():
        return
    config, detector = run.config, run.model
    steps, weights = steps_of(run), sum(each.numel() for each in detector.parameters())
    held_out = f"{len(run.validation):,} held out to choose the checkpoint" if len(run.validation) else "none held out"
    loss = detector.classifier_loss
    lines = {
        "pictures": f"{len(run.training):,} to train with, {held_out}",
        "batches": f"{config.batch} pictures each, {len(run.sampler):,} an epoch; {steps:,} steps",
        "model": f"Faster R-CNN, {config.model.backbone}, {weights / 1e6:.1f} M weights; {detector.origin}",
        "loss": "cross-entropy" if loss is None else str(loss),
        "lists": _lists(run),
        "device": f"{run.device}, {distributed.world_size()} process(es)",
        "out": str(run.folder),
    }
    print_plan(run.training.describe(), lines, config)


def _lists(run: DetectionRun) -> str:
    """Return how many scores are ranked in a step, and what the memory of them takes."""
    if run.model.classifier_loss is None:
        return "none are ranked"
    config, classes = run.config, len(run.model.classes)
    each = config.batch * config.model.samples * classes
    stored = each * config.loss.memory * 5 / 1e6  # a float32 and a bool for each score
    return f"up to {each * (1 + config.loss.memory):,} scores a step; those of past batches take {stored:,.1f} MB"


def _evaluate(options: argparse.Namespace) -> None:
    """Find the objects of annotated pictures, print how well, and save what is asked for."""
    check_integer("--batch", options.batch, at_least=1)
    check_integer("--workers", options.workers, at_least=0)
    if options.json is not None:
        check_output("--json", Path(options.json), [".json"], options.force)
    from frontrank.detection.report import require_page, write_detection_page
    from frontrank.detection.run import evaluate_detector, find_detector

    place = find_detector(options.detector)
    if options.page is not None:
        require_page(Path(options.page), options.force)
    show = False if options.quiet else None
    result = evaluate_detector(
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
    print(result.report.table(options.table))
    for note in result.report.notes:
        say(False, f"note: {note}")  # in any case: without it the figures would be misread
    if options.json is not None:
        result.report.save(options.json, overwrite=options.force)
        say(options.quiet, f"wrote {options.json}")
    if options.page is not None:
        write_detection_page(Path(options.page), place, result, show)
        print_page(Path(options.page), options.quiet)


def _predict(options: argparse.Namespace) -> None:
    """Find objects in pictures without annotations."""
    check_integer("--batch", options.batch, at_least=1)
    check_number("--score", options.score, at_least=0, at_most=1)
    from frontrank.detection.model import Detector
    from frontrank.detection.predict import DRAWN, RESULTS, predict
    from frontrank.detection.run import find_detector
    from frontrank.training.run import build_device

    detector = Detector.load(find_detector(options.detector).model, device=build_device(options.device))
    pictures, boxes = predict(
        detector,
        options.pictures,
        options.out,
        least=options.score,
        draw=not options.no_drawn,
        overwrite=options.force,
        batch=options.batch,
        show=False if options.quiet else None,
    )
    in_pictures = f"in {pictures:,} picture{'s' * (pictures != 1)}"
    print(f"{boxes:,} boxes {in_pictures}: {os.path.join(options.out, RESULTS)}")
    if not options.no_drawn:
        say(options.quiet, f"boxes with a score of {options.score:g} or more are drawn in {Path(options.out) / DRAWN}")
