"""Scores that are optimised by their ranks alone, with and without a margin (RaMBO, Fig. 3)."""

from collections.abc import Callable
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from frontrank.losses import BlackboxAP
from studies.over_seeds import verdict
from studies.study import Effort, Results, Study
from studies.style import COLOURS, panels

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
    found: dict[str, Any] = {"seeds": seeds, "margin": _MARGIN}
    optimisers: dict[str, tuple[_Problem, Callable[..., Any]]] = {
        "free": (FREE, free_scores),
        "network": (NETWORK, network_scores),
    }
    for name, (problem, optimise) in optimisers.items():
        steps = problem.quick if effort.quick else problem.steps
        runs = [_of_seeds(optimise, margin, steps, effort.seed, seeds) for margin in (0.0, _MARGIN)]
        found[name] = {"steps": steps, "lambda": problem.lam, "without": runs[0], "with": runs[1]}
    return found


def _of_seeds(optimise: Callable[..., Any], margin: float, steps: int, first: int, seeds: int) -> dict[str, Any]:
    """Spread and gap of the scores over steps, for each seed; the scores themselves for the first."""
    every = max(1, steps // _PLACES)
    found: dict[str, Any] = {"every": every, "spread": [], "gap": [], "shrinks": []}
    for seed in range(first, first + seeds):
        path, shrinks = optimise(margin, steps, seed)
        path = path[::every]
        positives, negatives = path[:, :_POSITIVES], path[:, _POSITIVES:]
        found["spread"].append(_rounded(path.std(1)))
        found["gap"].append(_rounded(positives.amin(1) - negatives.amax(1)))
        found["shrinks"].append(shrinks)
        if seed == first:
            lines = positives[:, : _LINES[0]], negatives[:, : _LINES[1]]
            found["positives"], found["negatives"] = ([_rounded(line) for line in of.T] for of in lines)
    return found


def free_scores(margin: float, steps: int, seed: int) -> tuple[Tensor, float]:
    """Scores [step, item] of one list, moved against their own slopes; and the share of slopes that shrink them."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(_ITEMS, generator=generator, dtype=torch.float64).requires_grad_()
    return _optimised(lambda: scores, lambda: scores, [scores], FREE, margin, steps)


def network_scores(margin: float, steps: int, seed: int) -> tuple[Tensor, float]:
    """The same of a small network, which sees other items in each step; the scores are of items held out.

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
    return _optimised(
        lambda: model(items()).squeeze(1), lambda: model(held_out).squeeze(1), parameters, NETWORK, margin, steps
    )


def _optimised(
    scores_of_step: Callable[[], Tensor],
    watched: Callable[[], Tensor],
    parameters: list[Any],
    problem: _Problem,
    margin: float,
    steps: int,
) -> tuple[Tensor, float]:
    """The watched scores before each step and after the last, by plain gradient descent on 1 - AP."""
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


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(2, 3, size=(11.0, 6.2), sharex="row")
    said = {"without": "no margin", "with": f"margin {found['margin']:g}"}
    names = {"free": "free scores", "network": "a network's scores"}
    for row, (name, title) in zip(axes, names.items(), strict=True):
        of = found[name]
        shown = [line for way in said for kind in ("positives", "negatives") for line in of[way][kind]]
        most = 1.05 * max(abs(value) for line in shown for value in line)
        for axis, (way, what) in zip(row, said.items(), strict=False):
            for kind, colour, style in (("negatives", COLOURS[1], "--"), ("positives", COLOURS[0], "-")):
                for place, line in enumerate(of[way][kind]):
                    at = [of[way]["every"] * step for step in range(len(line))]
                    label = kind if place == 0 else None
                    axis.plot(at, line, color=colour, linestyle=style, linewidth=1.1, label=label)
            axis.set(title=f"{title}, {what}", ylim=(-most, most), xlabel="step")
        for (way, what), colour, style in zip(said.items(), COLOURS[2:4], ("-", "--"), strict=True):
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


def told(found: Results) -> str:
    margin, rows = found["margin"], []
    for name, title in (("free", "free scores"), ("network", "a network's scores")):
        for way, width in (("without", 0.0), ("with", margin)):
            of = found[name][way]
            ends = [f"{fmean(line[place] for line in of[what]):.3f}" for what in ("spread", "gap") for place in (0, -1)]
            rows.append(f"| {title} | {width:g} | {' | '.join(ends)} | {fmean(of['shrinks']):.0%} |")
    held, said = _judged(found)
    return "\n".join(
        [
            "| | margin | spread at first | in the end | lowest positive - highest negative, at first | in the end | "
            "slopes that shrink |",
            "|---|---:|---:|---:|---:|---:|---:|",
            *rows,
            "",
            f"Plain gradient descent on 1 - AP of lists of {_ITEMS} items, {_POSITIVES} of them positive; means over "
            f"{found['seeds']} seeds, lines of scores are of the first. "
            f"Free scores: one list, whose scores themselves move, {found['free']['steps']} steps, λ "
            f"{found['free']['lambda']:g}. "
            "A network: small, other items in each step, classes that overlap, so that no scores rank all rightly; "
            f"{found['network']['steps']:,} steps, λ {found['network']['lambda']:g}; "
            "what is shown is of items held out. Spread: the standard deviation of all scores.",
            "",
            f"{verdict(held)}: {'; '.join(said)}. The criterion, for each seed: a gap below a tenth of the margin "
            "without it, and of nine tenths of it or more with it; a spread below a fourth of the first "
            "without a margin, and above the margin with it, where it has to change by less than "
            f"{_REST:.0%} in the last quarter of the steps. That last part was added after the figures were seen, as "
            "the paper's caption speaks of a suitable scale.",
            "",
            "Why: rk minimises y·rk (Eq. 11), and the slopes are (rk of moved scores - rk) / λ. So y·slope is never "
            "below 0, and a step against the slope makes scores smaller, as long as anything is "
            "ranked wrongly (last column). Pairs in the right order have no slope that would make up for it; with a "
            "margin those that are too near do.",
        ]
    )


def _judged(found: Results) -> tuple[list[bool], list[str]]:
    """What holds, part by part, and how it is said."""
    margin = found["margin"]
    last = {(name, way): found[name][way] for name in ("free", "network") for way in ("without", "with")}
    near = all(0 <= line[-1] < 0.1 * margin for line in last["free", "without"]["gap"])
    kept = all(line[-1] >= 0.9 * margin for line in last["free", "with"]["gap"])
    collapsed = all(line[-1] < 0.25 * line[0] for line in last["network", "without"]["spread"])
    of_network = last["network", "with"]["spread"]
    stays = all(line[-1] > margin for line in of_network)
    changes = [line[-1] / line[-1 - len(line) // 4] - 1 for line in of_network]
    rests = stays and all(abs(change) < _REST for change in changes)
    grow = all(line[-1] > line[0] for line in of_network)
    said = [
        f"free scores {'stop' if near else 'do not stop'} at nearly a tie without a margin",
        f"with one they {'end' if kept else 'do not end'} that far apart",
        f"a network's scores {'collapse' if collapsed else 'do not collapse'} without a margin",
        f"with one they {'do not collapse' if stays else 'do'} (their spread {'grows' if grow else 'goes'} from "
        f"{_quarters(of_network)}, at the quarters of the steps)",
        f"{'and that comes' if rests else 'but that does not come'} to rest at a scale: in the last quarter it changes "
        f"by {', '.join(f'{change:+.0%}' for change in changes)}",
    ]
    return [near, kept, collapsed, stays, rests], said


def _quarters(lines: list[list[float]]) -> str:
    """The mean over seeds at the beginning, after each quarter of the steps, and in the end."""
    places = [place * (len(lines[0]) - 1) // 4 for place in range(5)]
    return " to ".join(f"{fmean(line[place] for line in lines):.2f}" for place in dict.fromkeys(places))


STUDY = Study(
    name="rambo-collapse",
    paper="RaMBO",
    shows="Fig. 3",
    title="Scores collapse without a margin",
    claim="Ranks stay the same when all scores become smaller, so nothing keeps a loss on ranks from making scores "
    "nearly equal, where any small change upsets the ranking. "
    "A margin, by which positives are ranked lower and negatives higher than they are, induces a distance between "
    "both and a suitable scale.",
    minutes=1,
    measure=measure,
    figures=figures,
    told=told,
    takes=("seeds",),
)
