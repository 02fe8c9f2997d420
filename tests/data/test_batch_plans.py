from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.data.samplers import (
    Plan,
    category_groups,
    category_plan,
    even_shares,
    level,
    rows_of_plan,
    shuffled,
    spread,
)

seeds = st.integers(0, 2**32)


def generator(seed=0):
    return np.random.Generator(np.random.PCG64(seed))


@given(st.lists(st.integers(0, 4), max_size=30), seeds)
def test_shuffled_sorts_and_is_a_permutation(segments, seed):
    order = shuffled(np.array(segments, dtype=np.int64), generator(seed))
    assert [segments[i] for i in order] == sorted(segments)
    assert sorted(order) == list(range(len(segments)))


def test_every_order_within_a_segment_is_as_likely():
    """6 orders of 3 items in 6,000 draws: 1,000 each, with a standard deviation of 29."""
    rng = generator()
    seen = Counter(tuple(shuffled(np.array([1, 0, 0, 0]), rng)) for _ in range(6000))
    assert len(seen) == 6
    assert all(order[-1] == 0 for order in seen)
    assert all(850 < count < 1150 for count in seen.values())


@pytest.mark.parametrize(
    ("capacity", "total", "expected"),
    [
        pytest.param([5, 5], 0, 0, id="nothing"),
        pytest.param([5, 5], 4, 2, id="even"),
        pytest.param([5, 5], 5, 2, id="one over"),
        pytest.param([1, 5, 5], 9, 4, id="one small"),
        pytest.param([1, 5, 5], 11, 5, id="all"),
        pytest.param([0, 0, 3], 2, 2, id="two without room"),
        pytest.param([0, 0], 0, 0, id="no room"),
    ],
)
def test_level_by_hand(capacity, total, expected):
    assert level(np.array(capacity), total) == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data(), seeds)
def test_even_shares_are_as_equal_as_they_can_be(capacity, data, seed):
    total = data.draw(st.integers(0, sum(capacity)))
    shares = even_shares(np.array(capacity), total, generator(seed))
    assert shares.sum() == total
    assert all(0 <= share <= room for share, room in zip(shares, capacity, strict=True))
    below = [share for share, room in zip(shares, capacity, strict=True) if share < room]
    assert not below or max(shares) <= min(below) + 1


def test_who_gets_one_more_is_random():
    rng = generator()
    got = sum(even_shares(np.array([9, 9, 9, 1]), 11, rng) for _ in range(900))
    assert got[3] == 900
    assert all(abs(got[:3] - 3000) < 60)  # 900 x 3, and one of three gets the one over


@st.composite
def turns(draw):
    """Counts per class of at most `batches` each whose sum is a multiple of it."""
    batches, per_batch = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    counts = [0] * (per_batch + draw(st.integers(0, 5)))
    for _ in range(batches * per_batch):
        free = [i for i, count in enumerate(counts) if count < batches]
        counts[draw(st.sampled_from(free[: draw(st.integers(1, len(free)))]))] += 1
    return counts, batches


@given(turns(), seeds)
def test_spread_deals_everything_out_and_no_class_twice(case, seed):
    counts, batches = case
    table = spread(np.array(counts), batches, generator(seed))
    assert table.shape == (batches, sum(counts) // batches)
    assert all(len(set(batch)) == len(batch) for batch in table.tolist())
    assert np.bincount(table.ravel(), minlength=len(counts)).tolist() == counts


@given(turns(), seeds)
def test_spread_is_even_over_halves(case, seed):
    counts, batches = case
    half = batches // 2
    first = np.bincount(spread(np.array(counts), batches, generator(seed))[:half].ravel(), minlength=len(counts))
    assert all(
        count * half // batches <= x <= -(-count * half // batches) for x, count in zip(first, counts, strict=True)
    )


def test_each_batch_has_a_class_as_often_as_its_turns_say():
    """Over 1,500 plans, class c is in each batch with probability counts[c] / 5, within 4.5 standard deviations."""
    counts = np.array([5, 4, 3, 1, 1, 1])
    rng, seen = generator(), np.zeros((5, 6))
    for _ in range(1500):
        table = spread(counts, 5, rng)
        seen[np.arange(5)[:, None], table] += 1
    assert np.abs(seen / 1500 - counts / 5).max() < 4.5 * (0.25 / 1500) ** 0.5


def test_classes_of_one_turn_meet_uniformly():
    """12 classes, 3 to a batch: a pair meets with probability 2 / 11; the place in the batch is random too."""
    rng, meetings, places = generator(), np.zeros((12, 12)), np.zeros((12, 3))
    for _ in range(2000):
        table = spread(np.ones(12, dtype=np.int64), 4, rng)
        for batch in table:
            meetings[np.ix_(batch, batch)] += 1
            places[batch, np.arange(3)] += 1
    apart = ~np.eye(12, dtype=bool)
    assert np.abs(meetings[apart] / 2000 - 2 / 11).max() < 4.5 * (2 / 11 * 9 / 11 / 2000) ** 0.5
    assert np.abs(places / 2000 - 1 / 3).max() < 4.5 * (2 / 9 / 2000) ** 0.5


def test_rows_go_round_each_class():
    codes = np.array([1, 0, 1, 0, 1])
    plan = Plan(np.array([0, 1, 1, 0, 1]), np.array([2, 2, 2, 3, 1]), np.array([2, 3, 5]))
    rows, ends = rows_of_plan(plan, codes, generator())
    assert ends.tolist() == [4, 6, 10]
    zeros, ones = rows[[0, 1, 6, 7, 8]].tolist(), rows[[2, 3, 4, 5, 9]].tolist()
    assert set(zeros) == {1, 3}
    assert zeros == (zeros[:2] * 3)[:5]
    assert set(ones) == {0, 2, 4}
    assert ones == (ones[:3] * 2)[:5]


def test_rows_of_a_plan_without_the_first_class():
    rows, ends = rows_of_plan(Plan.table(np.array([[2, 1]]), np.array([[1, 1]])), np.array([0, 1, 2]), generator())
    assert (rows.tolist(), ends.tolist()) == ([2, 1], [2])


def test_all_groups_or_so_many():
    assert [tuple(group) for group in category_groups(4, 2, None, generator())] == list(combinations(range(4), 2))
    drawn = category_groups(7, 3, 14, generator())
    assert drawn.shape == (14, 3)
    assert np.bincount(drawn.ravel()).tolist() == [6] * 7
    assert all(len(set(group)) == 3 for group in drawn.tolist())


def one_batch(room, category_of, total, group=(0, 1), seed=0):
    plan = category_plan(np.array(room), np.array(category_of), np.array([group]), total, generator(seed))
    assert plan.ends.tolist() == [len(plan.classes)]
    return dict(zip(plan.classes.tolist(), plan.counts.tolist(), strict=True))


@pytest.mark.parametrize(
    ("room", "category_of", "total", "expected"),
    [
        pytest.param([4, 4], [0, 1], 8, {0: 4, 1: 4}, id="all there is"),
        pytest.param([9, 9], [0, 1], 8, {0: 4, 1: 4}, id="larger than the share"),
        pytest.param([2, 9], [0, 1], 8, {0: 2, 1: 6}, id="small category"),
        pytest.param([3, 3, 9, 9], [0, 0, 1, 2], 13, {0: 3, 1: 3, 2: 7}, id="two small classes"),
        pytest.param([3, 2, 9], [0, 1, 2], 8, {0: 3, 1: 2, 2: 3}, id="a third category joins"),
        pytest.param([0, 4, 4], [0, 0, 1], 6, {1: 3, 2: 3}, id="no room for a class"),
    ],
)
def test_shares_by_hand(room, category_of, total, expected):
    assert all(one_batch(room, category_of, total, seed=seed) == expected for seed in range(5))


def test_a_class_cut_to_one_image_gets_a_second_from_the_largest():
    """A share of 8 is 7 + 1 or 2 + 6: the first becomes 6 + 2."""
    found = [one_batch([7, 2], [0, 0], 8, group=(0,), seed=seed) for seed in range(8)]
    assert {tuple(sorted(counts.items())) for counts in found} == {((0, 6), (1, 2))}


def test_a_class_cut_to_one_image_stays_where_no_other_has_three():
    for seed in range(4):
        assert sorted(one_batch([2, 2], [0, 0], 3, group=(0,), seed=seed).values()) == [1, 2]


def test_classes_take_turns():
    """Shares of 2 units among 5 classes: after 5 batches each has been twice, and no two turns of it are adjacent."""
    plan = category_plan(np.ones(10, int), np.repeat([0, 1], 5), np.tile([0, 1], (5, 1)), 4, generator())
    assert np.bincount(plan.classes).tolist() == [2] * 10
    batches = np.split(plan.classes, plan.ends[:-1])
    assert all(len(set(batch.tolist())) == 4 for batch in batches)
    assert all(not set(a) & set(b) for a, b in pairwise(batches))


def test_which_classes_of_a_category_meet_is_random():
    """All 10 pairs of 5 classes are first in some of 150 plans."""
    first = {tuple(sorted(one_batch([1] * 5, [0] * 5, 2, group=(0,), seed=seed))) for seed in range(150)}
    assert first == set(combinations(range(5), 2))


def test_the_order_of_classes_in_a_batch_mixes_the_categories():
    first = {
        int(category_plan(np.ones(4, int), np.array([0, 0, 1, 1]), np.array([[0, 1]]), 4, generator(s)).classes[0])
        for s in range(40)
    }
    assert first == {0, 1, 2, 3}


def test_categories_that_join_are_random():
    joined = [set(one_batch([2, 2, 4, 4, 4], [0, 1, 2, 3, 4], 7, seed=seed)) - {0, 1} for seed in range(30)]
    assert {tuple(more) for more in joined} == {(2,), (3,), (4,)}
