"""How much of the time of indexing images is the model's."""

import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import say
from search_vectors import Results

import frontrank as fr
from frontrank import picture_index as indexing
from frontrank.data.loading import evaluation_loader
from frontrank.data.table import read_folder
from frontrank.data.transforms import evaluation_transform
from frontrank.training.embedding import model_sizes

WORKERS, BATCH = 2, 64
TARGET = 0.25  # of the time may be spent outside the model


def write_pictures(folder: Path, count: int, side: int) -> None:
    """JPEG files with shapes of every size, as photographs have, of some ten kilobytes."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(count):
        layers = [random.normal(0, 90 / 2**i, (4 << i, 4 << i, 3)) for i in range(6) if 4 << i <= side]
        pixels = sum(
            np.asarray([Image.fromarray(layer[..., c].astype(np.float32)).resize((side, side)) for c in range(3)])
            for layer in layers
        )
        picture = Image.fromarray(np.clip(128 + np.moveaxis(pixels, 0, 2), 0, 255).astype(np.uint8))
        (folder / f"{number // 20:04}").mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{number // 20:04}" / f"{number}.jpg", quality=85)


def whole_job(model: fr.Embedder, table: fr.ImageTable, folder: Path) -> dict[str, float]:
    """Seconds of indexing all images into a new folder, and those of them in the model's forward passes."""
    inside, started = [0.0], [0.0]

    def enter(*_: Any) -> None:
        started[0] = time.perf_counter()

    def leave(*_: Any) -> None:
        inside[0] += time.perf_counter() - started[0]

    hooks = [model.register_forward_pre_hook(enter), model.register_forward_hook(leave)]
    with fr.Index(folder, dim=model.dim, progress=False) as index:
        seconds, _ = clocked(
            lambda: indexing.index_images(model, [table], index, batch_size=BATCH, workers=WORKERS, show=False)
        )
    for hook in hooks:
        hook.remove()
    return {"job": seconds, "model in it": inside[0]}


def clocked(run: Callable[[], object]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = run()
    return time.perf_counter() - start, found


def processor_seconds() -> float:
    """Of all threads of this process and of the workers that have ended."""
    return sum(os.times()[:4])


def steps(table: fr.ImageTable, model: fr.Embedder, embeddings: np.ndarray, folder: Path) -> dict[str, float]:
    """Seconds of what the job does beside the model, each step by itself."""
    images = indexing._Images(table, indexing.item_ids(table), None, model.dim, BATCH)
    rows = range(len(table))
    looked, items = clocked(lambda: images._read_items(rows))
    headers, _ = clocked(lambda: images._find_faults(rows, decode=False))
    transform = evaluation_transform(*model_sizes(model))
    decoding, _ = clocked(lambda: [None for _ in evaluation_loader(table, transform, BATCH, WORKERS)])
    with fr.Index(folder, dim=model.dim, progress=False) as index:
        storing, _ = clocked(lambda: index.upsert(embeddings, items))
    return {"digests": looked, "headers": headers, f"decoding, {WORKERS} workers": decoding, "storing": storing}


def section_indexing(results: Results, cases: list[tuple[str, int, int, int]], rounds: int) -> None:
    """Networks with random weights over JPEG files; a case is a backbone, its pixels, those of the files, how many.

    Outside the model is 1 - (forward passes over the same tensors, ready in memory, with the same threads) / (whole
    job): on few cores the workers that decode take time from the model, which is counted as outside, too. In the job's
    own process alone, outside is 1 - (time in its forward passes) / (whole job): waiting for images, digests, storing.
    The processor's time of both, workers included, does not depend on what else the machine does.
    """
    rows = []
    for backbone, size, side, count in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_pictures(folder / "images", count, side)
            table = read_folder(folder / "images")
            model = fr.Embedder(backbone, image_size=size).eval()
            transform = evaluation_transform(*model_sizes(model))
            tensors = [images for images, _ in evaluation_loader(table, transform, BATCH, WORKERS)]

            def alone(model: fr.Embedder = model, tensors: list[torch.Tensor] = tensors) -> np.ndarray:
                with torch.no_grad():
                    return np.concatenate([model(images).numpy() for images in tensors])

            embeddings = alone()
            seconds: dict[str, list[float]] = defaultdict(list)
            for number in range(rounds):
                before = processor_seconds()
                seconds["model alone"].append(clocked(alone)[0])
                between = processor_seconds()
                for key, value in whole_job(model, table, folder / f"index{number}").items():
                    seconds[key].append(value)
                seconds["model alone, processor"].append(between - before)
                seconds["job, processor"].append(processor_seconds() - between)
            parts = steps(table, model, embeddings, folder / "steps")
        middle = {key: statistics.median(of) for key, of in seconds.items()}
        row: dict[str, Any] = {
            "backbone": backbone,
            "size": size,
            "jpeg": side,
            "images": count,
            "seconds": seconds,
            "steps": parts,
        }
        row["outside"] = 1 - middle["model alone"] / middle["job"]
        row["outside_own_process"] = 1 - middle["model in it"] / middle["job"]
        row["outside_processor"] = 1 - middle["model alone, processor"] / middle["job, processor"]
        row["images_per_second"] = count / middle["job"]
        rows.append(row)
        say(f"\nindexing, {count:,} JPEG of {side} px, {backbone} at {size} px, batch {BATCH}, {WORKERS} workers")
        said = f"job {middle['job']:.2f} s, model alone {middle['model alone']:.2f} s"
        say(f"  {said}, {row['images_per_second']:.0f} images/s")
        say(f"  outside the model {row['outside']:.1%} (target {TARGET:.0%}); of the processor's time")
        say(f"  {row['outside_processor']:.1%}; in the job's own process {row['outside_own_process']:.1%}")
        say("  each by itself: " + ", ".join(f"{key} {value:.2f} s" for key, value in parts.items()))
    results["indexing"] = {"target": TARGET, "workers": WORKERS, "batch": BATCH, "rows": rows}
