"""The engine on a PostgreSQL server with the extension pgvector, through psycopg.

An index is a table of items, and a second table of that name with _settings behind it. Search is exact until the table
has GRAPH_ROWS rows; then a graph (HNSW) is built. Values go to the server as parameters only, names as quoted names.
"""

import json
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

import numpy as np

from frontrank.checks import import_extra
from frontrank.errors import InputError
from frontrank.retrieval.engine import Facts, Hits, close_on_error, refuse_known, refuse_unknown, split_batches
from frontrank.retrieval.items import FIELDS, LARGEST_INTEGER, ORDER, Conditions, Item, Value, number_of, text_of

GRAPH_ROWS = 20_000
_CONNECT_SECONDS, _ANSWER_SECONDS = 10, 60
_WRITE_SECONDS = 600  # rows of a large call are added to a graph one by one
_MOST_CONNECTIONS = 8
_IDLE_SECONDS = 5.0  # after which a connection is tested before it is used
_LONGEST_NAME = 48  # bytes; the names of our indexes are longer, and 63 is the most that PostgreSQL has
_LEAST_VERSION = (0, 8)  # of pgvector: from there on a search with a filter goes on until it has enough
_LARGEST_DIM, _LARGEST_GRAPH_DIM = 16_000, 2000  # of pgvector
_MOST_CANDIDATES = 1000  # of pgvector
_ROWS = 1000  # rows requested at once
_ADD_TRIES = 5  # when other processes add the same ids at the same time
_COLUMNS = "id, path, label, category, metadata"

Ask = Callable[..., Any]  # runs a statement; see PostgresServer.transaction


def read_address(url: str) -> tuple[str, str, str]:
    """Return the table, the database (its URL without user and password) and what libpq connects to.

    The URL is like postgresql://user:password@host:port/database?table=name, and any option of libpq. No error shows
    the password, or what may be a part of it.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or "@" in parts.path + parts.query or parts.netloc.count("@") > 1 or "#" in url:
        remedy = "write @ : / ? # in a password as %40 %3A %2F %3F %23"
        raise InputError(f"url must be like postgresql://user:password@host:port/database?table=name; {remedy}")
    options = parse_qsl(parts.query, keep_blank_values=True)
    table = dict(options).get("table", "frontrank")
    if not 1 <= len(table.encode()) <= _LONGEST_NAME or re.search("[\x00%]", table):
        raise InputError(f"url has the table {table!r:.80}; use a name of 1 to {_LONGEST_NAME} bytes without %")
    others = "&".join(f"{quote(name)}={quote(value)}" for name, value in options if name != "table")
    connection = urlunsplit(("postgresql", parts.netloc, parts.path, others, ""))
    return table, f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}", connection


class PostgresServer:
    """Connections that threads take and give back, bounded in number and time; their errors are one line of ours."""

    def __init__(self, url: str) -> None:
        table, self._database, self._url = read_address(url)
        self.where = f"table {table} of {self._database}"
        self._psycopg: Any = import_extra("psycopg", "pgvector", "an index at postgresql://")
        self.errors = self._psycopg.errors
        from psycopg import sql

        names = {"items": table, "settings": f"{table}_settings", "graph": f"{table}_hnsw"}
        self.names = {name: sql.Identifier(text) for name, text in names.items()}
        self.names["new_items"] = sql.Identifier("pg_temp", "frontrank_new_items")
        self.format = lambda statement: sql.SQL(statement).format(**self.names)
        self._idle: list[tuple[Any, float]] = []  # connections with the time of their last use
        self._lock, self._places = threading.Lock(), threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._is_closed = False

    @contextmanager
    def transaction(self, seconds: int | None = None) -> Iterator[tuple[Any, Ask]]:
        """Give a connection on which everything is done together or not at all, and a function that asks on it.

        In its statements {items} and such stand for our names. A statement may take so many seconds, 0 for any time.
        """
        errors = self.errors
        with self._connection() as connection:

            def ask(statement: str, values: Sequence[Any] = ()) -> Any:
                return connection.cursor(binary=True).execute(self.format(statement), values or None)

            try:
                with connection.transaction():
                    if seconds is not None:
                        ask(f"SET LOCAL statement_timeout = '{seconds}s'")
                    yield connection, ask
            except errors.UniqueViolation:
                raise  # the engine knows what to do
            except self._psycopg.Error as error:
                fault = f": {_first_line(error)}; check the server, then try again"
                if isinstance(error, errors.InsufficientPrivilege):
                    fault = f" refuses: {_first_line(error)}; ask its owner for the right"
                elif isinstance(error, errors.QueryCanceled):
                    fault = " did not answer in time; try again with less, or look at its load"
                elif isinstance(error, errors.UndefinedTable | errors.UndefinedColumn):
                    fault = f" is not an index of Frontrank ({_first_line(error)}); choose another name"
                raise InputError(self.where + fault) from None

    def ask(self, statement: str, values: Sequence[Any] = (), seconds: int | None = None) -> Any:
        """Run one statement by itself; return its cursor."""
        with self.transaction(seconds) as (_, ask):
            return ask(statement, values)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        with self._places:
            connection = self._take_idle() or self._connect()
            try:
                yield connection
            finally:
                with self._lock:
                    if self._is_closed or connection.closed:
                        connection.close()
                    else:
                        self._idle.append((connection, time.monotonic()))

    def _take_idle(self) -> Any:
        """Return a connection that works, None if there is none."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise InputError(f"{self.where} is closed; open it again")
                if not self._idle:
                    return None
                connection, last_use = self._idle.pop()
            with suppress(self._psycopg.Error):
                if not connection.closed:
                    if time.monotonic() - last_use >= _IDLE_SECONDS:
                        connection.execute("SELECT 1")
                    return connection
            connection.close()

    def _connect(self) -> Any:
        options = {"autocommit": True, "connect_timeout": _CONNECT_SECONDS, "prepare_threshold": None}
        try:
            connection = self._psycopg.connect(self._url, **options)
            connection.execute(f"SET statement_timeout = '{_ANSWER_SECONDS}s'")
        except self._psycopg.Error as error:
            reason = _first_line(error)
            password = urlsplit(self._url).password or ""
            for secret in {password, unquote(password)} - {""}:  # libpq may quote a URL that it cannot read
                reason = reason.replace(secret, "...")
            reason += "; start the server, or correct user, password, host, database or options in the url"
            raise InputError(f"{self._database} cannot be used: {reason}") from None
        return connection

    def has_extension(self) -> bool:
        """Return whether the database has pgvector; raise if its version is too old."""
        row = self.ask("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        if row is not None and tuple(map(int, row[0].split(".")[:2])) < _LEAST_VERSION:
            raise InputError(f"{self.where} has pgvector {row[0]}; update it to 0.8: ALTER EXTENSION vector UPDATE")
        return row is not None

    def add_extension(self) -> None:
        """Add pgvector to the database if it is missing."""
        if self.has_extension():
            return
        with self._connection() as connection:
            try:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            except self.errors.UniqueViolation:
                pass  # another process added it at the same time
            except self._psycopg.Error as error:
                remedy = "install it on the server, or let an administrator run there: CREATE EXTENSION vector"
                fault = f"cannot add pgvector ({_first_line(error)}); {remedy}"
                raise InputError(f"{self._database} {fault}") from None

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            while self._idle:
                self._idle.pop()[0].close()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


class PgvectorEngine:
    """An `Engine` on a PostgreSQL server; see `open` and `create`. A write happens as a whole or not at all."""

    name = "pgvector"

    def __init__(self, server: PostgresServer, dim: int) -> None:
        self.dim, self._server, self._has_graph = dim, server, False
        self._transaction, self._ask = server.transaction, server.ask

    @classmethod
    def open(cls, url: str, progress: bool | None = None) -> "PgvectorEngine | None":
        """Open the index of a table, None if there is no table of its name."""
        server = PostgresServer(url)
        with close_on_error(server):
            engine = cls(server, 0)
            with server.transaction() as (_, ask):
                names = [server.names[name].as_string() for name in ("items", "settings")]
                items, settings = ask("SELECT to_regclass(%s), to_regclass(%s)", names).fetchone()
                if settings is not None:
                    engine.dim = ask("SELECT dim FROM {settings}").fetchone()[0]
            if settings is None and items is None:
                server.close()
                return None
            if settings is None or items is None or not server.has_extension():
                raise InputError(f"{server.where} is not an index of Frontrank; choose another name")
        return engine

    @classmethod
    def create(cls, url: str, dim: int, settings: bytes, progress: bool | None = None) -> "PgvectorEngine":
        """Create an index in a new table."""
        if dim > _LARGEST_DIM:
            raise InputError(f"dim must be at most {_LARGEST_DIM} with pgvector, got {dim}; whiten to fewer dimensions")
        server = PostgresServer(url)
        with close_on_error(server):
            server.add_extension()
            engine = cls(server, dim)
            try:
                with engine._transaction() as (_, ask):
                    texts = 'id text COLLATE "C" PRIMARY KEY, path text NOT NULL, label text, category text'
                    ask(f"CREATE TABLE {{items}} ({texts}, metadata jsonb NOT NULL, vector vector({dim}) NOT NULL)")
                    columns = "one boolean PRIMARY KEY CHECK (one), dim integer NOT NULL, settings bytea NOT NULL"
                    ask(f"CREATE TABLE {{settings}} ({columns})")
                    ask("INSERT INTO {settings} VALUES (true, %s, %s)", [dim, settings])
            except server.errors.UniqueViolation:
                raise InputError(f"{server.where} was created by another process just now; try again") from None
        return engine

    def read_settings(self) -> bytes:
        row = self._ask("SELECT settings FROM {settings}").fetchone()
        if row is None:
            raise InputError(f"{self._server.where} has no settings; index again under another name")
        return bytes(row[0])

    def write_settings(self, settings: bytes) -> None:
        self._ask("UPDATE {settings} SET settings = %s", [settings])

    def add(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        ids = [item.id for item in items]
        collision = self._server.errors.UniqueViolation  # another process added one at the same time: look again
        for _ in range(_ADD_TRIES):
            with suppress(collision), self._transaction(_WRITE_SECONDS) as (connection, ask):
                refuse_known(row[0] for row in ask("SELECT id FROM {items} WHERE id = ANY(%s)", [ids]))
                self._copy(connection, "items", vectors, items)
                break
        else:
            raise InputError(f"{self._server.where}: other processes write all the time; try again")
        self._build_graph()

    def upsert(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        with self._transaction(_WRITE_SECONDS) as (connection, ask):
            ask("CREATE TEMPORARY TABLE {new_items} (LIKE {items}) ON COMMIT DROP")
            self._copy(connection, "new_items", vectors, items)
            # In the order of ids, so that no two writers wait for each other.
            new = "(EXCLUDED.path, EXCLUDED.label, EXCLUDED.category, EXCLUDED.metadata, EXCLUDED.vector)"
            replace = f"ON CONFLICT (id) DO UPDATE SET (path, label, category, metadata, vector) = {new}"
            ask(f"INSERT INTO {{items}} SELECT * FROM {{new_items}} ORDER BY id {replace}")
        self._build_graph()

    def _copy(self, connection: Any, table: str, vectors: np.ndarray, items: Sequence[Item]) -> None:
        statement = self._server.format(f"COPY {{{table}}} FROM STDIN (FORMAT BINARY)")
        with connection.cursor().copy(statement) as copy:
            copy.set_types(["text", "text", "text", "text", "jsonb", "bytea"])
            for row in sorted(range(len(items)), key=lambda row: items[row].id):
                copy.write_row(_to_row(items[row], vectors[row]))

    def delete(self, ids: Sequence[str]) -> int:
        return int(self._ask("DELETE FROM {items} WHERE id = ANY(%s)", [list(ids)], _WRITE_SECONDS).rowcount)

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        items = {row[0]: _to_item(row) for row in self._read(ids, _COLUMNS)}
        return [items.get(name) for name in ids]

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        vectors = {row[0]: row[1] for row in self._read(ids, "id, vector")}
        refuse_unknown(name for name in ids if name not in vectors)
        return self._to_vectors(vectors[name] for name in ids)

    def _read(self, ids: Sequence[str], columns: str) -> Iterator[tuple[Any, ...]]:
        with self._transaction() as (_, ask):
            for some in split_batches(list(ids), _ROWS):
                yield from ask(f"SELECT {columns} FROM {{items}} WHERE id = ANY(%s)", [some])

    def search(self, queries: np.ndarray, k: int, conditions: Conditions, with_vectors: bool = False) -> list[Hits]:
        where, values = to_sql(conditions)
        columns = f"{_COLUMNS}, {'vector' if with_vectors else 'NULL'}, vector <#> %s::vector AS below"
        statement = f"SELECT {columns} FROM {{items}} WHERE {where} ORDER BY below, id LIMIT %s"
        candidates = max(400, 4 * k) if conditions else max(200, 2 * k)
        results = []
        with self._transaction() as (_, ask):
            # A search of the graph goes on, in order, until enough rows have met the filter.
            ask("SELECT set_config('hnsw.iterative_scan', 'strict_order', true)")
            ask("SELECT set_config('hnsw.ef_search', %s, true)", [str(min(candidates, _MOST_CANDIDATES))])
            for query in queries:
                parameters = [_to_text(query), *values, min(k, LARGEST_INTEGER)]
                rows = ask(statement, parameters).fetchall()
                if len(rows) < k and self._look_for_graph(ask):  # which gives up after a while
                    ask("SET LOCAL enable_indexscan = off")
                    rows = ask(statement, parameters).fetchall()
                    ask("SET LOCAL enable_indexscan = on")
                results.append(rows)
        return [self._to_hits(rows, with_vectors) for rows in results]

    def _to_hits(self, rows: list[tuple[Any, ...]], with_vectors: bool) -> Hits:
        vectors = self._to_vectors(row[5] for row in rows) if with_vectors else None
        return Hits(tuple(map(_to_item, rows)), -np.array([row[6] for row in rows], np.float32), vectors)

    def count(self, conditions: Conditions) -> int:
        where, values = to_sql(conditions)
        return int(self._ask(f"SELECT count(*) FROM {{items}} WHERE {where}", values).fetchone()[0])

    def scan(self, after: str | None, limit: int) -> list[Item]:
        statement = f"SELECT {_COLUMNS} FROM {{items}} WHERE id > %s ORDER BY id LIMIT %s"
        return list(map(_to_item, self._ask(statement, [after or "", limit])))

    def values(self, field: str) -> dict[str, int]:
        value, parameters = (field, []) if field in FIELDS else ("metadata -> %s", [field])
        every = f"SELECT {value} AS value FROM {{items}}"
        groups = f"SELECT value, count(*) FROM ({every}) AS every WHERE value IS NOT NULL GROUP BY value"
        counts: Counter[str] = Counter()
        for one, count in self._ask(groups, parameters):
            counts[text_of(_to_value(one))] += count
        return counts

    def describe(self) -> Facts:
        with self._transaction() as (_, ask):
            row = ask("SELECT extversion, version() FROM pg_extension WHERE extname = 'vector'").fetchone()
            search = "hnsw" if self._look_for_graph(ask) else "exact"
        server = " ".join(row[1].split()[:2])
        return {"search": search, "server": f"{server}, pgvector {row[0]}"}

    def prepare(self) -> None:
        """Build the graph, if there are enough rows, and let the server collect what it needs to plan searches."""
        self._build_graph()
        self._ask("ANALYZE {items}", seconds=0)

    def refresh(self) -> bool:
        return False

    def close(self) -> None:
        self._server.close()

    def _look_for_graph(self, ask: Ask) -> bool:
        if not self._has_graph:
            row = ask("SELECT to_regclass(%s)", [self._server.names["graph"].as_string()]).fetchone()
            self._has_graph = row[0] is not None
        return self._has_graph

    def _build_graph(self) -> None:
        """Build the graph when there are enough rows; from then on the server adds new rows to it.

        Only the owner of a table may do that; other users who write to it leave it to the owner.
        """
        if self._has_graph or self.dim > _LARGEST_GRAPH_DIM:
            return
        with suppress(self._server.errors.UniqueViolation), self._transaction(seconds=0) as (_, ask):  # others built it
            has_few = "SELECT count(*) < %s FROM (SELECT 1 FROM {items} LIMIT %s) AS first"
            if self._look_for_graph(ask) or ask(has_few, [GRAPH_ROWS, GRAPH_ROWS]).fetchone()[0]:
                return
            is_owner = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(%s)"
            if ask(is_owner, [self._server.names["items"].as_string()]).fetchone()[0]:
                ask("CREATE INDEX IF NOT EXISTS {graph} ON {items} USING hnsw (vector vector_ip_ops)")
                self._look_for_graph(ask)

    def _to_vectors(self, packed: Iterable[bytes]) -> np.ndarray:
        rows = [np.frombuffer(one, ">f4", offset=4) for one in packed]
        return np.array(rows, np.float32).reshape(len(rows), self.dim)


def to_sql(conditions: Conditions) -> tuple[str, list[Any]]:
    """Return the conditions as SQL, and the values of its parameters."""
    tests: list[str] = []
    values: list[Any] = []
    for condition in conditions:
        is_text = condition.field in FIELDS
        place = condition.field if is_text else "metadata -> %s"
        names = [] if is_text else [condition.field]
        if condition.operator in ORDER:
            # JSON orders kinds of values as well, so numbers stand before and after others.
            test = f"jsonb_typeof({place}) = 'number' AND {place} {condition.operator} %s::jsonb"
            tests.append("false" if is_text else test)
            values += [] if is_text else [*names, *names, repr(condition.numbers[0])]
            continue
        negation, cast = "NOT " * (condition.operator == "!="), "" if is_text else "::jsonb[]"
        tests.append(f"{negation}coalesce({place} = ANY(%s{cast}), false)")
        texts = condition.storable_values
        values += [*names, texts if is_text else _to_json_values(texts)]
    return " AND ".join(tests or ["true"]), values


def _to_json_values(texts: list[str]) -> list[str]:
    """Return all that equals one of these texts, as JSON: texts, numbers, true and false."""
    numbers = [repr(number) for text in texts if (number := number_of(text)) is not None]
    return [*map(json.dumps, texts), *numbers, *(text for text in texts if text in ("true", "false"))]


def _to_row(item: Item, vector: np.ndarray) -> tuple[Any, ...]:
    from psycopg.types.json import Jsonb

    packed = struct.pack(">HH", len(vector), 0) + vector.astype(">f4").tobytes()  # the format of pgvector
    return item.id, item.path, item.label, item.category, Jsonb(dict(item.metadata)), packed


def _to_item(row: tuple[Any, ...]) -> Item:
    name, path, label, category, metadata = row[:5]
    return Item(name, path, label, category, {name: _to_value(value) for name, value in metadata.items()})


def _to_value(value: Value) -> Value:
    """Return a value of JSON, in which large numbers come back without a point."""
    return float(value) if type(value) is int and abs(value) > LARGEST_INTEGER else value


def _to_text(vector: np.ndarray) -> str:
    return f"[{','.join(f'{number:.9g}' for number in vector.tolist())}]"
