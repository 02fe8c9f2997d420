"""The command `frontrank`: runs a subcommand, and turns what goes wrong into one line and an exit status.

Each subcommand is a module with `add_arguments(parser)` and `run(options)`, and is imported only when it is called.
Its heavy imports are inside the functions that use them: torch, numpy and timm take seconds to load, and `--help` or a
misspelt option must not wait for them. `import frontrank as fr` is free, as it loads a name when that is used.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from frontrank import __version__
from frontrank.checks import suggestion
from frontrank.errors import FrontrankError, FrontrankWarning, InterruptedRunError

COMMANDS = {
    "demo": "see it work: real pictures, a trained model, a report, in minutes",
    "train": "train a model on a folder of images, a table or a published data set",
    "evaluate": "measure how well a model or embeddings rank: exact metrics with intervals",
    "compare": "train with several losses or settings on the same images: which ranks best?",
    "report": "write a page about a run: metrics, curves, ranked pictures, a map",
    "embed": "embed images with a trained model",
    "index": "put images into an index, here or on a server",
    "search": "find the images of an index that are nearest to a picture",
    "serve": "open a web page that searches an index by picture, with a JSON API beside it",
    "data": "build data sets of real pictures; check images before training",
    "detect": "find objects in pictures: train a detector with an AP loss, and use it",
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
        return f"frontrank {command}", partial(import_module(f"frontrank.cli.{command}").run, options)

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
    parser = Parser(f"frontrank {command}")
    import_module(f"frontrank.cli.{command}").add_arguments(parser)
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
    except BrokenPipeError:
        raise
    except FrontrankError as error:
        return _print_error(command, str(error), _INTERRUPTED if isinstance(error, InterruptedRunError) else _REFUSED)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return _print_error(command, _OUT_OF_MEMORY, _REFUSED)
    return 0


def _print_error(command: str, message: str, status: int) -> int:
    print(f"{command}: {' '.join(message.splitlines())}", file=sys.stderr)
    return status


def _show_warning(
    other: Callable[..., None], command: str, message: Warning | str, category: type[Warning], *rest: Any
) -> None:
    """Print a warning of this package in one line, without the place in the code that raised it."""
    if issubclass(category, FrontrankWarning):
        _print_error(command, f"warning: {message}", 0)
    else:
        other(message, category, *rest)


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; torch raises a RuntimeError where the memory is the machine's own."""
    return isinstance(error, MemoryError) or "out of memory" in str(error) or "allocate memory" in str(error)
