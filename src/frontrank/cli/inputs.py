"""What several commands share: options, the images and embeddings they read, and the lines they print."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrank.checks import check_integer, check_number, join_words
from frontrank.errors import FrontrankError, InputError

if TYPE_CHECKING:
    import numpy as np

    import frontrank as fr
    from frontrank.data import EmbeddingFile, ImageTable
    from frontrank.data.embedding_files import Array


def say(quiet: bool, line: str) -> None:
    """Print a line on stderr, unless the command is to be quiet."""
    if not quiet:
        print(line, file=sys.stderr)


def print_page(page: Path, quiet: bool) -> None:
    """Print where a page is, as a line of the results."""
    print(page if quiet else f"report: {page}    open it in a browser")


def check_output(option: str, path: Path, endings: Sequence[str], force: bool | None) -> None:
    """Raise before the work if a file could not be written after it; force: None if the command has no --force."""
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


# Options


def number_type(kind: type[int] | type[float], *, remedy: str = "", **bounds: Any) -> Callable[[str], Any]:
    """Return the argparse type of a number within bounds; they are `above` (float only), `at_least` and `at_most`."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            whole = "whole " if kind is int else ""
            raise argparse.ArgumentTypeError(f"it must be a {whole}number, got {text!r}{remedy}") from None
        try:
            return check_integer("it", value, **bounds) if kind is int else check_number("it", value, **bounds)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


NEIGHBOURS: dict[str, Any] = {  # an option that also stands without its K
    **{"metavar": "K", "nargs": "?", "const": 10},
    "type": number_type(int, at_least=1, at_most=2**31 - 1, remedy="; put files before the option"),
}


def option_flags(options: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Return those of the options that are given, as they are written; 0 is given."""
    values = {name: getattr(options, name) for name in names}
    return ["--" + name.replace("_", "-") for name, value in values.items() if value is not None and value is not False]


def refuse_options(options: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """Raise if one of the options is given."""
    for flag in option_flags(options, names):
        raise InputError(f"{flag} {reason}")


class PrintNames(argparse.Action):
    """Option that prints names with what they stand for, as the function in `const` returns them, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print a line for each name."""
        names: dict[str, str] = self.const()
        width = max(map(len, names), default=0)
        for name, text in names.items():
            print(f"{name:{width}}  {text}")
        parser.exit()


def add_running_arguments(parser: argparse._ActionsContainer, quiet: str = "") -> None:
    """Add --device and, for a command that prints something beside `quiet`, --quiet."""
    parser.add_argument("--device", metavar="NAME", default="auto", help="auto (the default), cpu, cuda, cuda:1, mps")
    if quiet:
        parser.add_argument("--quiet", action="store_true", help=f"print nothing but {quiet}")


def add_adapter_arguments(parser: argparse._ActionsContainer, when: str = "") -> None:
    """Add --adapter and --dim."""
    parser.add_argument("--adapter", metavar="FILE", help=f"{when}change embeddings by this, of frontrank adapt")
    whole = number_type(int, at_least=1)
    parser.add_argument("--dim", metavar="N", type=whole, help="of --adapter: its first N dimensions; all by default")


def read_adapter(options: argparse.Namespace, dim: int | None = None) -> fr.Adapter | None:
    """Return the adapter of --adapter and --dim, if there is one, for embeddings of these dimensions."""
    if options.adapter is None:
        return None
    import frontrank as fr

    adapter = fr.Adapter.load(options.adapter)
    if dim is not None:
        adapter.check_dim("the model", dim)
    return adapter if options.dim is None else adapter.truncate(options.dim)


def add_expansion_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options of query expansion."""
    parser.add_argument("--expand", **NEIGHBOURS, help=f"{what} by the K nearest; 10 by default")
    alpha = number_type(float, at_least=0)
    parser.add_argument("--alpha", metavar="A", type=alpha, help="of --expand: score^A weighs them; 2 by default")


def read_expansion(options: argparse.Namespace) -> tuple[int, float] | None:
    """Return K and alpha of query expansion, if it is asked for; raise if --alpha stands without --expand."""
    if options.expand is None:
        refuse_options(options, ["alpha"], "needs --expand; add it, or leave out --alpha")
        return None
    return options.expand, 2.0 if options.alpha is None else options.alpha


# Images


def add_reading_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options that say how images are found and embedded."""
    parser.add_argument("--layout", metavar="NAME", help="detected by default: folder, classes, table, ...")
    parser.add_argument("--split", metavar="NAME", help="train, validation, test or all")
    parser.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    batch, workers = number_type(int, at_least=1), number_type(int, at_least=0)
    parser.add_argument("--batch-size", metavar="N", type=batch, help="images at once; 64 by default")
    parser.add_argument("--workers", metavar="N", type=workers, help="processes that read images; 2 by default")


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
    from frontrank.training.images import build_images

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


# Rows of embeddings

_PART = re.compile(r"(.+\.(?:npz|parquet|safetensors)):([^:]+)", re.IGNORECASE)  # FILE:NAME


@dataclass(frozen=True, eq=False)
class EmbeddingRows:
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
        count, dim = self.embeddings.shape
        kind = str(self.embeddings.dtype).removeprefix("torch.")
        text = f"{self.source}: {count:,} row{'s' * (count != 1)} of {dim:,} dimension{'s' * (dim != 1)}, {kind}"
        if self.labels is None:
            return text
        labels = self.labels.tolist() if self.labels.ndim == 1 else self.labels[:, 0].tolist()
        classes = len(set().union(*labels) if self.has_sets else set(labels))
        where = f" in {self.labels_from}" if self.labels_from else ""
        return f"{text}, {classes:,} class{'es' * (classes != 1)}{where}"

    @property
    def has_sets(self) -> bool:
        """Whether rows have several labels each."""
        return self.labels is not None and self.labels.dtype == object

    @contextmanager
    def name_in_errors(self) -> Iterator[None]:
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


def read_rows(source: str, key: str | None = None) -> EmbeddingRows:
    """Read the rows of a file, whose ids, if it has any, all differ."""
    from frontrank.data import check_ids, read_embeddings

    path, part = split_source(source)
    if key is not None and part is not None:
        raise InputError(f"{source} names an array, and a key names {key!r}; leave one of them out")
    file = read_embeddings(path, key or part)
    if file.ids is not None:
        check_ids(file.ids, f"ids in {path}")
    return EmbeddingRows(f"{path}:{key}" if key else source, file.embeddings, file)


def add_labels(rows: EmbeddingRows, labels: str | None, option: str) -> EmbeddingRows:
    """Return the rows with the labels of a file or column, else with those beside them."""
    import numpy as np

    from frontrank.data import read_labels
    from frontrank.data.table import split_labels

    values = rows.file.labels
    if labels is not None:
        values = read_labels(labels, rows.file, len(rows.embeddings), option.strip("-").replace("-", " "))
    if values is None:
        raise InputError(f"{rows.source} has no labels in it; give them by {option}, as a file or the name of a column")
    if values.dtype.kind == "U" and (sets := split_labels(values)):
        values = np.empty(len(sets), dtype=object)
        values[:] = sets
    return replace(rows, labels=values, labels_from=labels or "")
