"""The ground truth of Revisited Oxford and Paris, read from their pickles as data.

Radenović, Iscen, Tolias, Avrithis, Chum: Revisiting Oxford and Paris: Large-Scale Image Retrieval Benchmarking,
CVPR 2018.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from frontrank.data.pickled import RefusedError, StoredArray, read_pickle
from frontrank.errors import InputError, InputTypeError

_KINDS = ("easy", "hard", "junk")


@dataclass(frozen=True)
class GroundTruth:
    """What a gnd_*.pkl file holds: names of gallery and query images, and per query lists and its box in the image."""

    images: list[str]
    queries: list[str]
    lists: list[dict[str, Any]]
    boxes: list[tuple[float, ...]]


_LARGEST = 1 << 24  # bytes of a file, and numbers in all its lists: a few bytes can name one list many times


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
        said = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {said}; look at the path") from error
    if len(data) > _LARGEST:
        raise InputError(f"{path} has more than {_LARGEST:,} bytes, too many for a ground-truth file; look at the path")
    try:
        content = read_pickle(data)
    except RefusedError as error:
        raise InputError(f"{path} is refused: it asks for {error}, which no ground-truth file needs") from None
    except Exception as error:
        said = shorten(str(error)[:500], 100, placeholder=" ...") or "it ends too early"
        raise InputError(f"{path} is not a ground-truth pickle: {said}; copy it again") from error
    try:
        return _ground_truth(content)
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{path} is not a ground-truth pickle: {error}; is it a gnd_*.pkl file?") from error


def _ground_truth(content: Any) -> GroundTruth:
    """The content of a file, checked; the error says what it lacks."""
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
        if lacking := [kind for kind in _KINDS if kind not in entry]:
            raise ValueError(f"gnd[{i}] has no {lacking[0]!r}")
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
    """The items of a list or an array, all of some types."""
    if not isinstance(stored, list | tuple | StoredArray):
        raise ValueError(f"{name} is no list")
    found = stored.values() if isinstance(stored, StoredArray) else stored
    if not all(type(x) in types for x in found):
        raise ValueError(f"{name} must have {types[0].__name__} in it and has something else")
    return found


def _length(stored: Any) -> int:
    return len(stored) if isinstance(stored, list | tuple | StoredArray) else 0
