"""Files that are written whole or not at all, JSON files that name their format, and locks between processes."""

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from frontrank.checks import shorten
from frontrank.errors import FrontrankError, InputError, InputTypeError

PathLike = str | os.PathLike[str]

UNFINISHED = ".unfinished"
_MOST_JSON = 1 << 30  # bytes of a file
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_KINDS = {dict: "an object", list: "a list", int: "a whole number", str: "a string"}


def count_shared_files(files: Iterable[PathLike], others: Iterable[PathLike]) -> int:
    """Return how many of the files are among the others, by whatever links each is named."""
    known = {os.path.realpath(file) for file in others}
    return sum(os.path.realpath(file) in known for file in files)


def atomic_write(
    path: PathLike, content: bytes | str | Callable[[BinaryIO], object], *, overwrite: bool = True, sync: bool = True
) -> None:
    """Write a file whole and safe on disk, or leave what was there before as it was.

    content:   bytes, text, or a function that writes to the open file it is called with
    overwrite: whether an existing file may be replaced
    sync:      wait until the disk has it; False for files that can be made again, such as caches
    """
    target = as_path("path", path)
    unfinished = target.with_name(f".{target.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}{UNFINISHED}")
    if not overwrite and os.path.lexists(target):
        raise InputError(f"{target} exists already; choose another name, or pass overwrite=True to replace it")
    try:
        try:
            unfinished.touch()
            with folder_lock(unfinished):  # whoever can have it knows that this process has ended
                with unfinished.open("wb") as file:
                    if callable(content):
                        content(file)
                    else:
                        file.write(content.encode() if isinstance(content, str) else content)
                    if sync:
                        file.flush()
                        os.fsync(file.fileno())
                unfinished.replace(target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        if sync:
            sync_folder(target.parent)
    except OSError as error:
        raise unwritable(target, error) from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can do that."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync names by themselves
            raise
    finally:
        os.close(handle)


def unwritable(target: Path, error: OSError) -> InputError:
    """Return the error of a file that cannot be written, with what to do."""
    remedy = "choose another folder" if os.path.lexists(target.parent) else f"make the folder {target.parent} first"
    if error.errno in _FULL:
        remedy = "free some space, or " + remedy
    elif error.errno in _CLOSED:
        remedy = "make the folder writable, or " + remedy
    return InputError(f"{target} cannot be written: {error.strerror or error}; {remedy}")


@contextmanager
def parse_errors(source: object, remedy: str) -> Iterator[None]:
    """Turn whatever the parsing of a file from outside raises into one InputError that names it, and what to do."""
    try:
        yield
    except Exception as error:
        if isinstance(error, FrontrankError):
            if str(error).startswith((str(source), str(getattr(source, "parent", source)))):  # it names a file already
                raise
            raise InputError(f"{source} cannot be used: {error}") from error
        text = "".join(letter if letter.isprintable() else " " for letter in str(error))
        kind = "" if isinstance(error, ValueError) and text else f"{type(error).__name__} "
        raise InputError(f"{source} is damaged ({shorten(kind + text, 200).strip()}); {remedy}") from error


@contextmanager
def write_errors(target: Path) -> Iterator[None]:
    """Turn an error of the file system into one that names the target, and what to do."""
    try:
        yield
    except OSError as error:
        raise unwritable(target, error) from error


def as_path(name: str, path: object) -> Path:
    """Return a user's path as a Path, or raise if it cannot be one."""
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"{name} must be a string or a Path, got {path!r}")
    if "\0" in str(path) or not Path(path).name:
        raise InputError(f"{name} must be the name of a file or folder, got {str(path)!r}")
    return Path(path)


def refuse_pipe(path: Path) -> None:
    """Raise if a path is that of a pipe or a device: opening it could take for ever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # reported where it is opened
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"{path} is no plain file, but a pipe or a device; copy its content to a file")


def remove_stale(leftovers: Iterable[Path], seconds: float = 3600.0) -> None:
    """Remove unfinished files and folders of processes that were killed, and wrote nothing for so many seconds.

    A process holds the lock of what it writes: a clock that jumps removes nothing that is in use.
    """
    for path in leftovers:
        with suppress(OSError):  # gone in the meantime
            inside = path.iterdir() if path.is_dir() else ()
            if time.time() - max(each.stat().st_mtime for each in (path, *inside)) > seconds:
                with folder_lock(path, patience=0.0) as is_abandoned:
                    if is_abandoned:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()


def file_digest(path: PathLike) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_json(path: Path, encoding: str = "utf-8", parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return the content of a JSON file; ValueError if it is not JSON, too large, nested too deeply, or no plain file.

    Opening a pipe could take forever, and deep nesting ends the parser by a RecursionError, which is no ValueError.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no plain file")
    if status.st_size > _MOST_JSON:
        raise ValueError(f"it has more than {_MOST_JSON:,} bytes")
    try:
        return json.loads(path.read_text(encoding=encoding), parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_json(path: PathLike, kind: str, version: int, content: dict[str, Any], overwrite: bool) -> None:
    """Write content as JSON under a "format" and a "version"; an existing file is replaced only if asked to."""
    text = json.dumps({"format": f"frontrank {kind}", "version": version, **content}, allow_nan=False)
    atomic_write(path, text + "\n", overwrite=overwrite)


def read_json(path: PathLike, kind: str, version: int) -> dict[str, Any]:
    """What `write_json` wrote, for a file of this kind and of at most this version."""
    source = as_path("path", path)
    try:
        content = load_json(source, parse_constant=_refuse_constant)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{source} cannot be read as JSON ({error}); save the {kind} again") from error
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


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


@contextmanager
def folder_lock(
    folder: Path, patience: float = math.inf, give_up: Callable[[], bool] = lambda: False
) -> Iterator[bool]:
    """Within, no other process (or thread) has the lock of the folder or file; gives whether it could be had.

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
            except OSError as error:  # another one than that it is taken: there are no locks here
                had = not isinstance(error, BlockingIOError)
            if had or time.monotonic() >= until or give_up():
                break
            time.sleep(0.05)
        yield had
    finally:
        os.close(lock)
