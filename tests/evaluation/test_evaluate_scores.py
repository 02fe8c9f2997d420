"""Evaluation of given scores against sorted lists."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import frontrank as fr
from frontrank.errors import InputError, InputTypeError
from tests.reference import evaluation as reference

NAMES = reference.NAMES
LABELS = [3, 1, 2, 1, 2, 7, 1, 2, 3, 2]
ITEM_LABELS = [1, 2, 2, 4, 1, 3, 1]


def scores_of(rows, columns, seed=0):
    """With many ties."""
    return torch.randint(-4, 5, (rows, columns), generator=torch.Generator().manual_seed(seed)).float() / 4


def assert_is(report, scores, relevant, out=None):
    out = out or [set()] * len(scores)
    lists = [reference.in_order(*of) for of in zip(torch.as_tensor(scores).tolist(), relevant, out, strict=True)]
    for name, values in reference.values(lists).items():
        np.testing.assert_allclose(report.per_query[name], values, rtol=1e-12, atol=0, err_msg=name)
        assert report[name] == pytest.approx(np.nanmean(values), rel=1e-12)
    assert report.positives.tolist() == [sum(one) for one in lists]
    assert report.gallery_size == len(scores[0])


@pytest.fixture(params=[1 << 24, 25, 1])
def at_once(request, monkeypatch):
    monkeypatch.setattr(sys.modules["frontrank.evaluation.evaluate"], "_SCORES", request.param)


KINDS = {
    "float32": lambda x: x,
    "float64": torch.Tensor.double,
    "float16": torch.Tensor.half,
    "bfloat16": torch.Tensor.bfloat16,
    "array": torch.Tensor.numpy,
    "list": torch.Tensor.tolist,
    "requires grad": lambda x: x.clone().requires_grad_(),
    "transposed": lambda x: x.T.contiguous().T,
    "read only": lambda x: np.broadcast_to(x.numpy(), (1, *x.shape))[0],
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", KINDS)
def test_labels(kind):
    scores = scores_of(10, 10)
    own = [{q} for q in range(10)]
    report = fr.evaluate_scores(KINDS[kind](scores), LABELS, metrics=NAMES)
    assert_is(report, scores, reference.same_label(LABELS), own)
    scores = scores_of(10, 7)
    report = fr.evaluate_scores(KINDS[kind](scores), LABELS, gallery_labels=np.array(ITEM_LABELS), metrics=NAMES)
    assert_is(report, scores, reference.same_label(LABELS, ITEM_LABELS))


@pytest.mark.parametrize("columns", [7, 10])
@given(data=st.data())
def test_relevant_and_ignored(columns, data):
    """Any lists, of any lengths; with `relevant` a square matrix has nothing special about its diagonal."""
    some = st.frozensets(st.integers(0, columns - 1))
    relevant, ignored = (data.draw(st.lists(some, min_size=10, max_size=10)) for _ in range(2))
    kept = [a - b for a, b in zip(relevant, ignored, strict=True)]
    if not any(kept):
        return
    scores = scores_of(10, columns, data.draw(st.integers(0, 99)))
    lists = [[list(one) for one in of] for of in (relevant, ignored)]
    assert_is(fr.evaluate_scores(scores, relevant=lists[0], metrics=NAMES), scores, relevant)
    report = fr.evaluate_scores(scores, relevant=lists[0], ignored=lists[1], metrics=NAMES)
    assert_is(report, scores, kept, ignored)
    matrices = [torch.tensor([[j in one for j in range(columns)] for one in of]) for of in (relevant, ignored)]
    report = fr.evaluate_scores(scores, relevant=matrices[0], ignored=matrices[1], metrics=NAMES)
    assert_is(report, scores, kept, ignored)


def test_by_hand():
    """Scores 3- 2+ 2- 1+: the tied negative comes first, - - + +; without item 0 it is - + +."""
    report = fr.evaluate_scores([[3.0, 2.0, 2.0, 1.0]], relevant=[[1, 3]], metrics=NAMES)
    assert report["mAP"] == pytest.approx((1 / 3 + 2 / 4) / 2)
    assert report["MRR"] == pytest.approx(1 / 3)
    assert (report["R@1"], report["P@3"], report["R-precision"], report["mAP@R"]) == (0, pytest.approx(1 / 3), 0, 0)
    report = fr.evaluate_scores([[3.0, 2.0, 2.0, 1.0]], relevant=[[1, 3]], ignored=[[0]], metrics=NAMES)
    assert report["mAP"] == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_the_same_as_the_embeddings_whose_cosines_they_are():
    rows, items = torch.randn(10, 6, dtype=torch.float64), torch.randn(7, 6, dtype=torch.float64)
    unit, unit_items = (x / x.norm(dim=1, keepdim=True) for x in (rows, items))
    of_scores = fr.evaluate_scores(unit @ unit_items.T, LABELS, gallery_labels=ITEM_LABELS, metrics=NAMES)
    of_rows = fr.evaluate(rows, LABELS, gallery=items, gallery_labels=ITEM_LABELS, metrics=NAMES)
    for name in NAMES:
        assert of_scores.per_query[name].tobytes() == of_rows.per_query[name].tobytes()
    alone, own = fr.evaluate_scores(unit @ unit.T, LABELS), fr.evaluate(rows, LABELS)
    assert alone.metrics == own.metrics


def test_what_is_not_listed_may_be_anything():
    scores = scores_of(10, 10)
    plain = fr.evaluate_scores(scores, LABELS, metrics=NAMES)
    for value in (math.nan, math.inf, -math.inf, 100.0):
        filled = scores.clone().fill_diagonal_(value)
        assert fr.evaluate_scores(filled, LABELS, metrics=NAMES).metrics == plain.metrics
        filled = torch.cat([scores, torch.full((10, 1), value)], 1)
        report = fr.evaluate_scores(
            filled, LABELS, gallery_labels=[*LABELS, 3], ignored=[[q, 10] for q in range(10)], metrics=NAMES
        )
        assert report.metrics == plain.metrics


BAD = torch.zeros(10, 10)
BAD[7, 2] = math.nan  # query 5 has no positive, so this is the seventh that is looked at
WRONG = {
    "no matrix": ((None, LABELS), {}, InputTypeError, "scores"),
    "one row": ((torch.zeros(10), LABELS), {}, InputError, "scores"),
    "whole": ((torch.zeros(10, 10, dtype=torch.long), LABELS), {}, InputTypeError, "scores"),
    "no labels": ((torch.zeros(10, 10),), {}, InputError, "labels"),
    "not square": ((torch.zeros(10, 7), LABELS), {}, InputError, "gallery_labels"),
    "few labels": ((torch.zeros(10, 10), LABELS[:-1]), {}, InputError, "labels has 9"),
    "not a number": ((BAD, LABELS), {}, InputError, "scores .*row 7"),
    "groups": ((torch.zeros(10, 10), LABELS), {"metrics": ["NMI"]}, InputError, "NMI"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(name):
    args, more, error, message = WRONG[name]
    with pytest.raises(error, match=message) as caught:
        fr.evaluate_scores(*args, **more)
    assert "\n" not in str(caught.value)
