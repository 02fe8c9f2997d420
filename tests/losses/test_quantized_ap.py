import pytest
import torch

import frontrank as fr
from tests.cases import random_embeddings, random_labels, value_and_gradients

YES, NO = True, False


def test_by_hand():
    """Centres 1, 0, -1; the positive at 0.5 is shared by two bins, the negative at 0 is in the second.

    Aware of ties, (1 + c+ + 2 cum c+) / (1 + c + 2 cum c) is 1.5 / 1.5 in the first bin and 2.5 / 3.5 in the second.
    """
    for tie_aware, ap in ((False, 0.5 / 0.5 * 0.5 + 1 / 2 * 0.5), (True, 1.5 / 1.5 * 0.5 + 2.5 / 3.5 * 0.5)):
        loss = fr.QuantizedAP(bins=3, tie_aware=tie_aware)
        value = loss.of_scores(torch.tensor([[0.5, 0.0]]), torch.tensor([[YES, NO]]))
        assert value.item() == pytest.approx(1 - ap)


def test_all_in_one_bin_by_hand():
    scores, relevant = torch.zeros(1, 4), torch.tensor([[YES, NO, NO, YES]])
    assert fr.QuantizedAP(bins=3).of_scores(scores, relevant).item() == pytest.approx(1 - 2 / 4)
    tie_aware = fr.QuantizedAP(bins=3, tie_aware=True).of_scores(scores, relevant)
    assert tie_aware.item() == pytest.approx(1 - (1 + 2) / (1 + 4))


def test_scores_outside_saturate_in_the_end_bins():
    inside = torch.tensor([[-1.0, 1.0, 0.3, 1.0, -1.0]])
    outside = torch.tensor([[-7.0, 1.5, 0.3, 90.0, -1.1]], requires_grad=True)
    relevant = torch.tensor([[YES, NO, YES, YES, NO]])
    loss = fr.QuantizedAP(bins=6).of_scores(outside, relevant)
    torch.testing.assert_close(loss, fr.QuantizedAP(bins=6).of_scores(inside, relevant))
    loss.backward()
    assert (outside.grad[0, [0, 1, 3, 4]] == 0).all()
    assert outside.grad[0, 2] != 0


@pytest.mark.parametrize("tie_aware", [False, True])
def test_class_balance_is_the_mean_of_class_means(tie_aware):
    """Queries of one class at a time, against the whole batch as gallery."""
    labels = random_labels([2, 3, 7, 1], 1)
    embeddings = random_embeddings(13, 2)
    loss = fr.QuantizedAP(bins=9, tie_aware=tie_aware)
    means = []
    for label in labels.unique():
        queries = labels == label
        if queries.sum() > 1:
            others = ~torch.eye(13, dtype=torch.bool)[queries]
            means.append(
                loss(embeddings[queries], labels[queries], ref_emb=embeddings, ref_labels=labels, candidates=others)
            )
    balanced = fr.QuantizedAP(bins=9, tie_aware=tie_aware, balance_classes=True)(embeddings, labels)
    torch.testing.assert_close(balanced, torch.stack(means).mean(), rtol=1e-12, atol=1e-12)


def test_class_balance_changes_nothing_for_equal_classes():
    embeddings, more = random_embeddings(12, 3), {"labels": random_labels([4, 4, 4], 4)}
    plain = value_and_gradients(fr.QuantizedAP(), embeddings, more)
    balanced = value_and_gradients(fr.QuantizedAP(balance_classes=True), embeddings, more)
    for a, b in zip(plain, balanced, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_class_balance_counts_only_queries_that_are_used():
    """A relevant matrix leaves one query of class 0 without positives: the rest of its class weighs all the same."""
    embeddings = random_embeddings(5, 5)
    labels = torch.tensor([0, 0, 0, 1, 1])
    relevant = labels[:, None] == labels
    relevant[0] = False
    loss = fr.QuantizedAP(bins=9)
    zero = loss(embeddings[:3], ref_emb=embeddings, relevant=relevant[:3], candidates=~torch.eye(5, dtype=bool)[:3])
    one = loss(embeddings[3:], ref_emb=embeddings, relevant=relevant[3:], candidates=~torch.eye(5, dtype=bool)[3:])
    balanced = fr.QuantizedAP(bins=9, balance_classes=True)(embeddings, labels, relevant=relevant)
    torch.testing.assert_close(balanced, (zero + one) / 2, rtol=1e-12, atol=1e-12)
