"""Batch size and bins of FastAP, and why coarse bins help (FastAP, Fig. 4)."""

from typing import Any

import torch
from torch import Tensor

from frontrank.losses import FastAP
from studies.study import Effort, Results, Study, line_style, panels, verdict
from studies.trained import (
    draw_over,
    emoji_folder,
    gap,
    mean_and_spread,
    rate_search,
    run_comparison,
    values_by_setting,
)

_METRIC = "R@1"
_LRS, _ONE_LR = "3e-4,1e-3", "3e-4"
_SIZES, _BINS = "28,112,448", "2,5,10,20,40,80"
_EPOCHS = {"iterations": "0", "epochs": "4", "evaluate_every": "2", "optimizer.warmup": "5"}
_DRAWN_BINS = (2, 5, 10, 20, 40, 80)
_MARGINS = tuple(0.01 * 2 ** (step / 2) for step in range(14))  # 0.01 to 0.9, of squared distance
_POSITIVES, _NEGATIVES = 4, 60


def measure(effort: Effort) -> dict[str, Any]:
    data = emoji_folder(effort)
    sizes = f"batches.size={'16,32' if effort.quick else _SIZES}"
    bins = f"loss.bins={'2,10' if effort.quick else _BINS}"
    runs: dict[str, tuple[str, str, dict[str, str]]] = {
        "updates": (sizes, _LRS, {}),
        "images": (sizes, _LRS, {} if effort.quick else _EPOCHS),
        "bins": (bins, _ONE_LR, {}),
    }
    results: dict[str, Any] = {
        name: run_comparison(effort, name, data=data, losses="FastAP", axes=[axis], settings=settings, lrs=lrs)
        for name, (axis, lrs, settings) in runs.items()
    }
    return {**results, "trade-off": trade_off(20 if effort.quick else 1000, effort.seed)}


def trade_off(lists: int, seed: int) -> dict[str, Any]:
    """Measure FastAP on lists that are ranked perfectly, by a margin: its loss, and where its slope is 0.

    "loss" and "without slope" are by bins, one value per margin: the mean of 1 - FastAP, and the share of lists of
    which no score has a slope.
    """
    generator = torch.Generator().manual_seed(seed)
    relevant = (torch.arange(_POSITIVES + _NEGATIVES) < _POSITIVES).expand(lists, -1)
    results: dict[str, Any] = {"margins": list(_MARGINS), "lists": lists, "loss": {}, "without slope": {}}
    drawn = torch.rand(lists, _POSITIVES + _NEGATIVES, generator=generator, dtype=torch.float64)
    middle = 0.8 + 0.4 * torch.rand(lists, 1, generator=generator, dtype=torch.float64)  # squared distance
    for bins in _DRAWN_BINS:
        values = [_loss_and_flat_share(perfect_lists(drawn, middle, margin), relevant, bins) for margin in _MARGINS]
        results["loss"][str(bins)] = [loss for loss, _ in values]
        results["without slope"][str(bins)] = [share for _, share in values]
    return results


def perfect_lists(drawn: Tensor, middle: Tensor, margin: float) -> Tensor:
    """Return scores of lists in which all positives are nearer than all negatives, by a margin of squared distance.

    drawn: from 0 to 1 [list, item], how far from the margin an item is; middle: of the margin [list, 1]
    The last positive and the first negative are at the margin, the others within 0.2 before and 1.5 behind it.
    """
    positive, negative = drawn[:, :_POSITIVES], drawn[:, _POSITIVES:]
    near = middle - margin / 2 - 0.2 * (positive - positive.amin(1, keepdim=True))
    far = middle + margin / 2 + 1.5 * (negative - negative.amin(1, keepdim=True))
    return 1 - torch.cat([near, far], dim=1) / 2


def _loss_and_flat_share(scores: Tensor, relevant: Tensor, bins: int) -> tuple[float, float]:
    scores = scores.requires_grad_()
    loss = FastAP(bins).of_scores(scores, relevant)
    (slopes,) = torch.autograd.grad(loss, scores)
    return loss.item(), float((slopes.abs().amax(1) < 1e-12).double().mean())


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, 3)
    size, bins, slope = axes[0]
    for place, (name, label) in enumerate((("updates", "equal updates"), ("images", "equal images"))):
        draw_over(size, _values_of(results, name, "batches.size"), label, place, logarithmic=True)
    size.set(title="batch size (Fig. 4a)", xlabel="images of a batch", ylabel="R@1, %")
    size.legend()
    draw_over(bins, _values_of(results, "bins", "loss.bins"), "", 2, logarithmic=True)
    bins.set(title="bins (Fig. 4b)", xlabel="bins", ylabel="R@1, %")
    trade = results["trade-off"]
    for place, (name, shares) in enumerate(trade["without slope"].items()):
        slope.plot(trade["margins"], [100 * share for share in shares], label=f"{name} bins", **line_style(place))
    slope.set_xscale("log")
    slope.set_xticks([0.01, 0.03, 0.1, 0.3, 0.9], ["0.01", "0.03", "0.1", "0.3", "0.9"])
    slope.minorticks_off()
    slope.set(title="perfect lists (Fig. 4c)", xlabel="margin, squared distance", ylabel="lists that teach nothing, %")
    slope.legend(fontsize=8, handlelength=1.6)
    return {"ablation": figure}


def _values_of(results: Results, part: str, setting: str) -> dict[Any, list[float]]:
    return values_by_setting(results[part]["entries"], setting, _METRIC)


def values(results: Results) -> dict[str, Any]:
    sizes = {name: dict(sorted(_values_of(results, name, "batches.size").items())) for name in ("updates", "images")}
    size_gaps = {name: gap(own[max(own)], own[min(own)]) for name, own in sizes.items()}
    means = {name: [mean_and_spread(each)[0] for each in own.values()] for name, own in sizes.items()}
    bins = dict(sorted(_values_of(results, "bins", "loss.bins").items()))
    best = max(bins, key=lambda each: mean_and_spread(bins[each])[0])
    ends = [gap(bins[end], bins[best]) for end in (min(bins), max(bins))]
    trade = results["trade-off"]
    by_bins = [trade["without slope"][str(each)] for each in _DRAWN_BINS]
    place = min(range(len(_MARGINS)), key=lambda each: abs(trade["margins"][each] - 0.1))
    claims = {
        **{name: size_gaps[name].is_more and means[name] == sorted(means[name]) for name in sizes},
        "bins": 5 <= best <= 20 and all(each.is_less for each in ends),
        "lists": all(list(of) == sorted(of) for of in zip(*by_bins, strict=True)) and by_bins[-1] != by_bins[0],
    }
    chosen = {
        f"{entry['name']} (equal {part})": entry["lr"]
        for part in ("updates", "images")
        for entry in results[part]["entries"]
    }
    return {
        "verdict": verdict(list(claims.values())),
        "claims": claims,
        "sizes": sizes,
        "size_gaps": size_gaps,
        "bins": bins,
        "best_bins": best,
        "best_against_10": gap(bins[best], bins[10]) if 10 in bins and best != 10 else None,
        "margin": trade["margins"][place],
        "without_slope": {bins: shares[place] for bins, shares in zip(_DRAWN_BINS, by_bins, strict=True)},
        "positives": _POSITIVES,
        "negatives": _NEGATIVES,
        "lrs": _LRS.replace(",", ", "),
        "one_lr": _ONE_LR,
        "search": rate_search(chosen, _LRS),
    }


STUDY = Study(
    name="fastap-ablation",
    paper="FastAP",
    shows="Fig. 4",
    title="Batch size and bins of FastAP, and what coarse bins are good for",
    minutes=25,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
