"""Any metric goes with any relaxation, and the papers' losses are presets."""

import itertools
import math
import warnings

import pytest
import torch

import frontrank as fr
from frontrank.errors import FrontrankWarning
from frontrank.ranking import (
    AveragePrecision,
    Bins,
    Blackbox,
    Exact,
    FunctionMetric,
    IntegratedPenalty,
    PenalizedNegatives,
    Recall,
    Sigmoid,
)
from tests.cases import BATCHES, random_embeddings, value_and_gradients

METRICS = [
    AveragePrecision(),
    Recall("log"),
    Recall("loglog"),
    *[PenalizedNegatives(variant) for variant in ("O", "I_u", "I_b", "D_s", "D_q")],
    IntegratedPenalty(lambda r: 1 / (1 + r) ** 2),
    FunctionMetric(lambda before_pos, before_neg: torch.sqrt(before_neg + 1e-3) + before_pos**2),
]
RELAXATIONS = [Sigmoid(), Sigmoid(0.1), Bins(), Bins(1), Blackbox(), Blackbox(lam=50.0, margin=0.1), Exact()]


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: type(m).__name__ + getattr(m, "variant", ""))
def test_every_pair(metric):
    for relaxation, batch in itertools.product(RELAXATIONS, (BATCHES[0], BATCHES[1], BATCHES[2], BATCHES[7])):
        embeddings, more = batch()
        value, *gradients = value_and_gradients(fr.RankLoss(metric, relaxation), embeddings, more)
        assert torch.isfinite(value), (relaxation, batch)
        assert value > 0, (relaxation, batch)
        for gradient in gradients:
            assert torch.isfinite(gradient).all(), (relaxation, batch)
            if isinstance(relaxation, Exact):
                assert (gradient == 0).all(), batch
            if isinstance(relaxation, Sigmoid | Bins):
                assert (gradient != 0).any(), (relaxation, batch)


PRESETS = [
    (fr.PNP("I_b", b=3.0, temperature=0.05), PenalizedNegatives("I_b", b=3.0), Sigmoid(0.05)),
    (fr.PNP(), PenalizedNegatives("D_q", alpha=4.0), Sigmoid(0.01)),
    (fr.SmoothAP(), AveragePrecision(), Sigmoid(0.01)),
    (fr.BlackboxRecall(), Recall("loglog"), Blackbox(4.0, 0.2)),
    (fr.BlackboxRecall("log", lam=9.0, margin=0.1), Recall("log"), Blackbox(9.0, 0.1)),
    (fr.BlackboxAP(), AveragePrecision(), Blackbox(4.0, 0.2)),
]


@pytest.mark.parametrize(("preset", "metric", "relaxation"), PRESETS, ids=lambda x: type(x).__name__)
def test_presets(preset, metric, relaxation):
    for batch in BATCHES:
        embeddings, more = batch()
        one = value_and_gradients(preset, embeddings, more)
        other = value_and_gradients(fr.RankLoss(metric, relaxation), embeddings, more)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)), batch


@pytest.mark.parametrize("loss", [fr.FastAP(bins=8), fr.QuantizedAP(bins=9)], ids=repr)
def test_average_precision_of_bins_is_that_of_the_histogram_losses(loss):
    for batch in BATCHES:
        embeddings, more = batch()
        one = value_and_gradients(loss, embeddings, more)
        other = value_and_gradients(fr.RankLoss(AveragePrecision(), Bins(8)), embeddings, more)
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


def test_bins_by_hand():
    """Centres 1, 0 and -1. Positives at 1 and 0.5, which is half in the first bin; negatives at 0.5 and -1.

    Down to the first bin there are 0.5 negatives and in it 1.5 positives; down to the second, with the other half, 1.
    """
    scores, relevant = torch.tensor([[1.0, 0.5, 0.5, -1.0]]), torch.tensor([[True, True, False, False]])
    loss = fr.RankLoss(PenalizedNegatives("O"), Bins(2)).of_scores(scores, relevant)
    assert loss.item() == pytest.approx((1.5 * 0.5 + 0.5 * 1) / 2)


@pytest.mark.parametrize("relaxation", RELAXATIONS, ids=repr)
def test_own_function_equals_the_built_in_metric(relaxation):
    own = FunctionMetric(lambda before_pos, before_neg: before_neg / (1 + before_pos + before_neg))
    for batch in BATCHES:
        embeddings, more = batch()
        one = value_and_gradients(fr.RankLoss(own, relaxation), embeddings, more)
        other = value_and_gradients(fr.RankLoss(AveragePrecision(), relaxation), embeddings, more)
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_exact_ap_by_hand():
    """Query 0 at 0 degrees with positives at 20 and 40 and negatives at 10 and 30: yes at place 2 and 4."""
    angles = torch.tensor([0.0, 20.0, 40.0, 10.0, 30.0]).deg2rad()
    embeddings = torch.stack([angles.cos(), angles.sin()], 1)
    relevant = torch.zeros(5, 5, dtype=torch.bool)
    relevant[0, 1:3] = True
    loss = fr.RankLoss(AveragePrecision(), Exact())(embeddings, relevant=relevant)
    assert loss.item() == pytest.approx(1 - (1 / 2 + 2 / 4) / 2)


def test_include_query_by_hand():
    """The query is its own first positive, so of two positives one has no negative before it."""
    embeddings = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    labels = torch.tensor([0, 0, 1, 1])
    for include_query, expected in ((False, math.log(3)), (True, (0 + math.log(3)) / 2)):
        loss = fr.RankLoss(Recall("log"), Exact(), include_query=include_query)
        assert loss(embeddings, labels).item() == pytest.approx(expected)


def test_warns_once_per_loss():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for loss in (fr.SmoothAP(), fr.FastAP()):
            for _ in range(3):
                loss(random_embeddings(3, 1), torch.arange(3))
    assert [warning.category for warning in seen] == [FrontrankWarning] * 2
    assert {warning.filename for warning in seen} == {__file__}, "the warning points at the caller"


def test_last_says_what_the_latest_call_did():
    loss = fr.SmoothAP()
    assert loss.last == {"queries_used": 0, "queries_skipped": 0}
    loss(random_embeddings(6, 1), torch.tensor([0, 0, 1, 2, 3, 3]))
    assert loss.last == {"queries_used": 4, "queries_skipped": 2}
    loss(random_embeddings(3, 1), torch.tensor([0, 0, 0]))
    assert loss.last == {"queries_used": 3, "queries_skipped": 0}
    loss.of_scores(torch.rand(2, 3), torch.tensor([[True, False, True], [False, False, False]]))
    assert loss.last == {"queries_used": 1, "queries_skipped": 1}
