"""Images of a command, embedded by a model: what `frontrank embed` writes and `frontrank evaluate MODEL` ranks."""

import argparse
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.cli.embed import ENDINGS
from frontrank.cli.evaluate import refuse
from frontrank.cli.evaluation_inputs import check_options
from frontrank.cli.rows import say
from frontrank.data.ground_truth import read_ground_truth
from frontrank.data.published import PUBLISHED
from frontrank.data.table import IMAGE_ENDINGS, SPLITS, ImageTable, read_table, read_unlabelled, shown
from frontrank.errors import FrontrankError, FrontrankWarning, InputError
from frontrank.evaluation.protocols import PROTOCOLS
from frontrank.models import Embedder
from frontrank.settings import DataConfig
from frontrank.training import distributed
from frontrank.training.embedding import embed_table, embed_to_folder, merge_embeddings
from frontrank.training.run import build_device, build_images, processes

_NAMES = {dataset.title: name for name, dataset in PUBLISHED.items()}
_REVISITED = {"roxford5k": "gnd_roxford5k.pkl", "rparis6k": "gnd_rparis6k.pkl"}


def run(options: argparse.Namespace) -> None:
    """Embed the images and save them."""
    out = Path(options.out)
    _require_target(out, options.force)
    with processes(options.device) as device:
        table = read_images(options, unlabelled=True)
        _require_names(out, table)
        model = Embedder.load(options.model, device=device)
        shards = out.with_name(out.name + ".parts")
        embed_to_folder(model, table, shards, **_how(options))
        if distributed.is_main():
            merge_embeddings(shards, table, out, overwrite=options.force)
            shutil.rmtree(shards)
            say(options.quiet, f"wrote {out}: {len(table):,} x {model.dim}")


@contextmanager
def embedded(options: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """The options of `frontrank evaluate` with files of embeddings in place of the model and --data."""
    table = read_images(options)
    _warn_of_training(Path(options.embeddings), table)
    model = Embedder.load(options.embeddings, device=build_device(options.device or "auto"))
    chosen = argparse.Namespace(**vars(options))
    chosen.name = options.name or _model_name(Path(options.embeddings))
    table = _of_protocol(chosen, table)
    sides = {side: part for side, part in _sides(table).items() if len(part)}
    if "embeddings" not in sides:
        raise InputError(f"--data {options.data} has no images that search others; give some with another role")
    if "distractors" in sides and chosen.protocol != "revisited":
        raise InputError(
            f"--data {options.data} has distractors, which only the protocol revisited searches; drop them"
        )
    with tempfile.TemporaryDirectory(prefix="frontrank-") as folder:
        for side in sides:
            setattr(chosen, side, str(Path(folder) / f"{side}.npz"))
        refuse(chosen)
        check_options(chosen)
        for side, part in sides.items():
            _save(getattr(chosen, side), part, embed_table(model, part, **_how(options)))
        try:
            yield chosen
        except FrontrankError as error:  # the user knows the model and the images, and not these files
            said = str(error)
            for side in sides:
                said = said.replace(getattr(chosen, side), f"{side} of {options.data}")
            raise type(error)(said) from error


def _of_protocol(chosen: argparse.Namespace, table: ImageTable) -> ImageTable:
    """Set the protocol of a published data set, where none is asked for; gives the images it is about."""
    dataset = _NAMES.get(table.name, "")
    if dataset == "vehicleid" and chosen.protocol is None:
        raise InputError("VehicleID has three test lists; add --protocol vehicleid-small, -medium or -large")
    if chosen.protocol is None:
        chosen.protocol = "revisited" if dataset in _REVISITED else dataset if dataset in PROTOCOLS else None
    if chosen.protocol == "revisited" and dataset in _REVISITED:
        chosen.ground_truth = chosen.ground_truth or str(_ground_truth(table.root, _REVISITED[dataset]))
        _require_all_listed(table, _ground_truth(table.root, _REVISITED[dataset]))
    if "template" in table.extra and chosen.protocol in ("ijb-c", "vggface2"):
        chosen.templates = chosen.templates or "template"
    if dataset == "vehicleid" and chosen.protocol.startswith("vehicleid-"):
        return table.rows(table.extra[chosen.protocol.removeprefix("vehicleid-")].astype(bool))
    return table


def _require_all_listed(table: ImageTable, file: Path) -> None:
    """The ground truth names images by their places in its lists, so none may be missing."""
    truth = read_ground_truth(file)
    for role, listed in (("query", truth.queries), ("gallery", truth.images)):
        if len(table.of(role=role)) < len(listed):
            raise InputError(f"{table.name} lacks some {role} images, and its protocol needs all; unpack it again")


def _sides(table: ImageTable) -> dict[str, ImageTable]:
    """Who searches, and what is searched beside it, by the option that takes it."""
    return {
        "embeddings": table.rows((table.roles == "") | (table.roles == "query")),
        "gallery": table.of(role="gallery"),
        "distractors": table.of(role="distractor"),
    }


def read_images(options: argparse.Namespace, unlabelled: bool = False) -> ImageTable:
    """The images of --data that are asked for: by default the test images, or all where none are marked as such.

    unlabelled: take a folder of images without folders of classes, too
    """
    config = DataConfig(path=options.data, layout=options.layout or "auto", allow_partial=options.allow_partial)
    for name, least in (("batch_size", 1), ("workers", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    loose = unlabelled and options.layout is None and _has_loose_images(Path(options.data))
    table = read_unlabelled([options.data]) if loose else build_images(config)
    if options.split not in (None, "all", *SPLITS):
        raise InputError(f"--split {options.split!r} is not known; there are {', '.join(SPLITS)} and all")
    split = options.split or ("test" if (table.splits == "test").any() else "all")
    chosen = table if split == "all" else table.of(split)
    if not len(chosen):
        raise InputError(f"--data {options.data} has no images of the split {split}; leave out --split, or use all")
    say(options.quiet, f"read {options.data}: {len(chosen):,} images" + ("" if split == "all" else f" of {split}"))
    return chosen


def _has_loose_images(folder: Path) -> bool:
    return folder.is_dir() and any(path.suffix.lower() in IMAGE_ENDINGS for path in folder.iterdir())


def _warn_of_training(model: Path, table: ImageTable) -> None:
    """Say how many of the images the model was trained on, where the run it comes from tells."""
    run = model.resolve().parent / "images.csv"
    if not run.is_file():
        return
    trained = {os.path.realpath(file) for file in read_table(run).of("train").files()}
    if count := sum(os.path.realpath(file) in trained for file in table.files()):
        warnings.warn(
            f"{count:,} of the {len(table):,} images were trained on, which makes the figures too good; evaluate "
            f"others, such as the held-out classes: --data {run} --split validation",
            FrontrankWarning,
            stacklevel=2,
        )


def _how(options: argparse.Namespace) -> dict[str, Any]:
    show = False if options.quiet else None
    return {
        "batch_size": options.batch_size or 64,
        "workers": 2 if options.workers is None else options.workers,
        "show": show,
    }


def _save(file: str, table: ImageTable, embeddings: np.ndarray) -> None:
    """Without the paths where there are templates: a frame may be in several of them."""
    name = "template" if "template" in table.extra else "ids"
    columns: dict[str, Any] = {name: table.extra.get("template", table.paths)}
    if any(table.labels):  # those of the protocol revisited have none
        columns["labels"] = table.labels
    np.savez(file, embeddings=embeddings, **columns)


def _require_target(out: Path, force: bool) -> None:
    if out.suffix.lower() not in ENDINGS:
        raise InputError(f"--out {out} must end in {', '.join(ENDINGS)}; choose such a name")
    beside = [out.with_suffix(f".{kind}.json") for kind in ("labels", "ids") if out.suffix.lower() == ".safetensors"]
    for target in (out, *beside):  # .safetensors holds no text: that is written beside it
        if target.exists() and not force:
            raise InputError(f"--out: {target} exists already; choose another name, or add --force to replace it")
    if not os.path.isdir(out.parent):
        raise InputError(f"--out: the folder {out.parent} is not there; make it first")
    if not os.access(out.parent, os.W_OK):
        raise InputError(f"--out: nothing can be written to {out.parent}; choose another folder")


def _require_names(out: Path, table: ImageTable) -> None:
    """Refuse before the work names that the file cannot hold after it."""
    if out.suffix.lower() == ".npz":
        return
    for path in table.paths.tolist():  # labels come from them, or from a table, which is UTF-8
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{shown(path)} has a name that is not UTF-8, and {out} cannot hold it; use .npz"
            ) from error


def _model_name(folder: Path) -> str:
    folder = folder.resolve()
    return folder.parent.name if folder.name == "model" else folder.name


def _ground_truth(root: Path, name: str) -> Path:
    for folder in (root, root.parent):
        if (folder / name).exists():
            return folder / name
    raise InputError(f"{root} has no {name}; give it by --ground-truth")
