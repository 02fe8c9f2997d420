"""Losses of later papers on linear heads, trained on frozen features of emoji: minutes where networks take hours.

Studies: large-batches (Recall@k and SupAP beside Smooth-AP and PNP), simix and hierarchical-ap.
"""

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
from frontrank.losses import PNP, HierarchicalAP, RecallAtK, SmoothAP, SupAP
from frontrank.retrieval import Whitening
from frontrank.settings import find_recipe, read_config, read_recipe
from frontrank.training import multistage_backward
from frontrank.training.embedding import embed_table
from frontrank.training.run import frozen_model
from studies.study import INK, MARKS, Effort, Results, Study, line_style, panels, verdict
from studies.trained import (
    RECIPE,
    draw_over,
    emoji_folder,
    gap,
    mean_and_spread,
    split_images,
    work_folder,
)

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
    trained = {"steps": STEPS, "features": FEATURES, "dim": DIM, "temperatures": TEMPERATURES}
    return {"parts": facts, "levels": levels, **trained}


def search_ends(results: Results, name: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """Return the names of rows whose search chose a rate or temperature at an end of those it tried, and which."""
    ends = []
    for row in results["rows"]:
        tried = (("rate", "lr", LRS), ("temperature", "temperature", results["temperatures"]))
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


# Large batches: Recall@k surrogate, ROADMAP

SIZES, QUICK_SIZES = (112, 448, 2048), (16, 32)
LOSSES: dict[str, Callable[[float], nn.Module]] = {
    "Recall@k": lambda temperature: RecallAtK(temperature=temperature),
    "SupAP": lambda temperature: SupAP(temperature=temperature),
    "Smooth-AP": lambda temperature: SmoothAP(temperature=temperature),
    "PNP-D_q": lambda temperature: PNP("D_q", temperature=temperature),
}
_METRICS = ("R@1", "mAP", "mAP@R")


def _measure_batches(effort: Effort) -> dict[str, Any]:
    parts = read_parts(effort, levels=False)
    rows = [
        {"loss": name, "size": size, **train_heads(effort, parts, f"{name}-{size}", loss, size, metrics=_METRICS)}
        for size in (QUICK_SIZES if effort.quick else SIZES)
        for name, loss in LOSSES.items()
    ]
    return {"frozen": frozen_values(parts, _METRICS), "rows": rows, **describe_training(parts)}


def _batches_by_size(results: Results, loss: str, metric: str) -> dict[int, list[float]]:
    return {row["size"]: row["values"][metric] for row in results["rows"] if row["loss"] == loss}


def _draw_batches(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, 2)
    for ax, metric in zip(axes[0], ("R@1", "mAP@R"), strict=True):
        ax.axhline(100 * results["frozen"][metric], color=INK, linestyle="--", linewidth=1.0, label="before training")
        for place, name in enumerate(LOSSES):
            draw_over(ax, _batches_by_size(results, name, metric), name, place, logarithmic=True)
        ax.set(title=f"{metric} of test images", xlabel="images of a batch", ylabel=f"{metric}, %")
    axes[0, 0].legend()
    return {"large-batches": figure}


def _batch_values(results: Results) -> dict[str, Any]:
    sizes = sorted({row["size"] for row in results["rows"]})
    by_loss = {name: {metric: _batches_by_size(results, name, metric) for metric in _METRICS} for name in LOSSES}
    recall, smooth, sup = (by_loss[name] for name in ("Recall@k", "Smooth-AP", "SupAP"))
    last = sizes[-1]
    grows = {name: gap(of["R@1"][last], of["R@1"][sizes[0]]) for name, of in by_loss.items()}
    recall_gap = gap(recall["R@1"][last], smooth["R@1"][last])
    sup_gaps = {size: gap(sup["mAP@R"][size], smooth["mAP@R"][size]) for size in sizes}
    claims = [grows["Recall@k"].is_more, recall_gap.is_more, all(each.is_more for each in sup_gaps.values())]
    return {
        "verdict": verdict(claims),
        "claims": claims,
        "sizes": sizes,
        "grows": grows,
        "recall_gap": recall_gap,
        "sup_gaps": sup_gaps,
        "ends": search_ends(results, lambda row: f"{row['loss']} at {row['size']:,}"),
    }


LARGE_BATCHES = Study(
    name="large-batches",
    paper="Recall@k",
    shows="large batches",
    title="Recall@k and SupAP beside Smooth-AP and PNP, at batches of 112, 448 and 2,048",
    minutes=10,
    measure=_measure_batches,
    draw=_draw_batches,
    values=_batch_values,
    takes=("data", "seeds"),
)


# SiMix: Recall@k surrogate


def _measure_mixing(effort: Effort) -> dict[str, Any]:
    parts, loss = read_parts(effort, levels=False), LOSSES["Recall@k"]
    rows = []
    for size in QUICK_SIZES if effort.quick else SIZES:
        for mix in (False, True):
            name = f"{'mix' if mix else 'plain'}-{size}"
            head = train_heads(effort, parts, name, loss, size, metrics=_METRICS, mix=mix)
            rows.append({"mix": mix, "size": size, **head})
    return {"frozen": frozen_values(parts, _METRICS), "rows": rows, **describe_training(parts)}


def _mixing_by_size(results: Results, mix: bool, metric: str) -> dict[int, list[float]]:
    return {row["size"]: row["values"][metric] for row in results["rows"] if row["mix"] == mix}


def _draw_mixing(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, 2)
    for ax, metric in zip(axes[0], ("R@1", "mAP@R"), strict=True):
        for place, mix in enumerate((False, True)):
            draw_over(
                ax, _mixing_by_size(results, mix, metric), f"SiMix {'on' if mix else 'off'}", place, logarithmic=True
            )
        ax.set(title=f"{metric} of test images", xlabel="images of a batch", ylabel=f"{metric}, %")
    axes[0, 0].legend()
    return {"simix": figure}


def _mixing_values(results: Results) -> dict[str, Any]:
    gaps = {
        metric: {size: gap(of, _mixing_by_size(results, False, metric)[size]) for size, of in with_mix.items()}
        for metric in ("R@1", "mAP@R")
        for with_mix in [_mixing_by_size(results, True, metric)]
    }
    return {
        "verdict": verdict([each.is_more for each in gaps["R@1"].values()]),
        "gaps": gaps,
        "ends": search_ends(results, lambda row: f"{row['size']:,} {'with' if row['mix'] else 'without'}"),
    }


SIMIX = Study(
    name="simix",
    paper="Recall@k",
    shows="Sec. 3.3",
    title="SiMix, virtual images mixed from two of a class, on and off",
    minutes=5,
    measure=_measure_mixing,
    draw=_draw_mixing,
    values=_mixing_values,
    takes=("data", "seeds"),
)


# Labels of three levels: HAPPIER

_LEVEL_SIZE, _QUICK_LEVEL_SIZE = 448, 32
_LEVEL_LOSSES: dict[str, Callable[[float], nn.Module]] = {
    "Smooth-AP": lambda temperature: SmoothAP(temperature=temperature),
    "hierarchical AP": lambda temperature: HierarchicalAP(temperature=temperature),
}
_LEVEL_METRICS = ("R@1", "mAP", "nDCG", "H-AP")
LEVEL_COLUMNS = ("R@1", "mAP", "mAP (level 2)", "mAP (level 3)", "nDCG", "H-AP")


def _measure_levels(effort: Effort) -> dict[str, Any]:
    parts = read_parts(effort, levels=True)
    size = _QUICK_LEVEL_SIZE if effort.quick else _LEVEL_SIZE
    rows = [
        {
            "loss": name,
            "size": size,
            **train_heads(effort, parts, name, loss, size, metrics=_LEVEL_METRICS, metric="H-AP"),
        }
        for name, loss in _LEVEL_LOSSES.items()
    ]
    return {"frozen": frozen_values(parts, _LEVEL_METRICS), "rows": rows, **describe_training(parts)}


def _draw_levels(results: Results) -> dict[str, Any]:
    figure, axes = panels(size=(8.5, 3.8))
    (ax,) = axes.flat
    smooth = results["rows"][0]["values"]
    for place, row in enumerate(results["rows"]):
        gains = [100 * (mean_and_spread(row["values"][of])[0] - mean_and_spread(smooth[of])[0]) for of in LEVEL_COLUMNS]
        spreads = [100 * mean_and_spread(row["values"][of])[1] for of in LEVEL_COLUMNS]
        spots = [spot + 0.12 * (place - 1) for spot in range(len(LEVEL_COLUMNS))]
        style = {**line_style(place), "linestyle": ""}
        ax.errorbar(spots, gains, spreads, label=row["loss"], marker=MARKS[place], capsize=3, **style)
    ax.set_xticks(range(len(LEVEL_COLUMNS)), LEVEL_COLUMNS)
    ax.set(ylabel="points above Smooth-AP")
    ax.legend()
    return {"levels": figure}


def _level_values(results: Results) -> dict[str, Any]:
    rows = {row["loss"]: row["values"] for row in results["rows"]}
    gaps = {
        name: {of: gap(own[of], rows["Smooth-AP"][of]) for of in LEVEL_COLUMNS}
        for name, own in rows.items()
        if name != "Smooth-AP"
    }
    own = gaps["hierarchical AP"]
    claims = [
        own["H-AP"].is_more,
        own["mAP (level 2)"].is_more and own["mAP (level 3)"].is_more,
        not own["R@1"].is_less,
    ]
    return {
        "verdict": verdict(claims),
        "claims": claims,
        "gaps": gaps,
        "shown": LEVEL_COLUMNS,
        "ends": search_ends(results, lambda row: row["loss"]),
    }


HIERARCHICAL_AP = Study(
    name="hierarchical-ap",
    paper="HAPPIER",
    shows="hierarchies",
    title="Hierarchical AP beside Smooth-AP, at each of three levels",
    minutes=5,
    measure=_measure_levels,
    draw=_draw_levels,
    values=_level_values,
    takes=("data", "seeds"),
)

STUDIES = LARGE_BATCHES, SIMIX, HIERARCHICAL_AP
