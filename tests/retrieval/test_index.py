"""The contract of an index, the same on every engine; and what is checked before an engine is called."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from frontrank.errors import InputError, InputTypeError
from frontrank.retrieval import Whitening, embedded, expand_queries
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Condition, Item, matches, read_filter
from tests.errors import refusal
from tests.retrieval.engines import FAISS, Model, check_hits, halves, some_items, unit

FILTERS = [
    "label=class 1", "label!=class 1", "label=class 1|class 2", "label!=class 1|class 2", "category=odd",
    "category!=odd", "id=item-3|item-4", "path=folder/3.jpg", "n=7", "n!=7", "n<20", "n<=20", "n>20", "n>=20.5",
    "half=3.5", "colour=red", "colour=7", "colour>3", "seen=true", "seen!=false", "none=1", "none!=1", "none<1",
    "n=nothing", "label>3",
]  # fmt: skip


def ids(items):
    return [item.id for item in items]


def test_finds_the_best_and_orders_ties_by_id(engine, filled):
    index, model = filled
    queries = halves(5, seed=1)
    for k in (1, 3, 59, 60, 100):
        for query, hits in zip(queries, index.search(queries, k), strict=True):
            check_hits(engine, hits, model.best(query, k))
            assert list(hits.items) == [model.rows[name][1] for name in hits.ids]
            (alone,) = index.search(query[None], k)
            assert (alone.ids, alone.scores.tolist()) == (hits.ids, hits.scores.tolist())
    assert ids(index.get(["item-5", "item-2", "item-5"])) == ["item-5", "item-2", "item-5"]
    np.testing.assert_array_equal(index.vectors(["item-5", "item-2"]), [model.rows[f"item-{i}"][0] for i in (5, 2)])
    refusal(lambda: index.vectors(["item-5", "none"]), "ids", "'none'")


def test_filters_mean_what_matches_says(engine, filled):
    index, model = filled
    queries = halves(2, seed=3)
    for text in (*FILTERS, ["label=class 1|class 2", "n>10", "category!=odd"]):
        conditions = read_filter(text)
        expected = {name for name, (_, item) in model.rows.items() if matches(conditions, item)}
        assert index.count(text) == len(expected), text
        for query, hits in zip(queries, index.search(queries, 4, filter=text), strict=True):
            check_hits(engine, hits, model.best(query, 4, conditions))
        assert set(index.search(queries[:1], 100, filter=text)[0].ids) == expected, text


def test_an_empty_index(index):
    index.add([], [])
    index.upsert(np.empty((0, 8), np.float32), [])
    (hits,) = index.search(halves(1), 5)
    assert (hits.items, hits.scores.shape) == ((), (0,))
    assert index.count() == len(index) == 0
    assert list(index.items()) == []
    assert index.labels() == {}
    assert index.get(["a"]) == [None]
    assert index.delete(["a"]) == index.delete([]) == 0
    assert index.search(np.empty((0, 8), np.float32)) == []


def test_add_refuses_known_ids_and_upsert_replaces_them(engine, refilled):
    index, model = refilled
    refusal(lambda: index.add(halves(3), [Item("new"), Item("item-9"), Item("item-3")]), "'item-3', 'item-9'", "upsert")
    assert (index.count(), index.get(["new"])) == (60, [None])
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


def test_delete(engine, refilled):
    index, model = refilled
    gone = [f"item-{i}" for i in range(0, 60, 2)]
    assert index.delete([*gone, "item-0", "never"]) == model.delete(gone) == 30
    assert index.delete(gone) == 0
    assert index.count() == 30
    assert index.get(["item-0"]) == [None]
    for query in halves(4, seed=7):
        check_hits(engine, index.search(query[None], 30)[0], model.best(query, 30))
    index.add(halves(1), [Item("item-0")])
    assert index.get(["item-0"]) == [Item("item-0")]


def test_items_come_by_id_in_pages(index, monkeypatch):
    names = ["b", "a", "B", "é", "10", "9", "日本", "🐈", "a b", "~"]
    index.add(halves(10), [Item(name) for name in names])
    assert ids(index.items()) == sorted(names)
    monkeypatch.setattr("frontrank.retrieval.index._PAGE", 3)
    assert ids(index.items()) == sorted(names)
    assert ids(index.items(limit=4)) == sorted(names)[:4]
    assert ids(index.items(after="a", limit=2)) == sorted(names)[sorted(names).index("a") + 1 :][:2]
    assert ids(index.items(after="aa")) == [name for name in sorted(names) if name > "aa"]
    assert ids(index.items(limit=0)) == ids(index.items(after="🐈🐈")) == []


def test_values_are_counted(index):
    metadata = [{"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": True}, {"a": "x"}, {}, {"a": 0.5}, {"a": "true"}]
    labels = ["cat"] * 3 + ["dog"] * 4 + [None]
    index.add(halves(8), [Item(str(i), label=labels[i], metadata=metadata[i]) for i in range(8)])
    assert list(index.values("a").items()) == [("1", 3), ("true", 2), ("0.5", 1), ("x", 1)]
    assert list(index.labels().items()) == [("dog", 4), ("cat", 3)]
    for text, count in index.values("a").items():
        assert index.count(Condition("a", "=", (text,))) == count
    index.delete(["3", "4", "0"])
    assert index.labels() == {"dog": 2, "cat": 2}
    assert index.values("a") == {"1": 2, "0.5": 1, "true": 1}
    assert index.values("nowhere") == {}


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


def test_expansion_is_that_of_expand_queries(make):
    """Towards the hits that pass the filter: they are the gallery that is searched."""
    rng = np.random.default_rng(1)
    rows, queries, items = rng.standard_normal((40, 8)), rng.standard_normal((3, 8)), some_items(40)
    index = make(expansion=(4, 1.5))
    assert len(index.search(halves(2), 3)[1]) == 0  # there is nothing to move to
    index.add(rows, items)
    assert len(index.search(queries, 3, filter="label=none")[0]) == 0
    for text in ("", "category=odd"):
        gallery = [i for i in range(40) if matches(read_filter(text) if text else (), items[i])]
        for expansion, given in [((4, 1.5), None), ((2, 0.0), (2, 0.0)), ((99, 2), [99, 2])]:
            moved = expand_queries(queries, rows[gallery], *expansion).numpy()
            scores = moved @ unit(rows[gallery]).T
            for row, hits in zip(scores, index.search(queries, 10, filter=text, expand=given), strict=True):
                assert list(hits.ids) == [f"item-{gallery[i]}" for i in np.argsort(-row)[:10]]
                np.testing.assert_allclose(hits.scores, np.sort(row)[::-1][:10], rtol=0, atol=2e-6)
        plain = unit(queries) @ unit(rows[gallery]).T
        for row, hits in zip(plain, index.search(queries, 3, filter=text, expand=False), strict=True):
            assert list(hits.ids) == [f"item-{gallery[i]}" for i in np.argsort(-row)[:3]]


def test_a_copy_in_a_folder(refilled, tmp_path):
    index, model = refilled
    index.delete(["item-3"])
    model.delete(["item-3"])
    index.save(tmp_path / "copy")
    with Index.load(tmp_path / "copy") as copy:
        assert list(copy.items()) == list(index.items())
        assert copy.settings.dim == 8
        for query in halves(3, seed=8):
            check_hits(FAISS, copy.search(query[None], 5)[0], model.best(query, 5))
    refusal(lambda: index.save(tmp_path / "copy"), "copy", "overwrite")
    index.delete(["item-4"])
    index.save(tmp_path / "copy", overwrite=True)
    with Index.load(tmp_path / "copy") as copy:
        assert copy.count() == 58
        copy.save(tmp_path / "copy" / ".." / "copy")  # where it is already
        copy.delete(["item-5"])
        assert copy.count() == 57


def test_settings_and_a_closed_index(engine, make):
    whitening = Whitening.fit(np.random.default_rng(0).standard_normal((30, 8)), dim=3, power=0.3)
    with make(model="abc", whitening=whitening, expansion=(5, 3)) as index:
        settings = index.settings
        assert (settings.dim, settings.stored_dim, settings.model, settings.expansion) == (8, 3, "abc", (5, 3.0))
        assert torch.equal(settings.whitening.components, whitening.components)
        assert settings.engine == ("faiss" if engine.name == "memory" else engine.name)
        assert "search" in settings.facts
        assert "8 dimensions, 0 items" in repr(index)
    index.close()
    assert "closed" in repr(index)
    for call in (index.count, lambda: index.search(halves(1)), lambda: index.add(halves(1), [Item("a")])):
        refusal(call, "closed")


def test_opened_again(durable):
    whitening = Whitening.fit(np.random.default_rng(0).standard_normal((30, 8)))
    index = durable(model="abc", whitening=whitening, expansion=(5, 3.0))
    rows, items = np.random.default_rng(1).standard_normal((30, 8)), some_items(30)
    index.add(rows, items)
    index.upsert(rows[:3], items[10:13])
    index.delete(["item-4", "item-20"])
    hits_before, items_before, labels_before = index.search(rows[:5], 30), list(index.items()), index.labels()
    index.close()
    again = durable.open_again(index)
    assert list(again.items()) == items_before
    assert again.labels() == labels_before
    for hits, expected in zip(again.search(rows[:5], 30, model="abc"), hits_before, strict=True):
        assert (hits.ids, hits.scores.tolist()) == (expected.ids, expected.scores.tolist())
    assert torch.equal(again.settings.whitening.mean, whitening.mean)
    assert again.settings.expansion == (5, 3.0)
    again.add(rows[4:5], [items[4]])
    assert again.count() == 29


def test_other_settings_than_those_of_the_index(durable):
    rng = np.random.default_rng(0)
    first, second = (Whitening.fit(rng.standard_normal((30, 8)), dim=4) for _ in range(2))
    whitened, plain = durable(model="abc", whitening=first, expansion=(5, 3.0)), durable()
    durable.open_again(whitened, dim=8, model="abc", whitening=first, expansion=(5, 3))
    for index in (plain, whitened):
        for name, value in {"dim": 9, "model": "xyz", "whitening": second, "expansion": (5, 2.0)}.items():
            with pytest.raises(InputError, match=f"^{name} is"):
                durable.open_again(index, **{name: value})


def test_notes_of_several_who_have_it_open(durable):
    index = durable(model="abc")
    other = durable.open_again(index)
    index.note(model="runs/first", roots=["a", "b"])
    other.note(roots="c")
    assert other.settings.notes == durable.open_again(index).settings.notes == {"model": "runs/first", "roots": "c"}
    index.note(model="runs/first")
    assert index.settings.notes == other.settings.notes
    assert index.settings.model == "abc"
    refusal(lambda: index.note(roots=3), "roots", error=InputTypeError)
    assert index.settings.notes == other.settings.notes


# Checks before an engine is called: the same for all engines, so tested on the one in memory.


def test_embeddings_that_cannot_be_stored():
    index = Index(dim=8)
    for embeddings, error, fault in [
        (np.ones((2, 7)), InputError, "embeddings .*7 dimensions"),
        (np.ones(8), InputError, r"embeddings .*\(8,\)"),
        (np.ones((3, 8)), InputError, "embeddings .*3 rows"),
        (np.ones((2, 8), int), InputTypeError, "embeddings .*int64"),
        (np.array([[1.0] * 8, [0.0] * 8]), InputError, "embeddings.*'b' .*zeros"),
        (np.array([[1.0] * 8, [np.nan] * 8]), InputError, "embeddings.*'b' .*NaN"),
        (np.array([[np.inf] * 8, [1.0] * 8]), InputError, "embeddings.*'a' .*NaN"),
    ]:
        for call in (index.add, index.upsert):
            with pytest.raises(error, match=fault):
                call(embeddings, [Item("a"), Item("b")])
    assert index.count() == 0


def test_embeddings_of_any_kind_and_size(monkeypatch):
    monkeypatch.setattr("frontrank.retrieval.index._CHUNK", 2)
    scales = [lambda rows, scale=scale: rows.astype(np.float64) * scale for scale in (1e-300, 1e-40, 1e40, 1e300)]
    kinds = [torch.tensor, lambda rows: torch.tensor(rows).bfloat16(), np.float16, list, np.asfortranarray]
    for convert in (*kinds, *scales):
        index = Index(dim=8)
        index.add(convert(halves(5)), some_items(5))
        np.testing.assert_array_equal(index.vectors([f"item-{i}" for i in range(5)]), halves(5))
        assert index.search(convert(halves(5)), 1)[2].scores.tolist() == [1.0]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda index: index.search(halves(1), k=0), "^k "),
        (lambda index: index.search(np.zeros((2, 8))), "^queries.*row 0"),
        (lambda index: index.search(halves(1), filter="label"), "^filter"),
        (lambda index: index.search(halves(1), expand=True), "^expansion"),
        (lambda index: index.search(halves(1), expand=(1, -1)), "alpha of expansion"),
        (lambda index: index.search(halves(1), model="xyz"), "^model .*xyz"),
        (lambda index: index.delete("item-1"), "^ids"),
        (lambda index: index.add(halves(1), ["a"]), "^items"),
        (lambda index: index.add(halves(3), [Item("a"), Item("b"), Item("a")]), "^items.*'a'"),
        (lambda index: index.items(limit=-1), "^limit"),
        (lambda index: index.values("a b"), "^field"),
        (lambda index: index.save("milvus://host/a"), "^path"),
        (lambda index: Index.load(None), "^url"),
        (lambda index: Index(b"bytes", dim=8), "^url"),
        (lambda index: Index(dim=0), "^dim"),
        (lambda index: Index(), "dim"),
        (lambda index: Index(dim=8, whitening=Whitening.fit(torch.eye(6))), "^whitening.*6.*dim is 8"),
        (lambda index: Index(dim=8, whitening=3), "^whitening"),
        (lambda index: Index(dim=8, model=3), "^model"),
        (lambda index: Index(dim=8, expansion=3), "^expansion"),
    ],
)
def test_wrong_arguments(call, name):
    index = Index(dim=8, model="abc")
    index.add(halves(2), some_items(2))
    with pytest.raises((InputError, InputTypeError), match=name) as raised:
        call(index)
    assert "\n" not in str(raised.value)
    assert index.count() == 2


def test_urls(tmp_path):
    with Index(f"file://{tmp_path}/a%20b", dim=8) as index:
        index.add(halves(1), [Item("a")])
    assert (tmp_path / "a b" / "journal").exists()
    refusal(lambda: Index("file://host/a", dim=8), "file://host/a")
    with pytest.raises(InputError, match="ftp://") as raised:
        Index("ftp://user:secret@host/a", dim=8)
    assert "secret" not in str(raised.value)
    refusal(lambda: Index.load("mlvus://host/a"), "mlvus", "milvus?")


def test_settings_that_cannot_be_read(tmp_path):
    whitening = Whitening.fit(torch.randn(20, 8), dim=3)
    with Index(dim=9) as other, Index(tmp_path / "index", dim=8, whitening=whitening) as index:
        own, another = index._open.read_settings(), other._open.read_settings()
        for packed in (b"", b"no zip", own.replace(b'"version": 1', b'"version": 9'), own[:-400], another):
            index._open.write_settings(packed)
            with pytest.raises(InputError, match=str(tmp_path / "index")):
                Index.load(tmp_path / "index")


# Any sequence of writes to an index in a folder does what it does to a dictionary.

NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5, unique=True)
METADATA = st.fixed_dictionaries(
    {}, optional={"n": st.integers(0, 3), "t": st.sampled_from(["x", "1"]), "b": st.booleans()}
)


class IndexMachine(RuleBasedStateMachine):
    """Two open indexes of one folder, written to by turns, and the model of them."""

    def __init__(self):
        super().__init__()
        self.least, embedded._LEAST_DEAD = embedded._LEAST_DEAD, 2
        self.folder = Path(tempfile.mkdtemp())
        self.indexes = [Index(self.folder / "index", dim=8), Index(self.folder / "index")]
        self.model, self.seed = Model(), 0

    def teardown(self):
        embedded._LEAST_DEAD = self.least
        for index in self.indexes:
            index.close()
        shutil.rmtree(self.folder)

    @rule(which=st.integers(0, 1), names=NAMES, metadata=METADATA, label=st.sampled_from([None, "x", "y"]))
    def upsert(self, which, names, metadata, label):
        self.seed += 1
        rows = halves(len(names), seed=self.seed)
        items = [Item(name, label=label, metadata=metadata) for name in names]
        self.indexes[which].upsert(rows, items)
        self.model.upsert(rows, items)

    @rule(which=st.integers(0, 1), names=NAMES)
    def delete(self, which, names):
        assert self.indexes[which].delete(names) == self.model.delete(names)

    @rule(which=st.integers(0, 1))
    def open_again(self, which):
        self.indexes[which].close()
        self.indexes[which] = Index.load(self.folder / "index")

    @rule(
        which=st.integers(0, 1),
        filter=st.sampled_from([(), "n>1", "n!=1", "t=1|x", "b=true", "label=x", "label!=x"]),
        k=st.integers(1, 9),
    )
    def search(self, which, filter, k):
        index, conditions = self.indexes[which], read_filter(filter)
        index.refresh()
        query = halves(1, seed=99)
        (hits,) = index.search(query, k, filter=filter)
        assert list(zip(hits.scores.tolist(), hits.ids, strict=True)) == self.model.best(query[0], k, conditions)
        assert index.count(filter) == len(self.model.best(query[0], 99, conditions))

    @invariant()
    def same_items(self):
        for index in self.indexes:
            index.refresh()
            names = sorted(self.model.rows)
            assert list(index.items()) == [self.model.rows[name][1] for name in names]
            if names:
                np.testing.assert_array_equal(index.vectors(names), [self.model.rows[name][0] for name in names])


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=12, stateful_step_count=12)
