"""What `frontrank demo` does, and what it says of it."""

import argparse
import shlex
import time
from pathlib import Path

from frontrank.cli.demo_job import RECIPE, demo_config, demo_images, demo_run, own_options, train_demo
from frontrank.errors import InterruptedRunError
from frontrank.reporting.run import RunReport, loss_name, write_run_report
from frontrank.settings import TrainConfig, value_of
from frontrank.training.loop import Standing


def run(options: argparse.Namespace) -> None:
    """Build, train, report."""
    started, out = time.monotonic(), Path(options.out)
    _say("1 of 3: pictures of emoji, each as up to eight vendors draw it")
    images = demo_images(out, options.classes)
    print(images.describe())
    config = demo_config(images, options.iterations)
    folder = demo_run(out, config)
    _say(f"2 of 3: training {_training(config)}")
    standing = _trained(config, folder)
    _say("3 of 3: ranking the emoji that it has never seen, before and after")
    report = write_run_report(folder)
    _print_end(report, standing, folder, images.root, own_options(config))
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(f"\nall of it took {minutes} min {seconds} s")


def _trained(config: TrainConfig, folder: Path) -> Standing:
    try:
        return train_demo(config, folder)
    except InterruptedRunError as error:
        raise InterruptedRunError(f"{error}; the same command again goes on from there") from error


def _training(config: TrainConfig) -> str:
    """The network, the loss and the time, in a line."""
    return (
        f"{config.model.backbone} with {loss_name(config.loss)}, temperature {value_of(config, 'loss.temperature')}, "
        f"{config.iterations} steps at {config.data.size} px (recipe {RECIPE})"
    )


def _say(line: str) -> None:
    print(f"\n{line}\n", flush=True)


def _print_end(report: RunReport, standing: Standing, run: Path, images: Path, own: str) -> None:
    """The figures, where things are, and what to try next."""
    if report.change is not None:
        print(f"{report.change.table()}\n")
    if report.before is not None and report.before["R@1"] > 0:
        before, after = report.before["R@1"], report.after["R@1"]
        print(f"R@1 on unseen emoji: {before:.1%} before, {after:.1%} after ({after / before - 1:+.0%})")
    if standing.best is not None:
        print(f"the checkpoint of step {standing.best_step} was the best on held-out training classes")
    model, data = shlex.quote(str(run / "model")), shlex.quote(str(images))
    index = shlex.quote(str(run / "emoji.index"))  # beside its model: that of another run would be refused
    print(f"""
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
    frontrank train --recipe {RECIPE} --data {data}{own} --loss.variant D_s --out runs/d_s
    frontrank compare --recipe {RECIPE} --data {data}{own} --losses PNP-D_q,SmoothAP,triplet --out comparisons/emoji
  exact metrics of the model on any images:
    frontrank evaluate {model} --data {data}""")
