"""Exact search over the rows of an embedded index, and the scores and order of rows that any search proposes.

float32 products, by faiss or numpy, propose a few rows more than wanted. These are scored again in float64, rounded
to a grid and ordered by id where they are equal: the result does not depend on block sizes, threads or the order of
the rows.
"""

import heapq
from functools import cached_property
from typing import Any

import numpy as np
import torch

from frontrank.checks import import_extra
from frontrank.ranking.vectors import slack
from frontrank.retrieval.engine import split_batches

SPARE = 16  # rows proposed beyond those wanted
_RARE = 16  # with fewer than one row in so many allowed, copying them is faster than passing over the others;
_RARE_OF_MANY = 4  # and this for several queries
_GRID = 2.0**-24
_TO_GRID = 1.5 * _GRID * 2.0**52  # float64 of this size are multiples of _GRID: adding it rounds, half to even
_BLOCK = 1 << 14  # rows multiplied at once
_GROUP = 256  # queries that they are multiplied with
_COPIED = 1 << 16  # rows copied at once
_SCORED = 1 << 16  # numbers scored again at once, so that they stay in the cache

Items = list[Any]  # objects with an `id`, by row
Ranking = tuple[np.ndarray, np.ndarray]  # scores and rows [query, place], best first; row -1 where there are no more


def import_faiss() -> Any:
    """Import faiss, or raise an error that names the extra."""
    try:
        import faiss  # the quickest way once it is loaded: every search calls this
    except ImportError:
        return import_extra("faiss", "search", "an index in a folder or in memory")
    return faiss


class RowMask:
    """The rows that a search may return, in the forms that are needed."""

    def __init__(self, mask: np.ndarray) -> None:
        self.mask = mask
        self.count = int(np.count_nonzero(mask))

    @cached_property
    def rows(self) -> np.ndarray:
        return np.flatnonzero(self.mask)

    @cached_property
    def selector(self) -> Any:
        faiss = import_faiss()
        bits = np.packbits(self.mask, bitorder="little")
        selector = faiss.IDSelectorBitmap(len(self.mask), faiss.swig_ptr(bits))
        selector.bits = bits  # it only points to them
        return selector


def exact_best(rows: np.ndarray, queries: np.ndarray, k: int, items: Items, allowed: RowMask | None = None) -> Ranking:
    """Return the k best of the allowed rows, of which there are at least k."""
    possible = len(rows) if allowed is None else allowed.count
    rough = rough_best(rows, queries, min(k + SPARE, possible), allowed)
    scores, best = settle_order(rows, queries, rough[1], k, items)
    if rough[0].shape[1] < possible:
        off = slack(rows.shape[1], torch.float32) + 2.0**-22  # how far a score of faiss can be from ours
        for i in np.flatnonzero(scores[:, k - 1] <= rough[0][:, -1] + off):
            scores[i], best[i] = _best_of_all(rows, queries[i], k, items, allowed, float(scores[i, k - 1]) - 2 * off)
    return scores, best


def rough_best(rows: np.ndarray, queries: np.ndarray, k: int, allowed: RowMask | None = None) -> Ranking:
    """Return the k best as far as float32 tells, with those scores; the order of near ones is not reliable."""
    if allowed is None:
        return _float32_best(rows, queries, k, None)
    if allowed.count * (_RARE if len(queries) == 1 else _RARE_OF_MANY) > len(rows):
        return _float32_best(rows, queries, k, allowed)
    parts = []
    for some in split_batches(allowed.rows, _COPIED):
        first, last = int(some[0]), int(some[-1]) + 1
        block = rows[first:last] if last - first == len(some) else rows[some]
        scores, places = _float32_best(block, queries, min(k, len(some)), None)
        parts.append((scores, some[places]))
    if len(parts) == 1:
        return parts[0]
    scores, places = (np.concatenate(part, 1) for part in zip(*parts, strict=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(places, order, 1)


def _float32_best(rows: np.ndarray, queries: np.ndarray, k: int, allowed: RowMask | None) -> Ranking:
    if len(queries) == 1:
        return _best_by_faiss(rows, queries, k, None if allowed is None else allowed.selector)
    mask = None if allowed is None else allowed.mask
    parts = [_best_by_products(rows, some, k, mask) for some in split_batches(queries, _GROUP)]
    return np.concatenate([scores for scores, _ in parts]), np.concatenate([places for _, places in parts])


def _best_by_faiss(rows: np.ndarray, queries: np.ndarray, k: int, selector: Any) -> Ranking:
    """Do what IndexFlatIP does for one query, on these rows."""
    faiss = import_faiss()
    rows, queries = np.ascontiguousarray(rows, np.float32), np.ascontiguousarray(queries, np.float32)
    scores, places = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    sizes = rows.shape[1], len(queries), len(rows), k
    pointers = faiss.swig_ptr(queries), faiss.swig_ptr(rows)
    faiss.knn_inner_product(*pointers, *sizes, faiss.swig_ptr(scores), faiss.swig_ptr(places), selector)
    return scores, places


def _best_by_products(rows: np.ndarray, queries: np.ndarray, k: int, mask: np.ndarray | None) -> Ranking:
    """Multiply by numpy, in full precision whatever the settings of torch are; choose the best by torch."""
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


def settle_order(rows: np.ndarray, queries: np.ndarray, candidates: np.ndarray, k: int, items: Items) -> Ranking:
    """Score proposed rows in float64; return the k best, by score and id."""
    every_score = _score_candidates(rows, queries, candidates)
    order = (-every_score).argsort(axis=1, kind="stable")[:, : k + 1]
    if len(order) > 1:
        order += np.arange(0, every_score.size, every_score.shape[1])[:, None]  # flat places, fastest for take
    scores, best = every_score.take(order), candidates.take(order)
    is_tie = scores[:, 1:] == scores[:, :-1]
    scores, best = scores[:, :k], best[:, :k]
    if is_tie.any():
        for i in np.flatnonzero(is_tie.any(1)):
            pairs = zip(every_score[i].tolist(), candidates[i].tolist(), strict=True)
            by_id = sorted((-score, items[row].id, row) for score, row in pairs if row >= 0)[:k]
            best[i, : len(by_id)] = [row for _, _, row in by_id]
    return scores, best


def _score_candidates(rows: np.ndarray, queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return the scores of proposed rows [query, place], -inf where there is none."""
    step = max(1, _SCORED // max(1, candidates.shape[1] * rows.shape[1]))
    scores = np.empty(candidates.shape, np.float32)
    for start in range(0, len(candidates), step):
        some = slice(start, start + step)
        scores[some] = _grid_scores(rows.take(candidates[some], 0), queries[some])
    if candidates.min(initial=0) < 0:
        scores[candidates < 0] = -np.inf
    return scores


def _grid_scores(candidates: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return cosines in float64, rounded to _GRID [query, place], as float32; 0 is never -0."""
    exact = (candidates.astype(np.float64) @ queries.astype(np.float64)[:, :, None])[:, :, 0]
    exact += _TO_GRID
    exact -= _TO_GRID
    return exact.astype(np.float32)


def _best_of_all(
    rows: np.ndarray, query: np.ndarray, k: int, items: Items, allowed: RowMask | None, least: float
) -> Ranking:
    """Return the k best for one query of all rows that score about so much at least."""
    rough = rows @ query
    near = np.flatnonzero(rough >= least if allowed is None else (rough >= least) & allowed.mask)
    parts = split_batches(near, max(1, _SCORED // rows.shape[1]))
    scores = np.concatenate([_grid_scores(rows.take(some, 0)[None], query[None])[0] for some in parts])
    names = (items[row].id for row in near.tolist())
    best = heapq.nsmallest(k, zip((-scores).tolist(), names, near.tolist(), strict=True))
    return -np.array([score for score, _, _ in best], dtype=np.float32), np.array([row for _, _, row in best])
