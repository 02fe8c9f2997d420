"""The ranks of the positives: exact, relaxed by a sigmoid, or differentiated as a black box.

A relaxation takes scores [query, gallery], which it uses up, and the `Positives` of those queries. It returns
the `Ranks`, how many other positives and how many negatives stand before each positive, and a function that
turns slopes in the ranks into `Slopes` in the scores. A negative with the same score stands before a positive;
positives with the same score stand in any order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from frontrank.checks import check_number
from frontrank.ranking.metrics import Ranks
from frontrank.ranking.relevance import Positives
from frontrank.ranking.steps import FEW, TILE, count_at_or_above, counts_and_places, row_tiles


class ItemSlopes(Protocol):
    """d loss / d score of listed items as a function of the prepared scores; 0 for items not in the list.

    With at most `steps.FEW` positives a few numbers per query describe it, so it can be computed for any items at
    any time. With more it may be known only for the scores that were ranked.
    """

    def add_(self, prepared: Tensor, out: Tensor, dim: int = 0) -> None:
        """Add the slopes of prepared scores to out: both [query, item], or [item, query] with dim=1."""
        ...


class Slopes(NamedTuple):
    """d loss / d score: of the positives [query, positive], to be added to that of all items."""

    of_positives: Tensor
    of_items: ItemSlopes


Pull = Callable[[Tensor | None, Tensor, Tensor, Tensor], Slopes]
"""(d loss / d before_pos, or None for 0; d loss / d before_neg; d loss / d valid; weights) -> d loss / d score.

The slopes are those of each query's own loss; the weights [query, 1] scale the result. The first two are for ranks that
are wholly valid; the third matters where a relaxation makes ranks valid in part.
"""


class Relaxation(Protocol):
    """A way from scores to ranks and back. Without a `Pull` there is no gradient.

    Afterwards the scores are as the `ItemSlopes` want them: prepared.
    """

    def ranks(self, scores: Tensor, positives: Positives, slopes: bool = True) -> tuple[Ranks, Pull | None]: ...


@dataclass(frozen=True)
class Exact:
    """Counted ranks, without a gradient."""

    def ranks(self, scores: Tensor, positives: Positives, slopes: bool = True) -> tuple[Ranks, None]:
        own = scores.gather(1, positives.index)
        before_neg = count_at_or_above(positives.keep_negatives_(scores), own)
        return _ranks(among(own, positives.valid), before_neg, positives.valid), None


@dataclass(frozen=True)
class Sigmoid:
    """Every indicator [s_j > s_i] becomes 1 / (1 + exp((s_i - s_j) / temperature)) (smooth_ap Eq. 6)."""

    temperature: float = 0.01

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, above=0)

    def ranks(self, scores: Tensor, positives: Positives, slopes: bool = True) -> tuple[Ranks, Pull]:
        valid = positives.valid
        huge = torch.finfo(scores.dtype).max / 4  # finite, so that no difference is inf - inf
        own = scores.gather(1, positives.index).div_(self.temperature).clamp_(-huge, huge)  # [query, positive]
        among = own.masked_fill(~valid, -torch.inf)
        items = positives.keep_negatives_(scores).div_(self.temperature)
        before_neg, slope_neg, kept = _sigmoid_sums(items, own, slopes)
        before_pos, slope_pos, kept_pos = _sigmoid_sums(among, own, slopes)
        before_pos -= 0.5  # each positive was compared with itself

        def pull(in_pos: Tensor | None, in_neg: Tensor, in_valid: Tensor, weights: Tensor) -> Slopes:
            scale = valid * weights / self.temperature
            in_neg = in_neg * scale
            of_positives = -in_neg * slope_neg
            if in_pos is not None:
                in_pos = in_pos * scale
                of_positives -= in_pos * slope_pos
                _SigmoidSlopes(own, in_pos, kept_pos).add_(among, of_positives)
            return Slopes(of_positives, _SigmoidSlopes(own, in_neg, kept))

        return _ranks(before_pos, before_neg, valid), pull


@dataclass(frozen=True)
class Blackbox:
    """Exact ranks; pulled back is their change under scores + lam d loss / d rank (rambo Algorithm 1).

    The loss is that of one query: its weight in a mean scales the change, never the move. The margin lowers
    positives and raises negatives by half of it before ranking (Eq. 14). The ranks among positives are a constant of
    the backward pass. Only the positives move when perturbed, so negatives are counted against them and nothing but
    the positives is sorted.
    """

    lam: float = 4.0
    margin: float = 0.2

    def __post_init__(self) -> None:
        check_number("lam", self.lam, above=0)
        check_number("margin", self.margin, at_least=0)

    def ranks(self, scores: Tensor, positives: Positives, slopes: bool = True) -> tuple[Ranks, Pull]:
        valid = positives.valid
        own = scores.gather(1, positives.index).sub_(self.margin / 2)
        items = positives.keep_negatives_(scores).add_(self.margin / 2)
        before_neg, passed = _count(items, own)
        ranks = _ranks(among(own, valid), before_neg, valid)

        def pull(in_pos: Tensor | None, in_neg: Tensor, in_valid: Tensor, weights: Tensor) -> Slopes:
            scale = weights / self.lam
            moved = torch.addcmul(own, in_neg, valid.to(own.dtype), value=self.lam)
            before_neg, passed_after = _count(items, moved)
            after = _ranks(among(moved, valid), before_neg, valid)
            change = after.before_pos + after.before_neg - ranks.before_pos - ranks.before_neg
            of_items: ItemSlopes = _FewMoved(own, moved, scale)
            if passed is not None and passed_after is not None:
                of_items = _ManyMoved(passed.sub_(passed_after), scale)
            return Slopes(change * scale, of_items)

        return ranks, pull


def _ranks(before_pos: Tensor, before_neg: Tensor, valid: Tensor) -> Ranks:
    return Ranks(before_pos.masked_fill_(~valid, 0), before_neg.masked_fill_(~valid, 0), valid)


def among(scores: Tensor, valid: Tensor) -> Tensor:
    """How many other positives stand before each; equal ones in any order [query, positive]."""
    order = scores.masked_fill(~valid, -torch.inf).argsort(dim=1, descending=True, stable=True)
    place = torch.arange(scores.shape[1], dtype=scores.dtype, device=scores.device)
    return torch.empty_like(scores).scatter_(1, order, place.expand_as(scores))


def _tiles(items: Tensor, thresholds: int) -> Iterator[tuple[slice, slice]]:
    """Slices of the rows of items [row, item] and of the thresholds, each pair about a tile's worth."""
    for rows in row_tiles(items):
        size = max(1, items[rows].numel())
        few = thresholds if thresholds * size <= 2 * TILE else max(1, TILE // size)  # all at once: fewer calls
        yield from ((rows, slice(i, i + few)) for i in range(0, thresholds, max(1, few)))


def _sigmoid_sums(items: Tensor, thresholds: Tensor, slopes: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sums over items [query, item] of sigmoid(item - threshold) [query, threshold], and of its slope.

    Also the slopes themselves [threshold, query, item], where they are so few that one tile holds them.
    """
    sums, slope_sums = thresholds.new_zeros(2, *thresholds.T.shape)
    columns = _along(thresholds, dim=0)
    g = None
    for rows, some in _tiles(items, len(columns)):
        g = torch.sub(items[rows], columns[some, rows]).sigmoid_()  # [threshold, query, item]
        torch.sum(g, 2, out=sums[some, rows])
        if slopes:
            torch.sum(g.addcmul_(g, g, value=-1), 2, out=slope_sums[some, rows])
    kept = g if slopes and g is not None and g.shape == (*sums.shape, items.shape[1]) else None
    return sums.T.contiguous(), slope_sums.T, kept


def _count(items: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return how many items are at or above each threshold and, of many, how many thresholds each item passes."""
    if thresholds.shape[1] > FEW:
        return counts_and_places(items, thresholds)
    return count_at_or_above(items, thresholds), None


def _along(per_query: Tensor, dim: int) -> Tensor:
    """Values [query, k] as k tensors that broadcast with [query, item], or with [item, query] if dim is 1."""
    return per_query.T.contiguous()[:, :, None] if dim == 0 else per_query.T.contiguous()[:, None, :]


class _SigmoidSlopes(NamedTuple):
    """Sum over thresholds of weight x slope of sigmoid(item - threshold); both [query, threshold].

    slopes: those of the items that were ranked [threshold, query, item], if they were kept
    """

    thresholds: Tensor
    weights: Tensor
    slopes: Tensor | None

    def add_(self, prepared: Tensor, out: Tensor, dim: int = 0) -> None:
        if self.slopes is not None and dim == 0 and prepared.shape == self.slopes.shape[1:]:
            for slope, weight in zip(self.slopes, self.weights.T[:, :, None], strict=True):
                out.addcmul_(slope, weight)
            return
        thresholds, weights = _along(self.thresholds, dim), _along(self.weights, dim)
        for rows, some in _tiles(prepared, len(thresholds)):
            here = rows if dim == 0 else slice(None)
            g = torch.sub(prepared[rows], thresholds[some, here]).sigmoid_()  # [threshold, row, column]
            for slope, weight in zip(g.addcmul_(g, g, value=-1), weights[some, here], strict=True):
                out[rows].addcmul_(slope, weight)


class _FewMoved(NamedTuple):
    """A negative falls by one rank for each positive that overtakes it; before, after [query, positive].

    scale: what a rank is worth [query, 1]
    """

    before: Tensor
    after: Tensor
    scale: Tensor

    def add_(self, prepared: Tensor, out: Tensor, dim: int = 0) -> None:
        before, after, scale = _along(self.before, dim), _along(self.after, dim), _along(self.scale, dim)[0]
        for rows in row_tiles(prepared):
            here = rows if dim == 0 else slice(None)
            tile, target = prepared[rows], out[rows]
            above = torch.empty_like(tile)
            for thresholds in zip(before[:, here], after[:, here], strict=True):
                for threshold, sign in zip(thresholds, (1, -1), strict=True):  # together, so that equal ones cancel
                    target.addcmul_(torch.ge(tile, threshold, out=above), scale[here], value=sign)


class _ManyMoved(NamedTuple):
    """The same, known for all items of the queries [query, item]."""

    overtaken: Tensor
    scale: Tensor

    def add_(self, prepared: Tensor, out: Tensor, dim: int = 0) -> None:
        out.addcmul_(*(each if dim == 0 else each.T for each in self))
