"""Revisited Oxford and Paris: easy, hard and junk images per query, and the files that say which is which.

Radenović, Iscen, Tolias, Avrithis, Chum: Revisiting Oxford and Paris: Large-Scale Image Retrieval Benchmarking,
CVPR 2018.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation.evaluate import per_query_values
from frontrank.evaluation.inputs import read_indices
from frontrank.evaluation.measures import Measure
from frontrank.evaluation.pickled import RefusedError, StoredArray, read_pickle
from frontrank.evaluation.report import Report
from frontrank.ranking import Lists, Ranks, Vectors, exact_ranks, trapezoid_average_precision
from frontrank.ranking.vectors import Joined, comparable

Setup = Literal["easy", "medium", "hard"]
_KINDS = ("easy", "hard", "junk")
_RELEVANT: dict[str, tuple[str, ...]] = {"easy": ("easy",), "medium": ("easy", "hard"), "hard": ("hard",)}


def evaluate_revisited(
    queries: Any,
    gallery: Any,
    ground_truth: Sequence[Mapping[str, Any]],
    setup: Setup = "medium",
    *,
    distractors: Any = None,
    device: torch.device | str | None = None,
    name: str = "",
    progress: bool | None = None,
) -> Report:
    """mAP and mP@1, 5, 10 as in the official evaluation of ROxford and RParis, on the exact full ranking.

    ground_truth: for each query the gallery indices that are "easy", "hard" and "junk"
    setup:        "easy": easy is relevant, hard and junk are taken out of the ranking; "medium": easy and hard are
                  relevant, junk is taken out; "hard": hard is relevant, easy and junk are taken out
    distractors:  more items, relevant to no query, such as the million of R1M; may be a memory-mapped file

    AP is the area under straight lines between the points of the precision-recall curve. mP@k is the precision
    among the first k, or down to the last relevant item if that comes first. A query without a relevant item is left
    out. Unlike in the official code, a tie counts against the model, whatever the order of the items.
    """
    if setup not in get_args(Setup):
        raise InputError(f'setup must be "easy", "medium" or "hard", got {setup!r}')
    asked = Vectors("queries", queries, device)
    items = Vectors("gallery", gallery, asked.device)
    lists = _read_lists(ground_truth, len(asked), len(items))
    searched = items
    if distractors is not None:
        searched = Joined([items, Vectors("distractors", distractors, asked.device)])
    comparable(asked, searched)
    asked.check()
    relevant, removed = (
        _together([lists[kind] for kind in _KINDS if (kind in _RELEVANT[setup]) == wanted]) for wanted in (True, False)
    )
    if not bool((relevant.counts > 0).any()):
        raise InputError(f"ground_truth has no relevant item for any query in setup {setup!r}; try another setup")
    found, take = per_query_values(_MEASURES, len(asked))
    exact_ranks(asked, searched, relevant, removed, take, progress)
    return Report.of(found, relevant.counts.numpy(), len(searched), name=name, settings={"setup": setup})


def _capped_precision(k: int, ranks: Ranks) -> Tensor:
    """Share of positives down to place k, or to the last positive if that comes first [query]."""
    place = 1 + ranks.before_pos + ranks.before_neg
    last = place.masked_fill(~ranks.valid, 0).amax(1).clamp(max=k)
    return ((place <= last[:, None]) & ranks.valid).sum(1) / last


_MEASURES = [
    Measure("mAP", trapezoid_average_precision, float("nan")),
    *(Measure(f"mP@{k}", lambda ranks, k=k: _capped_precision(k, ranks), float("nan")) for k in (1, 5, 10)),  # type: ignore[misc]
]


def _read_lists(ground_truth: Any, queries: int, items: int) -> dict[str, Lists]:
    if not isinstance(ground_truth, Sequence) or isinstance(ground_truth, str):
        raise InputTypeError(
            f"ground_truth must be a list of mappings with easy, hard and junk, got {type(ground_truth).__name__}; "
            "give the lists of a GroundTruth"
        )
    if len(ground_truth) != queries:
        raise InputError(
            f"ground_truth is of {len(ground_truth)} queries but queries has {queries} rows; give one entry per query"
        )
    rows: dict[str, list[Tensor]] = {kind: [] for kind in _KINDS}
    for i, entry in enumerate(ground_truth):
        if not isinstance(entry, Mapping) or (missing := [kind for kind in _KINDS if kind not in entry]):
            lacks = f"no {missing[0]!r}" if isinstance(entry, Mapping) else f"a {type(entry).__name__}"
            raise InputError(f"ground_truth[{i}] has {lacks}; it must be a mapping with easy, hard and junk")
        for kind in _KINDS:
            rows[kind].append(read_indices(f"ground_truth[{i}][{kind!r}]", entry[kind], items))
        values, counts = torch.cat([rows[kind][-1] for kind in _KINDS]).unique(return_counts=True)
        if bool((counts > 1).any()):
            twice = int(values[counts > 1][0])
            raise InputError(f"ground_truth[{i}] names item {twice} as two of easy, hard and junk; name it in one")
    return {kind: Lists(torch.cat(of), torch.tensor([len(x) for x in of])) for kind, of in rows.items()}


def _together(parts: list[Lists]) -> Lists:
    joined = parts[0]
    for part in parts[1:]:
        joined = joined.also(part)
    return joined


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
