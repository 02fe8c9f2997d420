"""How strongly each loss of PNP's family corrects a positive, and how AP does (PNP, Fig. 3 and 5)."""

from typing import Any

import torch
from torch import Tensor

from frontrank.ranking import AveragePrecision, IntegratedPenalty, PairMetric, PenalizedNegatives
from studies.study import Effort, Results, Study, line_style, panels, verdict

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
    results: dict[str, Any] = {"R": r.tolist(), "variants": {}, "ap": {}}
    for name, metric in _VARIANTS.items():
        slope = _slope(metric, torch.zeros_like(r), r)
        integrated = IntegratedPenalty(metric.f_prime).pair_loss(r, r)
        results["variants"][name] = {
            "f": metric.f(r).tolist(),
            "slope": slope.tolist(),
            "rises": _direction(slope),
            "gap_f_prime": float((slope - metric.f_prime(r)).abs().max()),
            "gap_integral": float((integrated - metric.f(r)).abs().max()),
        }
    for before in _BEFORE:
        slope = _slope(AveragePrecision(), torch.full_like(r, before), r)
        results["ap"][str(before)] = {"slope": slope.tolist(), **_steepness(slope, r)}
    decreasing = {"D_s": _VARIANTS["D_s"], "D_q, alpha = 1": PenalizedNegatives("D_q", 1.0)}
    decreasing |= {"D_q, alpha = 2": _VARIANTS["D_q"], "D_q, alpha = 4": PenalizedNegatives("D_q", 4.0)}
    results["d"] = {}
    for name, metric in decreasing.items():
        slope = _slope(metric, torch.zeros_like(r), r)
        results["d"][name] = {"slope": slope.tolist(), **_steepness(slope, r)}
    eq_6 = torch.log1p(r)  # the derivative that is printed for I_u
    results["gap_eq_6"] = (torch.tensor(results["variants"]["I_u"]["slope"]) - eq_6).abs().max().item()
    return results


def _slope(metric: PairMetric, before_pos: Tensor, before_neg: Tensor) -> Tensor:
    """Return the derivative of the loss of a pair in the number of negatives before, by autograd."""
    before_neg = before_neg.clone().requires_grad_()
    (slope,) = torch.autograd.grad(metric.pair_loss(before_pos, before_neg).sum(), before_neg)
    return slope


def _direction(slope: Tensor) -> int | None:
    """Return 1 if it only rises, -1 if it only falls, 0 if it stays, None if it does several of these."""
    steps = slope.diff()
    if bool((steps.abs() <= 1e-12).all()):
        return 0
    if bool((steps > 0).all()):
        return 1
    return -1 if bool((steps < 0).all()) else None


def _steepness(slope: Tensor, r: Tensor) -> dict[str, Any]:
    """Return the gradient at some R, by how much it falls from 0 to 3, and the share that is left there."""
    at = {int(one): float(slope[(r - one).abs().argmin()]) for one in (0, 1, 3, 10)}
    return {
        "at": {str(one): value for one, value in at.items()},
        "fall": at[0] - at[3],
        "left": at[3] / at[0],
    }


def draw(results: Results) -> dict[str, Any]:
    r = results["R"]
    family, axes = panels(2, 5, size=(12.5, 4.8), sharex=True)
    parameters = {"I_b": ", b = 2", "D_q": r", $\alpha$ = 2"}
    for place, (name, own) in enumerate(results["variants"].items()):
        upper, lower = axes[:, place]
        upper.plot(r, own["slope"], **line_style(place))
        upper.set(title=f"PNP-{_subscript(name)}{parameters.get(name, '')}")
        upper.set_ylim(0, 1.08 * max(own["slope"]))
        lower.plot(r, own["f"], **line_style(place))
        lower.set(xlabel="R, negatives before")
        lower.set_ylim(0, 1.08 * max(own["f"]))
    axes[0, 0].set_ylabel("derivative f'(R)")
    axes[1, 0].set_ylabel("loss f(R)")

    beside, axes = panels(1, 2, size=(10, 3.8), sharex=True)
    for place, (before, own) in enumerate(results["ap"].items()):
        for axis, divisor in zip(axes[0], (1, own["slope"][0]), strict=True):
            axis.plot(r, [value / divisor for value in own["slope"]], label=_ap_label(before), **line_style(place))
    steep = results["d"]["D_q, alpha = 2"]["slope"]
    for axis, divisor in zip(axes[0], (1, steep[0]), strict=True):
        axis.plot(
            r,
            [value / divisor for value in steep],
            color=line_style(5)["color"],
            ls="--",
            label=r"PNP-D$_q$, $\alpha$ = 2",
        )
        axis.set(xlabel="R, negatives before", xlim=(0, 6))
    axes[0, 0].set(title="gradient", ylabel="derivative of the loss in R", ylim=(0, 2.1))
    axes[0, 1].set(title="share of its largest", ylim=(0, 1.05))
    axes[0, 0].legend()
    return {"family": family, "beside-ap": beside}


def _ap_label(before: str) -> str:
    return f"AP, {before} positive{'s' * (before != '1')} before"


def _subscript(name: str) -> str:
    """Return I_u with the second letter lowered."""
    return f"{name[0]}$_{name[2]}$" if "_" in name else name


def values(results: Results) -> dict[str, Any]:
    variants, curves = results["variants"], results["d"]
    steep, ap = curves["D_q, alpha = 2"], list(results["ap"].values())
    directions = all(own["rises"] == _RISES[name] for name, own in variants.items())
    steeper = all(steep["fall"] > own["fall"] and steep["left"] < own["left"] for own in ap)
    pairs = zip(results["ap"]["0"]["slope"], curves["D_q, alpha = 1"]["slope"], strict=True)
    return {
        "verdict": verdict([directions, steeper]),
        "words": {1: "rises", 0: "stays", -1: "falls", None: "rises and falls"},
        "rises": _RISES,
        "gradients": {**{_ap_label(before): own for before, own in results["ap"].items()}, **curves},
        "steep": steep,
        "slow": curves["D_s"],
        "ap": ap,
        "ap_less_d_q": max(abs(one - two) for one, two in pairs),
    }


STUDY = Study(
    name="pnp-gradients",
    paper="PNP",
    shows="Fig. 3, 5",
    title="How strongly a positive is corrected",
    minutes=0.1,
    measure=measure,
    draw=draw,
    values=values,
)
