"""Checkpoints that a kill, a full disk or a flipped bit cannot turn into a wrong start."""

import hashlib
import json
import math
import os
import random
import re
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from frontrank.checks import check_integer
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.files import UNFINISHED, as_path, atomic_write, unwritable

# ==== A nested state as one safetensors file, with a digest of every byte; what checkpoints are made of.


_FORMAT, _VERSION = "frontrank.checkpoint", "1"
# The digest is the first thing of the header, so that it is found without trusting any of the rest.
_OPENING = b'{"__metadata__":{"sha256":"'
_DIGEST = slice(8 + len(_OPENING), 8 + len(_OPENING) + 64)
_NO_DIGEST = b"0" * 64
_PIECE = 1 << 20
_EXACT_IN_JSON = 2**53  # other readers of JSON round larger integers
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def state_writer(state: object) -> Callable[[BinaryIO], None]:
    """A function that writes the state to an open file; refuses here what a file cannot hold.

    >>> import io
    >>> file = io.BytesIO()
    >>> state_writer({"step": 3, "weights": (torch.tensor([0.5]), None)})(file)
    >>> file.seek(0), is_whole(file)
    (0, True)
    >>> read_state(file)
    {'step': 3, 'weights': (tensor([0.5000]), None)}
    """
    tensors: dict[str, Tensor] = {}
    try:
        said = json.dumps(_packed(state, "", tensors), allow_nan=False)
    except RecursionError:
        raise InputError("state is nested too deeply, or contains itself; make it flatter") from None
    return lambda file: _write(file, tensors, said)


def is_whole(file: BinaryIO) -> bool:
    """Whether every byte is as it was written; goes back to the start of the file."""
    start = file.read(_DIGEST.stop)
    digest = hashlib.sha256(start[: _DIGEST.start] + _NO_DIGEST)
    while piece := file.read(_PIECE):
        digest.update(piece)
    file.seek(0)
    return start[_DIGEST] == digest.hexdigest().encode()


def read_state(file: BinaryIO) -> Any:
    """The state of a file that is whole. An InputError says what is wrong, for the caller to name the file."""
    try:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        metadata = header.pop("__metadata__")
        found = metadata["format"], metadata["version"]
        if found == (_FORMAT, _VERSION):
            tensors = {name: _read_tensor(file, **entry) for name, entry in header.items()}
            return _unpacked(json.loads(metadata["state"]), tensors)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"is no checkpoint ({error}); give one that save_checkpoint wrote") from error
    raise InputError(f"is {found[0]}, version {found[1]}, this reads {_FORMAT}, version {_VERSION}; update frontrank")


def _packed(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON, its tensors put into `tensors`. An object of one entry says what plain JSON cannot."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if abs(value) <= _EXACT_IN_JSON else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if kind is list:
        return [_packed(item, f"{path}/{place}", tensors) for place, item in enumerate(value)]
    if kind is tuple:
        return {"tuple": _packed(list(value), path, tensors)}
    if isinstance(value, dict):
        return {"dict": [[_key(key, path), _packed(item, f"{path}/{key}", tensors)] for key, item in value.items()]}
    name = path[1:] or "state"
    while name in tensors or name == "__metadata__":
        name += "'"
    said, tensors[name] = _as_tensor(value, name)
    return {said: name}


def _unpacked(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    match kind:
        case "dict":
            return {_unpacked(key, tensors): _unpacked(item, tensors) for key, item in held}
        case "tuple":
            return tuple(_unpacked(held, tensors))
        case "int":
            return int(held, 16)
        case "float":
            return struct.unpack(">d", bytes.fromhex(held))[0]
        case "tensor":
            return tensors[held]
        case "array":
            return tensors[held].numpy()
        case "scalar":
            return tensors[held].numpy()[()]
        case "bytes":
            return tensors[held].numpy().tobytes()
    raise InputError(f"it holds a {kind!r}")


def _key(key: object, path: str) -> Any:
    if key is not None and type(key) not in (bool, int, float, str):
        raise InputTypeError(
            f"state has the key {key!r} in the dict at {path[1:] or 'its top'}; use text or numbers as keys"
        )
    return _packed(key, path, {})


def _as_tensor(value: Any, name: str) -> tuple[str, Tensor]:
    """(what it was, the tensor that holds it) of anything that has one."""
    if isinstance(value, Tensor):
        return "tensor", _checked(value, name)
    if type(value) is bytes:
        return "bytes", torch.from_numpy(np.frombuffer(value, np.uint8).copy())
    is_array = type(value) is np.ndarray
    if not is_array and not isinstance(value, np.generic):
        raise InputTypeError(
            f"state holds a {type(value).__name__} at {name}; give tensors, arrays, numbers, text, lists, tuples, dicts"
        )
    try:
        return "array" if is_array else "scalar", _checked(torch.from_numpy(np.array(value, order="C")), name)
    except (TypeError, ValueError):
        raise InputTypeError(f"state holds an array of {value.dtype} at {name}; give arrays of numbers") from None


def _checked(tensor: Tensor, name: str) -> Tensor:
    dense = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested
    if not dense or tensor.dtype not in _NAMES:
        raise InputTypeError(
            f"state holds a tensor of {tensor.dtype} ({tensor.layout}, on {tensor.device}) at {name}, "
            "which safetensors cannot hold; convert it to a dense tensor of another dtype"
        )
    return tensor.detach().resolve_conj().resolve_neg()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _write(file: BinaryIO, tensors: dict[str, Tensor], said: str) -> None:
    """Header, tensors, and at last the digest into the header, so that each tensor is brought to the CPU once."""
    metadata = {"sha256": _NO_DIGEST.decode(), "format": _FORMAT, "version": _VERSION, "state": said}
    header: dict[str, Any] = {"__metadata__": metadata}
    # Wide dtypes first: then every tensor begins at a multiple of its item's size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    start = 0
    for name, tensor in ordered:
        stop = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    for part in (struct.pack("<Q", len(text)), text):
        file.write(part)
        digest.update(part)
    for _, tensor in ordered:
        content = _bytes(tensor.cpu().contiguous())
        file.write(content)
        digest.update(content)
    file.seek(_DIGEST.start)
    file.write(digest.hexdigest().encode())


def _read_tensor(file: Any, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    """The next tensor of the file: they lie in the order of the header, without gaps."""
    tensor = torch.empty(shape, dtype=_DTYPES[dtype])
    content = _bytes(tensor)
    if len(content) != data_offsets[1] - data_offsets[0] or file.readinto(content) != len(content):
        raise InputError("its tensors do not fit its header")
    return tensor


# ==== Checkpoints that a kill, a full disk or a flipped bit cannot turn into a wrong start.


_NAME = re.compile(r"step-([0-9]{8,})\.safetensors")


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
    check_integer("step", step, at_least=0)
    check_integer("keep", keep, at_least=1)
    write = state_writer(state)
    target = as_path("folder", folder) / f"step-{step:08d}.safetensors"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(target.parent, error) from error
    atomic_write(target, write)
    _clean(target.parent, step, keep)
    return target


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint of the highest step that is whole; None where there is none.

    A damaged one is passed over with a warning that names it.
    """
    for _, path in sorted(_checkpoints(as_path("folder", folder)), reverse=True):
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
    source = as_path("path", path)
    try:
        with source.open("rb") as file:
            if not is_whole(file):
                raise InputError("is damaged, or no checkpoint; use an earlier one")
            return read_state(file)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}; give the path of a checkpoint") from error
    except InputError as error:
        raise InputError(f"{source} {error}") from error


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
    for path in old + list(folder.glob(f".step-*{UNFINISHED}")):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(path, error) from error
