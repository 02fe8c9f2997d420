import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.errors import InputError
from frontrank.retrieval import exact_search as nearest_rows
from frontrank.retrieval.exact_search import Allowed, exact_best
from frontrank.retrieval.items import Item
from tests.retrieval.index_engines import halves, score_of, unit


def reference(rows, query, k, items, mask=None):
    scores = [score_of(row, query) for row in rows]
    order = sorted((-score, items[i].id, i) for i, score in enumerate(scores) if mask is None or mask[i])
    return [row for _, _, row in order[:k]], [-score for score, _, _ in order[:k]]


def check(rows, queries, k, items, mask=None):
    scores, found = exact_best(rows, queries, k, items, None if mask is None else Allowed(mask))
    for i, query in enumerate(queries):
        expected, values = reference(rows, query, k, items, mask)
        assert found[i].tolist() == expected
        assert scores[i].tolist() == values


def shuffled_items(count, seed=0):
    return [Item(str(i)) for i in np.random.default_rng(seed).permutation(count)]


@pytest.mark.parametrize("queries", [1, 19, 20, 40])
@pytest.mark.parametrize("share", [None, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("kind", ["random", "ties", "near ties"])
def test_finds_exactly_the_best(queries, share, kind, monkeypatch):
    monkeypatch.setattr(nearest_rows, "_BLOCK", 100)
    rng = np.random.default_rng(0)
    if kind == "ties":
        rows, asked = halves(700), halves(queries, seed=1)
    else:
        rows, asked = unit(rng.standard_normal((700, 24))), unit(rng.standard_normal((queries, 24)))
        if kind == "near ties":  # all as near to each other as float32 can tell, or nearer
            rows = unit(rows[:1] + 1e-7 * rng.standard_normal((700, 24)))
    mask = None if share is None else rng.random(700) < share
    k = 5 if mask is None else min(5, int(mask.sum()))
    assert k > 0
    check(rows, asked, k, shuffled_items(700), mask)


def test_more_copies_than_are_asked_for():
    rows = np.repeat(unit(np.random.default_rng(0).standard_normal((3, 7))), 200, axis=0)
    check(rows, rows[[0, 250, 599]], 10, shuffled_items(600))


@pytest.mark.parametrize("k", [1, 4, 5])
def test_all_there_is(k):
    check(halves(5), halves(3, seed=1), k, shuffled_items(5))


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 30), st.integers(0, 10**6))
def test_small_cases(count, dim, k, seed):
    rng = np.random.default_rng(seed)
    rows = unit(rng.integers(-2, 3, (count, dim)) + 1e-9)
    mask = rng.random(count) < 0.7
    mask[0] = True
    check(rows, unit(rng.integers(-2, 3, (2, dim)) + 1e-9), min(k, int(mask.sum())), shuffled_items(count), mask)


def test_without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"needs faiss; pip install 'frontrank\[search\]'"):
        nearest_rows.import_faiss()
