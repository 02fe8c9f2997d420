"""A toy in two dimensions, after PNP's Fig. 6: points of a plane, embedded on the unit circle by a small network.

The paper gives the network (2 layers of 30) and the classes (4 to train, 4 to test, 150 points each), not where the
points are. Two layouts stand for that:

    lines    after Roth et al. 2020, whom the paper follows: the training classes are four pieces of a diagonal, the
             test classes two pieces of each of two sides of a square
    centres  each training class has three centres, each test class one that is new; all are drawn anew for each seed

Both lie in the square from -1 to 1.

All is in float64 and a batch is a function of its step: the page of the designer does the same in a browser.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from frontrank.evaluation import evaluate

Layout = Literal["lines", "centres"]
LAYOUTS: tuple[Layout, ...] = ("lines", "centres")
CLASSES, POINTS, NEURONS = 4, 150, 30
PER_CLASS = 16  # points of each class in a batch
STRIDES = (17, 19, 23, 29)  # how far each class goes on from batch to batch; none shares a factor with POINTS
STEPS, RATE, TEMPERATURE = 300, 0.01, 0.01
METRICS = ("R@1", "mAP", "NMI", "dists@intra")
_NEAREST, _SPREAD = 0.35, 0.06  # of centres


@dataclass(frozen=True)
class Toy:
    """Points [class * POINTS, 2] to train and to test with, in the order of their classes, and the first weights."""

    train: Tensor
    test: Tensor
    weights: list[Tensor]


def labels() -> Tensor:
    """The class of each point."""
    return torch.arange(CLASSES).repeat_interleave(POINTS)


def toy(layout: Layout, seed: int) -> Toy:
    """The toy of a seed. Numbers have 4 decimals, so that a page can hold them as they are."""
    generator = torch.Generator().manual_seed(seed)
    train, test = (_lines if layout == "lines" else _centres)(generator)
    weights = []
    for inside, outside in ((2, NEURONS), (NEURONS, NEURONS), (NEURONS, 2)):
        bound = 1 / math.sqrt(inside)
        weights += [(2 * _uniform(generator, outside, inside) - 1) * bound]
        weights += [(2 * _uniform(generator, outside) - 1) * bound]
    return Toy(train.round(decimals=4), test.round(decimals=4), [weight.round(decimals=4) for weight in weights])


def _lines(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    along = 0.4 * _uniform(generator, 2, CLASSES, POINTS)
    diagonal = along[0] + 0.5 * torch.arange(CLASSES)[:, None] - 1
    train = torch.stack([diagonal, diagonal], dim=2)
    side = along[1] + torch.tensor([-0.4, 0.4, -0.4, 0.4])[:, None]
    edge = -torch.ones_like(side)
    test = torch.stack([torch.cat([edge[:2], side[2:]]), torch.cat([side[:2], edge[2:]])], dim=2)
    train, test = (part + 0.02 * _normal(generator, CLASSES, POINTS, 2) for part in (train, test))
    return train.flatten(0, 1), test.flatten(0, 1)


def _centres(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    of_train = 3
    centres = torch.empty(0, 2, dtype=torch.float64)
    while len(centres) < CLASSES * (of_train + 1):
        point = 2 * _uniform(generator, 1, 2) - 1
        if not len(centres) or float(torch.cdist(point, centres).min()) >= _NEAREST:
            centres = torch.cat([centres, point])
    which = torch.randint(of_train, (CLASSES, POINTS), generator=generator)
    train = centres[which * CLASSES + torch.arange(CLASSES)[:, None]]
    test = centres[-CLASSES:, None].expand(CLASSES, POINTS, 2)
    train, test = (part + _SPREAD * _normal(generator, CLASSES, POINTS, 2) for part in (train, test))
    return train.flatten(0, 1), test.flatten(0, 1)


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def embedded(weights: Sequence[Tensor], points: Tensor) -> Tensor:
    """Where a network puts points on the circle [point, 2]."""
    hidden = points
    for place in (0, 2):
        hidden = torch.relu(hidden @ weights[place].T + weights[place + 1])
    return torch.nn.functional.normalize(hidden @ weights[4].T + weights[5], dim=1)


def batch_rows(step: int) -> Tensor:
    """The points of a batch, steps counted from 0: each class goes round at its own pace."""
    starts = step * torch.tensor(STRIDES)
    own = (starts[:, None] + torch.arange(PER_CLASS)) % POINTS
    return (own + POINTS * torch.arange(CLASSES)[:, None]).flatten()


def train(
    data: Toy,
    loss: Callable[[Tensor, Tensor], Tensor],
    steps: int = STEPS,
    seen: Callable[[int, list[Tensor]], None] = lambda _step, _weights: None,
) -> list[Tensor]:
    """The weights after some steps of Adam. seen: called with the weights before each step, and after the last."""
    weights = [weight.clone().requires_grad_() for weight in data.weights]
    optimizer = torch.optim.Adam(weights, lr=RATE)
    classes = labels()
    for step in range(steps):
        seen(step, [weight.detach() for weight in weights])
        rows = batch_rows(step)
        optimizer.zero_grad()
        loss(embedded(weights, data.train[rows]), classes[rows]).backward()
        optimizer.step()
    found = [weight.detach() for weight in weights]
    seen(steps, found)
    return found


def judged(weights: Sequence[Tensor], points: Tensor) -> dict[str, float]:
    """How well the classes of points are kept apart, each point searching all others."""
    report = evaluate(embedded(weights, points), labels(), metrics=METRICS, progress=False)
    return {metric: float(report[metric]) for metric in METRICS}


def as_text(numbers: Tensor, decimals: int) -> str:
    """Numbers as one line of text, which takes less room than a list does in JSON."""
    return " ".join(f"{number:.{decimals}f}" for number in numbers.flatten().tolist())


def from_text(text: str) -> list[float]:
    """Numbers from `as_text`."""
    return [float(word) for word in text.split()]


def degrees(embeddings: Tensor) -> Tensor:
    """The place of embeddings on the circle, 0 .. 359."""
    angle = torch.rad2deg(torch.atan2(embeddings[:, 1], embeddings[:, 0]))
    return angle.round().remainder(360) + 0.0  # which makes -0 a 0


def mean_gap(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """The mean of second - first over seeds, and twice its standard error."""
    gaps = torch.tensor(second, dtype=torch.float64) - torch.tensor(first, dtype=torch.float64)
    error = float(gaps.std() / math.sqrt(len(gaps))) if len(gaps) > 1 else math.inf
    return {"mean": float(gaps.mean()), "two_errors": 2 * error}
