"""Sparse rows, and the k-reciprocal neighbours that fill them."""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

BUDGET = 1 << 21  # numbers worked on at once


class SparseRows(NamedTuple):
    """Rows of numbers, most of them 0: those of row i are at start[i] to start[i + 1] of col and value."""

    start: Tensor
    col: Tensor
    value: Tensor

    @classmethod
    def of(cls, row: Tensor, col: Tensor, value: Tensor, rows: int) -> "SparseRows":
        """From entries in the order of their rows."""
        counts = torch.bincount(row, minlength=rows)
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), col, value)

    @property
    def counts(self) -> Tensor:
        return self.start.diff()

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The entries of some rows: the place of the row in `rows`, the column, the value [entry]."""
        counts = self.counts[rows]
        place = torch.repeat_interleave(counts)
        entry = torch.arange(len(place)) + (self.start[rows] - counts.cumsum(0) + counts)[place]
        return place, self.col[entry], self.value[entry]

    def sums(self) -> Tensor:
        """The sum of each row."""
        rows = torch.repeat_interleave(self.counts)
        return self.value.new_zeros(len(self.start) - 1).index_add_(0, rows, self.value)

    def columns(self, rows: slice) -> "SparseRows":
        """The columns of a range of rows, as sparse rows; row numbers count from the start of the range."""
        entries = slice(int(self.start[rows.start]), int(self.start[rows.stop]))
        col, order = self.col[entries].sort(stable=True)
        row = torch.repeat_interleave(self.counts[rows])
        return SparseRows.of(col, row[order], self.value[entries][order], len(self.start) - 1)


def even_spans(count: int, size: int) -> list[slice]:
    """Ranges of items of this size each that fill about the budget, or that are one item."""
    step = max(1, BUDGET // size)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def spans(sizes: Tensor) -> list[slice]:
    """Ranges of items whose sizes sum up to about the budget, or that are one item."""
    group = (sizes.cumsum(0) - sizes) // BUDGET
    edges = [0, *(1 + group.diff().nonzero()[:, 0]).tolist(), len(sizes)]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def reciprocal_pairs(near: Tensor) -> tuple[Tensor, Tensor]:
    """The members of the expanded k-reciprocal set of each item: item and member [pair], in order.

    near: each item itself, then its k nearest others, nearest first [item, 1 + k]
    """
    half = near[:, : 1 + round((near.shape[1] - 1) / 2)]
    is_member, is_half_member = _is_reciprocal(near), _is_reciprocal(half)
    half_size = is_half_member.sum(1)
    n = len(near)
    keys = []
    for rows in even_spans(n, near.shape[1] * half.shape[1]):
        members = torch.where(is_member[rows], near[rows], n).sort(1).values  # n: no member
        added = half[near[rows]]  # the half-size sets of all neighbours [row, neighbour, member]
        is_added = is_half_member[near[rows]] & is_member[rows, :, None]
        place = torch.searchsorted(members, added.flatten(1)).clamp_(max=members.shape[1] - 1)
        shared = (members.gather(1, place).view_as(added) == added) & is_added
        is_added &= (3 * shared.sum(2) >= 2 * half_size[near[rows]])[:, :, None]
        start = (torch.arange(rows.start, rows.stop) * n)[:, None]
        first, second = (start + near[rows])[is_member[rows]], (start[:, :, None] + added)[is_added]
        keys.append(torch.cat([first, second]).unique())
    key = torch.cat(keys)
    return key // n, key % n


def _is_reciprocal(near: Tensor) -> Tensor:
    """Whether each neighbour counts the item among its own neighbours [item, neighbour]."""
    item = torch.arange(len(near))[:, None, None]
    return torch.cat([(near[near[rows]] == item[rows]).any(2) for rows in even_spans(len(near), near.shape[1] ** 2)])


def mean_rows(vectors: SparseRows, near: Tensor) -> SparseRows:
    """For each item the mean of the rows of some items [item, some]."""
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
    """sum_c min(first[i, c], second[j, c]) for some rows i and all j, second given by its columns [row, width]."""
    place, col, value = first.take(torch.arange(rows.start, rows.stop))
    sums = value.new_zeros((rows.stop - rows.start) * width)
    for entries in spans(columns.counts[col]):
        at, j, other = columns.take(col[entries])
        sums.index_add_(0, place[entries][at] * width + j, torch.minimum(value[entries][at], other))
    return sums.view(-1, width)
