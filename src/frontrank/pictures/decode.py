"""Image files as pictures.

A picture is upright, 8-bit RGB. Transparent pixels become white. Grey values of 16 bits are divided by 257. Floats from
0 to 1 are multiplied by 255, floats up to 255 stay as they are, and all other numbers are stretched to 0 to 255.
"""

import io
import math
import os
import stat
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from frontrank.checks import check_integer, import_extra, printable
from frontrank.errors import InputError, InputTypeError
from frontrank.files import PathLike
from frontrank.pictures.limits import (
    MAX_PIXELS,
    FaultError,
    check_directory,
    check_picture_size,
    check_scans,
    check_structure,
)

if TYPE_CHECKING:
    from PIL.Image import Image

_Edges = tuple[int, int, int, int]  # of a box: left, top, right, bottom

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF")
_ORIENTATION = 0x0112  # of EXIF: 1 is upright
_SIDEWAYS = ("TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
_TURNS = dict(enumerate(("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", *_SIDEWAYS), start=2))
_STARTS = {  # the start of files that are often given instead of an image
    b"<svg": "an SVG drawing",
    b"<!doctype svg": "an SVG drawing",
    b"<!doctype html": "a web page",
    b"<html": "a web page",
    b"%pdf": "a PDF document",
    b"version https://git-lfs": "a Git LFS pointer",
}
_PART = 1 << 20  # pixels that are computed with at once


def read_image(
    path: PathLike, box: Sequence[float] | None = None, at_least: int | None = None, max_pixels: int = MAX_PIXELS
) -> "Image":
    """Read an image file as an upright RGB picture; the head of this module says how other modes are converted.

    box:        (left, top, right, bottom) in pixels of the upright picture; it is rounded, and cut to the picture
    at_least:   a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, which is faster, as long as both sides have this
                many pixels; it has no effect on other formats, or together with a box
    max_pixels: a larger picture is refused before it is decoded; `pictures.limits` has the other limits

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("LA", (4, 3), (0, 0)).save(f"{folder}/clear.png")
    ...     picture = read_image(f"{folder}/clear.png", box=(1, 0, 4, 3))
    >>> picture.mode, picture.size, picture.getpixel((0, 0))
    ('RGB', (3, 3), (255, 255, 255))
    """
    if at_least is not None:
        check_integer("at_least", at_least, at_least=1)
    check_integer("max_pixels", max_pixels, at_least=1)
    with _image_errors(path), _quiet:
        return decode_image(path, None if box is None else _whole_box(box), at_least, max_pixels)


def image_fault(path: PathLike, decode: bool = True) -> str | None:
    """Return why an image cannot be read, such as "is empty (0 bytes)"; None if it can be read.

    decode: False reads the header only
    """
    try:
        with _quiet, nullcontext(decode_image(path)) if decode else _open_image(path):
            return None
    except FaultError as fault:
        return str(fault)


def box_faults(path: PathLike, boxes: Sequence[Sequence[float]]) -> list[str | None]:
    """Return why each box of an image cannot be cut out; None for those that can. Only a TIFF is decoded for it."""
    faults: list[str | None] = []
    size = None
    for box in boxes:
        try:
            size = size or _upright_size(path)
            _cut_box(_whole_box(box), size)
            faults.append(None)
        except FaultError as fault:
            faults.append(str(fault))
    return faults


def image_size(path: PathLike) -> tuple[int, int]:
    """Return width and height of the upright picture. Only a TIFF is decoded for it."""
    with _image_errors(path):
        return _upright_size(path)


def _upright_size(path: PathLike) -> tuple[int, int]:
    with _quiet, _open_image(path) as image:
        if image.format == "TIFF":  # its size may be that of the upright picture before it is decoded, or not
            image.load()
        return (image.height, image.width) if _turn(image) in _SIDEWAYS else image.size


@contextmanager
def _image_errors(path: PathLike) -> Iterator[None]:
    try:
        yield
    except FaultError as fault:
        raise InputError(f"{printable(path)} {fault}; replace it, or leave it out") from fault.__cause__


def require_pillow() -> None:
    """Raise if Pillow is not installed."""
    import_extra("PIL.Image", "train", "reading images")


class _Quiet:
    """Hide warnings while at least one thread is inside; catch_warnings of one thread would undo another's."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._caught.__exit__(None, None, None)


_quiet = _Quiet()
if hasattr(os, "register_at_fork"):  # a child must not wait for a lock that a thread of its parent held
    os.register_at_fork(after_in_child=_quiet.__init__)  # type: ignore[misc]


@contextmanager
def _open_image(path: PathLike, max_pixels: int = MAX_PIXELS, decode: bool = False) -> Iterator["Image"]:
    """Open an image and read its header; every error, also inside the with block, is a FaultError.

    decode: whether its pixels will be read
    """
    require_pillow()
    from PIL import Image, UnidentifiedImageError

    try:
        with _regular_file(path) as file:
            scans = check_structure(file, decode)
            with Image.open(file, formats=_FORMATS) as image:
                check_picture_size(image.width, image.height, max_pixels)
                check_scans(scans, image.width * image.height)
                yield image
    except FaultError:
        raise
    except UnidentifiedImageError as error:
        raise FaultError(_guess_kind(path)) from error
    except Image.DecompressionBombError as error:
        raise FaultError(f"has more pixels than Pillow's limit of {MAX_PIXELS:,}") from error
    except MemoryError as error:
        raise FaultError("does not fit into memory, or is damaged") from error
    except Exception as error:  # a damaged file makes Pillow raise almost anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FaultError(f"cannot be decoded ({reason})") from error


def _regular_file(path: PathLike) -> IO[bytes]:
    """Open a file, but no pipe or device: opening one could wait forever."""
    try:
        kind = os.stat(path)
        if stat.S_ISDIR(kind.st_mode):
            raise FaultError("is a folder, not an image")
        if not stat.S_ISREG(kind.st_mode):
            raise FaultError("is a pipe or a device, not an image")
        if kind.st_size == 0:
            raise FaultError("is empty (0 bytes)")
        return open(path, "rb")
    except FileNotFoundError as error:
        raise FaultError("does not exist") from error
    except (OSError, ValueError) as error:
        raise FaultError(f"cannot be opened ({getattr(error, 'strerror', None) or error})") from error


def _guess_kind(path: PathLike) -> str:
    with open(path, "rb") as file:
        head = file.read(1024)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    start = b"<svg" if text.startswith(b"<?xml") and b"<svg" in text else text
    usual = "a HEIC or AVIF image or a video" if head[4:8] == b"ftyp" else "no image"
    kind = next((what for known, what in _STARTS.items() if start.startswith(known)), usual)
    return f"is {kind}, not JPEG, PNG, WebP, BMP, GIF or TIFF"


def decode_image(
    path: PathLike, box: _Edges | None = None, at_least: int | None = None, max_pixels: int = MAX_PIXELS
) -> "Image":
    """Return what `read_image` returns; every fault of the file is a FaultError."""
    with _open_image(path, max_pixels, decode=True) as image:
        from PIL.Image import Transpose

        if at_least is not None and box is None:
            image.draft(None, (math.ceil(at_least),) * 2)
        image.load()
        turn = _turn(image)
        picture = _rgb(image if turn is None else image.transpose(Transpose[turn]))
        picture.info = {}  # an orientation left there would be applied again by others
        return picture if box is None else picture.crop(_cut_box(box, picture.size))


def _turn(image: "Image") -> str | None:
    try:
        check_directory(io.BytesIO(image.info.get("exif", b"").removeprefix(b"Exif\0\0")))
        return _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF data does not matter
        return None


def _rgb(image: "Image") -> "Image":
    from PIL import Image

    mode = image.mode
    if mode.startswith("I") or mode == "F":
        return Image.fromarray(_grey(np.asarray(image), sixteen="16" in mode)).convert("RGB")
    if mode == "LAB":
        from PIL import ImageCms

        profiles = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return cast("Image.Image", ImageCms.profileToProfile(image, *profiles, outputMode="RGB"))
    if mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _grey(values: np.ndarray, sixteen: bool) -> np.ndarray:
    """Convert numbers of any size to uint8, by the rules at the head of this module."""
    least, greatest = float(values.min()), float(values.max())
    if not (math.isfinite(least) and math.isfinite(greatest)):
        raise FaultError("has pixels that are not finite numbers")
    whole = values.dtype.kind != "f"

    def scale(numbers: np.ndarray) -> np.ndarray:
        if whole and (sixteen or 0 <= least <= greatest < 65536):  # older Pillows read 16 bits as 32
            return numbers / 257
        if not whole and 0 <= least <= greatest <= 1:
            return numbers * 255
        if not whole and 0 <= least <= greatest <= 255:
            return numbers
        return (numbers - least) / ((greatest - least) or 1) * 255

    row = values.reshape(-1)
    grey = np.empty(row.shape, dtype=np.uint8)
    for start in range(0, len(row), _PART):  # all pixels as float64 would take eight times what they do as grey
        part = slice(start, start + _PART)
        grey[part] = np.rint(scale(row[part].astype(np.float64))).astype(np.uint8)
    return grey.reshape(values.shape)


def _whole_box(box: Sequence[float]) -> _Edges:
    message = f"box must be four finite numbers (left, top, right, bottom), got {box!r}"
    try:
        edges = [float(edge) for edge in box]
    except (TypeError, ValueError):
        raise InputTypeError(message) from None
    if len(edges) != 4 or not all(map(math.isfinite, edges)):
        raise InputError(message)
    left, top, right, bottom = map(round, edges)
    return left, top, right, bottom


def _cut_box(box: _Edges, size: tuple[int, int]) -> _Edges:
    """Return the part of a box that is inside the picture."""
    left, top, right, bottom = max(box[0], 0), max(box[1], 0), min(box[2], size[0]), min(box[3], size[1])
    if left >= right or top >= bottom:
        raise FaultError(f"has {size[0]} x {size[1]} pixels, none of them in the box {box}")
    check_picture_size(right - left, bottom - top)
    return left, top, right, bottom
