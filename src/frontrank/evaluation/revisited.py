"""Revisited Oxford and Paris: easy, hard and junk images per query, and the files that say which is which.

Radenović, Iscen, Tolias, Avrithis, Chum: Revisiting Oxford and Paris: Large-Scale Image Retrieval Benchmarking,
CVPR 2018.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation.evaluate import per_query_values
from frontrank.evaluation.inputs import read_indices
from frontrank.evaluation.measures import Measure
from frontrank.evaluation.report import Report
from frontrank.ranking import Lists, Ranks, Vectors, exact_ranks, trapezoid_average_precision
from frontrank.ranking.vectors import Joined, same_dimensions

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
    same_dimensions(asked, searched)
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
            f"ground_truth must be a list of mappings with easy, hard and junk, got {type(ground_truth).__name__}"
        )
    if len(ground_truth) != queries:
        raise InputError(f"ground_truth is of {len(ground_truth)} queries but queries has {queries} rows")
    rows: dict[str, list[Tensor]] = {kind: [] for kind in _KINDS}
    for i, entry in enumerate(ground_truth):
        if not isinstance(entry, Mapping) or (missing := [kind for kind in _KINDS if kind not in entry]):
            lacks = f"no {missing[0]!r}" if isinstance(entry, Mapping) else f"a {type(entry).__name__}"
            raise InputError(f"ground_truth[{i}] has {lacks}; it must be a mapping with easy, hard and junk")
        for kind in _KINDS:
            rows[kind].append(read_indices(f"ground_truth[{i}][{kind!r}]", entry[kind], items))
        values, counts = torch.cat([rows[kind][-1] for kind in _KINDS]).unique(return_counts=True)
        if bool((counts > 1).any()):
            raise InputError(f"ground_truth[{i}] names item {int(values[counts > 1][0])} as two of easy, hard and junk")
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


def read_ground_truth(path: str | Path) -> GroundTruth:
    """Read a gnd_roxford5k.pkl or gnd_rparis6k.pkl.

    The file is a pickle, which can run any code when it is loaded. This reader builds plain containers, numbers,
    text and numpy arrays of numbers, and refuses everything else.
    """
    try:
        with open(path, "rb") as file:
            content = _Unpickler(file, encoding="latin1").load()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; look at the path") from error
    except _RefusedError as error:
        raise InputError(f"{path} is refused: it would run {error}, which a ground-truth file does not need") from None
    except Exception as error:
        raise InputError(
            f"{path} is not a ground-truth pickle: {error or type(error).__name__}; copy it again"
        ) from error
    try:
        lists = [
            {kind: np.asarray(entry[kind], dtype=np.int64).reshape(-1) for kind in _KINDS} for entry in content["gnd"]
        ]
        boxes = [tuple(map(float, entry.get("bbx", ()))) for entry in content["gnd"]]
        images, queries = ([str(x) for x in content[key]] for key in ("imlist", "qimlist"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} lacks gnd (easy, hard, junk), imlist or qimlist; is it a gnd_*.pkl file?") from error
    if len(queries) != len(lists):
        raise InputError(f"{path} names {len(queries)} queries but has lists of {len(lists)}; copy it again")
    return GroundTruth(images, queries, lists, boxes)


class _RefusedError(Exception):
    """Something in a pickle that is more than data."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (found := _SAFE.get((module.replace("numpy._core", "numpy.core"), name))) is None:
            raise _RefusedError(f"{module}.{name}")
        return found


_ARRAY = object()  # stands for the class numpy.ndarray, which a pickle names but need not call


def _new_array(kind: Any, shape: Any, code: Any) -> "np.ndarray":
    if kind is not _ARRAY:
        raise _RefusedError("the constructor of something else than an array")
    return np.empty(0, np.int8)  # what follows in the pickle gives it its shape and values


def _number_type(code: Any, align: Any = False, copy: Any = True) -> "np.dtype[Any]":
    found = np.dtype(code, copy=True)  # a copy of its own, because the pickle goes on to set its byte order
    if found.kind not in "biufUS":
        raise _RefusedError(f"an array of {found}")
    return found


def _number(kind: "np.dtype[Any]", data: Any) -> Any:
    return np.frombuffer(data.encode("latin1") if isinstance(data, str) else data, kind, 1)[0]


def _encoded(text: str, encoding: str = "latin1") -> bytes:
    return text.encode(encoding)


_SAFE: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy.core.multiarray", "scalar"): _number,
    ("numpy.core.numeric", "_frombuffer"): lambda data, kind, shape, order: np.frombuffer(data, kind).reshape(
        shape, order=order
    ),
    ("numpy", "ndarray"): _ARRAY,
    ("numpy", "dtype"): _number_type,
    ("_codecs", "encode"): _encoded,
}
