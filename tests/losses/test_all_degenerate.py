"""One table of degenerate batches over every loss: never NaN, never infinite, in value or gradient."""

import itertools
import math
import warnings

import pytest
import torch

import frontrank as fr
from frontrank.errors import FrontrankWarning
from frontrank.losses import registry
from frontrank.losses.registry import build, presets
from frontrank.ranking import AveragePrecision, Bins, Blackbox, Exact, PenalizedNegatives, Recall, Sigmoid

LOSSES = {
    **{  # all of the registry, as frontrank compare names them
        preset: lambda settings=settings: build(settings["name"], {k: v for k, v in settings.items() if k != "name"})
        for preset, settings in presets().items()
        if settings["name"] in registry.LOSSES
    },
    "PNP-from_derivative": lambda: fr.PNP.from_derivative(lambda r: 1 / (1 + r)),
    "PNP-include_query": lambda: fr.PNP(include_query=True),
    "SmoothAP-include_query": lambda: fr.SmoothAP(include_query=True),
    "sigmoid-recall": lambda: fr.RankLoss(Recall(), Sigmoid()),
    "FastAP-euclidean": lambda: fr.FastAP(distance="euclidean"),
    "QuantizedAP-tie_aware": lambda: fr.QuantizedAP(tie_aware=True),
    "QuantizedAP-balanced": lambda: fr.QuantizedAP(balance_classes=True),
    "bins-AP": lambda: fr.RankLoss(AveragePrecision(), Bins()),
    "bins-PNP": lambda: fr.RankLoss(PenalizedNegatives(), Bins()),
    "blackbox-PNP": lambda: fr.RankLoss(PenalizedNegatives(), Blackbox()),
    "exact-recall": lambda: fr.RankLoss(Recall(), Exact()),
}
# by their formulas some lose a little where all positives come first: relaxed places, margins
ZERO = [name for name in LOSSES if name not in ("RecallAtK", "SmoothNDCG", "PairMargin", "ROADMAP")]
E = torch.eye(8)
TWO_CLASSES = torch.arange(8) // 4


def run(loss, embeddings, labels, **more):
    """Value and gradients, checked to be finite."""
    leaves = [embeddings.detach().clone().requires_grad_()]
    if "ref_emb" in more:
        leaves.append(more.pop("ref_emb").detach().clone().requires_grad_())
        more["ref_emb"] = leaves[1]
    value = loss(leaves[0], labels, **more)
    value.backward()
    assert value.shape == ()
    assert torch.isfinite(value), value
    for leaf in leaves:
        assert leaf.grad is not None
        assert leaf.grad.shape == leaf.shape
        assert torch.isfinite(leaf.grad).all(), leaf.grad
    return value.item(), [leaf.grad for leaf in leaves]


def all_true(rows, columns):
    return torch.ones(rows, columns, dtype=torch.bool)


ZEROS = torch.zeros(5, dtype=torch.long)
WITHOUT_POSITIVES = {
    "all labels differ": lambda: (torch.randn(6, 4), torch.arange(6), {}),
    "one item": lambda: (torch.randn(1, 4), torch.tensor([3]), {}),
    "no item": lambda: (torch.empty(0, 4), torch.empty(0, dtype=torch.long), {}),
    "empty reference set": lambda: (torch.randn(5, 4), ZEROS, {"ref_emb": torch.empty(0, 4), "ref_labels": ZEROS[:0]}),
    "no item against others": lambda: (
        torch.empty(0, 4),
        ZEROS[:0],
        {"ref_emb": torch.randn(5, 4), "ref_labels": ZEROS},
    ),
    "other labels of others": lambda: (
        torch.randn(5, 4),
        ZEROS,
        {"ref_emb": torch.randn(5, 4), "ref_labels": ZEROS + 1},
    ),
    "nothing relevant": lambda: (torch.randn(5, 4), torch.arange(5), {"relevant": ~all_true(5, 5)}),
    "only the query itself relevant": lambda: (torch.randn(5, 4), ZEROS, {"relevant": torch.eye(5, dtype=torch.bool)}),
    "no candidates": lambda: (torch.randn(6, 4), torch.arange(6) // 3, {"candidates": ~all_true(6, 6)}),
}
KEEPS_ITSELF = ("all labels differ", "one item", "only the query itself relevant")


@pytest.mark.parametrize("name", LOSSES)
def test_no_positive_at_all(name):
    for batch, draw in WITHOUT_POSITIVES.items():
        embeddings, labels, more = draw()
        loss = LOSSES[name]()
        if loss.include_query and batch in KEEPS_ITSELF:
            value, _ = run(loss, embeddings, labels, **more)  # its own positive, before everybody
            assert value < 0.05, batch
            assert loss.last == {"queries_used": len(embeddings), "queries_skipped": 0}, batch
            continue
        with pytest.warns(FrontrankWarning, match="positive"):
            value, gradients = run(loss, embeddings, labels, **more)
        assert value == 0, batch
        assert all((gradient == 0).all() for gradient in gradients), batch
        assert loss.last == {"queries_used": 0, "queries_skipped": len(embeddings)}, batch


@pytest.mark.parametrize("name", LOSSES)
def test_query_without_positive_is_skipped_and_counted(name):
    """A singleton is a negative of the others, but no query."""
    embeddings = torch.randn(7, 4)
    labels = torch.tensor([0, 0, 5, 1, 1, 1, 6])
    used = labels < 2
    loss = LOSSES[name]()
    if loss.include_query:
        run(loss, embeddings, labels)
        assert loss.last == {"queries_used": 7, "queries_skipped": 0}
        return
    value, _ = run(loss, embeddings, labels)
    assert loss.last == {"queries_used": 5, "queries_skipped": 2}
    more = {"ref_emb": embeddings, "ref_labels": labels, "candidates": ~torch.eye(7, dtype=torch.bool)[used]}
    expected, _ = run(LOSSES[name](), embeddings[used], labels[used], **more)
    assert value == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ZERO)
def test_all_one_class(name):
    """Nothing can stand before a positive but positives."""
    for size in (2, 5, 20):
        value, gradients = run(LOSSES[name](), torch.randn(size, 4), torch.zeros(size, dtype=torch.long))
        assert value == pytest.approx(0, abs=1e-6), size
        assert gradients[0].abs().max() < 1e-5, size


def orthogonal_pairs():
    """Each positive is opposite of its query, both negatives are at a right angle: the worst ranking."""
    return torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), torch.tensor([0, 0, 1, 1])


WORST = {
    "PNP-O": 2,
    "PNP-I_u": 3 * math.log(3),
    "PNP-I_b": (4 - math.log(5)) / 4,
    "PNP-D_s": math.log(3),
    "PNP-D_q": 1 - 3**-4,
    "PNP-from_derivative": math.log(3),
    "PNP-include_query": (1 - 3**-4) / 2,
    "SmoothAP": 2 / 3,
    "SmoothAP-include_query": 1 / 4,
    "sigmoid-recall": math.log(1 + math.log(3)),
    "FastAP": 2 / 3,
    "RankLoss": 2 / 3,
    "FastAP-euclidean": 2 / 3,
    "QuantizedAP": 2 / 3,
    "QuantizedAP-tie_aware": 1 - 2 / 6,
    "QuantizedAP-balanced": 2 / 3,
    "bins-AP": 2 / 3,
    "bins-PNP": 1 - 3**-4,
    "BlackboxRecall-log": math.log(3),
    "BlackboxRecall-loglog": math.log(1 + math.log(3)),
    "BlackboxAP": 2 / 3,
    "blackbox-PNP": 1 - 3**-4,
    "exact-recall": math.log(1 + math.log(3)),
}


@pytest.mark.parametrize("name", WORST)
def test_worst_ranking(name):
    value, _ = run(LOSSES[name](), *orthogonal_pairs())
    assert value == pytest.approx(WORST[name], abs=1e-6)


@pytest.mark.parametrize("name", ZERO)
def test_perfect_ranking(name):
    value, gradients = run(LOSSES[name](), E[:2].repeat_interleave(4, 0), TWO_CLASSES)
    assert value == pytest.approx(0, abs=1e-6)
    assert gradients[0].abs().max() < 1e-5


EQUAL_ROWS = {
    "all equal": lambda: torch.ones(8, 4),
    "each row twice": lambda: torch.randn(4, 4).repeat(2, 1),
    "duplicates within a class": lambda: torch.randn(4, 4).repeat_interleave(2, 0),
    "one row and its opposite": lambda: torch.ones(8, 4) * torch.tensor([1.0, -1.0]).repeat(4)[:, None],
    "one zero row": lambda: torch.randn(8, 4) * (torch.arange(8) != 3)[:, None],
    "a class of zero rows": lambda: torch.randn(8, 4) * TWO_CLASSES[:, None],
    "all rows zero": lambda: torch.zeros(8, 4),
    "one dimension": lambda: torch.randn(8, 1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_ties_and_zero_rows(name):
    for rows, draw in EQUAL_ROWS.items():
        value, _ = run(LOSSES[name](), draw(), TWO_CLASSES)
        assert value >= -1e-6, rows


@pytest.mark.parametrize(
    ("name", "worst"), [("BlackboxRecall-log", math.log(5)), ("BlackboxAP", 1 - (1 / 5 + 2 / 6 + 3 / 7) / 3)]
)
def test_collapsed_embedding_is_as_bad_as_can_be(name, worst):
    """Of equal scores the negatives come first, so all 4 stand before each of the 3 positives."""
    assert run(LOSSES[name](), torch.ones(8, 4), TWO_CLASSES)[0] == pytest.approx(worst)


@pytest.mark.parametrize("name", LOSSES)
def test_huge_and_tiny_norms(name):
    unit = torch.nn.functional.normalize(torch.randn(8, 4))
    expected, _ = run(LOSSES[name](), unit, TWO_CLASSES)
    of_all_sizes = torch.tensor([1e-38, 1.0, 1e38, 1e-30, 1e30, 1e-10, 1e10, 2.0])[:, None]
    for norm in (1e-38, 1e-30, 1e-19, 1e18, 1e30, 1e38, of_all_sizes):
        value, _ = run(LOSSES[name](), unit * norm, TWO_CLASSES)
        assert value == pytest.approx(expected, rel=1e-3, abs=1e-3), norm


@pytest.mark.parametrize("name", [name for name in LOSSES if "balanced" not in name])
def test_given_scores_of_any_finite_size(name):
    for positives, size in itertools.product((2, 20), (1.0, 1e30, 3e38)):
        scores = torch.linspace(-1, 1, 30).mul(size)[None, torch.randperm(30)].requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            value = LOSSES[name]().of_scores(scores, (torch.arange(30) < positives)[None])
        value.backward()
        assert torch.isfinite(value), (positives, size)
        assert torch.isfinite(scores.grad).all(), (positives, size)
