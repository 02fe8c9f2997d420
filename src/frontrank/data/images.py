"""Image files as pictures, and the check of all images of a table before work begins."""

import math
import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np

from frontrank.checks import check_number
from frontrank.data.table import shown
from frontrank.errors import InputError, InputTypeError
from frontrank.progress import progress

if TYPE_CHECKING:
    from PIL.Image import Image
import csv
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frontrank.data.table import Box, ImageTable
from frontrank.errors import FrontrankWarning

# ==== Image files as pictures: whatever a file holds becomes upright 8-bit RGB, or one line that says why it cannot.


T = TypeVar("T")

MAX_PIXELS = 178_956_970  # where Pillow itself refuses: 2 x its MAX_IMAGE_PIXELS
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF")
_ORIENTATION = 0x0112
_TURNS = {  # the EXIF orientation: the turn that undoes it
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_STARTS = {  # what a file that is no image often is instead
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
    path: str | os.PathLike[str],
    box: Sequence[float] | None = None,
    at_least: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> "Image":
    """The picture of a file, upright and in RGB; see the head of this module for what becomes of other modes.

    box:        (left, top, right, bottom) in pixels of the upright picture; it is rounded, and cut to the picture
    at_least:   a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, which is faster, as long as both sides have this
                many pixels; without effect on other formats, and where there is a box
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
        check_number("at_least", at_least, at_least=1)
    check_number("max_pixels", max_pixels, at_least=1)
    try:
        with _quiet:
            return _decoded(path, None if box is None else _whole_box(box), at_least, max_pixels)
    except _FaultError as fault:
        raise InputError(f"{shown(path)} {fault}; replace it, or leave it out") from fault.__cause__


def image_fault(path: str | os.PathLike[str], decode: bool = True) -> str | None:
    """Why an image cannot be read, as in "is empty (0 bytes)"; None if it can.

    decode: False looks at the header only.
    """
    try:
        with _quiet:
            if decode:
                _decoded(path, None, None, MAX_PIXELS)
            else:
                with _opened(path, MAX_PIXELS):
                    pass
    except _FaultError as fault:
        return str(fault)
    return None


def box_faults(path: str | os.PathLike[str], boxes: Sequence[Sequence[float]]) -> list[str | None]:
    """Why each box of an image cannot be cut out; None for those that can. Only a header is read, but of a TIFF."""
    try:
        size = _upright_size(path)
    except _FaultError as fault:
        return [str(fault)] * len(boxes)
    return [_box_fault(_whole_box(box), size) for box in boxes]


def image_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Width and height of the upright picture. Only a header is read, but of a TIFF."""
    require_pillow()
    try:
        return _upright_size(path)
    except _FaultError as fault:
        raise InputError(f"{shown(path)} {fault}; replace it, or leave it out") from fault.__cause__


def _upright_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    with _quiet, _opened(path, MAX_PIXELS) as image:
        if image.format == "TIFF":  # its size may be that of the upright picture before it is decoded, or not
            image.load()
        turned = _turn(image) in ("TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
        return (image.height, image.width) if turned else image.size


def map_images(
    function: Callable[[str], T], files: Sequence[str], workers: int, what: str, show: bool | None = None
) -> Iterator[T]:
    """What the function makes of each file, in order, by some threads (Pillow decodes outside Python's lock)."""

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
    """Refuse to go on without Pillow."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise InputError("reading images needs Pillow; pip install 'frontrank[train]'") from None


class _FaultError(Exception):
    """Why a file cannot be read, as a clause that follows its name."""


class _Quiet:
    """No warnings while at least one thread is inside, where catch_warnings of one thread would undo another's."""

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
def _opened(path: str | os.PathLike[str], max_pixels: int) -> Iterator["Image"]:
    """The image of a file whose header is read; all that goes wrong, inside too, is a _FaultError."""
    from PIL import Image, UnidentifiedImageError

    try:
        with _regular_file(path) as file, Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise _FaultError(f"has {image.width} x {image.height} pixels, more than the limit of {max_pixels:,}")
            yield image
    except _FaultError:
        raise
    except UnidentifiedImageError as error:
        raise _FaultError(_what_it_is(path)) from error
    except Image.DecompressionBombError as error:
        raise _FaultError(f"has more pixels than Pillow's limit of {MAX_PIXELS:,}") from error
    except MemoryError as error:
        raise _FaultError("does not fit into memory, or is damaged") from error
    except Exception as error:  # a damaged file makes Pillow raise almost anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise _FaultError(f"cannot be decoded ({reason})") from error


def _regular_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """The open file; of a pipe or a device, opening alone could take forever."""
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
        raise _FaultError("is not there") from error
    except (OSError, ValueError) as error:
        raise _FaultError(f"cannot be opened ({getattr(error, 'strerror', None) or error})") from error


def _what_it_is(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as file:
        head = file.read(1024)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    found = next((what for start, what in _STARTS.items() if text.startswith(start)), None)
    if text.startswith(b"<?xml") and b"<svg" in text:
        found = "an SVG drawing"
    if head[4:8] == b"ftyp":
        found = "a HEIC or AVIF image or a video"
    return f"is {found or 'no image'}, not JPEG, PNG, WebP, BMP, GIF or TIFF"


def _decoded(
    path: str | os.PathLike[str], box: tuple[int, int, int, int] | None, at_least: int | None, max_pixels: int
) -> "Image":
    with _opened(path, max_pixels) as image:
        if at_least is not None and box is None:
            image.draft(None, (math.ceil(at_least),) * 2)
        image.load()
        if image.format in ("JPEG", "MPO") and not _jpeg_ends(path):
            raise _FaultError("has no end: it was cut short and filled up")
        picture = _rgb(_upright(image))
        picture.info = {}  # an orientation left there would be applied again by others
        return picture if box is None else _cropped(picture, box)


def _jpeg_ends(path: str | os.PathLike[str]) -> bool:
    """Whether the end marker follows the pixels; its decoder takes the zeros of a half-written file for grey."""
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
    except Exception:  # damaged EXIF data says nothing about the picture
        return None


def _upright(image: "Image") -> "Image":
    from PIL.Image import Transpose

    turn = _turn(image)
    return image if turn is None else image.transpose(Transpose[turn])


def _rgb(image: "Image") -> "Image":
    from PIL import Image

    mode = image.mode
    if mode.startswith("I") or mode == "F":
        return Image.fromarray(_grey(np.asarray(image), sixteen="16" in mode)).convert("RGB")
    if mode == "LAB":
        from PIL import ImageCms

        profiles = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        found = ImageCms.profileToProfile(image, *profiles, outputMode="RGB")
        if found is None:
            raise _FaultError("is in LAB colours that cannot be turned into RGB")
        return found
    if mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _grey(values: np.ndarray, sixteen: bool) -> np.ndarray:
    """Numbers of any size as uint8, by the rules at the head of this module."""
    least, greatest = float(values.min()), float(values.max())
    if not (math.isfinite(least) and math.isfinite(greatest)):
        raise _FaultError("has pixels that are no finite numbers")
    whole = values.dtype.kind != "f"

    def stretched(numbers: np.ndarray) -> np.ndarray:
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
        grey[part] = np.rint(stretched(row[part].astype(np.float64))).astype(np.uint8)
    return grey.reshape(values.shape)


def _whole_box(box: Sequence[float]) -> tuple[int, int, int, int]:
    try:
        edges = [float(edge) for edge in box]
    except (TypeError, ValueError):
        raise InputTypeError(f"box must be four numbers (left, top, right, bottom), got {box!r}") from None
    if len(edges) != 4 or not all(map(math.isfinite, edges)):
        raise InputError(f"box must be four finite numbers (left, top, right, bottom), got {box!r}")
    left, top, right, bottom = map(round, edges)
    return left, top, right, bottom


def _inside(box: tuple[int, int, int, int], size: tuple[int, int]) -> tuple[int, int, int, int]:
    return max(box[0], 0), max(box[1], 0), min(box[2], size[0]), min(box[3], size[1])


def _box_fault(box: tuple[int, int, int, int], size: tuple[int, int]) -> str | None:
    left, top, right, bottom = _inside(box, size)
    nothing = left >= right or top >= bottom
    return f"has nothing in the box {box}, being {size[0]} x {size[1]}" if nothing else None


def _cropped(picture: "Image", box: tuple[int, int, int, int]) -> "Image":
    fault = _box_fault(box, picture.size)
    if fault is not None:
        raise _FaultError(fault)
    return picture.crop(_inside(box, picture.size))


# ==== Every image of a table is looked at before the work begins, so that it does not fail in the middle.


_REPORT = ["path", "reason"]
_NAMED = 3  # broken images that an error message names
_FORMAT = "frontrank.good-images.1"

Crop = tuple[str, Box | None]  # a file, and the part of it that is looked at
Print = tuple[int, int]  # size and time of the last change: a file with the same ones is the same


@dataclass(frozen=True, eq=False)
class Checked:
    """What a check found: the table without broken images, those with the reason, and a line that says so."""

    table: ImageTable
    broken: list[tuple[str, str]]
    note: str


def check_images(
    table: ImageTable,
    how: Literal["full", "quick", "none"] = "full",
    broken: Literal["fail", "skip", "list"] = "fail",
    workers: int = 2,
    remembered: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    show: bool | None = None,
) -> Checked:
    """Look at all images of a table, and see that each box of its column "box" has something of its image in it.

    how:        "full" decodes each, "quick" reads its header (which finds missing files, but not those cut short),
                "none" trusts them
    broken:     "fail" raises one error that counts and names them, "skip" leaves them out, "list" does so too, even if
                that is all of them
    remembered: a file that keeps which images a full check found good, by path, size and time of change, so that the
                next check passes over them; it is written even if the check is broken off
    report:     a .csv file for the whole list of broken images
    """
    _require_one_of("how", how, "full", "quick", "none")
    _require_one_of("broken", broken, "fail", "skip", "list")
    check_number("workers", workers, at_least=0)
    boxes = table.boxes()
    if how == "none":
        return Checked(table, [], f"{len(table):,} images, not checked")
    require_pillow()
    _refuse_other_file(report)
    rows = [os.path.abspath(file) for file in table.files()]
    crops = list(zip(rows, boxes, strict=True))
    paths = dict(zip(crops, table.paths.tolist(), strict=True))  # a crop of several rows once
    files = list(dict.fromkeys(rows))
    memory = {} if remembered is None else _read_memory(Path(remembered))
    new = [file for file in files if file not in memory or memory[file] != _print(file)]
    faults = _faults(new, how == "full", workers, remembered, memory, show)
    of_crops = _crop_faults(list(paths), faults, workers, show)
    found = [(paths[crop], fault) for crop, fault in of_crops.items()]
    if not found:
        passed = f" ({len(files) - len(new):,} remembered)" if len(new) < len(files) else ""
        return Checked(table, [], f"{len(files):,} images, all of them good{passed}")
    said = broken_note(found, len(paths), None if report is None else write_report(Path(report), found))
    if broken == "fail":
        raise InputError(f"{said}; replace them, or leave them out (broken: skip)")
    if broken == "skip" and len(found) == len(paths):
        raise InputError(f"{said}; no image is left: check the root {shown(table.root)}")
    keep = np.array([crop not in of_crops for crop in crops])
    return Checked(table.rows(keep), found, f"{said}; left out")


def _faults(
    files: list[str],
    decode: bool,
    workers: int,
    remembered: str | os.PathLike[str] | None,
    memory: Mapping[str, Print],
    show: bool | None,
) -> dict[str, str]:
    """Why files cannot be read; those that can are remembered, if they were decoded."""
    good: dict[str, Print] = {}
    faults: dict[str, str] = {}

    def look(file: str) -> tuple[str, Print | None, str | None]:
        before = _print(file)  # a file that changes while it is read is looked at again next time
        return file, before, image_fault(file, decode)

    try:
        for file, before, fault in map_images(look, files, workers, "checking images", show):
            if fault is not None:
                faults[file] = fault
            elif before is not None:
                good[file] = before
    finally:
        if remembered is not None and decode and good:
            _write_memory(Path(remembered), {**memory, **good})
    return faults


def _crop_faults(crops: list[Crop], faults: Mapping[str, str], workers: int, show: bool | None) -> dict[Crop, str]:
    """Why crops cannot be read: the fault of the file, or that the box has nothing of the picture in it."""
    found = {(file, box): faults[file] for file, box in crops if file in faults}
    boxes: dict[str, list[Box]] = {}
    for file, box in crops:
        if box is not None and file not in faults:
            boxes.setdefault(file, []).append(box)

    def look(file: str) -> list[str | None]:
        return box_faults(file, boxes[file])

    if boxes:
        looks = map_images(look, list(boxes), workers, "checking boxes", show)
        for (file, of_file), said in zip(boxes.items(), looks, strict=True):
            found |= {(file, box): fault for box, fault in zip(of_file, said, strict=True) if fault is not None}
    return found


def _require_one_of(name: str, value: str, *known: str) -> None:
    if value not in known:
        raise InputError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")


def _print(file: str) -> Print | None:
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns


def broken_note(found: list[tuple[str, str]], images: int, report: Path | None = None) -> str:
    """How many of the images cannot be read, the first of them, and where all are listed, in one line."""
    named = "; ".join(f"{shown(path)} {reason}" for path, reason in found[:_NAMED])
    more = f"; and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    where = "" if report is None else f"; all are listed in {shown(report)}"
    return f"{len(found):,} of {images:,} images cannot be read: {named}{more}{where}"


def _refuse_other_file(report: str | os.PathLike[str] | None) -> None:
    """Only a report is replaced by a report."""
    if report is None or not os.path.exists(report):
        return
    try:
        with open(report, encoding="utf-8", errors="replace") as file:
            ours = file.readline().strip() == ",".join(_REPORT)
    except OSError:
        ours = False
    if not ours:
        raise InputError(f"{shown(report)} exists already and is no list of broken images; give another path")


def write_report(path: Path, found: list[tuple[str, str]]) -> Path:
    """Write the broken images and their reasons as a .csv file."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            csv.writer(file).writerows([_REPORT, *found])
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise InputError(f"{shown(path)} cannot be written ({error.strerror}); give another path") from error
    return path


def _read_memory(path: Path) -> dict[str, Print]:
    if not path.exists():
        return {}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["format"] != _FORMAT:
            raise ValueError("another format")
        return {os.fspath(file): (int(size), int(changed)) for file, (size, changed) in kept["good"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        _warn(
            f"{shown(path)} cannot be read as a list of good images ({type(error).__name__}); all are checked again", 4
        )
        return {}


def _write_memory(path: Path, good: Mapping[str, Print]) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps({"format": _FORMAT, "good": good}), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        _warn(f"{shown(path)} cannot be written ({error.strerror}); the images will be checked again next time", 5)


def _warn(message: str, level: int) -> None:
    """A warning at the line of the user's call, so many calls up."""
    warnings.warn(message, FrontrankWarning, stacklevel=level)
