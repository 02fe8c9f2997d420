"""Every metric on every relaxation of the ranks: do pairs that no paper has work?"""

from typing import Any

from studies.over_seeds import RULE, gap
from studies.study import Effort, Results, Study
from studies.style import COLOURS, INK, panels
from studies.trained import at_an_end, emoji, mean_and_spread, percent, trained

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
    "blackbox, λ = 32": "relaxation=Blackbox,lam=32,margin=0.02",
}
AP_Q = ("bins, 19", "AP"), "QuantizedAP(bins=20)"  # another number of bins (20 centres), in its own pair only
PUBLISHED = {
    ("sigmoid, τ = 0.05", "AP"): "Smooth-AP",
    **{("sigmoid, τ = 0.05", variant): "PNP" for variant in ("O", "I_u", "I_b", "log = D_s", "D_q")},
    ("bins, 10", "AP"): "FastAP",
    AP_Q[0]: "AP_Q",
    **{("blackbox, λ = 32", metric): "RaMBO" for metric in ("AP", "log = D_s", "loglog")},
}
_QUICK = (("sigmoid, τ = 0.05", "loglog"), ("blackbox, λ = 32", "D_q"), ("bins, 10", "AP"))


def measure(effort: Effort) -> dict[str, Any]:
    wanted = {pair: loss for pair, loss in pairs().items() if not effort.quick or pair in _QUICK}
    found = trained(effort, "grid", data=emoji(effort), losses=",".join(wanted.values()), lrs=_LRS, may_diverge=True)
    entries = {entry["name"]: entry for entry in found["entries"]}
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
    return {"frozen": found["frozen"], "cells": cells}


def pairs() -> dict[tuple[str, str], str]:
    """Row and column of each cell, and its loss as `frontrank compare --losses` takes it."""
    grid = {
        (row, column): f"RankLoss({metric},{relaxation})"
        for row, relaxation in RELAXATIONS.items()
        for column, metric in METRICS.items()
    }
    return grid | dict([AP_Q])


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(1, 2, size=(12.5, 4.4))
    for ax, metric in zip(axes[0], ("R@1", "mAP"), strict=True):
        _heat_map(figure, ax, found["cells"], metric)
    axes[0, 1].set_yticklabels([])
    return {"grid": figure}


def _heat_map(figure: Any, ax: Any, cells: list[Any], metric: str) -> None:
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


def told(found: Results) -> str:
    done = [cell for cell in found["cells"] if cell["values"]]
    ranked = sorted(done, key=lambda cell: -mean_and_spread(cell["values"]["R@1"])[0])
    rows = [
        f"| {cell['metric']} | {cell['relaxation']} | {cell['published'] or '**new**'} "
        f"| {percent(cell['values']['R@1'], cell['planned'])} | {percent(cell['values']['mAP'])} | {cell['lr']:g} |"
        for cell in ranked
    ]
    known, new = ([cell for cell in ranked if bool(cell["published"]) == flag] for flag in (True, False))
    rates = {f"{cell['metric']} on {cell['relaxation']}": cell["lr"] for cell in ranked}
    failed = [f"{cell['metric']} on {cell['relaxation']}" for cell in found["cells"] if not cell["values"]]
    return "\n".join(
        [
            "| metric | relaxation | paper | R@1 | mAP | lr |",
            "|---|---|---|---:|---:|---:|",
            *rows,
            "",
            *([f"Diverged: {'; '.join(failed)}.", ""] if failed else []),
            _verdict(known, new),
            "",
            "It agrees if every new pair is below the best published one by a difference that counts, does not agree "
            "if the best new pair is above it by one, and agrees in part otherwise; pairs that diverged are left out.",
            "",
            f"{RULE} Both best pairs are found on the test classes, which flatters both. 80 steps of 112 emoji; for "
            f"each pair only the learning rate was searched for, on held-out classes. {at_an_end(rates, _LRS)} "
            "Temperature, bins, margin, alpha (4) and b (2) are one for all, and so is λ, the best of four that were "
            "tried once on the same test classes with RaMBO's recall: the row of blackbox ranks has that advantage. "
            "A loss that begins slowly is at a disadvantage. log of RaMBO and D_s of PNP are one function of the "
            "negatives before a positive, and so are one column. AP on bins is FastAP, and with 19 of them, between "
            "20 centres, AP_Q; that is the same relaxation once more, so only its paper's pair was run.",
        ]
    )


def _verdict(known: list[Any], new: list[Any]) -> str:
    if not known or not new:
        return "**Not measured**: only one kind of pairs came to an end."
    above = gap(new[0]["values"]["R@1"], known[0]["values"]["R@1"])
    best = f"{new[0]['metric']} on {new[0]['relaxation']}"
    theirs = f"{known[0]['metric']} on {known[0]['relaxation']}"
    said = f"the best new pair, {best}, is {above} points of R@1 against the best published one, {theirs}"
    if above.is_more:
        return f"**Does not agree**: {said}."
    level = [
        f"{cell['metric']} on {cell['relaxation']}"
        for cell in new
        if not gap(cell["values"]["R@1"], known[0]["values"]["R@1"]).is_less
    ]
    if level:
        return f"**Agrees in part**: {said}. Not told apart from the best published one: {'; '.join(level)}."
    return f"**Agrees**: {said}."


STUDY = Study(
    name="grid",
    paper="ours",
    shows="",
    title="Every metric on every relaxation, with the pairs that none of the papers has",
    claim="A loss on ranks is a metric on a relaxation of the ranks, and each paper has its own pairs. If the "
    "authors chose well, no other pair is better than theirs. Columns are functions of the positives and negatives "
    "before a positive; rows are what makes these numbers differentiable.",
    minutes=60,
    measure=measure,
    figures=figures,
    told=told,
    takes=("data", "seeds"),
)
