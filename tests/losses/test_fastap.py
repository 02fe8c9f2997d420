import math

import pytest
import torch

import frontrank as fr
from tests.cases import BATCHES, value_and_gradients

YES, NO = True, False


def test_squared_by_hand():
    """2 bins, centres 0, 2, 4. The positive at 2 - 2 * 0.5 = 1 is shared; the negative at 2 is in the middle."""
    scores = torch.tensor([[0.5, 0.0]])
    loss = fr.FastAP(bins=2).of_scores(scores, torch.tensor([[YES, NO]]))
    ap = 0.5 * 0.5 / 0.5 + 1 * 0.5 / 2
    assert loss.item() == pytest.approx(1 - ap)


def test_euclidean_by_hand():
    """2 bins, centres 0, 1, 2. The positive at sqrt(2 - 1.75) = 1/2 is shared; the negative at 1 is in the middle."""
    scores = torch.tensor([[0.875, 0.5]])
    loss = fr.FastAP(bins=2, distance="euclidean").of_scores(scores, torch.tensor([[YES, NO]]))
    ap = 0.5 * 0.5 / 0.5 + 1 * 0.5 / 2
    assert loss.item() == pytest.approx(1 - ap)


def test_gradient_by_hand():
    """With the negative on position x of bins 0, 1 and the positive on 1: AP = 1 / 2 whatever x.

    With the positive on position x and the negative on 1: h+ = (1 - x, x), AP = (1 - x) + x / 2.
    """
    scores = torch.tensor([[0.4, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = fr.FastAP(bins=2).of_scores(scores, torch.tensor([[YES, NO]]))
    loss.backward()
    x = (2 - 2 * 0.4) / 2
    assert loss.item() == pytest.approx(x / 2)
    assert scores.grad[0, 0].item() == pytest.approx(-1 / 2)  # d loss / d x = 1/2, d x / d score = -1

    scores = torch.tensor([[0.0, 0.4]], dtype=torch.float64, requires_grad=True)
    loss = fr.FastAP(bins=2).of_scores(scores, torch.tensor([[YES, NO]]))
    loss.backward()
    assert loss.item() == pytest.approx(1 / 2)
    assert scores.grad[0, 1].item() == pytest.approx(0)


def test_euclidean_gradient_by_hand():
    """d z / d s = -1 / z; loss = x / 2 as above with x = z."""
    s = 0.82
    scores = torch.tensor([[s, 0.5]], dtype=torch.float64, requires_grad=True)
    fr.FastAP(bins=2, distance="euclidean").of_scores(scores, torch.tensor([[YES, NO]])).backward()
    assert scores.grad[0, 0].item() == pytest.approx(-1 / 2 / math.sqrt(2 - 2 * s))


@pytest.mark.parametrize("bins", [1, 2, 10, 19])
def test_equals_quantized_ap_with_one_more_centre(bins):
    for batch in BATCHES:
        embeddings, more = batch()
        one = value_and_gradients(fr.FastAP(bins=bins), embeddings, more)
        other = value_and_gradients(fr.QuantizedAP(bins=bins + 1), embeddings, more)
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("distance", ["squared", "euclidean"])
def test_perfect_clusters_have_no_loss(distance):
    embeddings = torch.eye(28).repeat_interleave(4, 0)
    loss = fr.FastAP(distance=distance)(embeddings, torch.arange(28).repeat_interleave(4))
    assert abs(loss.item()) < 1e-6


@pytest.mark.parametrize("distance", ["squared", "euclidean"])
def test_many_bins_come_near_exact_ap(distance):
    scores = torch.linspace(-0.9, 0.9, 10, dtype=torch.float64)[None]
    relevant = torch.tensor([[NO, YES] * 5])  # best first: yes, no, yes, no, ...
    loss = fr.FastAP(bins=5000, distance=distance).of_scores(scores, relevant)
    exact = (1 / 1 + 2 / 3 + 3 / 5 + 4 / 7 + 5 / 9) / 5
    assert loss.item() == pytest.approx(1 - exact, abs=0.05)
