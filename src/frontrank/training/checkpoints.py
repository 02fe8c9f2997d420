"""Checkpoints that a kill, a full disk or a flipped bit cannot turn into a wrong start."""

import errno
import os
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.retrieval.arguments import require_count
from frontrank.training.state_files import is_whole, read_state, state_writer

_NAME = re.compile(r"step-([0-9]{8,})\.safetensors")
_UNFINISHED = ".unfinished"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def save_checkpoint(folder: str | os.PathLike[str], step: int, state: object, keep: int = 2) -> Path:
    """Write `step-00000123.safetensors` and, once it is safe on disk, delete all but the `keep` newest up to it.

    state: dicts, lists and tuples of tensors, numpy arrays, numbers, text, bytes, bool and None. It comes back from
        `load_checkpoint` as it was, but for these: tensors are on the CPU, without gradient, contiguous, and each has
        memory of its own; subclasses of dict are plain dicts.

    A checkpoint of the same step is replaced; those of later steps are left alone.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> for step in (10, 20, 30):
    ...     path = save_checkpoint(folder, step, {"step": step, "weight": torch.tensor([0.5, 1.0])})
    >>> sorted(path.name for path in Path(folder).iterdir())
    ['step-00000020.safetensors', 'step-00000030.safetensors']
    >>> load_checkpoint(latest_checkpoint(folder))
    {'step': 30, 'weight': tensor([0.5000, 1.0000])}
    """
    require_count("step", step, 0)
    require_count("keep", keep, 1)
    write = state_writer(state)
    target = _as_path("folder", folder) / f"step-{step:08d}.safetensors"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(target.parent, error) from error
    atomic_write(target, write)
    _clean(target.parent, step, keep)
    return target


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint of the highest step that is whole; None where there is none.

    A damaged one is passed over with a warning that names it.
    """
    for _, path in sorted(_checkpoints(_as_path("folder", folder)), reverse=True):
        try:
            with path.open("rb") as file:
                whole = is_whole(file)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; make it readable, or delete it") from error
        if whole:
            return path
        warnings.warn(
            f"{path} is damaged; an earlier checkpoint is used, if there is one", FrontrankWarning, stacklevel=2
        )
    return None


def newest_state(folder: str | os.PathLike[str], now: Mapping[str, Any], what: str) -> tuple[Path, Any] | None:
    """The newest whole checkpoint and its state; None where there is none.

    now:  entries that must be as they are in it
    what: they stand for, in a message: one that was made with other images is refused
    """
    path = latest_checkpoint(folder)
    if path is None:
        return None
    state = load_checkpoint(path)
    if any(state.get(name) != value for name, value in now.items()):
        raise InputError(f"{path} was made with other {what} than the run has now; put them back, or start anew")
    return path, state


def load_checkpoint(path: str | os.PathLike[str]) -> Any:
    """The state that `save_checkpoint` wrote; a damaged file is refused."""
    source = _as_path("path", path)
    try:
        with source.open("rb") as file:
            if not is_whole(file):
                raise InputError("is damaged, or no checkpoint; use an earlier one")
            return read_state(file)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}; give the path of a checkpoint") from error
    except InputError as error:
        raise InputError(f"{source} {error}") from error


def atomic_write(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], object]) -> None:
    """Make a file of the content: all of it, safe on disk, or none, with what was there before left as it was.

    content: the bytes, or a function that writes them to the open file it is called with

    Whether `path` may be replaced is for the caller to decide.
    """
    target = _as_path("path", path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}{_UNFINISHED}")
    try:
        try:
            with unfinished.open("wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise _unwritable(target, error) from error


def random_state() -> dict[str, Any]:
    """The state of the random numbers of Python, numpy and torch on every device in use, fit for a checkpoint."""
    version, words, spare = random.getstate()
    state: dict[str, Any] = {
        "python": (version, torch.tensor(words), spare),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Go on with the random numbers of `random_state`. Those of devices that are not here are left out."""
    try:
        version, words, spare = state["python"]
        random.setstate((version, tuple(words.tolist()), spare))
        np.random.set_state(state["numpy"])  # noqa: NPY002
        torch.set_rng_state(state["torch"])
        if torch.cuda.is_available():
            for device, held in enumerate(state.get("cuda", [])[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(held, device)
        if torch.backends.mps.is_available() and "mps" in state:
            torch.mps.set_rng_state(state["mps"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(f"state is no random state of these versions ({error}); give one of random_state()") from error


def start_randomness(seed: int, step: int, rank: int, kept: Sequence[dict[str, Any]] | None) -> None:
    """Go on with the random numbers of a checkpoint, or begin with the seed; each process has its own.

    kept: the `random_state` of every process at the checkpoint; None where a run begins
    """
    if kept is not None and rank < len(kept):
        set_random_state(kept[rank])
        return
    own = (seed * 1009 + step * 31 + rank) % 2**32
    torch.manual_seed(own)
    random.seed(own)
    np.random.seed(own)  # noqa: NPY002  losses of other packages draw from it


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    """(step, path) of every file that is named like a checkpoint."""
    try:
        for path in folder.iterdir():
            if (match := _NAME.fullmatch(path.name)) and path.is_file():
                yield int(match[1]), path
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}; give a folder of checkpoints") from error


def _clean(folder: Path, step: int, keep: int) -> None:
    """Delete the checkpoints before this step beyond `keep`, and what a killed process left unfinished."""
    earlier = sorted((pair for pair in _checkpoints(folder) if pair[0] < step), reverse=True)
    old = [path for _, path in earlier[keep - 1 :]]
    for path in old + list(folder.glob(f".step-*{_UNFINISHED}")):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(path, error) from error


def _sync_folder(folder: Path) -> None:
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


def _unwritable(target: Path, error: OSError) -> InputError:
    remedy = "choose another folder"
    if error.errno in _FULL:
        remedy = "free some space, or " + remedy
    elif error.errno in _CLOSED:
        remedy = "make the folder writable, or " + remedy
    return InputError(f"{target} cannot be written: {error.strerror or error}; {remedy}")


def _as_path(name: str, path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"{name} must be a path, got {path!r}")
    return Path(path)
