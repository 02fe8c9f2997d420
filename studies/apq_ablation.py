"""Bins, batches, weights and ties of AP_Q (AP_Q, Fig. 4 to 8)."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from studies.study import COLOURS, INK, MARKS, Effort, Results, Study, panels, verdict
from studies.trained import (
    Gap,
    draw_over,
    emoji_folder,
    gap,
    mean_and_spread,
    mean_of_gaps,
    rate_search,
    run_comparison,
    split_images,
    training_images,
    values_by_setting,
    work_folder,
)

_LOSS, _METRIC = "QuantizedAP", "mAP"
_SHARED = {"metric": _METRIC}  # what the paper measures chooses learning rates and checkpoints too
_LRS, _ONE_LR = "1e-4,3e-4,1e-3", "3e-4"
_FULL: dict[str, tuple[int, ...]] = {
    "bins": (5, 10, 20, 40),
    "sizes": (28, 112, 448),
    "per class": (2, 4, 6),
}
_QUICK: dict[str, tuple[int, ...]] = {"bins": (5, 20), "sizes": (16, 32), "per class": (2, 4)}
_EPOCHS = {"iterations": "0", "epochs": "4", "evaluate_every": "2", "optimizer.warmup": "5"}
_WIDE = {"iterations": "16", "optimizer.warmup": "5"}  # batches that hold all classes: fewer of them
_WHOLE_CLASSES = {  # of the one category that `_uneven` has: with equal numbers per class there is nothing to balance
    "batches.kind": "categories",
    "batches.categories": "1",
    "batches.per_class": "0",
    "batches.per_group": "25",
}
_LITTLE = 1.0  # points that still are little impact, as the paper calls about 2 of class weights important


def measure(effort: Effort) -> dict[str, Any]:
    data, values = emoji_folder(effort), _QUICK if effort.quick else _FULL
    size, chunk = _size_for_all_classes(data, effort)

    def run(
        name: str, axes: list[str], more: dict[str, str] | None = None, *, data: str = data, lrs: str = _LRS
    ) -> dict[str, Any]:
        settings = {**_SHARED, **(more or {})}
        return run_comparison(effort, name, data=data, losses=_LOSS, axes=axes, settings=settings, lrs=lrs)

    sizes = f"batches.size={_join_values(values['sizes'])}"
    results = {
        "bins": run("bins", [f"loss.bins={_join_values(values['bins'])}", "loss.tie_aware=false,true"], lrs=_ONE_LR),
        "updates": run("updates", [sizes]),
        "images": run("images", [sizes], {} if effort.quick else _EPOCHS),
        "classes": run(
            "classes",
            [f"batches.per_class={_join_values(values['per class'])}", f"batches.size={size}"],
            _WIDE | {"batches.size": str(size), "batches.chunk": str(chunk)},
            lrs=_ONE_LR,
        ),
        "weights": run("weights", ["loss.balance_classes=false,true"], _WHOLE_CLASSES, data=_uneven(data, effort)),
    }
    return {name: {"entries": _small(each["entries"])} for name, each in results.items()} | {"wide": size}


def _join_values(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def _small(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries with the metrics of the study alone."""
    metrics = (_METRIC, "R@1")
    return [
        {**entry, "values": {name: entry["values"][name] for name in metrics if name in entry["values"]}}
        for entry in entries
    ]


def _size_for_all_classes(data: str, effort: Effort) -> tuple[int, int]:
    """Return a batch of two images of each training class, a multiple of all numbers per class, and its chunk."""
    if effort.quick:
        return 16, 0
    size = 2 * len(np.unique(training_images(effort, data).labels)) // 12 * 12
    return size, min(size, 204)


def _uneven(data: str, effort: Effort) -> str:
    """Write a table of the same images, but with only two for training of every second class; return its path."""
    table = split_images(effort, data)  # classes that test stay whole
    seen: Counter[int] = Counter()
    keep = []
    for code, split in zip(table.codes().tolist(), table.splits.tolist(), strict=True):
        seen[code] += 1
        keep.append(split == "test" or code % 2 == 0 or seen[code] <= 2)
    target = work_folder(effort, "uneven") / "images.csv"
    rows = table.rows(np.array(keep))
    replace(rows, categories=np.full(len(rows), "all")).save(target, overwrite=True)
    return str(target)


def draw(results: Results) -> dict[str, Any]:
    return {"bins": _draw_bins(results), "batches": _draw_batches(results)}


def _draw_bins(results: Results) -> Any:
    figure, axes = panels(1, 2)
    plain, aware = _bins(results)
    draw_over(axes[0, 0], plain, "AP_Q", 0, logarithmic=True)
    draw_over(axes[0, 0], aware, "tie-aware", 1, logarithmic=True)
    axes[0, 0].set(title="bins (Fig. 4)", xlabel="bins M", ylabel="mAP, %")
    axes[0, 0].legend()
    gaps = _tie_gaps(results)
    axes[0, 1].errorbar(
        list(gaps),
        [each.points for each in gaps.values()],
        [each.error for each in gaps.values()],
        marker=MARKS[0],
        capsize=3,
        color=COLOURS[2],
    )
    axes[0, 1].axhline(0, color=INK, linewidth=0.8)
    axes[0, 1].set_xscale("log", base=2)
    axes[0, 1].set_xticks(list(gaps), [str(each) for each in gaps])
    axes[0, 1].set(title="plain above tie-aware (Fig. 8)", xlabel="bins M", ylabel="difference of mAP, points")
    return figure


def _draw_batches(results: Results) -> Any:
    figure, axes = panels(1, 3)
    size, classes, weights = axes[0]
    for place, (name, label) in enumerate((("updates", "equal updates"), ("images", "equal images"))):
        draw_over(size, _values_of(results, name, "batches.size"), label, place, logarithmic=True)
    size.set(title="batch size (Fig. 5)", xlabel="images of a batch", ylabel="mAP, %")
    size.legend()
    in_batch = {
        results["wide"] // per: each for per, each in _values_of(results, "classes", "batches.per_class").items()
    }
    draw_over(classes, in_batch, "", 2, logarithmic=True)
    classes.set(title="classes of a batch (Fig. 6)", xlabel=f"classes among {results['wide']:,} images")
    _widen_scale(classes, in_batch)
    for place, values in _values_of(results, "weights", "loss.balance_classes").items():
        mean, spread = mean_and_spread(values)
        weights.errorbar([int(place)], [100 * mean], [100 * spread], marker=MARKS[0], capsize=5, color=COLOURS[3])
    weights.set(title="class weights (Fig. 7)", xlim=(-0.6, 1.6))
    weights.set_xticks([0, 1], ["queries alike", "classes alike"])
    _widen_scale(weights, _values_of(results, "weights", "loss.balance_classes"))
    return figure


def _widen_scale(axes: Any, results: dict[Any, list[float]]) -> None:
    """Set a scale of six points at least, so that noise does not look like an effect."""
    every = [100 * value for values in results.values() for value in values]
    middle, half = (max(every) + min(every)) / 2, max(3.0, 0.6 * (max(every) - min(every)))
    axes.set_ylim(middle - half, middle + half)


def _values_of(results: Results, part: str, setting: str) -> dict[Any, list[float]]:
    return values_by_setting(results[part]["entries"], setting, _METRIC)


def _bins(results: Results) -> tuple[dict[Any, list[float]], dict[Any, list[float]]]:
    entries = results["bins"]["entries"]
    plain, aware = (values_by_setting(entries, "loss.bins", _METRIC, loss_tie_aware=flag) for flag in (False, True))
    return plain, aware


def _tie_gaps(results: Results) -> dict[int, Gap]:
    plain, aware = _bins(results)
    return {bins: gap(plain[bins], aware[bins]) for bins in sorted(plain) if bins in aware}


def values(results: Results) -> dict[str, Any]:
    plain, _ = _bins(results)
    means = [100 * mean_and_spread(over_seeds)[0] for over_seeds in plain.values()]
    sizes = {name: dict(sorted(_values_of(results, name, "batches.size").items())) for name in ("updates", "images")}
    size_gaps = {name: gap(own[max(own)], own[min(own)]) for name, own in sizes.items()}
    per_class = dict(sorted(_values_of(results, "classes", "batches.per_class").items()))
    all_classes, *_ = per_class.values()
    class_gaps = {results["wide"] // per: gap(own, all_classes) for per, own in list(per_class.items())[1:]}
    weights = _values_of(results, "weights", "loss.balance_classes")
    ties = _tie_gaps(results)
    mean_tie = mean_of_gaps(list(ties.values()))
    claims = {
        "bins": max(means) - min(means) <= _LITTLE,
        "updates": size_gaps["updates"].is_more,
        "images": size_gaps["images"].is_more,
        "classes": not any(abs(each.points) > _LITTLE and each.counts for each in class_gaps.values()),
        "weights": gap(weights[True], weights[False]).is_more,
        # plain is better for every number of bins, by however little, and the interval of the mean is above 0
        "ties": all(each.points > 0 for each in ties.values()) and mean_tie.points > mean_tie.reach,
    }
    names = {"updates": " (equal updates)", "images": " (equal images)", "weights": ""}
    chosen = {entry["name"] + of: entry["lr"] for part, of in names.items() for entry in results[part]["entries"]}
    return {
        "verdict": verdict(list(claims.values())),
        "claims": claims,
        "bins": dict(sorted(plain.items())),
        "sizes": sizes,
        "size_gaps": size_gaps,
        "all_classes": all_classes,
        "class_gaps": class_gaps,
        "positives": [int(per) - 1 for per in per_class],
        "weights": weights,
        "weight_gap": gap(weights[True], weights[False]),
        "ties": ties,
        "mean_tie": mean_tie,
        "little": _LITTLE,
        "lrs": _LRS.replace(",", ", "),
        "one_lr": _ONE_LR,
        "wide_steps": _WIDE["iterations"],
        "search": rate_search(chosen, _LRS),
    }


STUDY = Study(
    name="apq-ablation",
    paper="AP_Q",
    shows="Fig. 4-8",
    title="Bins, batch size, classes, weights and ties of AP_Q",
    minutes=50,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
