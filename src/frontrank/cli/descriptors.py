"""What a command does to descriptors before a search: whitening, augmentation of the gallery, expansion of queries."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import frontrank as fr
from frontrank.cli.rows import Rows, about, read_rows, split
from frontrank.data.embedding_files import Array, list_arrays, parsing
from frontrank.errors import InputError

_OF_A_WHITENING = {"mean", "components", "variance"}


@dataclass(frozen=True, eq=False)
class Sides:
    """Queries and what they search; without a gallery themselves.

    own: query i is item i of the gallery, and not in its own list
    """

    queries: Array
    gallery: Array | None = None
    distractors: Array | None = None
    own: bool = False


@dataclass(frozen=True)
class Steps:
    """What is to be done to descriptors, None: nothing."""

    whitening: fr.Whitening | None
    augment: int | None
    expand: int | None
    alpha: float
    progress: bool | None


def whitening_source(options: argparse.Namespace) -> fr.Whitening | Rows | None:
    """The saved whitening, or the embeddings to fit one on."""
    if options.whiten is None:
        return None
    path = Path(split(options.whiten)[0])
    if path.suffix.lower() == ".safetensors":
        with parsing(path):
            is_saved = set(list_arrays(path)) >= _OF_A_WHITENING
        if is_saved:
            for option in ("power", "dim"):
                if getattr(options, option) is not None:
                    raise InputError(
                        f"--{option} is for fitting, but {path} is a saved whitening; leave it out, or give the "
                        "training embeddings"
                    )
            return fr.Whitening.load(path)
    return read_rows(options.whiten)


def read_steps(options: argparse.Namespace, source: fr.Whitening | Rows | None) -> Steps:
    """What the options ask for; this fits the whitening."""
    show = False if options.quiet else None
    if isinstance(source, Rows):
        power = 0.25 if options.power is None else options.power
        with about(source):
            source = fr.Whitening.fit(source.embeddings, power, options.dim, progress=show)
    alpha = 2.0 if options.alpha is None else options.alpha
    return Steps(source, options.augment, options.expand, alpha, show)


def facts(steps: Steps, whitened_by: str | None) -> dict[str, Any]:
    """What was done, for a report."""
    found = {}
    if steps.whitening is not None:
        kept = f"{len(steps.whitening.components)} dimensions, power {steps.whitening.power:g}"
        found["whitening"] = f"{Path(whitened_by or '').name}, {kept}"
    for name, k in (("augmentation", steps.augment), ("expansion", steps.expand)):
        if k is not None:
            found[name] = f"k {k}, alpha {steps.alpha:g}"
    return found


def moved(steps: Steps, queries: Rows, gallery: Rows | None, distractors: Rows | None) -> Sides:
    """The descriptors after all steps."""
    found = [None if rows is None else _whitened(steps, rows) for rows in (queries, gallery, distractors)]
    assert found[0] is not None
    sides = Sides(found[0], found[1], found[2])
    if steps.augment is not None:
        sides = _augmented(steps, sides)
    return sides if steps.expand is None else _expanded(steps, sides)


def _whitened(steps: Steps, rows: Rows) -> Array:
    if steps.whitening is None:
        return rows.embeddings
    with about(rows):
        return steps.whitening.apply(rows.embeddings, progress=steps.progress)


def _augmented(steps: Steps, sides: Sides) -> Sides:
    settings: Any = {"k": steps.augment, "alpha": steps.alpha, "progress": steps.progress}
    if sides.gallery is None:
        return replace(sides, queries=fr.augment_database(sides.queries, **settings))
    database = fr.augment_database(_database(sides), **settings)
    items = len(sides.gallery)
    return replace(sides, gallery=database[:items], distractors=None if sides.distractors is None else database[items:])


def _expanded(steps: Steps, sides: Sides) -> Sides:
    settings: Any = {"k": steps.expand, "alpha": steps.alpha, "progress": steps.progress}
    if sides.gallery is None:
        expanded = fr.expand_queries(sides.queries, **settings)
        return Sides(expanded, gallery=sides.queries, own=True)
    return replace(sides, queries=fr.expand_queries(sides.queries, _database(sides), **settings))


def _database(sides: Sides) -> Any:
    """All that is searched; distractors are joined to the gallery in memory."""
    if sides.distractors is None:
        return sides.gallery
    return torch.cat([_as_tensor(part) for part in (sides.gallery, sides.distractors)])


def _as_tensor(rows: Array | None) -> torch.Tensor:
    """Rows in memory; numpy has byte orders and read-only maps that torch has not."""
    if isinstance(rows, torch.Tensor):
        return rows
    found = np.asarray(rows)
    return torch.from_numpy(found.astype(np.float64 if found.itemsize > 4 else np.float32))
