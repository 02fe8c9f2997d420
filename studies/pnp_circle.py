"""Classes of several centres on the unit circle: gathered by I_b, left as they are by D_q (PNP, Fig. 6).

A toy in two dimensions: points of a plane, embedded on the unit circle by a small network. The paper says what the
network is (2 layers of 30) and what the classes are (4 to train, 4 to test, 150 points each), not where the points are.
Two layouts stand for that:

    lines    after Roth et al. 2020, whom the paper follows: the training classes are four pieces of a diagonal, the
             test classes two pieces of each of two sides of a square
    centres  each training class has three centres, each test class a new one; all are drawn again for each seed

Both lie in the square from -1 to 1. All is in float64 and a batch is a function of its step: the page of the designer
does the same in a browser.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from frontrank.evaluation import evaluate
from frontrank.losses import PNP
from studies.study import COLOURS, FAINT, INK, MARKS, Effort, Results, Study, figure_style, panels, verdict
from studies.trained import mean_and_spread

Layout = Literal["lines", "centres"]
LAYOUTS: tuple[Layout, ...] = ("lines", "centres")
CLASSES, POINTS, NEURONS = 4, 150, 30
PER_CLASS = 16  # points of each class in a batch
STRIDES = (17, 19, 23, 29)  # how far each class goes on from batch to batch; none shares a factor with POINTS
STEPS, RATE, TEMPERATURE = 300, 0.01, 0.01
METRICS = ("R@1", "mAP", "NMI", "dists@intra")
_NEAREST, _SPREAD = 0.35, 0.06  # of centres


_LOSSES = {"I_b": PNP("I_b", b=2.0, temperature=TEMPERATURE), "D_q": PNP("D_q", alpha=4.0, temperature=TEMPERATURE)}
_SEEDS = 60
_SHOWN = 25  # points of a class in figures
_FRAMES = 20


@dataclass(frozen=True)
class Toy:
    """Points [class * POINTS, 2] to train and to test with, in the order of their classes, and the first weights."""

    train: Tensor
    test: Tensor
    weights: list[Tensor]


def labels() -> Tensor:
    """Return the class of each point."""
    return torch.arange(CLASSES).repeat_interleave(POINTS)


def make_toy(layout: Layout, seed: int) -> Toy:
    """Return the toy of a seed. Numbers have 4 decimals, so that a page can hold them as they are."""
    generator = torch.Generator().manual_seed(seed)
    train, test = (_lines if layout == "lines" else _centres)(generator)
    weights = []
    for inside, outside in ((2, NEURONS), (NEURONS, NEURONS), (NEURONS, 2)):
        bound = 1 / math.sqrt(inside)
        weights += [(2 * _uniform(generator, outside, inside) - 1) * bound]
        weights += [(2 * _uniform(generator, outside) - 1) * bound]
    return Toy(train.round(decimals=4), test.round(decimals=4), [weight.round(decimals=4) for weight in weights])


def _lines(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    along = 0.4 * _uniform(generator, 2, CLASSES, POINTS)
    diagonal = along[0] + 0.5 * torch.arange(CLASSES)[:, None] - 1
    train = torch.stack([diagonal, diagonal], dim=2)
    side = along[1] + torch.tensor([-0.4, 0.4, -0.4, 0.4])[:, None]
    edge = -torch.ones_like(side)
    test = torch.stack([torch.cat([edge[:2], side[2:]]), torch.cat([side[:2], edge[2:]])], dim=2)
    train, test = (part + 0.02 * _normal(generator, CLASSES, POINTS, 2) for part in (train, test))
    return train.flatten(0, 1), test.flatten(0, 1)


def _centres(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    of_train = 3
    centres = torch.empty(0, 2, dtype=torch.float64)
    while len(centres) < CLASSES * (of_train + 1):
        point = 2 * _uniform(generator, 1, 2) - 1
        if not len(centres) or float(torch.cdist(point, centres).min()) >= _NEAREST:
            centres = torch.cat([centres, point])
    which = torch.randint(of_train, (CLASSES, POINTS), generator=generator)
    train = centres[which * CLASSES + torch.arange(CLASSES)[:, None]]
    test = centres[-CLASSES:, None].expand(CLASSES, POINTS, 2)
    train, test = (part + _SPREAD * _normal(generator, CLASSES, POINTS, 2) for part in (train, test))
    return train.flatten(0, 1), test.flatten(0, 1)


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def embed(weights: Sequence[Tensor], points: Tensor) -> Tensor:
    """Return where a network puts points on the circle [point, 2]."""
    hidden = points
    for place in (0, 2):
        hidden = torch.relu(hidden @ weights[place].T + weights[place + 1])
    return torch.nn.functional.normalize(hidden @ weights[4].T + weights[5], dim=1)


def batch_rows(step: int) -> Tensor:
    """Return the points of a batch, steps counted from 0: each class goes round at its own pace."""
    starts = step * torch.tensor(STRIDES)
    own = (starts[:, None] + torch.arange(PER_CLASS)) % POINTS
    return (own + POINTS * torch.arange(CLASSES)[:, None]).flatten()


def train(
    data: Toy,
    loss: Callable[[Tensor, Tensor], Tensor],
    steps: int = STEPS,
    seen: Callable[[int, list[Tensor]], None] = lambda _step, _weights: None,
) -> list[Tensor]:
    """Return the weights after some steps of Adam.

    seen: called with the weights before each step, and after the last
    """
    weights = [weight.clone().requires_grad_() for weight in data.weights]
    optimizer = torch.optim.Adam(weights, lr=RATE)
    classes = labels()
    for step in range(steps):
        seen(step, [weight.detach() for weight in weights])
        rows = batch_rows(step)
        optimizer.zero_grad()
        loss(embed(weights, data.train[rows]), classes[rows]).backward()
        optimizer.step()
    last = [weight.detach() for weight in weights]
    seen(steps, last)
    return last


def evaluate_points(weights: Sequence[Tensor], points: Tensor, metrics: Sequence[str] = METRICS) -> dict[str, float]:
    """Return how well the classes of points are kept apart; each point searches all others."""
    report = evaluate(embed(weights, points), labels(), metrics=metrics, progress=False)
    return {metric: float(report[metric]) for metric in metrics}


def to_text(numbers: Tensor, decimals: int) -> str:
    """Return numbers as one line of text, which takes less room than a list does in JSON."""
    return " ".join(f"{number:.{decimals}f}" for number in numbers.flatten().tolist())


def from_text(text: str) -> list[float]:
    """Return the numbers of `to_text`."""
    return [float(word) for word in text.split()]


def degrees(embeddings: Tensor) -> Tensor:
    """Return the place of embeddings on the circle, 0 .. 359."""
    angle = torch.rad2deg(torch.atan2(embeddings[:, 1], embeddings[:, 0]))
    return angle.round().remainder(360) + 0.0  # which makes -0 a 0


def paired_gap(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """Return the mean of second - first over seeds, and twice its standard error."""
    gaps = torch.tensor(second, dtype=torch.float64) - torch.tensor(first, dtype=torch.float64)
    error = float(gaps.std() / math.sqrt(len(gaps))) if len(gaps) > 1 else math.inf
    return {"mean": float(gaps.mean()), "two_errors": 2 * error}


def measure(effort: Effort) -> dict[str, Any]:
    seeds, steps = (2, 20) if effort.quick else (_SEEDS, STEPS)
    times = [round(steps * (place / (_FRAMES - 1)) ** 2) for place in range(_FRAMES)]  # more of them where all is fast
    results: dict[str, Any] = {"seed": effort.seed, "seeds": seeds, "steps": steps, "times": times, "layouts": {}}
    for layout in LAYOUTS:
        own: dict[str, Any] = {"test": {}, "train": {}, "frames": {}}
        for name, loss in _LOSSES.items():
            tested, trained = [], []
            for seed in range(effort.seed, effort.seed + seeds):
                data = make_toy(layout, seed)
                frames: dict[int, str] = {}

                def keep(step: int, weights: list[Tensor], data: Toy = data, frames: dict[int, str] = frames) -> None:
                    if step in times:
                        frames[step] = to_text(degrees(embed(weights, _grid_points(data))), 0)

                weights = train(data, loss, steps, keep if seed == effort.seed else lambda *_: None)
                tested.append(evaluate_points(weights, data.test))
                trained.append(evaluate_points(weights, data.train))
                if frames:
                    own["frames"][name] = [frames[time] for time in times]
            for part, reports in (("test", tested), ("train", trained)):
                own[part][name] = {metric: [round(report[metric], 5) for report in reports] for metric in METRICS}
        results["layouts"][layout] = own
    return results


def _grid_points(data: Toy) -> Tensor:
    """Return the points that figures show: the first of each class, training classes before test classes."""
    return torch.cat(
        [part.unflatten(0, (CLASSES, POINTS))[:, :_SHOWN].flatten(0, 1) for part in (data.train, data.test)]
    )


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(len(LAYOUTS), 3, size=(11, 7.2))
    for layout, row in zip(LAYOUTS, axes, strict=True):
        own = results["layouts"][layout]
        _draw_plane(row[0], layout, results["seed"])
        for axis, name in zip(row[1:], _LOSSES, strict=True):
            value = own["test"][name]["mAP"][0]
            _draw_circle(axis, own["frames"][name][-1], f"PNP-{name[0]}$_{name[2]}$, test mAP {100 * value:.0f}")
    axes[0, 0].legend(loc="center right", fontsize=9)
    figure.supxlabel(_first_seed(results).replace("D_q", "D$_q$"), fontsize=10)
    return {"circle": figure, "seeds": _draw_seeds(results)}


def _first_seed(results: Results) -> str:
    """Return where the run that is drawn differs from the means over seeds: its mAP alone would mislead."""
    less = [layout for layout in LAYOUTS if _first_gap(results, layout) < 0]
    text = f"D_q is worse on {'both' if len(less) == len(LAYOUTS) else ' and '.join(less)}"
    if not less:
        text = "D_q is not worse on either"
    return f"in this seed {text}; the means over {results['seeds']} seeds are in the table"


def _first_gap(results: Results, layout: str) -> float:
    one, other = (results["layouts"][layout]["test"][name]["mAP"][0] for name in _LOSSES)
    return float(other - one)


def _draw_seeds(results: Results) -> Any:
    """Draw test mAP of both losses, a mark per seed; D_q is better above the line."""
    figure, axes = panels(1, len(LAYOUTS), size=(8.4, 3.9))
    for place, (layout, axis) in enumerate(zip(LAYOUTS, axes[0], strict=True)):
        own = results["layouts"][layout]["test"]
        first, second = ([100 * value for value in own[name]["mAP"]] for name in _LOSSES)
        low = min(*first, *second) - 3
        axis.plot([low, 100], [low, 100], color=INK, lw=0.8)
        axis.scatter(first, second, s=24, color=COLOURS[place], marker=MARKS[place], alpha=0.8)
        axis.set(title=f"{layout}: test mAP, a mark per seed", xlabel="I$_b$, %", xlim=(low, 101.5), ylim=(low, 101.5))
    axes[0, 0].set_ylabel("D$_q$, %")
    return figure


def _classes() -> list[tuple[int, bool, slice]]:
    """Return number, whether it is a test class, and the rows of each class among the points that are shown."""
    return [
        (place % CLASSES, place >= CLASSES, slice(place * _SHOWN, (place + 1) * _SHOWN)) for place in range(2 * CLASSES)
    ]


def _draw_plane(axis: Any, layout: Layout, seed: int) -> None:
    points = _grid_points(make_toy(layout, seed))
    for number, is_test, rows in _classes():
        x, y = points[rows].T.tolist()
        label = {(0, False): "training classes", (0, True): "test classes"}.get((number, is_test))
        axis.scatter(
            x, y, s=22 if is_test else 12, color=COLOURS[number], marker="x" if is_test else "o", label=label, lw=1.2
        )
    axis.set(title=f"{layout}: the points")
    axis.margins(0.08, 0.12)


def _draw_circle(axis: Any, text: str, title: str) -> None:
    """Draw training classes on the circle itself, test classes on one inside it, where they do not overlap."""
    angles = torch.deg2rad(torch.tensor(from_text(text)))
    around = torch.linspace(0, 2 * torch.pi, 181)
    for radius in (1.0, 0.72):
        axis.plot((radius * around.cos()).tolist(), (radius * around.sin()).tolist(), color=FAINT, lw=1, zorder=0)
    for number, is_test, rows in _classes():
        spread = torch.linspace(-0.07, 0.07, _SHOWN)  # of equal angles, so that one sees that they are many
        away = (0.72 if is_test else 1.0) + spread
        x, y = (away * angles[rows].cos()).tolist(), (away * angles[rows].sin()).tolist()
        axis.scatter(x, y, s=22 if is_test else 10, color=COLOURS[number], marker="x" if is_test else "o", lw=1.2)
    axis.set(title=title, xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), xticks=[], yticks=[], aspect="equal")
    for spine in axis.spines.values():
        spine.set_visible(False)


def extra_files(results: Results) -> dict[str, bytes]:
    """Return the same as an animation, a frame per saved step."""
    from PIL import Image

    own = results["layouts"]["centres"]["frames"]
    frames = []
    for place, time in enumerate(results["times"]):
        with figure_style():
            figure, axes = panels(1, len(own), size=(7.2, 4.2))
            figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # inches, off the frame
            figure.suptitle(f"centres, seed {results['seed']}: step {time}", fontsize=11)
            figure.patch.set(edgecolor="#888888", linewidth=3)  # white, so with a frame where the page is dark
            for axis, (name, texts) in zip(axes[0], own.items(), strict=True):
                _draw_circle(axis, texts[place], f"PNP-{name[0]}$_{name[2]}$")
            axes[0, 0].text(0, 0, "outside: training\ninside: test", ha="center", va="center", fontsize=9)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=75, facecolor="#ffffff")
        frames.append(Image.open(buffer).convert("RGB").quantize(48, dither=Image.Dither.NONE))
    moving = io.BytesIO()
    waits = [180] * (len(frames) - 1) + [2500]
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:], duration=waits, loop=0, optimize=True)
    return {"circle.gif": moving.getvalue()}


def values(results: Results) -> dict[str, Any]:
    layouts = results["layouts"].items()
    rows = [
        {
            "layout": layout,
            "loss": name,
            "test": [_cell(own["test"][name][metric], metric) for metric in METRICS],
            "train": _cell(own["train"][name]["dists@intra"], "dists@intra"),
        }
        for layout, own in layouts
        for name in _LOSSES
    ]
    better = {layout: paired_gap(own["test"]["I_b"]["mAP"], own["test"]["D_q"]["mAP"]) for layout, own in layouts}
    wider = {
        layout: paired_gap(own["train"]["I_b"]["dists@intra"], own["train"]["D_q"]["dists@intra"])
        for layout, own in layouts
    }
    separates, keeps = ([each["mean"] > each["two_errors"] for each in gaps.values()] for gaps in (better, wider))
    return {
        "verdict": verdict([*separates, *keeps]),
        "rows": rows,
        "metrics": METRICS,
        "better": better,
        "wider": wider,
        "separates": separates,
        "keeps": keeps,
        "first_seed": _first_seed(results),
        "neurons": NEURONS,
        "classes": CLASSES,
        "points": POINTS,
    }


def _cell(values: list[float], metric: str) -> str:
    mean, spread = mean_and_spread(values)
    if metric.startswith("dists"):
        return f"{mean:.3f} ± {spread:.3f}"
    return f"{100 * mean:.1f} ± {100 * spread:.1f}"


STUDY = Study(
    name="pnp-circle",
    paper="PNP",
    shows="Fig. 6",
    title="Classes of several centres on a circle",
    minutes=4,
    measure=measure,
    draw=draw,
    values=values,
    extra_files=extra_files,
)
