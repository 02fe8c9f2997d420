"""How much is handled at once: little on a CPU, to stay in its cache; much on an accelerator, where each call costs."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from frontrank.errors import InputError


@dataclass(frozen=True)
class Tiling:
    """Sizes of the pieces in which scores are handled; results do not depend on them.

    rows:       queries of a loss multiplied at once ...
    scores:     ... if no more scores than this are held ...
    least_rows: ... unless the gallery is so large that the product would be slow
    tile:       numbers that one call works on
    block:      queries, and items, of a tile of exact evaluation
    groups:     times as many queries share one reading of the gallery in a search of the nearest
    pairs:      times as many pairs of rows are scored in float64 at once
    waits:      whether to wait for a result that tells how to go on with less work
    """

    rows: int
    scores: int
    least_rows: int
    tile: int
    block: int
    groups: int
    pairs: int
    waits: bool

    def block_rows(self, items: int) -> int:
        """How many queries of a loss are multiplied at once with so many items."""
        return max(self.least_rows, min(self.rows, self.scores // max(1, items)))


CPU = Tiling(rows=512, scores=1 << 25, least_rows=64, tile=1 << 18, block=1024, groups=1, pairs=1, waits=True)
ACCELERATOR = Tiling(
    rows=4096, scores=1 << 26, least_rows=512, tile=1 << 26, block=4096, groups=8, pairs=128, waits=False
)

_chosen: ContextVar[Tiling | None] = ContextVar("tiling", default=None)


def tiling_of(x: Tensor | torch.device) -> Tiling:
    """Return the sizes for a device, or for the device of a tensor."""
    device = x.device if isinstance(x, Tensor) else x
    return _chosen.get() or (CPU if device.type == "cpu" else ACCELERATOR)


@contextmanager
def tiling(device: str) -> Iterator[None]:
    """Use the sizes of a kind of device, such as "cuda", on every device.

    >>> with tiling("cuda"):
    ...     tiling_of(torch.zeros(1)).rows
    4096
    """
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device must be a kind of device, such as cpu or cuda, got {device!r}") from error
    token = _chosen.set(CPU if kind == "cpu" else ACCELERATOR)
    try:
        yield
    finally:
        _chosen.reset(token)


def row_tiles(items: Tensor) -> list[slice]:
    """Slices of the rows of items [row, item], each about a tile's worth."""
    rows = max(1, tiling_of(items).tile // max(1, items.shape[1]))
    return [slice(i, i + rows) for i in range(0, len(items), rows)]


def tiles(items: Tensor, thresholds: int) -> Iterator[tuple[slice, slice]]:
    """Slices of the rows of items [row, item] and of the thresholds, each pair about a tile's worth."""
    tile = tiling_of(items).tile
    for rows in row_tiles(items):
        size = max(1, items[rows].numel())
        few = thresholds if thresholds * size <= 2 * tile else max(1, tile // size)  # all at once: fewer calls
        yield from ((rows, slice(i, i + few)) for i in range(0, thresholds, max(1, few)))
