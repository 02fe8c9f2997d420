"""`frontrank detect evaluate` and `predict`: their options and examples."""

import argparse

from frontrank.checks import check_number
from frontrank.errors import InputError

EVALUATE = """\
How well a detector finds objects: AP50 of Pascal VOC (all-point, and at eleven
recalls as in 2007), AP75 and mAP of COCO, for each class and over all. A page
shows the pictures with its boxes, right and wrong, and precision over recall."""

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


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """What `detect evaluate` takes."""
    parser.add_argument("detector", metavar="RUN|MODEL", help="folder of a run, or of a saved detector")
    parser.add_argument("--data", metavar="PATH", help="pictures with boxes; those of the run by default")
    parser.add_argument("--layout", metavar="NAME", help="found out by default: voc07, voc0712, voc, coco")
    parser.add_argument("--split", choices=("train", "test"), default="test", help="test by default")
    parser.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    parser.add_argument(
        "--table", choices=("text", "markdown", "latex"), default="text", help="how the table is written"
    )
    parser.add_argument("--json", metavar="OUT", help="save all numbers and curves as OUT.json")
    parser.add_argument("--page", metavar="OUT", help="write a page with pictures and curves, as OUT.html")
    parser.add_argument("--force", action="store_true", help="let --json and --page replace other files")
    parser.add_argument(
        "--workers", metavar="N", type=int, default=2, help="processes that read pictures; 2 by default"
    )
    _add_running(parser, 8)


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    """What `detect predict` takes."""
    parser.add_argument("detector", metavar="RUN|MODEL", help="folder of a run, or of a saved detector")
    parser.add_argument("pictures", metavar="PICTURE", nargs="+", help="files, or folders with all pictures in them")
    parser.add_argument("--out", metavar="DIR", required=True, help="new folder for what is found")
    parser.add_argument("--score", metavar="S", type=float, default=0.5, help="draw boxes from this score on; 0.5")
    parser.add_argument("--no-drawn", action="store_true", help="detections.json only, no drawn pictures")
    parser.add_argument("--force", action="store_true", help="write into a folder that has something in it")
    _add_running(parser, 4)


def _add_running(parser: argparse.ArgumentParser, batch: int) -> None:
    parser.add_argument("--batch", metavar="N", type=int, default=batch, help=f"pictures at a time; {batch} by default")
    parser.add_argument("--device", metavar="NAME", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("--quiet", action="store_true", help="nothing but results and errors")


def run_evaluate(options: argparse.Namespace) -> None:
    """Evaluate, print, save."""
    _refuse(options)
    from frontrank.cli import detecting_evaluation  # torch, from here on

    detecting_evaluation.evaluate(options)


def run_predict(options: argparse.Namespace) -> None:
    """Find, write, say what."""
    _refuse(options)
    check_number("--score", options.score, at_least=0, at_most=1)
    from frontrank.cli import detecting_evaluation

    detecting_evaluation.predict_pictures(options)


def _refuse(options: argparse.Namespace) -> None:
    for name, least in (("batch", 1), ("workers", 0)):
        if getattr(options, name, least) < least:
            raise InputError(f"--{name} must be at least {least}, got {getattr(options, name)}")
