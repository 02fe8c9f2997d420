import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.evaluation import statistics
from frontrank.evaluation.statistics import (
    Resampling,
    bootstrap_means,
    difference_over_classes,
    difference_over_seeds,
    holm,
    mean_of_defined,
    percentile_interval,
    sign_flip_p_values,
)
from tests.errors import refusal
from tests.reference import paired_classes as reference
from tests.reference.statistics import bootstrap_interval, sign_flip_p_value

NAN = math.nan


def intervals(values, level=0.95, resamples=200, seed=0):
    means = bootstrap_means(values, resamples, seed)
    return [percentile_interval(means[:, i], level) for i in range(values.shape[1])]


def some_values(rng, queries, metrics, undefined=0.0):
    values = rng.random((queries, metrics))
    values[:, 0] = values[:, 0] > 0.3
    values[rng.random((queries, metrics)) < undefined] = NAN
    values[0] = 0.5  # at least one is defined
    return values


@given(st.floats(0, 1), st.integers(1, 50))
def test_mean_of_equal_values_is_that_value(value, count):
    assert mean_of_defined(np.full(count, value)) == value


@pytest.mark.parametrize("queries", [1, 2, 7, 60])
@pytest.mark.parametrize("undefined", [0.0, 0.4])
@pytest.mark.parametrize(("level", "seed"), [(0.95, 0), (0.8, 3)])
def test_intervals_equal_the_loop(queries, undefined, level, seed):
    values = some_values(np.random.default_rng(queries), queries, 4, undefined)
    expected = [bootstrap_interval(values[:, i].tolist(), level, 200, seed) for i in range(4)]
    np.testing.assert_allclose(intervals(values, level, 200, seed), expected, rtol=0, atol=1e-14)


def test_resamples_without_a_defined_value_are_left_out():
    """One of three is defined: (2/3)^3 = 30 % of the resamples have none of it."""
    values = np.array([[0.25], [NAN], [NAN]])
    means = bootstrap_means(values, 1000, 0)
    assert 0.2 < np.isnan(means).mean() < 0.4
    assert percentile_interval(means[:, 0], 0.95) == (0.25, 0.25)


def test_blocks_do_not_change_the_result(monkeypatch):
    values = some_values(np.random.default_rng(0), 30, 3, 0.2)
    differences = np.random.default_rng(1).normal(0.1, 1, (35, 2))
    whole = intervals(values), sign_flip_p_values(differences, 500, 0)
    monkeypatch.setattr(statistics, "_CELLS", 100)
    np.testing.assert_allclose(intervals(values), whole[0], rtol=0, atol=1e-14)
    np.testing.assert_array_equal(sign_flip_p_values(differences, 500, 0), whole[1])


@pytest.mark.parametrize("values", [[0.3], [0.1] * 7, [0.1, NAN, 0.1, 0.1], [0.0] * 5, [1.0] * 3])
def test_no_spread_no_width(values):
    assert intervals(np.array(values)[:, None]) == [(values[0], values[0])]


# p-values


def p_value(differences, flips=999, seed=0):
    return float(sign_flip_p_values(np.array(differences, dtype=float)[:, None], flips, seed)[0])


HAND = [
    ([0.0, 0.0, 0.0], 1.0),  # no difference at all
    ([0.5], 1.0),  # one query: + and - are as far
    ([1.0, 1.0, 1.0], 2 / 8),  # only +++ and ---
    ([1.0, 1.0, -1.0], 1.0),  # |sum| = 1 is the least there is
    ([1.0, 1.0, 1.0, -1.0], 10 / 16),  # |sum| >= 2: 2 patterns of one sign, 8 with one other
    ([3.0, 1.0, 0.0, NAN], 2 / 4),  # |sum| = 4 for ++ and --; the query that is not defined is left out
    ([1.0, -1.0], 1.0),  # the mean is 0
]


@pytest.mark.parametrize(("differences", "expected"), HAND)
def test_p_by_hand(differences, expected):
    assert p_value(differences) == expected
    assert p_value([-d for d in differences]) == expected


def test_p_is_exact_up_to_twelve_differences():
    rng = np.random.default_rng(0)
    for count in range(1, 13):
        differences = np.concatenate([rng.normal(0.3, 1, count), np.zeros(3)])
        expected = sign_flip_p_value(differences[:count].tolist())
        assert p_value(differences, flips=99) == expected
        assert (expected * 2**count).is_integer()


def test_from_thirteen_differences_on_patterns_are_random():
    ones = [1.0] * 13
    assert p_value(ones, flips=99) == 1 / 100  # none of 99 is as far, and so p is not 0
    assert p_value(ones[:12], flips=99) == 2 / 2**12


@pytest.mark.parametrize("count", [3, 8, 12])
def test_random_patterns_come_near_all_patterns(monkeypatch, count):
    monkeypatch.setattr(statistics, "_ENUMERATED", 0)
    for seed in range(2):
        differences = np.random.default_rng(seed).normal(0.4, 1, count)
        exact = sign_flip_p_value(differences.tolist())
        error = math.sqrt(exact * (1 - exact) / 4999)
        assert abs(p_value(differences, flips=4999, seed=seed) - exact) < 4 * error + 1 / 5000


@pytest.mark.parametrize("enumerated", [0, 12])
def test_rounding_does_not_hide_ties(monkeypatch, enumerated):
    """0.1 + 0.2 and 0.3 are as far from 0 though their floats are not: all patterns of 0.1, 0.2, -0.3 are."""
    monkeypatch.setattr(statistics, "_ENUMERATED", enumerated)
    assert p_value([0.1, 0.2, -0.3], flips=99) == 1
    # |sum| = 0.6: +++ and ---, which random patterns meet in one of four
    assert p_value([0.1, 0.2, 0.3], flips=3999) == pytest.approx(0.25, abs=0.03)


def test_random_p_of_a_metric_does_not_depend_on_the_others():
    differences = np.random.default_rng(0).normal(0.2, 1, (40, 3))
    differences[3:, 1] = 0
    together = sign_flip_p_values(differences, 499, 5)
    assert together.tolist() == [p_value(differences[:, i], 499, 5) for i in range(3)]


# Classes as the units that chance draws

QUARTERS = st.integers(0, 8).map(lambda x: x / 8)  # sums without rounding
QUERY = st.tuples(QUARTERS, QUARTERS, st.sampled_from("abcdef"), st.booleans())


def arrays(rows):
    a, b, classes, defined = (np.array(column) for column in zip(*rows, strict=True))
    return np.where(defined, a, np.nan), np.where(defined, b, np.nan), classes


@given(st.lists(QUERY, min_size=1, max_size=20).filter(lambda rows: any(row[3] for row in rows)), st.integers(0, 3))
def test_classes_equal_the_loops(rows, seed):
    a, b, classes = arrays(rows)
    found = difference_over_classes(a, b, classes, Resampling(0.9, 100, seed=seed))
    assert found.difference == pytest.approx(reference.mean_difference(a, b, classes), abs=1e-12)
    low, high = reference.interval(a, b, classes, 0.9, 100, seed)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert found.p_value == reference.p_value(a, b, classes)


def test_classes_by_hand():
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


@pytest.mark.parametrize(
    ("a", "b", "classes"),
    [
        ([1.0], [1.0, 2.0], ["a"]),
        ([1.0], [1.0], ["a", "b"]),
        ([], [], []),
        ([1.0, math.nan], [1.0, 2.0], ["a", "b"]),
        ([math.nan], [math.nan], ["a"]),
    ],
)
def test_classes_that_are_refused(a, b, classes):
    refusal(lambda: difference_over_classes(np.array(a), np.array(b), np.array(classes)), "a", "b ")


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
    found = difference_over_seeds(a, b, classes, Resampling(0.9, 100, seed=seed))
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


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 3), (3, 3)), ((0, 3), (0, 3)), ((1, 3), (1, 4))])
def test_runs_that_do_not_match_are_refused(shapes):
    refusal(lambda: difference_over_seeds(*(np.zeros(shape) for shape in shapes), np.arange(3)), "a", "b ")
