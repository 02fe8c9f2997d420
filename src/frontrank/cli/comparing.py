"""What `frontrank compare` does with its options: compare, go on, or print the plan."""

import argparse
import shlex
import sys
from pathlib import Path

from frontrank.cli.train import overrides
from frontrank.comparison.plan import Plan, read_plan
from frontrank.comparison.results import comparison_table, write_page
from frontrank.comparison.runner import compare, prepare, resume_comparison, run_count
from frontrank.errors import InputError
from frontrank.settings import find_recipe, read_recipe

_NOT_WITH_RESUME = ("losses", "axis", "lr", "search_iterations", "out", "recipe", "dry_run")


def run(options: argparse.Namespace) -> None:
    """Compare, go on, or print the plan."""
    if options.resume is not None:
        _refuse_beside_resume(options)
        folder = Path(options.resume)
        compared = resume_comparison(
            folder, seeds=options.seeds, reference=options.reference or "", quiet=options.quiet
        )
    else:
        plan = _plan(options)
        folder = Path(options.out) if options.out else Path("comparisons") / _default_name(plan)
        if options.dry_run:
            _print_plan(plan, folder, quiet=options.quiet)
            return
        command = shlex.join(["frontrank", *sys.argv[1:]])
        compared = compare(plan, folder, command=command, quiet=options.quiet)
    print(f"{compared.title}\n{comparison_table(compared)}\n", flush=True)
    print(f"results: {shlex.quote(str(folder / 'results.md'))}, .csv and .json", flush=True)
    print(f"report: {shlex.quote(str(write_page(folder, compared)))}", flush=True)
    if not any(entry.values for entry in compared.entries):
        first = compared.entries[0]
        raise InputError(f"no entry has a result ({first.name}: {first.failed}); mend it, then --resume {folder}")


def _plan(options: argparse.Namespace) -> Plan:
    return read_plan(
        None if options.recipe is None else read_recipe(find_recipe(options.recipe)),
        overrides(options),
        losses=options.losses,
        axes=options.axis,
        lrs=options.lr,
        seeds=3 if options.seeds is None else options.seeds,
        search_steps=options.search_iterations or 0,
        reference=options.reference or "",
    )


def _default_name(plan: Plan) -> str:
    return plan.title.replace(", ", "-").replace(" ", "-")


def _refuse_beside_resume(options: argparse.Namespace) -> None:
    given = [option for option in _NOT_WITH_RESUME if getattr(options, option)]
    given += list(overrides(options))
    if given:
        flag = "--data" if given[0] == "data.path" else "--" + given[0].replace("_", "-")
        raise InputError(f"{flag} does not go with --resume, which takes all from the folder; leave it out")


def _print_plan(plan: Plan, folder: Path, *, quiet: bool) -> None:
    """What would be done."""
    found = prepare(plan, show=False if quiet else None)
    print(f"{found.table.describe()}\n")
    for note in found.notes:
        print(note)
    width = max(len(way.name) for way in plan.ways)
    for way in plan.ways:
        said = ", ".join(f"{name} {value}" for name, value in way.settings.items())
        rates = " or ".join(f"{lr:g}" for lr in way.lrs)
        print(f"{way.name:{width}}  learning rate {rates}; {said or 'the base'}")
    unit = f"{plan.base.iterations:,} iterations" if plan.base.iterations else f"{plan.base.epochs:,} epochs"
    shorter = f", of {plan.search_steps:,} iterations in a search" if plan.search_steps else ""
    print(f"\n{run_count(plan):,} runs of {unit}{shorter}; {plan.seeds} seeds; into {folder}")
