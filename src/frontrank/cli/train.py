"""`frontrank train`: its options and examples. Every setting of a run is an option by its full name."""

import argparse
from typing import Any

from frontrank.errors import InputError
from frontrank.settings import Kind, TrainConfig, settings

DESCRIPTION = """\
Train a model to rank: images with the same label come first. Classes held out
of the training images choose the checkpoint; test images are never looked at."""

EPILOG = """\
images:
  a folder     root/class/image.jpg or root/category/class/image.jpg, and
               optionally train/, validation/, test/ above the classes
  a table      .csv or .parquet with the columns path and label, and optionally
               category, split, role
  a data set   its root: Stanford Online Products, In-Shop, VehicleID, ...

examples:
  frontrank train --data my_photos --out runs/first
  frontrank train --data my_photos --out runs/first --dry-run
  frontrank train --recipe pnp-sop --data Stanford_Online_Products
  frontrank train --recipe pnp-sop --data Stanford_Online_Products \\
      --loss.temperature 0.02 --batches.size 384 --batches.chunk 64
  frontrank train --data my_photos --model.weights resnet18.safetensors \\
      --model.backbone resnet18 --loss.name SmoothAP
  frontrank train --resume runs/first
  torchrun --nproc-per-node 2 -m frontrank train --data my_photos

Every setting stands above with its default. A recipe is a YAML file of those
that differ; frontrank train --recipes lists the ones that come along.
"""


_SHORT = {"backbone": "model.backbone", "weights": "model.weights"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank train --data PATH [--recipe NAME] [--out DIR] [--SETTING VALUE ...]"
    add_run_arguments(parser, "the images; see below", TrainConfig)


def add_run_arguments(parser: argparse.ArgumentParser, data: str, kind: Kind) -> None:
    """What every command takes that trains: where the data are, the run's folder, and every setting of its kind.

    data: what is said of --data
    """
    parser.add_argument("--data", metavar="PATH", help=data)
    parser.add_argument("--recipe", metavar="NAME", help="a recipe's name, or a YAML file")
    parser.add_argument("--recipes", action=ListRecipes, nargs=0, kind=kind, help="list the recipes and exit")
    parser.add_argument("--out", metavar="DIR", help="new folder for the run; runs/NAME by default")
    parser.add_argument("--backbone", metavar="NAME", help="short for --model.backbone")
    parser.add_argument("--weights", metavar="VALUE", help="short for --model.weights")
    parser.add_argument("--resume", metavar="DIR", help="go on with the run in this folder")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, train nothing")
    parser.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    parser.add_argument("--quiet", action="store_true", help="nothing but results and errors")
    add_settings(parser, kind=kind)


def add_settings(parser: argparse.ArgumentParser, *, shown: bool = True, kind: Kind = TrainConfig) -> None:
    """Every setting of a run as an option by its full name; not shown, they are taken without being in the help."""
    groups = {"": parser.add_argument_group("the run")}
    for name, setting in settings(kind).items():
        if name in ("data.path", "data.allow_partial"):  # --data, --allow-partial
            continue
        group = name.rpartition(".")[0]
        if group not in groups:
            groups[group] = parser.add_argument_group(_title(group, kind))
        default = "" if setting.default in (None, ()) else f" [{setting.default}]"
        says = (setting.help + default).replace("%", "%%")
        says = says if shown else argparse.SUPPRESS
        groups[group].add_argument(f"--{name}", dest=name, metavar="VALUE", help=says)


def run(options: argparse.Namespace) -> None:
    """Train, go on, or print the plan."""
    if options.resume is not None:
        refuse_beside_resume(options)
    elif options.data is None and options.recipe is None:
        raise InputError("there are no images; give --data, a folder of images by class, a table, or a data set's root")
    from frontrank.cli import training  # torch, from here on

    training.run(options)


def refuse_beside_resume(options: argparse.Namespace) -> None:
    """Refuse what a run that goes on has from its folder."""
    for option in ("recipe", "out", "dry_run", "allow_partial"):
        if getattr(options, option):
            flag = "--" + option.replace("_", "-")
            raise InputError(f"{flag} does not go with --resume, which takes all from the run's folder; leave it out")


def overrides(options: argparse.Namespace, kind: Kind = TrainConfig) -> dict[str, str]:
    """The settings given on the command line."""
    given = {name: value for name in settings(kind) if (value := getattr(options, name, None)) is not None}
    for short, name in _SHORT.items():
        if (value := getattr(options, short, None)) is not None and given.setdefault(name, value) != value:
            raise InputError(f"--{short} is {value} and --{name}, the same setting, is {given[name]}; leave one out")
    if options.data is not None:
        given["data.path"] = options.data
    if options.allow_partial:
        given["data.allow_partial"] = "true"
    return given


def _title(group: str, kind: Kind) -> str:
    part: object = kind()
    for name in group.split("."):
        part = getattr(part, name)
    return f"{group}: {(part.__doc__ or '').split('.')[0].lower()}"


class ListRecipes(argparse.Action):
    """Prints the recipes of a kind of settings and exits."""

    def __init__(self, *words: Any, kind: Kind = TrainConfig, **more: Any) -> None:
        super().__init__(*words, **more)
        self.kind = kind

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from frontrank.settings import recipe_names

        names = recipe_names(self.kind)
        width = max(map(len, names), default=0)
        for name, title in names.items():
            print(f"{name:{width}}  {title}")
        parser.exit()
