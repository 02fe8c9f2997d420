"""Every loss has the value and the gradient of its reference, however the work is cut into blocks."""

from functools import partial

import pytest
import torch

from frontrank.ranking import tiling
from frontrank.ranking.tiles import ACCELERATOR, CPU
from tests.cases import (
    BATCHES,
    BY_NAME,
    CASES,
    NAMES,
    gallery,
    many_positives,
    random_embeddings,
    random_labels,
    unequal_classes,
    value_and_gradients,
)
from tests.reference.lists import lists_of_scores, mean_over_queries

TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def assert_same(actual, expected, *where):
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, **TIGHT, msg=lambda message: f"{where}: {message}")


@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradient(name, rows_per_block):
    expected = {}
    for batch in BATCHES:
        embeddings, more = batch()
        expected[batch] = value_and_gradients(BY_NAME[name].reference, embeddings, more)
        assert_same(value_and_gradients(BY_NAME[name].build(), embeddings, more), expected[batch], batch)
    for place, batch in enumerate(BATCHES):
        rows = (1, 4)[place % 2]
        rows_per_block(rows)
        embeddings, more = batch()
        assert_same(value_and_gradients(BY_NAME[name].build(), embeddings, more), expected[batch], batch, rows)


@pytest.mark.parametrize("name", [case.name for case in CASES if case.on_ranks])
def test_query_among_its_own_positives(name, rows_per_block):
    for batch in (unequal_classes, gallery):
        embeddings, more = batch()
        expected = value_and_gradients(BY_NAME[name].reference, embeddings, {**more, "include_query": True})
        for rows in (512, 3):
            rows_per_block(rows)
            loss = BY_NAME[name].build(include_query=True)
            assert_same(value_and_gradients(loss, embeddings, more), expected, batch, rows)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_not_zero(name):
    """The comparisons above would mean little if there were nothing to compare."""
    for batch in (unequal_classes, many_positives):
        embeddings, more = batch()
        _, gradient = value_and_gradients(BY_NAME[name].build(), embeddings, more)
        assert (gradient != 0).any(1).sum() > len(embeddings) / 2


@pytest.mark.parametrize("name", [case.name for case in CASES if not case.balanced])
def test_given_scores(name, rows_per_block):
    scores = torch.rand(6, 20, dtype=torch.float64).mul(2).sub(1).requires_grad_()
    positives = torch.rand(6, 20) < torch.tensor([0.0, 0.1, 0.2, 0.5, 0.6, 1.0])[:, None]
    case = BY_NAME[name]
    for listed in (None, torch.rand(6, 20) < 0.8):
        reference = mean_over_queries(case.of_list, lists_of_scores(scores, positives, listed))
        expected = reference, *torch.autograd.grad(reference, scores, retain_graph=True)
        for rows in (512, 2):
            rows_per_block(rows)
            value = case.build().of_scores(scores, positives, listed)
            assert_same((value, *torch.autograd.grad(value, scores, retain_graph=True)), expected, listed, rows)


@pytest.mark.parametrize("name", [case.name for case in CASES if case.smooth])
def test_gradcheck(name):
    """The gradient of the reference, which ours is compared with above, is by autograd too; in one random direction."""
    embeddings, more = unequal_classes()
    loss = partial(BY_NAME[name].build(), **more)
    assert torch.autograd.gradcheck(loss, [embeddings.requires_grad_()], eps=1e-6, atol=1e-7, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_of_either_side_alone(name):
    embeddings, more = BATCHES[2]()
    both = value_and_gradients(BY_NAME[name].build(), embeddings, more)
    queries = embeddings.clone().requires_grad_()
    items = more["ref_emb"].clone().requires_grad_()
    loss = BY_NAME[name].build()
    assert_same(torch.autograd.grad(loss(queries, **more), queries), both[1:2])
    assert_same(torch.autograd.grad(loss(embeddings, **{**more, "ref_emb": items}), items), both[2:])


@pytest.mark.parametrize("name", ["PNP-D_q", "FastAP-euclidean", "QuantizedAP-balanced", "BlackboxAP"])
@pytest.mark.parametrize("sizes", [[1] * 5 + [2, 3] * 80 + [9] * 20, [60, 20] * 8])
def test_any_tiling_gives_the_same(name, sizes):
    """More items than a block holds on a CPU, and fewer than on an accelerator."""
    labels = random_labels(sizes, 1)
    embeddings, more = random_embeddings(len(labels), 2), {"labels": labels}
    assert CPU.rows < len(labels) < ACCELERATOR.rows
    in_blocks = value_and_gradients(BY_NAME[name].build(), embeddings, more)
    with tiling("cuda"):
        assert_same(in_blocks, value_and_gradients(BY_NAME[name].build(), embeddings, more))
