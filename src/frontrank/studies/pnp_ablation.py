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
    if not {1.0, 4.0} <= set(alpha) or not b or 4.0 not in per_class:
        return "\n".join(
            ["**Nothing to agree with**: runs that the others are set against failed.", "", *_broken(found)]
        )
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
            "emoji, 80 steps of 112 images of 48 pixels, temperature 0.05, one learning rate for each loss. An emoji "
            "has 4 to 8 pictures: where |P| is "
            "8, most classes have pictures twice in a batch.",
        ]
    )


def _broken(found: Results) -> list[str]:
    """A line on runs that failed, which have no row in the table."""
    axes = {"alpha": ("alpha", "loss.alpha"), "b": ("b", "loss.b"), "per_class": ("|P|", "batches.per_class")}
    lost = [
        f"{sign} = {entry['settings'][axis]:g}"
        for name, (sign, axis) in axes.items()
        for entry in found[name]["entries"]
        if not entry["values"]
    ]
    return [f"Runs that did not come to an end: {', '.join(lost)}.", ""] if lost else []


def _verdicts(
    alpha: Mapping[float, list[float]], b: Mapping[float, list[float]], per_class: Mapping[float, list[float]]
) -> list[str]:
    """The verdict, and a line on each of the three settings."""
    steps = sorted(value for value in alpha if value <= 4)  # the authors' own best is 4
    up = gap(alpha[steps[-1]], alpha[steps[0]]).is_more
    up = up and not any(gap(alpha[more], alpha[less]).is_less for less, more in pairwise(steps))
    largest = max(alpha)
    beyond = gap(alpha[largest], alpha[4.0]) if largest > 4 else None
    best_b, worst_b = (choose(b, key=lambda value: mean_and_spread(b[value])[0]) for choose in (max, min))
    matters = gap(b[best_b], b[worst_b]).is_more
    four = all(gap(per_class[4.0], per_class[other]).is_more for other in per_class if other != 4.0)
    best_p = max(per_class, key=lambda value: mean_and_spread(per_class[value])[0])
    rises = (
        "R@1 rises from {} to {}, as the paper says." if up else "R@1 does not rise from {} to {} as the paper says."
    )
    of_alpha = f"- alpha: {rises.format(*(f'{step:g}' for step in (steps[0], steps[-1])))}"
    if beyond is not None:
        fate = (
            "it is lower"
            if beyond.is_less
            else "it is higher still"
            if beyond.is_more
            else "nothing changes that counts"
        )
        of_alpha += f" At {largest:g}, where the paper warns of training that breaks, {fate} ({beyond} points)."
    best = f"{best_b:g} is best, {gap(b[best_b], b[worst_b])} points above {worst_b:g}"
    of_b = f"- b: {best}. The paper finds 4 best on one data set and 1 on the other, so that it has to be chosen; " + (
        "it matters here as well." if matters else "here it does not matter."
    )
    shares = ", ".join(
        f"{gap(per_class[4.0], per_class[other])} points above {other:g}" for other in sorted(per_class) if other != 4.0
    )
    of_p = f"- |P|: the paper finds 4 best. Here {best_p:g} is; 4 is {shares}."
    return [
        "It agrees if R@1 rises with alpha up to 4, if b makes a difference, and if 4 images per class are better "
        "than fewer and than more.",
        "",
        f"{verdict([up, matters, four])}:",
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
    minutes=60,
    measure=measure,
    figures=figures,
    told=told,
)
