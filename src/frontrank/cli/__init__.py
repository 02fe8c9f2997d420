"""The command `frontrank`: finds the subcommand, and turns what goes wrong into one line and an exit status.

Each subcommand is a module with `add_arguments(parser)` and `run(options)`. It is imported only when it is called for,
and imports torch only once its options are read, so that `--help` is quick.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, NoReturn, cast

from frontrank.errors import FrontrankError, FrontrankWarning, InterruptedRunError

_COMMANDS = {
    "demo": "see it work: real pictures, a trained model, a report, in minutes",
    "train": "train a model on a folder of images, a table or a published data set",
    "evaluate": "how well a model or embeddings rank: exact metrics with intervals, and comparisons",
    "compare": "train with several losses or settings on the same images: which ranks best?",
    "report": "a page that shows what a run has learnt: metrics, curves, ranked pictures, a map",
    "embed": "embed images with a trained model",
    "index": "put images into an index, here or on a server; a second call takes up what is new",
    "search": "the images of an index that are nearest to a picture: a table, JSON, a contact sheet",
    "serve": "a page to search an index by picture, and a JSON API beside it",
    "data": "build data sets of real pictures; look at images before training",
    "detect": "find objects in pictures: train a detector with an AP loss, evaluate it, use it",
}
_OUT_OF_MEMORY = "out of memory; free some, or use a machine or --device that has more (train: or --batches.chunk)"
_INTERRUPTED, _BROKEN_PIPE, _REFUSED = 130, 141, 2  # exit statuses, the first two as of a shell's commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process, and give its exit status."""
    return call_with_pipe(partial(_status, list(sys.argv[1:] if argv is None else argv)))


def call_with_pipe(command: Callable[[], int]) -> int:
    """Call a command and return its exit status, also where nobody reads its output to the end."""
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # a reader that has gone away shows here, and not after the end
    except BrokenPipeError:
        with suppress(OSError):  # else Python complains once more when it closes stdout
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _status(arguments: list[str]) -> int:
    command = next((word for word in arguments if not word.startswith("-")), None)
    parser, commands = _parser()
    if command is None:
        parser.parse_args(arguments)
        parser.print_help()
        return 0
    if command not in _COMMANDS:
        parser.error(f"there is no command {command!r}{_nearest(command, _COMMANDS)}")
    module = import_module(f"frontrank.cli.{command}")
    module.add_arguments(commands[command])
    options = commands[command].read(parser, arguments)
    return run_command(f"frontrank {command}", partial(module.run, options))


def run_command(name: str, run: Callable[[], None]) -> int:
    """Run a command and return its exit status; an error is one line that begins with the command's name."""
    try:
        with warnings.catch_warnings():  # whoever calls this from Python gets back what they had
            warnings.showwarning = partial(_show_warning, warnings.showwarning, name)
            run()
    except KeyboardInterrupt:
        return _said(name, "interrupted", _INTERRUPTED)
    except BrokenPipeError:
        raise
    except FrontrankError as error:
        return _said(name, str(error), _INTERRUPTED if isinstance(error, InterruptedRunError) else _REFUSED)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return _said(name, _OUT_OF_MEMORY, _REFUSED)
    return 0


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        also = " See" if message.endswith("?") else "; see"
        self.exit(_REFUSED, f"{self.prog}: {message}{also} {self.prog} --help\n")

    def read(self, whole: "Parser", arguments: list[str]) -> argparse.Namespace:
        """The options of this subcommand among the arguments of the whole command."""
        options, rest = whole.parse_known_args(arguments)
        for word in rest:
            if word.startswith("-"):
                option = word.partition("=")[0]
                self.error(f"there is no option {option}{_nearest(option, self._option_string_actions)}")
        if rest:
            self.error(f"{rest[0]!r} is one argument too many")
        return options


class Action(Parser):
    """The parser of an action of a subcommand, which says itself what is wrong with the words it is given."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return self.read(cast(Parser, super()), args), []


def _parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole command, and those of its subcommands, still without arguments."""
    from frontrank import __version__

    parser = Parser("frontrank", description="Image search that puts the right images first.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"frontrank {__version__}")
    parser.epilog = "frontrank COMMAND --help explains a command and shows examples"
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    own: Any = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
    return parser, {name: commands.add_parser(name, help=text, **own) for name, text in _COMMANDS.items()}


def _nearest(word: str, words: Iterable[str]) -> str:
    near = get_close_matches(word, list(words), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _said(command: str, message: str, status: int) -> int:
    print(f"{command}: {' '.join(message.splitlines())}", file=sys.stderr)
    return status


def _show_warning(
    other: Callable[..., None], command: str, message: Warning | str, category: type[Warning], *rest: Any
) -> None:
    """Ours in one line, without the place in the code that raised it."""
    if issubclass(category, FrontrankWarning):
        _said(command, f"warning: {message}", 0)
    else:
        other(message, category, *rest)


def _is_out_of_memory(error: BaseException) -> bool:
    """Also of torch, which raises a RuntimeError where the memory is the machine's own."""
    return isinstance(error, MemoryError) or "out of memory" in str(error) or "allocate memory" in str(error)
