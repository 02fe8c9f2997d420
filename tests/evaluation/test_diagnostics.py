import math
from statistics import fmean, stdev

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation import ap_error, minibatch_map
from frontrank.evaluation.diagnostics import _batch
from frontrank.ranking import Blackbox, Exact, Sigmoid
from tests.errors import refusal
from tests.reference.sigmoid_ranks import g


def clusters(classes=12, per_class=5, dim=8, spread=1.0):
    labels = torch.arange(classes).repeat_interleave(per_class)
    return torch.randn(classes, dim)[labels] + spread * torch.randn(len(labels), dim), labels


def ap_of_one(scores, query, labels, step):
    """AP of one query (smooth_ap Eq. 5) with a given step function in place of the indicator."""
    positives = [i for i in range(len(labels)) if labels[i] == labels[query] and i != query]
    negatives = [i for i in range(len(labels)) if labels[i] != labels[query]]
    total = 0.0
    for i in positives:
        before_pos = sum(step(scores[j] - scores[i]) for j in positives if j != i)
        before_neg = sum(step(scores[j] - scores[i]) for j in negatives)
        total += (1 + before_pos) / (1 + before_pos + before_neg)
    return total / len(positives)


@pytest.mark.parametrize("temperature", [0.2, 0.02])
def test_ap_error_equals_the_loops(temperature):
    embeddings, labels = clusters()
    embeddings = embeddings.double()
    found = ap_error(embeddings, labels, Sigmoid(temperature))
    unit = torch.nn.functional.normalize(embeddings, dim=1)
    for query in range(len(labels)):
        scores = (unit @ unit[query]).tolist()
        exact = ap_of_one(scores, query, labels, lambda x: float(x > 0))
        relaxed = ap_of_one(
            scores, query, labels, lambda x: float(g(torch.tensor(x, dtype=torch.float64), temperature))
        )
        assert math.isclose(found.exact[query], exact, abs_tol=1e-10)
        assert math.isclose(found.per_query[query], abs(relaxed - exact), abs_tol=1e-10)
    assert math.isclose(found.mean, float(found.per_query.mean()))


def test_ap_error_falls_with_the_temperature_and_is_zero_for_exact_ranks():
    embeddings, labels = clusters()
    errors = [ap_error(embeddings, labels, Sigmoid(t)).mean for t in (0.1, 0.01, 0.001)]
    assert errors[0] > errors[1] > errors[2]
    assert ap_error(embeddings, labels, Exact()).mean == 0
    assert ap_error(embeddings, labels, Blackbox(margin=0.0)).mean == 0


@pytest.mark.parametrize("loss", [fr.SmoothAP(0.05), fr.FastAP(bins=8), fr.QuantizedAP(bins=11), fr.BlackboxAP()])
def test_ap_error_of_a_loss_is_what_the_loss_says(loss):
    embeddings, labels = clusters()
    found = ap_error(embeddings, labels, loss)
    assert torch.allclose(1 - found.predicted.mean(), loss(embeddings, labels), atol=1e-5)


def test_ap_error_leaves_singletons_out_and_does_not_depend_on_blocks(monkeypatch):
    embeddings, labels = clusters()
    labels[0], labels[7] = 100, 101
    whole = ap_error(embeddings, labels, Sigmoid(0.05))
    assert len(whole.exact) == len(labels) - 2
    monkeypatch.setattr("frontrank.evaluation.diagnostics._SCORES", 7 * len(labels))
    assert torch.allclose(ap_error(embeddings, labels, Sigmoid(0.05)).predicted, whole.predicted, atol=1e-6)


def test_ap_error_refuses_what_is_no_ap():
    embeddings, labels = clusters()
    refusal(lambda: ap_error(embeddings, labels, fr.PNP()), "approximation")
    refusal(lambda: ap_error(embeddings, labels, 0.01), "approximation", error=InputTypeError)
    refusal(lambda: ap_error(embeddings, torch.arange(len(labels)), Sigmoid()), "labels")


def test_minibatch_map_is_too_high_for_small_batches_and_right_for_the_whole():
    embeddings, labels = clusters(classes=40, per_class=6, spread=1.5)
    found = minibatch_map(embeddings, labels, [16, 64, 240], per_class=6, batches=8)
    assert found.dataset == fr.evaluate(embeddings, labels)["mAP"]
    assert found.mean[0] > found.mean[1] > found.mean[2]
    assert math.isclose(found.mean[2], found.dataset, abs_tol=1e-9)  # a batch of all items
    assert found.std[2] < 1e-9 < found.std[0]
    assert found == minibatch_map(embeddings, labels, [16, 64, 240], per_class=6, batches=8)
    assert found != minibatch_map(embeddings, labels, [16, 64, 240], per_class=6, batches=8, seed=1)
    assert found.mean[0] > minibatch_map(embeddings, labels, [16], per_class=None, batches=8).mean[0]


def test_minibatch_map_is_of_the_batches_that_have_a_positive():
    embeddings, labels = clusters()
    found = minibatch_map(embeddings, labels, [4, 60], per_class=None, batches=20)
    random, order = np.random.default_rng(0), [np.arange(5 * i, 5 * i + 5) for i in range(12)]
    drawn = [_batch(random, order, 60, 4, None) for _ in range(20)]
    maps = [fr.evaluate(embeddings[rows], labels[rows])["mAP"] for rows in drawn if len(set(labels[rows].tolist())) < 4]
    assert 2 < len(maps) < 20
    assert found.used == (len(maps), 20)
    assert math.isclose(found.mean[0], fmean(maps), abs_tol=1e-6)
    assert math.isclose(found.std[0], stdev(maps), abs_tol=1e-6)
    assert math.isclose(found.mean[1], found.dataset, abs_tol=1e-9)  # no item is drawn twice
    found = minibatch_map(torch.randn(3, 4), [0, 0, 1], [2], per_class=None, batches=2, seed=3)
    assert (found.used, found.std) == ((1,), (0.0,))  # one batch has no deviation


def test_batches_are_drawn_as_asked():
    batch = _batch(np.random.default_rng(0), [np.arange(5 * i, 5 * i + 5) for i in range(8)], 40, 12, 4)
    assert len(set(batch)) == 12
    assert sorted(np.bincount(batch // 5, minlength=8)) == [0, 0, 0, 0, 0, 4, 4, 4]


@pytest.mark.parametrize("options", [{"batch_sizes": [1]}, {"batch_sizes": [61]}, {"batches": 1}, {"per_class": 1}])
def test_minibatch_map_refuses(options):
    with pytest.raises(InputError, match=next(iter(options))):
        minibatch_map(*clusters(), **{"batch_sizes": [8], **options})


def test_minibatch_map_without_any_positive():
    with pytest.raises(InputError, match="no batch of"):
        minibatch_map(torch.randn(60, 4), [*range(59), 0], [2], per_class=None, batches=2, seed=1)
