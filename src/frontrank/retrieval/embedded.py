"""The embedded engine: an index in memory, stored in a folder if it has one, searched by faiss.

Up to EXACT_ROWS search is exact. Above, a graph proposes rows (`approximate_search`); rows newer than the graph, few
matches of a filter and long lists are still searched exactly. The graph is built by a search, not by a write.
"""

import bisect
import mmap
import os
import re
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from frontrank.errors import InputError
from frontrank.files import folder_lock
from frontrank.machine import total_memory
from frontrank.retrieval import journal
from frontrank.retrieval.approximate_search import Graph, build_graph, extend_graph, graph_best, read_graph, write_graph
from frontrank.retrieval.engine import Batches, Facts, Hits, close_on_error, refuse_known, refuse_unknown, split_batches
from frontrank.retrieval.exact_search import RowMask, exact_best, import_faiss
from frontrank.retrieval.items import ORDER, Condition, Conditions, Item, text_of
from frontrank.retrieval.journal import Delete, Event, IndexFolder, Put

EXACT_ROWS = 200_000  # rows up to which exact search takes some ten milliseconds
_FEW_ROWS = 20_000  # matches of a filter that are searched exactly, or
_FEW_SHARE = 0.1  # this share of the rows, of which a graph would find too few
_GROWTH = 0.1  # share of new rows from which on they are added to a graph
_LEAST_DEAD = 1000  # fewer dead rows are never a reason to rewrite the index
_MOST_FILTERS, _MOST_COLUMNS = 64, 16  # remembered between searches
_COPIED = 4096  # rows copied at once


class FaissEngine:
    """An `Engine` in this process; see `open` and `create`."""

    name = "faiss"

    def __init__(self, dim: int, settings: bytes, path: Path | None, progress: bool | None = None) -> None:
        import_faiss()
        self.dim, self._progress = dim, progress
        self._folder: IndexFolder | None = None
        self._rows = ItemRows(VectorRows(dim, np.inf), settings)
        self._graph: Graph | None = None
        self._writer = threading.RLock()  # held by whoever changes rows, graph or folder,
        self._reading = ReadLock()  # which is paused in the moment of the change
        self._is_stale = False  # whether the folder may have more than this engine knows
        self._finalizer: Any = None
        if path is not None:
            self._load(path)

    @classmethod
    def open(cls, url: str, progress: bool | None = None) -> "FaissEngine | None":
        """Open the index of a folder, None if there is none."""
        # A folder without a readable journal but with other files of an index is damaged, not new.
        is_file = re.compile("journal|vectors.{7}").fullmatch
        if url and (journal.is_index(Path(url)) or any(map(is_file, journal.list_folder(Path(url))))):
            return cls(0, b"", Path(url), progress)
        return None

    @classmethod
    def create(cls, url: str, dim: int, settings: bytes, progress: bool | None = None) -> "FaissEngine":
        """Create an index in a folder, or in memory only if there is no folder."""
        import_faiss()
        folder = Path(url) if url else None
        if folder is not None:
            try:
                journal.create_folder(folder, dim, settings)
            except InputError:
                if not journal.is_index(folder):  # else another process was faster
                    raise
        return cls(dim, settings, folder, progress)

    def read_settings(self) -> bytes:
        return self._rows.settings

    def write_settings(self, settings: bytes) -> None:
        with self._write_access():
            self._write(settings)

    def add(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        with self._write_access():
            refuse_known(item.id for item in items if item.id in self._rows.row_of)
            self._write(Put(vectors, items))

    def upsert(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        with self._write_access():
            self._write(Put(vectors, items))

    def delete(self, ids: Sequence[str]) -> int:
        with self._write_access():
            known = [name for name in ids if name in self._rows.row_of]
            if known:
                self._write(Delete(known))
        return len(known)

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        with self._reading:
            return [None if row is None else self._rows.items[row] for row in map(self._rows.row_of.get, ids)]

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        with self._reading:
            refuse_unknown(name for name in ids if name not in self._rows.row_of)
            return self._rows.vectors.rows[[self._rows.row_of[name] for name in ids]]

    def count(self, conditions: Conditions) -> int:
        with self._reading:
            allowed = self._rows.select(conditions)
            return len(self._rows) if allowed is None else allowed.count

    def scan(self, after: str | None, limit: int) -> list[Item]:
        with self._reading:
            return self._rows.scan(after, limit)

    def values(self, field: str) -> dict[str, int]:
        with self._reading:
            return self._rows.count_values(field)

    def search(self, queries: np.ndarray, k: int, conditions: Conditions, with_vectors: bool = False) -> list[Hits]:
        self.prepare()
        with self._reading:
            allowed, vectors, graph = self._rows.select(conditions), self._rows.vectors.rows, self._active_graph()
            items = cast(list[Item], self._rows.items)  # only dead rows have None, and no search returns these
            possible = len(vectors) if allowed is None else allowed.count
            k = min(k, possible)
            if not k:
                no_vectors = np.empty((0, self.dim), np.float32) if with_vectors else None
                return [Hits((), np.empty(0, np.float32), no_vectors) for _ in queries]
            if graph is None or possible <= max(_FEW_ROWS, _FEW_SHARE * len(vectors), 10 * k):
                scores, best = exact_best(vectors, queries, k, items, allowed)
            else:
                scores, best = graph_best(graph, vectors, queries, k, items, allowed)
            best_items = [tuple(map(items.__getitem__, rows)) for rows in best.tolist()]
            best_vectors = vectors[best] if with_vectors else [None] * len(best)
        return [Hits(*hit) for hit in zip(best_items, scores, best_vectors, strict=True)]

    def describe(self) -> Facts:
        with self._reading:
            facts: dict[str, str | int | float | bool] = {"search": "exact", "rows": len(self._rows)}
            if (graph := self._active_graph()) is not None:
                facts |= {"search": graph.kind, "recall@10": graph.recall, "effort": graph.effort}
                facts["graph rows"] = graph.rows
            return facts | {"dead rows": self._rows.dead, "vectors in memory": self._rows.vectors.in_memory}

    def prepare(self) -> None:
        if not self._needs_graph():
            return
        with self._writer:
            if not self._needs_graph():
                return
            vectors, rows, graph = self._rows.vectors, self._rows, self._graph
            if graph is None or graph.index is None or (graph.kind == "hnsw") != vectors.in_memory:
                graph = build_graph(vectors.rows, rows.alive, rows.items, vectors.in_memory, self._progress)
                with self._reading.pause():
                    self._graph = graph
            else:
                with self._reading.pause():
                    self._graph = None  # if this is interrupted, a graph that is half extended must not be used
                    self._graph = extend_graph(graph, vectors.rows, rows.alive, rows.items, self._progress)
            self._save_graph()

    def refresh(self) -> bool:
        with self._writer:
            return self._catch_up()

    def close(self) -> None:
        with self._writer, self._reading.pause():
            if self._finalizer is not None:
                self._finalizer()

    @contextmanager
    def _write_access(self) -> Iterator[None]:
        """Keep others from writing to the index, and read what they wrote before."""
        with self._writer:
            if self._folder is None:
                yield
                return
            if not self._folder.folder.is_dir():
                raise _missing_error(self._folder.folder)
            with journal.write_lock(self._folder.folder):
                self._catch_up()
                yield

    def _write(self, event: Event) -> None:
        """Change the folder and the rows; rewrite the index if more than a third of its rows is dead."""
        self._is_stale = True  # until folder and rows are changed; if that is interrupted, the folder is read again
        if self._folder is not None:
            self._folder.write(event)
        self._apply(event)
        self._is_stale = False
        if self._rows.dead > max(_LEAST_DEAD, len(self._rows) / 3):
            self._rewrite()

    def _catch_up(self) -> bool:
        """Read what others wrote; return whether there was anything."""
        if self._folder is None:
            return False
        try:
            if self._is_stale or self._folder.is_replaced():
                self._load(self._folder.folder)
                return True
        except (FileNotFoundError, NotADirectoryError):
            raise _missing_error(self._folder.folder) from None
        changed, self._is_stale = False, True
        for event in self._folder.read_events():
            self._apply(event)
            changed = True
        self._is_stale = False
        return changed

    def _apply(self, event: Event) -> None:
        with self._reading.pause():
            self._rows.apply(event)

    def _load(self, path: Path) -> None:
        """Read the folder as it is now, in place of what is known."""
        folder = journal.open_folder(path)
        with close_on_error(folder):
            if self._folder is not None and folder.identity != self._folder.identity:
                raise InputError(f"{path} was replaced by another index; open it again")
            rows = ItemRows(VectorRows(folder.dim, memory_for_vectors(), folder.vectors_file), b"")
            for event in folder.read_events():
                rows.apply(event)
            graph = read_graph(folder.graph_path, folder.dim, folder.owner)
        with self._reading.pause():
            if self._finalizer is not None:
                self._finalizer()
            self._finalizer = weakref.finalize(self, folder.close)  # for a user who forgets to close
            self._is_stale, self.dim = False, folder.dim
            self._folder, self._rows, self._graph = folder, rows, graph

    def _rewrite(self) -> None:
        """Drop the dead rows."""
        old, batches, settings = self._folder, self._rows.batches(), self._rows.settings
        if old is None:
            rows = ItemRows(VectorRows(self.dim, np.inf), settings)
            for some in batches:
                rows.apply(Put(*some))
            with self._reading.pause():
                self._rows, self._graph = rows, None
            return
        with suppress(InputError):  # no space: the write itself is done all the same, and the next one tries again
            journal.rewrite_folder(old.folder, old.number + 1, self.dim, settings, batches, old.identity)
            self._load(old.folder)

    def _active_graph(self) -> Graph | None:
        graph = self._graph
        return None if graph is None or graph.index is None or len(self._rows.row_of) <= EXACT_ROWS else graph

    def _needs_graph(self) -> bool:
        rows, graph = len(self._rows), self._graph
        if len(self._rows.row_of) <= EXACT_ROWS:
            return False
        if graph is None or (graph.kind != "exact" and (graph.kind == "hnsw") != self._rows.vectors.in_memory):
            return True
        return rows - graph.rows > graph.rows * (_GROWTH if graph.index is not None else 0.5)

    def _save_graph(self) -> None:
        """Write the graph beside the index if that is possible now; else the next to open it builds its own."""
        if self._folder is not None and self._graph is not None:
            with suppress(OSError), folder_lock(self._folder.folder, patience=0.0) as is_locked:
                if is_locked and not self._folder.is_replaced():
                    owner = self._folder.owner(self._graph.rows)
                    if owner is not None:
                        write_graph(self._folder.graph_path, self._graph, owner)


def _missing_error(folder: Path) -> InputError:
    return InputError(f"{folder} does not exist any more; index the images again")


# The rows of an index in memory, and which of them a filter selects.


class ItemRows:
    """The settings, vectors and items by row, which rows are alive, and the row of each id."""

    def __init__(self, vectors: "VectorRows", settings: bytes = b"") -> None:
        self.vectors, self.settings = vectors, settings
        self.items: list[Item | None] = []
        self.row_of: dict[str, int] = {}
        self._alive = GrowingArray(np.bool_)
        self._columns: dict[str, Column] = {}
        self._filters: dict[Conditions, RowMask] = {}
        self._sorted_ids: list[str] | None = None
        self._column_lock = threading.Lock()  # threads that search make columns

    def __len__(self) -> int:
        """Count all rows, dead ones too."""
        return len(self.items)

    @property
    def dead(self) -> int:
        return len(self.items) - len(self.row_of)

    @property
    def alive(self) -> np.ndarray:
        return self._alive.rows

    def apply(self, event: Event) -> None:
        """Add rows or remove ids (older rows of these ids die), or replace the settings."""
        if isinstance(event, bytes):
            self.settings = event
            return
        if isinstance(event, Delete):
            for name in event.ids:
                self._bury(self.row_of.pop(name, None))
        else:
            first = len(self)
            self.vectors.append(event.vectors)
            self._alive.append(np.ones(len(event.items), np.bool_))
            self.items.extend(event.items)
            for row, item in enumerate(event.items, first):
                self._bury(self.row_of.get(item.id))
                self.row_of[item.id] = row
        self._filters, self._sorted_ids = {}, None

    def select(self, conditions: Conditions) -> RowMask | None:
        """Return the living rows that meet all conditions; None if these are simply all rows."""
        if not conditions and not self.dead:
            return None
        allowed = self._filters.get(conditions)
        if allowed is None:
            with self._column_lock:
                mask = self.alive.copy()
                for condition in conditions:
                    mask &= self._column(condition.field).meets(condition)
                if len(self._filters) >= _MOST_FILTERS:
                    self._filters = {}
                allowed = self._filters[conditions] = RowMask(mask)
        return allowed

    def count_values(self, field: str) -> dict[str, int]:
        """Count the items with each value of a field."""
        with self._column_lock:
            return self._column(field).count_values(self.alive)

    def scan(self, after: str | None, limit: int) -> list[Item]:
        """Return the first items after an id, by id."""
        ids = self._sorted_ids
        if ids is None:
            ids = self._sorted_ids = sorted(self.row_of)
        start = 0 if after is None else bisect.bisect_right(ids, after)
        return [item for name in ids[start : start + limit] if (item := self.items[self.row_of[name]]) is not None]

    def batches(self) -> Batches:
        """Iterate over all that is alive, some rows at a time."""
        for some in split_batches(np.flatnonzero(self.alive), _COPIED):
            yield self.vectors.rows[some], [item for row in some.tolist() if (item := self.items[row]) is not None]

    def _bury(self, row: int | None) -> None:
        if row is not None:
            self._alive.rows[row] = False
            self.items[row] = None

    def _column(self, field: str) -> "Column":
        column = self._columns.pop(field, None) or Column(field)
        self._columns[field] = column  # the last used last
        if len(self._columns) > _MOST_COLUMNS:
            del self._columns[next(iter(self._columns))]
        column.extend(self.items)
        return column


class Column:
    """A field of all rows as arrays: codes of texts (-1 for none), and numbers (NaN for none)."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._code_of: dict[str, int] = {}
        self._codes, self._numbers = GrowingArray(np.int32), GrowingArray(np.float64)

    def extend(self, items: Sequence[Item | None]) -> None:
        """Add the items that are not in it yet."""
        codes, numbers = [], []
        for item in items[len(self._codes.rows) :]:
            value = None if item is None else item.value(self._field)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            numbers.append(value if is_number else np.nan)
            new_code = len(self._code_of)
            codes.append(-1 if value is None or is_number else self._code_of.setdefault(text_of(value), new_code))
        self._codes.append(np.array(codes, np.int32))
        self._numbers.append(np.array(numbers, np.float64))

    def meets(self, condition: Condition) -> np.ndarray:
        """Return which rows meet a condition, as `matches` defines it [row]."""
        if condition.operator in ORDER:
            return np.asarray(ORDER[condition.operator](self._numbers.rows, condition.numbers[0]))
        codes = [self._code_of[value] for value in condition.values if value in self._code_of]
        is_among = np.isin(self._codes.rows, codes)
        if condition.numbers:
            is_among |= np.isin(self._numbers.rows, condition.numbers)
        return ~is_among if condition.operator == "!=" else is_among

    def count_values(self, alive: np.ndarray) -> dict[str, int]:
        """Count the living rows with each value."""
        codes = self._codes.rows[alive]
        times = np.bincount(codes[codes >= 0], minlength=len(self._code_of)).tolist()
        counts = Counter({text: times[code] for text, code in self._code_of.items() if times[code]})
        numbers = self._numbers.rows[alive & ~np.isnan(self._numbers.rows)]
        for value, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            counts[text_of(float(value))] += int(count)
        return counts


class VectorRows:
    """Vectors in memory, or left in their file, if there is one, where they would take more memory than the limit."""

    def __init__(self, dim: int, limit: float, file: Any = None) -> None:
        self._dim, self._limit, self._file = dim, limit, file
        size = 0 if file is None else os.fstat(file.fileno()).st_size
        room = size // (4 * dim) if size else 0
        self._array: GrowingArray | None = GrowingArray(np.float32, dim, room=room) if size <= limit else None
        self._mapped = np.empty((0, dim), np.float32)
        self._length = 0

    @property
    def in_memory(self) -> bool:
        return self._array is not None

    @property
    def rows(self) -> np.ndarray:
        if self._array is not None:
            return self._array.rows
        if len(self._mapped) < self._length:
            # Not np.memmap, which moves the position of the file while another thread may read from it.
            mapped = mmap.mmap(self._file.fileno(), 4 * self._dim * self._length, access=mmap.ACCESS_READ)
            self._mapped = np.frombuffer(mapped, "<f4").reshape(self._length, self._dim)
        return self._mapped

    def append(self, vectors: np.ndarray) -> None:
        """Add vectors, which the file has already."""
        self._length += len(vectors)
        if self._file is not None and self._length * self._dim * 4 > self._limit:
            self._array = None
        if self._array is not None:
            self._array.append(vectors)


def memory_for_vectors() -> float:
    """Return how many bytes of vectors may be in memory: half of it, as a graph needs about as much again."""
    return (total_memory() or 8 * 2**30) / 2


class GrowingArray:
    """An array to which rows are added, in time proportional to their number."""

    def __init__(self, dtype: type, *tail: int, room: int = 0) -> None:
        self._array: np.ndarray = np.empty((room, *tail), dtype)
        self._length = 0

    @property
    def rows(self) -> np.ndarray:
        return self._array[: self._length]

    def append(self, more: np.ndarray) -> None:
        length = self._length + len(more)
        if length > len(self._array):
            larger = np.empty((max(length, len(self._array) * 3 // 2), *self._array.shape[1:]), self._array.dtype)
            larger[: self._length] = self.rows
            self._array = larger  # a reader of the old one still sees what it saw
        self._array[self._length : length] = more
        self._length = length


class ReadLock:
    """A lock that many threads may hold at once (`with lock`), or none of them while one thread writes."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._changed = threading.Condition(self._counting)
        self._readers, self._is_paused = 0, False

    def __enter__(self) -> None:
        with self._counting:
            while self._is_paused:
                self._changed.wait()
            self._readers += 1

    def __exit__(self, *error: object) -> None:
        with self._counting:
            self._readers -= 1
            if self._is_paused and not self._readers:
                self._changed.notify_all()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Wait for those who read, and keep others from starting; only one thread at a time may do so."""
        try:
            with self._counting:
                self._is_paused = True
                while self._readers:
                    self._changed.wait()
            yield
        finally:
            with self._counting:
                self._is_paused = False
                self._changed.notify_all()
