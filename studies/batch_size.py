"""From batches of 112 to all training images in one: what does the gradient of the whole data set's AP buy?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from frontrank.data.splits import split_test_classes
from frontrank.data.table import ImageTable
from frontrank.errors import InputError
from frontrank.settings import DataConfig
from frontrank.training.run import build_images
from studies.over_seeds import RULE, Gap, draw_over, gap, verdict
from studies.study import Effort, Results, Study
from studies.style import INK, MARKS, look, panels
from studies.trained import at_an_end, mean_and_spread, trained, trained_models, work_folder

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


def glyphs(effort: Effort) -> str:
    """The folder of glyphs: the one that was given, or one that is built."""
    from frontrank.samples.glyphs import build_glyphs

    if effort.data:
        return effort.data
    faces = "small" if effort.quick else None
    classes = _QUICK_DRAWN if effort.quick else _DRAWN
    return str(build_glyphs(effort.work / "glyphs", typefaces=faces, classes=classes, show=effort.show).root)


def measure(effort: Effort) -> dict[str, Any]:
    per_class, least = (2, 8) if effort.quick else (4, _LEAST)
    table = equal_classes(build_images(DataConfig(path=glyphs(effort))), per_class, least, effort.seed)
    data = _saved(table, effort)
    whole = len(table.of("train"))
    sizes = [*batch_sizes(whole, least), whole]
    rows: list[dict[str, Any]] = []
    for size in sizes:
        updates = _PASSES * whole // size
        lrs = _lrs("images", updates, whole)
        row, frozen = _trained(effort, f"{size}-images", data, size, per_class, updates, lrs)
        rows.append({"budget": "images", **row})
        if size < whole:  # with which both budgets are the same
            lrs = _lrs("updates", _PASSES, whole)
            row, _ = _trained(effort, f"{size}-updates", data, size, per_class, _PASSES, lrs)
            rows.append({"budget": "updates", **row})
    models = trained_models(effort, f"{least}-images")
    for size in (least, whole):
        updates = _MORE * whole // size
        lrs, runs = _lrs("after", updates, whole), []
        for place, model in enumerate(models):
            own, name = replace(effort, seed=effort.seed + place, seeds=1), f"{size}-after-{place}"
            more = {"model.weights": str(model), "optimizer.warmup": "1"}
            runs.append(_trained(own, name, data, size, per_class, updates, lrs, more)[0])
            lrs = f"{runs[0]['lr']:g}"  # what the first network's search chose
        rows.append({"budget": "after", **_joined(runs)})
    found = {"classes": whole // per_class, "images": whole, "per_class": per_class, "passes": _PASSES, "more": _MORE}
    return {**found, "frozen": frozen, "rows": rows}


def _saved(table: ImageTable, effort: Effort) -> str:
    """The file of a table; refused where runs of other images are kept: comparisons know their images by its path."""
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
    """The table with `per_class` images of each class that trains or chooses: batches of all sizes then hold whole
    classes, and the number of images that train is a multiple of every batch size.
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
    kept = [rng.permutation(rows[training & (labels == each)])[:per_class] for each in (*fit[:held], *train)]
    tested = rng.permutation(np.unique(labels[~training]))[:_TEST]
    kept.append(rows[~training & np.isin(labels, tested)])
    cut = table.rows(np.sort(np.concatenate(kept)))
    splits = np.where(np.isin(cut.labels, fit[:held]) & (cut.splits != "test"), "validation", cut.splits)
    return replace(cut, splits=splits)


def batch_sizes(most: int, least: int) -> list[int]:
    """Eight times as large each, as long as so many images are no more than half of `most`.

    >>> batch_sizes(7168, 112)
    [112, 896]
    """
    sizes = [least]
    while sizes[-1] * _FACTOR * 2 <= most:
        sizes.append(sizes[-1] * _FACTOR)
    return sizes


def _lrs(budget: str, updates: int, images: int) -> str:
    """All have three rates to choose from: higher ones with few updates, lower ones for trained networks. That they
    need these was a guess, which `told` sets beside what was chosen.
    """
    rates = _LATE_LRS if budget == "after" else next(of for least, of in _LRS.items() if updates >= least)
    return rates if images < _MANY else rates.split(",")[1]


def _trained(
    effort: Effort,
    name: str,
    data: str,
    size: int,
    per_class: int,
    updates: int,
    lrs: str,
    more: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], dict[str, float]]:
    """A row, and what the network does before training."""
    chunk = 4 if effort.quick else _CHUNK
    settings = {**_SETTINGS, "iterations": str(updates), "batches.per_class": str(per_class), **(more or {})}
    axes = [f"batches.size={size}", f"batches.chunk={chunk if size > chunk else 0}"]
    found = trained(effort, name, data=data, losses=_LOSS, axes=axes, settings=settings, lrs=lrs)
    (entry,) = found["entries"]
    row = {"size": size, "updates": updates, "values": {metric: entry["values"][metric] for metric in _METRICS}}
    row |= {key: entry[key] for key in ("lr", "seconds", "megabytes")}
    return row, {metric: found["frozen"][metric] for metric in _METRICS}


def _joined(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of several that have a seed each."""
    values = {metric: [value for run in runs for value in run["values"][metric]] for metric in _METRICS}
    lists = {key: [value for run in runs for value in run[key]] for key in ("seconds", "megabytes")}
    return {**runs[0], "values": values, **lists}


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(1, 3)
    rows = [row for row in found["rows"] if row["budget"] == "images"]
    sizes = [row["size"] for row in rows]
    for ax, metric in zip(axes[0], _METRICS, strict=False):
        before = 100 * found["frozen"][metric]
        ax.axhline(before, color=INK, linestyle="--", linewidth=1.0, label="before training")
        for place, (name, label) in enumerate(_BUDGETS.items()):
            draw_over(ax, _values(found, name, metric), label, place, logarithmic=True)
        ax.set_xticks(sizes, [f"{size:,}" for size in sizes])  # of which not every line has all
        ax.set(title=f"{metric} of test images", xlabel="images of a batch; the last are all", ylabel=f"{metric}, %")
    axes[0, 0].legend()
    cost = axes[0, 2]
    cost.plot(sizes, [_gigabytes(row) for row in rows], marker=MARKS[0], **look(3))
    cost.set_xscale("log", base=2)
    cost.set_xticks(sizes, [f"{size:,}" for size in sizes])
    cost.minorticks_off()
    cost.set(title="memory of training", xlabel="images of a batch", ylabel="GB", ylim=(0, None))
    return {"batch-size": figure}


def _values(found: Results, budget: str, metric: str) -> dict[int, list[float]]:
    """By batch size; all images in one batch are as many updates and as many images."""
    wanted = {row["size"]: row for row in found["rows"] if row["budget"] == "images" and row["size"] == found["images"]}
    wanted = {} if budget == "after" else wanted
    wanted |= {row["size"]: row for row in found["rows"] if row["budget"] == budget}
    return {size: row["values"][metric] for size, row in sorted(wanted.items())}


def _per_image(row: Results) -> float:
    return mean_and_spread(row["seconds"])[0] / row["size"]


def _gigabytes(row: Results) -> float:
    return mean_and_spread(row["megabytes"])[0] / 1000


def told(found: Results) -> str:
    lines = []
    for budget, name in _BUDGETS.items():
        for row in (row for row in found["rows"] if row["budget"] == budget):
            whole = row["size"] == found["images"]
            lines.append(
                f"| {name}{', equal updates' if whole and budget == 'images' else ''} | {row['size']:,}"
                f"{', all' if whole else ''} | {row['updates']:,} | {_percent(row['values']['mAP'])} "
                f"| {_percent(row['values']['R@1'])} | {1000 * _per_image(row):.2f} | {_gigabytes(row):.1f} "
                f"| {row['lr']:g} |"
            )
    equal, after, updates = (_values(found, name, "mAP") for name in ("images", "after", "updates"))
    sizes = sorted(equal)
    steps = {(less, more): gap(equal[more], equal[less]) for less, more in pairwise(sizes)}
    whole, finish = _difference(equal), _difference(after)
    gained = [gap(after[size], equal[sizes[0]]) for size in (sizes[0], sizes[-1])]
    held = [whole.is_more and not any(step.is_less for step in steps.values()), finish.is_more]
    return "\n".join(
        [
            "| | images of a batch | updates | mAP | R@1 | ms per image | GB | lr |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
            *lines,
            "",
            f"{verdict(held)} with the papers' advice that larger batches are better. In points of mAP:",
            "",
            f"- **{found['passes']} passes over the images, from the beginning**: "
            + ", ".join(f"batches of {more:,} against {less:,} {_points(step)}" for (less, more), step in steps.items())
            + f"; all images in one batch against the smallest batches {_points(whole)}.",
            f"- **{found['more']} passes more, with the networks that batches of {sizes[0]} trained**: going on with "
            f"these batches changes them by {_points(gained[0])}, with all images in one batch by "
            f"{_points(gained[1])}; the second against the first {_points(finish)}.",
            f"- **As many updates ({found['passes']})**: all images in one batch against batches of {sizes[0]} "
            f"{_points(_difference(updates))}, which have seen {sizes[-1] // sizes[0]} times fewer images: that "
            "says little.",
            "",
            f"{_answer(steps[sizes[-2], sizes[-1]], finish, sizes)} {_hedge(found)}".rstrip(),
            "",
            f"{RULE} It agrees if, with equal images, all images in one batch are better than the smallest batches and "
            "no larger size is worse than the next smaller one, and if networks trained on with all images in one "
            "batch end up better than those trained on with the smallest batches. Equal updates are no part of it.",
            "",
            f"{found['images']:,} glyphs of {found['classes']:,} classes, {found['per_class']} of each: batches of any "
            "size hold whole classes, a query has the same positives in all of them, and only the negatives become "
            "more. Before training mAP of the test images, of other classes, is "
            f"{100 * found['frozen']['mAP']:.2f}. Smooth-AP with temperature 0.02, which is near AP and not AP itself; "
            "BatchNorm is frozen and nothing is augmented, so that multistage backprop, in chunks of 112, gives "
            "exactly the gradient of all images, with one more forward pass; the smallest batches do without. The "
            f"learning rate is chosen on held-out classes, among {_listed_rates()}. "
            "Times are medians of steps, taken without care for what else the machine did. "
            "For a set as large as Stanford Online Products, not tried here: "
            "`frontrank data glyphs glyphs --like sop`, then this command with `--data glyphs`.",
        ]
    )


def _listed_rates() -> str:
    rates = [
        f"{each.replace(',', ' ')} ({f'from {least} updates on' if least else 'with fewer'})"
        for least, each in _LRS.items()
    ]
    return ", ".join(
        [*rates, f"{_LATE_LRS.replace(',', ' ')} (of networks that are trained on, for the first of them)"]
    )


def _hedge(found: Results) -> str:
    """How many searches chose a rate at an end of those tried, and that the answer depends on it."""
    if found["images"] >= _MANY:  # one rate was given
        return ""
    places = {}  # of what was chosen, among the three: their ranges differ
    for row in found["rows"]:
        tried = [float(rate) for rate in _lrs(row["budget"], row["updates"], found["images"]).split(",")]
        places[f"{row['size']:,}, {_BUDGETS[row['budget']]}"] = float(tried.index(row["lr"]))
    said = at_an_end(places, "0,1,2")
    if set(places.values()) == {1.0}:
        return said
    return f"{said} The answer depends on it: with other rates to choose from, sizes may stand in another order."


def _percent(values: Sequence[float]) -> str:
    """As `percent`, with two digits: seeds differ by less than one of the first."""
    mean, spread = mean_and_spread(values)
    return f"{100 * mean:.2f}" + (f" ± {100 * spread:.2f}" if len(values) > 1 else "")


def _points(of: Gap) -> str:
    return f"{of.points:+.2f}" + (f" ± {of.error:.2f}" if of.freedom else " (one seed)")


def _difference(values: Mapping[int, list[float]]) -> Gap:
    return gap(values[max(values)], values[min(values)])


def _answer(last: Gap, finish: Gap, sizes: list[int]) -> str:
    """What the exact gradient of all images buys, against the next smaller batches and as a finish."""
    begin = "more" if last.is_more else "less" if last.is_less else "neither more nor less"
    finishing = "gains" if finish.is_more else "loses" if finish.is_less else "neither gains nor loses"
    times = sizes[-1] // sizes[-2]
    return (
        f"What the exact gradient of all {sizes[-1]:,} images buys: from the beginning {begin} than batches {times} "
        f"times smaller, which make {times} times as many updates of as many images; as a finish it {finishing}, "
        "against more of the smallest batches."
    )


STUDY = Study(
    name="batch-size",
    paper="ours",
    shows="",
    title="From batches of 112 to all training images in one batch",
    claim="AP of a batch is not AP of the data set (RaMBO, Fig. 2), and AP_Q, FastAP and Smooth-AP find larger "
    "batches better. Multistage backprop makes any size fit, up to all training images at once: the exact gradient "
    "of the loss over the data set. This study asks what that buys: from the beginning, and for a network that small "
    "batches have trained.",
    minutes=65,
    takes=("data", "seeds"),
    measure=measure,
    figures=figures,
    told=told,
)
