"""Linear heads on frozen features of emoji, trained by the losses: minutes where whole networks would take hours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.data.samplers import BalancedBatches
from frontrank.data.splits import hold_out_classes
from frontrank.data.table import ImageTable
from frontrank.evaluation import evaluate
from frontrank.files import read_json, write_json
from frontrank.retrieval import Whitening
from frontrank.settings import find_recipe, read_config, read_recipe
from frontrank.training import multistage_backward
from frontrank.training.embedding import embed_table
from frontrank.training.run import frozen_model
from studies.study import Effort
from studies.trained import RECIPE, emoji_folder, split_images, work_folder

STEPS, PER_CLASS, CHUNK = 40, 4, 448
FEATURES, DIM = 256, 128  # of the head: principal components of the features, and numbers of an embedding
LRS, TEMPERATURES = (3e-3, 1e-2, 3e-2), (0.01, 0.05, 0.1)
HELD_OUT, TEST_CLASSES = 0.2, 400
_QUICK_STEPS, _QUICK_DIM = 2, 16


@dataclass(frozen=True)
class Part:
    """Features [image, dimension] and labels [image, level] of some images, finest level first."""

    features: Tensor
    labels: np.ndarray

    def codes(self) -> Tensor:
        """Return labels as numbers."""
        return torch.stack([torch.from_numpy(np.unique(level, return_inverse=True)[1]) for level in self.labels.T], 1)


def read_parts(effort: Effort, levels: bool) -> dict[str, Part]:
    """Return "train", "validation" (held-out classes) and "test", as principal components of features of emoji.

    The features are those of the demonstration's network before training, and are computed once.
    """
    table = hold_out_classes(split_images(effort, emoji_folder(effort)), HELD_OUT, effort.seed)
    labels = table.level_labels() if levels else table.labels
    labels = labels.reshape(len(table), -1)
    path = work_folder(effort, "features") / "features.npy"
    if not path.exists():
        np.save(path, _embed(table, effort.quick))
    features = torch.from_numpy(np.load(path))
    rows = {name: np.flatnonzero(table.splits == name) for name in ("train", "validation", "test")}
    classes = np.random.default_rng(effort.seed).permutation(np.unique(table.labels[rows["test"]]))[:TEST_CLASSES]
    rows["test"] = rows["test"][np.isin(table.labels[rows["test"]], classes)]
    dim = _QUICK_DIM if effort.quick else FEATURES
    components = Whitening.fit(features[rows["train"]], power=0.25, dim=dim, progress=False)
    return {name: Part(components.apply(features[own]).float(), labels[own]) for name, own in rows.items()}


def _embed(table: ImageTable, quick: bool) -> np.ndarray:
    weights = {"model.weights": "none"} if quick else {}
    config = read_config(read_recipe(find_recipe(RECIPE)), {"data.path": str(table.root), **weights})
    return embed_table(frozen_model(config), table, workers=config.data.workers, show=False)


def frozen_values(parts: Mapping[str, Part], metrics: Sequence[str]) -> dict[str, float]:
    """Return the metrics of the test images before training."""
    return _test(nn.Identity(), parts["test"], metrics)


def describe_training(parts: Mapping[str, Part]) -> dict[str, Any]:
    """Return numbers that the page of a study states."""
    facts = {name: {"images": len(part.labels), "classes": len(set(part.labels[:, 0]))} for name, part in parts.items()}
    levels = [len(set(level)) for level in parts["test"].labels.T]
    return {"parts": facts, "levels": levels, "steps": STEPS, "features": FEATURES, "dim": DIM}


def search_ends(rows: Sequence[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """Return the names of rows whose search chose a rate or temperature at an end of those it tried, and which."""
    ends = []
    for row in rows:
        tried = (("rate", "lr", LRS), ("temperature", "temperature", TEMPERATURES))
        own = [f"{what} {row[key]:g}" for what, key, values in tried if row[key] in (values[0], values[-1])]
        ends += [f"{name(row)} ({' and '.join(own)})"] if own else []
    return ends


def train_heads(
    effort: Effort,
    parts: Mapping[str, Part],
    name: str,
    loss: Callable[[float], nn.Module],
    size: int,
    *,
    metrics: Sequence[str],
    metric: str = "R@1",
    mix: bool = False,
) -> dict[str, Any]:
    """Train a head with each seed; return the chosen rate and temperature, and the metrics of test images.

    name:   of the file in `effort.work` that keeps the result, so that a study can continue
    loss:   from a temperature
    metric: by which rate and temperature are chosen, on images of held-out classes, with the first seed
    """
    path = work_folder(effort, "heads") / f"{name}.json"
    if path.exists():
        return read_json(path, "head", 1)
    best, chosen, head = -1.0, (0.0, 0.0), None
    for lr, temperature in product(LRS[:1], TEMPERATURES[:1]) if effort.quick else product(LRS, TEMPERATURES):
        trial = train_head(effort, parts["train"], loss(temperature), size, lr, effort.seed, mix)
        held_out = parts["validation"]
        value = _test(trial, held_out, (metric,))[metric]
        if value > best:
            best, chosen, head = value, (lr, temperature), trial
    lr, temperature = chosen
    heads = [head] + [
        train_head(effort, parts["train"], loss(temperature), size, lr, effort.seed + place, mix)
        for place in range(1, 1 if effort.quick else effort.seeds)
    ]
    reports = [_test(each, parts["test"], metrics) for each in heads if each is not None]
    values = {of: [report[of] for report in reports] for of in reports[0]}
    result = {"lr": lr, "temperature": temperature, "held_out": best, "values": values}
    write_json(path, "head", 1, result, overwrite=True)
    return result


def train_head(
    effort: Effort, part: Part, loss: nn.Module, size: int, lr: float, seed: int, mix: bool = False
) -> nn.Module:
    """Train a linear layer, which begins as the first principal components; the seed draws the batches."""
    torch.manual_seed(seed)
    steps, dim = (_QUICK_STEPS, _QUICK_DIM) if effort.quick else (STEPS, DIM)
    head = nn.Linear(part.features.shape[1], dim)
    nn.init.eye_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.Adam(head.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10) * (1 - step / steps))
    codes, batches = part.codes(), BalancedBatches(part.labels[:, 0], size, PER_CLASS, seed=seed)
    codes = codes if codes.shape[1] > 1 else codes[:, 0]
    step, epoch = 0, 0
    while step < steps:
        batches.set_epoch(epoch)
        for rows in batches:
            optimizer.zero_grad()
            labels = codes[rows]
            multistage_backward(head, loss, part.features[rows], labels, chunk=CHUNK, mix=mix)
            optimizer.step()
            schedule.step()
            step += 1
            if step == steps:
                break
        epoch += 1
    return head.eval()


def _test(head: nn.Module, part: Part, metrics: Sequence[str]) -> dict[str, float]:
    with torch.no_grad():
        labels = part.labels if part.labels.shape[1] > 1 else part.labels[:, 0]
        return dict(evaluate(head(part.features), labels, metrics=metrics, progress=False))
