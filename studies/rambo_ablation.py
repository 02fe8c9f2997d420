"""Margin and memory of RaMBO, in retrieval (RaMBO, Table 7)."""

from statistics import fmean
from typing import Any

from studies.study import COLOURS, INK, NOT_MEASURED, Effort, Results, Study, panels, verdict
from studies.trained import emoji_folder, gap, rate_search, run_comparison

_MARGIN, _MEMORY = "0.2", "4480"  # 40 batches of 112
_QUICK_MEMORY = "64"
_LRS = "3e-5,1e-4,3e-4,1e-3"
_WAYS = {  # (with a margin, with a memory): what to call it, and R@1 of the paper on CUB, In-Shop and SOP; x: diverged
    (True, True): ("margin and memory", "64.0, 88.1, 78.6"),
    (True, False): ("no memory", "62.5, 87.0, 72.4"),
    (False, True): ("no margin", "63.2, x, x"),
    (False, False): ("neither", ""),
}
_METRICS = ("R@1", "mAP", "dists@intra", "dists@inter")


def measure(effort: Effort) -> dict[str, Any]:
    memory = _QUICK_MEMORY if effort.quick else _MEMORY
    results = run_comparison(
        effort,
        "ablation",
        data=emoji_folder(effort),
        losses="BlackboxRecall-log",
        axes=[f"loss.margin={_MARGIN},0", f"batches.memory={memory},0"],
        settings={"batches.memory_after": "1" if effort.quick else "20"},
        lrs=_LRS,
        may_diverge=True,
    )
    entries = [
        {
            "margin": float(each["settings"]["loss.margin"]) > 0,
            "memory": int(each["settings"]["batches.memory"]) > 0,
            "lr": each["lr"],
            **{metric: each["values"].get(metric, []) for metric in _METRICS},
        }
        for each in results["entries"]
    ]
    return {"entries": entries, "frozen": {metric: results["frozen"][metric] for metric in _METRICS}}


def _by_name(results: Results) -> dict[str, Any]:
    return {_WAYS[each["margin"], each["memory"]][0]: each for each in results["entries"]}


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(size=(6.0, 3.8))
    (axis,) = axes.flat
    named = _by_name(results)
    for place, each in enumerate(named.values()):
        values = [100 * value for value in each["R@1"]]
        if not values:
            axis.annotate("failed", (place, 100 * results["frozen"]["R@1"]), ha="center", va="bottom", color=INK)
            continue
        axis.plot([place] * len(values), values, color=COLOURS[place], marker="o", linestyle="", alpha=0.7)
        axis.plot(place, fmean(values), color=COLOURS[place], marker="_", markersize=24, markeredgewidth=2)
    before = 100 * results["frozen"]["R@1"]
    axis.axhline(before, color=INK, linestyle="--", linewidth=1.0)
    axis.annotate(
        "before training", (len(named) - 0.5, before), xytext=(-6, 3), textcoords="offset points", ha="right", color=INK
    )
    axis.set_xticks(range(len(named)), list(named))
    axis.set(ylabel="R@1, %; each point is a run", xlim=(-0.5, len(named) - 0.5))
    return {"ablation": figure}


def values(results: Results) -> dict[str, Any]:
    named = _by_name(results)
    papers = dict(_WAYS.values())
    shared = {
        "rows": [{"name": name, "paper": papers[name], **each} for name, each in named.items()],
        "margin": _MARGIN,
        "memory": _MEMORY,
        "lrs": _LRS.replace(",", ", "),
        "search": rate_search({name: each["lr"] for name, each in named.items()}, _LRS),
    }
    whole, seeds = named["margin and memory"]["R@1"], max(len(each["R@1"]) for each in named.values())
    if not whole:
        return {**shared, "verdict": NOT_MEASURED}
    changes: list[dict[str, Any]] = []
    for name in ("memory", "margin"):
        other = named[f"no {name}"]["R@1"]
        diverged = seeds - len(other)
        loses = bool(other) and gap(whole, other).is_more
        if name == "margin":  # where the paper's own runs diverged
            loses = loses or diverged > 0
        gap_without = gap(other, whole) if other else None
        changes.append({"without": name, "gap": gap_without, "diverged": diverged, "loses": loses})
    return {
        **shared,
        "verdict": verdict([change["loses"] for change in changes]),
        "changes": changes,
        "seeds": seeds,
        "collapses": _collapses(named),
    }


def _collapses(named: dict[str, Any]) -> bool:
    """Return whether, with a margin and without, a memory makes classes less than a quarter as wide."""
    pairs = (("margin and memory", "no memory"), ("no margin", "neither"))
    widths = [[named[name]["dists@intra"] for name in pair] for pair in pairs]
    return all(one and other and fmean(one) < fmean(other) / 4 for one, other in widths)


STUDY = Study(
    name="rambo-ablation",
    paper="RaMBO",
    shows="Table 7",
    title="Margin and memory",
    minutes=10,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
