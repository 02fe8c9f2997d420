import pytest
import torch

from frontrank.ranking import binned_average_precision, cumulative_histogram, position_slopes
from tests.reference.lists import RankedList
from tests.reference.quantized_ap import quantized_ap

BINS = 6


def soft_counts(positions, bins):
    """H_j: shares of the items in the bins up to j, each shared between the two nearest centres."""
    counts = []
    for j in range(bins + 1):
        inside = positions.clamp(0, bins)
        counts.append((1 - (inside - j).abs()).clamp(min=0).sum())
    return torch.stack(counts).cumsum(0)


def test_by_hand():
    """Positions 0, 1/4 and 2 on centres 0, 1, 2: shares 1 + 3/4, 1/4, 1."""
    counts = cumulative_histogram(torch.tensor([[0.0, 0.25, 2.0]]), bins=2)
    assert counts.tolist() == [[1.75, 2.0, 3.0]]


def test_equals_sharing_between_centres():
    positions = torch.rand(4, 30, dtype=torch.float64) * (BINS + 2) - 1
    counts = cumulative_histogram(positions.clone(), BINS)
    for row, position in zip(counts, positions, strict=True):
        torch.testing.assert_close(row, soft_counts(position, BINS), rtol=1e-12, atol=1e-12)


def test_infinite_positions_count_nowhere():
    positions = torch.tensor([[0.0, torch.inf, 1e30, -5.0], [torch.inf] * 4])
    assert cumulative_histogram(positions, bins=2).tolist() == [[2, 2, 3], [0, 0, 0]]


def test_slopes_are_the_derivatives():
    positions = (torch.rand(4, 30, dtype=torch.float64) * (BINS + 2) - 1).requires_grad_()
    weights = torch.randn(4, BINS + 1, dtype=torch.float64)
    reference = torch.stack([soft_counts(row, BINS) for row in positions])
    [expected] = torch.autograd.grad((reference * weights).sum(), positions)
    actual = position_slopes(weights, positions.detach())
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_slopes_of_items_taken_out_are_zero():
    slopes = position_slopes(torch.ones(1, 3), torch.tensor([[torch.inf, 1e30, -1e30, 0.5]]))
    assert slopes.tolist() == [[0, 0, 0, -1]]


def histograms(rows=3):
    positive = torch.rand(rows, BINS + 1, dtype=torch.float64)
    negative = torch.rand(rows, BINS + 1, dtype=torch.float64)
    positive[0, :2] = 0
    return positive.cumsum(1), (positive + negative).cumsum(1)


@pytest.mark.parametrize("tie_aware", [False, True])
def test_slopes_of_average_precision_are_the_derivatives(tie_aware):
    positive, listed = (h.requires_grad_() for h in histograms())
    ap, in_positive, in_listed = binned_average_precision(positive.detach(), listed.detach(), tie_aware=tie_aware)
    before_p, before_a = (torch.nn.functional.pad(h[:, :-1], (1, 0)) for h in (positive, listed))
    precision = (1 + positive + before_p) / (1 + listed + before_a) if tie_aware else positive / listed
    number = positive[:, -1].detach()  # N is a count, not a function of the histogram
    expected = (precision * (positive - before_p)).sum(1) / number
    torch.testing.assert_close(ap, expected.detach(), rtol=1e-12, atol=1e-12)
    for actual, e in zip(
        (in_positive, in_listed), torch.autograd.grad(expected.sum(), (positive, listed)), strict=True
    ):
        torch.testing.assert_close(actual, e, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tie_aware", [False, True])
def test_average_precision_of_a_list(tie_aware):
    scores = torch.rand(1, 20, dtype=torch.float64) * 2 - 1
    positions = (1 - scores) * BINS / 2
    ap, _, _ = binned_average_precision(
        cumulative_histogram(positions[:, :5].clone(), BINS), cumulative_histogram(positions, BINS), tie_aware=tie_aware
    )
    expected = 1 - quantized_ap(RankedList(scores[0, :5], scores[0, 5:]), BINS + 1, tie_aware)
    assert ap.item() == pytest.approx(expected.item(), abs=1e-12)


def test_empty_first_bins_are_not_a_division_by_zero():
    positive = listed = torch.tensor([[0.0, 0.0, 2.0]])
    for result in binned_average_precision(positive, listed):
        assert torch.isfinite(result).all()
    assert binned_average_precision(positive, listed)[0].item() == 1
