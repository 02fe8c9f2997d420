"""A lock between processes on a folder, which leaves no file and goes with the process that holds it."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(folder: Path, patience: float = math.inf, give_up: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Within, no other process (or thread) has the lock of the folder, which is there; gives whether it could be had.

    patience: seconds to wait for it at most
    give_up:  asked while waiting

    Processes that were forked within hold it too. Where there are no such locks (on Windows, in some file systems) all
    of them have it.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    lock = os.open(folder, os.O_RDONLY)
    until = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                had = True
            except BlockingIOError:
                had = False
            except OSError:
                had = True
            if had or time.monotonic() >= until or give_up():
                break
            time.sleep(0.05)
        yield had
    finally:
        os.close(lock)
