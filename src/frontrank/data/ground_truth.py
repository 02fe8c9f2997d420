"""The ground truth of Revisited Oxford and Paris, read from its pickle files without running anything.

Radenović, Iscen, Tolias, Avrithis, Chum: Revisiting Oxford and Paris: Large-Scale Image Retrieval Benchmarking,
CVPR 2018.
"""

import io
import math
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, ClassVar, Literal

import numpy as np

from frontrank.errors import InputError, InputTypeError

_KINDS = ("easy", "hard", "junk")
_LARGEST = 1 << 24  # bytes of a file, and numbers in all its lists: a few bytes can name one list many times


@dataclass(frozen=True)
class GroundTruth:
    """The content of a gnd_*.pkl file.

    images, queries: names of the gallery images and of the query images
    lists:           of each query, the easy, hard and junk images by their place in `images`
    boxes:           of each query, left, top, right and bottom of what is searched for, or nothing
    """

    images: list[str]
    queries: list[str]
    lists: list[dict[str, Any]]
    boxes: list[tuple[float, ...]]


def read_ground_truth(path: str | Path) -> GroundTruth:
    """Read a gnd_roxford5k.pkl or gnd_rparis6k.pkl.

    The file is a pickle, which can run any code when it is loaded. This reader builds plain containers, numbers,
    text and numpy arrays of these, and refuses everything else.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST + 1)
    except TypeError as error:
        raise InputTypeError(f"path must be the name of a file, got {type(path).__name__}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {reason}; check the path") from error
    if len(data) > _LARGEST:
        raise InputError(f"{path} has more than {_LARGEST:,} bytes, too many for a ground-truth file; check the path")
    try:
        content = _DataUnpickler(io.BytesIO(data), encoding="latin1").load()
    except _RefusedError as error:
        raise InputError(f"{path} is refused: it asks for {error}, which no ground-truth file needs") from None
    except Exception as error:  # a damaged pickle raises almost anything
        reason = shorten(str(error)[:500], 100, placeholder=" ...") or "it ends too early"
        raise InputError(f"{path} is not a ground-truth pickle: {reason}; copy it again") from error
    try:
        return _check_content(content)
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{path} is not a ground-truth pickle: {error}; is it a gnd_*.pkl file?") from error


def _check_content(content: Any) -> GroundTruth:
    for key in ("gnd", "imlist", "qimlist"):
        if not isinstance(content, dict) or key not in content:
            raise ValueError(f"it has no {key!r}")
    images, queries = (
        [x if isinstance(x, str) else x.decode("latin1") for x in _values(key, content[key], str, bytes)]
        for key in ("imlist", "qimlist")
    )
    entries = _values("gnd", content["gnd"], dict)
    if len(queries) != len(entries):
        raise ValueError(f"it names {len(queries)} queries but has lists of {len(entries)}")
    for i, entry in enumerate(entries):
        if missing := [kind for kind in _KINDS if kind not in entry]:
            raise ValueError(f"gnd[{i}] has no {missing[0]!r}")
    if sum(_length(entry.get(key)) for entry in entries for key in (*_KINDS, "bbx")) > _LARGEST:
        raise ValueError(f"its lists have more than {_LARGEST:,} numbers")
    lists = [
        {kind: np.array(_values(f"{kind} of gnd[{i}]", entry[kind], int), np.int64) for kind in _KINDS}
        for i, entry in enumerate(entries)
    ]
    boxes = [
        tuple(map(float, _values(f"bbx of gnd[{i}]", entry.get("bbx", ()), int, float)))
        for i, entry in enumerate(entries)
    ]
    if not all(math.isfinite(x) for box in boxes for x in box):
        raise ValueError("a bbx has NaN or infinite values")
    return GroundTruth(images, queries, lists, boxes)


def _values(name: str, stored: Any, *types: type) -> Sequence[Any]:
    """Return the items of a list or an array, or raise if one is of another type."""
    if not isinstance(stored, list | tuple | _Array):
        raise ValueError(f"{name} is no list")
    items = stored.values() if isinstance(stored, _Array) else stored
    if not all(type(x) in types for x in items):
        raise ValueError(f"{name} must have {types[0].__name__} in it and has something else")
    return items


def _length(stored: Any) -> int:
    return len(stored) if isinstance(stored, list | tuple | _Array) else 0


# A restricted unpickler. `pickle.Unpickler` with its own find_class would not be enough: its memo takes gigabytes for a
# place of 4 bytes, and hashing the key of a dict can take forever or overflow the C stack. The unpickler in Python can
# be given other instructions, and its memo is a dict.


class _RefusedError(Exception):
    """A pickle that asks for more than data."""


class _Array:
    """An array in a pickle. Its values are made on demand, so that one named many times costs once."""

    def __init__(self, data: Any = b"", kind: "_Kind | None" = None, shape: Any = (0,), order: Any = "C") -> None:
        if not isinstance(data, bytes | str) or not isinstance(kind, _Kind | None):
            raise _RefusedError("an array of something else than numbers or text")
        if not isinstance(shape, tuple) or len(shape) > 32 or not all(type(size) is int for size in shape):
            raise ValueError("an array has no shape")
        self._data, self._shape = data, shape
        self._order: Literal["C", "F"] = "F" if order == "F" else "C"
        self._dtype = np.dtype(np.int64) if kind is None else kind.dtype

    def set_state(self, state: Any) -> None:
        shape, kind, columns_first, data = state[-4:]
        _Array.__init__(self, data, kind, shape, "F" if columns_first else "C")

    def __len__(self) -> int:
        return len(self._data) // max(1, self._dtype.itemsize)

    def values(self) -> list[Any]:
        """Return all numbers or texts, row after row."""
        data = self._data.encode("latin1") if isinstance(self._data, str) else self._data
        return np.frombuffer(data, self._dtype).reshape(self._shape, order=self._order).reshape(-1).tolist()


class _Kind:
    """A dtype of numbers or text."""

    def __init__(self, code: Any, align: Any = False, copy: Any = True) -> None:
        if not isinstance(code, str) or not re.fullmatch("b1|[iu][1248]|f[248]|[US][1-9][0-9]{0,3}", code):
            raise _RefusedError("an array of something else than numbers or text")
        self.dtype = np.dtype(code)

    def set_state(self, state: Any) -> None:
        """Set the byte order; the state of numbers and text has nothing else."""
        _, order, *parts = state[:5]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in parts):
            raise _RefusedError("an array of records")
        self.dtype = self.dtype.newbyteorder(order)


def _new_array(of: Any, shape: Any, code: Any) -> _Array:
    return _Array()


def _number(kind: Any, data: Any) -> Any:
    if not isinstance(kind, _Kind) or kind.dtype.kind in "US":
        raise _RefusedError("a numpy scalar that is no number")
    if len(stored := _Array(data, kind, (1,))) != 1:  # reading long data at each mention could take forever
        raise ValueError(f"a number of {len(data)} bytes")
    return stored.values()[0]


def _bytes(text: Any = "", encoding: Any = "latin1") -> str:
    """Return bytes, which old pickles make from text, as that text: a copy at each mention could be many."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _RefusedError("a way to encode text")
    return text


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy.core.multiarray", "scalar"): _number,
    ("numpy.core.numeric", "_frombuffer"): _Array,
    ("numpy", "ndarray"): None,  # an argument of _reconstruct
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("__builtin__", "bytes"): _bytes,
}

_PLAIN = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.DUP),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.FLOAT, pickle.BINFLOAT),
    *(pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG, pickle.LONG1, pickle.LONG4),
    *(pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING),
    *(pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
    *(pickle.GET, pickle.BINGET, pickle.LONG_BINGET, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE),
)


class _Instructions(dict[int, Any]):
    def __missing__(self, code: int) -> Any:
        if code in pickle._Unpickler.dispatch:
            raise _RefusedError(f"the instruction {code:#04x}")
        raise pickle.UnpicklingError(f"there is no instruction {code:#04x}")


class _DataUnpickler(pickle._Unpickler):
    """The unpickler of the standard library without the instructions that plain data does not need."""

    stack: list[Any]
    memo: dict[int, Any]
    read: Callable[[int], bytes]
    readline: Callable[[], bytes]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: str, name: str) -> Any:
        key = (module.replace("numpy._core", "numpy.core"), name)
        if key not in _NAMES:
            raise _RefusedError(ascii(f"{module}.{name}")[1:-1][:80])
        return _NAMES[key]

    def _build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _Kind):  # functions have attributes that could be set, too
            raise _RefusedError("the state of an object")
        self.stack[-1].set_state(state)

    def _set(self, items: list[Any]) -> None:
        if not all(type(key) is str for key in items[::2]):  # tuples and numbers can be made that take hours to hash
            raise _RefusedError("a dict with keys that are no text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _set_items(self) -> None:
        self._set(self.pop_mark())

    def _set_item(self) -> None:
        items = self.stack[-2:]
        del self.stack[-2:]
        self._set(items)

    def _new_dict(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        self._set(items)

    def _bytearray(self) -> None:
        size = int.from_bytes(self.read(8), "little")
        self.stack.append(self.read(size))  # at most what is there, where a bytearray of that size would be filled

    def _store(self) -> None:
        place = int(self.readline())
        if not 0 <= place < 1 << 32:  # larger numbers can be found that take hours to hash
            raise ValueError(f"no place {place} in the memo")
        self.memo[place] = self.stack[-1]

    dispatch: ClassVar[dict[int, Any]] = _Instructions(
        {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _PLAIN}
        | {pickle.BUILD[0]: _build, pickle.BYTEARRAY8[0]: _bytearray, pickle.PUT[0]: _store}
        | {pickle.DICT[0]: _new_dict, pickle.SETITEM[0]: _set_item, pickle.SETITEMS[0]: _set_items}
    )
