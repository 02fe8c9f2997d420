"""The studies of FastAP: perfect lists by hand."""

import pytest
import torch

from studies import fastap_ablation
from studies.fastap_ablation import trade_off


@pytest.mark.parametrize(("bins", "loss", "flat"), [(4, 0.0, 1.0), (2, 0.25 * 2.25 / 3.25, 0.0)])
def test_bins_that_keep_positives_and_negatives_apart_teach_nothing(bins, loss, flat):
    """A positive at squared distance 0.5, three negatives at 2.5.

    Four bins have centres at 0, 1, 2 ...: the kinds share none, and AP is 1. Two have centres at 0, 2 and 4: three
    quarters of the positive are at 0, where precision is 1; one is at 2, where three quarters of each negative are too,
    and precision is 1 / (1 + 2.25).
    """
    scores = torch.tensor([[0.75, -0.25, -0.25, -0.25]], dtype=torch.float64)
    relevant = torch.tensor([[True, False, False, False]])
    assert fastap_ablation._loss_and_flat_share(scores, relevant, bins) == (pytest.approx(loss), flat)


def test_fine_bins_leave_more_perfect_lists_without_a_slope():
    results = trade_off(50, 0)
    shares = [results["without slope"][str(bins)] for bins in (2, 10, 80)]
    assert all(a <= b <= c for a, b, c in zip(*shares, strict=True))
    assert shares[0][-1] < shares[2][-1] == 1.0
    assert all(value >= 0 for of in results["loss"].values() for value in of)
