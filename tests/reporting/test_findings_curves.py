"""Curves over all queries, against one list and one pair at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import frontrank as fr
from frontrank.ranking import LabelRelevance, Vectors
from frontrank.reporting import findings as curves
from frontrank.reporting.findings import CELLS, densities, rank_curves, recall_curve, score_counts
from tests.reference import evaluation
from tests.reference import reporting as reference

LABELS = [3, 1, 2, 1, 2, 7, 1, 2, 3, 2, 9, 1, 2, 3, 2]  # 7 and 9 are alone
ITEM_LABELS = [1, 2, 2, 4, 1, 3, 4, 2, 1, 1, 7, 4]


def rows_of(count, seed=0, ties=True, dim=4):
    rng = np.random.default_rng(seed)
    return (rng.integers(0, 3, (count, dim)) + np.eye(dim)[0] if ties else rng.normal(size=(count, dim))).astype("f4")


def curves_of(rows, labels, gallery=None, gallery_labels=None):
    codes = torch.tensor(labels), torch.tensor(labels if gallery is None else gallery_labels)
    items = None if gallery is None else Vectors("gallery", gallery)
    return rank_curves(Vectors("rows", rows), items, LabelRelevance(*codes, own=gallery is None), None, False)


def counts_of(rows, labels, gallery=None, gallery_labels=None):
    codes = torch.tensor(labels), torch.tensor(labels if gallery is None else gallery_labels)
    items = None if gallery is None else Vectors("gallery", gallery)
    return score_counts(Vectors("rows", rows), items, codes, show=False)


def lists_of(rows, labels, gallery=None, gallery_labels=None):
    relevant = evaluation.same_label(labels, gallery_labels)
    return evaluation.ranked_lists(rows.tolist(), None if gallery is None else gallery.tolist(), relevant)


@pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
@pytest.mark.parametrize("separate", [False, True], ids=["own gallery", "gallery"])
def test_rank_curves_are_those_of_sorted_lists(separate, ties):
    other = (rows_of(12, 1, ties), ITEM_LABELS) if separate else ()
    rows = rows_of(15, 0, ties)
    recall, precision = curves_of(rows, LABELS, *other)
    lists = lists_of(rows, LABELS, *other)
    assert precision.x.tolist() == pytest.approx([i / 100 for i in range(101)])
    np.testing.assert_allclose(precision.y, reference.mean_interpolated_precision(lists), rtol=1e-12)
    assert recall.x.tolist() == list(range(1, len(lists[0]) + 1))
    np.testing.assert_allclose(
        recall.y, [np.mean([any(one[:k]) for one in lists]) for k in range(1, 1 + len(lists[0]))]
    )


@given(st.integers(0, 10**6), st.integers(2, 14), st.integers(1, 4))
def test_curves_agree_with_evaluate(seed, count, classes):
    rng = np.random.default_rng(seed)
    labels = [0, 0, *rng.integers(0, classes, count - 2).tolist()]
    rows = rows_of(count, seed)
    recall, precision = curves_of(rows, labels)
    names = [f"R@{int(k)}" for k in recall.x]
    report = fr.evaluate(rows, labels, metrics=[*names, "mAP"])
    assert recall.y.tolist() == pytest.approx([report[name] for name in names], abs=1e-15)
    assert (np.diff(recall.y) >= 0).all()
    assert (np.diff(precision.y) <= 1e-15).all()
    assert precision.y.mean() >= report["mAP"] - 0.02  # interpolated: above, but for the steps of the levels


def test_interpolated_precision_by_hand():
    # right, wrong, right, wrong, wrong, right: precisions 1, 2/3, 1/2 at recalls 1/3, 2/3, 1
    rows = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3], [1.0, 0.4], [1.0, 0.5], [1.0, 0.6]], dtype="f4")
    gallery, labels = rows[1:], [1, 0, 1, 0, 0, 1]
    _, precision = curves_of(rows[:1], [1], gallery, labels)
    assert precision.y[[0, 33, 34, 66, 67, 100]].tolist() == pytest.approx([1, 1, 2 / 3, 2 / 3, 1 / 2, 1 / 2])


@pytest.mark.parametrize(("length", "last"), [(1, 1), (7, 7), (100, 100), (999, 999), (50_000, 1000)])
def test_recall_curve_ends_with_the_list_or_at_1000(length, last):
    curve = recall_curve(np.array([1.0, 5.0, np.inf]), length)
    assert curve.x[0] == 1
    assert curve.x[-1] == last
    assert (np.diff(curve.x) > 0).all()
    assert {k for k in (1, 10, 100, 1000) if k <= last} <= set(curve.x.tolist())
    assert (curve.x == curve.x.round()).all()
    assert curve.y[-1] == pytest.approx(2 / 3 if last >= 5 else 1 / 3)


@pytest.mark.parametrize("tile", [2, 5, 2048])
@pytest.mark.parametrize("separate", [False, True], ids=["own gallery", "gallery"])
def test_all_pairs_are_counted_where_their_scores_are(separate, tile, monkeypatch):
    monkeypatch.setattr(curves, "_TILE", tile)
    other = (rows_of(12, 1, ties=False), ITEM_LABELS) if separate else (None, None)
    rows = rows_of(15, 0, ties=False)
    for found, scores in zip(
        counts_of(rows, LABELS, *other), reference.pair_scores(rows, other[0], LABELS, other[1]), strict=True
    ):
        expected = np.histogram(scores, CELLS, (-1, 1))[0]
        assert found.tolist() == expected.tolist()


def test_scores_at_the_ends_are_counted():
    rows = np.array([[1.0, 0.0], [3.0, 0.0], [-1.0, 0.0]], dtype="f4")
    positive, negative = counts_of(rows, [0, 0, 1])
    assert np.flatnonzero(positive).tolist() == [CELLS - 1]
    assert np.flatnonzero(negative).tolist() == [0]
    assert negative[0] == 2


def test_copies_whose_score_is_rounded_beyond_1_are_counted():
    rows = np.repeat(rows_of(300, 0, ties=False, dim=7), 2, 0)
    unit = torch.nn.functional.normalize(torch.from_numpy(rows))
    assert (unit @ unit.T).max() > 1  # what is tested here happens
    positive, _ = counts_of(rows, np.repeat(np.arange(300), 2).tolist())
    assert positive.sum() == positive[-1] == 300


@given(st.lists(st.integers(0, CELLS - 1), min_size=1, max_size=30), st.lists(st.integers(0, CELLS - 1), max_size=30))
def test_densities_have_area_1_and_cover_all(right, wrong):
    counts = [np.bincount(np.array(of, dtype=int), minlength=CELLS).astype(float) for of in (right, wrong)]
    for curve, cells, count in zip(densities(*counts), (right, wrong), counts, strict=True):
        width = curve.x[1] - curve.x[0] if len(curve.x) > 1 else 2 / CELLS
        assert len(curve.x) <= 80
        assert (curve.y * width).sum() == pytest.approx(1 if cells else 0)
        if cells:  # within half a bar of where the scores are
            mean = -1 + 2 * (np.mean(cells) + 0.5) / CELLS
            assert (curve.x * curve.y * width).sum() == pytest.approx(mean, abs=width)
        assert count.sum() == len(cells)


def test_densities_by_hand():
    positive, negative = np.zeros(CELLS), np.zeros(CELLS)
    positive[[500, 501]] = 1, 3
    negative[503] = 2
    right, wrong = densities(positive, negative)
    assert right.x.tolist() == pytest.approx([0.001, 0.003, 0.005, 0.007])
    assert right.y.tolist() == pytest.approx([125, 375, 0, 0])  # a quarter in a bar 0.002 wide
    assert wrong.y.tolist() == pytest.approx([0, 0, 0, 500])
