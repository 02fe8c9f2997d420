import re
import secrets
import sys
import threading
from urllib.parse import quote

import numpy as np
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrank.errors import InputError
from frontrank.retrieval import pgvector as pgvector_engine
from frontrank.retrieval import pgvector as pgvector_server
from frontrank.retrieval.items import Condition, Item, parse_filter
from frontrank.retrieval.pgvector import PgvectorEngine, PostgresAddress, PostgresServer
from tests.retrieval import engine_cases, servers
from tests.retrieval.index_engines import halves, some_items

PASSWORD = quote(servers.PASSWORD, safe="")


def url_of(table="", user="postgres", password=PASSWORD, database="postgres", address=None):
    host, port = address or servers.postgres()
    return (
        f"postgresql://{user}:{password}@{host}:{port}/{database}?table={quote(table or 't ' + secrets.token_hex(8))}"
    )


@pytest.fixture
def make():
    made = []

    def create(dim=8, settings=b"settings", **where):
        url = url_of(**where)
        made.append(PgvectorEngine.create(url, dim, settings))
        return made[-1], url

    yield create
    for engine in made:
        engine.close()


@pytest.fixture(scope="module")
def hostile():
    engine, kept = PgvectorEngine.create(url_of(), 4, b""), engine_cases.hostile_items()
    engine.add(np.repeat(np.eye(1, 4, dtype=np.float32), len(kept), 0), kept)
    yield engine, kept
    engine.close()


@pytest.fixture(scope="module")
def empty():
    engine = PgvectorEngine.create(url_of(), 4, b"")
    yield engine
    engine.close()


@pytest.fixture
def administrator():
    with psycopg.connect(url_of().partition("?")[0], autocommit=True) as connection:
        yield connection


def one_line(error, *secret):
    text = str(error.value)
    assert "\n" not in text
    for hidden in (servers.PASSWORD, PASSWORD, *secret):
        assert hidden not in text
    return text


@given(engine_cases.filters)
def test_filters_mean_what_matches_says(hostile, chosen):
    engine_cases.check_filter(*hostile, chosen)


def test_every_hostile_value_is_found_alone(hostile):
    for value in (*engine_cases.HOSTILE, *engine_cases.NUMBERS):
        for field in engine_cases.FIELDS:
            for operator in ("=", "!="):
                engine_cases.check_filter(*hostile, (Condition(field, operator, (value,)),))


def test_values_are_counted_as_filters_see_them(hostile):
    engine, kept = hostile
    for field in engine_cases.FIELDS:
        counts = engine.values(field)
        assert all(engine.count((Condition(field, "=", (text,)),)) >= count for text, count in counts.items())
        assert sum(counts.values()) == sum(item.value(field) is not None for item in kept)


@given(st.lists(engine_cases.items, min_size=1, max_size=4, unique_by=lambda item: item.id))
@settings(max_examples=25)
def test_items_come_back_as_they_were(empty, given_items):
    engine_cases.check_round_trip(empty, given_items)


def test_a_name_of_a_table_is_only_a_name(make):
    name = 'a"; DROP TABLE x; -- $1 {items} é'
    engine, url = make(table=name)
    engine.add(halves(3), some_items(3))
    again = PgvectorEngine.open(url)
    assert again.count(()) == 3
    assert again.dim == 8
    again.close()


def test_nothing_there():
    assert PgvectorEngine.open(url_of()) is None


def test_settings_are_kept_and_replaced(make):
    large = np.random.default_rng(0).bytes(3_000_000)
    engine, url = make(settings=large)
    assert engine.read_settings() == large
    engine.write_settings(b"\x00new")
    again = PgvectorEngine.open(url)
    assert again.read_settings() == b"\x00new"
    again.close()


def test_a_table_that_is_there(make, administrator):
    _, url = make()
    with pytest.raises(InputError, match="already exists"):
        PgvectorEngine.create(url, 8, b"")
    name = "other_" + secrets.token_hex(4)
    administrator.execute(f"CREATE TABLE {name} (x int)")
    with pytest.raises(InputError, match="is no index of Frontrank; choose another name"):
        PgvectorEngine.open(url_of(name))


def test_too_many_dimensions():
    with pytest.raises(InputError, match="dim must be at most 16000"):
        PgvectorEngine.create(url_of(), 20_000, b"")


@pytest.mark.parametrize("name", ["add", "upsert"])
def test_a_write_happens_as_a_whole_or_not_at_all(make, monkeypatch, name):
    engine, _ = make()
    engine.add(halves(5), some_items(5))
    before = engine.scan(None, 100)
    rows = pgvector_engine._to_row

    def failing(item, vector):
        if item.id == "new-7":
            raise KeyboardInterrupt
        return rows(item, vector)

    monkeypatch.setattr(pgvector_engine, "_to_row", failing)
    changed = [Item("item-1", label="changed")] if name == "upsert" else []
    with pytest.raises(KeyboardInterrupt):
        getattr(engine, name)(halves(10 + len(changed)), [*some_items(10, "new"), *changed])
    assert engine.scan(None, 100) == before


def test_writers_at_the_same_time(make):
    engine, url = make()
    others = [PgvectorEngine.open(url) for _ in range(4)]

    def upsert(place):
        for _ in range(5):
            ids = np.random.default_rng(place).permutation(30)
            others[place].upsert(halves(30), [Item(f"{i:02d}", label=str(place)) for i in ids])

    assert engine_cases.in_threads(upsert, 4) == [None] * 4
    assert engine.count(()) == 30
    assert len(engine.values("label")) == 1  # all of one writer
    results = engine_cases.in_threads(lambda place: others[place].add(halves(9), some_items(9)), 4)
    assert sorted(type(result).__name__ for result in results) == ["InputError"] * 3 + ["NoneType"]
    assert all("items has 9 that the index has already" in str(result) for result in results if result)
    for other in others:
        other.close()


def test_threads_search_while_others_write(make):
    engine, _ = make()
    rows = halves(200)
    engine.add(rows[:100], some_items(100))

    def work(place):
        if place == 0:
            engine.upsert(rows, some_items(200))
            return engine.delete([f"item-{i}" for i in range(150, 200)])
        return [len(hits) for _ in range(5) for hits in engine.search(rows[:4], 30, ())]

    results = engine_cases.in_threads(work, 12)
    assert results[0] == 50
    assert all(result == [30] * 20 for result in results[1:])
    assert engine.count(()) == 150


def test_a_graph_is_built_when_the_table_has_grown(make, monkeypatch):
    monkeypatch.setattr(pgvector_engine, "GRAPH_ROWS", 1500)
    engine, url = make(dim=24)
    vectors = engine_cases.clustered(3000, 24)
    engine.add(vectors[:1000], some_items(1000))
    assert engine.describe()["search"] == "exact"
    engine.add(vectors[1000:2000], some_items(2000)[1000:])
    assert engine.describe()["search"] == "hnsw"
    assert re.fullmatch(r"PostgreSQL \d+.*, pgvector \d.*", engine.describe()["server"])
    engine.upsert(vectors[2000:], some_items(3000)[2000:])
    engine.prepare()
    queries = engine_cases.clustered(30, 24, seed=1)
    assert engine_cases.recall(engine, vectors, queries, 10) > 0.95
    assert engine_cases.recall(engine, vectors, queries, 10, (parse_filter("n<300"),), np.arange(3000) < 300) > 0.95
    assert engine_cases.recall(engine, vectors, queries, 3000) == 1
    few = (parse_filter("n=7|17|27"),)
    assert engine_cases.recall(engine, vectors, queries, 3, few, np.isin(np.arange(3000), [7, 17, 27])) == 1
    again = PgvectorEngine.open(url)
    assert again.describe()["search"] == "hnsw"
    again.close()


def test_processes_that_build_the_graph_at_the_same_time(make, monkeypatch):
    engine, url = make(dim=24)
    engine.add(engine_cases.clustered(3000, 24), some_items(3000))
    monkeypatch.setattr(pgvector_engine, "GRAPH_ROWS", 1500)
    others = [PgvectorEngine.open(url) for _ in range(4)]
    assert engine_cases.in_threads(lambda place: others[place].prepare(), 4) == [None] * 4
    assert [other.describe()["search"] for other in others] == ["hnsw"] * 4
    for other in others:
        other.close()


def test_processes_that_make_the_same_table(monkeypatch):
    """Only one does; the others are told to try again, unless they find it there already."""
    url, together = url_of(), threading.Barrier(4)
    own = pgvector_engine.PostgresServer.add_extension
    monkeypatch.setattr(pgvector_engine.PostgresServer, "add_extension", lambda server: (own(server), together.wait()))
    made = engine_cases.in_threads(lambda place: PgvectorEngine.create(url, 8, b""), 4)
    engines = [engine for engine in made if isinstance(engine, PgvectorEngine)]
    assert len(engines) == 1
    for error in made:
        if error not in engines:
            assert isinstance(error, InputError), error
            assert "was made by another process just now; try again" in str(error) or "already exists" in str(error)
    engines[0].close()


def test_equal_scores_are_ordered_by_id_in_a_graph_too(make, monkeypatch):
    monkeypatch.setattr(pgvector_engine, "GRAPH_ROWS", 100)
    engine, _ = make()
    names = [f"{i:03d}" for i in np.random.default_rng(0).permutation(200)]
    engine.add(np.repeat(halves(1), 200, 0), [Item(name) for name in names])
    engine.prepare()
    assert engine.describe()["search"] == "hnsw"
    assert list(engine.search(halves(1), 7, ())[0].ids) == sorted(names)[:7]


def test_vectors_of_hits(make):
    engine, _ = make()
    engine.add(halves(20), some_items(20))
    (hits,) = engine.search(halves(1, seed=1), 5, (), with_vectors=True)
    np.testing.assert_array_equal(hits.vectors, engine.vectors(list(hits.ids)))
    assert engine.search(halves(1), 5, (parse_filter("label=none"),), with_vectors=True)[0].vectors.shape == (0, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"password": "wrong-secret"}, "password authentication failed"),
        ({"user": "nobody_here"}, "password authentication failed"),
        ({"database": "nowhere"}, 'database "nowhere" does not exist'),
        ({"address": ("127.0.0.1", 9)}, "refused"),
        ({"address": ("no-such-host.invalid", 9)}, "no-such-host"),
        ({"password": "se%zzcret"}, "cannot be used"),
        ({"address": ("127.0.0.1", "port")}, "cannot be used"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_a_server_that_cannot_be_used(change, message):
    with pytest.raises(InputError, match=message) as error:
        PgvectorEngine.open(url_of(**change))
    assert "correct user, password, host" in one_line(error, "wrong-secret", "se%zzcret")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:pa@ss@host/db",
        "postgresql://me:pa/ss@host/db",
        "postgresql://me:pa?ss@host/db",
        "postgresql://me:pa#ss@host/db",
        "postgresql://[me:pa/ss@host/db",
        "postgresql://host/db?table=",
        "postgresql://host/db?table=a%25b",
        f"postgresql://host/db?table={'x' * 49}",
    ],
)
def test_a_url_that_cannot_be_read(url):
    with pytest.raises(InputError) as error:
        PostgresAddress.read(url)
    text = one_line(error, "pa@", "pa/", "pa?", "pa#ss")
    assert text.startswith(("url must be like postgresql://user:password@host", "url has the table"))


def test_what_a_url_says():
    address = PostgresAddress.read("postgres://me:a%40b@host:5/db?sslmode=require&table=a%20b")
    assert address.table == "a b"
    assert address.shown == "table a b of postgresql://host:5/db"
    assert address.connection == "postgresql://me:a%40b@host:5/db?sslmode=require"
    assert "a%40b" not in repr(address)
    assert PostgresAddress.read("postgresql:///db").table == "frontrank"


def test_rights_that_are_missing(make, administrator):
    engine, url = make()
    engine.add(halves(3), some_items(3))
    name = "reader_" + secrets.token_hex(4)
    administrator.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret-{name}'")
    administrator.execute(f"GRANT pg_read_all_data TO {name}")
    as_reader = url.replace(f"postgres:{PASSWORD}", f"{name}:secret-{name}")
    reader = PgvectorEngine.open(as_reader)
    assert len(reader.search(halves(1), 5, ())[0]) == 3
    with pytest.raises(InputError, match=r"refuses: permission denied for table .*; ask its owner") as error:
        reader.add(halves(1), [Item("new")])
    one_line(error, f"secret-{name}")
    reader.close()
    administrator.execute(f"CREATE DATABASE {name}")
    with pytest.raises(
        InputError, match="has no pgvector, and this user may not add it; have an administrator run"
    ) as error:
        PgvectorEngine.create(url_of(user=name, password=f"secret-{name}", database=name), 8, b"")
    one_line(error, f"secret-{name}")


def test_who_writes_to_a_table_of_another_leaves_the_graph_to_them(make, administrator, monkeypatch):
    monkeypatch.setattr(pgvector_engine, "GRAPH_ROWS", 10)
    engine, url = make(table=(table := "t" + secrets.token_hex(4)))
    name = "writer_" + secrets.token_hex(4)
    administrator.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    administrator.execute(f"GRANT ALL ON {table}, {table}_settings TO {name}")
    writer = PgvectorEngine.open(url.replace(f"postgres:{PASSWORD}", f"{name}:secret"))
    writer.add(halves(20), some_items(20))
    writer.upsert(halves(5), some_items(5))
    writer.close()
    assert engine.describe()["search"] == "exact"
    engine.prepare()
    assert engine.describe()["search"] == "hnsw"


def test_an_old_pgvector(make, monkeypatch):
    _, url = make()
    monkeypatch.setattr(pgvector_server, "_LEAST_VERSION", (99, 0))
    with pytest.raises(InputError, match="ALTER EXTENSION vector UPDATE"):
        PgvectorEngine.open(url)


def test_without_psycopg(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InputError, match=r"pip install 'frontrank\[pgvector\]'"):
        PgvectorEngine.open("postgresql://host/db")


def test_a_connection_that_was_lost_is_made_again(make, monkeypatch, administrator):
    engine, _ = make()
    engine.add(halves(3), some_items(3))
    monkeypatch.setattr(pgvector_server, "_IDLE_SECONDS", 0)
    with engine._transaction() as (connection, _):
        own = connection.info.backend_pid  # and no other: tests of other processes are on the same server
    (ended,) = administrator.execute("SELECT pg_terminate_backend(%s, 60000)", [own]).fetchone()  # waits for its end
    assert ended
    assert engine.count(()) == 3
    with engine._transaction() as (connection, _):
        assert connection.info.backend_pid != own


def test_a_server_that_goes_away(make):
    with servers.Relay(servers.postgres()) as relay:
        engine, _ = make(address=relay.address)
        engine.add(halves(3), some_items(3))
        relay.cut()
        for call in (lambda: engine.count(()), lambda: engine.add(halves(1), [Item("new")])):
            with pytest.raises(InputError, match=r"look at the server|start the server") as error:
                call()
            one_line(error)


def test_a_server_that_takes_too_long(make, monkeypatch):
    _, url = make()
    address = PostgresAddress.read(url)
    slow = PgvectorEngine(PostgresServer(address), address.table, 8)  # connects at the first question, the slow one
    monkeypatch.setattr(pgvector_server, "_ANSWER_SECONDS", 1)
    with pytest.raises(InputError, match="did not answer in time"), slow._transaction() as (_, ask):
        ask("SELECT pg_sleep(60)")
    with slow._transaction(seconds=0) as (_, ask):  # the same connection, which a busy server may keep waiting
        assert ask("SELECT count(*) FROM {items}").fetchone() == (0,)
    slow.close()


def test_an_engine_that_was_closed(make):
    engine, _ = make()
    engine.close()
    with pytest.raises(InputError, match="is closed; open it again"):
        engine.count(())
