"""Graphs in place of exact search: what they find, when they are built, and their file."""

import json
from contextlib import closing

import numpy as np
import pytest

from frontrank.errors import InputError
from frontrank.retrieval import approximate_search, embedded
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from frontrank.retrieval.journal import Journal, write_journal
from tests.retrieval.engines import clustered
from tests.retrieval.engines import recall as share_of_best

COUNT, DIM = 3000, 16


@pytest.fixture
def small(monkeypatch):
    """An index counts as large from 500 rows, and matches of a filter as many from 60."""
    monkeypatch.setattr(embedded, "EXACT_ROWS", 500)
    monkeypatch.setattr(embedded, "_FEW_ROWS", 60)


@pytest.fixture(params=["hnsw", "ivfpq"])
def kind(request, small, monkeypatch):
    """A kind of approximate search; the memory decides which."""
    if request.param == "ivfpq":
        monkeypatch.setattr(embedded, "memory_for_vectors", lambda: 1000.0)
    return request.param


def vectors(count, seed=0):
    return clustered(count, DIM, seed, centres=40, noise=0.4)


def items_of(count, first=0):
    return [Item(f"{i:05d}", label=str(i % 10), metadata={"n": i}) for i in range(first, first + count)]


def recall(index, rows, queries, keep=None, **settings):
    """The share of the 10 nearest that is found; all hits are allowed and have their true score."""
    for query, hits in zip(queries, index.search(queries, 10, **settings), strict=True):
        places = [int(name) for name in hits.ids]
        assert keep is None or keep[places].all()
        np.testing.assert_allclose(hits.scores, rows[places] @ query, rtol=0, atol=1e-6)
    return share_of_best(lambda queries, k: index.search(queries, k, **settings), rows, queries, 10, keep)


def test_finds_nearly_all_of_the_nearest(kind, tmp_path):
    rows, queries = vectors(COUNT), vectors(50, seed=1)
    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(rows, items_of(COUNT))
        assert recall(index, rows, queries) >= 0.95  # with queries that it was not measured on
        facts = index.settings.facts
        assert facts["search"] == kind
        assert facts["recall@10"] >= approximate_search.TARGET[kind]
        assert facts["vectors in memory"] is (kind == "hnsw")
        assert (tmp_path / "index" / "graph.000001").exists()
        alone = [index.search(query[None])[0].ids for query in queries[:5]]
        for text in ("n<50", "label=3", "label!=3", "n>=1000"):
            keep = np.zeros(COUNT, bool)
            keep[[int(name) for name in index.search(queries[:1], COUNT, filter=text)[0].ids]] = True
            assert keep.sum() == index.count(text)
            least = 1.0 if keep.sum() < 0.11 * COUNT else 0.9
            assert recall(index, rows, queries, keep, filter=text) >= least, text
    with Index.load(tmp_path / "index") as again:
        assert again.settings.facts == facts  # nothing is built or measured again
        assert [hits.ids for hits in again.search(queries[:5])] == alone


def test_new_rows_are_found_at_once_and_dead_ones_never(kind, tmp_path):
    rows, queries = vectors(COUNT), vectors(30, seed=1)
    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(rows, items_of(COUNT))
        index.prepare()
        new = items_of(30, COUNT)
        index.add(queries, new)  # too few to extend the graph
        assert [hits.ids[0] for hits in index.search(queries, 3)] == [item.id for item in new]
        assert index.settings.facts["graph rows"] == COUNT
        every = np.concatenate([rows, queries])
        gone = np.random.default_rng(0).random(len(every)) < 0.2
        index.delete([f"{i:05d}" for i in np.flatnonzero(gone)])
        index.upsert(-every[:5], items_of(5))
        every[:5] *= -1
        gone[:5] = False
        assert recall(index, every, queries, ~gone) >= 0.9


def test_many_new_rows_are_added_to_the_graph(kind, tmp_path, monkeypatch):
    """An extension that is interrupted leaves no half graph in use."""
    rows = vectors(COUNT)

    def interrupt(*given):
        raise KeyboardInterrupt

    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(rows[:2000], items_of(2000))
        index.prepare()
        index.add(rows[2000:], items_of(COUNT - 2000, 2000))
        with monkeypatch.context() as patch:
            patch.setattr(approximate_search, "choose_effort", interrupt)
            with pytest.raises(KeyboardInterrupt):
                index.prepare()
        assert recall(index, rows, vectors(30, seed=1)) >= 0.9
        assert index.settings.facts["graph rows"] == COUNT
        index.add(vectors(400, seed=2), items_of(400, COUNT))
        index.prepare()
        assert index.settings.facts["graph rows"] == COUNT + 400


def test_search_stays_exact_if_no_graph_is_good_enough(small, monkeypatch):
    monkeypatch.setattr(approximate_search, "TARGET", {"hnsw": 1.1, "ivfpq": 1.1})
    rows, queries = vectors(COUNT), vectors(30, seed=1)
    index = Index(dim=DIM)
    index.add(rows, items_of(COUNT))
    assert recall(index, rows, queries) == 1.0
    assert index.settings.facts["search"] == "exact"
    monkeypatch.setattr(embedded, "build_graph", None)  # not tried again for every search
    assert recall(index, rows, queries) == 1.0


def test_a_damaged_graph_is_named_and_can_be_removed(small, tmp_path):
    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(vectors(600), items_of(600))
        index.prepare()
    path = tmp_path / "index" / "graph.000001"
    whole = path.read_bytes()
    for place in (*range(0, 200, 23), len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 4
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"graph.000001 is damaged"):
            Index.load(tmp_path / "index")
    path.unlink()
    with Index.load(tmp_path / "index") as index:
        assert index.count() == 600
        assert index.prepare().facts["search"] == "hnsw"
    assert path.exists()


@pytest.mark.parametrize("rows", [550, 600, 900])
def test_a_graph_of_another_index_is_built_again(small, tmp_path, rows):
    for name, count, seed in (("index", 600, 0), ("other", rows, 5)):
        with Index(tmp_path / name, dim=DIM) as index:
            index.add(vectors(count, seed), items_of(count))
            index.prepare()
    (tmp_path / "other" / "graph.000001").replace(tmp_path / "index" / "graph.000001")
    queries = vectors(50, 9)
    with Index.load(tmp_path / "index") as index, Index(dim=DIM) as exact:
        exact.add(vectors(600, 0), items_of(600))
        pairs = zip(index.search(queries, 10), exact.search(queries, 10), strict=True)
        same = [len({item.id for item in a.items} & {item.id for item in b.items}) for a, b in pairs]
    assert sum(same) > 0.95 * 10 * len(queries)


def test_crafted_graphs_with_a_valid_checksum(small, tmp_path):
    """None is followed to rows that do not exist, and none ends the process."""
    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(vectors(600), items_of(600))
        index.prepare()
    path = tmp_path / "index" / "graph.000001"
    with closing(Journal(path)) as stored:
        (_, packed), (_, content) = stored.read()
    rng, refused = np.random.default_rng(0), 0
    for number in range(60):
        facts, data = json.loads(packed), bytearray(content)
        if number % 4:
            for place in rng.integers(0, len(data) if number % 2 else 200, 8):
                data[place] = rng.integers(256)
        else:
            facts[rng.choice(["kind", "rows", "effort", "recall"])] = [None, -1, "x", 1e300, [], 10**30][number % 6]
        write_journal(path, [(0, json.dumps(facts).encode()), (1, bytes(data))])
        try:
            with Index.load(tmp_path / "index") as index:
                index.search(vectors(3, 1), 5)
        except InputError:
            refused += 1
    assert refused > 10


def test_a_full_disk_keeps_no_half_graph(small, tmp_path, monkeypatch):
    def fill_up(path, records):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(approximate_search, "write_journal", fill_up)
    with Index(tmp_path / "index", dim=DIM) as index:
        index.add(vectors(600), items_of(600))
        assert index.prepare().facts["search"] == "hnsw"
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == ["journal", "vectors.000001"]
