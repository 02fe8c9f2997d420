import re
import secrets
import sys
import threading
from urllib.parse import quote

import numpy as np
import psycopg
import pytest
from hypothesis import given, settings

from frontrank.errors import InputError
from frontrank.retrieval import pgvector
from frontrank.retrieval.items import Condition, Item, parse_filter
from frontrank.retrieval.pgvector import PgvectorEngine, PostgresAddress, PostgresServer, to_sql
from tests.retrieval import engines, servers
from tests.retrieval.engines import halves, some_items

PASSWORD = quote(servers.PASSWORD, safe="")


def url_of(table="", user="postgres", password=PASSWORD, database="postgres", address=None):
    host, port = address or servers.postgres()
    return (
        f"postgresql://{user}:{password}@{host}:{port}/{database}?table={quote(table or 't ' + secrets.token_hex(8))}"
    )


@pytest.fixture
def make():
    created = []

    def create(dim=8, settings=b"settings", **where):
        url = url_of(**where)
        created.append(PgvectorEngine.create(url, dim, settings))
        return created[-1], url

    yield create
    for engine in created:
        engine.close()


@pytest.fixture(scope="module")
def hostile():
    engine, items = PgvectorEngine.create(url_of(), 4, b""), engines.hostile_items()
    engine.add(np.repeat(np.eye(1, 4, dtype=np.float32), len(items), 0), items)
    yield engine, items
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


def check_message(error, *secret):
    """One line without a password."""
    text = str(error.value)
    assert "\n" not in text
    for hidden in (servers.PASSWORD, PASSWORD, *secret):
        assert hidden not in text


@pytest.mark.servers
@given(engines.filters)
@settings(max_examples=60)
def test_filters_mean_what_matches_says(hostile, conditions):
    engines.check_filter(*hostile, conditions)


@pytest.mark.servers
def test_every_hostile_value_is_found(hostile):
    for value in (*engines.HOSTILE, *engines.NUMBERS):
        for field in ("path", "label", "a"):
            for operator in ("=", "!="):
                engines.check_filter(*hostile, (Condition(field, operator, (value,)),))


@pytest.mark.servers
def test_values_are_counted_as_filters_see_them(hostile):
    engine, items = hostile
    for field in engines.FIELDS:
        counts = engine.values(field)
        assert sum(counts.values()) == sum(item.value(field) is not None for item in items)
        for text, count in list(counts.items())[::4]:
            assert engine.count((Condition(field, "=", (text,)),)) >= count


def test_conditions_as_sql():
    both = [parse_filter("label!=cat|dog"), parse_filter("year>=2020")]
    where, values = to_sql(both)
    number = "jsonb_typeof(metadata -> %s) = 'number' AND metadata -> %s >= %s::jsonb"
    assert where == f"NOT coalesce(label = ANY(%s), false) AND {number}"
    assert values == [["cat", "dog"], "year", "year", "2020.0"]
    assert to_sql([parse_filter("label>3")]) == ("false", [])
    assert to_sql([]) == ("true", [])


@pytest.mark.servers
@given(engines.item_lists)
@settings(max_examples=20)
def test_items_come_back_as_they_were(empty, items):
    engines.check_round_trip(empty, items)


@pytest.mark.servers
def test_a_name_of_a_table_is_only_a_name(make):
    engine, url = make(table='a"; DROP TABLE x; -- $1 {items} é')
    engine.add(halves(3), some_items(3))
    again = PgvectorEngine.open(url)
    assert (again.count(()), again.dim) == (3, 8)
    again.close()


@pytest.mark.servers
def test_settings_are_stored_and_replaced(make, administrator):
    large = np.random.default_rng(0).bytes(3_000_000)
    engine, url = make(table=(table := "t" + secrets.token_hex(4)), settings=large)
    assert engine.read_settings() == large
    engine.write_settings(b"\x00new")
    again = PgvectorEngine.open(url)
    assert again.read_settings() == b"\x00new"
    again.close()
    administrator.execute(f"DELETE FROM {table}_settings")
    with pytest.raises(InputError, match="no settings"):
        engine.read_settings()


@pytest.mark.servers
def test_tables_that_cannot_be_created_or_opened(make, administrator):
    assert PgvectorEngine.open(url_of()) is None
    engine, url = make(table=(table := "t" + secrets.token_hex(4)))
    with pytest.raises(InputError, match=table):
        PgvectorEngine.create(url, 8, b"")
    administrator.execute(f"DROP TABLE {table}")
    with pytest.raises(InputError, match=f"table {table} "):
        engine.count(())
    with pytest.raises(InputError, match=f"table {table} "):
        PgvectorEngine.open(url)
    with pytest.raises(InputError, match=r"^dim .*16000"):
        PgvectorEngine.create(url_of(), 20_000, b"")


@pytest.mark.servers
@pytest.mark.parametrize("name", ["add", "upsert"])
def test_a_write_happens_as_a_whole_or_not_at_all(make, monkeypatch, name):
    engine, _ = make()
    engine.add(halves(5), some_items(5))
    before = engine.scan(None, 100)
    to_row = pgvector._to_row

    def fail(item, vector):
        if item.id == "new-7":
            raise KeyboardInterrupt
        return to_row(item, vector)

    monkeypatch.setattr(pgvector, "_to_row", fail)
    changed = [Item("item-1", label="changed")] if name == "upsert" else []
    with pytest.raises(KeyboardInterrupt):
        getattr(engine, name)(halves(10 + len(changed)), [*some_items(10, "new"), *changed])
    assert engine.scan(None, 100) == before


@pytest.mark.servers
def test_writers_at_the_same_time(make):
    engine, url = make()
    others = [PgvectorEngine.open(url) for _ in range(4)]

    def upsert(place):
        for _ in range(5):
            ids = np.random.default_rng(place).permutation(30)
            others[place].upsert(halves(30), [Item(f"{i:02d}", label=str(place)) for i in ids])

    assert engines.in_threads(upsert, 4) == [None] * 4
    assert engine.count(()) == 30
    assert len(engine.values("label")) == 1  # all of one writer
    results = engines.in_threads(lambda place: others[place].add(halves(9), some_items(9)), 4)
    assert sorted(type(result).__name__ for result in results) == ["InputError"] * 3 + ["NoneType"]
    assert all("item-0" in str(result) for result in results if result)
    for other in others:
        other.close()


@pytest.mark.servers
def test_threads_search_while_others_write(make):
    engine, _ = make()
    rows = halves(200)
    engine.add(rows[:100], some_items(100))

    def work(place):
        if place == 0:
            engine.upsert(rows, some_items(200))
            return engine.delete([f"item-{i}" for i in range(150, 200)])
        return [len(hits) for _ in range(5) for hits in engine.search(rows[:4], 30, ())]

    results = engines.in_threads(work, 12)
    assert results[0] == 50
    assert all(result == [30] * 20 for result in results[1:])
    assert engine.count(()) == 150


@pytest.mark.servers
def test_a_graph_is_built_when_the_table_has_grown(make, monkeypatch):
    monkeypatch.setattr(pgvector, "GRAPH_ROWS", 1500)
    engine, url = make(dim=24)
    vectors = engines.clustered(3000, 24)
    engine.add(vectors[:1000], some_items(1000))
    assert engine.describe()["search"] == "exact"
    engine.add(vectors[1000:2000], some_items(2000)[1000:])
    assert engine.describe()["search"] == "hnsw"
    assert re.fullmatch(r"PostgreSQL \d+.*, pgvector \d.*", engine.describe()["server"])
    engine.upsert(vectors[2000:], some_items(3000)[2000:])
    engine.prepare()
    queries = engines.clustered(30, 24, seed=1)

    def recall(queries, k, text=None, keep=None):
        conditions = () if text is None else (parse_filter(text),)
        return engines.recall(lambda some, k: engine.search(some, k, conditions), vectors, queries, k, keep)

    assert recall(queries, 10) > 0.95
    assert recall(queries, 10, "n<300", np.arange(3000) < 300) > 0.95
    assert recall(queries[:3], 3000) == 1
    assert recall(queries, 3, "n=7|17|27", np.isin(np.arange(3000), [7, 17, 27])) == 1
    again = PgvectorEngine.open(url)
    assert again.describe()["search"] == "hnsw"
    again.close()


@pytest.mark.servers
def test_processes_that_build_the_graph_at_the_same_time(make, monkeypatch):
    engine, url = make(dim=24)
    engine.add(engines.clustered(2000, 24), some_items(2000))
    monkeypatch.setattr(pgvector, "GRAPH_ROWS", 1500)
    others = [PgvectorEngine.open(url) for _ in range(4)]
    assert engines.in_threads(lambda place: others[place].prepare(), 4) == [None] * 4
    assert [other.describe()["search"] for other in others] == ["hnsw"] * 4
    for other in others:
        other.close()


@pytest.mark.servers
def test_processes_that_make_the_same_table(monkeypatch):
    """Only one does; the others get an error, before or after it is there."""
    url, together = url_of(), threading.Barrier(4)
    own = PostgresServer.add_extension
    monkeypatch.setattr(PostgresServer, "add_extension", lambda server: (own(server), together.wait()))
    results = engines.in_threads(lambda place: PgvectorEngine.create(url, 8, b""), 4)
    created = [result for result in results if isinstance(result, PgvectorEngine)]
    assert len(created) == 1
    assert all(isinstance(result, InputError) for result in results if result not in created)
    created[0].close()


@pytest.mark.servers
def test_equal_scores_are_ordered_by_id_in_a_graph_too(make, monkeypatch):
    monkeypatch.setattr(pgvector, "GRAPH_ROWS", 100)
    engine, _ = make()
    names = [f"{i:03d}" for i in np.random.default_rng(0).permutation(200)]
    engine.add(np.repeat(halves(1), 200, 0), [Item(name) for name in names])
    engine.prepare()
    assert engine.describe()["search"] == "hnsw"
    (hits,) = engine.search(halves(1), 7, (), with_vectors=True)
    assert list(hits.ids) == sorted(names)[:7]
    np.testing.assert_array_equal(hits.vectors, engine.vectors(list(hits.ids)))
    assert engine.search(halves(1), 5, (parse_filter("label=none"),), with_vectors=True)[0].vectors.shape == (0, 8)


@pytest.mark.servers
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"password": "wrong-secret"}, "password"),
        ({"database": "nowhere"}, '"nowhere"'),
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
    check_message(error, "wrong-secret", "se%zzcret")


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
    with pytest.raises(InputError, match=r"^url") as error:
        PostgresAddress.read(url)
    check_message(error, "pa@", "pa/", "pa?", "pa#ss")


def test_the_parts_of_a_url():
    address = PostgresAddress.read("postgres://me:a%40b@host:5/db?sslmode=require&table=a%20b")
    assert (address.table, address.database) == ("a b", "postgresql://host:5/db")
    assert address.connection == "postgresql://me:a%40b@host:5/db?sslmode=require"
    assert "a%40b" not in repr(address)
    assert PostgresAddress.read("postgresql:///db").table == "frontrank"


@pytest.mark.servers
def test_rights_that_are_missing(make, administrator):
    engine, url = make()
    engine.add(halves(3), some_items(3))
    name = "reader_" + secrets.token_hex(4)
    administrator.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret-{name}'")
    administrator.execute(f"GRANT pg_read_all_data TO {name}")
    reader = PgvectorEngine.open(url.replace(f"postgres:{PASSWORD}", f"{name}:secret-{name}"))
    assert len(reader.search(halves(1), 5, ())[0]) == 3
    with pytest.raises(InputError, match="permission denied") as error:
        reader.add(halves(1), [Item("new")])
    check_message(error, f"secret-{name}")
    reader.close()
    administrator.execute(f"CREATE DATABASE {name}")
    with pytest.raises(InputError, match="CREATE EXTENSION") as error:
        PgvectorEngine.create(url_of(user=name, password=f"secret-{name}", database=name), 8, b"")
    check_message(error, f"secret-{name}")


@pytest.mark.servers
def test_only_the_owner_of_a_table_builds_its_graph(make, administrator, monkeypatch):
    monkeypatch.setattr(pgvector, "GRAPH_ROWS", 10)
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


@pytest.mark.servers
def test_an_old_pgvector(make, monkeypatch):
    _, url = make()
    monkeypatch.setattr(pgvector, "_LEAST_VERSION", (99, 0))
    with pytest.raises(InputError, match="ALTER EXTENSION"):
        PgvectorEngine.open(url)


def test_without_psycopg(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InputError, match=r"frontrank\[pgvector\]"):
        PgvectorEngine.open("postgresql://host/db")


@pytest.mark.servers
def test_a_lost_connection_is_made_again(make, monkeypatch, administrator):
    engine, _ = make()
    engine.add(halves(3), some_items(3))
    monkeypatch.setattr(pgvector, "_IDLE_SECONDS", 0)
    with engine._transaction() as (connection, _):
        own = connection.info.backend_pid  # and no other: tests of other processes are on the same server
    (has_ended,) = administrator.execute("SELECT pg_terminate_backend(%s, 60000)", [own]).fetchone()
    assert has_ended
    assert engine.count(()) == 3
    with engine._transaction() as (connection, _):
        assert connection.info.backend_pid != own
    engine.close()
    with pytest.raises(InputError, match="closed"):
        engine.count(())


@pytest.mark.servers
def test_a_server_that_goes_away(make):
    with servers.Relay(servers.postgres()) as relay:
        engine, _ = make(address=relay.address)
        engine.add(halves(3), some_items(3))
        relay.cut()
        for call in (lambda: engine.count(()), lambda: engine.add(halves(1), [Item("new")])):
            with pytest.raises(InputError, match=r"(check|start) the server") as error:
                call()
            check_message(error)


@pytest.mark.servers
def test_a_server_that_takes_too_long(make, monkeypatch):
    _, url = make()
    address = PostgresAddress.read(url)
    slow = PgvectorEngine(PostgresServer(address), address.table, 8)  # connects at the first question, the slow one
    monkeypatch.setattr(pgvector, "_ANSWER_SECONDS", 1)
    with pytest.raises(InputError, match="in time"), slow._transaction() as (_, ask):
        ask("SELECT pg_sleep(60)")
    with slow._transaction(seconds=0) as (_, ask):  # the same connection, which a busy server may keep waiting
        assert ask("SELECT count(*) FROM {items}").fetchone() == (0,)
    slow.close()
