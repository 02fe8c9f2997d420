"""Files that are written whole or not at all, locks between processes, digests."""

import json
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from frontrank.errors import InputError, InputTypeError

# ==== JSON files that say what they are: written whole or not at all, and read with a message of one line.


PathLike = str | os.PathLike[str]

_KINDS = {dict: "an object", list: "a list", int: "a whole number", str: "a string"}


def write_json(path: PathLike, kind: str, version: int, content: dict[str, Any], overwrite: bool) -> None:
    """Write content as JSON under a "format" and a "version"; an existing file is replaced only if asked to."""
    target = _as_path(path)
    text = json.dumps({"format": f"frontrank {kind}", "version": version, **content}, allow_nan=False)
    unfinished = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        if os.path.lexists(target) and not overwrite:
            raise InputError(f"{target} exists already; choose another name, or pass overwrite=True to replace it")
        try:
            unfinished.write_text(text + "\n", encoding="utf-8")
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        remedy = "" if os.path.isdir(target.parent) else f"; make the folder {target.parent} first"
        raise InputError(f"{target} cannot be written: {error.strerror}{remedy}") from error


def read_json(path: PathLike, kind: str, version: int) -> dict[str, Any]:
    """What `write_json` wrote, for a file of this kind and of at most this version."""
    source = _as_path(path)
    try:
        content = json.loads(source.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not valid JSON, or only a part of a file; save the {kind} again") from error
    if not isinstance(content, dict) or content.get("format") != f"frontrank {kind}":
        raise InputError(f"{source} is not a frontrank {kind}; give a file that a {kind} was saved to")
    found = content.get("version")
    if not isinstance(found, int) or found < 1:
        raise InputError(f"{source} does not say its version; save the {kind} again")
    if found > version:
        raise InputError(
            f"{source} has version {found} of the format, newer than the {version} read here; update frontrank"
        )
    return content


def field_of(content: dict[str, Any], name: str, kind: type) -> Any:
    """A field that must be there and of this kind."""
    if not isinstance(content.get(name), kind):
        raise InputError(f"its {name} must be {_KINDS[kind]}")
    return content[name]


def _as_path(path: PathLike) -> Path:
    try:
        found = Path(path)
    except TypeError as error:
        raise InputTypeError(f"path must be a string or a Path, got {path!r}") from error
    if "\0" in str(found) or not found.name:
        raise InputError(f"path must be the name of a file, got {str(path)!r}")
    return found


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# ==== A lock between processes on a folder, which leaves no file and goes with the process that holds it.


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


# ==== A lock that many may hold who only look, or one who changes.


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
