"""Approximate search over very many vectors: which kind, how much effort, and how much of the exact answer it finds.

While the vectors fit into memory it is a graph (HNSW; Yu. A. Malkov, D. A. Yashunin, "Efficient and robust approximate
nearest neighbor search using Hierarchical Navigable Small World graphs", TPAMI 2020) over vectors of 8 bits per number,
else inverted lists with product quantisation (Hervé Jégou, Matthijs Douze, Cordelia Schmid, "Product Quantization for
Nearest Neighbor Search", TPAMI 2011). Both only propose rows, which are then scored by the vectors themselves. The
effort is the least that finds TARGET of the 10 nearest of queries made from some of the vectors; if none does, search
stays exact.
"""

import json
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.checks import check_choice, check_integer, check_number
from frontrank.errors import InputError
from frontrank.progress import progress as progress_bar
from frontrank.retrieval.exact_search import SPARE, Ranking, RowMask, exact_best, import_faiss, rough_best, settle_order
from frontrank.retrieval.journal import Journal, remove_on_error, write_journal

TARGET = {"hnsw": 0.98, "ivfpq": 0.95}  # of the 10 nearest; short codes cannot tell all of them apart
_QUERIES = 200  # to measure with
_EFFORTS = (32, 64, 128, 256, 512, 1024)  # rows that a search of a graph remembers
_LISTS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # lists that a search reads
_LINKS, _BUILD_EFFORT = 32, 80
_STEP = 8192  # rows added at once
_ROWS_PER_LIST = 64  # that k-means sees
_SPARE = {"hnsw": 1, "ivfpq": 20}  # rows proposed for each that is wanted


@dataclass(frozen=True)
class Graph:
    """What proposes rows.

    kind:   "hnsw", "ivfpq", or "exact" if neither was good enough
    index:  of faiss, None if exact
    rows:   how many rows it contains, from the first
    effort: of a search
    recall: the share of the 10 nearest that a search finds
    """

    kind: str
    index: Any
    rows: int
    effort: int
    recall: float

    def propose(self, queries: np.ndarray, k: int, allowed: RowMask | None) -> np.ndarray:
        """Return about k good rows, and some more, for each query; -1 where there are no more."""
        wanted = min(k * _SPARE[self.kind] + 8, self.rows)
        effort, selector = self.effort, None
        if allowed is not None:  # rows that are not allowed take up places, too
            effort, selector = math.ceil(effort * min(4.0, len(allowed.mask) / max(allowed.count, 1))), allowed.selector
        effort = max(effort, wanted) if self.kind == "hnsw" else min(effort, self.index.nlist)
        settings = _usual_settings(self.kind, effort) if selector is None else _settings(self.kind, effort, selector)
        # What `index.search` does, without its checks, which take a tenth of the time of one query.
        pointer, queries = import_faiss().swig_ptr, np.ascontiguousarray(queries, np.float32)
        scores, rows = np.empty((len(queries), wanted), np.float32), np.empty((len(queries), wanted), np.int64)
        self.index.search_c(len(queries), pointer(queries), wanted, pointer(scores), pointer(rows), settings)
        return rows


def _settings(kind: str, effort: int, selector: Any = None) -> Any:
    faiss = import_faiss()
    if kind == "hnsw":
        return faiss.SearchParametersHNSW(efSearch=effort, sel=selector)
    return faiss.SearchParametersIVF(nprobe=effort, sel=selector)


_usual_settings = lru_cache(maxsize=64)(_settings)  # searches only read them, also several at once


def graph_best(
    graph: Graph, rows: np.ndarray, queries: np.ndarray, k: int, items: list[Any], allowed: RowMask | None
) -> Ranking:
    """Return about the k best of the allowed rows, of which there are at least k; rows not in the graph exactly."""
    candidates = graph.propose(queries, k, allowed)
    if graph.rows < len(rows):
        new, new_allowed = rows[graph.rows :], None if allowed is None else RowMask(allowed.mask[graph.rows :])
        if wanted := min(k + SPARE, len(new) if new_allowed is None else new_allowed.count):
            places = rough_best(new, queries, wanted, new_allowed)[1]
            candidates = np.concatenate([candidates, places + graph.rows], 1)
    scores, best = settle_order(rows, queries, candidates, k, items)
    if len(short := np.flatnonzero(best[:, -1] < 0)):
        scores[short], best[short] = exact_best(rows, queries[short], k, items, allowed)
    return scores, best


def build_graph(rows: np.ndarray, alive: np.ndarray, items: list[Any], in_memory: bool, show: bool | None) -> Graph:
    """Build the graph of all rows, dead ones too, with the effort that it needs."""
    graph = Graph("hnsw", _new_hnsw(rows), 0, 0, 0.0) if in_memory else Graph("ivfpq", _new_ivfpq(rows), 0, 0, 0.0)
    return extend_graph(graph, rows, alive, items, show)


def extend_graph(graph: Graph, rows: np.ndarray, alive: np.ndarray, items: list[Any], show: bool | None) -> Graph:
    """Add the rows that the graph lacks, and measure it again."""
    with progress_bar("building the index", len(rows) - graph.rows, show) as step:
        for start in range(graph.rows, len(rows), _STEP):
            some = rows[start : start + _STEP]
            graph.index.add(np.ascontiguousarray(some))
            step(len(some))
    return choose_effort(replace(graph, rows=len(rows)), rows, alive, items)


def choose_effort(graph: Graph, rows: np.ndarray, alive: np.ndarray, items: list[Any]) -> Graph:
    """Return the graph with the least effort that finds enough of the 10 nearest; ties count as found."""
    live = RowMask(alive)
    sample = np.random.default_rng(0).choice(live.rows, min(_QUERIES, live.count), replace=False)
    allowed, k = live if live.count < len(rows) else None, min(10, live.count)
    queries = _new_queries(rows, sample, rough_best(rows, rows[sample], k, allowed)[1])
    least = settle_order(rows, queries, rough_best(rows, queries, k, allowed)[1], k, items)[0][:, -1:]
    for effort in _EFFORTS if graph.kind == "hnsw" else _LISTS:
        graph = replace(graph, effort=effort)
        scores = settle_order(rows, queries, graph.propose(queries, k, allowed), k, items)[0]
        graph = replace(graph, recall=float((scores >= least - 1e-6).mean()))
        if graph.recall >= TARGET[graph.kind]:
            return graph
    return Graph("exact", None, len(rows), 0, 1.0)


def _new_queries(rows: np.ndarray, sample: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Make vectors that are not in the index: some that are, moved by half the difference of two near ones.

    A graph has links from each of its own vectors to just what is near, and would seem better than it is. With these
    queries it finds about as much as with new vectors of the same kind.
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
    lists = int(max(1, min(4 * math.sqrt(len(rows)), len(rows) / _ROWS_PER_LIST, 1 << 14)))
    parts = next(parts for parts in range(max(1, dim // 4), 0, -1) if dim % parts == 0)
    coarse = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFPQ(coarse, dim, lists, parts, 8, faiss.METRIC_INNER_PRODUCT)
    index.own_fields = True
    coarse.this.disown()
    index.cp.spherical = True
    for settings in (index.cp, index.pq.cp):
        settings.min_points_per_centroid, settings.max_points_per_centroid, settings.seed = 1, _ROWS_PER_LIST, 0
    index.train(_sample(rows, max(lists * _ROWS_PER_LIST, 1 << 14)))
    return index


def _sample(rows: np.ndarray, size: int) -> np.ndarray:
    if len(rows) <= size:
        return np.ascontiguousarray(rows)
    return rows[np.sort(np.random.default_rng(0).choice(len(rows), size, replace=False))]


def write_graph(path: Path, graph: Graph, owner: str) -> None:
    """Write a graph to a file that appears when it is complete; owner: of which rows it is."""
    facts = {"kind": graph.kind, "rows": graph.rows, "effort": graph.effort, "recall": graph.recall, "owner": owner}
    content = b"" if graph.index is None else import_faiss().serialize_index(graph.index).data
    unfinished = path.with_name("graph.new")
    with remove_on_error(unfinished):
        write_journal(unfinished, [(0, json.dumps(facts).encode()), (1, content)])
    unfinished.replace(path)


def read_graph(path: Path, dim: int, owner_of: Callable[[int], str | None]) -> Graph | None:
    """Read the graph of a file; None if there is none, or if it belongs to other rows, so that it is built again.

    owner_of: gives the owner of the first rows, None if there are not so many
    """
    try:
        with closing(Journal(path)) as journal:
            (_, packed_facts), (_, content) = journal.read()
        facts = json.loads(packed_facts)
        if facts.pop("owner", None) != owner_of(check_integer("rows", facts["rows"], at_least=0)):
            return None
        index = import_faiss().deserialize_index(np.frombuffer(content, np.uint8)) if content else None
        graph = Graph(index=index, **facts)
        _check_graph(graph, dim)
        return graph
    except FileNotFoundError:
        return None
    except Exception as error:  # faiss and JSON raise almost anything
        raise InputError(f"{path} is damaged; remove it, and it is built again") from error


def _check_graph(graph: Graph, dim: int) -> None:
    """Raise if a graph is none of ours, or has links to rows that it does not have, which faiss would follow."""
    if graph.index is None:
        check_choice("kind", graph.kind, ("exact",))
        return
    faiss, index = import_faiss(), graph.index
    check_choice("kind", graph.kind, tuple(TARGET))
    check_integer("effort", graph.effort, at_least=1, at_most=max(*_EFFORTS, *_LISTS))
    check_number("recall", graph.recall, at_least=0, at_most=1)
    kind = faiss.IndexHNSWSQ if graph.kind == "hnsw" else faiss.IndexIVFPQ
    if type(index) is not kind or (index.d, index.ntotal) != (dim, graph.rows) or not index.is_trained:
        raise ValueError("it is of another kind or size than it says")
    if graph.kind == "ivfpq":
        _check_lists(index)
    else:
        _check_links(index)


def _check_lists(index: Any) -> None:
    faiss, lists = import_faiss(), index.invlists
    centres = faiss.downcast_index(index.quantizer)
    if type(centres) is not faiss.IndexFlatIP or (centres.d, centres.ntotal) != (index.d, index.nlist):
        raise ValueError("its centres do not fit its lists")
    if (lists.nlist, lists.code_size) != (index.nlist, index.pq.code_size):
        raise ValueError("its lists are of another size than it says")
    sizes = [lists.list_size(number) for number in range(lists.nlist)]
    parts = [faiss.rev_swig_ptr(lists.get_ids(number), size) for number, size in enumerate(sizes) if size]
    if not np.array_equal(np.sort(np.concatenate(parts)) if parts else [], np.arange(index.ntotal)):
        raise ValueError("its lists do not have each row once")


def _check_links(index: Any) -> None:
    faiss, hnsw, rows = import_faiss(), index.hnsw, index.ntotal
    links, offsets, levels = (faiss.vector_to_array(one) for one in (hnsw.neighbors, hnsw.offsets, hnsw.levels))
    offsets = offsets.astype(np.int64)
    rooms = np.diff(offsets)
    places = faiss.vector_to_array(hnsw.cum_nneighbor_per_level)
    fits = len(levels) == rows == len(rooms) and offsets[0] == 0 and offsets[-1] == len(links)
    if not fits or levels.min() < 1 or levels.max() >= len(places) or not np.array_equal(rooms, places[levels]):
        raise ValueError("its links do not fit its rows")
    if not (links.min() >= -1 and links.max() < rows and 0 <= hnsw.entry_point < rows):
        raise ValueError("it has links to rows that it does not have")
    for row in np.flatnonzero(levels > 1).tolist():  # one in 32
        for level in range(1, levels[row]):
            upper = links[offsets[row] + places[level] : offsets[row] + places[level + 1]]
            if (levels[upper[upper >= 0]] <= level).any():
                raise ValueError("it has links to rows that are not on their level")
    storage = faiss.downcast_index(index.storage)
    if type(storage) is not faiss.IndexScalarQuantizer:
        raise ValueError("its vectors are of another kind")
    stored = storage.ntotal, storage.d, storage.codes.size()
    if not 0 <= hnsw.max_level < levels[hnsw.entry_point] or stored != (rows, index.d, rows * index.d):
        raise ValueError("its vectors are not those of its rows")
