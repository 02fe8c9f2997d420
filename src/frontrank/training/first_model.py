"""The model before the first step: which features of the backbone it reads, and a head that starts from them.

Both are chosen among a few by how well the frozen backbone ranks images of held-out classes.
"""

import math
import time
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from frontrank.data.table import ImageTable
from frontrank.errors import InputError
from frontrank.evaluation import evaluate
from frontrank.evaluation.measures import OF_LEVELS
from frontrank.models import Embedder
from frontrank.models.backbone import feature_maps, has_class_token, module_mode, read_features
from frontrank.models.pooling import TOKEN_POOLINGS, Pooling
from frontrank.retrieval.whitening import Whitening
from frontrank.training import distributed
from frontrank.training.embedding import embed_table

HEADS = {"rotation": 0.0, "pca": 0.0, "whitening-0.25": 0.25, "whitening-0.5": 0.5}  # powers; rotation has no mean
_MOST_IMAGES = 4096  # of a search
_LEAST_IMAGES = 64
_WORK, _WORK_PER_MINUTE = 2e12, 1.5e11  # floating-point operations of a search: about half a minute on two cores
_WORK_PER_IMAGE = 1e8  # beside the network: to read an image
_OF_A_CLASS = 16  # images of a large class, more if there are few classes
_MOST_FEATURES = 2048  # of pooling flat, if it is tried
_MOST_FITTED = 8192  # features: their covariance has as many rows and columns
_OTHER_POOLING, _EARLIER_STAGE = 0.01, 0.03  # by which another reading must be better; each stage left out learns less
_DOUBT = 0.5  # and by this over the root of the number of images: about a standard error
_ROW_LENGTH = 3**-0.5  # of the head's rows, about as nn.Linear has them


@dataclass(frozen=True)
class Reading:
    """A way to read features from a backbone, and how well they rank so many images."""

    stage: int
    pooling: str
    value: float = 0.0
    images: int = 0

    def __str__(self) -> str:
        return f"{f'stage {self.stage}' if self.stage else 'last layer'}, {self.pooling}"


# Which features


def choose_reading(model: Embedder, table: ImageTable, metric: str, minutes: float, **embedding: Any) -> list[Reading]:
    """Return readings of the backbone, the best one first, by how well they rank images of the table.

    model:     with the pooling that its authors meant; another one must be better by a margin
    minutes:   of the run; 0 if it has no such limit
    embedding: settings of `embed_table`
    """
    own = model.settings.pooling
    readings = _readings(model)
    network = _Readings(model, readings)
    rows = _sample_classes(table, min(_MOST_IMAGES, affordable_images(network, minutes)))
    features = embed_table(network, rows, show=False, **embedding)
    parts = np.split(features, np.cumsum(network.widths)[:-1], axis=1)
    labels = _labels(rows, metric)
    results = []
    for reading, part in zip(readings, parts, strict=True):
        value = evaluate(part, labels, metrics=(metric,), progress=False)[metric]
        results.append(Reading(reading.stage, reading.pooling, float(value), len(rows)))
    stages = sorted({each.stage for each in results if each.stage}, reverse=True)

    def rating(reading: Reading) -> float:
        if (reading.stage, reading.pooling) == (0, own):
            return reading.value
        left_out = stages.index(reading.stage) + 1 if reading.stage else 0
        return reading.value - max(left_out * _EARLIER_STAGE, _OTHER_POOLING) - _DOUBT / math.sqrt(len(rows))

    return distributed.from_main(sorted(results, key=rating, reverse=True))


def _readings(model: Embedder) -> list[Reading]:
    """Return the readings to try: the last layer, and the two stages before it where a backbone has stages."""
    own, tokens = model.settings.pooling, has_class_token(model.backbone)
    readings = [Reading(0, own)]
    for stage in (0, *_earlier_stages(model.backbone)):
        try:
            with torch.no_grad(), module_mode(model.backbone):
                side, weight = model.image_size, next(model.parameters())
                image = torch.zeros(1, 3, side, side, device=weight.device, dtype=weight.dtype)
                shape = feature_maps(model.backbone, image, stage).shape
        except (AttributeError, AssertionError, IndexError, RuntimeError, TypeError, ValueError):
            continue
        poolings = ["average", "gem"]
        if stage == 0 and own == "native":  # the average of a map is its own already, but for a norm
            poolings = ["cls+average", "average"] if tokens else ["gem"]
        if len(shape) == 4 and shape[2] * shape[3] > 1 and math.prod(shape[1:]) <= _MOST_FEATURES:
            poolings.append("flat")
        readings += [Reading(stage, pooling) for pooling in poolings if (stage, pooling) != (0, own)]
    return readings


def _earlier_stages(backbone: Any) -> list[int]:
    """Return the numbers of the two stages before the last, if maps get smaller from stage to stage."""
    try:
        reductions = [each["reduction"] for each in backbone.feature_info]
    except (AttributeError, TypeError, KeyError):
        return []
    return [len(reductions) - 1, len(reductions) - 2] if len(reductions) > 2 and reductions[-1] > reductions[0] else []


class _WithSize(nn.Module):
    """A module that takes images of the same size and colours as a model."""

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.model = model
        self.resize, self.image_size, self.interpolation = model.resize, model.image_size, model.interpolation
        self.mean, self.std = model.mean, model.std


class _Readings(_WithSize):
    """All readings of an image, side by side."""

    def __init__(self, model: Embedder, readings: list[Reading]) -> None:
        super().__init__(model)
        self.readings = readings
        self.poolings = nn.ModuleDict({name: Pooling(name) for name in {each.pooling for each in readings}})
        self.poolings.to(next(model.parameters()).device)
        self.widths: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        features, maps = [], {}
        for each in self.readings:
            # readings of a map share it; others are computed anew
            key = (each.stage, each.pooling if each.pooling in ("native", *TOKEN_POOLINGS) else "map")
            if key not in maps:
                maps[key] = read_features(self.model.backbone, images, each.pooling, each.stage)
            features.append(self.poolings[each.pooling](maps[key]))
        self.widths = [each.shape[1] for each in features]
        return torch.cat(features, 1)


# The head


def start_head(
    model: Embedder, kind: str, train: ImageTable, held_out: ImageTable, metric: str, minutes: float, **embedding: Any
) -> tuple[str, dict[str, float], float]:
    """Give the linear head its first weights, from features of training images.

    kind: one of HEADS, or "auto" for the one that ranks images of the held-out classes best; if there are none, images
        that are trained on

    Returns the kind, the metric of each that was tried and of the features without a head ("none"), and the seconds to
    embed an image. A head of random weights stays as it is if there is no linear layer, or if features are too many to
    be analysed.
    """
    linear = model.head.linear
    if kind == "random" or not isinstance(linear, nn.Linear) or linear.in_features > _MOST_FITTED:
        return "random", {}, 0.0
    network, shuffled = _HeadInput(model), np.random.default_rng(0).permutation(len(train))
    most = min(_MOST_IMAGES, affordable_images(network, minutes))
    started, rows = time.monotonic(), train.rows(shuffled[:most])
    features = embed_table(network, rows, show=False, **embedding)
    per_image = (time.monotonic() - started) / len(rows)
    try:
        whitening = Whitening.fit(features, power=0.0, progress=False)
    except InputError:  # features that do not differ at all
        return "random", {}, per_image
    length = float(np.linalg.norm(features, axis=1).mean())
    heads = {name: _head(name, whitening, length, linear) for name in (HEADS if kind == "auto" else [kind])}
    values: dict[str, float] = {}
    if kind == "auto":
        if len(held_out):
            rows = _sample_classes(held_out, most)
            features = embed_table(network, rows, show=False, **embedding)
        tensor = torch.as_tensor(features)
        if rows.class_sizes().max() > 1:
            labels = _labels(rows, metric)
            outputs = {name: nn.functional.linear(tensor, *head) for name, head in heads.items()} | {"none": tensor}
            for name, output in outputs.items():
                values[name] = float(evaluate(output, labels, metrics=(metric,), progress=False)[metric])
    name = distributed.from_main(max(heads, key=lambda each: values.get(each, 0.0)))
    with torch.no_grad():
        for own, first in zip((linear.weight, linear.bias), heads[name], strict=True):
            own.copy_(first)
    return name, values, per_image


class _HeadInput(_WithSize):
    """What the linear head of a model gets."""

    def forward(self, images: Tensor) -> Tensor:
        inputs: list[Tensor] = []
        hook = self.model.head.linear.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        try:
            self.model(images)
        finally:
            hook.remove()
        return inputs[0]


def _head(kind: str, whitening: Whitening, length: float, linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a linear layer that does what a whitening does to features of this length.

    Rows beyond those of the whitening are random and orthogonal to them. They are scaled like the last one, and by as
    much as a random projection to fewer dimensions shortens: so the head of few images ranks about as the features do.
    """
    dim = linear.out_features
    components = whitening.components[:dim]
    scale = whitening.variance[: len(components)] ** -HEADS[kind]
    if missing := min(dim, linear.in_features) - len(components):
        random = torch.randn(linear.in_features, missing, dtype=torch.float64, generator=_generator())
        basis = torch.linalg.qr(torch.cat([components.T, random], 1))[0].T[len(components) :]
        components = torch.cat([components, basis])
        shortened = (linear.in_features - len(scale)) / missing
        scale = torch.cat([scale, (scale[-1] * shortened**0.5).expand(missing)])
    weight = components * scale[:, None]
    if (more := dim - len(weight)) > 0:  # an embedding of more dimensions than there are features
        small = 0.1 * float(weight.norm(dim=1).min()) / linear.in_features**0.5
        rows = small * torch.randn(more, linear.in_features, dtype=torch.float64, generator=_generator())
        weight = torch.cat([weight, rows])
    bias = torch.zeros(dim, dtype=weight.dtype) if kind == "rotation" else -weight @ whitening.mean
    size = _ROW_LENGTH / float(weight.square().sum(1).mean().sqrt())
    return (weight * size).to(linear.weight.dtype), (bias * size * length).to(linear.weight.dtype)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# Images


def _labels(table: ImageTable, metric: str) -> Any:
    """Return the labels that a metric looks at."""
    return table.label_sets() or (table.level_labels() if metric.startswith(OF_LEVELS) else table.labels)


def affordable_images(network: nn.Module, minutes: float) -> int:
    """Return how many images a search may embed, by the work of the network for one of them.

    It depends on the network and the minutes of the run, not on the speed of a machine: the same run chooses the same.
    """
    side, weight = cast(int, network.image_size), next(network.parameters())
    image = torch.zeros(1, 3, side, side, dtype=weight.dtype, device=weight.device)
    with FlopCounterMode(display=False) as counter, module_mode(network), torch.no_grad():
        network(image)
    work = min(_WORK, _WORK_PER_MINUTE * minutes) if minutes else _WORK
    return max(_LEAST_IMAGES, int(work / (counter.get_total_flops() + _WORK_PER_IMAGE)))


def _sample_classes(table: ImageTable, most: int) -> ImageTable:
    """Return images of random classes, held-out classes first: whole classes, but only some images of large ones.

    most: images; only of classes of at least two, if there are any
    """
    order = np.random.default_rng(0).permutation(len(table))
    order = order[np.argsort(table.splits[order] != "validation", kind="stable")]
    classes: dict[str, list[int]] = {}
    labels = table.first_labels()
    for row in order.tolist():
        classes.setdefault(str(labels[row]), []).append(row)
    groups = [rows for label, rows in classes.items() if label and len(rows) > 1] or [[row] for row in order.tolist()]
    each = max(_OF_A_CLASS, most // max(1, len(groups)))
    ends = np.cumsum([min(len(rows), each) for rows in groups])
    fit = [row for rows, end in zip(groups, ends, strict=True) if end <= most for row in rows[:each]]
    return table.rows(np.array(fit, dtype=np.int64))
