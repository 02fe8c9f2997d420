"""How much too well mini-batches rank, by their size (RaMBO, Fig. 2)."""

import math
from typing import Any

import torch

from frontrank.errors import InputError
from frontrank.evaluation.diagnostics import minibatch_map
from studies.over_seeds import verdict
from studies.study import Effort, Results, Study
from studies.style import COLOURS, INK, MARKS, panels
from studies.trained import RECIPE, emoji

_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_FIT = 2  # times a batch there must be at least, for batches that differ
_WAYS = {"4 of each class, as in training": 4, "random items": None}


def measure(effort: Effort) -> dict[str, Any]:
    embeddings, labels, source = _drawn(effort.seed) if effort.quick and not effort.data else _frozen(effort)
    sizes = [size for size in _SIZES if _FIT * size <= len(labels)]
    batches = 10 if effort.quick else 30
    found: dict[str, Any] = {"source": source, "items": len(labels), "batches": batches, "sizes": sizes, "ways": {}}
    for name, per_class in _WAYS.items():
        of = minibatch_map(embeddings, labels, sizes, per_class=per_class, batches=batches, seed=effort.seed)
        found["ways"][name] = {"mean": list(of.mean), "std": list(of.std), "used": list(of.used)}
        found["dataset"] = of.dataset
    found["classes"] = len(set(labels))
    return found


def _drawn(seed: int) -> tuple[torch.Tensor, list[int], str]:
    """Classes as balls around random centres, for those who have no pictures at hand."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(60).repeat_interleave(6)
    centres = torch.randn(60, 16, generator=generator)
    items = centres[labels] + 1.2 * torch.randn(len(labels), 16, generator=generator)
    return (
        items,
        labels.tolist(),
        "drawn embeddings: 60 Gaussian centres in 16 dimensions, 6 items with 1.2 times their spread around each",
    )


def _frozen(effort: Effort) -> tuple[torch.Tensor, list[int], str]:
    """The test emoji, as the network of the demonstration sees them before it is trained."""
    from frontrank.settings import find_recipe, read_config, read_recipe
    from frontrank.training.embedding import embed_table
    from frontrank.training.run import build_images, frozen_model

    config = read_config(read_recipe(find_recipe(RECIPE)), {"data.path": emoji(effort)})
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


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(size=(6.4, 4.2))
    (axis,) = axes.flat
    sizes = [*found["sizes"], found["items"]]
    axis.axhline(found["dataset"], color=INK, linestyle="--", linewidth=1.2, label=f"whole set, {found['dataset']:.3f}")
    for place, (name, of) in enumerate(found["ways"].items()):
        colour, at = COLOURS[place], sizes[: len(of["mean"])]
        low = [mean - std for mean, std in zip(of["mean"], of["std"], strict=True)]
        high = [mean + std for mean, std in zip(of["mean"], of["std"], strict=True)]
        axis.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.plot(at, of["mean"], color=colour, marker=MARKS[place], markersize=5, label=name)
    axis.plot(found["items"], found["dataset"], color=INK, marker="*", markersize=10, linestyle="")
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45)
    axis.minorticks_off()
    axis.set(xlabel="items of a batch", ylabel="mAP, mean and standard deviation", ylim=(0, 1.02))
    axis.legend()
    return {"minibatch-map": figure}


def too_high(of: Results, dataset: float) -> bool:
    """Whether batches of all sizes rank better than the whole set, and smaller ones better than larger ones.

    By more than two standard errors of a mean over batches, and no less than less two of a difference.

    of: "mean", "std" and "used", how many batches these are of, by size
    """
    errors = [std / math.sqrt(many) if many > 1 else math.inf for std, many in zip(of["std"], of["used"], strict=True)]
    above = all(mean - dataset > 2 * error for mean, error in zip(of["mean"], errors, strict=True))
    falls = all(
        of["mean"][i] - of["mean"][i + 1] > -2 * math.hypot(errors[i], errors[i + 1]) for i in range(len(errors) - 1)
    )
    return above and falls and of["mean"][0] > of["mean"][-1]


def told(found: Results) -> str:
    ways, whole = found["ways"], found["dataset"]
    rows = [
        f"| {size:,} | " + " | ".join(f"{of['mean'][i]:.3f} ± {of['std'][i]:.3f}" for of in ways.values()) + " |"
        for i, size in enumerate(found["sizes"])
    ]
    held = {name: too_high(of, whole) for name, of in ways.items()}
    said = "; ".join(
        f"with {name} mAP is {of['mean'][0]:.3f} in batches of {found['sizes'][0]:,} and {of['mean'][-1]:.3f} in "
        f"batches of {found['sizes'][-1]:,}, "
        f"{'always above' if held[name] else 'not always above, or not falling to,'} the {whole:.3f} of the whole set"
        for name, of in ways.items()
    )
    return "\n".join(
        [
            f"| items of a batch | {' | '.join(ways)} |",
            f"|---:|{'---:|' * len(ways)}",
            *rows,
            f"| {found['items']:,}, all | {' | '.join(f'{whole:.3f}' for _ in ways)} |",
            "",
            f"Of {found['source']}: {found['items']:,} of {found['classes']:,} classes; {found['batches']} batches of "
            "each size, mean and "
            f"standard deviation over them. {_on_used(found)}",
            "",
            f"{verdict([*held.values()])}: {said}. The criterion: each mean above the whole set's by two standard "
            "errors, and means that fall with size, within two of theirs.",
            "",
            "A batch with a memory of past embeddings ranks lists as long as those of a larger batch, which is why a "
            "memory makes the estimate less wrong. "
            "Small batches of random items have few queries with a positive, and those without any are left out: their "
            "spread "
            "is larger, and their means are over fewer batches.",
        ]
    )


def _on_used(found: Results) -> str:
    """How many batches of each size had a positive, and so were used."""
    fewer = {name: of["used"] for name, of in found["ways"].items() if min(of["used"]) < found["batches"]}
    listed = (f"{', '.join(map(str, used))} with {name}" for name, used in fewer.items())
    return f"Batches that had a positive, by size: {'; '.join(listed)}." if fewer else "All of them had a positive."


STUDY = Study(
    name="rambo-bias",
    paper="RaMBO",
    shows="Fig. 2",
    title="A mini-batch is too optimistic about mAP",
    claim="mAP inside a mini-batch is no unbiased estimate of mAP over a data set: there are fewer negatives to come "
    "first, so it is far too high, the more so "
    "the smaller the batch. What is optimised in training is that estimate.",
    minutes=3,
    measure=measure,
    figures=figures,
    told=told,
    takes=("data",),
)
