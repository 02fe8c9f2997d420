"""Smooth-AP: average precision with every indicator replaced by a sigmoid."""

from frontrank.losses.rank_loss import RankLoss
from frontrank.ranking import AveragePrecision, Sigmoid


class SmoothAP(RankLoss):
    """1 - AP on sigmoid ranks: the mean over queries of 1 - AP_q.

    AP_q = mean over positives i of (1 + R_P(i)) / (1 + R_P(i) + R_N(i)), R(i) = sum over j != i of
    1 / (1 + exp((s_i - s_j) / temperature)) over the positives, over the negatives (Eq. 5 to 7).

    temperature:   width of the sigmoid; smaller is closer to true ranks
    include_query: keep each query as one of its own positives

    A. Brown, W. Xie, V. Kalogeiton, A. Zisserman: Smooth-AP: Smoothing the Path Towards Large-Scale
    Image Retrieval. ECCV 2020. The authors' code needs batches laid out in equal consecutive groups and
    keeps the query among its own positives (include_query=True here).

    >>> import torch
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> SmoothAP()(embeddings, torch.tensor([0, 0, 1, 1]))  # 2/3 for the first two queries, 0 for the others
    tensor(0.3333)
    """

    def __init__(self, temperature: float = 0.01, include_query: bool = False) -> None:
        super().__init__(AveragePrecision(), Sigmoid(temperature), include_query)
