"""Write one HTML file that shows what a run has learnt, beside the model it began with: metrics with intervals, curves,
ranked rows of pictures, a map of the embedding. Its images are the run's test images, or its held-out classes if it has
none. RUN can also be the folder of a comparison, or of a detector's run. The file needs no other files: it can be sent
to somebody.

examples:
  frontrank report runs/first
  frontrank report runs/first --out first.html --no-before
  frontrank report runs/first --data my_photos --out photos.html
  frontrank report comparisons/losses
  frontrank report runs/detect

The metrics are written beside the file, as report.before.json and report.after.json. The embeddings are kept in
RUN/report: a second report is quick.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from frontrank.cli.inputs import add_running_arguments, print_page, refuse_options, say
from frontrank.files import atomic_write

RESULTS = "results.json"  # of the folder of a comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "frontrank report RUN [--out FILE] [--data PATH] [options]"
    parser.add_argument("run", metavar="RUN", help="folder of a run (--out of frontrank train), or of a comparison")
    parser.add_argument("--out", metavar="FILE", help="where to write it; RUN/report.html by default")
    parser.add_argument("--data", metavar="PATH", help="report on these images instead: a folder, a table, a data set")
    parser.add_argument("--no-before", action="store_true", help="show the trained model only")
    parser.add_argument("--overwrite", action="store_true", help="replace a page that is no report")
    add_running_arguments(parser, quiet="the path of the file, and errors")


def run(options: argparse.Namespace) -> None:
    """Write the report and print where it is."""
    page = Path(options.out) if options.out else Path(options.run) / "report.html"
    if (Path(options.run) / RESULTS).is_file():
        reason = f"goes with a run, but {options.run} holds a comparison; leave it out"
        refuse_options(options, ["data", "no_before"], reason)
        return _report_comparison(options, page)
    from frontrank.training.run import read_facts

    if read_facts(Path(options.run)).get("kind") != "detection":
        return _report_run(options)
    reason = f"goes with a model that ranks, but {options.run} trained a detector; leave it out"
    refuse_options(options, ["no_before"], reason)
    _report_detection(options, page)


def _report_run(options: argparse.Namespace) -> None:
    from frontrank.reporting.run import write_run_report

    how = {"before": not options.no_before, "overwrite": options.overwrite, "show": False if options.quiet else None}
    report = write_run_report(options.run, options.out, data=options.data, device=options.device, **how)
    if not options.quiet:
        table = report.after.table() if report.change is None else report.change.table()
        print("\n".join([table, *(f"note: {note}" for note in report.notes), ""]))
    print_page(report.path, options.quiet)


def _report_detection(options: argparse.Namespace, page: Path) -> None:
    from frontrank.detection.report import require_page, write_detection_page
    from frontrank.detection.run import evaluate_detector, find_detector

    require_page(page, options.overwrite)
    place = find_detector(options.run)
    config, show = place.config(), False if options.quiet else None
    workers = 2 if config is None else config.data.workers
    result = evaluate_detector(place, options.data, device=options.device, workers=workers, show=show)
    write_detection_page(page, place, result, show)
    for note in result.report.notes:
        say(False, f"note: {note}")
    if not options.quiet:
        print(result.report.table())
    print_page(page, options.quiet)


def _report_comparison(options: argparse.Namespace, page: Path) -> None:
    from frontrank.comparison.report import render_comparison_page
    from frontrank.comparison.results import read_results
    from frontrank.reporting.run import require_target

    require_target(page, options.overwrite)
    atomic_write(page, render_comparison_page(read_results(Path(options.run))))
    print_page(page, options.quiet)
