"""Steepness alpha, boundary b and samples per class |P| of PNP (PNP, Fig. 8)."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from frontrank.studies.over_seeds import RULE, by_setting, draw_over, gap, verdict
from frontrank.studies.study import Effort, Results, Study
from frontrank.studies.style import panels
from frontrank.studies.trained import emoji, mean_and_spread, percent, trained

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
    data = emoji(effort)
    return {
        name: trained(
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


def _values(found: Results, name: str) -> dict[float, list[float]]:
    """R@1 over seeds by the value of the setting."""
    axis = _PARTS[name]["axis"].partition("=")[0]
    return {float(value): over for value, over in by_setting(found[name]["entries"], axis, _METRIC).items()}


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(1, len(_PARTS), size=(11.5, 3.4))
    for place, (name, axis) in enumerate(zip(_PARTS, axes[0], strict=True)):
        draw_over(axis, _values(found, name), _TITLES[name], place, logarithmic=True)
        axis.set(title=_TITLES[name])
    axes[0, 0].set_ylabel("R@1 of unseen classes, %")
    return {"settings": figure}


def told(found: Results) -> str:
    alpha, b, per_class = (_values(found, name) for name in _PARTS)
    if len(alpha) < 2 or not b or set(per_class) < {2.0, 4.0, 8.0}:
        return "\n".join(["**Not measured**: runs that the others are set against diverged.", "", *_broken(found)])
    rows = [
        f"| {name} | {value:g} | {percent(values)} |"
        for name, own in (("alpha", alpha), ("b", b), ("images per class", per_class))
        for value, values in sorted(own.items())
    ]
    return "\n".join(
        [
            "| setting | value | R@1 |",
            "|---|---:|---:|",
            *rows,
            "",
            RULE,
            "",
            *_broken(found),
            *_verdicts(alpha, b, per_class),
            "",
            "The paper trains ResNet-50 on Stanford Online Products and VehicleID with batches of 112 and one seed, "
            "and shows curves without numbers. Here: "
            "emoji, 80 steps of 112 images of 32 pixels, temperature 0.05, one learning rate for each loss. An emoji "
            "has 4 to 8 pictures: where |P| is "
            "8, most classes have pictures twice in a batch.",
        ]
    )


def _broken(found: Results) -> list[str]:
    """A line on runs that diverged, which have no row in the table."""
    axes = {"alpha": ("alpha", "loss.alpha"), "b": ("b", "loss.b"), "per_class": ("|P|", "batches.per_class")}
    lost = [
        f"{sign} = {entry['settings'][axis]:g}"
        for name, (sign, axis) in axes.items()
        for entry in found[name]["entries"]
        if not entry["values"]
    ]
    return [f"Runs that diverged: {', '.join(lost)}.", ""] if lost else []


def _verdicts(
    alpha: Mapping[float, list[float]], b: Mapping[float, list[float]], per_class: Mapping[float, list[float]]
) -> list[str]:
    """The verdict, and a line on each of the three settings."""
    steps = sorted(alpha)
    up = gap(alpha[steps[-1]], alpha[steps[0]]).is_more
    up = up and not any(gap(alpha[more], alpha[less]).is_less for less, more in pairwise(steps))
    best_alpha = max(alpha, key=lambda value: mean_and_spread(alpha[value])[0])
    best_b, worst_b = (choose(b, key=lambda value: mean_and_spread(b[value])[0]) for choose in (max, min))
    matters = gap(b[best_b], b[worst_b]).is_more
    four = all(gap(per_class[4.0], per_class[other]).is_more for other in per_class if other != 4.0)
    best_p = max(per_class, key=lambda value: mean_and_spread(per_class[value])[0])
    rises = "rises" if up else "does not rise throughout"
    of_alpha = (
        f"- alpha: R@1 {rises} from {steps[0]:g} to {steps[-1]:g} ({gap(alpha[steps[-1]], alpha[steps[0]])} points); "
        f"{best_alpha:g} is best, {gap(alpha[best_alpha], alpha[steps[0]])} points above {steps[0]:g}."
    )
    best = f"{best_b:g} is best, {gap(b[best_b], b[worst_b])} points above {worst_b:g}"
    of_b = f"- b: {best}. The paper finds 4 best on one data set and 1 on the other, so that it has to be chosen; " + (
        "it matters here as well." if matters else "here it does not matter."
    )
    of_b += " That is no part of the verdict: on one data set it cannot fail."
    shares = ", ".join(
        f"{gap(per_class[4.0], per_class[other])} points above {other:g}" for other in sorted(per_class) if other != 4.0
    )
    of_p = f"- |P|: the paper finds 4 best. Here {best_p:g} is; 4 is {shares}."
    return [
        "It agrees if R@1 rises with alpha as far as training does not diverge, with no step that is a loss, and if 4 "
        "images per class are better than 2 and than 8.",
        "",
        f"{verdict([up, four])}:",
        "",
        of_alpha,
        of_b,
        of_p,
    ]


STUDY = Study(
    name="pnp-ablation",
    paper="PNP",
    shows="Fig. 8",
    title="Steepness, boundary and samples per class",
    claim="A larger alpha of D_q gives a higher R@1, until training breaks. The best boundary b of I_b depends on the "
    "data: 4 on products, 1 on vehicles. Four images "
    "of each class in a batch are best: fewer give too few positives, more leave room for fewer classes.",
    minutes=18,
    measure=measure,
    figures=figures,
    told=told,
    takes=("data", "seeds"),
)
