"""Costs of wrong images, the order of a list, and which queries are shown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.reporting.findings import choose_queries, list_order, lost_precision
from tests.reference import reporting as reference

some_lists = st.lists(st.booleans(), min_size=1, max_size=25).filter(any)


@given(some_lists)
def test_costs_are_equal_parts_of_what_each_positive_loses(right):
    expected = [0.0 if hit else float(reference.cost(right, place)) for place, hit in enumerate(right)]
    np.testing.assert_allclose(lost_precision(np.array(right)), expected, rtol=1e-12, atol=1e-15)


@given(some_lists)
def test_costs_add_up_to_the_ap_that_is_lost(right):
    costs = lost_precision(np.array(right))
    assert costs.sum() == pytest.approx(1 - float(reference.average_precision(right)), abs=1e-12)
    wrong = costs[~np.array(right)]
    assert (np.diff(wrong) <= 0).all()


def test_costs_by_hand():
    # wrong, wrong, right, wrong, right: the first positive loses 2/3, the second 3/5; AP = (1/3 + 2/5) / 2
    costs = lost_precision(np.array([False, False, True, False, True]))
    assert costs.tolist() == pytest.approx([4 / 15, 4 / 15, 0, 1 / 10, 0])
    assert costs.sum() == pytest.approx(1 - 11 / 30)


@pytest.mark.parametrize("right", [[True], [True, True, False], [False, False]], ids=["one", "perfect", "none right"])
def test_nothing_costs_where_no_positive_comes_after(right):
    assert lost_precision(np.array(right)).tolist() == [0.0] * len(right)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=20))
def test_order_of_a_list_is_by_score_and_ties_go_against_the_model(items):
    scores, right = np.array([float(score) for score, _ in items]), np.array([hit for _, hit in items])
    assert list_order(scores, right, 1e-9).tolist() == reference.in_order(scores.tolist(), right.tolist())


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


def test_typical_is_near_the_median_and_not_the_mean():
    found = chosen([np.array([0.0, 0.1, 0.15, 0.4, 1.0, 1.0, 0.12])], 1, np.arange(7), np.ones(7))
    assert found["typical"] == [2]


def test_only_what_improved_is_most_improved():
    assert "most improved" not in chosen([np.ones(10), AP], 2)
    assert chosen([np.where(CODES == 2, 0.0, 1.0), AP], 1)["most improved"] == [5]  # 3 improved less


def test_of_equal_queries_the_one_with_more_positives_comes_first():
    codes, positives = np.arange(6), np.array([1, 1, 9, 1, 5, 1])
    assert chosen([np.ones(6)], 2, codes, positives)["best"] == [2, 4]


def test_the_seed_decides_among_equals_and_nothing_else():
    codes = np.arange(400)
    one, again, other = (chosen([np.ones(400)], 4, codes, np.ones(400), seed) for seed in (0, 0, 1))
    assert one == again != other
    distinct = np.linspace(0, 1, 400)
    assert chosen([distinct], 4, codes, np.ones(400), 0) == chosen([distinct], 4, codes, np.ones(400), 1)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5), st.integers(1, 2))
def test_queries_shown_are_distinct_and_have_something_to_find(seed, count, per_kind, sides):
    rng = np.random.default_rng(seed)
    positives = rng.integers(0, 3, count)
    positives[rng.integers(count)] = 1
    values = [np.where(positives > 0, rng.integers(1, 4, count) / 3, np.nan) for _ in range(sides)]
    codes = rng.integers(0, 4, count)
    found = chosen(values, per_kind, codes, positives)
    shown = [query for of in found.values() for query in of]
    assert len(shown) == len(set(shown)) > 0
    assert (positives[shown] > 0).all()
    for of in found.values():
        assert 0 < len(of) <= per_kind
        assert len(set(codes[of])) == len(of)
    left = [query for query in np.flatnonzero(positives) if query not in found.get("most improved", [])]
    if left:
        assert values[-1][found["best"][0]] == values[-1][left].max()
    left = [query for query in left if query not in found.get("best", [])]
    if left:
        assert values[-1][found["worst"][0]] == values[-1][left].min()
