"""Dtypes, autocast, no_grad and repeated backward."""

import pytest
import torch

import frontrank as fr
from tests.cases import BATCHES, BY_NAME, NAMES, many_positives, random_embeddings, random_labels, value_and_gradients

HALVES = [torch.float16, torch.bfloat16]
LABELS = random_labels([5, 3, 4], 1)


def embeddings(dtype):
    return random_embeddings(12, 2, dim=8).to(dtype).requires_grad_()


@pytest.mark.parametrize("name", NAMES)
def test_dtypes(name):
    """Halves are computed in float32: exact for the rounded numbers that were given. Autocast changes nothing."""
    for dtype in (*HALVES, torch.float32, torch.float64):
        x, cast = embeddings(dtype), embeddings(dtype)
        value = BY_NAME[name].build()(x, LABELS)
        value.backward()
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert x.grad.dtype == dtype
        wide = x.detach().double().requires_grad_()
        expected = BY_NAME[name].build()(wide, LABELS)
        expected.backward()
        torch.testing.assert_close(value.double(), expected, rtol=2e-5, atol=2e-5)
        eps = torch.finfo(dtype).eps if dtype in HALVES else 1e-4
        torch.testing.assert_close(x.grad.double(), wide.grad, rtol=eps, atol=1e-4 * wide.grad.abs().max().item())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again = BY_NAME[name].build()(cast, LABELS)
        again.backward()
        assert torch.equal(again, value), dtype
        assert torch.equal(cast.grad, x.grad), dtype


@pytest.mark.parametrize("name", [name for name in NAMES if "balanced" not in name])
def test_dtypes_of_given_scores(name):
    for dtype in HALVES:
        scores = torch.rand(4, 12).to(dtype).requires_grad_()
        relevant = torch.rand(4, 12) < 0.5
        value = BY_NAME[name].build().of_scores(scores, relevant)
        value.backward()
        assert value.dtype == torch.float32
        assert scores.grad.dtype == dtype
        expected = BY_NAME[name].build().of_scores(scores.detach().double(), relevant)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)


def test_autocast_of_a_whole_step():
    layer = torch.nn.Linear(8, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(embeddings(torch.float32))
        loss = fr.PNP()(out, LABELS)
    loss.backward()
    assert out.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert torch.isfinite(layer.weight.grad).all()
    assert (layer.weight.grad != 0).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_classifier_dtypes(dtype):
    scores = torch.randn(9, 3).to(dtype).requires_grad_()
    targets = torch.rand(9, 3) < 0.5
    targets[0] = True
    loss = fr.ClassifierAP(lam=9.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(scores, targets)
    value.backward()
    expected = fr.ClassifierAP(lam=9.0)(scores.detach().double(), targets)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert scores.grad.dtype == dtype
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_no_grad(name):
    for batch in (BATCHES[0], BATCHES[2], BATCHES[7]):
        x, more = batch()
        leaves = x.clone().requires_grad_()
        loss = BY_NAME[name].build()
        with torch.no_grad():
            value = loss(leaves, **more)
        assert not value.requires_grad
        assert not loss(x, **more).requires_grad
        with torch.inference_mode():
            inferred = loss(leaves, **more)
        with_gradient = loss(leaves, **more)
        assert with_gradient.requires_grad
        torch.testing.assert_close(value, with_gradient.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(inferred.clone(), value, rtol=1e-12, atol=1e-12)


def test_no_grad_does_no_work_for_gradients():
    """A metric that cannot give slopes is never asked for them."""

    class NoSlopes:
        def pair_loss(self, before_pos, before_neg):
            return before_neg

        def pair_slopes(self, before_pos, before_neg):
            raise AssertionError("asked for slopes")

    loss = fr.RankLoss(NoSlopes(), fr.ranking.Sigmoid())
    x = embeddings(torch.float32)
    with torch.no_grad():
        assert torch.isfinite(loss(x, LABELS))
    assert torch.isfinite(loss(x.detach(), LABELS))
    with pytest.raises(AssertionError, match="slopes"):
        loss(x, LABELS)


@pytest.mark.parametrize("name", NAMES)
def test_backward_twice(name):
    for batch in (BATCHES[0], BATCHES[2], BATCHES[7]):
        x, more = batch()
        x.requires_grad_()
        value = BY_NAME[name].build()(x, **more)
        [first] = torch.autograd.grad(value, x, retain_graph=True)
        copy = first.clone()
        [second] = torch.autograd.grad(value, x)
        assert torch.equal(first, copy)
        assert torch.equal(second, copy)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_linear_in_the_incoming_one(name):
    x, more = many_positives()
    loss = BY_NAME[name].build()
    _, gradient = value_and_gradients(loss, x, more)
    _, scaled = value_and_gradients(lambda **a: -1000 * loss(**a), x, more)
    torch.testing.assert_close(scaled, -1000 * gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_calls_do_not_depend_on_earlier_ones(name):
    x, more = many_positives()
    loss = BY_NAME[name].build()
    first = value_and_gradients(loss, x, more)
    other, other_more = BATCHES[2]()
    value_and_gradients(loss, other, other_more)
    for a, b in zip(first, value_and_gradients(loss, x, more), strict=True):
        assert torch.equal(a, b)
