"""Recall@k surrogate: recall at several k, with sigmoids for the ranks and for the cut at k."""

from frontrank.losses.rank_loss import RankLoss
from frontrank.ranking import RecallAtK as RecallAtKMetric
from frontrank.ranking import Sigmoid


class RecallAtK(RankLoss):
    """1 - the mean over ks of min(k, sum over positives i of sigmoid((k - r_i) / rank_temperature)) / min(k, |P|).

    r_i = 1 + R_P(i) + R_N(i) is the place of positive i, with R(i) = sum over j != i of
    1 / (1 + exp((s_i - s_j) / temperature)) over the positives, over the negatives (Eq. 4 to 6).

    ks:               places at which recall is measured, such as [1, 2, 4, 8, 16]
    temperature:      width of the sigmoid of the scores; smaller is closer to true ranks
    rank_temperature: width of the sigmoid of the places
    include_query:    count the query as an item of its own list, as the authors' code does
                      Then no positive can have the first place, and a perfect batch of 4 per class costs 0.21.

    Y. Patel, G. Tolias, J. Matas: Recall@k Surrogate Loss with Large Batches and Similarity Mixup. CVPR 2022.

    >>> import torch
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> RecallAtK(ks=(1,))(embeddings, torch.tensor([0, 0, 1, 1]))  # places 3, 3, 1, 1: sigmoid(-2) and sigmoid(0)
    tensor(0.6904)
    """

    def __init__(
        self,
        ks: tuple[int, ...] = (1, 2, 4, 8, 16),
        temperature: float = 0.01,
        rank_temperature: float = 1.0,
        include_query: bool = False,
    ) -> None:
        super().__init__(RecallAtKMetric(ks, rank_temperature), Sigmoid(temperature))
        self.include_query = "negative" if include_query else False
