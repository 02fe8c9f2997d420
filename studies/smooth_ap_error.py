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
from studies.study import AGREES, AGREES_IN_PART, DOES_NOT_AGREE, Effort, Results, Study, line_style, panels
from studies.trained import NETWORK, RECIPE, emoji_folder, work_folder

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
_ENDS = 10  # steps count as the beginning, and as many as the end, but no more than a fourth


def measure(effort: Effort) -> dict[str, Any]:
    data = emoji_folder(effort)
    temperatures = (0.001, 0.1) if effort.quick else _TEMPERATURES
    seeds = range(effort.seed, effort.seed + (1 if effort.quick else effort.seeds))
    results: dict[str, Any] = {"seeds": list(seeds), "errors": {f"{each:g}": [] for each in temperatures}}
    with progress("training", len(temperatures) * len(seeds), effort.show) as done:
        for seed, temperature in product(seeds, temperatures):
            errors = train_epoch(effort, data, temperature, seed)
            results["errors"][f"{temperature:g}"].append([round(each, 5) for each in errors])
            done(1)
    return results


def train_epoch(effort: Effort, data: str, temperature: float, seed: int) -> list[float]:
    """Return the error on each step's batch of one run; it is saved in the folder of work, and not repeated."""
    folder = work_folder(effort, "epochs")
    config = _config(effort.quick, data, temperature, seed)
    name = f"{temperature:g}-{seed}-{sha256(as_yaml(config).encode()).hexdigest()[:8]}"  # by all that it trains with
    saved, run = folder / f"{name}.json", folder / name
    if not saved.exists():
        shutil.rmtree(run, ignore_errors=True)  # one that was stopped: it is short, and begins again
        train(config, run, quiet=True)
        errors = [line["AP error"] for line in read_log(run / "log.jsonl") if "AP error" in line]
        atomic_write(saved, json.dumps(errors).encode())
        shutil.rmtree(run)  # weights that nobody needs
    steps: list[float] = json.loads(saved.read_text(encoding="utf-8"))
    return steps


def _config(quick: bool, data: str, temperature: float, seed: int) -> TrainConfig:
    """Return the recipe of the demonstration with this loss, for one epoch."""
    recipe = {name: value for name, value in read_recipe(find_recipe(RECIPE)).items() if not name.startswith("loss.")}
    own = {"loss.temperature": f"{temperature:g}", "data.path": str(Path(data).resolve()), "seed": str(seed)}
    return read_config(recipe, {**_SETTINGS, **(_QUICK if quick else _EPOCH), **own})


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(size=(6.6, 4.2))
    (axis,) = axes.flat
    for place, (temperature, runs) in enumerate(results["errors"].items()):
        steps = range(1, len(runs[0]) + 1)
        columns = list(zip(*runs, strict=True))
        axis.fill_between(
            steps,
            [100 * min(each) for each in columns],
            [100 * max(each) for each in columns],
            alpha=0.2,
            linewidth=0,
            color=line_style(place)["color"],
        )
        axis.plot(steps, [100 * fmean(each) for each in columns], label=f"τ = {temperature}", **line_style(place))
    axis.set(xlabel="step of the epoch", ylabel="error of AP on the batch, %", xlim=(1, None), yscale="log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return {"ap-error": figure}


def ends(runs: list[list[float]]) -> tuple[list[float], list[float], list[float]]:
    """Return the mean error of each run: of its first steps, its last steps, and all."""
    few = _few(runs)
    return [fmean(run[:few]) for run in runs], [fmean(run[-few:]) for run in runs], [fmean(run) for run in runs]


def _few(runs: list[list[float]]) -> int:
    """Return the number of steps that count as the beginning, and as the end."""
    return max(1, min(_ENDS, len(runs[0]) // 4))


def values(results: Results) -> dict[str, Any]:
    runs = list(results["errors"].values())
    rows = [
        {"temperature": temperature, **dict(zip(("first", "last", "all"), ends(own), strict=True))}
        for temperature, own in results["errors"].items()
    ]
    means = [fmean(row["all"]) for row in rows]
    per_step = [[fmean(step) for step in zip(*own, strict=True)] for own in runs]
    in_order = fmean(all(a < b for a, b in pairwise(step)) for step in zip(*per_step, strict=True))
    if means == sorted(means) and in_order >= 0.9:
        verdict = AGREES
    else:
        ends_agree = means[0] == min(means) and means[-1] == max(means)
        verdict = AGREES_IN_PART if ends_agree else DOES_NOT_AGREE
    return {
        "verdict": verdict,
        "rows": rows,
        "means": means,
        "in_order": in_order,
        "steps": len(runs[0][0]),
        "few": f"{_few(runs[0])} step{'s' * (_few(runs[0]) > 1)}",
    }


STUDY = Study(
    name="smooth-ap-error",
    paper="Smooth-AP",
    shows="Fig. 4",
    title="The error of the approximation in training",
    minutes=3,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
