"""The three samplers keep their rules: who is in a batch, what an epoch covers, what comes again and when."""

import math
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.data.samplers import AllClassesBatches, BalancedBatches, CategoryBatches
from frontrank.errors import InputError, InputTypeError

class_sizes = st.lists(st.integers(1, 11), min_size=2, max_size=9)


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


@given(class_sizes, st.integers(2, 5), st.integers(0, 99))
def test_balanced_shrinks(sizes, per_class, seed):
    labels = rows_of(sizes, seed)
    found = list(BalancedBatches(labels, 2 * per_class, per_class, small="shrink", seed=seed))
    for batch in found:
        counts = Counter(labels[batch].tolist())
        assert len(counts) == 2
        assert all(count == min(per_class, sizes[label]) for label, count in counts.items())
        assert len(set(batch)) == len(batch)
    assert {row for batch in found for row in batch} == set(range(len(labels)))
    assert_nothing_comes_early(found, labels)


@given(class_sizes, st.integers(2, 5), st.integers(0, 99))
def test_balanced_drops(sizes, per_class, seed):
    sizes = [*sizes, per_class, per_class]
    labels = rows_of(sizes, seed)
    found = list(BalancedBatches(labels, 2 * per_class, per_class, small="drop", seed=seed))
    assert all(len(set(batch)) == len(batch) == 2 * per_class for batch in found)
    expected = {row for row, label in enumerate(labels) if sizes[label] >= per_class}
    assert {row for batch in found for row in batch} == expected
    assert_nothing_comes_early(found, labels)


@pytest.mark.parametrize("asked", [1, 3, 7, 20])
def test_balanced_of_a_given_length(asked):
    labels = rows_of([8, 8, 5, 2, 1])  # 2 + 2 + 2 + 1 + 1 groups of 4: 4 batches of 2
    batches = BalancedBatches(labels, 8, 4, batches_per_epoch=asked)
    found = list(batches)
    assert len(found) == len(batches) == asked
    assert all(sorted(Counter(labels[batch].tolist()).values()) == [4, 4] for batch in found)
    assert_nothing_comes_early(found, labels)
    if asked >= 4:
        assert {row for batch in found for row in batch} == set(range(24))


def test_a_short_epoch_takes_classes_by_their_size():
    """One batch of 2 of the 8 groups: over 800 epochs a class is in it in proportion to its groups."""
    labels = rows_of([8, 8, 5, 2, 1])
    batches = BalancedBatches(labels, 8, 4, batches_per_epoch=1)
    came = Counter(label for _ in range(800) for batch in batches for label in set(labels[batch].tolist()))
    share = np.array([came[label] / 800 for label in range(5)])
    assert batches.epoch == 800
    assert np.abs(share - [0.5, 0.5, 0.5, 0.25, 0.25]).max() < 0.08


def test_a_giant_class_is_in_every_batch():
    labels = rows_of([40, 2, 2, 3])
    found = list(BalancedBatches(labels, 8, 4))
    assert len(found) == 10
    assert all(0 in labels[batch] for batch in found)
    turns = Counter(label for batch in found for label in set(labels[batch].tolist()))
    assert sorted(turns[label] for label in (1, 2, 3)) == [3, 3, 4]


def test_two_classes_meet_as_often_as_any_other_two():
    """20 classes of 4 and 8 images, 5 to a batch, 300 epochs; pairs of classes of one size meet alike."""
    sizes = [4] * 10 + [8] * 10
    labels, meetings = rows_of(sizes), np.zeros((20, 20))
    batches = BalancedBatches(labels, 20, 4)
    for _ in range(300):
        for batch in batches:
            present = np.unique(labels[batch])
            meetings[np.ix_(present, present)] += 1
    assert len(batches) == 6
    for block in (meetings[:10, :10][~np.eye(10, dtype=bool)], meetings[10:, 10:][~np.eye(10, dtype=bool)]):
        assert block.min() > 0.6 * block.mean()
        assert block.max() < 1.4 * block.mean()
    # 1 x 1, 1 x 2 and 2 x 2 turns in 6 batches, were the turns independent: 1/6, 2/6 and 4/6, times 4/5 x 20/19 at most
    assert 0.1 < meetings[:10, :10][~np.eye(10, dtype=bool)].mean() / 300 < 1 / 6
    assert 0.5 < meetings[10:, 10:][~np.eye(10, dtype=bool)].mean() / 300 < 4 / 6


def test_balanced_at_the_size_of_online_products():
    """11,318 classes and 59,551 images, 28 classes x 4 images a batch."""
    labels = rows_of(2 + np.random.default_rng(0).multinomial(59551 - 2 * 11318, np.full(11318, 1 / 11318)))
    batches = BalancedBatches(labels)
    found = np.array(list(batches))
    assert found.shape == (len(batches), 112)
    assert len(np.unique(found)) == 59551
    classes = labels[found].reshape(-1, 28, 4)
    assert (classes == classes[:, :, :1]).all()
    assert (np.diff(np.sort(classes[:, :, 0], axis=1), axis=1) > 0).all()


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


def test_every_class_comes_where_there_is_room():
    """Each category is in 3 pairs x 2 batches x 16 images = 96, and has 24 classes of 4."""
    labels = rows_of([4] * 96)
    found = CategoryBatches(labels, categories_of(labels, 4), 32, batches_per_group=2)
    assert {row for batch in found for row in batch} == set(range(384))


def test_so_many_groups_of_many_categories():
    """As on VehicleID: too many pairs, so 50 are drawn, that name each of 100 models once."""
    labels = np.repeat(np.arange(300), 5)
    kinds = np.array([f"model {label % 100}" if label % 100 else "" for label in labels])
    batches = CategoryBatches(labels, kinds, 20, batches_per_group=1, groups_per_epoch=50)
    found = list(batches)
    assert len(found) == len(batches) == 50
    assert sorted(kind for batch in found for kind in set(kinds[batch])) == sorted(set(kinds))


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
        with pytest.raises(InputError, match="more than"):
            AllClassesBatches(labels, batch_size)
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


def test_all_classes_go_round_a_large_class():
    """10 images a batch of two classes: 2 of the small one, 8 of the large; 5 batches are all its 40 images."""
    labels = rows_of([2, 40])
    found = list(AllClassesBatches(labels, 10))
    assert len(found) == 5
    assert {row for batch in found for row in batch} == set(range(42))


def test_all_classes_stand_in_a_random_order_and_share_what_is_over():
    labels = rows_of([6, 6, 6, 6])
    found = list(AllClassesBatches(labels, 10, batches_per_epoch=40))
    assert len({tuple(dict.fromkeys(labels[batch].tolist())) for batch in found}) > 10
    assert Counter(labels[np.concatenate(found)].tolist()) == {0: 100, 1: 100, 2: 100, 3: 100}
    assert len({tuple(np.bincount(labels[batch])) for batch in found}) == 6  # any two of four have 3


SAMPLERS = {
    "balanced": lambda labels, **more: BalancedBatches(labels, 8, 4, **more),
    "whole categories": lambda labels, **more: CategoryBatches(
        labels, [ord(str(x)[-1]) % 2 for x in labels], 10, **more
    ),
    "categories": lambda labels, **more: CategoryBatches(labels, [ord(str(x)[-1]) % 2 for x in labels], 8, 2, **more),
    "all classes": lambda labels, **more: AllClassesBatches(labels, 10, **more),
}


@pytest.mark.parametrize("build", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_kinds_of_labels_do_not_matter(build):
    numbers = rows_of([5, 3, 7, 6, 2])
    expected = list(build(numbers))
    given_as = [
        numbers.tolist(),
        tuple(numbers.tolist()),
        numbers.astype(np.int16),
        numbers.astype(np.uint64),
        numbers - 10 if build is not SAMPLERS["whole categories"] and build is not SAMPLERS["categories"] else numbers,
        [str(x) for x in numbers],
        np.array([str(x) for x in numbers]),
        np.array([str(x) for x in numbers], dtype=object),
        numbers.astype(object),
    ]
    assert all(list(build(labels)) == expected for labels in given_as)
    assert list(BalancedBatches(torch.from_numpy(numbers), 8, 4)) == list(BalancedBatches(numbers, 8, 4))


@pytest.mark.parametrize("build", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_batches_are_plain_lists(build):
    batch = next(iter(build(rows_of([5, 3, 7, 6, 2]))))
    assert type(batch) is list
    assert {type(row) for row in batch} == {int}


LABELS = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
KINDS = ["x", "x", "x", "x", "x", "x", "y", "y", "y", "y"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param(lambda: BalancedBatches([]), InputError, "labels is empty", id="no labels"),
        pytest.param(
            lambda: BalancedBatches([[1, 2]]), InputError, r"labels must have the shape \(rows,\)", id="matrix"
        ),
        pytest.param(lambda: BalancedBatches(3), InputError, r"labels must have the shape", id="one number"),
        pytest.param(lambda: BalancedBatches([0.0, float("nan")]), InputTypeError, "float64 with NaN", id="NaN"),
        pytest.param(
            lambda: BalancedBatches([0.0, 1.0]), InputTypeError, "whole numbers or text, got float64;", id="float"
        ),
        pytest.param(lambda: BalancedBatches([1, None]), InputTypeError, "missing entries", id="None"),
        pytest.param(lambda: BalancedBatches(["a", None]), InputTypeError, "text and other things", id="text and None"),
        pytest.param(lambda: BalancedBatches(["1", 1]), InputTypeError, "text and other things", id="text and numbers"),
        pytest.param(lambda: BalancedBatches(["b", "b", "", "a"]), InputError, "empty entry in row 2;", id="no class"),
        pytest.param(lambda: BalancedBatches([7, 7, 7, 7]), InputError, "labels holds 1 class, and no", id="one class"),
        pytest.param(
            lambda: BalancedBatches(LABELS, 8, 1), InputError, "per_class must be at least 2, got 1", id="one each"
        ),
        pytest.param(
            lambda: BalancedBatches(LABELS, 8.0), InputTypeError, "batch_size must be a whole number", id="8.0"
        ),
        pytest.param(lambda: BalancedBatches(LABELS, True), InputTypeError, "batch_size must be a whole", id="True"),
        pytest.param(
            lambda: BalancedBatches(LABELS, 4, 4), InputError, "batch_size must be at least 8", id="1 class each"
        ),
        pytest.param(
            lambda: BalancedBatches(LABELS, 14, 4), InputError, "per_class 4; use 12 or 16,", id="no multiple"
        ),
        pytest.param(
            lambda: BalancedBatches(LABELS),
            InputError,
            "112 with per_class 4 needs 28 classes.* 4;.* at most 16,",
            id="classes",
        ),
        pytest.param(
            lambda: BalancedBatches(LABELS, 8, 2, small="drop"),
            InputError,
            "needs 4 classes.* holds 3 of at least 2 images; use a batch_size of at most 6",
            id="classes after drop",
        ),
        pytest.param(
            lambda: BalancedBatches(LABELS, 4, 2, small="cut"), InputError, "repeat, shrink or drop", id="small"
        ),
        pytest.param(
            lambda: BalancedBatches(LABELS, 4, 2, batches_per_epoch=0),
            InputError,
            "batches_per_epoch must",
            id="0 batches",
        ),
        pytest.param(lambda: BalancedBatches(LABELS, 4, 2, seed=-1), InputError, "seed must be at least 0", id="seed"),
        pytest.param(
            lambda: BalancedBatches(LABELS, 4, 2, rank=0, world_size=5),
            InputError,
            "world_size 5 is more than the 4",
            id="world",
        ),
        pytest.param(
            lambda: BalancedBatches(LABELS, 4, 2, small="shrink", rank=0, world_size=4),
            InputError,
            "world_size 4 is more than the 3 images",
            id="world after shrink",
        ),
        pytest.param(
            lambda: BalancedBatches(LABELS, 4, 2, rank=2, world_size=2),
            InputError,
            "rank must be from 0 to 1",
            id="rank",
        ),
        pytest.param(lambda: BalancedBatches(LABELS, 4, 2, rank=0), InputError, "belong together", id="rank alone"),
        pytest.param(
            lambda: BalancedBatches(LABELS, 4, 2, world_size=2), InputError, "belong together", id="world alone"
        ),
        pytest.param(
            lambda: BalancedBatches(LABELS, 4, 2, rank=0, world_size=0),
            InputError,
            "world_size must be at least 1",
            id="none",
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, KINDS[1:]),
            InputError,
            "categories has 9 entries but labels has 10",
            id="length",
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, [*KINDS[:-3], "x", "x", "y"], 4),
            InputError,
            "class 2 into both 'x' and 'y';",
            id="two categories",
        ),
        pytest.param(
            lambda: CategoryBatches(["a", "a", "b"], [4, 3, 3], 4),
            InputError,
            "class a into both 3 and 4;",
            id="two numbers",
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, ["x"] * 10, 4),
            InputError,
            "holds 1 with.* is 2;.*BalancedBatches",
            id="one category",
        ),
        pytest.param(
            lambda: CategoryBatches([0, 1, 2], ["x", "y", "y"], 4),
            InputError,
            "holds 0 with classes",
            id="nothing whole",
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, KINDS, 3), InputError, "batch_size must be at least 4", id="small batch"
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, KINDS, 10),
            InputError,
            "batch_size 10 is more.*use at most 9",
            id="large batch",
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, KINDS, 20, 4),
            InputError,
            "20 is more.* of at most 16,",
            id="large batch of 4",
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, KINDS, 10, 4), InputError, "use 8 or 12", id="no multiple, categories"
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, KINDS, 4, 0), InputError, "per_class must be at least 2", id="0 each"
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, KINDS, 4, 4, 1),
            InputError,
            "batch_size must be at least 8",
            id="1 class, categories",
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, KINDS, 4, None, 0), InputError, "categories_per_batch must", id="0 kinds"
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, KINDS, 4, batches_per_group=0),
            InputError,
            "batches_per_group must",
            id="0 per group",
        ),
        pytest.param(
            lambda: CategoryBatches(LABELS, KINDS, 4, groups_per_epoch=0),
            InputError,
            "groups_per_epoch must",
            id="0 groups",
        ),
        pytest.param(
            lambda: CategoryBatches(np.repeat(np.arange(300), 2), np.repeat(np.arange(300), 2), 8),
            InputError,
            "44,850 groups of 300 categories, too many; with 300 each category comes 2 x 5",
            id="too many pairs",
        ),
        pytest.param(
            lambda: AllClassesBatches(LABELS, 7), InputError, "two images.* 4 classes; use at least 8,", id="few"
        ),
        pytest.param(
            lambda: AllClassesBatches(LABELS, 11), InputError, "more than the 10 images; use at most 10", id="many"
        ),
        pytest.param(
            lambda: AllClassesBatches(LABELS, 8, batches_per_epoch=0),
            InputError,
            "batches_per_epoch must",
            id="0 batches, all",
        ),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_the_limits_are_allowed():
    assert len(next(iter(CategoryBatches(LABELS, KINDS, 9)))) == 9
    assert len(next(iter(CategoryBatches(LABELS, KINDS, 8, 2)))) == 8
    assert len(next(iter(CategoryBatches(LABELS, ["x"] * 10, 4, None, 1)))) == 4
    assert len(next(iter(AllClassesBatches(LABELS, 8)))) == 8
    assert sorted(next(iter(AllClassesBatches(LABELS, 10)))) == list(range(10))
    assert len(next(iter(BalancedBatches(LABELS, 4, 2, small="shrink", rank=2, world_size=3)))) >= 1
