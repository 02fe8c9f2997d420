"""A file of records that is only ever added to, and that loses nothing which was acknowledged.

    head      name of the format, version, their checksum
    mark      up to where the file was acknowledged, and the checksum of that
    record    kind, length, checksum of the payload, checksum of these three; payload
    record    ...

A record is on disk before `append` returns; then the mark moves behind it. So up to the mark every byte must be as it
was written, or the file is damaged. Behind it may be a record that was never acknowledged, since its process was
killed: it counts if it is whole, else the next `append` writes over it. The mark itself goes to disk with the next
record: should the power fail before, it is a record behind, and that record is still read, being whole.
"""

import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from frontrank.errors import InputError

_NAME, _VERSION = b"frontrank index\n", 1
_HEAD, _MARK, _RECORD = struct.Struct("<16sII"), struct.Struct("<QI"), struct.Struct("<BQII")
_START = _HEAD.size + _MARK.size
_REPAIR = "restore the folder from a copy, or index the images again"
_TRIES = 20  # readings of a mark that another process may be writing

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
            file.seek(_HEAD.size)
            file.write(_packed_mark(end))

    def _check_head(self) -> None:
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size or head != _packed_head(version := _HEAD.unpack(head)[1]):
            raise damaged(self.path, "it does not begin as an index does")
        if version != _VERSION:
            raise InputError(f"{self.path} has version {version} of the format, this is {_VERSION}; update frontrank")

    def _mark(self) -> int:
        for _ in range(_TRIES):
            self._file.seek(_HEAD.size)
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
        file.seek(_HEAD.size)
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
    return _HEAD.pack(_NAME, version, zlib.crc32(_NAME, version))


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
