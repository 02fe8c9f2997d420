"""`frontrank index`: its options and examples."""

import argparse

from frontrank.checks import check_number
from frontrank.cli.embed import add_reading_arguments
from frontrank.errors import InputError

DESCRIPTION = """\
Put images into an index that frontrank search and frontrank serve look into: a
folder, or a table of a Milvus or PostgreSQL server. Images that the index has with
the same content are passed over, so a second call takes up what is new, and one
that was stopped goes on. Broken images are named and left out; it is an error only
if nothing is left."""

EPILOG = """\
where to, by URL:
  photos.index                                a folder here (faiss); no server needed
  milvus://localhost:19530/photos             a collection of Milvus
  postgresql://me@localhost/db?table=photos   a table of PostgreSQL with pgvector

labels are the names of folders, my_photos/LABEL/1.jpg, or a column of a table; other
columns of a table are kept, and frontrank search --filter looks at them.

examples:
  frontrank index runs/first/model my_photos --to photos.index
  frontrank index runs/first/model my_photos more_photos --to photos.index --prune
  frontrank index runs/first/model table.csv --to expanded.index --expand
  torchrun --nproc-per-node 2 -m frontrank index runs/first/model my_photos \\
      --to photos.index
  frontrank search photos.index query.jpg
  frontrank serve photos.index
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank index MODEL IMAGES... --to URL [options]"
    parser.add_argument("model", metavar="MODEL", help="folder of a trained model, such as runs/first/model")
    parser.add_argument("images", metavar="IMAGES", nargs="+", help="folders, tables, data sets or files of images")
    parser.add_argument("--to", metavar="URL", required=True, help="the index; it is made if there is none")
    parser.add_argument("--prune", action="store_true", help="forget what is in the index, but not in IMAGES")
    parser.add_argument("--whiten", metavar="FILE", help="a new index: PCA whitening, saved by Whitening.save")
    add_expansion_arguments(parser, "a new index: query expansion")
    add_reading_arguments(parser)
    parser.add_argument("--device", metavar="NAME", default="auto", help="such as cpu, cuda or cuda:1")
    parser.add_argument("--quiet", action="store_true", help="nothing but broken images and errors")


def add_expansion_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """The options of query expansion."""
    parser.add_argument(
        "--expand", metavar="K", nargs="?", const=10, type=_neighbours, help=f"{what} by the K nearest; 10"
    )
    parser.add_argument("--alpha", metavar="A", type=float, help="of --expand: they count by score^A; 2")


def check_expansion(options: argparse.Namespace) -> None:
    """Refuse an --alpha that cannot be used."""
    if options.alpha is not None:
        check_number("--alpha", options.alpha, at_least=0)
        if options.expand is None:
            raise InputError("--alpha is of --expand; add that, or leave it out")


def run(options: argparse.Namespace) -> None:
    """Embed what is new, and keep it."""
    check_expansion(options)
    for name, least in (("--batch-size", 1), ("--workers", 0)):
        value = getattr(options, name.strip("-").replace("-", "_"))
        if value is not None:
            check_number(name, value, at_least=least)
    from frontrank.cli import indexing  # torch, from here on

    indexing.run(options)


def _neighbours(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"needs a whole number from 1, or nothing, got {text!r}; put images before it")
    return int(text)
