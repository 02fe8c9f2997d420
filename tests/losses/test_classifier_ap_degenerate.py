"""The degenerate table of the other losses, for scores and targets of a classifier."""

import warnings

import pytest
import torch

import frontrank as fr
from frontrank.errors import FrontrankWarning


def run(scores, targets, **settings):
    scores = scores.detach().clone().requires_grad_()
    loss = fr.ClassifierAP(**settings)
    value = loss(scores, targets)
    value.backward()
    assert value.shape == ()
    assert torch.isfinite(value), value
    assert torch.isfinite(scores.grad).all(), scores.grad
    return value.item(), scores.grad, loss.last


@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (0, 3), (4, 0), (0, 0)])
def test_no_positive_at_all(shape):
    with pytest.warns(FrontrankWarning, match="positive"):
        value, gradient, last = run(torch.randn(shape), torch.zeros(shape))
    assert value == 0
    assert (gradient == 0).all()
    assert last == {"classes_used": 0, "classes_skipped": shape[1]}


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (6, 1), (30, 2)])
def test_no_negative_at_all(shape):
    value, gradient, _ = run(torch.randn(shape), torch.ones(shape))
    assert value == 0
    assert (gradient == 0).all()


def test_perfect_ranking():
    targets = torch.arange(6)[:, None] % 3 == torch.arange(3)
    value, gradient, _ = run(targets.float(), targets)
    assert value == 0
    assert (gradient == 0).all()


def test_worst_ranking():
    """Each class column: 4 negatives, then 2 positives; all pairs: 12 negatives, then 6 positives."""
    targets = torch.arange(6)[:, None] % 3 == torch.arange(3)
    column = (1 / 5 + 2 / 6) / 2
    across = sum(k / (12 + k) for k in range(1, 7)) / 6
    value, _, _ = run((~targets).float(), targets)
    assert value == pytest.approx(1 - 2 / 3 * column - 1 / 3 * across)


def test_equal_scores_are_as_bad_as_the_worst_ranking():
    targets = torch.arange(6)[:, None] % 3 == torch.arange(3)
    value, _, _ = run(torch.zeros(6, 3), targets)
    worst, _, _ = run((~targets).float(), targets)
    assert value == pytest.approx(worst)


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1.0, 1e30, 3e38])
@pytest.mark.parametrize("items", [4, 60])
def test_scores_of_any_finite_size(items, size):
    scores = torch.linspace(-1, 1, items * 2)[torch.randperm(items * 2)].view(items, 2)
    targets = torch.rand(items, 2) < 0.5
    targets[0] = True
    value, _, _ = run(scores * size, targets, margin=0.0)
    expected, _, _ = run(scores, targets, margin=0.0)
    assert value == pytest.approx(expected, abs=1e-6)


def test_warns_once_per_loss():
    loss = fr.ClassifierAP()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            loss(torch.randn(4, 2), torch.zeros(4, 2))
    assert [warning.category for warning in seen] == [FrontrankWarning]
    assert seen[0].filename == __file__, "the warning points at the caller"
