"""Exact ranks on every path, against lists sorted without rounding."""

import functools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frontrank.ranking import LabelRelevance, Lists, Vectors, exact, exact_ranks
from tests.exact_paths import SMALL, set_sizes, taken
from tests.reference import evaluation as reference

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def lists(sets):
    return Lists(
        torch.tensor([j for one in sets for j in sorted(one)], dtype=torch.long), torch.tensor([len(s) for s in sets])
    )


def found(queries, gallery, relevance, removed=None):
    """(positives before, negatives before) of the positives of each query."""
    rows = Vectors("queries", queries)
    items = None if gallery is None else Vectors("gallery", gallery)
    ranks = {}

    def use(some, of):
        assert of.before_neg.dtype == of.before_pos.dtype == torch.float64
        for q, before_pos, before_neg, valid in zip(some.tolist(), *of, strict=True):
            assert q not in ranks, "each query once"
            assert not before_pos[~valid].any()
            assert not before_neg[~valid].any()
            ranks[q] = sorted(zip(before_pos[valid].tolist(), before_neg[valid].tolist(), strict=True))

    exact_ranks(rows, items, relevance, removed, use)
    return [ranks.get(q, []) for q in range(len(rows))]


def expected(queries, gallery, relevant, ignored=None):
    queries, gallery = (None if x is None else x.double().tolist() for x in (queries, gallery))
    return [reference.ranks(one) for one in reference.ranked_lists(queries, gallery, relevant, ignored)]


def rows_of(kind, count, seed=0, dim=6):
    """Rows that are all apart, that have many exact ties, or that nearly point the same way."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "apart":
        return torch.randn(count, dim, generator=generator)
    if kind == "ties":
        whole = torch.randint(-1, 2, (count, dim), generator=generator).float()
        whole[whole.abs().sum(1) == 0, 0] = 1
        return whole * torch.randint(1, 4, (count, 1), generator=generator)
    return torch.ones(count, dim) + 4e-4 * torch.randn(count, dim, generator=generator)


KINDS = ["apart", "ties", "near"]
LABELS = torch.tensor([0] * 9 + [1] * 2 + [2] * 2 + [3] * 5 + [4, 5, 6] + [7] * 11 + [8] * 20)[
    torch.randperm(52, generator=torch.Generator().manual_seed(3))
]
ITEM_LABELS = torch.tensor([0] * 30 + [1] + [2] * 7 + [3] * 3 + [9] * 10 + [8] * 15)[
    torch.randperm(66, generator=torch.Generator().manual_seed(4))
]
PATHS = {  # sizes: paths that are taken with ties, without a gallery and with one
    "plain": ({}, "symmetric few padded", "gallery few padded"),
    "small": (SMALL, "symmetric few swapped padded", "gallery few padded"),
    "held": (SMALL | {"held": 100}, "symmetric few swapped", "gallery few"),
    "one row held": (SMALL | {"held": 1, "block": 1}, "symmetric few swapped", "gallery few"),
    "groups": (SMALL | {"pairs": 100}, "gallery few", "gallery few"),
    "settled": (SMALL | {"redo": 0}, "symmetric settled", "gallery settled"),
    "counted again": (SMALL | {"redo": 10**9}, "symmetric swapped counted_again", "gallery counted_again"),
    "many": (SMALL | {"few": 4}, "gallery few many", "gallery few many"),
    "many settled": (
        SMALL | {"few": 0, "redo": 0},
        "many scored_by__count_rows_ places_float32",
        "many scored_by__count_rows_ places_float32",
    ),
    "many counted again": (SMALL | {"few": 0, "redo": 10**9}, "many places_float64", "many places_float64"),
    "many in one chunk": ({"few": 0}, "gallery many", "gallery many"),
}


@functools.cache
def expected_of(kind, dtype, other):
    """What comes out for rows of a kind, for a query's own set or in another gallery."""
    rows, items = rows_of(kind, len(LABELS)).to(dtype), rows_of(kind, len(ITEM_LABELS), 1).to(dtype)
    sets = reference.same_label(LABELS.tolist(), ITEM_LABELS.tolist() if other else None)
    return rows, items, expected(rows, items if other else None, sets)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", PATHS)
def test_equal_to_the_reference(path, kind, dtype, monkeypatch):
    set_sizes(monkeypatch, **PATHS[path][0])
    rows, items, result = expected_of(kind, dtype, False)
    assert found(rows, None, LabelRelevance(LABELS, LABELS, own=True)) == result
    rows, items, result = expected_of(kind, dtype, True)
    assert found(rows, items, LabelRelevance(LABELS, ITEM_LABELS, own=False)) == result


@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_taken(path, monkeypatch):
    sizes, alone, in_gallery = PATHS[path]
    set_sizes(monkeypatch, **sizes)
    paths = taken(monkeypatch)
    rows, items = rows_of("ties", len(LABELS)), rows_of("ties", len(ITEM_LABELS), 1)
    for wanted, gallery, labels in ((alone, None, LABELS), (in_gallery, items, ITEM_LABELS)):
        paths.clear()
        found(rows, gallery, LabelRelevance(LABELS, labels, own=gallery is None))
        for one in wanted.split():
            assert (
                one.replace("counted_again", "counted again")
                .replace("places_", "places ")
                .replace("scored_by_", "scored by ")
                in paths
            )
        assert ("symmetric" in paths) == ("symmetric" in wanted)
        assert ("many" in paths) == ("many" in wanted)


def test_float64_tiles_are_compared_directly(monkeypatch):
    paths = taken(monkeypatch)
    for few in (40, 0):
        set_sizes(monkeypatch, **SMALL, few=few)
        found(rows_of("ties", len(LABELS)).double(), None, LabelRelevance(LABELS, LABELS, own=True))
    assert not {"settled", "counted again", "scored by _count_rows_", "products by _count_rows_"} & {*paths}


def test_several_groups_and_several_held(monkeypatch):
    """100 positives at a time of 52 queries with 9*8 + 2*2 + 5*4 + 11*10 + 20*19 = 586 of them."""
    set_sizes(monkeypatch, **SMALL, pairs=100)
    paths = taken(monkeypatch)
    found(rows_of("apart", len(LABELS)), None, LabelRelevance(LABELS, LABELS, own=True))
    assert paths.count("gallery") == 6
    sizes = []
    real = exact._held
    monkeypatch.setattr(exact, "_held", lambda *args: (sizes.append(len(held)) or held for held in real(*args)))
    set_sizes(monkeypatch, held=3 * 7 * 6, pairs=1 << 23)  # three blocks of 7 rows of 6 numbers
    found(rows_of("apart", len(LABELS)), None, LabelRelevance(LABELS, LABELS, own=True))
    assert sizes == [3, 3, 2]  # 3 queries without a positive are one block; the other 49 make 7


@pytest.mark.parametrize("each", [1, 40])
def test_scores_of_short_and_of_long_lists(each, monkeypatch):
    """One positive in 80 items is looked up, 40 are taken from products with all."""
    set_sizes(monkeypatch, **SMALL)
    paths = taken(monkeypatch)
    rows, items = rows_of("ties", 9), rows_of("ties", 80, 1)
    sets = [{(7 * q + j) % 80 for j in range(each)} for q in range(9)]
    assert found(rows, items, lists(sets)) == expected(rows, items, sets)
    assert ("scored by _pair_scores" in paths) == (each == 1)
    assert ("products by _pair_scores" in paths) == (each == 40)


def test_no_tile_is_larger_than_a_block_by_a_chunk(monkeypatch):
    shapes = []
    set_sizes(monkeypatch, **SMALL)
    for few in (40, 0):
        set_sizes(monkeypatch, few=few)
        for kind in (exact._Block, exact._LargeBlock):
            real = kind.__dict__["count_"]
            monkeypatch.setattr(
                kind, "count_", lambda *args, real=real, **more: shapes.append(args[3].shape) or real(*args, **more)
            )
        found(rows_of("apart", len(LABELS)), rows_of("apart", 66), LabelRelevance(LABELS, ITEM_LABELS, own=False))
    assert max(rows for rows, _ in shapes) == SMALL["block"]
    assert max(items for _, items in shapes) == SMALL["chunk"]


sets_of_items = st.lists(st.frozensets(st.integers(0, 11), max_size=12), min_size=1, max_size=9)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_lists_and_any_sizes(data, monkeypatch):
    """Relevant and removed items at random, with every size at random."""
    relevant = data.draw(sets_of_items.filter(any))
    removed = [data.draw(st.frozensets(st.integers(0, 11), min_size=1, max_size=8)) for _ in relevant]
    relevant = [a - b for a, b in zip(relevant, removed, strict=True)]
    if not any(relevant):
        return
    names = ["block", "held", "pairs", "few", "cell", "chunk", "pairs_at_once"]
    sizes = {name: data.draw(st.integers(name != "few", 30), label=name) for name in names}
    sizes["pairs"] += sum(map(len, relevant)) * data.draw(st.booleans())
    sizes["redo"] = data.draw(st.sampled_from([0, 1, 64, 10**9]))
    set_sizes(monkeypatch, **sizes)
    seed, kind = data.draw(st.integers(0, 99)), data.draw(st.sampled_from(KINDS))
    if [*map(bool, relevant)][-1]:  # queries without a positive after the last group: see below
        queries, items = rows_of(kind, len(relevant), seed), rows_of(kind, 12, seed + 1)
        assert found(queries, items, lists(relevant), lists(removed)) == expected(queries, items, relevant, removed)
