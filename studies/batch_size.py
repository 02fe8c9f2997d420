"""From batches of 112 to all training images in one: what does the gradient of the whole data set's AP buy?"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from frontrank.data.splits import split_test_classes
from frontrank.data.table import ImageTable
from frontrank.errors import InputError
from frontrank.settings import DataConfig
from frontrank.training.images import build_images
from studies.study import INK, MARKS, Effort, Results, Study, line_style, panels, verdict
from studies.trained import (
    Gap,
    draw_over,
    gap,
    mean_and_spread,
    model_folders,
    rate_search,
    run_comparison,
    work_folder,
)

_LOSS = "SmoothAP(temperature=0.02)"
_LRS = {300: "1e-4,3e-4,1e-3", 0: "3e-4,1e-3,3e-3"}  # by the least number of updates
_LATE_LRS = "3e-5,1e-4,3e-4"  # of networks that are trained on
_MANY = 20_000  # images, from which on the middle one of these must do
_LEAST, _FACTOR, _CHUNK = 112, 8, 112
_PASSES, _MORE = 10, 5  # over all training images, and of networks that are trained on
_METRICS = ("mAP", "R@1")
_SETTINGS = {"metric": "mAP", "optimizer.warmup": "3", "log_every": "10"}  # R@1 of glyphs is near 100 % at once
_DRAWN, _QUICK_DRAWN = 11_000, 60  # characters, of which about a third are drawn often enough and train
_VALIDATION, _TEST = 200, 2000  # classes at the most
_BUDGETS = {"images": "equal images", "updates": "equal updates", "after": "after small batches"}


def glyphs_folder(effort: Effort) -> str:
    """Return the folder of glyphs: that of --data, or a new one."""
    from frontrank.samples.glyphs import build_glyphs

    if effort.data:
        return effort.data
    faces = "small" if effort.quick else None
    classes = _QUICK_DRAWN if effort.quick else _DRAWN
    return str(build_glyphs(effort.work / "glyphs", typefaces=faces, classes=classes, show=effort.show).root)


def measure(effort: Effort) -> dict[str, Any]:
    per_class, least = (2, 8) if effort.quick else (4, _LEAST)
    table = equal_classes(build_images(DataConfig(path=glyphs_folder(effort))), per_class, least, effort.seed)
    data = _save_table(table, effort)
    whole = len(table.of("train"))
    sizes = [*batch_sizes(whole, least), whole]
    rows: list[dict[str, Any]] = []
    for size in sizes:
        updates = _PASSES * whole // size
        lrs = _lrs("images", updates, whole)
        row, frozen = _train(effort, f"{size}-images", data, size, per_class, updates, lrs)
        rows.append({"budget": "images", **row})
        if size < whole:  # with which both budgets are the same
            lrs = _lrs("updates", _PASSES, whole)
            row, _ = _train(effort, f"{size}-updates", data, size, per_class, _PASSES, lrs)
            rows.append({"budget": "updates", **row})
    models = model_folders(effort, f"{least}-images")
    for size in (least, whole):
        updates = _MORE * whole // size
        lrs, runs = _lrs("after", updates, whole), []
        for place, model in enumerate(models):
            own, name = replace(effort, seed=effort.seed + place, seeds=1), f"{size}-after-{place}"
            more = {"model.weights": str(model), "optimizer.warmup": "1"}
            runs.append(_train(own, name, data, size, per_class, updates, lrs, more)[0])
            lrs = f"{runs[0]['lr']:g}"  # what the first network's search chose
        rows.append({"budget": "after", **_join_seeds(runs)})
    results = {"classes": whole // per_class, "images": whole, "per_class": per_class, "passes": _PASSES, "more": _MORE}
    return {**results, "frozen": frozen, "rows": rows}


def _save_table(table: ImageTable, effort: Effort) -> str:
    """Write the table and return its path; refuse if there are runs of other images: they know it by its path."""
    path = work_folder(effort, "cut") / "images.csv"
    now = path.with_name("now.csv")
    table.save(now, overwrite=True)
    if path.exists() and path.read_bytes() != now.read_bytes():
        now.unlink()
        raise InputError(
            f"{effort.work} holds runs on other images than --data, --seed and --quick give now; "
            "give what was given at first, or another --out"
        )
    now.replace(path)
    return str(path)


def equal_classes(table: ImageTable, per_class: int, least: int, seed: int = 0) -> ImageTable:
    """Return the table with `per_class` images of each class for training and validation.

    Batches of all sizes then hold whole classes, and the number of training images is a multiple of every batch size.
    """
    if not len(table.of("test")):
        table = split_test_classes(table, seed=seed)
    rng = np.random.default_rng(seed)
    rows, labels, training = np.arange(len(table)), table.labels, table.splits != "test"
    classes, sizes = np.unique(labels[training], return_counts=True)
    fit = rng.permutation(classes[sizes >= per_class])
    held = min(_VALIDATION, len(fit) // 10)
    images = per_class * (len(fit) - held)
    if held < 2 or images < 2 * least:
        raise InputError(
            f"{len(fit)} training classes have {per_class} images or more, and the study needs "
            f"{max(20, -(-20 * least // (9 * per_class)))}; give --data with more"
        )
    largest = batch_sizes(images, least)[-1]
    train = fit[held : held + images // largest * largest // per_class]
    chosen = [rng.permutation(rows[training & (labels == each)])[:per_class] for each in (*fit[:held], *train)]
    tested = rng.permutation(np.unique(labels[~training]))[:_TEST]
    chosen.append(rows[~training & np.isin(labels, tested)])
    cut = table.rows(np.sort(np.concatenate(chosen)))
    splits = np.where(np.isin(cut.labels, fit[:held]) & (cut.splits != "test"), "validation", cut.splits)
    return replace(cut, splits=splits)


def batch_sizes(most: int, least: int) -> list[int]:
    """Return batch sizes, each eight times as large as the one before, up to half of `most`.

    >>> batch_sizes(7168, 112)
    [112, 896]
    """
    sizes = [least]
    while sizes[-1] * _FACTOR * 2 <= most:
        sizes.append(sizes[-1] * _FACTOR)
    return sizes


def _lrs(budget: str, updates: int, images: int) -> str:
    """Return three rates to choose from: higher ones with few updates, lower ones for trained networks.

    That they need these was a guess, which the page compares with what was chosen.
    """
    rates = _LATE_LRS if budget == "after" else next(of for least, of in _LRS.items() if updates >= least)
    return rates if images < _MANY else rates.split(",")[1]


def _train(
    effort: Effort,
    name: str,
    data: str,
    size: int,
    per_class: int,
    updates: int,
    lrs: str,
    more: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], dict[str, float]]:
    """Train; return a row, and the metrics of the network before training."""
    chunk = 4 if effort.quick else _CHUNK
    settings = {**_SETTINGS, "iterations": str(updates), "batches.per_class": str(per_class), **(more or {})}
    axes = [f"batches.size={size}", f"batches.chunk={chunk if size > chunk else 0}"]
    results = run_comparison(effort, name, data=data, losses=_LOSS, axes=axes, settings=settings, lrs=lrs)
    (entry,) = results["entries"]
    row = {"size": size, "updates": updates, "values": {metric: entry["values"][metric] for metric in _METRICS}}
    row |= {key: entry[key] for key in ("lr", "seconds", "megabytes")}
    return row, {metric: results["frozen"][metric] for metric in _METRICS}


def _join_seeds(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one row of several that have a seed each."""
    values = {metric: [value for run in runs for value in run["values"][metric]] for metric in _METRICS}
    lists = {key: [value for run in runs for value in run[key]] for key in ("seconds", "megabytes")}
    return {**runs[0], "values": values, **lists}


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, 3)
    rows = [row for row in results["rows"] if row["budget"] == "images"]
    sizes = [row["size"] for row in rows]
    for ax, metric in zip(axes[0], _METRICS, strict=False):
        before = 100 * results["frozen"][metric]
        ax.axhline(before, color=INK, linestyle="--", linewidth=1.0, label="before training")
        for place, (name, label) in enumerate(_BUDGETS.items()):
            draw_over(ax, _values_of(results, name, metric), label, place, logarithmic=True)
        ax.set_xticks(sizes, [f"{size:,}" for size in sizes])  # of which not every line has all
        ax.set(title=f"{metric} of test images", xlabel="images of a batch; the last are all", ylabel=f"{metric}, %")
    axes[0, 0].legend()
    cost = axes[0, 2]
    cost.plot(sizes, [_gigabytes(row) for row in rows], marker=MARKS[0], **line_style(3))
    cost.set_xscale("log", base=2)
    cost.set_xticks(sizes, [f"{size:,}" for size in sizes])
    cost.minorticks_off()
    cost.set(title="memory of training", xlabel="images of a batch", ylabel="GB", ylim=(0, None))
    return {"batch-size": figure}


def _values_of(results: Results, budget: str, metric: str) -> dict[int, list[float]]:
    """Return values by batch size; all images in one batch are equal images and equal updates."""
    wanted = {
        row["size"]: row for row in results["rows"] if row["budget"] == "images" and row["size"] == results["images"]
    }
    wanted = {} if budget == "after" else wanted
    wanted |= {row["size"]: row for row in results["rows"] if row["budget"] == budget}
    return {size: row["values"][metric] for size, row in sorted(wanted.items())}


def _per_image(row: Results) -> float:
    return mean_and_spread(row["seconds"])[0] / row["size"]


def _gigabytes(row: Results) -> float:
    return mean_and_spread(row["megabytes"])[0] / 1000


def values(results: Results) -> dict[str, Any]:
    rows = [
        {**row, "name": name, "ms": 1000 * _per_image(row), "gigabytes": _gigabytes(row)}
        for budget, name in _BUDGETS.items()
        for row in results["rows"]
        if row["budget"] == budget
    ]
    equal, after, updates = (_values_of(results, name, "mAP") for name in ("images", "after", "updates"))
    sizes = sorted(equal)
    steps = [(more, less, gap(equal[more], equal[less])) for less, more in pairwise(sizes)]
    whole, finish = _largest_gap(equal), _largest_gap(after)
    return {
        "verdict": verdict([whole.is_more and not any(step.is_less for *_, step in steps), finish.is_more]),
        "rows": rows,
        "sizes": sizes,
        "steps": steps,
        "whole": whole,
        "finish": finish,
        "gained": [gap(after[size], equal[sizes[0]]) for size in (sizes[0], sizes[-1])],
        "equal_updates": _largest_gap(updates),
        "rates": {least: each.replace(",", " ") for least, each in _LRS.items()},
        "late_rates": _LATE_LRS.replace(",", " "),
        **_search(results),
    }


def _search(results: Results) -> dict[str, Any]:
    """Return how many searches chose a rate at an end of those tried, and whether all chose the middle one."""
    if results["images"] >= _MANY:  # one rate was given
        return {"search": None, "all_in_the_middle": True}
    places = {}  # of the chosen rate among the three: their ranges differ
    for row in results["rows"]:
        tried = [float(rate) for rate in _lrs(row["budget"], row["updates"], results["images"]).split(",")]
        places[f"{row['size']:,}, {_BUDGETS[row['budget']]}"] = float(tried.index(row["lr"]))
    return {"search": rate_search(places, "0,1,2"), "all_in_the_middle": set(places.values()) == {1.0}}


def _largest_gap(values: Mapping[int, list[float]]) -> Gap:
    """Return the difference of the largest batch and the smallest."""
    return gap(values[max(values)], values[min(values)])


STUDY = Study(
    name="batch-size",
    paper="ours",
    shows="",
    title="From batches of 112 to all training images in one batch",
    minutes=65,
    takes=("data", "seeds"),
    measure=measure,
    draw=draw,
    values=values,
)
