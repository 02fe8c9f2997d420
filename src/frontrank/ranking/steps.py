"""Exact counting: how many items stand at or above each threshold, without sorting the items.

With few thresholds each is compared with every item. With many, the thresholds are sorted and every
item finds its place among them through a table of equal cells: an item whose cell holds no threshold
is done, the few others step over the thresholds of their cell. O(items + thresholds log thresholds).
"""

import torch
from torch import Tensor

FEW = 12  # up to here comparing is faster than finding places (benchmarks/losses.py, large classes)
_CELLS_PER_THRESHOLD = 16
_LARGEST_TABLE = 1 << 24
_MOST_STEPS = 24


def count_at_or_above(items: Tensor, thresholds: Tensor) -> Tensor:
    """How many items [row, item] are at or above each threshold [row, threshold], in the items' dtype.

    >>> count_at_or_above(torch.tensor([[0.9, 0.5, 0.1]]), torch.tensor([[0.5, 0.2, 1.0]]))
    tensor([[2., 2., 0.]])
    """
    rows, size = thresholds.shape
    if size <= FEW:
        above, counts = torch.empty_like(items), torch.empty_like(thresholds.T)
        for threshold, count in zip(thresholds.T, counts, strict=True):
            torch.sum(torch.ge(items, threshold[:, None], out=above), 1, out=count)
        return counts.T.contiguous()
    ordered, order = thresholds.sort(1)
    place = places(items, ordered)
    if rows > 1:
        place = place + torch.arange(rows, device=place.device)[:, None] * (size + 1)
    histogram = torch.bincount(place.flatten(), minlength=rows * (size + 1)).view(rows, size + 1)
    counts = histogram.flip(1).cumsum(1).flip(1)[:, 1:].to(items.dtype)
    return torch.empty_like(thresholds).scatter_(1, order, counts)


def places(items: Tensor, ordered: Tensor) -> Tensor:
    """For each item [row, item] how many of the row's ordered thresholds [row, threshold] are <= it."""
    rows, size = ordered.shape
    cells = min(size * _CELLS_PER_THRESHOLD, max(_LARGEST_TABLE // rows, 1))
    low, high = ordered[:, :1], ordered[:, -1:]
    scale = cells / (high - low).clamp(min=torch.finfo(items.dtype).tiny ** 0.5)

    def cell_of(x: Tensor) -> Tensor:  # monotone in x, rounding included; 0 is below all thresholds
        return torch.sub(x, low).mul_(scale).clamp_(-1, cells).floor_().add_(1).int()

    held = torch.zeros(rows, cells + 2, dtype=torch.int32, device=items.device)
    held.scatter_add_(1, cell_of(ordered).long(), torch.ones_like(ordered, dtype=torch.int32))
    if int(held.max()) > _MOST_STEPS:  # thresholds on a few heaps: a binary search is safer
        return torch.searchsorted(ordered, items, right=True, out_int32=True)
    before = held.cumsum(1, dtype=torch.int32) - held
    before = torch.where(held > 0, -1 - before, before).flatten()  # negative: look closer
    cell = cell_of(items)
    if rows > 1:
        cell += torch.arange(rows, dtype=torch.int32, device=items.device)[:, None] * (cells + 2)
    place = before.index_select(0, cell.flatten())
    open_ = (place < 0).nonzero()[:, 0]
    place[open_] = _step_over(items, ordered, open_, -1 - place[open_]).int()
    return place.view_as(items)


def _step_over(items: Tensor, ordered: Tensor, open_: Tensor, place: Tensor) -> Tensor:
    """Move each open item (flat index) past the thresholds that are <= it, from a place before them."""
    size = ordered.shape[1]
    row = open_ // items.shape[1]
    item = items.flatten()[open_]
    ends = torch.nn.functional.pad(ordered, (0, 1), value=torch.inf).flatten()
    at = row * (size + 1) + place
    while bool((moved := ends[at] <= item).any()):
        at += moved
    return at - row * (size + 1)
