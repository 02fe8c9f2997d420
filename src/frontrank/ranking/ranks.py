"""The ranks of the positives: exact, relaxed by a sigmoid or from above, or differentiated as a black box.

A relaxation takes scores [query, gallery], which it uses up, and the `Positives` of those queries. It returns
the `Ranks`, how many other positives and how many negatives stand before each positive, and a function that
turns slopes in the ranks into `Slopes` in the scores. A negative with the same score stands before a positive;
positives with the same score stand in any order.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from frontrank.checks import check_number
from frontrank.ranking.grid import MOST_POINTS, Grid
from frontrank.ranking.metrics import Ranks, RankSlopes
from frontrank.ranking.relevance import Positives
from frontrank.ranking.steps import FEW, along, count_at_or_above, counts_and_places
from frontrank.ranking.tiles import tiles

_FEW_SIGMOIDS = 32  # up to here the sigmoid of every difference is computed


class ItemSlopes(Protocol):
    """d loss / d score of listed items as a function of the prepared scores; 0 for items not in the list.

    With at most `steps.FEW` positives a few numbers per query describe it, so it can be computed for any items at
    any time. With more it may be known only for the scores that were ranked.
    """

    def add_(self, prepared: Tensor, out: Tensor, dim: int = 0) -> None:
        """Add the slopes of prepared scores to out: both [query, item], or [item, query] with dim=1."""
        ...

    def of_all(self, join: "Join") -> "ItemSlopes":
        """The same of the queries of all shares, where a few numbers per query describe it."""
        ...


class Slopes(NamedTuple):
    """d loss / d score: of the positives [query, positive], to be added to that of all items."""

    of_positives: Tensor
    of_items: ItemSlopes


Join = Callable[[Tensor], Tensor]
"""Numbers of the queries of this share [query, ...] -> those of the queries of all shares."""


Pull = Callable[[RankSlopes, Tensor], Slopes]
"""(slopes of each query's loss in its ranks; weight of each query [query, 1]) -> d (sum of weight x loss) / d score."""


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
        return make_ranks(count_positives(own, positives), before_neg, positives), None


@dataclass(frozen=True)
class Sigmoid:
    """Every indicator [s_j > s_i] becomes 1 / (1 + exp((s_i - s_j) / temperature)) (smooth_ap Eq. 6)."""

    temperature: float = 0.01

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, above=0)

    def ranks(self, scores: Tensor, positives: Positives, slopes: bool = True) -> tuple[Ranks, Pull]:
        own, items = _scale(scores, positives, self.temperature)
        grid = Grid(own) if own.dtype == torch.float32 and own.shape[1] > _FEW_SIGMOIDS else None
        sums = _StepSums if grid is None or grid.points > MOST_POINTS else partial(_GridSums, grid)
        negatives = sums(items, own, _sigmoid_step, slopes)
        levels = [
            (positives.valid, sums(own.masked_fill(~member, -torch.inf), own, _sigmoid_step, slopes))
            for member in positives.members()
        ]
        before_pos = torch.stack([level.sums for _, level in levels], 2)
        before_pos.add_(positives.members().permute(1, 2, 0), alpha=-0.5)  # each positive was compared with itself
        pull = _pull_steps(negatives, levels, self.temperature)
        return make_ranks(before_pos, negatives.sums, positives), pull


@dataclass(frozen=True)
class SupRank:
    """Ranks bounded from above: [s_j > s_i] of a less relevant item becomes a step that goes on rising (ROADMAP Eq. 5).

    With x = s_j - s_i the step is sigmoid(x / temperature) for x <= 0, 1/2 more up to delta, and from there a line of
    slope rho: a negative far above a positive is pulled down as strongly as one that is near. Positives that are at
    least as relevant are counted, and are a constant of the backward pass.
    """

    temperature: float = 0.01
    rho: float = 100.0
    delta: float = 0.05
    needs_levels: ClassVar[bool] = True  # to tell which positives are less relevant

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, above=0)
        check_number("rho", self.rho, at_least=0)
        check_number("delta", self.delta, at_least=0)

    def ranks(self, scores: Tensor, positives: Positives, slopes: bool = True) -> tuple[Ranks, Pull]:
        own, items = _scale(scores, positives, self.temperature)
        step = partial(_rising_step, end=self.delta / self.temperature, slope=self.rho * self.temperature)
        negatives = _StepSums(items, own, step, slopes)
        before_pos = count_positives(own, positives)
        lower: list[tuple[Tensor, _StepSums]] = []  # the positives above a level, and it, for all but the highest
        if positives.grades is not None and positives.levels is not None:
            for i, member in enumerate(positives.members()[:-1]):
                above = positives.grades > positives.levels[i]
                level = _StepSums(own.masked_fill(~member, -torch.inf), own, step, slopes)
                before_pos[:, :, i] = torch.where(above, level.sums, before_pos[:, :, i])
                lower.append((above, level))
        pull = _pull_steps(negatives, lower, self.temperature)
        return make_ranks(before_pos, negatives.sums, positives), pull


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
        own = scores.gather(1, positives.index).sub_(self.margin / 2)
        items = positives.keep_negatives_(scores).add_(self.margin / 2)
        before_neg, passed = _count(items, own)
        ranks = make_ranks(count_positives(own, positives), before_neg, positives)

        def pull(of_ranks: RankSlopes, weights: Tensor) -> Slopes:
            scale = weights / self.lam
            moved = torch.addcmul(own, of_ranks.before_neg, positives.valid.to(own.dtype), value=self.lam)
            before_neg, passed_after = _count(items, moved)
            after = make_ranks(count_positives(moved, positives), before_neg, positives)
            change = after.before_pos + after.before_neg - ranks.before_pos - ranks.before_neg
            of_items: ItemSlopes = _FewMoved(own, moved, scale)
            if passed is not None and passed_after is not None:
                of_items = _ManyMoved(passed.sub_(passed_after), scale)
            return Slopes(change * scale, of_items)

        return ranks, pull


def make_ranks(before_pos: Tensor, before_neg: Tensor, positives: Positives) -> Ranks:
    """Return the ranks without what is padding.

    before_pos: other positives of each level before each positive [query, positive, level]
    """
    valid, dtype = positives.valid, before_neg.dtype
    before_pos.mul_(valid[:, :, None])
    before_neg.mul_(valid)
    total = before_pos[:, :, 0] if before_pos.shape[2] == 1 else before_pos.sum(2)
    if positives.grades is None:
        return Ranks(total, before_neg, valid)
    by_level = None if positives.levels is None else before_pos
    levels = None if positives.levels is None else positives.levels.to(dtype)
    return Ranks(total, before_neg, valid, positives.grades.to(dtype), levels, by_level)


def _scale(scores: Tensor, positives: Positives, temperature: float) -> tuple[Tensor, Tensor]:
    """The scores of the positives [query, positive] and of the negatives [query, gallery] in units of a temperature."""
    huge = torch.finfo(scores.dtype).max / 4  # finite, so that no difference is inf - inf
    own = scores.gather(1, positives.index).div_(temperature).clamp_(-huge, huge)
    return own, positives.keep_negatives_(scores).div_(temperature)


def _pull_steps(negatives: "_Sums", levels: "Sequence[tuple[Tensor, _Sums]]", temperature: float) -> Pull:
    """The way back from sums of steps: over the negatives, and over the positives of each level.

    levels: of each the positives that are compared with it [query, positive], and its sums
    """

    def pull(of_ranks: RankSlopes, weights: Tensor) -> Slopes:
        scale, in_pos = weights / temperature, of_ranks.before_pos
        of_positives, of_items = negatives.pull(of_ranks.before_neg * scale)
        if in_pos is None:
            return Slopes(of_positives, of_items)
        for i, (compared, level) in enumerate(levels):
            in_level = in_pos[:, :, i] if in_pos.dim() == 3 else in_pos
            falling, rising = level.pull(in_level * compared * scale)
            of_positives += falling
            rising.add_(level.items, of_positives)
        return Slopes(of_positives, of_items)

    return pull


def count_positives(scores: Tensor, positives: Positives) -> Tensor:
    """How many other positives of each level stand before each [query, positive, level].

    Of those with the same score the less relevant stand before, then they are in any order.
    """
    scores = scores.masked_fill(~positives.valid, -torch.inf)
    if positives.grades is None:
        order = scores.argsort(dim=1, descending=True, stable=True)
    else:
        order = positives.grades.argsort(dim=1, stable=True)
        order = order.gather(1, scores.gather(1, order).argsort(dim=1, descending=True, stable=True))
    if positives.levels is None:
        place = torch.arange(scores.shape[1], dtype=scores.dtype, device=scores.device)
        return torch.empty_like(scores).scatter_(1, order, place.expand_as(scores))[:, :, None]
    members = positives.members().permute(1, 2, 0).to(scores.dtype)
    order = order[:, :, None].expand_as(members)
    ordered = members.gather(1, order)
    return torch.empty_like(members).scatter_(1, order, ordered.cumsum(1) - ordered)


class StepFunction(Protocol):
    """A relaxed step as a function of a difference in units of the temperature."""

    def __call__(self, difference: Tensor, total: Tensor | None = None, slopes: bool = True) -> Tensor:
        """Write the sum over the last dimension to total, if given; return the slopes, in place of the difference."""
        ...


def _sigmoid_step(difference: Tensor, total: Tensor | None = None, slopes: bool = True) -> Tensor:
    g = difference.sigmoid_()
    if total is not None:
        torch.sum(g, 2, out=total)
    return g.addcmul_(g, g, value=-1) if slopes else g


def _rising_step(
    difference: Tensor, total: Tensor | None = None, slopes: bool = True, *, end: float, slope: float
) -> Tensor:
    other = torch.empty_like(difference)  # comparisons are written as numbers: masks take several times as long
    if total is not None:
        halves = torch.gt(difference, 0, out=other).sum(2)
        rising = torch.sub(difference, end, out=other).clamp_(min=0).sum(2)
    far = torch.gt(difference, end, out=other)
    g = difference.clamp_(max=end).sigmoid_()
    if total is not None:
        torch.sum(g, 2, out=total).add_(rising, alpha=slope).add_(halves, alpha=0.5)
    if not slopes:
        return g
    at_end = 1 / (2 + 2 * math.cosh(min(end, 700.0)))  # the slope of a sigmoid there
    return g.addcmul_(g, g, value=-1).add_(far, alpha=slope - at_end)


class _StepSums:
    """Sums over items [query, item] of a step of item - threshold [query, threshold], and of its slope.

    Also the slopes themselves [threshold, query, item], where they are so few that one tile holds them.
    """

    def __init__(self, items: Tensor, thresholds: Tensor, step: StepFunction, slopes: bool) -> None:
        self.items, self.thresholds, self.step = items, thresholds, step
        sums, slope_sums = thresholds.new_empty(2, *thresholds.T.shape)
        columns = along(thresholds)
        g = None
        for rows, some in tiles(items, len(columns)):
            g = step(torch.sub(items[rows], columns[some, rows]), sums[some, rows], slopes)  # [threshold, query, item]
            if slopes:
                torch.sum(g, 2, out=slope_sums[some, rows])
        self.slopes = g if slopes and g is not None and g.shape == (*sums.shape, items.shape[1]) else None
        self.sums, self.slope_sums = sums.T, slope_sums.T

    def pull(self, weights: Tensor) -> "tuple[Tensor, _StepSlopes]":
        """The slopes of sum of weight x sum: in the thresholds, and in the items."""
        return -weights * self.slope_sums, _StepSlopes(self.thresholds, weights, self.slopes, self.step)


class _GridSums:
    """The same sums of sigmoids for many thresholds, within the rounding of float32."""

    def __init__(self, grid: Grid, items: Tensor, thresholds: Tensor, step: StepFunction, slopes: bool) -> None:
        self.grid, self.items, self.thresholds = grid, items, thresholds
        value, self.slope = grid.sigmoids
        points = grid.spread(items)
        self.sums = grid.read(points @ value, thresholds)
        self.slope_sums = grid.read(points @ self.slope, thresholds) if slopes else thresholds

    def pull(self, weights: Tensor) -> "tuple[Tensor, _GridSlopes]":
        """The slopes of sum of weight x sum: in the thresholds, and in the items."""
        return -weights * self.slope_sums, _GridSlopes(
            self.grid, self.grid.spread(self.thresholds, weights) @ self.slope
        )


class _GridSlopes(NamedTuple):
    """Their slopes on the points of the grid [query, point]; known for the queries that were ranked."""

    grid: Grid
    slopes: Tensor

    def add_(self, prepared: Tensor, out: Tensor, dim: int = 0) -> None:
        self.grid.add_(self.slopes, prepared, out)

    def of_all(self, join: Join) -> "_GridSlopes":
        raise NotImplementedError


def _count(items: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return how many items are at or above each threshold and, of many, how many thresholds each item passes."""
    if thresholds.shape[1] > FEW:
        return counts_and_places(items, thresholds)
    return count_at_or_above(items, thresholds), None


_Sums = _StepSums | _GridSums


class _StepSlopes(NamedTuple):
    """Sum over thresholds of weight x slope of a step of item - threshold; both [query, threshold].

    slopes: those of the items that were ranked [threshold, query, item], if they were kept
    """

    thresholds: Tensor
    weights: Tensor
    slopes: Tensor | None
    step: StepFunction

    def add_(self, prepared: Tensor, out: Tensor, dim: int = 0) -> None:
        if self.slopes is not None and dim == 0 and prepared.shape == self.slopes.shape[1:]:
            for slope, weight in zip(self.slopes, self.weights.T[:, :, None], strict=True):
                out.addcmul_(slope, weight)
            return
        thresholds, weights = along(self.thresholds, dim), along(self.weights, dim)
        for rows, some in tiles(prepared, len(thresholds)):
            here = rows if dim == 0 else slice(None)
            g = self.step(torch.sub(prepared[rows], thresholds[some, here]))  # [threshold, row, column]
            for slope, weight in zip(g, weights[some, here], strict=True):
                out[rows].addcmul_(slope, weight)

    def of_all(self, join: Join) -> "_StepSlopes":
        return _StepSlopes(join(self.thresholds), join(self.weights), None, self.step)


class _FewMoved(NamedTuple):
    """A negative falls by one rank for each positive that overtakes it; before, after [query, positive].

    scale: what a rank is worth [query, 1]
    """

    before: Tensor
    after: Tensor
    scale: Tensor

    def add_(self, prepared: Tensor, out: Tensor, dim: int = 0) -> None:
        before, after, scale = along(self.before, dim), along(self.after, dim), along(self.scale, dim)[0]
        for rows, some in tiles(prepared, len(before)):
            here = rows if dim == 0 else slice(None)
            tile = prepared[rows]
            above, after_move = tile.new_empty(2, len(before[some]), *tile.shape)
            torch.ge(tile, before[some, here], out=above)
            torch.ge(tile, after[some, here], out=after_move)
            for overtaken in above.sub_(after_move):  # 1 where a positive passes the item, -1 where it falls behind
                out[rows].addcmul_(overtaken, scale[here])

    def of_all(self, join: Join) -> "_FewMoved":
        return _FewMoved(join(self.before), join(self.after), join(self.scale))


class _ManyMoved(NamedTuple):
    """The same, known for all items of the queries [query, item]."""

    overtaken: Tensor
    scale: Tensor

    def add_(self, prepared: Tensor, out: Tensor, dim: int = 0) -> None:
        out.addcmul_(*(each if dim == 0 else each.T for each in self))

    def of_all(self, join: Join) -> "_ManyMoved":
        raise NotImplementedError
