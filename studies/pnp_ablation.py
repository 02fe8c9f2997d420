"""Steepness alpha, boundary b and samples per class |P| of PNP (PNP, Fig. 8)."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from studies.study import NOT_MEASURED, Effort, Results, Study, panels, verdict
from studies.trained import answer, draw_over, emoji_folder, gap, mean_and_spread, run_comparison, values_by_setting

_PARTS: Mapping[str, Mapping[str, str]] = {  # learning rates: what was best of three for each loss (docs/results.md)
    "alpha": {"loss": "PNP-D_q", "axis": "loss.alpha=1,2,4,8,16", "lr": "3e-4"},
    "b": {"loss": "PNP-I_b", "axis": "loss.b=0.5,1,2,4,8", "lr": "1e-4"},
    "per_class": {"loss": "PNP-D_q", "axis": "batches.per_class=2,4,8", "lr": "3e-4"},
}
_TITLES = {
    "alpha": r"steepness $\alpha$ of D$_q$",
    "b": "boundary b of I$_b$",
    "per_class": "images per class, |P|, D$_q$",
}
_METRIC = "R@1"


def measure(effort: Effort) -> dict[str, Any]:
    data = emoji_folder(effort)
    return {
        name: run_comparison(
            effort,
            name,
            data=data,
            losses=part["loss"],
            axes=[part["axis"]],
            settings={"loss.temperature": "0.05"},
            lrs=part["lr"],
            may_diverge=True,
        )
        for name, part in _PARTS.items()
    }


def _values_of(results: Results, name: str) -> dict[float, list[float]]:
    """Return R@1 over seeds by the value of the setting."""
    axis = _PARTS[name]["axis"].partition("=")[0]
    return {float(value): over for value, over in values_by_setting(results[name]["entries"], axis, _METRIC).items()}


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, len(_PARTS), size=(11.5, 3.4))
    for place, (name, axis) in enumerate(zip(_PARTS, axes[0], strict=True)):
        draw_over(axis, _values_of(results, name), _TITLES[name], place, logarithmic=True)
        axis.set(title=_TITLES[name])
    axes[0, 0].set_ylabel("R@1 of unseen classes, %")
    return {"settings": figure}


def values(results: Results) -> dict[str, Any]:
    alpha, b, per_class = (_values_of(results, name) for name in _PARTS)
    shared = {"diverged": _divergences(results)}
    if len(alpha) < 2 or not b or set(per_class) < {2.0, 4.0, 8.0}:
        return {**shared, "verdict": NOT_MEASURED}
    least, most, best = min(alpha), max(alpha), _best(alpha)
    whole = gap(alpha[most], alpha[least])
    steps = [gap(alpha[more], alpha[less]) for less, more in pairwise(sorted(alpha))]
    rises = whole.is_more and not any(each.is_less for each in steps)
    worst_b = min(b, key=lambda value: mean_and_spread(b[value])[0])
    four = {than: gap(per_class[4.0], per_class[than]) for than in sorted(per_class) if than != 4.0}
    return {
        **shared,
        "verdict": verdict([rises, *(each.is_more for each in four.values())]),
        "planned": max((entry.get("planned", 0) for part in results.values() for entry in part["entries"]), default=0),
        "rows": [
            (name, value, over_seeds)
            for name, own in (("alpha", alpha), ("b", b), ("images per class", per_class))
            for value, over_seeds in sorted(own.items())
        ],
        "alpha": {
            "answer": "no" if whole.is_more and not rises else answer([whole]),
            "least": least,
            "most": most,
            "best": best,
            "whole": whole,
            "above_least": gap(alpha[best], alpha[least]),
            "none_diverged": not any(entry["sign"] == "alpha" for entry in shared["diverged"]),
        },
        "b": {"best": _best(b), "worst": worst_b, "above": gap(b[_best(b)], b[worst_b])},
        "four": [{"than": than, "gap": each, "answer": answer([each])} for than, each in four.items()],
        "best_per_class": _best(per_class),
    }


def _divergences(results: Results) -> list[dict[str, Any]]:
    """Return the settings of which runs diverged; lost: how many seeds, of planned ones; None if all did."""
    settings = {"alpha": ("alpha", "loss.alpha"), "b": ("b", "loss.b"), "per_class": ("|P|", "batches.per_class")}
    rows = []
    for name, (sign, setting) in settings.items():
        for entry in results[name]["entries"]:
            planned = entry.get("planned", 0)
            lost = planned - len(entry["seeds"])
            if not entry["values"] or lost > 0:
                row = {"sign": sign, "value": entry["settings"][setting], "planned": planned}
                rows.append({**row, "lost": lost if entry["values"] else None})
    return rows


def _best(values: Mapping[float, list[float]]) -> float:
    return max(values, key=lambda value: mean_and_spread(values[value])[0])


STUDY = Study(
    name="pnp-ablation",
    paper="PNP",
    shows="Fig. 8",
    title="Steepness, boundary and samples per class",
    minutes=18,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
