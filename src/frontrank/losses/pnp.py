"""PNP: penalise only the negatives before each positive."""

from collections.abc import Callable
from typing import Self

from torch import Tensor

from frontrank.losses.rank_loss import RankLoss
from frontrank.ranking import IntegratedPenalty, PenalizedNegatives, Sigmoid
from frontrank.ranking.metrics import Variant


class PNP(RankLoss):
    """Mean over positives of f(R), R the sigmoid-relaxed number of negatives before the positive.

    variant:       O, I_u, I_b, D_s or D_q (Eq. 5, 7, 9, 12, 13)
                   The D variants go easy on positives with many negatives before them, which often belong to
                   another cluster of their class.
    alpha:         steepness of D_q, at least 1
    b:             bound of I_b: f' is at most 1 / b
    temperature:   width of the sigmoid; smaller is closer to true ranks
    include_query: keep each query as one of its own positives

    Z. Li, W. Min, J. Song, Y. Zhu, L. Kang, X. Wei, X. Wei, S. Jiang: Rethinking the Optimization of
    Average Precision: Only Penalizing Negative Instances before Positive Ones is Enough. AAAI 2022.
    Eq. 6 is not the derivative of Eq. 7; like the authors' code, I_u follows Eq. 7. Their code keeps the
    query among its own positives (include_query=True here).

    >>> import torch
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> PNP("O")(embeddings, torch.tensor([0, 0, 1, 1]))  # 2 negatives before for two queries, none for the others
    tensor(1.)
    """

    metric: PenalizedNegatives | IntegratedPenalty

    def __init__(
        self,
        variant: Variant = "D_q",
        alpha: float = 4.0,
        b: float = 2.0,
        temperature: float = 0.01,
        include_query: bool = False,
    ) -> None:
        super().__init__(PenalizedNegatives(variant, alpha, b), Sigmoid(temperature), include_query)

    @classmethod
    def from_derivative(
        cls, f_prime: Callable[[Tensor], Tensor], temperature: float = 0.01, include_query: bool = False
    ) -> Self:
        """The loss whose derivative in the number R of negatives before a positive is f_prime(R) >= 0.

        The paper's own way to new losses: choose how strongly a positive with R negatives before it is to
        be corrected. The value is the integral of f_prime from 0, the gradient uses f_prime itself.
        f_prime works elementwise on tensors; it should be a named function if the loss is to be pickled.

        >>> import torch
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> PNP.from_derivative(lambda r: 1 / (1 + r))(embeddings, labels), PNP("D_s")(embeddings, labels)
        (tensor(0.5493), tensor(0.5493))
        """
        loss = cls(temperature=temperature, include_query=include_query)
        loss.metric = IntegratedPenalty(f_prime)
        return loss
