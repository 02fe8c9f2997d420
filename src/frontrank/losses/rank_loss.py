"""Any metric on any relaxation of the ranks. The papers' losses are presets of this."""

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal, ParamSpec, cast

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


class BatchLoss(nn.Module):
    """A loss per query, averaged over the queries that have a positive. Subclasses give `objective`.

    `last` says what the latest call did: {"queries_used": ..., "queries_skipped": ...}; a query without
    a positive is skipped.
    """

    include_query: bool | Literal["negative"] = False  # "negative": in its own list, but not as a positive
    graded: bool = False  # whether grades of relevance matter; if not, labels of several levels are read as the finest
    by_level: bool = False  # whether each grade is counted

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, int] = {"queries_used": 0, "queries_skipped": 0}
        self._warned = False

    def objective(self, scores: Tensor, positives: Positives, weights: Tensor | None) -> tuple[Tensor, Slopes | None]:
        """See frontrank.ranking.Objective."""
        raise NotImplementedError

    def query_weights(self, labels: Tensor | None, used: Tensor, dtype: torch.dtype) -> Tensor:
        """How much each query [query] weighs; the mean over the used ones is 1."""
        return torch.ones(len(used), dtype=dtype, device=used.device)

    @eager
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
                    [query, level], finest first: the grade of an item is how many levels it shares
        ref_emb, ref_labels: a separate gallery [item, dim], [item]; without it the batch is its own
            gallery and no query is in its own list
        relevant:   [query, gallery], in place of labels: boolean, or grades >= 0, 0 for not relevant
        candidates: boolean [query, gallery]; False takes an item out of a query's list
        """
        grades = (self.graded, self.by_level)
        batch = read_batch(embeddings, labels, ref_emb, ref_labels, relevant, candidates, self.include_query, *grades)
        weights = self._weights(batch.labels, batch.relevance.counts > 0, embeddings.dtype)
        return embedding_loss(batch.embeddings, batch.gallery, batch.relevance, self.objective, weights)

    def of_scores(self, scores: Tensor, relevant: Tensor, candidates: Tensor | None = None) -> Tensor:
        """The mean loss of given scores [query, gallery], such as a re-ranker's; higher is nearer."""
        relevance = read_scores(scores, relevant, candidates, self.graded, self.by_level)
        weights = self._weights(None, relevance.counts > 0, scores.dtype)
        return score_loss(scores, relevance, self.objective, weights)

    def __mul__(self, weight: float) -> "CombinedLoss":
        return CombinedLoss([(weight, self)])

    __rmul__ = __mul__

    def __add__(self, other: "BatchLoss | CombinedLoss") -> "CombinedLoss":
        return CombinedLoss([(1.0, self)]) + other

    def _weights(self, labels: Tensor | None, used: Tensor, dtype: torch.dtype) -> Tensor:
        count = int(used.sum())
        self.last = {"queries_used": count, "queries_skipped": len(used) - count}
        if not count and not self._warned:
            self._warned = True
            warn_without_positive()
        return self.query_weights(labels, used, torch.promote_types(dtype, torch.float32)) / max(1, count)


class CombinedLoss(nn.Module):
    """A sum of losses, each with its weight; also written 0.9 * a + 0.1 * b.

    >>> from frontrank.losses import PNP, SmoothAP
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> (0.9 * SmoothAP() + 0.1 * PNP("O"))(embeddings, torch.tensor([0, 0, 1, 1]))  # 0.9 / 3 + 0.1
    tensor(0.4000)
    """

    include_query: bool | Literal["negative"] = False

    def __init__(self, losses: Sequence[tuple[float, nn.Module]]) -> None:
        super().__init__()
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

    def __mul__(self, weight: float) -> "CombinedLoss":
        return CombinedLoss([(weight * own, loss) for own, loss in self._pairs()])

    __rmul__ = __mul__

    def __add__(self, other: "BatchLoss | CombinedLoss") -> "CombinedLoss":
        more = other._pairs() if isinstance(other, CombinedLoss) else [(1.0, other)]
        return CombinedLoss([*self._pairs(), *more])

    def _pairs(self) -> list[tuple[float, nn.Module]]:
        return list(zip(self.weights, self.losses, strict=True))

    def extra_repr(self) -> str:
        return f"weights={self.weights}"


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
            losses = metric.list_loss(ranks)
            if weights is None or pull is None:
                return losses, None
            return losses, pull(list_slopes(metric, ranks), weights[:, None])
        of_pairs = metric.pair_loss(ranks.before_pos, ranks.before_neg)
        losses = ranks.mean(of_pairs)
        if weights is None or pull is None:
            return losses, None
        number = ranks.valid.sum(1, keepdim=True)
        in_pos, in_neg = metric.pair_slopes(ranks.before_pos, ranks.before_neg)
        in_pos = None if in_pos is None else in_pos / number * ranks.valid
        return losses, pull(RankSlopes(in_pos, in_neg / number * ranks.valid, of_pairs / number), weights[:, None])

    def extra_repr(self) -> str:
        return f"metric={self.metric!r}, relaxation={self.relaxation!r}, include_query={self.include_query}"
