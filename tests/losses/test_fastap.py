import math

import pytest
import torch

import frontrank as fr

YES, NO = True, False


@pytest.mark.parametrize(("distance", "scores"), [("squared", [[0.5, 0.0]]), ("euclidean", [[0.875, 0.5]])])
def test_by_hand(distance, scores):
    """2 bins. The positive is shared by the first two, the negative is in the middle of the second.

    squared: centres 0, 2, 4; 2 - 2 * 0.5 = 1 and 2. Euclidean: centres 0, 1, 2; sqrt(2 - 1.75) = 1/2 and 1.
    """
    loss = fr.FastAP(bins=2, distance=distance).of_scores(torch.tensor(scores), torch.tensor([[YES, NO]]))
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


@pytest.mark.parametrize("distance", ["squared", "euclidean"])
def test_many_bins_come_near_exact_ap(distance):
    scores = torch.linspace(-0.9, 0.9, 10, dtype=torch.float64)[None]
    relevant = torch.tensor([[NO, YES] * 5])  # best first: yes, no, yes, no, ...
    loss = fr.FastAP(bins=5000, distance=distance).of_scores(scores, relevant)
    exact = (1 / 1 + 2 / 3 + 3 / 5 + 4 / 7 + 5 / 9) / 5
    assert loss.item() == pytest.approx(1 - exact, abs=0.05)
