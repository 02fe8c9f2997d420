"""What an index asks of the engine that keeps its vectors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from frontrank.errors import InputError
from frontrank.retrieval.items import Condition, Item

Facts = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, eq=False)
class Hits:
    """The items nearest to one query, best first, equal scores by id.

    items:   as many as were asked for, fewer if fewer match
    scores:  their cosines [item], float32
    vectors: their vectors as they are stored [item, dimension], float32; None if not asked for
    """

    items: tuple[Item, ...]
    scores: np.ndarray
    vectors: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(item.id for item in self.items)


class Engine(Protocol):
    """A place where vectors and items are kept; `Index` is the only one that talks to it.

    Vectors are float32 [row, dim] of length 1, whitened already; all arguments were checked. Ids come once per call.
    Text is ordered by code points ('Z' before 'a'), as Python does. Several threads may search at once. Problems that
    a user can solve (no connection, a damaged file) are an InputError of one line.
    """

    name: str
    dim: int

    def read_settings(self) -> bytes:
        """What `create` was given, or `write_settings` last."""
        ...

    def write_settings(self, settings: bytes) -> None: ...

    def add(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        """Keep new items, durably when this returns; if an id is there, `refuse_known` and keep none."""
        ...

    def upsert(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        """Keep items, in place of those with the same ids, durably when this returns."""
        ...

    def delete(self, ids: Sequence[str]) -> int:
        """Forget items; how many of the ids were there."""
        ...

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        """The items of these ids, None for an id that is not there."""
        ...

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """The vectors of these ids [id, dim]; `refuse_unknown` if one is not there."""
        ...

    def search(
        self, queries: np.ndarray, k: int, conditions: tuple[Condition, ...], with_vectors: bool = False
    ) -> list[Hits]:
        """The k best items that match, for each query [query, dim]; sees every write that returned before."""
        ...

    def count(self, conditions: tuple[Condition, ...]) -> int: ...

    def scan(self, after: str | None, limit: int) -> list[Item]:
        """The first so many items in the order of their ids, after this id."""
        ...

    def values(self, field: str) -> dict[str, int]:
        """How many items have each value of a field, as `text_of` writes it; items without it do not count."""
        ...

    def describe(self) -> Facts:
        """How it searches, for people to read: "search" ("exact", "hnsw", ...), and what was measured of it."""
        ...

    def prepare(self) -> None:
        """Build now what the first search after many writes would have to build."""
        ...

    def refresh(self) -> bool:
        """Take up what other processes wrote; whether that was anything. Nothing to do for a server."""
        ...

    def close(self) -> None: ...


Batches = Iterable[tuple[np.ndarray, Sequence[Item]]]  # vectors and items, for a copy of an index


def refuse_known(ids: Iterable[str]) -> None:
    """The error of `add` for ids that are there already."""
    found = sorted(ids)
    if found:
        named = ", ".join(map(repr, found[:3])) + (", ..." if len(found) > 3 else "")
        raise InputError(f"items has {len(found)} that the index has already ({named}); use upsert to replace them")


def refuse_unknown(ids: Iterable[str]) -> None:
    """The error for ids that are not there."""
    found = sorted(ids)
    if found:
        named = ", ".join(map(repr, found[:3])) + (", ..." if len(found) > 3 else "")
        raise InputError(f"ids has {len(found)} that the index does not have ({named}); look at Index.items()")
