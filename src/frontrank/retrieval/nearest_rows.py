"""The best rows of a matrix for some queries: exact, and the order of what an approximate search found.

One query is compared with all rows by faiss, several are multiplied with blocks of rows: faiss would go over the rows
once for each of them. Both multiply in float32, where rounding depends on how many queries come at once. So somewhat
more rows than asked for are taken and scored again in float64. The score of a row is that number, rounded to a multiple
of 2^-24, which float32 holds: it does not show in which order the products were summed. Equal scores are ordered by id.
A query whose last place could still go to a row that was left out is compared with all rows once more. So what is found
is the same for one query and for many, whatever the order of the rows.
"""

import heapq
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch

from frontrank.errors import InputError
from frontrank.ranking.vectors import slack

SPARE = 16  # rows taken beyond those asked for
_RARE = 16  # with fewer than one row in so many to choose from, copying them is faster than passing over the others;
_RARE_OF_MANY = 4  # and this for several queries
_GRID = 2.0**-24
_TO_GRID = 1.5 * _GRID * 2.0**52  # float64 of this size are multiples of _GRID: adding it rounds, half to even
_BLOCK = 1 << 14  # rows multiplied at once
_GROUP = 256  # queries that they are multiplied with
_COPIED = 1 << 16  # rows copied at once
_SCORED = 1 << 16  # numbers scored again at once, so that they stay in the cache

Found = tuple[np.ndarray, np.ndarray]  # scores and rows [query, place], best first; row -1 where there are no more


def import_faiss() -> Any:
    """The library."""
    try:
        import faiss
    except ImportError:
        raise InputError("an index in a folder or in memory needs faiss; pip install 'frontrank[search]'") from None
    return faiss


class Allowed:
    """The rows that may be found, in the forms that are needed."""

    def __init__(self, mask: np.ndarray) -> None:
        self.mask = mask
        self.count = int(np.count_nonzero(mask))
        self._since: tuple[int, Allowed] | None = None

    @cached_property
    def rows(self) -> np.ndarray:
        return np.flatnonzero(self.mask)

    @cached_property
    def selector(self) -> Any:
        faiss = import_faiss()
        bits = np.packbits(self.mask, bitorder="little")
        selector = faiss.IDSelectorBitmap(len(self.mask), faiss.swig_ptr(bits))
        selector.bits = bits  # which it only points to
        return selector

    def since(self, row: int) -> "Allowed":
        """Those from a row on, counted from there."""
        if self._since is None or self._since[0] != row:
            self._since = row, Allowed(self.mask[row:])
        return self._since[1]


def exact_best(
    rows: np.ndarray, queries: np.ndarray, k: int, ids: Sequence[Any], allowed: Allowed | None = None
) -> Found:
    """The k best of the rows that are allowed, which are k at least.

    ids: objects with an `id`, by row
    """
    possible = len(rows) if allowed is None else allowed.count
    rough = rough_best(rows, queries, min(k + SPARE, possible), allowed)
    scores, found = settled(rows, queries, rough, k, ids)
    if rough[0].shape[1] < possible:
        off = _slack(rows.shape[1])
        for i in np.flatnonzero(scores[:, k - 1] <= rough[0][:, -1] + off):
            scores[i], found[i] = _from_all(rows, queries[i], k, ids, allowed, float(scores[i, k - 1]) - 2 * off)
    return scores, found


def rough_best(rows: np.ndarray, queries: np.ndarray, k: int, allowed: Allowed | None = None) -> Found:
    """The k best as far as float32 tells, with those scores, in no order that can be relied on among near ones."""
    if allowed is None:
        return _nearest(rows, queries, k, None)
    if allowed.count * (_RARE if len(queries) == 1 else _RARE_OF_MANY) > len(rows):
        return _nearest(rows, queries, k, allowed)
    parts = []
    for start in range(0, len(allowed.rows), _COPIED):
        some = allowed.rows[start : start + _COPIED]
        first, last = int(some[0]), int(some[-1]) + 1
        block = rows[first:last] if last - first == len(some) else rows[some]
        scores, found = _nearest(block, queries, min(k, len(some)), None)
        parts.append((scores, some[found]))
    return joined(parts, k)


def _nearest(rows: np.ndarray, queries: np.ndarray, k: int, allowed: Allowed | None) -> Found:
    if len(queries) == 1:
        return _knn(rows, queries, k, None if allowed is None else allowed.selector)
    groups = [queries[start : start + _GROUP] for start in range(0, len(queries), _GROUP)]
    found = [_products(rows, some, k, None if allowed is None else allowed.mask) for some in groups]
    return np.concatenate([scores for scores, _ in found]), np.concatenate([places for _, places in found])


def _products(rows: np.ndarray, queries: np.ndarray, k: int, mask: np.ndarray | None) -> Found:
    """By numpy, whose products are of full precision whatever torch was told; the best of them by torch."""
    best: tuple[torch.Tensor, torch.Tensor] | None = None
    for start in range(0, len(rows), _BLOCK):
        products = queries @ rows[start : start + _BLOCK].T
        if mask is not None:
            products += np.where(mask[start : start + _BLOCK], np.float32(0), np.float32(-np.inf))
        scores, places = torch.from_numpy(products).topk(min(k, products.shape[1]))
        places += start
        if best is not None:
            scores, order = torch.cat([best[0], scores], 1).topk(min(k, best[0].shape[1] + scores.shape[1]))
            places = torch.cat([best[1], places], 1).gather(1, order)
        best = scores, places
    assert best is not None  # there are rows
    return best[0].numpy(), best[1].numpy()


def joined(parts: Sequence[Found], k: int) -> Found:
    """The k best of several lists per query."""
    if len(parts) == 1:
        return parts[0]
    scores = np.concatenate([part[0] for part in parts], 1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(np.concatenate([p[1] for p in parts], 1), order, 1)


def settled(rows: np.ndarray, queries: np.ndarray, rough: Found, k: int, ids: Sequence[Any]) -> Found:
    """The k best of those found, scored in float64, by score and id."""
    every = rough[1]
    scored = _scored(rows, queries, every)
    order = (-scored).argsort(axis=1, kind="stable")[:, : k + 1]
    if len(order) > 1:
        order += np.arange(0, scored.size, scored.shape[1])[:, None]  # places in the whole, which take is fastest with
    scores, found = scored.take(order), every.take(order)
    equal = scores[:, 1:] == scores[:, :-1]
    scores, found = scores[:, :k], found[:, :k]
    if equal.any():
        for i in np.flatnonzero(equal.any(1)):
            pairs = zip(scored[i].tolist(), every[i].tolist(), strict=True)
            there = sorted((-score, ids[row].id, row) for score, row in pairs if row >= 0)[:k]
            found[i, : len(there)] = [row for _, _, row in there]
    return scores, found


def _scored(rows: np.ndarray, queries: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The scores of rows that were found [query, place], -inf where there is none."""
    step = max(1, _SCORED // max(1, found.shape[1] * rows.shape[1]))
    if step >= len(found):
        scores = _scores(rows.take(found, 0), queries)
    else:
        scores = np.empty(found.shape, np.float32)
        for start in range(0, len(found), step):
            some = slice(start, start + step)
            scores[some] = _scores(rows.take(found[some], 0), queries[some])
    if found.min(initial=0) < 0:
        scores[found < 0] = -np.inf
    return scores


@cache
def _slack(dim: int) -> float:
    """How far a score of faiss can be from ours."""
    return slack(dim, torch.float32) + 2.0**-22


def _scores(candidates: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Cosines in float64, rounded to _GRID [query, place], float32; 0 is never -0."""
    exact = (candidates.astype(np.float64) @ queries.astype(np.float64)[:, :, None])[:, :, 0]
    exact += _TO_GRID
    exact -= _TO_GRID
    return exact.astype(np.float32)


def _from_all(
    rows: np.ndarray, query: np.ndarray, k: int, ids: Sequence[Any], allowed: Allowed | None, least: float
) -> Found:
    """The k best for one query of all rows that score about so much at least."""
    rough = rows @ query
    near = np.flatnonzero(rough >= least if allowed is None else (rough >= least) & allowed.mask)
    scores = np.empty(len(near), dtype=np.float32)
    step = max(1, _SCORED // rows.shape[1])
    for start in range(0, len(near), step):
        some = slice(start, start + step)
        scores[some] = _scores(rows.take(near[some], 0)[None], query[None])[0]
    named = (ids[row].id for row in near.tolist())
    best = heapq.nsmallest(k, zip((-scores).tolist(), named, near.tolist(), strict=True))
    return -np.array([score for score, _, _ in best], dtype=np.float32), np.array([row for _, _, row in best])


def _knn(rows: np.ndarray, queries: np.ndarray, k: int, selector: Any) -> Found:
    """What IndexFlatIP does with its vectors for one query, on these."""
    faiss = import_faiss()
    rows, queries = np.ascontiguousarray(rows, np.float32), np.ascontiguousarray(queries, np.float32)
    scores, found = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    sizes = rows.shape[1], len(queries), len(rows), k
    pointers = faiss.swig_ptr(queries), faiss.swig_ptr(rows)
    faiss.knn_inner_product(*pointers, *sizes, faiss.swig_ptr(scores), faiss.swig_ptr(found), selector)
    return scores, found
