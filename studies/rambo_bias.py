"""How much too well mini-batches rank, by their size (RaMBO, Fig. 2)."""

import math
from typing import Any

import torch

from frontrank.errors import InputError
from frontrank.evaluation.diagnostics import minibatch_map
from studies.study import COLOURS, INK, MARKS, Effort, Results, Study, panels, verdict
from studies.trained import RECIPE, emoji_folder

_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_FIT = 2  # times a batch there must be at least, for batches that differ
_WAYS = {"4 of each class, as in training": 4, "random items": None}


def measure(effort: Effort) -> dict[str, Any]:
    embeddings, labels, source = (
        _random_classes(effort.seed) if effort.quick and not effort.data else _untrained_emoji(effort)
    )
    sizes = [size for size in _SIZES if _FIT * size <= len(labels)]
    batches = 10 if effort.quick else 30
    results: dict[str, Any] = {"source": source, "items": len(labels), "batches": batches, "sizes": sizes, "ways": {}}
    for name, per_class in _WAYS.items():
        of = minibatch_map(embeddings, labels, sizes, per_class=per_class, batches=batches, seed=effort.seed)
        results["ways"][name] = {"mean": list(of.mean), "std": list(of.std), "used": list(of.used)}
        results["dataset"] = of.dataset
    results["classes"] = len(set(labels))
    return results


def _random_classes(seed: int) -> tuple[torch.Tensor, list[int], str]:
    """Return classes as balls around random centres, for a quick run without pictures."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(60).repeat_interleave(6)
    centres = torch.randn(60, 16, generator=generator)
    items = centres[labels] + 1.2 * torch.randn(len(labels), 16, generator=generator)
    return (
        items,
        labels.tolist(),
        "drawn embeddings: 60 Gaussian centres in 16 dimensions, 6 items with 1.2 times their spread around each",
    )


def _untrained_emoji(effort: Effort) -> tuple[torch.Tensor, list[int], str]:
    """Return the test emoji as the network of the demonstration embeds them before it is trained."""
    from frontrank.settings import find_recipe, read_config, read_recipe
    from frontrank.training.embedding import embed_table
    from frontrank.training.images import build_images
    from frontrank.training.run import frozen_model

    config = read_config(read_recipe(find_recipe(RECIPE)), {"data.path": emoji_folder(effort)})
    table = build_images(config.data)
    table = table.of("test") if len(table.of("test")) else table
    if len(table) < _FIT * _SIZES[0]:  # none of the sizes would be left
        raise InputError(
            f"--data has {len(table)} test images, and the study needs {_FIT * _SIZES[0]} or more; give other images"
        )
    embeddings = embed_table(frozen_model(config), table, show=effort.show)
    named = f"{config.model.backbone} with ImageNet weights, not trained further"
    source = f"embeddings of real emoji by {named}"
    return torch.from_numpy(embeddings), table.codes().tolist(), source


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(size=(6.4, 4.2))
    (axis,) = axes.flat
    sizes = [*results["sizes"], results["items"]]
    axis.axhline(
        results["dataset"], color=INK, linestyle="--", linewidth=1.2, label=f"whole set, {results['dataset']:.3f}"
    )
    for place, (name, of) in enumerate(results["ways"].items()):
        colour, at = COLOURS[place], sizes[: len(of["mean"])]
        low = [mean - std for mean, std in zip(of["mean"], of["std"], strict=True)]
        high = [mean + std for mean, std in zip(of["mean"], of["std"], strict=True)]
        axis.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.plot(at, of["mean"], color=colour, marker=MARKS[place], markersize=5, label=name)
    axis.plot(results["items"], results["dataset"], color=INK, marker="*", markersize=10, linestyle="")
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45)
    axis.minorticks_off()
    axis.set(xlabel="items of a batch", ylabel="mAP, mean and standard deviation", ylim=(0, 1.02))
    axis.legend()
    return {"minibatch-map": figure}


def too_high(of: Results, dataset: float) -> bool:
    """Return whether batches of all sizes rank better than the whole set, and smaller ones better than larger ones.

    Each mean must be above the whole set by two standard errors; a difference may be below 0 by two of its own.

    of: "mean", "std" and "used", how many batches these are of, by size
    """
    errors = [std / math.sqrt(many) if many > 1 else math.inf for std, many in zip(of["std"], of["used"], strict=True)]
    above = all(mean - dataset > 2 * error for mean, error in zip(of["mean"], errors, strict=True))
    falls = all(
        of["mean"][i] - of["mean"][i + 1] > -2 * math.hypot(errors[i], errors[i + 1]) for i in range(len(errors) - 1)
    )
    return above and falls and of["mean"][0] > of["mean"][-1]


def values(results: Results) -> dict[str, Any]:
    ways = results["ways"]
    is_too_high = {name: too_high(of, results["dataset"]) for name, of in ways.items()}
    return {
        "verdict": verdict([*is_too_high.values()]),
        "too_high": is_too_high,
        "fewer_used": {name: of["used"] for name, of in ways.items() if min(of["used"]) < results["batches"]},
    }


STUDY = Study(
    name="rambo-bias",
    paper="RaMBO",
    shows="Fig. 2",
    title="A mini-batch is too optimistic about mAP",
    minutes=3,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data",),
)
