"""The detector: torchvision's Faster R-CNN on any of several backbones, with a classifier that may learn by ranking."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from frontrank.detection.classifier_loss import ProposalAP, Scores
from frontrank.detection.matching import Detections
from frontrank.errors import InputError, InputTypeError
from frontrank.models import storage

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchvision.models.detection import FasterRCNN


@dataclass(frozen=True)
class DetectorSettings:
    """What a detector is built from, its weights apart; also what `config.json` holds.

    classes:      label c is classes[c - 1]; 0 is the background
    backbone:     see `backbones.build_backbone`
    batch_norm:   "frozen" or "train"
    channels:     of the feature pyramid
    head_dim:     of the two layers before the predictor
    anchor_scale: side of an anchor in places of its map: 8 is torchvision's 32 px at 1/4 of the size
    short_side, long_side: pictures are scaled until the short side has so many pixels, or the long one that many
    proposals, proposals_test: that the region proposal network gives per picture, in training and afterwards
    samples, positives: proposals the heads train on per picture, and the share of objects among them, at most
    scores:       what detections are sorted by, softmax or logits
    score_threshold, nms_threshold, detections: of what is found, per picture; logits have no threshold
    mean, std:    of colours
    """

    classes: tuple[str, ...]
    backbone: str = "resnet50"
    batch_norm: str = "frozen"
    channels: int = 256
    head_dim: int = 1024
    anchor_scale: float = 8.0
    short_side: int = 600
    long_side: int = 1000
    proposals: int = 2000
    proposals_test: int = 1000
    samples: int = 512
    positives: float = 0.25
    scores: Scores = "softmax"
    score_threshold: float = 0.05
    nms_threshold: float = 0.5
    detections: int = 100
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)


class Detector(nn.Module):
    """Finds objects in pictures.

    In training mode, detector(images, targets) gives torchvision's four losses by name; images are tensors
    [3, height, width] of bytes or of numbers from 0 to 1, targets have boxes [object, 4] and labels [object]. The
    classifier's is cross-entropy, or what `classifier_loss` was set to.
    """

    def __init__(self, settings: DetectorSettings) -> None:
        super().__init__()
        _check(settings)
        self.settings = settings
        self.network = build_network(settings)
        self.origin = "random weights"
        self.train(self.training)

    @classmethod
    def build(cls, settings: DetectorSettings, weights: str = "none", trainable_layers: int = 5) -> "Detector":
        """A detector with first weights.

        weights: none, pretrained (ImageNet, of torchvision or timm), package, a file, or the folder of a detector
        trainable_layers: of the five of a ResNet, from the last, that are trained where it does not start at random
        """
        require_torchvision()
        from frontrank.detection.backbones import freeze_first_layers
        from frontrank.detection.weights import colours_of, load_weights

        mean, std = colours_of(settings.backbone, weights)
        detector = cls(replace(settings, mean=mean, std=std))
        detector.origin = load_weights(detector.network, settings.backbone, weights)
        if weights != "none":
            freeze_first_layers(detector.network.backbone, settings.backbone, trainable_layers)
            detector.train(detector.training)
        return detector

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of what it finds; label c is classes[c - 1]."""
        return self.settings.classes

    @property
    def classifier_loss(self) -> ProposalAP | None:
        """What the classifier is trained with; None is cross-entropy."""
        return self.network.roi_heads.classifier_loss

    @classifier_loss.setter
    def classifier_loss(self, loss: ProposalAP | None) -> None:
        if loss is not None and loss.scores != self.settings.scores:
            raise InputError(
                f"the loss ranks {loss.scores} but the detector sorts by {self.settings.scores}; give both the same"
            )
        self.network.roi_heads.classifier_loss = loss

    def train(self, mode: bool = True) -> "Detector":
        """Training mode, but for frozen statistics."""
        super().train(mode)
        if self.settings.batch_norm == "frozen":
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
                    for parameter in module.parameters():
                        parameter.requires_grad_(False)
        return self

    def forward(self, images: Sequence[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        floats = [each.float() / 255 if each.dtype == torch.uint8 else each for each in images]
        return self.network(floats, targets)

    def detect(self, pictures: Sequence["Tensor | np.ndarray | Image"]) -> list[Detections]:
        """What is found in each picture, best first.

        pictures: of Pillow (upright, RGB), or arrays or tensors of bytes, [height, width, 3] and [3, height, width]
        """
        device = next(self.parameters()).device
        tensors = [picture_tensor(each).to(device) for each in pictures]
        with _evaluating(self), torch.no_grad():
            found = self(tensors) if tensors else []
        plain = [{name: each[name].cpu().numpy() for name in ("boxes", "scores", "labels")} for each in found]
        return [Detections(**each) for each in plain]

    def save(self, folder: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write `model.safetensors`, `config.json` and a model card, `README.md`, to a folder: all, or nothing."""
        tensors = self.network.state_dict()
        storage.save(folder, asdict(self.settings), tensors, 0, overwrite, kind=storage.DETECTOR, card=_card)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | torch.device = "cpu") -> "Detector":
        """A saved detector, in evaluation mode."""
        folder = storage.find(path)
        settings, tensors = storage.read(folder, storage.DETECTOR)
        detector = cls(_read_settings(settings, str(folder / storage.CONFIG)))
        try:
            detector.network.load_state_dict(tensors)
        except RuntimeError:
            raise InputError(
                f"{folder / storage.WEIGHTS} does not hold the weights that {storage.CONFIG} beside it describes; "
                "save the detector again"
            ) from None
        detector.origin = str(folder)
        return detector.to(device).eval()


def require_torchvision() -> None:
    """Refuse to go on without torchvision."""
    try:
        import torchvision.models.detection  # noqa: F401
    except ImportError:
        raise InputError("detection needs torchvision; pip install 'frontrank[detect]'") from None


def build_network(settings: DetectorSettings) -> "FasterRCNN":
    """torchvision's Faster R-CNN with random weights, its heads exchanged for `RankedRoIHeads`."""
    require_torchvision()
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.ops import MultiScaleRoIAlign

    from frontrank.detection.backbones import build_backbone, strides_of
    from frontrank.detection.heads import RankedRoIHeads

    backbone = build_backbone(settings.backbone, settings.channels)
    strides = strides_of(backbone)
    sizes = tuple((round(settings.anchor_scale * stride),) for stride in strides.values())
    pool = MultiScaleRoIAlign([name for name in strides if name != "pool"], output_size=7, sampling_ratio=2)
    network = FasterRCNN(
        backbone,
        min_size=settings.short_side,
        max_size=settings.long_side,
        image_mean=list(settings.mean),
        image_std=list(settings.std),
        rpn_anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes)),
        rpn_pre_nms_top_n_train=settings.proposals,
        rpn_post_nms_top_n_train=settings.proposals,
        rpn_pre_nms_top_n_test=settings.proposals_test,
        rpn_post_nms_top_n_test=settings.proposals_test,
        box_roi_pool=pool,
        box_head=TwoMLPHead(settings.channels * 49, settings.head_dim),
        box_predictor=FastRCNNPredictor(settings.head_dim, len(settings.classes) + 1),
        box_batch_size_per_image=settings.samples,
        box_positive_fraction=settings.positives,
        box_score_thresh=settings.score_threshold,
        box_nms_thresh=settings.nms_threshold,
        box_detections_per_img=settings.detections,
    )
    network.roi_heads = RankedRoIHeads(network.roi_heads, settings.scores)
    return network


def picture_tensor(picture: "Tensor | np.ndarray | Image") -> Tensor:
    """A picture as bytes [3, height, width]."""
    found = picture if isinstance(picture, Tensor) else torch.from_numpy(np.array(picture)).movedim(-1, 0)
    if found.ndim != 3 or found.shape[0] != 3 or 0 in found.shape:
        raise InputError(f"a picture must have three colours and some pixels, got the shape {tuple(found.shape)}")
    if found.dtype != torch.uint8:
        raise InputTypeError(f"a picture must be bytes from 0 to 255, got {found.dtype}")
    return found.contiguous()


def _check(settings: DetectorSettings) -> None:
    if not settings.classes or len(set(settings.classes)) != len(settings.classes):
        raise InputError(f"classes must be names, each once, got {list(settings.classes)}")
    for name in ("channels", "head_dim", "short_side", "proposals", "proposals_test", "samples", "detections"):
        if getattr(settings, name) < 1:
            raise InputError(f"{name} must be at least 1, got {getattr(settings, name)}")
    if settings.long_side < settings.short_side:
        raise InputError(f"long_side {settings.long_side} is less than short_side {settings.short_side}; make it more")


def _read_settings(settings: Mapping[str, Any], named: str) -> DetectorSettings:
    names = {each.name for each in fields(DetectorSettings)}
    if set(settings) != names:
        odd = sorted(names ^ set(settings))[0]
        raise InputError(
            f"{named} has other settings than this version of frontrank ({odd}); use the one that saved it"
        )
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    return DetectorSettings(**plain)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    mode = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(mode)


def _card(name: str, config: Mapping[str, Any]) -> str:
    settings = config["settings"]
    return f"""---
library_name: frontrank
pipeline_tag: object-detection
tags:
- frontrank
- object-detection
- {settings["backbone"]}
---

# {name}

A Faster R-CNN on {settings["backbone"]} that finds {", ".join(settings["classes"])}.

```python
from frontrank.detection import Detector

detector = Detector.load("path/of/this/folder")
(found,) = detector.detect([picture])  # found.boxes, found.scores, found.labels; label c is detector.classes[c - 1]
```

| | |
|---|---|
| pictures | scaled to a short side of {settings["short_side"]} px, a long one of {settings["long_side"]} px at most |
| sorted by | {settings["scores"]} |
| fingerprint | {config["fingerprint"]} |
| frontrank | {config["frontrank_version"]} |
"""
