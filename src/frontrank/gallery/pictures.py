"""Pictures of the page: those of indexed items, and uploaded ones."""

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.data.images import read_image
from frontrank.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image
import secrets
import tempfile
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from frontrank.data.table import shown

if TYPE_CHECKING:
    from PIL.Image import Image


# ==== Pictures of indexed items: found only below the roots, decoded, made small, and never served as the file itself.


SIZES = {"small": 256, "large": 1024}  # pixels of the longer side
_QUALITY = 90
_HANDLES = Path("/proc/self/fd")  # where a file that is open can be read again, whatever its name is by now
_REFUSED = "the picture of this item is not there, or not below a folder that may be shown"


@dataclass(frozen=True)
class Encoded:
    """A picture as it is sent."""

    data: bytes
    kind: str


def find_file(path: str, roots: Sequence[Path]) -> tuple[Path, Path]:
    """The root and the file of an item: its path, from a root if it is relative, with every link followed.

    InputError if it is not there, no plain file, or beyond all roots, be it by "..", by an absolute path or by a link;
    the message says no more than that, so that it tells nobody which files there are.
    """
    if path and "\0" not in path:
        for root in roots:
            try:
                top = root.resolve(strict=True)
                file = (top / path).resolve(strict=True)
            except (OSError, ValueError, RuntimeError):  # not there, a name too long, links in a circle
                continue
            if file.is_relative_to(top) and file.is_file():
                return top, file
    raise InputError(_REFUSED)


@contextmanager
def opened(path: str, roots: Sequence[Path]) -> Iterator[tuple[Path, Path, os.stat_result]]:
    """The file of an item as `find_file` finds it, held open: (its path, where to read it, what is known of it).

    Between being found and being opened, it or a folder above it could become a link to elsewhere: each is opened by
    its own name from the one before, and a link there is not followed.
    """
    top, file = find_file(path, roots)
    handles: list[int] = []
    try:
        handles.append(os.open(top, os.O_RDONLY | os.O_DIRECTORY))
        names = file.relative_to(top).parts
        for i, name in enumerate(names):
            kind = os.O_DIRECTORY if i + 1 < len(names) else os.O_NONBLOCK  # of a pipe, opening alone could wait
            handles.append(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | kind, dir_fd=handles[-1]))
        known = os.fstat(handles[-1])
        if not stat.S_ISREG(known.st_mode):
            raise InputError(_REFUSED)
        yield file, _HANDLES / str(handles[-1]) if _HANDLES.is_dir() else file, known
    except OSError:
        raise InputError(_REFUSED) from None
    finally:
        for handle in handles:
            os.close(handle)


def encoded(picture: "Image", side: int) -> Encoded:
    """The picture written anew, at most so many pixels wide and high; as JPEG, which takes a twentieth of WebP's time.

    >>> from PIL import Image
    >>> small = encoded(Image.new("RGB", (600, 300)), 256)
    >>> small.kind, Image.open(BytesIO(small.data)).size
    ('image/jpeg', (256, 128))
    """
    from PIL import Image

    if max(picture.size) > side:
        scale = side / max(picture.size)
        size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    file = BytesIO()
    picture.save(file, "jpeg", quality=_QUALITY, subsampling=0)  # else edges of plain colours would blur
    return Encoded(file.getvalue(), "image/jpeg")


class Pictures:
    """Small pictures of files, with those that were asked for last in a bounded memory."""

    def __init__(self, most_bytes: int, max_pixels: int) -> None:
        self._cache, self._max_pixels = _Cache(most_bytes), max_pixels

    @property
    def held_bytes(self) -> int:
        """How much memory they take."""
        return self._cache.held

    def picture(self, path: str, roots: Sequence[Path], size: str) -> Encoded:
        """The picture of an item's path in one of the SIZES; InputError if it cannot be shown."""
        with opened(path, roots) as (file, source, known):
            key = (str(file), known.st_ino, known.st_mtime_ns, known.st_size, size)
            return self._cache.get(key, lambda: encoded(self._read(source, SIZES[size]), SIZES[size]))

    def whole(self, path: str, roots: Sequence[Path]) -> "Image":
        """The picture of an item's path as a model gets it."""
        with opened(path, roots) as (_, source, _):
            return self._read(source, None)

    def _read(self, file: Path, at_least: int | None) -> "Image":
        try:
            return read_image(file, at_least=at_least, max_pixels=self._max_pixels)
        except InputError:  # its message names the file
            raise InputError("the picture of this item cannot be read as an image") from None


class _Cache:
    """Values by key, the longest unused dropped when they get too many bytes."""

    def __init__(self, most: int) -> None:
        self._most, self.held = most, 0
        self._kept, self._lock = OrderedDict[Hashable, Encoded](), threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Encoded]) -> Encoded:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = make()  # two threads may make the same: better than that all wait for one
        with self._lock:
            if key not in self._kept and len(value.data) <= self._most:
                self._kept[key] = value
                self.held += len(value.data)
            while self.held > self._most:
                self.held -= len(self._kept.popitem(last=False)[1].data)
        return value


# ==== Uploaded pictures: decoded once, by the rules of every other image, and kept only as what was made of them.


PREVIEW = 768  # pixels of the longer side of the copy that is shown
_ADVICE = "; replace it, or leave it out"
# Long enough not to come up by chance among pixels; four bytes, as a ZIP begins with, would be
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

# Where a picture's sizes stand, /* there makes it the beginning of a script
_COMMENTS = {b"GIF87a": 6, b"GIF89a": 6, b"BM": 2, b"RIFF": 4, b"\xff\xd8\xff": 4}


@dataclass(frozen=True, eq=False)
class Upload:
    """What is kept of an uploaded picture.

    vectors: its embedding by the name of each index that has a model
    preview: a small copy of it, of the media type `kind`
    """

    preview: bytes
    kind: str
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def memory(self) -> int:
        """The bytes that it takes."""
        return len(self.preview) + sum(vector.nbytes for vector in self.vectors.values())


@asynccontextmanager
async def sent_form(request: Request, remedy: str) -> AsyncIterator[FormData]:
    """The form that a request sends, of one file at most; 400 and the remedy for what is none."""
    try:
        form = await request.form(max_files=1, max_fields=4, max_part_size=8192)
    except ClientDisconnect:
        raise
    except HTTPException as error:
        if error.status_code != 400:  # too large, or too slow
            raise
        raise HTTPException(400, f"the form cannot be read ({error.detail.rstrip('.')}); {remedy}") from None
    except Exception:  # its parsers raise what they like
        raise HTTPException(400, f"the form cannot be read; {remedy}") from None
    try:
        yield form
    finally:
        await form.close()


def decoded(data: bytes, max_pixels: int) -> "Image":
    """The picture in some bytes, upright and in RGB; InputError if they are anything but one picture.

    >>> decoded(b"<svg xmlns='http://www.w3.org/2000/svg'/>", 1000)
    Traceback (most recent call last):
    frontrank.errors.InputError: the file is an SVG drawing, not JPEG, PNG, WebP, BMP, GIF or TIFF; send another one
    """
    other = also_holds(data)
    handle, path = tempfile.mkstemp(prefix="frontrank-upload-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        picture = read_image(path, max_pixels=max_pixels)
    except InputError as error:
        fault = str(error).removeprefix(f"{shown(path)} ").removesuffix(_ADVICE).replace(path, "it")
        raise InputError(f"the file {fault}; send another one") from None
    finally:
        os.unlink(path)
    if other:
        raise InputError(f"the file also holds {other}; save it anew as a plain picture, and send that")
    return picture


def also_holds(data: bytes) -> str | None:
    """What some bytes can be taken for beside a picture: a page, a script, an archive; None for nothing.

    >>> also_holds(b"GIF89a ... <script>alert(1)</script>"), also_holds(b"GIF89a")
    ('a script', None)
    """
    text = data.lower()
    found = next((what for mark, what in _OTHERS.items() if mark in text), None)
    if any(data.startswith(start) and data.startswith(b"/*", place) for start, place in _COMMENTS.items()):
        found = found or ("a script" if b"*/" in data else None)
    return found or ("an archive" if zipfile.is_zipfile(BytesIO(data)) else None)


class Uploads:
    """The last uploads, each under a name that cannot be guessed; the longest unused goes first.

    most, most_bytes: how many are kept, and how much memory they may take; the last one is kept in any case
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes, self.held = most, most_bytes, 0
        self._kept, self._lock = OrderedDict[str, Upload](), threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, upload: Upload) -> str:
        """Its name."""
        name = secrets.token_urlsafe(12)
        with self._lock:
            self._kept[name] = upload
            self.held += upload.memory
            while len(self._kept) > 1 and (len(self._kept) > self._most or self.held > self._most_bytes):
                self.held -= self._kept.popitem(last=False)[1].memory
        return name

    def get(self, name: str) -> Upload | None:
        """The upload, None if it was never there or is kept no longer."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
            return self._kept.get(name)
