"""Exact and sigmoid ranks against sorting and summing one list at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.ranking import (
    Blackbox,
    Exact,
    MatrixRelevance,
    Sigmoid,
    average_precision,
    map_at_r,
    r_precision,
    recall_at,
)
from tests.reference import exact
from tests.reference.lists import lists_of_scores
from tests.reference.sigmoid_ranks import negatives_before, positives_before


def exact_ranks(scores, relevant, candidates=None):
    relevance = MatrixRelevance(relevant, candidates, own=False)
    ranks, pull = Exact().ranks(scores.clone(), relevance.positives(torch.arange(len(scores))))
    assert pull is None
    return ranks


@st.composite
def lists(draw):
    """Whole-numbered scores, so that there are ties, and at least one positive."""
    n = draw(st.integers(1, 40))
    spread = draw(st.sampled_from([0, 2, 10, 1000]))
    scores = draw(st.lists(st.integers(-spread, spread), min_size=n, max_size=n))
    relevant = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    relevant[draw(st.integers(0, n - 1))] = True
    return torch.tensor([scores], dtype=torch.float64), torch.tensor([relevant])


METRICS = {
    "AP": (average_precision, exact.average_precision),
    "R@1": (lambda ranks: recall_at(ranks, 1), lambda s, r: exact.recall_at(s, r, 1)),
    "R@5": (lambda ranks: recall_at(ranks, 5), lambda s, r: exact.recall_at(s, r, 5)),
    "R-precision": (r_precision, exact.r_precision),
    "mAP@R": (map_at_r, exact.map_at_r),
}
INCREASING = {
    "times 3 minus 7": lambda s: s * 3 - 7,
    "cube": lambda s: s**3,
    "far below zero": lambda s: s - 10_000,
    "squashed": lambda s: torch.atan(s / 100),
    "exp": lambda s: torch.exp(s / 50),
    "tiny": lambda s: s * 1e-200,
}


@given(lists())
def test_ranks_by_sorting(one):
    scores, relevant = one
    ranks = exact_ranks(scores, relevant)
    pairs = zip(ranks.before_pos[0].tolist(), ranks.before_neg[0].tolist(), strict=True)
    assert sorted(pairs) == exact.ranks_of_positives(scores[0], relevant[0])
    assert ranks.valid.all()


def values(scores, relevant):
    ranks = exact_ranks(scores, relevant)
    return {name: ours(ranks).item() for name, (ours, _) in METRICS.items()}


@given(one=lists())
def test_metrics_by_sorting(one):
    expected = {name: reference(*(each[0] for each in one)) for name, (_, reference) in METRICS.items()}
    assert values(*one) == pytest.approx(expected, abs=1e-12)


@given(one=lists(), transform=st.sampled_from(sorted(INCREASING)), seed=st.integers(0, 999))
def test_metrics_depend_on_the_order_alone(one, transform, seed):
    scores, relevant = one
    order = torch.randperm(scores.shape[1], generator=torch.Generator().manual_seed(seed))
    expected = pytest.approx(values(scores, relevant), abs=1e-12)
    assert values(INCREASING[transform](scores), relevant) == expected
    assert values(scores[:, order], relevant[:, order]) == expected


@given(one=lists(), below=st.integers(1, 5), more=st.integers(1, 4))
def test_negatives_at_the_end_change_nothing(one, below, more):
    scores, relevant = one
    last = (scores.min() - below).expand(1, more)
    longer = values(torch.cat([scores, last], 1), torch.cat([relevant, torch.zeros(1, more, dtype=torch.bool)], 1))
    assert longer == pytest.approx(values(scores, relevant), abs=1e-12)


def test_several_queries_with_candidates():
    scores = torch.randint(-5, 6, (20, 30)).double()
    relevant = torch.rand(20, 30) < torch.linspace(0.05, 0.9, 20)[:, None]
    candidates = torch.rand(20, 30) < 0.8
    used = (relevant & candidates).any(1)
    scores, relevant, candidates = scores[used], relevant[used], candidates[used]
    ranks = exact_ranks(scores, relevant, candidates)
    kept = [(s[c], r[c]) for s, r, c in zip(scores, relevant, candidates, strict=True)]
    for ours, reference in METRICS.values():
        torch.testing.assert_close(ours(ranks).tolist(), [float(reference(s, r)) for s, r in kept])


def test_by_hand():
    """From first to last: no, yes, yes, no, yes; so R = 3."""
    ranks = exact_ranks(torch.tensor([[5.0, 4, 3, 2, 1]]), torch.tensor([[False, True, True, False, True]]))
    assert average_precision(ranks).item() == pytest.approx((1 / 2 + 2 / 3 + 3 / 5) / 3)
    assert r_precision(ranks).item() == pytest.approx(2 / 3)
    assert map_at_r(ranks).item() == pytest.approx((1 / 2 + 2 / 3) / 3)
    assert [recall_at(ranks, k).item() for k in (1, 2, 3)] == [0, 1, 1]


@pytest.mark.parametrize("share", [0.1, 0.6])
@pytest.mark.parametrize("temperature", [0.01, 0.3])
def test_sigmoid_sums(temperature, share):
    scores = torch.randn(3, 25, dtype=torch.float64) * 0.3
    relevant = torch.rand(3, 25) < share
    relevant[:, 0] = True
    positives = MatrixRelevance(relevant, None, own=False).positives(torch.arange(3))
    ranks, _ = Sigmoid(temperature).ranks(scores.clone(), positives)
    for q, one in enumerate(lists_of_scores(scores, relevant)):
        of_query = positives.index[q][positives.valid[q]].tolist()
        columns = relevant[q].nonzero()[:, 0].tolist()
        for k, column in enumerate(of_query):
            i = columns.index(column)
            torch.testing.assert_close(ranks.before_neg[q, k], negatives_before(one, i, temperature))
            torch.testing.assert_close(ranks.before_pos[q, k], positives_before(one, i, temperature))


@pytest.mark.parametrize("relaxation", [Exact(), Sigmoid(), Blackbox()], ids=repr)
def test_padding_counts_nothing(relaxation):
    relevant = torch.tensor([[True, False, False, False], [True, True, True, False]])
    positives = MatrixRelevance(relevant, None, own=False).positives(torch.arange(2))
    ranks, _ = relaxation.ranks(torch.randn(2, 4), positives)
    assert ranks.valid.sum(1).tolist() == [1, 3]
    assert (ranks.before_pos[~ranks.valid] == 0).all()
    assert (ranks.before_neg[~ranks.valid] == 0).all()
