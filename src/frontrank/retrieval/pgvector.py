"""The engine on a PostgreSQL server with the extension pgvector, through psycopg.

An index is a table of items, and a table of its name with _settings behind it. Search is exact until the table has
GRAPH_ROWS rows; then a graph (HNSW) is built. Values only ever go to the server as parameters, names as quoted names.
"""

import json
import re
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

import numpy as np

from frontrank.errors import InputError
from frontrank.retrieval.engine import Facts, Hits, refuse_known, refuse_unknown
from frontrank.retrieval.items import FIELDS, ORDER, Condition, Item, Value, number_of, text_of

# ==== A PostgreSQL server with pgvector: its address, and connections that are bounded in number and in time.


_CONNECTING, _ANSWERING = 10, 60  # seconds
_MOST_CONNECTIONS = 8
_IDLE = 5.0  # seconds after which a connection is tried before it is used
_LONGEST_NAME = 48  # bytes; the names of our indexes are longer, and 63 is the most there is
_LEAST_VERSION = (0, 8)  # of pgvector: searches with a filter go on until they have found enough


@dataclass(frozen=True)
class PostgresAddress:
    """What a URL says: postgresql://user:password@host:port/database?table=name, and any option of libpq.

    >>> PostgresAddress.read("postgresql://me@localhost/db?table=cats&sslmode=require").table
    'cats'
    """

    table: str
    shown: str  # without the password
    connection: str = field(repr=False)

    @classmethod
    def read(cls, url: str) -> "PostgresAddress":
        """No message shows the password, nor what may be a part of it."""
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = None
        if parts is None or "@" in parts.path + parts.query or parts.netloc.count("@") > 1 or "#" in url:
            raise InputError(
                "url must be like postgresql://user:password@host:port/database?table=name; write @ : / ? # in a "
                "password as %40 %3A %2F %3F %23"
            )
        options = parse_qsl(parts.query, keep_blank_values=True)
        table = dict(options).get("table", "frontrank")
        if not 1 <= len(table.encode()) <= _LONGEST_NAME or re.search("[\x00%]", table):
            raise InputError(f"url has the table {table!r:.80}; use a name of 1 to {_LONGEST_NAME} bytes without %")
        kept = "&".join(f"{quote(name)}={quote(value)}" for name, value in options if name != "table")
        connection = urlunsplit(("postgresql", parts.netloc, parts.path, kept, ""))
        place = parts.netloc.rpartition("@")[2]
        return cls(table, f"table {table} of postgresql://{place}{parts.path}", connection)


class PostgresServer:
    """Connections that threads take and give back; their errors are one line of ours."""

    def __init__(self, address: PostgresAddress) -> None:
        self.named = address.shown
        self._address = address
        self._database = address.shown.rpartition(" of ")[2]
        self._library = _import_psycopg()
        self._free: list[tuple[Any, float]] = []  # with the time of their last use
        self._lock, self._places = threading.Lock(), threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._is_closed = False

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Within, what is done on the connection is done together or not at all."""
        with self._places:
            connection = self._connected()
            try:
                with self._said_in_one_line(), connection.transaction():
                    yield connection
            finally:
                self._give_back(connection)

    @contextmanager
    def _said_in_one_line(self) -> Iterator[None]:
        errors = self._library.errors
        try:
            yield
        except errors.UniqueViolation:
            raise  # the engine knows what to do
        except errors.InsufficientPrivilege as error:
            raise InputError(f"{self.named} refuses: {_first_line(error)}; ask its owner for the right") from None
        except errors.QueryCanceled:
            raise InputError(f"{self.named} did not answer in time; try again with less, or look at its load") from None
        except (errors.UndefinedTable, errors.UndefinedColumn) as error:
            raise InputError(f"{self.named} is no index of ours ({_first_line(error)}); choose another name") from None
        except self._library.Error as error:
            raise InputError(f"{self.named}: {_first_line(error)}; look at the server, then try again") from None

    def _connected(self) -> Any:
        while True:
            with self._lock:
                if self._is_closed:
                    raise InputError(f"{self.named} is closed; open it again")
                connection, used = self._free.pop() if self._free else (None, 0.0)
            if connection is None:
                return self._connect()
            if not connection.closed and (time.monotonic() - used < _IDLE or self._lives(connection)):
                return connection
            connection.close()

    def _lives(self, connection: Any) -> bool:
        try:
            connection.execute("SELECT 1")
        except self._library.Error:
            return False
        return True

    def _connect(self) -> Any:
        try:
            connection = self._library.connect(
                self._address.connection, autocommit=True, connect_timeout=_CONNECTING, prepare_threshold=None
            )
            connection.execute(f"SET statement_timeout = '{_ANSWERING}s'")
        except self._library.Error as error:
            said = self._without_password(_first_line(error))
            raise InputError(
                f"{self._database} cannot be used: {said}; start the server, or correct user, password, host, "
                "database or options in the url"
            ) from None
        return connection

    def _without_password(self, text: str) -> str:
        """A URL that libpq cannot read it may quote."""
        written = urlsplit(self._address.connection).password or ""
        for secret in {written, unquote(written)} - {""}:
            text = text.replace(secret, "...")
        return text

    def _give_back(self, connection: Any) -> None:
        with self._lock:
            if self._is_closed or connection.closed:
                connection.close()
            else:
                self._free.append((connection, time.monotonic()))

    def has_extension(self) -> bool:
        """Whether the database has pgvector; refuses a version that is too old."""
        with self.transaction() as connection:
            found = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        if found is not None and tuple(map(int, found[0].split(".")[:2])) < _LEAST_VERSION:
            raise InputError(
                f"{self.named} has pgvector {found[0]}; 0.8 or newer is needed: ALTER EXTENSION vector UPDATE"
            )
        return found is not None

    def make_extension(self) -> None:
        """Have pgvector in the database."""
        if self.has_extension():
            return
        errors = self._library.errors
        with self._places:
            connection = self._connected()
            try:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            except errors.UniqueViolation:
                pass  # another process added it at the same time
            except errors.InsufficientPrivilege:
                raise InputError(
                    f"{self._database} has no pgvector, and this user may not add it; have an administrator run there: "
                    "CREATE EXTENSION vector"
                ) from None
            except self._library.Error as error:
                raise InputError(
                    f"{self._database} cannot add pgvector ({_first_line(error)}); install it on the server"
                ) from None
            finally:
                self._give_back(connection)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            while self._free:
                self._free.pop()[0].close()


def _import_psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise InputError("an index at postgresql:// needs psycopg; pip install 'frontrank[pgvector]'") from None
    return psycopg


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


# ==== The engine on a PostgreSQL server with the extension pgvector, through psycopg.


GRAPH_ROWS = 20_000
_LARGEST_DIM, _LARGEST_GRAPH_DIM = 16_000, 2000  # of pgvector
_ROWS = 1000  # rows asked for at once
_WRITING = 600  # seconds that a write may take: rows of a large call go into a graph one by one
_ROUNDS = 5  # for additions that another process got in the way of
_MOST_CANDIDATES = 1000  # of pgvector
_LARGEST = 2**53  # beyond which there are no whole numbers in metadata
_COLUMNS = "id, path, label, category, metadata"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class PgvectorEngine:
    """An `Engine` on a PostgreSQL server; see `open` and `create`. A write happens as a whole or not at all."""

    name = "pgvector"

    def __init__(self, server: PostgresServer, address: PostgresAddress, dim: int) -> None:
        from psycopg import sql

        self.dim = dim
        self._server = server
        self._sql = sql.SQL
        self._names = {
            "items": sql.Identifier(address.table),
            "settings": sql.Identifier(f"{address.table}_settings"),
            "graph": sql.Identifier(f"{address.table}_hnsw"),
            "staged": sql.Identifier("pg_temp", "frontrank_staged"),
            "dim": sql.Literal(dim),
        }
        self._has_graph = False

    @classmethod
    def open(cls, url: str) -> "PgvectorEngine | None":
        """The engine of a table, None if there is none of its name."""
        address = PostgresAddress.read(url)
        server = PostgresServer(address)
        try:
            engine = cls(server, address, 0)
            with engine._transaction() as (_, ask):
                quoted = [engine._names[name].as_string() for name in ("items", "settings")]
                items, settings = ask("SELECT to_regclass(%s), to_regclass(%s)", quoted).fetchone()
                if settings is not None:
                    engine.dim = ask("SELECT dim FROM {settings}").fetchone()[0]
            if settings is None and items is None:
                server.close()
                return None
            if settings is None or items is None or not server.has_extension():
                raise InputError(f"{server.named} is no index of Frontrank; choose another name")
        except BaseException:
            server.close()
            raise
        return engine

    @classmethod
    def create(cls, url: str, dim: int, settings: bytes) -> "PgvectorEngine":
        """The engine of a new table."""
        if dim > _LARGEST_DIM:
            raise InputError(f"dim must be at most {_LARGEST_DIM} with pgvector, got {dim}; whiten to fewer dimensions")
        address = PostgresAddress.read(url)
        server = PostgresServer(address)
        from psycopg import errors  # which is there by now

        try:
            server.make_extension()
            engine = cls(server, address, dim)
            with engine._transaction() as (_, ask):
                ask(
                    'CREATE TABLE {items} (id text COLLATE "C" PRIMARY KEY, path text NOT NULL, label text, '
                    "category text, metadata jsonb NOT NULL, vector vector({dim}) NOT NULL)"
                )
                ask(
                    "CREATE TABLE {settings} (one boolean PRIMARY KEY CHECK (one), dim integer NOT NULL, "
                    "settings bytea NOT NULL)"
                )
                ask("INSERT INTO {settings} VALUES (true, {dim}, %s)", [settings])
        except errors.UniqueViolation:
            server.close()
            raise InputError(f"{server.named} was made by another process just now; try again") from None
        except BaseException:
            server.close()
            raise
        return engine

    def read_settings(self) -> bytes:
        with self._transaction() as (_, ask):
            found = ask("SELECT settings FROM {settings}").fetchone()
        if found is None:
            raise InputError(f"{self._server.named} has no settings; create it anew under another name")
        return bytes(found[0])

    def write_settings(self, settings: bytes) -> None:
        with self._transaction() as (_, ask):
            ask("UPDATE {settings} SET settings = %s", [settings])

    def add(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        from psycopg import errors

        ids = [item.id for item in items]
        for left in reversed(range(_ROUNDS)):
            try:
                with self._transaction(_WRITING) as (connection, ask):
                    refuse_known(row[0] for row in ask("SELECT id FROM {items} WHERE id = ANY(%s)", [ids]))
                    self._copy(connection, "items", vectors, items)
                break
            except errors.UniqueViolation:  # another process added one at the same time: look again
                if not left:
                    raise InputError(f"{self._server.named} is written to by others all the time; try again") from None
        self._grow_graph()

    def upsert(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        with self._transaction(_WRITING) as (connection, ask):
            ask("CREATE TEMPORARY TABLE {staged} (LIKE {items}) ON COMMIT DROP")
            self._copy(connection, "staged", vectors, items)
            # By their ids, so that no two writers wait for each other.
            ask(
                "INSERT INTO {items} SELECT * FROM {staged} ORDER BY id ON CONFLICT (id) DO UPDATE "
                "SET (path, label, category, metadata, vector) = "
                "(EXCLUDED.path, EXCLUDED.label, EXCLUDED.category, EXCLUDED.metadata, EXCLUDED.vector)"
            )
        self._grow_graph()

    def _copy(self, connection: Any, table: str, vectors: np.ndarray, items: Sequence[Item]) -> None:
        text = self._sql("COPY {table} FROM STDIN (FORMAT BINARY)").format(table=self._names[table])
        with connection.cursor().copy(text) as copy:
            copy.set_types(["text", "text", "text", "text", "jsonb", "bytea"])
            for row in sorted(range(len(items)), key=lambda row: items[row].id):
                copy.write_row(_row(items[row], vectors[row]))

    def delete(self, ids: Sequence[str]) -> int:
        with self._transaction(_WRITING) as (_, ask):
            return int(ask("DELETE FROM {items} WHERE id = ANY(%s)", [list(ids)]).rowcount)

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        found = {row[0]: _item(row) for row in self._found(ids, _COLUMNS)}
        return [found.get(name) for name in ids]

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        found = {row[0]: row[1] for row in self._found(ids, "id, vector")}
        refuse_unknown(name for name in ids if name not in found)
        return self._vectors(found[name] for name in ids)

    def _found(self, ids: Sequence[str], columns: str) -> Iterator[tuple[Any, ...]]:
        with self._transaction() as (_, ask):
            for start in range(0, len(ids), _ROWS):
                some = list(ids[start : start + _ROWS])
                yield from ask(f"SELECT {columns} FROM {{items}} WHERE id = ANY(%s)", [some])

    def search(
        self, queries: np.ndarray, k: int, conditions: tuple[Condition, ...], with_vectors: bool = False
    ) -> list[Hits]:
        where, values = written(conditions)
        columns = f"{_COLUMNS}, {'vector' if with_vectors else 'NULL'}, vector <#> %s::vector AS below"
        text = f"SELECT {columns} FROM {{items}} WHERE {where} ORDER BY below, id LIMIT %s"
        candidates = max(400, 4 * k) if conditions else max(100, 2 * k)
        found = []
        with self._transaction() as (_, ask):
            # A search of the graph goes on, in order, until enough have met the filter.
            ask("SELECT set_config('hnsw.iterative_scan', 'strict_order', true)")
            ask("SELECT set_config('hnsw.ef_search', %s, true)", [str(min(candidates, _MOST_CANDIDATES))])
            for query in queries:
                asked = [_text(query), *values, min(k, _LARGEST)]
                rows = ask(text, asked).fetchall()
                if len(rows) < k and self._look_for_graph(ask):  # which gives up after a while
                    ask("SET LOCAL enable_indexscan = off")
                    rows = ask(text, asked).fetchall()
                    ask("SET LOCAL enable_indexscan = on")
                found.append(rows)
        return [self._hits(rows, with_vectors) for rows in found]

    def _hits(self, rows: list[tuple[Any, ...]], with_vectors: bool) -> Hits:
        return Hits(
            tuple(map(_item, rows)),
            -np.array([row[6] for row in rows], np.float32),
            self._vectors(row[5] for row in rows) if with_vectors else None,
        )

    def count(self, conditions: tuple[Condition, ...]) -> int:
        where, values = written(conditions)
        with self._transaction() as (_, ask):
            return int(ask(f"SELECT count(*) FROM {{items}} WHERE {where}", values).fetchone()[0])

    def scan(self, after: str | None, limit: int) -> list[Item]:
        with self._transaction() as (_, ask):
            text = f"SELECT {_COLUMNS} FROM {{items}} WHERE id > %s ORDER BY id LIMIT %s"
            return [_item(row) for row in ask(text, ["" if after is None else after, limit])]

    def values(self, field: str) -> dict[str, int]:
        value, asked = (field, []) if field in FIELDS else ("metadata -> %s", [field])
        counts: dict[str, int] = {}
        with self._transaction() as (_, ask):
            all_values = f"SELECT {value} AS value FROM {{items}}"
            grouped = f"SELECT value, count(*) FROM ({all_values}) AS found WHERE value IS NOT NULL GROUP BY value"
            for found, count in ask(grouped, asked):
                name = text_of(_number(found))
                counts[name] = counts.get(name, 0) + count
        return counts

    def describe(self) -> Facts:
        with self._transaction() as (_, ask):
            row = ask("SELECT extversion, version() FROM pg_extension WHERE extname = 'vector'").fetchone()
            search = "hnsw" if self._look_for_graph(ask) else "exact"
        server = " ".join(row[1].split()[:2])
        return {"search": search, "server": f"{server}, pgvector {row[0]}"}

    def prepare(self) -> None:
        """Build the graph, if there are enough rows, and let the server count what it needs to choose its ways."""
        self._grow_graph()
        with self._transaction(seconds=0) as (_, ask):
            ask("ANALYZE {items}")

    def refresh(self) -> bool:
        return False

    def close(self) -> None:
        self._server.close()

    def _look_for_graph(self, ask: Any) -> bool:
        if not self._has_graph:
            self._has_graph = (
                ask("SELECT to_regclass(%s)", [self._names["graph"].as_string()]).fetchone()[0] is not None
            )
        return self._has_graph

    def _grow_graph(self) -> None:
        """Build the graph when there are rows enough; from then on the server takes in what is added.

        Only the owner of a table may; others who write to it leave it to them.
        """
        from psycopg import errors

        if self._has_graph or self.dim > _LARGEST_GRAPH_DIM:
            return
        with suppress(errors.UniqueViolation), self._transaction(seconds=0) as (_, ask):  # another process built it
            if (
                self._look_for_graph(ask)
                or len(ask("SELECT 1 FROM {items} LIMIT %s", [GRAPH_ROWS]).fetchall()) < GRAPH_ROWS
            ):
                return
            owned = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(%s)"
            if ask(owned, [self._names["items"].as_string()]).fetchone()[0]:
                ask("CREATE INDEX IF NOT EXISTS {graph} ON {items} USING hnsw (vector vector_ip_ops)")
                self._look_for_graph(ask)

    @contextmanager
    def _transaction(self, seconds: int | None = None) -> Iterator[tuple[Any, Any]]:
        """A connection, and a function that runs a statement on it in which {items} and such stand for our names."""
        with self._server.transaction() as connection:

            def ask(text: str, values: Sequence[Any] = ()) -> Any:
                return connection.cursor(binary=True).execute(self._sql(text).format(**self._names), values or None)

            if seconds is not None:
                ask(f"SET LOCAL statement_timeout = '{seconds}s'")
            yield connection, ask

    def _vectors(self, found: Iterable[bytes]) -> np.ndarray:
        rows = [np.frombuffer(one, ">f4", offset=4) for one in found]
        return np.array(rows, np.float32).reshape(len(rows), self.dim)


def written(conditions: Iterable[Condition]) -> tuple[str, list[Any]]:
    """The conditions as SQL, and the values of its parameters.

    >>> written([Condition("label", "=", ("cat",))])
    ('coalesce(label = ANY(%s), false)', [['cat']])
    """
    tests: list[str] = []
    values: list[Any] = []
    for condition in conditions:
        texts = [text for text in condition.values if not _UNSTORABLE.search(text)]  # others no item has
        is_text = condition.field in FIELDS
        place = condition.field if is_text else "metadata -> %s"
        names = [] if is_text else [condition.field]
        if condition.operator in ORDER:
            # JSON has an order of kinds, so that numbers come before and after others.
            tests.append(
                "false" if is_text else f"jsonb_typeof({place}) = 'number' AND {place} {condition.operator} %s::jsonb"
            )
            values += [] if is_text else [*names, *names, repr(condition.numbers[0])]
            continue
        tests.append(
            f"{'NOT ' * (condition.operator == '!=')}coalesce({place} = ANY(%s{'' if is_text else '::jsonb[]'}), false)"
        )
        values += [*names, texts if is_text else _as_json(texts)]
    return " AND ".join(tests or ["true"]), values


def _as_json(texts: list[str]) -> list[str]:
    """All that equals one of these texts, as JSON: texts, numbers, true and false."""
    numbers = [repr(number) for text in texts if (number := number_of(text)) is not None]
    return [*map(json.dumps, texts), *numbers, *(text for text in texts if text in ("true", "false"))]


def _row(item: Item, vector: np.ndarray) -> tuple[Any, ...]:
    from psycopg.types.json import Jsonb

    sent = struct.pack(">HH", len(vector), 0) + vector.astype(">f4").tobytes()  # what pgvector receives
    return item.id, item.path, item.label, item.category, Jsonb(dict(item.metadata)), sent


def _item(row: tuple[Any, ...]) -> Item:
    name, path, label, category, metadata = row[:5]
    return Item(name, path, label, category, {name: _number(value) for name, value in metadata.items()})


def _number(value: Value) -> Value:
    """Large numbers come back without a point."""
    return float(value) if type(value) is int and abs(value) > _LARGEST else value


def _text(vector: np.ndarray) -> str:
    return f"[{','.join(f'{number:.9g}' for number in vector.tolist())}]"
