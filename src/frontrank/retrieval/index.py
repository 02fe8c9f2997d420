"""A collection of images that can be searched: what a user calls.

The engine that keeps the vectors is chosen by the URL of an index; `_engine_class` is the one place that knows them.
"""

import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import numpy as np
import torch

from frontrank.checks import check_integer, check_number, suggestion
from frontrank.errors import InputError, InputTypeError
from frontrank.files import parse_errors
from frontrank.ranking.vectors import as_array
from frontrank.retrieval.adapter import Adapter
from frontrank.retrieval.embedded import FaissEngine
from frontrank.retrieval.engine import Engine, Facts, Hits, close_on_error
from frontrank.retrieval.items import FIELD_NAMES, Filter, Item, check_id, is_field, read_filter, read_ids
from frontrank.retrieval.journal import save_copy
from frontrank.retrieval.whitening import ARRAYS, Whitening, check_whitening

Expansion = tuple[int, float]  # k and alpha of `expand_queries`
Notes = Mapping[str, str | tuple[str, ...]]

_PAGE = 1000  # items read at once
_CHUNK = 8192  # rows normalised at once
_SERVERS = ("milvus", "postgresql", "postgres")
_FORMAT, _VERSION = "frontrank.index.settings", 1


@dataclass(frozen=True)
class IndexSettings:
    """What an index was made with.

    dim:       dimensions of the embeddings that are added
    model:     the fingerprint of the model that made them, None if it is not known
    whitening: applied to them and to queries
    adapter:   applied to them and to queries, in place of a whitening
    expansion: k and alpha of the query expansion that a search does by default
    notes:     what else to remember, such as where the model is (`Index.note`)
    engine:    the name of the engine
    facts:     how the engine searches, and what it measured
    """

    dim: int
    model: str | None = None
    whitening: Whitening | None = None
    adapter: Adapter | None = None
    expansion: Expansion | None = None
    notes: Notes = field(default_factory=dict)
    engine: str = ""
    facts: Facts = field(default_factory=dict)

    @property
    def stored_dim(self) -> int:
        """Dimensions of the vectors in the index."""
        if self.adapter is not None:
            return self.adapter.out_dim
        return self.dim if self.whitening is None else len(self.whitening.components)


class Index:
    """Vectors and items in memory, in a folder (by faiss), or on a server; the URL decides.

    url:       None: in memory only. A folder, or file://...: stored there; every add, upsert and delete is on disk
               when it returns, and several processes may use it. milvus://host:port/collection, or
               postgresql://user@host/database?table=name: on that server.
    dim:       dimensions of the embeddings; creates the index if there is none
    model:     the fingerprint of the model that makes the embeddings (`Embedder.fingerprint`)
    whitening: applied to embeddings and queries
    adapter:   applied to embeddings and queries, in place of a whitening
    expansion: (k, alpha): expand queries as `expand_queries` does
    progress:  None shows a bar for long work on a terminal

    An index stores these settings. It is an error to open it with other ones.

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
        adapter: Adapter | None = None,
        expansion: tuple[int, float] | None = None,
        progress: bool | None = None,
    ) -> None:
        self.url = None if url is None else read_url(url)
        given = _check_settings(dim, model, whitening, expansion, adapter)
        place = self.url or ""
        self._engine = _engine_class(place).open(place, progress)
        if self._engine is None:
            if dim is None and self.url is None:
                raise InputError("an index in memory needs dim, the dimensions of the embeddings")
            if dim is None:
                raise InputError(f"{self.where} has no index; create one by frontrank index, or in Python with dim")
            settings = IndexSettings(**given)
            packed = _pack_settings(settings)
            self._engine = _engine_class(place).create(place, settings.stored_dim, packed, progress)
        with close_on_error(self):
            self._settings = self._read_settings()
            _refuse_other(self.where, self._settings, given)

    @classmethod
    def load(cls, url: str | os.PathLike[str], *, progress: bool | None = None) -> Self:
        """Open an index that exists; never creates one."""
        return cls(read_url(url), progress=progress)

    def add(self, embeddings: object, items: Sequence[Item]) -> None:
        """Add new items with their embeddings [item, dim]; if an id exists already, nothing is added."""
        engine, rows = self._open, self._rows(embeddings, items := list(items))
        if items:
            engine.add(rows, items)

    def upsert(self, embeddings: object, items: Sequence[Item], *, stored: bool = False) -> None:
        """Add items with their embeddings [item, dim], in place of those with the same ids.

        stored: the embeddings are vectors of the index (`vectors`), so already whitened
        """
        engine, rows = self._open, self._rows(embeddings, items := list(items), stored)
        if items:
            engine.upsert(rows, items)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete items; return how many of the ids existed."""
        names = list(dict.fromkeys(read_ids(ids)))
        return self._open.delete(names) if names else 0

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
        """Return the k items nearest to each query [query, dim], best first, equal scores by id.

        filter: like label=cat, or several such that must all hold (`parse_filter`)
        expand: False for no query expansion, (k, alpha) for this one, None for the one of the index
        model:  the fingerprint of the model that made the queries; an error if the index has another
        stored: the queries are vectors of the index (`vectors`), so already whitened
        """
        engine = self._open
        check_integer("k", k, at_least=1)
        if model is not None:
            _refuse_other(self.where, self._settings, _check_settings(model=model))
        rows = self._vectors("queries", queries, stored)
        conditions = read_filter(filter) if filter else ()
        expansion = self._settings.expansion if expand is None else _read_expansion(expand or None)
        if not len(rows):
            return []
        if expansion is not None:
            neighbours = engine.search(rows, expansion[0], conditions, with_vectors=True)
            rows = _expand(rows, neighbours, expansion[1])
        return engine.search(rows, k, conditions)

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        """Return the items of these ids, None for an id that does not exist."""
        return self._open.get(read_ids(ids))

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """Return the vectors of these ids as stored: whitened, at length 1 [id, dimension], float32."""
        return self._open.vectors(read_ids(ids))

    def count(self, filter: Filter = ()) -> int:
        """Count the items that meet the filter."""
        return self._open.count(read_filter(filter) if filter else ())

    def __len__(self) -> int:
        return self.count()

    def items(self, after: str | None = None, limit: int | None = None) -> Iterator[Item]:
        """Iterate over the items in the order of their ids, after this id, at most so many."""
        if after is not None:
            check_id(after)
        if limit is not None:
            check_integer("limit", limit, at_least=0)
        return chain.from_iterable(self._pages(after, limit))

    def values(self, field: str) -> dict[str, int]:
        """Return the values of a field, as a filter writes them, with their counts; most frequent first."""
        if not is_field(field):
            raise InputError(f"field is {field!r:.80}; use {FIELD_NAMES}")
        return dict(sorted(self._open.values(field).items(), key=lambda entry: (-entry[1], entry[0])))

    def labels(self) -> dict[str, int]:
        """Return the labels with their counts."""
        return self.values("label")

    @property
    def where(self) -> str:
        """The place of the index, for people to read."""
        return "the index in memory" if self.url is None else hide_password(self.url)

    @property
    def settings(self) -> IndexSettings:
        """What the index was made with, and how its engine searches."""
        engine = self._open
        return replace(self._settings, engine=engine.name, facts=engine.describe())

    def note(self, **notes: str | Sequence[str]) -> None:
        """Store texts under these names in `settings.notes`, besides those already there."""
        self.refresh()
        before = self._read_settings()  # a server does not report that another process has changed them
        self._settings = replace(before, notes={**before.notes, **_read_notes(notes)})
        if self._settings.notes != before.notes:
            self._open.write_settings(_pack_settings(self._settings))

    def prepare(self) -> IndexSettings:
        """Build now what the first search after many additions would have to build; return the settings then."""
        self._open.prepare()
        return self.settings

    def refresh(self) -> bool:
        """Read what other processes have written since; return whether there was anything."""
        if changed := self._open.refresh():
            self._settings = self._read_settings()
        return changed

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a copy to a folder, as an embedded index; to its own folder there is nothing to write.

        overwrite: replace an index that is there
        """
        target = read_url(path)
        if url_scheme(target):
            raise InputError(f"path is {target}; give a folder")
        engine = self._open
        if self.url is not None and not url_scheme(self.url) and os.path.realpath(self.url) == os.path.realpath(target):
            return
        batches = ((engine.vectors([item.id for item in page]), page) for page in self._pages())
        save_copy(Path(target), engine.dim, engine.read_settings(), batches, overwrite)

    def close(self) -> None:
        """Close files or connections; what was written stays."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._engine is None:
            return f"Index({self.where}, closed)"
        return f"Index({self.where}, {self._engine.name}, {self._settings.dim} dimensions, {self.count()} items)"

    @property
    def _open(self) -> Engine:
        if self._engine is None:
            raise InputError(f"{self.where} is closed; open it again")
        return self._engine

    def _read_settings(self) -> IndexSettings:
        engine = self._open
        settings = _unpack_settings(engine.read_settings(), self.where)
        if settings.stored_dim != engine.dim:
            fault = f"vectors of {engine.dim} dimensions, but its settings say {settings.stored_dim}"
            raise InputError(f"{self.where} has {fault}; restore a copy, or index again")
        return settings

    def _rows(self, embeddings: object, items: Sequence[Item], stored: bool = False) -> np.ndarray:
        for item in items:
            if not isinstance(item, Item):
                raise InputTypeError(f"items must be of the class Item, got {item!r:.80}")
        ids = [item.id for item in items]
        rows = self._vectors("embeddings", embeddings, stored, ids)
        if len(set(ids)) < len(ids):
            twice = Counter(ids).most_common(1)[0][0]
            raise InputError(f"items has the id {twice!r} twice; give each id once")
        return rows

    def _vectors(self, name: str, data: object, stored: bool, ids: Sequence[str] | None = None) -> np.ndarray:
        """Return rows as an engine gets them."""
        rows = _unit_rows(name, data, self._settings.stored_dim if stored else self._settings.dim, ids)
        change = self._settings.adapter or self._settings.whitening
        if stored or change is None or not len(rows):
            return rows
        # In float64: in float32 the result would depend on how many rows come at once.
        return np.asarray(change.apply(rows.astype(np.float64), progress=False).numpy(), np.float32)

    def _pages(self, after: str | None = None, limit: int | None = None) -> Iterator[list[Item]]:
        while limit is None or limit > 0:
            page = self._open.scan(after, _PAGE if limit is None else min(limit, _PAGE))
            if page:
                yield page
            if len(page) < _PAGE:
                return
            after, limit = page[-1].id, None if limit is None else limit - len(page)


# Settings: checked, compared, and stored as arrays and JSON, never pickled.


def _check_settings(
    dim: object = None,
    model: object = None,
    whitening: object = None,
    expansion: object = None,
    adapter: object = None,
) -> dict[str, Any]:
    """Return the arguments of `IndexSettings`; raise if one of them is wrong. None stands for any."""
    if dim is not None:
        check_integer("dim", dim, at_least=1)
    if model is not None and (not isinstance(model, str) or not model):
        raise InputTypeError(f"model must be the fingerprint of a model, got {model!r:.80}")
    if whitening is not None and not isinstance(whitening, Whitening):
        raise InputTypeError(f"whitening must be a Whitening, got {whitening!r:.80}; see Whitening.fit and load")
    if whitening is not None and dim not in (None, own_dim := whitening.components.shape[1]):
        raise InputError(f"whitening is of {own_dim} dimensions, but dim is {dim}; use those of one model")
    if adapter is not None and not isinstance(adapter, Adapter):
        raise InputTypeError(f"adapter must be an Adapter, got {adapter!r:.80}; see Adapter.fit and load")
    if adapter is not None and whitening is not None:
        raise InputError("whitening does not go with adapter, which whitens by itself; leave one of them out")
    if adapter is not None and dim not in (None, adapter.in_dim):
        raise InputError(f"adapter is for {adapter.in_dim} dimensions, but dim is {dim}; use those of one model")
    transforms = {"whitening": whitening, "adapter": adapter}
    return {"dim": dim, "model": model, **transforms, "expansion": _read_expansion(expansion)}


def _read_expansion(expansion: object) -> Expansion | None:
    if expansion is None:
        return None
    if not isinstance(expansion, tuple | list) or len(expansion) != 2:
        raise InputTypeError(f"expansion must be (k, alpha), like (10, 2.0), got {expansion!r:.80}")
    k, alpha = expansion
    return check_integer("k of expansion", k, at_least=1), check_number("alpha of expansion", alpha, at_least=0)


def _read_notes(notes: object) -> Notes:
    """Return notes with lists as tuples."""
    if not isinstance(notes, Mapping):
        raise InputTypeError(f"notes must be texts under names, got {notes!r:.80}")
    for name, value in notes.items():
        is_list = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
        if not isinstance(name, str) or not (is_list or isinstance(value, str)):
            raise InputTypeError(f"note {name!r:.40} must be a text or several texts, got {value!r:.80}")
    return {name: value if isinstance(value, str) else tuple(value) for name, value in notes.items()}


def _refuse_other(where: str, settings: IndexSettings, given: dict[str, Any]) -> None:
    """Raise if a given setting is not the one of the index."""
    for name, value in given.items():
        own = getattr(settings, name)
        if isinstance(value, Adapter):
            is_same = value.is_same(own)
        else:
            is_same = _is_same_whitening(value, own) if isinstance(value, Whitening) else value in (None, own)
        if not is_same:
            how = f"with {own}; use that" if own is not None else f"without one; leave {name} out"
            raise InputError(f"{name} is {value}, but {where} was made {how}, or make another index")


def _is_same_whitening(first: Whitening, second: Whitening | None) -> bool:
    if second is None or first.power != second.power:
        return False
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in ARRAYS)


def _pack_settings(settings: IndexSettings) -> bytes:
    """Return settings as bytes, which any engine can store."""
    whitening = settings.whitening
    content = {"format": _FORMAT, "version": _VERSION, "dim": settings.dim, "model": settings.model}
    content |= {"expansion": settings.expansion, "notes": dict(settings.notes)}
    content["power"] = None if whitening is None else whitening.power
    arrays = {} if whitening is None else {name: getattr(whitening, name).numpy() for name in ARRAYS}
    if settings.adapter is not None:
        arrays["adapter"] = np.frombuffer(settings.adapter.to_bytes(), np.uint8)
    file = io.BytesIO()
    np.savez(file, settings=np.frombuffer(json.dumps(content).encode(), np.uint8), **arrays)
    return file.getvalue()


def _unpack_settings(packed: bytes, where: str) -> IndexSettings:
    """Return the settings of `_pack_settings`; an error names where they are from."""
    with (
        parse_errors(where, "restore a copy, or index again"),
        np.load(io.BytesIO(packed), allow_pickle=False) as file,
    ):
        content = json.loads(file["settings"].tobytes())
        if (content["format"], content["version"]) != (_FORMAT, _VERSION):
            version = f"version {content['version']!r:.20} of the settings"
            raise InputError(f"{where} has {version}, this reads {_VERSION}; update frontrank")
        power, arrays = content["power"], {name: torch.from_numpy(file[name]) for name in ARRAYS if name in file}
        whitening = None if power is None else check_whitening(Whitening(**arrays, power=float(power)))
        adapter = Adapter.from_bytes(file["adapter"].tobytes(), where) if "adapter" in file else None
        given = _check_settings(content["dim"], content["model"], whitening, content["expansion"], adapter)
        return IndexSettings(**given, notes=_read_notes(content["notes"]))


# URLs and engines.


def read_url(url: object) -> str:
    """Return a URL as text, or the path of a file URL; raise if no engine knows its scheme."""
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str) or not text:
        raise InputTypeError(f"url must be a folder or a URL, got {url!r:.80}")
    scheme = url_scheme(text)
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise InputError(f"url {text} names another machine; write file:///folder")
        return unquote(parts.path)
    if scheme and scheme not in _SERVERS:
        remedy = suggestion(scheme, _SERVERS) or "; give a folder, milvus://... or postgresql://..."
        raise InputError(f"url {hide_password(text)} begins with {scheme}://{remedy}")
    return text


def url_scheme(url: str) -> str:
    """Return what stands before :// in a URL, "" for a plain path."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url)
    return match[1].lower() if match else ""


def hide_password(url: str) -> str:
    """Return a URL as an error message may show it.

    >>> hide_password("postgresql://me:secret@host/db?password=secret&table=a&sslpassword=secret")
    'postgresql://me:...@host/db?password=...&table=a&sslpassword=...'
    """
    text = re.sub(r"(://[^/:@]*):[^/@]*@", r"\1:...@", url)
    return re.sub(r"([?&]\w*(?:password|token)=)[^&]*", r"\1...", text)


def _engine_class(url: str) -> type[Engine]:
    scheme = url_scheme(url)
    if scheme == "milvus":
        from frontrank.retrieval.milvus import MilvusEngine

        return MilvusEngine
    if scheme:
        from frontrank.retrieval.pgvector import PgvectorEngine

        return PgvectorEngine
    return FaissEngine


# Embeddings and queries on their way to an engine.


def _expand(queries: np.ndarray, neighbours: Sequence[Hits], alpha: float) -> np.ndarray:
    """Return queries moved towards their neighbours, as `expand_queries` does, at length 1 [query, dim]."""
    moved = np.empty_like(queries)
    for i, hits in enumerate(neighbours):
        scores = hits.scores.astype(np.float64)
        weights = np.where(scores > 0, np.maximum(scores, 0) ** alpha, 0)
        total = queries[i].astype(np.float64)
        if hits.vectors is not None and len(hits):
            total = total + weights @ hits.vectors.astype(np.float64)
        moved[i] = total / np.linalg.norm(total)
    return moved


def _unit_rows(name: str, data: object, dim: int, ids: Sequence[str] | None = None) -> np.ndarray:
    """Return rows at length 1 [row, dim], float32; an error names a bad row by its id, or by its number."""
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
    units = np.empty(rows.shape, np.float32)
    for start in range(0, len(rows), _CHUNK):
        wide = rows[start : start + _CHUNK].astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            squares = (wide * wide).sum(1, keepdims=True)
        if not (squares.min() > 1e-280 and squares.max() < 1e280):  # false for NaN, too
            wide = _scale_to_one(name, wide, start, ids)
            squares = (wide * wide).sum(1, keepdims=True)
        squares[np.abs(squares - 1) < 2**-22] = 1  # at length 1 but for rounding: vectors of an index keep their bits
        units[start : start + _CHUNK] = wide / np.sqrt(squares)
    return units


def _scale_to_one(name: str, rows: np.ndarray, start: int, ids: Sequence[str] | None) -> np.ndarray:
    """Return rows whose largest number is 1; raise if one is all zeros or not finite."""
    largest = np.abs(rows).max(1)
    for i in np.flatnonzero(~(np.isfinite(largest) & (largest > 0)))[:1]:
        which = f"row {start + i} (from 0)" if ids is None else f"the row of {ids[start + i]!r}"
        fault = "is all zeros" if largest[i] == 0 else "has NaN or infinite values"
        raise InputError(f"{name}: {which} {fault}; drop it, or look at what the model made of its image")
    return rows / largest[:, None]
