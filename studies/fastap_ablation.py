"""Batch size and bins of FastAP, and why coarse bins help (FastAP, Fig. 4)."""

from typing import Any

import torch
from torch import Tensor

from frontrank.losses import FastAP
from studies.over_seeds import RULE, by_setting, draw_over, gap, verdict
from studies.study import Effort, Results, Study
from studies.style import look, panels
from studies.trained import at_an_end, emoji, mean_and_spread, percent, trained

_METRIC = "R@1"
_LRS, _ONE_LR = "3e-4,1e-3", "3e-4"
_SIZES, _BINS = "28,112,448", "2,5,10,20,40,80"
_EPOCHS = {"iterations": "0", "epochs": "4", "evaluate_every": "2", "optimizer.warmup": "5"}
_DRAWN_BINS = (2, 5, 10, 20, 40, 80)
_MARGINS = tuple(0.01 * 2 ** (step / 2) for step in range(14))  # 0.01 to 0.9, of squared distance
_POSITIVES, _NEGATIVES = 4, 60


def measure(effort: Effort) -> dict[str, Any]:
    data = emoji(effort)
    sizes = f"batches.size={'16,32' if effort.quick else _SIZES}"
    bins = f"loss.bins={'2,10' if effort.quick else _BINS}"
    runs: dict[str, tuple[str, str, dict[str, str]]] = {
        "updates": (sizes, _LRS, {}),
        "images": (sizes, _LRS, {} if effort.quick else _EPOCHS),
        "bins": (bins, _ONE_LR, {}),
    }
    found: dict[str, Any] = {
        name: trained(effort, name, data=data, losses="FastAP", axes=[axis], settings=settings, lrs=lrs)
        for name, (axis, lrs, settings) in runs.items()
    }
    return {**found, "trade-off": trade_off(20 if effort.quick else 1000, effort.seed)}


def trade_off(lists: int, seed: int) -> dict[str, Any]:
    """What FastAP says of lists that are ranked perfectly, by a margin: its loss, and where its slope is 0.

    "loss" and "without slope" are by bins, one value per margin: the mean of 1 - FastAP, and the share of lists of
    which no score has a slope.
    """
    generator = torch.Generator().manual_seed(seed)
    relevant = (torch.arange(_POSITIVES + _NEGATIVES) < _POSITIVES).expand(lists, -1)
    found: dict[str, Any] = {"margins": list(_MARGINS), "lists": lists, "loss": {}, "without slope": {}}
    drawn = torch.rand(lists, _POSITIVES + _NEGATIVES, generator=generator, dtype=torch.float64)
    middle = 0.8 + 0.4 * torch.rand(lists, 1, generator=generator, dtype=torch.float64)  # squared distance
    for bins in _DRAWN_BINS:
        values = [_of_perfect(perfect_lists(drawn, middle, margin), relevant, bins) for margin in _MARGINS]
        found["loss"][str(bins)] = [loss for loss, _ in values]
        found["without slope"][str(bins)] = [share for _, share in values]
    return found


def perfect_lists(drawn: Tensor, middle: Tensor, margin: float) -> Tensor:
    """Scores of lists in which all positives are nearer than all negatives, by a margin of squared distance.

    drawn: from 0 to 1 [list, item], how far from the margin an item is; middle: of the margin [list, 1]
    The last positive and the first negative are at the margin, the others within 0.2 before and 1.5 behind it.
    """
    positive, negative = drawn[:, :_POSITIVES], drawn[:, _POSITIVES:]
    near = middle - margin / 2 - 0.2 * (positive - positive.amin(1, keepdim=True))
    far = middle + margin / 2 + 1.5 * (negative - negative.amin(1, keepdim=True))
    return 1 - torch.cat([near, far], dim=1) / 2


def _of_perfect(scores: Tensor, relevant: Tensor, bins: int) -> tuple[float, float]:
    scores = scores.requires_grad_()
    loss = FastAP(bins).of_scores(scores, relevant)
    (slopes,) = torch.autograd.grad(loss, scores)
    return loss.item(), float((slopes.abs().amax(1) < 1e-12).double().mean())


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(1, 3)
    size, bins, slope = axes[0]
    for place, (name, label) in enumerate((("updates", "equal updates"), ("images", "equal images"))):
        draw_over(size, _of(found, name, "batches.size"), label, place, logarithmic=True)
    size.set(title="batch size (Fig. 4a)", xlabel="images of a batch", ylabel="R@1, %")
    size.legend()
    draw_over(bins, _of(found, "bins", "loss.bins"), "", 2, logarithmic=True)
    bins.set(title="bins (Fig. 4b)", xlabel="bins", ylabel="R@1, %")
    trade = found["trade-off"]
    for place, (name, shares) in enumerate(trade["without slope"].items()):
        slope.plot(trade["margins"], [100 * share for share in shares], label=f"{name} bins", **look(place))
    slope.set_xscale("log")
    slope.set_xticks([0.01, 0.03, 0.1, 0.3, 0.9], ["0.01", "0.03", "0.1", "0.3", "0.9"])
    slope.minorticks_off()
    slope.set(title="perfect lists (Fig. 4c)", xlabel="margin, squared distance", ylabel="lists that teach nothing, %")
    slope.legend(fontsize=8, handlelength=1.6)
    return {"ablation": figure}


def _of(found: Results, part: str, setting: str) -> dict[Any, list[float]]:
    return by_setting(found[part]["entries"], setting, _METRIC)


def told(found: Results) -> str:
    claims = [*_on_sizes(found), _on_bins(found), _on_lists(found["trade-off"])]
    rows = [f"| {claim} | {ours} | {'agrees' if agrees else 'does not agree'} |" for claim, ours, agrees in claims]
    agreeing = [agrees for *_, agrees in claims]
    return "\n".join(
        [
            "| claim | here, R@1 in % where nothing else is said | |",
            "|---|---|---|",
            *rows,
            "",
            f"{verdict(agreeing)}: {sum(agreeing)} of {len(agreeing)} rows. {RULE}",
            "",
            "A row on batch sizes agrees if no larger batch has a lower mean, and the largest is above the smallest by "
            "a difference that counts. Bins agree if the best number is from 5 to 20, and both ends, the fewest and "
            "the most, are lower than it by differences that count. Perfect lists agree if at no margin a larger "
            "number of bins leaves fewer of them without a slope, and at some margin the most leave more than the "
            "fewest.",
            "",
            _limits(found),
        ]
    )


def _limits(found: Results) -> str:
    """What is drawn, and what is not as in the paper."""
    return (
        f"Perfect lists: {found['trade-off']['lists']:,} drawn lists of {_POSITIVES} positives and {_NEGATIVES} "
        "negatives, all positives before all negatives; a list teaches nothing where no score has a slope. Smaller "
        "than in the paper: emoji of 32 px, EfficientNet-Lite0, batches of 112 and 80 steps unless the row says "
        "otherwise, in place of three data sets of photographs, ResNet-18, batches of 256 and 30 epochs (which its "
        "code says). Equal images: 4 passes over all of them, so that larger batches make fewer steps; equal updates: "
        "80 steps, so that they see more images. Batch sizes have a choice of learning rates each, of "
        f"{_LRS.replace(',', ', ')}, on held-out classes; all numbers of bins have {_ONE_LR}. "
        f"{at_an_end(_chosen(found), _LRS)}"
    )


def _chosen(found: Results) -> dict[str, float | None]:
    """The learning rate of each setting that had a choice."""
    return {
        f"{entry['name']} (equal {part})": entry["lr"]
        for part in ("updates", "images")
        for entry in found[part]["entries"]
    }


def _on_sizes(found: Results) -> list[tuple[str, str, bool]]:
    rows = []
    for name in ("updates", "images"):
        values = dict(sorted(_of(found, name, "batches.size").items()))
        means = [mean_and_spread(each)[0] for each in values.values()]
        change = gap(values[max(values)], values[min(values)])
        agrees = change.is_more and means == sorted(means)
        said = ", ".join(f"{size}: {percent(each)}" for size, each in values.items())
        rows.append((f"R@1 grows with every larger batch (Fig. 4a), equal {name}", f"{said}; {change}", agrees))
    return rows


def _on_bins(found: Results) -> tuple[str, str, bool]:
    """The peak is around 10 where the best is from 5 to 20, and both ends are below it."""
    values = dict(sorted(_of(found, "bins", "loss.bins").items()))
    best = max(values, key=lambda each: mean_and_spread(values[each])[0])
    ends = [gap(values[end], values[best]) for end in (min(values), max(values))]
    agrees = 5 <= best <= 20 and all(each.is_less for each in ends)
    said = ", ".join(f"{bins}: {percent(each)}" for bins, each in values.items())
    peak = f"best {best}"
    if 10 in values and best != 10:
        above = gap(values[best], values[10])
        peak += f", {above} against 10, which {'counts' if above.counts else 'does not count'}"
    return "most at about 10 bins, less with fewer and with more (Fig. 4b)", f"{said}; {peak}", agrees


def _on_lists(trade: Results) -> tuple[str, str, bool]:
    """At each margin, lists without a slope are never fewer with more bins; and at some there are more."""
    by_bins = [trade["without slope"][str(bins)] for bins in _DRAWN_BINS]
    agrees = all(list(of) == sorted(of) for of in zip(*by_bins, strict=True)) and by_bins[-1] != by_bins[0]
    place = min(range(len(_MARGINS)), key=lambda each: abs(trade["margins"][each] - 0.1))
    said = ", ".join(f"{bins}: {100 * trade['without slope'][str(bins)][place]:.0f} %" for bins in _DRAWN_BINS)
    margin = trade["margins"][place]
    return (
        "fine bins do not push perfect lists further apart (Fig. 4c)",
        f"share of lists without a slope at margin {margin:.2f}, by bins: {said}",
        agrees,
    )


STUDY = Study(
    name="fastap-ablation",
    paper="FastAP",
    shows="Fig. 4",
    title="Batch size and bins of FastAP, and what coarse bins are good for",
    claim="Larger batches are better, as a query has to find its class among more images. About 10 bins are best: "
    "with few, AP is approximated badly; with many, a list that is ranked perfectly by a small margin has no slope "
    "left, where coarse bins still push it apart, as the margin of a triplet loss does.",
    minutes=25,
    measure=measure,
    figures=figures,
    told=told,
    takes=("data", "seeds"),
)
