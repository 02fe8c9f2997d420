"""Sums of sigmoids over many items and many thresholds, through a grid: O(items + thresholds) instead of their product.

A sigmoid of width 1 is smooth, so its value between the points of a grid follows from the 8 points around: a polynomial
through them is off by less than the rounding of float32. Each item is spread over 8 points, the points are multiplied
with sigmoids between points, and each threshold reads 8 of the results.
"""

from functools import cached_property

import torch
from torch import Tensor

from frontrank.ranking.tiles import row_tiles

STEP = 0.25  # between two points
REACH = 88.0  # beyond, a sigmoid of float32 is 0 or 1
MOST_POINTS = 2048
_NODES = 8


def _coefficients() -> Tensor:
    """The polynomials that are 1 at one of 8 points and 0 at the others [point, power]."""
    points = torch.arange(_NODES, dtype=torch.float64) - (_NODES // 2 - 1)
    return torch.linalg.inv(torch.vander(points, increasing=True)).T.contiguous()


_COEFFICIENTS = _coefficients()


class Grid:
    """Points that cover the thresholds [query, threshold] of each query and what is in reach of them."""

    def __init__(self, thresholds: Tensor) -> None:
        low, high = thresholds.aminmax(dim=1, keepdim=True)
        self.low = low - REACH - _NODES * STEP
        span = float((high - low).max())  # its quotient may be beyond float32
        self.points = int((span + 2 * REACH) / STEP) + 3 * _NODES

    @cached_property
    def sigmoids(self) -> tuple[Tensor, Tensor]:
        """The sigmoid of (row - column) for all points, and its slope."""
        x = torch.arange(self.points, dtype=self.low.dtype, device=self.low.device) * STEP
        value = (x[:, None] - x).sigmoid()
        return value, value * value.T

    def spread(self, at: Tensor, weights: Tensor | None = None) -> Tensor:
        """Weights (1 by default) of what is at a place [query, item], on the points [query, point]."""
        sums = at.new_zeros(len(at), self.points)
        for rows in row_tiles(at):
            first, shares = self._shares(at[rows], rows)
            for share in shares if weights is None else shares.mul_(weights[rows]):
                sums[rows].scatter_add_(1, first, share)
                first += 1
        return sums

    def add_(self, values: Tensor, at: Tensor, out: Tensor) -> None:
        """Add values on the points [query, point] to out, at places between them [query, item]."""
        for rows in row_tiles(at):
            first, shares = self._shares(at[rows], rows)
            for share in shares:
                out[rows].addcmul_(values[rows].gather(1, first), share)
                first += 1

    def read(self, values: Tensor, at: Tensor) -> Tensor:
        """Values on the points [query, point] at places between them [query, item]."""
        out = torch.zeros_like(at)
        self.add_(values, at, out)
        return out

    def _shares(self, at: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """The first of 8 points around each item [query, item], and what each has of it [point, query, item]."""
        low = self.low[rows]
        place = torch.sub(at, low).div_(STEP).clamp_(_NODES, self.points - _NODES)
        first = place.floor()
        powers = place.new_empty(_NODES, *place.shape)
        torch.sub(place, first, out=powers[1])
        powers[0] = at >= low  # what is far below counts nothing
        powers[1].mul_(powers[0])
        for i in range(2, _NODES):
            torch.mul(powers[i - 1], powers[1], out=powers[i])
        shares = (_COEFFICIENTS.to(powers) @ powers.flatten(1)).view_as(powers)
        return first.long().sub_(_NODES // 2 - 1), shares
