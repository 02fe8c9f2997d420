"""What `frontrank index` does, and what it says of it."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from frontrank.build import processes
from frontrank.cli.embedding import read_images
from frontrank.cli.rows import say
from frontrank.data.folders import IMAGE_ENDINGS, read_unlabelled
from frontrank.data.image_table import ImageTable
from frontrank.errors import InputError
from frontrank.jobs.indexing import Indexed, index_images, roots_of
from frontrank.models import Embedder
from frontrank.retrieval.index import Index
from frontrank.retrieval.whitening import Whitening
from frontrank.training import distributed

_NAMED = 5  # broken images that are named


def run(options: argparse.Namespace) -> None:
    """Embed what is new, keep it, and say what became of the images."""
    with processes(options.device) as device:
        options.quiet = options.quiet or not distributed.is_main()
        tables = [_images(options, source) for source in options.images]
        model = Embedder.load(options.model, device=device)
        with _opened(options, model, tables) as index:
            found = index_images(
                model,
                tables,
                index,
                batch_size=options.batch_size or 64,
                workers=2 if options.workers is None else options.workers,
                prune=options.prune,
                show=False if options.quiet else None,
            )
            if index is not None:
                settings = index.prepare()
                say(options.quiet, _summary(found, options, index, str(settings.facts.get("search", "exact"))))
                if found.broken and not index.count():
                    raise InputError(f"none of the {len(found.broken):,} images can be read; give others")


def _images(options: argparse.Namespace, source: str) -> ImageTable:
    """All images of a source, whatever their split, unless one is asked for; without labels where it has no classes."""
    chosen = argparse.Namespace(**{**vars(options), "data": source, "split": options.split or "all"})
    if os.path.isfile(source) and Path(source).suffix.lower() in IMAGE_ENDINGS:
        return _below(Path(source).parent, read_unlabelled([source]))
    try:
        table = read_images(chosen)
    except InputError as error:
        if options.layout is not None or options.split is not None or not os.path.isdir(source) or _has_table(source):
            raise InputError(str(error).replace("--data ", "")) from error
        table = _below(Path(source), read_unlabelled([source]))
        say(options.quiet, f"read {source}: {len(table):,} images without labels ({error})")
    return table


def _has_table(source: str) -> bool:
    return os.path.isfile(os.path.join(source, "images.csv"))


def _below(root: Path, table: ImageTable) -> ImageTable:
    """The table with its paths as they are from this folder."""
    paths = [os.path.relpath(file, root) for file in table.files()]
    return replace(table, root=root, paths=np.array(paths))


@contextmanager
def _opened(options: argparse.Namespace, model: Embedder, tables: list[ImageTable]) -> Iterator[Index | None]:
    """The index, for the first process alone; None for the others."""
    if not distributed.is_main():
        yield None
        return
    whitening = None if options.whiten is None else Whitening.load(options.whiten)
    expansion = None if options.expand is None else (options.expand, 2.0 if options.alpha is None else options.alpha)
    with Index(options.to, dim=model.dim, model=model.fingerprint, whitening=whitening, expansion=expansion) as index:
        known = index.settings.notes.get("roots", ())
        roots = dict.fromkeys([*known, *(root for table in tables for root in roots_of(table))])
        index.note(model=os.path.abspath(options.model), roots=list(roots))
        yield index


def _summary(found: Indexed, options: argparse.Namespace, index: Index, search: str) -> str:
    lines = [f"{index.where}: {found.describe()}; {index.count():,} images in it, {search} search"]
    lines += [f"  broken: {file} {reason}" for file, reason in found.broken[:_NAMED]]
    if len(found.broken) > _NAMED:
        lines.append(f"  and {len(found.broken) - _NAMED:,} more")
    lines += [f"try: frontrank search {index.where} QUERY.jpg", f"     frontrank serve {index.where}"]
    return "\n".join(lines)
