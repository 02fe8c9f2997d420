"""The log of a run: a file of JSON lines, TensorBoard events, and short lines on stderr if that is not a terminal."""

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.files import atomic_write, unwritable

_OWN = ("step", "epoch", "time", "not_finite")


class Log:
    """Log that writes `log.jsonl`, and `tensorboard/` beside it, in the folder of a run.

    A line is an object of step, epoch, time (seconds since 1970) and values. JSON has no NaN and no infinity: such a
    value is null, and named in the entry `not_finite`. Every line is written at once. Write the lines of a step before
    its checkpoint: then a run that goes on from the checkpoint has every line once.

    resume_step: go on with the log of the folder after this step; lines of later steps are dropped. 0 begins anew, also
        without lines from before the first step. None refuses a folder that has a log.
    enabled: False, in all processes but the first, writes nothing

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Log(folder, tensorboard=False) as log:
    ...     log.write(10, {"loss": 0.5})
    >>> with Log(folder, tensorboard=False, resume_step=10) as log:
    ...     log.write(20, {"loss": math.inf}, epoch=2)
    >>> [(line["step"], line["loss"]) for line in read_log(Path(folder) / "log.jsonl")]
    [(10, 0.5), (20, inf)]
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        tensorboard: bool = True,
        resume_step: int | None = None,
        enabled: bool = True,
    ) -> None:
        self._file: TextIO | None = None
        self._events: Any = None
        if not enabled:
            return
        self._path = Path(folder) / "log.jsonl"
        if resume_step is None and self._path.exists():
            raise InputError(f"{self._path} exists already; resume that run, or choose another folder")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if resume_step is not None:
                _drop_after(self._path, resume_step or -1)
            self._file = self._path.open("a", encoding="utf-8")
            if tensorboard:
                self._events = _open_events(self._path.with_name("tensorboard"), resume_step)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def write(self, step: int, values: Mapping[str, object], epoch: float | None = None) -> None:
        """Add a line of values by name: numbers (also tensors of one item) and text."""
        if self._file is None:
            return
        if reserved := [name for name in values if name in _OWN]:
            raise InputError(f"values must not be called {reserved[0]}, which every line has already; rename it")
        plain = {name: _plain(name, value) for name, value in values.items()}
        try:
            self._file.write(_line(step, epoch, plain))
            self._file.flush()
            if self._events is not None:
                for name, value in plain.items():
                    if not isinstance(value, str):
                        self._events.add_scalar(name, value, step)
                self._events.flush()
        except OSError as error:
            raise unwritable(self._path, error) from error

    def close(self) -> None:
        for output in (self._file, self._events):
            if output is not None:
                with suppress(OSError):  # every line was flushed: `write` has reported what fails here
                    output.close()
        self._file = self._events = None

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the lines of a `log.jsonl`. A last one that was cut off is left out; any other damage raises."""
    entries = []
    for number, (_, entry) in enumerate(_lines(Path(path)), 1):
        if entry is None:
            raise InputError(f"{path} line {number} is damaged; delete that line")
        entries.append(entry)
    return entries


def print_line(step: int, steps: int, epoch: float | None, values: Mapping[str, object]) -> None:
    """Print a line of the log on stderr; on a terminal, which shows a bar for the rest, only results of evaluations."""
    if not sys.stderr.isatty() or any(name.startswith("validation") for name in values):
        print(line_text(step, steps, epoch, values), file=sys.stderr, flush=True)


def line_text(step: int, steps: int, epoch: float | None, values: Mapping[str, object]) -> str:
    """Return a line of the log as short text; a speed (a name that ends in /s) stands before its unit.

    >>> line_text(120, 400, 3, {"loss": 0.43212, "R@1": 0.51, "images/s": 123.4})
    'epoch 3  step 120/400  loss 0.4321  R@1 0.51  123 images/s'
    """
    parts = [] if epoch is None else [f"epoch {epoch:.4g}"]
    parts.append(f"step {step}/{steps}")
    for name, item in values.items():
        value = _plain(name, item)
        if name.endswith("/s") and not isinstance(value, str):
            parts.append(f"{value:.0f} {name}")
        else:
            parts.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return "  ".join(parts)


def _plain(name: str, value: Any) -> float | str:
    """Return a Python number or text; tensors and numbers of numpy have `item`."""
    plain = value
    if not isinstance(value, int | float | str) and hasattr(value, "item"):
        try:
            plain = value.item()
        except (RuntimeError, ValueError):
            plain = None
    if isinstance(plain, float):
        return float(plain)
    if isinstance(plain, int | str):
        return plain
    raise InputTypeError(f"values: {name} must be a number or text, got {value!r:.60}")


def _line(step: int, epoch: float | None, values: Mapping[str, float | str]) -> str:
    odd = {name: repr(value) for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)}
    entry: dict[str, Any] = {"step": int(step), "epoch": epoch, "time": round(time.time(), 3)}
    entry |= {name: None if name in odd else value for name, value in values.items()}
    if odd:
        entry["not_finite"] = odd
    return json.dumps(entry, allow_nan=False) + "\n"


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Return the bytes and the content of every line that has an end; None as the content of a damaged one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give the path of a log.jsonl") from error
    return [(line + b"\n", _entry(line)) for line in content.split(b"\n")[:-1]]


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
        if type(entry["step"]) is not int:
            return None
        return entry | {name: float(value) for name, value in entry.pop("not_finite", {}).items()}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _drop_after(path: Path, step: int) -> None:
    """Rewrite a log without the lines after a step and without damaged ones."""
    if not path.exists():
        return
    lines = _lines(path)
    if damaged := [number for number, (_, entry) in enumerate(lines, 1) if entry is None]:
        warnings.warn(
            f"{path} is damaged in {len(damaged)} of its lines (first: {damaged[0]}), which are dropped",
            FrontrankWarning,
            stacklevel=3,
        )
    atomic_write(path, b"".join(line for line, entry in lines if entry is not None and entry["step"] <= step))


def _open_events(folder: Path, resume_step: int | None) -> Any:
    """Return a writer of TensorBoard, or None with a warning if that is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        warnings.warn(
            "tensorboard is not installed, so the log is log.jsonl only; pip install 'frontrank[train]'",
            FrontrankWarning,
            stacklevel=3,
        )
        return None
    return SummaryWriter(str(folder), purge_step=resume_step + 1 if resume_step else resume_step)
