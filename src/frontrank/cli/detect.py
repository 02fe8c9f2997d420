"""Find objects in pictures. The classifier of a Faster R-CNN learns by RaMBO's loss of average precision, or by
cross-entropy, with all else equal.

examples:
  frontrank data emoji-scenes scenes
  frontrank detect train --recipe detect-emoji-rambo --data scenes
  frontrank detect evaluate runs/detect-emoji-rambo --page report.html
  frontrank detect predict runs/detect-emoji-rambo my_photos --out found

frontrank detect ACTION --help explains an action and shows more.
"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.cli import add_action
from frontrank.cli.inputs import add_running_arguments, check_output, number_type, print_page, say
from frontrank.cli.train import add_run_arguments, check_start, train_or_plan
from frontrank.detection.settings import DetectConfig

if TYPE_CHECKING:
    from frontrank.detection.run import DetectionRun
    from frontrank.training.loop import Standing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command, and their options."""
    parser.usage = "frontrank detect ACTION ..."
    actions = parser.add_subparsers(prog=parser.prog, title="actions", metavar="ACTION", required=True)

    train = add_action(actions, "train", _train, "train a detector")
    train.usage = "frontrank detect train --data PATH [--recipe NAME] [--out DIR] ..."
    add_run_arguments(train, "the pictures with their boxes; see below", DetectConfig)

    evaluate = add_action(actions, "evaluate", _evaluate, "AP per class, and a page")
    predict = add_action(actions, "predict", _predict, "find objects in pictures")
    for action, batch in ((evaluate, 8), (predict, 4)):
        action.add_argument("detector", metavar="RUN|MODEL", help="folder of a run, or of a saved detector")
        size, text = number_type(int, at_least=1), f"pictures at once; {batch} by default"
        action.add_argument("--batch", metavar="N", type=size, default=batch, help=text)
        add_running_arguments(action, quiet="results and errors")
    evaluate.add_argument("--data", metavar="PATH", help="pictures with boxes; those of the run by default")
    evaluate.add_argument("--layout", metavar="NAME", help="detected by default: voc07, voc0712, voc, coco")
    evaluate.add_argument("--split", choices=("train", "test"), default="test", help="test by default")
    evaluate.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    evaluate.add_argument("--table", choices=("text", "markdown", "latex"), default="text", help="format of the table")
    evaluate.add_argument("--json", metavar="OUT", help="save all numbers and curves as OUT.json")
    evaluate.add_argument("--page", metavar="OUT", help="write a page with pictures and curves, as OUT.html")
    evaluate.add_argument("--force", action="store_true", help="let --json and --page replace other files")
    workers, score = number_type(int, at_least=0), number_type(float, at_least=0, at_most=1)
    evaluate.add_argument("--workers", metavar="N", type=workers, default=2, help="processes that read; 2 by default")
    predict.add_argument("pictures", metavar="PICTURE", nargs="+", help="files, or folders with all pictures in them")
    predict.add_argument("--out", metavar="DIR", required=True, help="new folder for the results")
    predict.add_argument("--score", metavar="S", type=score, default=0.5, help="lowest score to draw; 0.5 by default")
    predict.add_argument("--no-drawn", action="store_true", help="detections.json only, no drawn pictures")
    predict.add_argument("--force", action="store_true", help="write into a folder that has something in it")


def _train(options: argparse.Namespace) -> None:
    """Train a detector: torchvision's Faster R-CNN, whose classifier learns to rank by RaMBO's loss of average
    precision (or by cross-entropy: --loss.name).

    pictures: Pascal VOC, a folder like it, or COCO's JSON; see docs/detect_data.md

    examples:
      frontrank detect train --data VOCdevkit --recipe detect-r50-voc07-rambo
      frontrank detect train --data scenes --recipe detect-emoji-rambo --dry-run
      frontrank detect train --data scenes --recipe detect-emoji-cross-entropy
      frontrank detect train --data my_photos --data.validation 0.1 --out runs/mine
      frontrank detect train --resume runs/mine
      torchrun --nproc-per-node 2 -m frontrank detect train --data my_photos

    All settings are listed above with their defaults. A recipe is a YAML file of those that differ; the command line
    comes before the recipe. All files of a run are in its folder, and a run that was stopped goes on from there.
    """
    check_start(options, "pictures; give --data, a folder in the layout of Pascal VOC or COCO")
    from frontrank.detection.run import build_detection_run, resume_detector, train_detector

    functions = train_detector, resume_detector, build_detection_run
    train_or_plan(options, DetectConfig, functions, _plan, _print_result)


def _print_result(standing: Standing, folder: Path) -> None:
    from frontrank.detection.run import DetectionRun

    best = ""
    if standing.best is not None:
        value = f"{DetectionRun.metric} {standing.best:.4f}"
        best = f"; held-out pictures: {value} at the best checkpoint (step {standing.best_step:,})"
    print(f"trained {standing.step:,} steps{best}")
    model, run = shlex.quote(str(folder / "model")), shlex.quote(str(folder))
    print(f"detector: {model}    try: frontrank detect evaluate {run}")


def _plan(run: DetectionRun, steps: str, weights: str) -> tuple[str, dict[str, str]]:
    config, loss = run.config, run.model.classifier_loss
    held_out = f"{len(run.validation):,} held out to choose the checkpoint" if len(run.validation) else "none held out"
    each = config.batch * config.model.samples * len(run.model.classes)
    stored = each * config.loss.memory * 5 / 1e6  # a float32 and a bool for each score
    lists = f"up to {each * (1 + config.loss.memory):,} scores a step; those of past batches take {stored:,.1f} MB"
    return run.training.describe(), {
        "pictures": f"{len(run.training):,} to train with, {held_out}",
        "batches": f"{config.batch} pictures each, {steps}",
        "model": f"Faster R-CNN, {config.model.backbone}, {weights}; {run.model.origin}",
        "loss": "cross-entropy" if loss is None else str(loss),
        "lists": "none are ranked" if loss is None else lists,
    }


def _evaluate(options: argparse.Namespace) -> None:
    """Measure how well a detector finds objects: AP50 of Pascal VOC (all-point, and at eleven recalls as in 2007), AP75
    and mAP of COCO, for each class and over all. A page shows the pictures with its boxes, right and wrong, and
    precision over recall.

    examples:
      frontrank detect evaluate runs/detect
      frontrank detect evaluate runs/detect --page report.html
      frontrank detect evaluate runs/detect/model --data VOCdevkit --layout voc07
      frontrank detect evaluate runs/detect --data test.json --json ap.json
    """
    if options.json is not None:
        check_output("--json", Path(options.json), [".json"], options.force)
    from frontrank.detection.report import require_page, write_detection_page
    from frontrank.detection.run import evaluate_detector, find_detector

    place = find_detector(options.detector)
    if options.page is not None:
        require_page(Path(options.page), options.force)
    show = False if options.quiet else None
    how = {name: getattr(options, name) for name in ("allow_partial", "device", "batch", "workers")}
    result = evaluate_detector(place, options.data, options.layout, options.split, **how, show=show)
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
    """Find objects in pictures: OUT/detections.json has the boxes as COCO writes results, OUT/drawn the pictures with
    boxes drawn.

    examples:
      frontrank detect predict runs/detect photo.jpg --out found
      frontrank detect predict runs/detect my_photos --out found --score 0.7
      frontrank detect predict runs/detect my_photos --out found --no-drawn
    """
    from frontrank.detection.model import Detector
    from frontrank.detection.predict import DRAWN, RESULTS, predict
    from frontrank.detection.run import find_detector
    from frontrank.training.distributed import build_device

    detector = Detector.load(find_detector(options.detector).model, device=build_device(options.device))
    how = {"draw": not options.no_drawn, "overwrite": options.force, "show": False if options.quiet else None}
    pictures, boxes = predict(detector, options.pictures, options.out, least=options.score, batch=options.batch, **how)
    in_pictures = f"in {pictures:,} picture{'s' * (pictures != 1)}"
    print(f"{boxes:,} boxes {in_pictures}: {os.path.join(options.out, RESULTS)}")
    if not options.no_drawn:
        say(options.quiet, f"boxes with a score of {options.score:g} or more are drawn in {Path(options.out) / DRAWN}")
