"""Write a trained model as one ONNX file, for programs without Python or torch: any number of images in, embeddings of
length 1 out. With --int8 its weights and activations are 8-bit integers. With --data it is measured how the file ranks
those images, beside the model itself.

examples:
  frontrank export runs/first/model --onnx model.onnx
  frontrank export runs/first/model --onnx model.onnx --data my_photos
  frontrank export runs/first/model --onnx small.onnx --int8 --data my_photos

The file's metadata has mean, std, image_size, resize and interpolation: images are made as these say. --int8 measures
the ranges of activations on some of the training images of --data, if it has any, else on some of its images.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import frontrank as fr
from frontrank.cli.inputs import (
    add_reading_arguments,
    check_output,
    number_type,
    option_flags,
    read_images,
    reading_settings,
    refuse_options,
    say,
)
from frontrank.errors import InputError

if TYPE_CHECKING:
    from frontrank.data import ImageTable

METRICS = ("R@1", "R@10", "mAP", "mAP@R")
_BATCH = 16  # images that are calibrated with at once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "frontrank export MODEL --onnx FILE [--int8] [--data PATH] [options]"
    parser.add_argument("model", metavar="MODEL", help="folder of a trained model, or user/name on the hub")
    parser.add_argument("--onnx", metavar="FILE", required=True, help="the file to write, .onnx")
    parser.add_argument("--int8", action="store_true", help="a quarter of the size; needs --data")
    parser.add_argument("--force", action="store_true", help="let --onnx replace a file")
    parser.add_argument("--data", metavar="PATH", help="folder, table or data set of images, with classes, to rank")
    add_reading_arguments(parser)
    count = number_type(int, at_least=1)
    parser.add_argument("--calibration", metavar="N", type=count, help="of --int8: images; 128 by default")
    parser.add_argument("--table", choices=("text", "markdown", "latex"), default="text", help="format of the table")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the table and errors")


def run(options: argparse.Namespace) -> None:
    """Export, quantize, measure."""
    file = Path(options.onnx)
    check_output("--onnx", file, [".onnx"], options.force)
    if not options.int8:
        refuse_options(options, ["calibration"], "needs --int8; add it, or leave out --calibration")
    if options.data is None:
        if options.int8:
            raise InputError("--int8 needs --data: images to measure ranges of activations and the change of mAP on")
        for flag in option_flags(options, ("layout", "split", "allow_partial", "batch_size", "workers")):
            raise InputError(f"{flag} needs --data; add it, or leave out {flag}")
    from frontrank.models.export import quantize_onnx

    images = None if options.data is None else read_images(options)
    model = fr.Embedder.load(options.model)
    if images is None or not options.int8:
        model.export_onnx(file, overwrite=options.force)
    else:
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder) / "float32.onnx"
            model.export_onnx(whole)
            quantize_onnx(whole, file, _calibration(options, model, images), overwrite=options.force)
            share = file.stat().st_size / whole.stat().st_size
        say(options.quiet, f"int8: {share:.0%} of the size in float32")
    say(options.quiet, f"wrote {file}: {file.stat().st_size / 1e6:.1f} MB")
    if images is not None:
        print(_comparison(options, model, file, images))


def _calibration(options: argparse.Namespace, model: fr.Embedder, images: ImageTable) -> Any:
    """Return batches of images spread over those of training, which are not ranked; over all if there are none."""
    import numpy as np

    from frontrank.data.loading import evaluation_loader
    from frontrank.data.transforms import evaluation_transform
    from frontrank.training.embedding import model_sizes

    table = images
    if options.split is None and (images.splits == "test").any():
        everything = argparse.Namespace(**{**vars(options), "split": "all", "quiet": True})
        training = read_images(everything).of("train")
        table = training if len(training) else images
    count = min(options.calibration or 128, len(table))
    some = table.rows(np.linspace(0, len(table) - 1, count).astype(int))
    loader = evaluation_loader(some, evaluation_transform(*model_sizes(model)), _BATCH, 0)
    return (batch for batch, _ in loader)


def _comparison(options: argparse.Namespace, model: fr.Embedder, file: Path, images: ImageTable) -> str:
    """Return a table of metrics of the model and of the file."""
    from frontrank.models.export import OnnxModel
    from frontrank.training.embedding import embed_table

    reports, names = [], ("model", "int8" if options.int8 else "onnx")
    for name, each in zip(names, (model, OnnxModel(file)), strict=True):
        embeddings = embed_table(each, images, **reading_settings(options))
        settings: Any = {"metrics": METRICS, "name": name, "progress": False}
        reports.append(fr.evaluate(embeddings, images.labels, **settings))
    return fr.compare(*reports, names=names).table(options.table)
