"""A nested state as one safetensors file, with a digest of every byte; what checkpoints are made of.

Tensors, arrays and bytes lie in the file under the path they have in the state; all else is JSON in the metadata.
Nothing is pickled, and any reader of safetensors opens it. It is written here, not by that library, so that the state
is never held twice in memory, a full disk is an OSError, and the digest covers the header too.
"""

import hashlib
import json
import math
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from frontrank.errors import InputError, InputTypeError

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
