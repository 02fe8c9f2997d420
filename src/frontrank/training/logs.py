"""The log of a run: a file of JSON lines, TensorBoard events, and short lines on stderr."""

import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TextIO

from frontrank.errors import FrontrankWarning, InputError
from frontrank.files import atomic_write, unwritable


class Log:
    """Log that writes `log.jsonl`, and `tensorboard/` beside it, in the folder of a run.

    A line is an object of step, epoch, time (seconds since 1970) and values. JSON has no NaN and no infinity: such a
    value is null, and named in the entry `not_finite`. Every line is written at once. Write the lines of a step before
    its checkpoint: then a run that goes on from the checkpoint has every line once.

    resume_step: go on with the log of the folder after this step; lines of later steps are dropped
    enabled:     False, in all processes but the first, writes nothing

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Log(folder) as log:
    ...     log.write(10, {"loss": 0.5}, epoch=1)
    >>> with Log(folder, resume_step=10) as log:
    ...     log.write(20, {"loss": math.inf}, epoch=2)
    >>> [(line["step"], line["loss"]) for line in read_log(Path(folder) / "log.jsonl")]
    [(10, 0.5), (20, inf)]
    """

    def __init__(self, folder: str | os.PathLike[str], resume_step: int = -1, *, enabled: bool = True) -> None:
        self._file: TextIO | None = None
        self._events: Any = None
        self._path = Path(folder) / "log.jsonl"
        if not enabled:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _drop_after(self._path, resume_step)
            self._file = self._path.open("a", encoding="utf-8")
            self._events = _open_events(self._path.with_name("tensorboard"), resume_step)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def write(self, step: int, values: Mapping[str, float], epoch: float) -> None:
        """Add a line of values by name."""
        if self._file is None:
            return
        try:
            self._file.write(_line(step, epoch, values))
            self._file.flush()
            if self._events is not None:
                for name, value in values.items():
                    self._events.add_scalar(name, value, step)
                self._events.flush()
        except OSError as error:
            raise unwritable(self._path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for output in (self._file, self._events):
            if output is not None:
                with suppress(OSError):  # every line was flushed: `write` has reported what fails here
                    output.close()


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the lines of a `log.jsonl`. A last one that was cut off is left out; any other damage raises."""
    entries = []
    for number, (_, entry) in enumerate(_lines(Path(path)), 1):
        if entry is None:
            raise InputError(f"{path} line {number} is damaged; delete that line")
        entries.append(entry)
    return entries


def line_text(step: int, steps: int, epoch: float, values: Mapping[str, float]) -> str:
    """Return a line of the log as short text; a speed (a name that ends in /s) stands before its unit.

    >>> line_text(120, 400, 3, {"loss": 0.43212, "queries_used": 112, "images/s": 123.4})
    'epoch 3  step 120/400  loss 0.4321  queries_used 112  123 images/s'
    """
    parts = [f"epoch {epoch:.4g}", f"step {step}/{steps}"]
    for name, value in values.items():
        text = f"{value:.4g}" if isinstance(value, float) else f"{value}"
        parts.append(f"{value:.0f} {name}" if name.endswith("/s") else f"{name} {text}")
    return "  ".join(parts)


def _line(step: int, epoch: float, values: Mapping[str, float]) -> str:
    odd = {name: repr(float(value)) for name, value in values.items() if not math.isfinite(value)}
    entry: dict[str, Any] = {"step": step, "epoch": epoch, "time": round(time.time(), 3)}
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
        note = f"{path} is damaged in {len(damaged)} of its lines (first: {damaged[0]}), which are dropped"
        warnings.warn(note, FrontrankWarning, stacklevel=3)
    atomic_write(path, b"".join(line for line, entry in lines if entry is not None and entry["step"] <= step))


def _open_events(folder: Path, resume_step: int) -> Any:
    """Return a writer of TensorBoard, or None with a warning if that is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        note = "tensorboard is not installed, so the log is log.jsonl only; pip install 'frontrank[train]'"
        warnings.warn(note, FrontrankWarning, stacklevel=3)
        return None
    return SummaryWriter(str(folder), purge_step=resume_step + 1)
