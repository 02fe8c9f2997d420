"""Who is relevant to whom: the positives of each query, handed out a few queries at a time.

Nothing of size query x gallery is made from labels: a sort of the gallery's labels gives every
query its positives as one slice. An explicit matrix, where the user has one, is read by rows.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

MOST_LEVELS = 64  # of grades that are counted one by one


@dataclass(frozen=True)
class Positives:
    """The positives of a few queries, padded to the longest row.

    index:      gallery index of each positive [query, positive]; padding repeats a real positive
    valid:      False where `index` is padding [query, positive]
    own:        gallery index of the query itself, which is not in its own list [query], or None
    candidates: False for gallery items taken out of the list [query, gallery], or None
    grades:     how relevant each positive is [query, positive], or None where all are alike
    levels:     the grades that are counted one by one, in ascending order [level], or None
    """

    index: Tensor
    valid: Tensor
    own: Tensor | None = None
    candidates: Tensor | None = None
    grades: Tensor | None = None
    levels: Tensor | None = None

    def to(self, device: torch.device) -> "Positives":
        """The same on another device, from the host."""
        values = {name: value.to(device, non_blocking=True) for name, value in vars(self).items() if value is not None}
        return replace(self, **values)

    def rows(self, some: slice) -> "Positives":
        """Those of some of the queries."""
        values = {name: value[some] for name, value in vars(self).items() if value is not None and name != "levels"}
        return replace(self, **values)

    def members(self) -> Tensor:
        """Which positives have which level [level, query, positive]; without levels all are of one."""
        if self.levels is None or self.grades is None:
            return self.valid[None]
        return (self.grades == self.levels[:, None, None]) & self.valid

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


def is_nested(labels: Tensor) -> bool:
    """Whether each class is in one class of the next level; labels [item, level], finest first."""
    for fine, coarse in zip(labels.T, labels.T[1:], strict=False):
        if torch.stack([fine, coarse]).unique(dim=1).shape[1] != len(fine.unique()):
            return False
    return True


class Relevance(Protocol):
    """The positives of all queries.

    counts: how many positives each query has [query]
    used:   how many queries have one
    most:   positives of the query that has the most
    """

    counts: Tensor
    used: int
    most: int

    def positives(self, queries: Tensor) -> Positives:
        """The positives of some queries (their indices), each of which has at least one."""
        ...


def _summary(counts: Tensor) -> tuple[int, int]:
    """How many queries have a positive, and how many positives a query has at most; waits for the device once."""
    used, most = torch.stack([counts.count_nonzero(), counts.max()]).tolist() if len(counts) else (0, 0)
    return used, most


def _places(relevance: Relevance, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The places 0, 1, ... of positives [positive], and which are there [query, positive]; counts of some queries."""
    most = relevance.most if len(counts) == relevance.used else int(counts.max()) if len(counts) else 0
    step = torch.arange(most, device=counts.device)
    return step, step < counts[:, None]


class LabelRelevance:
    """Relevant = same label. Takes O(queries + gallery) memory.

    With `own`, query i is gallery item i and is left out of its own list; with `listed` it stays there, as a negative.
    """

    def __init__(self, labels: Tensor, gallery_labels: Tensor, own: bool, listed: bool = False) -> None:
        order = torch.argsort(gallery_labels, stable=True)
        ordered = gallery_labels[order]
        labels = labels.contiguous()
        first = torch.searchsorted(ordered, labels)
        self._set(order, first, torch.searchsorted(ordered, labels, right=True) - first, own, listed)

    def _set(self, order: Tensor, first: Tensor, sizes: Tensor, own: bool, listed: bool) -> None:
        """order: the gallery, classes together; first, sizes: where each query's class is in it."""
        self._order, self._first, self._sizes, self._own, self._listed = order, first, sizes, own, listed
        self.counts = sizes - 1 if own else sizes
        self.used, self.most = _summary(self.counts)
        if own:
            self._place = torch.empty_like(order)
            self._place[order] = torch.arange(len(order), device=order.device)

    def classes_together(self, rows: int) -> "tuple[Tensor | None, LabelRelevance, list[tuple[int, int]]]":
        """For a batch that is its own gallery: an order with classes together, the smallest first.

        None if the batch is to stay in its order. Also the relevance in the new order, and the bounds of blocks
        of about `rows` queries that cover all which have a positive and cut no class.
        """
        if 0 < len(self.counts) <= rows and self.used == len(self.counts):  # one block, in any order
            return None, self, [(0, len(self.counts))]
        order = self._order[self._sizes[self._order].argsort(stable=True)]
        sizes, first = self._sizes[order], self._first[order]
        here = torch.arange(len(order), device=order.device)
        starts = torch.ones_like(first, dtype=torch.bool)
        starts[1:] = first[1:] != first[:-1]
        relevance = LabelRelevance.__new__(LabelRelevance)
        relevance._set(here, torch.where(starts, here, 0).cummax(0)[0], sizes, self._own, self._listed)
        start = stop = len(self.counts) - self.used
        bounds = []
        if self.used <= rows:  # one block, for which nothing has to be known
            return order, relevance, [(start, len(order))] * bool(self.used)
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
        step, valid = _places(self, counts)
        place = self._first[queries, None] + step * valid
        if self._own:  # step over the query's own place in its class
            place += place >= self._place[queries, None]
        return Positives(self._order[place], valid, own=queries if self._own and not self._listed else None)


class LevelRelevance:
    """Labels of several levels, finest first [query, level]: the grade of an item is how many levels it shares.

    An item of a class is an item of the class above it too, so that whoever shares a level shares the coarsest.
    """

    def __init__(self, labels: Tensor, gallery_labels: Tensor, own: bool, by_level: bool) -> None:
        self._labels, self._gallery_labels = labels, gallery_labels
        self._coarsest = LabelRelevance(labels[:, -1], gallery_labels[:, -1], own)
        self._levels = torch.arange(1, labels.shape[1] + 1, device=labels.device) if by_level else None
        self.counts, self.used, self.most = self._coarsest.counts, self._coarsest.used, self._coarsest.most

    def positives(self, queries: Tensor) -> Positives:
        positives = self._coarsest.positives(queries)
        grades = (self._gallery_labels[positives.index] == self._labels[queries][:, None, :]).sum(2)
        return replace(positives, grades=grades, levels=self._levels)


class MatrixRelevance:
    """Relevant = True in a boolean matrix, or above 0 in one of grades [query, gallery]; `candidates` takes items out.

    With `own`, query i is gallery item i and is left out of its own list; with `listed` it stays there, as a negative.
    """

    def __init__(
        self,
        relevant: Tensor,
        candidates: Tensor | None,
        own: bool,
        listed: bool = False,
        by_level: bool = False,
    ) -> None:
        self._own, self._listed = own, listed
        self._candidates = candidates
        self._grades = None if relevant.dtype == torch.bool else relevant
        relevant = relevant if self._grades is None else relevant > 0
        self._relevant = relevant if candidates is None else relevant & candidates
        if own:
            self._relevant = self._relevant.clone().fill_diagonal_(False)
        self.counts = self._relevant.sum(1, dtype=torch.int32).long()  # twice as fast
        self.used, self.most = _summary(self.counts)
        self._levels = None if self._grades is None or not by_level else self._grades[self._relevant].unique()

    def positives(self, queries: Tensor) -> Positives:
        counts = self.counts[queries]
        step, valid = _places(self, counts)
        items = self._relevant[queries].nonzero()[:, 1]
        first = counts.cumsum(0) - counts
        index = items[first[:, None] + step * valid]
        return Positives(
            index,
            valid,
            own=queries if self._own and not self._listed else None,
            candidates=None if self._candidates is None else self._candidates[queries],
            grades=None if self._grades is None else self._grades[queries[:, None], index],
            levels=self._levels,
        )


class Lists:
    """A list of gallery items for each query: `items` one after the other, `counts` of them per query.

    grades: how relevant each of the items is, or None where all are alike
    """

    def __init__(self, items: Tensor, counts: Tensor, grades: Tensor | None = None) -> None:
        self.items, self.counts, self.grades = items, counts, grades
        levels = None if grades is None else grades.unique()
        self.levels = levels if levels is not None and len(levels) <= MOST_LEVELS else None
        self.used, self.most = _summary(counts)
        self._first = counts.cumsum(0) - counts

    @classmethod
    def of(cls, relevance: Relevance) -> "Lists":
        """The positives of all queries, written out."""
        used = relevance.counts.nonzero()[:, 0]
        parts = [relevance.positives(some) for some in used.split(4096) if len(some)]
        items = [positives.index[positives.valid] for positives in parts]
        grades = [positives.grades[positives.valid] for positives in parts if positives.grades is not None]
        return cls(torch.cat(items) if items else used, relevance.counts, torch.cat(grades) if grades else None)

    def without(self, other: "Lists") -> "Lists":
        """What is in these lists and not in the others."""
        if not len(self.items) or not len(other.items):
            return self
        size = 1 + int(torch.maximum(self.items.max(), other.items.max()))
        keep = ~torch.isin(self.queries * size + self.items, other.queries * size + other.items)
        grades = None if self.grades is None else self.grades[keep]
        return Lists(self.items[keep], torch.bincount(self.queries[keep], minlength=len(self.counts)), grades)

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
        step, valid = _places(self, counts)
        place = self._first[queries, None] + step * valid
        place = place.clamp(max=len(self.items) - 1)  # for empty lists
        grades = None if self.grades is None else self.grades[place]
        return Positives(self.items[place], valid, grades=grades, levels=self.levels)
