"""What a report shows, measured from embeddings: against slow loops over one list and one pair at a time."""

import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import frontrank as fr
from frontrank.evaluation.statistics import difference_over_classes
from frontrank.ranking import LabelRelevance, Vectors
from frontrank.reporting import findings as module
from frontrank.reporting.findings import (
    CELLS,
    choose_queries,
    list_order,
    lost_precision,
    measure_findings,
    place_on_map,
    principal_components,
    rank_curves,
    recall_curve,
    rotate_onto,
    score_counts,
)
from tests.errors import refusal
from tests.reference import evaluation
from tests.reference import reporting as reference
from tests.reporting.samples import table_of


def clusters(labels, noise=1.0, dim=8, seed=0):
    labels = np.asarray(labels)
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(labels.max() + 1, dim))[labels] + noise * rng.normal(size=(len(labels), dim))).astype("f4")


LABELS = np.repeat(np.arange(12), 5)
BEFORE, AFTER = clusters(LABELS, 1.5, seed=1), clusters(LABELS, 0.7, dim=5, seed=2)


def sorted_list(rows, query):
    """The other rows from the first place to the last, their scores, and which are right."""
    others = [row for row in range(len(rows)) if row != query]
    scores = [reference.cosine(rows[query].tolist(), rows[row].tolist()) for row in others]
    right = [bool(LABELS[row] == LABELS[query]) for row in others]
    order = reference.in_order(scores, right)
    return [others[i] for i in order], [scores[i] for i in order], [right[i] for i in order]


@pytest.fixture(scope="module")
def found():
    sides = [("before", "frozen", BEFORE), ("after", "trained", torch.from_numpy(AFTER))]
    with pytest.MonkeyPatch.context() as patch:
        for name, count in {"_FIRST": 6, "_PER_KIND": 3, "_COSTLY": 4, "_MAPPED": 40}.items():
            patch.setattr(module, name, count)
        return measure_findings(table_of(LABELS, LABELS // 3), sides, show=False)


def measure_one(table, rows):
    return measure_findings(table, [("after", "trained", rows)], show=False)


def shown(found):
    return [query for some in found.queries.values() for query in some]


def test_reports_are_those_of_evaluate(found):
    names = ["R@1", "R@10", "mAP", "mAP@R", "R-precision", "dists@intra", "dists@inter"]
    for side, rows in zip(found.sides, (BEFORE, AFTER), strict=True):
        expected = dict(fr.evaluate(rows, LABELS, metrics=names))
        by_level = fr.evaluate(rows, np.stack([LABELS, LABELS // 3], 1), metrics=["R@1", "mAP", "nDCG", "H-AP"])
        assert side.report.metrics == expected | dict(by_level)
        assert side.report.name == side.title
    assert [(side.name, side.title) for side in found.sides] == [("before", "frozen"), ("after", "trained")]
    assert found.change.names == ("before", "after")


def test_another_class_of_the_category_is_half_right(found):
    for query in shown(found):
        for image in (image for ranked in query.ranked for image in ranked.first):
            same = LABELS[image.row] // 3 == LABELS[query.row] // 3
            assert image.half == (same and not image.right)


def test_change_and_intervals_are_over_classes(found):
    before, after = (side.report.per_query["mAP"] for side in found.sides)
    assert found.change["mAP"][2:] == difference_over_classes(before, after, LABELS.astype(str))
    assert found.change.queries == 60
    assert "12 classes" in found.change.notes[0]
    rng = np.random.default_rng(5)
    for side in found.sides:
        assert list(side.intervals) == list(side.report.per_query)
        by_class = side.report.per_query["mAP"].reshape(12, 5).mean(1)  # classes of equal size
        means = by_class[rng.integers(12, size=(4000, 12))].mean(1)
        assert side.intervals["mAP"] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.02)


def test_curves_are_of_their_side(found):
    for side, rows in zip(found.sides, (BEFORE, AFTER), strict=True):
        lists = [sorted_list(rows, query)[2] for query in range(60)]
        np.testing.assert_allclose(side.precision_recall.y, reference.mean_interpolated_precision(lists))
        assert side.recall.y[0] == side.report["R@1"]
        scores = side.positive_scores, side.negative_scores
        means = [(curve.x * curve.y).sum() / curve.y.sum() for curve in scores]
        assert means == pytest.approx([np.mean(of) for of in reference.pair_scores(rows, None, LABELS, None)], abs=0.02)


def test_lists_of_queries_are_sorted_lists(found):
    lates = []
    for query in shown(found):
        for ranked, rows in zip(query.ranked, (BEFORE, AFTER), strict=True):
            listed, scores, hits = sorted_list(rows, query.row)
            assert query.positives == 4
            assert [image.row for image in ranked.first] == listed[:6]
            assert [image.place for image in ranked.first] == [1, 2, 3, 4, 5, 6]
            assert [image.right for image in ranked.first] == hits[:6]
            assert [image.score for image in ranked.first] == pytest.approx(scores[:6], abs=1e-6)
            assert ranked.average_precision == pytest.approx(float(reference.average_precision(hits)))
            costs = {place + 1: float(reference.cost(hits, place)) for place in range(59) if not hits[place]}
            for image in (*ranked.first, *ranked.costly):
                assert image.cost == pytest.approx(costs.get(image.place, 0.0), abs=1e-12)
                assert image.row == listed[image.place - 1]
            dearest = sorted((cost for cost in costs.values() if cost > 1e-12), reverse=True)[:4]
            assert [image.cost for image in ranked.costly] == pytest.approx(dearest)
            assert not any(image.right for image in ranked.costly)
            assert ranked.first_right == hits.index(True) + 1
            assert (ranked.late is None) == any(hits[:6])
            if ranked.late is not None:
                lates.append(ranked.late)
                assert (ranked.late.place, ranked.late.right) == (ranked.first_right, True)
                assert ranked.late.row == listed[ranked.first_right - 1]
    assert len(shown(found)) == 3 * len(found.queries) == 12
    assert lates


def test_queries_are_chosen_by_the_last_side(found):
    after = found.sides[1].report.per_query["mAP"]
    worst, typical = (found.queries[kind][0].ranked[1].average_precision for kind in ("worst", "typical"))
    assert (worst, typical) == (after.min(), pytest.approx(np.median(after), abs=0.05))
    precisions = [[of.average_precision for of in query.ranked] for query in found.queries["most improved"]]
    gains = [of[1] - of[0] for of in precisions]
    assert gains == sorted(gains, reverse=True)


def test_map_and_categories(found):
    assert len(found.mapped) == 40
    assert all(side.places.shape == (40, 2) for side in found.sides)
    assert any("40 of 60" in note and "t-SNE" in note for note in found.notes)
    assert [(of.name, of.classes, of.queries) for of in found.categories] == [(str(i), 3, 15) for i in range(4)]
    for category in found.categories:
        rows = int(category.name) == LABELS // 3
        for i, side in enumerate(found.sides):
            assert category.recall_at_1[i] == pytest.approx(side.report.per_query["R@1"][rows].mean())
            assert category.mean_ap[i] == pytest.approx(side.report.per_query["mAP"][rows].mean())


@pytest.mark.parametrize(("images", "last"), [(2, "R@1"), (11, "R@1"), (12, "R@10")])
def test_no_recall_of_a_whole_list(images, last):
    labels = np.zeros(images, dtype=int)
    found = measure_one(table_of(labels), clusters(labels))
    assert [name for name in found.sides[0].report if name.startswith("R@")][-1] == last
    assert (found.change, found.categories, "most improved" in found.queries) == (None, (), False)


def test_roles_say_who_searches_what():
    labels = ["a", "b", "a", "a", "b", "c", "", "d"]
    roles = ["query", "query", "gallery", "gallery", "gallery", "gallery", "distractor", "query"]
    rows = clusters(np.arange(8))
    found = measure_one(table_of(labels, roles=roles), rows)
    asking, searched = [0, 1, 7], [2, 3, 4, 5, 6]
    other = {"gallery": rows[searched], "gallery_labels": [labels[i] for i in searched]}
    names = ["R@1", "mAP", "mAP@R", "R-precision", "dists@intra", "dists@inter"]
    expected = fr.evaluate(rows[asking], [labels[i] for i in asking], **other, metrics=names)
    report = found.sides[0].report
    assert report.metrics == expected.metrics
    assert (report.queries, report.gallery_size) == (3, 5)
    by_row = {query.row: query for query in shown(found)}
    assert set(by_row) == {0, 1}
    assert sorted(image.row for image in by_row[0].ranked[0].first) == searched
    assert [image.right for image in by_row[0].ranked[0].first].count(True) == by_row[0].positives == 2
    assert any(note.startswith("1 of 3 queries") for note in found.notes)
    assert len(found.mapped) == 8


ODD = {
    "two images": ([0, 0], np.eye(3)[:2]),
    "one class": ([0] * 7, np.random.default_rng(0).normal(size=(7, 4))),
    "all alike": (LABELS, np.ones((60, 4))),
    "a class of two among single ones": ([0, 0, 1, 2, 3, 4], np.random.default_rng(0).normal(size=(6, 4))),
    "one dimension": ([0, 0, 1, 1], np.array([[1.0], [2.0], [-1.0], [3.0]])),
    "opposites": ([0, 0, 1, 1], np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])),
    "float64": ([0, 0, 1], np.random.default_rng(0).normal(size=(3, 2))),
}


@pytest.mark.parametrize(("labels", "rows"), ODD.values(), ids=ODD.keys())
def test_odd_tables_have_findings(labels, rows):
    rows = rows if len(labels) == 3 else rows.astype("f4")
    found = measure_findings(table_of(labels, labels), [("before", "", rows), ("after", "", rows)], show=False)
    curves = ("recall", "precision_recall", "positive_scores", "negative_scores")
    numbers = [
        *(value for side in found.sides for value in side.report.values()),
        *(side.places for side in found.sides),
        *(getattr(side, name).y for side in found.sides for name in curves),
        *(value for of in found.categories for value in (*of.recall_at_1, *of.mean_ap)),
    ]
    assert all(np.isfinite(value).all() for value in numbers)
    assert set(found.queries) <= {"best", "typical", "worst"}  # nothing improved
    assert found.queries["best"]
    assert found.change["mAP"].difference == 0


def test_ties_stand_against_the_model():
    found = measure_one(table_of([0, 0, 1, 1]), np.ones((4, 3), dtype="f4"))
    for query in shown(found):
        assert [image.right for image in query.ranked[0].first] == [False, False, True]
        assert query.ranked[0].average_precision == pytest.approx(1 / 3)
    assert found.sides[0].recall.y.tolist() == [0, 0, 1]


def test_categories_without_a_pair_are_left_out_and_blank_ones_named():
    labels, categories = [0, 0, 1, 1, 2, 3, 4, 4, 4], ["x", "x", "", "", "y", "y", "z", "z", "z"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measure_one(table_of(labels, categories), clusters(labels))
    assert [(of.name, of.queries) for of in found.categories] == [("z", 3), ("no category", 2), ("x", 2)]


REFUSED = {
    "no pairs": ([0, 1, 2], [("after", "", np.eye(3))], "birds"),
    "no labels": (["", ""], [("after", "", np.eye(2))], "birds"),
    "rows": ([0, 0], [("after", "", np.eye(3))], "embeddings of after"),
    "zeros": ([0, 0], [("after", "", np.zeros((2, 2)))], "embeddings of after"),
    "nan": ([0, 0], [("after", "", np.full((2, 2), np.nan))], "embeddings of after"),
    "no sides": ([0, 0], [], "sides"),
    "three sides": ([0, 0], [("a", "", np.eye(2))] * 3, "sides"),
}


@pytest.mark.parametrize(("labels", "sides", "name"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals_are_one_line(labels, sides, name):
    refusal(lambda: measure_findings(table_of(labels, name="birds"), sides, show=False), name)


# Curves over all queries

OWN_LABELS = [3, 1, 2, 1, 2, 7, 1, 2, 3, 2, 9, 1, 2, 3, 2]  # 7 and 9 are alone
ITEM_LABELS = [1, 2, 2, 4, 1, 3, 4, 2, 1, 1, 7, 4]


def rows_of(count, seed=0, ties=True, dim=4):
    rng = np.random.default_rng(seed)
    return (rng.integers(0, 3, (count, dim)) + np.eye(dim)[0] if ties else rng.normal(size=(count, dim))).astype("f4")


def search_of(rows, labels, gallery=None, gallery_labels=None):
    """The vectors and the codes of queries and items."""
    codes = torch.tensor(labels), torch.tensor(labels if gallery is None else gallery_labels)
    return Vectors("rows", rows), None if gallery is None else Vectors("gallery", gallery), codes


def curves_of(*search):
    rows, items, codes = search_of(*search)
    return rank_curves(rows, items, LabelRelevance(*codes, own=items is None), None, False)


@pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
@pytest.mark.parametrize("separate", [False, True], ids=["own gallery", "gallery"])
def test_rank_curves_are_those_of_sorted_lists(separate, ties):
    gallery, labels = (rows_of(12, 1, ties), ITEM_LABELS) if separate else (None, None)
    rows = rows_of(15, 0, ties)
    recall, precision = curves_of(rows, OWN_LABELS, gallery, labels)
    relevant = evaluation.same_label(OWN_LABELS, labels)
    lists = evaluation.ranked_lists(rows.tolist(), gallery.tolist() if separate else None, relevant)
    ks = range(1, len(lists[0]) + 1)
    assert precision.x.tolist() == pytest.approx([i / 100 for i in range(101)])
    np.testing.assert_allclose(precision.y, reference.mean_interpolated_precision(lists), rtol=1e-12)
    assert recall.x.tolist() == list(ks)
    np.testing.assert_allclose(recall.y, [np.mean([any(one[:k]) for one in lists]) for k in ks])


@pytest.mark.parametrize(("length", "last"), [(1, 1), (7, 7), (999, 999), (50_000, 1000)])
def test_recall_curve_ends_with_the_list_or_at_1000(length, last):
    curve = recall_curve(np.array([1.0, 5.0, np.inf]), length)
    assert (curve.x[0], curve.x[-1]) == (1, last)
    assert (np.diff(curve.x) > 0).all()
    assert {k for k in (1, 10, 100, 1000) if k <= last} <= set(curve.x.tolist())
    assert (curve.x == curve.x.round()).all()
    assert curve.y[-1] == pytest.approx(2 / 3 if last >= 5 else 1 / 3)


@pytest.mark.parametrize("tile", [2, 5, 2048])
@pytest.mark.parametrize("separate", [False, True], ids=["own gallery", "gallery"])
def test_all_pairs_are_counted_where_their_scores_are(separate, tile, monkeypatch):
    monkeypatch.setattr(module, "_TILE", tile)
    gallery, labels = (rows_of(12, 1, ties=False), ITEM_LABELS) if separate else (None, None)
    rows = rows_of(15, 0, ties=False)
    counts = score_counts(*search_of(rows, OWN_LABELS, gallery, labels), show=False)
    scores = reference.pair_scores(rows, gallery, OWN_LABELS, labels)
    assert [of.tolist() for of in counts] == [np.histogram(of, CELLS, (-1, 1))[0].tolist() for of in scores]


def test_scores_at_the_ends_and_rounded_beyond_1_are_counted():
    rows = np.array([[1.0, 0.0], [3.0, 0.0], [-1.0, 0.0]], dtype="f4")
    positive, negative = score_counts(*search_of(rows, [0, 0, 1]), show=False)
    assert np.flatnonzero(positive).tolist() == [CELLS - 1]
    assert (np.flatnonzero(negative).tolist(), negative[0]) == ([0], 2)
    rows = np.repeat(rows_of(300, 0, ties=False, dim=7), 2, 0)
    unit = torch.nn.functional.normalize(torch.from_numpy(rows))
    assert (unit @ unit.T).max() > 1  # what is tested here happens
    positive, _ = score_counts(*search_of(rows, np.repeat(np.arange(300), 2).tolist()), show=False)
    assert positive.sum() == positive[-1] == 300


# Costs of wrong images, the order of a list, and which queries are shown


@given(st.lists(st.booleans(), min_size=1, max_size=25).filter(any))
def test_costs_are_equal_parts_of_what_each_positive_loses(right):
    costs = lost_precision(np.array(right))
    expected = [0.0 if hit else float(reference.cost(right, place)) for place, hit in enumerate(right)]
    np.testing.assert_allclose(costs, expected, rtol=1e-12, atol=1e-15)
    assert costs.sum() == pytest.approx(1 - float(reference.average_precision(right)), abs=1e-12)


def test_scores_within_rounding_are_ties():
    scores, right = np.array([0.5, 0.5 - 1e-15, 0.5 - 2e-3]), np.array([True, False, False])
    assert list_order(scores, right, 1e-12).tolist() == [1, 0, 2]
    assert list_order(scores, right, 0.0).tolist() == [0, 1, 2]


AP = np.array([1.0, 0.9, 0.5, 0.1, 0.55, 0.3, 0.8, np.nan, 0.2, 0.6])
CODES = np.array([0, 0, 1, 2, 1, 2, 3, 4, 5, 6])
POSITIVES = np.array([1, 1, 1, 1, 1, 1, 1, 0, 1, 1])


def chosen(average_precision, per_kind, codes=CODES, positives=POSITIVES, seed=0):
    found = choose_queries(average_precision, codes, positives, per_kind, seed)
    return {kind: of.tolist() for kind, of in found.items()}


def test_choice_by_hand():
    before = np.where(np.isnan(AP), np.nan, 0.45)
    found = chosen([before, AP], 2)
    assert found == {
        "best": [1, 9],  # 0 and 6 are shown already
        "typical": [4, 5],  # the median is 0.55; 2 is of the class of 4, the others are shown
        "worst": [3, 8],  # not 5, of the class of 3
        "most improved": [0, 6],  # chosen first; not 1, of the class of 0
    }
    assert list(found) == ["best", "typical", "worst", "most improved"]


def test_of_equal_queries_the_one_with_more_positives_comes_first_and_then_the_seed_decides():
    assert chosen([np.ones(6)], 2, np.arange(6), np.array([1, 1, 9, 1, 5, 1]))["best"] == [2, 4]
    codes = np.arange(400)
    one, again, other = (chosen([np.ones(400)], 4, codes, np.ones(400), seed) for seed in (0, 0, 1))
    assert one == again != other
    distinct = np.linspace(0, 1, 400)
    assert chosen([distinct], 4, codes, np.ones(400), 0) == chosen([distinct], 4, codes, np.ones(400), 1)


# The sample on the map, and where its images are


def groups_of(classes, each, noise=0.1, dim=16):
    labels = np.repeat(np.arange(classes), each)
    return clusters(labels, noise, dim), labels


def nearest_share(places, labels):
    """The share of images whose nearest on the map is of their class."""
    apart = ((places[:, None] - places) ** 2).sum(-1)
    np.fill_diagonal(apart, np.inf)
    return (labels[apart.argmin(1)] == labels).mean()


def places_of(*sides):
    return place_on_map([Vectors("rows", rows) for rows in sides], np.arange(len(sides[0])))


def test_tsne_keeps_classes_together_and_repeats_itself():
    rows, labels = groups_of(12, 8)
    (places,), method = places_of(rows)
    assert method == "t-SNE"
    assert nearest_share(places, labels) > 0.95
    assert np.array_equal(places, places_of(rows)[0][0])


@pytest.mark.parametrize(("dim", "noise"), [(16, 1e-7), (300, 0)])
def test_the_same_embeddings_are_at_the_same_places_on_both_maps(dim, noise):
    rows, _ = groups_of(12, 8, dim=dim)
    rng = np.random.default_rng(1)
    other = rows @ np.linalg.qr(rng.normal(size=(dim, dim)))[0].astype("f4")
    other *= (1 + noise * rng.normal(size=rows.shape)).astype("f4")
    (before, after), _ = places_of(rows, other)
    np.testing.assert_allclose(after, before, atol=1e-12)


def test_few_images_or_no_scikit_learn_are_at_principal_components(monkeypatch):
    rows, labels = groups_of(3, 4, noise=0.01)
    (places,), method = places_of(rows)
    assert ("components" in method, "scikit-learn" in method) == (True, False)
    assert nearest_share(places, labels) == 1
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    (places,), method = places_of(groups_of(8, 8)[0])
    assert "scikit-learn" in method
    assert np.isfinite(places).all()


ODD_ROWS = {
    "one": np.ones((1, 3)),
    "two": np.eye(3)[:2],
    "40 alike but for rounding": np.ones((40, 8)) + 1e-7 * np.random.default_rng(0).normal(size=(40, 8)),
    "39 alike": np.concatenate([np.ones((39, 8)), -np.ones((1, 8))]),
    "one dimension, two places": np.repeat([[1.0], [-1.0]], 20, 0),
    "30 images": np.random.default_rng(0).normal(size=(30, 2)),
}


@pytest.mark.parametrize("rows", ODD_ROWS.values(), ids=ODD_ROWS.keys())
def test_odd_embeddings_have_places(rows):
    for places in places_of(rows.astype("f4"), rows.astype("f4"))[0]:
        assert places.shape == (len(rows), 2)
        assert np.isfinite(places).all()
        assert np.sqrt((places**2).sum(1)).max() <= 1 + 1e-12
        assert places.any() == (len(np.unique(rows.round(3), axis=0)) > 1)


def test_principal_components_are_those_of_the_covariance():
    rows = np.random.default_rng(0).normal(size=(50, 6)) * [5, 1, 3, 0.1, 0.5, 2]
    found = principal_components(rows, 3)
    values = np.linalg.eigvalsh(np.cov(rows.T))[::-1][:3]
    np.testing.assert_allclose(found.var(0, ddof=1), values)
    np.testing.assert_allclose(np.corrcoef(found.T), np.eye(3), atol=1e-12)


@given(st.floats(0, 6.28), st.booleans(), st.integers(0, 100))
def test_turning_undoes_any_turn_and_mirroring(angle, mirror, seed):
    target = np.random.default_rng(seed).normal(size=(9, 2))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) * [[1, -1 if mirror else 1]]
    found = rotate_onto(target @ turn + [3, -1], target)
    np.testing.assert_allclose(found, target - target.mean(0), atol=1e-9)
