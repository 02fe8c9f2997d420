"""What an index asks of the engine that keeps its vectors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from frontrank.errors import InputError
from frontrank.retrieval.items import Conditions, Item

Facts = Mapping[str, str | int | float | bool]
Batches = Iterable[tuple[np.ndarray, Sequence[Item]]]  # vectors and items, for a copy of an index


@dataclass(frozen=True, eq=False)
class Hits:
    """The items nearest to one query, best first, equal scores by id.

    items:   k of them, fewer if fewer match
    scores:  their cosines [item], float32
    vectors: their vectors as stored [item, dimension], float32; None if not asked for
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
    """A store of vectors and items; only `Index` calls it, and its methods do what those of `Index` do.

    Vectors are float32 [row, dim] of length 1, already whitened. `Index` has checked all arguments; an id comes once
    per call. Text is ordered by code points ('Z' before 'a'), as in Python. Several threads may search at once.
    A write is durable when it returns, and every later search sees it. Problems that a user can solve (no connection,
    a damaged file) are an InputError of one line.
    """

    name: str
    dim: int

    @classmethod
    def open(cls, url: str, progress: bool | None = None) -> "Engine | None":
        """Open the index at a URL, None if there is none. `progress` is for work in this process."""

    @classmethod
    def create(cls, url: str, dim: int, settings: bytes, progress: bool | None = None) -> "Engine":
        """Create an index at a URL; an empty one stands for memory."""

    def read_settings(self) -> bytes:
        """Return the settings given to `create`, or last to `write_settings`."""

    def write_settings(self, settings: bytes) -> None: ...

    def add(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        """Store new items; if an id exists, call `refuse_known` and store none."""

    def upsert(self, vectors: np.ndarray, items: Sequence[Item]) -> None: ...
    def delete(self, ids: Sequence[str]) -> int: ...
    def get(self, ids: Sequence[str]) -> list[Item | None]: ...

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        """Return the vectors of these ids [id, dim]; call `refuse_unknown` if one does not exist."""

    def search(self, queries: np.ndarray, k: int, conditions: Conditions, with_vectors: bool = False) -> list[Hits]: ...
    def count(self, conditions: Conditions) -> int: ...

    def scan(self, after: str | None, limit: int) -> list[Item]:
        """Return the first items after this id, in the order of ids."""

    def values(self, field: str) -> dict[str, int]:
        """Count the items with each value of a field, as `text_of` writes it; items without the field do not count."""

    def describe(self) -> Facts:
        """Return how it searches, for people to read: "search" ("exact", "hnsw", ...) and what was measured."""

    def prepare(self) -> None: ...
    def refresh(self) -> bool: ...
    def close(self) -> None: ...


def refuse_known(ids: Iterable[str]) -> None:
    """Raise the error of `add` if there are any ids, which exist already."""
    if names := sorted(ids):
        raise InputError(f"items has {_count_ids(names)} already in the index; use upsert to replace them")


def refuse_unknown(ids: Iterable[str]) -> None:
    """Raise an error if there are any ids, which the index does not have."""
    if names := sorted(ids):
        raise InputError(f"ids has {_count_ids(names)} not in the index; see Index.items() for those that are")


def _count_ids(names: list[str]) -> str:
    few = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} id{'s' * (len(names) > 1)} ({few})"


def split_batches(some: Any, size: int) -> Iterator[Any]:
    """Iterate over parts of a list or an array."""
    return (some[start : start + size] for start in range(0, len(some), size))


@contextmanager
def close_on_error(resource: Any) -> Iterator[None]:
    """Close a file or a connection if what is done with it fails."""
    try:
        yield
    except BaseException:
        resource.close()
        raise
