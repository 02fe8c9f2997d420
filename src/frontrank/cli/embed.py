"""`frontrank embed`: its options and examples."""

import argparse

DESCRIPTION = """\
Embed images with a trained model, into a file that frontrank evaluate reads.
A run that stops goes on where it was when the same command is given again."""

EPILOG = """\
examples:
  frontrank embed runs/first/model --data my_photos --out photos.safetensors
  frontrank embed runs/first/model --data table.csv --split test --out test.npz
  torchrun --nproc-per-node 2 -m frontrank embed runs/first/model \\
      --data my_photos --out photos.safetensors
  frontrank evaluate photos.safetensors
"""

ENDINGS = (".safetensors", ".npz", ".parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank embed MODEL --data PATH --out FILE [options]"
    parser.add_argument("model", metavar="MODEL", help="folder of a trained model, such as runs/first/model")
    add_image_arguments(parser, required=True)
    parser.add_argument("--out", metavar="FILE", required=True, help=f"{', '.join(ENDINGS)}: embeddings, labels, paths")
    parser.add_argument("--force", action="store_true", help="let --out replace a file")
    parser.add_argument("--device", metavar="NAME", default="auto", help="such as cpu, cuda or cuda:1")
    parser.add_argument("--quiet", action="store_true", help="nothing but errors")


def add_image_arguments(parser: argparse._ActionsContainer, required: bool = False) -> None:
    """The options that say which images are embedded, and how."""
    parser.add_argument("--data", metavar="PATH", required=required, help="folder, table or data set of images")
    add_reading_arguments(parser)


def add_reading_arguments(parser: argparse._ActionsContainer) -> None:
    """The options that say how images are found and embedded."""
    parser.add_argument("--layout", metavar="NAME", help="of images; found out by default: folder, table, sop, ...")
    parser.add_argument("--split", metavar="NAME", help="train, validation, test or all")
    parser.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    parser.add_argument("--batch-size", metavar="N", type=int, help="images at once; 64 by default")
    parser.add_argument("--workers", metavar="N", type=int, help="processes that read images; 2 by default")


def run(options: argparse.Namespace) -> None:
    """Embed and save."""
    from frontrank.cli import embedding  # torch, from here on

    embedding.run(options)
