"""k-reciprocal re-ranking: items are near if they share neighbours, not only if they are close."""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from frontrank.checks import check_integer, check_number
from frontrank.errors import InputError
from frontrank.progress import progress as progress_bar
from frontrank.ranking.vectors import VectorParts, Vectors, full_precision
from frontrank.retrieval.neighbours import GROUP, nearest, read_sides

_BUDGET = 1 << 21  # numbers worked on at once


def rerank(
    queries: object,
    gallery: object = None,
    k1: int = 20,
    k2: int = 6,
    lam: float = 0.3,
    *,
    progress: bool | None = None,
) -> Tensor:
    """Return scores that also count the neighbours a query and an item share [query, gallery], higher = nearer.

    Zhun Zhong, Liang Zheng, Donglin Cao, Shaozi Li, "Re-ranking Person Re-identification with k-reciprocal Encoding",
    CVPR 2017. Queries and gallery are one set of items; d = 1 - cosine, which is half the squared distance of unit
    rows; N(i, k) is i itself and its k nearest others.

        R(i, k)  = {j in N(i, k) : i in N(j, k)}                                                     (Eq. 3)
        R*(i)    = R(i, k1) and R(j, k1 / 2) of those j in R(i, k1) that have 2/3 of it in R(i, k1)  (Eq. 4)
        V[i, j]  = exp(-d(i, j)) if j in R*(i), else 0                                               (Eq. 7)
        V'[i]    = mean of V[j] over j in N(i, k2 - 1)                                               (Eq. 11)
        J(i, j)  = sum_c min(V'[i, c], V'[j, c]) / sum_c max(V'[i, c], V'[j, c])                     (Eq. 10)
        score    = (1 - lam) J + lam cosine = 1 - d*,   d* = (1 - lam) (1 - J) + lam d               (Eq. 12)

    The authors' code differs: it divides a row's distances by the largest of them, so that one outlier changes all
    scores (here the unit is the distance of unrelated, orthogonal rows: 1), brings the rows of V to sum 1, and wants
    more than 2/3 where Eq. 4 has at least. As there, a half of k1 / 2 is rounded to even, and k2 = 1 leaves V as it is.

    gallery: None if the queries are their own gallery; a query's own column is then -inf
    lam:     1 gives the cosines, 0 the shared neighbours alone

    Other queries are items, too: they can be shared neighbours. Besides the scores, memory grows with
    items x k1^2 x k2 at most, never with items x items.
    """
    check_integer("k1", k1, at_least=1)
    check_integer("k2", k2, at_least=1)
    check_number("lam", lam, at_least=0, at_most=1)
    if k2 > k1:
        raise InputError(f"k2 is {k2}, more than k1 = {k1}; give at most k1")
    rows, items = read_sides(queries, gallery)
    every = rows if gallery is None else VectorParts([rows, items])
    others = nearest(every, every, k1, own=True, progress=progress)[1].cpu()
    near = torch.cat([torch.arange(len(every))[:, None], others], 1)
    item, member = reciprocal_pairs(near)
    vectors = SparseRows.of(item, member, torch.exp(_cosines(every, item, member) - 1), len(near))
    if k2 > 1:
        vectors = mean_rows(vectors, near[:, :k2])
    scores = _all_cosines(rows, items)
    gallery_rows = slice(len(near) - len(items), len(near))
    columns, sums = vectors.columns(gallery_rows), vectors.sums()
    with progress_bar("re-ranking", len(rows), progress) as step:
        for some in even_spans(len(rows), len(items)):
            shared = shared_sums(vectors, columns, some, len(items))
            jaccard = shared / (sums[some, None] + sums[gallery_rows] - shared)
            scores[some] = scores[some] * lam + jaccard.to(scores.dtype).to(scores.device) * (1 - lam)
            step(len(jaccard))
    return scores.fill_diagonal_(-torch.inf) if gallery is None else scores


def _cosines(rows: Vectors, i: Tensor, j: Tensor) -> Tensor:
    """Return the cosines of pairs of rows in float64 on the CPU [pair]."""
    pairs = ((rows.read(i[some]), rows.read(j[some])) for some in even_spans(len(i), rows.dim))
    return torch.cat([(first.exact_unit() * second.exact_unit()).sum(1).cpu() for first, second in pairs])


def _all_cosines(queries: Vectors, gallery: Vectors) -> Tensor:
    dtype = torch.promote_types(queries.dtype, gallery.dtype)
    scores = torch.empty(len(queries), len(gallery), dtype=dtype, device=queries.device)
    with full_precision(queries.device):
        for rows in queries.chunks(GROUP):
            some = queries.unit(rows).to(dtype)
            for where in gallery.chunks():
                scores[rows, where] = some @ gallery.unit(where).to(dtype).T
    return scores


class SparseRows(NamedTuple):
    """Rows of numbers, most of them 0: row i has the entries start[i] to start[i + 1] of col and value."""

    start: Tensor
    col: Tensor
    value: Tensor

    @classmethod
    def of(cls, row: Tensor, col: Tensor, value: Tensor, rows: int) -> "SparseRows":
        """Make them of entries in the order of their rows."""
        counts = torch.bincount(row, minlength=rows)
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), col, value)

    @property
    def counts(self) -> Tensor:
        return self.start.diff()

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the entries of some rows: the place of the row in `rows`, the column, the value [entry]."""
        counts = self.counts[rows]
        place = torch.repeat_interleave(counts)
        entry = torch.arange(len(place)) + (self.start[rows] - counts.cumsum(0) + counts)[place]
        return place, self.col[entry], self.value[entry]

    def sums(self) -> Tensor:
        """Return the sum of each row."""
        rows = torch.repeat_interleave(self.counts)
        return self.value.new_zeros(len(self.start) - 1).index_add_(0, rows, self.value)

    def columns(self, rows: slice) -> "SparseRows":
        """Return the columns of a range of rows, as sparse rows; row numbers count from the start of the range."""
        entries = slice(int(self.start[rows.start]), int(self.start[rows.stop]))
        col, order = self.col[entries].sort(stable=True)
        row = torch.repeat_interleave(self.counts[rows])
        return SparseRows.of(col, row[order], self.value[entries][order], len(self.start) - 1)


def even_spans(count: int, size: int) -> list[slice]:
    """Return ranges of items of this size each that fill about the budget, or that are one item."""
    step = max(1, _BUDGET // size)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def spans(sizes: Tensor) -> list[slice]:
    """Return ranges of items whose sizes sum up to about the budget, or that are one item."""
    group = (sizes.cumsum(0) - sizes) // _BUDGET
    edges = [0, *(1 + group.diff().nonzero()[:, 0]).tolist(), len(sizes)]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def reciprocal_pairs(near: Tensor) -> tuple[Tensor, Tensor]:
    """Return the members of the expanded k-reciprocal set of each item: item and member [pair], in order.

    near: each item itself, then its k nearest others, nearest first [item, 1 + k]
    """
    half = near[:, : 1 + round((near.shape[1] - 1) / 2)]
    is_member, is_half_member = _is_reciprocal(near), _is_reciprocal(half)
    half_size = is_half_member.sum(1)
    n = len(near)
    keys = []
    for rows in even_spans(n, near.shape[1] * half.shape[1]):
        members = torch.where(is_member[rows], near[rows], n).sort(1).values  # n: no member
        candidates = half[near[rows]]  # the half-size sets of all neighbours [row, neighbour, member]
        is_member_too = is_half_member[near[rows]] & is_member[rows, :, None]
        place = torch.searchsorted(members, candidates.flatten(1)).clamp_(max=members.shape[1] - 1)
        shared = (members.gather(1, place).view_as(candidates) == candidates) & is_member_too
        is_member_too &= (3 * shared.sum(2) >= 2 * half_size[near[rows]])[:, :, None]
        start = (torch.arange(rows.start, rows.stop) * n)[:, None]
        first, second = (start + near[rows])[is_member[rows]], (start[:, :, None] + candidates)[is_member_too]
        keys.append(torch.cat([first, second]).unique())
    key = torch.cat(keys)
    return key // n, key % n


def _is_reciprocal(near: Tensor) -> Tensor:
    """Return whether each neighbour has the item among its own neighbours [item, neighbour]."""
    item = torch.arange(len(near))[:, None, None]
    return torch.cat([(near[near[rows]] == item[rows]).any(2) for rows in even_spans(len(near), near.shape[1] ** 2)])


def mean_rows(vectors: SparseRows, near: Tensor) -> SparseRows:
    """Return for each item the mean of the rows of some items [item, some]."""
    n, some = near.shape
    parts = []
    for rows in spans(vectors.counts[near].sum(1)):
        place, col, value = vectors.take(near[rows].flatten())
        key, at = (place // some * n + col).unique(return_inverse=True)
        total = value.new_zeros(len(key)).index_add_(0, at, value)
        parts.append((key // n + rows.start, key % n, total / some))
    row, col, value = (torch.cat(part) for part in zip(*parts, strict=True))
    return SparseRows.of(row, col, value, n)


def shared_sums(first: SparseRows, columns: SparseRows, rows: slice, width: int) -> Tensor:
    """Return sum_c min(first[i, c], second[j, c]) for some rows i and all j, second by its columns [row, width]."""
    place, col, value = first.take(torch.arange(rows.start, rows.stop))
    sums = value.new_zeros((rows.stop - rows.start) * width)
    for entries in spans(columns.counts[col]):
        at, j, other = columns.take(col[entries])
        sums.index_add_(0, place[entries][at] * width + j, torch.minimum(value[entries][at], other))
    return sums.view(-1, width)
