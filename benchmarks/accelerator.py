"""Kernels, waits and bytes of an accelerator, counted on a CPU with its tiles (see counts.py); nothing is timed.

    python benchmarks/accelerator.py            about three minutes on an idle core

Prints a table and writes benchmarks/results/accelerator.json.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from counts import DEVICE, Count, Device
from measure import MB, machine, say

import frontrank as fr
from frontrank.ranking import Vectors, tiling
from frontrank.retrieval.neighbours import nearest

DIM = 128
SIZES = (384, 4), (4096, 4), (512, 32)  # items, and items per class
LOSSES = (fr.PNP, fr.SmoothAP, fr.FastAP, fr.QuantizedAP, fr.BlackboxAP, fr.BlackboxRecall, fr.RecallAtK, fr.SupAP)


def step(loss: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor) -> Callable[[], object]:
    return lambda: loss(x, labels).backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "accelerator.json")
    options = parser.parse_args()
    rows = []

    def add(work: str, count: Count, run: Callable[[], object]) -> None:
        count.kernels = count.waits = count.bytes = 0
        run()
        rows.append({"work": work, "kernels": count.kernels, "waits": count.waits, "mb": count.bytes / MB})
        say(f"{work:50} {count.kernels:5} kernels {count.waits:3} waits {rows[-1]['mb']:8.0f} MB")

    for size, per_class in SIZES:
        torch.manual_seed(0)
        x, labels = torch.randn(size, DIM, requires_grad=True), torch.arange(size) // per_class
        classes = f"{size:,} in classes of {per_class}"
        for loss in LOSSES:
            with tiling("cuda"), Count() as count:
                add(f"`{loss.__name__}`, batch of {classes}", count, step(loss(), x, labels))
        with Device() as count:
            there = x.detach().to(DEVICE)
            evaluate = partial(fr.evaluate, there, labels, metrics=["R@1", "mAP"], progress=False)
            add(f"`evaluate`, {classes}", count, evaluate)
            vectors = Vectors("x", there)
            search = partial(nearest, vectors, vectors, k=10, progress=False)
            if per_class == 4:
                add(f"`nearest`, {size:,} queries and items", count, search)
    results = {"machine": machine(), "command": "python benchmarks/accelerator.py", "dim": DIM, "rows": rows}
    options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
