"""A share of the work on all queries, for processes that hold the same embeddings and add up their results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from frontrank.ranking.relevance import Positives, Relevance


@dataclass(frozen=True)
class Share:
    """The share number `part` of so many parts; `add` returns the sum of a tensor over all of them."""

    part: int
    parts: int
    add: Callable[[Tensor], Tensor]

    def rows(self, start: int, stop: int) -> slice:
        """The rows of this share from start to stop."""
        first, last = (start + (stop - start) * part // self.parts for part in (self.part, self.part + 1))
        return slice(first, last)

    def join(self, own: Tensor, rows: slice, count: int) -> Tensor:
        """The rows of all shares [count, ...], given those of this one."""
        joined = own.new_zeros(count, *own.shape[1:])
        joined[rows] = own
        return self.add(joined)


_chosen: ContextVar[Share | None] = ContextVar("share", default=None)


def current_share() -> Share | None:
    """Return the share of this process, or None if it does all of the work."""
    return _chosen.get()


@contextmanager
def take_share(part: int, parts: int, add: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let a loss be its part of the sum over queries, and an evaluation multiply its part of the scores.

    The losses of all parts, and their gradients, add up to those of all queries. An evaluation adds up what the parts
    counted, by `add`, so that each of them returns the whole report.
    """
    token = _chosen.set(Share(part, parts, add))
    try:
        yield
    finally:
        _chosen.reset(token)


class OwnQueries:
    """The relevance of a share of the queries; to the others nothing is relevant, so that they are not looked at.

    Each share has about as many queries as any other, with about as many positives.
    """

    def __init__(self, relevance: Relevance, share: Share) -> None:
        self._all = relevance
        counts = relevance.counts
        order = counts.argsort(descending=True, stable=True)
        own = torch.zeros_like(counts).index_fill_(0, order[share.part :: share.parts], 1)
        self.counts = counts * own
        self.used, self.most = int(self.counts.count_nonzero()), relevance.most

    def positives(self, queries: Tensor) -> Positives:
        return self._all.positives(queries)


def own_queries(relevance: Relevance) -> Relevance:
    """Return the relevance of the queries of this process's share, or of all of them."""
    share = current_share()
    return relevance if share is None else OwnQueries(relevance, share)
