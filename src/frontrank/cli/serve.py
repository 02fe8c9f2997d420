"""`frontrank serve`: its options and examples."""

import argparse

from frontrank.errors import InputError

DESCRIPTION = """\
A page to search an index by picture: drop one on it, or click any result. With two
indexes, both answer the same query side by side. A JSON API is beside it (/api)."""

EPILOG = """\
Only this machine can reach the page, unless --host says otherwise; then a token is
needed, by --token or in the variable FRONTRANK_TOKEN, and who opens the page is
asked for it. There is no encryption: put a proxy with TLS before it.

examples:
  frontrank serve photos.index
  frontrank serve photos.index other.index --names ours,theirs --open
  frontrank serve photos.index --port 9000 --root my_photos --model runs/first/model
  frontrank serve photos.index --host 0.0.0.0 --token
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank serve URL [URL] [options]"
    parser.add_argument("urls", metavar="URL", nargs="+", help="one index, or two to compare; as of frontrank index")
    parser.add_argument("--names", metavar="A,B", help="what the page calls the indexes")
    parser.add_argument("--model", metavar="DIR", action="append", help="where the model is now; once for each index")
    parser.add_argument(
        "--root", metavar="DIR", action="append", help="show only pictures below this folder, not those of the index's"
    )
    parser.add_argument("--host", metavar="NAME", default="127.0.0.1", help="address to serve on; this machine only")
    parser.add_argument("--port", metavar="N", type=int, default=8000, help="8000 by default; 0 takes a free one")
    parser.add_argument("--token", metavar="TEXT", nargs="?", const="", help="ask for it; without TEXT one is made up")
    parser.add_argument("--upload-mb", metavar="N", type=float, default=10.0, help="largest upload; 10 by default")
    parser.add_argument("--seconds", metavar="S", type=float, default=30.0, help="most a request may take; 30")
    parser.add_argument("--requests", metavar="N", type=int, default=128, help="answered at once, others get 429; 128")
    parser.add_argument("--device", metavar="NAME", default="auto", help="such as cpu, cuda or cuda:1")
    parser.add_argument("--open", action="store_true", help="open the page in your browser")


def run(options: argparse.Namespace) -> None:
    """Serve until Ctrl-C."""
    if len(options.urls) > 2:
        raise InputError(f"serve takes one or two indexes, got {len(options.urls)}; leave out the others")
    if options.model and len(options.model) not in (1, len(options.urls)):
        raise InputError(f"--model is there {len(options.model)} times; give it once for each index")
    from frontrank.cli import serving  # torch, from here on

    serving.run(options)
