"""FastAP: average precision of soft distance histograms."""

from typing import Literal, get_args

from torch import Tensor

from frontrank.checks import check_choice, check_integer
from frontrank.losses.quantized_ap import HistogramLoss

Distance = Literal["squared", "euclidean"]


class FastAP(HistogramLoss):
    """1 - FastAP: 1 - (1 / N+) sum over bins j of H+_j h+_j / H_j (Eq. 14), triangular soft bins.

    bins:     intervals between the bins + 1 centres
    distance: squared or euclidean
              "squared" is 2 - 2s on [0, 4], as in the authors' code, which gave the published figures;
              "euclidean" is sqrt(2 - 2s) on [0, 2], as in the text.

    F. Cakir, K. He, X. Xia, B. Kulis, S. Sclaroff: Deep Metric Learning to Rank. CVPR 2019. Eq. 16 as
    printed is not the derivative of Eq. 14, and the authors' backward is (queries / 2) times it; the
    gradient here is the true one. FastAP(bins=n) with squared distance is QuantizedAP(bins=n + 1).

    >>> import torch
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> FastAP(bins=2)(embeddings, torch.tensor([0, 0, 1, 1]))
    tensor(0.6314)
    """

    def __init__(self, bins: int = 10, distance: Distance = "squared") -> None:
        super().__init__()
        check_choice("distance", distance, get_args(Distance))
        self.bins = check_integer("bins", bins, at_least=1)
        self.distance: Distance = distance

    def positions_(self, scores: Tensor) -> Tensor:
        if self.distance == "squared":
            return super().positions_(scores)
        return scores.mul_(-2).add_(2).clamp_(min=0).sqrt_().mul_(self.bins / 2)

    def score_slopes_(self, slopes: Tensor, positions: Tensor) -> Tensor:
        if self.distance == "squared":
            return super().score_slopes_(slopes, positions)
        # the slope of the distance z is -1 / z; at z = 0 the root has none
        distance = positions * (2 / self.bins)
        return slopes.mul_(-self.bins / 2).div_(distance).masked_fill_(distance == 0, 0)

    def extra_repr(self) -> str:
        return f"bins={self.bins}, distance={self.distance!r}"
