"""The samplers keep their rules: who is in a batch, what an epoch covers, where training stands in it."""

import json
import math
from collections import Counter, defaultdict
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.data.samplers import (
    AllClassesBatches,
    BalancedBatches,
    CategoryBatches,
    category_plan,
    deal_classes,
    even_shares,
    shard_bounds,
)
from frontrank.errors import InputError, InputTypeError
from tests.errors import refusal

seeds = st.integers(0, 2**32)
class_sizes = st.lists(st.integers(1, 11), min_size=2, max_size=9)


def generator(seed=0):
    return np.random.Generator(np.random.PCG64(seed))


# Plans


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data(), seeds)
def test_even_shares_are_as_equal_as_they_can_be(capacity, data, seed):
    total = data.draw(st.integers(0, sum(capacity)))
    shares = even_shares(np.array(capacity), total, generator(seed))
    assert shares.sum() == total
    assert all(0 <= share <= room for share, room in zip(shares, capacity, strict=True))
    below = [share for share, room in zip(shares, capacity, strict=True) if share < room]
    assert not below or max(shares) <= min(below) + 1


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
def test_classes_are_dealt_out_evenly_and_none_twice_in_a_batch(case, seed):
    counts, batches = case
    table = deal_classes(np.array(counts), batches, generator(seed))
    assert table.shape == (batches, sum(counts) // batches)
    assert all(len(set(batch)) == len(batch) for batch in table.tolist())
    assert np.bincount(table.ravel(), minlength=len(counts)).tolist() == counts
    half = batches // 2
    first = np.bincount(table[:half].ravel(), minlength=len(counts))
    assert all(
        count * half // batches <= x <= -(-count * half // batches) for x, count in zip(first, counts, strict=True)
    )


def one_batch(room, category_of, total, group=(0, 1), seed=0):
    plan = category_plan(np.array(room), np.array(category_of), np.array([group]), total, generator(seed))
    assert plan.ends.tolist() == [len(plan.classes)]
    return dict(zip(plan.classes.tolist(), plan.counts.tolist(), strict=True))


@pytest.mark.parametrize(
    ("room", "category_of", "total", "expected"),
    [
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
    shares = [one_batch([7, 2], [0, 0], 8, group=(0,), seed=seed) for seed in range(8)]
    assert {tuple(sorted(counts.items())) for counts in shares} == {((0, 6), (1, 2))}
    for seed in range(4):  # here no other has three
        assert sorted(one_batch([2, 2], [0, 0], 3, group=(0,), seed=seed).values()) == [1, 2]


# Batches


def rows_of(sizes, seed=0):
    """Labels with so many rows of each class, in a random order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def images_by_class(batches, labels):
    """The images of each class in the order in which they come, and the batch of each."""
    came = defaultdict(list)
    for number, batch in enumerate(batches):
        for row in batch:
            came[labels[row]].append((row, number))
    return came


def assert_nothing_comes_early(batches, labels):
    """Each image of a class comes once before any comes twice, and so on."""
    sizes = Counter(labels.tolist())
    for label, came in images_by_class(batches, labels).items():
        rows = [row for row, _ in came]
        for start in range(0, len(rows), sizes[label]):
            part = rows[start : start + sizes[label]]
            assert len(set(part)) == len(part)


def assert_classes_side_by_side(batches, labels):
    for batch in batches:
        runs = 1 + sum(labels[a] != labels[b] for a, b in pairwise(batch))
        assert runs == len({labels[row] for row in batch})


@given(class_sizes, st.integers(2, 5), st.integers(2, 9), st.integers(0, 3), st.integers(0, 99))
def test_balanced(sizes, per_class, classes, epoch, seed):
    classes = min(classes, len(sizes))
    labels = rows_of(sizes, seed)
    batches = BalancedBatches(labels, classes * per_class, per_class, seed=seed)
    batches.set_epoch(epoch)
    found = list(batches)
    groups = [math.ceil(size / per_class) for size in sizes]
    assert len(found) == len(batches) == max(math.ceil(sum(groups) / classes), max(groups))
    for batch in found:
        counts = Counter(labels[batch].tolist())
        assert len(counts) == classes
        assert set(counts.values()) == {per_class}
        images = Counter(batch)
        assert all(images[row] <= math.ceil(per_class / sizes[labels[row]]) for row in batch)
    assert {row for batch in found for row in batch} == set(range(len(labels)))
    assert_nothing_comes_early(found, labels)
    assert_classes_side_by_side(found, labels)
    turns = Counter(labels[row] for batch in found for row in batch[::per_class])
    more = [turns[label] - group for label, group in enumerate(groups)]
    assert min(more) >= 0
    assert all(a <= b + 1 or turns[label] == len(found) for a in more for label, b in enumerate(more))


@given(class_sizes, st.integers(2, 5), st.integers(0, 99), st.sampled_from(["shrink", "drop"]))
def test_balanced_shrinks_or_drops(sizes, per_class, seed, small):
    sizes = [*sizes, per_class, per_class]
    labels = rows_of(sizes, seed)
    found = list(BalancedBatches(labels, 2 * per_class, per_class, small=small, seed=seed))
    for batch in found:
        counts = Counter(labels[batch].tolist())
        assert len(counts) == 2
        assert all(count == min(per_class, sizes[label]) for label, count in counts.items())
        assert len(set(batch)) == len(batch)
    least = 1 if small == "shrink" else per_class
    expected = {row for row, label in enumerate(labels) if sizes[label] >= least}
    assert {row for batch in found for row in batch} == expected
    assert_nothing_comes_early(found, labels)


@pytest.mark.parametrize("asked", [1, 20])
def test_balanced_of_a_given_length(asked):
    labels = rows_of([8, 8, 5, 2, 1])  # 2 + 2 + 2 + 1 + 1 groups of 4: 4 batches of 2
    batches = BalancedBatches(labels, 8, 4, batches_per_epoch=asked)
    found = list(batches)
    assert len(found) == len(batches) == asked
    assert all(sorted(Counter(labels[batch].tolist()).values()) == [4, 4] for batch in found)
    assert_nothing_comes_early(found, labels)
    if asked >= 4:
        assert {row for batch in found for row in batch} == set(range(24))


def categories_of(labels, categories):
    return np.asarray(labels) % categories


@given(
    st.lists(st.integers(2, 9), min_size=4, max_size=12),
    st.integers(2, 4),
    st.integers(1, 2),
    st.integers(4, 30),
    st.integers(0, 99),
)
def test_whole_classes_of_categories(sizes, categories, together, batch_size, seed):
    labels = rows_of(sizes, seed)
    kinds = categories_of(labels, categories)
    batch_size = min(batch_size, len(labels))
    batches = CategoryBatches(labels, kinds, batch_size, None, together, 2, seed=seed)
    found = list(batches)
    assert len(found) == len(batches) == 2 * math.comb(categories, together)
    room = Counter(kinds.tolist())
    for batch in found:
        assert len(batch) == len(set(batch)) == batch_size
        present = Counter(kinds[batch].tolist())
        enough = sum(room[kind] for kind in present) - max(room[kind] for kind in present) < batch_size
        assert len(present) <= together or enough
        shares = sorted(present.values())
        assert all(count == room[kind] or count >= shares[-1] - 1 for kind, count in present.items())
        counts = Counter(labels[batch].tolist())
        for kind in present:
            cut = sorted(sizes[label] - count for label, count in counts.items() if label % categories == kind)
            assert sum(short > 0 for short in cut) <= 2
            lone = [label for label, count in counts.items() if label % categories == kind and count == 1]
            assert not lone or max(counts[label] for label in counts if label % categories == kind) <= 2
    assert_nothing_comes_early(found, labels)
    assert_classes_side_by_side(found, labels)


@given(st.lists(st.integers(1, 9), min_size=6, max_size=14), st.integers(2, 3), st.integers(2, 4), st.integers(0, 99))
def test_some_images_of_classes_of_categories(sizes, categories, per_class, seed):
    labels = rows_of(sizes, seed)
    kinds = categories_of(labels, categories)
    found = list(CategoryBatches(labels, kinds, 4 * per_class, per_class, 2, 3, seed=seed))
    for batch in found:
        assert sorted(Counter(labels[batch].tolist()).values()) == [per_class] * 4
        assert sorted(Counter(kinds[batch].tolist()).values()) == [2 * per_class] * 2
    assert_nothing_comes_early(found, labels)
    assert_classes_side_by_side(found, labels)
    for kind in range(categories):
        turns = Counter(label for batch in found for label in set(labels[batch].tolist()) if label % categories == kind)
        counts = [turns[label] for label in range(kind, len(sizes), categories)]
        assert max(counts) - min(counts) <= 1


def test_all_pairs_come_equally_often_and_in_a_random_order():
    """As on Stanford Online Products: 12 categories, 66 pairs, 5 batches each."""
    labels = np.repeat(np.arange(360), 4)
    kinds = categories_of(labels, 12)
    batches = CategoryBatches(labels, kinds, 32)
    pairs = [[tuple(sorted(set(kinds[batch].tolist()))) for batch in batches] for _ in range(2)]
    assert len(pairs[0]) == len(batches) == 330
    assert all(Counter(order).keys() == {(a, b) for b in range(12) for a in range(b)} for order in pairs)
    assert all(set(Counter(order).values()) == {5} for order in pairs)
    assert pairs[0] != pairs[1]
    assert sum(a == b for a, b in pairwise(pairs[0])) < 20


def test_classes_of_one_image_are_left_out_of_whole_classes():
    labels, kinds = ["a", "a", "b", "c", "c", "d"], [1, 1, 1, 2, 2, 3]
    found = list(CategoryBatches(labels, kinds, 4))
    assert len(found) == 5  # category 3 has no class left: one pair
    assert all(sorted(batch) == [0, 1, 3, 4] for batch in found)


@given(st.lists(st.integers(1, 12), min_size=2, max_size=8), st.data(), st.integers(0, 99))
def test_all_classes(sizes, data, seed):
    sizes = [*sizes, len(sizes) + 2]  # so that two images per class are to be had
    labels = rows_of(sizes, seed)
    batch_size = data.draw(st.integers(2 * len(sizes), max(len(labels), 2 * len(sizes))))
    if batch_size > len(labels):
        refusal(lambda: AllClassesBatches(labels, batch_size), "batch_size")
        return
    batches = AllClassesBatches(labels, batch_size, seed=seed)
    found = list(batches)
    assert len(found) == len(batches) == math.ceil(len(labels) / batch_size)
    more = Counter()
    for batch in found:
        assert len(batch) == len(set(batch)) == batch_size
        counts = Counter(labels[batch].tolist())
        assert len(counts) == len(sizes)
        assert all(count == sizes[label] or count >= max(counts.values()) - 1 for label, count in counts.items())
        more.update(counts)
    large = [count for label, count in more.items() if sizes[label] >= max(sizes)]
    assert max(large) - min(large) <= 1
    assert_nothing_comes_early(found, labels)
    assert_classes_side_by_side(found, labels)


LABELS = np.repeat(np.arange(9), [5, 3, 7, 6, 2, 4, 4, 9, 5])
KINDS = LABELS % 3
SAMPLERS = {
    "balanced": lambda labels=LABELS, **more: BalancedBatches(labels, 8, 4, **more),
    "shrinking": lambda labels=LABELS, **more: BalancedBatches(labels, 8, 4, small="shrink", **more),
    "whole-categories": lambda labels=LABELS, **more: CategoryBatches(labels, KINDS, 11, batches_per_group=2, **more),
    "categories": lambda labels=LABELS, **more: CategoryBatches(labels, KINDS, 8, 2, groups_per_epoch=2, **more),
    "all-classes": lambda labels=LABELS, **more: AllClassesBatches(labels, 20, batches_per_epoch=5, **more),
}
each = pytest.mark.parametrize("build", SAMPLERS.values(), ids=SAMPLERS.keys())
any_sampler = st.sampled_from(sorted(SAMPLERS)).map(SAMPLERS.get)


@each
def test_kinds_of_labels_do_not_matter(build):
    expected = list(build())
    assert {type(row) for batch in expected for row in batch} == {int}
    text = [str(label) for label in LABELS]
    kinds = [LABELS.tolist(), tuple(LABELS.tolist()), LABELS.astype(np.uint64), LABELS - 10, torch.from_numpy(LABELS)]
    kinds += [text, np.array(text), np.array(text, dtype=object), LABELS.astype(object)]
    assert all(list(build(labels)) == expected for labels in kinds)


FEW = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
CATEGORIES = ["x", "x", "x", "x", "x", "x", "y", "y", "y", "y"]
REFUSED = {  # the argument that is named, and calls: a sampler, its arguments and options
    "labels": [(BalancedBatches, [labels], {}) for labels in ([], [[1, 2]], ["b", "b", "", "a"], [7, 7, 7, 7])],
    "batch_size": [
        *((BalancedBatches, [FEW, *sizes], {}) for sizes in ([], [4, 4], [14, 4])),
        (BalancedBatches, [FEW, 8, 2], {"small": "drop"}),
        *((CategoryBatches, [FEW, CATEGORIES, *sizes], {}) for sizes in ([3], [10], [20, 4])),
        *((AllClassesBatches, [FEW, size], {}) for size in (7, 11)),
    ],
    "per_class": [(BalancedBatches, [FEW, 8, 1], {}), (CategoryBatches, [FEW, CATEGORIES, 4, 0], {})],
    "small": [(BalancedBatches, [FEW, 4, 2], {"small": "cut"})],
    "batches_per_epoch": [(AllClassesBatches, [FEW, 8], {"batches_per_epoch": 0})],
    "seed": [(BalancedBatches, [FEW, 4, 2], {"seed": -1})],
    "world_size": [
        *((BalancedBatches, [FEW, 4, 2], {"rank": 0, "world_size": world_size}) for world_size in (5, 0, None)),
        (BalancedBatches, [FEW, 4, 2], {"small": "shrink", "rank": 0, "world_size": 4}),
    ],
    "rank": [(BalancedBatches, [FEW, 4, 2], {"rank": 2, "world_size": 2})],
    "categories": [
        (CategoryBatches, [FEW, CATEGORIES[1:]], {}),
        (CategoryBatches, [["a", "a", "b"], [4, 3, 3], 4], {}),
    ],
    "categories_per_batch": [
        (CategoryBatches, [FEW, ["x"] * 10, 4], {}),
        (CategoryBatches, [FEW, CATEGORIES, 4, None, 0], {}),
    ],
    "batches_per_group": [(CategoryBatches, [FEW, CATEGORIES, 4], {"batches_per_group": 0})],
    "groups_per_epoch": [
        (CategoryBatches, [FEW, CATEGORIES, 4], {"groups_per_epoch": 0}),
        (CategoryBatches, [np.repeat(np.arange(300), 2), np.repeat(np.arange(300), 2), 8], {}),
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_cannot_be_used(name):
    for sampler, arguments, options in REFUSED[name]:
        refusal(lambda arguments=arguments, options=options, sampler=sampler: sampler(*arguments, **options), name)


@pytest.mark.parametrize("labels", [[0.0, float("nan")], [0.0, 1.0], [1, None], ["a", None], ["1", 1]], ids=str)
def test_labels_of_another_type(labels):
    refusal(lambda: BalancedBatches(labels), "labels", error=InputTypeError)
    refusal(lambda: BalancedBatches(FEW, True), "batch_size", error=InputTypeError)


def test_the_limits_are_allowed():
    assert len(next(iter(CategoryBatches(FEW, CATEGORIES, 9)))) == 9
    assert len(next(iter(CategoryBatches(FEW, CATEGORIES, 8, 2)))) == 8
    assert len(next(iter(CategoryBatches(FEW, ["x"] * 10, 4, None, 1)))) == 4
    assert len(next(iter(AllClassesBatches(FEW, 8)))) == 8
    assert sorted(next(iter(AllClassesBatches(FEW, 10)))) == list(range(10))
    assert len(next(iter(BalancedBatches(FEW, 4, 2, small="shrink", rank=2, world_size=3)))) >= 1


# Epochs, the place in an epoch and the shares of processes


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_are_those_of_array_split(size, world_size):
    bounds = [shard_bounds(size, rank, world_size) for rank in range(world_size)]
    expected = [part.tolist() for part in np.array_split(np.arange(size), world_size)]
    assert [list(range(*bound)) for bound in bounds] == expected


@each
def test_the_seed_and_the_epoch_decide_all(build):
    batches = build(seed=3)
    passes = [list(batches) for _ in range(3)]
    assert (batches.epoch, batches.position) == (3, 0)
    assert passes[0] != passes[1] != passes[2]
    assert {len(epoch) for epoch in passes} == {len(batches)}
    for epoch in (2, 0, 1):
        batches.set_epoch(epoch)
        assert list(batches) == passes[epoch]
    assert list(build(seed=3)) == passes[0]
    assert list(build(seed=4)) != passes[0]
    assert list(build(seed=2**40 + 3)) != passes[0]


@given(any_sampler, st.integers(0, 3), st.data())
def test_resumed_at_any_batch_it_goes_on_as_it_would_have(build, epoch, data):
    whole = build()
    whole.set_epoch(epoch)
    done = data.draw(st.integers(0, len(whole)))
    taken = iter(whole)
    before = list(islice(taken, done))
    state = json.loads(json.dumps(whole.state_dict()))
    after = list(taken) + list(whole)
    resumed = build()
    resumed.load_state_dict(state)
    rest = len(resumed) - done
    assert list(resumed.global_batches()) == (after[:rest] or after[rest:])
    again = list(resumed) + list(resumed)
    assert again[: len(after)] == after
    whole.set_epoch(epoch)
    assert before + after[:rest] == list(whole)


@each
def test_the_state_of_a_given_batch(build):
    """Also on another number of processes, and with other names for the same classes."""
    expected, ahead = list(build()), build(rank=0, world_size=2)
    list(ahead)
    resumed = build(np.array([f"class {label}" for label in LABELS]), rank=1, world_size=3)
    resumed.load_state_dict(ahead.state_dict(epoch=0, position=1))
    resumed.set_epoch(0)
    assert list(resumed.global_batches()) == expected[1:]
    resumed.load_state_dict(ahead.state_dict(epoch=0, position=len(expected)))
    assert (resumed.epoch, resumed.position) == (1, 0)


@given(any_sampler, st.integers(1, 5), st.integers(0, 3))
def test_processes_share_each_batch(build, world_size, seed):
    ranks = [build(seed=seed, rank=rank, world_size=world_size) for rank in range(world_size)]
    whole = list(build(seed=seed))
    shares = list(zip(*ranks, strict=True))
    assert [[row for part in parts for row in part] for parts in shares] == whole
    assert all(parts[-1] for parts in shares)
    assert all(list(rank.global_batches()) == list(ranks[0].global_batches()) for rank in ranks)


def test_the_process_group_has_the_rank(monkeypatch):
    batches = BalancedBatches(LABELS, 8, 4)
    whole = next(batches.global_batches())
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    assert next(iter(batches)) == whole[6:]
    assert next(iter(BalancedBatches(LABELS, 8, 4, rank=0, world_size=2))) == whole[:4]
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 9)
    refusal(lambda: BalancedBatches(LABELS, 8, 4), "world_size 9")


balanced = BalancedBatches(LABELS, 8, 4)
by_category = CategoryBatches(LABELS, KINDS, 8)
all_classes = AllClassesBatches(LABELS, 20)
OTHER_STATES = {
    "label": (BalancedBatches(np.concatenate([[8], LABELS[1:]]), 8, 4), balanced),
    "seed": (BalancedBatches(LABELS, 8, 4, seed=1), balanced),
    "per_class": (BalancedBatches(LABELS, 8, 2), balanced),
    "batches": (BalancedBatches(LABELS, 8, 4, batches_per_epoch=3), balanced),
    "category": (CategoryBatches(LABELS, LABELS % 2, 8), by_category),
    "groups": (CategoryBatches(LABELS, KINDS, 8, groups_per_epoch=3), by_category),
    "all batches": (AllClassesBatches(LABELS, 20, batches_per_epoch=9), all_classes),
    "sampler": (all_classes, BalancedBatches(LABELS, 20)),
}


@pytest.mark.parametrize("name", OTHER_STATES)
def test_the_state_of_something_else_is_refused(name):
    other, batches = OTHER_STATES[name]
    refusal(lambda: batches.load_state_dict(other.state_dict()), "state")
    assert (batches.epoch, batches.position) == (0, 0)


def test_damaged_states_are_refused():
    state = balanced.state_dict()
    changes = [({"epoch": -1}, InputError), ({"position": 99}, InputError), ({"position": None}, InputTypeError)]
    for change, error in changes:
        with pytest.raises(error, match=next(iter(change))):
            balanced.load_state_dict({**state, **change})
    for key in state:
        with pytest.raises(InputError, match=key):
            balanced.load_state_dict({name: value for name, value in state.items() if name != key})
    refusal(lambda: balanced.load_state_dict(None), "state", error=InputTypeError)
    refusal(lambda: balanced.set_epoch(-1), "epoch")
    refusal(lambda: balanced.state_dict(position=9), "position")
    assert (balanced.epoch, balanced.position) == (0, 0)
    balanced.set_epoch(np.int64(2))
    assert type(balanced.state_dict()["epoch"]) is int
    balanced.set_epoch(0)
