"""Limits of image files, checked before a decoder sees them.

A small file can keep a decoder busy for minutes: by thousands of scans over the same pixels, by millions of tiny parts
that Pillow reads one by one, by a directory whose entries all name the same megabytes, or by a picture that is so thin
that it becomes huge when it is resized. All checks are linear in the size of the file, and take microseconds for
ordinary files: only a JPEG that is decoded is read whole, and there `bytes.count` and `bytes.find` do the work.
"""

import io
import re
import struct
from typing import IO

MAX_PIXELS = 178_956_970  # where Pillow itself refuses: 2 x its MAX_IMAGE_PIXELS
MAX_SIDE = 65_535  # pixels; no JPEG or GIF can have more
MAX_ASPECT = 200  # longer side / shorter side
MAX_SCANS = 100  # of a JPEG; encoders make about 10
MAX_SCAN_PIXELS = 2_000_000_000  # scans x pixels: about 8 s of work
MAX_PARTS = 50_000  # segments of a JPEG, chunks of a PNG
MAX_GIF_BLOCKS = 5_000  # before the first picture; Pillow joins them in quadratic time
MAX_PADDING = 1 << 20  # bytes between the segments of a JPEG
MAX_EXIF_BYTES = 1 << 20
MAX_EXIF_PIECES = 64  # segments; Pillow joins them in quadratic time
MAX_TILES = 65_535  # tiles or strips of a TIFF, which Pillow decodes one by one; a picture has no more rows
MAX_RLE_PIXELS, MAX_RLE_BYTES = 20_000_000, 5_000_000  # of a BMP with run lengths, which Pillow decodes in Python: 5 s
MAX_JPEG_BYTES = 1 << 30

_PADDING_END = re.compile(rb"\xff[^\x00\xff]")
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_PLAIN = (0x01, *range(0xD0, 0xD9))  # markers without a length
_TIFF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_TILE_TAGS = (273, 279, 324, 325)  # places and lengths of the strips or tiles of a TIFF
_DIB_HEADS = tuple(bytes((size, 0, 0, 0)) for size in (40, 52, 56, 64, 108, 124))
_BLOCK = 1 << 16


class FaultError(Exception):
    """Why a file cannot be read, as a clause that follows its name."""


def check_picture_size(width: int, height: int, max_pixels: int = MAX_PIXELS) -> None:
    """Raise if a picture, or a part of one, is too large or too thin."""
    size = f"{width} x {height} pixels"
    if width * height > max_pixels:
        raise FaultError(f"has {size}, more than the limit of {max_pixels:,}")
    if max(width, height) > MAX_SIDE:
        raise FaultError(f"has {size}, more on one side than the limit of {MAX_SIDE:,}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise FaultError(f"has {size}, one side more than {MAX_ASPECT} times the other")


def check_structure(file: IO[bytes], decode: bool) -> int:
    """Raise if a file would keep its decoder busy for too long; return the number of its scans, 1 if not a JPEG.

    decode: False if only the header will be read
    """
    head = file.read(8)
    scans = 1
    if head.startswith(b"\xff\xd8"):
        scans = _check_jpeg(file, decode)
    elif head.startswith(b"\x89PNG"):
        _check_png(file)
    elif head.startswith(b"GIF8"):
        _check_gif(file)
    elif head.startswith(b"BM"):
        _check_bmp(file, 14)
    elif head[:4] in _DIB_HEADS:
        _check_bmp(file, 0)
    elif head.startswith((b"II", b"MM")):
        check_directory(file)
    file.seek(0)
    return scans


def check_scans(scans: int, pixels: int) -> None:
    """Raise if a JPEG goes over its pixels too many times."""
    if scans > MAX_SCANS or scans * pixels > MAX_SCAN_PIXELS:
        raise FaultError(
            f"has {scans:,} scans of {pixels:,} pixels, more than the limit; save it again as a plain JPEG"
        )


def _check_jpeg(file: IO[bytes], decode: bool) -> int:
    if file.seek(0, io.SEEK_END) > MAX_JPEG_BYTES:
        raise FaultError(f"is a JPEG of more than {MAX_JPEG_BYTES:,} bytes")
    place, exif = _find_pixels(file)
    if exif:
        check_directory(io.BytesIO(exif))
    if not decode:
        return 1
    file.seek(place)
    data = file.read()
    if data.find(b"\xff\xd9") < 0:  # the decoder reads the zeros of a half-written file as grey
        raise FaultError("has no end marker: it was cut short")
    scans = data.count(b"\xff\xda")  # at least as many as there are: a video behind the picture may have more
    return scans if scans <= MAX_SCANS else _count_scans(data)


def _find_pixels(file: IO[bytes]) -> tuple[int, bytes | bytearray]:
    """Return where the first scan of a JPEG begins, and its EXIF data."""
    place, padding, exif, pieces = 2, 0, bytearray(), 0
    for _ in range(MAX_PARTS):
        file.seek(place)
        head = file.read(10)
        if len(head) < 4:
            return place, exif
        if head[0] != 0xFF or head[1] in (0x00, 0xFF):
            file.seek(place)
            block = file.read(_BLOCK)
            found = _PADDING_END.search(block)
            skipped = found.start() if found else max(1, len(block) - 1)
            place, padding = place + skipped, padding + skipped
            if padding > MAX_PADDING:
                raise FaultError(f"has more than {MAX_PADDING:,} bytes of padding")
        elif head[1] == 0xDA or head[1] == 0xD9:
            return place, exif
        elif head[1] in _PLAIN:
            place += 2
        else:
            length = max(2, int.from_bytes(head[2:4], "big"))
            if head[1] == 0xE1 and head[4:10] == b"Exif\0\0":
                exif += file.read(max(0, length - 8))
                pieces += 1
            if len(exif) > MAX_EXIF_BYTES or pieces > MAX_EXIF_PIECES:
                raise FaultError(f"has EXIF data of more than {MAX_EXIF_BYTES:,} bytes or {MAX_EXIF_PIECES} pieces")
            place += 2 + length
    raise FaultError(f"has more than {MAX_PARTS:,} segments")


def _count_scans(data: bytes) -> int:
    """Return the number of scans up to the end marker, or one more than the limit."""
    scans = 0
    for number, marker in enumerate(_MARKER.finditer(data)):
        code = data[marker.start() + 1]
        if code == 0xD9:
            break
        scans += code == 0xDA
        if scans > MAX_SCANS:
            break
        if number > MAX_PARTS:
            raise FaultError(f"has more than {MAX_PARTS:,} segments")
    return scans


def _check_png(file: IO[bytes]) -> None:
    size = file.seek(0, io.SEEK_END)
    if size <= 12 * MAX_PARTS:  # a chunk takes at least 12 bytes
        return
    place = 8
    for _ in range(MAX_PARTS):
        file.seek(place)
        head = file.read(8)
        if len(head) < 8 or head[4:] == b"IEND":
            return
        place += 12 + int.from_bytes(head[:4], "big")
    raise FaultError(f"has more than {MAX_PARTS:,} chunks")


def _check_gif(file: IO[bytes]) -> None:
    file.seek(10)
    flags = file.read(1)
    place = 13 + (3 << ((flags[0] & 7) + 1) if flags and flags[0] & 0x80 else 0)
    file.seek(place)
    inside = False  # an extension, whose blocks end with an empty one
    for _ in range(MAX_GIF_BLOCKS):
        byte = file.read(1)
        if inside:
            inside = byte not in (b"", b"\0")
            file.seek(byte[0] if byte else 0, io.SEEK_CUR)
        elif byte in (b"", b",", b";"):
            return
        elif byte == b"!":
            file.read(1)
            inside = True
    raise FaultError(f"has more than {MAX_GIF_BLOCKS:,} blocks before its first picture")


def _check_bmp(file: IO[bytes], place: int) -> None:
    file.seek(place)
    head = file.read(20)
    if len(head) == 20:
        _, width, height, _, compression = struct.unpack("<IiiII", head)
        if compression in (1, 2) and abs(width * height) > MAX_RLE_PIXELS:
            fault = f"has {width} x {abs(height)} pixels as run lengths, more than the limit of {MAX_RLE_PIXELS:,}"
            raise FaultError(f"{fault}; save it again as PNG")
        if compression in (1, 2) and file.seek(0, io.SEEK_END) > MAX_RLE_BYTES:
            raise FaultError(f"has more than {MAX_RLE_BYTES:,} bytes of run lengths; save it again as PNG")


def check_directory(file: IO[bytes]) -> None:
    """Raise if the values of the first directory of a TIFF, or of EXIF data, take more room than there is."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(16)
    order = "<" if head[:2] == b"II" else ">"
    try:
        big = struct.unpack_from(f"{order}H", head, 2)[0] == 43
        (place,) = struct.unpack_from(f"{order}Q", head, 8) if big else struct.unpack_from(f"{order}I", head, 4)
        if place >= size:
            return
        file.seek(place)
        count_form, entry_form = (f"{order}Q", f"{order}HHQ8x") if big else (f"{order}H", f"{order}HHI4x")
        (count,) = struct.unpack(count_form, file.read(struct.calcsize(count_form)))
        entries = file.read(min(count, MAX_PARTS + 1) * struct.calcsize(entry_form))
    except struct.error:
        return  # there is no directory; the decoder says what is wrong
    if count > MAX_PARTS:
        raise FaultError(f"has a directory of {count:,} entries, more than the limit of {MAX_PARTS:,}")
    entries = entries[: len(entries) // struct.calcsize(entry_form) * struct.calcsize(entry_form)]
    for tag, _, number in struct.iter_unpack(entry_form, entries):
        if tag in _TILE_TAGS and number > MAX_TILES:
            raise FaultError(f"has {number:,} tiles or strips, more than the limit of {MAX_TILES:,}")
    total = sum(number * _TIFF_SIZES.get(kind, 1) for _, kind, number in struct.iter_unpack(entry_form, entries))
    if total > size + len(entries):  # small values are in the entries themselves
        raise FaultError("has a directory whose entries take more room than the file has")
