"""Progress bars for long work: drawn by rich if it is installed, else as a plain line; only on a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_PATIENCE = 1.0  # seconds of work before a bar appears


@contextmanager
def progress(what: str, total: float, show: bool | None = None) -> Iterator[Callable[..., None]]:
    """Draw a progress bar on stderr inside the with block; call the yielded function with each amount of work done.

    show: None draws it only on a terminal

    The function takes a note, too, such as "loss 0.4", which stands beside the bar until there is another.
    """
    if not (sys.stderr.isatty() if show is None else show) or total <= 0:
        yield lambda amount, note="": None
        return
    bar = _Bar(what, total)
    try:
        yield bar.advance
    finally:
        bar.stop()


class _Bar:
    def __init__(self, what: str, total: float) -> None:
        self._what, self._total, self._done = what, total, 0.0
        self._started = self._drawn = time.monotonic()
        self._rich: Any = None
        self._plain = False
        self._note, self._width = "", 0

    def advance(self, amount: float, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        now = time.monotonic()
        if self._rich is not None:
            self._rich.update(0, completed=self._done, note=self._note)
        elif self._plain and now - self._drawn > 0.2:
            self._drawn = now
            text = f"{self._what} {self._done / self._total:4.0%}  {self._note}"
            print(f"\r{text:{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = max(self._width, len(text))
        elif not self._plain and now - self._started > _PATIENCE:
            self._start()

    def _start(self) -> None:
        if sys.stderr.isatty():
            self._start_rich()
        self._plain = self._rich is None

    def _start_rich(self) -> None:
        with suppress(ImportError):
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = TextColumn("{task.description} {task.percentage:3.0f}%"), BarColumn()
            times = TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}")
            self._rich = Progress(*columns, *times, console=Console(stderr=True), transient=True)
            self._rich.start()
            self._rich.add_task(self._what, total=self._total, completed=self._done, note=self._note)

    def stop(self) -> None:
        if self._rich is not None:
            self._rich.stop()
        elif self._plain:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
