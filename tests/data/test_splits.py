import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.data.splits import hold_out_classes, merge_classes, split_test_classes
from frontrank.errors import InputError, InputTypeError
from tests.data.test_table import assert_same, table_of
from tests.errors import refusal

MOVES = {"validation": hold_out_classes, "test": split_test_classes}
PAIRS = [label for label in "abcdefghijklmnopqrst" for _ in range(2)]  # 20 classes of 2 images


@pytest.mark.parametrize("to", MOVES)
def test_whole_classes_move(to):
    table = table_of(PAIRS)
    split = MOVES[to](table, 0.3, seed=5)
    moved, stay = set(split.of(to).labels), set(split.of("train").labels)
    assert len(moved) == 6
    assert moved | stay == set(PAIRS)
    assert not moved & stay
    assert split.paths.tolist() == table.paths.tolist()
    assert set(table.splits) == {"train"}


@pytest.mark.parametrize("to", MOVES)
def test_the_draw_depends_on_the_seed_and_not_on_the_order_of_rows(to):
    table = table_of(PAIRS)
    draws = {frozenset(MOVES[to](table, 0.3, seed=seed).of(to).labels) for seed in range(20)}
    assert len(draws) > 15
    order = np.random.default_rng(0).permutation(len(table))
    for seed in (0, 1):
        assert_same(MOVES[to](table.rows(order), 0.3, seed), MOVES[to](table, 0.3, seed).rows(order))


def test_only_training_rows_with_a_label_move():
    labels = [*"aabbccdd", "", "z", "z", "a"]
    splits = ["train"] * 9 + ["test"] * 3
    split = hold_out_classes(table_of(labels, paths=list("123456789xyw"), splits=splits), 0.5)
    assert split.splits[8:].tolist() == ["train", "test", "test", "test"]
    assert len(set(split.of("validation").labels)) == 2


@pytest.mark.parametrize("to", MOVES)
def test_a_table_that_has_the_split_or_a_share_of_0_is_left_alone(to):
    table = table_of(PAIRS, splits=[to] + ["train"] * 39)
    assert MOVES[to](table, 0.3) is table
    table = table_of(["a"])
    assert MOVES[to](table, 0) is table


@given(st.integers(4, 8), st.integers(0, 30), st.floats(0.001, 1), st.integers(0, 1000))
def test_both_sides_can_be_ranked(several, single, share, seed):
    labels = [f"p{number}" for number in range(several)] * 2 + [f"s{number}" for number in range(single)]
    split = hold_out_classes(table_of(labels), share, seed)
    for part in (split.of("train"), split.of("validation")):
        assert (np.unique(part.labels, return_counts=True)[1] > 1).sum() >= 2
    moved, classes = len(set(split.of("validation").labels)), several + single
    assert moved == min(max(2, round(share * classes)), classes - 2)


TOO_FEW = {
    "one class": ["a", "a", "a"],
    "three classes": list("aabbcc"),
    "single images": list("aabbccdefghijk"),
    "no class": [""],
    "none at all": [],
}


@pytest.mark.parametrize("name", TOO_FEW)
def test_too_few_classes(name):
    labels = TOO_FEW[name]
    several = sum(labels.count(label) > 1 for label in set(labels))
    refusal(lambda: hold_out_classes(table_of(labels), 0.1), several, "'validation'", "data.validation")
    refusal(lambda: split_test_classes(table_of(labels), 0.1), "'test'", "data.test")


def test_settings_out_of_bounds():
    for share in (-0.1, 1.1, float("nan")):
        refusal(lambda share=share: hold_out_classes(table_of(PAIRS), share), "share")
    for value in (-1, 1.5):
        refusal(lambda value=value: hold_out_classes(table_of(PAIRS), 0.5, seed=value), "seed")
        refusal(lambda value=value: merge_classes(table_of(PAIRS), every=value), "every")
    refusal(lambda: hold_out_classes(table_of(PAIRS), 0.5, seed=True), "seed", error=InputTypeError)


@given(st.integers(2, 9), st.integers(0, 100))
def test_merged_classes(every, seed):
    table = table_of(PAIRS, categories=[label.upper() for label in PAIRS])
    merged = merge_classes(table, every, seed)
    groups = {}
    for before, after in zip(table.labels.tolist(), merged.labels.tolist(), strict=True):
        groups.setdefault(after, set()).add(before)
    sizes = sorted((len(group) for group in groups.values()), reverse=True)
    assert sizes == [every] * (20 // every) + [20 % every] * bool(20 % every)
    assert sum(sizes) == 20
    for label, group in groups.items():
        assert label == "+".join(sorted(group))
    assert merged.paths.tolist() == table.paths.tolist()
    assert merged.categories.tolist() == table.categories.tolist()


def test_merging_leaves_other_splits_alone():
    splits = ["train"] * 6 + ["validation", "test", "train"]
    table = table_of(["a", "b", "c", "d", "e", "f", "a", "b", ""], splits=splits)
    merged = merge_classes(table)
    assert merged.labels[6:].tolist() == ["a", "b", ""]
    assert len(set(merged.labels[:6])) == 2
    assert merge_classes(table, every=1) is table


def test_merging_goes_by_the_seed_and_needs_two_classes():
    table = table_of(PAIRS)
    assert len({tuple(merge_classes(table, 3, seed).labels) for seed in range(10)}) == 10
    order = np.random.default_rng(0).permutation(len(table))
    assert_same(merge_classes(table.rows(order), 3, 1), merge_classes(table, 3, 1).rows(order))
    refusal(lambda: merge_classes(table_of(["a", "b", "c"]), every=3), "every is 3", "data.merge_classes")
    assert sorted(merge_classes(table_of(["a", "b", "c"]), every=2).labels) != ["a", "b", "c"]
    refusal(lambda: merge_classes(table_of([]), every=2), "every is 2")


def test_labels_that_would_become_the_same():
    table = table_of(["a", "b+c", "a+b", "c"])
    merged = []
    for seed in range(20):
        try:
            merged.append(len(set(merge_classes(table, 2, seed).labels)))
        except InputError:
            merged.append(0)
    assert set(merged) == {0, 2}
    table = table_of([*"abcd", "a+b", "a+c", "a+d"], splits=["train"] * 4 + ["test"] * 3)  # another split has one
    refusal(lambda: merge_classes(table, 2), "'+'")
    assert len(set(merge_classes(table, 3).labels)) == 5
