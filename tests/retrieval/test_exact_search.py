import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.errors import InputError
from frontrank.retrieval import exact_search
from frontrank.retrieval.exact_search import RowMask, exact_best
from frontrank.retrieval.items import Item
from tests.retrieval.engines import halves, score_of, unit


def reference(rows, query, k, items, mask=None):
    scores = [score_of(row, query) for row in rows]
    order = sorted((-score, items[i].id, i) for i, score in enumerate(scores) if mask is None or mask[i])
    return [row for _, _, row in order[:k]], [-score for score, _, _ in order[:k]]


def check(rows, queries, k, items, mask=None):
    scores, best = exact_best(rows, queries, k, items, None if mask is None else RowMask(mask))
    for i, query in enumerate(queries):
        assert (best[i].tolist(), scores[i].tolist()) == reference(rows, query, k, items, mask)


def shuffled_items(count, seed=0):
    return [Item(str(i)) for i in np.random.default_rng(seed).permutation(count)]


@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("share", [None, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("kind", ["random", "ties", "near ties"])
def test_finds_exactly_the_best(queries, share, kind, monkeypatch):
    monkeypatch.setattr(exact_search, "_BLOCK", 100)
    monkeypatch.setattr(exact_search, "_GROUP", 12)
    monkeypatch.setattr(exact_search, "_COPIED", 50)
    rng = np.random.default_rng(0)
    if kind == "ties":
        rows, asked = halves(500), halves(queries, seed=1)
    else:
        rows, asked = unit(rng.standard_normal((500, 24))), unit(rng.standard_normal((queries, 24)))
        if kind == "near ties":  # all as near to each other as float32 can tell, or nearer
            rows = unit(rows[:1] + 1e-7 * rng.standard_normal((500, 24)))
    mask = None if share is None else rng.random(500) < share
    k = 5 if mask is None else min(5, int(mask.sum()))
    assert k > 0
    check(rows, asked, k, shuffled_items(500), mask)


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 40), st.integers(0, 10**6))
def test_small_cases(count, dim, k, seed):
    rng = np.random.default_rng(seed)
    rows = unit(rng.integers(-2, 3, (count, dim)) + 1e-9)
    mask = rng.random(count) < 0.7
    mask[0] = True
    check(rows, unit(rng.integers(-2, 3, (2, dim)) + 1e-9), min(k, int(mask.sum())), shuffled_items(count), mask)


def test_without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"faiss.*frontrank\[search\]"):
        exact_search.import_faiss()
