"""Rows, relevance and average precision, by hand and against the definition in `evaluate`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.errors import InputError
from frontrank.evaluation import evaluate_scores
from frontrank.gallery.search import Query, Shown, judged, ranks_of, search
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item, parse_filter
from tests.gallery.samples import index_of


def pairs_of(labels, scores=None):
    scores = scores or [1 - place / 10 for place in range(len(labels))]
    return [(Item(str(i), label=label), score) for i, (label, score) in enumerate(zip(labels, scores, strict=True))]


@pytest.mark.parametrize(
    ("labels", "total", "expected"),
    [
        ("RW", 1, 1.0),
        ("WR", 1, 1 / 2),
        ("RWR", 2, (1 + 2 / 3) / 2),
        ("WRWR", 2, (1 / 2 + 2 / 4) / 2),
        ("RWW", 2, 1 / 2),  # one of two was not found: its precision is 0
        ("WWW", 2, 0.0),
        ("RRR", 3, 1.0),
    ],
)
def test_average_precision_by_hand(labels, total, expected):
    found = judged(pairs_of(labels), 10, "R", total)
    assert found.average_precision == pytest.approx(expected)
    assert found.complete == (labels.count("R") == total)
    assert [row.relevant for row in found.rows] == [label == "R" for label in labels]


def test_points_are_recall_and_precision_at_each_right_item():
    assert judged(pairs_of("WRWR"), 10, "R", 4).points == ((0.25, 0.5), (0.5, 0.5))


def test_costs_add_up_to_what_is_missing():
    found = judged(pairs_of("WRWRW"), 10, "R", 2)
    assert [row.cost for row in found.rows] == [0.375, None, 0.125, None, 0.0]  # (1/2 + 1/4) / 2, 1/4 / 2
    assert sum(row.cost or 0 for row in found.rows) == pytest.approx(1 - found.average_precision)


def test_no_costs_where_the_list_is_cut():
    assert all(row.cost is None for row in judged(pairs_of("WR"), 10, "R", 2).rows)


def test_ties_are_settled_against_the_model():
    found = judged(pairs_of("RW", [0.5, 0.5]), 10, "R", 1)
    assert found.average_precision == 0.5


def test_without_a_label_nothing_is_judged():
    found = judged(pairs_of("RW"), 1, None, None)
    assert (found.relevant, found.average_precision, found.points, found.complete) == (None, None, (), False)
    assert [row.relevant for row in found.rows] == [None]


def test_nothing_to_be_found_has_no_average_precision():
    found = judged(pairs_of("WW"), 10, "R", 0)
    assert (found.relevant, found.average_precision) == (0, None)


def test_an_item_added_meanwhile_does_not_make_recall_exceed_1():
    assert judged(pairs_of("RR"), 10, "R", 1).points[-1] == (1.0, 1.0)


ROWS = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=30)


@given(ROWS.filter(lambda rows: any(right for right, _ in rows)))
def test_equals_evaluate(rows):
    rows = sorted(rows, key=lambda row: -row[1])
    right, scores = (np.array(column) for column in zip(*rows, strict=True))
    report = evaluate_scores(scores[None].astype(np.float64), relevant=right[None], metrics=("mAP",))
    pairs = pairs_of(["R" if one else "W" for one in right], (scores / 10).tolist())
    assert judged(pairs, 5, "R", int(right.sum())).average_precision == pytest.approx(report["mAP"])
    assert ranks_of(scores.astype(np.float64), right).valid.all()


def test_the_query_is_not_among_its_results(folder):
    index = index_of(folder)
    item = index.get(["red/0.png"])[0]
    found = search(index, Query(index.vectors([item.id])[0], item, item.label), 24, depth=100)
    assert [row.item.id for row in found.rows[:2]] == ["red/1.png", "red/2.png"]
    assert item.id not in {row.item.id for row in found.rows}
    assert (len(found.rows), found.relevant, found.average_precision) == (11, 2, 1.0)


def test_filters_bound_what_is_relevant(folder):
    index = index_of(folder)
    item = index.get(["red/0.png"])[0]
    query = Query(index.vectors([item.id])[0], item, item.label)
    found = search(index, query, 24, [parse_filter("year>=2002")], depth=100)
    assert [row.place for row in found.rows] == [1, 2, 3, 4]
    assert found.relevant == 1  # the query itself does not pass the filter and is not counted
    found = search(index, query, 24, [parse_filter("year<2002")], depth=100)
    assert (found.relevant, len(found.rows)) == (1, 7)


def test_another_label_than_its_own(folder):
    index = index_of(folder)
    item = index.get(["red/0.png"])[0]
    found = search(index, Query(index.vectors([item.id])[0], item, "blue"), 24, depth=100)
    assert found.relevant == 3


def test_an_empty_index():
    index = Index(dim=2)
    found = search(index, Query(np.ones(2, np.float32), None, "cat"), 5, depth=10)
    assert (found.rows, found.relevant, found.average_precision) == ((), 0, None)


@pytest.mark.parametrize("name", ["", "a" * 65, "a/b", "<b>", "a\n", "a&b"])
def test_names_that_cannot_be_used(name):
    with pytest.raises(InputError, match="name"):
        Shown(name, Index(dim=2))
