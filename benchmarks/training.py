"""Speed and memory of training, as ratios in one run.

    python benchmarks/training.py            everything, about ten minutes on 2 cores
    python benchmarks/training.py --quick    small batches, about a minute
    python benchmarks/training.py --only multistage,loss

Prints tables; writes benchmarks/results/training.json (not with --quick; with --only those sections are replaced).
The network is an untrained ResNet-18 at 64 px with a head of 512 dimensions, BatchNorm frozen.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import MB, extra_memory, in_own_process, machine, say

import frontrank as fr
from frontrank.settings import BatchConfig, DataConfig, ModelConfig, TrainConfig
from frontrank.training import distributed
from frontrank.training.gradient import step_gradient
from frontrank.training.logs import read_log

SIZE = 64
Results = dict[str, Any]
LOSSES: dict[str, Callable[[], torch.nn.Module]] = {
    "PNP": fr.PNP,
    "SmoothAP": fr.SmoothAP,
    "FastAP": fr.FastAP,
    "QuantizedAP": fr.QuantizedAP,
    "BlackboxRecall": fr.BlackboxRecall,
    "BlackboxAP": fr.BlackboxAP,
}


def network() -> fr.Embedder:
    torch.manual_seed(0)
    return fr.Embedder("resnet18", image_size=SIZE, resize=SIZE).train()


def pictures(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, SIZE, SIZE, generator=random), torch.arange(count) // 4


def plain_pass(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Forward and backward over one batch."""
    model.zero_grad(set_to_none=True)
    fr.PNP()(model(images), labels).backward()


def plain_passes(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, chunk: int) -> None:
    """Forward and backward over all images, a chunk at a time, each with a loss of its own."""
    model.zero_grad(set_to_none=True)
    for some, of in zip(images.split(chunk), labels.split(chunk), strict=True):
        fr.PNP()(model(some), of).backward()


def multistage(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, chunk: int) -> None:
    model.zero_grad(set_to_none=True)
    fr.multistage_backward(model, fr.PNP(), images, labels, chunk=chunk)


def case_memory(name: str, batch: int, chunk: int) -> dict[str, float]:
    """Peak memory of two steps, above that of the images: weights, gradients, activations, embeddings."""
    images, labels = pictures(batch)
    plain_pass(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, 8)), images[:8], labels[:8])

    def run() -> None:
        model = network()
        for _ in range(2):
            if name == "multistage":
                multistage(model, images, labels, chunk)
            else:
                plain_pass(model, *((images[:chunk], labels[:chunk]) if name == "chunk" else (images, labels)))

    seconds, extra = extra_memory(run)
    return {"seconds": seconds, "extra_mb": extra / MB}


def section_multistage(results: Results, batch: int, chunk: int, rounds: int) -> None:
    model = network()
    images, labels = pictures(batch)
    seconds: dict[str, list[float]] = {"plain passes": [], "multistage": []}
    plain_passes(model, images[: 2 * chunk], labels[: 2 * chunk], chunk)
    for _ in range(rounds):
        for name, work in (("plain passes", plain_passes), ("multistage", multistage)):
            start = time.perf_counter()
            work(model, images, labels, chunk)
            seconds[name].append(time.perf_counter() - start)
    memory = {
        name: in_own_process(__file__, {"kind": "memory", "name": name, "batch": batch, "chunk": chunk})
        for name in ("chunk", "multistage", "plain")
    }
    best = {name: min(of) for name, of in seconds.items()}
    row = {
        "batch": batch,
        "chunk": chunk,
        "all_seconds": seconds,
        "time_ratio": best["multistage"] / best["plain passes"],
        "memory": memory,
        "memory_ratio": memory["multistage"]["extra_mb"] / memory["chunk"]["extra_mb"],
        "images_mb": images.nbytes / MB,
        "embeddings_mb": batch * 512 * 4 / MB,
    }
    results["multistage"] = row
    say(f"\nmultistage, batch {batch:,}, chunk {chunk}, ResNet-18 at {SIZE} px")
    say(f"  the images, {row['images_mb']:.0f} MB, are not counted")
    say(f"  time    {best['multistage']:.2f} s, {row['time_ratio']:.2f} x forward and backward over the same images")
    parts = ", ".join(f"{name} {of.get('extra_mb', float('nan')):.0f} MB" for name, of in memory.items())
    say(f"  memory  {row['memory_ratio']:.2f} x a plain batch of {chunk} ({parts})")


def section_loss(results: Results, batch: int, steps: int) -> None:
    """The loss's share of a step: its own forward and backward, beside the whole step with the optimizer."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)
    images, labels = pictures(batch)
    rows = {}
    say(f"\nshare of the loss in a training step, batch {batch}, ResNet-18 at {SIZE} px")
    for name, make in LOSSES.items():
        loss, whole, own = make(), [], []
        for _ in range(steps):
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            embeddings = model(images)
            found = embeddings.detach().requires_grad_()
            before = time.perf_counter()
            loss(found, labels).backward()
            own.append(time.perf_counter() - before)
            embeddings.backward(found.grad)
            optimizer.step()
            whole.append(time.perf_counter() - start)
        rows[name] = {"step_ms": 1000 * float(np.median(whole)), "loss_ms": 1000 * float(np.median(own))}
        rows[name]["share"] = rows[name]["loss_ms"] / rows[name]["step_ms"]
        say(f"  {name:16}{rows[name]['loss_ms']:8.2f} of {rows[name]['step_ms']:8.1f} ms {rows[name]['share']:8.2%}")
    results["loss"] = {"batch": batch, "rows": rows}


def write_pictures(folder: Path, classes: int, per_class: int) -> None:
    """Small JPEG files of smooth colours, as from a camera."""
    from PIL import Image

    random = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"{label:04}").mkdir(parents=True)
        for number in range(per_class):
            small = Image.fromarray(random.integers(0, 255, (9, 9, 3), dtype=np.uint8))
            small.resize((72, 72), Image.Resampling.BICUBIC).save(folder / f"{label:04}" / f"{number}.jpg", quality=90)


def section_loading(results: Results, steps: int) -> None:
    """How long the loop waits for images, from the log of a real run."""
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder) / "images", 200, 10)
        config = TrainConfig(
            data=DataConfig(path=f"{folder}/images", resize=72, size=SIZE, workers=2, validation=0.0),
            batches=BatchConfig(size=128),
            model=ModelConfig(backbone="resnet18", weights="none"),
            iterations=steps,
            log_every=1,
        )
        fr.train(config, f"{folder}/run", quiet=True)
        lines = read_log(Path(folder) / "run" / "log.jsonl")
    after = [line for line in lines if line["step"] > 3]  # the workers start in the first steps
    waiting = float(np.mean([line["waiting for images"] for line in after]))
    speed = float(np.median([line["images/s"] for line in after]))
    results["loading"] = {"steps": len(after), "waiting_share": waiting, "images_per_second": speed, "workers": 2}
    say(f"\nloading, 72 px JPEG, 2 workers, batch 128: waiting {waiting:.2%} of the time at {speed:.0f} images/s")


def case_processes(batch: int, steps: int) -> dict[str, float]:
    """Seconds of a step of one global batch, and of the exchange in it, at this number of processes."""
    distributed.start("cpu")
    world = distributed.world_size()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    model, loss = distributed.wrap_model(network()), fr.PNP()
    images, labels = pictures(batch)
    start, stop = batch * distributed.rank() // world, batch * (distributed.rank() + 1) // world
    whole, exchange = [], []
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        step_gradient(model, loss, images[start:stop], labels[start:stop])
        whole.append(time.perf_counter() - begin)
        rows = torch.randn(stop - start, 512, requires_grad=True)
        distributed.barrier()
        begin = time.perf_counter()
        gathered = distributed.gather(rows)
        distributed.gather_rows(labels[start:stop])
        gathered.sum().backward()
        exchange.append(time.perf_counter() - begin)
    distributed.stop()
    return {"seconds": float(np.median(whole)), "exchange_seconds": float(np.median(exchange))}


def section_processes(results: Results, batch: int, steps: int) -> None:
    case = json.dumps({"kind": "processes", "batch": batch, "steps": steps})
    rows = {}
    for count in (1, 2):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        done = subprocess.run(
            [*command, __file__, "--case", case], capture_output=True, text=True, timeout=900, check=True
        )
        rows[count] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    ratio = rows[2]["seconds"] / rows[1]["seconds"]
    share = rows[2]["exchange_seconds"] / rows[2]["seconds"]
    results["processes"] = {"batch": batch, "rows": rows, "ratio": ratio, "exchange_share": share}
    say(f"\nprocesses, global batch {batch} on all cores: 2 take {ratio:.2f} x the {rows[1]['seconds']:.2f} s of 1")
    say(f"  the exchange of embeddings alone is {1000 * rows[2]['exchange_seconds']:.1f} ms, {share:.2%} of a step")


CASES: dict[str, Callable[..., dict[str, float]]] = {"memory": case_memory, "processes": case_processes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small batches, nothing written")
    parser.add_argument("--only", help="sections: multistage,loss,loading,processes")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "training.json")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case = json.loads(options.case)
        found = CASES[case.pop("kind")](**case)
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(found))
        return
    results: Results = {}
    if options.only and options.out.exists():
        results = json.loads(options.out.read_text())
    results |= {"machine": machine(), "command": "python benchmarks/training.py"}
    say(f"{results['machine']}")
    sections: dict[str, Callable[[], None]] = {
        "multistage": lambda: section_multistage(results, 1024, 32, rounds=3),
        "loss": lambda: section_loss(results, 128, steps=15),
        "loading": lambda: section_loading(results, steps=40),
        "processes": lambda: section_processes(results, 128, steps=10),
    }
    if options.quick:
        sections = {
            "multistage": lambda: section_multistage(results, 128, 32, rounds=1),
            "loss": lambda: section_loss(results, 128, steps=3),
        }
    wanted = options.only.split(",") if options.only else list(sections)
    if unknown := set(wanted) - set(sections):
        sys.exit(f"--only: unknown section {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        sections[name]()
        if not options.quick:
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    if not options.quick:
        say(f"\nwritten: {options.out}")


if __name__ == "__main__":
    main()
