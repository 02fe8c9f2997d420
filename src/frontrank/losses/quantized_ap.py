"""AP_Q: average precision of quantised scores, and the common part of the histogram losses."""

import torch
from torch import Tensor

from frontrank.checks import check_integer
from frontrank.errors import InputError
from frontrank.losses.rank_loss import BatchLoss
from frontrank.ranking import Positives, Slopes, binned_average_precision, cumulative_histogram, position_slopes
from frontrank.ranking.histograms import HistogramSlopes


class HistogramLoss(BatchLoss):
    """1 - AP of soft histograms with equal bins on the scores; subclasses may place scores otherwise."""

    bins: int
    tie_aware = False

    def positions_(self, scores: Tensor) -> Tensor:
        """Position of each score among the centres 0 .. bins, nearest first, in place."""
        return scores.sub_(1).mul_(-self.bins / 2)

    def score_slopes_(self, slopes: Tensor, positions: Tensor) -> Tensor:
        """d loss / d score from d loss / d position, in place."""
        return slopes.mul_(-self.bins / 2)

    def objective(self, scores: Tensor, positives: Positives, weights: Tensor | None) -> tuple[Tensor, Slopes | None]:
        positions = positives.keep_listed_(self.positions_(scores.clamp_(-2, 2)), other=torch.inf)
        of_positives = positions.gather(1, positives.index)
        ap, in_positive, in_listed = binned_average_precision(
            cumulative_histogram(of_positives.masked_fill(~positives.valid, torch.inf), self.bins),
            cumulative_histogram(positions, self.bins),
            tie_aware=self.tie_aware,
        )
        if weights is None:
            return 1 - ap, None
        weights = -weights[:, None]
        more = position_slopes(in_positive * weights, of_positives) * positives.valid
        return 1 - ap, Slopes(
            self.score_slopes_(more, of_positives), HistogramSlopes(in_listed * weights, self.score_slopes_)
        )


class QuantizedAP(HistogramLoss):
    """1 - AP_Q: AP_Q = sum over bins m of (cum c+_m / cum c_m) (c+_m / N) (Eq. 7 to 12).

    bins:            number M of bin centres, equally spaced on [-1, 1]
    tie_aware:       mAP_T, the precision in the middle of a bin instead of at its end (Eq. 13)
    balance_classes: weigh queries so that every class of the batch weighs the same (Sec. 4.2)

    J. Revaud, J. Almazan, R. Sampaio de Rezende, C. Roberto de Souza: Learning with Average Precision:
    Training Image Retrieval with a Listwise Loss. ICCV 2019. Eq. 12 as printed keeps the query in its own
    list, the text does not; neither does this.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> QuantizedAP(bins=3)(embeddings, torch.tensor([0, 0, 1, 1]))
    tensor(0.6314)
    """

    def __init__(self, bins: int = 20, tie_aware: bool = False, balance_classes: bool = False) -> None:
        super().__init__()
        self.bins = check_integer("bins", bins, at_least=2) - 1
        self.tie_aware = tie_aware
        self.balance_classes = balance_classes

    def query_weights(self, labels: Tensor | None, counts: Tensor, dtype: torch.dtype) -> Tensor:
        if not self.balance_classes:
            return super().query_weights(labels, counts, dtype)
        if labels is None:
            raise InputError("labels is missing; balance_classes=True needs to know the class of each query")
        used = counts > 0
        classes, of_query = torch.unique(labels[used], return_inverse=True)
        sizes = torch.bincount(of_query, minlength=len(classes))
        weights = torch.zeros(len(used), dtype=dtype, device=used.device)
        weights[used] = len(of_query) / (len(classes) * sizes[of_query]).to(dtype)
        return weights

    def extra_repr(self) -> str:
        return f"bins={self.bins + 1}, tie_aware={self.tie_aware}, balance_classes={self.balance_classes}"
