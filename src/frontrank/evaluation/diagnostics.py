"""Diagnostics of training with a ranking loss: how far its AP, and AP inside its batches, are from the truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frontrank.checks import check_integer
from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation.evaluate import encode_labels, evaluate
from frontrank.losses import FastAP, QuantizedAP, RankLoss
from frontrank.ranking import AveragePrecision, Exact, LabelRelevance, Positives, Relaxation, Vectors, average_precision
from frontrank.ranking.vectors import check_labels, full_precision

_SCORES = 1 << 24  # scores held at once

Approximation = Relaxation | RankLoss | FastAP | QuantizedAP


@dataclass(frozen=True)
class APError:
    """AP by an approximation and exact AP, for each query that has a positive [query]."""

    predicted: Tensor
    exact: Tensor

    @property
    def per_query(self) -> Tensor:
        """|AP_pred - AP| (smooth_ap Eq. 8)."""
        return (self.predicted - self.exact).abs()

    @property
    def mean(self) -> float:
        return float(self.per_query.mean())


def ap_error(embeddings: Any, labels: Any, approximation: Approximation) -> APError:
    """Measure how far an approximation of average precision is from it, query by query, on a batch or a data set.

    approximation: a relaxation of the ranks, such as `Sigmoid(0.01)`, or a loss that is 1 - AP: SmoothAP, FastAP,
                   QuantizedAP, BlackboxAP

    A. Brown, W. Xie, V. Kalogeiton, A. Zisserman: Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval.
    ECCV 2020. Eq. 8; over the batches of an epoch this is its Fig. 4.

    >>> from frontrank.ranking import Sigmoid
    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.5], [0.0, 1.0], [0.6, 0.8]])
    >>> [round(ap_error(x, [0, 0, 1, 1], Sigmoid(t)).mean, 4) for t in (0.1, 0.01, 0.001)]
    [0.0623, 0.0013, 0.0]
    """
    rows = Vectors("embeddings", embeddings)
    codes, _ = encode_labels(check_labels("labels", labels, len(rows)), None)
    relevance = LabelRelevance(codes, codes, own=True)
    used = relevance.counts.nonzero()[:, 0]
    if not len(used):
        raise InputError("labels has no class of two items or more, so no query has a positive")
    unit = rows.unit()
    predicted, exact = [], []
    with torch.no_grad(), full_precision(rows.device):
        for some in used.split(max(1, _SCORES // len(rows))):
            here = some.to(unit.device)
            on_cpu = relevance.positives(some)
            positives = Positives(on_cpu.index.to(unit.device), on_cpu.valid.to(unit.device), own=here)
            scores = unit[here] @ unit.T
            predicted.append(_approximate_ap(approximation, scores.clone(), positives))
            exact.append(average_precision(Exact().ranks(scores, positives, slopes=False)[0]))
    return APError(torch.cat(predicted), torch.cat(exact))


def _approximate_ap(approximation: Approximation, scores: Tensor, positives: Positives) -> Tensor:
    if isinstance(approximation, RankLoss):
        if not isinstance(approximation.metric, AveragePrecision):
            raise InputError(
                f"approximation {approximation} is not one of average precision; give a relaxation or an AP loss"
            )
        approximation = approximation.relaxation
    if isinstance(approximation, FastAP | QuantizedAP):
        return 1 - approximation.objective(scores, positives, None)[0]
    if isinstance(approximation, type) or not hasattr(approximation, "ranks"):
        raise InputTypeError(
            f"approximation must be a relaxation such as Sigmoid(0.01), or an AP loss such as SmoothAP(), "
            f"got {approximation!r}"
        )
    return average_precision(approximation.ranks(scores, positives, slopes=False)[0])


@dataclass(frozen=True)
class BatchMAP:
    """mAP inside mini-batches, by batch size, and of the whole data set.

    std:  standard deviation between batches; 0 if there was only one
    used: number of batches in mean and std: those in which some query has a positive
    """

    batch_sizes: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dataset: float
    used: tuple[int, ...] = ()


def minibatch_map(
    embeddings: Any,
    labels: Any,
    batch_sizes: Sequence[int] = (32, 64, 128, 256, 512, 1024),
    *,
    per_class: int | None = 4,
    batches: int = 50,
    seed: int = 0,
) -> BatchMAP:
    """Measure how much too high mAP is inside random mini-batches, compared with mAP of the data set.

    per_class: items drawn from each class of a batch, as in training; None draws items, not classes. All items of a
               class that has fewer are drawn.
    batches:   number drawn for each size; mean and standard deviation are of those that have a positive

    M. Rolínek, V. Musil, A. Paulus, M. Vlastelica, C. Michaelis, G. Martius: Optimizing Rank-based Metrics with
    Blackbox Differentiation. CVPR 2020. Fig. 2.
    """
    rows = Vectors("embeddings", embeddings)
    names = check_labels("labels", labels, len(rows))
    sizes = tuple(int(size) for size in batch_sizes)
    if not sizes or min(sizes) < 2 or max(sizes) > len(rows):
        raise InputError(f"batch_sizes must be from 2 to the {len(rows)} items there are, got {list(sizes)}")
    check_integer("batches", batches, at_least=2)
    if per_class is not None:
        check_integer("per_class", per_class, at_least=2)
    random = np.random.default_rng(seed)
    order = np.argsort(names, kind="stable")
    classes = np.split(order, np.flatnonzero(np.diff(np.unique(names, return_inverse=True)[1][order])) + 1)
    means, stds, used = [], [], []
    for size in sizes:
        values = []
        for _ in range(batches):
            batch = torch.from_numpy(_batch(random, classes, len(rows), size, per_class))
            if len(np.unique(names[batch])) < len(batch):  # else no query has a positive, and there is no AP
                values.append(evaluate(rows.unit(batch), names[batch], metrics=["mAP"], progress=False)["mAP"])
        if not values:
            raise InputError(f"no batch of {size} items had two of a class; give per_class, or larger batch_sizes")
        means.append(float(np.mean(values)))
        stds.append(float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)
        used.append(len(values))
    whole = evaluate(embeddings, names, metrics=["mAP"])["mAP"]
    return BatchMAP(sizes, tuple(means), tuple(stds), whole, tuple(used))


def _batch(
    random: np.random.Generator, classes: "list[np.ndarray]", items: int, size: int, per_class: int | None
) -> "np.ndarray":
    """Return the indices of a batch: random items, or a few items of each of some random classes."""
    if per_class is None:
        return random.choice(items, size, replace=False)
    batch: list[int] = []
    for chosen in random.permutation(len(classes)):
        batch += random.permutation(classes[chosen])[:per_class].tolist()
        if len(batch) >= size:
            break
    return np.asarray(batch[:size])
