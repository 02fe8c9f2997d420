"""What a user hands to an evaluation, checked once: labels, relevance and ignored items, and their messages."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frontrank.errors import InputError, InputTypeError
from frontrank.ranking import LabelRelevance, Lists, Relevance
from frontrank.ranking.vectors import as_array


def read_labels(name: str, labels: Any, length: int, of: str) -> "np.ndarray":
    """Labels of any kind, numbers or text, one per row."""
    found = as_array(name, labels)
    if found.dtype == object:
        missing = [x is None or x != x for x in found.ravel()]
        found = found if any(missing) else np.asarray([str(x) for x in found.ravel()]).reshape(found.shape)
    if found.dtype.kind == "S":
        found = np.char.decode(found, "latin1")
    if found.dtype.kind not in "iubUS":
        what = "missing entries" if found.dtype == object else f"{found.dtype}"
        raise InputTypeError(f"{name} must be whole numbers or text, got {what}; give one label per row of {of}")
    if found.ndim != 1:
        raise InputError(
            f"{name} must have the shape (items,), got {found.shape}; for several labels per item give relevant"
        )
    if len(found) != length:
        raise InputError(f"{name} has {len(found):,} entries but {of} has {length:,} rows; give one label per row")
    return found


def coded(labels: "np.ndarray", gallery_labels: "np.ndarray | None") -> tuple[Tensor, Tensor]:
    """Labels of queries and gallery as numbers from 0; the same label has the same number."""
    if gallery_labels is None:
        codes = torch.from_numpy(np.unique(labels, return_inverse=True)[1].astype(np.int64))
        return codes, codes
    if (labels.dtype.kind in "US") != (gallery_labels.dtype.kind in "US"):
        kinds = ["text" if x.dtype.kind in "US" else "numbers" for x in (labels, gallery_labels)]
        raise InputTypeError(f"labels are {kinds[0]} and gallery_labels are {kinds[1]}; convert one to the other")
    if {labels.dtype, gallery_labels.dtype} == {np.dtype(np.int64), np.dtype(np.uint64)}:
        labels, gallery_labels = labels.astype(object), gallery_labels.astype(object)  # together they would be floats
    both = np.unique(np.concatenate([labels, gallery_labels]), return_inverse=True)[1].astype(np.int64)
    return torch.from_numpy(both[: len(labels)]), torch.from_numpy(both[len(labels) :])


def read_relevance(
    codes: tuple[Tensor, Tensor] | None, relevant: Any, ignored: Any, queries: int, items: int, own: bool
) -> tuple[Relevance, Lists | None]:
    """Who is relevant to whom, and what is taken out of the lists; `own`: query i is item i and in neither."""
    relevance: Relevance
    if relevant is None:
        assert codes is not None  # the caller has made sure
        relevance = LabelRelevance(*codes, own=own)
    else:
        relevance = read_lists("relevant", relevant, queries, items)
    removed = None if ignored is None else read_lists("ignored", ignored, queries, items)
    if own:
        itself = Lists(torch.arange(queries), torch.ones(queries, dtype=torch.long))
        relevance = relevance.without(itself) if isinstance(relevance, Lists) else relevance
        removed = None if removed is None else removed.without(itself)
    if removed is not None:
        relevance = Lists.of(relevance).without(removed)
    if not bool((relevance.counts > 0).any()):
        raise InputError(
            "no query has a relevant item, so there is nothing to rank; "
            + ("look at relevant and ignored" if relevant is not None else "look at labels and gallery_labels")
        )
    return relevance, removed


def read_lists(name: str, lists: Any, queries: int, items: int) -> Lists:
    """Gallery items of each query, from a boolean matrix or from a list of index arrays."""
    if isinstance(lists, np.ndarray) and lists.dtype == object and lists.ndim:
        lists = list(lists)
    if isinstance(lists, Tensor | np.ndarray) or _is_nested_bool(lists):
        found = as_array(name, lists)
        if found.dtype != bool:
            raise InputTypeError(
                f"{name} must be a boolean matrix or a list of index arrays, got an array of {found.dtype}; "
                f"use {name}.astype(bool) for a matrix, list({name}) for indices"
            )
        if found.shape != (queries, items):
            raise InputError(f"{name} must have the shape (queries, gallery) = ({queries}, {items}), got {found.shape}")
        matrix = torch.from_numpy(found.copy())
        return Lists(matrix.nonzero()[:, 1], matrix.sum(1))
    if not isinstance(lists, Sequence) or isinstance(lists, str):
        raise InputTypeError(
            f"{name} must be a boolean matrix or a list of index arrays, one per query, got {type(lists).__name__}"
        )
    if len(lists) != queries:
        raise InputError(f"{name} has {len(lists):,} lists for {queries:,} queries; give one per query, empty if none")
    rows = [read_indices(f"{name}[{i}]", of, items) for i, of in enumerate(lists)]
    return Lists(torch.cat(rows), torch.tensor([len(of) for of in rows]))


def read_indices(name: str, indices: Any, items: int) -> Tensor:
    """Some gallery items by their index, each once."""
    found = as_array(name, indices)
    if found.size == 0:
        return torch.empty(0, dtype=torch.long)
    if found.dtype.kind not in "iu" or found.ndim != 1:
        raise InputTypeError(f"{name} must be a list of whole numbers, got {found.dtype} of shape {found.shape}")
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= items:
        raise InputError(f"{name} names item {low if low < 0 else high}, but the gallery has items 0 to {items - 1}")
    values, counts = np.unique(found, return_counts=True)
    if len(values) < len(found):
        raise InputError(f"{name} names item {values[counts > 1][0]} more than once; name each item once")
    return torch.from_numpy(values.astype(np.int64))


def _is_nested_bool(lists: Any) -> bool:
    """Is it a list of rows of True and False?"""
    if not isinstance(lists, Sequence) or isinstance(lists, str):
        return False
    rows = [row for row in lists if isinstance(row, Sequence | np.ndarray | Tensor) and len(row)]
    return bool(rows) and all(isinstance(x, bool | np.bool_) for row in rows[:8] for x in list(row)[:8])
