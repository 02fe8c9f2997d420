"""A search as the page shows it: ranked rows, which of them are right, and the average precision of the query."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from frontrank.errors import InputError
from frontrank.ranking import Ranks, average_precision, precision
from frontrank.retrieval.filters import Condition, matches
from frontrank.retrieval.items import Item

if TYPE_CHECKING:
    from PIL.Image import Image

    from frontrank.retrieval.index import Index

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Expansion = bool | tuple[int, float] | None

EXPANDED = (10, 2.0)  # neighbours and the power of their scores, where an index has no expansion of its own


@dataclass(frozen=True, eq=False)
class Shown:
    """An index as the page shows it.

    name:  what the page calls it; letters, digits, blanks and . _ -
    embed: the embedding of a picture; None if only indexed pictures can be searched from
    roots: folders whose files may be shown; paths of items are seen from them
    model: the fingerprint of the model behind `embed`; the index refuses another one than its own
    """

    name: str
    index: "Index"
    embed: "Callable[[Image], NDArray[Any]] | None" = None
    roots: Sequence[Path] = ()
    model: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)


def check_name(name: str) -> None:
    """Refuse what the page cannot call an index."""
    if not (0 < len(name) <= 64 and all(each.isalnum() or each in " ._-" for each in name)):
        raise InputError(f"name {name!r} must be 1 to 64 letters, digits, blanks or . _ -; choose another one")


@dataclass(frozen=True, eq=False)
class Query:
    """What is searched from: an embedding, and the item and the label that it has, if they are known.

    stored: it is a vector as the index keeps it, so that it is not whitened again
    """

    vector: NDArray[Any]
    item: Item | None = None
    label: str | None = None
    model: str | None = None
    stored: bool = False


@dataclass(frozen=True)
class Row:
    """A result. `relevant` is None where labels are not known; `cost` is a wrong one's share of the AP that is lost."""

    place: int
    item: Item
    score: float
    relevant: bool | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Found:
    """The results of one index.

    looked:   places that were looked at, of which `rows` are the first
    relevant: right items in all of the index, as far as the filters let them through; None without labels
    points:   (recall, precision) at each right item that was found, in the order of the places
    average_precision: a right item beyond the places looked at counts as never found, so it is a lower bound then
    """

    rows: tuple[Row, ...]
    looked: int
    milliseconds: float = 0.0
    relevant: int | None = None
    points: tuple[tuple[float, float], ...] = ()
    average_precision: float | None = None

    @property
    def complete(self) -> bool:
        """Whether every right item was found, so that the average precision is the true one."""
        return self.relevant is not None and len(self.points) == self.relevant


def search(
    index: "Index", query: Query, k: int, conditions: Sequence[Condition] = (), expand: Expansion = None, depth: int = 0
) -> Found:
    """The first k items for a query without the query itself, judged by its label over the first `depth` places."""
    label = query.label
    own = query.item is not None and matches(conditions, query.item)
    wanted = max(k, depth if label is not None else 0)
    started = time.perf_counter()
    hits = index.search(
        np.asarray(query.vector)[None],
        wanted + own,
        filter=tuple(conditions),
        expand=expand,
        model=query.model,
        stored=query.stored,
    )[0]
    total = None
    if label is not None:
        alike = Condition("label", "=", (label,))
        total = index.count((*conditions, alike))
        total -= own and query.item is not None and query.item.label == label
    seconds = time.perf_counter() - started
    pairs = list(zip(hits.items, map(float, hits.scores), strict=True))
    pairs = [pair for pair in pairs if query.item is None or pair[0].id != query.item.id][:wanted]
    return judged(pairs, k, label, total, 1000 * seconds)


def judged(
    pairs: Sequence[tuple[Item, float]], k: int, label: str | None, total: int | None, milliseconds: float = 0.0
) -> Found:
    """The first k of some items in the order of their scores, each right if it has the label; total: of such items.

    >>> pairs = [(Item("a", label="cat"), 0.9), (Item("b", label="dog"), 0.8), (Item("c", label="cat"), 0.7)]
    >>> found = judged(pairs, 2, "cat", 2)
    >>> [(row.item.id, row.relevant) for row in found.rows], round(found.average_precision, 4)  # (1/1 + 2/3) / 2
    ([('a', True), ('b', False)], 0.8333)
    """
    if label is None or total is None:
        rows = tuple(Row(place, item, score) for place, (item, score) in enumerate(pairs[:k], 1))
        return Found(rows, len(pairs), milliseconds)
    right = np.array([item.label == label for item, _ in pairs], dtype=bool)
    scores = np.array([score for _, score in pairs], dtype=np.float64)
    total = max(total, int(right.sum()))  # an item may have been added between the search and the count
    ranks = ranks_of(scores, right)
    costs = _costs(right, total) if right.sum() == total else None
    rows = tuple(
        Row(i + 1, item, score, bool(right[i]), None if costs is None or right[i] else float(costs[i]))
        for i, (item, score) in enumerate(pairs[:k])
    )
    precisions = precision(ranks.before_pos, ranks.before_neg)[0].tolist()
    points = tuple(((j + 1) / total, value) for j, value in enumerate(precisions))
    # a mean over those found, scaled to a mean over all: what was not found has a precision of 0
    value = float(average_precision(ranks)[0]) * len(points) / total if points else 0.0
    return Found(rows, len(pairs), milliseconds, total, points, value if total else None)


def ranks_of(scores: Floats, right: Flags) -> Ranks:
    """What stands before each right item of a list, best first; ties are settled against it, as in `evaluate`.

    >>> ranks_of(np.array([0.9, 0.5, 0.5]), np.array([False, True, False])).before_neg
    tensor([[2.]], dtype=torch.float64)
    """
    wrong = np.sort(-scores[~right])
    before_neg = np.searchsorted(wrong, -scores[right], side="right")
    before_pos = np.arange(int(right.sum()))
    pos, neg = (torch.from_numpy(one.astype(np.float64))[None] for one in (before_pos, before_neg))
    return Ranks(pos, neg, torch.ones_like(pos, dtype=torch.bool))


def _costs(right: Flags, total: int) -> Floats:
    """What each wrong item of a complete list takes from the AP: 1 / place of every right item after it, / total."""
    share = right / np.arange(1, len(right) + 1, dtype=np.float64)
    return np.asarray(np.cumsum(share[::-1])[::-1] / max(1, total))
