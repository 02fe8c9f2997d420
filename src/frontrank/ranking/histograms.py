"""The binned route: scores to soft histograms to average precision.

An item at position x (0 = nearest, counted in bins) is shared between the two bin centres around it by
linear interpolation. Summed up to bin j that is H_j = sum of clamp(j + 1 - x, 0, 1): a soft count of
the items nearer than bin j, which needs no scattering and whose slope is -1 in one bin only.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from frontrank.ranking.steps import row_tiles


def cumulative_histogram(positions: Tensor, bins: int) -> Tensor:
    """Soft counts H_j for the bin centres j = 0 .. bins [row, bins + 1]; positions at +inf count nowhere.

    Positions below 0 or above `bins` saturate in the end bins.

    >>> cumulative_histogram(torch.tensor([[0.0, 0.25, 2.0]]), bins=2)
    tensor([[1.7500, 2.0000, 3.0000]])
    """
    counts = positions.new_empty(bins + 1, len(positions))
    for rows in row_tiles(positions):
        rest, share = 1 - positions[rows], torch.empty_like(positions[rows])
        for j in range(bins):
            torch.sum(torch.clamp(rest, 0, 1, out=share), 1, out=counts[j, rows])
            rest += 1
        torch.sum(torch.gt(rest, -torch.inf, out=share), 1, out=counts[bins, rows])
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
