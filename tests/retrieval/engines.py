"""The engines that the contract of an index is tested on, what an index must do in plain Python, and hostile items."""

import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from frontrank.retrieval.index import Index
from frontrank.retrieval.items import OPERATORS, ORDER, Condition, Item, matches
from tests.retrieval import servers


@dataclass(frozen=True)
class IndexEngine:
    """An engine under test.

    url:      makes a URL where nothing is, given a folder for this index alone
    rounding: how far a score may be from the true one
    remove:   removes what is at a URL
    """

    name: str
    url: Callable[[Path], str | None]
    rounding: float = 0.0
    remove: Callable[[str], None] | None = None


MEMORY = IndexEngine("memory", lambda folder: None)
FAISS = IndexEngine("faiss", lambda folder: str(folder / "index"))
PGVECTOR = IndexEngine("pgvector", lambda folder: servers.postgres_url(), rounding=1e-6)
MILVUS = IndexEngine("milvus", lambda folder: servers.milvus_url(), rounding=1e-6, remove=servers.remove_collection)
DURABLE = [
    pytest.param(FAISS, id="faiss"),
    *(pytest.param(engine, id=engine.name, marks=pytest.mark.servers) for engine in (PGVECTOR, MILVUS)),
]
ENGINES = [pytest.param(MEMORY, id="memory"), *DURABLE]


class IndexMaker:
    """Makes indexes of one engine, and removes them after the tests."""

    def __init__(self, engine: IndexEngine, folder: Path) -> None:
        self.engine, self._folder = engine, folder
        self._indexes: list[Index] = []

    def __call__(self, **settings) -> Index:
        """Make a new index."""
        return self._open(self.engine.url(Path(tempfile.mkdtemp(dir=self._folder))), **{"dim": 8, **settings})

    def open_again(self, index: Index, **settings) -> Index:
        return self._open(index.url, **settings)

    def _open(self, url: str | None, **settings) -> Index:
        self._indexes.append(Index(url, **settings))
        return self._indexes[-1]

    def close(self) -> None:
        for index in self._indexes:
            index.close()
        if self.engine.remove:
            for url in {index.url for index in self._indexes}:
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
        scores = [
            (-score_of(row, vector), name) for name, (vector, item) in self.rows.items() if matches(conditions, item)
        ]
        return [(-score, name) for score, name in sorted(scores)[:k]]


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
    values = np.zeros((rows, dim), dtype=np.float32)
    np.put_along_axis(values, places, rng.choice(np.float32([-0.5, 0.5]), (rows, 4)), axis=1)
    return values


def clustered(rows, dim, seed=0, centres=20, noise=0.6):
    """Vectors around some centres, as embeddings of classes are."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((centres, dim))
    return unit(means[rng.integers(0, centres, rows)] + noise * rng.standard_normal((rows, dim)))


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


def recall(search, vectors, queries, k, keep=None):
    """The share of the k best that `search` finds; whatever scores as well as the last of them counts."""
    rows = np.arange(len(vectors)) if keep is None else np.flatnonzero(keep)
    count = 0
    for query, hits in zip(queries, search(queries, k), strict=True):
        assert len(set(hits.ids)) == len(hits) == min(k, len(rows))
        assert (np.diff(hits.scores) <= 0).all()
        count += sum(hits.scores >= np.sort(vectors[rows] @ query)[-k] - 1e-6)
    return count / (k * len(queries))


def in_threads(work, count):
    """What each of several threads returned or raised."""
    results = [None] * count

    def run(place):
        try:
            results[place] = work(place)
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# Items and filters that would break a query language if anything were pasted into it.

HOSTILE = [
    "", "'", '"', "\\", '\\"', "a\nb", "\t\x01\x7f", "é", "e\u0301", "🐈", "\u2028", "%s", "_", "{items}", "$1",
    "true", "null", "1", "1.0", "-0", "01", "1e3", "nan",
    '" or id != "', "'; DROP TABLE items; --", '"] or metadata["number"]["n"] in [1', "\\u0022", "metadata",
]  # fmt: skip
NUMBERS = [0, 1, -1, 2.5, 1000, 1e22, -1e22, 5e-324, 1.7976931348623157e308, 2**53, -(2**53), 0.1, 2.0]
FIELDS = ["id", "path", "label", "category", "a", "b", "none"]


def hostile_items():
    """Items whose fields hold all of the above, or are missing."""
    values = [*HOSTILE, *NUMBERS, True, False]
    return [
        Item(
            f"i{i:03d}",
            HOSTILE[i % len(HOSTILE)],
            HOSTILE[(i * 5) % len(HOSTILE)] if i % 3 else None,
            HOSTILE[(i * 3) % len(HOSTILE)] if i % 4 else None,
            {name: values[(i * step) % len(values)] for name, step in (("a", 1), ("b", 3)) if i % 5},
        )
        for i in range(2 * len(values))
    ]


texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=5), st.integers(0, 50).map("i{:03d}".format))
numbers = st.one_of(st.sampled_from(NUMBERS), st.floats(allow_nan=False, allow_infinity=False), st.integers(-10, 10))


@st.composite
def conditions(draw):
    field, operator = draw(st.sampled_from(FIELDS)), draw(st.sampled_from(OPERATORS))
    if operator in ORDER:
        return Condition(field, operator, (draw(numbers),))
    return Condition(
        field, operator, tuple(draw(st.lists(st.one_of(texts, numbers, st.booleans()), min_size=1, max_size=3)))
    )


filters = st.lists(conditions(), max_size=2).map(tuple)
stored_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
metadata = st.dictionaries(
    st.from_regex("[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in FIELDS[:4]),
    st.one_of(
        stored_text, st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False)
    ),
    max_size=4,
)
item_lists = st.lists(
    st.builds(
        Item,
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20),
        stored_text,
        st.one_of(st.none(), stored_text),
        st.one_of(st.none(), stored_text),
        metadata,
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda item: item.id,
)


def check_filter(engine, items, conditions):
    """The engine counts and finds what `matches` says."""
    expected = sorted(item.id for item in items if matches(conditions, item))
    assert engine.count(conditions) == len(expected), conditions
    (hits,) = engine.search(np.eye(1, engine.dim, dtype=np.float32), len(items) + 1, conditions)
    assert sorted(hits.ids) == expected, conditions


def check_round_trip(engine, items):
    """Items come back as they were, and are searched, listed and deleted like any other."""
    engine.delete([item.id for item in engine.scan(None, 100)])  # what a case that failed left
    vectors = np.repeat(np.eye(1, engine.dim, dtype=np.float32), len(items), 0)
    engine.upsert(vectors, items)
    again = engine.get([item.id for item in items])
    assert again == items
    assert list(map(_kinds, again)) == list(map(_kinds, items))
    ids = sorted(item.id for item in items)
    assert list(engine.search(vectors[:1], len(items), ())[0].ids) == ids
    assert [item.id for item in engine.scan(None, 100)] == ids
    assert engine.delete(ids) == len(ids)
    assert engine.count(()) == 0


def _kinds(item):
    return {name: type(value) for name, value in item.metadata.items()}
