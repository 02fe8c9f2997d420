"""`frontrank detect`: train a detector, evaluate it, find objects with it."""

import argparse
from collections.abc import Callable
from typing import Any

from frontrank.cli import Action, detect_options
from frontrank.cli.train import add_run_arguments, refuse_beside_resume
from frontrank.detection.settings import DetectConfig
from frontrank.errors import InputError

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

Every setting stands above with its default. A recipe is a YAML file of those
that differ; what is on the command line comes before the recipe. All of a run
is in its folder, and a run that was stopped goes on from there.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank detect ACTION ..."
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=Action)

    def add(name: str, says: str, run: Callable[[argparse.Namespace], None], *texts: str) -> argparse.ArgumentParser:
        own: Any = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        action = actions.add_parser(name, help=says, description=texts[0], epilog=texts[1], **own)
        action.prog = f"frontrank detect {name}"
        action.set_defaults(run=run)
        return action

    options = detect_options
    _add_train_arguments(add("train", "train a detector", _train, TRAIN, TRAIN_EPILOG))
    options.add_evaluate_arguments(
        add("evaluate", "AP per class, and a page", options.run_evaluate, options.EVALUATE, options.EVALUATE_EPILOG)
    )
    options.add_predict_arguments(
        add("predict", "find objects in pictures", options.run_predict, options.PREDICT, options.PREDICT_EPILOG)
    )


def run(options: argparse.Namespace) -> None:
    """Do what the action says."""
    options.run(options)


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "frontrank detect train --data PATH [--recipe NAME] [--out DIR] [--SETTING VALUE ...]"
    add_run_arguments(parser, "the pictures with their boxes; see below", DetectConfig)


def _train(options: argparse.Namespace) -> None:
    if options.resume is not None:
        refuse_beside_resume(options)
    elif options.data is None and options.recipe is None:
        raise InputError("there are no pictures; give --data, a folder in the layout of Pascal VOC or COCO")
    from frontrank.cli import detecting  # torch, from here on

    detecting.run(options)
