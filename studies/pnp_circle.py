"""Classes of several centres on the unit circle: gathered by I_b, left as they are by D_q (PNP, Fig. 6)."""

import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from frontrank.losses import PNP
from studies.circle import (
    CLASSES,
    LAYOUTS,
    METRICS,
    NEURONS,
    POINTS,
    STEPS,
    TEMPERATURE,
    Layout,
    Toy,
    as_text,
    degrees,
    embedded,
    from_text,
    judged,
    mean_gap,
    toy,
    train,
)
from studies.over_seeds import verdict
from studies.study import Effort, Results, Study
from studies.style import COLOURS, FAINT, INK, MARKS, in_this_look, panels

_LOSSES = {"I_b": PNP("I_b", b=2.0, temperature=TEMPERATURE), "D_q": PNP("D_q", alpha=4.0, temperature=TEMPERATURE)}
_SEEDS = 60
_SHOWN = 25  # points of a class in figures
_FRAMES = 20


def measure(effort: Effort) -> dict[str, Any]:
    seeds, steps = (2, 20) if effort.quick else (_SEEDS, STEPS)
    times = [round(steps * (place / (_FRAMES - 1)) ** 2) for place in range(_FRAMES)]  # more of them where all is fast
    found: dict[str, Any] = {"seed": effort.seed, "seeds": seeds, "steps": steps, "times": times, "layouts": {}}
    for layout in LAYOUTS:
        own: dict[str, Any] = {"test": {}, "train": {}, "frames": {}}
        for name, loss in _LOSSES.items():
            tested, trained = [], []
            for seed in range(effort.seed, effort.seed + seeds):
                data = toy(layout, seed)
                frames: dict[int, str] = {}

                def keep(step: int, weights: list[Tensor], data: Toy = data, frames: dict[int, str] = frames) -> None:
                    if step in times:
                        frames[step] = as_text(degrees(embedded(weights, _shown(data))), 0)

                weights = train(data, loss, steps, keep if seed == effort.seed else lambda *_: None)
                tested.append(judged(weights, data.test))
                trained.append(judged(weights, data.train))
                if frames:
                    own["frames"][name] = [frames[time] for time in times]
            for part, reports in (("test", tested), ("train", trained)):
                own[part][name] = {metric: [round(report[metric], 5) for report in reports] for metric in METRICS}
        found["layouts"][layout] = own
    return found


def _shown(data: Toy) -> Tensor:
    """The points that figures show: the first of each class, training classes before test classes."""
    return torch.cat(
        [part.unflatten(0, (CLASSES, POINTS))[:, :_SHOWN].flatten(0, 1) for part in (data.train, data.test)]
    )


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(len(LAYOUTS), 3, size=(11, 7.2))
    for layout, row in zip(LAYOUTS, axes, strict=True):
        own = found["layouts"][layout]
        _plane(row[0], layout, found["seed"])
        for axis, name in zip(row[1:], _LOSSES, strict=True):
            value = own["test"][name]["mAP"][0]
            _circle(axis, own["frames"][name][-1], f"PNP-{name[0]}$_{name[2]}$, test mAP {100 * value:.0f}")
    axes[0, 0].legend(loc="center right", fontsize=9)
    figure.supxlabel(_of_the_first(found).replace("D_q", "D$_q$"), fontsize=10)
    return {"circle": figure, "seeds": _seeds(found)}


def _of_the_first(found: Results) -> str:
    """Where the run that is drawn goes against the means over seeds, or with them: its mAP alone would mislead."""
    less = [layout for layout in LAYOUTS if _first_gap(found, layout) < 0]
    said = f"D_q is worse on {'both' if len(less) == len(LAYOUTS) else ' and '.join(less)}"
    if not less:
        said = "D_q is not worse on either"
    return f"in this seed {said}; the means over {found['seeds']} seeds are in the table"


def _first_gap(found: Results, layout: str) -> float:
    one, other = (found["layouts"][layout]["test"][name]["mAP"][0] for name in _LOSSES)
    return float(other - one)


def _seeds(found: Results) -> Any:
    """Test mAP of both losses, a mark per seed; D_q is better above the line."""
    figure, axes = panels(1, len(LAYOUTS), size=(8.4, 3.9))
    for place, (layout, axis) in enumerate(zip(LAYOUTS, axes[0], strict=True)):
        own = found["layouts"][layout]["test"]
        first, second = ([100 * value for value in own[name]["mAP"]] for name in _LOSSES)
        low = min(*first, *second) - 3
        axis.plot([low, 100], [low, 100], color=INK, lw=0.8)
        axis.scatter(first, second, s=24, color=COLOURS[place], marker=MARKS[place], alpha=0.8)
        axis.set(title=f"{layout}: test mAP, a mark per seed", xlabel="I$_b$, %", xlim=(low, 101.5), ylim=(low, 101.5))
    axes[0, 0].set_ylabel("D$_q$, %")
    return figure


def _classes() -> list[tuple[int, bool, slice]]:
    """Number, whether it is a test class, and the rows of each class among the points that are shown."""
    return [
        (place % CLASSES, place >= CLASSES, slice(place * _SHOWN, (place + 1) * _SHOWN)) for place in range(2 * CLASSES)
    ]


def _plane(axis: Any, layout: Layout, seed: int) -> None:
    points = _shown(toy(layout, seed))
    for number, is_test, rows in _classes():
        x, y = points[rows].T.tolist()
        label = {(0, False): "training classes", (0, True): "test classes"}.get((number, is_test))
        axis.scatter(
            x, y, s=22 if is_test else 12, color=COLOURS[number], marker="x" if is_test else "o", label=label, lw=1.2
        )
    axis.set(title=f"{layout}: the points")
    axis.margins(0.08, 0.12)


def _circle(axis: Any, text: str, title: str) -> None:
    """Training classes on the circle itself, test classes on one inside it, where they do not cover each other."""
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


def more(found: Results) -> dict[str, bytes]:
    """The same as an animation, a frame per time that was kept."""
    from PIL import Image

    own = found["layouts"]["centres"]["frames"]
    frames = []
    for place, time in enumerate(found["times"]):
        with in_this_look():
            figure, axes = panels(1, len(own), size=(7.2, 4.2))
            figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # inches, off the frame
            figure.suptitle(f"centres, seed {found['seed']}: step {time}", fontsize=11)
            figure.patch.set(edgecolor="#888888", linewidth=3)  # white, so with a frame where the page is dark
            for axis, (name, texts) in zip(axes[0], own.items(), strict=True):
                _circle(axis, texts[place], f"PNP-{name[0]}$_{name[2]}$")
            axes[0, 0].text(0, 0, "outside: training\ninside: test", ha="center", va="center", fontsize=9)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=75, facecolor="#ffffff")
        frames.append(Image.open(buffer).convert("RGB").quantize(48, dither=Image.Dither.NONE))
    moving = io.BytesIO()
    waits = [180] * (len(frames) - 1) + [2500]
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:], duration=waits, loop=0, optimize=True)
    return {"circle.gif": moving.getvalue()}


def told(found: Results) -> str:
    rows, better, wider = [], [], []
    for layout, own in found["layouts"].items():
        for name in _LOSSES:
            cells = [_cell(own["test"][name][metric], metric) for metric in METRICS]
            rows.append(
                f"| {layout} | {name} | {' | '.join(cells)} | "
                f"{_cell(own['train'][name]['dists@intra'], 'dists@intra')} |"
            )
        gaps = {metric: mean_gap(own["test"]["I_b"][metric], own["test"]["D_q"][metric]) for metric in METRICS}
        intra = mean_gap(own["train"]["I_b"]["dists@intra"], own["train"]["D_q"]["dists@intra"])
        better.append((layout, gaps["mAP"]))
        wider.append((layout, intra))
    separates = [gap["mean"] > gap["two_errors"] for _, gap in better]
    keeps = [gap["mean"] > gap["two_errors"] for _, gap in wider]
    parts = (
        f"training classes are kept wider on {sum(keeps)} of {len(keeps)} sets of points, test classes better apart "
    )
    parts += f"on {sum(separates)}"
    in_map = ", ".join(f"{_points(gap)} ({layout})" for layout, gap in better)
    in_intra = ", ".join(f"{gap['mean']:+.3f} ± {gap['two_errors'] / 2:.3f} ({layout})" for layout, gap in wider)
    return "\n".join(
        [
            "![the arrangement centres, step by step](circle.gif)",
            "",
            *_drawn(found),
            "",
            f"| points | PNP | {' | '.join(METRICS)} | dists@intra, training classes |",
            "|---|---|---:|---:|---:|---:|---:|",
            *rows,
            "",
            f"Of the test classes unless said, mean ± standard deviation over {found['seeds']} seeds; dists@intra is "
            "the mean cosine distance within classes.",
            "",
            "It agrees if on both sets of points D_q keeps the test classes apart better (mAP) and the training "
            "classes wider (dists@intra), each by more than twice the "
            "standard error of the difference over seeds.",
            "",
            f"{verdict([*separates, *keeps])}: {parts}. D_q less I_b is {in_map} points of mAP, and {in_intra} in "
            "dists@intra of the training classes; ± of these differences is one standard error.",
            "",
            _limits(found),
        ]
    )


def _drawn(found: Results) -> list[str]:
    """What the pictures show: not more than one run, and not only where the embeddings are."""
    runs = ", ".join(
        f"I_b {100 * own['test']['I_b']['mAP'][0]:.0f} and D_q {100 * own['test']['D_q']['mAP'][0]:.0f} on *{layout}*"
        for layout, own in found["layouts"].items()
    )
    return [
        "The circles and the animation, which has the points called *centres*, are of the first seed, not of a chosen "
        f"one. Its mAP is {runs}: {_of_the_first(found)}.",
        "",
        "Dots are training classes, crosses test classes. These are other classes: that a training and a test class "
        "share a colour means nothing. All embeddings lie on the unit circle; test classes are drawn on a smaller one, "
        "and the points of a class are spread to both sides of it only to show that they are many.",
    ]


def _limits(found: Results) -> str:
    """What is the paper's, and what is not."""
    return (
        f"As in the paper: two layers of {NEURONS} neurons, from the plane to the circle, {CLASSES} classes to train "
        f"and {CLASSES} to test, {POINTS} points each. The paper shows one run, without numbers, and does not say "
        "where its points lie, how it draws batches or how long it trains. Here: "
        f"{found['steps']} steps of Adam at 0.01 on 16 points of each class, temperature 0.01, b = 2, alpha = 4. "
        "*lines* has training classes on a diagonal and test classes beside it, as in the experiment of Roth et al. "
        "that the paper follows; *centres* gives each training class three centres, placed at random for each seed. "
        "Single runs are chaotic: the rounding of another machine can change one, not the means. The number of seeds "
        "was doubled once, from 30, with which the difference on *centres* was as large as twice its error, neither "
        "more nor less: take it for weak evidence."
    )


def _cell(values: list[float], metric: str) -> str:
    numbers = torch.tensor(values, dtype=torch.float64)
    mean, spread = float(numbers.mean()), float(numbers.std()) if len(values) > 1 else 0.0
    if metric.startswith("dists"):
        return f"{mean:.3f} ± {spread:.3f}"
    return f"{100 * mean:.1f} ± {100 * spread:.1f}"


def _points(gap: Mapping[str, float]) -> str:
    """A difference in points, and one standard error of it."""
    return f"{100 * gap['mean']:+.1f} ± {100 * gap['two_errors'] / 2:.1f}"


STUDY = Study(
    name="pnp-circle",
    paper="PNP",
    shows="Fig. 6",
    title="Classes of several centres on a circle",
    claim="A small network embeds points of a plane on the unit circle. Trained with I_b it gathers every class, and "
    "mixes up classes that it has "
    "not seen; trained with D_q it leaves the classes their width, and keeps unseen classes apart.",
    minutes=4,
    measure=measure,
    figures=figures,
    told=told,
    more=more,
)
