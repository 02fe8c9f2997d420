"""Checkpoints of a run. A kill, a full disk or a flipped bit never leads to a wrong start.

A file is one line of text with a SHA-256, then the bytes of `torch.save` that it is the digest of. It is read with
`weights_only=True`, which runs no code of the file.
"""

import hashlib
import os
import pickle
import random
import re
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from frontrank.checks import shorten
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.files import UNFINISHED, as_path, atomic_write, unwritable

_NAME = re.compile(r"step-([0-9]{8,})\.pt")
_KEEP = 2  # the newest checkpoints of a folder
_HEADER = "frontrank state 2, sha256 {}\n"
_HEADER_SIZE = len(_HEADER.format("0" * 64))


def save_checkpoint(folder: str | os.PathLike[str], step: int, state: object) -> Path:
    """Write `step-00000123.pt` and, once it is safe on disk, delete all but the two newest up to it.

    A checkpoint of the same step is replaced; those of later steps are left alone.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> for step in (10, 20, 30):
    ...     path = save_checkpoint(folder, step, {"step": step, "weight": torch.tensor([0.5, 1.0])})
    >>> sorted(path.name for path in Path(folder).iterdir())
    ['step-00000020.pt', 'step-00000030.pt']
    >>> read_state(latest_checkpoint(folder))
    {'step': 30, 'weight': tensor([0.5000, 1.0000])}
    """
    target = as_path("folder", folder) / f"step-{step:08d}.pt"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_state(target, state)
        earlier = [path for number, path in _checkpoints(target.parent) if number < step]
        for path in (*earlier[_KEEP - 1 :], *target.parent.glob(f".step-*{UNFINISHED}")):  # of a killed process
            path.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(Path(error.filename or target), error) from error
    return target


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """Return the checkpoint of the highest step that is whole, or None if there is none.

    A damaged one is passed over with a warning that names it. If all are damaged, it is an error: a run that had made
    progress must not begin again by itself.
    """
    paths = [path for _, path in _checkpoints(as_path("folder", folder))]
    for path in paths:
        try:
            with path.open("rb") as file:
                if _is_whole(file):
                    return path
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; make it readable, or delete it") from error
        if path != paths[-1]:
            warnings.warn(f"{path} is damaged; an earlier checkpoint is tried", FrontrankWarning, stacklevel=2)
    if paths:
        named = ", ".join(map(str, paths))
        remedy = "restore one, or begin again: a run by --restart, one of a comparison by deleting its folder"
        raise InputError(f"{named}: all checkpoints are damaged; {remedy}")
    return None


def remove_checkpoints(folder: str | os.PathLike[str]) -> None:
    """Delete the checkpoints of a folder, so that its run begins again."""
    for _, path in _checkpoints(as_path("folder", folder)):
        path.unlink(missing_ok=True)


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of every file that is named like a checkpoint, the newest first."""
    try:
        files = [path for path in folder.iterdir() if path.is_file()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}; give a folder of checkpoints") from error
    return sorted(((int(match[1]), path) for path in files if (match := _NAME.fullmatch(path.name))), reverse=True)


def write_state(path: str | os.PathLike[str], state: object) -> None:
    """Write nested dicts, lists and tuples of tensors, numbers, text, bytes and None to a file, whole or not at all."""
    _check_state(state, "state")

    def write(file: BinaryIO) -> None:
        file.write(_HEADER.format("0" * 64).encode())
        hashing = _HashingWriter(file)
        try:
            torch.save(state, hashing)  # type: ignore[arg-type]
        except RuntimeError as error:  # torch hides an error of the disk behind one of its own
            raise hashing.failure or error from error
        file.seek(0)
        file.write(_HEADER.format(hashing.digest.hexdigest()).encode())

    atomic_write(path, write)


def read_state(path: str | os.PathLike[str]) -> Any:
    """Read what `write_state` wrote, with all tensors on the CPU. A damaged file raises an InputError."""
    source = as_path("path", path)
    try:
        with source.open("rb") as file:
            if not _is_whole(file):
                raise InputError(f"{source} is damaged, or not a file of this version of frontrank; use an earlier one")
            file.seek(_HEADER_SIZE)
            return torch.load(file, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}") from error
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
        raise InputError(f"{source} holds more than tensors and plain values, and is not read") from error


class _HashingWriter:
    """File that also computes the SHA-256 of what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()
        self.failure: OSError | None = None

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _is_whole(file: Any) -> bool:
    """Whether an open file has every byte as it was written."""
    header = file.read(_HEADER_SIZE)
    return header == _HEADER.format(hashlib.file_digest(file, "sha256").hexdigest()).encode()


def _check_state(value: object, place: str) -> None:
    """Raise for a value that `torch.load` would refuse to read back."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():  # type: ignore[attr-defined]
            _check_state(key, f"a key of {place}")
            _check_state(item, f"{place}[{key!r}]")
    elif type(value) in (list, tuple):
        for number, item in enumerate(value):  # type: ignore[arg-type]
            _check_state(item, f"{place}[{number}]")
    elif not isinstance(value, Tensor) and type(value) not in (type(None), bool, int, float, str, bytes):
        raise InputTypeError(f"{shorten(place)} is a {type(value).__name__}; give a tensor, a number, text or None")


def random_state() -> dict[str, Any]:
    """Return the state of the random numbers of Python, numpy and torch (on every device in use) for a checkpoint."""
    version, words, spare = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    key = torch.from_numpy(numpy_state["state"]["key"].astype(np.int64))
    state: dict[str, Any] = {
        "python": (version, torch.tensor(words), spare),
        "numpy": {**numpy_state, "state": {"key": key, "pos": int(numpy_state["state"]["pos"])}},
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
        inner = state["numpy"]["state"]
        key = inner["key"].numpy().astype(np.uint32)
        np.random.set_state({**state["numpy"], "state": {**inner, "key": key}})  # noqa: NPY002
        torch.set_rng_state(state["torch"])
        if torch.cuda.is_available():
            for device, device_state in enumerate(state.get("cuda", [])[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(device_state, device)
        if torch.backends.mps.is_available() and "mps" in state:
            torch.mps.set_rng_state(state["mps"])
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(f"state is not a random state of these versions ({error})") from error


def seed_everything(seed: int) -> None:
    """Begin the random numbers of torch, Python and numpy with a seed."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  losses of other packages draw from it


def start_randomness(seed: int, step: int, rank: int, states: Sequence[dict[str, Any]] | None) -> None:
    """Go on with the random numbers of a checkpoint, or begin with the seed; each process has its own.

    states: the `random_state` of every process at the checkpoint; None where a run begins
    """
    if states is not None and rank < len(states):
        set_random_state(states[rank])
    else:
        seed_everything((seed * 1009 + step * 31 + rank) % 2**32)
