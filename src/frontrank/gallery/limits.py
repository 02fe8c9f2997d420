"""How much the page takes on: sizes, times, and how much is done at once."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import TypeVar

from frontrank.errors import InputError, InputTypeError, require_number

T = TypeVar("T")

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FRACTIONS = {"seconds", "body_seconds"}


@dataclass(frozen=True)
class Limits:
    """Bounds of what one server does; each is a number above 0.

    upload_bytes:  of an uploaded file; enforced while it is read
    upload_pixels: of its picture; looked up before it is decoded
    uploads:       files that are read and decoded at once
    kept_uploads:  how many of the last uploads can be asked for again by their URL
    kept_bytes:    memory for these
    picture_bytes: memory for pictures that were made small
    results:       that one search may show
    depth:         places over which the average precision of a query is computed
    hardest:       queries that are tried for the list of the hardest ones
    requests:      answered at once, of any kind
    workers:       searches, and pictures, that are computed at once
    waiting:       of each that may wait for a worker
    seconds:       for a step of the work of a request: a page and an upload have two
    body_seconds:  for the arrival of what a request sends
    """

    upload_bytes: int = 10_000_000
    upload_pixels: int = 50_000_000
    uploads: int = 4
    kept_uploads: int = 64
    kept_bytes: int = 32_000_000
    picture_bytes: int = 64_000_000
    results: int = 200
    depth: int = 1000
    hardest: int = 300
    requests: int = 128
    workers: int = 2
    waiting: int = 64
    seconds: float = 30.0
    body_seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in _FRACTIONS and (isinstance(value, bool) or not isinstance(value, int)):
                raise InputTypeError(f"limits.{field.name} must be a whole number, got {value!r}")
            require_number(f"limits.{field.name}", value, above=0)
        if self.depth < self.results:
            raise InputError(f"limits.depth must be at least limits.results, got {self.depth} and {self.results}")


class BusyError(Exception):
    """All workers are busy and as many wait as may."""


class LateError(Exception):
    """The work took longer than it may; its worker is free again when it ends."""


class Gate:
    """Some threads and a queue of bounded length before them.

    What has been begun cannot be stopped: who asked is told after `seconds`, but the place is taken until the work
    ends, so that no more than `workers` are ever at work.
    """

    def __init__(self, workers: int, waiting: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="gallery")
        self._room, self._seconds = workers + waiting, seconds
        self._inside, self._lock = 0, threading.Lock()

    @property
    def inside(self) -> int:
        """How many are at work or wait."""
        return self._inside

    async def run(self, work: Callable[[], T]) -> T:
        """What the work returns; BusyError if there is no room, LateError if it takes too long."""
        with self._lock:
            if self._inside >= self._room:
                raise BusyError
            self._inside += 1
        try:
            job = self._pool.submit(work)
        except RuntimeError:  # the server is going down
            self._leave()
            raise BusyError from None
        job.add_done_callback(self._leave)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(job), self._seconds)
        except TimeoutError:
            if job.done() and not job.cancelled() and isinstance(job.exception(), TimeoutError):
                raise
            raise LateError from None

    def close(self) -> None:
        """Drop what waits."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _leave(self, _: "Future[T] | None" = None) -> None:
        with self._lock:
            self._inside -= 1


class Turnstile:
    """A bounded number of something at once: a context manager that raises BusyError when it is full."""

    def __init__(self, room: int) -> None:
        self._room, self._inside, self._lock = room, 0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside >= self._room:
                raise BusyError
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
