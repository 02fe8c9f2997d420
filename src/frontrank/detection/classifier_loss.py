"""What the classifier of a detector is trained with instead of cross-entropy: the AP of all sampled proposals."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from frontrank.errors import InputError
from frontrank.losses import ClassifierAP
from frontrank.training import distributed

Scores = Literal["softmax", "logits"]


class ScoresNotFiniteError(InputError):
    """The classifier gave a score that cannot be ranked."""


class ProposalAP:
    """The loss of class logits [proposal, 1 + class] against labels [proposal], of which 0 is the background.

    ap:     ranks the proposals of all processes, and those it remembers, once per class and once for all classes
    scores: what is ranked; see `ranked_scores`
    warmup: steps, told by `begin_step`, in which the margin grows from 0 and nothing is remembered

    A proposal of the background is a negative of every class. Not a module: the scores it remembers belong to the state
    of a run, not to the weights of a model.

    Why it warms up: at first all scores of a class are nearly the same. A margin would put every negative before every
    positive, and scores move more from batch to batch than they differ in one, so that remembered ones would tell old
    from new. Either leaves hardly a gradient that knows of the classes.

    >>> loss = ProposalAP(ClassifierAP(margin=0.0), "logits")
    >>> logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 2.0, 2.0], [0.0, 4.0, 0.0]])
    >>> loss(logits, torch.tensor([1, 2, 0]))  # class 1 at rank 2, class 2 at rank 1; together at ranks 2 and 4
    tensor(0.3333)
    """

    def __init__(self, ap: ClassifierAP, scores: Scores = "softmax", warmup: int = 0) -> None:
        if scores not in get_args(Scores):
            raise InputError(f"scores must be one of {', '.join(get_args(Scores))}, got {scores!r}")
        self.ap, self.scores, self.warmup, self.margin = ap, scores, warmup, ap.margin

    def begin_step(self, step: int) -> None:
        """Set margin and memory to what they are at this step of the run, the first of which is 0."""
        if step < self.warmup:
            self.ap.reset()
        self.ap.margin = self.margin * min(1.0, step / self.warmup) if self.warmup else self.margin

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The same value on every process; backward gives each the gradient of its own proposals."""
        own = ranked_scores(logits, self.scores)
        everyone = distributed.gather(own)
        targets = class_targets(distributed.gather_rows(labels), own.shape[1])
        if not bool(everyone.isfinite().all()):
            raise ScoresNotFiniteError("scores of classes are not finite; lower the learning rate")
        if not len(everyone):  # there is nothing to rank, and nothing to remember
            return logits.sum() * 0.0
        return self.ap(everyone, targets)

    @property
    def last(self) -> dict[str, int]:
        """How many classes had a positive in the latest call, remembered ones included."""
        return self.ap.last

    def state_dict(self) -> dict[str, Any]:
        """The remembered scores."""
        return self.ap.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the remembered scores of another."""
        self.ap.load_state_dict(state)

    def __repr__(self) -> str:
        return f"ProposalAP({self.ap.extra_repr()}, scores={self.scores}, warmup={self.warmup})"


def ranked_scores(logits: Tensor, scores: Scores) -> Tensor:
    """The scores [proposal, class] by which detections are sorted, without the background's.

    softmax: what torchvision's own inference sorts by: the share of a class among all and the background
    logits:  each class's own output; what the others and the background say has no part in it

    >>> ranked_scores(torch.tensor([[0.0, 0.0, 0.0, 0.0]]), "softmax")
    tensor([[0.2500, 0.2500, 0.2500]])
    """
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return (wide.softmax(1) if scores == "softmax" else wide)[:, 1:]


def class_targets(labels: Tensor, classes: int) -> Tensor:
    """Boolean [proposal, class]: whose class it is; the background's row is empty.

    >>> class_targets(torch.tensor([2, 0]), 3).int()
    tensor([[0, 1, 0],
            [0, 0, 0]], dtype=torch.int32)
    """
    return functional.one_hot(labels, classes + 1)[:, 1:].bool()
