"""What `frontrank report` does with its options: writes the report of a run or a comparison, and says what is in it.

A run may be that of a detector; its report is the page of `frontrank detect evaluate`.
"""

import argparse
from pathlib import Path

from frontrank.cli.rows import print_page, say
from frontrank.errors import InputError
from frontrank.files import atomic_write
from frontrank.reporting.run import RunReport, read_run, require_target, write_run_report


def report_run(options: argparse.Namespace) -> None:
    """The report of a run."""
    if read_run(Path(options.run)).get("kind") == "detection":
        report_detection(options)
        return
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
    print_page(written.path, options.quiet)


def report_detection(options: argparse.Namespace) -> None:
    """The report of a detector's run."""
    from frontrank.detection.report import require_page, write_detection_page
    from frontrank.detection.run import evaluate_detector, find_detector

    if options.no_before:
        raise InputError(f"--no-before is of a model that ranks, and {options.run} trained a detector; leave it out")
    page = Path(options.out) if options.out else Path(options.run) / "report.html"
    require_page(page, options.overwrite)
    place = find_detector(options.run)
    config, show = place.config(), False if options.quiet else None
    workers = 2 if config is None else config.data.workers
    evaluated = evaluate_detector(place, options.data, device=options.device, workers=workers, show=show)
    write_detection_page(page, place, evaluated, show)
    for note in evaluated.report.notes:
        say(False, f"note: {note}")
    if not options.quiet:
        print(evaluated.report.table())
    print_page(page, options.quiet)


def report_comparison(options: argparse.Namespace) -> None:
    """The report of a comparison."""
    from frontrank.comparison.report import comparison_page
    from frontrank.comparison.results import read_comparison

    page = Path(options.out) if options.out else Path(options.run) / "report.html"
    require_target(page, options.overwrite)
    atomic_write(page, comparison_page(read_comparison(Path(options.run))).encode())
    print_page(page, options.quiet)


def _said(written: RunReport) -> str:
    """The headline table, and the notes."""
    table = written.after.table() if written.change is None else written.change.table()
    return "\n".join([table, *(f"note: {note}" for note in written.notes), ""])
