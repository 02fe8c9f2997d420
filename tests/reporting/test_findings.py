"""All that a report shows, found from embeddings: whole findings against slow ones, and odd tables."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.data.table import ImageTable
from frontrank.errors import InputError
from frontrank.evaluation.statistics import difference_over_classes
from frontrank.reporting.findings import measure_findings
from tests.reference import reporting as reference


def table_of(labels, categories=None, roles=None, name="birds"):
    count = len(labels)
    nothing = np.full(count, "")
    labels = np.array(labels).astype(str)
    categories = nothing if categories is None else np.array(categories).astype(str)
    roles = nothing if roles is None else np.array(roles)
    paths = np.array([f"{i}.png" for i in range(count)])
    return ImageTable(Path("x"), paths, labels, categories, np.full(count, "test"), roles, name=name)


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
    return measure_findings(table_of(LABELS, LABELS // 3), sides, first=6, per_kind=3, costly=4, mapped=40, show=False)


def test_reports_are_those_of_evaluate(found):
    names = ["R@1", "R@10", "mAP", "mAP@R", "R-precision", "dists@intra", "dists@inter"]
    for side, rows in zip(found.sides, (BEFORE, AFTER), strict=True):
        expected = fr.evaluate(rows, LABELS, metrics=names)
        assert side.report.metrics == expected.metrics
        assert list(side.report) == names
        assert side.report.name == side.title
    assert [(side.name, side.title) for side in found.sides] == [("before", "frozen"), ("after", "trained")]
    assert found.change["R@1"].difference == pytest.approx(found.sides[1].report["R@1"] - found.sides[0].report["R@1"])
    assert found.change.names == ("before", "after")


def test_change_and_intervals_are_over_classes(found):
    before, after = (side.report.per_query["mAP"] for side in found.sides)
    assert found.change["mAP"][2:] == difference_over_classes(before, after, LABELS.astype(str))
    assert found.change.queries == 60
    assert found.change.notes == ("intervals and p are over 12 classes, as queries of a class are alike",)
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
        means = [(curve.x * curve.y).sum() / curve.y.sum() for curve in (side.positive_scores, side.negative_scores)]
        scores = reference.pair_scores(rows, None, LABELS, None)
        assert means == pytest.approx([np.mean(of) for of in scores], abs=0.02)


def test_lists_of_queries_are_sorted_lists(found):
    count, lates = 0, []
    for query in (query for of in found.queries.values() for query in of):
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
            assert sum(costs.values()) == pytest.approx(1 - ranked.average_precision)
            assert ranked.first_right == hits.index(True) + 1
            assert (ranked.late is None) == any(hits[:6])
            if ranked.late is not None:
                lates.append(ranked.late)
                assert (ranked.late.place, ranked.late.right) == (ranked.first_right, True)
                assert ranked.late.row == listed[ranked.first_right - 1]
            count += 1
    assert count == 2 * 3 * len(found.queries) == 24
    assert lates


def test_queries_are_chosen_by_the_last_side(found):
    after = found.sides[1].report.per_query["mAP"]
    of = {kind: [query.ranked[1].average_precision for query in some] for kind, some in found.queries.items()}
    improved = [query.row for query in found.queries["most improved"]]
    assert of["best"][0] == np.delete(after, improved).max()
    assert of["worst"][0] == after.min()
    assert of["typical"][0] == pytest.approx(np.median(after), abs=0.05)
    gains = [
        query.ranked[1].average_precision - query.ranked[0].average_precision
        for query in found.queries["most improved"]
    ]
    assert gains == sorted(gains, reverse=True)
    assert min(gains) > 0


def test_map_and_categories(found):
    assert len(found.mapped) == 40
    assert all(side.places.shape == (40, 2) for side in found.sides)
    assert "the map shows 40 of 60 images by t-SNE" in found.notes
    assert [(of.name, of.classes, of.queries) for of in found.categories] == [(str(i), 3, 15) for i in range(4)]
    for category in found.categories:
        rows = int(category.name) == LABELS // 3
        for i, side in enumerate(found.sides):
            assert category.recall_at_1[i] == pytest.approx(side.report.per_query["R@1"][rows].mean())
            assert category.mean_ap[i] == pytest.approx(side.report.per_query["mAP"][rows].mean())


@pytest.mark.parametrize(("images", "last"), [(2, "R@1"), (3, "R@1"), (11, "R@1"), (12, "R@10")])
def test_no_recall_of_a_whole_list(images, last):
    labels = np.zeros(images, dtype=int)
    found = measure_findings(table_of(labels), [("after", "", clusters(labels))], show=False)
    assert [name for name in found.sides[0].report if name.startswith("R@")][-1] == last


def test_twice_the_same():
    one, other = (measure_findings(table_of(LABELS), [("after", "", AFTER)], mapped=30, show=False) for _ in range(2))
    assert one.queries == other.queries
    assert np.array_equal(one.sides[0].places, other.sides[0].places)
    assert one.change is None
    assert one.categories == ()
    assert "most improved" not in one.queries


def test_roles_say_who_searches_what():
    labels = ["a", "b", "a", "a", "b", "c", "", "d"]
    roles = ["query", "query", "gallery", "gallery", "gallery", "gallery", "distractor", "query"]
    rows = clusters(np.arange(8))
    found = measure_findings(table_of(labels, roles=roles), [("after", "trained", rows)], show=False)
    asking, searched = [0, 1, 7], [2, 3, 4, 5, 6]
    expected = fr.evaluate(
        rows[asking],
        [labels[i] for i in asking],
        gallery=rows[searched],
        gallery_labels=[labels[i] for i in searched],
        metrics=["R@1", "mAP", "mAP@R", "R-precision", "dists@intra", "dists@inter"],
    )
    report = found.sides[0].report
    assert report.metrics == expected.metrics
    assert (report.queries, report.gallery_size) == (3, 5)
    shown = {query.row: query for of in found.queries.values() for query in of}
    assert set(shown) == {0, 1}
    assert sorted(image.row for image in shown[0].ranked[0].first) == searched
    assert [image.right for image in shown[0].ranked[0].first].count(True) == shown[0].positives == 2
    assert any("1 of 3 queries have no positive" in note for note in found.notes)
    assert len(found.mapped) == 8


def test_distractors_without_a_gallery_are_left_out_and_noted():
    rows = clusters(np.arange(5))
    roles = ["", "", "", "", "distractor"]
    found = measure_findings(table_of(["a", "a", "b", "b", ""], roles=roles), [("after", "", rows)], show=False)
    assert found.sides[0].report.gallery_size == 4
    assert any("1 distractors are left out" in note for note in found.notes)
    assert {image.row for of in found.queries.values() for q in of for image in q.ranked[0].first} <= {0, 1, 2, 3}


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
    numbers = [
        *(value for side in found.sides for value in side.report.values()),
        *(side.places for side in found.sides),
        *(getattr(side, name).y for side in found.sides for name in ("recall", "precision_recall", "positive_scores")),
        *(side.negative_scores.y for side in found.sides),
        *(value for of in found.categories for value in (*of.recall_at_1, *of.mean_ap)),
    ]
    assert all(np.isfinite(value).all() for value in numbers)
    assert set(found.queries) <= {"best", "typical", "worst"}  # nothing improved
    assert found.queries["best"]
    assert found.change["mAP"].difference == 0


def test_ties_stand_against_the_model():
    found = measure_findings(table_of([0, 0, 1, 1]), [("after", "", np.ones((4, 3), dtype="f4"))], show=False)
    for query in (query for of in found.queries.values() for query in of):
        assert [image.right for image in query.ranked[0].first] == [False, False, True]
        assert query.ranked[0].average_precision == pytest.approx(1 / 3)
    assert found.sides[0].recall.y.tolist() == [0, 0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_multiples_of_a_row_are_ties_however_they_are_rounded(seed):
    rng = np.random.default_rng(seed)
    query, row = rng.integers(1, 90, (2, 7))
    rows = np.stack([query, *(row * scale for scale in (1, 3, 5, 7, 11, 13, 17, 19))]).astype("f4")
    for right in range(1, 9):
        labels = [int(i not in (0, right)) * (i + 1) for i in range(9)]
        found = measure_findings(table_of(labels), [("after", "", rows)], show=False)
        ranked = next(q.ranked[0] for of in found.queries.values() for q in of if q.row == 0)
        assert ranked.average_precision == 1 / 8
        assert [image.right for image in ranked.first] == [False] * 7 + [True]


def test_categories_without_a_pair_are_left_out_and_blank_ones_named():
    labels, categories = [0, 0, 1, 1, 2, 3, 4, 4, 4], ["x", "x", "", "", "y", "y", "z", "z", "z"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measure_findings(table_of(labels, categories), [("after", "", clusters(labels))], show=False)
    assert [(of.name, of.queries) for of in found.categories] == [("z", 3), ("no category", 2), ("x", 2)]


REFUSED = {
    "no pairs": (table_of([0, 1, 2]), [("after", "", np.eye(3))], "birds has no"),
    "no labels": (table_of(["", ""]), [("after", "", np.eye(2))], "birds has no"),
    "rows": (table_of([0, 0]), [("after", "", np.eye(3))], "embeddings of after"),
    "zeros": (table_of([0, 0]), [("after", "", np.zeros((2, 2)))], "embeddings of after"),
    "nan": (table_of([0, 0]), [("after", "", np.full((2, 2), np.nan))], "embeddings of after"),
    "no sides": (table_of([0, 0]), [], "sides has 0"),
    "three sides": (table_of([0, 0]), [("a", "", np.eye(2))] * 3, "sides has 3"),
}


@pytest.mark.parametrize(("table", "sides", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals_are_one_line(table, sides, message):
    with pytest.raises(InputError, match=message) as error:
        measure_findings(table, sides, show=False)
    assert "\n" not in str(error.value)
    assert "; " in str(error.value)


@pytest.mark.parametrize("name", ["first", "per_kind", "costly", "mapped"])
def test_counts_are_checked(name):
    with pytest.raises(InputError, match=name):
        measure_findings(table_of([0, 0]), [("after", "", np.eye(2))], **{name: 0})
