"""From batches of 112 to all training images in one: what does the gradient of the whole data set's AP buy?"""

from typing import Any

import numpy as np

from frontrank.studies.over_seeds import RULE, draw_over, gap, verdict
from frontrank.studies.study import Effort, Results, Study
from frontrank.studies.style import MARKS, look, panels
from frontrank.studies.trained import mean_and_spread, percent, trained, training_images

_LOSS = "SmoothAP(temperature=0.02)"
_LRS, _ONE_LR = "3e-4,1e-3,3e-3", "1e-3"
_MANY = 20_000  # images, from which on one learning rate must do
_LEAST, _FACTOR, _CHUNK = 112, 4, 112
_PASSES = 30  # over all training images; as many updates, where all of them are one batch
_VALIDATION = 0.1
_SMALL = {  # a network that takes a millisecond of a core for a glyph, forwards and backwards
    "data.size": "32",
    "data.resize": "32",
    "model.stage": "3",
    "data.validation": str(_VALIDATION),
    "optimizer.warmup": "3",
    "log_every": "10",
}
_CLASSES, _QUICK_CLASSES = 2000, 60


def glyphs(effort: Effort) -> str:
    """The folder of glyphs: the one that was given, or one that is built."""
    from frontrank.data.glyphs import build_glyphs

    if effort.data:
        return effort.data
    faces = "small" if effort.quick else None
    classes = _QUICK_CLASSES if effort.quick else _CLASSES
    return str(build_glyphs(effort.work / "glyphs", typefaces=faces, classes=classes, show=effort.show).root)


def measure(effort: Effort) -> dict[str, Any]:
    data = glyphs(effort)
    training = training_images(effort, data, _VALIDATION)
    classes = len(np.unique(training.labels))
    sizes = batch_sizes(4 * classes, 16 if effort.quick else _LEAST)
    lrs = _LRS if len(training) < _MANY else _ONE_LR
    rows = []
    for size in sizes:
        for budget in ("images", "updates"):
            rows += _trained(effort, data, size, budget, lrs)
    rows += _trained(effort, data, len(training), "images", lrs, whole=True)  # with which both budgets are the same
    found = {"classes": classes, "images": len(training), "passes": 4 if effort.quick else _PASSES}
    return {**found, "rows": rows}


def batch_sizes(most: int, least: int) -> list[int]:
    """Four times as large each, as long as so many images are no more than half of `most`.

    >>> batch_sizes(4 * 900, 112)
    [112, 448, 1792]
    """
    sizes = [least]
    while sizes[-1] * _FACTOR * 2 <= most:
        sizes.append(sizes[-1] * _FACTOR)
    return sizes


def _trained(
    effort: Effort, data: str, size: int, budget: str, lrs: str, *, whole: bool = False
) -> list[dict[str, Any]]:
    """A row, if it came to an end. whole: all images of all classes."""
    chunk = 8 if effort.quick else _CHUNK
    settings = dict(_SMALL)
    if budget == "updates":
        settings["iterations"] = str(_PASSES)
    elif not effort.quick:
        settings |= {"iterations": "0", "epochs": str(_PASSES), "evaluate_every": str(_PASSES // 2)}
    axes = [f"batches.size={size}", f"batches.chunk={chunk if size > chunk else 0}"]
    if whole:
        axes.append("batches.kind=all-classes")
    name = "whole" if whole else f"{size}-{budget}"
    found = trained(effort, name, data=data, losses=_LOSS, axes=axes, settings=settings, lrs=lrs)
    return [
        {"size": int(entry["settings"]["batches.size"]), "whole": whole, "budget": budget, **_kept(entry)}
        for entry in found["entries"]
        if entry["values"]
    ]


def _kept(entry: dict[str, Any]) -> dict[str, Any]:
    values = {metric: entry["values"][metric] for metric in ("mAP", "R@1")}
    return {"values": values, **{name: entry[name] for name in ("lr", "seconds", "megabytes")}}


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(1, 3)
    for ax, metric in zip(axes[0], ("mAP", "R@1"), strict=False):
        for place, (name, label) in enumerate((("images", "equal images"), ("updates", "equal updates"))):
            draw_over(ax, _values(found, name, metric), label, place, logarithmic=True)
        ax.set(title=f"{metric} of test images", xlabel="images of a batch; the last are all", ylabel=f"{metric}, %")
    axes[0, 0].legend()
    rows = sorted((row for row in found["rows"] if row["budget"] == "images"), key=lambda row: row["size"])
    cost = axes[0, 2]
    sizes = [row["size"] for row in rows]
    cost.plot(sizes, [1000 * _per_image(row) for row in rows], marker=MARKS[0], label="ms per image", **look(2))
    cost.plot(sizes, [_gigabytes(row) for row in rows], marker=MARKS[1], label="GB of memory", **look(3))
    cost.set_xscale("log", base=2)
    cost.set_xticks(sizes, [f"{size:,}" for size in sizes])
    cost.minorticks_off()
    cost.set(title="what it takes", xlabel="images of a batch", ylim=(0, None))
    cost.legend()
    return {"batch-size": figure}


def _values(found: Results, budget: str, metric: str) -> dict[int, list[float]]:
    """By batch size; the whole set is in both budgets."""
    rows = [row for row in found["rows"] if row["budget"] == budget or row["whole"]]
    return {row["size"]: row["values"][metric] for row in sorted(rows, key=lambda row: row["size"])}


def _per_image(row: Results) -> float:
    return mean_and_spread(row["seconds"])[0] / row["size"]


def _gigabytes(row: Results) -> float:
    return mean_and_spread(row["megabytes"])[0] / 1000


def told(found: Results) -> str:
    lines = []
    for row in sorted(found["rows"], key=lambda row: (row["budget"], row["size"])):
        equal = "images, updates" if row["whole"] else row["budget"]
        size = f"{row['size']:,}{', all' if row['whole'] else ''}"
        lines.append(
            f"| {size} | {equal} | {percent(row['values']['mAP'])} | {percent(row['values']['R@1'])} "
            f"| {1000 * _per_image(row):.2f} | {_gigabytes(row):.1f} | {row['lr']:g} |"
        )
    gaps = {name: _gap(found, name) for name in ("images", "updates")}
    inner = _best(found)
    return "\n".join(
        [
            "| images of a batch | equal | mAP | R@1 | ms per image | GB | lr |",
            "|---:|---|---:|---:|---:|---:|---:|",
            *lines,
            "",
            f"{verdict([each.is_more for each in gaps.values()])} with the papers' advice that larger batches are "
            f"better: all images in one batch against the smallest batches are {gaps['updates']} points of mAP with "
            f"as many updates, and {gaps['images']} with as many images. With equal images, batches of {inner:,} are "
            f"best. {RULE}",
            "",
            f"{found['images']:,} glyphs of {found['classes']:,} classes; {found['passes']} passes over them (equal "
            f"images), or {found['passes']} updates. Smooth-AP with temperature 0.02; batches of 4 images per class, "
            "the last of all images of all classes. Multistage backprop, in chunks of 112, gives the gradient of the "
            "whole batch, with one more forward pass: the smallest batches do without. The set that is as large as "
            "Stanford Online Products has 59,551 images, nine tenths of which make one batch, and takes some hours: "
            "`frontrank data glyphs glyphs --like sop`, then this command with `--data glyphs --seeds 1`.",
        ]
    )


def _gap(found: Results, budget: str) -> Any:
    values = _values(found, budget, "mAP")
    return gap(values[max(values)], values[min(values)])


def _best(found: Results) -> int:
    values = _values(found, "images", "mAP")
    return max(values, key=lambda size: mean_and_spread(values[size])[0])


STUDY = Study(
    name="batch-size",
    paper="ours",
    shows="",
    title="From batches of 112 to all training images in one batch",
    claim="AP of a batch is not AP of the data set (RaMBO, Fig. 2), and AP_Q, FastAP and Smooth-AP find larger "
    "batches better. Multistage backprop makes any size fit, up to all training images at once: the exact gradient "
    "of the data set's AP. This study asks what that buys, with equal images and with equal updates.",
    minutes=90,
    measure=measure,
    figures=figures,
    told=told,
)
