"""Temperature, positives and batch size of Smooth-AP (Smooth-AP, Table 5)."""

from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from studies.study import COLOURS, Effort, Results, Study, panels, verdict
from studies.trained import BUDGET, Gap, answer, budget_steps, emoji_folder, gap, run_comparison

_TEMPERATURES, _POSITIVES, _SIZES = ("0.001", "0.01", "0.1"), ("2", "4", "8"), ("64", "128", "256")
_QUICK_SIZES = ("8", "16", "32")
_METRICS = ("mAP", "R@1")
_PAPER: Mapping[str, Mapping[str, float]] = {  # mAP on VGGFace2, in %
    "temperature": {"0.001": 83.9, "0.01": 84.4, "0.1": 82.4},
    "positives": {"4": 84.4, "8": 83.3, "16": 82.4},
    "batch, same steps": {"64": 82.4, "128": 84.4, "256": 85.3},
    "batch, same images": {},
}
_AXES = {
    "temperature": "temperature",
    "positives": "images of a class in a batch",
    "batch, same steps": "images of a batch, same steps",
    "batch, same images": "images of a batch, same total",
}


def measure(effort: Effort) -> dict[str, Any]:
    """One setting is varied at a time; the setting in the middle of all is trained once."""
    sizes = _QUICK_SIZES if effort.quick else _SIZES
    steps, warmup = int(BUDGET["iterations"]), int(BUDGET["optimizer.warmup"])
    data = emoji_folder(effort)

    def runs(name: str, losses: str, size: str, per_class: str = "4", **settings: str) -> dict[str, Any]:
        axes = [f"batches.size={size}", f"batches.per_class={per_class}"]
        shared = {key.replace("__", "."): value for key, value in settings.items()}
        return run_comparison(effort, name, data=data, losses=losses, axes=axes, settings=shared, may_diverge=True)

    smooth = f"SmoothAP(temperature={_TEMPERATURES[1]})"
    temperatures = runs("temperature", ",".join(f"SmoothAP(temperature={each})" for each in _TEMPERATURES), sizes[1])
    positives = runs("positives", smooth, sizes[1], f"{_POSITIVES[0]},{_POSITIVES[2]}")
    same_steps = runs("steps", smooth, f"{sizes[0]},{sizes[2]}")
    same_images = []
    for name, size, factor in (("smaller", sizes[0], 2.0), ("larger", sizes[2], 0.5)):
        budget = {"iterations": f"{factor * steps:.0f}", "optimizer__warmup": f"{factor * warmup:.0f}"}
        same_images += runs(name, smooth, size, **budget)["entries"]
    middle = temperatures["entries"][1]
    columns = {
        "temperature": (_TEMPERATURES, temperatures["entries"]),
        "positives": (_POSITIVES, _around(middle, positives["entries"])),
        "batch, same steps": (sizes, _around(middle, same_steps["entries"])),
        "batch, same images": (sizes, _around(middle, same_images)),
    }
    entries_by_axis = {
        name: [
            {
                "value": value,
                **{metric: each["values"].get(metric, []) for metric in _METRICS},
                "planned": each["planned"],
            }
            for value, each in zip(values, entries, strict=True)
        ]
        for name, (values, entries) in columns.items()
    }
    frozen = {metric: temperatures["frozen"][metric] for metric in _METRICS}
    return {"columns": entries_by_axis, "frozen": frozen, "steps": budget_steps(effort), "seeds": middle["planned"]}


def _around(middle: Any, others: list[Any]) -> list[Any]:
    return [others[0], middle, others[1]]


def draw(results: Results) -> dict[str, Any]:
    columns = results["columns"]
    figure, axes = panels(1, len(columns), size=(3.0 * len(columns), 3.6), sharey=True)
    for place, (name, entries) in enumerate(columns.items()):
        axis, colour = axes[0, place], COLOURS[place]
        done = [(at, [100 * value for value in each["mAP"]]) for at, each in enumerate(entries) if each["mAP"]]
        axis.plot(
            [at for at, _ in done], [fmean(values) for _, values in done], color=colour, marker="_", markersize=16
        )
        for at, values in done:
            axis.plot([at] * len(values), values, color=colour, marker="o", linestyle="", markersize=5, alpha=0.7)
        axis.set_xticks(range(len(entries)), [each["value"] for each in entries])
        axis.set(xlabel=_AXES[name], xlim=(-0.5, len(entries) - 0.5))
    axes[0, 0].set_ylabel("mAP, %; each point is a run")
    return {"ablation": figure}


class Claim(NamedTuple):
    """A claim, its answer in words, and the differences from each value to the next."""

    text: str
    answer: str
    gaps: list[Gap]
    diverged: bool  # one of its settings did
    of_paper: bool = True


def _grows(text: str, values: list[list[float]], of_paper: bool = True) -> Claim:
    """Judge whether each is better than the one before, over seeds; runs are better than those that diverged."""
    gaps = [gap(larger, smaller) for smaller, larger in pairwise(values) if smaller and larger]
    return Claim(text, answer(gaps) if all(values[1:]) else "no", gaps, not all(values), of_paper)


def claims(columns: Mapping[str, list[Results]]) -> list[Claim]:
    """Return what the paper says, and whether it holds here."""
    of = {name: {each["value"]: each["mAP"] for each in entries} for name, entries in columns.items()}
    low, middle, high = (of["temperature"][each] for each in _TEMPERATURES)
    few, large = of["positives"], list(of["batch, same steps"].values())
    equal = list(of["batch, same images"].values())
    return [
        _grows("a temperature of 0.01 is better than 0.1", [high, middle]),
        _grows("a temperature of 0.01 is better than 0.001", [low, middle]),
        _grows("4 images of a class are better than 8", [few["8"], few["4"]]),
        _grows("larger batches are better, by as many steps", large),
        _grows("larger batches are better, by as many images", equal, of_paper=False),
    ]


def values(results: Results) -> dict[str, Any]:
    judged = claims(results["columns"])
    two, four = (each["mAP"] for each in results["columns"]["positives"][:2])
    return {
        "verdict": verdict([claim.answer == "yes" for claim in judged if claim.of_paper]),
        "claims": judged,
        "two_images": gap(two, four) if two and four else None,
        "axes": _AXES,
        "paper": _PAPER,
    }


STUDY = Study(
    name="smooth-ap-ablation",
    paper="Smooth-AP",
    shows="Table 5",
    title="Temperature, positives and batch size",
    minutes=15,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
