"""`frontrank report`: its options and examples."""

import argparse
from pathlib import Path

from frontrank.errors import InputError

DESCRIPTION = """\
One HTML file that shows what a run has learnt, beside the model it began with:
metrics with intervals, curves, ranked rows of pictures, a map of the embedding.
Its images are the run's test images, or its held-out classes if it has none.
Of the folder of a comparison it is the report of that, of a detector's run the
page of its test pictures. The file needs nothing else: it can be sent to
somebody."""

EPILOG = """\
examples:
  frontrank report runs/first
  frontrank report runs/first --out first.html --no-before
  frontrank report runs/first --data my_photos --out photos.html
  frontrank report comparisons/losses
  frontrank report runs/detect

The metrics are written beside the file, as report.before.json and
report.after.json. The embeddings are kept in RUN/report: a second report is quick.
"""
RESULTS = "results.json"  # what the folder of a comparison holds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank report RUN [--out FILE] [--data PATH] [--no-before] [--overwrite]"
    parser.add_argument("run", metavar="RUN", help="folder of a run (--out of frontrank train), or of a comparison")
    parser.add_argument("--out", metavar="FILE", help="where to write it; RUN/report.html by default")
    parser.add_argument("--data", metavar="PATH", help="report on these images instead: a folder, a table, a data set")
    parser.add_argument("--no-before", action="store_true", help="show the trained model only")
    parser.add_argument("--overwrite", action="store_true", help="replace a page that is no report")
    parser.add_argument("--device", metavar="NAME", default="auto", help="where to embed: auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("--quiet", action="store_true", help="nothing but the path of the file, and errors")


def run(options: argparse.Namespace) -> None:
    """Write the report and say where it is."""
    of_comparison = (Path(options.run) / RESULTS).is_file()
    if of_comparison and (options.data is not None or options.no_before):
        option = "--no-before" if options.data is None else "--data"
        raise InputError(f"{option} is of a run's report, and {options.run} holds a comparison; leave it out")
    from frontrank.cli import reporting  # torch, from here on

    (reporting.report_comparison if of_comparison else reporting.report_run)(options)
