"""Who is relevant to whom: the positives of each query, handed out a few queries at a time.

Nothing of size query x gallery is made from labels: a sort of the gallery's labels gives every
query its positives as one slice. An explicit matrix, where the user has one, is read by rows.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Positives:
    """The positives of a few queries, padded to the longest row.

    index:      gallery index of each positive [query, positive]; padding repeats a real positive
    valid:      False where `index` is padding [query, positive]
    own:        gallery index of the query itself, which is not in its own list [query], or None
    candidates: False for gallery items taken out of the list [query, gallery], or None
    """

    index: Tensor
    valid: Tensor
    own: Tensor | None = None
    candidates: Tensor | None = None

    def keep_negatives_(self, scores: Tensor) -> Tensor:
        """The scores [query, gallery], in place, with -inf for all that is not a negative."""
        return self.keep_listed_(scores).scatter_(1, self.index, -torch.inf)

    def keep_listed_(self, scores: Tensor, other: float = -torch.inf) -> Tensor:
        """The scores [query, gallery], in place, with another value for all that is not in the list."""
        if self.own is not None:
            scores.scatter_(1, self.own[:, None], other)
        if self.candidates is not None:
            scores.masked_fill_(~self.candidates, other)
        return scores


class Relevance(Protocol):
    """The positives of all queries; `counts` says how many each query has."""

    counts: Tensor

    def positives(self, queries: Tensor) -> Positives:
        """The positives of some queries (their indices), each of which has at least one."""
        ...


class LabelRelevance:
    """Relevant = same label. Takes O(queries + gallery) memory.

    With `own`, query i is gallery item i and is left out of its own list.
    """

    def __init__(self, labels: Tensor, gallery_labels: Tensor, own: bool) -> None:
        order = torch.argsort(gallery_labels, stable=True)
        ordered = gallery_labels[order]
        first = torch.searchsorted(ordered, labels)
        self._set(order, first, torch.searchsorted(ordered, labels, right=True) - first, own)

    def _set(self, order: Tensor, first: Tensor, sizes: Tensor, own: bool) -> None:
        """order: the gallery, classes together; first, sizes: where each query's class is in it."""
        self._order, self._first, self._sizes, self._own = order, first, sizes, own
        self.counts = sizes - 1 if own else sizes
        if own:
            self._place = torch.empty_like(order)
            self._place[order] = torch.arange(len(order), device=order.device)

    def classes_together(self, rows: int) -> "tuple[Tensor | None, LabelRelevance, list[tuple[int, int]]]":
        """For a batch that is its own gallery: an order with classes together, the smallest first.

        None if the batch is to stay in its order. Also the relevance in the new order, and the bounds of blocks
        of about `rows` queries that cover all which have a positive and cut no class.
        """
        if 0 < len(self.counts) <= rows and bool((self.counts > 0).all()):  # one block, in any order
            return None, self, [(0, len(self.counts))]
        order = self._order[self._sizes[self._order].argsort(stable=True)]
        sizes, first = self._sizes[order], self._first[order]
        here = torch.arange(len(order), device=order.device)
        starts = torch.ones_like(first, dtype=torch.bool)
        starts[1:] = first[1:] != first[:-1]
        relevance = LabelRelevance.__new__(LabelRelevance)
        relevance._set(here, torch.where(starts, here, 0).cummax(0)[0], sizes, self._own)
        start = stop = int((self.counts == 0).sum())
        bounds = []
        for edge in [*starts.nonzero()[:, 0].tolist(), len(order)]:
            if edge > start + rows and stop > start:
                bounds.append((start, stop))
                start = stop
            stop = max(stop, edge)
        if stop > start:
            bounds.append((start, stop))
        return None if bool((order == here).all()) else order, relevance, bounds

    def positives(self, queries: Tensor) -> Positives:
        counts = self.counts[queries]
        step = torch.arange(int(counts.max()), device=queries.device)
        valid = step < counts[:, None]
        place = self._first[queries, None] + torch.where(valid, step, 0)
        if self._own:  # step over the query's own place in its class
            place += place >= self._place[queries, None]
        return Positives(self._order[place], valid, own=queries if self._own else None)


class MatrixRelevance:
    """Relevant = True in a boolean matrix [query, gallery]; `candidates` takes items out."""

    def __init__(self, relevant: Tensor, candidates: Tensor | None, own: bool) -> None:
        self._own = own
        self._candidates = candidates
        self._relevant = relevant if candidates is None else relevant & candidates
        if own:
            self._relevant = self._relevant.clone().fill_diagonal_(False)
        self.counts = self._relevant.sum(1)

    def positives(self, queries: Tensor) -> Positives:
        counts = self.counts[queries]
        step = torch.arange(int(counts.max()), device=queries.device)
        valid = step < counts[:, None]
        items = self._relevant[queries].nonzero()[:, 1]
        first = counts.cumsum(0) - counts
        index = items[first[:, None] + torch.where(valid, step, 0)]
        return Positives(
            index,
            valid,
            own=queries if self._own else None,
            candidates=None if self._candidates is None else self._candidates[queries],
        )


class Lists:
    """A list of gallery items for each query: `items` one after the other, `counts` of them per query."""

    def __init__(self, items: Tensor, counts: Tensor) -> None:
        self.items, self.counts = items, counts
        self._first = counts.cumsum(0) - counts

    @classmethod
    def of(cls, relevance: Relevance) -> "Lists":
        """The positives of all queries, written out."""
        used = relevance.counts.nonzero()[:, 0]
        parts = [relevance.positives(some) for some in used.split(4096) if len(some)]
        items = [positives.index[positives.valid] for positives in parts]
        return cls(torch.cat(items) if items else used, relevance.counts)

    def without(self, other: "Lists") -> "Lists":
        """What is in these lists and not in the others."""
        if not len(self.items) or not len(other.items):
            return self
        size = 1 + int(torch.maximum(self.items.max(), other.items.max()))
        keep = ~torch.isin(self.queries * size + self.items, other.queries * size + other.items)
        return Lists(self.items[keep], torch.bincount(self.queries[keep], minlength=len(self.counts)))

    def also(self, other: "Lists") -> "Lists":
        """What is in these lists or in the others, which have nothing in common."""
        queries = torch.cat([self.queries, other.queries])
        return Lists(torch.cat([self.items, other.items])[queries.argsort(stable=True)], self.counts + other.counts)

    @property
    def queries(self) -> Tensor:
        """The query of each item."""
        return torch.arange(len(self.counts)).repeat_interleave(self.counts)

    def positives(self, queries: Tensor) -> Positives:
        counts = self.counts[queries]
        step = torch.arange(int(counts.max()) if len(counts) else 0)
        valid = step < counts[:, None]
        place = self._first[queries, None] + torch.where(valid, step, 0)
        return Positives(self.items[place.clamp(max=len(self.items) - 1)], valid)  # the clamp is for empty lists
