"""`frontrank embed`: embed images with a trained model, into a file."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import frontrank as fr
from frontrank.cli.inputs import (
    add_reading_arguments,
    check_output,
    check_reading,
    read_images,
    reading_settings,
    say,
)
from frontrank.errors import InputError

if TYPE_CHECKING:
    from frontrank.data import ImageTable

DESCRIPTION = """\
Embed images with a trained model, into a file that frontrank evaluate reads.
If the command is stopped, give it again: it goes on where it was."""

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
    """Add the options of the command."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank embed MODEL --data PATH --out FILE [options]"
    parser.add_argument("model", metavar="MODEL", help="folder of a trained model, such as runs/first/model")
    parser.add_argument("--data", metavar="PATH", required=True, help="folder, table or data set of images")
    add_reading_arguments(parser)
    parser.add_argument("--out", metavar="FILE", required=True, help=f"{', '.join(ENDINGS)}: embeddings, labels, paths")
    parser.add_argument("--force", action="store_true", help="let --out replace a file")
    parser.add_argument("--device", metavar="NAME", default="auto", help="such as cpu, cuda or cuda:1")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(options: argparse.Namespace) -> None:
    """Embed the images and save them."""
    check_reading(options)
    out = Path(options.out)
    check_output("--out", out, ENDINGS, options.force)
    if out.suffix.lower() == ".safetensors":  # it holds no text: labels and ids are written beside it
        for kind in ("labels", "ids"):
            check_output("--out", out.with_suffix(f".{kind}.json"), [".json"], options.force)
    from frontrank.training import distributed
    from frontrank.training.embedding import embed_to_folder, merge_embeddings
    from frontrank.training.run import processes

    with processes(options.device) as device:
        table = read_images(options, unlabelled=True)
        _check_names(out, table)
        model = fr.Embedder.load(options.model, device=device)
        shards = out.with_name(out.name + ".parts")
        embed_to_folder(model, table, shards, **reading_settings(options))
        if distributed.is_main():
            merge_embeddings(shards, table, out, overwrite=options.force)
            shutil.rmtree(shards)
            say(options.quiet, f"wrote {out}: {len(table):,} x {model.dim}")


def _check_names(out: Path, table: ImageTable) -> None:
    """Raise before the work if the file cannot hold the images' names after it."""
    from frontrank.checks import printable

    if out.suffix.lower() == ".npz":
        return
    for path in table.paths.tolist():  # labels come from them, or from a table, which is UTF-8
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{printable(path)} has a name that is not UTF-8, which {out} cannot hold; use .npz"
            ) from error
