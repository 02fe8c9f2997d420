"""Virtual images mixed from two of a class, SiMix, on and off (Recall@k surrogate)."""

from typing import Any

from studies.heads import describe_training, frozen_values, read_parts, search_ends, train_heads
from studies.large_batches import LOSSES, QUICK_SIZES, SIZES
from studies.study import Effort, Results, Study, verdict
from studies.style import panels
from studies.trained import draw_over, gap

_METRICS = ("R@1", "mAP", "mAP@R")


def measure(effort: Effort) -> dict[str, Any]:
    parts, loss = read_parts(effort, levels=False), LOSSES["Recall@k"]
    rows = []
    for size in QUICK_SIZES if effort.quick else SIZES:
        for mix in (False, True):
            name = f"{'mix' if mix else 'plain'}-{size}"
            head = train_heads(effort, parts, name, loss, size, metrics=_METRICS, mix=mix)
            rows.append({"mix": mix, "size": size, **head})
    return {"frozen": frozen_values(parts, _METRICS), "rows": rows, **describe_training(parts)}


def _by_size(results: Results, mix: bool, metric: str) -> dict[int, list[float]]:
    return {row["size"]: row["values"][metric] for row in results["rows"] if row["mix"] == mix}


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, 2)
    for ax, metric in zip(axes[0], ("R@1", "mAP@R"), strict=True):
        for place, mix in enumerate((False, True)):
            draw_over(ax, _by_size(results, mix, metric), f"SiMix {'on' if mix else 'off'}", place, logarithmic=True)
        ax.set(title=f"{metric} of test images", xlabel="images of a batch", ylabel=f"{metric}, %")
    axes[0, 0].legend()
    return {"simix": figure}


def values(results: Results) -> dict[str, Any]:
    gaps = {
        metric: {size: gap(of, _by_size(results, False, metric)[size]) for size, of in with_mix.items()}
        for metric in ("R@1", "mAP@R")
        for with_mix in [_by_size(results, True, metric)]
    }
    return {
        "verdict": verdict([each.is_more for each in gaps["R@1"].values()]),
        "gaps": gaps,
        "ends": search_ends(results["rows"], lambda row: f"{row['size']:,} {'with' if row['mix'] else 'without'}"),
    }


STUDY = Study(
    name="simix",
    paper="Recall@k",
    shows="Sec. 3.3",
    title="SiMix, virtual images mixed from two of a class, on and off",
    minutes=5,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
