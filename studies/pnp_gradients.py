"""How strongly each loss of PNP's family corrects a positive, and how AP does (PNP, Fig. 3 and 5)."""

from typing import Any

import torch
from torch import Tensor

from frontrank.ranking import AveragePrecision, IntegratedPenalty, PairMetric, PenalizedNegatives
from studies.over_seeds import verdict
from studies.study import Effort, Results, Study
from studies.style import look, panels

_VARIANTS = {  # as in the figure; alpha of D_q as in Fig. 5, where the paper says which
    "O": PenalizedNegatives("O"),
    "I_u": PenalizedNegatives("I_u"),
    "I_b": PenalizedNegatives("I_b", b=2.0),
    "D_s": PenalizedNegatives("D_s"),
    "D_q": PenalizedNegatives("D_q", alpha=2.0),
}
_RISES = {"O": 0, "I_u": 1, "I_b": 1, "D_s": -1, "D_q": -1}  # what the paper says of each derivative
_BEFORE = (0, 1, 2, 3)  # positives before, in Fig. 5
_LAST = 10.0  # negatives before, at the right end of the figures


def measure(effort: Effort) -> dict[str, Any]:
    r = torch.linspace(0, _LAST, 41 if effort.quick else 121, dtype=torch.float64)
    found: dict[str, Any] = {"R": r.tolist(), "variants": {}, "ap": {}}
    for name, metric in _VARIANTS.items():
        slope = _slope(metric, torch.zeros_like(r), r)
        integrated = IntegratedPenalty(metric.f_prime).pair_loss(r, r)
        found["variants"][name] = {
            "f": metric.f(r).tolist(),
            "slope": slope.tolist(),
            "rises": _direction(slope),
            "gap_f_prime": float((slope - metric.f_prime(r)).abs().max()),
            "gap_integral": float((integrated - metric.f(r)).abs().max()),
        }
    for before in _BEFORE:
        slope = _slope(AveragePrecision(), torch.full_like(r, before), r)
        found["ap"][str(before)] = {"slope": slope.tolist(), **_steepness(slope, r)}
    decreasing = {"D_s": _VARIANTS["D_s"], "D_q, alpha = 1": PenalizedNegatives("D_q", 1.0)}
    decreasing |= {"D_q, alpha = 2": _VARIANTS["D_q"], "D_q, alpha = 4": PenalizedNegatives("D_q", 4.0)}
    found["d"] = {}
    for name, metric in decreasing.items():
        slope = _slope(metric, torch.zeros_like(r), r)
        found["d"][name] = {"slope": slope.tolist(), **_steepness(slope, r)}
    eq_6 = torch.log1p(r)  # the derivative that is printed for I_u
    found["gap_eq_6"] = (torch.tensor(found["variants"]["I_u"]["slope"]) - eq_6).abs().max().item()
    return found


def _slope(metric: PairMetric, before_pos: Tensor, before_neg: Tensor) -> Tensor:
    """The derivative of the loss of a pair in the number of negatives before, by autograd."""
    before_neg = before_neg.clone().requires_grad_()
    (slope,) = torch.autograd.grad(metric.pair_loss(before_pos, before_neg).sum(), before_neg)
    return slope


def _direction(slope: Tensor) -> int | None:
    """1 where it only rises, -1 where it only falls, 0 where it stays; None where it does several of these."""
    steps = slope.diff()
    if bool((steps.abs() <= 1e-12).all()):
        return 0
    if bool((steps > 0).all()):
        return 1
    return -1 if bool((steps < 0).all()) else None


def _steepness(slope: Tensor, r: Tensor) -> dict[str, Any]:
    """The gradient at some R, by how much it falls from 0 to 3, and the share that is left there."""
    at = {int(one): float(slope[(r - one).abs().argmin()]) for one in (0, 1, 3, 10)}
    return {
        "at": {str(one): value for one, value in at.items()},
        "fall": at[0] - at[3],
        "left": at[3] / at[0],
    }


def figures(found: Results) -> dict[str, Any]:
    r = found["R"]
    family, axes = panels(2, 5, size=(12.5, 4.8), sharex=True)
    parameters = {"I_b": ", b = 2", "D_q": r", $\alpha$ = 2"}
    for place, (name, own) in enumerate(found["variants"].items()):
        upper, lower = axes[:, place]
        upper.plot(r, own["slope"], **look(place))
        upper.set(title=f"PNP-{_sub(name)}{parameters.get(name, '')}")
        upper.set_ylim(0, 1.08 * max(own["slope"]))
        lower.plot(r, own["f"], **look(place))
        lower.set(xlabel="R, negatives before")
        lower.set_ylim(0, 1.08 * max(own["f"]))
    axes[0, 0].set_ylabel("derivative f'(R)")
    axes[1, 0].set_ylabel("loss f(R)")

    beside, axes = panels(1, 2, size=(10, 3.8), sharex=True)
    for place, (before, own) in enumerate(found["ap"].items()):
        for axis, divisor in zip(axes[0], (1, own["slope"][0]), strict=True):
            axis.plot(r, [value / divisor for value in own["slope"]], label=_ap_label(before), **look(place))
    steep = found["d"]["D_q, alpha = 2"]["slope"]
    for axis, divisor in zip(axes[0], (1, steep[0]), strict=True):
        axis.plot(
            r, [value / divisor for value in steep], color=look(5)["color"], ls="--", label=r"PNP-D$_q$, $\alpha$ = 2"
        )
        axis.set(xlabel="R, negatives before", xlim=(0, 6))
    axes[0, 0].set(title="gradient", ylabel="derivative of the loss in R", ylim=(0, 2.1))
    axes[0, 1].set(title="share of its largest", ylim=(0, 1.05))
    axes[0, 0].legend()
    return {"family": family, "beside-ap": beside}


def _ap_label(before: str) -> str:
    return f"AP, {before} positive{'s' * (before != '1')} before"


def _sub(name: str) -> str:
    """I_u with the second letter lowered."""
    return f"{name[0]}$_{name[2]}$" if "_" in name else name


def told(found: Results) -> str:
    words = {1: "rises", 0: "stays", -1: "falls", None: "rises and falls"}
    rows = [
        f"| {name} | {words[_RISES[name]]} | {words[own['rises']]} | {own['gap_f_prime']:.0e} | "
        f"{own['gap_integral']:.0e} |"
        for name, own in found["variants"].items()
    ]
    both = {**{_ap_label(before): own for before, own in found["ap"].items()}, **found["d"]}
    shown = [
        f"| {name} | {own['at']['0']:.3f} | {own['at']['1']:.3f} | {own['at']['3']:.3f} | {own['at']['10']:.4f} "
        f"| {own['fall']:.3f} | {100 * own['left']:.0f} % |"
        for name, own in both.items()
    ]
    directions = all(own["rises"] == _RISES[name] for name, own in found["variants"].items())
    steep, ap = found["d"]["D_q, alpha = 2"], list(found["ap"].values())
    steeper = all(steep["fall"] > own["fall"] and steep["left"] < own["left"] for own in ap)
    same = max(
        abs(one - two)
        for one, two in zip(found["ap"]["0"]["slope"], found["d"]["D_q, alpha = 1"]["slope"], strict=True)
    )
    slow = found["d"]["D_s"]
    return "\n".join(
        [
            "| PNP | derivative, the paper | here | autograd, less f' | integral of f', less f |",
            "|---|---|---|---:|---:|",
            *rows,
            "",
            "| gradient at | R = 0 | 1 | 3 | 10 | falls by, 0 to 3 | left at 3 |",
            "|---|---:|---:|---:|---:|---:|---:|",
            *shown,
            "",
            "It agrees if each derivative goes the paper's way, and if from R = 0 to 3 the gradient of D_q with alpha "
            "= 2 falls further than that of AP, in "
            "size and as a share, whatever the number of positives before. These are properties "
            "of the formulas: only code that is wrong would not agree.",
            "",
            f"{verdict([directions, steeper])}. With 3 positives before, AP's gradient falls by only "
            f"{ap[-1]['fall']:.2f} where that of D_q falls by {steep['fall']:.2f}: the paper calls it almost "
            f"equal. That is so in size; as a share, {100 * ap[-1]['left']:.0f} % is left at R = 3.",
            "",
            "Also seen here:",
            "",
            "- AP with no positive before and D_q with alpha = 1 are one function (they differ by at most "
            f"{same:.0e}).",
            "- Steeper than AP holds for D_q with alpha above 1, not for D_s: at R = 3 it has "
            f"{100 * slow['left']:.0f} % left, AP with no positive before "
            f"{100 * ap[0]['left']:.0f} %.",
            f"- Equation 6 is not the derivative of Eq. 7: they differ by up to {found['gap_eq_6']:.3g}. The loss "
            "follows Eq. 7, whose derivative is "
            "1 + log(1 + R): it does not vanish at R = 0.",
        ]
    )


STUDY = Study(
    name="pnp-gradients",
    paper="PNP",
    shows="Fig. 3, 5",
    title="How strongly a positive is corrected",
    claim="A loss of this family is made by choosing its derivative in R, the number of negatives before a positive. "
    "PNP-I corrects positives with "
    "many negatives before them more strongly, PNP-D less. AP does as PNP-D does, but the more positives stand "
    "before, the flatter "
    "its gradient is; that of PNP-D is steeper.",
    minutes=0.1,
    measure=measure,
    figures=figures,
    told=told,
)
