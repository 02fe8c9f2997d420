"""Training classes of several centres: every three merged into one (PNP, Tables 6 and 7)."""

from collections.abc import Mapping
from typing import Any

from studies.study import COLOURS, Effort, Results, Study, panels, verdict
from studies.trained import emoji_folder, gap, gap_of_gaps, mean_and_spread, rate_search, run_comparison

_LOSSES = ("PNP-D_q", "SmoothAP", "PNP-I_u")
_PAPER: Mapping[str, tuple[float, float]] = {  # R@1 on SOP, classes as they are (Tables 1, 3) and merged (Table 6)
    "PNP-D_q": (80.1, 73.8),
    "SmoothAP": (80.1, 73.2),  # the first with batches of 384, the others of 112
    "PNP-I_u": (76.3, 67.5),
}
_VEHICLES: Mapping[str, tuple[tuple[float, float], ...]] = {  # the same on VehicleID: small, medium, large
    "PNP-D_q": ((94.6, 92.6), (92.9, 90.8), (91.4, 88.6)),  # as they are: Table 2, merged: Table 7
    "SmoothAP": ((94.9, 89.9), (93.3, 88.6), (91.9, 85.2)),  # Table 4
    "PNP-I_u": ((92.4, 86.9), (90.4, 85.0), (87.6, 80.8)),
}
_METRIC = "R@1"
_LRS = "1e-4,3e-4"


def measure(effort: Effort) -> dict[str, Any]:
    data = emoji_folder(effort)
    shared = {"loss.temperature": "0.05"}
    if effort.quick:
        shared["batches.per_class"] = "16"  # few classes are left when few are merged
    return {
        name: run_comparison(
            effort,
            name,
            data=data,
            losses=",".join(_LOSSES),
            settings={**shared, "data.merge_classes": merged},
            lrs=_LRS,
        )
        for name, merged in (("whole", "1"), ("merged", "3"))
    }


def _values_of(results: Results, part: str, metric: str = _METRIC) -> dict[str, list[float]]:
    return {entry["name"]: entry["values"][metric] for entry in results[part]["entries"] if entry["values"]}


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, 1, size=(6, 3.6))
    axis = axes[0, 0]
    for place, (part, label) in enumerate((("whole", "classes as they are"), ("merged", "merged by three"))):
        own = _values_of(results, part)
        points = [
            (x + 0.36 * (place - 0.5), *mean_and_spread(own[name])) for x, name in enumerate(_LOSSES) if name in own
        ]
        xs, means, spreads = ([point[i] for point in points] for i in range(3))
        heights, errors = [100 * mean for mean in means], [100 * spread for spread in spreads]
        bars = axis.bar(xs, heights, 0.34, yerr=errors, label=label, color=COLOURS[place], capsize=3, ecolor="#888888")
        axis.bar_label(bars, fmt="%.1f", padding=3, fontsize=9)
    axis.set_xticks(range(len(_LOSSES)), _LOSSES)
    axis.set_ylabel("R@1 of unseen classes, %")
    axis.grid(visible=False, axis="x")
    axis.margins(y=0.28)
    axis.legend(ncols=2, loc="upper right")
    return {"merged": figure}


def values(results: Results) -> dict[str, Any]:
    whole, merged = (_values_of(results, part) for part in ("whole", "merged"))
    mean_ap = _values_of(results, "merged", "mAP")
    rates = {(entry["name"], part): entry["lr"] for part in ("whole", "merged") for entry in results[part]["entries"]}
    lost = {name: gap(merged[name], whole[name]) for name in _LOSSES}
    rows = [
        {
            "name": name,
            "whole": whole[name],
            "merged": merged[name],
            "lost": lost[name],
            "map": mean_ap[name],
            "lrs": [rates[name, part] for part in ("whole", "merged")],
            "paper": _PAPER[name],
            "vehicles": _on_vehicles(name),
        }
        for name in _LOSSES
    ]
    all_lose = all(each.is_less for each in lost.values())
    over_i, over_ap = gap(merged["PNP-D_q"], merged["PNP-I_u"]), gap(merged["PNP-D_q"], merged["SmoothAP"])
    keep = {name: gap_of_gaps(lost[name], lost["PNP-I_u"]) for name in _LOSSES[:2]}
    vehicles = [one - other for one, other in zip(_on_vehicles("SmoothAP"), _on_vehicles("PNP-I_u"), strict=True)]
    on_sop, of_i = (merged - whole for whole, merged in (_PAPER["SmoothAP"], _PAPER["PNP-I_u"]))
    chosen = {f"{name} ({part} classes)": rate for (name, part), rate in rates.items()}
    return {
        "verdict": verdict([all_lose, over_i.is_more, over_ap.is_more, *(each.is_more for each in keep.values())]),
        "rows": rows,
        "all_lose": all_lose,
        "over_i": over_i,
        "over_ap": over_ap,
        "keep": keep,
        "paper_less": {"sop": on_sop - of_i, "vehicles": [min(vehicles), max(vehicles)]},  # Smooth-AP, than I_u
        "lrs": _LRS.replace(",", " and "),
        "search": rate_search(chosen, _LRS),
    }


def _on_vehicles(name: str) -> list[float]:
    return [round(merged - whole, 1) for whole, merged in _VEHICLES[name]]


STUDY = Study(
    name="pnp-merged",
    paper="PNP",
    shows="Tables 6, 7",
    title="Training classes merged by three",
    minutes=12,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
