"""Uploaded pictures: decoded once, by the rules of every other image, and kept only as what was made of them.

The bytes that were sent are never served and never kept: the page shows a copy that is written anew from the pixels.
"""

import os
import secrets
import tempfile
import threading
import zipfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from frontrank.data.image_table import shown
from frontrank.data.images import read_image
from frontrank.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

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
