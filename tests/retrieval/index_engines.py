"""The engines that the contract of an index is tested on, and what an index must do, written down plainly."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item, matches
from tests.retrieval import servers


@dataclass(frozen=True)
class IndexEngine:
    """An engine under test.

    url:      a URL where nothing is, of a folder for this test alone
    durable:  whether it can be opened again
    rounding: how far a score may be from the true one
    remove:   what is at a URL, after the test
    """

    name: str
    url: Callable[[Path], str | None]
    durable: bool = True
    rounding: float = 0.0
    remove: Callable[[str], None] | None = None


ENGINES = [
    IndexEngine("memory", lambda folder: None, durable=False),
    IndexEngine("faiss", lambda folder: str(folder / "index")),
    IndexEngine("pgvector", lambda folder: servers.postgres_url(), rounding=1e-6),
    IndexEngine("milvus", lambda folder: servers.milvus_url(), rounding=1e-6, remove=servers.remove_collection),
]


class IndexMaker:
    """Makes indexes of one engine, and closes them after the test."""

    def __init__(self, engine: IndexEngine, folder: Path) -> None:
        self.engine, self._folder = engine, folder
        self._made: list[Index] = []

    def __call__(self, dim: int | None = 8, **settings) -> Index:
        """A new index."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        return self._kept(Index(self.engine.url(folder), dim=dim, **settings))

    def again(self, index: Index, **settings) -> Index:
        """The same index, opened once more."""
        return self._kept(Index(index.url, **settings))

    def _kept(self, index: Index) -> Index:
        self._made.append(index)
        return index

    def close(self) -> None:
        for index in self._made:
            index.close()
        if self.engine.remove:
            for url in {index.url for index in self._made}:
                self.engine.remove(url)


class Model:
    """A dictionary that does what an index must do."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[np.ndarray, Item]] = {}

    def upsert(self, embeddings, items) -> None:
        for vector, item in zip(unit(embeddings), items, strict=True):
            self.rows[item.id] = vector, item

    def delete(self, ids) -> int:
        return sum(self.rows.pop(name, None) is not None for name in dict.fromkeys(ids))

    def best(self, query, k, conditions=()) -> list[tuple[float, str]]:
        """Scores and ids, best first, ties by id."""
        row = unit(query[None])[0]
        scored = [
            (-score_of(row, vector), name) for name, (vector, item) in self.rows.items() if matches(conditions, item)
        ]
        return [(-score, name) for score, name in sorted(scored)[:k]]


def score_of(first, second) -> float:
    """The cosine of two rows of length 1, rounded to a multiple of 2^-24."""
    return round(float(np.dot(first.astype(np.float64), second.astype(np.float64))) * 2**24) / 2**24


def unit(rows) -> np.ndarray:
    wide = np.asarray(rows, dtype=np.float64)
    return (wide / np.sqrt((wide * wide).sum(1, keepdims=True))).astype(np.float32)


def halves(rows: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    """Rows of four halves, with signs: their length is 1 and their products are exact, with very many ties."""
    rng = np.random.default_rng(seed)
    places = np.argsort(rng.random((rows, dim)), axis=1)[:, :4]
    found = np.zeros((rows, dim), dtype=np.float32)
    np.put_along_axis(found, places, rng.choice(np.float32([-0.5, 0.5]), (rows, 4)), axis=1)
    return found


def some_items(rows: int, prefix: str = "item") -> list[Item]:
    """Items with every kind of field, some of them missing."""
    return [
        Item(
            f"{prefix}-{i}",
            f"folder/{i}.jpg",
            label=f"class {i % 5}" if i % 7 else None,
            category="odd" if i % 2 else None,
            metadata={
                "n": i,
                "half": i / 2,
                **({"colour": "red" if i % 3 else "7", "seen": i % 4 == 0} if i % 5 else {}),
            },
        )
        for i in range(rows)
    ]


def check_hits(engine: IndexEngine, hits, expected) -> None:
    """The hits are the expected (score, id) pairs, in that order."""
    assert hits.scores.dtype == np.float32
    assert len(hits.items) == len(hits.scores) == len(expected)
    np.testing.assert_allclose(hits.scores, [score for score, _ in expected], rtol=0, atol=engine.rounding)
    assert list(hits.ids) == [name for _, name in expected]
