"""Hierarchical AP beside Smooth-AP on labels of three levels (HAPPIER)."""

from collections.abc import Callable
from typing import Any

from torch import nn

from frontrank.losses import HierarchicalAP, SmoothAP
from studies.heads import describe_training, frozen_values, read_parts, search_ends, train_heads
from studies.study import Effort, Results, Study, verdict
from studies.style import MARKS, line_style, panels
from studies.trained import gap, mean_and_spread

_SIZE, _QUICK_SIZE = 448, 32
_LOSSES: dict[str, Callable[[float], nn.Module]] = {
    "Smooth-AP": lambda temperature: SmoothAP(temperature=temperature),
    "hierarchical AP": lambda temperature: HierarchicalAP(temperature=temperature),
}
_METRICS = ("R@1", "mAP", "nDCG", "H-AP")
SHOWN = ("R@1", "mAP", "mAP (level 2)", "mAP (level 3)", "nDCG", "H-AP")


def measure(effort: Effort) -> dict[str, Any]:
    parts = read_parts(effort, levels=True)
    size = _QUICK_SIZE if effort.quick else _SIZE
    rows = [
        {"loss": name, "size": size, **train_heads(effort, parts, name, loss, size, metrics=_METRICS, metric="H-AP")}
        for name, loss in _LOSSES.items()
    ]
    return {"frozen": frozen_values(parts, _METRICS), "rows": rows, **describe_training(parts)}


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(size=(8.5, 3.8))
    (ax,) = axes.flat
    smooth = results["rows"][0]["values"]
    for place, row in enumerate(results["rows"]):
        gains = [100 * (mean_and_spread(row["values"][of])[0] - mean_and_spread(smooth[of])[0]) for of in SHOWN]
        spreads = [100 * mean_and_spread(row["values"][of])[1] for of in SHOWN]
        spots = [spot + 0.12 * (place - 1) for spot in range(len(SHOWN))]
        style = {**line_style(place), "linestyle": ""}
        ax.errorbar(spots, gains, spreads, label=row["loss"], marker=MARKS[place], capsize=3, **style)
    ax.set_xticks(range(len(SHOWN)), SHOWN)
    ax.set(ylabel="points above Smooth-AP")
    ax.legend()
    return {"levels": figure}


def values(results: Results) -> dict[str, Any]:
    rows = {row["loss"]: row["values"] for row in results["rows"]}
    gaps = {
        name: {of: gap(own[of], rows["Smooth-AP"][of]) for of in SHOWN}
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
        "shown": SHOWN,
        "ends": search_ends(results["rows"], lambda row: row["loss"]),
    }


STUDY = Study(
    name="hierarchical-ap",
    paper="HAPPIER",
    shows="hierarchies",
    title="Hierarchical AP beside Smooth-AP, at each of three levels",
    minutes=5,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
