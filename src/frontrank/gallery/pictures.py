"""Pictures of the page: those of indexed items, and uploaded ones."""

import math
import os
import stat
import tempfile
import threading
import zipfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from frontrank.errors import InputError
from frontrank.pictures.limits import FaultError
from frontrank.pictures.processes import DecodePool

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

SIZES = {"small": 256, "large": 1024, "preview": 768}  # pixels of the longer side; a preview is of an upload
JPEG = "image/jpeg"  # the media type of every picture that is sent
_QUALITY = 90
_HANDLES = Path(f"/proc/{os.getpid()}/fd")  # where a process can read an open file, whatever its name is by now
_REFUSED = "the picture of this item does not exist, or is not below a folder that may be shown"


class RecentValues(Generic[T]):
    """Values by key: the last ones used, within a number and a memory; the newest is kept in any case."""

    def __init__(self, most_bytes: int, most: float = math.inf) -> None:
        self._most_bytes, self._most, self.held_bytes = most_bytes, most, 0
        self._values, self._lock = OrderedDict[Hashable, tuple[T, int]](), threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key; None if it never existed or was dropped."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def add(self, key: Hashable, value: T, size: int) -> None:
        """Keep a value of so many bytes, unless there is one under this key."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value, size
                self.held_bytes += size
            while len(self) > 1 and (len(self) > self._most or self.held_bytes > self._most_bytes):
                self.held_bytes -= self._values.popitem(last=False)[1][1]


def find_file(path: str, roots: Sequence[Path]) -> tuple[Path, Path]:
    """Return the root and the file of an item: its path, from a root if it is relative, with every link followed.

    InputError if it does not exist, is no plain file, or is beyond all roots by "..", an absolute path or a link; the
    message says no more than that, so that nobody learns from it which files exist.
    """
    if path and "\0" not in path:
        for root in roots:
            try:
                top = root.resolve(strict=True)
                file = (top / path).resolve(strict=True)
            except (OSError, ValueError, RuntimeError):  # does not exist, has too long a name, has links in a circle
                continue
            if file.is_relative_to(top) and file.is_file():
                return top, file
    raise InputError(_REFUSED)


@contextmanager
def open_picture(path: str, roots: Sequence[Path]) -> Iterator[tuple[Path, Path, os.stat_result]]:
    """Hold the file of an item open, which `find_file` finds: (its path, where to read it, its status).

    After it was found, it or a folder above it could become a link to elsewhere. So each folder is opened by its own
    name from the one before, and links are not followed.
    """
    top, file = find_file(path, roots)
    handles: list[int] = []
    try:
        handles.append(os.open(top, os.O_RDONLY | os.O_DIRECTORY))
        names = file.relative_to(top).parts
        for i, name in enumerate(names):
            kind = os.O_DIRECTORY if i + 1 < len(names) else os.O_NONBLOCK  # of a pipe, opening alone could wait
            handles.append(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | kind, dir_fd=handles[-1]))
        status = os.fstat(handles[-1])
        if not stat.S_ISREG(status.st_mode):
            raise InputError(_REFUSED)
        yield file, _HANDLES / str(handles[-1]) if _HANDLES.is_dir() else file, status
    except OSError:
        raise InputError(_REFUSED) from None
    finally:
        for handle in handles:
            os.close(handle)


def encode_picture(picture: "Image", side: int) -> bytes:
    """Encode a picture, at most so many pixels wide and high, as JPEG: that takes a twentieth of WebP's time.

    >>> from PIL import Image
    >>> Image.open(BytesIO(encode_picture(Image.new("RGB", (600, 300)), 256))).size
    (256, 128)
    """
    from PIL import Image

    if max(picture.size) > side:
        scale = side / max(picture.size)
        size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    file = BytesIO()
    picture.save(file, "jpeg", quality=_QUALITY, subsampling=0)  # else edges of plain colours would blur
    return file.getvalue()


class Pictures:
    """Small pictures of files; the last ones are kept in a bounded memory."""

    def __init__(self, most_bytes: int, max_pixels: int, pool: DecodePool) -> None:
        self.recent, self._max_pixels, self._pool = RecentValues[bytes](most_bytes), max_pixels, pool

    def get(self, path: str, roots: Sequence[Path], size: str) -> bytes:
        """Return the picture of an item's path in one of the SIZES; InputError if it cannot be shown."""
        with open_picture(path, roots) as (file, source, status):
            key = (str(file), status.st_ino, status.st_mtime_ns, status.st_size, size)
            data = self.recent.get(key)
            if data is None:  # two threads may make the same: better than all waiting for one
                data = encode_picture(self._decode(source, SIZES[size]), SIZES[size])
                self.recent.add(key, data, len(data))
            return data

    def read(self, path: str, roots: Sequence[Path]) -> "Image":
        """Return the whole picture of an item's path, for a model."""
        with open_picture(path, roots) as (_, source, _):
            return self._decode(source, None)

    def _decode(self, file: Path, at_least: int | None) -> "Image":
        try:
            return self._pool.read(file, self._max_pixels, at_least)
        except FaultError:  # its message may name the file
            raise InputError("the picture of this item cannot be read as an image") from None


# Uploaded pictures: decoded once, by the rules of every other image; only embeddings and a small copy are kept

# Long enough not to occur by chance among pixels; four bytes, as at the beginning of a ZIP, would occur
_OTHERS = {
    b"<!doctype html": "a web page",
    b"<html": "a web page",
    b"<script": "a script",
    b"<?php": "a script",
    b"http://www.w3.org/2000/svg": "an SVG drawing",
    b"%pdf-": "a PDF document",
    b"rar!\x1a\x07": "an archive",
    b"7z\xbc\xaf\x27\x1c": "an archive",
}

# Places of a picture's sizes: /* there makes it the beginning of a script
_COMMENTS = {b"GIF87a": 6, b"GIF89a": 6, b"BM": 2, b"RIFF": 4, b"\xff\xd8\xff": 4}


@dataclass(frozen=True, eq=False)
class Upload:
    """What the server keeps of an uploaded picture: a small copy, and its embedding by each index that has a model."""

    preview: bytes
    vectors: Mapping[str, NDArray[np.float32]]


@asynccontextmanager
async def read_form(request: Request, remedy: str, kind: str = "multipart/form-data") -> AsyncIterator[FormData]:
    """Read the form of a request, with one file at most; 400 with the remedy if it cannot be read, 415 if not a form.

    kind: the only content type that is parsed
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise HTTPException(415, f"the form must be {kind}; {remedy}")
    try:
        form = await request.form(max_files=1, max_fields=4, max_part_size=8192)
    except ClientDisconnect:
        raise
    except HTTPException as error:
        if error.status_code != 400:  # too large, or too slow
            raise
        raise HTTPException(400, f"the form cannot be read ({error.detail.rstrip('.')}); {remedy}") from None
    except Exception:  # parsers raise anything
        raise HTTPException(400, f"the form cannot be read; {remedy}") from None
    try:
        yield form
    finally:
        await form.close()


def decode_upload(data: bytes, max_pixels: int, pool: DecodePool) -> "Image":
    """Decode a picture, upright and in RGB; InputError if the bytes are anything but one picture."""
    other = find_other_content(data)
    with tempfile.NamedTemporaryFile(prefix="frontrank-upload-") as file:
        file.write(data)
        file.flush()
        try:
            picture = pool.read(file.name, max_pixels)
        except FaultError as fault:
            raise InputError(f"the file {str(fault).replace(file.name, 'it')}; send another one") from None
    if other:
        raise InputError(f"the file also holds {other}; save it again as a plain picture, and send that")
    return picture


def find_other_content(data: bytes) -> str | None:
    """Return what some bytes can be taken for beside a picture: a page, a script, an archive; None for nothing.

    >>> find_other_content(b"GIF89a ... <script>alert(1)</script>"), find_other_content(b"GIF89a")
    ('a script', None)
    """
    text = data.lower()
    kind = next((kind for mark, kind in _OTHERS.items() if mark in text), None)
    if any(data.startswith(start) and data.startswith(b"/*", place) for start, place in _COMMENTS.items()):
        kind = kind or ("a script" if b"*/" in data else None)
    return kind or ("an archive" if zipfile.is_zipfile(BytesIO(data)) else None)
