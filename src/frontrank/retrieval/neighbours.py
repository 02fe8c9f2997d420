"""The nearest items of each query: exact, in one pass over the gallery for each group of queries.

A group of queries and a chunk of the gallery are multiplied in the dtype of the embeddings. That leaves open only the
order of scores that are closer than its rounding (`slack`), so everything that could be among the first k is scored
again in float64 and sorted by that. The result is the same for any size of groups and chunks.
"""

import torch
from torch import Tensor

from frontrank.checks import check_integer
from frontrank.progress import progress as progress_bar
from frontrank.ranking.tiles import tiling_of
from frontrank.ranking.vectors import CHUNK, Chunk, Vectors, check_same_dimensions, exact_scores, full_precision, slack

GROUP = 512  # queries that share one reading of the gallery
_ITEMS = CHUNK  # items scored at once
_MANY = 4  # times k: with more candidates, it is cheaper to multiply again in float64 than to score them all


def nearest(
    queries: Vectors, gallery: Vectors, k: int, *, own: bool = False, progress: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Return the cosines and the indices of the k nearest items of each query, nearest first [query, k].

    Fewer than k where the gallery has fewer. Of equal cosines (in float64) the lower index comes first.

    own: the queries are the gallery; a query is left out of its own list, an exact copy of it is not

    >>> rows = Vectors("rows", torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]))
    >>> nearest(rows, rows, k=1, own=True)
    (tensor([[0.6000],
            [0.8000],
            [0.8000]]), tensor([[2],
            [2],
            [1]]))
    """
    check_integer("k", k, at_least=1)
    check_same_dimensions(queries, gallery)
    k = min(k, len(gallery) - own)
    scores = torch.empty(len(queries), k, dtype=torch.float64, device=queries.exact_device)
    index = torch.empty(len(queries), k, dtype=torch.long, device=queries.exact_device)
    work = len(queries) * len(gallery)
    with full_precision(queries.device), progress_bar("nearest neighbours", work, progress) as step:
        for rows in queries.chunks(GROUP * tiling_of(queries.device).groups):
            some = queries.read(rows)
            best = _empty_lists(some, k)
            for where in gallery.chunks(_ITEMS):
                items = gallery.read(where)
                if k:
                    diagonal = rows.start - where.start if own else None
                    chunk_scores, chunk_index = _best_of_chunk(some, items, best[0][:, -1], k, diagonal)
                    both = torch.cat([best[0], chunk_scores], 1).sort(dim=1, descending=True, stable=True)
                    both_index = torch.cat([best[1], chunk_index + where.start], 1)
                    best = both.values[:, :k], both_index.gather(1, both.indices[:, :k])
                step(len(some) * len(items))
            scores[rows], index[rows] = best
    dtype = torch.promote_types(queries.dtype, gallery.dtype)
    return scores.to(dtype).to(queries.device), index.to(queries.device)


def _empty_lists(some: Chunk, k: int) -> tuple[Tensor, Tensor]:
    scores = some.length.new_full((len(some), k), -torch.inf)
    return scores, torch.zeros_like(scores, dtype=torch.long)


def _best_of_chunk(some: Chunk, items: Chunk, floor: Tensor, k: int, diagonal: int | None) -> tuple[Tensor, Tensor]:
    """Return at most k items per query, sorted, in lists padded with -inf [query, k].

    floor:    the k-th best score so far [query]; items below it are not needed
    diagonal: the place of query 0 in the chunk, which may be outside
    """
    dtype = min(some.unit.dtype, items.unit.dtype, key=lambda dtype: torch.finfo(dtype).bits)
    is_candidate = _can_be_among_best(some.unit.to(dtype), items.unit.to(dtype), floor, k, diagonal)
    if int(is_candidate.sum()) > _MANY * k * len(some):
        is_candidate = _can_be_among_best(some.exact_unit(), items.exact_unit(), floor, k, diagonal)
        is_candidate &= ~_has_copies(items, k)
    i, j = is_candidate.nonzero().to(floor.device).T
    exact = exact_scores(some, items, i, j)
    order = exact.sort(descending=True, stable=True).indices
    order = order[i[order].sort(stable=True).indices]
    i, j, exact = i[order], j[order], exact[order]
    place = _places(i).clamp_(max=k)  # what is not among the first k goes to a column that is dropped
    scores, index = _empty_lists(some, k + 1)
    scores[i, place] = exact
    index[i, place] = j
    return scores[:, :k], index[:, :k]


def _can_be_among_best(rows: Tensor, items: Tensor, floor: Tensor, k: int, diagonal: int | None) -> Tensor:
    """Return which items could be among the k best of each query, and not below its floor [query, item]."""
    scores = rows @ items.T
    if diagonal is not None:
        scores.diagonal(diagonal).fill_(-torch.inf)
    dim, dtype = rows.shape[1], rows.dtype
    off = slack(dim, dtype) + slack(dim, torch.float64) + torch.finfo(dtype).eps
    low = floor.clamp(min=-2)  # no cosine is lower; a query itself is
    if k <= len(items):
        kth = scores.topk(k, sorted=False).values.amin(1)
        low = torch.maximum(low, kth.to(low.device).double() - off)
    return scores >= (low - off).to(dtype).to(scores.device)[:, None]


def _has_copies(items: Chunk, k: int) -> Tensor:
    """Return which items have k + 1 exact copies before them: never among the first k, even if one is the query."""
    same = items.raw.unique(dim=0, return_inverse=True)[1]
    groups, order = same.sort(stable=True)
    return torch.empty_like(order).scatter_(0, order, _places(groups)) > k


def _places(groups: Tensor) -> Tensor:
    """Return the place of each entry in its group, from 0; entries come in the order of their groups."""
    here = torch.arange(len(groups), device=groups.device)
    is_first = torch.ones_like(groups, dtype=torch.bool)
    is_first[1:] = groups[1:] != groups[:-1]
    return here - (here * is_first).cummax(0)[0]


def read_sides(queries: object, gallery: object) -> tuple[Vectors, Vectors]:
    """Return queries and gallery, on the device of the queries; the same object twice if there is no gallery."""
    rows = Vectors("queries", queries)
    if gallery is None:
        return rows, rows
    items = Vectors("gallery", gallery, device=rows.device)
    check_same_dimensions(rows, items)
    return rows, items
