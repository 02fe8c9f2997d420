"""The shares of the queries that processes take add up to the loss, and each has its share of the products."""

from functools import partial

import pytest
import torch

import frontrank as fr
from frontrank.losses.rank_loss import is_sum_over_queries
from tests.cases import (
    BY_NAME,
    NAMES,
    gallery,
    many_positives,
    random_embeddings,
    relevant_and_candidates,
    unequal_classes,
    value_and_gradients,
)
from tests.products import Products, in_shares

LEVELS = torch.stack([torch.arange(24) // 3, torch.arange(24) // 8], 1)


def graded():
    return random_embeddings(24, 4), {"labels": LEVELS}


@pytest.mark.parametrize("batch", [unequal_classes, many_positives, gallery, relevant_and_candidates, graded])
@pytest.mark.parametrize("name", NAMES)
def test_shares_add_up_to_the_loss(name, batch):
    embeddings, more = batch()
    loss = BY_NAME[name].build()
    expected = value_and_gradients(loss, embeddings, more)
    used = loss.last
    shares = in_shares(3, lambda: value_and_gradients(loss, embeddings, more))
    assert loss.last == used
    for parts, whole in zip(zip(*shares, strict=True), expected, strict=True):
        torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", [fr.PNP, fr.FastAP, fr.BlackboxAP], ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_each_share_has_its_part_of_the_products(loss, parts):
    """Scores and gradients of queries and items; if each pair of a batch counts for both, one product less."""

    def products(labels, more):
        with Products() as counted:
            loss()(embeddings[: len(labels)], labels, **more)
        return counted.count

    embeddings, items = random_embeddings(1200, 1).requires_grad_(), torch.arange(1200)
    memory = {"ref_emb": random_embeddings(300, 2), "ref_labels": torch.arange(300) // 5}
    cases = [
        (items // 4, {}),
        (torch.where(items % 3 > 0, items // 6, items + 1200), {}),  # a third has no positive
        (items[:400] // 20, {}),
        (items[:240] // 4, memory),
    ]
    for labels, more in cases:
        shares = in_shares(parts, partial(products, labels, more))
        assert max(shares) < 1.03 * products(labels, more) / parts


def test_what_is_not_a_sum_over_queries_has_no_shares():
    class More(fr.PNP):
        def forward(self, embeddings, labels):
            return super().forward(embeddings, labels) + embeddings.norm()

    assert is_sum_over_queries(fr.ROADMAP())
    assert not is_sum_over_queries(More())
    assert not is_sum_over_queries(0.5 * fr.PNP() + More())
    assert not is_sum_over_queries(torch.nn.functional.mse_loss)
