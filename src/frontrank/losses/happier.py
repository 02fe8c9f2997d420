"""Hierarchical AP: average precision for labels of several levels."""

from frontrank.losses.rank_loss import RankLoss
from frontrank.ranking import HierarchicalAP as HierarchicalAPMetric
from frontrank.ranking import Sigmoid


class HierarchicalAP(RankLoss):
    """1 - H-AP on sigmoid ranks: a mistake between near classes costs less than one between far classes.

    H-AP = sum over positives i of Hrank_i / r_i / sum over i of rel_i, Hrank_i = rel_i + sum over positives j of
    min(rel_i, rel_j) H(s_j - s_i), r_i = 1 + sum over all items j of H(s_j - s_i) (Eq. 3, 4). An item that shares l of
    L levels has the relevance (l / L)^alpha / how many items share as many (Eq. 7).

    temperature: width of the sigmoid; smaller is closer to true ranks
    alpha:       how much more the finer levels count

    E. Ramzi, N. Audebert, N. Thome, C. Rambour, X. Bitot: Hierarchical Average Precision Training for Pertinent Image
    Retrieval. ECCV 2022. Their loss bounds r_i from above and counts Hrank_i exactly; near to it is
    RankLoss(HierarchicalAP(), SupRank()) with the two of frontrank.ranking.

    >>> import torch
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> labels = torch.tensor([[0, 0], [1, 0], [0, 0], [2, 1]])  # the first and the third share both levels
    >>> HierarchicalAP()(embeddings, labels)  # (1/6 + 0 + 1/3) / 3; the last has no positive
    tensor(0.1667)
    """

    def __init__(self, temperature: float = 0.01, alpha: float = 1.0) -> None:
        super().__init__(HierarchicalAPMetric(alpha), Sigmoid(temperature))
