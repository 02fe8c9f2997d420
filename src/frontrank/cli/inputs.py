"""What several commands share: the images and files they are given, and the lines they print about them."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrank.checks import check_integer, check_number, join_words
from frontrank.errors import FrontrankError, InputError

if TYPE_CHECKING:
    import numpy as np

    from frontrank.data import EmbeddingFile, ImageTable
    from frontrank.data.embedding_files import Array

_PART = re.compile(r"(.+\.(?:npz|parquet|safetensors)):([^:]+)", re.IGNORECASE)  # FILE:NAME


def say(quiet: bool, line: str) -> None:
    """Print a line on stderr, unless the command is to be quiet."""
    if not quiet:
        print(line, file=sys.stderr)


def print_page(page: Path, quiet: bool) -> None:
    """Print where a page is, as a line of the results."""
    print(page if quiet else f"report: {page}    open it in a browser")


def check_output(option: str, path: Path, endings: Sequence[str], force: bool | None) -> None:
    """Raise before the work if a file could not be written after it.

    force: whether an existing file may be replaced; None where the command has no --force
    """
    if path.suffix.lower() not in endings:
        raise InputError(f"{option} {path} must end in {join_words(endings)}")
    if os.path.isdir(path):
        raise InputError(f"{option} {path} is a folder; choose another name")
    if os.path.lexists(path) and not force:
        remedy = "" if force is None else ", or add --force to replace it"
        raise InputError(f"{option} {path} exists already; choose another name{remedy}")
    if not os.path.isdir(path.parent):
        raise InputError(f"{option}: the folder {path.parent} does not exist; make it first")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{option}: the folder {path.parent} cannot be written to; choose another one")


# Images


def add_reading_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options that say how images are found and embedded."""
    parser.add_argument("--layout", metavar="NAME", help="of images; detected by default: folder, table, sop, ...")
    parser.add_argument("--split", metavar="NAME", help="train, validation, test or all")
    parser.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    parser.add_argument("--batch-size", metavar="N", type=int, help="images at once; 64 by default")
    parser.add_argument("--workers", metavar="N", type=int, help="processes that read images; 2 by default")


def check_reading(options: argparse.Namespace) -> None:
    """Raise if --batch-size or --workers is not valid."""
    for name, least in (("batch_size", 1), ("workers", 0)):
        if (value := getattr(options, name)) is not None:
            check_integer("--" + name.replace("_", "-"), value, at_least=least)


def reading_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the functions that embed images are called with."""
    return {
        "batch_size": options.batch_size or 64,
        "workers": 2 if options.workers is None else options.workers,
        "show": False if options.quiet else None,
    }


def read_images(options: argparse.Namespace, unlabelled: bool = False) -> ImageTable:
    """Read the images of --data and --split; without --split the test images, or all if none are marked as such.

    unlabelled: also read a folder of images that are not in folders of classes
    """
    from frontrank.data import read_unlabelled
    from frontrank.data.table import IMAGE_ENDINGS, SPLITS
    from frontrank.settings import DataConfig
    from frontrank.training.run import build_images

    if options.split not in (None, "all", *SPLITS):
        raise InputError(f"--split must be {join_words((*SPLITS, 'all'))}, got {options.split!r}")
    if (
        unlabelled
        and options.layout is None
        and os.path.isdir(options.data)
        and any(path.suffix.lower() in IMAGE_ENDINGS for path in Path(options.data).iterdir())
    ):
        table = read_unlabelled([options.data])
    else:
        layout = options.layout or "auto"
        table = build_images(DataConfig(path=options.data, layout=layout, allow_partial=options.allow_partial))
    split = options.split or ("test" if (table.splits == "test").any() else "all")
    images = table if split == "all" else table.of(split)
    if not len(images):
        raise InputError(f"--data {options.data} has no images of the split {split}; leave out --split, or use all")
    say(options.quiet, f"read {options.data}: {len(images):,} images" + ("" if split == "all" else f" of {split}"))
    return images


# Query expansion


def add_expansion_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options of query expansion."""
    parser.add_argument(
        "--expand", metavar="K", nargs="?", const=10, type=neighbours, help=f"{what} by the K nearest; 10 by default"
    )
    parser.add_argument("--alpha", metavar="A", type=float, help="of --expand: neighbours count by score^A; 2")


def check_expansion(options: argparse.Namespace) -> None:
    """Raise if --alpha is not valid, or stands without --expand."""
    if options.alpha is not None:
        check_number("--alpha", options.alpha, at_least=0)
        if options.expand is None:
            raise InputError("--alpha needs --expand; add it, or leave out --alpha")


def neighbours(text: str) -> int:
    """Read the K of an option that also stands without one."""
    return whole_number(text, "from 1, or nothing", 1, "; put files before the option")


def whole_number(text: str, bounds: str, least: int, remedy: str = "") -> int:
    """Read a whole number of a command line; `bounds` describes what is valid."""
    if not (text.isascii() and text.isdecimal() and least <= int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"must be a whole number {bounds}, got {text!r}{remedy}")
    return int(text)


# Rows of embeddings


@dataclass(frozen=True, eq=False)
class Rows:
    """Embeddings [row, dimension] and, if there are any, their labels [row], under the name that the user gave."""

    source: str
    embeddings: Array
    file: EmbeddingFile
    labels: np.ndarray | None = None
    labels_from: str = ""

    @property
    def name(self) -> str:
        """The file without its folder and ending, and which of its arrays."""
        path, key = split_source(self.source)
        return Path(path).stem + (f":{key}" if key else "")

    def describe(self) -> str:
        """What was read, in one line."""
        import numpy as np

        count, dim = self.embeddings.shape
        kind = str(self.embeddings.dtype).removeprefix("torch.")
        text = f"{self.source}: {count:,} row{'s' * (count != 1)} of {dim:,} dimension{'s' * (dim != 1)}, {kind}"
        if self.labels is None:
            return text
        classes = len(np.unique(self.labels))
        where = f" in {self.labels_from}" if self.labels_from else ""
        return f"{text}, {classes:,} class{'es' * (classes != 1)}{where}"

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Within, errors of the library that say "embeddings" also say whose."""
        try:
            yield
        except FrontrankError as error:
            raise type(error)(f"{self.source}: {error}") from error


def split_source(source: str) -> tuple[str, str | None]:
    """Split FILE:NAME into the file and the name.

    >>> split_source("both.npz:clip"), split_source("test.npy")
    (('both.npz', 'clip'), ('test.npy', None))
    """
    match = None if os.path.exists(source) else _PART.fullmatch(source)
    return (match[1], match[2]) if match else (source, None)


def read_rows(source: str, key: str | None = None) -> Rows:
    """Read the rows of a file, whose ids, if it has any, all differ."""
    from frontrank.data import check_ids, read_embeddings

    path, part = split_source(source)
    if key is not None and part is not None:
        raise InputError(f"{source} names an array, and a key names {key!r}; leave one of them out")
    file = read_embeddings(path, key or part)
    if file.ids is not None:
        check_ids(file.ids, f"ids in {path}")
    return Rows(f"{path}:{key}" if key else source, file.embeddings, file)


def add_labels(rows: Rows, labels: str | None, option: str) -> Rows:
    """Return the rows with the labels of a file or column, else with those beside them."""
    from frontrank.data import read_labels

    values = rows.file.labels
    if labels is not None:
        values = read_labels(labels, rows.file, len(rows.embeddings), option.strip("-").replace("-", " "))
    if values is None:
        raise InputError(f"{rows.source} has no labels in it; give them by {option}, as a file or the name of a column")
    return replace(rows, labels=values, labels_from=labels or "")


def check_dimensions(first: Rows, *others: Rows) -> None:
    """Raise if rows cannot be compared, before anything long is done to them."""
    for other in others:
        dims = first.embeddings.shape[1], other.embeddings.shape[1]
        if dims[0] != dims[1]:
            raise InputError(
                f"{first.source} has {dims[0]} dimensions and {other.source} has {dims[1]}; "
                "both must come from the same model"
            )


def check_same_rows(first: Rows, other: Rows, labels: bool) -> None:
    """Raise if rows are not of the same items in the same order, as far as ids and, if asked, labels show."""
    import numpy as np

    counts = len(first.embeddings), len(other.embeddings)
    if counts[0] != counts[1]:
        raise InputError(
            f"--compare: {first.source} has {counts[0]:,} rows and {other.source} has {counts[1]:,}; "
            "both must have the same rows in the same order"
        )
    for what in ("ids", "labels")[: 1 + labels]:
        a, b = getattr(first.file, what), getattr(other.file, what)
        if a is None or b is None:
            continue
        differ = np.flatnonzero(a.astype(str) != b.astype(str))
        if len(differ):
            remedy = "sort both by id" if what == "ids" and set(a.tolist()) == set(b.tolist()) else "use the same rows"
            row = differ[0]
            raise InputError(
                f"--compare: the {what} of {first.source} and {other.source} differ in {len(differ):,} of {len(a):,} "
                f"rows, first in row {row} ({a[row]} and {b[row]}); {remedy}, in the same order, in both"
            )
