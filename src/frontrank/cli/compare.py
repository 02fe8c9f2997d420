"""Train with several losses, or several values of a setting, on the same images with the same budget, and say which one
ranks unseen classes best. The learning rate of each is chosen on held-out training classes by the same search; test
images are looked at once, at the end of a run.

losses, with commas between them:
  PNP-O, PNP-I_u, PNP-I_b, PNP-D_s, PNP-D_q, SmoothAP, FastAP, QuantizedAP,
  BlackboxRecall-log, BlackboxRecall-loglog, BlackboxAP, RecallAtK, SupAP,
  ROADMAP, PairMargin, SmoothNDCG, HierarchicalAP; any metric on any relaxation
  as 'RankLoss(metric=AveragePrecision,relaxation=Blackbox)'; and of
  pytorch-metric-learning contrastive, triplet (easy positive, semihard
  negative), triplet-hard, multi-similarity, and any other as pml.NAME.
  Settings of one loss stand in brackets: 'PNP-D_q(alpha=2,temperature=0.05)'.
  A setting given as --loss.temperature goes to all losses that have it.

examples:
  frontrank compare --data my_photos --out comparisons/first
  frontrank compare --data my_photos --out comparisons/first --dry-run
  frontrank compare --data my_photos --out comparisons/ours --lr 1e-4,3e-4 \\
      --losses 'PNP-D_q(alpha=2),SmoothAP,triplet' --iterations 200 --seeds 2
  frontrank compare --data my_photos --out comparisons/temperature \\
      --axis loss.temperature=0.001,0.01,0.1 --lr 1e-4 --iterations 200
  frontrank compare --data my_photos --out comparisons/merged \\
      --losses PNP-D_q,PNP-I_u,SmoothAP --data.merge_classes 3
  frontrank compare --resume comparisons/first

It can be stopped at any moment: the same command, or --resume, goes on. Every setting of frontrank train is an option
here too (frontrank train --help).
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.checks import format_count
from frontrank.cli.inputs import refuse_options
from frontrank.cli.train import add_common_arguments, add_settings, overrides
from frontrank.errors import InputError
from frontrank.files import atomic_write
from frontrank.settings import TrainConfig, find_recipe, read_recipe

if TYPE_CHECKING:
    from frontrank.comparison.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "frontrank compare --data PATH [--losses A,B] [--out DIR] ..."
    parser.add_argument("--data", metavar="PATH", help="the images, as for frontrank train")
    parser.add_argument("--losses", metavar="A,B,...", help="what to compare; one of each family by default")
    grid = "compare values of a setting instead; several make a grid, of each of --losses if those are given"
    parser.add_argument("--axis", metavar="SETTING=A,B,...", action="append", help=grid)
    parser.add_argument("--seeds", metavar="N", type=int, help="runs of each at its learning rate; 3 by default")
    parser.add_argument("--lr", metavar="A,B,...", help="learning rates to choose from; 1/3, 1 and 3 x optimizer.lr")
    parser.add_argument("--search-iterations", metavar="N", type=int, help="steps of each search of a learning rate")
    parser.add_argument("--reference", metavar="NAME", help="what the others are compared with; the best by default")
    parser.add_argument("--out", metavar="DIR", help="folder for the comparison; comparisons/NAME by default")
    parser.add_argument("--resume", metavar="DIR", help="go on with the comparison in this folder")
    parser.add_argument("--recipe", metavar="NAME", help="a recipe's name, or a YAML file, for what all share")
    add_common_arguments(parser)
    add_settings(parser, TrainConfig, in_help=False)


def run(options: argparse.Namespace) -> None:
    """Compare, go on, or print the plan."""
    if options.resume is not None:
        reason = "does not go with --resume, which takes it from the folder; leave it out"
        names = ("losses", "axis", "lr", "search_iterations", "out", "recipe", "dry_run", "data", "allow_partial")
        refuse_options(options, names, reason)
        for name in overrides(options):
            raise InputError(f"--{name} {reason}")
    elif options.data is None and options.recipe is None:
        raise InputError("there are no images; give --data, a folder of images by class, a table or a data set's root")
    from frontrank.comparison.report import render_comparison_page
    from frontrank.comparison.results import comparison_table
    from frontrank.comparison.runner import resume_comparison, run_comparison

    quiet, reference = options.quiet, options.reference or ""
    if options.resume is not None:
        folder = Path(options.resume)
        comparison = resume_comparison(folder, seeds=options.seeds, reference=reference, quiet=quiet)
    else:
        plan = _read_plan(options)
        name = plan.title.replace(", ", "-").replace(" ", "-")
        folder = Path(options.out) if options.out else Path("comparisons") / name
        if options.dry_run:
            return _print_plan(plan, folder, quiet)
        comparison = run_comparison(plan, folder, command=shlex.join(["frontrank", *sys.argv[1:]]), quiet=quiet)
    print(f"{comparison.title}\n{comparison_table(comparison)}\n", flush=True)
    print(f"results: {shlex.quote(str(folder / 'results.md'))}, .csv and .json", flush=True)
    atomic_write(folder / "report.html", render_comparison_page(comparison))
    print(f"report: {shlex.quote(str(folder / 'report.html'))}", flush=True)
    if not any(entry.values for entry in comparison.entries):
        first = comparison.entries[0]
        raise InputError(f"no entry has a result ({first.name}: {first.failed}); correct it, then --resume {folder}")


def _read_plan(options: argparse.Namespace) -> Plan:
    from frontrank.comparison.plan import read_plan

    recipe = None if options.recipe is None else read_recipe(find_recipe(options.recipe))
    ways = {"losses": options.losses, "axes": options.axis or [], "lrs": options.lr}
    seeds, steps = 3 if options.seeds is None else options.seeds, options.search_iterations or 0
    reference = options.reference or ""
    return read_plan(recipe, overrides(options), **ways, seeds=seeds, search_steps=steps, reference=reference)


def _print_plan(plan: Plan, folder: Path, quiet: bool) -> None:
    """Print what would be done."""
    from frontrank.comparison.runner import prepare, run_count

    images = prepare(plan, show=False if quiet else None)
    print(f"{images.table.describe()}\n")
    for note in images.notes:
        print(note)
    width = max(len(way.name) for way in plan.ways)
    for way in plan.ways:
        changes = ", ".join(f"{name} {value}" for name, value in way.settings.items())
        rates = " or ".join(f"{lr:g}" for lr in way.lrs)
        print(f"{way.name:{width}}  learning rate {rates}; {changes or 'the base'}")
    steps, epochs = plan.base.iterations, plan.base.epochs
    unit = format_count(steps, "iteration") if steps else format_count(epochs, "epoch")
    shorter = f", of {format_count(plan.search_steps, 'iteration')} in a search" if plan.search_steps else ""
    runs, seeds = format_count(run_count(plan), "run"), format_count(plan.seeds, "seed")
    print(f"\n{runs} of {unit}{shorter}; {seeds}; into {folder}")
