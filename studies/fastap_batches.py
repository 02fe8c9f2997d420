"""Batches of a few categories against random ones (FastAP, Sec. 4.2)."""

from typing import Any

import torch

from frontrank.data.samplers import BalancedBatches, CategoryBatches, EpochBatches
from frontrank.evaluation import evaluate
from frontrank.settings import TrainConfig, find_recipe, read_config, read_recipe
from frontrank.training.embedding import embed_table
from frontrank.training.images import build_images
from frontrank.training.run import frozen_model
from studies.study import DOES_NOT_AGREE, Effort, Results, Study, panels, verdict
from studies.trained import (
    NETWORK,
    RECIPE,
    draw_over,
    emoji_folder,
    gap,
    rate_search,
    run_comparison,
    values_by_setting,
)

_KINDS = {"balanced": "random classes", "categories": "classes of two categories"}
_SIZES, _QUICK_SIZES = (56, 112, 224), (16, 32)
_PER_CLASS, _TOGETHER = 4, 2
_LRS = "3e-4,1e-3"


def measure(effort: Effort) -> dict[str, Any]:
    data, sizes = emoji_folder(effort), _QUICK_SIZES if effort.quick else _SIZES
    axes = [f"batches.kind={','.join(_KINDS)}", f"batches.size={','.join(map(str, sizes))}"]
    results = run_comparison(effort, "batches", data=data, losses="FastAP", axes=axes, lrs=_LRS)
    return {**results, "hardness": _hardness(data, sizes, effort.quick, effort.seed)}


def _hardness(data: str, sizes: tuple[int, ...], quick: bool, seed: int) -> dict[str, dict[str, list[float]]]:
    """Measure mAP inside batches before training, by kind and size, a value per batch."""
    batches = 5 if quick else 60
    weights = {"model.weights": "none"} if quick else {}
    config = read_config(read_recipe(find_recipe(RECIPE)), {**NETWORK, "data.path": data, **weights})
    table = build_images(config.data).of("train")
    embeddings = _embed(table, config)
    results: dict[str, dict[str, list[float]]] = {kind: {} for kind in _KINDS}
    for size in sizes:
        samplers = {
            "balanced": BalancedBatches(table.labels, size, _PER_CLASS, seed=seed),
            "categories": CategoryBatches(table.labels, table.categories, size, _PER_CLASS, _TOGETHER, seed=seed),
        }
        for kind, sampler in samplers.items():
            drawn = [rows for epoch in range(batches) for rows in _first_batches(sampler, epoch, batches)][:batches]
            results[kind][str(size)] = [
                evaluate(embeddings[rows], table.labels[rows], metrics=["mAP"], progress=False)["mAP"] for rows in drawn
            ]
    return results


def _first_batches(sampler: EpochBatches, epoch: int, batches: int) -> list[list[int]]:
    sampler.set_epoch(epoch)
    return [list(rows) for rows, _ in zip(sampler, range(batches), strict=False)]


def _embed(table: Any, config: TrainConfig) -> torch.Tensor:
    return torch.as_tensor(embed_table(frozen_model(config), table, workers=config.data.workers, show=False))


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, 2)
    hard, after = axes[0]
    for place, (kind, label) in enumerate(_KINDS.items()):
        inside = {int(size): values for size, values in results["hardness"][kind].items()}
        draw_over(hard, inside, label, place, logarithmic=True)
        draw_over(after, _values_of(results, kind), label, place, logarithmic=True)
    hard.set(title="within batches, before training", xlabel="images of a batch", ylabel="mAP within a batch, %")
    after.set(title="test images, after training", xlabel="images of a batch", ylabel="R@1, %")
    hard.legend()
    return {"batches": figure}


def _values_of(results: Results, kind: str, metric: str = "R@1") -> dict[Any, list[float]]:
    return values_by_setting(results["entries"], "batches.size", metric, batches_kind=kind)


def values(results: Results) -> dict[str, Any]:
    inside = {kind: {int(size): of for size, of in sizes.items()} for kind, sizes in results["hardness"].items()}
    random, hard = (_values_of(results, kind) for kind in _KINDS)
    map_random, map_hard = (_values_of(results, kind, "mAP") for kind in _KINDS)
    rows = [
        {
            "size": size,
            "inside": [inside[kind][size] for kind in _KINDS],
            "recall": [random[size], hard[size]],
            "gap": gap(hard[size], random[size]),
            "map_gap": gap(map_hard[size], map_random[size]),
        }
        for size in sorted(random)
        if size in hard
    ]
    better = [row["gap"].is_more for row in rows]
    worse = [row["size"] for row in rows if row["gap"].is_less]
    chosen = {entry["name"]: entry["lr"] for entry in results["entries"]}
    return {
        "verdict": DOES_NOT_AGREE if worse else verdict(better),
        "rows": rows,
        "is_harder": all(gap(*reversed(row["inside"])).is_less for row in rows),
        "better": sum(better),
        "worse": worse,
        "map_better": [row for row in rows if row["map_gap"].is_more],
        "map_worse": [row for row in rows if row["map_gap"].is_less],
        "lrs": _LRS.replace(",", " and "),
        "search": rate_search(chosen, _LRS),
    }


STUDY = Study(
    name="fastap-batches",
    paper="FastAP",
    shows="Sec. 4.2",
    title="Hard batches: classes of two categories against random ones",
    minutes=12,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
