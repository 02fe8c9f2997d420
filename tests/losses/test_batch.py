"""One table of wrong input: each raises an error of the package, in one line that names the argument."""

import math

import pytest
import torch

import frontrank as fr
from frontrank.ranking import AveragePrecision, FunctionMetric, Sigmoid

X = torch.randn(4, 3)
LABELS = torch.tensor([0, 0, 1, 1])
MASK = LABELS[:, None] == LABELS
REF = torch.randn(6, 3)
REF_LABELS = torch.tensor([0, 0, 0, 1, 1, 1])
BALANCED = fr.QuantizedAP(balance_classes=True)


def with_bad(rows, value):
    x = X.clone()
    x[rows, 1] = value
    return x


def call(*args, **kwargs):
    return lambda: fr.SmoothAP()(*args, **kwargs)


def of_scores(*args, **kwargs):
    return lambda: fr.FastAP().of_scores(*args, **kwargs)


def classify(*args, **kwargs):
    return lambda: fr.ClassifierAP()(*args, **kwargs)


def own_metric(function):
    return lambda: fr.RankLoss(FunctionMetric(function), Sigmoid())(X.clone().requires_grad_(), LABELS)


INPUTS = {
    "embeddings: a list": ("embeddings", TypeError, call([[1.0, 2.0]], LABELS)),
    "embeddings: whole numbers": ("embeddings", TypeError, call(X.long(), LABELS)),
    "embeddings: a vector": ("embeddings", ValueError, call(X[0], LABELS)),
    "embeddings: no dimension": ("embeddings", ValueError, call(X[:, :0], LABELS)),
    "embeddings: NaN": ("embeddings", ValueError, call(with_bad([2], math.nan), LABELS)),
    "labels: missing": ("labels", ValueError, call(X)),
    "labels: too few": ("labels", ValueError, call(X, LABELS[:3])),
    "labels: floats": ("labels", TypeError, call(X, LABELS.float())),
    "labels: one-hot": ("labels", ValueError, call(X, torch.eye(4).long())),
    "ref_emb: without ref_labels": ("ref_labels", ValueError, call(X, LABELS, ref_emb=REF)),
    "ref_labels: without ref_emb": ("ref_emb", ValueError, call(X, LABELS, ref_labels=REF_LABELS)),
    "ref_emb: other dimension": ("ref_emb", ValueError, call(X, LABELS, ref_emb=REF[:, :2], ref_labels=REF_LABELS)),
    "ref_emb: NaN": ("ref_emb", ValueError, call(X, LABELS, ref_emb=REF * math.nan, ref_labels=REF_LABELS)),
    "ref_emb: float64": ("ref_emb", TypeError, call(X, LABELS, ref_emb=REF.double(), ref_labels=REF_LABELS)),
    "ref_labels: too few": ("ref_labels", ValueError, call(X, LABELS, ref_emb=REF, ref_labels=REF_LABELS[:5])),
    "relevant: whole numbers below 0": ("relevant", ValueError, call(X, relevant=MASK.long() - 1)),
    "relevant: too few columns": ("relevant", ValueError, call(X, relevant=MASK[:, :3])),
    "relevant: of the batch, not of ref_emb": ("relevant", ValueError, call(X, ref_emb=REF, relevant=MASK)),
    "relevant: unequal rows": ("relevant", (TypeError, ValueError), call(X, relevant=[[True], [True, False]])),
    "candidates: whole numbers": ("candidates", TypeError, call(X, LABELS, candidates=MASK.long())),
    "candidates: other shape": ("candidates", ValueError, call(X, LABELS, candidates=MASK[:, :3])),
    "balanced: without labels": ("labels", ValueError, lambda: BALANCED(X, relevant=MASK)),
    "balanced: of_scores": ("labels", ValueError, lambda: BALANCED.of_scores(X @ X.T, MASK)),
    "scores: a list": ("scores", TypeError, of_scores([[1.0]], MASK)),
    "scores: a vector": ("scores", ValueError, of_scores(X[0], MASK)),
    "scores: NaN": ("scores", ValueError, of_scores(X @ X.T * math.nan, MASK)),
    "scores: relevant of other shape": ("relevant", ValueError, of_scores(X @ X.T, MASK[:, :3])),
    "scores: candidates of other shape": ("candidates", ValueError, of_scores(X @ X.T, MASK, MASK[:2])),
    "classifier: scores whole numbers": ("scores", TypeError, classify(X.long(), X > 0)),
    "classifier: scores NaN": ("scores", ValueError, classify(with_bad([1], math.nan), X > 0)),
    "classifier: targets of other shape": ("targets", ValueError, classify(X, X[:, :2] > 0)),
    "classifier: targets are class numbers": ("targets", ValueError, classify(X, LABELS)),
    "classifier: targets with a 2": ("targets", TypeError, classify(X, torch.full((4, 3), 2))),
}

NUMBERS = {
    "alpha": (fr.PNP, [0.99, 0, -1, math.nan, math.inf, "4", None]),
    "b": (fr.PNP, [0, -1.0, math.nan, math.inf, "2", None]),
    "temperature": (fr.PNP, [0, -0.01, math.nan, math.inf, "0.01", None]),
    "lam": (fr.BlackboxAP, [0, -1.0, math.nan, math.inf, "4", None]),
    "margin": (fr.BlackboxRecall, [-0.1, math.nan, math.inf, "0", None]),
    "across_classes": (fr.ClassifierAP, [-0.1, 1.1, math.nan, "1", None]),
    "memory": (fr.ClassifierAP, [-1, 1.5, "7", None]),
    "bins": (fr.FastAP, [0, -1, 10.0, "10", None, True]),
    "variant": (fr.PNP, ["D_x", "d_q", None, 3]),
    "weighting": (fr.BlackboxRecall, ["exp", None]),
    "distance": (fr.FastAP, ["cosine", None]),
}
SETTINGS = {
    "ClassifierAP lam": ("lam", ValueError, lambda: fr.ClassifierAP(lam=0.0)),
    "ClassifierAP margin": ("margin", ValueError, lambda: fr.ClassifierAP(margin=-1.0)),
    "QuantizedAP bins": ("bins", ValueError, lambda: fr.QuantizedAP(bins=1)),
    "metric: a function": ("metric", TypeError, lambda: fr.RankLoss(lambda p, n: n, Sigmoid())),
    "metric: a class": ("metric", TypeError, lambda: fr.RankLoss(AveragePrecision, Sigmoid())),
    "relaxation: a word": ("relaxation", TypeError, lambda: fr.RankLoss(AveragePrecision(), "sigmoid")),
    "relaxation: a class": ("relaxation", TypeError, lambda: fr.RankLoss(AveragePrecision(), Sigmoid)),
    "FunctionMetric: one number": ("metric", ValueError, own_metric(lambda p, n: n.sum())),
    "FunctionMetric: no gradient": ("metric", ValueError, own_metric(lambda p, n: n.detach())),
}


def check_error(name, kind, act):
    with pytest.raises(fr.FrontrankError) as caught:
        act()
    message = str(caught.value)
    assert isinstance(caught.value, kind)
    assert name in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize("what", [*INPUTS, *SETTINGS])
def test_wrong_input(what):
    check_error(*{**INPUTS, **SETTINGS}[what])


@pytest.mark.parametrize("name", NUMBERS)
def test_wrong_settings(name):
    build, values = NUMBERS[name]
    for value in values:
        check_error(name, (ValueError, TypeError), lambda value=value: build(**{name: value}))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("rows", [[2], [0, 3]])
def test_rows_that_are_not_finite_are_named(bad, rows):
    with pytest.raises(fr.FrontrankError, match=rf"in {len(rows)} rows? \(first: {str(rows).replace('[', '.')[:-1]}"):
        fr.PNP()(with_bad(rows, bad), LABELS)
    with pytest.raises(fr.FrontrankError, match=r"ref_emb of shape \(4, 3\)"):
        fr.PNP()(X, LABELS, ref_emb=with_bad(rows, bad), ref_labels=LABELS)


def test_right_input_passes():
    """The table's ingredients are fine by themselves."""
    for loss in (fr.SmoothAP(), BALANCED):
        assert torch.isfinite(loss(X, LABELS, ref_emb=REF, ref_labels=REF_LABELS))
        assert torch.isfinite(loss(X, LABELS, relevant=MASK, candidates=~MASK | MASK))
    assert torch.isfinite(fr.FastAP().of_scores(X @ X.T, MASK))
    assert torch.isfinite(fr.ClassifierAP()(X, X > -9))
    assert torch.isfinite(fr.SmoothAP()(X, relevant=MASK.tolist()))
    assert fr.SmoothAP()(X, LABELS.tolist()) == fr.SmoothAP()(X, LABELS)
    assert torch.isfinite(fr.SmoothAP()(X.half(), LABELS, ref_emb=REF, ref_labels=REF_LABELS))
