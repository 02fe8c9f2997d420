"""The files of an embedded index: a journal of all writes, and the vectors in a file of their own.

    journal          the settings, and every put and delete in order
    vectors.000001   float32 rows in the order of the puts; the journal has their checksums
    graph.000001     what approximate search uses, if anything; may be removed, it is built again

A put is on disk before it returns: first its vectors, then its record. Replaced or deleted items stay in both files
until the index is rewritten under the next number: the new journal takes the place of the old one in one step, so
that there is always one complete index. Writing needs the lock of the folder, reading does not.
"""

import bisect
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
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from frontrank.checks import check_integer
from frontrank.errors import InputError
from frontrank.files import folder_lock, parse_errors, refuse_pipe, remove_stale, sync_folder, write_errors
from frontrank.retrieval.engine import Batches, close_on_error, split_batches
from frontrank.retrieval.items import Item, read_ids

JOURNAL = "journal"
_NAME, _VERSION = b"frontrank index\n", 1
_FILE_HEAD, _MARK, _RECORD = struct.Struct("<16sII"), struct.Struct("<QI"), struct.Struct("<BQII")
_START = _FILE_HEAD.size + _MARK.size
_MARK_TRIES = 20  # reads of a mark that another process may be writing
_OPEN_TRIES = 5  # of a folder that another process may be rewriting
_LOCK_SECONDS = 60.0  # how long to wait while another process writes
_ROWS = 4096  # items of one record
_NEW = ".frontrank-new"  # ending of a folder that is not finished
_HEAD, _SETTINGS, _PUT, _DELETE = range(4)
_ROW_RANGE = struct.Struct("<QII")  # first row, number of rows, checksum of the rows: before the items of a put

_REMEDY = "restore the folder from a copy, or index the images again"

Record = tuple[int, bytes]  # kind (0 to 255) and payload

sync_data = getattr(os, "fdatasync", os.fsync)


class Journal:
    """An open file of records that is only ever appended to, and how far it was read.

    It writes in `append` only, which needs a lock around it.
    """

    def __init__(self, path: Path) -> None:
        refuse_pipe(path)
        self.path, self._position = path, _START
        self._file = path.open("rb", buffering=0)
        with close_on_error(self):
            head = self._file.read(_FILE_HEAD.size)
            if len(head) < _FILE_HEAD.size or head != _pack_head(version := _FILE_HEAD.unpack(head)[1]):
                raise damage_error(path, "it does not begin as an index does")
            if version != _VERSION:
                raise InputError(f"{path} has version {version} of the format, this is {_VERSION}; update frontrank")

    def close(self) -> None:
        self._file.close()

    def is_replaced(self) -> bool:
        """Return whether another file has taken its place since it was opened."""
        there, here = os.stat(self.path), os.fstat(self._file.fileno())
        return (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev)

    def read(self) -> Iterator[Record]:
        """Iterate over the records since the last read, without one that a killed process left unfinished."""
        mark = self._read_mark()
        while record := _read_record(self._file, self._position):
            self._position += _RECORD.size + len(record[1])
            yield record
        if self._position < mark:
            raise damage_error(self.path, f"its records end at byte {self._position} of {mark}")

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
                with suppress(OSError):  # the rest is either incomplete, or the next read finds it
                    os.ftruncate(file.fileno(), self._position)
                raise
            self._position = end
            file.seek(_FILE_HEAD.size)
            file.write(_pack_mark(end))

    def _read_mark(self) -> int:
        for _ in range(_MARK_TRIES):
            self._file.seek(_FILE_HEAD.size)
            packed = self._file.read(_MARK.size)
            if len(packed) == _MARK.size and packed == _pack_mark(mark := _MARK.unpack(packed)[0]):
                return mark
            time.sleep(0.001)
        raise damage_error(self.path, "its mark does not match its checksum")


def write_journal(path: Path, records: Iterable[Record]) -> None:
    """Write a new journal of these records, on disk when this returns."""
    with path.open("wb") as file:
        file.write(_pack_head(_VERSION) + _pack_mark(_START))
        end = _write_records(file, _START, records)
        file.seek(_FILE_HEAD.size)
        file.write(_pack_mark(end))
        file.flush()
        os.fsync(file.fileno())


def damage_error(path: Path, reason: str) -> InputError:
    """Return the error of a file that is not as it was written."""
    return InputError(f"{path} is damaged ({reason}); {_REMEDY}")


@contextmanager
def remove_on_error(*files: Path) -> Iterator[None]:
    """Remove new files if writing them fails: parts of them would keep a full disk full."""
    try:
        yield
    except BaseException:
        for file in files:
            with suppress(OSError):
                file.unlink()
        raise


def _pack_head(version: int) -> bytes:
    return _FILE_HEAD.pack(_NAME, version, zlib.crc32(_NAME, version))


def _pack_mark(mark: int) -> bytes:
    return _MARK.pack(mark, zlib.crc32(struct.pack("<Q", mark)))


def _pack_record_head(kind: int, length: int, checksum: int, position: int) -> bytes:
    """Pack the head of a record with its position in the checksum: an old record there cannot be taken for it."""
    return _RECORD.pack(kind, length, checksum, zlib.crc32(struct.pack("<BQIQ", kind, length, checksum, position)))


def _write_records(file: BinaryIO, position: int, records: Iterable[Record]) -> int:
    for kind, payload in records:
        file.write(_pack_record_head(kind, len(payload), zlib.crc32(payload), position))
        file.write(payload)
        position += _RECORD.size + len(payload)
    return position


def _read_record(file: BinaryIO, position: int) -> Record | None:
    """Return the record at a position of a file, None if there is no complete one."""
    file.seek(position)
    head = file.read(_RECORD.size)
    kind, length, checksum, _ = _RECORD.unpack(head.ljust(_RECORD.size, b"\0"))
    if head != _pack_record_head(kind, length, checksum, position):
        return None
    payload = b""
    while len(payload) < length and (piece := file.read(length - len(payload))):  # one read returns at most 2 GB
        payload += piece
    return (kind, payload) if len(payload) == length and zlib.crc32(payload) == checksum else None


# The folder: the journal and the vectors together.


class Put(NamedTuple):
    """A write of vectors and their items."""

    vectors: np.ndarray
    items: Sequence[Item]


class Delete(NamedTuple):
    """A deletion of ids."""

    ids: list[str]


Event = Put | Delete | bytes  # bytes are settings


class IndexFolder:
    """An open folder: reads what happened in it, and writes more."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, 0
        self._digests: list[tuple[int, int]] = [(0, 0)]  # rows up to a record, and a checksum of all their checksums
        self._journal = Journal(folder / JOURNAL)
        with close_on_error(self._journal):
            kind, payload = next(self._journal.read(), (None, b""))
            if kind != _HEAD:
                raise damage_error(self._journal.path, "its first record is missing")
            with parse_errors(self._journal.path, _REMEDY):
                head = json.loads(payload)
                self.dim = check_integer("dim", head["dim"], at_least=1)
                self.number = check_integer("number", head["number"], at_least=1)
                self.identity: str | None = head.get("made")  # stays when the index is rewritten
            self.vectors_path = _numbered_path(folder, "vectors", self.number)
            self.graph_path = _numbered_path(folder, "graph", self.number)
            self.vectors_file = self.vectors_path.open("rb", buffering=0)
        self.is_replaced = self._journal.is_replaced  # whether the index was rewritten since this was opened

    def read_events(self) -> Iterator[Event]:
        """Iterate over what happened since the last call, here or in another process."""
        for kind, payload in self._journal.read():
            with parse_errors(self._journal.path, _REMEDY):
                event = self._read_event(kind, payload)
            yield event

    def write(self, event: Event) -> None:
        """Append an event, on disk when this returns; needs the lock (`write_lock`), and all events read."""
        with write_errors(self.folder):
            if isinstance(event, Put):
                with self.vectors_path.open("r+b") as file:
                    file.seek(self.rows * 4 * self.dim)
                    file.truncate()
                    _write_rows(file, event.vectors)
                    sync_data(file.fileno())
                records = list(_put_records(self.rows, *event))
                self._journal.append(records)
                for _, payload in records:
                    self._add_rows(*_ROW_RANGE.unpack_from(payload)[1:])
            elif isinstance(event, Delete):
                self._journal.append([(_DELETE, _to_json(event.ids))])
            else:
                self._journal.append([(_SETTINGS, event)])

    def close(self) -> None:
        self._journal.close()
        self.vectors_file.close()

    def owner(self, rows: int) -> str | None:
        """Return what only these first rows of this index have; None if no write ended there."""
        place = bisect.bisect_left(self._digests, (rows, 0))
        if place == len(self._digests) or self._digests[place][0] != rows:
            return None
        return f"{self.identity} {self.number} {rows} {self._digests[place][1]:08x}"

    def _add_rows(self, rows: int, checksum: int) -> None:
        self.rows += rows
        self._digests.append((self.rows, zlib.crc32(struct.pack("<I", checksum), self._digests[-1][1])))

    def _read_event(self, kind: int, payload: bytes) -> Event:
        if kind == _PUT:
            return self._read_put(payload)
        if kind == _DELETE:
            return Delete(read_ids(_read_list(payload)))
        if kind == _SETTINGS:
            return payload
        raise ValueError(f"a record of kind {kind}")

    def _read_put(self, payload: bytes) -> Put:
        first, rows, checksum = _ROW_RANGE.unpack_from(payload)
        if first != self.rows:
            raise damage_error(self._journal.path, f"row {self.rows} of the vectors is missing")
        if os.fstat(self.vectors_file.fileno()).st_size < (first + rows) * 4 * self.dim:
            raise damage_error(self.vectors_path, f"it ends before row {first + rows}")
        self.vectors_file.seek(first * 4 * self.dim)
        vectors = np.fromfile(self.vectors_file, "<f4", rows * self.dim).reshape(rows, self.dim)
        if zlib.crc32(vectors.data) != checksum:
            raise damage_error(self.vectors_path, f"rows {first} to {first + rows - 1} do not match their checksum")
        items = [Item(*entry) for entry in _read_list(payload[_ROW_RANGE.size :])]
        if len(items) != rows:
            raise ValueError(f"{len(items)} items for {rows} rows")
        self._add_rows(rows, checksum)
        return Put(vectors, items)


def open_folder(folder: Path) -> IndexFolder:
    """Open the folder as it is now, also while another process rewrites it."""
    for _ in range(_OPEN_TRIES):
        try:
            return IndexFolder(folder)
        except FileNotFoundError as error:  # replaced between the opening of its two files, or really missing
            missing = Path(error.filename)
            time.sleep(0.01)
        except OSError as error:
            raise _read_error(folder, error) from error
    raise damage_error(missing, "it does not exist")


def save_copy(folder: Path, dim: int, settings: bytes, batches: Batches, overwrite: bool) -> None:
    """Write a whole index to a new folder, or in place of the index there if `overwrite`."""
    if not is_index(folder):
        create_folder(folder, dim, settings, batches)
    elif not overwrite:
        raise InputError(f"{folder} exists already; choose another folder, or pass overwrite=True to replace it")
    else:
        with write_lock(folder):
            there = open_folder(folder)
            there.close()
            rewrite_folder(folder, there.number + 1, dim, settings, batches, secrets.token_hex(8))


def list_folder(folder: Path) -> list[str]:
    """Return the names in a folder, none if it does not exist."""
    try:
        return os.listdir(folder) if os.path.isdir(folder) else []
    except OSError as error:
        raise _read_error(folder, error) from error


def is_index(folder: Path) -> bool:
    """Return whether a folder holds an index, of any version."""
    try:
        refuse_pipe(folder / JOURNAL)
        with (folder / JOURNAL).open("rb") as file:
            return file.read(len(_NAME)) == _NAME
    except OSError:
        return False


def create_folder(folder: Path, dim: int, settings: bytes, batches: Batches = ()) -> None:
    """Create the folder of an index, which appears when it is complete; an existing folder must be empty."""
    unfinished = folder.parent / f".{folder.name}.{secrets.token_hex(8)}{_NEW}"
    with write_errors(folder):
        remove_stale(folder.parent.glob(f".{glob.escape(folder.name)}.*{_NEW}"))
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; give a folder")
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder} holds something else than an index; choose another folder")
        unfinished.mkdir(parents=True)
        with folder_lock(unfinished):  # whoever can have it knows that this process has ended
            try:
                rewrite_folder(unfinished, 1, dim, settings, batches, secrets.token_hex(8))
                unfinished.rename(folder)
                sync_folder(folder.parent)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)


def rewrite_folder(
    folder: Path, number: int, dim: int, settings: bytes, batches: Batches, identity: str | None
) -> None:
    """Replace the journal and the vectors of a folder, whose lock is needed; the same index keeps its identity."""
    head = _to_json({"format": "frontrank.index", "dim": dim, "number": number, "made": identity})
    unfinished, rows_path = folder / f"{JOURNAL}.new", _numbered_path(folder, "vectors", number)
    with write_errors(folder):
        with remove_on_error(unfinished, rows_path), rows_path.open("wb") as file:

            def records() -> Iterator[Record]:
                yield _HEAD, head
                yield _SETTINGS, settings
                rows = 0
                for vectors, items in batches:
                    _write_rows(file, vectors)
                    yield from _put_records(rows, vectors, items)
                    rows += len(items)

            write_journal(unfinished, records())
            os.fsync(file.fileno())
        sync_folder(folder)
        unfinished.replace(folder / JOURNAL)
        sync_folder(folder)
    for kind in ("vectors", "graph"):
        for old in folder.glob(f"{kind}.*"):
            if old != _numbered_path(folder, kind, number):
                with suppress(OSError):  # it takes space, and nothing else
                    old.unlink()


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Keep other processes and threads from writing to the folder."""
    with folder_lock(folder, _LOCK_SECONDS) as is_locked:
        if not is_locked:
            raise InputError(f"{folder} is being written to by another process; try again when it is done")
        yield


def _read_error(folder: Path, error: OSError) -> InputError:
    return InputError(f"{folder} cannot be read: {error.strerror or error}; check its name and permissions")


def _numbered_path(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}.{number:06d}"


def _put_records(first: int, vectors: np.ndarray, items: Sequence[Item]) -> Iterator[Record]:
    for start in range(0, len(items), _ROWS):
        some = items[start : start + _ROWS]
        checksum = zlib.crc32(np.ascontiguousarray(vectors[start : start + _ROWS], "<f4").data)
        entries = [[item.id, item.path, item.label, item.category, dict(item.metadata)] for item in some]
        yield _PUT, _ROW_RANGE.pack(first + start, len(some), checksum) + _to_json(entries)


def _to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _read_list(payload: bytes) -> list[Any]:
    content = json.loads(payload)
    if not isinstance(content, list):
        raise ValueError("a record without a list")
    return content


def _write_rows(file: Any, vectors: np.ndarray) -> None:
    for some in split_batches(vectors, _ROWS):
        file.write(np.ascontiguousarray(some, "<f4"))
    file.flush()
