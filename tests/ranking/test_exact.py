"""Exact ranks on every path, against lists sorted without rounding."""

import functools
import sys
from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frontrank.ranking import LabelRelevance, Lists, Vectors, exact, exact_ranks
from tests.exact_paths import SMALL, set_sizes, taken
from tests.reference import evaluation as reference


@pytest.fixture(autouse=True)
def several_threads():
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)


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
        for q, before_pos, before_neg, valid in zip(some.tolist(), *of[:3], strict=True):
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
LABELS = torch.tensor([0, 8, 7, 3, 8, 7, 4, 0, 1, 8, 3, 0, 7, 5, 8, 2, 0, 8, 7, 3, 8, 1, 0, 7, 6, 8, 2, 0, 7, 8, 8])
ITEM_LABELS = torch.tensor(
    [0, 8, 2, 9, 0, 3, 8, 0, 9, 2, 0, 1, 8, 0, 9, 3, 0, 8, 2, 0, 9, 0, 8, 2, 0, 9, 8, 0, 2, 9, 0]
)
PATHS = {  # sizes, and the paths that are taken with ties: without a gallery and with one
    "plain": ({}, ["symmetric", "few", "padded"], ["gallery", "few", "padded"]),
    "small": (SMALL, ["symmetric", "few", "swapped", "padded"], ["gallery", "few", "padded"]),
    "one block held": (SMALL | {"held": 1, "block": 3}, ["symmetric", "few", "swapped"], ["gallery", "few"]),
    "two blocks held": (SMALL | {"held": 2 * 7 * 6}, ["symmetric", "few", "swapped"], ["gallery", "few"]),
    "groups": (SMALL | {"pairs": 30}, ["gallery", "few"], ["gallery", "few"]),
    "settled": (SMALL | {"redo": 0}, ["symmetric", "swapped", "settled"], ["gallery", "settled"]),
    "again": (SMALL | {"redo": 10**9}, ["symmetric", "swapped", "again"], ["gallery", "again"]),
    "many": (SMALL | {"few": 5}, ["symmetric", "few", "many"], ["gallery", "few", "many"]),
    "many settled": (SMALL | {"few": 0, "redo": 0}, ["symmetric", "many swapped", "many settled"], ["gallery", "many"]),
    "many again": (SMALL | {"few": 0, "redo": 10**9}, ["symmetric", "many", "many again"], ["gallery", "many again"]),
    "many in groups": (SMALL | {"few": 0, "pairs": 30}, *[["gallery", "many"]] * 2),
    "many in one chunk": ({"few": 0}, ["symmetric", "many"], ["gallery", "many"]),
}


@functools.cache
def expected_of(kind, dtype, other):
    """What comes out for rows of a kind, for a query's own set or in another gallery."""
    rows, items = rows_of(kind, len(LABELS)).to(dtype), rows_of(kind, len(ITEM_LABELS), 1).to(dtype)
    sets = reference.same_label(LABELS.tolist(), ITEM_LABELS.tolist() if other else None)
    return rows, items, expected(rows, items if other else None, sets)


@pytest.mark.parametrize(
    ("path", "dtype"),
    [
        *[(path, dtype) for path in PATHS for dtype in (torch.float32, torch.float64)],
        *[(path, dtype) for path in ("small", "many") for dtype in (torch.float16, torch.bfloat16)],
    ],
)
def test_equal_to_the_reference(path, dtype, monkeypatch):
    set_sizes(monkeypatch, **PATHS[path][0])
    for kind in KINDS:
        rows, items, result = expected_of(kind, dtype, False)
        assert found(rows, None, LabelRelevance(LABELS, LABELS, own=True)) == result, kind
        rows, items, result = expected_of(kind, dtype, True)
        assert found(rows, items, LabelRelevance(LABELS, ITEM_LABELS, own=False)) == result, kind


@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_taken(path, monkeypatch):
    sizes, alone, in_gallery = PATHS[path]
    set_sizes(monkeypatch, **sizes)
    paths = taken(monkeypatch)
    rows, items = rows_of("ties", len(LABELS)), rows_of("ties", len(ITEM_LABELS), 1)
    for wanted, gallery, labels in ((alone, None, LABELS), (in_gallery, items, ITEM_LABELS)):
        paths.clear()
        found(rows, gallery, LabelRelevance(LABELS, labels, own=gallery is None))
        assert {*wanted} <= {*paths}
        assert ("symmetric" in paths) == ("symmetric" in wanted)
        assert ("many" in paths) == any("many" in one for one in wanted)
        assert "settled" not in paths or path != "again"
        assert "again" not in paths or path != "settled"


@pytest.mark.parametrize(("noise", "path"), [(0.1, "few"), (5.0, "many")])
def test_more_positives_are_compared_where_few_items_are_near(noise, path, monkeypatch):
    """Classes of 14 that are apart are compared, those that are not are sorted."""
    labels = torch.arange(4004) // 14
    rows = torch.randn(286, 32)[labels] + noise * torch.randn(4004, 32)
    relevance = LabelRelevance(labels, labels, own=True)
    paths = taken(monkeypatch)
    result = found(rows, None, relevance)
    assert ("many" in paths) == (path == "many")
    set_sizes(monkeypatch, few=0 if path == "few" else 40)
    assert found(rows, None, relevance) == result


def test_float64_tiles_are_compared_directly(monkeypatch):
    paths = taken(monkeypatch)
    set_sizes(monkeypatch, **SMALL)
    found(rows_of("ties", len(LABELS)).double(), None, LabelRelevance(LABELS, LABELS, own=True))
    assert "few" in paths
    assert not {"settled", "again"} & {*paths}


def test_several_groups_and_several_held(monkeypatch):
    """Classes of 9, 6, 6, 3, 2 and 2 have 72 + 30 + 30 + 6 + 2 + 2 = 142 pairs; 30 at a time are 5 passes."""
    relevance = LabelRelevance(LABELS, LABELS, own=True)
    set_sizes(monkeypatch, **SMALL, pairs=30)
    paths = taken(monkeypatch)
    found(rows_of("apart", len(LABELS)), None, relevance)
    assert paths.count("gallery") == 5
    sizes = []
    real = exact._load_blocks
    monkeypatch.setattr(exact, "_load_blocks", lambda *args: (sizes.append(len(held)) or held for held in real(*args)))
    set_sizes(monkeypatch, held=3 * 7 * 6, pairs=1 << 23)  # three blocks of 7 rows of 6 numbers
    found(rows_of("apart", len(LABELS)), None, relevance)
    assert sizes == [3, 2]  # 3 queries without a positive are a block; the other 28 make 4


def test_slabs_of_one_block_that_are_counted_in_different_ways(monkeypatch):
    """Two queries with all items apart, then four that are at right angles to all: only these are counted again."""
    set_sizes(monkeypatch, few=0, redo=2, slab=2)
    paths = taken(monkeypatch)
    items = torch.cat([torch.zeros(40, 1), torch.randn(40, 5)], 1)
    rows = torch.cat([torch.randn(2, 6), torch.eye(6)[:1].expand(4, 6)])
    relevant = [{q, q + 9, 30} for q in range(6)]
    set_sizes(monkeypatch, redo=20)
    assert found(rows, items, lists(relevant)) == expected(rows, items, relevant)
    assert paths.count("many again") == 2


@pytest.mark.parametrize("each", [1, 40])
def test_scores_of_short_and_of_long_lists(each, monkeypatch):
    """One positive of each of 9 queries is looked up, 40 are taken from products with all that are listed."""
    set_sizes(monkeypatch, **SMALL | {"slab": 9, "block": 9, "chunk": 80}, dense=8)
    paths = taken(monkeypatch)
    rows, items = rows_of("ties", 9), rows_of("ties", 80, 1)
    sets = [{(7 * q + j) % 80 for j in range(each)} for q in range(9)]
    assert found(rows, items, lists(sets)) == expected(rows, items, sets)
    assert ("looked up" in paths) == (each == 1)
    assert ("multiplied" in paths) == (each == 40)


def test_no_tile_is_larger_than_a_block(monkeypatch):
    shapes = []
    real = exact._Tile.__init__

    def noted(tile, rows, items, *first):
        shapes.append((len(rows), len(items)))
        real(tile, rows, items, *first)

    monkeypatch.setattr(exact._Tile, "__init__", noted)
    for few, size in ((40, SMALL["block"]), (0, SMALL["run"])):
        shapes.clear()
        set_sizes(monkeypatch, **SMALL, few=few)
        found(rows_of("apart", len(LABELS)), rows_of("apart", 66), LabelRelevance(LABELS, ITEM_LABELS, own=False))
        assert max(max(shape) for shape in shapes) == size


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_lists_and_any_sizes(data, monkeypatch):
    """Relevant and removed items at random, with every size at random."""
    some = st.frozensets(st.integers(0, 11), min_size=1, max_size=8)
    removed = data.draw(st.lists(some, min_size=1, max_size=9))
    relevant = [data.draw(some) - out for out in removed] + [{3}]  # the last has one
    removed.append({4, 5})
    names = ["block", "held", "pairs", "few", "cell", "chunk", "pairs_at_once", "run", "slab", "dense"]
    sizes = {name: data.draw(st.integers(name != "few", 30), label=name) for name in names}
    set_sizes(monkeypatch, **sizes, redo=data.draw(st.sampled_from([0, 1, 64, 10**9])))
    seed, kind = data.draw(st.integers(0, 99)), data.draw(st.sampled_from(KINDS))
    queries, items = rows_of(kind, len(relevant), seed), rows_of(kind, 12, seed + 1)
    assert found(queries, items, lists(relevant), lists(removed)) == expected(queries, items, relevant, removed)


@pytest.mark.parametrize("gallery", [False, True])
def test_queries_without_a_positive_after_a_full_group(gallery, monkeypatch):
    """Two pairs fill a group; the third query, without a positive, is a group of its own."""
    set_sizes(monkeypatch, pairs=2)
    rows = rows_of("apart", 3)
    sets = [{1}, {0}, set()]
    items = rows_of("apart", 4, 1) if gallery else None
    assert found(rows, items, lists(sets)) == expected(rows, items, sets)


def test_nothing_removed_for_the_last_query():
    rows, items = rows_of("apart", 2), rows_of("apart", 4, 1)
    sets, removed = [{0}, {1}], [{2}, set()]
    assert found(rows, items, lists(sets), lists(removed)) == expected(rows, items, sets, removed)


@pytest.mark.parametrize("few", [40, 0])
@pytest.mark.parametrize("kind", KINDS)
def test_own_gallery_is_a_gallery_without_oneself(kind, few, monkeypatch):
    set_sizes(monkeypatch, **SMALL, few=few)
    rows = rows_of(kind, len(LABELS))
    alone = found(rows, None, LabelRelevance(LABELS, LABELS, own=True))
    sets = reference.same_label(LABELS.tolist())
    assert found(rows, rows.clone(), lists(sets), lists([{q} for q in range(len(rows))])) == alone
    removed = [{(q + 5) % 31, (q + 9) % 31} - {q} for q in range(31)]
    sets = [one - out for one, out in zip(sets, removed, strict=True)]
    assert found(rows, None, lists(sets), lists(removed)) == expected(rows, None, sets, removed)


COLLAPSED = {
    "all ones": torch.ones(30, 500),
    "a constant": torch.full((30, 500), 0.1),
    "one row": torch.randn(1, 500, generator=torch.Generator().manual_seed(5)).expand(30, -1),
    "multiples of it": torch.randint(-3, 4, (1, 500), generator=torch.Generator().manual_seed(5)).float()
    * torch.arange(1, 31)[:, None],
    "powers of two": torch.randn(1, 500, generator=torch.Generator().manual_seed(5))
    * 2.0 ** torch.arange(-15, 15)[:, None],
}


@pytest.mark.parametrize("path", ["plain", "settled", "many settled", "many again"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", COLLAPSED)
def test_a_collapsed_embedding_is_at_the_bottom(kind, dtype, path, monkeypatch):
    """30 equal rows of 6 classes: all 25 others stand before each of the 4 positives."""
    set_sizes(monkeypatch, **PATHS[path][0])
    rows, labels = COLLAPSED[kind].to(dtype), torch.arange(30) % 6
    bottom = [[(k, 25.0) for k in range(4)]] * 30
    assert found(rows, None, LabelRelevance(labels, labels, own=True)) == bottom
    assert (
        found(rows[:6], rows[6:], LabelRelevance(labels[:6], labels[6:], own=False))
        == [[(k, 20.0) for k in range(4)]] * 6
    )


@pytest.mark.parametrize("path", ["plain", "many settled", "many again"])
@pytest.mark.parametrize("grades", [None, torch.tensor([1.0, 2, 1, 2])])
def test_negatives_between_positives_that_float64_hardly_tells_apart(path, grades, monkeypatch):
    """Cosines a unit or less apart, which float64 may be off by: a negative that is less below counts."""
    set_sizes(monkeypatch, **PATHS[path][0])
    unit = 2 * exact.slack(64, torch.float64)
    cosines = 0.6 - unit * torch.tensor([0.0, 0.9, 1.8, 2.7, 1.5, 2.4, 3.3]).double()
    items = torch.zeros(7, 64, dtype=torch.float64)
    items[:, 0], items[:, 1] = cosines, (1 - cosines**2).sqrt()
    for seed in range(9):
        order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
        members = (order < 4).nonzero()[:, 0]
        relevance = Lists(members, torch.tensor([4]), None if grades is None else grades[order[members]])
        assert found(torch.eye(64)[:1].double(), items[order], relevance) == [[(0, 0), (1, 1), (2, 2), (3, 3)]]


@pytest.mark.parametrize("path", ["plain", "settled", "again", "many settled", "many again"])
def test_nearly_collapsed(path, monkeypatch):
    """All cosines within 1e-6 of each other, where float32 sums of 200 products tell nothing."""
    set_sizes(monkeypatch, **PATHS[path][0])
    rows = 1 + 5e-4 * torch.randn(24, 200)
    unit = rows.double() / rows.double().norm(dim=1, keepdim=True)
    assert 1 - (unit @ unit.T).min() < 1e-6
    labels = torch.arange(24) % 5
    result = expected(rows, None, reference.same_label(labels.tolist()))
    assert found(rows, None, LabelRelevance(labels, labels, own=True)) == result


def test_what_quick_scores_cannot_tell_is_scored_in_float64(monkeypatch):
    """The band of 640 dimensions is wider than what sums of 64 leave open; an exact tie stays open."""
    set_sizes(monkeypatch, redo=0)
    rows, items = (1 + 2e-2 * torch.randn(n, 640) for n in (5, 24))
    items[3] = items[4]
    pairs = {"quick_scores": 0, "exact_scores": 0}
    for name in pairs:
        real = getattr(exact, name)

        def noted(first, second, i, j, real=real, name=name):
            pairs[name] += len(i) * (sys._getframe(1).f_code.co_name == "_scores_again")
            return real(first, second, i, j)

        monkeypatch.setattr(exact, name, noted)
    relevant = [{3, q + 10} for q in range(5)]
    assert found(rows, items, lists(relevant)) == expected(rows, items, relevant)
    assert 0 < pairs["exact_scores"] < pairs["quick_scores"] / 2


@pytest.mark.parametrize("few", [40, 0])
def test_copies_of_the_query(few, monkeypatch):
    """Three copies of one row: a stranger's stands before the twin, and none is taken for the query itself."""
    set_sizes(monkeypatch, few=few)
    a, b = torch.randn(2, 300)
    rows, labels = torch.stack([a, a, a, b]), torch.tensor([0, 0, 1, 1])
    # query 0: item 2 is tied with item 1. Query 2: items 0, 1 before item 3. Query 3: 0, 1, 2 are tied.
    result = [[(0, 1)], [(0, 1)], [(0, 2)], [(0, 2)]]
    assert found(rows, None, LabelRelevance(labels, labels, own=True)) == result


@pytest.mark.parametrize("count", [31, 700])
def test_the_precision_the_user_allows_changes_nothing(count):
    """With bfloat16 products the cosines would be off by more than the band that is looked at again."""
    rows, labels = torch.randn(count, 32), torch.arange(count) % 31
    relevance = LabelRelevance(labels, labels, own=True)
    plain = found(rows, None, relevance)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert found(rows, None, relevance) == plain
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_an_error_in_use_leaves_the_precision_as_it_was():
    rows, labels = torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ZeroDivisionError):
        exact_ranks(Vectors("x", rows), None, LabelRelevance(labels, labels, own=True), None, lambda *_: 1 / 0)
    assert torch.get_float32_matmul_precision() == before
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("path", PATHS)
def test_progress_adds_up_to_all_of_the_work(path, monkeypatch):
    set_sizes(monkeypatch, **PATHS[path][0])
    steps, totals = [], []

    @contextmanager
    def recorded(what, total, show):
        totals.append(total)
        yield steps.append

    monkeypatch.setattr(exact, "progress", recorded)
    for items, labels in ((None, LABELS), (rows_of("apart", 31, 1), ITEM_LABELS)):
        found(rows_of("apart", 31), items, LabelRelevance(LABELS, labels, own=items is None))
        total = totals.pop()
        assert total * 30 / 31 < sum(steps) <= total  # the half of all pairs, or of all and the diagonal
        assert min(steps) > 0
        steps.clear()
