"""A collection of images that can be searched: what a user calls."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from frontrank.errors import InputError, InputTypeError
from frontrank.retrieval.arguments import require_count
from frontrank.retrieval.engines import Batches, Engine, Hits
from frontrank.retrieval.filters import Filter, read_filter
from frontrank.retrieval.index_folder import save_copy
from frontrank.retrieval.index_settings import (
    IndexSettings,
    check_given,
    checked_settings,
    pack,
    read_expansion,
    read_notes,
    refuse_other,
    unpack,
)
from frontrank.retrieval.index_urls import create_engine, hidden_password, open_engine, read_url, scheme
from frontrank.retrieval.index_vectors import expanded, unit_rows
from frontrank.retrieval.items import Item, check_id, check_ids, is_field, refuse_repeats
from frontrank.retrieval.whitening import Whitening

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
        require_count("k", k)
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
            require_count("limit", limit, at_least=0)
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
