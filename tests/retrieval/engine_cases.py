"""Items, filters and checks that the tests of the engines on servers share."""

import threading

import numpy as np
from hypothesis import strategies as st

from frontrank.retrieval.items import OPERATORS, ORDER, Condition, Item, matches
from tests.retrieval.index_engines import unit

HOSTILE = [
    "",
    "'",
    '"',
    "\\",
    '\\"',
    "\\\\'",
    "a\nb",
    "\t\r\x01\x7f",
    "é",
    "e\u0301",
    "日本",
    "🐈",
    "\u2028",
    "\ufeff",
    "%s",
    "%",
    "_",
    "{}",
    "{items}",
    "$1",
    "true",
    "false",
    "null",
    "1",
    "1.0",
    "-0",
    "01",
    "1e3",
    "nan",
    '" or id != "',
    "' OR 1=1 --",
    "'; DROP TABLE items; --",
    '"] or metadata["number"]["n"] in [1',
    "\\u0022",
    "metadata",
]
NUMBERS = [0, 1, -1, 2.5, -2.5, 1000, 1e22, -1e22, 5e-324, 1.7976931348623157e308, 2**53, -(2**53), 0.1, 1e-7, 2.0]
FIELDS = ["id", "path", "label", "category", "a", "b", "none"]


def hostile_items():
    """Items whose fields hold all of the above, or are missing."""
    values = [*HOSTILE, *NUMBERS, True, False]
    return [
        Item(
            f"i{i:03d}",
            HOSTILE[i % len(HOSTILE)],
            HOSTILE[(i * 7) % len(HOSTILE)] if i % 3 else None,
            HOSTILE[(i * 5) % len(HOSTILE)] if i % 4 else None,
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
items = st.builds(
    Item,
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20),
    stored_text,
    st.one_of(st.none(), stored_text),
    st.one_of(st.none(), stored_text),
    metadata,
)


def check_filter(engine, kept, chosen):
    """The engine counts and finds what `matches` says."""
    expected = sorted(item.id for item in kept if matches(chosen, item))
    assert engine.count(chosen) == len(expected)
    (hits,) = engine.search(np.eye(1, engine.dim, dtype=np.float32), len(kept) + 1, chosen)
    assert sorted(hits.ids) == expected


def check_round_trip(engine, given):
    """What was kept comes back as it was, and is searched, listed and forgotten like any other."""
    engine.delete([item.id for item in engine.scan(None, 100)])  # what a case that failed left
    vectors = np.repeat(np.eye(1, engine.dim, dtype=np.float32), len(given), 0)
    engine.upsert(vectors, given)
    found = engine.get([item.id for item in given])
    assert found == given
    assert list(map(_kinds, found)) == list(map(_kinds, given))
    ids = sorted(item.id for item in given)
    assert list(engine.search(vectors[:1], len(given), ())[0].ids) == ids
    assert [item.id for item in engine.scan(None, 100)] == ids
    assert engine.delete(ids) == len(ids)
    assert engine.count(()) == 0


def _kinds(item):
    return {name: type(value) for name, value in item.metadata.items()}


def clustered(rows, dim, seed=0):
    """Vectors around some centres, as embeddings of classes are."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((20, dim))
    return unit(centres[rng.integers(0, 20, rows)] + 0.6 * rng.standard_normal((rows, dim)))


def recall(engine, vectors, queries, k, chosen=(), kept=None):
    """The share of the k best that is found; whatever scores as well as the last of them counts."""
    rows = np.arange(len(vectors)) if kept is None else np.flatnonzero(kept)
    found = 0
    for query, hits in zip(queries, engine.search(queries, k, chosen), strict=True):
        assert len(hits) == min(k, len(rows))
        least = np.sort(vectors[rows] @ query)[-k]
        found += sum(hits.scores >= least - 1e-6)
    return found / (k * len(queries))


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
