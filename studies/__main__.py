"""`python -m studies`: list the studies, or run one, from a checkout."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.cli import Parser, run_command
from frontrank.errors import InputError
from studies import all_studies, find_study

if TYPE_CHECKING:
    from studies.study import Study

COMMAND = "python -m studies"
DESCRIPTION = """\
Why do losses on ranks work? Each study takes up a figure or a table of one of
the papers, measures it again here, draws it, and says whether it agrees.
Without a name, all studies are listed."""
EPILOG = """\
examples:
  python -m studies
  python -m studies smooth-ap-indicator
  python -m studies pnp-circle --quick --out circle
  python -m studies pnp-circle --redraw --out circle
  python -m studies pnp-designer --derivative "1/(1+R)^2"

A study that trains takes minutes to hours. If it is stopped, the same command
continues it.
"""
_OPTIONS = ("out", "quick", "seed", "seeds", "data", "derivative", "redraw", "quiet")
_OPTIONS_OF_REDRAW = ("out", "redraw", "quiet")
_LARGEST_SEED = 2**31 - 1  # which training runs accept, too


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process; return its exit status."""
    return run_command(lambda: (COMMAND, partial(run, make_parser().parse_args(argv))))


def make_parser() -> Parser:
    """Return the parser of the command."""
    usage = f"{COMMAND} [NAME] [--out DIR] [--quick] [--seed N] [--seeds N] [--data PATH] [--derivative TEXT] "
    parser = Parser(
        COMMAND,
        usage=usage + "[--redraw] [--quiet]",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="which study; without it, all are listed")
    parser.add_argument("--out", metavar="DIR", help="folder for the results; default runs/studies/NAME")
    parser.add_argument("--quick", action="store_true", help="a small version, for a first look")
    parser.add_argument("--seed", metavar="N", type=int, help="seed of everything random; default 0")
    parser.add_argument("--seeds", metavar="N", type=int, help="runs of each setting, in studies that train; default 3")
    parser.add_argument(
        "--data", metavar="PATH", default="", help="images, in studies that need some; default: emoji or glyphs"
    )
    parser.add_argument("--derivative", metavar="TEXT", default="", help="pnp-designer only: f'(R), as '1/(1+R)^2'")
    parser.add_argument("--redraw", action="store_true", help="measure nothing; draw the results of --out again")
    parser.add_argument("--quiet", action="store_true", help="print only the path of the page, and errors")
    return parser


def run(options: argparse.Namespace) -> None:
    """List the studies, or run one."""
    if options.name is None:
        for name in _given_options(options):
            raise InputError(f"--{name} has no effect without NAME; leave it out, or name a study")
        print(format_list(list(all_studies().values())))
        return
    from studies.study import RESULTS, Effort, redraw_study, run_study

    study = find_study(options.name)
    _check_options(options, study)
    out = Path(options.out or f"runs/studies/{study.name}")
    if options.redraw:
        page = redraw_study(study, out)
    else:
        effort = Effort(
            out / "work",
            options.quick,
            seed=options.seed or 0,
            seeds=Effort.seeds if options.seeds is None else options.seeds,
            data=options.data,
            show=False if options.quiet else None,
            derivative=options.derivative,
        )
        page = run_study(study, out, effort, _command_line(options, study))
    if not options.quiet:
        print(page.read_text(encoding="utf-8"))
    print(page if options.quiet else f"page: {page}    figures, as SVG and PNG, and {RESULTS} are beside it")


def _check_options(options: argparse.Namespace, study: "Study") -> None:
    """Refuse numbers out of range, and options that would change nothing."""
    if options.seed is not None and not 0 <= options.seed <= _LARGEST_SEED:
        bound = "at least 0" if options.seed < 0 else f"at most {_LARGEST_SEED}"
        raise InputError(f"--seed must be {bound}, got {options.seed}")
    if options.seeds is not None and options.seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {options.seeds}")
    for name, is_given in (("data", bool(options.data)), ("seeds", options.seeds is not None)):
        if is_given and name not in study.takes:
            raise InputError(f"--{name} has no effect on {study.name}; leave it out")
    if options.seeds is not None and options.quick:
        raise InputError("--seeds has no effect beside --quick, which has one seed; leave one out")
    if options.derivative and study.name != "pnp-designer":
        raise InputError(f"--derivative has an effect on pnp-designer only, not on {study.name}; leave it out")
    for name in _given_options(options) if options.redraw else ():
        if name not in _OPTIONS_OF_REDRAW:
            raise InputError(f"--{name} has no effect beside --redraw, which measures nothing; leave one out")


def _given_options(options: argparse.Namespace) -> list[str]:
    values = {name: getattr(options, name) for name in _OPTIONS}
    return [name for name, value in values.items() if value not in ("", None) and value is not False]  # 0 is a seed


def format_list(studies: "list[Study]") -> str:
    """Return a table with one line for each study."""
    rows = [(each.name, each.paper, each.shows, _format_time(each.minutes), each.title) for each in studies]
    heads = ("NAME", "PAPER", "THERE", "TAKES", "")
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(4)]
    return "\n".join(
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in (heads, *rows)
    )


def _format_time(minutes: float) -> str:
    if minutes < 1:
        return f"{round(minutes * 60)} s"
    return f"{minutes / 60:.1f} h" if minutes >= 60 else f"{round(minutes)} min"


def _command_line(options: argparse.Namespace, study: "Study") -> str:
    """Return the command as a reader would type it: without defaults and without the folder."""
    from studies.study import Effort

    words = [*COMMAND.split(), study.name]
    words += ["--quick"] if options.quick else []
    words += ["--seed", str(options.seed)] if options.seed else []
    words += ["--seeds", str(options.seeds)] if options.seeds not in (None, Effort.seeds) else []
    words += ["--data", options.data] if options.data else []
    words += ["--derivative", options.derivative] if options.derivative else []
    return shlex.join(words)


if __name__ == "__main__":
    sys.exit(main())
