"""Exact counting: how many items stand at or above each threshold, without sorting the items.

With few thresholds each is compared with every item. With many, the thresholds are sorted and every
item finds its place among them through a table of equal cells: an item whose cell holds no threshold
is done, the few others step over the thresholds of their cell. O(items + thresholds log thresholds).
"""

import threading

import numpy as np
import torch
from torch import Tensor

from frontrank.ranking.tiles import tiles, tiling_of

FEW = 12  # positives or thresholds that every item is compared with; beyond, items are sorted. A guess by the cost
_CELLS_PER_THRESHOLD = 32
_LARGEST_TABLE = 1 << 24
_MOST_STEPS = 24
_ALONE = 1 << 16  # so few numbers are sorted by one thread


def count_at_or_above(items: Tensor, thresholds: Tensor) -> Tensor:
    """How many items [row, item] are at or above each threshold [row, threshold], in the items' dtype.

    >>> count_at_or_above(torch.tensor([[0.9, 0.5, 0.1]]), torch.tensor([[0.5, 0.2, 1.0]]))
    tensor([[2., 2., 0.]])
    """
    rows, size = thresholds.shape
    if size > FEW:
        return counts_and_places(items, thresholds)[0]
    counts = thresholds.new_empty(size, rows)
    columns = along(thresholds)
    for tile, some in tiles(items, size):
        above = items.new_empty(*counts[some, tile].shape, items.shape[1])
        torch.sum(torch.ge(items[tile], columns[some, tile], out=above), 2, out=counts[some, tile])
    return counts.T.contiguous()


def along(per_query: Tensor, dim: int = 0) -> Tensor:
    """Values [query, k] as k tensors that broadcast with [query, item], or with [item, query] if dim is 1."""
    return per_query.T.contiguous()[:, :, None] if dim == 0 else per_query.T.contiguous()[:, None, :]


def counts_and_places(items: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """The same counts, and for each item how many thresholds are at or below it [row, item]."""
    rows, size = thresholds.shape
    ordered, order = thresholds.sort(1)
    place = places(items, ordered)
    bins = place
    if rows > 1:
        bins = place + torch.arange(rows, device=place.device)[:, None] * (size + 1)
    bins = bins.flatten()
    if tiling_of(items).waits:
        histogram = torch.bincount(bins, minlength=rows * (size + 1))
    else:  # it waits for the largest
        histogram = torch.zeros(rows * (size + 1), dtype=torch.int32, device=bins.device)
        histogram.scatter_add_(0, bins.long(), torch.ones_like(bins, dtype=torch.int32))
    histogram = histogram.view(rows, size + 1)
    counts = histogram.flip(1).cumsum(1).flip(1)[:, 1:].to(items.dtype)
    return torch.empty_like(thresholds).scatter_(1, order, counts), place


def places(items: Tensor, ordered: Tensor) -> Tensor:
    """For each item [row, item] how many of the row's ordered thresholds [row, threshold] are <= it."""
    rows, size = ordered.shape
    if not tiling_of(items).waits:
        return torch.searchsorted(ordered, items.contiguous(), right=True, out_int32=True)
    cells = min(size * _CELLS_PER_THRESHOLD, max(_LARGEST_TABLE // rows, 1), max(items.shape[1], 4 * size))
    low, high = ordered[:, :1], ordered[:, -1:]
    scale = cells / (high - low).clamp(min=torch.finfo(items.dtype).tiny ** 0.5)
    shift = 1 - low * scale

    def cell_of(x: Tensor) -> Tensor:  # monotone in x, each rounding included; 0 is below all thresholds
        return torch.mul(x, scale).add_(shift).clamp_(0, cells + 1).int()

    held = torch.zeros(rows, cells + 2, dtype=torch.int32, device=items.device)
    if usable := bool(((scale > 0) & torch.isfinite(shift)).all()):
        held.scatter_add_(1, cell_of(ordered).long(), torch.ones_like(ordered, dtype=torch.int32))
    if not usable or int(held.max()) > _MOST_STEPS:  # thresholds on a few heaps: a binary search is safer
        return torch.searchsorted(ordered, items.contiguous(), right=True, out_int32=True)
    before = held.cumsum(1, dtype=torch.int32) - held
    before = torch.where(held > 0, -1 - before, before).flatten()  # negative: look closer
    cell = cell_of(items)
    if rows > 1:
        cell += torch.arange(rows, dtype=torch.int32, device=items.device)[:, None] * (cells + 2)
    place = before.index_select(0, cell.flatten())
    close = (place < 0).nonzero()[:, 0]
    place.index_copy_(0, close, _step_over(items, ordered, close, -1 - place.index_select(0, close)))
    return place.view_as(items)


def _step_over(items: Tensor, ordered: Tensor, close: Tensor, place: Tensor) -> Tensor:
    """Move each item that needs a closer look (flat index) past the thresholds that are <= it."""
    rows, size = ordered.shape
    item = items.flatten().index_select(0, close)
    ends = torch.nn.functional.pad(ordered, (0, 1), value=torch.inf).flatten()
    start = (close // items.shape[1] * (size + 1)).int() if rows > 1 else 0
    at = place + start
    while bool((moved := ends.index_select(0, at) <= item).any()):
        at += moved
    return at - start


def sort_rows_(rows: Tensor) -> Tensor:
    """Sort each row [row, item] and return them; on a CPU by NumPy, in place, which is ten times as fast as torch."""
    if rows.device.type != "cpu":
        return rows.sort(1)[0]
    parts = rows.chunk(torch.get_num_threads() if rows.numel() > _ALONE else 1)
    others = [threading.Thread(target=part.numpy().sort, args=(1,)) for part in parts[1:]]
    for other in others:
        other.start()
    parts[0].numpy().sort(1)
    for other in others:
        other.join()
    return rows


def argsort_rows(rows: Tensor) -> Tensor:
    """The order of each row [row, item], of equal numbers in any order; on a CPU by NumPy, which is quicker."""
    return rows.argsort(1) if rows.device.type != "cpu" else torch.from_numpy(rows.numpy().argsort(1))


def odd_places(rows: Tensor, each: int) -> Tensor:
    """Where each row [row, item], written one after the other, has its odd numbers, so many each [row, number].

    >>> odd_places(torch.tensor([[5, 2, 3], [4, 7, 1]]), 2)
    tensor([[0, 2],
            [4, 5]])
    """
    odd = rows.to(torch.uint8).bitwise_and_(1)
    if rows.device.type == "cpu":
        more = odd.numel() // 8 + 1 if 32 * each > rows.shape[1] else 0  # NumPy is slow at just below a tenth
        odd = torch.nn.functional.pad(odd.view(-1), (0, more), value=1).view(torch.bool)
        return torch.from_numpy(np.flatnonzero(odd.numpy())[: len(rows) * each]).view(len(rows), each)
    starts = torch.arange(0, rows.numel(), rows.shape[1], device=rows.device)
    return odd.argsort(dim=1, descending=True, stable=True)[:, :each] + starts[:, None]
