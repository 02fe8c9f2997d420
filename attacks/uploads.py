"""Hostile uploads to the page, while somebody searches: each is answered in time, and plain searches stay quick."""

import argparse
import http.client
import io
import random
import re
import signal
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from PIL import Image

from attacks.sample import Row, Sample, start_command

SLOWEST_UPLOAD, SLOWEST_SEARCH = 30.0, 1.0  # seconds
_FORMATS = ("jpeg", "png", "webp", "gif", "tiff", "bmp")


@contextmanager
def serve(index: str, sample: Sample, *more: str) -> Iterator[tuple[str, int]]:
    """Serve an index as a user would; gives host and port."""
    output = sample.work / "serve.log"
    process = start_command(["serve", index, "--port", "0", "--model", str(sample.model), *more], output)
    try:
        until = time.monotonic() + 120
        while not (found := re.search(r"http://([\d.]+):(\d+)", output.read_text(errors="replace"))):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"frontrank serve did not start: {output.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        address = found[1], int(found[2])
        while ask(address, "GET", "/api/v1/health")[0] != 200:
            time.sleep(0.1)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except Exception:
            process.kill()
            process.wait()


def ask(
    address: tuple[str, int], method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, float, bytes]:
    """Return status, seconds and body of an answer; status 0 if there is none."""
    start = time.monotonic()
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, time.monotonic() - start, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, time.monotonic() - start, b""
    finally:
        connection.close()


def send_picture(address: tuple[str, int], data: bytes, name: bytes = b"a.jpg") -> tuple[int, float, bytes]:
    """Send a file as the page's form does."""
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="' + name + b'"\r\n\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    return ask(address, "POST", "/api/v1/search", head + data + b"\r\n--x--\r\n", headers)


class Searcher:
    """Somebody who searches all the time; the seconds and the status of each search."""

    def __init__(self, address: tuple[str, int], path: str, pause: float = 0.05) -> None:
        self.seconds: list[float] = []
        self.statuses: Counter[int] = Counter()
        self._address, self._path, self._pause, self._end = address, path, pause, threading.Event()
        self._thread = threading.Thread(target=self._search, daemon=True)

    def _search(self) -> None:
        while not self._end.wait(self._pause):
            status, seconds, _ = ask(self._address, "GET", self._path)
            self.statuses[status] += 1
            self.seconds.append(seconds)

    def __enter__(self) -> "Searcher":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()


def attack(sample: Sample, options: argparse.Namespace) -> list[Row]:
    """Send hostile files, four at a time; count answers that are late or are errors of the server."""
    rng = random.Random(options.seed)
    cases = [make_case(number, rng) for number in range(options.uploads)]
    statuses: Counter[int] = Counter()
    late, slowest, lock = [], 0.0, threading.Lock()
    with serve(str(sample.index), sample) as address:
        search = "/api/v1/search?item=photos/class0/0.png"
        ask(address, "GET", search)
        with Searcher(address, search) as searcher:

            def send(some: list[tuple[str, bytes]]) -> None:
                nonlocal slowest
                for name, data in some:
                    status, seconds, _ = send_picture(address, data)
                    with lock:
                        statuses[status] += 1
                        slowest = max(slowest, seconds)
                        if seconds > SLOWEST_UPLOAD or status == 0 or status >= 500:
                            late.append(f"{name}: {status} after {seconds:.1f} s")

            threads = [threading.Thread(target=send, args=(cases[first::4],)) for first in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        usable = send_picture(address, _encode("png"))[0] == 200
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    seconds = sorted(searcher.seconds)
    slow = sum(one > SLOWEST_SEARCH for one in seconds) + sum(
        count for status, count in searcher.statuses.items() if status != 200
    )
    median, worst = (seconds[len(seconds) // 2], seconds[-1]) if seconds else (0.0, 0.0)
    return [
        ("hostile uploads", len(cases), len(late), f"{answers}; slowest {slowest:.1f} s {'; '.join(late[:3])}"),
        ("searches meanwhile", len(seconds), slow, f"median {1000 * median:.0f} ms, slowest {worst:.2f} s"),
        ("a good upload afterwards", 1, int(not usable), ""),
    ]


def _encode(kind: str, side: int = 40, **settings: object) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((side, side), 80).convert("RGB").save(file, kind, **settings)
    return file.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, *chunks: bytes, depth: int = 8, colour: int = 2) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + b"".join(chunks) + _chunk(b"IEND", b"")


def _jpeg_of_size(width: int, height: int, progressive: bool = True) -> bytes:
    data = bytearray(_encode("jpeg", progressive=progressive))
    place = data.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def _bomb(size: int) -> bytes:
    return zlib.compress(bytes(size), 9)


def _tiff_circle() -> bytes:
    entry = struct.pack("<HHII", 330, 4, 1, 8)  # a directory that is its own child
    return b"II*\0" + struct.pack("<IH", 8, 1) + entry + struct.pack("<I", 8)


def _gif_frames(count: int) -> bytes:
    frames = [Image.new("P", (30, 30), number % 256) for number in range(count)]
    file = io.BytesIO()
    frames[0].save(file, "gif", save_all=True, append_images=frames[1:], duration=1)
    return file.getvalue()


BOMBS: dict[str, Callable[[], bytes]] = {
    "PNG, 13,000 x 13,000 from 500 KB": lambda: _png(13_000, 13_000, _chunk(b"IDAT", _bomb(13_000 * 39_001))),
    "PNG, 6,900 x 6,900": lambda: _png(6_900, 6_900, _chunk(b"IDAT", _bomb(6_900 * 20_701))),
    "PNG, 16 bits": lambda: _png(5_000, 5_000, _chunk(b"IDAT", _bomb(5_000 * 40_001)), depth=16, colour=6),
    "PNG with a profile of 300 MB": lambda: _png(9, 9, _chunk(b"iCCP", b"a\0\0" + _bomb(300_000_000))),
    "PNG with 3,000 compressed texts": lambda: _png(9, 9, _chunk(b"zTXt", b"a\0\0" + _bomb(1_000_000)) * 3_000),
    "PNG with one byte a chunk": lambda: _png(40, 40, *[_chunk(b"IDAT", b"x")] * 49_000),
    "JPEG that says 65,500 x 2,700": lambda: _jpeg_of_size(65_500, 2_700),
    "JPEG that says 7,000 x 7,000": lambda: _jpeg_of_size(7_000, 7_000),
    "JPEG that says 0 x 0": lambda: _jpeg_of_size(0, 0, False),
    "JPEG of markers alone": lambda: b"\xff\xd8" + b"\xff\xd0" * 4_000_000,
    "JPEG with 99 scans of 20 MP": lambda: _many_scans(99, 4_500),
    "JPEG with a million bytes of EXIF": lambda: _encode("jpeg", exif=b"Exif\0\0MM\0*\0\0\0\x08" + bytes(60_000)),
    "GIF of 2,000 frames": lambda: _gif_frames(2_000),
    "GIF of 4,999 comments": lambda: _encode("gif")[:13] + b"!\xfe\x01a\0" * 4_999,
    "TIFF in a circle": _tiff_circle,
    "BMP of height -2^31": lambda: _encode("bmp")[:22] + struct.pack("<i", -(2**31)) + _encode("bmp")[26:],
    "WebP that says 16,384 x 16,384": lambda: b"RIFF\x1e\0\0\0WEBPVP8L\x11\0\0\0\x2f" + b"\xff" * 16,
    "nothing": lambda: b"",
    "9 MB of zeros": lambda: bytes(9_000_000),
    "9 MB of <": lambda: b"<" * 9_000_000,
}


def _many_scans(count: int, side: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (side, side), 90).save(file, "jpeg", progressive=True)
    data = file.getvalue()
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * count + data[-2:]


def make_case(number: int, rng: random.Random) -> tuple[str, bytes]:
    """Return one of the bombs; after these, a damaged file of some format."""
    if number < len(BOMBS):
        name = list(BOMBS)[number]
        return name, BOMBS[name]()
    kind = _FORMATS[number % len(_FORMATS)]
    data = bytearray(_encode(kind, rng.choice((1, 17, 300))))
    way = rng.choice(("cut", "flip", "numbers", "repeat", "glue"))
    if way == "cut":
        del data[rng.randrange(4, len(data)) :]
    elif way == "flip":
        for _ in range(rng.choice((1, 10, 100))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif way == "numbers":  # sizes and offsets of the header become extreme
        place = rng.randrange(4, min(100, len(data) - 4))
        data[place : place + 4] = rng.choice((b"\xff" * 4, b"\x7f" + b"\xff" * 3, bytes(4), b"\0\0\xff\xff"))
    elif way == "repeat":
        start = rng.randrange(len(data) // 2)
        data[start:start] = data[start : start + 200] * 5_000
    else:
        data += rng.choice((b"<script>alert(1)</script>", b"PK\x03\x04" * 100, bytes(1_000_000)))
    return f"{kind}, {way}", bytes(data)
