"""Every metric on every relaxation of the ranks: do pairs that no paper has work?"""

from typing import Any

from studies.study import (
    AGREES,
    AGREES_IN_PART,
    COLOURS,
    DOES_NOT_AGREE,
    INK,
    NOT_MEASURED,
    Effort,
    Results,
    Study,
    panels,
)
from studies.trained import emoji_folder, gap, mean_and_spread, rate_search, run_comparison

_LRS = "1e-4,3e-4,1e-3"
METRICS = {  # as columns, with the settings of each
    "AP": "metric=AveragePrecision",
    "O": "metric=PenalizedNegatives,variant=O",
    "I_u": "metric=PenalizedNegatives,variant=I_u",
    "I_b": "metric=PenalizedNegatives,variant=I_b",
    "log = D_s": "metric=Recall,weighting=log",  # one function: log(1 + R)
    "loglog": "metric=Recall,weighting=loglog",
    "D_q": "metric=PenalizedNegatives,variant=D_q",
}
RELAXATIONS = {  # as rows
    "sigmoid, τ = 0.05": "relaxation=Sigmoid,temperature=0.05",
    "bins, 10": "relaxation=Bins,bins=10",  # AP of it is FastAP(bins=10)
    "blackbox, λ = 4": "relaxation=Blackbox,lam=4,margin=0.2",
}
AP_Q = ("bins, 19", "AP"), "QuantizedAP(bins=20)"  # another number of bins (20 centres), in its own pair only
PUBLISHED = {
    ("sigmoid, τ = 0.05", "AP"): "Smooth-AP",
    **{("sigmoid, τ = 0.05", variant): "PNP" for variant in ("O", "I_u", "I_b", "log = D_s", "D_q")},
    ("bins, 10", "AP"): "FastAP",
    AP_Q[0]: "AP_Q",
    **{("blackbox, λ = 4", metric): "RaMBO" for metric in ("AP", "log = D_s", "loglog")},
}
_QUICK = (("sigmoid, τ = 0.05", "loglog"), ("blackbox, λ = 4", "D_q"), ("bins, 10", "AP"))


def measure(effort: Effort) -> dict[str, Any]:
    wanted = {pair: loss for pair, loss in pairs().items() if not effort.quick or pair in _QUICK}
    results = run_comparison(
        effort, "grid", data=emoji_folder(effort), losses=",".join(wanted.values()), lrs=_LRS, may_diverge=True
    )
    entries = {entry["name"]: entry for entry in results["entries"]}
    cells = [
        {
            "relaxation": relaxation,
            "metric": metric,
            "loss": loss,
            "published": PUBLISHED.get((relaxation, metric), ""),
            **{name: entries[loss][name] for name in ("lr", "values", "planned")},
        }
        for (relaxation, metric), loss in wanted.items()
    ]
    return {"frozen": results["frozen"], "cells": cells}


def pairs() -> dict[tuple[str, str], str]:
    """Return the loss of each cell, by row and column, as `frontrank compare --losses` takes it."""
    grid = {
        (row, column): f"RankLoss({metric},{relaxation})"
        for row, relaxation in RELAXATIONS.items()
        for column, metric in METRICS.items()
    }
    return grid | dict([AP_Q])


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, 2, size=(12.5, 4.4))
    for ax, metric in zip(axes[0], ("R@1", "mAP"), strict=True):
        _draw_heat_map(figure, ax, results["cells"], metric)
    axes[0, 1].set_yticklabels([])
    return {"grid": figure}


def _draw_heat_map(figure: Any, ax: Any, cells: list[Any], metric: str) -> None:
    from matplotlib.patches import Rectangle

    rows, columns = [*RELAXATIONS, AP_Q[0][0]], list(METRICS)
    values = {
        (c["relaxation"], c["metric"]): 100 * mean_and_spread(c["values"][metric])[0] for c in cells if c["values"]
    }
    table = [[values.get((row, column), float("nan")) for column in columns] for row in rows]
    drawn = ax.pcolormesh(table, cmap="cividis", edgecolors="face")
    low, high = drawn.get_clim()
    for cell in cells:
        left, top = columns.index(cell["metric"]), rows.index(cell["relaxation"])
        value = values.get((cell["relaxation"], cell["metric"]))
        middle = {"ha": "center", "va": "center"}
        if value is None:
            ax.text(left + 0.5, top + 0.5, "diverged", color=INK, fontsize=8, **middle)
            continue
        # neither is the ink of the page, which is exchanged on a dark one: these cells stay as they are
        colour = "#111111" if value - low > 0.55 * (high - low) else "#ffffff"
        ax.text(left + 0.5, top + 0.38, f"{value:.1f}", color=colour, **middle)
        ax.text(left + 0.5, top + 0.74, cell["published"] or "new", color=colour, fontsize=7, **middle)
        if not cell["published"]:
            corner = (left + 0.04, top + 0.05)
            ax.add_patch(Rectangle(corner, 0.92, 0.9, facecolor="none", edgecolor=COLOURS[1], linewidth=2))
    ax.set_xticks([place + 0.5 for place in range(len(columns))], columns)
    ax.set_yticks([place + 0.5 for place in range(len(rows))], rows)
    ax.invert_yaxis()
    ax.grid(False)
    ax.set(title=f"{metric}, %", xlabel="metric")
    figure.colorbar(drawn, ax=ax, shrink=0.9)


def values(results: Results) -> dict[str, Any]:
    finished = [
        {**cell, "name": f"{cell['metric']} on {cell['relaxation']}"} for cell in results["cells"] if cell["values"]
    ]
    ranked = sorted(finished, key=lambda cell: -mean_and_spread(cell["values"]["R@1"])[0])
    published, new = ([cell for cell in ranked if bool(cell["published"]) == flag] for flag in (True, False))
    shared = {
        "ranked": ranked,
        "diverged": [f"{cell['metric']} on {cell['relaxation']}" for cell in results["cells"] if not cell["values"]],
        "search": rate_search({cell["name"]: cell["lr"] for cell in ranked}, _LRS),
    }
    if not published or not new:
        return {**shared, "verdict": NOT_MEASURED}
    gaps = {cell["name"]: gap(cell["values"]["R@1"], published[0]["values"]["R@1"]) for cell in new}
    level = [name for name, above in gaps.items() if not above.is_less]
    best = gaps[new[0]["name"]]
    return {
        **shared,
        "verdict": DOES_NOT_AGREE if best.is_more else AGREES_IN_PART if level else AGREES,
        "best_new": new[0]["name"],
        "best_published": published[0]["name"],
        "above": best,
        "level": [] if best.is_more else level,
    }


STUDY = Study(
    name="grid",
    paper="ours",
    shows="",
    title="Every metric on every relaxation, with the pairs that none of the papers has",
    minutes=60,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
