"""`frontrank search`: its options and examples."""

import argparse

from frontrank.cli.index import add_expansion_arguments, check_expansion
from frontrank.errors import InputError

DESCRIPTION = """\
The images of an index that are nearest to a query, best first. Where the query has
a label (--label, or it is in the index itself), hits that share it are marked."""

EPILOG = """\
filters: label=cat  label=cat|dog  category!=birds  year>=2020; all must hold

examples:
  frontrank search photos.index query.jpg
  frontrank search photos.index query.jpg -k 20 --filter label=cat --sheet found.png
  frontrank search photos.index queries/*.jpg --json > found.json
  frontrank search photos.index id:my_photos/cat/1.jpg
  frontrank search milvus://localhost:19530/photos query.jpg --no-expand
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank search URL QUERY... [-k N] [--filter FIELD=VALUE] [options]"
    parser.add_argument("url", metavar="URL", help="the index, as of frontrank index --to")
    parser.add_argument("queries", metavar="QUERY", nargs="+", help="an image file, or id:ID for an image of the index")
    parser.add_argument("-k", metavar="N", type=int, default=10, help="how many to find; 10 by default")
    parser.add_argument("--filter", metavar="F", action="append", default=[], help="only such items; see filters")
    parser.add_argument("--label", metavar="TEXT", help="of the queries: marks what is right")
    add_expansion_arguments(parser, "query expansion")
    parser.add_argument("--no-expand", action="store_true", help="no query expansion, also if the index has one")
    parser.add_argument("--model", metavar="MODEL", help="where the index's model is now, if it was moved")
    parser.add_argument("--json", action="store_true", help="write JSON instead of a table")
    parser.add_argument("--sheet", metavar="PNG", help="draw the queries and what was found")
    parser.add_argument("--force", action="store_true", help="let --sheet replace a file")
    parser.add_argument("--device", metavar="NAME", default="auto", help="such as cpu, cuda or cuda:1")


def run(options: argparse.Namespace) -> None:
    """Search, print, draw."""
    if options.no_expand and options.expand is not None:
        raise InputError("--expand and --no-expand exclude each other; leave one out")
    check_expansion(options)
    if options.k < 1:
        raise InputError(f"-k must be at least 1, got {options.k}")
    if options.force and options.sheet is None:
        raise InputError("--force is of --sheet; add that, or leave it out")
    from frontrank.cli import searching  # torch, from here on

    searching.run(options)
