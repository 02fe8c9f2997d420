"""A collection of images that can be searched: what a user calls."""

import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import numpy as np
import torch

from frontrank.checks import check_integer, check_number
from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.ranking.vectors import as_array
from frontrank.retrieval.embedded import FaissEngine
from frontrank.retrieval.engine import Batches, Engine, Facts, Hits
from frontrank.retrieval.folder import save_copy
from frontrank.retrieval.items import Filter, Item, check_id, check_ids, is_field, read_filter, refuse_repeats
from frontrank.retrieval.whitening import Whitening

# ==== Embeddings and queries on their way into an index.


_CHUNK = 8192  # rows brought to length 1 at once


def expanded(queries: np.ndarray, found: Sequence[Hits], alpha: float) -> np.ndarray:
    """Queries moved towards what they found, as `expand_queries` does, at length 1 [query, dim]."""
    moved = np.empty_like(queries)
    for i, hits in enumerate(found):
        scores = hits.scores.astype(np.float64)
        weights = np.where(scores > 0, np.maximum(scores, 0) ** alpha, 0)
        total = queries[i].astype(np.float64)
        if hits.vectors is not None and len(hits):
            total = total + weights @ hits.vectors.astype(np.float64)
        moved[i] = total / np.linalg.norm(total)
    return moved


def unit_rows(name: str, data: object, dim: int, ids: Sequence[str] | None = None) -> np.ndarray:
    """Rows at length 1 [row, dim], float32; a row without a direction is refused by its id, or by its number."""
    rows = as_array(name, data)
    if ids is not None and not ids and not rows.size:
        return np.empty((0, dim), np.float32)
    if rows.dtype.kind != "f":
        raise InputTypeError(f"{name} must be floating point numbers, got {rows.dtype}; convert to float32")
    if rows.ndim != 2:
        raise InputError(f"{name} must have the shape (rows, {dim}), got {rows.shape}; a single one is a row, too")
    if rows.shape[1] != dim:
        raise InputError(f"{name} has {rows.shape[1]} dimensions, the index has {dim}; use the model it was made with")
    if ids is not None and len(rows) != len(ids):
        raise InputError(f"{name} has {len(rows)} rows, items has {len(ids)}; give one embedding per item")
    if len(rows) <= _CHUNK:
        return _unit(name, rows, 0, ids)
    found = np.empty(rows.shape, np.float32)
    for start in range(0, len(rows), _CHUNK):
        found[start : start + _CHUNK] = _unit(name, rows[start : start + _CHUNK], start, ids)
    return found


def _unit(name: str, rows: np.ndarray, start: int, ids: Sequence[str] | None) -> np.ndarray:
    wide = rows.astype(np.float64)
    if rows.dtype.itemsize < 8:  # the squares of which float64 holds
        squares = (wide * wide).sum(1, keepdims=True)
    else:
        with np.errstate(over="ignore", under="ignore"):
            squares = (wide * wide).sum(1, keepdims=True)
    if not (len(rows) == 0 or (squares.min() > 1e-280 and squares.max() < 1e280)):  # not so for NaN, too
        wide = _in_range(name, wide, start, ids)
        squares = (wide * wide).sum(1, keepdims=True)
    wide /= np.sqrt(squares)
    return wide.astype(np.float32)


def _in_range(name: str, rows: np.ndarray, start: int, ids: Sequence[str] | None) -> np.ndarray:
    """Rows with 1 as their largest number; refuses those that cannot be."""
    largest = np.abs(rows).max(1)
    for i in np.flatnonzero(~(np.isfinite(largest) & (largest > 0)))[:1]:
        which = f"row {start + i} (from 0)" if ids is None else f"the row of {ids[start + i]!r}"
        wrong = "is all zeros" if largest[i] == 0 else "has NaN or infinite values"
        raise InputError(f"{name}: {which} {wrong}; drop it, or look at what the model made of its image")
    return rows / largest[:, None]


# ==== Which engine a URL means: the one place where a new engine is made known.


_SERVERS = ("milvus", "postgresql", "postgres")


def open_engine(url: str, progress: bool | None) -> Engine | None:
    """The engine of what is at a URL, None if nothing is there."""
    if scheme(url) == "milvus":
        from frontrank.retrieval.milvus import MilvusEngine

        return MilvusEngine.open(url)
    if scheme(url):
        from frontrank.retrieval.pgvector import PgvectorEngine

        return PgvectorEngine.open(url)
    return FaissEngine.open(Path(url), progress)


def create_engine(url: str | None, dim: int, settings: bytes, progress: bool | None) -> Engine:
    """The engine of a new index, for vectors of these dimensions."""
    if url is None:
        return FaissEngine.in_memory(dim, settings, progress)
    if scheme(url) == "milvus":
        from frontrank.retrieval.milvus import MilvusEngine

        return MilvusEngine.create(url, dim, settings)
    if scheme(url):
        from frontrank.retrieval.pgvector import PgvectorEngine

        return PgvectorEngine.create(url, dim, settings)
    return FaissEngine.create(Path(url), dim, settings, progress)


def hidden_password(url: str) -> str:
    """A URL as an error message may show it.

    >>> hidden_password("postgresql://me:secret@host/db?password=secret&table=a&sslpassword=secret")
    'postgresql://me:...@host/db?password=...&table=a&sslpassword=...'
    """
    shown = re.sub(r"(://[^/:@]*):[^/@]*@", r"\1:...@", url)
    return re.sub(r"([?&]\w*(?:password|token)=)[^&]*", r"\1...", shown)


def scheme(url: str) -> str:
    """What stands before :// in a URL, "" if it is a plain path."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url)
    return found[1].lower() if found else ""


def read_url(url: object) -> str:
    """A URL as text, the path of a file URL; refuses a scheme that nothing here speaks."""
    if not isinstance(url, str | os.PathLike) or not str(url):
        raise InputTypeError(f"url must be a folder or a URL, got {url!r:.80}")
    text = os.fspath(url)
    if not isinstance(text, str):
        raise InputTypeError(f"url must be text, got {text!r:.80}")
    found = scheme(text)
    if found == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise InputError(f"url {text} names another machine; write file:///folder")
        return unquote(parts.path)
    if found and found not in _SERVERS:
        near = get_close_matches(found, _SERVERS, 1)
        remedy = f"did you mean {near[0]}://?" if near else "give a folder, milvus://... or postgresql://..."
        raise InputError(f"url {hidden_password(text)} begins with {found}://; {remedy}")
    return text


# ==== What an index was made with, and how that is kept: arrays and JSON, nothing pickled.


_FORMAT, _VERSION = "frontrank.index.settings", 1
_ARRAYS = ("mean", "components", "variance")

Expansion = tuple[int, float]  # k and alpha of `expand_queries`
Notes = Mapping[str, str | tuple[str, ...]]


@dataclass(frozen=True)
class IndexSettings:
    """What an index was made with.

    dim:       of the embeddings that are added
    model:     the fingerprint of the model that made them, None if it was not said
    whitening: what they and the queries are whitened by
    expansion: k and alpha of the query expansion that a search does unless told otherwise
    notes:     what else is to be remembered, such as where the model is (`Index.note`)
    engine:    the name of the engine
    facts:     how the engine searches, and what it measured of that
    """

    dim: int
    model: str | None = None
    whitening: Whitening | None = None
    expansion: Expansion | None = None
    notes: Notes = field(default_factory=dict)
    engine: str = ""
    facts: Facts = field(default_factory=dict)

    @property
    def stored_dim(self) -> int:
        """The dimensions of the vectors that are kept."""
        return self.dim if self.whitening is None else len(self.whitening.components)


def checked_settings(dim: object, model: object, whitening: object, expansion: object) -> IndexSettings:
    """Settings of a user, each refused by name if it cannot be used."""
    check_integer("dim", dim, at_least=1)
    check_given(model, whitening)
    if isinstance(whitening, Whitening) and whitening.components.shape[1] != dim:
        raise InputError(
            f"whitening is of {whitening.components.shape[1]} dimensions, but dim is {dim}; use those of one model"
        )
    assert isinstance(dim, int)
    return IndexSettings(dim, model, whitening, read_expansion(expansion))  # type: ignore[arg-type]


def check_given(model: object, whitening: object) -> None:
    """Refuse what is no fingerprint, or no whitening."""
    if model is not None and (not isinstance(model, str) or not model):
        raise InputTypeError(f"model must be the fingerprint of a model, got {model!r:.80}")
    if whitening is not None and not isinstance(whitening, Whitening):
        raise InputTypeError(
            f"whitening must be a Whitening, got {whitening!r:.80}; see Whitening.fit and Whitening.load"
        )


def read_expansion(expansion: object) -> Expansion | None:
    """k and alpha, of what can be them."""
    if expansion is None:
        return None
    if not isinstance(expansion, tuple | list) or len(expansion) != 2:
        raise InputTypeError(f"expansion must be (k, alpha), like (10, 2.0), got {expansion!r:.80}")
    k, alpha = expansion
    check_integer("k of expansion", k, at_least=1)
    check_number("alpha of expansion", alpha, at_least=0)
    return int(k), float(alpha)


def read_notes(notes: object) -> Notes:
    """Notes of a user: texts, or several of them, under names.

    >>> read_notes({"model": "runs/first/model", "roots": ["a", "b"]})
    {'model': 'runs/first/model', 'roots': ('a', 'b')}
    """
    if not isinstance(notes, Mapping):
        raise InputTypeError(f"notes must be texts under names, got {notes!r:.80}")
    found: dict[str, str | tuple[str, ...]] = {}
    for name, value in notes.items():
        several = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
        if not isinstance(name, str) or not (several or isinstance(value, str)):
            raise InputTypeError(f"note {name!r:.40} must be a text or several texts, got {value!r:.80}")
        found[name] = value if isinstance(value, str) else tuple(value)
    return found


def refuse_other(where: str, stored: IndexSettings, **given: Any) -> None:
    """Refuse settings that are given and are not those that are stored."""
    for name, value in given.items():
        there = getattr(stored, name)
        if value is None or (_same_whitening(value, there) if name == "whitening" else value == there):
            continue
        had = f"with {there}" if there is not None else "without one"
        raise InputError(f"{name} is {value}, but {where} was made {had}; leave {name} out, or make another index")


def pack(settings: IndexSettings) -> bytes:
    """Settings as bytes, which any engine can keep."""
    whitening = settings.whitening
    said = {
        "format": _FORMAT,
        "version": _VERSION,
        "dim": settings.dim,
        "model": settings.model,
        "expansion": settings.expansion,
        "notes": dict(settings.notes),
        "power": None if whitening is None else whitening.power,
    }
    arrays = {} if whitening is None else {name: getattr(whitening, name).numpy() for name in _ARRAYS}
    file = io.BytesIO()
    np.savez(file, settings=np.frombuffer(json.dumps(said).encode(), np.uint8), **arrays)
    return file.getvalue()


def unpack(packed: bytes, where: str) -> IndexSettings:
    """The settings of `pack`; an error names where they are from."""
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as file:
            said = json.loads(file["settings"].tobytes())
            if (said["format"], said["version"]) != (_FORMAT, _VERSION):
                raise InputError(
                    f"{where} has {said['format']}, version {said['version']}, this reads {_FORMAT}, "
                    f"version {_VERSION}; update frontrank"
                )
            whitening = None
            if said["power"] is not None:
                arrays = {name: torch.from_numpy(file[name]) for name in _ARRAYS}
                whitening = Whitening(**arrays, power=float(said["power"]))
            settings = checked_settings(said["dim"], said["model"], whitening, said["expansion"])
            return replace(settings, notes=read_notes(said["notes"]))
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        if isinstance(error, FrontrankError):
            raise
        raise InputError(
            f"{where} has settings that cannot be read ({error}); restore a copy, or index again"
        ) from error


def _same_whitening(first: Whitening, second: Whitening | None) -> bool:
    return (
        second is not None
        and first.power == second.power
        and all(torch.equal(getattr(first, name), getattr(second, name)) for name in _ARRAYS)
    )


# ==== A collection of images that can be searched: what a user calls.


_PAGE = 1000  # items read at once


class Index:
    """Vectors and items in memory, in a folder (by faiss), or on a server; chosen by its URL.

    url:       None: in memory only. A folder, or file://...: kept there; every add, upsert and delete is on disk when
               it returns, and several processes may use it. milvus://host:port/collection, or
               postgresql://user@host/database?table=name: on that server.
    dim:       of the embeddings; makes the index if there is none
    model:     the fingerprint of the model that makes the embeddings (`Embedder.fingerprint`)
    whitening: what embeddings and queries are whitened by
    expansion: (k, alpha): queries are expanded like that by `expand_queries`
    progress:  None shows a bar for long work on a terminal

    What an index was made with is kept in it. Arguments that say something else than that are refused.

    >>> index = Index(dim=2)
    >>> index.add([[3.0, 4.0], [1.0, 0.0]], [Item("a", label="cat"), Item("b", label="dog")])
    >>> (hits,) = index.search([[1.0, 1.0]], k=1)
    >>> hits.items[0].label, round(float(hits.scores[0]), 4)
    ('cat', 0.9899)
    >>> index.search([[1.0, 1.0]], filter="label!=cat")[0].ids
    ('b',)
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        dim: int | None = None,
        model: str | None = None,
        whitening: Whitening | None = None,
        expansion: tuple[int, float] | None = None,
        progress: bool | None = None,
    ) -> None:
        self.url = None if url is None else read_url(url)
        self._progress = progress
        check_given(model, whitening)
        expansion = read_expansion(expansion)
        self._engine = None if self.url is None else open_engine(self.url, progress)
        if self._engine is None:
            if dim is None and self.url is None:
                raise InputError("an index in memory needs dim, the dimensions of the embeddings; give it")
            if dim is None:
                raise InputError(f"{self.where} holds no index; make one by frontrank index, or in Python with dim")
            settings = checked_settings(dim, model, whitening, expansion)
            self._engine = create_engine(self.url, settings.stored_dim, pack(settings), progress)
        try:
            self._stored = self._read_settings()
            refuse_other(self.where, self._stored, dim=dim, model=model, whitening=whitening, expansion=expansion)
        except InputError:
            self.close()
            raise

    @classmethod
    def load(cls, url: str | os.PathLike[str], *, progress: bool | None = None) -> Self:
        """The index that is there; never makes one."""
        if url is None:
            raise InputTypeError("url must be a folder or a URL, got None")
        return cls(url, progress=progress)

    def add(self, embeddings: object, items: Sequence[Item]) -> None:
        """Add new items with their embeddings [item, dim]; if an id is there already, nothing is added."""
        engine, rows = self._open, self._rows(embeddings, items := list(items))
        if items:
            engine.add(rows, items)

    def upsert(self, embeddings: object, items: Sequence[Item], *, stored: bool = False) -> None:
        """Add items with their embeddings [item, dim], in place of those with the same ids.

        stored: the embeddings are vectors as the index keeps them (`vectors`), so whitened already
        """
        engine, rows = self._open, self._rows(embeddings, items := list(items), stored)
        if items:
            engine.upsert(rows, items)

    def delete(self, ids: Sequence[str]) -> int:
        """Take items out; how many of the ids were there."""
        found = list(dict.fromkeys(check_ids(ids)))
        return self._open.delete(found) if found else 0

    def search(
        self,
        queries: object,
        k: int = 10,
        *,
        filter: Filter = (),
        expand: tuple[int, float] | bool | None = None,
        model: str | None = None,
        stored: bool = False,
    ) -> list[Hits]:
        """The k items nearest to each query [query, dim], best first, equal scores by id.

        filter: like label=cat, or several such that must all hold (`parse_filter`)
        expand: False for no query expansion, (k, alpha) for this one, None for what the index was made with
        model:  the fingerprint of the model that made the queries; refused if the index is of another
        stored: the queries are vectors as the index keeps them (`vectors`), so whitened already
        """
        engine = self._open
        check_integer("k", k, at_least=1)
        if model is not None:
            self._refuse_other_model(model)
        rows = self._vectors("queries", queries, stored)
        conditions = read_filter(filter) if filter else ()
        expansion = self._stored.expansion if expand is None else read_expansion(expand or None)
        if not len(rows):
            return []
        if expansion is not None:
            found = engine.search(rows, expansion[0], conditions, with_vectors=True)
            rows = expanded(rows, found, expansion[1])
        return engine.search(rows, k, conditions)

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        """The items of these ids, None for an id that is not there."""
        return self._open.get(check_ids(ids))

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """The vectors of these ids as they are kept: whitened, at length 1 [id, dimension], float32."""
        return self._open.vectors(check_ids(ids))

    def count(self, filter: Filter = ()) -> int:
        """How many items there are, that meet the filter."""
        return self._open.count(read_filter(filter) if filter else ())

    def __len__(self) -> int:
        return self.count()

    def items(self, after: str | None = None, limit: int | None = None) -> Iterator[Item]:
        """All items in the order of their ids, from behind this id, so many at most."""
        if after is not None:
            check_id(after)
        if limit is not None:
            check_integer("limit", limit, at_least=0)
        return self._scan(after, limit)

    def values(self, field: str) -> dict[str, int]:
        """The values that a field has, as a filter writes them, and how many items have each; most frequent first."""
        if not is_field(field):
            raise InputError(f"field is {field!r:.80}; use id, path, label, category or a metadata name")
        return dict(sorted(self._open.values(field).items(), key=lambda entry: (-entry[1], entry[0])))

    def labels(self) -> dict[str, int]:
        """The labels, and how many items have each."""
        return self.values("label")

    @property
    def where(self) -> str:
        """The place of the index, for people to read."""
        return "the index in memory" if self.url is None else hidden_password(self.url)

    @property
    def settings(self) -> IndexSettings:
        """What the index was made with, and how its engine searches."""
        engine = self._open
        return replace(self._stored, engine=engine.name, facts=engine.describe())

    def note(self, **notes: str | Sequence[str]) -> None:
        """Keep texts under these names in `settings.notes`, beside those that are there."""
        self.refresh()
        there = self._read_settings()  # a server does not tell that another process has changed them
        self._stored = replace(there, notes={**there.notes, **read_notes(notes)})
        if self._stored.notes != there.notes:
            self._open.write_settings(pack(self._stored))

    def prepare(self) -> IndexSettings:
        """Build now what the first search after many additions would have to build; the settings then."""
        self._open.prepare()
        return self.settings

    def refresh(self) -> bool:
        """Take up what other processes have written since; whether there was anything."""
        changed = self._open.refresh()
        if changed:
            self._stored = self._read_settings()
        return changed

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a copy to a folder, as an embedded index; one that is there is replaced only if told to.

        An embedded index has all in its own folder already: to save it there does nothing.
        """
        target = read_url(path)
        if scheme(target):
            raise InputError(f"path is {target}; give a folder")
        engine = self._open
        if self.url is not None and not scheme(self.url) and os.path.realpath(self.url) == os.path.realpath(target):
            return
        save_copy(Path(target), engine.dim, engine.read_settings(), self._batches(), overwrite)

    def close(self) -> None:
        """Let go of files or connections; what was written stays."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._engine is None:
            return f"Index({self.where}, closed)"
        return f"Index({self.where}, {self._engine.name}, {self._stored.dim} dimensions, {self.count()} items)"

    @property
    def _open(self) -> Engine:
        if self._engine is None:
            raise InputError(f"{self.where} is closed; open it again")
        return self._engine

    def _read_settings(self) -> IndexSettings:
        engine = self._open
        settings = unpack(engine.read_settings(), self.where)
        if settings.stored_dim != engine.dim:
            raise InputError(
                f"{self.where} keeps vectors of {engine.dim} dimensions, but its settings say {settings.stored_dim}; "
                "restore a copy, or index again"
            )
        return settings

    def _refuse_other_model(self, model: str) -> None:
        check_given(model, None)
        if self._stored.model is None:
            raise InputError(f"model cannot be compared: {self.where} was made without one; leave model out")
        if model != self._stored.model:
            raise InputError(
                f"model has the fingerprint {model}, but {self.where} was made with {self._stored.model}; "
                "search with that model, or index the images again"
            )

    def _rows(self, embeddings: object, items: Sequence[Item], stored: bool = False) -> np.ndarray:
        for item in items:
            if not isinstance(item, Item):
                raise InputTypeError(f"items must be of the class Item, got {item!r:.80}")
        ids = [item.id for item in items]
        rows = self._vectors("embeddings", embeddings, stored, ids)
        refuse_repeats(ids)
        return rows

    def _vectors(self, name: str, data: object, stored: bool, ids: Sequence[str] | None = None) -> np.ndarray:
        """Rows as an engine gets them."""
        rows = unit_rows(name, data, self._stored.stored_dim if stored else self._stored.dim, ids)
        return rows if stored else self._whitened(rows)

    def _whitened(self, rows: np.ndarray) -> np.ndarray:
        """Rows of length 1 after the whitening, in float64 inside: else it would depend on how many come at once."""
        if self._stored.whitening is None or not len(rows):
            return rows
        return np.asarray(self._stored.whitening.apply(rows.astype(np.float64), progress=False).numpy(), np.float32)

    def _scan(self, after: str | None, limit: int | None) -> Iterator[Item]:
        while limit is None or limit > 0:
            page = self._open.scan(after, _PAGE if limit is None else min(limit, _PAGE))
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].id
            limit = None if limit is None else limit - len(page)

    def _batches(self) -> Batches:
        after = None
        while page := self._open.scan(after, _PAGE):
            yield self._open.vectors([item.id for item in page]), page
            after = page[-1].id
