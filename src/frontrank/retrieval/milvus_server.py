"""A Milvus server: its address, the connection, and a collection that holds an index."""

import logging
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from frontrank.errors import InputError
from frontrank.retrieval.items import ID_LENGTH

LONGEST_TEXT = 65_535  # bytes of a text or of the metadata of one item
ITEMS, SETTINGS = "_default", "settings"  # partitions of a collection
BUILDING = 600.0  # seconds that a server has to load a collection or to build a graph
_CONNECTING, _ANSWERING = 10.0, 60.0  # seconds
_KIND = "a Frontrank index"
_GRAPH = {"M": 16, "efConstruction": 200}
_OPTIONS = ("exact", "secure", "token", "database")

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class MilvusAddress:
    """What a URL says: milvus://user:password@host:port/collection, and options as in ?exact=true&secure=true

    exact:    a new collection compares queries with all its vectors, instead of looking for near ones in a graph
    secure:   the connection is encrypted
    token:    in place of user and password
    database: of the server, if it has several

    >>> address = MilvusAddress.read("milvus://localhost/cats")
    >>> address.place, address.collection
    ('localhost:19530', 'cats')
    """

    place: str
    collection: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    database: str = ""
    exact: bool = False
    secure: bool = False

    @classmethod
    def read(cls, url: str) -> "MilvusAddress":
        """No message shows the URL, which may hold a password."""
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
        return cls(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            collection,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            token=options.get("token", ""),
            database=options.get("database", ""),
            exact=options.get("exact") == "true",
            secure=options.get("secure") == "true",
        )


class MilvusServer:
    """A connection that several threads may use; bounded in time, and its errors are one line of ours."""

    def __init__(self, address: MilvusAddress) -> None:
        self.named = f"collection {address.collection} of milvus://{address.place}"
        self._address = address
        self._library, self._errors = _import_pymilvus()
        known = {
            "user": address.user,
            "password": address.password,
            "token": address.token,
            "db_name": address.database,
        }
        try:
            self._client = self._library.MilvusClient(
                f"{'https' if address.secure else 'http'}://{address.place}",
                timeout=_CONNECTING,
                **{name: text for name, text in known.items() if text},
            )
        except self._errors as error:
            raise self._unreachable(error) from None
        self.version = str(self._ask(self._client.get_server_version)).removeprefix("v")
        self._latest, self._seen = object(), object()  # marks of the last write, and of the last that a read waited for

    def ask(self, call: str, timeout: float | None = None, **arguments: Any) -> Any:
        """Call a method of the client on our collection, which tries again within the time it has."""
        arguments["timeout"] = _ANSWERING if timeout is None else timeout
        return self._ask(lambda: getattr(self._client, call)(self._address.collection, **arguments))

    def write(self, call: str, **arguments: Any) -> None:
        """Change rows; whatever is read after it sees the change."""
        try:
            self.ask(call, **arguments)
        finally:
            self.expect_changes()  # after a failure too: it may have come too late

    def read(self, call: str, **arguments: Any) -> Any:
        """Read rows as they are since the last write here, or `expect_changes`; later writes of others may be seen.

        To read what is newest ("Strong") a server waits for its next tick, 200 ms as it comes: only once per change.
        "Session" would not do for that: a server gives deletions no time that could be waited for.
        """
        latest = self._latest
        rows = self.ask(call, consistency_level="Session" if latest is self._seen else "Strong", **arguments)
        self._seen = latest
        return rows

    def expect_changes(self) -> None:
        """Have the next read see all that anyone has written before."""
        self._latest = object()

    def describe(self) -> dict[str, Any] | None:
        """What the server says of the collection, None if there is none."""
        if not self.ask("has_collection"):
            self._refuse_unknown_database()
            return None
        facts: dict[str, Any] = self.ask("describe_collection")
        if facts["description"] != _KIND:
            raise InputError(f"{self.named} is not {_KIND}; choose another name")
        if not self.ask("has_partition", partition_name=SETTINGS) or not self.ask("list_indexes"):
            raise InputError(f"{self.named} was not created to its end; remove it, or choose another name")
        return facts

    def create(self, dim: int) -> None:
        """Make the collection, empty and ready to search."""
        kinds, client = self._library.DataType, self._client
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=_KIND)
        schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=4 * ID_LENGTH)
        for name in ("path", "label", "category"):
            schema.add_field(name, kinds.VARCHAR, max_length=LONGEST_TEXT)
        schema.add_field("metadata", kinds.JSON)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dim)
        index = client.prepare_index_params()
        kind: dict[str, Any] = (
            {"index_type": "FLAT"} if self._address.exact else {"index_type": "HNSW", "params": _GRAPH}
        )
        index.add_index("vector", index_name="vector", metric_type="IP", **kind)
        self.ask("create_collection", schema=schema, consistency_level="Strong")
        self.ask("create_partition", partition_name=SETTINGS)
        self.ask("create_index", index_params=index, sync=False)  # there is nothing to build yet
        self.ask("load_collection", timeout=BUILDING)

    def close(self) -> None:
        self._client.close()

    def _refuse_unknown_database(self) -> None:
        """A server says only that it has no such collection there, but lists none of a database that is not there."""
        if self._address.database:
            try:
                self._client.list_collections(timeout=_ANSWERING)
            except self._errors as error:
                raise self._unreachable(error) from None

    def _ask(self, call: Callable[[], _Result]) -> _Result:
        try:
            return call()
        except self._errors as error:
            if not _answers(self._address.place):
                raise self._unreachable(error) from None
            raise InputError(f"{self.named} cannot do that: {_said(error):.300}") from None

    def _unreachable(self, error: Exception) -> InputError:
        place = self._address.place
        if not _answers(place):
            return InputError(f"milvus://{place} does not answer; start the server, or correct host and port")
        return InputError(
            f"milvus://{place} refuses the connection ({_said(error):.150}); correct user, password, token or database"
        )


def _import_pymilvus() -> tuple[Any, tuple[type[Exception], ...]]:
    """The library, and what its calls raise."""
    try:
        import grpc  # type: ignore[import-untyped]
        import pymilvus  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("an index at milvus:// needs pymilvus; pip install 'frontrank[milvus]'") from None
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs tracebacks of errors that it raises
    return pymilvus, (pymilvus.MilvusException, grpc.RpcError)


def _said(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", "") or error).split())


def _answers(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECTING).close()
    except OSError:
        return False
    return True
