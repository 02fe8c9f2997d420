"""The embedded engine: an index in memory, kept in a folder if it has one, searched by faiss.

Up to EXACT_ROWS search is exact; above, `approximate` proposes rows, and rows that came since its graph was built, few
matches of a filter and long lists are still searched exactly. The graph is built when something is searched for, not
when something is added.
"""

import bisect
import mmap
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np

from frontrank.errors import InputError
from frontrank.files import folder_lock
from frontrank.retrieval.approximate import (
    Allowed,
    Found,
    Graph,
    build,
    exact_best,
    extend,
    graph_best,
    import_faiss,
    read_graph,
    write_graph,
)
from frontrank.retrieval.engine import Batches, Facts, Hits, refuse_known, refuse_unknown
from frontrank.retrieval.folder import (
    JOURNAL,
    Delete,
    Event,
    IndexFolder,
    Put,
    create_folder,
    is_index,
    names_in,
    open_folder,
    write_anew,
    write_lock,
)
from frontrank.retrieval.items import ORDER, Condition, Item, text_of

# ==== The vectors and items of an embedded index in memory, row by row, and which of them a filter lets through.


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


# ==== A lock that many may hold who only look, or one who changes.


class SharedLock:
    """Many threads in `shared`, or one `alone`; one that waits to be alone goes before those that come later."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._free = threading.Condition(self._counting)
        self._looking = 0
        self._waiting = 0
        self._changing = False
        self._shared = _Shared(self)

    def shared(self) -> "_Shared":
        """Within, nobody changes anything. Not to be asked for twice by one thread."""
        return self._shared

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within, nobody else is in here."""
        with self._free:
            self._waiting += 1
            try:
                while self._changing or self._looking:
                    self._free.wait()
            finally:
                self._waiting -= 1
                self._free.notify_all()
            self._changing = True
        try:
            yield
        finally:
            with self._free:
                self._changing = False
                self._free.notify_all()


class _Shared:
    """What `shared` gives: one for all threads, and no generator, which would cost a search several microseconds."""

    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        lock = self._lock
        with lock._counting:
            while lock._changing or lock._waiting:
                lock._free.wait()
            lock._looking += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lock = self._lock
        with lock._counting:
            lock._looking -= 1
            if lock._waiting and not lock._looking:
                lock._free.notify_all()


# ==== The embedded engine: an index in memory, kept in a folder if it has one, searched by faiss.


EXACT_ROWS = 200_000  # rows up to which exact search takes some ten milliseconds
_FEW_ROWS = 20_000  # matches of a filter that are searched exactly, or
_FEW_SHARE = 0.1  # this share of the rows, of which a graph would find too few
_GROWN = 0.1  # share of new rows from which a graph takes them in
_LEAST_DEAD = 1000  # dead rows that are not worth the trouble


class FaissEngine:
    """An `Engine` in this process; see `open`, `create` and `in_memory`."""

    name = "faiss"

    def __init__(self, dim: int, settings: bytes, path: Path | None, progress: bool | None = None) -> None:
        import_faiss()
        self.dim = dim
        self._settings, self._path, self._progress = settings, path, progress
        self._folder: IndexFolder | None = None
        self._rows = ItemRows(VectorRows(dim, np.inf))
        self._graph: Graph | None = None
        self._writer = threading.RLock()  # whoever changes rows, graph or folder holds it
        self._lock = SharedLock()  # and this one alone, while it does
        self._is_stale = False  # whether the folder may have more than is known here
        self._closing: Any = None
        if path is not None:
            self._load()

    @classmethod
    def open(cls, folder: Path, progress: bool | None = None) -> "FaissEngine | None":
        """The engine of a folder, None if there is no index."""
        return cls(0, b"", folder, progress) if is_index(folder) or _has_files(folder) else None

    @classmethod
    def create(cls, folder: Path, dim: int, settings: bytes, progress: bool | None = None) -> "FaissEngine":
        """The engine of a new folder."""
        import_faiss()
        try:
            create_folder(folder, dim, settings)
        except InputError:
            if not is_index(folder):  # else another process was faster
                raise
        return cls(dim, settings, folder, progress)

    @classmethod
    def in_memory(cls, dim: int, settings: bytes, progress: bool | None = None) -> "FaissEngine":
        """An engine without a folder."""
        return cls(dim, settings, None, progress)

    def read_settings(self) -> bytes:
        return self._settings

    def write_settings(self, settings: bytes) -> None:
        with self._writing() as folder, self._in_step():
            if folder is not None:
                folder.write_settings(settings)
            self._apply(settings)

    def add(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        self._put(vectors, items, new=True)

    def upsert(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        self._put(vectors, items, new=False)

    def delete(self, ids: Sequence[str]) -> int:
        with self._writing() as folder:
            there = [name for name in ids if name in self._rows.row_of]
            with self._in_step():
                if there and folder is not None:
                    folder.delete(there)
                self._apply(Delete(there))
            self._compact()
        return len(there)

    def get(self, ids: Sequence[str]) -> list[Item | None]:
        with self._lock.shared():
            return self._rows.get(ids)

    def vectors(self, ids: Sequence[str]) -> np.ndarray:
        with self._lock.shared():
            refuse_unknown(name for name in ids if name not in self._rows.row_of)
            return self._rows.vectors.rows[[self._rows.row_of[name] for name in ids]]

    def count(self, conditions: tuple[Condition, ...]) -> int:
        with self._lock.shared():
            allowed = self._rows.allowed(conditions)
            return len(self._rows) if allowed is None else allowed.count

    def scan(self, after: str | None, limit: int) -> list[Item]:
        with self._lock.shared():
            return self._rows.scan(after, limit)

    def values(self, field: str) -> dict[str, int]:
        with self._lock.shared():
            return self._rows.counts(field)

    def search(
        self, queries: np.ndarray, k: int, conditions: tuple[Condition, ...], with_vectors: bool = False
    ) -> list[Hits]:
        self.prepare()
        with self._lock.shared():
            allowed, vectors = self._rows.allowed(conditions), self._rows.vectors.rows
            items = cast(list[Item], self._rows.items)  # only dead rows have none, and these are never found
            k = min(k, len(vectors) if allowed is None else allowed.count)
            if not k:
                return [_no_hits(self.dim, with_vectors) for _ in queries]
            scores, found = self._best(vectors, queries, k, allowed)
            picked = [tuple(map(items.__getitem__, rows)) for rows in found.tolist()]
            held = vectors[found] if with_vectors else [None] * len(found)
        return [Hits(*hit) for hit in zip(picked, scores, held, strict=True)]

    def describe(self) -> Facts:
        with self._lock.shared():
            found: dict[str, str | int | float | bool] = {"search": "exact", "rows": len(self._rows)}
            if (graph := self._used_graph()) is not None:
                found |= {"search": graph.kind, "recall@10": graph.recall, "effort": graph.effort}
                found["graph rows"] = graph.rows
            return found | {"dead rows": self._rows.dead, "vectors in memory": self._rows.vectors.in_memory}

    def prepare(self) -> None:
        if not self._graph_is_due():
            return
        with self._writer:
            if not self._graph_is_due():
                return
            vectors, rows, graph = self._rows.vectors, self._rows, self._graph
            if graph is None or graph.index is None or (graph.kind == "hnsw") != vectors.in_memory:
                graph = build(vectors.rows, rows.alive, rows.items, vectors.in_memory, self._progress)
                with self._lock.alone():
                    self._graph = graph
            else:
                with self._lock.alone():
                    self._graph = None  # one that is half extended must not be used, should this be interrupted
                    self._graph = extend(graph, vectors.rows, rows.alive, rows.items, self._progress)
            self._keep_graph()

    def refresh(self) -> bool:
        with self._writer:
            return self._catch_up()

    def close(self) -> None:
        with self._writer, self._lock.alone():
            if self._closing is not None:
                self._closing()

    def _put(self, vectors: np.ndarray, items: Sequence[Item], new: bool) -> None:
        with self._writing() as folder:
            if new:
                refuse_known(item.id for item in items if item.id in self._rows.row_of)
            with self._in_step():
                if items and folder is not None:
                    folder.put(vectors, items)
                self._apply(Put(vectors, list(items)))
            self._compact()

    @contextmanager
    def _writing(self) -> Iterator[IndexFolder | None]:
        """Within, nobody else writes to the index, and what others wrote is known here."""
        with self._writer:
            if self._path is None:
                yield None
                return
            if not self._path.is_dir():
                raise self._gone()
            with write_lock(self._path):
                self._catch_up()
                yield self._folder

    def _catch_up(self) -> bool:
        if self._folder is None:
            return False
        try:
            if self._is_stale or self._folder.is_replaced():
                self._load()
                return True
        except (FileNotFoundError, NotADirectoryError):
            raise self._gone() from None
        changed = False
        with self._in_step():
            for event in self._folder.events():
                self._apply(event)
                changed = True
        return changed

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Within, folder and rows change together; if that is interrupted, the folder is read again before all else."""
        try:
            yield
        except BaseException:
            self._is_stale = True
            raise

    def _gone(self) -> InputError:
        return InputError(f"{self._path} is not there any more; index the images again")

    def _apply(self, event: Event) -> None:
        with self._lock.alone():
            self._settings = _applied(event, self._rows, self._settings)

    def _load(self) -> None:
        """Read the folder as it is now, in place of what is known."""
        assert self._path is not None
        folder = open_folder(self._path)
        rows, settings = ItemRows(VectorRows(folder.dim, memory_for_vectors(), folder.vectors_file)), b""
        try:
            if self._folder is not None and folder.made != self._folder.made:
                raise InputError(f"{self._path} was replaced by another index; open it again")
            graph = read_graph(folder.graph_path)  # before the rows, of which there may be more by then, never fewer
            for event in folder.events():
                settings = _applied(event, rows, settings)
            if graph is not None and graph.rows > len(rows):
                raise InputError(f"{folder.graph_path} belongs to another index; remove it, and it is built again")
        except BaseException:
            folder.close()
            raise
        with self._lock.alone():
            if self._closing is not None:
                self._closing()
            self._closing = weakref.finalize(self, folder.close)  # for those who forget to
            self._is_stale = False
            self._folder, self._rows, self._settings, self._graph = folder, rows, settings, graph
            self.dim = folder.dim

    def _compact(self) -> None:
        """Write the index anew if more than a third of its rows is dead."""
        if self._rows.dead <= max(_LEAST_DEAD, len(self._rows) / 3):
            return
        if self._path is None or self._folder is None:
            rows = ItemRows(VectorRows(self.dim, np.inf))
            for vectors, items in self._rows.batches():
                rows.put(vectors, items)
            with self._lock.alone():
                self._rows, self._graph = rows, None
            return
        with suppress(InputError):  # no room: what was asked for is done all the same, and the next write tries again
            there, kept = self._folder, self._rows.batches()
            write_anew(self._path, there.number + 1, self.dim, self._settings, kept, there.made)
            self._load()

    def _best(self, vectors: np.ndarray, queries: np.ndarray, k: int, allowed: Allowed | None) -> Found:
        items, graph = self._rows.items, self._used_graph()
        possible = len(vectors) if allowed is None else allowed.count
        if graph is None or possible <= max(_FEW_ROWS, _FEW_SHARE * len(vectors), 10 * k):
            return exact_best(vectors, queries, k, items, allowed)
        return graph_best(graph, vectors, queries, k, items, allowed)

    def _used_graph(self) -> Graph | None:
        graph = self._graph
        return None if graph is None or graph.index is None or len(self._rows.row_of) <= EXACT_ROWS else graph

    def _graph_is_due(self) -> bool:
        rows, graph = len(self._rows), self._graph
        if len(self._rows.row_of) <= EXACT_ROWS:
            return False
        if graph is None or (graph.kind != "exact" and (graph.kind == "hnsw") != self._rows.vectors.in_memory):
            return True
        return rows - graph.rows > graph.rows * (_GROWN if graph.index is not None else 0.5)

    def _keep_graph(self) -> None:
        """Write the graph beside the index if that can be done now; else the next to open it builds its own."""
        if self._folder is None or self._path is None or self._graph is None:
            return
        with suppress(OSError), folder_lock(self._path, patience=0.0) as had:
            if had and not self._folder.is_replaced():
                write_graph(self._folder.graph_path, self._graph)


def _applied(event: Event, rows: ItemRows, settings: bytes) -> bytes:
    """Let something happen to the rows; the settings after it."""
    if isinstance(event, bytes):
        return event
    if isinstance(event, Delete):
        rows.remove(event.ids)
    else:
        rows.put(event.vectors, event.items)
    return settings


def _no_hits(dim: int, with_vectors: bool) -> Hits:
    return Hits((), np.empty(0, np.float32), np.empty((0, dim), np.float32) if with_vectors else None)


def _has_files(folder: Path) -> bool:
    """Whether a folder without a readable journal has other files of an index: it is damaged, not new."""
    return any(name == JOURNAL or fnmatch(name, "vectors.??????") for name in names_in(folder))
