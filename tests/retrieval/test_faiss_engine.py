import threading

import numpy as np
import pytest

from frontrank.errors import InputError
from frontrank.retrieval import approximate_search as approximate
from frontrank.retrieval import embedded as faiss_engine
from frontrank.retrieval.embedded import GrowingArray
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.retrieval.index_engines import Model, halves, score_of, unit

COUNT, DIM = 3000, 16


@pytest.fixture
def small(monkeypatch):
    """An index counts as large from 500 rows, and matches of a filter as many from 60."""
    monkeypatch.setattr(faiss_engine, "EXACT_ROWS", 500)
    monkeypatch.setattr(faiss_engine, "_FEW_ROWS", 60)


@pytest.fixture(params=["hnsw", "ivfpq"])
def kind(request, small, monkeypatch):
    """A kind of approximate search, which is chosen by how much memory there is."""
    if request.param == "ivfpq":
        monkeypatch.setattr(faiss_engine, "memory_for_vectors", lambda: 1000.0)
    return request.param


def clustered(count, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((40, DIM))
    return unit(centres[rng.integers(0, 40, count)] + 0.4 * rng.standard_normal((count, DIM)))


def items_of(count, first=0):
    return [Item(f"{i:05d}", label=str(i % 10), metadata={"n": i}) for i in range(first, first + count)]


def recall(index, rows, queries, keep=None, **settings):
    """The share of the 10 nearest that is found; whatever is as near as the tenth counts as found."""
    keep = np.ones(len(rows), bool) if keep is None else keep
    shares = []
    for query, hits in zip(queries, index.search(queries, 10, **settings), strict=True):
        exact = np.where(keep, rows @ query, -2)
        assert len(set(hits.ids)) == 10
        assert all(keep[int(name)] for name in hits.ids)
        np.testing.assert_allclose(hits.scores, [exact[int(name)] for name in hits.ids], rtol=0, atol=1e-6)
        assert (np.diff(hits.scores) <= 0).all()
        shares.append((hits.scores >= np.sort(exact)[-10] - 1e-6).mean())
    return np.mean(shares)


def test_finds_nearly_all_of_the_nearest(kind, tmp_path):
    rows, queries = clustered(COUNT), clustered(50, seed=1)
    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(rows, items_of(COUNT))
        assert recall(index, rows, queries) >= 0.95  # of queries that it was not measured on
        facts = index.settings.facts
        assert facts["search"] == kind
        assert facts["recall@10"] >= approximate.TARGET[kind]
        assert facts["vectors in memory"] is (kind == "hnsw")
        assert (tmp_path / "index" / "graph.000001").exists()
        alone = [index.search(query[None])[0].ids for query in queries[:5]]
    with Index.load(tmp_path / "index") as again:
        assert again.settings.facts == facts  # nothing is built or measured again
        assert [hits.ids for hits in again.search(queries[:5])] == alone


def test_new_rows_are_found_at_once_and_dead_ones_never(kind, tmp_path):
    rows, queries = clustered(COUNT), clustered(30, seed=1)
    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(rows, items_of(COUNT))
        index.prepare()
        new = items_of(30, COUNT)
        index.add(queries, new)  # fewer than are worth building for
        assert [hits.ids[0] for hits in index.search(queries, 3)] == [item.id for item in new]
        assert index.settings.facts["graph rows"] == COUNT
        every = np.concatenate([rows, queries])
        gone = np.random.default_rng(0).random(len(every)) < 0.2
        index.delete([f"{i:05d}" for i in np.flatnonzero(gone)])
        index.upsert(-every[:5], items_of(5))
        every[:5] *= -1
        gone[:5] = False
        assert recall(index, every, queries, ~gone) >= 0.9


def test_a_graph_takes_in_rows_when_they_are_many(kind, tmp_path):
    rows = clustered(COUNT)
    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(rows[:2000], items_of(2000))
        index.prepare()
        index.add(rows[2000:], items_of(COUNT - 2000, 2000))
        assert recall(index, rows, clustered(30, seed=1)) >= 0.9
        assert index.settings.facts["graph rows"] == COUNT


def test_a_graph_that_was_interrupted_while_it_grew_is_not_used(kind, tmp_path, monkeypatch):
    rows = clustered(COUNT)

    def interrupted(*given):
        raise KeyboardInterrupt

    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(rows[:2000], items_of(2000))
        index.prepare()
        index.add(rows[2000:], items_of(COUNT - 2000, 2000))
        with monkeypatch.context() as patch:
            patch.setattr(approximate, "choose_effort", interrupted)
            with pytest.raises(KeyboardInterrupt):
                index.prepare()
        assert recall(index, rows, clustered(30, seed=1)) >= 0.9
        assert index.settings.facts["graph rows"] == COUNT


@pytest.mark.parametrize("text", ["n<50", "label=3", "label!=3", "n>=1000"])
def test_filters_with_a_graph(kind, tmp_path, text):
    rows, queries = clustered(COUNT), clustered(30, seed=1)
    index, model = Index(tmp_path / "index", dim=DIM), Model()
    index.add(rows, items_of(COUNT))
    model.upsert(rows, items_of(COUNT))
    keep = np.zeros(COUNT, bool)
    (everything,) = index.search(queries[:1], COUNT, filter=text)
    keep[[int(name) for name in everything.ids]] = True
    assert keep.sum() == index.count(text)
    assert recall(index, rows, queries, keep, filter=text) >= (1.0 if keep.sum() < 0.11 * COUNT else 0.9)
    index.close()


def test_search_stays_exact_if_nothing_is_good_enough(small, monkeypatch):
    monkeypatch.setattr(approximate, "TARGET", {"hnsw": 1.1, "ivfpq": 1.1})
    rows, queries = clustered(COUNT), clustered(30, seed=1)
    index = Index(dim=DIM)
    index.add(rows, items_of(COUNT))
    assert recall(index, rows, queries) == 1.0
    assert index.settings.facts["search"] == "exact"
    monkeypatch.setattr(faiss_engine, "build_graph", None)  # not tried again for every search
    assert recall(index, rows, queries) == 1.0


def test_long_lists_and_scan(kind, tmp_path):
    rows = clustered(700)
    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(rows, items_of(700))
        for k in (100, 700, 1000):
            (hits,) = index.search(rows[:1], k)
            assert hits.scores.tolist() == sorted((score_of(row, rows[0]) for row in rows), reverse=True)[:k]


def test_a_damaged_graph_is_refused_by_name_and_can_be_removed(small, tmp_path):
    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(clustered(600), items_of(600))
        index.prepare()
    path = tmp_path / "index" / "graph.000001"
    whole = path.read_bytes()
    for place in (*range(0, 200, 11), len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 4
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"graph.000001 is damaged; remove it, and it is built again"):
            Index.load(tmp_path / "index")
    path.unlink()
    with Index.load(tmp_path / "index") as index:
        assert index.count() == 600
        assert index.prepare().facts["search"] == "hnsw"
    assert path.exists()


def test_a_graph_of_another_index(small, tmp_path):
    for name, count in (("large", 900), ("small", 600)):
        with Index(tmp_path / name, dim=DIM) as index:
            index.add(clustered(count), items_of(count))
            index.prepare()
    (tmp_path / "large" / "graph.000001").replace(tmp_path / "small" / "graph.000001")
    with pytest.raises(InputError, match=r"graph.000001 belongs to another index; remove it"):
        Index.load(tmp_path / "small")


@pytest.mark.parametrize("folder", [None, "index"])
def test_what_is_dead_goes_when_it_is_a_third(tmp_path, monkeypatch, folder):
    monkeypatch.setattr(faiss_engine, "_LEAST_DEAD", 10)
    index = Index(folder and tmp_path / folder, dim=8)
    items, rows = items_of(60), halves(60)
    index.add(rows, items)
    index.upsert(rows[:20], items[:20])
    assert index.settings.facts["dead rows"] == 20
    index.upsert(rows[:20], items[:20])
    index.delete(["00059"])
    assert index.settings.facts["dead rows"] <= 1
    assert list(index.items()) == items[:59]
    np.testing.assert_array_equal(index.vectors([item.id for item in items[:59]]), rows[:59])
    index.close()


def test_a_disk_that_is_full_while_writing_anew(tmp_path, monkeypatch):
    """The write itself was done, and says so."""
    monkeypatch.setattr(faiss_engine, "_LEAST_DEAD", 10)

    def full(*given):
        raise InputError("no room")

    with Index(tmp_path / "index", dim=8) as index:
        index.add(halves(60), items_of(60))
        with monkeypatch.context() as patch:
            patch.setattr(faiss_engine, "rewrite_folder", full)
            assert index.delete([f"{i:05d}" for i in range(40)]) == 40
        assert index.count() == 20
        assert index.settings.facts["dead rows"] == 40
        assert index.delete(["00040"]) == 1
        assert index.settings.facts["dead rows"] == 0


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    index = Index(tmp_path / "index", dim=8)
    index.add(halves(2), items_of(2))

    def full(file, vectors):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("frontrank.retrieval.journal._write_rows", full)
        with pytest.raises(InputError, match="index cannot be written: No space left on device; make room there"):
            index.add(halves(1), [Item("new")])
    assert index.count() == 2
    index.add(halves(1), [Item("new")])
    index.close()
    with Index.load(tmp_path / "index") as index:
        assert index.count() == 3


def test_half_a_graph_is_not_left_on_a_full_disk(small, tmp_path, monkeypatch):
    def full(path, records):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(approximate, "write_journal", full)
    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(clustered(600), items_of(600))
        assert index.prepare().facts["search"] == "hnsw"
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == ["journal", "vectors.000001"]


def test_threads_search_while_one_writes(tmp_path, monkeypatch):
    """Every answer is one of an index at some moment: a list of items that were there together."""
    monkeypatch.setattr(faiss_engine, "_LEAST_DEAD", 10)
    index = Index(tmp_path / "index", dim=8)
    rows = halves(40)
    index.add(rows, [Item(str(i), metadata={"turn": 0}) for i in range(40)])
    wrong, stop = [], threading.Event()

    def look():
        while not stop.is_set():
            (hits,) = index.search(rows[:1], 100, filter="turn>=0")
            if len({item.metadata["turn"] for item in hits.items}) != 1 or len(hits) != 40:
                wrong.append(hits)
            if index.count("turn<0") or len(index.get(["1"])) != 1:
                wrong.append("count")

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(1, 40):
        index.upsert(rows, [Item(str(i), metadata={"turn": turn}) for i in range(40)])
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    index.close()


def test_arrays_grow_in_proportion():
    array, held = GrowingArray(np.int64), set()
    for i in range(5000):
        array.append(np.array([i]))
        held.add(array.rows.__array_interface__["data"][0])
    assert array.rows.tolist() == list(range(5000))
    assert len(held) < 40
