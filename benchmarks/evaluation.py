"""Speed and memory of exact evaluation, as ratios in one run.

    python benchmarks/evaluation.py            everything, about ten minutes on 2 cores, 2 GB of disk
    python benchmarks/evaluation.py --quick    a few thousand items, under a minute
    python benchmarks/evaluation.py --only self,growth

Prints tables; writes benchmarks/results/evaluation.json and evaluation.png / .svg (not with --quick; with --only those
sections of the file are replaced).
The floor is the bare product: blocks of 1,024 queries times all items, each thrown away.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import MB, exponent, extra_memory, held_memory, in_own_process, machine, say

import frontrank as fr

DIM = 512
SOP = 60_502, 11_316  # images and classes of the test set of Stanford Online Products
METRICS = ("R@1", "R@10", "R@100", "R@1000", "mAP", "mAP@R")
NOISE = 1.9  # makes mAP about a half at that size
R1M = 1_001_001, 140
Results = dict[str, Any]
Work = Callable[[], object]


def clusters(items: int, classes: int, noise: float = NOISE) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors around class centres, in a space whose directions vary in strength; 2 to 12 items per class."""
    random = torch.Generator().manual_seed(0)
    sizes = torch.full((classes,), 2)
    while (missing := items - int(sizes.sum())) > 0:
        sizes += torch.bincount(torch.randint(classes, (missing,), generator=random), minlength=classes)
        sizes.clamp_(max=12)
    labels = torch.arange(classes).repeat_interleave(sizes)
    strength = torch.linspace(1, 0.05, DIM)
    rows = torch.randn(classes, DIM, generator=random)[labels]
    rows += noise * torch.randn(items, DIM, generator=random)
    return torch.nn.functional.normalize(rows * strength, dim=1), labels


def bare_product(x: torch.Tensor) -> None:
    for start in range(0, len(x), 1024):
        x[start : start + 1024] @ x.T


def ours(x: torch.Tensor, labels: torch.Tensor) -> fr.Report:
    return fr.evaluate(x, labels, metrics=METRICS, progress=False)


def beside_product(x: torch.Tensor, labels: torch.Tensor) -> dict[str, Work]:
    return {"bare product": partial(bare_product, x), "frontrank": partial(ours, x, labels)}


def faiss_top(x: torch.Tensor, labels: torch.Tensor) -> None:
    import faiss

    index = faiss.IndexFlatIP(DIM)
    index.add(x.numpy())
    index.search(x.numpy(), min(1001, len(x)))


def pml(x: torch.Tensor, labels: torch.Tensor) -> None:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    include = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    AccuracyCalculator(include=include, k="max_bin_count", device=torch.device("cpu")).get_accuracy(x, labels)


SELF = {
    "bare product": lambda x, labels: bare_product(x),
    "frontrank": ours,
    "faiss top 1,000": faiss_top,
    "PML AccuracyCalculator": pml,
}


def case_self(name: str, items: int, classes: int) -> dict[str, float]:
    x, labels = clusters(items, classes)
    small, of_small = clusters(2000, 400)
    SELF[name](small, of_small)  # what is loaded once does not count
    seconds, extra = extra_memory(lambda: SELF[name](x, labels))
    return {"seconds": seconds, "extra_mb": extra / MB}


def case_mapped(items: int, queries: int, path: str) -> dict[str, float]:
    gallery = np.load(path, mmap_mode="r")
    random = np.random.default_rng(1)
    asked = random.standard_normal((queries, DIM), dtype=np.float32)
    relevant = [np.sort(random.choice(items, 50, replace=False)) for _ in range(queries)]
    for i, of in enumerate(relevant):
        asked[i] += 0.15 * gallery[of].sum(0)

    def read() -> None:
        for start in range(0, items, 8192):
            gallery[start : start + 8192].sum()

    def run() -> None:
        report.append(fr.evaluate(asked, gallery=gallery, relevant=relevant, metrics=METRICS, progress=False))

    def product() -> None:
        rows = torch.from_numpy(asked)
        for start in range(0, items, 8192):
            rows @ torch.from_numpy(np.array(gallery[start : start + 8192])).T

    report: list[fr.Report] = []
    read_seconds = min(held_memory(read)[0] for _ in range(3))
    product_seconds = min(held_memory(product)[0] for _ in range(3))
    runs = [held_memory(run) for _ in range(3)]
    return {
        "seconds": min(seconds for seconds, _ in runs),
        "read_seconds": read_seconds,
        "product_seconds": product_seconds,
        "file_mb": gallery.nbytes / MB,
        "held_mb": max(extra for _, extra in runs) / MB,
        "mAP": report[0]["mAP"],
    }


def case_large(items: int, dim: int, per_class: int, noise: float, product: bool) -> dict[str, float]:
    """Classes of equal size around random centres; product: only the bare product."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(items) // per_class
    x = torch.randn(int(labels[-1]) + 1, dim, generator=random)[labels]
    x += noise * torch.randn(items, dim, generator=random)
    x /= x.norm(dim=1, keepdim=True)
    ours(*clusters(2000, 400))
    report: list[fr.Report] = []
    start = time.process_time()
    seconds, extra = extra_memory(lambda: bare_product(x) if product else report.append(ours(x, labels)))
    found = {"seconds": seconds, "processor_seconds": time.process_time() - start, "extra_mb": extra / MB}
    return found | ({} if product else {"mAP": report[0]["mAP"]})


CASES: dict[str, Callable[..., dict[str, float]]] = {"self": case_self, "mapped": case_mapped, "large": case_large}


def own(kind: str, **arguments: object) -> dict[str, Any]:
    return in_own_process(__file__, {"kind": kind, **arguments})


def timed(work: dict[str, Work], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def section_self(results: Results, items: int, classes: int, rounds: int) -> None:
    x, labels = clusters(items, classes)
    ours(*clusters(2000, 400))
    seconds = timed(beside_product(x, labels), rounds)
    report = ours(x, labels)
    rows = {name: own("self", name=name, items=items, classes=classes) for name in SELF}
    for name, of in seconds.items():  # these two in turns, because their ratio is what counts
        rows[name] |= {"seconds": min(of), "all_seconds": of}
    results["self"] = {"items": items, "classes": classes, "metrics": dict(report), "rows": rows}
    say(f"\nself-retrieval, {items:,} x {DIM}, {classes:,} classes, mAP {report['mAP']:.3f}, R@1 {report['R@1']:.3f}")
    floor = rows["bare product"]["seconds"]
    for name, row in rows.items():
        if "failed" in row:
            say(f"  {name:24} failed: {row['failed']}")
        else:
            extra = f"{row['extra_mb']:8.0f} MB extra"
            say(f"  {name:24}{row['seconds']:8.2f} s {row['seconds'] / floor:6.2f} x product {extra}")


def section_hard(results: Results) -> None:
    """How the time depends on how good the embeddings are: worse ones have more items before their positives."""
    rows = []
    say(f"\nby quality, 20,000 x {DIM}")
    for noise in (1.0, 1.6, 2.2, 8.0):
        x, labels = clusters(20_000, 3740, noise)
        seconds = timed(beside_product(x, labels), 3)
        ratio = min(seconds["frontrank"]) / min(seconds["bare product"])
        rows.append({"mAP": ours(x, labels)["mAP"], "ratio": ratio})
        say(f"  mAP {rows[-1]['mAP']:.3f}: {ratio:.2f} x product")
    x = torch.ones(20_000, DIM)
    seconds = timed(beside_product(x, labels), 1)
    rows.append({"mAP": "collapsed", "ratio": seconds["frontrank"][0] / seconds["bare product"][0]})
    say(f"  all vectors equal: {rows[-1]['ratio']:.2f} x product")
    results["quality"] = rows


def section_classes(results: Results) -> None:
    """How the time depends on the size of the classes."""
    rows = []
    say(f"\nby class size, 20,000 x {DIM}")
    for classes, noise in ((5000, 2.7), (1000, 2.9), (400, 3.1), (100, 3.7)):
        labels = torch.arange(20_000) % classes
        random = torch.Generator().manual_seed(0)
        x = torch.randn(classes, DIM, generator=random)[labels] + noise * torch.randn(20_000, DIM, generator=random)
        seconds = timed(beside_product(x, labels), 2)
        ratio = min(seconds["frontrank"]) / min(seconds["bare product"])
        rows.append({"per_class": 20_000 // classes, "mAP": ours(x, labels)["mAP"], "ratio": ratio})
        say(f"  {rows[-1]['per_class']:5} per class, mAP {rows[-1]['mAP']:.3f}: {ratio:.2f} x product")
    results["classes"] = rows


LARGE = {  # images per class: noise for a mAP of about .05, .5 and .95
    4: (2.76, 1.84, 1.46),
    20: (3.1, 2.07, 1.55),
    50: (3.28, 2.07, 1.55),
    200: (4.13, 2.32, 1.74),
    340: (4.91, 2.46, 1.74),
}


def section_large(results: Results) -> None:
    """Classes from small to large with embeddings from bad to good: mAP about .05, .5 and .95."""
    shape = {"items": 16_000, "dim": 256}
    results["large"] = rows = []
    say("\nby class size and quality, 16,000 x 256: processor time x that of the product, in processes of their own")
    for per_class, noises in LARGE.items():
        for noise in noises:
            bare, row = (own("large", **shape, per_class=per_class, noise=noise, product=p) for p in (True, False))
            ratio = row["processor_seconds"] / bare["processor_seconds"]
            rows.append({"per_class": per_class, **row, "ratio": ratio})
            say(f"  {per_class:4} per class, mAP {row['mAP']:.2f}: {ratio:5.2f} x product {row['extra_mb']:6.0f} MB")


def section_vggface(results: Results) -> None:
    """The size of VGGFace2's test set: 500 people of about 339 pictures."""
    shape = {"items": 169_396, "dim": DIM, "per_class": 339, "noise": 2.5}
    bare, row = (own("large", **shape, product=p) for p in (True, False))
    ratio = row["processor_seconds"] / bare["processor_seconds"]
    results["vggface"] = {**shape, **row, "ratio": ratio}
    said = f"{row['seconds']:.0f} s, {ratio:.2f} x product, {row['extra_mb']:.0f} MB extra"
    say(f"\n169,396 x {DIM} in 500 classes, mAP {row['mAP']:.2f}: {said}")


def section_mapped(results: Results, items: int, queries: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gallery.npy"
        file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(items, DIM))
        random = np.random.default_rng(0)
        for start in range(0, items, 65_536):
            file[start : start + 65_536] = random.standard_normal((min(65_536, items - start), DIM), dtype=np.float32)
        file.flush()
        del file
        row = own("mapped", items=items, queries=queries, path=str(path))
    results["mapped"] = {"items": items, "queries": queries, **row}
    say(f"\nmapped gallery, {items:,} x {DIM}, {queries} queries")
    if "failed" in row:
        say(f"  failed: {row['failed']}")
        return
    rate = row["file_mb"] / row["read_seconds"]
    say(f"  {row['seconds']:.2f} s, {row['seconds'] / row['read_seconds']:.2f} x reading the file ({rate:,.0f} MB/s),")
    say(f"  {row['seconds'] / row['product_seconds']:.2f} x reading and multiplying; {row['held_mb']:.0f} MB held")


def section_growth(results: Results, sizes: list[int]) -> None:
    rows = []
    say("\ngrowth")
    for items in sizes:
        x, labels = clusters(items, round(items * SOP[1] / SOP[0]))
        seconds = timed(beside_product(x, labels), 1 if items > 50_000 else 2)
        rows.append({"items": items, **{name: min(of) for name, of in seconds.items()}})
        ratio = rows[-1]["frontrank"] / rows[-1]["bare product"]
        say(f"  {items:7,} items: {rows[-1]['frontrank']:7.2f} s, {ratio:.2f} x product")
    powers = {name: exponent(sizes, [row[name] for row in rows]) for name in ("bare product", "frontrank")}
    results["growth"] = {"rows": rows, "exponents": powers}
    say(f"  grows with the power {powers['frontrank']:.2f} of the items (bare product {powers['bare product']:.2f})")


def plot(results: Results, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "frontrank", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    rows = results["self"]["rows"]
    colours = ["#0072B2" if name == "frontrank" else "#999999" for name in rows]
    for axes, key, title in ((left, "seconds", "seconds"), (middle, "extra_mb", "extra memory, MB")):
        bars = axes.barh(list(rows), [row.get(key, 0) for row in rows.values()], color=colours)
        axes.bar_label(bars, fmt="%.1f" if key == "seconds" else "%.0f", padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.18)
        axes.set_title(f"{results['self']['items']:,} x {DIM}: {title}", loc="left")
    middle.set_yticks([])
    for name, colour, style in (("bare product", "#999999", "s--"), ("frontrank", "#0072B2", "o-")):
        points = [(row["items"], row[name]) for row in results["growth"]["rows"]]
        right.plot(*zip(*points, strict=True), style, color=colour, label=name)
    right.set(xscale="log", yscale="log", xlabel="items")
    right.set_xticks([row["items"] for row in results["growth"]["rows"]])
    right.set_xticklabels([f"{row['items'] // 1000}k" for row in results["growth"]["rows"]])
    right.minorticks_off()
    right.grid(alpha=0.25)
    right.set_title("seconds by size", loc="left")
    right.legend(frameon=False)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few thousand items, nothing written")
    parser.add_argument("--only", help="sections: self,quality,classes,large,vggface,mapped,growth")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "evaluation.json")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case = json.loads(options.case)
        print(json.dumps(CASES[case.pop("kind")](**case)))
        return
    results: Results = {}
    if options.only and options.out.exists():
        results = json.loads(options.out.read_text())
    results = {"machine": machine(), "command": "python benchmarks/evaluation.py", "measured_later": {}} | results
    say(f"{machine()}")
    sections: dict[str, Callable[[], None]] = {
        "self": lambda: section_self(results, *SOP, rounds=3),
        "quality": lambda: section_hard(results),
        "classes": lambda: section_classes(results),
        "large": lambda: section_large(results),
        "vggface": lambda: section_vggface(results),
        "mapped": lambda: section_mapped(results, *R1M),
        "growth": lambda: section_growth(results, [10_000, 20_000, 50_000, 100_000]),
    }
    if options.quick:
        sections = {
            "self": lambda: section_self(results, 5000, 935, rounds=3),
            "mapped": lambda: section_mapped(results, 50_000, 140),
        }
    wanted = options.only.split(",") if options.only else list(sections)
    if unknown := set(wanted) - set(sections):
        sys.exit(f"--only: unknown section {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        sections[name]()
        if machine() != results["machine"]:
            results["measured_later"][name] = machine()
        if not options.quick:
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    if options.quick:
        return
    if {"self", "growth"} <= set(results):
        plot(results, options.out)
    say(f"\nwritten: {options.out}")


if __name__ == "__main__":
    main()
