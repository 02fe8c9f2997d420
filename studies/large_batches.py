"""Recall@k and SupAP beside Smooth-AP and PNP-D_q, by the size of batches (Recall@k surrogate; ROADMAP)."""

from collections.abc import Callable
from typing import Any

from torch import nn

from frontrank.losses import PNP, RecallAtK, SmoothAP, SupAP
from studies.heads import describe_training, frozen_values, read_parts, search_ends, train_heads
from studies.study import Effort, Results, Study, verdict
from studies.style import INK, panels
from studies.trained import draw_over, gap

SIZES, QUICK_SIZES = (112, 448, 2048), (16, 32)
LOSSES: dict[str, Callable[[float], nn.Module]] = {
    "Recall@k": lambda temperature: RecallAtK(temperature=temperature),
    "SupAP": lambda temperature: SupAP(temperature=temperature),
    "Smooth-AP": lambda temperature: SmoothAP(temperature=temperature),
    "PNP-D_q": lambda temperature: PNP("D_q", temperature=temperature),
}
_METRICS = ("R@1", "mAP", "mAP@R")


def measure(effort: Effort) -> dict[str, Any]:
    parts = read_parts(effort, levels=False)
    rows = [
        {"loss": name, "size": size, **train_heads(effort, parts, f"{name}-{size}", loss, size, metrics=_METRICS)}
        for size in (QUICK_SIZES if effort.quick else SIZES)
        for name, loss in LOSSES.items()
    ]
    return {"frozen": frozen_values(parts, _METRICS), "rows": rows, **describe_training(parts)}


def _by_size(results: Results, loss: str, metric: str) -> dict[int, list[float]]:
    return {row["size"]: row["values"][metric] for row in results["rows"] if row["loss"] == loss}


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, 2)
    for ax, metric in zip(axes[0], ("R@1", "mAP@R"), strict=True):
        ax.axhline(100 * results["frozen"][metric], color=INK, linestyle="--", linewidth=1.0, label="before training")
        for place, name in enumerate(LOSSES):
            draw_over(ax, _by_size(results, name, metric), name, place, logarithmic=True)
        ax.set(title=f"{metric} of test images", xlabel="images of a batch", ylabel=f"{metric}, %")
    axes[0, 0].legend()
    return {"large-batches": figure}


def values(results: Results) -> dict[str, Any]:
    sizes = sorted({row["size"] for row in results["rows"]})
    by_loss = {name: {metric: _by_size(results, name, metric) for metric in _METRICS} for name in LOSSES}
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
        "ends": search_ends(results["rows"], lambda row: f"{row['loss']} at {row['size']:,}"),
    }


STUDY = Study(
    name="large-batches",
    paper="Recall@k",
    shows="large batches",
    title="Recall@k and SupAP beside Smooth-AP and PNP, at batches of 112, 448 and 2,048",
    minutes=5,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
