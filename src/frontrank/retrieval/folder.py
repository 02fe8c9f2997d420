"""The folder of an embedded index: a journal of what was done, and the vectors in a file of their own.

    journal          the settings, and every put and delete in their order (journal.py)
    vectors.000001   float32 rows in the order in which they were put; the journal has their checksums
    graph.000001     what approximate search uses, if there is any; can be removed, and is built again

A put is on disk, first its vectors, then its record, before it is acknowledged. What was replaced or deleted stays in
both files until they are written anew, under the next number: the new journal takes the place of the old one in one
step, so that there is always one whole index. Writing needs the lock of the folder, reading does not.
"""

import glob
import json
import os
import secrets
import shutil
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from frontrank.errors import FrontrankError, InputError
from frontrank.files import folder_lock
from frontrank.retrieval.engine import Batches
from frontrank.retrieval.items import Item

# ==== A file of records that is only ever added to, and that loses nothing which was acknowledged.


_NAME, _VERSION = b"frontrank index\n", 1
_FILE_HEAD, _MARK, _RECORD = struct.Struct("<16sII"), struct.Struct("<QI"), struct.Struct("<BQII")
_START = _FILE_HEAD.size + _MARK.size
_REPAIR = "restore the folder from a copy, or index the images again"
_MARK_TRIES = 20  # readings of a mark that another process may be writing

Record = tuple[int, bytes]  # kind (0 to 255) and payload

sync_data = getattr(os, "fdatasync", os.fsync)


def damaged(path: Path, what: str) -> InputError:
    """The error of a file that is not as it was written."""
    return InputError(f"{path} is damaged ({what}); {_REPAIR}")


class Journal:
    """An open journal and how far it was read; never writes but in `append`, which needs a lock around it.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "journal"
    >>> write_journal(path, [(1, b"one")])
    >>> journal = Journal(path)
    >>> list(journal.read())
    [(1, b'one')]
    >>> journal.append([(2, b"two"), (2, b"three")])
    >>> again = Journal(path)
    >>> list(journal.read()), list(again.read())
    ([], [(1, b'one'), (2, b'two'), (2, b'three')])
    >>> journal.close(), again.close()
    (None, None)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = _START
        self._file = path.open("rb", buffering=0)
        try:
            self._check_head()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def is_replaced(self) -> bool:
        """Whether another file has taken its place since it was opened."""
        there, here = os.stat(self.path), os.fstat(self._file.fileno())
        return (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev)

    def read(self) -> Iterator[Record]:
        """The records since the last reading; one that a killed process left unfinished is not among them."""
        mark = self._mark()
        while record := _read_record(self._file, self._position):
            self._position += _RECORD.size + len(record[1])
            yield record
        if self._position < mark:
            raise damaged(self.path, f"its records end at byte {self._position} of {mark}")

    def append(self, records: Iterable[Record]) -> None:
        """Write records behind those that were read, which must be all; on disk when this returns."""
        with self.path.open("r+b") as file:
            try:
                file.seek(self._position)
                file.truncate()
                end = _write_records(file, self._position, records)
                file.flush()
                sync_data(file.fileno())
            except BaseException:
                with suppress(OSError):  # what is left is not whole, or the next reading takes it up
                    os.ftruncate(file.fileno(), self._position)
                raise
            self._position = end
            file.seek(_FILE_HEAD.size)
            file.write(_packed_mark(end))

    def _check_head(self) -> None:
        head = self._file.read(_FILE_HEAD.size)
        if len(head) < _FILE_HEAD.size or head != _packed_head(version := _FILE_HEAD.unpack(head)[1]):
            raise damaged(self.path, "it does not begin as an index does")
        if version != _VERSION:
            raise InputError(f"{self.path} has version {version} of the format, this is {_VERSION}; update frontrank")

    def _mark(self) -> int:
        for _ in range(_MARK_TRIES):
            self._file.seek(_FILE_HEAD.size)
            found = self._file.read(_MARK.size)
            if len(found) == _MARK.size and found == _packed_mark(mark := _MARK.unpack(found)[0]):
                return mark
            time.sleep(0.001)
        raise damaged(self.path, "its mark does not fit its checksum")


def write_journal(path: Path, records: Iterable[Record]) -> None:
    """A new journal of these records, on disk when this returns."""
    with path.open("wb") as file:
        file.write(_packed_head(_VERSION) + _packed_mark(_START))
        end = _write_records(file, _START, records)
        file.seek(_FILE_HEAD.size)
        file.write(_packed_mark(end))
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_or_gone(*files: Path) -> Iterator[None]:
    """Within, new files are written; if that fails they are removed: half of them would keep a full disk full."""
    try:
        yield
    except BaseException:
        for file in files:
            with suppress(OSError):
                file.unlink()
        raise


def is_journal(path: Path) -> bool:
    """Whether a file begins as a journal does, of any version."""
    try:
        with path.open("rb") as file:
            return file.read(len(_NAME)) == _NAME
    except OSError:
        return False


def sync_folder(folder: Path) -> None:
    """See to it that the names of a folder's files are on disk."""
    with suppress(OSError):  # not every file system can, nor needs to
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _packed_head(version: int) -> bytes:
    return _FILE_HEAD.pack(_NAME, version, zlib.crc32(_NAME, version))


def _packed_mark(mark: int) -> bytes:
    return _MARK.pack(mark, zlib.crc32(struct.pack("<Q", mark)))


def _packed_record_head(kind: int, length: int, checksum: int, position: int) -> bytes:
    """With its place in its own checksum: what an earlier record left there cannot be taken for it."""
    return _RECORD.pack(kind, length, checksum, zlib.crc32(struct.pack("<BQIQ", kind, length, checksum, position)))


def _write_records(file: BinaryIO, position: int, records: Iterable[Record]) -> int:
    for kind, payload in records:
        file.write(_packed_record_head(kind, len(payload), zlib.crc32(payload), position))
        file.write(payload)
        position += _RECORD.size + len(payload)
    return position


def _read_record(file: BinaryIO, position: int) -> Record | None:
    """The record at a place of a file, None if there is none that is whole."""
    file.seek(position)
    head = file.read(_RECORD.size)
    if len(head) < _RECORD.size:
        return None
    kind, length, checksum, _ = _RECORD.unpack(head)
    if head != _packed_record_head(kind, length, checksum, position):
        return None
    payload = b"".join(_pieces(file, length))
    return (kind, payload) if len(payload) == length and zlib.crc32(payload) == checksum else None


def _pieces(file: BinaryIO, length: int) -> Iterator[bytes]:
    while length > 0 and (piece := file.read(min(length, 1 << 24))):
        length -= len(piece)
        yield piece


# ==== The folder of an embedded index: a journal of what was done, and the vectors in a file of their own.


JOURNAL = "journal"
PATIENCE = 60.0  # seconds to wait while another process writes
_ROWS = 4096  # items of one record
_TRIES = 5
_NEW = ".frontrank-new"  # ending of a folder that is not finished
_STALE_SECONDS = 3600.0  # one that nothing was written to for so long is of a process that was killed
_HEAD, _SETTINGS, _PUT, _DELETE = range(4)
_PLACES = struct.Struct("<QII")  # first row, rows, checksum of the rows: before the items of a put


@dataclass(frozen=True, eq=False)
class Put:
    """Items that were kept, and their vectors."""

    vectors: np.ndarray
    items: list[Item]


@dataclass(frozen=True)
class Delete:
    """Ids that were deleted."""

    ids: list[str]


Event = Put | Delete | bytes  # bytes are settings


class IndexFolder:
    """An open folder: what happened in it, and more of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._journal = Journal(folder / JOURNAL)
        self.rows = 0
        try:
            kind, payload = next(self._journal.read(), (None, b""))
            if kind != _HEAD:
                raise damaged(self._journal.path, "its first record is missing")
            head = json.loads(payload)
            self.dim, self.number = int(head["dim"]), int(head["number"])
            self.made: str | None = head.get("made")  # the same as long as it is the same index
            self.vectors_file = self.vectors_path.open("rb", buffering=0)
        except BaseException:
            self._journal.close()
            raise

    @property
    def vectors_path(self) -> Path:
        return _numbered(self.folder, "vectors", self.number)

    @property
    def graph_path(self) -> Path:
        return _numbered(self.folder, "graph", self.number)

    def is_replaced(self) -> bool:
        """Whether the index was written anew since this was opened."""
        return self._journal.is_replaced()

    def events(self) -> Iterator[Event]:
        """What happened since this was last asked, here or in another process."""
        for kind, payload in self._journal.read():
            try:
                event = self._event(kind, payload)
            except (struct.error, LookupError, TypeError, ValueError) as error:
                if isinstance(error, FrontrankError):
                    raise
                raise damaged(self._journal.path, f"a record of row {self.rows} cannot be read: {error}") from error
            yield event

    def put(self, vectors: np.ndarray, items: Sequence[Item]) -> None:
        """Keep vectors and items; durable when this returns. Needs the lock, and all events read."""
        with self._writing():
            with self.vectors_path.open("r+b") as file:
                file.seek(self.rows * 4 * self.dim)
                file.truncate()
                _write_rows(file, vectors)
                sync_data(file.fileno())
            self._journal.append(_puts(self.rows, vectors, items))
        self.rows += len(items)

    def delete(self, ids: Sequence[str]) -> None:
        """Note ids that are deleted; durable when this returns. Needs the lock, and all events read."""
        with self._writing():
            self._journal.append([(_DELETE, _json(list(ids)))])

    def write_settings(self, settings: bytes) -> None:
        """Note other settings. Needs the lock, and all events read."""
        with self._writing():
            self._journal.append([(_SETTINGS, settings)])

    def close(self) -> None:
        self._journal.close()
        self.vectors_file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise not_written(self.folder, error) from error

    def _event(self, kind: int, payload: bytes) -> Event:
        if kind == _PUT:
            return self._read_put(payload)
        if kind == _DELETE:
            return Delete(json.loads(payload))
        if kind == _SETTINGS:
            return payload
        raise ValueError(f"it is of kind {kind}")

    def _read_put(self, payload: bytes) -> Put:
        first, rows, checksum = _PLACES.unpack_from(payload)
        if first != self.rows:
            raise damaged(self._journal.path, f"row {self.rows} of the vectors is missing")
        if os.fstat(self.vectors_file.fileno()).st_size < (first + rows) * 4 * self.dim:
            raise damaged(self.vectors_path, f"it ends before row {first + rows}")
        found = np.empty((rows, self.dim), dtype="<f4")
        self.vectors_file.seek(first * 4 * self.dim)
        _read_into(self.vectors_file, found.data.cast("B"))
        if zlib.crc32(found.data.cast("B")) != checksum:
            raise damaged(self.vectors_path, f"rows {first} to {first + rows - 1} do not fit their checksum")
        self.rows += rows
        return Put(found, [_item(entry) for entry in json.loads(payload[_PLACES.size :])])


def open_folder(folder: Path) -> IndexFolder:
    """The folder as it is now, also while another process writes it anew."""
    for _ in range(_TRIES):
        try:
            return IndexFolder(folder)
        except FileNotFoundError as error:  # replaced between the opening of its two files, or really not there
            missing = Path(error.filename)
            time.sleep(0.01)
        except OSError as error:
            raise _not_read(folder, error) from error
    raise damaged(missing, "it is not there")


def save_copy(folder: Path, dim: int, settings: bytes, batches: Batches, overwrite: bool) -> None:
    """Write a whole index to a folder, new or, if told to, in place of the index that is there."""
    if not is_index(folder):
        create_folder(folder, dim, settings, batches)
    elif not overwrite:
        raise InputError(f"{folder} exists already; give another folder, or overwrite=True")
    else:
        with write_lock(folder):
            there = open_folder(folder)
            there.close()
            write_anew(folder, there.number + 1, dim, settings, batches, _new_name())


def names_in(folder: Path) -> list[str]:
    """The names of what is in a folder, none if there is no such folder."""
    try:
        return os.listdir(folder) if os.path.isdir(folder) else []
    except OSError as error:
        raise _not_read(folder, error) from error


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index, of any version."""
    return is_journal(folder / JOURNAL)


def create_folder(folder: Path, dim: int, settings: bytes, batches: Batches = ()) -> None:
    """A new folder of an index, which appears when all is in it; one that is there must be empty."""
    unfinished = folder.parent / f".{folder.name}.{secrets.token_hex(8)}{_NEW}"
    try:
        _remove_left_over(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; give a folder")
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder} holds something else than an index; give another folder")
        unfinished.mkdir(parents=True)
        try:
            write_anew(unfinished, 1, dim, settings, batches, _new_name())
            unfinished.rename(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise not_written(folder, error) from error


def _remove_left_over(folder: Path) -> None:
    """Remove what processes that were killed long ago left of folders of this name."""
    for room in folder.parent.glob(f".{glob.escape(folder.name)}.*{_NEW}"):
        with suppress(OSError):  # gone in the meantime
            if time.time() - max(path.stat().st_mtime for path in (room, *room.iterdir())) > _STALE_SECONDS:
                shutil.rmtree(room)


def write_anew(folder: Path, number: int, dim: int, settings: bytes, batches: Batches, made: str | None) -> None:
    """Put a new journal and new vectors in the place of what a folder has. Needs its lock.

    made: what tells the index from others that were at the same place; that of the old one if it is the same index
    """
    head = _json({"format": "frontrank.index", "dim": dim, "number": number, "made": made})
    unfinished, rows_path = folder / f"{JOURNAL}.new", _numbered(folder, "vectors", number)
    try:
        with whole_or_gone(unfinished, rows_path), rows_path.open("wb") as file:

            def records() -> Iterator[Record]:
                yield _HEAD, head
                yield _SETTINGS, settings
                rows = 0
                for vectors, items in batches:
                    _write_rows(file, vectors)
                    yield from _puts(rows, vectors, items)
                    rows += len(items)

            write_journal(unfinished, records())
            os.fsync(file.fileno())
        sync_folder(folder)
        unfinished.replace(folder / JOURNAL)
        sync_folder(folder)
    except OSError as error:
        raise not_written(folder, error) from error
    for kind in ("vectors", "graph"):
        for old in folder.glob(f"{kind}.*"):
            if old != _numbered(folder, kind, number):
                with suppress(OSError):  # it costs room, and nothing else
                    old.unlink()


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Within, no other process or thread writes to the folder."""
    with folder_lock(folder, PATIENCE) as had:
        if not had:
            raise InputError(f"{folder} is being written to by another process; try again when it is done")
        yield


def not_written(folder: Path, error: OSError) -> InputError:
    """The error of a disk that is full or a folder that must not be written to."""
    return InputError(f"{folder} cannot be written: {error.strerror or error}; make room there, or give another folder")


def _not_read(folder: Path, error: OSError) -> InputError:
    return InputError(f"{folder} cannot be read: {error.strerror or error}; see to its name and permissions")


def _new_name() -> str:
    return secrets.token_hex(8)


def _numbered(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}.{number:06d}"


def _puts(first: int, vectors: np.ndarray, items: Sequence[Item]) -> Iterator[Record]:
    for start in range(0, len(items), _ROWS):
        some = items[start : start + _ROWS]
        checksum = zlib.crc32(_bytes(vectors[start : start + _ROWS]))
        entries = [[item.id, item.path, item.label, item.category, dict(item.metadata)] for item in some]
        yield _PUT, _PLACES.pack(first + start, len(some), checksum) + _json(entries)


def _item(entry: Sequence[Any]) -> Item:
    return Item(*entry) if entry[4] else Item(*entry[:4])


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _bytes(vectors: np.ndarray) -> memoryview:
    return np.ascontiguousarray(vectors, dtype="<f4").data.cast("B")


def _write_rows(file: Any, vectors: np.ndarray) -> None:
    for start in range(0, len(vectors), _ROWS):
        file.write(_bytes(vectors[start : start + _ROWS]))
    file.flush()


def _read_into(file: Any, target: memoryview) -> None:
    done = 0
    while done < len(target) and (read := file.readinto(target[done:])):  # a system call reads 2 GB at most
        done += read
