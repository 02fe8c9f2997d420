"""RaMBO for classifiers (CVPR 2020, Sec. 4.3 and 4.6): mAP over class columns, AP across classes, score memory."""

import torch

from tests.reference.lists import RankedList
from tests.reference.rambo import average_precision


def classifier_ap(batches, lam, margin, across_classes):
    """The loss of the last of the (scores, targets) batches; the earlier ones only fill the lists."""
    *past, (scores, targets) = batches
    scores = torch.cat([scores, *(s.detach() for s, _ in past)])
    targets = torch.cat([targets, *(t for _, t in past)]).bool()
    used = [c for c in range(scores.shape[1]) if targets[:, c].any()]
    per_class = [_ap(scores[:, c], targets[:, c], lam, margin) for c in used]  # Eq. 6 and 22
    mean_ap = sum(per_class) / len(per_class)
    across = _ap(scores.reshape(-1), targets.reshape(-1), lam, margin)  # Eq. 23
    return (1 - across_classes) * mean_ap + across_classes * across


def _ap(scores, targets, lam, margin):
    return average_precision(RankedList(scores[targets], scores[~targets]), lam, margin)
