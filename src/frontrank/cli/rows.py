"""Rows of embeddings as a command is given them: files by name, with labels and ids, checked and described."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from frontrank.data import EmbeddingFile, check_ids, read_embeddings, read_labels
from frontrank.data.embedding_files import Array
from frontrank.errors import FrontrankError, InputError

_PART = re.compile(r"(.+\.(?:npz|parquet|safetensors)):([^:]+)", re.IGNORECASE)  # FILE:NAME


@dataclass(frozen=True, eq=False)
class Rows:
    """Embeddings [row, dimension] and, where there are any, their labels [row], under the name the user gave."""

    source: str
    embeddings: Array
    file: EmbeddingFile
    labels: np.ndarray | None = None
    labels_from: str = ""

    @property
    def name(self) -> str:
        """The file without its folder and ending, and which of its arrays."""
        path, key = split(self.source)
        return Path(path).stem + (f":{key}" if key else "")


def split(source: str) -> tuple[str, str | None]:
    """The file and the name of FILE:NAME.

    >>> split("both.npz:clip"), split("test.npy")
    (('both.npz', 'clip'), ('test.npy', None))
    """
    found = None if os.path.exists(source) else _PART.fullmatch(source)
    return (found[1], found[2]) if found else (source, None)


def read_rows(source: str, key: str | None = None) -> Rows:
    """The rows of a file, whose ids, if it has any, all differ."""
    path, part = split(source)
    if key is not None and part is not None:
        raise InputError(f"{source} names an array, and a key names {key!r}; leave one of them out")
    file = read_embeddings(path, key or part)
    if file.ids is not None:
        check_ids(file.ids, f"ids in {path}")
    return Rows(f"{path}:{key}" if key else source, file.embeddings, file)


def with_labels(rows: Rows, labels: str | None, option: str) -> Rows:
    """The rows with the labels of a file or column, else with those beside them."""
    found = rows.file.labels
    if labels is not None:
        found = read_labels(labels, rows.file, len(rows.embeddings), option.strip("-").replace("-", " "))
    if found is None:
        raise InputError(f"{rows.source} has no labels in it; give them by {option}, as a file or the name of a column")
    return replace(rows, labels=found, labels_from=labels or "")


def described(rows: Rows) -> str:
    """What was read, in one line."""
    count, dim = rows.embeddings.shape
    kind = str(rows.embeddings.dtype).removeprefix("torch.")
    said = f"{rows.source}: {count:,} row{'s' * (count != 1)} of {dim:,} dimension{'s' * (dim != 1)}, {kind}"
    if rows.labels is None:
        return said
    classes = len(np.unique(rows.labels))
    where = f" in {rows.labels_from}" if rows.labels_from else ""
    return f"{said}, {classes:,} class{'es' * (classes != 1)}{where}"


def require_one_dimension(first: Rows, *others: Rows) -> None:
    """Refuse rows that cannot be compared, before anything long is done to them."""
    for other in others:
        dims = first.embeddings.shape[1], other.embeddings.shape[1]
        if dims[0] != dims[1]:
            raise InputError(
                f"{first.source} has {dims[0]} dimensions and {other.source} has {dims[1]}; "
                "both must come from the same model"
            )


def require_same_rows(first: Rows, other: Rows, labels: bool) -> None:
    """Refuse rows that are not of the same items in the same order, as far as ids and, if asked, labels tell."""
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


def shared_ids(queries: Rows, gallery: Rows) -> int:
    """How many ids are text and in both: such a query finds itself."""
    both = queries.file.ids, gallery.file.ids
    if any(ids is None or ids.dtype.kind != "U" for ids in both):
        return 0
    return len(np.intersect1d(*both))  # type: ignore[arg-type]


@contextmanager
def about(rows: Rows) -> Iterator[None]:
    """Errors of the library that say "embeddings" also say whose."""
    try:
        yield
    except FrontrankError as error:
        raise type(error)(f"{rows.source}: {error}") from error


def say(quiet: bool, line: str) -> None:
    """A line on stderr, unless it is not wanted."""
    if not quiet:
        print(line, file=sys.stderr)


def print_page(page: Path, quiet: bool) -> None:
    """Where a page is, as a line of the results."""
    print(page if quiet else f"report: {page}    open it in a browser")
