"""Any metric on any relaxation of the ranks. The papers' losses are presets of this."""

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from typing import Any, Literal, ParamSpec, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from frontrank.checks import check_number
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.losses.batch import read_batch, read_scores
from frontrank.ranking import (
    ListMetric,
    PairMetric,
    Positives,
    RankSlopes,
    Relaxation,
    Relevance,
    Slopes,
    embedding_loss,
    list_slopes,
    score_loss,
)

P = ParamSpec("P")


def eager(forward: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Let torch.compile call a loss as it is: its one pass is not a graph of torch operations to be fused."""

    @wraps(forward)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(forward)(*args, **kwargs)
        return forward(*args, **kwargs)

    return call


_compiled: "WeakValueDictionary[int, BatchLoss]" = WeakValueDictionary()  # losses by the number their operation knows
_numbers = count()


@torch.library.custom_op("frontrank::batch_loss", mutates_args=())
def _batch_loss(
    number: int,
    embeddings: Tensor,
    labels: Tensor | None,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    relevant: Tensor | None,
    candidates: Tensor | None,
    wants: bool,
    ref_wants: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """One operation of a compiled graph: a loss, and its gradients in embeddings and ref_emb where they are wanted."""
    queries = _wide(embeddings.detach()).requires_grad_(wants)  # gradients of halves could be 0
    items = None if ref_emb is None else _wide(ref_emb.detach()).requires_grad_(ref_wants)
    with torch.enable_grad():
        loss = _compiled[number].of_batch(queries, labels, items, ref_labels, relevant, candidates)
    wanted = [x for x in (queries, items) if x is not None and x.requires_grad]
    grads = iter(torch.autograd.grad(loss, wanted) if wanted else ())
    of_both = [next(grads) if x is not None and x.requires_grad else loss.new_empty(0) for x in (queries, items)]
    return loss.detach(), of_both[0], of_both[1]


@_batch_loss.register_fake
def _(
    number: int,
    embeddings: Tensor,
    labels: Tensor | None,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    relevant: Tensor | None,
    candidates: Tensor | None,
    wants: bool,
    ref_wants: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    none = _wide(embeddings).new_empty(0)
    grad = torch.empty_like(_wide(embeddings)) if wants else none
    ref_grad = torch.empty_like(_wide(ref_emb)) if ref_emb is not None and ref_wants else none.clone()
    return none.new_empty(()), grad, ref_grad


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.wants, ctx.dtypes = inputs[-2:], [None if x is None else x.dtype for x in (inputs[1], inputs[3])]


def _scale_gradients(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients were computed with the loss; here they are multiplied by the one that comes in."""
    both = [
        (saved * grad).to(dtype) if wanted else None
        for saved, wanted, dtype in zip(ctx.saved_tensors, ctx.wants, ctx.dtypes, strict=True)
    ]
    return None, both[0], None, both[1], None, None, None, None, None


_batch_loss.register_autograd(_scale_gradients, setup_context=_save_gradients)


class LossTerm(nn.Module):
    """A loss that can stand in a sum of losses, such as 0.9 * a + b / 10 or sum([a, b])."""

    def _pairs(self) -> list[tuple[float, nn.Module]]:
        """The losses of the sum, each with its weight."""
        return [(1.0, self)]

    def __mul__(self, weight: float) -> "CombinedLoss":
        return CombinedLoss([(weight * own, loss) for own, loss in self._pairs()])

    __rmul__ = __mul__

    def __truediv__(self, number: float) -> "CombinedLoss":
        return self * (1 / number)

    def __add__(self, other: nn.Module) -> "CombinedLoss":
        return CombinedLoss([*self._pairs(), *(other._pairs() if isinstance(other, LossTerm) else [(1.0, other)])])

    def __radd__(self, other: Literal[0]) -> "CombinedLoss":
        return self * 1.0 if other == 0 else NotImplemented  # a sum begins with 0

    def __sub__(self, other: "LossTerm") -> "CombinedLoss":
        return self + other * -1.0


class BatchLoss(LossTerm):
    """A loss per query, averaged over the queries that have a positive. Subclasses give `objective`.

    `last` says what the latest call did: {"queries_used": ..., "queries_skipped": ...}; a query without
    a positive is skipped. Unless a loss is `graded`, labels of several levels count as the finest, and any grade of
    `relevant` above 0 as 1. A compiled graph knows the loss by its `number`.
    """

    include_query: bool | Literal["negative"] = False  # "negative": in its own list, but not as a positive
    graded: bool = False  # whether grades of relevance matter; if not, labels of several levels are read as the finest
    by_level: bool = False  # whether each grade is counted

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, int] = {"queries_used": 0, "queries_skipped": 0}
        self._warned = False
        self._register()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._register()  # a copy has a number of its own

    def _register(self) -> None:
        self.number = next(_numbers)
        _compiled[self.number] = self

    def objective(self, scores: Tensor, positives: Positives, weights: Tensor | None) -> tuple[Tensor, Slopes | None]:
        """See frontrank.ranking.Objective."""
        raise NotImplementedError

    def query_weights(self, labels: Tensor | None, counts: Tensor, dtype: torch.dtype) -> Tensor:
        """How much each query [query] weighs; the mean over those that have a positive, counts > 0, is 1."""
        return torch.ones(len(counts), dtype=dtype, device=counts.device)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        relevant: Tensor | None = None,
        candidates: Tensor | None = None,
    ) -> Tensor:
        """The mean loss of the queries `embeddings`.

        embeddings: [query, dim], of any length: cosine similarity is used
        labels:     [query], whole numbers; the same label means relevant
                    [query, level], finest first: the grade of an item is how many levels it shares. A loss that
                    knows two grades only, such as SmoothAP, ranks by the finest level, and by any grade above 0
        ref_emb, ref_labels: a separate gallery [item, dim], [item]; without it the batch is its own
            gallery and no query is in its own list
        relevant:   [query, gallery], in place of labels: boolean, or grades >= 0, 0 for not relevant
        candidates: boolean [query, gallery]; False takes an item out of a query's list
        """
        if torch.compiler.is_compiling():
            wants = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in (embeddings, ref_emb)]
            arguments = (embeddings, labels, ref_emb, ref_labels, relevant, candidates)
            return _batch_loss(self.number, *arguments, *wants)[0]
        return self.of_batch(embeddings, labels, ref_emb, ref_labels, relevant, candidates)

    def of_batch(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
        relevant: Tensor | None,
        candidates: Tensor | None,
    ) -> Tensor:
        """The same, without the operation that stands for it in a compiled graph."""
        grades = (self.graded, self.by_level)
        batch = read_batch(embeddings, labels, ref_emb, ref_labels, relevant, candidates, self.include_query, *grades)
        weights = self._weights(batch.labels, batch.relevance, embeddings.dtype)
        return embedding_loss(batch.embeddings, batch.gallery, batch.relevance, self.objective, weights)

    def of_scores(self, scores: Tensor, relevant: Tensor, candidates: Tensor | None = None) -> Tensor:
        """The mean loss of given scores [query, gallery], such as a re-ranker's; higher is nearer."""
        relevance = read_scores(scores, relevant, candidates, self.graded, self.by_level)
        weights = self._weights(None, relevance, scores.dtype)
        return score_loss(scores, relevance, self.objective, weights)

    def _weights(self, labels: Tensor | None, relevance: Relevance, dtype: torch.dtype) -> Tensor:
        counts, used = relevance.counts, relevance.used
        self.last = {"queries_used": used, "queries_skipped": len(counts) - used}
        if not used and not self._warned:
            self._warned = True
            warn_without_positive()
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return self.query_weights(labels, counts, wide) / max(1, used)


class CombinedLoss(LossTerm):
    """A sum of losses, each with its weight; also written 0.9 * a + 0.1 * b.

    >>> from frontrank.losses import PNP, SmoothAP
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> (0.9 * SmoothAP() + 0.1 * PNP("O"))(embeddings, torch.tensor([0, 0, 1, 1]))  # 0.9 / 3 + 0.1
    tensor(0.4000)
    """

    include_query: bool | Literal["negative"] = False

    def __init__(self, losses: Sequence[tuple[float, nn.Module]]) -> None:
        super().__init__()
        if not isinstance(losses, Sequence):
            raise InputTypeError(f"losses must be a list of pairs (weight, loss), got {type(losses).__name__}")
        if not losses:
            raise InputError("losses must have at least one pair (weight, loss), got none")
        for pair in losses:
            if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[1], nn.Module)):
                raise InputTypeError(f"losses must be pairs (weight, loss), such as (0.9, SmoothAP()), got {pair!r}")
            check_number("weight of a loss", pair[0])
        self.weights = [float(weight) for weight, _ in losses]
        self.losses = nn.ModuleList(loss for _, loss in losses)
        self.graded = any(getattr(loss, "graded", False) for loss in self.losses)

    @property
    def last(self) -> dict[str, int]:
        """What the latest call of the first loss did."""
        last: dict[str, int] = getattr(self.losses[0], "last", {})
        return last

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The weighted sum; arguments are those of the losses."""
        return self._sum([loss(*args, **kwargs) for loss in self.losses])

    def of_scores(self, scores: Tensor, relevant: Tensor, candidates: Tensor | None = None) -> Tensor:
        """The weighted sum for given scores [query, gallery]."""
        return self._sum([cast(Any, loss).of_scores(scores, relevant, candidates) for loss in self.losses])

    def _sum(self, values: list[Tensor]) -> Tensor:
        total = values[0] * self.weights[0]
        for weight, value in zip(self.weights[1:], values[1:], strict=True):
            total = total + weight * value
        return total

    def _pairs(self) -> list[tuple[float, nn.Module]]:
        return list(zip(self.weights, self.losses, strict=True))

    def extra_repr(self) -> str:
        return f"weights={self.weights}"


def is_sum_over_queries(loss: object) -> bool:
    """Whether processes can take a share of the queries of a loss each: see ranking.shares."""
    if isinstance(loss, CombinedLoss):
        return type(loss).forward is CombinedLoss.forward and all(map(is_sum_over_queries, loss.losses))
    own = isinstance(loss, BatchLoss) and (type(loss).forward, type(loss).of_batch)
    return own == (BatchLoss.forward, BatchLoss.of_batch)


def warn_without_positive() -> None:
    """Warn that a batch has no gradient, at the line that called the loss."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(("frontrank.", "torch.")):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        "no query of the batch has a positive: the loss and its gradient are 0; "
        "sample at least two items of a class per batch",
        FrontrankWarning,
        stacklevel=level,
    )


class RankLoss(BatchLoss):
    """Mean of a metric over each query's positives, on relaxed ranks.

    metric:        what is optimised: AveragePrecision, PenalizedNegatives (of PNP), Recall (of RaMBO), RecallAtK, NDCG,
                   HierarchicalAP or MeanAveragePrecisionAtR
                   In Python an object of frontrank.ranking; FunctionMetric(...) is your own function of the ranks.
    relaxation:    how ranks get a gradient: Sigmoid, SupRank, Bins or Blackbox
                   In Python an object of frontrank.ranking; Exact() gives a value without gradient.
    include_query: keep each query as one of its own positives

    PNP's D_q on blackbox ranks, which no paper tried:

    >>> from frontrank.ranking import Blackbox, PenalizedNegatives
    >>> loss = RankLoss(PenalizedNegatives("D_q", alpha=1.0), Blackbox(lam=4.0, margin=0.0))
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> loss(embeddings, torch.tensor([0, 0, 1, 1]))  # 2/3 for the first two queries, 0 for the others
    tensor(0.3333)
    """

    def __init__(self, metric: PairMetric | ListMetric, relaxation: Relaxation, include_query: bool = False) -> None:
        super().__init__()
        if isinstance(metric, type) or not (hasattr(metric, "pair_slopes") or hasattr(metric, "list_loss")):
            raise InputTypeError(
                f"metric must be one of frontrank.ranking, such as AveragePrecision(), got {metric!r}; "
                "wrap your own function in frontrank.ranking.FunctionMetric"
            )
        if isinstance(relaxation, type) or not hasattr(relaxation, "ranks"):
            raise InputTypeError(
                "relaxation must be Sigmoid(), SupRank(), Bins(), Blackbox() or Exact() of frontrank.ranking, "
                f"got {relaxation!r}"
            )
        self.metric = metric
        self.relaxation = relaxation
        self.graded = getattr(metric, "graded", False)
        self.by_level = self.graded and (
            getattr(metric, "by_level", False) or getattr(relaxation, "needs_levels", False)
        )
        self.include_query = include_query

    def objective(self, scores: Tensor, positives: Positives, weights: Tensor | None) -> tuple[Tensor, Slopes | None]:
        metric = self.metric
        ranks, pull = self.relaxation.ranks(scores, positives, slopes=weights is not None)
        if not isinstance(metric, PairMetric):
            if weights is None or pull is None:
                return metric.list_loss(ranks), None
            losses, slopes = list_slopes(metric, ranks)
            return losses, pull(slopes, weights[:, None])
        of_pairs = metric.pair_loss(ranks.before_pos, ranks.before_neg)
        number = ranks.valid.sum(1, keepdim=True, dtype=of_pairs.dtype)
        share = ranks.valid / number
        losses = (of_pairs * share).sum(1)
        if weights is None or pull is None:
            return losses, None
        in_pos, in_neg = metric.pair_slopes(ranks.before_pos, ranks.before_neg)
        in_pos = None if in_pos is None else in_pos * share
        return losses, pull(RankSlopes(in_pos, in_neg * share, of_pairs / number), weights[:, None])

    def extra_repr(self) -> str:
        return f"metric={self.metric!r}, relaxation={self.relaxation!r}, include_query={self.include_query}"
