"""Lists of items per query against Python sets."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.ranking import LabelRelevance, Lists, MatrixRelevance

ITEMS = 9
some_items = st.frozensets(st.integers(0, ITEMS - 1))
sets = st.lists(some_items, min_size=1, max_size=12)


def lists(of):
    items = torch.tensor([j for one in of for j in sorted(one)], dtype=torch.long)
    return Lists(items, torch.tensor([len(one) for one in of]))


def read(found):
    """The items of each query."""
    assert len(found.items) == len(found.queries) == int(found.counts.sum())
    of = [[] for _ in found.counts]
    for query, item in zip(found.queries.tolist(), found.items.tolist(), strict=True):
        of[query].append(item)
    assert [len(one) for one in of] == found.counts.tolist()
    assert all(len(one) == len(set(one)) for one in of)
    return [set(one) for one in of]


def positives_of(found, queries):
    positives = found.positives(torch.tensor(queries, dtype=torch.long))
    assert positives.index.shape == positives.valid.shape
    assert positives.own is None
    assert positives.candidates is None
    return [set(index[valid].tolist()) for index, valid in zip(positives.index, positives.valid, strict=True)]


def test_by_hand():
    found = Lists(torch.tensor([4, 7, 1]), torch.tensor([2, 0, 1]))
    assert found.queries.tolist() == [0, 0, 2]
    positives = found.positives(torch.tensor([2, 0]))
    assert positives.valid.tolist() == [[True, False], [True, True]]
    assert positives.index.tolist() == [[1, 1], [4, 7]]  # padding repeats a positive


@given(sets, st.data())
def test_positives(of, data):
    used = [q for q, one in enumerate(of) if one]
    queries = data.draw(st.lists(st.sampled_from(used), max_size=20)) if used else []
    found = lists(of)
    assert positives_of(found, queries) == [of[q] for q in queries]
    if queries:
        positives = found.positives(torch.tensor(queries))
        for q, index in zip(queries, positives.index.tolist(), strict=True):
            assert set(index) == of[q], "padding repeats an item of the list"
        assert positives.index.shape[1] == max(len(of[q]) for q in queries)


@pytest.mark.parametrize("of", [[{1}, {2, 3}, set(), {4}], [set(), set()], [{1, 2}, set()], [set(), {0}, set(), set()]])
def test_positives_of_queries_that_may_have_none(of):
    assert positives_of(lists(of), list(range(len(of)))) == of


@given(sets, st.data())
def test_without_and_also(of, data):
    other = [data.draw(some_items) for _ in of]
    rest = lists(of).without(lists(other))
    assert read(rest) == [a - b for a, b in zip(of, other, strict=True)]
    assert read(rest.also(lists(other))) == [a | b for a, b in zip(of, other, strict=True)]
    assert read(lists(other).also(rest)) == [a | b for a, b in zip(of, other, strict=True)]


def test_without_does_not_mix_up_queries():
    """Item 1 of query 0 and item 0 of query 1 would have one number, if the largest item were counted wrong."""
    assert read(lists([{1, 2}, {0, 2}]).without(lists([{2}, {0}]))) == [{1}, {2}]
    assert read(lists([{0}, {0}]).without(lists([{3}, {0}]))) == [{0}, set()]
    assert read(lists([{3}, {0}]).without(lists([{0}, set()]))) == [{3}, {0}]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.booleans())
def test_of_labels(labels, own):
    y = torch.tensor(labels)
    expected = [{j for j, b in enumerate(labels) if a == b and not (own and j == i)} for i, a in enumerate(labels)]
    assert read(Lists.of(LabelRelevance(y, y, own=own))) == expected


@given(sets.filter(any))
def test_of_other_relevance(of):
    matrix = torch.zeros(len(of), ITEMS, dtype=torch.bool)
    for q, one in enumerate(of):
        matrix[q, list(one)] = True
    assert read(Lists.of(MatrixRelevance(matrix, None, own=False))) == of
    assert read(Lists.of(lists(of))) == of


def test_of_more_queries_than_are_read_at_once():
    labels = torch.arange(9000) % 4500
    assert read(Lists.of(LabelRelevance(labels, labels, own=True))) == [{(q + 4500) % 9000} for q in range(9000)]
