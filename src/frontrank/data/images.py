"""Image files as pictures, and the check of all images of a table before work begins.

A picture is upright, 8-bit RGB. Transparent pixels become white. Grey values of 16 bits are divided by 257. Floats from
0 to 1 are multiplied by 255, floats up to 255 stay as they are, and all other numbers are stretched to 0 to 255.
"""

import csv
import io
import json
import math
import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeVar, cast

import numpy as np

from frontrank.checks import check_choice, check_integer, import_extra, printable
from frontrank.data.table import Box, ImageTable
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.files import PathLike, atomic_write
from frontrank.progress import progress

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
_Edges = tuple[int, int, int, int]  # of a box: left, top, right, bottom

MAX_PIXELS = 178_956_970  # where Pillow itself refuses: 2 x its MAX_IMAGE_PIXELS
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
_CHUNK = 32  # files a worker takes at once
_PART = 1 << 20  # pixels that are computed with at once


def read_image(
    path: PathLike, box: Sequence[float] | None = None, at_least: int | None = None, max_pixels: int = MAX_PIXELS
) -> "Image":
    """Read an image file as an upright RGB picture; the head of this module says how other modes are converted.

    box:        (left, top, right, bottom) in pixels of the upright picture; it is rounded, and cut to the picture
    at_least:   a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, which is faster, as long as both sides have this
                many pixels; it has no effect on other formats, or together with a box
    max_pixels: a larger picture is refused before it is decoded; Pillow refuses more than 178,956,970 in any case

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("LA", (4, 3), (0, 0)).save(f"{folder}/clear.png")
    ...     picture = read_image(f"{folder}/clear.png", box=(1, 0, 4, 3))
    >>> picture.mode, picture.size, picture.getpixel((0, 0))
    ('RGB', (3, 3), (255, 255, 255))
    """
    require_pillow()
    if at_least is not None:
        check_integer("at_least", at_least, at_least=1)
    check_integer("max_pixels", max_pixels, at_least=1)
    with _image_errors(path), _quiet:
        return _decode(path, None if box is None else _whole_box(box), at_least, max_pixels)


def image_fault(path: PathLike, decode: bool = True) -> str | None:
    """Return why an image cannot be read, such as "is empty (0 bytes)"; None if it can be read.

    decode: False reads the header only
    """
    try:
        with _quiet, nullcontext(_decode(path)) if decode else _open_image(path):
            return None
    except _FaultError as fault:
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
        except _FaultError as fault:
            faults.append(str(fault))
    return faults


def image_size(path: PathLike) -> tuple[int, int]:
    """Return width and height of the upright picture. Only a TIFF is decoded for it."""
    require_pillow()
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
    except _FaultError as fault:
        raise InputError(f"{printable(path)} {fault}; replace it, or leave it out") from fault.__cause__


def map_images(
    function: Callable[[str], T], files: Sequence[str], workers: int, what: str, show: bool | None = None
) -> Iterator[T]:
    """Yield function(file) for each file, in order, computed by threads (Pillow decodes outside Python's lock)."""

    def some(start: int) -> list[T]:
        return [function(file) for file in files[start : start + _CHUNK]]

    starts = range(0, len(files), _CHUNK)
    pool = ThreadPoolExecutor(max(1, workers))
    try:
        with progress(what, len(files), show) as step:
            for results in pool.map(some, starts) if workers > 1 else map(some, starts):
                step(len(results))
                yield from results
    finally:
        pool.shutdown(cancel_futures=True)  # what is left after an error or Ctrl-C


def require_pillow() -> None:
    """Raise if Pillow is not installed."""
    import_extra("PIL.Image", "train", "reading images")


class _FaultError(Exception):
    """Why a file cannot be read, as a clause that follows its name."""


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
def _open_image(path: PathLike, max_pixels: int = MAX_PIXELS) -> Iterator["Image"]:
    """Open an image and read its header; every error, also inside the with block, is a _FaultError."""
    from PIL import Image, UnidentifiedImageError

    try:
        with _regular_file(path) as file, Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise _FaultError(f"has {image.width} x {image.height} pixels, more than the limit of {max_pixels:,}")
            yield image
    except _FaultError:
        raise
    except UnidentifiedImageError as error:
        raise _FaultError(_guess_kind(path)) from error
    except Image.DecompressionBombError as error:
        raise _FaultError(f"has more pixels than Pillow's limit of {MAX_PIXELS:,}") from error
    except MemoryError as error:
        raise _FaultError("does not fit into memory, or is damaged") from error
    except Exception as error:  # a damaged file makes Pillow raise almost anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise _FaultError(f"cannot be decoded ({reason})") from error


def _regular_file(path: PathLike) -> IO[bytes]:
    """Open a file, but no pipe or device: opening one could wait forever."""
    try:
        kind = os.stat(path)
        if stat.S_ISDIR(kind.st_mode):
            raise _FaultError("is a folder, not an image")
        if not stat.S_ISREG(kind.st_mode):
            raise _FaultError("is a pipe or a device, not an image")
        if kind.st_size == 0:
            raise _FaultError("is empty (0 bytes)")
        return open(path, "rb")
    except FileNotFoundError as error:
        raise _FaultError("does not exist") from error
    except (OSError, ValueError) as error:
        raise _FaultError(f"cannot be opened ({getattr(error, 'strerror', None) or error})") from error


def _guess_kind(path: PathLike) -> str:
    with open(path, "rb") as file:
        head = file.read(1024)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    start = b"<svg" if text.startswith(b"<?xml") and b"<svg" in text else text
    usual = "a HEIC or AVIF image or a video" if head[4:8] == b"ftyp" else "no image"
    kind = next((what for known, what in _STARTS.items() if start.startswith(known)), usual)
    return f"is {kind}, not JPEG, PNG, WebP, BMP, GIF or TIFF"


def _decode(
    path: PathLike, box: _Edges | None = None, at_least: int | None = None, max_pixels: int = MAX_PIXELS
) -> "Image":
    from PIL.Image import Transpose

    with _open_image(path, max_pixels) as image:
        if at_least is not None and box is None:
            image.draft(None, (math.ceil(at_least),) * 2)
        image.load()
        if image.format in ("JPEG", "MPO") and not _jpeg_ends(path):
            raise _FaultError("has no end marker: it was cut short and filled up with zeros")
        turn = _turn(image)
        picture = _rgb(image if turn is None else image.transpose(Transpose[turn]))
        picture.info = {}  # an orientation left there would be applied again by others
        return picture if box is None else picture.crop(_cut_box(box, picture.size))


def _jpeg_ends(path: PathLike) -> bool:
    """Return whether the end marker follows the pixels; the decoder reads the zeros of a half-written file as grey."""
    with open(path, "rb") as file:
        data = file.read()
    place = 2
    while data[place : place + 2] != b"\xff\xda" and data[place : place + 1] == b"\xff":  # segments before the pixels
        fill = data[place + 1 : place + 2] == b"\xff"
        place += 1 if fill else 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return data.find(b"\xff\xd9", place) >= 0


def _turn(image: "Image") -> str | None:
    try:
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
        raise _FaultError("has pixels that are not finite numbers")
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
        raise _FaultError(f"has {size[0]} x {size[1]} pixels, none of them in the box {box}")
    return left, top, right, bottom


# The check of all images of a table.

_NAMED = 3  # broken images that an error message names
_FORMAT = "frontrank.good-images.1"

_Crop = tuple[str, Box | None]  # a file, and the part of it that is used
_Stamp = tuple[int, int]  # size and time of the last change: a file with the same stamp is the same


@dataclass(frozen=True, eq=False)
class ImageCheck:
    """The result of a check: the table without broken images, those with the reason, and a summary in one line."""

    table: ImageTable
    broken: list[tuple[str, str]]
    note: str


def check_images(
    table: ImageTable,
    how: Literal["full", "quick", "none"] = "full",
    broken: Literal["fail", "skip", "list"] = "fail",
    workers: int = 2,
    remembered: PathLike | None = None,
    show: bool | None = None,
) -> ImageCheck:
    """Check that all images of a table can be read, and that each box of its column "box" is inside its image.

    how:        "full" decodes each image, "quick" reads its header (this finds missing files, but not those cut
                short), "none" checks nothing
    broken:     "fail" raises one error that counts and names them, "skip" leaves them out, "list" does so too, even if
                no image is left
    remembered: a file that stores which images a full check found good, by path, size and time of change; the next
                check skips them. It is written even if the check is interrupted
    """
    check_choice("how", how, ("full", "quick", "none"))
    check_choice("broken", broken, ("fail", "skip", "list"))
    check_integer("workers", workers, at_least=0)
    boxes = table.boxes()
    if how == "none":
        return ImageCheck(table, [], f"{len(table):,} images, not checked")
    require_pillow()
    rows = [os.path.abspath(file) for file in table.files()]
    crops = list(zip(rows, boxes, strict=True))
    paths = dict(zip(crops, table.paths.tolist(), strict=True))  # a crop of several rows once
    files = list(dict.fromkeys(rows))
    memory = {} if remembered is None else _read_memory(Path(remembered))
    new = [file for file in files if file not in memory or memory[file] != _stamp(file)]
    cache = Path(remembered) if remembered is not None and how == "full" else None
    faults = _file_faults(new, how == "full", workers, cache, memory, show)
    crop_faults = _crop_faults(list(paths), faults, workers, show)
    broken_images = [(paths[crop], fault) for crop, fault in crop_faults.items()]
    if not broken_images:
        known = f" ({len(files) - len(new):,} remembered)" if len(new) < len(files) else ""
        return ImageCheck(table, [], f"{len(files):,} images, all of them good{known}")
    note = broken_note(broken_images, len(paths))
    if broken == "fail":
        raise InputError(f"{note}; replace them, or leave them out (broken: skip)")
    if broken == "skip" and len(broken_images) == len(paths):
        raise InputError(f"{note}; no image is left: check the root {printable(table.root)}")
    good = np.array([crop not in crop_faults for crop in crops])
    return ImageCheck(table.rows(good), broken_images, f"{note}; left out")


def _file_faults(
    files: list[str], decode: bool, workers: int, cache: Path | None, memory: Mapping[str, _Stamp], show: bool | None
) -> dict[str, str]:
    """Return why files cannot be read; the others are stored in the cache with those of the memory."""
    good, faults = dict[str, _Stamp](), dict[str, str]()

    def look(file: str) -> tuple[str, _Stamp | None, str | None]:
        return file, _stamp(file), image_fault(file, decode)  # one that changes while it is read is checked again

    try:
        for file, stamp, fault in map_images(look, files, workers, "checking images", show):
            if fault is not None:
                faults[file] = fault
            elif stamp is not None:
                good[file] = stamp
    finally:
        if cache is not None and good:
            try:
                atomic_write(cache, json.dumps({"format": _FORMAT, "good": {**memory, **good}}), sync=False)
            except InputError as error:
                warnings.warn(f"{error}; the images will be checked again next time", FrontrankWarning, stacklevel=3)
    return faults


def _crop_faults(crops: list[_Crop], faults: Mapping[str, str], workers: int, show: bool | None) -> dict[_Crop, str]:
    """Return why crops cannot be read: the fault of the file, or a box outside the picture."""
    crop_faults = {(file, box): faults[file] for file, box in crops if file in faults}
    boxes: dict[str, list[Box]] = {}
    for file, box in crops:
        if box is not None and file not in faults:
            boxes.setdefault(file, []).append(box)
    results = map_images(lambda file: box_faults(file, boxes[file]), list(boxes), workers, "checking boxes", show)
    for file, answers in zip(boxes, results, strict=True):
        crop_faults |= {
            (file, box): fault for box, fault in zip(boxes[file], answers, strict=True) if fault is not None
        }
    return crop_faults


def _stamp(file: str) -> _Stamp | None:
    try:
        status = os.stat(file)
        return status.st_size, status.st_mtime_ns
    except (OSError, ValueError):
        return None


def broken_note(broken: list[tuple[str, str]], images: int) -> str:
    """Return in one line how many images cannot be read, and the first of them."""
    named = "; ".join(f"{printable(path)} {reason}" for path, reason in broken[:_NAMED])
    more = f"; and {len(broken) - _NAMED:,} more" if len(broken) > _NAMED else ""
    return f"{len(broken):,} of {images:,} images cannot be read: {named}{more}"


def write_report(path: Path, broken: list[tuple[str, str]]) -> Path:
    """Write the broken images and their reasons as a .csv file."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["path", "reason"], *broken])
    atomic_write(path, text.getvalue().encode(errors="backslashreplace"))
    return path


def _read_memory(path: Path) -> dict[str, _Stamp]:
    if not path.exists():
        return {}
    try:
        memory = json.loads(path.read_text(encoding="utf-8"))
        if memory["format"] != _FORMAT:
            raise ValueError("another format")
        return {os.fspath(file): (int(size), int(changed)) for file, (size, changed) in memory["good"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"{printable(path)} cannot be read as a list of good images ({type(error).__name__})"
        warnings.warn(f"{reason}; all images are checked again", FrontrankWarning, stacklevel=3)
        return {}
