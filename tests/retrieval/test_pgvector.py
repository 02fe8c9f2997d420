import secrets

import numpy as np
import psycopg
import pytest

from frontrank.errors import InputError
from frontrank.retrieval import pgvector
from frontrank.retrieval.items import Item, parse_filter
from frontrank.retrieval.pgvector import PgvectorEngine, PostgresServer, read_address, to_sql
from tests.errors import refusal
from tests.retrieval import engines
from tests.retrieval.engines import halves, some_items
from tests.retrieval.servers import QUOTED_PASSWORD, postgres_url
from tests.retrieval.test_engine import POSTGRES, check_message, make_engines


@pytest.fixture
def make():
    yield from make_engines(POSTGRES)


@pytest.fixture
def administrator():
    with psycopg.connect(postgres_url().partition("?")[0], autocommit=True) as connection:
        yield connection


@pytest.fixture
def make_user(administrator):
    """Makes a user of this name and the password secret, with a right."""

    def create(name, right):
        name += secrets.token_hex(4)
        administrator.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret-{name}'")
        administrator.execute(f"GRANT {right} TO {name}")
        return name

    return create


def test_conditions_as_sql():
    where, values = to_sql([parse_filter("label!=cat|dog"), parse_filter("year>=2020")])
    number = "jsonb_typeof(metadata -> %s) = 'number' AND metadata -> %s >= %s::jsonb"
    assert where == f"NOT coalesce(label = ANY(%s), false) AND {number}"
    assert values == [["cat", "dog"], "year", "year", "2020.0"]
    assert to_sql([parse_filter("label>3")]) == ("false", [])
    assert to_sql([]) == ("true", [])


@pytest.mark.servers
def test_tables_that_are_not_an_index(make, administrator):
    engine, url = make(name=(table := "t" + secrets.token_hex(4)))
    administrator.execute(f"DELETE FROM {table}_settings")
    refusal(engine.read_settings, "no settings")
    administrator.execute(f"DROP TABLE {table}")
    refusal(lambda: engine.count(()), f"table {table} ")
    administrator.execute(f"INSERT INTO {table}_settings VALUES (true, 8, '')")
    refusal(lambda: PgvectorEngine.open(url), f"table {table} ")
    with pytest.raises(InputError, match=r"^dim .*16000"):
        PgvectorEngine.create(postgres_url(), 20_000, b"")


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
def test_writers_and_builders_of_the_graph_at_the_same_time(make, monkeypatch):
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
    engine.add(halves(1500), some_items(1500, "more"))
    monkeypatch.setattr(pgvector, "GRAPH_ROWS", 1500)
    assert engines.in_threads(lambda place: others[place].prepare(), 4) == [None] * 4
    assert [other.describe()["search"] for other in others] == ["hnsw"] * 4
    for other in others:
        other.close()


@pytest.mark.servers
def test_a_graph_orders_equal_scores_by_id(make, monkeypatch):
    monkeypatch.setattr(pgvector, "GRAPH_ROWS", 100)
    engine, url = make(name='a"; DROP TABLE x; -- $1 {items} é')  # which is only a name
    names = [f"{i:03d}" for i in np.random.default_rng(0).permutation(200)]
    engine.add(np.repeat(halves(1), 200, 0), [Item(name) for name in names])
    engine.prepare()
    assert engine.describe()["search"] == "hnsw"
    assert list(engine.search(halves(1), 7, ())[0].ids) == sorted(names)[:7]
    again = PgvectorEngine.open(url)
    assert (again.count(()), again.dim) == (200, 8)
    again.close()
    monkeypatch.setattr(pgvector, "_LEAST_VERSION", (99, 0))
    refusal(lambda: PgvectorEngine.open(url), "ALTER EXTENSION")  # pgvector is too old


def test_the_parts_of_a_url():
    table, database, connection = read_address("postgres://me:a%40b@host:5/db?sslmode=require&table=a%20b")
    assert (table, database) == ("a b", "postgresql://host:5/db")
    assert connection == "postgresql://me:a%40b@host:5/db?sslmode=require"
    assert read_address("postgresql:///db")[0] == "frontrank"


@pytest.mark.servers
def test_rights_that_are_missing(make, administrator, make_user):
    engine, url = make()
    engine.add(halves(3), some_items(3))
    name = make_user("reader_", "pg_read_all_data")
    reader = PgvectorEngine.open(url.replace(f"postgres:{QUOTED_PASSWORD}", f"{name}:secret-{name}"))
    assert len(reader.search(halves(1), 5, ())[0]) == 3
    with pytest.raises(InputError, match="permission denied") as error:
        reader.add(halves(1), [Item("new")])
    check_message(error, f"secret-{name}")
    reader.close()
    administrator.execute(f"CREATE DATABASE {name}")
    with pytest.raises(InputError, match="CREATE EXTENSION") as error:
        PgvectorEngine.create(postgres_url(user=name, password=f"secret-{name}", database=name), 8, b"")
    check_message(error, f"secret-{name}")


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
    refusal(lambda: engine.count(()), "closed")


@pytest.mark.servers
def test_a_server_that_takes_too_long(make, monkeypatch):
    _, url = make()
    slow = PgvectorEngine(PostgresServer(url), 8)  # connects at the first question, the slow one
    monkeypatch.setattr(pgvector, "_ANSWER_SECONDS", 1)
    with pytest.raises(InputError, match="in time"), slow._transaction() as (_, ask):
        ask("SELECT pg_sleep(60)")
    with slow._transaction(seconds=0) as (_, ask):  # the same connection, which a busy server may keep waiting
        assert ask("SELECT count(*) FROM {items}").fetchone() == (0,)
    slow.close()
