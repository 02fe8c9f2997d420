"""The binned route: scores to soft histograms to average precision, or to any other metric.

An item at position x (0 = nearest, counted in bins) is shared between the two bin centres around it by
linear interpolation. Summed up to bin j that is H_j = sum of clamp(j + 1 - x, 0, 1): a soft count of
the items nearer than bin j, which needs no scattering and whose slope is -1 in one bin only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from frontrank.checks import check_integer
from frontrank.ranking.metrics import Ranks, RankSlopes
from frontrank.ranking.ranks import Join, Pull, Slopes
from frontrank.ranking.relevance import Positives
from frontrank.ranking.tiles import row_tiles, tiles


def cumulative_histogram(positions: Tensor, bins: int) -> Tensor:
    """Soft counts H_j for the bin centres j = 0 .. bins [row, bins + 1]; positions at +inf count nowhere.

    Positions below 0 or above `bins` saturate in the end bins.

    >>> cumulative_histogram(torch.tensor([[0.0, 0.25, 2.0]]), bins=2)
    tensor([[1.7500, 2.0000, 3.0000]])
    """
    counts = positions.new_empty(bins + 1, len(positions))
    ends = torch.arange(1, bins + 2, dtype=positions.dtype, device=positions.device)[:, None, None]
    ends[bins] = torch.finfo(ends.dtype).max / 2  # all but +inf
    for rows, some in tiles(positions, bins + 1):
        torch.sum((ends[some] - positions[rows]).clamp_(0, 1), 2, out=counts[some, rows])
    return counts.T.contiguous()


def position_slopes(in_histogram: Tensor, positions: Tensor, dim: int = 0) -> Tensor:
    """d loss / d position [row, item] from d loss / d H [row, bins + 1]; with dim=1 positions are [item, row].

    A position between the centres j and j + 1 has slope -1 in H_j alone; outside of all it has none.
    """
    bins = in_histogram.shape[1] - 1
    slopes = pad(-in_histogram[:, :-1], (1, 1))
    bin_ = positions.floor().clamp_(-1, bins).add_(1).long()
    return slopes.gather(1, bin_) if dim == 0 else slopes.T.contiguous().gather(0, bin_)


def binned_average_precision(
    positive: Tensor, listed: Tensor, *, tie_aware: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """AP from cumulative histograms of the positives and of all items [row, centre], and its slopes in both.

    AP = (1 / N) sum over j of P_j h_j / A_j, h_j = P_j - P_(j-1) (fastap Eq. 14, ap_q Eq. 11); tie_aware
    takes the precision in the middle of bins, (1 + P_j + P_(j-1)) / (1 + A_j + A_(j-1)) (ap_q Eq. 13).
    """
    before_p, before_a = (pad(h[:, :-1], (1, 0)) for h in (positive, listed))
    in_bin = positive - before_p
    if tie_aware:
        top, bottom = 1 + positive + before_p, 1 + listed + before_a
    else:  # an empty bin has P_j = 0 too: 0 / tiny is the 0 it contributes
        top, bottom = positive, listed.clamp(min=torch.finfo(listed.dtype).tiny)
    share = top / bottom
    number = positive[:, -1:]
    ap = (share * in_bin).sum(1) / number[:, 0]
    in_top = in_bin / bottom / number  # d AP / d top_j; d AP / d h_j is share_j / N
    in_bottom = -share * in_top
    in_p, in_a = in_top + share / number, in_bottom
    in_next_p = -share / number
    if tie_aware:
        in_next_p = in_next_p + in_top
        in_a = in_a + pad(in_bottom[:, 1:], (0, 1))
    return ap, in_p + pad(in_next_p[:, 1:], (0, 1)), in_a


@dataclass(frozen=True)
class HistogramSlopes:
    """d loss / d score of listed items from d loss / d cumulative histogram [query, centre]."""

    in_histogram: Tensor
    score_slopes_: Callable[[Tensor, Tensor], Tensor]

    def add_(self, prepared: Tensor, out: Tensor, dim: int = 0) -> None:
        for rows in row_tiles(prepared):
            slopes = position_slopes(self.in_histogram[rows] if dim == 0 else self.in_histogram, prepared[rows], dim)
            out[rows].add_(self.score_slopes_(slopes, prepared[rows]))

    def of_all(self, join: Join) -> "HistogramSlopes":
        return HistogramSlopes(join(self.in_histogram), self.score_slopes_)


@dataclass(frozen=True)
class Bins:
    """Any metric of soft histograms: all that is in a bin has one rank, that of the bin's end.

    The loss of a query is (1 / N+) sum over centres j of h+_j loss(H+_j - 1, H-_j), h+_j positives in bin j, H+_j
    positives and H-_j negatives down to it. With AveragePrecision that is fastap Eq. 14 and ap_q Eq. 11:
    FastAP(bins=n) and QuantizedAP(bins=n + 1). A soft count H+_j may be less than 1, so that before_pos, H+_j - 1,
    starts above -1 and not at 0.

    bins: intervals between the bins + 1 centres, on scores from 1 to -1
    """

    bins: int = 10
    needs_levels: ClassVar[bool] = True  # a bin has no grade: positives are counted for each

    def __post_init__(self) -> None:
        check_integer("bins", self.bins, at_least=1)

    def ranks(self, scores: Tensor, positives: Positives, slopes: bool = True) -> tuple[Ranks, Pull]:
        """The `Ranks` of centres in the place of positives, each as valid as there are positives in its bin.

        With levels there is a centre for each level.
        """
        scores.clamp_(-2, 2)
        own = self._positions_(scores.gather(1, positives.index))
        before_neg = cumulative_histogram(self._positions_(positives.keep_negatives_(scores)), self.bins)
        members = positives.members()  # [level, query, positive]
        down_to = torch.stack([cumulative_histogram(own.masked_fill(~of, torch.inf), self.bins) for of in members], 1)
        in_bin = down_to - pad(down_to[:, :, :-1], (1, 0))  # [query, level, centre]
        queries, levels, centres = down_to.shape

        def pull(of_ranks: RankSlopes, weights: Tensor) -> Slopes:
            in_valid = of_ranks.valid.reshape(in_bin.shape)
            in_down_to = in_valid - pad(in_valid[:, :, 1:], (0, 1))
            in_pos = of_ranks.before_pos
            if in_pos is not None and in_pos.dim() == 3:
                in_down_to = in_down_to + in_pos.view(queries, levels, centres, levels).sum(1).transpose(1, 2)
            elif in_pos is not None:
                in_down_to = in_down_to + in_pos.view(in_bin.shape).sum(1, keepdim=True)
            of_positives = torch.zeros_like(own)
            for of, slopes in zip(members, (in_down_to * weights[:, None]).unbind(1), strict=True):
                of_positives += position_slopes(slopes, own) * of
            in_negatives = of_ranks.before_neg.view(in_bin.shape).sum(1) * weights
            return Slopes(self._score_slopes_(of_positives, own), HistogramSlopes(in_negatives, self._score_slopes_))

        flat = (queries, levels * centres)
        before_neg = before_neg[:, None].expand_as(down_to).reshape(flat)
        itself = (down_to > 0).to(own.dtype)  # without any in the bin, 0 / 0 would not count, but be NaN
        if positives.levels is None:
            return Ranks((down_to - itself).reshape(flat), before_neg, in_bin.reshape(flat)), pull
        before = down_to.transpose(1, 2)[:, None].expand(-1, levels, -1, -1)  # [query, level, centre, level]
        before = (before - itself[..., None] * torch.eye(levels, dtype=own.dtype, device=own.device)[:, None]).reshape(
            *flat, levels
        )
        values = positives.levels.to(own.dtype)
        grades = values[None, :, None].expand_as(in_bin).reshape(flat)
        return Ranks(before.sum(2), before_neg, in_bin.reshape(flat), grades, values, before), pull

    def _positions_(self, scores: Tensor) -> Tensor:
        return scores.sub_(1).mul_(-self.bins / 2)

    def _score_slopes_(self, slopes: Tensor, positions: Tensor) -> Tensor:
        return slopes.mul_(-self.bins / 2)
