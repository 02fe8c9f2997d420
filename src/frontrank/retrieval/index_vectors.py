"""Embeddings and queries on their way into an index."""

from collections.abc import Sequence

import numpy as np

from frontrank.errors import InputError, InputTypeError
from frontrank.ranking.vectors import as_array
from frontrank.retrieval.engines import Hits

_CHUNK = 8192  # rows brought to length 1 at once


def expanded(queries: np.ndarray, found: Sequence[Hits], alpha: float) -> np.ndarray:
    """Queries moved towards what they found, as `expand_queries` does, at length 1 [query, dim]."""
    moved = np.empty_like(queries)
    for i, hits in enumerate(found):
        scores = hits.scores.astype(np.float64)
        weights = np.where(scores > 0, np.maximum(scores, 0) ** alpha, 0)
        total = queries[i].astype(np.float64)
        if hits.vectors is not None and len(hits):
            total = total + weights @ hits.vectors.astype(np.float64)
        moved[i] = total / np.linalg.norm(total)
    return moved


def unit_rows(name: str, data: object, dim: int, ids: Sequence[str] | None = None) -> np.ndarray:
    """Rows at length 1 [row, dim], float32; a row without a direction is refused by its id, or by its number."""
    rows = as_array(name, data)
    if ids is not None and not ids and not rows.size:
        return np.empty((0, dim), np.float32)
    if rows.dtype.kind != "f":
        raise InputTypeError(f"{name} must be floating point numbers, got {rows.dtype}; convert to float32")
    if rows.ndim != 2:
        raise InputError(f"{name} must have the shape (rows, {dim}), got {rows.shape}; a single one is a row, too")
    if rows.shape[1] != dim:
        raise InputError(f"{name} has {rows.shape[1]} dimensions, the index has {dim}; use the model it was made with")
    if ids is not None and len(rows) != len(ids):
        raise InputError(f"{name} has {len(rows)} rows, items has {len(ids)}; give one embedding per item")
    if len(rows) <= _CHUNK:
        return _unit(name, rows, 0, ids)
    found = np.empty(rows.shape, np.float32)
    for start in range(0, len(rows), _CHUNK):
        found[start : start + _CHUNK] = _unit(name, rows[start : start + _CHUNK], start, ids)
    return found


def _unit(name: str, rows: np.ndarray, start: int, ids: Sequence[str] | None) -> np.ndarray:
    wide = rows.astype(np.float64)
    if rows.dtype.itemsize < 8:  # the squares of which float64 holds
        squares = (wide * wide).sum(1, keepdims=True)
    else:
        with np.errstate(over="ignore", under="ignore"):
            squares = (wide * wide).sum(1, keepdims=True)
    if not (len(rows) == 0 or (squares.min() > 1e-280 and squares.max() < 1e280)):  # not so for NaN, too
        wide = _in_range(name, wide, start, ids)
        squares = (wide * wide).sum(1, keepdims=True)
    wide /= np.sqrt(squares)
    return wide.astype(np.float32)


def _in_range(name: str, rows: np.ndarray, start: int, ids: Sequence[str] | None) -> np.ndarray:
    """Rows with 1 as their largest number; refuses those that cannot be."""
    largest = np.abs(rows).max(1)
    for i in np.flatnonzero(~(np.isfinite(largest) & (largest > 0)))[:1]:
        which = f"row {start + i} (from 0)" if ids is None else f"the row of {ids[start + i]!r}"
        wrong = "is all zeros" if largest[i] == 0 else "has NaN or infinite values"
        raise InputError(f"{name}: {which} {wrong}; drop it, or look at what the model made of its image")
    return rows / largest[:, None]
