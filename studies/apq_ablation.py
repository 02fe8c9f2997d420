"""Bins, batches, weights and ties of AP_Q (AP_Q, Fig. 4 to 8)."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from studies.over_seeds import RULE, Gap, by_setting, draw_over, gap, mean_of_gaps, verdict
from studies.study import Effort, Results, Study
from studies.style import COLOURS, INK, MARKS, panels
from studies.trained import (
    at_an_end,
    emoji,
    mean_and_spread,
    percent,
    split_images,
    trained,
    training_images,
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
    data, values = emoji(effort), _QUICK if effort.quick else _FULL
    size, chunk = _size_for_all_classes(data, effort)

    def run(
        name: str, axes: list[str], more: dict[str, str] | None = None, *, data: str = data, lrs: str = _LRS
    ) -> dict[str, Any]:
        settings = {**_SHARED, **(more or {})}
        return trained(effort, name, data=data, losses=_LOSS, axes=axes, settings=settings, lrs=lrs)

    sizes = f"batches.size={_listed(values['sizes'])}"
    found = {
        "bins": run("bins", [f"loss.bins={_listed(values['bins'])}", "loss.tie_aware=false,true"], lrs=_ONE_LR),
        "updates": run("updates", [sizes]),
        "images": run("images", [sizes], {} if effort.quick else _EPOCHS),
        "classes": run(
            "classes",
            [f"batches.per_class={_listed(values['per class'])}", f"batches.size={size}"],
            _WIDE | {"batches.size": str(size), "batches.chunk": str(chunk)},
            lrs=_ONE_LR,
        ),
        "weights": run("weights", ["loss.balance_classes=false,true"], _WHOLE_CLASSES, data=_uneven(data, effort)),
    }
    return {name: {"entries": _small(each["entries"])} for name, each in found.items()} | {"wide": size}


def _listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def _small(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is kept of each way to train."""
    return [{**entry, "values": {name: entry["values"][name] for name in _kept(entry)}} for entry in entries]


def _kept(entry: dict[str, Any]) -> list[str]:
    return [name for name in (_METRIC, "R@1") if name in entry["values"]]


def _size_for_all_classes(data: str, effort: Effort) -> tuple[int, int]:
    """Two images of each training class, as a multiple of all numbers per class; and how many are held at once."""
    if effort.quick:
        return 16, 0
    size = 2 * len(np.unique(training_images(effort, data).labels)) // 12 * 12
    return size, min(size, 204)


def _uneven(data: str, effort: Effort) -> str:
    """A table of the same images, but of every second class only two that train: as uneven as emoji can be made."""
    table = split_images(effort, data)  # classes that test stay whole
    seen: Counter[int] = Counter()
    keep = []
    for code, split in zip(table.codes().tolist(), table.splits.tolist(), strict=True):
        seen[code] += 1
        keep.append(split == "test" or code % 2 == 0 or seen[code] <= 2)
    target = work_folder(effort, "uneven") / "images.csv"
    kept = table.rows(np.array(keep))
    replace(kept, categories=np.full(len(kept), "all")).save(target, overwrite=True)
    return str(target)


def figures(found: Results) -> dict[str, Any]:
    return {"bins": _bins_figure(found), "batches": _batches_figure(found)}


def _bins_figure(found: Results) -> Any:
    figure, axes = panels(1, 2)
    plain, aware = _bins(found)
    draw_over(axes[0, 0], plain, "AP_Q", 0, logarithmic=True)
    draw_over(axes[0, 0], aware, "tie-aware", 1, logarithmic=True)
    axes[0, 0].set(title="bins (Fig. 4)", xlabel="bins M", ylabel="mAP, %")
    axes[0, 0].legend()
    gaps = _tie_gaps(found)
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


def _batches_figure(found: Results) -> Any:
    figure, axes = panels(1, 3)
    size, classes, weights = axes[0]
    for place, (name, label) in enumerate((("updates", "equal updates"), ("images", "equal images"))):
        draw_over(size, _of(found, name, "batches.size"), label, place, logarithmic=True)
    size.set(title="batch size (Fig. 5)", xlabel="images of a batch", ylabel="mAP, %")
    size.legend()
    in_batch = {found["wide"] // per: each for per, each in _of(found, "classes", "batches.per_class").items()}
    draw_over(classes, in_batch, "", 2, logarithmic=True)
    classes.set(title="classes of a batch (Fig. 6)", xlabel=f"classes among {found['wide']:,} images")
    _level(classes, in_batch)
    for place, values in _of(found, "weights", "loss.balance_classes").items():
        mean, spread = mean_and_spread(values)
        weights.errorbar([int(place)], [100 * mean], [100 * spread], marker=MARKS[0], capsize=5, color=COLOURS[3])
    weights.set(title="class weights (Fig. 7)", xlim=(-0.6, 1.6))
    weights.set_xticks([0, 1], ["queries alike", "classes alike"])
    _level(weights, _of(found, "weights", "loss.balance_classes"))
    return figure


def _level(axes: Any, found: dict[Any, list[float]]) -> None:
    """A scale of six points at least, so that noise does not look like an effect."""
    every = [100 * value for values in found.values() for value in values]
    middle, half = (max(every) + min(every)) / 2, max(3.0, 0.6 * (max(every) - min(every)))
    axes.set_ylim(middle - half, middle + half)


def _of(found: Results, part: str, setting: str) -> dict[Any, list[float]]:
    return by_setting(found[part]["entries"], setting, _METRIC)


def _bins(found: Results) -> tuple[dict[Any, list[float]], dict[Any, list[float]]]:
    entries = found["bins"]["entries"]
    plain, aware = (by_setting(entries, "loss.bins", _METRIC, loss_tie_aware=flag) for flag in (False, True))
    return plain, aware


def _tie_gaps(found: Results) -> dict[int, Gap]:
    plain, aware = _bins(found)
    return {bins: gap(plain[bins], aware[bins]) for bins in sorted(plain) if bins in aware}


def told(found: Results) -> str:
    claims = [_on_bins(found), *_on_sizes(found), _on_classes(found), _on_weights(found), _on_ties(found)]
    rows = [f"| {claim} | {ours} | {'agrees' if agrees else 'does not agree'} |" for claim, ours, agrees in claims]
    agreeing = [agrees for *_, agrees in claims]
    return "\n".join(
        [
            "| claim | here, mAP in % | |",
            "|---|---|---|",
            *rows,
            "",
            f"{verdict(agreeing)}: {sum(agreeing)} of {len(agreeing)} rows. {RULE} Little impact is at most "
            f"{_LITTLE:g} point: the paper calls about 2 points, those of class weights, important. The row on ties "
            "agrees if plain is better for every number of bins, by however little, and the 95 % interval of the mean "
            "difference over them is above 0.",
            "",
            _limits(found),
        ]
    )


def _limits(found: Results) -> str:
    """What is not as in the paper."""
    return (
        "Smaller than in the paper: emoji of 32 px and EfficientNet-Lite0 in place of landmarks of 800 px and "
        "ResNet-101, batches of 112 (80 steps) unless the row says otherwise in place of 4,096 (200 steps), and no "
        "whitening. Equal images: 4 passes over all of them, whatever the batch size. The learning rate of batch sizes "
        f"and class weights is chosen among {_LRS.replace(',', ', ')} on held-out classes, all others have {_ONE_LR}. "
        f"{at_an_end(_chosen(found), _LRS)} Classes of a batch: {found['wide']:,} images in each, "
        f"{_WIDE['iterations']} steps. {_of_positives(found)} With 6 per class, images of small classes come twice. "
        "Class weights: emoji have 4 to 8 pictures per class, landmarks up to hundreds; so every second training class "
        "was cut to 2 pictures and batches take whole classes, which is still far more even than landmarks are."
    )


def _of_positives(found: Results) -> str:
    """What differs with the number of classes, as batches are of one size."""
    numbers = [str(int(per) - 1) for per in sorted(_of(found, "classes", "batches.per_class"))]
    return (
        f"As batches are of one size, fewer classes also give a query more positives: {', '.join(numbers)}; the row "
        "cannot tell these apart."
    )


def _chosen(found: Results) -> dict[str, float | None]:
    """The learning rate of each setting that had a choice."""
    parts = {"updates": " (equal updates)", "images": " (equal images)", "weights": ""}
    return {entry["name"] + of: entry["lr"] for part, of in parts.items() for entry in found[part]["entries"]}


def _on_bins(found: Results) -> tuple[str, str, bool]:
    plain, _ = _bins(found)
    means = [100 * mean_and_spread(values)[0] for values in plain.values()]
    said = ", ".join(f"M = {bins}: {percent(values)}" for bins, values in sorted(plain.items()))
    return f"bins have little impact (Fig. 4): at most {_LITTLE:g} point", said, max(means) - min(means) <= _LITTLE


def _on_sizes(found: Results) -> list[tuple[str, str, bool]]:
    rows = []
    for name in ("updates", "images"):
        values = _of(found, name, "batches.size")
        least, most = min(values), max(values)
        change = gap(values[most], values[least])
        said = ", ".join(f"{size}: {percent(each)}" for size, each in sorted(values.items()))
        rows.append((f"larger batches are better (Fig. 5), equal {name}", f"{said}; {change}", change.is_more))
    return rows


def _on_classes(found: Results) -> tuple[str, str, bool]:
    values = _of(found, "classes", "batches.per_class")
    every = values.pop(min(values))
    gaps = {found["wide"] // per: gap(each, every) for per, each in values.items()}
    said = ", ".join(f"{classes}: {each}" for classes, each in gaps.items())
    all_of_them = f"all {found['wide'] // 2} classes: {percent(every)}"
    agrees = not any(abs(each.points) > _LITTLE and each.counts for each in gaps.values())
    return (
        f"fewer classes in a batch: little or no effect (Fig. 6), at most {_LITTLE:g} point",
        f"{all_of_them}; {said}",
        agrees,
    )


def _on_weights(found: Results) -> tuple[str, str, bool]:
    values = _of(found, "weights", "loss.balance_classes")
    change = gap(values[True], values[False])
    said = f"without {percent(values[False])}, with {percent(values[True])}; {change}"
    return "equal weights of classes are better (Fig. 7, by 1 to 3 points)", said, change.is_more


def _on_ties(found: Results) -> tuple[str, str, bool]:
    """Plain is better for every number of bins, and the interval of the mean over them is above 0."""
    gaps = _tie_gaps(found)
    mean = mean_of_gaps(list(gaps.values()))
    said = ", ".join(f"M = {bins}: {each}" for bins, each in gaps.items())
    agrees = all(each.points > 0 for each in gaps.values()) and mean.points > mean.reach  # small ones count here
    return "plain AP_Q is a little better than tie-aware, always (Fig. 8)", f"{said}; mean {mean}", agrees


STUDY = Study(
    name="apq-ablation",
    paper="AP_Q",
    shows="Fig. 4-8",
    title="Bins, batch size, classes, weights and ties of AP_Q",
    claim="The number of bins hardly matters. Larger batches are better, up to 4,096. Batches of images of all "
    "classes and of some of them do alike. Weighting the queries so that each class of a batch weighs the same gains "
    "1 to 3 points of mAP, as classes are of very different sizes. The plain form of AP_Q is a little better than "
    "the tie-aware one.",
    minutes=50,
    measure=measure,
    figures=figures,
    told=told,
    takes=("data", "seeds"),
)
