import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import frontrank as fr
from frontrank.ranking import MatrixRelevance, score_loss
from tests.cases import random_embeddings, random_labels
from tests.reference import rambo
from tests.reference.lists import RankedList

YES, NO = True, False
LOSSES = {
    "recall-log": lambda **more: fr.BlackboxRecall("log", **more),
    "recall-loglog": lambda **more: fr.BlackboxRecall("loglog", **more),
    "ap": fr.BlackboxAP,
}
REFERENCES = {
    "recall-log": partial(rambo.recall, weighting="log"),
    "recall-loglog": partial(rambo.recall, weighting="loglog"),
    "ap": partial(rambo.average_precision),
}


# a positive at 0 behind negatives at 0.5 and 1: r = 2, d log(1 + r) / d rk = 1/3
@pytest.mark.parametrize(
    ("lam", "gradient"),
    [
        (1.0, [0.0, 0.0, 0.0]),  # moves to 1/3 and passes nobody
        (2.0, [-1 / 2, 1 / 2, 0.0]),  # moves to 2/3 and passes one
        (4.0, [-2 / 4, 1 / 4, 1 / 4]),  # moves to 4/3 and passes both
    ],
)
def test_recall_by_hand(lam, gradient):
    scores = torch.tensor([[0.0, 0.5, 1.0]], requires_grad=True)
    loss = fr.BlackboxRecall("log", lam=lam, margin=0.0).of_scores(scores, torch.tensor([[YES, NO, NO]]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(3))
    torch.testing.assert_close(scores.grad, torch.tensor([gradient]))


def test_loglog_by_hand():
    scores = torch.tensor([[0.0, 0.5, 1.0, -1.0]])
    loss = fr.BlackboxRecall("loglog", margin=0.0).of_scores(scores, torch.tensor([[YES, NO, NO, YES]]))
    assert loss.item() == pytest.approx(math.log(1 + math.log(3)))


def test_ap_by_hand():
    """Places: no, yes, no, yes. d (1 - AP) / d rk = (1/2) (1/4, 2/16) for the positives of rank 2 and 4."""
    scores = torch.tensor([[1.0, 0.8, 0.6, 0.4]], requires_grad=True)
    loss = fr.BlackboxAP(lam=2.0, margin=0.0).of_scores(scores, torch.tensor([[NO, YES, NO, YES]]))
    loss.backward()
    assert loss.item() == pytest.approx(1 - (1 / 2 + 2 / 4) / 2)
    # moved by 2/8 to 1.05 (rank 2 to 1) and by 2/16 to 0.525 (rank 4, as before)
    torch.testing.assert_close(scores.grad, torch.tensor([[1 / 2, -1 / 2, 0.0, 0.0]]))


def test_margin_by_hand():
    """The positive leads by 0.1: with a margin of 0.15 the negative stands before it."""
    scores, relevant = torch.tensor([[0.6, 0.5]]), torch.tensor([[YES, NO]])
    assert fr.BlackboxAP(margin=0.05).of_scores(scores, relevant).item() == 0
    assert fr.BlackboxAP(margin=0.15).of_scores(scores, relevant).item() == pytest.approx(1 / 2)


@st.composite
def lists_without_equal_positives(draw):
    """Scores of a list with ties between negatives, and between negatives and positives."""
    positive = draw(st.lists(st.integers(-40, 40), min_size=1, max_size=18, unique=True))
    negative = draw(st.lists(st.integers(-40, 40), max_size=25))
    lam = draw(st.sampled_from([0.1, 3.0, 70.0, 1000.0]))
    margin = draw(st.sampled_from([0.0, 0.25, 4.0]))
    return positive, negative, lam, margin


@pytest.mark.parametrize("name", LOSSES)
@given(one=lists_without_equal_positives())
def test_gradient_is_algorithm_1_by_sorting(name, one):
    positive, negative, lam, margin = one
    scores = torch.tensor([positive + negative], dtype=torch.float64, requires_grad=True)
    relevant = (torch.arange(scores.shape[1]) < len(positive))[None]
    loss = LOSSES[name](lam=lam, margin=margin).of_scores(scores, relevant)
    one = RankedList(scores[0, : len(positive)], scores[0, len(positive) :])
    reference = REFERENCES[name](one, lam=lam, margin=margin)
    torch.testing.assert_close(loss, reference, rtol=1e-12, atol=1e-12)
    actual, expected = (torch.autograd.grad(x, scores)[0] for x in (loss, reference))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


# lam acts on the loss of each query, whatever else is in the mean
MOVES = {"lam": 16.0, "margin": 0.0625}


def queries(rows=6, items=20, dtype=torch.float64):
    """Scores, some of them equal, and relevance with 1 to `rows` positives; halves can hold all of them."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.randint(-64, 64, (rows, items), generator=generator) / 512
    relevant = torch.arange(items) <= torch.arange(rows)[:, None]
    return scores.to(dtype), relevant[:, torch.randperm(items, generator=generator)]


def gradient_of(loss, scores, relevant):
    scores = scores.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss.of_scores(scores, relevant), scores)
    assert (gradient != 0).any(1).sum() > len(scores) / 2
    return gradient


def lists_of(scores, relevant):
    return [RankedList(row[mask], row[~mask]) for row, mask in zip(scores, relevant, strict=True)]


@pytest.mark.parametrize("name", LOSSES)
def test_each_query_gets_what_it_gets_alone(name):
    """In a batch of any size, and beside its own copy: the same pairs, with a share of the gradient."""
    loss, (scores, relevant) = LOSSES[name](**MOVES), queries()
    whole = gradient_of(loss, scores, relevant)
    for row, (own, mask) in enumerate(zip(scores, relevant, strict=True)):
        alone = own[None].clone().requires_grad_()
        loss.of_scores(alone, mask[None]).backward()
        torch.testing.assert_close(6 * whole[row], alone.grad[0], rtol=1e-12, atol=0)
    twice = gradient_of(loss, scores.repeat(2, 1), relevant.repeat(2, 1))
    torch.testing.assert_close(2 * twice, whole.repeat(2, 1), rtol=1e-12, atol=0)
    assert torch.equal(twice != 0, (whole != 0).repeat(2, 1))


@pytest.mark.parametrize("name", LOSSES)
def test_lam_of_earlier_versions_is_lam_times_the_queries(name):
    """It acted on the mean over queries, so that the mean took part in the move."""
    scores, relevant = queries()
    leaf = scores.clone().requires_grad_()
    reference = REFERENCES[name].func.__wrapped__
    before = {**MOVES, **REFERENCES[name].keywords, "lam": MOVES["lam"] * len(scores)}
    torch.stack([reference(one, **before) for one in lists_of(leaf, relevant)]).mean().backward()
    torch.testing.assert_close(gradient_of(LOSSES[name](**MOVES), scores, relevant), leaf.grad, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_weights_of_queries_scale_the_result(name):
    loss, (scores, relevant) = LOSSES[name](**MOVES), queries()
    weights = torch.tensor([0.0, 1e-6, 0.5, 1.0, 3.0, 1e6], dtype=torch.float64)
    leaf = scores.clone().requires_grad_()
    value = score_loss(leaf, MatrixRelevance(relevant, None, own=False), loss.objective, weights)
    of_lists = [REFERENCES[name](one, **MOVES) for one in lists_of(leaf, relevant)]
    expected = torch.stack(of_lists) @ weights
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    actual, wanted = (torch.autograd.grad(each, leaf)[0] for each in (value, expected))
    torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_any_precision_moves_the_same_pairs(name, dtype):
    """With such a lam no score is moved to where another is."""
    loss, (scores, relevant) = LOSSES[name](lam=14.3, margin=0.0625), queries()
    wide, narrow = (gradient_of(loss, scores.to(each), relevant) for each in (torch.float64, dtype))
    assert narrow.dtype == dtype
    torch.testing.assert_close(narrow.double(), wide, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_value_is_that_of_exact_ranks(name):
    embeddings, labels = random_embeddings(20, 1), random_labels([6, 8, 6], 2)
    blackbox = LOSSES[name](margin=0.0)
    exact = fr.RankLoss(blackbox.metric, fr.ranking.Exact())
    torch.testing.assert_close(blackbox(embeddings, labels), exact(embeddings, labels), rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_of_a_list_sums_to_zero(name):
    """Ranks are only exchanged."""
    scores = torch.randn(5, 40, dtype=torch.float64, requires_grad=True)
    LOSSES[name](lam=30.0).of_scores(scores, torch.rand(5, 40) < 0.4).backward()
    assert (scores.grad != 0).any()
    torch.testing.assert_close(scores.grad.sum(1), torch.zeros(5, dtype=torch.float64))
