"""A PostgreSQL server with pgvector: its address, and connections that are bounded in number and in time."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from frontrank.errors import InputError

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
