"""How far the AP that Smooth-AP optimises is from AP, over an epoch of training (Smooth-AP, Fig. 4)."""

import json
import shutil
from hashlib import sha256
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any

from frontrank.files import atomic_write
from frontrank.progress import progress
from frontrank.settings import TrainConfig, as_yaml, find_recipe, read_config, read_recipe
from frontrank.training.logs import read_log
from frontrank.training.run import train
from studies.study import Effort, Results, Study
from studies.style import look, panels
from studies.trained import NETWORK, RECIPE, emoji, mean_and_spread, work_folder

_TEMPERATURES = (0.001, 0.005, 0.01, 0.05, 0.1)
_SETTINGS = {
    **NETWORK,
    "loss.name": "SmoothAP",
    "data.validation": "0",
    "data.check": "quick",
    "batches.size": "112",
    "log_every": "1",
}
_EPOCH = {"iterations": "0", "epochs": "1"}
_QUICK = {"iterations": "4", "batches.size": "16", "optimizer.warmup": "1"}
_ENDS = 10  # of the steps are looked at as the beginning, and as many as the end, but no more than a fourth


def measure(effort: Effort) -> dict[str, Any]:
    data = emoji(effort)
    temperatures = (0.001, 0.1) if effort.quick else _TEMPERATURES
    seeds = range(effort.seed, effort.seed + (1 if effort.quick else effort.seeds))
    found: dict[str, Any] = {"seeds": list(seeds), "errors": {f"{each:g}": [] for each in temperatures}}
    with progress("training", len(temperatures) * len(seeds), effort.show) as done:
        for seed, temperature in product(seeds, temperatures):
            errors = trained(effort, data, temperature, seed)
            found["errors"][f"{temperature:g}"].append([round(each, 5) for each in errors])
            done(1)
    return found


def trained(effort: Effort, data: str, temperature: float, seed: int) -> list[float]:
    """The error on each step's batch of one run; kept in the folder of work, so that none is done twice."""
    folder = work_folder(effort, "epochs")
    config = _config(effort.quick, data, temperature, seed)
    name = f"{temperature:g}-{seed}-{sha256(as_yaml(config).encode()).hexdigest()[:8]}"  # by all that it trains with
    kept, run = folder / f"{name}.json", folder / name
    if not kept.exists():
        shutil.rmtree(run, ignore_errors=True)  # one that was stopped: it is short, and begins anew
        train(config, run, quiet=True)
        errors = [line["AP error"] for line in read_log(run / "log.jsonl") if "AP error" in line]
        atomic_write(kept, json.dumps(errors).encode())
        shutil.rmtree(run)  # weights that nobody wants
    found: list[float] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def _config(quick: bool, data: str, temperature: float, seed: int) -> TrainConfig:
    """The recipe of the demonstration with this loss, for one epoch."""
    recipe = {name: value for name, value in read_recipe(find_recipe(RECIPE)).items() if not name.startswith("loss.")}
    own = {"loss.temperature": f"{temperature:g}", "data.path": str(Path(data).resolve()), "seed": str(seed)}
    return read_config(recipe, {**_SETTINGS, **(_QUICK if quick else _EPOCH), **own})


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(size=(6.6, 4.2))
    (axis,) = axes.flat
    for place, (temperature, runs) in enumerate(found["errors"].items()):
        steps = range(1, len(runs[0]) + 1)
        columns = list(zip(*runs, strict=True))
        axis.fill_between(
            steps,
            [100 * min(each) for each in columns],
            [100 * max(each) for each in columns],
            alpha=0.2,
            linewidth=0,
            color=look(place)["color"],
        )
        axis.plot(steps, [100 * fmean(each) for each in columns], label=f"τ = {temperature}", **look(place))
    axis.set(xlabel="step of the epoch", ylabel="error of AP on the batch, %", xlim=(1, None), yscale="log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return {"ap-error": figure}


def ends(runs: list[list[float]]) -> tuple[list[float], list[float], list[float]]:
    """The mean error of each run: of its first steps, its last, and all."""
    few = _few(runs)
    return [fmean(run[:few]) for run in runs], [fmean(run[-few:]) for run in runs], [fmean(run) for run in runs]


def _few(runs: list[list[float]]) -> int:
    """The number of steps that are looked at as the beginning, and as the end."""
    return max(1, min(_ENDS, len(runs[0]) // 4))


def _percent(values: list[float]) -> str:
    """With two places, as low temperatures have small errors."""
    mean, spread = mean_and_spread(values)
    return f"{100 * mean:.2f}" + (f" ± {100 * spread:.2f}" if len(values) > 1 else "")


def told(found: Results) -> str:
    parts = {temperature: ends(runs) for temperature, runs in found["errors"].items()}
    rows = [
        f"| {temperature} | {_percent(whole)} | {_percent(first)} | {_percent(last)} |"
        for temperature, (first, last, whole) in parts.items()
    ]
    means = [fmean(whole) for _, _, whole in parts.values()]
    per_step = [[fmean(step) for step in zip(*runs, strict=True)] for runs in found["errors"].values()]
    apart = fmean(all(a < b for a, b in pairwise(step)) for step in zip(*per_step, strict=True))
    verdict = (
        "**Agrees**"
        if means == sorted(means) and apart >= 0.9
        else "**Agrees in part**"
        if means[0] == min(means) and means[-1] == max(means)
        else "**Does not agree**"
    )
    changes = ", ".join(
        f"τ = {temperature} goes from {100 * fmean(first):.2f} to {100 * fmean(last):.2f}"
        for temperature, (first, last, _) in parts.items()
    )
    runs = next(iter(found["errors"].values()))
    steps, few = len(runs[0]), f"{_few(runs)} step{'s' * (_few(runs) > 1)}"
    return "\n".join(
        [
            f"| τ | error of AP, all steps, % | first {few} | last {few} |",
            "|---:|---:|---:|---:|",
            *rows,
            "",
            "The distance of AP as the sigmoids count it to AP, mean over the queries of each step's batch of one "
            f"epoch ({steps} "
            "steps) on emoji; each temperature trains a network of its own, "
            "and is measured with the temperature it trains with. Mean and standard deviation over "
            f"{len(found['seeds'])} seeds; the band in the figure is from the least to the most.",
            "",
            f"{verdict}: the error of the lowest temperature is {100 * means[0]:.2f}% and that of the highest "
            f"{100 * means[-1]:.2f}%; at {apart:.0%} of the steps a higher temperature has "
            "the higher error for all of them (the criterion: means in order, and 90% of the steps).",
            "",
            f"From the first {few} to the last {few} of the epoch the error of {changes} (in %; the paper's "
            "text says nothing about that). The paper trains ResNet-50 on Stanford Online Products, with an epoch of "
            "hundreds of steps.",
        ]
    )


STUDY = Study(
    name="smooth-ap-error",
    paper="Smooth-AP",
    shows="Fig. 4",
    title="The error of the approximation in training",
    claim="The lower the temperature of the sigmoids, the nearer is what is optimised to AP itself, all through "
    "training.",
    minutes=3,
    measure=measure,
    figures=figures,
    told=told,
    takes=("data", "seeds"),
)
