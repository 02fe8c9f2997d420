"""RaMBO: rank losses differentiated as a black box, for retrieval and for classifiers."""

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from frontrank.checks import check_integer, check_number
from frontrank.errors import InputError, InputTypeError
from frontrank.losses.batch import as_tensor, check_scores
from frontrank.losses.rank_loss import RankLoss, eager, warn_without_positive
from frontrank.ranking import AveragePrecision, Blackbox, MatrixRelevance, Recall, score_loss
from frontrank.ranking.metrics import Weighting


class BlackboxRecall(RankLoss):
    """Mean over positives of l(r), or l(l(r)), l(r) = log(1 + r), r = negatives before it (Eq. 20).

    weighting: log or loglog
    lam:       how far scores are moved in the backward pass (lambda of Algorithm 1)
               A positive moves by lam times the slope of its query's loss in its rank, at most lam / |P|. The batch
               size and the weight of a query in the mean scale the gradient, never the move.
    margin:    positives are ranked margin/2 lower, negatives margin/2 higher (alpha of Eq. 14)

    M. Rolinek, V. Musil, A. Paulus, M. Vlastelica, C. Michaelis, G. Martius: Optimizing Rank-based Metrics
    with Blackbox Differentiation. CVPR 2020. The ranks among positives are a constant of the backward pass.
    The incoming gradient scales the result and does not enter the perturbation: loss scaling changes nothing.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> BlackboxRecall("log")(embeddings, torch.tensor([0, 0, 1, 1]))  # (log 3 + log 2) / 2: by the margin
    tensor(0.8959)
    """

    def __init__(self, weighting: Weighting = "loglog", lam: float = 4.0, margin: float = 0.2) -> None:
        super().__init__(Recall(weighting), Blackbox(lam, margin))


class BlackboxAP(RankLoss):
    """1 - AP on exact ranks, differentiated as a black box (Eq. 21, 22).

    lam:    how far scores are moved in the backward pass, as in BlackboxRecall
    margin: positives are ranked margin/2 lower, negatives margin/2 higher

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> BlackboxAP()(embeddings, torch.tensor([0, 0, 1, 1]))  # (2/3 + 1/2) / 2
    tensor(0.5833)
    """

    def __init__(self, lam: float = 4.0, margin: float = 0.2) -> None:
        super().__init__(AveragePrecision(), Blackbox(lam, margin))


class ClassifierAP(nn.Module):
    """Mean AP over classes and AP across classes (APC), for classifiers and detectors (Eq. 6, 22, 23).

    loss(scores, targets): both [item, class]; targets boolean or 0/1. Every class ranks all items; APC
    ranks all (item, class) pairs in one list. Classes without a positive are left out.

    memory:         how many past batches of scores join the lists; gradients flow through the current
                    batch only (Sec. 4.3). In evaluation mode there is no memory.
    across_classes: weight of APC; 1/3 is the paper's mAP : APC = 2 : 1
    lam, margin:    as in BlackboxRecall, a class is a query; the defaults are the paper's for detection (Sec. 5.2)
    relative:       lam is multiplied by the length n of each list, since the authors' code ranks by 1/n .. 1. There
                    the weight of a list takes part in the move, and APC ranks the current batch only: their lambda
                    times (1 - across_classes) / classes is this lam for mAP, times across_classes (1 + memory) for APC

    >>> scores = torch.tensor([[0.9, 0.2], [0.3, 0.8], [0.4, 0.1]])
    >>> ClassifierAP(margin=0.0)(scores, torch.tensor([[1, 0], [1, 0], [0, 1]]))  # 2/3 of 5/12 and 1/3 of 1/3
    tensor(0.3889)
    """

    def __init__(
        self,
        lam: float = 0.5,
        margin: float = 0.15,
        memory: int = 7,
        across_classes: float = 1 / 3,
        relative: bool = False,
    ) -> None:
        super().__init__()
        check_integer("memory", memory, at_least=0)
        check_number("across_classes", across_classes, at_least=0, at_most=1)
        Blackbox(lam, margin)  # checks them
        self.lam, self.margin = lam, margin
        self.relative = relative
        self.memory = memory
        self.across_classes = across_classes
        self._past: deque[tuple[Tensor, Tensor]] = deque(maxlen=memory)
        self.last: dict[str, int] = {"classes_used": 0, "classes_skipped": 0}
        self._warned = False

    @eager
    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The loss of classifier scores [item, class] against targets [item, class]."""
        check_scores(scores)
        targets = _targets(targets, scores)
        if self._past and self._past[-1][0].shape[1] != scores.shape[1]:
            raise InputError(
                f"scores has {scores.shape[1]} classes but the remembered batches have {self._past[-1][0].shape[1]}; "
                "call reset() before a new problem"
            )
        now = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        if not self.training:
            return self._loss(now, targets)
        past = [(s.to(now), t.to(targets.device)) for s, t in self._past]
        self._past.append((now.detach().clone(), targets.clone()))
        return self._loss(*(torch.cat(parts) for parts in zip((now, targets), *past, strict=True)))

    def _loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        per_class = MatrixRelevance(targets.T.contiguous(), None, own=False)
        used = per_class.used
        self.last = {"classes_used": used, "classes_skipped": scores.shape[1] - used}
        if not used and not self._warned:
            self._warned = True
            warn_without_positive()
        weights = scores.new_full((scores.shape[1],), (1 - self.across_classes) / max(1, used))
        loss = score_loss(scores.T, per_class, self._objective(len(scores)), weights)
        across = MatrixRelevance(targets.reshape(1, -1), None, own=False)
        return loss + score_loss(
            scores.reshape(1, -1), across, self._objective(scores.numel()), scores.new_full((1,), self.across_classes)
        )

    def _objective(self, length: int) -> Any:
        """The AP of lists of this length."""
        lam = self.lam * length if self.relative and length else self.lam
        return RankLoss(AveragePrecision(), Blackbox(lam, self.margin)).objective

    def reset(self) -> None:
        """Forget the past batches."""
        self._past.clear()

    def get_extra_state(self) -> dict[str, list[Tensor]]:
        return {"scores": [s for s, _ in self._past], "targets": [t for _, t in self._past]}

    def set_extra_state(self, state: dict[str, list[Tensor]]) -> None:
        self._past = deque(zip(state["scores"], state["targets"], strict=True), maxlen=self.memory)

    def extra_repr(self) -> str:
        scale = ", relative" if self.relative else ""
        return (
            f"{Blackbox(self.lam, self.margin)!r}{scale}, memory={self.memory}, across_classes={self.across_classes:g}"
        )


def _targets(targets: Tensor, scores: Tensor) -> Tensor:
    targets = as_tensor("targets", targets, scores.device)
    if targets.shape != scores.shape:
        raise InputError(
            f"targets must have the shape of scores {tuple(scores.shape)}, got {tuple(targets.shape)}; "
            "class numbers become a matrix by torch.nn.functional.one_hot"
        )
    if targets.dtype == torch.bool:
        return targets
    if targets.dtype.is_complex or not bool(((targets == 0) | (targets == 1)).all()):
        raise InputTypeError(f"targets must be boolean or 0/1, got {targets.dtype} with other values")
    return targets.bool()
