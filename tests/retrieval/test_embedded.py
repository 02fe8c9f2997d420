"""The embedded engine: rows in memory or in their file, several readers and writers, rows that die."""

import threading

import numpy as np
import pytest

from frontrank.retrieval import embedded
from frontrank.retrieval.embedded import VectorRows
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.retrieval.engines import halves, some_items

ROWS = np.arange(40, dtype="<f4").reshape(10, 4)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "vectors").write_bytes(ROWS.tobytes())
    with (tmp_path / "vectors").open("rb", buffering=0) as opened:
        yield opened


def test_a_file_that_is_too_large_is_never_in_memory(file):
    vectors = VectorRows(4, ROWS.nbytes - 1, file)
    assert not vectors.in_memory
    file.seek(12)
    for some in (ROWS[:3], ROWS[3:]):
        vectors.append(some)
        np.testing.assert_array_equal(vectors.rows, ROWS[: len(vectors.rows)])
    assert not vectors.in_memory
    assert file.tell() == 12  # another thread may be reading from there


def test_a_file_that_fits_is_in_memory_until_it_has_grown(file, tmp_path):
    vectors = VectorRows(4, ROWS.nbytes, file)
    vectors.append(ROWS)
    assert vectors.in_memory
    with (tmp_path / "vectors").open("ab") as more:
        more.write(ROWS.tobytes())
    vectors.append(ROWS)
    assert not vectors.in_memory
    np.testing.assert_array_equal(vectors.rows, np.concatenate([ROWS, ROWS]))


@pytest.mark.parametrize("folder", [None, "index"])
def test_dead_rows_go_when_they_are_a_third(tmp_path, monkeypatch, folder):
    monkeypatch.setattr(embedded, "_LEAST_DEAD", 10)
    with Index(folder and tmp_path / folder, dim=8) as index:
        items, rows = sorted(some_items(60), key=lambda item: item.id), halves(60)
        index.add(rows, items)
        index.upsert(rows[:20], items[:20])
        assert index.settings.facts["dead rows"] == 20
        index.upsert(rows[:20], items[:20])
        index.delete([items[59].id])
        assert index.settings.facts["dead rows"] <= 1
        assert list(index.items()) == items[:59]
        np.testing.assert_array_equal(index.vectors([item.id for item in items[:59]]), rows[:59])


def test_threads_search_while_one_writes(tmp_path, monkeypatch):
    """Every answer is one of the index at some moment: a list of items that were there together."""
    monkeypatch.setattr(embedded, "_LEAST_DEAD", 10)
    rows, wrong, stop = halves(40), [], threading.Event()
    with Index(tmp_path / "index", dim=8) as index:
        index.add(rows, [Item(str(i), metadata={"turn": 0}) for i in range(40)])

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
        for turn in range(1, 20):
            index.upsert(rows, [Item(str(i), metadata={"turn": turn}) for i in range(40)])
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
