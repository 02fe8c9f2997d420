"""torchvision's RoI heads with another loss of the classifier, and scores of detections that go with it.

Three public methods are overridden, and each calls torchvision's own: proposals, sampling, box regression and
non-maximum suppression are as they were.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection.roi_heads import RoIHeads

from frontrank.detection.classifier_loss import Scores

ClassifierLoss = Callable[[Tensor, Tensor], Tensor]


class RankedRoIHeads(RoIHeads):
    """The same heads, whose `loss_classifier` is what `classifier_loss` makes of class logits and sampled labels.

    heads:  of torchvision; their parts become this one's
    scores: what detections are sorted by: softmax as torchvision does, or the logits of each class, without a threshold

    The attribute `classifier_loss` is None at first, which leaves torchvision's cross-entropy.
    """

    def __init__(self, heads: RoIHeads, scores: Scores = "softmax") -> None:
        super().__init__(
            heads.box_roi_pool,
            heads.box_head,
            heads.box_predictor,
            heads.proposal_matcher.high_threshold,
            heads.proposal_matcher.low_threshold,
            heads.fg_bg_sampler.batch_size_per_image,
            heads.fg_bg_sampler.positive_fraction,
            heads.box_coder.weights,
            heads.score_thresh if scores == "softmax" else 0.0,
            heads.nms_thresh,
            heads.detections_per_img,
        )
        self.scores = scores
        self.classifier_loss: ClassifierLoss | None = None
        self._labels: list[Tensor] = []
        self._predicted: tuple[Tensor, Tensor] | None = None
        self.box_predictor.register_forward_hook(self._keep_predicted)

    def _keep_predicted(self, predictor: Any, given: Any, found: tuple[Tensor, Tensor]) -> None:
        self._predicted = found if self.training else None

    def select_training_samples(self, proposals: Any, targets: Any) -> Any:
        found = super().select_training_samples(proposals, targets)
        self._labels = found[2]
        return found

    def forward(self, features: Any, proposals: Any, image_shapes: Any, targets: Any = None) -> Any:
        try:
            found, losses = super().forward(features, proposals, image_shapes, targets)
            if self._predicted is not None:
                self._exchange_losses(losses, *self._predicted)
            return found, losses
        finally:
            self._predicted, self._labels = None, []  # or they would keep the graph of this batch alive

    def _exchange_losses(self, losses: dict[str, Tensor], logits: Tensor, changes: Tensor) -> None:
        if not len(logits):  # no proposal in all of the pictures: a mean over nothing is NaN
            losses.update(loss_classifier=logits.sum() * 0.0, loss_box_reg=changes.sum() * 0.0)
        if self.classifier_loss is not None:
            losses["loss_classifier"] = self.classifier_loss(logits, torch.cat(self._labels))

    def postprocess_detections(self, class_logits: Tensor, box_regression: Tensor, proposals: Any, shapes: Any) -> Any:
        """Boxes, scores and labels of each picture, best first.

        By logits a detection's score is the sigmoid of its class's logit, which is the softmax of that class and a
        background of 0: torchvision's own function is asked class by class. Ranking leaves open where the scores of a
        class begin, so none is too low; the best of all classes are kept, as many as `detections_per_img`.
        """
        if self.scores == "softmax":
            return super().postprocess_detections(class_logits, box_regression, proposals, shapes)
        boxes = box_regression.unflatten(1, (-1, 4))
        nothing = torch.zeros_like(class_logits[:, :1])
        of_classes = [
            super(RankedRoIHeads, self).postprocess_detections(
                torch.cat([nothing, class_logits[:, label : label + 1]], 1),
                boxes[:, [0, label]].flatten(1),
                proposals,
                shapes,
            )
            for label in range(1, class_logits.shape[1])
        ]
        return _merged(of_classes, len(shapes), self.detections_per_img)


def _merged(of_classes: list[Any], pictures: int, most: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The best detections of each picture, from those of each class alone."""
    all_boxes, all_scores, all_labels = [], [], []
    for picture in range(pictures):
        parts = [(boxes[picture], scores[picture]) for boxes, scores, _ in of_classes]
        scores = torch.cat([found for _, found in parts])
        labels = torch.cat(
            [torch.full_like(found, label, dtype=torch.int64) for label, (_, found) in enumerate(parts, 1)]
        )
        best = scores.sort(descending=True, stable=True)[1][:most]
        all_boxes.append(torch.cat([found for found, _ in parts])[best])
        all_scores.append(scores[best])
        all_labels.append(labels[best])
    return all_boxes, all_scores, all_labels
