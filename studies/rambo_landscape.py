"""The landscape of AP over scores, and the interpolations that blackbox differentiation follows (RaMBO, Fig. 1)."""

from itertools import pairwise, permutations
from typing import Any

import torch
from torch import Tensor

from frontrank.losses import BlackboxAP
from frontrank.ranking import Ranks, average_precision
from studies.study import COLOURS, INK, Effort, Results, Study, panels, verdict

_POSITIVE = (True, True, True, False, False, False, False)  # of the items of the list
_LAMBDAS = (1.0, 5.0)
_REACH = 1.0  # of the section, from its centre
_STEP = 1e-6  # of numerical slopes


def measure(effort: Effort) -> dict[str, Any]:
    side, fine, points = (15, 4001, 50) if effort.quick else (81, 4001, 1000)
    generator = torch.Generator().manual_seed(effort.seed)
    positive = torch.tensor(_POSITIVE)
    centre, across, up = _section(len(positive), generator)
    line = torch.linspace(-_REACH, _REACH, side, dtype=torch.float64)
    grid = (centre + line[None, :, None] * across + line[:, None, None] * up).flatten(0, 1)
    along = torch.linspace(-_REACH, _REACH, fine, dtype=torch.float64)
    cut = centre + along[:, None] * across  # through the centre
    places = _REACH * (2 * torch.rand(points, 2, 1, generator=generator, dtype=torch.float64) - 1)
    drawn = centre + places[:, 0] * across + places[:, 1] * up
    of_cut = _loss(cut, positive)
    thin = slice(None, None, 10)
    return {
        "items": len(positive),
        "positives": int(positive.sum()),
        "points": points,
        "reach": _REACH,
        "loss": {
            "grid": _text(_loss(grid, positive), side),
            "cut": _round(of_cut[thin]),
            "flat": float((_numerical(drawn, lambda y: _loss(y, positive)) == 0).all(1).double().mean()),
            "largest_jump": float(of_cut.diff().abs().max()),
        },
        "along": _round(along[thin]),
        "interpolations": [
            {
                "lambda": lam,
                "grid": _text(interpolation(grid, positive, lam)[0], side),
                "cut": _round(interpolation(cut[thin], positive, lam)[0]),
                "largest_jump": float(interpolation(cut, positive, lam)[0].diff().abs().max()),
                **_of_points(drawn, positive, lam),
            }
            for lam in _LAMBDAS
        ],
    }


def _section(items: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Random scores, and two directions from there that are orthogonal and of length 1."""
    centre = 0.25 * torch.randn(items, generator=generator, dtype=torch.float64)
    across, up = torch.linalg.qr(torch.randn(items, 2, generator=generator, dtype=torch.float64)).Q.T
    return centre, across, up


def _of_points(y: Tensor, positive: Tensor, lam: float) -> dict[str, float]:
    """How the interpolations and their slopes are, at drawn points of the section."""
    loss = _loss(y, positive)
    value, slope = interpolation(y, positive, lam)
    given = package_slope(y, positive, lam)
    off = (_numerical(y, lambda y: linear_loss(y, positive, lam)) - given).abs().amax(1)
    both = (given != 0).any(1) & (slope != 0).any(1)
    return {
        "above": float((value - loss).max()),
        "kept": float(((value - loss).abs() < 1e-9).double().mean()),
        "off": float((value - loss).abs().mean()),
        "sloped": float((given != 0).any(1).double().mean()),
        "same_slope": float((off < 1e-6).double().mean()),
        "cosine": float(torch.cosine_similarity(given[both], slope[both]).mean()) if bool(both.any()) else 0.0,
    }


def _loss(y: Tensor, positive: Tensor) -> Tensor:
    """1 - AP of scores [list, item]: piecewise constant."""
    return _loss_of_ranks(_ranks(y), positive)


def _ranks(y: Tensor) -> Tensor:
    """rk(y), which puts the item of the highest score first (Eq. 2)."""
    return y.argsort(1, descending=True).argsort(1).to(y.dtype) + 1


def _loss_of_ranks(ranks: Tensor, positive: Tensor) -> Tensor:
    """1 - AP of rankings [list, item], whatever the scores are."""
    own = ranks[:, positive]
    before_pos = (own[:, None, :] < own[:, :, None]).sum(2).to(ranks.dtype)
    return 1 - average_precision(Ranks(before_pos, own - 1 - before_pos, torch.ones_like(own, dtype=torch.bool)))


def interpolation(y: Tensor, positive: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """min over rankings r of (y.r / lam + L(r)), less min of y.r / lam; and its slopes in y [list, item].

    Both are results by going through all rankings, as ranking is that minimum (Eq. 11). It never is above the loss, and
    is the loss where no other ranking is worth what it costs.
    """
    every = torch.tensor(list(permutations(range(1, y.shape[1] + 1))), dtype=y.dtype)
    of_every = _loss_of_ranks(every, positive)
    values, best = [], []
    for some in y.split(512):
        cost = some @ every.T / lam
        least = (cost + of_every).min(1)
        values.append(least.values - cost.amin(1))
        best.append(every[least.indices])
    value = torch.cat(values)
    loss = _loss(y, positive)
    slope = (torch.cat(best) - _ranks(y)) / lam
    stays = (value - loss).abs() < 1e-12  # several rankings may be as good: then the one there is
    return torch.where(stays, loss, value), slope.masked_fill(stays[:, None], 0)


def linear_loss(y: Tensor, positive: Tensor, lam: float) -> Tensor:
    """The same of the tangent of L at rk(y), with the ranks among positives held fixed: what Algorithm 1 follows."""
    ranks = _ranks(y)
    tangent = torch.zeros_like(y)
    own = ranks[:, positive]
    tangent[:, positive] = _ranks(y[:, positive]) / own**2 / own.shape[1]
    least = [(scores * _ranks(scores)).sum(1) / lam for scores in (y + lam * tangent, y)]
    return least[0] - least[1] + _loss(y, positive) - (tangent * ranks).sum(1)


def package_slope(y: Tensor, positive: Tensor, lam: float) -> Tensor:
    """The gradient that BlackboxAP gives for each list alone [list, item]."""
    leaf = y.clone().requires_grad_()
    BlackboxAP(lam, margin=0.0).of_scores(leaf, positive.expand_as(y)).backward()
    assert leaf.grad is not None
    return leaf.grad * len(y)  # the loss is the mean of the lists


def _numerical(y: Tensor, function: Any) -> Tensor:
    """Slopes by central differences [list, item]."""
    steps = _STEP * torch.eye(y.shape[1], dtype=y.dtype)
    sides = [function((y[:, None] + sign * steps).flatten(0, 1)).view_as(y) for sign in (1, -1)]
    return (sides[0] - sides[1]) / (2 * _STEP)


def _round(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def _text(values: Tensor, side: int) -> list[str]:
    """A grid by rows, in thousandths: a tenth of what numbers with a line each would take."""
    return [" ".join(str(round(1000 * value)) for value in row) for row in values.view(side, side).tolist()]


def draw(results: Results) -> dict[str, Any]:
    parts = [results["loss"], *results["interpolations"]]
    figure, axes = panels(2, 3, size=(10.5, 6.2), height_ratios=(1.7, 1), sharex=True)
    reach = results["reach"]
    grids = [[[int(word) / 1000 for word in row.split()] for row in part["grid"]] for part in parts]
    least, most = (of(of(row) for grid in grids for row in grid) for of in (min, max))
    for place, (part, grid) in enumerate(zip(parts, grids, strict=True)):
        upper, lower = axes[:, place]
        look = {
            "cmap": "viridis",
            "vmin": least,
            "vmax": most,
            "origin": "lower",
            "extent": (-reach, reach, -reach, reach),
        }
        image = upper.imshow(grid, aspect="auto", **look)
        upper.axhline(0, color="white", linewidth=0.8, linestyle="--")
        upper.set(title="1 - AP" if place == 0 else f"λ = {part['lambda']:g}")
        upper.grid(visible=False)
        lower.plot(results["along"], results["loss"]["cut"], color=INK, linewidth=1.0)
        if place:
            lower.plot(results["along"], part["cut"], color=COLOURS[place - 1])
        lower.set(xlabel="along the first direction", ylim=(least, 1.02 * most))
    axes[0, 0].set_ylabel("along the second direction")
    axes[1, 0].set_ylabel("along the dashed line")
    figure.colorbar(image, ax=axes[0, :], label="loss", pad=0.01)
    return {"landscape": figure}


def values(results: Results) -> dict[str, Any]:
    loss, others = results["loss"], results["interpolations"]
    claims = {
        "flat": loss["flat"] >= 0.99,
        "smooth": all(each["largest_jump"] < 0.1 * loss["largest_jump"] and each["above"] < 1e-9 for each in others),
        "stronger": all(a["sloped"] < b["sloped"] and a["kept"] > b["kept"] for a, b in pairwise(others)),
        "same_slope": all(each["same_slope"] >= 0.99 for each in others),
    }
    return {"verdict": verdict(list(claims.values())), "claims": claims}


STUDY = Study(
    name="rambo-landscape",
    paper="RaMBO",
    shows="Fig. 1",
    title="The landscape of AP, and its interpolations",
    minutes=0.5,
    measure=measure,
    draw=draw,
    values=values,
)
