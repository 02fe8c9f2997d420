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
    """The relevance of every parts-th query; to the others nothing is relevant, so that they are not looked at."""

    def __init__(self, relevance: Relevance, share: Share) -> None:
        self._all = relevance
        counts = relevance.counts
        others = torch.arange(len(counts), device=counts.device) % share.parts != share.part
        self.counts = counts.masked_fill(others, 0)
        self.used, self.most = int(self.counts.count_nonzero()), relevance.most

    def positives(self, queries: Tensor) -> Positives:
        return self._all.positives(queries)


def own_queries(relevance: Relevance) -> Relevance:
    """Return the relevance of the queries of this process's share, or of all of them."""
    share = current_share()
    return relevance if share is None else OwnQueries(relevance, share)
