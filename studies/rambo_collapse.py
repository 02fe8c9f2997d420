"""Scores that are optimised by their ranks alone, with and without a margin (RaMBO, Fig. 3)."""

from collections.abc import Callable
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from frontrank.losses import BlackboxAP
from studies.study import COLOURS, Effort, Results, Study, panels, verdict

_MARGIN = 0.3
_ITEMS, _POSITIVES = 32, 8  # of a list
_DIM, _MOVED = 16, 1.2  # of the inputs of the network, and how far those of positives are moved
_REST = 0.05  # of a spread, by which it may change in the last quarter of the steps of scores that have a scale
_PLACES = 80  # of a line in the figure, about
_LINES = (6, 10)  # positives and negatives whose lines are drawn


class _Problem(NamedTuple):
    """Scores to optimise: lambda and learning rate, steps of the study and of its quick form."""

    lam: float
    lr: float
    steps: int
    quick: int


FREE = _Problem(lam=3000.0, lr=10.0, steps=240, quick=120)
NETWORK = _Problem(lam=30.0, lr=0.02, steps=2000, quick=60)


def measure(effort: Effort) -> dict[str, Any]:
    seeds = 1 if effort.quick else effort.seeds
    results: dict[str, Any] = {"seeds": seeds, "margin": _MARGIN}
    optimisers: dict[str, tuple[_Problem, Callable[..., Any]]] = {
        "free": (FREE, free_scores),
        "network": (NETWORK, network_scores),
    }
    for name, (problem, optimise) in optimisers.items():
        steps = problem.quick if effort.quick else problem.steps
        runs = [_optimise_seeds(optimise, margin, steps, effort.seed, seeds) for margin in (0.0, _MARGIN)]
        results[name] = {"steps": steps, "lambda": problem.lam, "without": runs[0], "with": runs[1]}
    return results


def _optimise_seeds(optimise: Callable[..., Any], margin: float, steps: int, first: int, seeds: int) -> dict[str, Any]:
    """Return spread and gap of the scores over steps, for each seed; the scores themselves for the first."""
    every = max(1, steps // _PLACES)
    results: dict[str, Any] = {"every": every, "spread": [], "gap": [], "shrinks": []}
    for seed in range(first, first + seeds):
        path, shrinks = optimise(margin, steps, seed)
        path = path[::every]
        positives, negatives = path[:, :_POSITIVES], path[:, _POSITIVES:]
        results["spread"].append(_round(path.std(1)))
        results["gap"].append(_round(positives.amin(1) - negatives.amax(1)))
        results["shrinks"].append(shrinks)
        if seed == first:
            lines = positives[:, : _LINES[0]], negatives[:, : _LINES[1]]
            results["positives"], results["negatives"] = ([_round(line) for line in of.T] for of in lines)
    return results


def free_scores(margin: float, steps: int, seed: int) -> tuple[Tensor, float]:
    """Return scores [step, item] of one list, moved against their slopes, and the share of slopes that shrink them."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(_ITEMS, generator=generator, dtype=torch.float64).requires_grad_()
    return _descend(lambda: scores, lambda: scores, [scores], FREE, margin, steps)


def network_scores(margin: float, steps: int, seed: int) -> tuple[Tensor, float]:
    """Return the same for a small network, which sees other items in each step; the scores are of items held out.

    Positives are moved in one direction by about as much as they differ, so no network ranks all of them rightly.
    """
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(_DIM, 32), nn.ReLU(), nn.Linear(32, 1)).double()
    for parameter in model.parameters():
        std = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.01
        nn.init.normal_(parameter, std=std, generator=generator)

    def items() -> Tensor:
        x = torch.randn(_ITEMS, _DIM, generator=generator, dtype=torch.float64)
        x[:_POSITIVES, 0] += _MOVED
        return x

    held_out = items()
    parameters = list(model.parameters())
    return _descend(
        lambda: model(items()).squeeze(1), lambda: model(held_out).squeeze(1), parameters, NETWORK, margin, steps
    )


def _descend(
    scores_of_step: Callable[[], Tensor],
    watched: Callable[[], Tensor],
    parameters: list[Any],
    problem: _Problem,
    margin: float,
    steps: int,
) -> tuple[Tensor, float]:
    """Return the watched scores before each step and after the last, by plain gradient descent on 1 - AP."""
    optimizer = torch.optim.SGD(parameters, lr=problem.lr)
    loss = BlackboxAP(problem.lam, margin)
    relevant = torch.arange(_ITEMS) < _POSITIVES
    path, shrinks = [watched().detach().clone()], []
    for _ in range(steps):
        scores = scores_of_step()
        scores.retain_grad()
        optimizer.zero_grad()
        loss.of_scores(scores[None], relevant[None]).backward()
        slopes = scores.grad
        if slopes is not None and bool((slopes != 0).any()):
            shrinks.append(float(scores.detach() @ slopes) > 0)
        optimizer.step()
        path.append(watched().detach().clone())
    return torch.stack(path), fmean(shrinks) if shrinks else 1.0


def _round(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(2, 3, size=(11.0, 6.2), sharex="row")
    titles = {"without": "no margin", "with": f"margin {results['margin']:g}"}
    names = {"free": "free scores", "network": "a network's scores"}
    for row, (name, title) in zip(axes, names.items(), strict=True):
        of = results[name]
        shown = [line for way in titles for kind in ("positives", "negatives") for line in of[way][kind]]
        most = 1.05 * max(abs(value) for line in shown for value in line)
        for axis, (way, what) in zip(row, titles.items(), strict=False):
            for kind, colour, style in (("negatives", COLOURS[1], "--"), ("positives", COLOURS[0], "-")):
                for place, line in enumerate(of[way][kind]):
                    at = [of[way]["every"] * step for step in range(len(line))]
                    label = kind if place == 0 else None
                    axis.plot(at, line, color=colour, linestyle=style, linewidth=1.1, label=label)
            axis.set(title=f"{title}, {what}", ylim=(-most, most), xlabel="step")
        for (way, what), colour, style in zip(titles.items(), COLOURS[2:4], ("-", "--"), strict=True):
            for place, line in enumerate(of[way]["gap" if name == "free" else "spread"]):
                at = [of[way]["every"] * step for step in range(len(line))]
                label = what if place == 0 else None
                row[2].plot(at, line, color=colour, linestyle=style, linewidth=1.4, label=label)
        row[2].set(
            xlabel="step", title="lowest positive - highest negative" if name == "free" else "spread of the scores"
        )
        row[0].set_ylabel("score")
        row[2].legend()
    axes[1, 2].set_yscale("log")
    axes[1, 0].legend(loc="upper right")
    return {"scores": figure}


def values(results: Results) -> dict[str, Any]:
    margin = results["margin"]
    runs = {(name, way): results[name][way] for name in ("free", "network") for way in ("without", "with")}
    rows = [
        {
            "name": "free scores" if name == "free" else "a network's scores",
            "margin": margin if way == "with" else 0.0,
            "ends": [fmean(line[place] for line in of[what]) for what in ("spread", "gap") for place in (0, -1)],
            "shrinks": fmean(of["shrinks"]),
        }
        for (name, way), of in runs.items()
    ]
    spreads = runs["network", "with"]["spread"]
    changes = [line[-1] / line[-1 - len(line) // 4] - 1 for line in spreads]
    stays = all(line[-1] > margin for line in spreads)
    claims = {
        "near_tie": all(0 <= line[-1] < 0.1 * margin for line in runs["free", "without"]["gap"]),
        "apart": all(line[-1] >= 0.9 * margin for line in runs["free", "with"]["gap"]),
        "collapses": all(line[-1] < 0.25 * line[0] for line in runs["network", "without"]["spread"]),
        "stays": stays,
        "rests": stays and all(abs(change) < _REST for change in changes),
    }
    quarters = dict.fromkeys(place * (len(spreads[0]) - 1) // 4 for place in range(5))
    return {
        "verdict": verdict(list(claims.values())),
        "claims": claims,
        "rows": rows,
        "items": _ITEMS,
        "positives": _POSITIVES,
        "rest": _REST,
        "grows": all(line[-1] > line[0] for line in spreads),
        "quarters": [fmean(line[place] for line in spreads) for place in quarters],
        "last_changes": changes,
    }


STUDY = Study(
    name="rambo-collapse",
    paper="RaMBO",
    shows="Fig. 3",
    title="Scores collapse without a margin",
    minutes=1,
    measure=measure,
    draw=draw,
    values=values,
    takes=("seeds",),
)
