"""What takes the place of the step that decides which of two items comes first (Smooth-AP, Fig. 2)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from studies.study import AGREES, COLOURS, DOES_NOT_AGREE, INK, Effort, Results, Study, panels

_TEMPERATURES = (0.001, 0.01, 0.1)  # of the sigmoids in the figure


def _approximations() -> dict[str, Callable[[Tensor], Tensor]]:
    """Return functions G(d) of a difference d of scores, in place of the step, which is 1 where d > 0."""
    sigmoids = {f"sigmoid, τ = {t:g}": (lambda d, t=t: torch.sigmoid(d / t)) for t in _TEMPERATURES}
    return {**sigmoids, "linear": lambda d: (d + 1) / 2, "exponential": lambda d: torch.exp(d) / torch.e}


def measure(effort: Effort) -> dict[str, Any]:
    points, lists = (201, 50) if effort.quick else (801, 1000)
    d = torch.linspace(-1, 1, points, dtype=torch.float64, requires_grad=True)
    results: dict[str, Any] = {"difference": _plain(d), "step": _plain((d > 0).double()), "curves": {}}
    scores, positive = _lists(lists, effort.seed)
    exact = _ap(scores, positive, lambda x: (x > 0).double())
    for name, function in _approximations().items():
        value = function(d)
        (slope,) = torch.autograd.grad(value.sum(), d)
        own: dict[str, Any] = {"value": _plain(value), "slope": _plain(slope)}
        own["region"] = _region(d.detach(), slope)
        own["ap_error"] = float((_ap(scores, positive, function) - exact).abs().mean())
        results["curves"][name] = own
    return {**results, "lists": lists, "items": scores.shape[1], "positives": int(positive.sum())}


def _plain(values: Tensor) -> list[float]:
    """Return numbers to draw from, rounded to be short."""
    return [round(value, 6) for value in values.tolist()]


def _lists(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return cosines of 64 items, 8 of them positive and somewhat nearer, as in a batch after some training."""
    generator = torch.Generator().manual_seed(seed)
    positive = torch.arange(64) < 8
    scores = 0.2 * torch.randn(count, 64, generator=generator, dtype=torch.float64) + 0.3 * positive
    return scores.clamp(-1, 1), positive


def _ap(scores: Tensor, positive: Tensor, indicator: Callable[[Tensor], Tensor]) -> Tensor:
    """Return AP of each list by Eq. 5, with any function in place of the indicator."""
    before = indicator(scores[:, None, :] - scores[:, positive][:, :, None])  # [list, positive, item]
    before[:, torch.arange(int(positive.sum())), positive.nonzero().squeeze(1)] = 0
    of_positives = before[..., positive].sum(2)
    return ((1 + of_positives) / (1 + before.sum(2))).mean(1)


def _region(d: Tensor, slope: Tensor) -> float:
    """Return the width of the differences around 0 that hold nine tenths of the slope within -1 .. 1."""
    order = d.abs().argsort(stable=True)
    share = slope[order].cumsum(0) / slope.sum()
    return 2 * float(d.abs()[order][(share >= 0.9).nonzero()[0, 0]])


def draw(results: Results) -> dict[str, Any]:
    names = ["step", *results["curves"]]
    figure, axes = panels(2, len(names), size=(2.3 * len(names), 4.4), sharex=True)
    for place, name in enumerate(names):
        upper, lower = axes[:, place]
        own = results["curves"].get(name, {"value": results["step"], "slope": [0.0] * len(results["difference"])})
        colour = INK if name == "step" else COLOURS[place - 1]
        upper.plot(results["difference"], own["value"], color=colour)
        upper.set(title=name, ylim=(-0.1, 1.1))
        lower.plot(results["difference"], own["slope"], color=colour)
        lower.set(xlabel="difference of scores")
        lower.set_ylim(bottom=0, top=1.08 * (max(own["slope"]) or 1))  # from 0, so that what is level looks level
        if name == "step":
            lower.set(ylim=(-0.06, 1.08), yticks=[0])  # no height: it is not a number
            lower.annotate("", (0, 1.0), (0, 0), arrowprops={"arrowstyle": "->", "color": INK})
            lower.text(0.08, 0.9, "∞", fontsize=13)
    axes[0, 0].set_ylabel("value")
    axes[1, 0].set_ylabel("derivative")
    return {"indicator": figure}


def values(results: Results) -> dict[str, Any]:
    sigmoids = [own for name, own in results["curves"].items() if name.startswith("sigmoid")]
    regions, errors = [own["region"] for own in sigmoids], [own["ap_error"] for own in sigmoids]
    others = min(own["ap_error"] for name, own in results["curves"].items() if not name.startswith("sigmoid"))
    agrees = regions == sorted(regions) and errors == sorted(errors) and errors[0] < others
    return {
        "verdict": AGREES if agrees else DOES_NOT_AGREE,
        "regions": regions,
        "errors": errors,
        "least_error_of_others": others,
    }


STUDY = Study(
    name="smooth-ap-indicator",
    paper="Smooth-AP",
    shows="Fig. 2",
    title="What takes the place of the step",
    minutes=0.1,
    measure=measure,
    draw=draw,
    values=values,
)
