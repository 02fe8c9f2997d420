"""Processes that decode files from outside, and that can be ended: a thread that decodes cannot.

Each process has a bound on memory, and for each file one on time; it is nicer than its parent, so that other work goes
before. `python -m frontrank.pictures.processes` is such a process: it reads a request per line, and answers with the
raw pixels. It imports neither torch nor the web framework.
"""

import json
import math
import os
import struct
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from frontrank.files import PathLike
from frontrank.pictures.decode import decode_image
from frontrank.pictures.limits import FaultError

if TYPE_CHECKING:
    from PIL.Image import Image

PROGRAM = ("-m", "frontrank.pictures.processes")
_MEMORY = 2 << 30  # bytes of address space beyond what an idle process has
_NICE = 10
_START_SECONDS = 20.0  # for the start of a process, which does not count as time for a file
_READY = b"ready"
_HEAD = struct.Struct("<II?")  # width and height and True, or the length of a fault, 0 and False


class DecodePool:
    """Up to so many processes that decode one file at a time; they start when they are needed.

    seconds: of processor time for one file; twice as long by the clock
    """

    def __init__(self, processes: int, seconds: float) -> None:
        self._seconds, self._room = seconds, threading.Semaphore(processes)
        self._idle: list[subprocess.Popen[bytes]] = []
        self._closed = False
        weakref.finalize(self, _end_all, self._idle)  # for a user who forgets to close

    def read(self, path: PathLike, max_pixels: int, at_least: int | None = None) -> "Image":
        """Return the picture as `read_image` does; FaultError if it cannot be decoded, or not within the bounds."""
        with self._room:
            process = self._idle.pop() if self._idle else _start_process()
            clock = threading.Timer(2 * self._seconds, process.kill)
            clock.start()
            try:
                picture = _ask(process, [os.fspath(path), max_pixels, at_least, self._seconds])
            except FaultError:
                self._put_back(process)
                raise
            except (OSError, EOFError):
                _end_process(process)
                raise FaultError(
                    f"cannot be decoded within {self._seconds:g} seconds and {_MEMORY >> 20:,} MB"
                ) from None
            except BaseException:
                _end_process(process)
                raise
            finally:
                clock.cancel()
            self._put_back(process)
            return picture

    def close(self) -> None:
        """End the processes."""
        self._closed = True
        _end_all(self._idle)

    def _put_back(self, process: "subprocess.Popen[bytes]") -> None:
        if self._closed:
            _end_process(process)
        else:
            self._idle.append(process)


def _start_process() -> "subprocess.Popen[bytes]":
    command = [sys.executable, *PROGRAM]
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # threads of numpy would take address space
    path = os.pathsep.join(folder for folder in sys.path if folder)
    environment = {**os.environ, **quiet, "PYTHONPATH": path}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment)
    clock = threading.Timer(_START_SECONDS, process.kill)
    clock.start()
    is_ready = process.stdout is not None and process.stdout.read(len(_READY)) == _READY
    clock.cancel()
    if not is_ready:
        _end_process(process)
        raise FaultError("cannot be decoded, as no process could be started for it")
    return process


def _end_all(processes: "list[subprocess.Popen[bytes]]") -> None:
    while processes:
        _end_process(processes.pop())


def _end_process(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _ask(process: "subprocess.Popen[bytes]", request: list[object]) -> "Image":
    from PIL import Image

    if process.stdin is None or process.stdout is None:
        raise EOFError
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    width, height, is_good = _HEAD.unpack(_read(process.stdout, _HEAD.size))
    if not is_good:
        raise FaultError(_read(process.stdout, width).decode())
    return Image.frombytes("RGB", (width, height), _read(process.stdout, 3 * width * height))


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


# The process itself


def main() -> None:
    """Answer requests until there are no more."""
    _limit_memory()
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        path, max_pixels, at_least, seconds = json.loads(line)
        _limit_time(seconds)
        try:
            picture = decode_image(path, None, at_least, max_pixels)
            head, body = _HEAD.pack(*picture.size, True), picture.tobytes()
        except (FaultError, MemoryError) as fault:
            body = (str(fault) or "does not fit into memory").encode(errors="replace")
            head = _HEAD.pack(len(body), 0, False)
        sys.stdout.buffer.write(head)
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
        del body


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    import PIL.Image

    PIL.Image.init()  # all formats, before memory is bounded
    os.nice(_NICE)
    with suppress(OSError, ValueError):
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY, now + _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_time(seconds: float) -> None:
    try:
        import resource
    except ImportError:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = math.ceil(used.ru_utime + used.ru_stime + seconds)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (end if hard < 0 else min(end, hard), hard))


if __name__ == "__main__":
    main()
