"""Differences whose witnesses are classes, against loops and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.errors import InputError
from frontrank.evaluation.statistics import difference_over_classes, difference_over_seeds, holm
from tests.reference import paired_classes as reference

QUARTERS = st.integers(0, 8).map(lambda x: x / 8)  # sums without rounding
QUERY = st.tuples(QUARTERS, QUARTERS, st.sampled_from("abcdef"), st.booleans())


def arrays(rows):
    a, b, classes, defined = (np.array(column) for column in zip(*rows, strict=True))
    return np.where(defined, a, np.nan), np.where(defined, b, np.nan), classes


@given(st.lists(QUERY, min_size=1, max_size=20).filter(lambda rows: any(row[3] for row in rows)), st.integers(0, 3))
def test_equals_the_loops(rows, seed):
    a, b, classes = arrays(rows)
    found = difference_over_classes(a, b, classes, level=0.9, resamples=100, seed=seed)
    assert found.difference == pytest.approx(reference.mean_difference(a, b, classes), abs=1e-12)
    low, high = reference.interval(a, b, classes, 0.9, 100, seed)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert found.p_value == reference.p_value(a, b, classes)


@given(st.lists(QUERY, min_size=2, max_size=20).filter(lambda rows: any(row[3] for row in rows)))
def test_the_other_way_round(rows):
    a, b, classes = arrays(rows)
    there, back = difference_over_classes(a, b, classes), difference_over_classes(b, a, classes)
    assert back.difference == pytest.approx(-there.difference, abs=1e-12)
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low), abs=1e-12)
    assert back.p_value == there.p_value


def test_by_hand():
    a = np.array([0.0, 0.5, 1.0, 0.25, math.nan])
    b = np.array([0.5, 1.0, 0.75, 0.25, math.nan])
    found = difference_over_classes(a, b, np.array(["x", "x", "y", "z", "z"]))
    assert found.difference == 0.75 / 4  # +0.5 +0.5 -0.25 +0 of the four that are defined
    assert found.p_value == 1.0  # of sums +1, -0.25 and 0, every pattern is 0.75 from 0 or more


def test_many_alike_queries_of_a_class_are_one_witness():
    """Of 3 classes that all improve, 2 of 8 patterns go as far, however many queries they have."""
    for each in (1, 2, 200):
        classes = np.repeat(np.arange(3), each)
        assert difference_over_classes(np.zeros(3 * each), np.ones(3 * each), classes).p_value == 0.25


def test_one_class_has_no_spread():
    found = difference_over_classes(np.zeros(3), np.array([0.5, 0.25, 0.0]), np.array(["a"] * 3))
    assert found == (0.25, 0.25, 0.25, 1.0)


def test_large_classes_weigh_more():
    classes = np.array(["a"] * 3 + ["b"])
    assert difference_over_classes(np.zeros(4), np.array([1.0, 1.0, 1.0, 0.0]), classes).difference == 0.75


def test_more_classes_than_are_enumerated():
    rng = np.random.default_rng(0)
    a, classes = rng.random(300), np.repeat(np.arange(30), 10)
    assert difference_over_classes(a, a + 0.1, classes, flips=999).p_value == 0.001
    assert difference_over_classes(a, rng.permutation(a), classes).p_value > 0.05


@pytest.mark.parametrize(
    ("a", "b", "classes", "message"),
    [
        ([1.0], [1.0, 2.0], ["a"], "a has 1"),
        ([1.0], [1.0], ["a", "b"], "a has 1"),
        ([], [], [], "a has 0"),
        ([1.0, math.nan], [1.0, 2.0], ["a", "b"], "not defined for"),
        ([math.nan], [math.nan], ["a"], "defined for no"),
    ],
)
def test_refused(a, b, classes, message):
    with pytest.raises(InputError, match=message):
        difference_over_classes(np.array(a), np.array(b), np.array(classes))


@pytest.mark.parametrize(
    ("given_values", "expected"),
    [
        ([], []),
        ([0.2], [0.2]),
        ([0.01, 0.02, 0.03, 0.005], [0.03, 0.04, 0.04, 0.02]),  # 4 x .005, 3 x .01, 2 x .02, 1 x .03 -> .04
        ([0.5, 0.6], [1.0, 1.0]),
        ([0.04, 0.04], [0.08, 0.08]),
    ],
)
def test_holm_by_hand(given_values, expected):
    assert holm(given_values) == pytest.approx(expected)


@given(st.lists(st.integers(1, 64).map(lambda x: x / 64), max_size=8))
def test_holm_equals_the_loop(p_values):
    found = holm(p_values)
    assert found == reference.holm(p_values)
    assert all(corrected >= p for corrected, p in zip(found, p_values, strict=True))


# Runs and classes


@given(
    st.lists(QUERY, min_size=2, max_size=12).filter(lambda rows: any(row[3] for row in rows)),
    st.lists(st.integers(-8, 8).map(lambda x: x / 8), min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_over_seeds_equals_the_loops(rows, shifts, seed):
    a, b, classes = arrays(rows)
    a = np.stack([a + 0.0 * shift for shift in shifts])
    b = np.stack([b + shift * (np.arange(len(b)) % 3) for shift in shifts])
    found = difference_over_seeds(a, b, classes, level=0.9, resamples=100, seed=seed)
    expected = reference.over_seeds(a, b, classes, 0.9, 100, seed)
    assert found.difference == pytest.approx(reference.mean_difference(a.mean(0), b.mean(0), classes), abs=1e-12)
    assert (found.low, found.high) == pytest.approx(expected[:2], rel=1e-6, abs=1e-9)
    assert found.p_value == pytest.approx(expected[2], rel=2e-5, abs=1e-9)  # the search ends at 1e-5


def test_runs_that_differ_more_than_the_ways_do():
    """One run far up and one a little down: on every class, so that classes alone would be sure."""
    a, classes = np.zeros((2, 40)), np.arange(40)
    b = np.stack([np.full(40, 0.5), np.full(40, -0.1)])
    assert difference_over_classes(a.mean(0), b.mean(0), classes).p_value < 0.001
    found = difference_over_seeds(a, b, classes)
    # t = 0.2 / 0.3 of 1 degree of freedom: p = 1 - 2 atan(2 / 3) / pi
    assert found.p_value == pytest.approx(1 - 2 * math.atan(2 / 3) / math.pi, rel=2e-5)
    assert found.low == pytest.approx(0.2 - 0.3 * math.tan(0.95 * math.pi / 2))


@pytest.mark.parametrize(("runs", "spread"), [(2, 0.1), (3, 0.1), (5, 0.0)])
def test_equal_ways_are_seldom_told_apart(runs, spread):
    """The same way twice: it is called different in about 5 of 100 at most, however much its seeds differ."""
    rng = np.random.default_rng(runs)
    classes = np.repeat(np.arange(100), 3)

    def way(of_classes):
        chance = 0.6 + of_classes + rng.normal(0, spread, (runs, 1)) + rng.normal(0, 0.05, (runs, 100))
        return (rng.random((runs, 300)) < np.repeat(chance, 3, axis=1)).astype(float)

    wrong = alone = 0
    for _ in range(60):
        of_classes = rng.normal(0, 0.1, 100)
        a, b = way(of_classes), way(of_classes)
        wrong += difference_over_seeds(a, b, classes, resamples=100, flips=199).p_value < 0.05
        alone += difference_over_classes(a.mean(0), b.mean(0), classes, resamples=100, flips=199).p_value < 0.05
    assert wrong / 60 <= 0.1  # 5 %, and two standard errors
    assert wrong <= alone
    if spread == 0.1:
        assert alone / 60 > 0.15  # what made this necessary


def test_a_difference_that_all_runs_and_classes_show_is_seen():
    rng = np.random.default_rng(0)
    a = rng.random((3, 100))
    found = difference_over_seeds(
        a, a + 0.1 + rng.normal(0, 0.02, (3, 1)) + rng.normal(0, 0.1, (3, 100)), np.arange(100)
    )
    assert found.p_value < 0.05
    assert found.low > 0


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 3), (3, 3)), ((0, 3), (0, 3)), ((1, 3), (1, 4))])
def test_runs_that_do_not_match_are_refused(shapes):
    with pytest.raises(InputError, match=r"give both \[run"):
        difference_over_seeds(*(np.zeros(shape) for shape in shapes), np.arange(3))
