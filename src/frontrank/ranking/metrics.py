"""Metrics on the ranks of the positives: one definition each, for the losses and for evaluation.

A positive i of a query has `before_pos` (R_P) other positives and `before_neg` (R_N) negatives
before it. On exact ranks the functions below are the metrics of evaluation; on relaxed ranks the
same functions, as the `pair_loss` of a `PairMetric`, are the losses of the papers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from frontrank.checks import check_choice, check_number
from frontrank.errors import InputError
from frontrank.ranking.integral import Integral, check_derivative

Variant = Literal["O", "I_u", "I_b", "D_s", "D_q"]
Weighting = Literal["log", "loglog"]


class Ranks(NamedTuple):
    """What stands before each positive; all three are [query, positive], padding is not valid.

    With `Bins`, centres of bins take the place of positives; each is as valid as there are positives in its bin.
    """

    before_pos: Tensor
    before_neg: Tensor
    valid: Tensor

    def mean(self, per_pair: Tensor) -> Tensor:
        """Mean of a value per (query, positive) over each query's positives [query]."""
        return (per_pair * self.valid).sum(1) / self.valid.sum(1)


def precision(before_pos: Tensor, before_neg: Tensor) -> Tensor:
    """Share of positives among all items down to this one: (1 + R_P) / (1 + R_P + R_N)."""
    return (1 + before_pos) / (1 + before_pos + before_neg)


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


def _relevant(ranks: Ranks) -> Tensor:
    return ranks.valid.sum(1, keepdim=True)


def _first(ranks: Ranks, k: int | Tensor) -> Tensor:
    return (ranks.before_pos + ranks.before_neg < k) & ranks.valid


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
        return 1 - precision(before_pos, before_neg)

    def pair_slopes(self, before_pos: Tensor, before_neg: Tensor) -> tuple[Tensor, Tensor]:
        square = (1 + before_pos + before_neg) ** 2
        return -before_neg / square, (1 + before_pos) / square


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
