"""What `frontrank index` does, and what it says of it."""

import argparse
import os
import re
import shlex
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from frontrank.cli.embedding import read_images
from frontrank.cli.rows import say
from frontrank.data.published import detect_layout
from frontrank.data.table import IMAGE_ENDINGS, ImageTable, read_unlabelled
from frontrank.errors import InputError, InterruptedRunError
from frontrank.models import Embedder
from frontrank.picture_index import IndexSummary, index_images, refuse_repeats, refuse_unreadable
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import is_field
from frontrank.retrieval.whitening import Whitening
from frontrank.samples.build import TABLE, resume_command
from frontrank.training import distributed
from frontrank.training.run import processes

_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?", re.ASCII)  # 007 is a name


def run(options: argparse.Namespace) -> None:
    """Embed what is new, keep it, and say what became of the images."""
    try:
        with ExitStack() as stack:
            with processes(options.device) as device:
                index, found = _index(options, device, stack)
            if index is not None:  # the others are done: a graph may take longer to build than they would wait
                _say_what_became(found, index, options.quiet)
    except KeyboardInterrupt:
        raise InterruptedRunError("interrupted; the same command again goes on from there") from None


def _index(options: argparse.Namespace, device: torch.device, stack: ExitStack) -> tuple[Index | None, IndexSummary]:
    """The index, open until the stack is closed, for the first process alone; and what became of the images."""
    options.quiet = options.quiet or not distributed.is_main()
    tables = [with_numbers(table) for table in _tables(options)]
    refuse_repeats(tables)  # before an index is made
    with distributed.fail_together():
        if distributed.is_main():
            refuse_unreadable(tables)
    _say_what_is_left_out(tables, options.quiet)
    model = Embedder.load(options.model, device=device)
    index = _opened(options, model, tables, stack)
    found = index_images(
        model,
        tables,
        index,
        batch_size=options.batch_size or 64,
        workers=2 if options.workers is None else options.workers,
        prune=options.prune,
        show=False if options.quiet else None,
    )
    return index, found


def _say_what_is_left_out(tables: list[ImageTable], quiet: bool) -> None:
    """Name the columns that no filter could name."""
    for name in dict.fromkeys(name for table in tables for name in table.extra if not is_field(name)):
        say(quiet, f"left out: the column {name!r}; name it by letters, digits and _ to filter by it")


def _tables(options: argparse.Namespace) -> list[ImageTable]:
    """The images of each source; files that are named one by one are a table for each folder that they are in."""
    found: dict[str, ImageTable | list[str]] = {}
    for source in options.images:
        if os.path.isfile(source) and Path(source).suffix.lower() in IMAGE_ENDINGS:
            files = found.setdefault(f"files of {Path(source).parent}", [])
            assert isinstance(files, list)
            files.append(source)
        elif source in found:
            raise InputError(f"{source} is there twice; name it once")
        else:
            found[source] = _images(options, source)
    return [
        _below(Path(some[0]).parent, read_unlabelled(some)) if isinstance(some, list) else some
        for some in found.values()
    ]


def _images(options: argparse.Namespace, source: str) -> ImageTable:
    """All images of a source, whatever their split, unless one is asked for; without labels where it has no classes."""
    chosen = argparse.Namespace(**{**vars(options), "data": source, "split": options.split or "all"})
    try:
        return read_images(chosen)
    except InputError as error:
        if options.layout is not None or options.split is not None or not _is_plain_folder(source):
            said = str(error).replace("--data ", "").replace("data.layout", "--layout")
            raise InputError(said) from error
        table = _below(Path(source), read_unlabelled([source]))
        say(options.quiet, f"read {source}: {len(table):,} images, without labels: {error}")
        return table


def _is_plain_folder(source: str) -> bool:
    """Whether a source is nothing but a folder of images, which needs no labels."""
    with suppress(InputError):  # the files of several data sets
        return (
            os.path.isdir(source)
            and not os.path.isfile(os.path.join(source, TABLE))
            and resume_command(source) is None
            and detect_layout(source) is None
        )
    return False


def _below(root: Path, table: ImageTable) -> ImageTable:
    """The table with its paths as they are from this folder."""
    paths = [os.path.relpath(file, root) for file in table.files()]
    return replace(table, root=root, paths=np.array(paths))


def with_numbers(table: ImageTable) -> ImageTable:
    """The table with numbers in those columns of text, as of a .csv, that have nothing else: year>=2020 is of numbers.

    >>> table = ImageTable("a", ["1.jpg", "2.jpg"], ["", ""], ["", ""], ["test"] * 2, ["", ""],
    ...                    extra={"year": ["2020", ""], "code": ["007", "12"]})
    >>> [column.tolist() for column in with_numbers(table).extra.values()]
    [[2020, ''], ['007', '12']]
    """
    extra = dict(table.extra)
    for name, column in table.extra.items():
        cells = column.tolist()
        texts = [cell.strip() for cell in cells if isinstance(cell, str)]
        if name != "box" and len(texts) == len(cells) and all(not text or _NUMBER.fullmatch(text) for text in texts):
            values = [text and (float(text) if "." in text else int(text)) for text in texts]
            extra[name] = np.array(values, dtype=object)
    return replace(table, extra=extra)


def roots_of(table: ImageTable) -> list[str]:
    """The folders that the images of a table are in: its own, and those around images that are elsewhere.

    These share more than the root of the file system, below which is everything.
    """
    own = os.path.abspath(table.root)
    folders = {os.path.dirname(os.path.abspath(file)) for file in table.files()}
    inside = {folder for folder in folders if Path(folder).is_relative_to(own)}
    elsewhere: dict[tuple[str, ...], list[str]] = {}
    for folder in sorted(folders - inside):
        elsewhere.setdefault(Path(folder).parts[:2], []).append(folder)
    return [own] * bool(inside) + [os.path.commonpath(some) for some in elsewhere.values()]


def _opened(options: argparse.Namespace, model: Embedder, tables: list[ImageTable], stack: ExitStack) -> Index | None:
    """The index, for the first process alone; None for the others."""
    index = None
    with distributed.fail_together():
        if distributed.is_main():
            index = stack.enter_context(_made(options, model))
            known = index.settings.notes.get("roots", ())
            roots = dict.fromkeys([*known, *(root for table in tables for root in roots_of(table))])
            model_at = os.path.abspath(options.model) if os.path.isdir(options.model) else options.model  # on a hub
            index.note(model=model_at, roots=list(roots))
    return index


def _made(options: argparse.Namespace, model: Embedder) -> Index:
    """The index that is there, or a new one."""
    whitening = None if options.whiten is None else Whitening.load(options.whiten)
    expansion = None if options.expand is None else (options.expand, 2.0 if options.alpha is None else options.alpha)
    show = False if options.quiet else None
    settings: dict[str, Any] = {"model": model.fingerprint, "whitening": whitening, "expansion": expansion}
    try:
        return Index(options.to, dim=model.dim, progress=show, **settings)
    except InputError as error:
        try:
            index = Index.load(options.to, progress=False)
        except InputError:
            raise error from None
        with index:
            raise _of_other_settings(options, index, model, expansion) or error from None


def _of_other_settings(
    options: argparse.Namespace, index: Index, model: Embedder, expansion: tuple[int, float] | None
) -> InputError | None:
    """What an index was not made with, in the words of the command."""
    stored, where = index.settings, index.where
    if (stored.model, stored.dim) != (model.fingerprint, model.dim):
        its = f", {stored.notes['model']}" if "model" in stored.notes else ""
        return InputError(f"{options.model} is not the model of {where}{its}; give that one, or another --to")
    for option, given, had in (
        ("--expand", expansion if expansion != stored.expansion else None, stored.expansion),
        ("--whiten", options.whiten, stored.whitening),
    ):
        if given is not None:
            made = "with another one" if had is not None else "without it"
            return InputError(f"{option}: {where} was made {made}; leave it out, or give another --to")
    return None


def _say_what_became(found: IndexSummary, index: Index, quiet: bool) -> None:
    """What became of the images; of broken ones is told in any case, as they are missing from now on."""
    facts, count = index.prepare().facts, index.count()
    images = f"{count:,} image{'s' * (count != 1)} in it, {facts.get('search', 'exact')} search"
    say(quiet, f"{index.where}: {found.describe()}; {images}")
    for file, reason in found.broken:
        say(False, f"  broken: {file} {reason}")
    if found.broken and not found.readable:
        raise InputError(f"none of the {len(found.broken):,} images can be read; give others")
    url = shlex.quote(index.where)
    say(quiet, f"try: frontrank search {url} QUERY.jpg\n     frontrank serve {url} --open")
