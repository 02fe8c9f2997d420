"""The contract of an index: the same on every engine."""

import numpy as np
import pytest
import torch

from frontrank.errors import InputError
from frontrank.retrieval import Whitening, expand_queries
from frontrank.retrieval.items import Condition, Item, matches, read_filter
from tests.retrieval.index_engines import Model, check_hits, halves, some_items, unit

FILTERS = [
    "label=class 1",
    "label!=class 1",
    "label=class 1|class 2",
    "label!=class 1|class 2",
    "category=odd",
    "category!=odd",
    "id=item-3|item-4",
    "path=folder/3.jpg",
    "n=7",
    "n!=7",
    "n<20",
    "n<=20",
    "n>20",
    "n>=20.5",
    "half=3.5",
    "colour=red",
    "colour=7",
    "colour>3",
    "seen=true",
    "seen!=false",
    "none=1",
    "none!=1",
    "none<1",
    "n=nothing",
    "label>3",
]


def ids(found):
    return [item.id for item in found]


@pytest.mark.parametrize("k", [1, 3, 10, 59, 60, 100])
def test_finds_the_best_and_orders_ties_by_id(engine, filled, k):
    index, model = filled
    queries = halves(5, seed=1)
    for query, hits in zip(queries, index.search(queries, k), strict=True):
        check_hits(engine, hits, model.best(query, k))
        assert list(hits.items) == [model.rows[name][1] for name in hits.ids]


def test_finds_the_best_of_vectors_of_any_length(make):
    rng = np.random.default_rng(0)
    rows, items = rng.standard_normal((50, 6)) * rng.uniform(0.01, 100, (50, 1)), some_items(50)
    index, model = make(dim=6), Model()
    index.add(rows, items)
    model.upsert(rows, items)
    for query in rng.standard_normal((9, 6)):
        (hits,) = index.search(query[None] * 1000, k=7)
        expected = model.best(query, 7)
        assert list(hits.ids) == [name for _, name in expected]
        np.testing.assert_allclose(hits.scores, [score for score, _ in expected], rtol=0, atol=1e-6)


def test_one_query_finds_what_many_find(filled):
    index, _ = filled
    queries = halves(40, seed=2)
    for query, hits in zip(queries, index.search(queries, 7), strict=True):
        (alone,) = index.search(query[None], 7)
        assert alone.ids == hits.ids
        assert alone.scores.tolist() == hits.scores.tolist()


@pytest.mark.parametrize("text", FILTERS)
def test_filters_mean_what_matches_says(engine, filled, text):
    index, model = filled
    conditions = read_filter(text)
    expected = {name for name, (_, item) in model.rows.items() if matches(conditions, item)}
    assert index.count(text) == len(expected)
    queries = halves(3, seed=3)
    for query, hits in zip(queries, index.search(queries, 4, filter=text), strict=True):
        check_hits(engine, hits, model.best(query, 4, conditions))
    (everything,) = index.search(queries[:1], 100, filter=text)
    assert set(everything.ids) == expected


def test_several_conditions_all_hold(engine, filled):
    index, model = filled
    conditions = read_filter(["label=class 1|class 2", "n>10", "category!=odd"])
    query = halves(1, seed=4)
    (hits,) = index.search(query, 100, filter=conditions)
    check_hits(engine, hits, model.best(query[0], 100, conditions))
    assert 0 < len(hits) == index.count(conditions) < 60


def test_an_empty_index(make):
    index = make()
    (hits,) = index.search(halves(1), 5)
    assert hits.items == ()
    assert hits.scores.shape == (0,)
    assert index.count() == len(index) == 0
    assert list(index.items()) == []
    assert index.labels() == {}
    assert index.get(["a"]) == [None]
    assert index.delete(["a"]) == 0
    assert index.delete([]) == 0


def test_no_queries(filled):
    assert filled[0].search(np.empty((0, 8), np.float32)) == []


def test_adding_nothing(make):
    index = make()
    index.add([], [])
    index.upsert(np.empty((0, 8), np.float32), [])
    assert index.count() == 0


def test_upsert_replaces_vector_and_item(engine, filled):
    index, model = filled
    rows = halves(20, seed=5)
    items = [Item(f"item-{i}", label="new", metadata={"n": 1000 + i}) for i in range(50, 70)]
    index.upsert(rows, items)
    model.upsert(rows, items)
    assert index.count() == 70
    assert index.count("label=new") == index.count("n>=1000") == 20
    assert index.get(["item-55", "item-69", "item-3"]) == [items[5], items[19], some_items(4)[3]]
    np.testing.assert_array_equal(index.vectors(["item-60", "item-50"]), rows[[10, 0]])
    for query in halves(4, seed=6):
        check_hits(engine, index.search(query[None], 30)[0], model.best(query, 30))


def test_delete(engine, filled):
    index, model = filled
    gone = [f"item-{i}" for i in range(0, 60, 2)]
    assert index.delete([*gone, "item-0", "never"]) == model.delete(gone) == 30
    assert index.delete(gone) == 0
    assert index.count() == 30
    assert index.get(["item-0", "item-1"])[0] is None
    for query in halves(4, seed=7):
        check_hits(engine, index.search(query[None], 30)[0], model.best(query, 30))
    index.add(halves(1), [Item("item-0")])
    assert index.get(["item-0"]) == [Item("item-0")]
    assert index.delete([f"item-{i}" for i in range(60)]) == 31
    assert index.count() == 0
    assert len(index.search(halves(1), 3)[0]) == 0


def test_add_refuses_what_is_there_and_adds_nothing(filled):
    index, _ = filled
    with pytest.raises(InputError, match=r"items has 2 that the index has already \('item-3', 'item-9'\); use upsert"):
        index.add(halves(3), [Item("new"), Item("item-9"), Item("item-3")])
    assert index.count() == 60
    assert index.get(["new"]) == [None]


@pytest.mark.parametrize("call", ["add", "upsert"])
def test_an_id_twice_in_one_call(make, call):
    index = make()
    with pytest.raises(InputError, match="items has the id 'a' twice; give each id once"):
        getattr(index, call)(halves(3), [Item("a"), Item("b"), Item("a")])
    assert index.count() == 0


def test_items_come_by_id_in_pages(make, monkeypatch):
    index = make()
    names = ["b", "a", "B", "é", "10", "9", "日本", "🐈", "a b", "~"]
    index.add(halves(10), [Item(name) for name in names])
    assert ids(index.items()) == sorted(names)
    monkeypatch.setattr("frontrank.retrieval.index._PAGE", 3)
    assert ids(index.items()) == sorted(names)
    assert ids(index.items(limit=4)) == sorted(names)[:4]
    assert ids(index.items(after="a", limit=2)) == sorted(names)[sorted(names).index("a") + 1 :][:2]
    assert ids(index.items(after="aa")) == [name for name in sorted(names) if name > "aa"]
    assert ids(index.items(limit=0)) == ids(index.items(after="🐈🐈")) == []


def test_values_and_how_many_have_them(make):
    index = make()
    kept = [{"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": True}, {"a": "x"}, {}, {"a": 0.5}, {"a": "true"}]
    items = [Item(str(i), label="cat" if i < 3 else "dog" if i < 7 else None, metadata=m) for i, m in enumerate(kept)]
    index.add(halves(8), items)
    assert index.values("a") == {"1": 3, "true": 2, "0.5": 1, "x": 1}
    assert list(index.values("a")) == ["1", "true", "0.5", "x"]
    assert list(index.labels().items()) == [("dog", 4), ("cat", 3)]
    for text, count in index.values("a").items():
        assert index.count(Condition("a", "=", (text,))) == count
    index.delete(["3", "4", "0"])
    assert index.labels() == {"dog": 2, "cat": 2}
    assert index.values("a") == {"1": 2, "0.5": 1, "true": 1}
    assert index.values("nowhere") == {}


def test_get_in_the_order_of_the_ids(filled):
    index, model = filled
    assert ids(index.get(["item-5", "item-2", "item-5"])) == ["item-5", "item-2", "item-5"]
    assert index.get([]) == []
    np.testing.assert_array_equal(index.vectors(["item-5", "item-2"]), [model.rows[f"item-{i}"][0] for i in (5, 2)])
    with pytest.raises(InputError, match=r"ids has 1 that the index does not have \('none'\)"):
        index.vectors(["item-5", "none"])


PLAIN = ["ü", "日本語", "🐈‍⬛", "é", "e\u0301", "x" * 512, "a/b.jpg", " a "]
STRANGE = [*PLAIN, "a'b", 'a"b', "a\\b", "a%b_c", "a|b", "a;b--", "$1", "{}", "[x]"]


def test_any_text_comes_back_and_is_found(make):
    index = make()
    items = [Item(text, text, text, text, {"any": text}) for text in STRANGE]
    index.add(halves(len(STRANGE)), items)
    assert index.get(STRANGE) == items
    for text, item in zip(STRANGE, items, strict=True):
        for field in ("id", "path", "label", "category", "any"):
            (hits,) = index.search(halves(1), 99, filter=Condition(field, "=", (text,)))
            assert hits.items == (item,)
    assert index.labels() == dict.fromkeys(sorted(STRANGE), 1)
    assert index.delete(STRANGE) == len(STRANGE)


def test_whitening_is_applied_to_both_sides(make):
    rng = np.random.default_rng(0)
    rows, queries = rng.standard_normal((40, 8)), rng.standard_normal((3, 8))
    whitening = Whitening.fit(rows, dim=5)
    index = make(whitening=whitening)
    index.add(rows, some_items(40))
    expected = whitening.apply(torch.from_numpy(unit(rows)).double()).numpy()
    np.testing.assert_allclose(index.vectors([f"item-{i}" for i in range(40)]), expected, rtol=0, atol=1e-6)
    scores = whitening.apply(queries).numpy() @ expected.T
    for row, hits in zip(scores, index.search(queries, 40), strict=True):
        assert list(hits.ids) == [f"item-{i}" for i in np.argsort(-row)]
        np.testing.assert_allclose(hits.scores, np.sort(row)[::-1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("text", ["", "category=odd"])
def test_expansion_is_that_of_expand_queries(make, text):
    """Towards the hits that pass the filter: they are the gallery that is searched."""
    rng = np.random.default_rng(1)
    rows, queries, items = rng.standard_normal((40, 8)), rng.standard_normal((3, 8)), some_items(40)
    kept = [i for i in range(40) if matches(read_filter(text) if text else (), items[i])]
    index = make(expansion=(4, 1.5))
    index.add(rows, items)
    for expansion, said in [((4, 1.5), None), ((2, 0.0), (2, 0.0)), ((99, 2), [99, 2])]:
        moved = expand_queries(queries, rows[kept], *expansion).numpy()
        scores = moved @ unit(rows[kept]).T
        for row, hits in zip(scores, index.search(queries, 10, filter=text, expand=said), strict=True):
            assert list(hits.ids) == [f"item-{kept[i]}" for i in np.argsort(-row)[:10]]
            np.testing.assert_allclose(hits.scores, np.sort(row)[::-1][:10], rtol=0, atol=2e-6)
    plain = unit(queries) @ unit(rows[kept]).T
    for row, hits in zip(plain, index.search(queries, 3, filter=text, expand=False), strict=True):
        assert list(hits.ids) == [f"item-{kept[i]}" for i in np.argsort(-row)[:3]]


def test_expansion_that_finds_nothing(make):
    index = make(expansion=(3, 1.0))
    assert len(index.search(halves(2), 3)[1]) == 0
    index.add(halves(1), [Item("a")])
    assert len(index.search(halves(2), 3, filter="label=none")[0]) == 0
    assert index.search(-halves(1), 3)[0].scores.tolist() == [-1.0]
