"""Train a model to rank: images with the same label come first. Classes held out of the training images choose the
checkpoint; test images are never looked at.

images:
  a folder     root/class/image.jpg or root/category/class/image.jpg, and
               optionally train/, validation/, test/ above the classes
  a table      .csv or .parquet with the columns path and label, and optionally
               category, split, role
  a data set   its root: Stanford Online Products, In-Shop, VehicleID, ...

examples:
  frontrank train --data my_photos --out runs/first
  frontrank train --data my_photos --out runs/first --minutes 10
  frontrank train --data my_photos --out runs/first --dry-run
  frontrank train --recipe pnp-sop --data Stanford_Online_Products
  frontrank train --recipe pnp-sop --data Stanford_Online_Products \\
      --loss.temperature 0.02 --batches.size 384 --batches.chunk 64
  frontrank train --data my_photos --model.weights resnet18.safetensors \\
      --model.backbone resnet18 --loss.name SmoothAP
  frontrank train --resume runs/first
  torchrun --nproc-per-node 2 -m frontrank train --data my_photos

All settings are listed above with their defaults. A recipe is a YAML file of those that differ; frontrank train
--recipes lists the ones that are included.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrank.checks import format_count
from frontrank.cli.inputs import PrintNames, refuse_options
from frontrank.errors import InputError, InterruptedRunError
from frontrank.settings import Kind, TrainConfig, as_yaml, find_recipe, read_config, read_recipe, recipe_names, settings

if TYPE_CHECKING:
    from frontrank.training.loop import Standing
    from frontrank.training.run import RetrievalRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "frontrank train --data PATH [--recipe NAME] [--out DIR] ..."
    add_run_arguments(parser, "the images; see below", TrainConfig)


def run(options: argparse.Namespace) -> None:
    """Train, go on, or print the plan."""
    check_start(options, "images; give --data, a folder of images by class, a table, or the root of a data set")
    from frontrank.training.run import build_run, resume, train

    train_or_plan(options, TrainConfig, (train, resume, partial(build_run, remember=False)), _plan, _print_result)


def _print_result(standing: Standing, folder: Path) -> None:
    if standing.best is None:
        print(
            f"trained {format_count(standing.step, 'step')}; there were no held-out classes to choose a checkpoint by"
        )
    else:
        early = ", stopped early" if standing.stopped_early else ""
        print(
            f"trained {format_count(standing.step, 'step')}{early}; held-out classes: {standing.before:.4f} before, "
            f"{standing.best:.4f} at the best checkpoint (step {standing.best_step:,})"
            + (f", {standing.frozen['value']:.4f} frozen without a head" if standing.frozen else "")
        )
        if verdict := _verdict(standing):
            print(verdict)
    model = shlex.quote(str(folder / "model"))
    print(f"model: {model}    try: frontrank evaluate {model} --data PATH")


def _verdict(standing: Standing) -> str:
    """Return what to try if training did not help, or what it changed if only the tie breaker is better."""
    before, best = (standing.before, standing.before_tie_breaker), (standing.best, standing.best_tie_breaker)
    remedy = "a lower --optimizer.lr, more time (--minutes), more classes, or another --backbone"
    failure = "training did not help on the held-out classes"
    if standing.frozen is not None and standing.is_frozen_best:
        stage, pooling = standing.frozen["stage"], standing.frozen["pooling"]
        frozen = f"the frozen backbone without a head (model.stage {stage}, model.pooling {pooling})"
        chance = f"by more than the {standing.frozen.get('margin', 0):.3f} that chance may make"
        return f"{failure}: the model is {frozen}, as no step ranks them better {chance}; try {remedy}"
    if standing.best_step == 0:
        step_0 = "the model is that of step 0, the backbone as it was with a head fitted to its features"
        return f"{failure}: {step_0}; try {remedy}"
    if best == before:
        return f"{failure}; try {remedy}"
    if best[0] == before[0]:
        rise = f"rose from {before[1]:.4f} to {best[1]:.4f}"
        return f"mAP of the held-out classes, which decides between equal values, {rise}"
    return ""


def _plan(run: RetrievalRun, steps: str, weights: str) -> tuple[str, dict[str, str]]:
    config, batches = run.config, run.config.batches
    return run.images.all.describe(), {
        "batches": f"{batches.size} images each ({batches.kind}), {steps}",
        "model": f"{config.model.backbone}, {weights}, {run.model.dim} dimensions; {run.model.origin}",
        "loss": str(run.loss),
        "precision": config.precision,
        "memory": _memory(run),
    }


def _memory(run: RetrievalRun) -> str:
    """Return what a batch takes, and whether it fits."""
    import torch

    from frontrank.training import distributed
    from frontrank.training.defaults import images_that_fit

    size = run.config.data.size
    each, most = images_that_fit(run.model, torch.zeros(2, 3, size, size, device=run.device), run.device)
    own = math.ceil(run.config.batches.size / distributed.world_size())
    text = f"images of a batch {own * 3 * size**2 / 1e6:,.0f} MB; activations about {each / 1e6:,.1f} MB per image"
    if most is None:
        return f"{text}; the memory of this device is not known"
    chunk = min(run.config.batches.chunk or own, own)
    text += f"; about {most:,} images fit at once"
    if chunk <= most:
        return f"{text}, {chunk:,} are needed"
    if most < 1:
        return f"{text}; use a smaller model, data.size, or another device"
    return f"{text}, but {chunk:,} are asked for: set batches.chunk to {most:,} or less (the gradient stays exact)"


# What all commands that train share

_SHORT = {"backbone": "model.backbone", "weights": "model.weights"}


def add_run_arguments(parser: argparse.ArgumentParser, data: str, kind: Kind) -> None:
    """Add the options of a training run, and every setting of its kind; `data` is the help of --data."""
    parser.add_argument("--data", metavar="PATH", help=data)
    parser.add_argument("--recipe", metavar="NAME", help="a recipe's name, or a YAML file")
    names = partial(recipe_names, kind)
    parser.add_argument("--recipes", action=PrintNames, nargs=0, const=names, help="list the recipes and exit")
    parser.add_argument("--out", metavar="DIR", help="new folder for the run; runs/NAME by default")
    parser.add_argument("--resume", metavar="DIR", help="go on with the run in this folder")
    parser.add_argument("--restart", action="store_true", help="with --resume: delete its checkpoints, begin again")
    add_common_arguments(parser)
    add_settings(parser, kind)


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that frontrank compare has, too."""
    parser.add_argument("--backbone", metavar="NAME", help="short for --model.backbone")
    parser.add_argument("--weights", metavar="VALUE", help="short for --model.weights")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, train nothing")
    parser.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    parser.add_argument("--quiet", action="store_true", help="print nothing but results and errors")


def add_settings(parser: argparse.ArgumentParser, kind: Kind, *, in_help: bool = True) -> None:
    """Add every setting of a run as an option by its full name."""
    groups = {"": parser.add_argument_group("the run")}
    for name, setting in settings(kind).items():
        if name in ("data.path", "data.allow_partial"):  # --data, --allow-partial
            continue
        group = name.rpartition(".")[0]
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        value = ", ".join(map(str, setting.default)) if isinstance(setting.default, tuple) else setting.default
        default = "" if value in (None, "") else f" [{value}]"
        text = (setting.help + default).replace("%", "%%") if in_help else argparse.SUPPRESS
        groups[group].add_argument(f"--{name}", dest=name, metavar="VALUE", help=text)


def check_start(options: argparse.Namespace, missing: str) -> None:
    """Raise if there is nothing to train on, which `missing` names, or if --resume stands beside what it replaces."""
    if options.resume is None and options.data is None and options.recipe is None:
        raise InputError(f"there are no {missing}")
    if options.resume is None:
        refuse_options(options, ["restart"], "needs --resume; add it, or leave out --restart")
    else:
        reason = "does not go with --resume, which takes it from the run's folder; leave it out"
        refuse_options(options, ["recipe", "out", "dry_run", "allow_partial"], reason)


def train_or_plan(
    options: argparse.Namespace,
    kind: Kind,
    functions: tuple[Callable[..., Standing], Callable[..., Standing], Callable[..., Any]],
    plan: Callable[[Any, str, str], tuple[str, dict[str, str]]],
    print_result: Callable[[Standing, Path], None],
) -> None:
    """Train, go on, or print the plan.

    functions: what trains, what goes on with a run, and what builds a run without starting it
    plan:      describes the data of a run, and its parts, given its steps and its number of weights
    """
    from frontrank.training import distributed
    from frontrank.training.checkpoints import remove_checkpoints
    from frontrank.training.loop import steps_of
    from frontrank.training.run import processes, read_run_config, require_new

    train, resume, build = functions
    if options.resume is not None:
        folder, changes = Path(options.resume), overrides(options, kind)
        if options.restart:
            read_run_config(folder, changes, kind)  # a command that is refused deletes nothing
            remove_checkpoints(folder / "checkpoints")
        work = partial(resume, folder, changes)
    else:
        recipe = None if options.recipe is None else read_recipe(find_recipe(options.recipe, kind), kind)
        config = read_config(recipe, overrides(options, kind), kind)
        name = options.recipe or f"{Path(config.data.path).resolve().stem}-{config.loss.name}.yaml"
        folder = Path(options.out or Path("runs") / Path(name).stem)
        work = partial(train, config, folder)
    if options.dry_run:
        require_new(folder)
        with processes(config.device) as device:
            run = build(config, folder, device, quiet=options.quiet)
            if distributed.is_main():
                steps = f"{len(run.sampler):,} an epoch; {steps_of(run):,} steps"
                weights = f"{sum(each.numel() for each in run.model.parameters()) / 1e6:.1f} M weights"
                data, lines = plan(run, steps, weights)
                lines |= {"device": f"{device}, {distributed.world_size()} process(es)", "out": str(folder)}
                text = "".join(f"{name:9} {line}\n" for name, line in lines.items())
                print(f"{data}\n\n{text}\nsettings, as a recipe:\n\n{as_yaml(run.config)}", end="")
        return
    try:
        standing = work(quiet=options.quiet)
    except InterruptedRunError as error:
        hint = f"go on with: {kind.command} --resume {shlex.quote(str(folder))}"
        raise InterruptedRunError(f"{error}; {hint}") from error
    if os.environ.get("RANK", "0") == "0":
        print_result(standing, folder)


def overrides(options: argparse.Namespace, kind: Kind = TrainConfig) -> dict[str, str]:
    """Return the settings of the command line."""
    values = {name: value for name in settings(kind) if (value := getattr(options, name, None)) is not None}
    for short, name in _SHORT.items():
        if (value := getattr(options, short, None)) is not None and values.setdefault(name, value) != value:
            raise InputError(f"--{short} is {value} and --{name}, the same setting, is {values[name]}; leave one out")
    if options.data is not None:
        values["data.path"] = options.data
    if options.allow_partial:
        values["data.allow_partial"] = "true"
    return values
