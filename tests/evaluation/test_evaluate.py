"""Whole evaluations against lists sorted without rounding, and against arithmetic by hand."""

import math

import numpy as np
import pytest
import torch

import frontrank as fr
from tests.exact_paths import SMALL, set_sizes
from tests.reference import evaluation as reference

NAMES = reference.NAMES
LABELS = [3, 1, 2, 1, 2, 7, 1, 2, 3, 2, 9, 1, 2, 3, 2]  # 7 and 9 are alone
ITEM_LABELS = [1, 2, 2, 4, 1, 3, 4, 2, 1, 1, 7, 4]


def rows_of(count, seed=0, ties=True, dim=4):
    generator = torch.Generator().manual_seed(seed)
    if not ties:
        return torch.randn(count, dim, generator=generator)
    return torch.randint(0, 3, (count, dim), generator=generator).float() + torch.eye(dim)[0]


X, Z = rows_of(15), rows_of(12, 1)


def assert_is(report, lists, names=NAMES):
    """The report is that of the ranked lists of all queries."""
    expected = reference.values(lists, names)
    assert list(report) == list(report.per_query) == list(names)
    for name in names:
        np.testing.assert_allclose(report.per_query[name], expected[name], rtol=1e-12, atol=0, err_msg=name)
        assert report[name] == pytest.approx(np.nanmean(expected[name]), rel=1e-12), name
    assert report.positives.tolist() == [sum(one) for one in lists]


def lists_of(queries, gallery, relevant, ignored=None):
    queries, gallery = (None if x is None else torch.as_tensor(x).double().tolist() for x in (queries, gallery))
    return reference.ranked_lists(queries, gallery, relevant, ignored)


LABEL_KINDS = {
    "ints": lambda y: list(y),
    "negative": lambda y: [-x for x in y],
    "uint64 array": lambda y: np.array(y, dtype=np.uint64) + np.uint64(2**63),
    "tensor": lambda y: torch.tensor(y),
    "text": lambda y: [f"klasse {x} ü" for x in y],
    "bytes": lambda y: [f"{x}".encode() for x in y],
    "objects": lambda y: np.array([f"{x}" for x in y], dtype=object),
    "large numbers": lambda y: [2**53 + x for x in y],
    "read only": lambda y: np.broadcast_to(np.array(y), (1, len(y)))[0],
}


@pytest.mark.parametrize("kind", LABEL_KINDS)
def test_labels_of_all_kinds(kind):
    of = LABEL_KINDS[kind]
    assert_is(fr.evaluate(X, of(LABELS), metrics=NAMES), lists_of(X, None, reference.same_label(LABELS)))
    report = fr.evaluate(X, of(LABELS), gallery=Z, gallery_labels=of(ITEM_LABELS), metrics=NAMES)
    assert_is(report, lists_of(X, Z, reference.same_label(LABELS, ITEM_LABELS)))


RELEVANT = [{1, 4}, {0}, set(), {2, 3, 9, 11}, {5}, {6, 7}, {0, 1, 2}, {3}, {4}, set(), {5, 8}, {1}, {2}, {7, 10}, {9}]
IGNORED = [{0}, {1, 2}, {3, 5}, {2}, {4, 5}, {1, 8, 9}, {1}, {0, 2}, {4}, {3}, {6, 11}, {10}, {3, 4}, {5, 6}, {8}]
OWN_IGNORED = [one | {q} if q % 2 else one for q, one in enumerate(IGNORED)]  # oneself may be named, or not


def matrix(sets, items):
    return np.array([[j in one for j in range(items)] for one in sets])


LIST_KINDS = {
    "array": matrix,
    "tensor": lambda sets, items: torch.tensor(matrix(sets, items)),
    "index lists": lambda sets, items: [list(one) for one in sets],
    "index tensors": lambda sets, items: tuple(torch.tensor(sorted(one)[::-1]) for one in sets),
    "array of lists": lambda sets, items: np.array([*map(sorted, sets), None], dtype=object)[:-1],
}


@pytest.mark.parametrize("kind", LIST_KINDS)
def test_relevant_and_ignored_of_all_kinds(kind):
    of = LIST_KINDS[kind]
    kept = [a - b for a, b in zip(RELEVANT, IGNORED, strict=True)]
    both = {"relevant": of(RELEVANT, 12), "ignored": of(IGNORED, 12), "metrics": NAMES}
    assert_is(fr.evaluate(X, gallery=Z, **both), lists_of(X, Z, kept, IGNORED))
    del both["ignored"]
    assert_is(fr.evaluate(X, gallery=Z, **both), lists_of(X, Z, RELEVANT))
    own = [one - {q} for q, one in enumerate(RELEVANT)]  # oneself is never relevant
    assert_is(fr.evaluate(X, relevant=of(RELEVANT, 15), metrics=NAMES), lists_of(X, None, own))
    kept = [a - b for a, b in zip(own, OWN_IGNORED, strict=True)]
    both = {"relevant": of(RELEVANT, 15), "ignored": of(OWN_IGNORED, 15), "metrics": NAMES}
    assert_is(fr.evaluate(X, **both), lists_of(X, None, kept, OWN_IGNORED))


@pytest.mark.parametrize("few", [40, 0])
def test_ignored_beside_labels(few, monkeypatch):
    set_sizes(monkeypatch, **SMALL, few=few)
    kept = [a - b for a, b in zip(reference.same_label(LABELS), OWN_IGNORED, strict=True)]
    ignored = [sorted(one) for one in OWN_IGNORED]
    assert_is(fr.evaluate(X, LABELS, ignored=ignored, metrics=NAMES), lists_of(X, None, kept, OWN_IGNORED))
    kept = [a - b for a, b in zip(reference.same_label(LABELS, ITEM_LABELS), IGNORED, strict=True)]
    report = fr.evaluate(
        X, LABELS, gallery=Z, gallery_labels=ITEM_LABELS, ignored=[sorted(one) for one in IGNORED], metrics=NAMES
    )
    assert_is(report, lists_of(X, Z, kept, IGNORED))


@pytest.mark.parametrize(
    "kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64, "array", "list"], ids=str
)
@pytest.mark.parametrize("ties", [True, False])
def test_embeddings_of_all_kinds(kind, ties):
    rows, items = rows_of(15, ties=ties), rows_of(12, 1, ties)
    given = {"array": torch.Tensor.numpy, "list": torch.Tensor.tolist}.get(kind, lambda x: x.to(kind))
    rows_given, items_given = given(rows), given(items)
    report = fr.evaluate(rows_given, LABELS, metrics=NAMES)
    assert_is(report, lists_of(rows_given, None, reference.same_label(LABELS)))
    report = fr.evaluate(rows_given, LABELS, gallery=items_given, gallery_labels=ITEM_LABELS, metrics=NAMES)
    assert_is(report, lists_of(rows_given, items_given, reference.same_label(LABELS, ITEM_LABELS)))


@pytest.mark.parametrize("ties", [True, False])
def test_large_classes(ties):
    """45 and 55 items in a class: more than are compared one by one."""
    rows, labels = rows_of(100, 2, ties), [int(i % 20 < 9) for i in range(100)]
    assert_is(fr.evaluate(rows, labels, metrics=NAMES), lists_of(rows, None, reference.same_label(labels)))


GALLERY = torch.tensor([[4.0, 3.0], [4.0, -3.0], [1.0, 0.0], [0.0, 1.0], [3.0, 4.0], [-1.0, 0.0]])
OF_ITEMS = ["a", "b", "c", "a", "b", "a"]


def test_by_hand():
    """Three queries in six items, with a tie and a query without a positive.

    (1, 0), "a": cosines .8+ .8- 1- 0+ .6- -1+, so the list is - - + - + +, the tied negative first
    (0, 1), "z": no positive
    (0, -1), "b": cosines -.6- .6+ 0- -1- -.8+ 0-, so the list is + - - - + -
    """
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    report = fr.evaluate(queries, ["a", "z", "b"], gallery=GALLERY, gallery_labels=OF_ITEMS, metrics=NAMES)
    nan = math.nan
    by_hand = {
        "R@1": [0, 0, 1],
        "R@10": [1, 0, 1],
        "P@3": [1 / 3, 0, 1 / 3],
        "P@1000": [3 / 1000, 0, 2 / 1000],
        "mAP": [(1 / 3 + 2 / 5 + 3 / 6) / 3, nan, (1 / 1 + 2 / 5) / 2],
        "mAP@R": [(1 / 3) / 3, nan, (1 / 1) / 2],
        "R-precision": [1 / 3, nan, 1 / 2],
        "MRR": [1 / 3, 0, 1],
    }
    for name, values in by_hand.items():
        assert report.per_query[name].tolist() == pytest.approx(values, nan_ok=True), name
        defined = [x for x in values if not math.isnan(x)]
        assert report[name] == pytest.approx(sum(defined) / len(defined)), name
    assert report.positives.tolist() == [3, 0, 2]
    assert (report.queries, report.without_positive, report.gallery_size) == (3, 1, 6)


def test_metrics_asked_for():
    default = fr.evaluate(X, LABELS)
    assert list(default) == ["R@1", "R@10", "R@100", "R@1000", "mAP", "mAP@R", "R-precision"]
    assert fr.evaluate(X, LABELS, metrics="mAP").metrics == {"mAP": default["mAP"]}
    report = fr.evaluate(X, LABELS, metrics=["dists@inter", "R@3", "R@3", "NMI", "R@2"])
    assert sorted(report) == ["NMI", "R@2", "R@3", "dists@inter"]
    only = fr.evaluate(X, LABELS, metrics=["NMI"])
    assert (list(only), only.queries, only["NMI"]) == (["NMI"], 15, report["NMI"])
