"""What `frontrank report` does with its options: writes the report of a run or a comparison, and says what is in it."""

import argparse
from pathlib import Path

from frontrank.jobs.run_report import RunReport, require_target, write_run_report
from frontrank.training.checkpoints import atomic_write


def report_run(options: argparse.Namespace) -> None:
    """The report of a run."""
    written = write_run_report(
        options.run,
        options.out,
        data=options.data,
        before=not options.no_before,
        overwrite=options.overwrite,
        device=options.device,
        show=False if options.quiet else None,
    )
    if not options.quiet:
        print(_said(written))
    _print_place(written.path, options.quiet)


def report_comparison(options: argparse.Namespace) -> None:
    """The report of a comparison."""
    from frontrank.jobs.comparison_results import read_comparison
    from frontrank.reporting.comparison_page import comparison_page

    page = Path(options.out) if options.out else Path(options.run) / "report.html"
    require_target(page, options.overwrite)
    atomic_write(page, comparison_page(read_comparison(Path(options.run))).encode())
    _print_place(page, options.quiet)


def _said(written: RunReport) -> str:
    """The headline table, and the notes."""
    table = written.after.table() if written.change is None else written.change.table()
    return "\n".join([table, *(f"note: {note}" for note in written.notes), ""])


def _print_place(page: Path, quiet: bool) -> None:
    print(page if quiet else f"report: {page}    open it in a browser")
