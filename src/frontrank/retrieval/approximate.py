"""Approximate search over very many vectors: which kind, how much effort, and how much of the exact answer it finds.

While the vectors fit into memory it is a graph (HNSW; Yu. A. Malkov, D. A. Yashunin, "Efficient and robust approximate
nearest neighbor search using Hierarchical Navigable Small World graphs", TPAMI 2020) over vectors of 8 bits per number,
else inverted lists with product quantisation (Hervé Jégou, Matthijs Douze, Cordelia Schmid, "Product Quantization for
Nearest Neighbor Search", TPAMI 2011). Both only propose rows, which are then scored by the vectors themselves. The
effort is the least that finds TARGET of the 10 nearest of queries made from some of the vectors; if none does, search
stays exact.
"""

import heapq
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from frontrank.errors import InputError
from frontrank.progress import progress as progress_bar
from frontrank.ranking.vectors import slack
from frontrank.retrieval.folder import Journal, whole_or_gone, write_journal

# ==== The best rows of a matrix for some queries: exact, and the order of what an approximate search found.


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


# ==== Approximate search over very many vectors: which kind, how much effort, and how much of the exact answer it fi


TARGET = {"hnsw": 0.98, "ivfpq": 0.95}  # of the 10 nearest; short codes cannot tell all of them apart
_MEASURED = 200  # vectors whose nearest are looked for
_EFFORTS = (32, 64, 128, 256, 512, 1024)  # rows kept in mind by a graph
_LISTS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # lists looked at
_LINKS, _BUILD_EFFORT = 32, 80
_STEP = 8192  # rows added at once
_TRAINED = 64  # vectors per list that k-means sees
_SPARE = {"hnsw": 1, "ivfpq": 20}  # rows proposed for each that is wanted


@dataclass(frozen=True)
class Graph:
    """What proposes rows.

    kind:   "hnsw", "ivfpq", or "exact" if neither was good enough
    index:  of faiss, None if exact
    rows:   how many rows, from the first, it knows
    effort: of a search
    recall: the share of the 10 nearest that was found
    """

    kind: str
    index: Any
    rows: int
    effort: int
    recall: float

    def propose(self, queries: np.ndarray, k: int, allowed: Allowed | None) -> Found:
        """About k good rows and more for each query, -1 where there are no more."""
        wanted = min(k * _SPARE[self.kind] + 8, self.rows)
        effort, selector = self.effort, None
        if allowed is not None:  # what is not allowed takes up places, too
            effort, selector = math.ceil(effort * min(4.0, len(allowed.mask) / max(allowed.count, 1))), allowed.selector
        effort = max(effort, wanted) if self.kind == "hnsw" else min(effort, self.index.nlist)
        settings = _usual_settings(self.kind, effort) if selector is None else _settings(self.kind, effort, selector)
        return _searched(self.index, queries, wanted, settings)


def _searched(index: Any, queries: np.ndarray, k: int, settings: Any) -> Found:
    """What `index.search` finds, without its checks, which take a tenth of the time that one query takes."""
    pointer = import_faiss().swig_ptr
    queries = np.ascontiguousarray(queries, np.float32)
    scores, found = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    index.search_c(len(queries), pointer(queries), k, pointer(scores), pointer(found), settings)
    return scores, found


def _settings(kind: str, effort: int, selector: Any = None) -> Any:
    faiss = import_faiss()
    if kind == "hnsw":
        return faiss.SearchParametersHNSW(efSearch=effort, sel=selector)
    return faiss.SearchParametersIVF(nprobe=effort, sel=selector)


_usual_settings = lru_cache(maxsize=64)(_settings)  # searches only read them, also several at once


def graph_best(
    graph: Graph, rows: np.ndarray, queries: np.ndarray, k: int, items: Sequence[Any], allowed: Allowed | None
) -> Found:
    """About the k best of the rows that are allowed, which are k at least; those that the graph lacks exactly."""
    parts = [graph.propose(queries, k, allowed)]
    if graph.rows < len(rows):
        new, newly = rows[graph.rows :], None if allowed is None else allowed.since(graph.rows)
        if wanted := min(k + SPARE, len(new) if newly is None else newly.count):
            scores, found = rough_best(new, queries, wanted, newly)
            parts.append((scores, found + graph.rows))
    scores, found = settled(rows, queries, joined(parts, len(rows)), k, items)
    is_short = found[:, -1] < 0
    if is_short.any():
        short = np.flatnonzero(is_short)
        scores[short], found[short] = exact_best(rows, queries[short], k, items, allowed)
    return scores, found


def build(rows: np.ndarray, alive: np.ndarray, items: Sequence[Any], in_memory: bool, show: bool | None) -> Graph:
    """The graph of all rows, dead ones too, with the effort that it needs."""
    kind, make = ("hnsw", _new_hnsw) if in_memory else ("ivfpq", _new_ivfpq)
    graph = Graph(kind, make(rows), 0, 0, 0.0)
    return extend(graph, rows, alive, items, show)


def extend(graph: Graph, rows: np.ndarray, alive: np.ndarray, items: Sequence[Any], show: bool | None) -> Graph:
    """The graph with the rows that it lacks, measured again."""
    with progress_bar("building the index", len(rows) - graph.rows, show) as step:
        for start in range(graph.rows, len(rows), _STEP):
            some = rows[start : start + _STEP]
            graph.index.add(np.ascontiguousarray(some))
            step(len(some))
    return measured(replace(graph, rows=len(rows)), rows, alive, items)


def measured(graph: Graph, rows: np.ndarray, alive: np.ndarray, items: Sequence[Any]) -> Graph:
    """The graph with the least effort that finds enough of the 10 nearest, ties counted as found."""
    live = Allowed(alive)
    sample = np.random.default_rng(0).choice(live.rows, min(_MEASURED, live.count), replace=False)
    allowed, k = live if live.count < len(rows) else None, min(10, live.count)
    queries = _moved(rows, sample, rough_best(rows, rows[sample], k, allowed)[1])
    least = settled(rows, queries, rough_best(rows, queries, k, allowed), k, items)[0][:, -1:]
    for effort in _EFFORTS if graph.kind == "hnsw" else _LISTS:
        graph = replace(graph, effort=effort)
        scores = settled(rows, queries, graph.propose(queries, k, allowed), k, items)[0]
        graph = replace(graph, recall=float((scores >= least - 1e-6).mean()))
        if graph.recall >= TARGET[graph.kind]:
            return graph
    return Graph("exact", None, len(rows), 0, 1.0)


def _moved(rows: np.ndarray, sample: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Vectors that are not in the index: some that are, moved by half the difference of two that are near to them.

    A graph has links from each of its own vectors to just what is near to that, and would seem better than it is. Of
    these it finds about as much as of new vectors of the same kind.
    """
    order = np.random.default_rng(1).permuted(near, axis=1)
    moved = rows[sample] + (rows[order[:, 0]] - rows[order[:, -1]]) / 2
    length = np.linalg.norm(moved, axis=1, keepdims=True)
    return np.where(length > 0, moved / np.maximum(length, np.float32(1e-12)), rows[sample]).astype(np.float32)


def _new_hnsw(rows: np.ndarray) -> Any:
    faiss = import_faiss()
    index = faiss.IndexHNSWSQ(rows.shape[1], faiss.ScalarQuantizer.QT_8bit, _LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _BUILD_EFFORT
    index.train(_sample(rows, 1 << 16))
    return index


def _new_ivfpq(rows: np.ndarray) -> Any:
    faiss = import_faiss()
    dim = rows.shape[1]
    lists = int(max(1, min(4 * math.sqrt(len(rows)), len(rows) / _TRAINED, 1 << 14)))
    parts = next(parts for parts in range(max(1, dim // 4), 0, -1) if dim % parts == 0)
    coarse = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFPQ(coarse, dim, lists, parts, 8, faiss.METRIC_INNER_PRODUCT)
    index.own_fields = True
    coarse.this.disown()
    index.cp.spherical = True
    for settings in (index.cp, index.pq.cp):
        settings.min_points_per_centroid, settings.max_points_per_centroid, settings.seed = 1, _TRAINED, 0
    index.train(_sample(rows, max(lists * _TRAINED, 1 << 14)))
    return index


def _sample(rows: np.ndarray, size: int) -> np.ndarray:
    if len(rows) <= size:
        return np.ascontiguousarray(rows)
    return rows[np.sort(np.random.default_rng(0).choice(len(rows), size, replace=False))]


def write_graph(path: Path, graph: Graph) -> None:
    """Write a graph to a file that appears when it is whole."""
    said = {"kind": graph.kind, "rows": graph.rows, "effort": graph.effort, "recall": graph.recall}
    held = b"" if graph.index is None else import_faiss().serialize_index(graph.index).data
    unfinished = path.with_name("graph.new")
    with whole_or_gone(unfinished):
        write_journal(unfinished, [(0, json.dumps(said).encode()), (1, held)])
    unfinished.replace(path)


def read_graph(path: Path) -> Graph | None:
    """The graph of a file, None if there is none."""
    try:
        journal = Journal(path)
        try:
            (_, said), (_, held) = journal.read()
        finally:
            journal.close()
        facts = json.loads(said)
        index = import_faiss().deserialize_index(np.frombuffer(held, np.uint8)) if held else None
        graph = Graph(facts["kind"], index, facts["rows"], facts["effort"], facts["recall"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} is damaged; remove it, and it is built again") from error
    if index is not None and index.ntotal != graph.rows:
        raise InputError(f"{path} is damaged; remove it, and it is built again")
    return graph
