"""Revisited Oxford and Paris: easy, hard and junk images per query.

Radenović, Iscen, Tolias, Avrithis, Chum: Revisiting Oxford and Paris: Large-Scale Image Retrieval Benchmarking,
CVPR 2018.
"""

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from frontrank.checks import check_choice
from frontrank.data.ground_truth import GroundTruth as GroundTruth
from frontrank.data.ground_truth import read_ground_truth as read_ground_truth
from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation.evaluate import rank_queries, read_indices
from frontrank.evaluation.measures import Measure
from frontrank.evaluation.report import Report
from frontrank.ranking import Lists, Ranks, Vectors, trapezoid_average_precision
from frontrank.ranking.vectors import VectorParts, make_comparable

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
    """Evaluate mAP and mP@1, 5, 10 as in the official code of ROxford and RParis, on the exact full ranking.

    ground_truth: for each query the gallery indices that are "easy", "hard" and "junk"
    setup:        "easy": easy is relevant, hard and junk are taken out of the ranking; "medium": easy and hard are
                  relevant, junk is taken out; "hard": hard is relevant, easy and junk are taken out
    distractors:  more items, relevant to no query, such as the million of R1M; may be a memory-mapped file

    AP is the area under straight lines between the points of the precision-recall curve. mP@k is the precision
    among the first k, or down to the last relevant item if that comes first. A query without a relevant item is left
    out. Unlike in the official code, a tie counts against the model, whatever the order of the items.
    """
    check_choice("setup", setup, get_args(Setup))
    asked = Vectors("queries", queries, device)
    items = Vectors("gallery", gallery, asked.device)
    lists = _read_lists(ground_truth, len(asked), len(items))
    searched = items
    if distractors is not None:
        searched = VectorParts([items, Vectors("distractors", distractors, asked.device)])
    make_comparable(asked, searched)
    asked.check()
    relevant, removed = (
        reduce(Lists.also, [lists[kind] for kind in _KINDS if (kind in _RELEVANT[setup]) == wanted])
        for wanted in (True, False)
    )
    if not bool((relevant.counts > 0).any()):
        raise InputError(f"ground_truth has no relevant item for any query in setup {setup!r}; try another setup")
    per_query = rank_queries(_MEASURES, asked, searched, relevant, removed, progress)
    return Report.of(per_query, relevant.counts.numpy(), len(searched), name=name, settings={"setup": setup})


def _precision_until_last(k: int, ranks: Ranks) -> Tensor:
    """Return the share of positives down to place k, or to the last positive if that comes first [query]."""
    place = 1 + ranks.before_pos + ranks.before_neg
    last = place.masked_fill(~ranks.valid, 0).amax(1).clamp(max=k)
    return ((place <= last[:, None]) & ranks.valid).sum(1) / last


_MEASURES = [
    Measure("mAP", trapezoid_average_precision, float("nan")),
    *(Measure(f"mP@{k}", partial(_precision_until_last, k), float("nan")) for k in (1, 5, 10)),
]


def _read_lists(ground_truth: Any, queries: int, items: int) -> dict[str, Lists]:
    if not isinstance(ground_truth, Sequence) or isinstance(ground_truth, str):
        kind = type(ground_truth).__name__
        raise InputTypeError(f"ground_truth must be a list with easy, hard and junk of each query, got a {kind}")
    if len(ground_truth) != queries:
        raise InputError(f"ground_truth has {len(ground_truth)} entries for {queries} queries; give one per query")
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
