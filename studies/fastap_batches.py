"""Batches of a few categories against random ones (FastAP, Sec. 4.2)."""

from typing import Any

import torch

from frontrank.data.samplers import BalancedBatches, CategoryBatches, EpochBatches
from frontrank.evaluation import evaluate
from frontrank.settings import TrainConfig, find_recipe, read_config, read_recipe
from frontrank.training.embedding import embed_table
from frontrank.training.run import build_images, frozen_model
from studies.over_seeds import RULE, Gap, by_setting, draw_over, gap, verdict
from studies.study import Effort, Results, Study
from studies.style import panels
from studies.trained import NETWORK, RECIPE, at_an_end, emoji, percent, trained

_KINDS = {"balanced": "random classes", "categories": "classes of two categories"}
_SIZES, _QUICK_SIZES = (56, 112, 224), (16, 32)
_PER_CLASS, _TOGETHER = 4, 2
_LRS = "3e-4,1e-3"


def measure(effort: Effort) -> dict[str, Any]:
    data, sizes = emoji(effort), _QUICK_SIZES if effort.quick else _SIZES
    axes = [f"batches.kind={','.join(_KINDS)}", f"batches.size={','.join(map(str, sizes))}"]
    found = trained(effort, "batches", data=data, losses="FastAP", axes=axes, lrs=_LRS)
    return {**found, "hardness": _hardness(data, sizes, effort.quick, effort.seed)}


def _hardness(data: str, sizes: tuple[int, ...], quick: bool, seed: int) -> dict[str, dict[str, list[float]]]:
    """mAP inside batches before training, by kind and size, a value per batch."""
    batches = 5 if quick else 60
    weights = {"model.weights": "none"} if quick else {}
    config = read_config(read_recipe(find_recipe(RECIPE)), {**NETWORK, "data.path": data, **weights})
    table = build_images(config.data).of("train")
    embeddings = _embedded(table, config)
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in _KINDS}
    for size in sizes:
        samplers = {
            "balanced": BalancedBatches(table.labels, size, _PER_CLASS, seed=seed),
            "categories": CategoryBatches(table.labels, table.categories, size, _PER_CLASS, _TOGETHER, seed=seed),
        }
        for kind, sampler in samplers.items():
            drawn = [rows for epoch in range(batches) for rows in _first(sampler, epoch, batches)][:batches]
            found[kind][str(size)] = [
                evaluate(embeddings[rows], table.labels[rows], metrics=["mAP"], progress=False)["mAP"] for rows in drawn
            ]
    return found


def _first(sampler: EpochBatches, epoch: int, batches: int) -> list[list[int]]:
    sampler.set_epoch(epoch)
    return [list(rows) for rows, _ in zip(sampler, range(batches), strict=False)]


def _embedded(table: Any, config: TrainConfig) -> torch.Tensor:
    return torch.as_tensor(embed_table(frozen_model(config), table, workers=config.data.workers, show=False))


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(1, 2)
    hard, after = axes[0]
    for place, (kind, label) in enumerate(_KINDS.items()):
        inside = {int(size): values for size, values in found["hardness"][kind].items()}
        draw_over(hard, inside, label, place, logarithmic=True)
        draw_over(after, _recalls(found, kind), label, place, logarithmic=True)
    hard.set(title="within batches, before training", xlabel="images of a batch", ylabel="mAP within a batch, %")
    after.set(title="test images, after training", xlabel="images of a batch", ylabel="R@1, %")
    hard.legend()
    return {"batches": figure}


def _recalls(found: Results, kind: str, metric: str = "R@1") -> dict[Any, list[float]]:
    return by_setting(found["entries"], "batches.size", metric, batches_kind=kind)


def told(found: Results) -> str:
    inside = {kind: {int(size): of for size, of in sizes.items()} for kind, sizes in found["hardness"].items()}
    random, hard = (_recalls(found, kind) for kind in _KINDS)
    sizes = [size for size in sorted(random) if size in hard]
    gaps = {size: gap(hard[size], random[size]) for size in sizes}
    maps = [_recalls(found, kind, "mAP") for kind in _KINDS]
    in_map = {size: gap(maps[1][size], maps[0][size]) for size in sizes}
    rows = [
        f"| {size} | {percent(inside['balanced'][size])} | {percent(inside['categories'][size])} "
        f"| {percent(random[size])} | {percent(hard[size])} | {gaps[size]} | {in_map[size]} |"
        for size in sizes
    ]
    harder = all(gap(inside["categories"][size], inside["balanced"][size]).is_less for size in sizes)
    better = [gaps[size].is_more for size in sizes]
    worse = [str(size) for size in sizes if gaps[size].is_less]
    said = f"Of {len(sizes)} batch sizes, R@1 is better with two categories at {sum(better)}" + (
        f", and worse at {' and '.join(worse)}." if worse else "."
    )
    return "\n".join(
        [
            "| images of a batch | mAP within, random | within, categories "
            "| R@1 after, random | after, categories | difference of R@1 | of mAP |",
            "|---:|---:|---:|---:|---:|---:|---:|",
            *rows,
            "",
            "Batches of two categories are harder before training: an image finds its class less well among images of "
            "its own category."
            if harder
            else "Batches of two categories are not harder at every size before training.",
            "",
            f"{'**Does not agree**' if worse else verdict(better)}: {said} {_by_map(in_map)}",
            "",
            f"{RULE} It agrees if R@1 is better at all sizes, and does not if it is worse at one. Within batches, ± is "
            "over batches.",
            "",
            "Smaller than in the paper: 9 categories of emoji (the groups of Unicode) in place of 12 and 23 of "
            "products and clothes; 80 steps; 4 images of each class in both kinds of batches, where FastAP takes "
            "whole classes. With the same steps each kind sees as many images. The learning rate is chosen on held-out "
            f"classes among {_LRS.replace(',', ' and ')}, for each kind and size. "
            f"{at_an_end({entry['name']: entry['lr'] for entry in found['entries']}, _LRS)}",
        ]
    )


def _by_map(gaps: dict[int, Gap]) -> str:
    """Where mAP is better and worse, which the verdict does not see."""
    parts = []
    for word, chosen in (("better", [size for size in gaps if gaps[size].is_more]), ("worse", _less(gaps))):
        if chosen:
            parts.append(f"{word} at {' and '.join(f'{size} ({gaps[size]})' for size in chosen)}")
    said = f"In mAP it is {', and '.join(parts) if parts else 'neither better nor worse at any size'}"
    return f"{said}{', which counts against the claim' if _less(gaps) else ''}; the verdict is by R@1."


def _less(gaps: dict[int, Gap]) -> list[int]:
    return [size for size in gaps if gaps[size].is_less]


STUDY = Study(
    name="fastap-batches",
    paper="FastAP",
    shows="Sec. 4.2",
    title="Hard batches: classes of two categories against random ones",
    claim="A batch has to be hard to teach something. Where it cannot be large, its classes should come from a few "
    "categories, among which it is harder to find one's own class than among random ones. The paper says that this "
    "is consistently better than random classes, and gives no figures for it.",
    minutes=12,
    measure=measure,
    figures=figures,
    told=told,
    takes=("data", "seeds"),
)
