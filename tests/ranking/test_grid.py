"""Sums of sigmoids through a grid against the sum of every sigmoid, in float64."""

import pytest
import torch

from frontrank.ranking import MatrixRelevance, Sigmoid, ranks


def ranks_and_slopes(scores, relevant, temperature):
    """Ranks of the positives, and the slopes of a weighted sum of them in the scores."""
    positives = MatrixRelevance(relevant, None, own=False).positives(torch.arange(len(scores)))
    prepared = scores.clone()
    found, pull = Sigmoid(temperature).ranks(prepared, positives)
    weights = torch.linspace(-1, 1, positives.index.shape[1], dtype=scores.dtype) * positives.valid
    slopes = pull(ranks.RankSlopes(weights, weights.flip(1), weights), torch.ones(len(scores), 1, dtype=scores.dtype))
    out = torch.zeros_like(prepared)
    slopes.of_items.add_(prepared, out)
    return found.before_pos, found.before_neg, out.scatter_add_(1, positives.index, slopes.of_positives)


@pytest.mark.parametrize("spread", [0, 0.05, 0.5])
@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_equal_to_the_sum_of_every_sigmoid(temperature, spread):
    torch.manual_seed(0)
    scores = (torch.randn(3, 400) * spread).clamp(-1, 1)
    relevant = torch.rand(3, 400) < torch.tensor([0.1, 0.3, 0.9])[:, None]
    expected = ranks_and_slopes(scores.double(), relevant, temperature)
    for ours, exactly in zip(ranks_and_slopes(scores, relevant, temperature), expected, strict=True):
        torch.testing.assert_close(ours.double(), exactly, rtol=1e-5, atol=1e-5 * float(exactly.abs().max()))


def test_the_grid_is_used_for_many_positives_and_not_where_it_would_be_too_long(monkeypatch):
    used = []
    real = ranks._GridSums.__init__
    monkeypatch.setattr(ranks._GridSums, "__init__", lambda *args: used.append(1) or real(*args))
    relevant = torch.arange(100)[None] < 50
    for temperature, times in ((0.01, 2), (1e-4, 0)):
        used.clear()
        ranks_and_slopes(torch.linspace(-1, 1, 100)[None], relevant, temperature)
        assert len(used) == times


@pytest.mark.parametrize("scale", [1e34, 3e35])
def test_scores_near_the_largest_number(scale):
    """All differences are 0 or far beyond the temperature, so ranks are whole or half."""
    torch.manual_seed(0)
    scores, relevant = (torch.randn(1, 100) / 4).clamp(-1, 1) * scale, torch.arange(100)[None] < 40
    for ours, exactly in zip(
        ranks_and_slopes(scores, relevant, 0.01), ranks_and_slopes(scores.double(), relevant, 0.01), strict=True
    ):
        torch.testing.assert_close(ours.double(), exactly)
