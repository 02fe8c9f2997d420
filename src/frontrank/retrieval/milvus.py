"""The engine on a Milvus server or cluster, through pymilvus.

An index is one collection. Items are rows of its default partition; the settings are rows of a partition of their own,
so that they go where the collection goes. A read sees everything written before through the same engine, and what
others wrote before the engine was opened, wrote or was refreshed; the rest comes a moment later.
"""

import base64
import hashlib
import json
import logging
import math
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np

from frontrank.checks import import_extra
from frontrank.errors import InputError
from frontrank.retrieval.engine import Facts, Hits, close_on_error, refuse_known, refuse_unknown, split_batches
from frontrank.retrieval.items import FIELDS, ID_LENGTH, ORDER, Condition, Conditions, Item, Value, text_of

LONGEST_LIST = 16_384  # the most that a server finds for one query
LONGEST_TEXT = 65_535  # bytes of a text or of the metadata of one item
ITEMS, SETTINGS = "_default", "settings"  # partitions of a collection
COLUMNS = [*FIELDS, "metadata"]
BUILD_SECONDS = 600.0  # for a server to load a collection or to build a graph
_CONNECT_SECONDS, _ANSWER_SECONDS = 10.0, 60.0
_SERVE_SECONDS, _RELEASE_SECONDS = 120.0, 1.5  # until a server uses new graphs, and drops what they replace
_DESCRIPTION = "a Frontrank index"
_GRAPH = {"M": 16, "efConstruction": 200}
_OPTIONS = ("exact", "secure", "token", "database")
_MOST_CANDIDATES = 2 * LONGEST_LIST
_ROWS, _NUMBERS = 1000, 4 << 20  # rows, and numbers of vectors, sent or requested at once
_PART, _PARTS = 45_000, 50  # bytes of settings in a row, and such rows sent at once
_SMALL = 1024  # rows of a segment, below which a server builds no graph
_HEAD = "\x01head"  # an id that no item can have
_KINDS = {str: "text", bool: "flag", int: "number", float: "number"}
_UNSAFE = re.compile(r"[^A-Za-z0-9 _./-]")

Row = dict[str, Any]


@dataclass(frozen=True)
class MilvusAddress:
    """The parts of a URL: milvus://user:password@host:port/collection, and options as in ?exact=true&secure=true

    exact:    a new collection compares queries with all its vectors, instead of searching a graph
    secure:   the connection is encrypted
    token:    in place of user and password
    database: of the server, if it has several
    """

    place: str
    collection: str
    user: str
    password: str = field(repr=False)
    token: str = field(default="", repr=False)
    database: str = ""
    exact: bool = False
    secure: bool = False

    @classmethod
    def read(cls, url: str) -> "MilvusAddress":
        """Read a URL. No error shows it, as it may hold a password."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 19530
        except ValueError:
            host = None
        if not host or "@" in parts.path or parts.netloc.count("@") > 1:
            raise InputError("url must be like milvus://host:port/collection; write @ : / in a password as %40 %3A %2F")
        collection = parts.path.strip("/")
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,199}", collection):
            raise InputError(f"url has the collection {collection!r:.80}; use letters, digits and _, no digit first")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name, value in options.items():
            if name not in _OPTIONS:
                raise InputError(f"url has the option {name!r:.80}; those of Milvus are {', '.join(_OPTIONS)}")
            if name in ("exact", "secure") and value not in ("true", "false"):
                raise InputError(f"url has {name}={value!r:.80}; use true or false")
        flags = {name: options.get(name) == "true" for name in ("exact", "secure")}
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return cls(place, collection, user, password, options.get("token", ""), options.get("database", ""), **flags)


class MilvusServer:
    """A connection that several threads may use; bounded in time, and its errors are one line of ours."""

    def __init__(self, url: str) -> None:
        self.address = address = MilvusAddress.read(url)
        self.where = f"collection {address.collection} of milvus://{address.place}"
        self._pymilvus: Any = import_extra("pymilvus", "milvus", "an index at milvus://")
        grpc: Any = import_extra("grpc", "milvus", "an index at milvus://")
        self._errors = self._pymilvus.MilvusException, grpc.RpcError
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs tracebacks of errors that it raises
        login = {name: getattr(address, name) for name in ("user", "password", "token")} | {"db_name": address.database}
        login = {name: text for name, text in login.items() if text}
        url = f"{'https' if address.secure else 'http'}://{address.place}"
        try:
            self._client = self._pymilvus.MilvusClient(url, timeout=_CONNECT_SECONDS, **login)
            self.version = str(self._client.get_server_version()).removeprefix("v")
        except self._errors as error:
            raise self._connection_error(error) from None
        self._last_write, self._last_seen = object(), object()  # tokens: of the last write, and the last one read

    def ask(self, call: str, timeout: float | None = None, **arguments: Any) -> Any:
        """Call a method of the client on our collection; the client tries again within its time."""
        arguments["timeout"] = _ANSWER_SECONDS if timeout is None else timeout
        try:
            return getattr(self._client, call)(self.address.collection, **arguments)
        except self._errors as error:
            if not _answers(self.address.place):
                raise self._connection_error(error) from None
            raise InputError(f"{self.where} cannot do that: {_one_line(error):.300}") from None

    def write(self, call: str, **arguments: Any) -> None:
        """Change rows; every later read sees the change."""
        try:
            self.ask(call, **arguments)
        finally:
            self.expect_changes()  # after a failure too: the answer may have come too late

    def read(self, call: str, **arguments: Any) -> Any:
        """Read rows as of the last write here or `expect_changes`, or newer.

        To read the newest state ("Strong") a server waits for its next tick, every 200 ms by default: only once per
        change. "Session" alone is not enough: a server has no time for deletions that a read could wait for.
        """
        last_write = self._last_write
        rows = self.ask(call, consistency_level="Session" if last_write is self._last_seen else "Strong", **arguments)
        self._last_seen = last_write
        return rows

    def expect_changes(self) -> None:
        """Make the next read see everything that anyone has written before."""
        self._last_write = object()

    def describe(self) -> dict[str, Any] | None:
        """Return the server's description of the collection, None if there is none."""
        if not self.ask("has_collection"):
            try:
                if self.address.database:
                    self._client.list_collections(timeout=_ANSWER_SECONDS)  # an error if there is no such database
            except self._errors as error:
                raise self._connection_error(error) from None
            return None
        facts: dict[str, Any] = self.ask("describe_collection")
        if facts["description"] != _DESCRIPTION:
            raise InputError(f"{self.where} is not {_DESCRIPTION}; choose another name")
        if not self.ask("has_partition", partition_name=SETTINGS) or not self.ask("list_indexes"):
            raise InputError(f"{self.where} was not created completely; remove it, or choose another name")
        return facts

    def create(self, dim: int) -> None:
        """Create the collection, empty and ready to search."""
        kinds, client = self._pymilvus.DataType, self._client
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=_DESCRIPTION)
        schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=4 * ID_LENGTH)
        for name in ("path", "label", "category"):
            schema.add_field(name, kinds.VARCHAR, max_length=LONGEST_TEXT)
        schema.add_field("metadata", kinds.JSON)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dim)
        index = client.prepare_index_params()
        kind, params = ("FLAT", {}) if self.address.exact else ("HNSW", _GRAPH)
        index.add_index("vector", index_name="vector", metric_type="IP", index_type=kind, params=params)
        self.ask("create_collection", schema=schema, consistency_level="Strong")
        self.ask("create_partition", partition_name=SETTINGS)
        self.ask("create_index", index_params=index, sync=False)  # there is nothing to build yet
        self.ask("load_collection", timeout=BUILD_SECONDS)

    def close(self) -> None:
        self._client.close()

    def _connection_error(self, error: Exception) -> InputError:
        place = f"milvus://{self.address.place}"
        if not _answers(self.address.place):
            return InputError(f"{place} does not answer; start the server, or correct host and port")
        reason = f"{_one_line(error):.150}"
        return InputError(
            f"{place} refuses the connection ({reason}); correct user, password, token or database, or try again"
        )


def _one_line(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", "") or error).split())


def _answers(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


class MilvusEngine:
    """An `Engine` on a Milvus server; see `open` and `create`.

    Writes of many items go in batches. `add` takes back what it sent if a later batch fails and the server still
    answers; that an id is new is certain only while one process writes.
    """

    name = "milvus"

    def __init__(self, server: MilvusServer, dim: int, is_exact: bool) -> None:
        self.dim = dim
        self._server, self._is_exact = server, is_exact

    @classmethod
    def open(cls, url: str, progress: bool | None = None) -> "MilvusEngine | None":
        """Open the index of a collection, None if there is none of its name."""
        server = MilvusServer(url)
        with close_on_error(server):
            facts = server.describe()
            if facts is None:
                server.close()
                return None
            dim = next(field["params"]["dim"] for field in facts["fields"] if field["name"] == "vector")
            index = server.ask("describe_index", index_name="vector")
            server.ask("load_collection", timeout=BUILD_SECONDS)
        return cls(server, int(dim), index["index_type"] == "FLAT")

    @classmethod
    def create(cls, url: str, dim: int, settings: bytes, progress: bool | None = None) -> "MilvusEngine":
        """Create an index in a new collection."""
        server = MilvusServer(url)
        with close_on_error(server):
            if server.describe() is not None:
                raise InputError(f"{server.where} exists already; open it, or choose another name")
            server.create(dim)
            engine = cls(server, dim, server.address.exact)
            engine._put_settings(settings)
        return engine

    def read_settings(self) -> bytes:
        head = self._read(SETTINGS, f"id == {quote_text(_HEAD)}", ["path"])
        if not head:
            raise InputError(f"{self._server.where} has no settings; remove it and index again, or choose another name")
        digest, count = head[0]["path"].split()
        names = [f"\x01{digest}-{part}" for part in range(int(count))]
        texts = self._read_ids(names, ["id", "path"], SETTINGS, _PARTS)
        settings = b"".join(base64.b64decode(row["path"]) for row in map(texts.get, names) if row is not None)
        if hashlib.sha256(settings).hexdigest() != digest:
            raise InputError(f"settings of {self._server.where} are damaged; index again under another name")
        return settings

    def write_settings(self, settings: bytes) -> None:
        new = self._put_settings(settings)
        self._delete([row["id"] for row in self._scan(SETTINGS, ["id"]) if row["id"] not in new], SETTINGS)

    def _put_settings(self, settings: bytes) -> set[str]:
        """Write the parts first, then the row that points to them: a reader sees the old ones or the new ones."""
        digest = hashlib.sha256(settings).hexdigest()
        parts = [base64.b64encode(settings[start : start + _PART]).decode() for start in range(0, len(settings), _PART)]
        texts = {f"\x01{digest}-{part}": text for part, text in enumerate(parts)}
        any_vector = np.eye(1, self.dim, dtype=np.float32)[0]
        for some in (*split_batches(list(texts.items()), _PARTS), [(_HEAD, f"{digest} {len(parts)}")]):
            rows = [_to_row(Item("settings", text), any_vector) | {"id": name} for name, text in some]
            self._server.write("upsert", data=rows, partition_name=SETTINGS)
        return {_HEAD, *texts}

    def add(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        self._server.expect_changes()
        refuse_known(self._read_ids([item.id for item in items], ["id"]))
        self._put(vectors, items, is_new=True)

    def upsert(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        self._put(vectors, items, is_new=False)

    def _put(self, vectors: np.ndarray, items: Sequence[Item], is_new: bool) -> None:
        """Send items batch by batch; if that fails, take back those that are new."""
        for item in items:
            _check_length(item)
        size, start = self._batch_size(1), 0
        try:
            for start in range(0, len(items), size):
                some = slice(start, start + size)
                rows = [_to_row(item, vector) for item, vector in zip(items[some], vectors[some], strict=True)]
                self._server.write("upsert", data=rows, partition_name=ITEMS)
        except BaseException:
            if is_new:
                self._delete([item.id for item in items[: start + size]], ITEMS)
            raise

    def delete(self, ids: Sequence[str]) -> int:
        self._server.expect_changes()
        known = list(self._read_ids(ids, ["id"]))
        self._delete(known, ITEMS)
        return len(known)

    def _delete(self, ids: Sequence[str], partition: str) -> None:
        for some in split_batches(ids, _ROWS):
            self._server.write("delete", filter=f"id in {quote_list(some)}", partition_name=partition)

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        rows = self._read_ids(ids, COLUMNS)
        return [_to_item(rows[name]) if name in rows else None for name in ids]

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        rows = self._read_ids(ids, ["id", "vector"], size=self._batch_size(1))
        refuse_unknown(name for name in ids if name not in rows)
        return self._to_vectors([rows[name] for name in ids])

    def search(self, queries: np.ndarray, k: int, conditions: Conditions, with_vectors: bool = False) -> list[Hits]:
        where = to_expression(conditions)
        if k >= LONGEST_LIST:
            k = self.count(conditions)
            if k >= LONGEST_LIST:
                raise InputError(f"k must be less than {LONGEST_LIST} with Milvus, as {k} items match; lower it")
        if where is None or k == 0:
            return [self._to_hits([], 0, with_vectors) for _ in queries]
        columns = [*COLUMNS, "vector"] if with_vectors else COLUMNS
        results: dict[int, list[Row]] = {}
        left, limit = list(range(len(queries))), k + 1
        while left:
            # A filter discards most of what a search of a graph compares.
            candidates = max(512, 8 * limit) if where else max(128, 2 * limit)
            rows = self._nearest(queries[left], limit, min(candidates, _MOST_CANDIDATES), where, columns)
            results.update(zip(left, rows, strict=True))
            # Where a list ends among equal scores, others may belong before them by their ids.
            left = [query for query in left if limit < LONGEST_LIST and len(results[query]) == limit]
            left = [query for query in left if results[query][k - 1]["distance"] == results[query][-1]["distance"]]
            limit = min(4 * limit, LONGEST_LIST)
        short = [query for query, rows in results.items() if len(rows) < k]
        if short and not self._is_exact and len(results[short[0]]) < self.count(conditions):
            # A graph may lose what a filter cuts off from the rest: first more candidates, then all that match.
            again = self._nearest(queries[short], k, _MOST_CANDIDATES, where, columns)
            results.update(zip(short, again, strict=True))
            matches = self.count(conditions)
            short = [query for query in short if len(results[query]) < min(k, matches)]
            results.update(zip(short, self._compare_all(queries[short], k, where), strict=True))
        return [self._to_hits(results[query], k, with_vectors) for query in range(len(queries))]

    def _nearest(
        self, queries: np.ndarray, limit: int, candidates: int, where: str, columns: list[str]
    ) -> Iterator[list[Row]]:
        """Yield the best rows of each query, in the order of their scores."""
        size = self._batch_size(limit) if "vector" in columns else max(1, min(_ROWS, 8 * _ROWS // limit))
        search = {"metric_type": "IP", "params": {} if self._is_exact else {"ef": candidates}}
        common = {"anns_field": "vector", "output_fields": columns, "partition_names": [ITEMS], "search_params": search}
        for some in split_batches(queries, size):
            yield from self._server.read("search", data=list(some), limit=limit, filter=where, **common)

    def _compare_all(self, queries: np.ndarray, k: int, where: str) -> list[list[Row]]:
        """Return the k best rows of each query, of all that match, compared here."""
        best: list[list[Row]] = [[] for _ in queries]
        matches = self._scan(ITEMS, [*COLUMNS, "vector"], where=where) if best else iter(())
        while rows := list(islice(matches, _ROWS)):
            for place, scores in enumerate(queries @ self._to_vectors(rows).T):
                hits = [{"distance": float(score), "entity": row} for score, row in zip(scores, rows, strict=True)]
                best[place] = sorted(best[place] + hits, key=lambda hit: (-hit["distance"], hit["entity"]["id"]))[:k]
        return best

    def _to_hits(self, rows: list[Row], k: int, with_vectors: bool) -> Hits:
        best = sorted(rows, key=lambda row: (-row["distance"], row["entity"]["id"]))[:k]
        items, scores = tuple(_to_item(row["entity"]) for row in best), [row["distance"] for row in best]
        vectors = self._to_vectors([row["entity"] for row in best]) if with_vectors else None
        return Hits(items, np.array(scores, np.float32), vectors)

    def _to_vectors(self, rows: Sequence[Row]) -> np.ndarray:
        return np.array([row["vector"] for row in rows], np.float32).reshape(len(rows), self.dim)

    def count(self, conditions: Conditions) -> int:
        where = to_expression(conditions)
        return 0 if where is None else int(self._read(ITEMS, where, ["count(*)"])[0]["count(*)"])

    def scan(self, after: str | None, limit: int) -> list[Item]:
        return [_to_item(row) for row in self._scan(ITEMS, COLUMNS, after or "", limit)]

    def values(self, field: str) -> dict[str, int]:
        """Count values here, batch by batch over all items: Milvus cannot."""
        column = field if field in FIELDS else "metadata"
        rows = self._scan(ITEMS, sorted({"id", column}))
        values = (_to_metadata(row).get(field) if column == "metadata" else row[column] for row in rows)
        missing = "" if column in ("label", "category") else None
        return Counter(text_of(value) for value in values if value is not None and value != missing)

    def describe(self) -> Facts:
        return {"search": "exact" if self._is_exact else "hnsw", "server": f"Milvus {self._server.version}"}

    def prepare(self) -> None:
        """Make the server close the segments it still adds to, build their graphs, and search by them."""
        self._server.ask("flush", timeout=BUILD_SECONDS)
        _wait_until(lambda: not self._server.ask("describe_index", index_name="vector").get("pending_index_rows"))
        if not self._is_exact:
            with suppress(InputError):  # not every user may ask what is loaded
                if _wait_until(self._serves_graphs, _SERVE_SECONDS):
                    time.sleep(_RELEASE_SECONDS)

    def _serves_graphs(self) -> bool:
        """Return whether searches use the graphs of all large segments, not quicker ones that find less."""
        segments = self._server.ask("list_persistent_segments")  # which a server may merge at any time
        large = {segment.segment_id for segment in segments if segment.num_rows >= _SMALL}
        return large <= {segment.segment_id for segment in self._server.ask("list_loaded_segments") if segment.index_id}

    def refresh(self) -> bool:
        """Make the next read see all that others wrote; a server does not say whether that is anything."""
        self._server.expect_changes()
        return False

    def close(self) -> None:
        self._server.close()

    def _read_ids(
        self, ids: Sequence[str], columns: list[str], partition: str = ITEMS, size: int = _ROWS
    ) -> dict[str, Row]:
        tests = (f"id in {quote_list(some)}" for some in split_batches(ids, size))
        return {row["id"]: row for test in tests for row in self._read(partition, test, columns)}

    def _batch_size(self, vectors: int) -> int:
        """Return how many go at once, if each has so many vectors."""
        return max(1, min(_ROWS, _NUMBERS // (vectors * self.dim)))

    def _scan(
        self, partition: str, columns: list[str], after: str = "", limit: float = math.inf, where: str = ""
    ) -> Iterator[Row]:
        """Yield rows by their ids: of those that match, a server returns the ones with the lowest ids."""
        most = self._batch_size(1) if "vector" in columns else _ROWS
        while limit > 0:
            size = int(min(limit, most))
            tests = [f"({where})"] * bool(where) + [f"id > {quote_text(after)}"] * bool(after)
            rows = sorted(self._read(partition, " and ".join(tests), columns, limit=size), key=lambda row: row["id"])
            yield from rows
            if len(rows) < size:
                return
            after, limit = rows[-1]["id"], limit - size

    def _read(self, partition: str, where: str, columns: list[str], **limits: int) -> list[Row]:
        arguments: dict[str, Any] = {"filter": where, "output_fields": columns, "partition_names": [partition]}
        return list(self._server.read("query", **arguments, **limits))


def _wait_until(is_done: Callable[[], bool], seconds: float = BUILD_SECONDS) -> bool:
    """Wait until something is done, or the time is over; return whether it had to wait."""
    until, has_waited = time.monotonic() + seconds, False
    while not is_done() and time.monotonic() < until:
        has_waited = True
        time.sleep(0.2)
    return has_waited


# Items and filters in the form of Milvus.


def _to_row(item: Item, vector: np.ndarray) -> Row:
    kinds: dict[str, dict[str, Value]] = {}
    for name, value in item.metadata.items():
        kinds.setdefault(_KINDS[type(value)], {})[name] = value
    texts = {"id": item.id, "path": item.path, "label": item.label or "", "category": item.category or ""}
    return {**texts, "metadata": kinds, "vector": vector}


def _to_item(row: Row) -> Item:
    return Item(row["id"], row["path"], row["label"], row["category"], _to_metadata(row))


def _to_metadata(row: Row) -> dict[str, Value]:
    return {name: value for kind in row["metadata"].values() for name, value in kind.items()}


def _check_length(item: Item) -> None:
    """Raise if an item has more text than a server can store."""
    row = _to_row(item, np.empty(0))
    for name in COLUMNS[1:]:
        text = row[name] if name != "metadata" else json.dumps(row[name])
        if len(text) > LONGEST_TEXT // 4 and len(text.encode()) > LONGEST_TEXT:
            raise InputError(f"{name} of {item.id!r:.80} is longer than the {LONGEST_TEXT} bytes of Milvus; shorten it")


def to_expression(conditions: Iterable[Condition]) -> str | None:
    """Return the conditions as Milvus reads them, None if nothing can meet them."""
    tests = [_to_test(condition) for condition in conditions]
    return None if None in tests else " and ".join(f"({test})" for test in tests if test)


def _to_test(condition: Condition) -> str | None:
    """Return one condition, "" if it always holds, None if it never does."""
    texts = condition.storable_values
    if condition.field in FIELDS:
        if condition.field != "path":
            texts = [text for text in texts if text]  # an empty one stands for a missing one, which equals nothing
        if condition.operator in ORDER or not texts:
            return "" if condition.operator == "!=" else None
        return f"{condition.field} {'in' if condition.operator == '=' else 'not in'} {quote_list(texts)}"
    number = f'metadata["number"]["{condition.field}"]'
    if condition.operator in ORDER:
        return f"{number} {condition.operator} {condition.numbers[0]!r}"
    text, flag = number.replace("number", "text", 1), number.replace("number", "flag", 1)
    tests = [(flag, f"== {value}") for value in texts if value in ("true", "false")]
    if texts:
        tests.append((text, f"in {quote_list(texts)}"))
    if condition.numbers:
        tests.append((number, f"in [{', '.join(map(repr, condition.numbers))}]"))
    if condition.operator == "=":
        return " or ".join(f"{place} {test}" for place, test in tests) or None
    return " and ".join(f"(not (exists {place}) or not ({place} {test}))" for place, test in tests)


def quote_text(text: str) -> str:
    """Return a text for an expression; all but letters, digits and a few signs is escaped."""
    escapes = {sign: f"\\u{ord(sign):04x}" if sign <= "\uffff" else f"\\U{ord(sign):08x}" for sign in set(text)}
    return '"' + _UNSAFE.sub(lambda sign: escapes[sign[0]], text) + '"'


def quote_list(texts: Iterable[str]) -> str:
    """Return texts for an expression."""
    return f"[{', '.join(map(quote_text, texts))}]"
