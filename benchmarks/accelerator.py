"""Kernels, waits and bytes of an accelerator, counted on a CPU with its tiles; nothing is timed.

    python benchmarks/accelerator.py            under two minutes

Prints a table and writes benchmarks/results/accelerator.json.
kernels: operations that compute; views and empty tensors are none
waits:   results that the host reads, or whose number it must know, before it goes on
bytes:   what the kernels read and write
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import MB, machine, say
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import frontrank as fr
from frontrank.ranking import Vectors, tiling
from frontrank.retrieval.neighbours import nearest

DIM = 128
PER_CLASS = 4
LOSSES = (fr.PNP, fr.SmoothAP, fr.FastAP, fr.QuantizedAP, fr.BlackboxAP, fr.BlackboxRecall, fr.RecallAtK, fr.SupAP)
WAITS = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim"}
WAITS |= {"bincount", "masked_select", "equal", "repeat_interleave"}


class Count(TorchDispatchMode):
    """Counts what is dispatched while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.waits = self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function._schema.name.split("::")[1]
        chosen = args[1] if name in ("index", "index_put_") else ()
        self.waits += name in WAITS or any(x is not None and x.dtype == torch.bool for x in chosen)
        if not function.is_view and "empty" not in name:
            self.kernels += 1
            tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
            self.bytes += sum(x.numel() * x.element_size() for x in tensors)
        return out


@contextmanager
def counts() -> Iterator[Count]:
    """Count with the tiles of an accelerator; reading a tensor as a list is a wait too."""
    real = torch.Tensor.tolist

    def tolist(x: torch.Tensor) -> Any:
        count.waits += 1
        return real(x)

    with tiling("cuda"), Count() as count:
        torch.Tensor.tolist = tolist  # type: ignore[method-assign]
        try:
            yield count
        finally:
            torch.Tensor.tolist = real  # type: ignore[method-assign]


def step(loss: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor) -> Callable[[], object]:
    return lambda: loss(x, labels).backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "accelerator.json")
    options = parser.parse_args()
    rows = []
    for size in (384, 4096):
        torch.manual_seed(0)
        x, labels = torch.randn(size, DIM, requires_grad=True), torch.arange(size) // PER_CLASS
        work = {f"`{loss.__name__}`, batch {size:,}": step(loss(), x, labels) for loss in LOSSES}
        vectors = Vectors("x", x.detach())
        work[f"`evaluate`, {size:,} items"] = partial(fr.evaluate, x.detach(), labels, metrics=["mAP"], progress=False)
        work[f"`nearest`, {size:,} queries and items"] = partial(nearest, vectors, vectors, k=10, progress=False)
        for name, run in work.items():
            with counts() as count:
                run()
            rows.append({"work": name, "kernels": count.kernels, "waits": count.waits, "mb": count.bytes / MB})
            say(f"{name:40} {count.kernels:5} kernels {count.waits:3} waits {rows[-1]['mb']:8.0f} MB")
    results = {"machine": machine(), "command": "python benchmarks/accelerator.py", "dim": DIM, "rows": rows}
    options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
