"""Processes that draw pictures, as many as there are cores.

They are forked, as those of `frontrank.data.loading`: they start at once, and call nothing that has threads.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from frontrank.errors import InputError
from frontrank.progress import progress

Task = tuple[Callable[..., Any], tuple[Any, ...], float]  # a function, its arguments and how much work it is

_MOST = 61  # more are not possible on Windows


@contextmanager
def workers() -> Iterator[ProcessPoolExecutor]:
    """A process for each core; they end with this one, however it ends."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    pool = ProcessPoolExecutor(min(cores, _MOST), context, _start_worker, (os.getpid(),))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*fork", DeprecationWarning)
            pool.submit(int).result()  # forks all of them, before a bar draws itself in a thread
        yield pool
    except BrokenProcessPool:
        raise InputError("a process that draws pictures was killed; see to the memory, and run this again") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def run_all(pool: ProcessPoolExecutor, tasks: Sequence[Task], what: str, show: bool | None = None) -> list[Any]:
    """The results of the tasks, in their order; the first that fails ends it."""
    futures: dict[Future[Any], float] = {}
    with progress(what, sum(amount for *_, amount in tasks), show) as advance:
        try:
            futures = {pool.submit(function, *arguments): amount for function, arguments, amount in tasks}
            for future in as_completed(futures):
                future.result()
                advance(futures[future])
        finally:
            for future in futures:
                future.cancel()
    return [future.result() for future in futures]


def _start_worker(parent: int) -> None:
    """Ctrl-C is for the parent alone; and should that be killed, its workers go too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
