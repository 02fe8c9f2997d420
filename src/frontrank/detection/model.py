"""The detector: torchvision's Faster R-CNN on any of several backbones, with a classifier that may learn by ranking."""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from frontrank.checks import check_choice, check_integer, import_extra, shorten, suggestion
from frontrank.detection.data import SceneTable, all_scenes
from frontrank.detection.evaluation import Detections
from frontrank.errors import InputError, InputTypeError
from frontrank.files import PathLike, parse_errors
from frontrank.losses import ClassifierAP
from frontrank.models import storage
from frontrank.models.backbone import module_mode, unknown_backbone
from frontrank.models.weights import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    LARGEST_SIDE,
    WORDS,
    fetch_pretrained,
    load_tensors,
    package_weights,
    pretrained_title,
    read_weights,
    source_of,
)
from frontrank.progress import progress
from frontrank.training import distributed

try:
    from torchvision import models
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.backbone_utils import BackboneWithFPN
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.roi_heads import RoIHeads
    from torchvision.models.resnet import Bottleneck, ResNet
    from torchvision.ops import MultiScaleRoIAlign
    from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool
except ImportError as error:
    raise InputError("detection needs torchvision; pip install 'frontrank[detect]'") from error

if TYPE_CHECKING:
    from PIL.Image import Image

Scores = Literal["softmax", "logits"]
ClassifierLoss = Callable[[Tensor, Tensor], Tensor]

SMALL = "small"
TIMM = "timm."  # before a name of timm
RESNEXT = "resnext101_32x4d"  # RaMBO's X101; torchvision can build it but has no weights
RESNEXT_WEIGHTS = f"{RESNEXT}.gluon_in1k"  # ImageNet alone: timm's default weights have seen more pictures
RESNETS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d"),
    *(RESNEXT, "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2"),
)
MOBILE = {  # layers at 1/4, 1/8, 1/16, 1/32
    "mobilenet_v2": (2, 4, 7, 18),
    "mobilenet_v3_large": (2, 4, 7, 16),
    "mobilenet_v3_small": (1, 2, 4, 12),
}
_SMALL_CHANNELS = (32, 64, 96)  # of the maps at 1/4, 1/8 and 1/16 of the picture's size
_NORM_GROUPS = 8
_PROBE = 256  # side of the picture that is used to measure strides
_STRIDES = (4, 8, 16, 32)  # of maps that a pyramid is built on
_EXAMPLE = """from frontrank.detection import Detector

detector = Detector.load("path/of/this/folder")
(found,) = detector.detect([picture])  # found.boxes, found.scores, found.labels; label c is detector.classes[c - 1]"""
_PREDICTOR = "roi_heads.box_predictor."
_OLD_NAMES = {  # in the files that torchvision publishes -> now
    r"(fpn\.(?:inner|layer)_blocks\.\d+)\.(weight|bias)$": r"\1.0.\2",
    r"(rpn\.head\.conv)\.(weight|bias)$": r"\1.0.0.\2",
}


# The detector


@dataclass(frozen=True)
class DetectorSettings:
    """What a detector is built from beside its weights; `config.json` holds the same.

    classes:      label c is classes[c - 1]; 0 is the background
    backbone:     a name that `build_pyramid` knows
    batch_norm:   "frozen" or "train"
    channels:     of the feature pyramid
    head_dim:     of the two layers before the predictor
    anchor_scale: side of an anchor in places of its map: 8 is torchvision's 32 px at 1/4 of the size
    short_side, long_side: pictures are scaled until the short side has so many pixels, or the long one that many
    proposals, proposals_test: of the region proposal network per picture, in training and afterwards
    samples, positives: proposals the heads train on per picture, and the share of objects among them, at most
    scores:       what detections are sorted by, softmax or logits
    score_threshold, nms_threshold, detections: limits of what is found per picture; logits have no threshold
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
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def check(self) -> None:
        """Raise if a detector cannot be built from these settings."""
        if not all(isinstance(name, str) for name in self.classes) or isinstance(self.classes, str):
            raise InputError(f"classes must be names, got {shorten(repr(self.classes))}")
        if not self.classes or len(set(self.classes)) != len(self.classes):
            raise InputError(f"classes must be names, each once, got {list(self.classes)}")
        for name in ("channels", "head_dim", "short_side", "proposals", "proposals_test", "samples", "detections"):
            check_integer(name, getattr(self, name), at_least=1)
        check_integer("long_side", self.long_side, at_least=1, at_most=LARGEST_SIDE)
        if self.long_side < self.short_side:
            raise InputError(f"long_side {self.long_side} is less than short_side {self.short_side}; make it more")


class Detector(nn.Module):
    """Finds objects in pictures.

    In training mode, detector(images, targets) returns torchvision's four losses by name; images are tensors
    [3, height, width] of bytes or of numbers from 0 to 1, targets have boxes [object, 4] and labels [object]. The
    classifier's loss is cross-entropy, or `classifier_loss` if that is set.
    """

    def __init__(self, settings: DetectorSettings) -> None:
        super().__init__()
        settings.check()
        self.settings = settings
        self.network = build_network(settings)
        self.origin = "random weights"
        self.train(self.training)

    @classmethod
    def build(cls, settings: DetectorSettings, weights: str = "none", trainable_layers: int = 5) -> "Detector":
        """Build a detector with first weights.

        weights: none, pretrained (ImageNet, of torchvision or timm), package, a file, or the folder of a detector
        trainable_layers: how many of the five layers of a ResNet are trained, from the last, unless it starts at random
        """
        mean, std = colours_of(settings.backbone, weights)
        detector = cls(replace(settings, mean=mean, std=std))
        detector.origin = load_detector_weights(detector.network, settings.backbone, weights)
        if weights != "none":
            freeze_first_layers(detector.network.backbone, settings.backbone, trainable_layers)
            detector.train(detector.training)
        return detector

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of what it finds; label c is classes[c - 1]."""
        return self.settings.classes

    @property
    def classifier_loss(self) -> "ProposalAP | None":
        """The loss of the classifier; None is cross-entropy."""
        return self.network.roi_heads.classifier_loss

    @classifier_loss.setter
    def classifier_loss(self, loss: "ProposalAP | None") -> None:
        if loss is not None and loss.scores != self.settings.scores:
            own = self.settings.scores
            raise InputError(f"the loss ranks {loss.scores} but the detector sorts by {own}; give both the same")
        self.network.roi_heads.classifier_loss = loss

    def train(self, mode: bool = True) -> "Detector":
        """Set training mode, except for frozen statistics."""
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
        """Find the objects of each picture, best first.

        pictures: of Pillow (upright, RGB), or arrays or tensors of bytes, [height, width, 3] and [3, height, width]
        """
        device = next(self.parameters()).device
        tensors = [_picture_tensor(each).to(device) for each in pictures]
        with module_mode(self), torch.no_grad():
            results = self(tensors) if tensors else []
        names = ("boxes", "scores", "labels")
        return [Detections(**{name: each[name].cpu().numpy() for name in names}) for each in results]

    def save(self, folder: PathLike, overwrite: bool = False) -> None:
        """Write `model.safetensors`, `config.json` and a model card, `README.md`, to a folder: all, or nothing."""
        of = self.settings
        card = storage.Card(
            ("object-detection", "object-detection", of.backbone),
            f"A Faster R-CNN on {of.backbone} that finds {', '.join(of.classes)}.",
            _EXAMPLE,
            {
                "pictures": f"scaled to a short side of {of.short_side} px, a long one of {of.long_side} px at most",
                "sorted by": of.scores,
            },
        )
        storage.save_model(folder, storage.DETECTOR, asdict(of), self.network.state_dict(), card, overwrite)

    @classmethod
    def load(cls, path: PathLike, device: str | torch.device = "cpu") -> "Detector":
        """Load a saved detector, in evaluation mode."""
        folder = storage.find_model(path)
        settings, tensors = storage.read_model(folder, storage.DETECTOR)
        with parse_errors(folder / storage.CONFIG, "save the model again"), storage.WeightLimit(tensors):
            detector = cls(_read_settings(settings, folder / storage.CONFIG))
        storage.restore_weights(detector.network, tensors, folder)
        detector.origin = str(folder)
        return detector.to(device).eval()


def find_objects(
    detector: Detector,
    table: SceneTable,
    *,
    batch: int = 8,
    workers: int = 2,
    device: torch.device | str | None = None,
    show: bool | None = None,
) -> list[Detections]:
    """Find the objects of each picture, in the order of the table, by this process alone.

    device: move the detector there first
    show:   a progress bar; None draws it on a terminal only
    """
    if device is not None:
        detector.to(device)
    detections: list[Detections] = []
    with progress("detecting", len(table), show) as advance:
        for pictures in all_scenes(table, batch, workers):
            detections += detector.detect(pictures)
            advance(len(pictures))
    return detections


def build_network(settings: DetectorSettings) -> FasterRCNN:
    """Build torchvision's Faster R-CNN with random weights and `RankedRoIHeads`."""
    backbone = build_pyramid(settings.backbone, settings.channels)
    strides = map_strides(backbone)
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


def _picture_tensor(picture: "Tensor | np.ndarray | Image") -> Tensor:
    """Return a picture as bytes [3, height, width]."""
    tensor = picture if isinstance(picture, Tensor) else torch.from_numpy(np.array(picture)).movedim(-1, 0)
    if tensor.ndim != 3 or tensor.shape[0] != 3 or 0 in tensor.shape:
        raise InputError(f"pictures must have three colours and some pixels, got the shape {tuple(tensor.shape)}")
    if tensor.dtype != torch.uint8:
        raise InputTypeError(f"pictures must be bytes from 0 to 255, got {tensor.dtype}")
    return tensor.contiguous()


def _read_settings(settings: Mapping[str, Any], file: Path) -> DetectorSettings:
    if odd := sorted({each.name for each in fields(DetectorSettings)} ^ set(settings)):
        text = f"{file} has other settings than this version of frontrank ({odd[0]})"
        raise InputError(f"{text}; use the one that saved it")
    plain: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in settings.items()}
    return DetectorSettings(**plain)


# The loss of the classifier: AP of all sampled proposals, in place of cross-entropy


class ProposalAP:
    """The loss of class logits [proposal, 1 + class] against labels [proposal], of which 0 is the background.

    ap:     ranks the proposals of all processes, and those it remembers, once per class and once for all classes
    scores: what is ranked, and what detections are sorted by: "softmax", the share of a class among all classes and the
            background, as in torchvision's inference; or "logits", each class's own output, in which the others have no
            part
    warmup: steps, counted by `begin_step`, in which the margin grows from 0 and nothing is remembered

    A proposal of the background is a negative of every class. The loss is NaN if a score is not finite. This is not a
    module: the scores it remembers belong to the state of a run, not to the weights of a model.

    Why it warms up: at first all scores of a class are nearly the same. A margin would put every negative before every
    positive. Also, scores change more from batch to batch than they differ in one, so that remembered ones would only
    tell old from new. Both would leave hardly any gradient about the classes.

    >>> loss = ProposalAP(ClassifierAP(margin=0.0), "logits")
    >>> logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 2.0, 2.0], [0.0, 4.0, 0.0]])
    >>> loss(logits, torch.tensor([1, 2, 0]))  # class 1 at rank 2, class 2 at rank 1; together at ranks 2 and 4
    tensor(0.3333)
    """

    def __init__(self, ap: ClassifierAP, scores: Scores = "softmax", warmup: int = 0) -> None:
        check_choice("scores", scores, get_args(Scores))
        self.ap, self.scores, self.warmup, self.margin = ap, scores, warmup, ap.margin

    def begin_step(self, step: int) -> None:
        """Set margin and memory for this step of the run; the first is 0."""
        if step < self.warmup:
            self.ap.reset()
        self.ap.margin = self.margin * min(1.0, step / self.warmup) if self.warmup else self.margin

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the same value on every process; backward gives each the gradient of its own proposals."""
        wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        scores = distributed.gather((wide.softmax(1) if self.scores == "softmax" else wide)[:, 1:])
        targets = functional.one_hot(distributed.gather_rows(labels), logits.shape[1])[:, 1:].bool()
        if not bool(scores.isfinite().all()):
            return scores.sum() * math.nan
        if not len(scores):  # there is nothing to rank, and nothing to remember
            return logits.sum() * 0.0
        return self.ap(scores, targets)

    @property
    def last(self) -> dict[str, int]:
        """The number of classes with a positive in the latest call, remembered ones included."""
        return self.ap.last

    def state_dict(self) -> dict[str, Any]:
        """Return the remembered scores."""
        return self.ap.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the remembered scores of another."""
        self.ap.load_state_dict(state)

    def __repr__(self) -> str:
        return f"ProposalAP({self.ap.extra_repr()}, scores={self.scores}, warmup={self.warmup})"


class RankedRoIHeads(RoIHeads):
    """torchvision's heads, with another loss of the classifier and scores of detections that fit it.

    heads:  of torchvision; this object takes over their parts
    scores: what detections are sorted by: softmax as in torchvision, or the logits of each class, without a threshold

    `classifier_loss` of class logits and sampled labels is None at first, which leaves torchvision's cross-entropy.
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
        self._predictions: tuple[Tensor, Tensor] | None = None
        self.box_predictor.register_forward_hook(self._keep_predictions)

    def _keep_predictions(self, predictor: Any, inputs: Any, predictions: tuple[Tensor, Tensor]) -> None:
        self._predictions = predictions if self.training else None

    def select_training_samples(self, proposals: Any, targets: Any) -> Any:
        samples = super().select_training_samples(proposals, targets)
        self._labels = samples[2]
        return samples

    def forward(self, features: Any, proposals: Any, image_shapes: Any, targets: Any = None) -> Any:
        try:
            detections, losses = super().forward(features, proposals, image_shapes, targets)
            if self._predictions is not None:
                logits, changes = self._predictions
                if not len(logits):  # no proposal in all of the pictures: a mean over nothing is NaN
                    losses.update(loss_classifier=logits.sum() * 0.0, loss_box_reg=changes.sum() * 0.0)
                if self.classifier_loss is not None:
                    losses["loss_classifier"] = self.classifier_loss(logits, torch.cat(self._labels))
            return detections, losses
        finally:
            self._predictions, self._labels = None, []  # or they would keep the graph of this batch alive

    def postprocess_detections(self, class_logits: Tensor, box_regression: Tensor, proposals: Any, shapes: Any) -> Any:
        """Return boxes, scores and labels of each picture, best first.

        By logits, the score of a detection is the sigmoid of its class's logit. That is the softmax of the class and a
        background of 0, so torchvision's own function is called for each class. Ranking does not fix where the scores
        of a class start, so none is too low; the best of all classes are kept, as many as `detections_per_img`.
        """
        if self.scores == "softmax":
            return super().postprocess_detections(class_logits, box_regression, proposals, shapes)
        boxes, plain = box_regression.unflatten(1, (-1, 4)), super().postprocess_detections
        background = torch.zeros_like(class_logits[:, :1])
        per_class = []
        for label in range(1, class_logits.shape[1]):
            logits = torch.cat([background, class_logits[:, label : label + 1]], 1)
            per_class.append(plain(logits, boxes[:, [0, label]].flatten(1), proposals, shapes)[:2])
        results: tuple[list[Tensor], list[Tensor], list[Tensor]] = [], [], []
        for picture in range(len(shapes)):
            of_boxes, of_scores = ([part[side][picture] for part in per_class] for side in (0, 1))
            of_labels = [torch.full_like(each, label, dtype=torch.int64) for label, each in enumerate(of_scores, 1)]
            best = torch.cat(of_scores).sort(descending=True, stable=True)[1][: self.detections_per_img]
            for result, column in zip(results, (of_boxes, of_scores, of_labels), strict=True):
                result.append(torch.cat(column)[best])
        return results


# Backbones by name, each with a feature pyramid on top


class SmallBackbone(nn.Module):
    """A small network to train on a CPU: residual blocks with group normalisation; gives its maps, finest first."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.GroupNorm(_NORM_GROUPS, 24), nn.ReLU(True))
        before = (24, *_SMALL_CHANNELS[:-1])
        self.stages = nn.ModuleList(
            nn.Sequential(_Block(narrow, wide, 2), _Block(wide, wide, 1))
            for narrow, wide in zip(before, _SMALL_CHANNELS, strict=True)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        maps, last = [], self.stem(images)
        for stage in self.stages:
            last = stage(last)
            maps.append(last)
        return maps


class _Block(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(_NORM_GROUPS, wide)
        self.second = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(_NORM_GROUPS, wide)
        self.short: nn.Module = nn.Identity()
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.GroupNorm(_NORM_GROUPS, wide))

    def forward(self, maps: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(maps)))
        return functional.relu(self.second_norm(self.second(hidden)) + self.short(maps))


class Pyramid(nn.Module):
    """A feature pyramid on a body that returns a list of maps."""

    def __init__(self, body: nn.Module, widths: list[int], channels: int) -> None:
        super().__init__()
        self.body = body
        self.fpn = FeaturePyramidNetwork(widths, channels, LastLevelMaxPool())
        self.out_channels = channels

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.fpn(OrderedDict((str(place), each) for place, each in enumerate(self.body(images))))


def build_pyramid(name: str, channels: int) -> nn.Module:
    """Build the backbone of a name with random weights: `body`, which pretrained weights are for, and `fpn` on it."""
    if name == SMALL:
        return Pyramid(SmallBackbone(), list(_SMALL_CHANNELS), channels)
    if name.startswith(TIMM):
        return _build_timm_pyramid(name.removeprefix(TIMM), channels)
    if name in RESNETS:
        x101 = partial(ResNet, Bottleneck, [3, 4, 23, 3], groups=32, width_per_group=4)
        body: Any = x101() if name == RESNEXT else models.get_model(name, weights=None)
        widths = [body.inplanes // 8 * 2**place for place in range(4)]
        return BackboneWithFPN(body, {f"layer{place + 1}": str(place) for place in range(4)}, widths, channels)
    if name in MOBILE:
        layers = models.get_model(name, weights=None).features
        widths = [layers[place].out_channels for place in MOBILE[name]]
        return BackboneWithFPN(layers, {str(place): str(n) for n, place in enumerate(MOBILE[name])}, widths, channels)
    known = [SMALL, *RESNETS, *MOBILE]
    remedy = suggestion(name, known) or f"; there are {', '.join(known)}, and {TIMM}NAME of timm"
    raise InputError(f"backbone {name!r} is not known{remedy}")


def _build_timm_pyramid(name: str, channels: int) -> Pyramid:
    timm = import_extra("timm", "train", f"backbone {TIMM}{name}")
    if not timm.is_model(name):
        raise unknown_backbone(name, TIMM)
    reason = ""
    with suppress(RuntimeError, AttributeError, TypeError):
        body: Any = timm.create_model(name, pretrained=False, features_only=True)
        reductions = body.feature_info.reduction()
        places = [place for place, each in enumerate(reductions) if each in _STRIDES]
        if len({reductions[place] for place in places}) > 1:
            body = timm.create_model(name, pretrained=False, features_only=True, out_indices=tuple(places))
            return Pyramid(body, body.feature_info.channels(), channels)
        reason = " (all of them have one size)"
    raise InputError(f"backbone {TIMM}{name} has no maps for a pyramid{reason}; take a convolutional one")


def map_strides(backbone: nn.Module) -> dict[str, int]:
    """Return how many pixels apart the places of each map are, by the map's name."""
    with module_mode(backbone), torch.no_grad():
        maps: Mapping[str, Tensor] = backbone(torch.zeros(1, 3, _PROBE, _PROBE))
    return {name: round(_PROBE / each.shape[-1]) for name, each in maps.items()}


def freeze_first_layers(backbone: nn.Module, name: str, trainable: int) -> None:
    """Freeze all but the last `trainable` of a ResNet's five parts (stem, layer1 .. layer4); other backbones train."""
    if name not in RESNETS:
        return
    parts = (("layer4",), ("layer3",), ("layer2",), ("layer1",), ("conv1", "bn1"))[:trainable]
    starts = tuple(start for part in parts for start in part)
    for parameter_name, parameter in backbone.get_submodule("body").named_parameters():
        parameter.requires_grad_(parameter_name.startswith(starts))


# First weights: torchvision's or timm's of ImageNet, those of a package, a file, or a saved detector


def colours_of(backbone: str, weights: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of the colours that weights were trained with."""
    if weights == "package":
        source = source_of(_timm_name(backbone))
        return source.mean, source.std
    if Path(weights).is_dir() and weights not in WORDS:
        settings = storage.read_model_config(Path(weights), storage.DETECTOR)["settings"]
        return tuple(settings["mean"]), tuple(settings["std"])
    name = RESNEXT_WEIGHTS if backbone == RESNEXT else backbone.removeprefix(TIMM)
    if weights != "none" and (backbone == RESNEXT or backbone.startswith(TIMM)):
        with suppress(ImportError, RuntimeError):  # no timm, or no such model: refused where the network is built
            import timm

            config = timm.get_pretrained_cfg(name)
            if config is not None:
                return tuple(config.mean), tuple(config.std)
    return IMAGENET_MEAN, IMAGENET_STD


def load_detector_weights(network: nn.Module, backbone: str, weights: str) -> str:
    """Load first weights into a detector's network; return a phrase about what was loaded."""
    tensors: Mapping[str, Tensor]
    body = network.get_submodule("backbone.body")
    if weights == "none":
        return "random weights"
    if weights in ("package", "pretrained"):
        if weights == "package":
            name = _timm_name(backbone)
            tensors, title = package_weights(name), f"ImageNet weights of {backbone} from {source_of(name)}"
        else:
            tensors, title = _fetch_weights(backbone, body)
        load_tensors(body, tensors, title)
        return f"{title}; pyramid and heads start anew"
    path = Path(weights)
    if path.is_dir():
        return _load_detector(network, storage.read_model(path, storage.DETECTOR)[1], weights)
    if not path.is_file():
        raise InputError(f"weights {weights!r} does not exist; give a file or folder, pretrained, package, or none")
    tensors = read_weights(path)
    if any(name.startswith("roi_heads.") for name in tensors):
        return _load_detector(network, tensors, weights)
    load_tensors(body, tensors, weights)
    return f"backbone from {weights}; pyramid and heads start anew"


def _timm_name(backbone: str) -> str:
    if not backbone.startswith(TIMM):
        example = "timm.mobilenetv2_100"
        raise InputError(f"weights package need a backbone of timm, got {backbone}; give another, such as {example}")
    return backbone.removeprefix(TIMM)


def _load_detector(network: nn.Module, tensors: Mapping[str, Tensor], title: str) -> str:
    """Load all weights of another detector; the last layer only if it has as many classes."""
    for old, new in _OLD_NAMES.items():
        tensors = {re.sub(old, new, name): x for name, x in tensors.items()}
    own = network.state_dict()
    last = [name for name in own if name.startswith(_PREDICTOR)]
    same = all(name in tensors and tensors[name].shape == own[name].shape for name in last)
    loadable = {name: x for name, x in tensors.items() if same or name not in last}
    load_tensors(network, loadable, title, () if same else (_PREDICTOR,))
    return f"all of {title}" if same else f"all of {title} but the last layer, which starts anew"


def _fetch_weights(backbone: str, body: Any) -> tuple[Mapping[str, Tensor], str]:
    """Return pretrained weights of ImageNet by the names of the backbone's body, and their title."""
    if backbone == RESNEXT:
        return _fetch_timm(RESNEXT_WEIGHTS)
    if backbone.startswith(TIMM):  # some models have other names if they return maps
        return _fetch_timm(backbone.removeprefix(TIMM), features_only=True, out_indices=body.feature_info.out_indices)
    try:
        weights: Any = models.get_model_weights(backbone)["IMAGENET1K_V1"]
    except (ValueError, KeyError):
        raise InputError(f"weights: there are no pretrained ones of {backbone}; give a file, or none") from None
    title = f"torchvision's {backbone}.IMAGENET1K_V1"
    tensors = fetch_pretrained(title, partial(weights.get_state_dict, progress=False, check_hash=True))
    if backbone.startswith("mobilenet"):
        tensors = {name.removeprefix("features."): x for name, x in tensors.items()}
    return tensors, title


def _fetch_timm(name: str, **options: Any) -> tuple[Mapping[str, Tensor], str]:
    import timm

    build = partial(timm.create_model, name, pretrained=True, **options)
    model = fetch_pretrained(f"timm's pretrained {name}", build, "package, ")
    return model.state_dict(), pretrained_title(name, model)
