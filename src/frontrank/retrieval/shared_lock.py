"""A lock that many may hold who only look, or one who changes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class SharedLock:
    """Many threads in `shared`, or one `alone`; one that waits to be alone goes before those that come later."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._free = threading.Condition(self._counting)
        self._looking = 0
        self._waiting = 0
        self._changing = False
        self._shared = _Shared(self)

    def shared(self) -> "_Shared":
        """Within, nobody changes anything. Not to be asked for twice by one thread."""
        return self._shared

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within, nobody else is in here."""
        with self._free:
            self._waiting += 1
            try:
                while self._changing or self._looking:
                    self._free.wait()
            finally:
                self._waiting -= 1
                self._free.notify_all()
            self._changing = True
        try:
            yield
        finally:
            with self._free:
                self._changing = False
                self._free.notify_all()


class _Shared:
    """What `shared` gives: one for all threads, and no generator, which would cost a search several microseconds."""

    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        lock = self._lock
        with lock._counting:
            while lock._changing or lock._waiting:
                lock._free.wait()
            lock._looking += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lock = self._lock
        with lock._counting:
            lock._looking -= 1
            if lock._waiting and not lock._looking:
                lock._free.notify_all()
