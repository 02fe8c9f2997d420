"""ROADMAP and SupRank: AP and NDCG on ranks bounded from above, and the margins that make scores comparable."""

from typing import NamedTuple

import torch
from torch import Tensor

from frontrank.checks import check_number
from frontrank.losses.rank_loss import BatchLoss, CombinedLoss, RankLoss
from frontrank.ranking import NDCG, AveragePrecision, Positives, Sigmoid, Slopes, SupRank
from frontrank.ranking.ranks import Join


class SupAP(RankLoss):
    """1 - AP with exact ranks among positives and ranks among negatives bounded from above.

    R_N(i) is the sum over negatives of H(s_j - s_i): H(x) = sigmoid(x / temperature) for x <= 0, 1/2 more for
    0 < x <= delta, and 1/2 + sigmoid(delta / temperature) + rho (x - delta) beyond (Eq. 5). R_P(i) is counted, and is a
    constant of the backward pass.

    temperature: width of the sigmoid
    rho:         slope of the step beyond delta: how strongly negatives far above a positive are pulled down
    delta:       where the line begins

    E. Ramzi, N. Thome, C. Rambour, N. Audebert, X. Bitot: Robust and Decomposable Average Precision for Image
    Retrieval. NeurIPS 2021.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> SupAP()(embeddings, torch.tensor([0, 0, 1, 1]))  # two negatives 0.6 and 0.8 above: (1 - 1 / 134) / 2
    tensor(0.4963)
    """

    def __init__(self, temperature: float = 0.01, rho: float = 100.0, delta: float = 0.05) -> None:
        super().__init__(AveragePrecision(), SupRank(temperature, rho, delta))


class PairMargin(BatchLoss):
    """ROADMAP's calibration, which makes scores of different queries comparable, as no loss on ranks does (Eq. 7).

    Mean over positives of [positive - s]_+ plus mean over negatives of [s - negative]_+.

    positive: scores of positives above it cost nothing
    negative: scores of negatives below it cost nothing

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> PairMargin()(embeddings, torch.tensor([0, 0, 1, 1]))  # (0.9 + 0.1) for two queries, 0.1 for the others
    tensor(0.5500)
    """

    def __init__(self, positive: float = 0.9, negative: float = 0.6) -> None:
        super().__init__()
        self.positive = check_number("positive", positive)
        self.negative = check_number("negative", negative)

    def objective(self, scores: Tensor, positives: Positives, weights: Tensor | None) -> tuple[Tensor, Slopes | None]:
        valid = positives.valid
        huge = torch.finfo(scores.dtype).max / 8  # so that no sum is infinite
        short = (self.positive - scores.gather(1, positives.index)).clamp_(0, huge) * valid
        count = valid.sum(1)
        above = positives.keep_negatives_(scores)
        negatives = (above > -torch.inf).sum(1).clamp_(min=1)
        losses = (short / count[:, None]).sum(1)
        losses += (above - self.negative).clamp_(0, huge).div_(negatives[:, None]).sum(1)
        if weights is None:
            return losses, None
        of_positives = -(short > 0).to(scores.dtype) * (weights / count)[:, None]
        return losses, Slopes(of_positives, _AboveMargin(self.negative, (weights / negatives)[:, None]))

    def extra_repr(self) -> str:
        return f"positive={self.positive}, negative={self.negative}"


class _AboveMargin(NamedTuple):
    """Every item above the margin has the slope of its query [query, 1]."""

    margin: float
    slope: Tensor

    def add_(self, prepared: Tensor, out: Tensor, dim: int = 0) -> None:
        out.addcmul_((prepared > self.margin).to(out.dtype), self.slope if dim == 0 else self.slope.T)

    def of_all(self, join: Join) -> "_AboveMargin":
        return _AboveMargin(self.margin, join(self.slope))


class ROADMAP(CombinedLoss):
    """(1 - calibration) SupAP + calibration PairMargin (Eq. 8).

    temperature, rho, delta: as in SupAP
    calibration:             weight of the margins
    positive, negative:      as in PairMargin

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> ROADMAP()(embeddings, torch.tensor([0, 0, 1, 1]))  # 0.9 x 0.4963 + 0.1 x 0.55
    tensor(0.5016)
    """

    def __init__(
        self,
        temperature: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        calibration: float = 0.1,
        positive: float = 0.9,
        negative: float = 0.6,
    ) -> None:
        check_number("calibration", calibration, at_least=0, at_most=1)
        ranks, margins = SupAP(temperature, rho, delta), PairMargin(positive, negative)
        super().__init__([(1 - calibration, ranks), (calibration, margins)])


class SmoothNDCG(RankLoss):
    """1 - NDCG on sigmoid ranks: gains 2^grade - 1, discounts log2(1 + place), divided by those of the best order.

    The grade of an item is how many levels of its labels it shares with the query, or what `relevant` says; with
    labels of one level every positive has grade 1.

    temperature: width of the sigmoid; smaller is closer to true ranks

    E. Ramzi, N. Audebert, C. Rambour, A. Araujo, X. Bitot, N. Thome: Optimization of Rank Losses for Image Retrieval.
    2023. Their relaxation is SupRank: RankLoss(NDCG(), SupRank()).

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> SmoothNDCG()(embeddings, torch.tensor([0, 0, 1, 1]))  # 1 - 1 / log2(4) for two queries, 0 for the others
    tensor(0.2500)
    """

    def __init__(self, temperature: float = 0.01) -> None:
        super().__init__(NDCG(), Sigmoid(temperature))
