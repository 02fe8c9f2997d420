"""`frontrank compare`: its options and examples. Every setting of `frontrank train` is an option here too."""

import argparse

from frontrank.cli.train import add_settings
from frontrank.errors import InputError

DESCRIPTION = """\
Train with several losses, or several values of a setting, on the same images
with the same budget, and say which one ranks unseen classes best. The learning
rate of each is chosen on held-out training classes by the same search; test
images are looked at once, at the end of a run."""

EPILOG = """\
losses, with commas between them:
  PNP-O, PNP-I_u, PNP-I_b, PNP-D_s, PNP-D_q, SmoothAP, FastAP, QuantizedAP,
  BlackboxRecall-log, BlackboxRecall-loglog, BlackboxAP; any metric on any
  relaxation as 'RankLoss(metric=AveragePrecision,relaxation=Blackbox)'; and of
  pytorch-metric-learning contrastive, triplet (easy positive, semihard negative),
  triplet-hard, multi-similarity, and any other as pml.NAME.
  Settings of one loss stand in brackets: 'PNP-D_q(alpha=2,temperature=0.05)'.
  A setting given as --loss.temperature goes to all losses that have it.

examples:
  frontrank compare --data my_photos --out comparisons/first
  frontrank compare --data my_photos --out comparisons/first --dry-run
  frontrank compare --data my_photos --out comparisons/ours --seeds 2 \\
      --losses 'PNP-D_q(alpha=2),SmoothAP,triplet' --iterations 200 --lr 1e-4,3e-4
  frontrank compare --data my_photos --out comparisons/temperature \\
      --axis loss.temperature=0.001,0.01,0.1 --lr 1e-4 --iterations 200
  frontrank compare --data my_photos --out comparisons/merged \\
      --losses PNP-D_q,PNP-I_u,SmoothAP --data.merge_classes 3
  frontrank compare --resume comparisons/first

It can be stopped at any moment: the same command, or --resume, goes on. Every
setting of frontrank train is an option here too (frontrank train --help).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank compare --data PATH [--losses A,B] [--out DIR] [--SETTING VALUE]"
    parser.add_argument("--data", metavar="PATH", help="the images, as of frontrank train")
    parser.add_argument("--losses", metavar="A,B,...", help="what to compare; one of each family by default")
    parser.add_argument(
        "--axis",
        metavar="SETTING=A,B,...",
        action="append",
        default=[],
        help="compare values of a setting instead; several make a grid, of each of --losses if those are given",
    )
    parser.add_argument("--seeds", metavar="N", type=int, help="runs of each at its learning rate; 3 by default")
    parser.add_argument(
        "--lr", metavar="A,B,...", help="learning rates to choose from; optimizer.lr times 1/3, 1 and 3 by default"
    )
    parser.add_argument(
        "--search-iterations", metavar="N", type=int, help="steps of a search for the learning rate; all by default"
    )
    parser.add_argument(
        "--reference", metavar="NAME", help="what the others are set against; the best on held-out classes by default"
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the comparison; comparisons/NAME by default")
    parser.add_argument("--resume", metavar="DIR", help="go on with the comparison in this folder")
    parser.add_argument("--recipe", metavar="NAME", help="a recipe's name, or a YAML file, for what all share")
    parser.add_argument("--backbone", metavar="NAME", help="short for --model.backbone")
    parser.add_argument("--weights", metavar="VALUE", help="short for --model.weights")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, train nothing")
    parser.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    parser.add_argument("--quiet", action="store_true", help="nothing but results and errors")
    add_settings(parser, shown=False)


def run(options: argparse.Namespace) -> None:
    """Compare, go on, or print the plan."""
    if options.resume is None and options.data is None and options.recipe is None:
        raise InputError("there are no images; give --data, a folder of images by class, a table, or a data set's root")
    from frontrank.cli import comparing  # torch, from here on

    comparing.run(options)
