"""Metrics on the ranks of the positives: one definition each, for the losses and for evaluation.

A positive i of a query has `before_pos` (R_P) other positives and `before_neg` (R_N) negatives
before it. On exact ranks the functions below are the metrics of evaluation; on relaxed ranks the
same functions, as the `pair_loss` of a `PairMetric`, are the losses of the papers.
"""

import contextvars
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, get_args, runtime_checkable

import torch
from torch import Tensor

from frontrank.checks import check_choice, check_integer, check_number
from frontrank.errors import InputError, InputTypeError
from frontrank.ranking.integral import Integral, check_derivative

Variant = Literal["O", "I_u", "I_b", "D_s", "D_q"]
Weighting = Literal["log", "loglog"]
MOST_GRADE = 100  # of NDCG: sums of 2^grade are finite


P = ParamSpec("P")
T = TypeVar("T")

_FAR = 60.0  # where a sigmoid is 0 or 1, and its slope next to nothing but no denormal number


def call_with_autograd(function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """Call a function that differentiates, where autograd records.

    It does not inside an operation of a compiled graph, but in another thread it does.
    """
    with torch.enable_grad():
        if (torch.ones((), requires_grad=True) * 1).requires_grad:
            return function(*args, **more)
    stream = torch.accelerator.current_stream() if torch.accelerator.is_available() else None

    def call() -> T:
        if stream is not None:
            torch.accelerator.set_stream(stream)
        return function(*args, **more)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(contextvars.copy_context().run, call).result()


class Ranks(NamedTuple):
    """What stands before each positive; the first three are [query, positive], padding is not valid.

    With `Bins`, centres of bins take the place of positives; each is as valid as there are positives in its bin.
    Where relevance has grades: the grade of each positive [query, positive] or None if all are alike, and for metrics
    that count by level the levels [level] and the other positives of each before it [query, positive, level].
    """

    before_pos: Tensor
    before_neg: Tensor
    valid: Tensor
    grades: Tensor | None = None
    levels: Tensor | None = None
    before_level: Tensor | None = None

    def mean(self, per_pair: Tensor) -> Tensor:
        """Mean of a value per (query, positive) over each query's positives [query]."""
        return (per_pair * self.valid).sum(1) / self.valid.sum(1)


class RankSlopes(NamedTuple):
    """The slopes of each query's loss in its `Ranks`: all [query, positive].

    before_pos: None stands for 0; [query, positive, level] if the positives before are counted by level
    valid:      matters where a relaxation makes ranks valid in part
    """

    before_pos: Tensor | None
    before_neg: Tensor
    valid: Tensor


def precision(before_pos: Tensor, before_neg: Tensor) -> Tensor:
    """Share of positives among all items down to this one: (1 + R_P) / (1 + R_P + R_N)."""
    positives = 1 + before_pos
    return positives / (positives + before_neg)


def average_precision(ranks: Ranks) -> Tensor:
    """Mean of the precision at each positive [query] (smooth_ap Eq. 5, rambo Eq. 4).

    >>> one_negative_first = Ranks(*(torch.tensor([row]) for row in ([0., 1.], [1., 1.], [True, True])))
    >>> average_precision(one_negative_first)  # (1/2 + 2/3) / 2
    tensor([0.5833])
    """
    return ranks.mean(precision(ranks.before_pos, ranks.before_neg))


def recall_at(ranks: Ranks, k: int) -> Tensor:
    """1 where any positive is among the first k of the list, else 0 [query] (rambo Eq. 7)."""
    return _first(ranks, k).any(1).to(ranks.before_neg.dtype)


def r_precision(ranks: Ranks) -> Tensor:
    """Share of positives among the first R items, R = the number of positives [query]."""
    return ranks.mean(_first(ranks, _relevant(ranks)).to(ranks.before_neg.dtype))


def map_at_r(ranks: Ranks) -> Tensor:
    """Average precision in which only positives among the first R items count [query]."""
    first = _first(ranks, _relevant(ranks))
    return ranks.mean(precision(ranks.before_pos, ranks.before_neg) * first)


def precision_at(ranks: Ranks, k: int) -> Tensor:
    """Share of positives among the first k places; a list that is shorter has empty ones [query]."""
    return _first(ranks, k).sum(1).to(ranks.before_neg.dtype) / k


def reciprocal_rank(ranks: Ranks) -> Tensor:
    """1 / the place of the first positive [query]."""
    place = (1 + ranks.before_pos + ranks.before_neg).masked_fill(~ranks.valid, torch.inf)
    return 1 / place.amin(1)


def trapezoid_average_precision(ranks: Ranks) -> Tensor:
    """The area under the precision-recall curve with straight lines between its points [query].

    Each positive contributes the mean of the precision before and at it; before the first item it is 1. This is how
    the Oxford and Paris buildings, and their revisited versions, are evaluated.
    """
    before = ranks.before_pos + ranks.before_neg
    earlier = torch.where(before > 0, ranks.before_pos / before.clamp(min=1), 1.0)
    return ranks.mean((earlier + precision(ranks.before_pos, ranks.before_neg)) / 2)


def ndcg(ranks: Ranks, k: int | None = None) -> Tensor:
    """Discounted gain of the positives over that of the best order [query]; of the first k places, if k is given.

    The gain of a positive is 2^grade - 1, its discount log2(1 + place).

    >>> coarse_first = Ranks(*(torch.tensor([row]) for row in ([0., 1.], [0., 0.], [True, True], [1., 2.])))
    >>> ndcg(coarse_first)  # (1 + 3 / log2(3)) / (3 + 1 / log2(3))
    tensor([0.7967])
    """
    place = 1 + ranks.before_pos + ranks.before_neg
    gain = (_gain(ranks.grades) if ranks.grades is not None else torch.ones_like(place)) * ranks.valid
    discount = torch.log2(1 + place)
    first = torch.ones_like(place) if k is None else (place <= k).to(place.dtype)
    return (gain * first / discount).sum(1) / _ideal_gain(gain.detach(), ranks, k)


def _gain(grades: Tensor) -> Tensor:
    if grades.numel() and (largest := float(grades.max())) > MOST_GRADE:
        raise InputError(f"relevant has the grade {largest:g}, and NDCG takes at most {MOST_GRADE}; divide all grades")
    return torch.expm1(grades * math.log(2))


def _ideal_gain(gain: Tensor, ranks: Ranks, k: int | None) -> Tensor:
    """The discounted gain of the best order [query]."""
    if ranks.valid.dtype != torch.bool:  # bins: a centre for each level, so many places as it has positives
        counts = ranks.valid.unflatten(1, (1 if ranks.levels is None else len(ranks.levels), -1)).sum(2).round()
        of_levels = torch.ones_like(counts) if ranks.levels is None else _gain(ranks.levels)
        last = counts.flip(1).cumsum(1).flip(1)  # [query, level]
        first = last - counts
        place = torch.arange(int(last.max()), dtype=gain.dtype, device=gain.device)
        taken = (place >= first[..., None]) & (place < last[..., None])  # [query, level, place]
        gain = (taken * of_levels[..., None]).sum(1)
    gain = gain.sort(1, descending=True)[0][:, :k]
    place = torch.arange(1, gain.shape[1] + 1, dtype=gain.dtype, device=gain.device)
    return (gain / torch.log2(1 + place)).sum(1).clamp(min=torch.finfo(gain.dtype).tiny)


def hierarchical_average_precision(ranks: Ranks, alpha: float = 1.0) -> Tensor:
    """Average precision in which a positive counts as much as it is relevant [query] (happier Eq. 3).

    sum over i of Hrank_i / place_i / sum over i of rel_i, Hrank_i = rel_i + sum over j before i of min(rel_i, rel_j);
    the relevance of an item of grade l is l^alpha / how many of the query's items have that grade.

    >>> coarse_first = Ranks(
    ...     *(torch.tensor([row]) for row in ([0., 1.], [0., 0.], [True, True], [1., 2.])),
    ...     torch.tensor([1., 2.]), torch.tensor([[[0., 0.], [1., 0.]]]),
    ... )
    >>> hierarchical_average_precision(coarse_first)  # (1 + (2 + 1) / 2) / 3
    tensor([0.8333])
    """
    grades, levels, before = ranks.grades, ranks.levels, ranks.before_level
    if grades is None or levels is None or before is None:
        return average_precision(ranks)
    member = (grades[..., None] == levels) * ranks.valid[..., None]  # [query, positive, level]
    counts = member.sum(1)  # [query, level]; a level that nobody has counts nothing
    largest = (levels * (counts > 0)).amax(1, keepdim=True)  # so that no power of a small grade is 0
    of_levels = (levels / largest).clamp(max=1) ** alpha / counts.clamp(min=1)
    own = (member * of_levels[:, None]).sum(2)  # rel_i, times how valid i is
    shared = torch.minimum((member > 0).to(own.dtype) @ of_levels[..., None], of_levels[:, None])  # min(rel_i, rel_l)
    rank = own + (shared * before).sum(2) * ranks.valid
    return (rank / (1 + ranks.before_pos + ranks.before_neg)).sum(1) / own.sum(1)


def _relevant(ranks: Ranks) -> Tensor:
    return ranks.valid.sum(1, keepdim=True)


def _first(ranks: Ranks, k: int | Tensor) -> Tensor:
    return (ranks.before_pos + ranks.before_neg < k) & ranks.valid


@runtime_checkable
class PairMetric(Protocol):
    """A loss for each (query, positive) pair as a function of its two ranks; 0 is perfect."""

    def pair_loss(self, before_pos: Tensor, before_neg: Tensor) -> Tensor: ...

    def pair_slopes(self, before_pos: Tensor, before_neg: Tensor) -> tuple[Tensor | None, Tensor]:
        """The derivatives of `pair_loss` in both ranks; None stands for 0."""
        ...


@dataclass(frozen=True)
class AveragePrecision:
    """1 - AP: the loss of Smooth-AP (Eq. 7) and of RaMBO (Eq. 22)."""

    def pair_loss(self, before_pos: Tensor, before_neg: Tensor) -> Tensor:
        return 1 - precision(before_pos, before_neg)  # of infinitely many negatives 1

    def pair_slopes(self, before_pos: Tensor, before_neg: Tensor) -> tuple[Tensor, Tensor]:
        positives = 1 + before_pos
        square = (positives + before_neg) ** 2
        return -before_neg / square, positives / square


@dataclass(frozen=True)
class Recall:
    """log(1 + R_N), or log(1 + log(1 + R_N)) with weighting "loglog" (rambo Eq. 20)."""

    weighting: Weighting = "loglog"

    def __post_init__(self) -> None:
        check_choice("weighting", self.weighting, get_args(Weighting))

    def pair_loss(self, before_pos: Tensor, before_neg: Tensor) -> Tensor:
        loss = torch.log1p(before_neg)
        return torch.log1p(loss) if self.weighting == "loglog" else loss

    def pair_slopes(self, before_pos: Tensor, before_neg: Tensor) -> tuple[None, Tensor]:
        slope = 1 / (1 + before_neg)
        return None, slope / (1 + torch.log1p(before_neg)) if self.weighting == "loglog" else slope


class ListMetric(Protocol):
    """A loss for each query as a function of all its ranks; 0 is perfect. Autograd gives its slopes.

    graded:   looks at the grades of the positives
    by_level: looks at how many positives of each level stand before
    """

    graded: ClassVar[bool]
    by_level: ClassVar[bool]

    def list_loss(self, ranks: Ranks) -> Tensor: ...


def list_slopes(metric: ListMetric, ranks: Ranks) -> tuple[Tensor, RankSlopes]:
    """A metric's `list_loss` and its slopes in the ranks.

    Those that are next to nothing are 0: a product with denormal numbers takes several times as long.
    """
    if isinstance(metric, RecallAtK) and ranks.valid.dtype == torch.bool:
        return metric.loss_and_slopes(ranks)
    return call_with_autograd(_list_slopes, metric, ranks)


def _list_slopes(metric: ListMetric, ranks: Ranks) -> tuple[Tensor, RankSlopes]:
    dtype = ranks.before_neg.dtype
    by_level = ranks.before_level is not None
    with torch.enable_grad():
        before = (ranks.before_level if ranks.before_level is not None else ranks.before_pos).detach().requires_grad_()
        negatives = ranks.before_neg.detach().requires_grad_()
        soft = ranks.valid.dtype != torch.bool
        valid = ranks.valid.detach().requires_grad_() if soft else ranks.valid
        relaxed = ranks._replace(
            before_pos=before.sum(2) if by_level else before,
            before_neg=negatives,
            valid=valid,
            before_level=before if by_level else None,
        )
        leaves = [before, negatives, valid] if soft else [before, negatives]
        losses = metric.list_loss(relaxed)
        grads = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
    least = torch.finfo(dtype).tiny ** 0.75
    kept = [grad.masked_fill(grad.abs() < least, 0) for grad in grads]
    in_valid = kept[2] if soft else torch.zeros_like(negatives, dtype=dtype)
    return losses.detach(), RankSlopes(kept[0], kept[1], in_valid)


@dataclass(frozen=True)
class RecallAtK:
    """1 - the mean over ks of recall at k, whose step at place k is a sigmoid (recall_at_k Eq. 4 to 6).

    For each k: min(k, sum over positives of sigmoid((k - place) / rank_temperature)) / min(k, |P|).
    """

    ks: tuple[int, ...] = (1, 2, 4, 8, 16)
    rank_temperature: float = 1.0
    graded: ClassVar[bool] = False
    by_level: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.ks, tuple | list):
            raise InputTypeError(f"ks must be whole numbers such as (1, 2, 4), got {self.ks!r}")
        object.__setattr__(self, "ks", tuple(self.ks))
        if not self.ks:
            raise InputError("ks must have at least one number, such as (1, 2, 4), got ()")
        for k in self.ks:
            check_integer("ks", k, at_least=1)
        check_number("rank_temperature", self.rank_temperature, above=0)

    def list_loss(self, ranks: Ranks) -> Tensor:
        k, _, among, most = self._counts(ranks)
        return 1 - (among.clamp(max=k) / most).mean(0)

    def loss_and_slopes(self, ranks: Ranks) -> tuple[Tensor, RankSlopes]:
        """The loss and its slopes in ranks that are valid or not; a few kernels, without autograd."""
        k, is_among, among, most = self._counts(ranks)
        of_each = ((among <= k) / most)[:, :, None] * torch.addcmul(is_among, is_among, is_among, value=-1)
        in_rank = of_each.sum(0).div_(len(self.ks) * self.rank_temperature)
        return 1 - (among.clamp(max=k) / most).mean(0), RankSlopes(in_rank, in_rank, in_rank)

    def _counts(self, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(k [k, 1], whether positives are among the first k [k, query, positive], how many, at most [k, query])."""
        before = ranks.before_pos + ranks.before_neg
        k = torch.tensor(self.ks, dtype=before.dtype).to(before.device, non_blocking=True)[:, None]
        last = (k[:, :, None] - 1) / self.rank_temperature
        is_among = torch.sub(last, before, alpha=1 / self.rank_temperature).clamp(-_FAR, _FAR).sigmoid() * ranks.valid
        return k, is_among, is_among.sum(2), ranks.valid.sum(1).clamp(max=k)


@dataclass(frozen=True)
class NDCG:
    """1 - NDCG: the gain of a positive is 2^grade - 1, its discount log2(1 + place)."""

    graded: ClassVar[bool] = True
    by_level: ClassVar[bool] = False

    def list_loss(self, ranks: Ranks) -> Tensor:
        return 1 - ndcg(ranks)


@dataclass(frozen=True)
class HierarchicalAP:
    """1 - hierarchical AP, which counts a positive as much as it is relevant (happier Eq. 3)."""

    alpha: float = 1.0
    graded: ClassVar[bool] = True
    by_level: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, at_least=0)

    def list_loss(self, ranks: Ranks) -> Tensor:
        return 1 - hierarchical_average_precision(ranks, self.alpha)


@dataclass(frozen=True)
class MeanAveragePrecisionAtR:
    """1 - mAP@R: AP in which only positives among the first R = |P| places count.

    Whether a positive counts has no gradient, so that positives further down are not pulled up.
    """

    graded: ClassVar[bool] = False
    by_level: ClassVar[bool] = False

    def list_loss(self, ranks: Ranks) -> Tensor:
        first = (
            ranks.before_pos + ranks.before_neg < ranks.valid.sum(1, keepdim=True) - 0.5
        )  # relaxed ranks are between
        return 1 - ranks.mean(precision(ranks.before_pos, ranks.before_neg) * first)


@dataclass(frozen=True)
class FunctionMetric:
    """Your own metric: a torch function (before_pos, before_neg) -> loss, elementwise; autograd does the rest.

    >>> last_place = FunctionMetric(lambda before_pos, before_neg: before_pos + before_neg)
    >>> last_place.pair_slopes(torch.zeros(1), torch.ones(1))
    (tensor([1.]), tensor([1.]))
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def pair_loss(self, before_pos: Tensor, before_neg: Tensor) -> Tensor:
        loss = self.function(before_pos, before_neg)
        if loss.shape != before_neg.shape:
            raise InputError(
                f"the metric must return one loss per pair, shape {tuple(before_neg.shape)}, got {tuple(loss.shape)}; "
                "write it elementwise"
            )
        return loss

    def pair_slopes(self, before_pos: Tensor, before_neg: Tensor) -> tuple[Tensor, Tensor]:
        return call_with_autograd(self._pair_slopes, before_pos, before_neg)

    def _pair_slopes(self, before_pos: Tensor, before_neg: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            ranks = [r.detach().requires_grad_() for r in (before_pos, before_neg)]
            total = self.pair_loss(*ranks).sum()
            if not total.requires_grad:
                raise InputError("the metric does not depend on the ranks by torch operations, so it has no gradient")
            in_pos, in_neg = torch.autograd.grad(total, ranks, materialize_grads=True)
        return in_pos, in_neg


@dataclass(frozen=True)
class PenalizedNegatives:
    """f(R_N) of the PNP family (pnp Eq. 5 to 13).

    | variant | f(R)                      | f'(R)                 |
    |---------|---------------------------|-----------------------|
    | O       | R                         | 1                     |
    | I_u     | (1 + R) log(1 + R)        | 1 + log(1 + R)        |
    | I_b     | (bR - log(1 + bR)) / b^2  | R / (1 + bR)          |
    | D_s     | log(1 + R)                | 1 / (1 + R)           |
    | D_q     | 1 - (1 + R)^-alpha        | alpha / (1 + R)^(alpha + 1) |

    >>> PenalizedNegatives("D_q", alpha=1.0).f(torch.tensor([0.0, 1.0, 3.0]))
    tensor([0.0000, 0.5000, 0.7500])
    """

    variant: Variant = "D_q"
    alpha: float = 4.0
    b: float = 2.0

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, get_args(Variant))
        check_number("alpha", self.alpha, at_least=1)
        check_number("b", self.b, above=0)

    def f(self, r: Tensor) -> Tensor:
        """The loss of a positive with r negatives before it."""
        match self.variant:
            case "O":
                return r.clone()
            case "I_u":
                return (1 + r) * torch.log1p(r)
            case "I_b":
                return (self.b * r - torch.log1p(self.b * r)) / self.b**2
            case "D_s":
                return torch.log1p(r)
            case "D_q":
                return -torch.expm1(-self.alpha * torch.log1p(r))

    def f_prime(self, r: Tensor) -> Tensor:
        """The derivative of f: how strongly a positive with r negatives before it is corrected."""
        match self.variant:
            case "O":
                return torch.ones_like(r)
            case "I_u":
                return 1 + torch.log1p(r)
            case "I_b":
                return r / (1 + self.b * r)
            case "D_s":
                return 1 / (1 + r)
            case "D_q":
                return self.alpha * (1 + r) ** (-self.alpha - 1)

    def pair_loss(self, before_pos: Tensor, before_neg: Tensor) -> Tensor:
        return self.f(before_neg)

    def pair_slopes(self, before_pos: Tensor, before_neg: Tensor) -> tuple[None, Tensor]:
        return None, self.f_prime(before_neg)


@dataclass(frozen=True)
class IntegratedPenalty:
    """f(R_N) given by its derivative f'(R_N) >= 0: f is the integral from 0, the slope is f' itself."""

    f_prime: Callable[[Tensor], Tensor]
    _integral: Integral = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_integral", Integral(check_derivative(self.f_prime)))

    def pair_loss(self, before_pos: Tensor, before_neg: Tensor) -> Tensor:
        return self._integral(before_neg)

    def pair_slopes(self, before_pos: Tensor, before_neg: Tensor) -> tuple[None, Tensor]:
        return None, self._integral.derivative(before_neg)
