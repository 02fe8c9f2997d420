"""Any metric on any relaxation of the ranks. The papers' losses are presets of this."""

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor, nn

from frontrank.errors import FrontrankWarning, InputTypeError
from frontrank.losses.batch import read_batch, read_scores
from frontrank.ranking import PairMetric, Positives, Relaxation, Slopes, embedding_loss, score_loss

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

    include_query = False

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
        ref_emb, ref_labels: a separate gallery [item, dim], [item]; without it the batch is its own
            gallery and no query is in its own list
        relevant:   boolean [query, gallery], in place of labels
        candidates: boolean [query, gallery]; False takes an item out of a query's list
        """
        batch = read_batch(embeddings, labels, ref_emb, ref_labels, relevant, candidates, self.include_query)
        weights = self._weights(batch.labels, batch.relevance.counts > 0, embeddings.dtype)
        return embedding_loss(batch.embeddings, batch.gallery, batch.relevance, self.objective, weights)

    def of_scores(self, scores: Tensor, relevant: Tensor, candidates: Tensor | None = None) -> Tensor:
        """The mean loss of given scores [query, gallery], such as a re-ranker's; higher is nearer."""
        relevance = read_scores(scores, relevant, candidates)
        weights = self._weights(None, relevance.counts > 0, scores.dtype)
        return score_loss(scores, relevance, self.objective, weights)

    def _weights(self, labels: Tensor | None, used: Tensor, dtype: torch.dtype) -> Tensor:
        count = int(used.sum())
        self.last = {"queries_used": count, "queries_skipped": len(used) - count}
        if not count and not self._warned:
            self._warned = True
            warn_without_positive()
        return self.query_weights(labels, used, torch.promote_types(dtype, torch.float32)) / max(1, count)


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

    metric:        what is optimised: AveragePrecision, PenalizedNegatives (of PNP) or Recall (of RaMBO)
                   In Python an object of frontrank.ranking; FunctionMetric(...) is your own function of the ranks.
    relaxation:    how ranks get a gradient: Sigmoid, Bins or Blackbox
                   In Python an object of frontrank.ranking; Exact() gives a value without gradient.
    include_query: keep each query as one of its own positives

    PNP's D_q on blackbox ranks, which no paper tried:

    >>> from frontrank.ranking import Blackbox, PenalizedNegatives
    >>> loss = RankLoss(PenalizedNegatives("D_q", alpha=1.0), Blackbox(lam=4.0, margin=0.0))
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> loss(embeddings, torch.tensor([0, 0, 1, 1]))  # 2/3 for the first two queries, 0 for the others
    tensor(0.3333)
    """

    def __init__(self, metric: PairMetric, relaxation: Relaxation, include_query: bool = False) -> None:
        super().__init__()
        if isinstance(metric, type) or not hasattr(metric, "pair_slopes"):
            raise InputTypeError(
                f"metric must be one of frontrank.ranking, such as AveragePrecision(), got {metric!r}; "
                "wrap your own function in frontrank.ranking.FunctionMetric"
            )
        if isinstance(relaxation, type) or not hasattr(relaxation, "ranks"):
            raise InputTypeError(
                f"relaxation must be Sigmoid(), Bins(), Blackbox() or Exact() of frontrank.ranking, got {relaxation!r}"
            )
        self.metric = metric
        self.relaxation = relaxation
        self.include_query = include_query

    def objective(self, scores: Tensor, positives: Positives, weights: Tensor | None) -> tuple[Tensor, Slopes | None]:
        ranks, pull = self.relaxation.ranks(scores, positives, slopes=weights is not None)
        of_pairs = self.metric.pair_loss(ranks.before_pos, ranks.before_neg)
        losses = ranks.mean(of_pairs)
        if weights is None or pull is None:
            return losses, None
        number = ranks.valid.sum(1, keepdim=True)
        in_pos, in_neg = self.metric.pair_slopes(ranks.before_pos, ranks.before_neg)
        in_pos = None if in_pos is None else in_pos / number
        return losses, pull(in_pos, in_neg / number, of_pairs / number, weights[:, None])

    def extra_repr(self) -> str:
        return f"metric={self.metric!r}, relaxation={self.relaxation!r}, include_query={self.include_query}"
