"""The command `frontrank`: runs a subcommand, and turns what goes wrong into one line and an exit status.

Each subcommand is a module that is imported only when it is called. Its docstring is the text of --help: the first
paragraph stands above the options, the others below. `add_arguments(parser)` adds the options, and `run(options)` does
the work; a command with several actions has a function for each of them instead, see `add_action`.
Heavy imports are inside the functions that use them: torch, numpy and timm take seconds to load, and `--help` or a
misspelt option must not wait for them. `import frontrank as fr` is free, as it loads a name when that is used.
"""

import argparse
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from inspect import cleandoc
from textwrap import fill
from typing import Any, NoReturn

from frontrank.checks import suggestion
from frontrank.errors import FrontrankError, FrontrankWarning, InterruptedRunError
from frontrank.version import __version__

COMMANDS = {
    "demo": "see it work: real pictures, a trained model, a report, in minutes",
    "train": "train a model on a folder of images, a table or a published data set",
    "adapt": "fit a ranking head to embeddings that exist already, in seconds",
    "evaluate": "measure how well a model or embeddings rank, with intervals",
    "compare": "train with several losses or settings: which ranks best?",
    "report": "write a page about a run: metrics, curves, ranked pictures, a map",
    "embed": "embed images with a trained model",
    "index": "put images into an index, here or on a server",
    "search": "find the images of an index that are nearest to a picture",
    "serve": "open a web page, and a JSON API, that search an index by picture",
    "export": "write a model as an ONNX file, also in int8, and measure its ranking",
    "data": "build data sets of real pictures; check images before training",
    "detect": "find objects in pictures: train a detector with an AP loss, use it",
}
_EPILOG = """\
examples:
  frontrank demo
  frontrank train --data my_photos --out runs/first
  frontrank report runs/first

frontrank COMMAND --help explains a command and shows more.
"""
_OUT_OF_MEMORY = "out of memory; free some, or use a machine or --device that has more (train: or --batches.chunk)"
_REFUSED, _INTERRUPTED, _BROKEN_PIPE = 2, 130, 141  # exit statuses; the last two are those of a shell


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these words, by default those of the process, and return its exit status."""

    def prepare() -> tuple[str, Callable[[], None]]:
        command, options = parse(sys.argv[1:] if argv is None else argv)
        return f"frontrank {command}", partial(options.action, options)

    return run_command(prepare)


def parse(words: Sequence[str]) -> tuple[str, argparse.Namespace]:
    """Return the subcommand and its options; exits on --help, --version and words that are not valid."""
    command = next(iter(words), "--help")
    if command not in COMMANDS:
        parser = Parser("frontrank", usage="frontrank COMMAND ...")
        if not command.startswith("-"):
            parser.error(f"there is no command {command!r}{suggestion(command, COMMANDS)}")
        width = max(map(len, COMMANDS))
        lines = "".join(f"\n  {name:{width}}  {text}" for name, text in COMMANDS.items())
        parser.description = f"Image search that puts the right images first.\n\ncommands:{lines}"
        parser.epilog = _EPILOG
        parser.add_argument("--version", action="version", version=f"frontrank {__version__}")
        parser.parse_args([command])
    module = import_module(f"frontrank.cli.{command}")
    parser = Parser(f"frontrank {command}", **_help_texts(module))
    parser.set_defaults(action=getattr(module, "run", None))
    module.add_arguments(parser)
    return command, parser.parse_args(words[1:])


class Parser(argparse.ArgumentParser):
    """Parser of a subcommand, or of an action of one, whose errors are one line."""

    def __init__(self, prog: str | None = None, **settings: Any) -> None:
        super().__init__(prog, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        """Exit with one line on stderr."""
        also = " See" if message.endswith("?") else "; see"
        self.exit(_REFUSED, f"{self.prog}: {message}{also} {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words of which none may be left over; argparse calls this for an action's words, too."""
        options, rest = super().parse_known_args(args, namespace)
        for word in rest:
            if word.startswith("-"):
                option = word.partition("=")[0]
                self.error(f"there is no option {option}{suggestion(option, self._option_string_actions)}")
        if rest:
            self.error(f"{rest[0]!r} is one argument too many")
        return options, rest


def add_action(actions: Any, name: str, run: Callable[[argparse.Namespace], None], summary: str) -> Parser:
    """Add an action to those of a command, and return its parser; the docstring of `run` is the text of its --help."""
    parser: Parser = actions.add_parser(name, help=summary, **_help_texts(run))
    parser.set_defaults(action=run)
    return parser


def _help_texts(place: object) -> dict[str, str]:
    """Return the paragraphs of a docstring for --help; those that have no indented line are filled."""
    paragraphs = cleandoc(place.__doc__ or "").split("\n\n")
    description, *others = [each if "\n " in each else fill(each, 79) for each in paragraphs]
    return {"description": description, "epilog": "\n\n".join(others)}


def run_command(prepare: Callable[[], tuple[str, Callable[[], None]]]) -> int:
    """Run a command and return its exit status; an error is one line that begins with the command's name.

    prepare: reads the options; returns the name of the command, and a function that runs it
    """
    try:
        try:
            return _run(*prepare())
        finally:
            sys.stdout.flush()  # a reader that has gone away shows here, and not after the end
    except BrokenPipeError:
        with suppress(OSError):  # else Python complains once more when it closes stdout
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _run(command: str, run: Callable[[], None]) -> int:
    try:
        with warnings.catch_warnings():  # whoever calls this from Python gets back what they had
            warnings.showwarning = partial(_show_warning, warnings.showwarning, command)
            run()
    except KeyboardInterrupt:
        return _print_error(command, "interrupted", _INTERRUPTED)
    except FrontrankError as error:
        return _print_error(command, str(error), _INTERRUPTED if isinstance(error, InterruptedRunError) else _REFUSED)
    except (MemoryError, RuntimeError) as error:  # torch raises a RuntimeError if the memory of the machine runs out
        if not isinstance(error, MemoryError) and not re.search("out of memory|allocate memory", str(error)):
            raise
        return _print_error(command, _OUT_OF_MEMORY, _REFUSED)
    return 0


def _print_error(command: str, message: str, status: int) -> int:
    print(f"{command}: {' '.join(message.splitlines())}", file=sys.stderr)
    return status


def _show_warning(other: Callable[..., None], command: str, message: Warning | str, category: Any, *rest: Any) -> None:
    """Print a warning of this package in one line, without the place in the code that raised it."""
    if issubclass(category, FrontrankWarning):
        _print_error(command, f"warning: {message}", 0)
    else:
        other(message, category, *rest)
