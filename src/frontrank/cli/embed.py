"""Embed images with a trained model, into a file that frontrank evaluate reads. If the command is stopped, give it
again: it goes on where it was.

examples:
  frontrank embed runs/first/model --data my_photos --out photos.safetensors
  frontrank embed runs/first/model --data table.csv --split test --out test.npz
  torchrun --nproc-per-node 2 -m frontrank embed runs/first/model \\
      --data my_photos --out photos.safetensors
  frontrank embed runs/first/model --data my_photos \\
      --adapter photos_adapter.safetensors --out adapted.npz
  frontrank evaluate photos.safetensors
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from frontrank.cli.inputs import (
    add_adapter_arguments,
    add_reading_arguments,
    add_running_arguments,
    check_output,
    read_adapter,
    read_images,
    reading_settings,
    refuse_options,
    say,
)
from frontrank.errors import InputError

ENDINGS = (".safetensors", ".npz", ".parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "frontrank embed MODEL --data PATH --out FILE [options]"
    parser.add_argument("model", metavar="MODEL", help="folder of a trained model, such as runs/first/model")
    parser.add_argument("--data", metavar="PATH", required=True, help="folder, table or data set of images")
    add_reading_arguments(parser)
    add_adapter_arguments(parser)
    parser.add_argument("--out", metavar="FILE", required=True, help=f"{', '.join(ENDINGS)}: embeddings, labels, paths")
    parser.add_argument("--force", action="store_true", help="let --out replace a file")
    add_running_arguments(parser, quiet="broken images and errors")


def run(options: argparse.Namespace) -> None:
    """Embed the images and save them."""
    out = Path(options.out)
    shards = out.with_name(out.name + ".parts")
    force = options.force or shards.exists()  # a command that was stopped had begun to write these files
    check_output("--out", out, ENDINGS, force)
    if options.adapter is None:
        refuse_options(options, ["dim"], "needs --adapter; add it, or leave out --dim")
    if out.suffix.lower() == ".safetensors":  # it holds no text: labels and ids are written beside it
        for kind in ("labels", "ids"):
            check_output("--out", out.with_suffix(f".{kind}.json"), [".json"], force)
    from frontrank.checks import printable
    from frontrank.training import distributed
    from frontrank.training.defaults import load_model
    from frontrank.training.embedding import embed_to_folder, merge_embeddings
    from frontrank.training.images import find_broken, leave_out
    from frontrank.training.run import processes

    with processes(options.device) as device:
        table = read_images(options, unlabelled=True)
        for path in table.paths.tolist() if out.suffix.lower() != ".npz" else ():
            try:
                path.encode()  # labels come from paths, or from a table, which is UTF-8
            except UnicodeEncodeError as error:
                reason = f"has a name that is not UTF-8, which {out} cannot hold; use .npz"
                raise InputError(f"{printable(path)} {reason}") from error
        settings = reading_settings(options)
        model = load_model(options.model, device)
        adapter = read_adapter(options, model.dim)
        broken = find_broken(table, settings["workers"], show=settings["show"])
        for path, reason in broken if distributed.is_main() else ():  # in any case: they are missing from now on
            say(False, f"  broken: {printable(path)} {reason}")
        if not len(table := leave_out(table, broken)):
            raise InputError(f"none of the {len(broken):,} images of --data {options.data} can be read; give others")
        embed_to_folder(model, table, shards, **settings)
        if distributed.is_main():
            merge_embeddings(shards, table, out, adapter=adapter, overwrite=force)
            shutil.rmtree(shards)
            say(options.quiet, f"wrote {out}: {len(table):,} x {model.dim if adapter is None else adapter.out_dim}")
