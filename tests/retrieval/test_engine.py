"""What engines must do: hostile items and filters; and servers: settings, threads, errors without a password."""

import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings

from frontrank.errors import InputError
from frontrank.retrieval import milvus, pgvector
from frontrank.retrieval.items import Condition, Item, parse_filter
from tests.retrieval import engines, servers
from tests.retrieval.engines import halves, some_items


@dataclass(frozen=True)
class Server:
    """An engine on a server: its class, how to make a URL and an address, and its name in an error."""

    engine: type
    url: Callable[..., str]
    address: Callable[[], tuple[str, int]]
    module: ModuleType
    noun: str


MILVUS = Server(milvus.MilvusEngine, servers.milvus_url, servers.milvus, milvus, "collection")
POSTGRES = Server(pgvector.PgvectorEngine, servers.postgres_url, servers.postgres, pgvector, "table")


@pytest.fixture(scope="module", params=[MILVUS, POSTGRES], ids=["milvus", "pgvector"])
def server(request):
    return request.param


def make_engines(server):
    """Yield a function that creates engines, which are closed after the tests."""
    created = []

    def create(dim=8, settings=b"settings", **where):
        url = server.url(**where)
        created.append(server.engine.create(url, dim, settings))
        return created[-1], url

    yield create
    for engine in created:
        if server is MILVUS:
            engine._server.ask("drop_collection")
        engine.close()


@pytest.fixture(scope="module")
def make(server):
    yield from make_engines(server)


@pytest.fixture(scope="module", params=engines.ENGINES[1:])
def shared(request, tmp_path_factory):
    """An empty engine of four dimensions."""
    maker = engines.IndexMaker(request.param, tmp_path_factory.mktemp("index"))
    yield maker(dim=4)._open
    maker.close()


@pytest.fixture(scope="module")
def hostile(shared):
    items = engines.hostile_items()
    shared.upsert(np.repeat(np.eye(1, 4, dtype=np.float32), len(items), 0), items)
    return shared, items


def check_message(error, *secret):
    """One line without a password."""
    text = str(error.value)
    assert "\n" not in text
    for hidden in (":Milvus", servers.PASSWORD, servers.QUOTED_PASSWORD, *secret):
        assert hidden not in text


@given(engines.item_lists)
@settings(max_examples=15)
def test_items_come_back_as_they_were(shared, items):
    engines.check_round_trip(shared, items)


@given(engines.filters)
@settings(max_examples=40)
def test_filters_mean_what_matches_says(hostile, conditions):
    engines.check_filter(*hostile, conditions)


def test_every_hostile_value_is_found_and_counted(hostile):
    for value in (*engines.HOSTILE, *engines.NUMBERS):
        engines.check_filter(*hostile, (Condition("label", "=", (value,)),))
        engines.check_filter(*hostile, (Condition("a", "=", (value,)), Condition("path", "!=", (value,))))
        engines.check_filter(*hostile, tuple(Condition(field, "!=", (value,)) for field in ("category", "b")))
    engine, items = hostile
    for field in engines.FIELDS:
        assert sum(engine.values(field).values()) == sum(item.value(field) is not None for item in items)


@pytest.mark.servers
def test_settings_and_vectors_of_hits(server, make):
    large = np.random.default_rng(0).bytes(3_000_000)
    engine, url = make(settings=large)
    assert server.engine.open(server.url()) is None
    again = server.engine.open(url)
    assert (again.dim, again.read_settings(), again.count(()), again.scan(None, 10)) == (8, large, 0, [])
    for new in (b"\x00new", b""):
        engine.write_settings(new)
        again.refresh()
        assert again.read_settings() == new
    again.close()
    engine.add(halves(20), some_items(20))  # its connection is still there
    (hits,) = engine.search(halves(1, seed=1), 5, (), with_vectors=True)
    np.testing.assert_array_equal(hits.vectors, engine.vectors(list(hits.ids)))
    assert engine.search(halves(1), 5, (parse_filter("label>1"),), with_vectors=True)[0].vectors.shape == (0, 8)
    with pytest.raises(InputError, match=f"{server.noun} .*exists"):
        server.engine.create(url, 8, b"")


@pytest.mark.servers
def test_threads_search_while_others_write(make):
    engine, _ = make()
    rows = halves(200)
    engine.add(rows[:100], some_items(100))

    def work(place):
        if place == 0:
            engine.upsert(rows, some_items(200))
            return engine.delete([f"item-{i}" for i in range(150, 200)])
        return [len(hits) for _ in range(3) for hits in engine.search(rows[:4], 30, ())]

    results = engines.in_threads(work, 12)
    assert results[0] == 50
    assert all(result == [30] * 12 for result in results[1:])
    assert engine.count(()) == 150


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["milvus", "exact milvus", "pgvector"])
def test_finds_nearly_all_that_is_near(kind, monkeypatch, request):
    monkeypatch.setattr(pgvector, "GRAPH_ROWS", 1500)
    server = POSTGRES if kind == "pgvector" else MILVUS
    engine = server.engine.create(server.url(**({"options": "?exact=true"} if "exact" in kind else {})), 24, b"")
    request.addfinalizer(engine.close)
    vectors, queries = engines.clustered(3000, 24), engines.clustered(200, 24, seed=1)
    engine.add(vectors[:1000], some_items(1000))
    assert engine.describe()["search"] == ("hnsw" if kind == "milvus" else "exact")
    engine.add(vectors[1000:2500], some_items(2500)[1000:])
    engine.prepare()
    engine.upsert(vectors[2000:], some_items(3000)[2000:])
    if server is POSTGRES:  # as the server does by itself after a while: from then on it takes the graph
        with engine._transaction() as (_, ask):
            ask("ANALYZE {items}")

    def recall(queries, k, text=None, keep=None):
        conditions = () if text is None else (parse_filter(text),)
        return engines.recall(lambda some, k: engine.search(some, k, conditions), vectors, queries, k, keep)

    least = 1 if "exact" in kind else 0.95
    assert recall(queries, 10) >= least
    assert recall(queries, 10, "n<300", np.arange(3000) < 300) >= least
    assert recall(queries, 3, "n=7|17|2027", np.isin(np.arange(3000), [7, 17, 2027])) == 1
    assert recall(queries[:3], 3000) == 1
    facts = engine.describe()
    assert facts["search"] == ("exact" if "exact" in kind else "hnsw")
    assert facts["server"].startswith("PostgreSQL 1" if server is POSTGRES else "Milvus 2.")
    if kind == "milvus":  # a graph may lose hits of a filter
        nearest = engine._nearest
        monkeypatch.setattr(engine, "_nearest", lambda *some: [rows[::2] for rows in nearest(*some)])
        assert recall(queries[:20], 10, "n<300", np.arange(3000) < 300) == 1
    if server is MILVUS:
        engine._server.ask("drop_collection")


@pytest.mark.servers
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"password": "wrong-secret"}, "password"),
        ({"address": ("127.0.0.1", 9)}, "127.0.0.1:9"),
        ({"address": ("no-such-host.invalid", 9)}, "no-such-host.invalid:9"),
        ({"address": ("[::1]", 9)}, r"\[::1\]:9"),
    ],
    ids=["password", "port", "host", "ipv6"],
)
def test_a_server_that_cannot_be_used(server, change, message):
    with pytest.raises(InputError, match=message) as error:
        server.engine.open(server.url(**change))
    check_message(error, "wrong-secret")


@pytest.mark.servers
def test_a_server_that_goes_away(server, make, monkeypatch, capfd):
    make(name=(name := "t" + secrets.token_hex(8)))
    with servers.Relay(server.address()) as relay:
        engine = server.engine.open(server.url(name, address=relay.address))
        engine.add(halves(3), some_items(3))
        monkeypatch.setattr(server.module, "_ANSWER_SECONDS", 2)  # not before: a busy server may take longer
        relay.cut()
        for call in (lambda: engine.count(()), lambda: engine.add(halves(1), [Item("new")])):
            with pytest.raises(InputError, match="the server") as error:
                call()
            check_message(error)
        engine.close()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        "milvus://", "milvus://host", "milvus:///name", "milvus://host:port/name", "milvus://host:99999/name",
        "milvus://[host/name", "milvus://me:pa@ss@host/name", "milvus://me:pa/ss@host/name", "milvus://host/a-b",
        "milvus://host/1a", "milvus://host/name?other=1", "milvus://host/name?exact=yes",
        "postgresql://me:pa@ss@host/db", "postgresql://me:pa/ss@host/db", "postgresql://me:pa?ss@host/db",
        "postgresql://me:pa#ss@host/db", "postgresql://[me:pa/ss@host/db", "postgresql://host/db?table=",
        "postgresql://host/db?table=a%25b", f"postgresql://host/db?table={'x' * 49}",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_read(url):
    read = milvus.MilvusAddress.read if url.startswith("milvus") else pgvector.read_address
    with pytest.raises(InputError, match=r"^url") as error:
        read(url)
    check_message(error, "pa@", "pa/", "pa?", "pa#ss")


@pytest.mark.parametrize(("package", "url"), [("pymilvus", "milvus://host/a"), ("psycopg", "postgresql://host/a")])
def test_without_the_package(monkeypatch, package, url):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"{package}.*frontrank\["):
        (MILVUS if package == "pymilvus" else POSTGRES).engine.open(url)
