"""The vectors and items of an embedded index in memory, row by row, and which of them a filter lets through.

A row never changes: an item that is replaced gets a new one, and its old row is dead. So columns and graphs that were
made of the first rows stay right while more are added.
"""

import bisect
import mmap
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from frontrank.retrieval.engines import Batches
from frontrank.retrieval.filters import ORDER, Condition
from frontrank.retrieval.items import Item, text_of
from frontrank.retrieval.nearest_rows import Allowed

_KEPT_FILTERS, _KEPT_COLUMNS = 64, 16
_COPIED = 4096  # rows copied at once
_MISSING, _NUMBER = -1, -2  # codes of what is no text


class GrownArray:
    """An array that rows are added to, in time proportional to their number."""

    def __init__(self, dtype: type, *tail: int, room: int = 0) -> None:
        self._held: np.ndarray = np.empty((room, *tail), dtype)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def rows(self) -> np.ndarray:
        return self._held[: self._rows]

    def append(self, more: np.ndarray) -> None:
        rows = self._rows + len(more)
        if rows > len(self._held):
            larger = np.empty((max(rows, len(self._held) * 3 // 2), *self._held.shape[1:]), self._held.dtype)
            larger[: self._rows] = self.rows
            self._held = larger  # who holds the old one still sees what it saw
        self._held[self._rows : rows] = more
        self._rows = rows


class VectorRows:
    """Vectors in memory, or left in their file where they would take more memory than the limit.

    file: that of the vectors, None if there is none
    """

    def __init__(self, dim: int, limit: float, file: Any = None) -> None:
        self._dim, self._limit, self._file = dim, limit, file
        size = 0 if file is None else os.fstat(file.fileno()).st_size
        room = size // (4 * dim) if size else 0
        self._held: GrownArray | None = GrownArray(np.float32, dim, room=room) if size <= limit else None
        self._mapped = np.empty((0, dim), np.float32)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def in_memory(self) -> bool:
        return self._held is not None

    @property
    def rows(self) -> np.ndarray:
        if self._held is not None:
            return self._held.rows
        if len(self._mapped) < self._rows:
            # Not np.memmap, which moves the place in the file while another thread may read from there.
            mapped = mmap.mmap(self._file.fileno(), 4 * self._dim * self._rows, access=mmap.ACCESS_READ)
            self._mapped = np.frombuffer(mapped, "<f4").reshape(self._rows, self._dim)
        return self._mapped

    def append(self, vectors: np.ndarray) -> None:
        """Add vectors, which the file has already."""
        self._rows += len(vectors)
        if self._file is not None and self._rows * self._dim * 4 > self._limit:
            self._held = None
        if self._held is not None:
            self._held.append(vectors)


def memory_for_vectors() -> float:
    """Bytes of vectors that are held in memory: half of what the machine has, as a graph needs about as much again."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    except (AttributeError, ValueError, OSError):  # Windows has no such call
        return 4 * 2.0**30


class Column:
    """A field of all rows as arrays: text by number, and numbers."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._numbers_of: dict[str, int] = {}
        self._codes, self._values = GrownArray(np.int32), GrownArray(np.float64)

    def extend(self, items: Sequence[Item | None]) -> None:
        """Take in the items that are not in it yet."""
        codes, values = [], []
        for item in items[len(self._codes) :]:
            value = None if item is None else item.value(self._field)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            values.append(value if is_number else np.nan)
            if value is None or is_number:
                codes.append(_MISSING if value is None else _NUMBER)
            else:
                codes.append(self._numbers_of.setdefault(text_of(value), len(self._numbers_of)))
        self._codes.append(np.array(codes, np.int32))
        self._values.append(np.array(values, np.float64))

    def meets(self, condition: Condition) -> np.ndarray:
        """Which rows meet a condition, as `matches` says [row]."""
        if condition.operator in ORDER:
            return np.asarray(ORDER[condition.operator](self._values.rows, condition.numbers[0]))
        wanted = [self._numbers_of[value] for value in condition.values if value in self._numbers_of]
        found = np.isin(self._codes.rows, wanted)
        if condition.numbers:
            found |= np.isin(self._values.rows, condition.numbers)
        return ~found if condition.operator == "!=" else found

    def counts(self, alive: np.ndarray) -> dict[str, int]:
        """How many rows have each value."""
        codes = self._codes.rows[alive]
        times = np.bincount(codes[codes >= 0], minlength=len(self._numbers_of)).tolist()
        found = {text: times[number] for text, number in self._numbers_of.items() if times[number]}
        is_number = alive & (self._codes.rows == _NUMBER)
        for value, count in zip(*np.unique(self._values.rows[is_number], return_counts=True), strict=True):
            text = text_of(float(value))
            found[text] = found.get(text, 0) + int(count)
        return found


class ItemRows:
    """The rows of an index: vectors, items, which are alive, and where each id is."""

    def __init__(self, vectors: VectorRows) -> None:
        self.vectors = vectors
        self.items: list[Item | None] = []
        self.row_of: dict[str, int] = {}
        self._alive = GrownArray(np.bool_)
        self._columns: dict[str, Column] = {}
        self._filters: dict[tuple[Condition, ...], Allowed] = {}
        self._sorted: list[str] | None = None
        self._making = threading.Lock()  # of columns, by threads that search

    def __len__(self) -> int:
        """All rows, dead ones too."""
        return len(self.items)

    @property
    def dead(self) -> int:
        return len(self.items) - len(self.row_of)

    @property
    def alive(self) -> np.ndarray:
        return self._alive.rows

    def put(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        """Add rows; those that had these ids are dead."""
        first = len(self)
        self.vectors.append(vectors)
        self._alive.append(np.ones(len(items), np.bool_))
        self.items.extend(items)
        for row, item in enumerate(items, first):
            self._bury(self.row_of.get(item.id))
            self.row_of[item.id] = row
        self._forget()

    def remove(self, ids: Iterable[str]) -> None:
        """Let the rows of these ids be dead."""
        for name in ids:
            self._bury(self.row_of.pop(name, None))
        self._forget()

    def allowed(self, conditions: tuple[Condition, ...]) -> Allowed | None:
        """The rows that are alive and meet all conditions; None if that is all of them without a question."""
        if not conditions and not self.dead:
            return None
        found = self._filters.get(conditions)
        if found is None:
            with self._making:
                mask = self.alive.copy()
                for condition in conditions:
                    mask &= self._column(condition.field).meets(condition)
                if len(self._filters) >= _KEPT_FILTERS:
                    self._filters = {}
                found = self._filters[conditions] = Allowed(mask)
        return found

    def counts(self, field: str) -> dict[str, int]:
        """How many items have each value of a field."""
        with self._making:
            return self._column(field).counts(self.alive)

    def scan(self, after: str | None, limit: int) -> list[Item]:
        """The first items after an id, by id."""
        ids = self._sorted
        if ids is None:
            ids = self._sorted = sorted(self.row_of)
        start = 0 if after is None else bisect.bisect_right(ids, after)
        return [item for name in ids[start : start + limit] if (item := self.items[self.row_of[name]]) is not None]

    def get(self, ids: Iterable[str]) -> list[Item | None]:
        """The item of each id."""
        rows = map(self.row_of.get, ids)
        return [None if row is None else self.items[row] for row in rows]

    def batches(self) -> Batches:
        """All that is alive, some at a time."""
        alive = np.flatnonzero(self.alive)
        for start in range(0, len(alive), _COPIED):
            some = alive[start : start + _COPIED]
            yield self.vectors.rows[some], [item for row in some.tolist() if (item := self.items[row]) is not None]

    def _bury(self, row: int | None) -> None:
        if row is not None:
            self._alive.rows[row] = False
            self.items[row] = None

    def _forget(self) -> None:
        self._filters, self._sorted = {}, None

    def _column(self, field: str) -> Column:
        column = self._columns.pop(field, None) or Column(field)
        self._columns[field] = column  # the last used last
        if len(self._columns) > _KEPT_COLUMNS:
            del self._columns[next(iter(self._columns))]
        column.extend(self.items)
        return column
