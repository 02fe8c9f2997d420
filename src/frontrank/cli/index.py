"""Put images into an index that frontrank search and frontrank serve look into: a folder, or a table of a Milvus or
PostgreSQL server. Images that are in the index with the same content are skipped, so a second call adds what is new,
and one that was stopped goes on. Broken images are named and left out; that is an error only if no image is left.

where to, by URL:
  photos.index                                a folder (faiss); needs no server
  milvus://localhost:19530/photos             a collection of Milvus
  postgresql://me@localhost/db?table=photos   a table of PostgreSQL (pgvector)

Labels are the names of folders, my_photos/LABEL/1.jpg, or a column of a table; other columns of a table are kept, and
frontrank search --filter looks at them.

examples:
  frontrank index runs/first/model my_photos --to photos.index
  frontrank index runs/first/model my_photos others --to photos.index --prune
  frontrank index runs/first/model table.csv --to expanded.index --expand
  torchrun --nproc-per-node 2 -m frontrank index runs/first/model my_photos \\
      --to photos.index
  frontrank index runs/first/model my_photos --to adapted.index \\
      --adapter photos_adapter.safetensors
  frontrank search photos.index query.jpg
  frontrank serve photos.index
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Container
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import frontrank as fr
from frontrank.checks import printable
from frontrank.cli.inputs import (
    add_adapter_arguments,
    add_expansion_arguments,
    add_reading_arguments,
    add_running_arguments,
    read_adapter,
    read_expansion,
    read_images,
    reading_settings,
    refuse_options,
    say,
)
from frontrank.errors import InputError, InterruptedRunError

if TYPE_CHECKING:
    import torch

    from frontrank.data import ImageTable
    from frontrank.picture_index import IndexSummary

_PRUNED = 0.1  # of the items of an index, which --prune removes without being asked
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?", re.ASCII)  # 007 is a name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "frontrank index MODEL IMAGES... --to URL [options]"
    parser.add_argument("model", metavar="MODEL", help="folder of a trained model, such as runs/first/model")
    parser.add_argument("images", metavar="IMAGES", nargs="+", help="folders, tables, data sets or files of images")
    parser.add_argument("--to", metavar="URL", required=True, help="the index; it is made if there is none")
    parser.add_argument("--prune", action="store_true", help="remove what is in the index, but not in IMAGES")
    parser.add_argument("--yes", action="store_true", help="let --prune remove more than a tenth of the index")
    parser.add_argument("--whiten", metavar="FILE", help="a new index: PCA whitening, saved by Whitening.save")
    add_adapter_arguments(parser, "a new index: ")
    add_expansion_arguments(parser, "a new index: query expansion")
    add_reading_arguments(parser)
    add_running_arguments(parser, quiet="broken images and errors")


def run(options: argparse.Namespace) -> None:
    """Embed what is new, add it to the index, and print what happened to the images."""
    read_expansion(options)
    if options.adapter is None:
        refuse_options(options, ["dim"], "needs --adapter; add it, or leave out --dim")
    else:
        refuse_options(options, ["whiten"], "does not go with --adapter, which whitens by itself; leave one out")
    from frontrank.training.run import processes

    try:
        with ExitStack() as stack:
            with processes(options.device) as device:
                index, result = _index(options, device, stack)
            if index is not None:  # the others are done: a graph may take longer to build than they would wait
                _print_result(result, index, options.quiet)
    except KeyboardInterrupt:
        raise InterruptedRunError("interrupted; the same command again goes on from there") from None


def _index(options: argparse.Namespace, device: torch.device, stack: ExitStack) -> tuple[fr.Index | None, IndexSummary]:
    """Return the index, open until the stack is closed, for the first process only; and what happened to the images."""
    from frontrank.picture_index import index_images, refuse_repeats, refuse_unreadable
    from frontrank.retrieval.items import is_field
    from frontrank.training import distributed
    from frontrank.training.defaults import load_model

    options.quiet = options.quiet or not distributed.is_main()
    tables = [with_numbers(table) for table in _read_tables(options)]
    refuse_repeats(tables)  # before an index is made
    with distributed.fail_together():
        if distributed.is_main():
            refuse_unreadable(tables)
    for name in dict.fromkeys(name for table in tables for name in table.extra if not is_field(name)):
        say(options.quiet, f"left out: the column {name!r}; name it by letters, digits and _ to filter by it")
    model = load_model(options.model, device)
    index = None
    with distributed.fail_together():
        if distributed.is_main():
            index = stack.enter_context(_open_or_create(options, model))
            where = os.path.abspath(options.model) if os.path.isdir(options.model) else options.model  # on a hub
            index.note(model=where)
    settings = reading_settings(options) | {"prune": options.prune, "check_prune": partial(_check_prune, options)}
    result = index_images(model, tables, index, **settings)
    with distributed.fail_together():
        if index is not None:  # of accepted pictures only: the page shows files that are below these folders
            broken = {file for file, _ in result.broken}
            new = (root for table in tables for root in table_roots(table, broken))
            index.note(roots=list(dict.fromkeys([*index.settings.notes.get("roots", ()), *new])))
    return index, result


def _check_prune(options: argparse.Namespace, gone: int, count: int) -> None:
    """Say how many items would be removed; raise if they are many, and nobody agrees."""
    if gone:
        say(options.quiet, f"--prune removes {gone:,} of {count:,} items, whose images are not there")
    if gone <= _PRUNED * count or options.yes:
        return
    if sys.stdin is not None and sys.stdin.isatty() and not options.quiet:
        print(f"remove {gone:,} of {count:,} items? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise InputError(f"--prune would remove {gone:,} of {count:,} items; check IMAGES, or add --yes")


# Images


def _read_tables(options: argparse.Namespace) -> list[ImageTable]:
    """Read the images of each source; files that are named one by one are a table for each folder they are in."""
    from frontrank.data import read_unlabelled
    from frontrank.data.table import IMAGE_ENDINGS

    files: dict[Path, list[str]] = {}  # by their folder
    tables: dict[str | Path, ImageTable] = {}
    for source in options.images:
        if os.path.isfile(source) and Path(source).suffix.lower() in IMAGE_ENDINGS:
            folder = Path(source).parent
            files.setdefault(folder, []).append(source)
            tables[folder] = _relative_to(folder, read_unlabelled(files[folder]))
        elif source in tables:
            raise InputError(f"{source} is named twice; name it once")
        else:
            tables[source] = _read_source(options, source)
    return list(tables.values())


def _read_source(options: argparse.Namespace, source: str) -> ImageTable:
    """Read all images of a source, of any split unless one is given; without labels if it has no classes."""
    from frontrank.data import read_unlabelled

    chosen = argparse.Namespace(**{**vars(options), "data": source, "split": options.split or "all"})
    try:
        return read_images(chosen)
    except InputError as error:
        if options.layout is not None or options.split is not None or not _is_plain_folder(source):
            message = str(error).replace("--data ", "").replace("data.layout", "--layout")
            raise InputError(message) from error
        table = _relative_to(Path(source), read_unlabelled([source]))
        say(options.quiet, f"read {source}: {len(table):,} images, without labels: {error}")
        return table


def _is_plain_folder(source: str) -> bool:
    """Whether a source is nothing but a folder of images, which needs no labels."""
    from frontrank.data.published import detect_layout
    from frontrank.samples.build import TABLE, resume_command

    with suppress(InputError):  # the files of several data sets
        return (
            os.path.isdir(source)
            and not os.path.isfile(os.path.join(source, TABLE))
            and resume_command(source) is None
            and detect_layout(source) is None
        )
    return False


def _relative_to(root: Path, table: ImageTable) -> ImageTable:
    """Return the table with its paths as they are from this folder."""
    import numpy as np

    paths = [os.path.relpath(file, root) for file in table.files()]
    return replace(table, root=root, paths=np.array(paths))


def with_numbers(table: ImageTable) -> ImageTable:
    """Return the table with numbers in columns of text, as of a .csv, that hold nothing else, for year>=2020.

    >>> table = fr.ImageTable("a", ["1.jpg", "2.jpg"], ["", ""], ["", ""], ["test"] * 2, ["", ""],
    ...                       extra={"year": ["2020", ""], "code": ["007", "12"]})
    >>> [column.tolist() for column in with_numbers(table).extra.values()]
    [[2020, ''], ['007', '12']]
    """
    import numpy as np

    extra = dict(table.extra)
    for name, column in table.extra.items():
        cells = column.tolist()
        texts = [cell.strip() for cell in cells if isinstance(cell, str)]
        if name != "box" and len(texts) == len(cells) and all(not text or _NUMBER.fullmatch(text) for text in texts):
            values = [text and (float(text) if "." in text else int(text)) for text in texts]
            extra[name] = np.array(values, dtype=object)
    return replace(table, extra=extra)


def table_roots(table: ImageTable, broken: Container[str] = ()) -> list[str]:
    """Return the folders that the images of a table are in: its own, and those around images that are elsewhere.

    broken: files that do not count, as they are printed
    None of them is the root of the file system, below which is everything.
    """
    own = os.path.abspath(table.root)
    folders = {os.path.dirname(os.path.abspath(file)) for file in table.files() if printable(file) not in broken}
    inside = {folder for folder in folders if Path(folder).is_relative_to(own)}
    elsewhere: dict[tuple[str, ...], list[str]] = {}
    for folder in sorted(folders - inside):
        elsewhere.setdefault(Path(folder).parts[:2], []).append(folder)
    return [own] * bool(inside) + [os.path.commonpath(some) for some in elsewhere.values()]


# The index


def _open_or_create(options: argparse.Namespace, model: fr.Embedder) -> fr.Index:
    whitening = None if options.whiten is None else fr.Whitening.load(options.whiten)
    settings: dict[str, Any] = {"whitening": whitening, "adapter": read_adapter(options, model.dim)}
    settings["expansion"] = read_expansion(options)
    try:
        progress = False if options.quiet else None
        return fr.Index(options.to, dim=model.dim, model=model.fingerprint, progress=progress, **settings)
    except InputError as error:
        try:
            index = fr.Index.load(options.to, progress=False)
        except InputError:
            raise error from None
        with index:
            raise _other_settings(options, index, model) or error from None


def _other_settings(options: argparse.Namespace, index: fr.Index, model: fr.Embedder) -> InputError | None:
    """Return the error for an index that was made with other settings, in the words of the command."""
    stored, where, expansion = index.settings, index.where, read_expansion(options)
    if (stored.model, stored.dim) != (model.fingerprint, model.dim):
        its = f", {stored.notes['model']}" if "model" in stored.notes else ""
        return InputError(f"{options.model} is not the model of {where}{its}; give that one, or another --to")
    own: object
    if expansion not in (None, stored.expansion):
        option, own = "--expand", stored.expansion
    elif options.adapter is not None:
        option, own = "--adapter", stored.adapter
    elif options.whiten is not None:
        option, own = "--whiten", stored.whitening
    else:
        return None
    how = "without it" if own is None else "with another one"
    return InputError(f"{option}: {where} was made {how}; leave it out, or give another --to")


def _print_result(result: IndexSummary, index: fr.Index, quiet: bool) -> None:
    """Print what happened to the images; broken ones in any case, as they are missing from now on."""
    facts, count = index.prepare().facts, index.count()
    images = f"{count:,} image{'s' * (count != 1)} in it, {facts.get('search', 'exact')} search"
    say(quiet, f"{index.where}: {result.describe()}; {images}")
    for file, reason in result.broken:
        say(False, f"  broken: {file} {reason}")
    if result.broken and not result.readable:
        raise InputError(f"none of the {len(result.broken):,} images can be read; give others")
    url = shlex.quote(index.where)
    say(quiet, f"try: frontrank search {url} QUERY.jpg\n     frontrank serve {url} --open")
