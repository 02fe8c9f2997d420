import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.ranking import (
    AveragePrecision,
    FunctionMetric,
    PenalizedNegatives,
    Ranks,
    Recall,
    average_precision,
    map_at_r,
    precision_at,
    r_precision,
    recall_at,
    reciprocal_rank,
    trapezoid_average_precision,
)
from tests.reference import evaluation as reference
from tests.reference.sigmoid_ranks import pnp_f

VARIANTS = ["O", "I_u", "I_b", "D_s", "D_q"]
METRICS = [
    AveragePrecision(),
    Recall("log"),
    Recall("loglog"),
    *[PenalizedNegatives(variant) for variant in VARIANTS],
    PenalizedNegatives("D_q", alpha=1.0),
    PenalizedNegatives("D_q", alpha=2.5),
    PenalizedNegatives("I_b", b=0.3),
    FunctionMetric(lambda before_pos, before_neg: torch.tanh(before_neg / (1 + before_pos))),
]


def some_ranks():
    return torch.tensor([0.0, 1e-9, 1e-3, 0.5, 1.0, 2.0, 7.25, 100.0, 1e4], dtype=torch.float64)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: repr(m).split("function")[0])
def test_slopes_are_the_derivatives(metric):
    before_pos, before_neg = (r.flatten() for r in torch.meshgrid(some_ranks(), some_ranks(), indexing="ij"))
    leaves = before_pos.clone().requires_grad_(), before_neg.clone().requires_grad_()
    total = metric.pair_loss(*leaves).sum()
    expected = torch.autograd.grad(total, leaves, materialize_grads=True)
    slopes = metric.pair_slopes(before_pos, before_neg)
    for slope, e in zip(slopes, expected, strict=True):
        torch.testing.assert_close(torch.zeros_like(e) if slope is None else slope, e, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"alpha": 1.0, "b": 1.0}, {"alpha": 2.5, "b": 4.0}])
@pytest.mark.parametrize("variant", VARIANTS)
def test_f_is_the_papers(variant, settings):
    r = some_ranks()
    actual = PenalizedNegatives(variant, **settings).f(r)
    torch.testing.assert_close(actual, pnp_f(r, variant, **settings), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: repr(m).split("function")[0])
def test_perfect_is_zero_and_more_negatives_are_worse(metric):
    r = torch.tensor([0.0, 1.0, 2.0, 5.0, 8.0], dtype=torch.float64)
    losses = metric.pair_loss(torch.full_like(r, 2), r)
    assert losses[0] == 0
    assert (losses.diff() > 0).all()


@pytest.mark.parametrize(
    ("metric", "before_pos", "before_neg", "loss"),
    [
        (AveragePrecision(), 0, 1, 1 / 2),
        (AveragePrecision(), 2, 1, 1 - 3 / 4),
        (Recall("log"), 5, 3, math.log(4)),
        (Recall("loglog"), 5, 3, math.log(1 + math.log(4))),
        (PenalizedNegatives("O"), 5, 3, 3),
        (PenalizedNegatives("I_u"), 5, 3, 4 * math.log(4)),
        (PenalizedNegatives("I_b", b=2.0), 5, 3, (6 - math.log(7)) / 4),
        (PenalizedNegatives("D_s"), 5, 3, math.log(4)),
        (PenalizedNegatives("D_q", alpha=2.0), 5, 3, 1 - 1 / 16),
    ],
)
def test_by_hand(metric, before_pos, before_neg, loss):
    value = metric.pair_loss(torch.tensor([float(before_pos)]), torch.tensor([float(before_neg)]))
    assert value.item() == pytest.approx(loss)


def test_small_ranks_keep_their_digits():
    """In float32 1 - (1 + R)^-4 would be 0 for R = 1e-8."""
    r = torch.tensor([1e-8])
    assert PenalizedNegatives("D_q").f(r).item() == pytest.approx(4e-8)
    assert PenalizedNegatives("D_s").f(r).item() == pytest.approx(1e-8)


def test_f_of_o_is_a_tensor_of_its_own():
    r = torch.ones(3)
    PenalizedNegatives("O").f(r).add_(1)
    assert (r == 1).all()


def test_function_metric_under_no_grad():
    metric = FunctionMetric(lambda before_pos, before_neg: before_neg**2)
    with torch.no_grad():
        in_pos, in_neg = metric.pair_slopes(torch.zeros(2), torch.tensor([1.0, 3.0]))
    assert in_pos.tolist() == [0, 0]
    assert in_neg.tolist() == [2, 6]


def test_mean_is_over_valid_pairs():
    valid = torch.tensor([[True, True], [True, False]])
    ranks = Ranks(torch.zeros(2, 2), torch.zeros(2, 2), valid)
    assert ranks.mean(torch.tensor([[1.0, 3.0], [5.0, 99.0]])).tolist() == [2, 5]


OF_LISTS = {
    "mAP": average_precision,
    "mAP@R": map_at_r,
    "R-precision": r_precision,
    "MRR": reciprocal_rank,
    **{f"R@{k}": lambda ranks, k=k: recall_at(ranks, k) for k in (1, 2, 5, 100)},
    **{f"P@{k}": lambda ranks, k=k: precision_at(ranks, k) for k in (1, 2, 5, 100)},
}


def ranks_of(lists):
    """The ranks of the positives of lists of True and False, in any order, padded to the longest."""
    found = [reference.ranks(one)[::-1] for one in lists]
    width = max(map(len, found))
    rows = [of + [(99, 99)] * (width - len(of)) for of in found]
    before_pos, before_neg = torch.tensor(rows, dtype=torch.float64).movedim(2, 0)
    valid = torch.arange(width) < torch.tensor([len(of) for of in found])[:, None]
    return Ranks(before_pos.masked_fill(~valid, 0), before_neg.masked_fill(~valid, 0), valid)


some_lists = st.lists(st.lists(st.booleans(), min_size=1, max_size=12).filter(any), min_size=1, max_size=5)


@given(some_lists)
def test_metrics_of_lists(lists):
    ranks = ranks_of(lists)
    for name, metric in OF_LISTS.items():
        expected = [reference.value(name, one) for one in lists]
        assert metric(ranks).tolist() == pytest.approx(expected, rel=1e-12), name
        assert metric(ranks).dtype == torch.float64


@given(some_lists)
def test_trapezoid_average_precision(lists):
    found = trapezoid_average_precision(ranks_of(lists))
    assert found.tolist() == pytest.approx([reference.trapezoid_average_precision(one) for one in lists], rel=1e-12)


def test_lists_by_hand():
    """The list - + - - +: the positives stand on places 2 and 5."""
    ranks = ranks_of([[False, True, False, False, True]])
    assert precision_at(ranks, 1).item() == 0
    assert precision_at(ranks, 2).item() == 1 / 2
    assert precision_at(ranks, 5).item() == 2 / 5
    assert precision_at(ranks, 20).item() == 2 / 20  # 15 places are empty
    assert reciprocal_rank(ranks).item() == 1 / 2
    assert average_precision(ranks).item() == pytest.approx((1 / 2 + 2 / 5) / 2)
    # before the first positive: 0 of 1, at it 1 of 2; before the second 1 of 4, at it 2 of 5
    assert trapezoid_average_precision(ranks).item() == pytest.approx(((0 + 1 / 2) / 2 + (1 / 4 + 2 / 5) / 2) / 2)


def test_metrics_keep_the_dtype_of_the_ranks():
    ranks = Ranks(torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool))
    for metric in (*OF_LISTS.values(), trapezoid_average_precision):
        assert metric(ranks).dtype == torch.float32
