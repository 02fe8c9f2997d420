"""Losses of graded relevance, beside their references; sums of losses."""

import math

import pytest
import torch

import frontrank as fr
from frontrank.errors import InputError, InputTypeError
from frontrank.ranking import (
    NDCG,
    AveragePrecision,
    Bins,
    Blackbox,
    Exact,
    HierarchicalAP,
    MeanAveragePrecisionAtR,
    Ranks,
    RecallAtK,
    Sigmoid,
    SupRank,
    list_slopes,
)
from tests.cases import random_embeddings, random_mask, value_and_gradients
from tests.reference import graded
from tests.reference.lists import lists_of_batch, mean_over_queries


def levels(n, seed):
    """Labels of three levels, finest first, nested: up to 8 classes in 4 in 2."""
    fine = torch.randint(8, (n,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([fine, fine // 2, fine // 4], 1)


def hierarchy():
    return random_embeddings(23, 1), {"labels": levels(23, 2)}


def hierarchy_in_gallery():
    return random_embeddings(7, 3), {
        "labels": levels(7, 4),
        "ref_emb": random_embeddings(19, 5),
        "ref_labels": levels(19, 6),
    }


def hierarchy_and_candidates():
    return random_embeddings(15, 7), {"labels": levels(15, 8), "candidates": random_mask(15, 15, 0.7, 9)}


def labels_that_are_not_nested():
    labels = torch.randint(3, (12, 2), generator=torch.Generator().manual_seed(10))
    return random_embeddings(12, 11), {"labels": labels}


def grades_as_numbers():
    grades = torch.randint(4, (9, 14), generator=torch.Generator().manual_seed(12)) / 2
    return random_embeddings(9, 13), {"relevant": grades, "ref_emb": random_embeddings(14, 14)}


BATCHES = [hierarchy, hierarchy_in_gallery, hierarchy_and_candidates, labels_that_are_not_nested, grades_as_numbers]
LOSSES = {
    "SmoothNDCG": (lambda: fr.SmoothNDCG(temperature=0.1), lambda one: graded.ndcg(one, 0.1)),
    "HierarchicalAP": (lambda: fr.HierarchicalAP(temperature=0.1), lambda one: graded.hierarchical_ap(one, 0.1)),
    "alpha 2": (lambda: fr.HierarchicalAP(0.1, alpha=2.0), lambda one: graded.hierarchical_ap(one, 0.1, 2.0)),
}


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.__name__)
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_those_of_the_reference(name, batch):
    build, of_list = LOSSES[name]
    embeddings, more = batch()
    expected = value_and_gradients(
        lambda **arguments: mean_over_queries(of_list, lists_of_batch(**arguments)), embeddings, more
    )
    for ours, reference in zip(value_and_gradients(build(), embeddings, more), expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-12)


def exact_ndcg(one):
    return graded.ndcg(one._replace(positive=one.positive * 1e6, negative=one.negative * 1e6), 1.0)


def exact_hierarchical_ap(one):
    return graded.hierarchical_ap(one._replace(positive=one.positive * 1e6, negative=one.negative * 1e6), 1.0)


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.__name__)
@pytest.mark.parametrize("relaxation", [Exact(), Blackbox(margin=0.0), Sigmoid(1e-7)], ids=repr)
@pytest.mark.parametrize(("metric", "of_list"), [(NDCG(), exact_ndcg), (HierarchicalAP(), exact_hierarchical_ap)])
def test_every_relaxation_comes_to_the_same_metric(metric, of_list, relaxation, batch):
    embeddings, more = batch()
    expected = mean_over_queries(of_list, lists_of_batch(embeddings, **more))
    value = fr.RankLoss(metric, relaxation)(embeddings, **more)
    assert float(value) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("metric", [NDCG(), HierarchicalAP(), RecallAtK(), MeanAveragePrecisionAtR()], ids=repr)
def test_bins_are_exact_where_each_centre_has_one_item(metric):
    generator = torch.Generator().manual_seed(5)
    order = torch.stack([torch.randperm(13, generator=generator) for _ in range(4)])
    scores = (1 - order / 6).double()
    grades = torch.randint(4, (4, 13), generator=generator).double()
    expected = fr.RankLoss(metric, Exact()).of_scores(scores, grades)
    torch.testing.assert_close(fr.RankLoss(metric, Bins(12)).of_scores(scores, grades), expected)


@pytest.mark.parametrize("relaxation", [Sigmoid(0.1), SupRank(0.1, rho=2.0, delta=0.1), Bins(7)], ids=repr)
@pytest.mark.parametrize(
    "metric", [NDCG(), HierarchicalAP(), RecallAtK((1, 3)), MeanAveragePrecisionAtR(), AveragePrecision()], ids=repr
)
def test_gradients_are_those_of_the_value(metric, relaxation):
    generator = torch.Generator().manual_seed(3)
    scores = torch.rand(4, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    grades = torch.randint(4, (4, 12), generator=generator).double()
    loss = fr.RankLoss(metric, relaxation)
    if isinstance(relaxation, SupRank):  # counted positives are a constant: compare where only negatives move
        positive = grades > (grades.amax(1, keepdim=True) - 1)
        grades = grades * positive
        value = loss.of_scores(scores, grades)
        gradient = torch.autograd.grad(value, scores)[0]
        moved = scores.detach().clone()
        for q, j in (~positive).nonzero()[:6].tolist():
            step = torch.zeros_like(moved)
            step[q, j] = 1e-7
            change = (loss.of_scores(moved + step, grades) - loss.of_scores(moved - step, grades)) / 2e-7
            assert float(gradient[q, j]) == pytest.approx(float(change), abs=1e-6)
        return
    assert torch.autograd.gradcheck(lambda x: loss.of_scores(x, grades), scores)


def test_lower_grades_are_relaxed_by_suprank_and_others_counted():
    scores = torch.tensor([[0.5, 0.52, 0.9]], dtype=torch.float64, requires_grad=True)
    loss = fr.RankLoss(HierarchicalAP(), SupRank())
    gradient = torch.autograd.grad(loss.of_scores(scores, torch.tensor([[3.0, 1.0, 3.0]])), scores)[0]
    assert gradient[0, 0] < 0 < gradient[0, 1]
    gradient = torch.autograd.grad(loss.of_scores(scores, torch.tensor([[1.0, 1.0, 2.0]])), scores)[0]
    assert gradient.abs().max() < 1e-12  # those of one grade are counted


def test_losses_of_two_grades_rank_by_the_finest_level():
    embeddings, more = hierarchy()
    for loss in (fr.SmoothAP(), fr.FastAP(), fr.BlackboxAP(), fr.RecallAtK(), fr.QuantizedAP(balance_classes=True)):
        assert torch.equal(loss(embeddings, more["labels"]), loss(embeddings, more["labels"][:, 0]))
    grades = torch.randint(3, (23, 23), generator=torch.Generator().manual_seed(4)).double()
    assert torch.equal(fr.SmoothAP()(embeddings, relevant=grades), fr.SmoothAP()(embeddings, relevant=grades > 0))


def test_levels_of_0_and_1_are_not_one_hot():
    embeddings = random_embeddings(8, 1)
    for rows in ([[0, 0, 0], [1, 1, 1]], [[1, 0, 0], [0, 1, 0]], [[0, 0, 0], [0, 0, 0]]):
        labels = torch.tensor(rows).repeat_interleave(4, 0)
        expected = fr.HierarchicalAP()(embeddings, labels + torch.tensor([5, 6, 7]))
        assert torch.equal(fr.HierarchicalAP()(embeddings, labels), expected)


@pytest.mark.parametrize("build", [fr.SmoothNDCG, fr.HierarchicalAP, lambda: fr.HierarchicalAP(alpha=5.0)])
def test_grades_of_any_size_have_a_gradient(build):
    embeddings, grades = random_embeddings(8, 1, dtype=torch.float32), torch.zeros(8, 8)
    grades[:4, :4] = 1
    expected = value_and_gradients(build(), embeddings, {"relevant": grades})
    grades[:2] *= 1e-10
    for ours, ones in zip(value_and_gradients(build(), embeddings, {"relevant": grades}), expected, strict=True):
        torch.testing.assert_close(ours, ones)  # a query whose positives are alike
    with pytest.raises(InputError, match="relevant"):
        fr.SmoothNDCG()(embeddings, relevant=grades * 130)


def test_whole_numbers_are_grades():
    embeddings, labels = random_embeddings(8, 1), levels(8, 2)
    shared = (labels[:, None] == labels[None]).sum(2)
    for loss in (fr.SmoothNDCG(), fr.HierarchicalAP()):
        torch.testing.assert_close(loss(embeddings, relevant=shared), loss(embeddings, labels))
    assert torch.equal(fr.SmoothAP()(embeddings, relevant=shared), fr.SmoothAP()(embeddings, relevant=shared > 0))


@pytest.mark.parametrize("settings", [(0.01, 0.0, 0.0), (0.01, 5.0, 3.0), (0.1, 1.0, 0.0)])
def test_settings_of_suprank(settings):
    embeddings, more = random_embeddings(12, 1), {"labels": torch.arange(12) // 3}
    of_list = lambda one: graded.sup_ap(one, *settings)  # noqa: E731
    expected = value_and_gradients(lambda **own: mean_over_queries(of_list, lists_of_batch(**own)), embeddings, more)
    for ours, reference in zip(value_and_gradients(fr.SupAP(*settings), embeddings, more), expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-12)


def test_slopes_have_no_denormal_numbers():
    place = torch.arange(0.0, 150.0)[None]
    ranks = Ranks(torch.zeros_like(place), place, torch.ones_like(place).bool())
    slopes = list_slopes(RecallAtK((1,)), ranks)[1].before_neg[0]
    assert slopes[:60].all()
    assert slopes[slopes != 0].abs().min() > 1e-30


def test_one_level_is_as_labels_without_levels():
    embeddings, more = hierarchy()
    fine = more["labels"][:, 0]
    for loss in (fr.HierarchicalAP(0.1), fr.SmoothNDCG(0.1), fr.SmoothAP(0.1)):
        torch.testing.assert_close(loss(embeddings, fine[:, None]), loss(embeddings, fine), rtol=1e-12, atol=0)


def test_perfect_orders_cost_nothing():
    labels = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1]])
    angles = torch.tensor([0.0, 0.1, 0.5, 0.6, 3.0, 3.1], dtype=torch.float64)
    embeddings = torch.stack([angles.cos(), angles.sin()], 1)
    for loss in (fr.HierarchicalAP(), fr.SmoothNDCG()):
        assert float(loss(embeddings, labels)) == pytest.approx(0, abs=1e-3)


def test_a_query_in_its_own_list_as_the_authors_of_recall_at_k_have_it():
    labels = torch.arange(16).repeat_interleave(4)
    embeddings = torch.nn.functional.one_hot(labels).double()
    ours, theirs = fr.RecallAtK()(embeddings, labels), fr.RecallAtK(include_query=True)(embeddings, labels)
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    for value, place in ((ours, 2.0), (theirs, 2.5)):  # equal scores: each counts half
        recalls = [min(k, 3 * sigmoid(k - place)) / min(k, 3) for k in (1, 2, 4, 8, 16)]
        assert float(value) == pytest.approx(1 - sum(recalls) / 5, abs=1e-6)
    assert float(theirs) == pytest.approx(0.21, abs=0.005)


def test_sums_of_losses():
    embeddings, more = random_embeddings(12, 1, dtype=torch.float64), {"labels": torch.arange(12) // 3}
    a, b = fr.SmoothAP(0.1), fr.PairMargin()
    expected = [
        0.9 * x + 0.1 * y
        for x, y in zip(*(value_and_gradients(loss, embeddings, more) for loss in (a, b)), strict=True)
    ]
    for loss in (
        fr.CombinedLoss([(0.9, a), (0.1, b)]),
        0.9 * a + 0.1 * b,
        a * 0.9 + 0.1 * b,
        0.5 * (1.8 * a + 0.2 * b),
        sum([a * 0.9, b / 10]),
        a - (0.1 * a - 0.1 * b),
    ):
        for ours, reference in zip(value_and_gradients(loss, embeddings, more), expected, strict=True):
            torch.testing.assert_close(ours, reference)
        assert loss.last == {"queries_used": 12, "queries_skipped": 0}
    scores, relevant = embeddings @ embeddings.T, torch.eye(12).bool()
    torch.testing.assert_close(
        (a + b).of_scores(scores, relevant), a.of_scores(scores, relevant) + b.of_scores(scores, relevant)
    )
    roadmap = fr.ROADMAP()(embeddings, **more)
    torch.testing.assert_close(roadmap, (0.9 * fr.SupAP() + 0.1 * fr.PairMargin())(embeddings, **more))


@pytest.mark.parametrize(
    ("error", "name", "call"),
    [
        (InputError, "relevant", lambda x: fr.SmoothNDCG()(x, relevant=torch.full((4, 4), -1.0))),
        (InputError, "relevant", lambda x: fr.SmoothNDCG()(x, relevant=torch.ones(4, 3))),
        (InputError, "relevant", lambda x: fr.HierarchicalAP()(torch.randn(9, 2), relevant=torch.rand(9, 9))),
        (
            InputError,
            "ref_labels",
            lambda x: fr.SmoothNDCG()(x, torch.ones(4, 2).long(), ref_emb=x, ref_labels=torch.ones(4, 3).long()),
        ),
        (InputError, "labels", lambda x: fr.SmoothNDCG()(x, torch.ones(4, 0).long())),
        (InputError, "ks", lambda x: fr.RecallAtK(ks=())),
        (InputError, "ks", lambda x: fr.RecallAtK(ks=(0,))),
        (InputError, "rank_temperature", lambda x: fr.RecallAtK(rank_temperature=0.0)),
        (InputError, "rho", lambda x: fr.SupAP(rho=-1.0)),
        (InputError, "alpha", lambda x: fr.HierarchicalAP(alpha=-1.0)),
        (InputError, "losses", lambda x: fr.CombinedLoss([])),
        (InputTypeError, "losses", lambda x: fr.CombinedLoss([fr.SmoothAP()])),
        (InputTypeError, "ks", lambda x: fr.RecallAtK(ks=5)),
        (InputError, "weight", lambda x: fr.CombinedLoss([(math.nan, fr.SmoothAP())])),
        (InputError, "calibration", lambda x: fr.ROADMAP(calibration=2.0)),
    ],
)
def test_wrong_arguments(error, name, call):
    with pytest.raises(error, match=name):
        call(torch.randn(4, 3))
