"""What `frontrank study` does with its options."""

import argparse
import shlex
from pathlib import Path

from frontrank.errors import InputError
from studies import all_studies, study_named
from studies.study import RESULTS, Effort, Study, redraw_study, run_study

_OPTIONS = ("out", "quick", "seed", "seeds", "data", "derivative", "redraw", "quiet")
_OF_REDRAW = ("out", "redraw", "quiet")
_MOST_SEED = 2**31 - 1  # that runs take, too


def run(options: argparse.Namespace) -> None:
    """List the studies, or do one."""
    if options.name is None:
        for name in _given(options):
            raise InputError(f"--{name} has no effect without NAME, which study to do; leave it out, or give one")
        print(list_text(list(all_studies().values())))
        return
    study = study_named(options.name)
    _check_numbers(options)
    _require_heeded(options, study)
    out = Path(options.out or f"studies/{study.name}")
    if options.redraw:
        page = redraw_study(study, out)
    else:
        show = False if options.quiet else None
        seeds = Effort.seeds if options.seeds is None else options.seeds
        seed = Effort.seed if options.seed is None else options.seed
        effort = Effort(out / "work", options.quick, seed, seeds, options.data, show, options.derivative)
        page = run_study(study, out, effort, _command(options, study))
    if not options.quiet:
        print(page.read_text(encoding="utf-8"))
    print(page if options.quiet else f"page: {page}    figures, as SVG and PNG, and {RESULTS} are beside it")


def _check_numbers(options: argparse.Namespace) -> None:
    if options.seed is not None and not 0 <= options.seed <= _MOST_SEED:
        bound = "at least 0" if options.seed < 0 else f"at most {_MOST_SEED}"
        raise InputError(f"--seed must be {bound}, got {options.seed}")
    if options.seeds is not None and options.seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {options.seeds}")


def _require_heeded(options: argparse.Namespace, study: Study) -> None:
    """Refuse options that would change nothing."""
    for name, is_given in (("data", bool(options.data)), ("seeds", options.seeds is not None)):
        if is_given and name not in study.takes:
            raise InputError(f"--{name} has no effect on {study.name}; leave it out")
    if options.seeds is not None and options.quick:
        raise InputError("--seeds has no effect beside --quick, which has one seed; leave one out")
    if options.derivative and study.name != "pnp-designer":
        raise InputError(f"--derivative is of pnp-designer, not of {study.name}; leave it out")
    for name in _given(options) if options.redraw else ():
        if name not in _OF_REDRAW:
            raise InputError(f"--{name} has no effect beside --redraw, which measures nothing; leave one out")


def _given(options: argparse.Namespace) -> list[str]:
    """The options that were given; 0 is a seed."""
    return [
        name for name in _OPTIONS if getattr(options, name) not in ("", None) and getattr(options, name) is not False
    ]


def list_text(studies: list[Study]) -> str:
    """A line for each study."""
    rows = [(each.name, each.paper, each.shows, _time(each.minutes), each.title) for each in studies]
    heads = ("NAME", "PAPER", "THERE", "TAKES", "")
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(4)]
    return "\n".join(
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in (heads, *rows)
    )


def _time(minutes: float) -> str:
    if minutes < 1:
        return f"{round(minutes * 60)} s"
    return f"{minutes / 60:.1f} h" if minutes >= 60 else f"{round(minutes)} min"


def _command(options: argparse.Namespace, study: Study) -> str:
    """The command as a reader would give it: what is not a default, and no folder."""
    words = ["frontrank", "study", study.name]
    words += ["--quick"] if options.quick else []
    words += ["--seed", str(options.seed)] if options.seed else []
    words += ["--seeds", str(options.seeds)] if options.seeds not in (None, Effort.seeds) else []
    words += ["--data", options.data] if options.data else []
    words += ["--derivative", options.derivative] if options.derivative else []
    return shlex.join(words)
