"""Speed and memory of the losses, as ratios in one run.

    python benchmarks/losses.py            everything, about twenty minutes on 2 cores
    python benchmarks/losses.py --quick    small batches only, under a minute
    python benchmarks/losses.py --only batch,list
    python benchmarks/losses.py --only batch,huge,graded --short    about six minutes, of which five are 65,536

Prints tables; writes benchmarks/results/losses.json and losses.png / .svg (not with --quick; with --only those
sections of the file are replaced). --short measures batches of 384 and 4,096 without the other library's limits, and of
65,536 only for the losses of graded relevance; the other rows of the file stay.
The floor is the bare product E @ E.T with its autograd backward for a dense gradient: three matrix products.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import MB, exponent, extra_memory, in_own_process, interleaved, limit_memory, machine, say

import frontrank as fr

DIM = 512
PER_CLASS = 4
LOSSES: dict[str, Callable[[], torch.nn.Module]] = {
    "PNP": fr.PNP,
    "SmoothAP": fr.SmoothAP,
    "FastAP": fr.FastAP,
    "QuantizedAP": fr.QuantizedAP,
    "BlackboxRecall": fr.BlackboxRecall,
    "BlackboxAP": fr.BlackboxAP,
}
GRADED: dict[str, Callable[[], torch.nn.Module]] = {
    "RecallAtK": fr.RecallAtK,
    "SupAP": fr.SupAP,
    "SmoothNDCG": fr.SmoothNDCG,
    "HierarchicalAP": fr.HierarchicalAP,
}
LEVELS = (4, 64, 512)  # images per class of each level, in a batch of 4,096
PEERS = {"PML PNPLoss": "PNP", "PML SmoothAPLoss": "SmoothAP", "PML FastAPLoss": "FastAP"}
TARGETS = {"PNP": 1.3, "SmoothAP": 1.3, "FastAP": 1.6, "QuantizedAP": 2.0, "BlackboxRecall": 1.3, "BlackboxAP": 1.3}
PEER_LIMIT_GB = 16.0
Results = dict[str, Any]


def loss_named(name: str) -> torch.nn.Module:
    if name in LOSSES | GRADED:
        return (LOSSES | GRADED)[name]()
    from pytorch_metric_learning import losses

    if name == "PML PNPLoss":
        return losses.PNPLoss(variant="Dq", alpha=4, anneal=0.01)
    return {"PML SmoothAPLoss": losses.SmoothAPLoss, "PML FastAPLoss": losses.FastAPLoss}[name]()


def batch(size: int, classes: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    labels = torch.arange(size) // PER_CLASS if classes is None else torch.arange(size) % classes
    return torch.randn(size, DIM, requires_grad=True), labels


def step(loss: Callable[..., torch.Tensor], embeddings: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        embeddings.grad = None
        loss(embeddings, labels).backward()

    return run


def floor(embeddings: torch.Tensor) -> Callable[[], None]:
    dense = torch.randn(len(embeddings), len(embeddings)) / len(embeddings)

    def run() -> None:
        embeddings.grad = None
        (embeddings @ embeddings.T).backward(dense)

    return run


def block_products(embeddings: torch.Tensor) -> Callable[[], None]:
    """The three products of the floor, block by block: what no batch is too large for."""
    items = embeddings.detach()

    def run() -> None:
        grad = torch.zeros_like(items)
        for rows in torch.arange(len(items)).split(512):
            block = items[rows[0] : rows[-1] + 1]
            scores = block @ items.T
            grad[rows[0] : rows[-1] + 1] += scores @ items
            grad.addmm_(scores.T, block)

    return run


# --- cases that run in a process of their own ------------------------------------------------------


def case_memory(size: int, name: str, classes: int | None = None) -> dict[str, float]:
    if name.startswith("PML"):
        limit_memory(PEER_LIMIT_GB)
    loss = loss_named(name)
    step(loss, *batch(8))()  # loads the libraries
    seconds, extra = extra_memory(step(loss, *batch(size, classes)))
    return {"seconds": seconds, "extra_mb": extra / MB}


def case_levels(size: int, name: str) -> dict[str, float]:
    embeddings, _ = batch(size)
    loss, labels = loss_named(name), torch.stack([torch.arange(size) // each for each in LEVELS], 1)
    step(loss, *batch(8))()
    seconds, extra = extra_memory(step(loss, embeddings, labels))
    return {"seconds": seconds, "extra_mb": extra / MB}


def plain_recall_at_k(embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The surrogate as it is described: all comparisons of a query, batch x gallery x gallery, are held."""
    unit = torch.nn.functional.normalize(embeddings)
    scores, others = unit @ unit.T, ~torch.eye(len(unit), dtype=torch.bool)
    relevant = (labels[:, None] == labels) & others
    before = torch.sigmoid((scores[:, None, :] - scores[:, :, None]) / 0.01)
    skipped = torch.eye(len(unit), dtype=torch.bool)[None] | ~others[:, None, :]
    ranks = 1 + before.masked_fill(skipped, 0).sum(2)
    values = []
    for k in (1, 2, 4, 8, 16):
        found = (torch.sigmoid(k - ranks) * relevant).sum(1).clamp(max=k)
        values.append(found / relevant.sum(1).clamp(max=k))
    return 1 - torch.stack(values).mean()


def case_floor_memory(size: int) -> dict[str, float]:
    embeddings, _ = batch(size)
    floor(batch(8)[0])()
    seconds, extra = extra_memory(floor(embeddings))
    return {"seconds": seconds, "extra_mb": extra / MB}


def case_products(size: int) -> dict[str, float]:
    return {"seconds": extra_memory(block_products(batch(size)[0]))[0]}


def case_huge(size: int) -> dict[str, object]:
    embeddings, labels = batch(size)
    products = block_products(embeddings)
    bare, rows = [extra_memory(products)[0]], []
    for name in LOSSES:
        loss = loss_named(name)
        step(loss, *batch(64))()
        seconds, extra = extra_memory(step(loss, embeddings, labels))
        rows.append({"name": name, "seconds": seconds, "extra_mb": extra / MB})
        embeddings.grad = None
        if len(rows) % 3 == 0:
            bare.append(extra_memory(products)[0])
    return {"products_seconds": bare, "losses": rows}


def case_reference(items: int, queries: int, name: str) -> dict[str, float]:
    torch.manual_seed(0)
    gallery, of_gallery = torch.randn(items, DIM), torch.arange(items) // PER_CLASS
    chosen = torch.randperm(items)[:queries]
    embeddings = (gallery[chosen] + torch.randn(queries, DIM)).requires_grad_()
    loss = loss_named(name)
    step(loss, *batch(64))()

    def run() -> None:
        loss(embeddings, of_gallery[chosen], ref_emb=gallery, ref_labels=of_gallery).backward()

    seconds, extra = extra_memory(run)
    return {"seconds": seconds, "extra_mb": extra / MB}


def case_list(length: int) -> dict[str, float]:
    """RaMBO's Table 6: the AP loss of one list with 1 % positives, forward and backward, on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    relevant = torch.zeros(length, dtype=torch.bool)
    relevant[torch.randperm(length)[: length // 100]] = True
    scores = torch.randn(length, dtype=torch.float64) * 0.2 + relevant * 0.3
    lam = length / 10  # far enough that many positives overtake
    ours = fr.BlackboxAP(lam=lam, margin=0.02)
    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "ours": lambda x: ours.of_scores(x[None], relevant[None]),
        "literal": lambda x: literal_ap(x, relevant, lam, margin=0.02),
    }

    def gradient(name: str, dtype: torch.dtype) -> torch.Tensor:
        leaf = scores.to(dtype).requires_grad_()
        return torch.autograd.grad(ways[name](leaf), leaf)[0]

    seconds = interleaved({n: partial(gradient, n, torch.float32) for n in ways}, 3 if length > 3_000_000 else 7)
    here, literal = (gradient(name, torch.float64) for name in ways)
    return {
        "seconds": min(seconds["ours"]),
        "literal_seconds": min(seconds["literal"]),
        "different_gradients": int((~torch.isclose(here, literal, rtol=1e-12, atol=0)).sum()),
        "gradients": int((literal != 0).sum()),
    }


def literal_ap(scores: torch.Tensor, relevant: torch.Tensor, lam: float, margin: float) -> torch.Tensor:
    """Algorithm 1 as printed: two argsorts for each ranking."""
    shifted = torch.where(relevant, scores - margin / 2, scores + margin / 2)
    among = _ranking(shifted[relevant].detach())
    return 1 - (among / _LiteralRanking.apply(shifted, lam)[relevant]).mean()


def _ranking(y: torch.Tensor) -> torch.Tensor:
    return y.argsort(descending=True).argsort().to(y.dtype) + 1


class _LiteralRanking(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, lam):
        ctx.lam = lam
        ranks = _ranking(y)
        ctx.save_for_backward(y, ranks)
        return ranks

    @staticmethod
    def backward(ctx, grad):
        y, ranks = ctx.saved_tensors
        return (_ranking(y + ctx.lam * grad) - ranks) / ctx.lam, None


def case_long(name: str, items: int, positives: int) -> dict[str, float]:
    """One list of given scores."""
    torch.manual_seed(0)
    scores, relevant = 0.1 * torch.randn(1, items), torch.zeros(1, items, dtype=torch.bool)
    relevant[0, torch.randperm(items)[:positives]] = True
    loss: Any = loss_named(name)

    def run() -> None:
        leaf = scores.clone().requires_grad_()
        loss.of_scores(leaf, relevant).backward()

    run()
    seconds, extra = extra_memory(run)
    return {"seconds": min(seconds, *interleaved({name: run}, 3)[name]), "extra_mb": extra / MB}


CASES: dict[str, Callable[..., dict[str, Any]]] = {
    "memory": case_memory,
    "floor": case_floor_memory,
    "huge": case_huge,
    "products": case_products,
    "levels": case_levels,
    "reference": case_reference,
    "list": case_list,
    "long": case_long,
}


def own(kind: str, **arguments: object) -> dict[str, Any]:
    return in_own_process(__file__, {"kind": kind, **arguments})


# --- sections ------------------------------------------------------------------------------------------


def section_batch(results: Results, sizes: list[int], memory: bool, short: bool = False) -> None:
    """Forward + backward by batch size against the floor, and where the peers stop."""
    say(
        f"\nBatch of n x {DIM}, {PER_CLASS} per class, float32, forward + backward: "
        "best ms (ratio to the floor's best) [extra MB]"
    )
    rows = []
    for size in sizes:
        embeddings, labels = batch(size)
        work = {"floor": floor(embeddings)} | {n: step(loss_named(n), embeddings, labels) for n in LOSSES}
        if size <= 384 and have_peers():
            work |= {n: step(loss_named(n), embeddings, labels) for n in PEERS}
        seconds = interleaved(work, 5 if size <= 384 else 9)
        row: dict[str, object] = {"size": size}
        for name, times in seconds.items():
            ratio = statistics.median(t / f for t, f in zip(times, seconds["floor"], strict=True))
            row[name] = {"ms": 1e3 * min(times), "ratio": min(times) / min(seconds["floor"]), "median_ratio": ratio}
        if memory:
            for name in work:
                measured = own("floor", size=size) if name == "floor" else own("memory", size=size, name=name)
                row[name] |= measured  # type: ignore[operator]
        rows.append(row)
        say_row(size, {k: v for k, v in row.items() if k != "size"})
    if short:
        rows += [row for row in results.get("batch", []) if row["size"] not in sizes]
    results["batch"] = sorted(rows, key=lambda row: row["size"])
    if have_peers() and not short:
        results["peers_stop"] = peers_stop() if memory else None


def peers_stop() -> list[dict[str, object]]:
    say(f"\nLarger batches in peers, allowed {PEER_LIMIT_GB:.0f} GB, and here")
    rows = []
    for size in (768, 1024, 2048):
        for name in (*PEERS, *PEERS.values()):
            measured = own("memory", size=size, name=name)
            rows.append({"size": size, "name": name, **measured})
            said = (
                f"{1e3 * measured['seconds']:9.0f} ms {measured['extra_mb']:8.0f} MB extra"
                if "seconds" in measured
                else ("stops: out of memory" if "allocate memory" in measured["failed"] else measured["failed"])
            )
            say(f"  n = {size:5d}  {name:18s} {said}")
    return rows


def section_huge(results: Results, size: int) -> None:
    say(f"\nOne batch of {size:,} x {DIM}, exact value and gradient, against the three bare block products")
    results["huge"] = measured = own("huge", size=size)
    if "failed" in measured:
        say(f"  {measured['failed']}")
        return
    bare = statistics.median(measured["products_seconds"])
    say(f"  products {bare:6.1f} s (median of {[round(s, 1) for s in measured['products_seconds']]})")
    for row in measured["losses"]:
        ratio = row["seconds"] / bare
        say(f"  {row['name']:14s} {row['seconds']:6.1f} s  {ratio:5.2f}x the products  {row['extra_mb']:5.0f} MB extra")


def section_graded(results: Results, sizes: list[int], huge: int) -> None:
    """Losses of graded relevance and of later papers: against the floor, with three levels, and in a huge batch."""
    say("\nLosses of later papers, forward + backward: best ms (ratio to the floor's best) [extra MB]")
    rows = []
    for size in sizes:
        embeddings, labels = batch(size)
        work = {"floor": floor(embeddings)} | {n: step(loss_named(n), embeddings, labels) for n in GRADED}
        if size <= 384:
            work["plain RecallAtK"] = step(plain_recall_at_k, embeddings, labels)
        seconds = interleaved(work, 5)
        row: dict[str, Any] = {"size": size}
        for name, times in seconds.items():
            row[name] = {"ms": 1e3 * min(times), "ratio": min(times) / min(seconds["floor"])}
        for name in ("floor", *GRADED):
            row[name] |= own("floor", size=size) if name == "floor" else own("memory", size=size, name=name)
        rows.append(row)
        say_row(size, {k: v for k, v in row.items() if k != "size"})
    say(f"  three levels with {', '.join(map(str, LEVELS))} images per class, batch 4,096")
    levels = [{"name": name, **own("levels", size=4096, name=name)} for name in ("SmoothNDCG", "HierarchicalAP")]
    large = [{"name": "products", "size": huge, **own("products", size=huge)}]
    large += [{"name": name, "size": huge, **own("memory", size=huge, name=name)} for name in GRADED]
    for row in (*levels, *large):
        said = row.get("failed") or f"{row['seconds']:7.1f} s  {row.get('extra_mb', 0):6.0f} MB extra"
        say(f"  {row.get('size', 4096):,} {row['name']:16s} {said}")
    results["graded"] = {"batch": rows, "levels": levels, "huge": large}


def section_classes(results: Results) -> None:
    say("\nLarge classes: batch 4,096 in 16 classes, x floor in one run")
    results["classes"] = rows = []
    embeddings, labels = batch(4096, 16)
    work = {"floor": floor(embeddings)} | {name: step(loss_named(name), embeddings, labels) for name in LOSSES}
    seconds = {name: min(times) for name, times in interleaved(work, 3).items()}
    for name in LOSSES:
        measured = own("memory", size=4096, name=name, classes=16) | {"seconds": seconds[name]}
        rows.append({"name": name, **measured, "ratio": seconds[name] / seconds["floor"]})
        said = f"{rows[-1]['ratio']:6.2f}x floor  {measured['extra_mb']:6.0f} MB extra"
        say(f"  {name:16s} {measured['seconds']:7.2f} s  {said}")


def section_long(results: Results) -> None:
    say("\nOne list of 100,000 given scores, forward + backward: 1,000 positives, and 1")
    results["long"] = rows = []
    for name in LOSSES | GRADED:
        many, one = (own("long", name=name, items=100_000, positives=count) for count in (1000, 1))
        rows.append({"name": name, **many, "of_one_seconds": one["seconds"]})
        said = f"{many['seconds'] / one['seconds']:6.1f}x that of 1 positive  {many['extra_mb']:6.0f} MB extra"
        say(f"  {name:16s} {1e3 * many['seconds']:8.1f} ms  {said}")


def section_reference(results: Results) -> None:
    say("\nA reference set of 1,000,000 and 512 queries (the set itself: 1,953 MB)")
    results["reference"] = rows = []
    for name in LOSSES:
        measured = own("reference", items=1_000_000, queries=512, name=name)
        rows.append({"name": name, **measured})
        said = measured.get("failed") or f"{measured['seconds']:7.1f} s  {measured['extra_mb']:6.0f} MB extra"
        say(f"  {name:16s} {said}")


def section_reuse(results: Results, size: int) -> None:
    say(f"\nSecond backward of the same graph, and no_grad, at batch {size}: share of forward + backward")
    embeddings, labels = batch(size)
    results["reuse"] = rows = []
    for name in LOSSES:
        loss = loss_named(name)
        graph = loss(embeddings, labels)

        def without(loss: torch.nn.Module = loss) -> None:
            with torch.no_grad():
                loss(embeddings, labels)

        seconds = interleaved(
            {
                "full": step(loss, embeddings, labels),
                "again": lambda graph=graph: graph.backward(retain_graph=True),
                "no_grad": without,
            },
            5,
        )
        best = {k: min(v) for k, v in seconds.items()}
        row = {"name": name, "again": best["again"] / best["full"], "no_grad": best["no_grad"] / best["full"]}
        rows.append(row)
        say(f"  {name:16s} second backward {row['again']:6.3f}  no_grad {row['no_grad']:6.3f}")


def section_list(results: Results, lengths: list[int]) -> None:
    say("\nOne list with 1 % positives, AP loss forward + backward, one thread (RaMBO's Table 6)")
    results["list"] = rows = []
    for length in lengths:
        row = {"length": length, **own("list", length=length)}
        rows.append(row)
        say(
            f"  n = {length:>10,}  here {1e3 * row['seconds']:8.1f} ms  literal Algorithm 1 "
            f"{1e3 * row['literal_seconds']:8.1f} ms  {row['literal_seconds'] / row['seconds']:5.1f}x  "
            f"gradients that differ (float64): {row['different_gradients']} of {row['gradients']:,}"
        )


def section_growth(results: Results) -> None:
    """Fitted exponents: time ~ size^e over the measured range."""
    say("\nHow cost grows: exponent e in time ~ size^e")
    growth: dict[str, float] = {}
    large = [row for row in results.get("batch", []) if row["size"] >= 1024]
    if len(large) > 1:
        for name in ("floor", *LOSSES):
            growth[name] = exponent([r["size"] for r in large], [r[name]["ms"] for r in large])
    lists = results.get("list", [])
    if len(lists) > 1:
        growth["list"] = exponent([r["length"] for r in lists], [r["seconds"] for r in lists])
    for name, value in growth.items():
        say(f"  {name:16s} {value:5.2f}" + ("  (in the list's length)" if name == "list" else ""))
    results["growth"] = growth


def say_row(size: int, row: dict[str, dict[str, float]]) -> None:
    say(f"  n = {size}")
    for name, cell in row.items():
        memory = f"  [{cell['extra_mb']:7.1f} MB]" if "extra_mb" in cell else ""
        target = f"  (target {TARGETS[name]})" if size == 4096 and name in TARGETS else ""
        say(f"    {name:18s} {cell['ms']:9.2f} ms  ({cell['ratio']:7.2f}x){memory}{target}")


def have_peers() -> bool:
    try:
        import pytorch_metric_learning  # noqa: F401
    except ImportError:
        return False
    return True


def plot(results: Results, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "frontrank", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    colours = ["#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    rows = results["batch"]
    for axis, key, title in ((left, "ms", "forward + backward, ms"), (right, "extra_mb", "extra memory, MB")):
        for colour, name in zip(colours, ("floor", *LOSSES), strict=True):
            points = [(r["size"], r[name][key]) for r in rows if key in r[name]]
            axis.plot(*zip(*points, strict=True), "o-", color=colour, label=name, markersize=4, linewidth=1.5)
        for style, name in zip(("^", "s", "D"), PEERS, strict=True):
            points = [(r["size"], r[name][key]) for r in rows if name in r and key in r[name]]
            scale = {"ms": ("seconds", 1e3), "extra_mb": ("extra_mb", 1.0)}[key]
            for r in results.get("peers_stop") or []:
                if r["name"] == name and "failed" not in r:
                    points.append((r["size"], r[scale[0]] * scale[1]))
            if points:
                xs, ys = zip(*points, strict=True)
                axis.plot(xs, ys, style + "--", color="#777777", label=name, markersize=5, linewidth=1)
        axis.set(xscale="log", yscale="log", xlabel="batch size", title=title)
        axis.set_xticks([r["size"] for r in rows], [f"{r['size']:,}" for r in rows], rotation=30)
        axis.minorticks_off()
        axis.grid(alpha=0.25)
    right.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small batches and lists, nothing written")
    parser.add_argument("--short", action="store_true", help="with --only: only what changes most")
    parser.add_argument("--only", help="sections: batch,reuse,classes,list,long,reference,huge,graded")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "losses.json")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case = json.loads(options.case)
        print(json.dumps(CASES[case.pop("kind")](**case)))
        return
    results: Results = {}
    if options.only and options.out.exists():
        results = json.loads(options.out.read_text())
    results = {"machine": machine(), "command": "python benchmarks/losses.py", "measured_later": {}} | results
    say(f"{machine()}")
    sections: dict[str, Callable[[], None]] = {
        "batch": lambda: section_batch(results, [112, 224, 384, 1024, 2048, 4096], memory=True),
        "reuse": lambda: section_reuse(results, 4096),
        "classes": lambda: section_classes(results),
        "list": lambda: section_list(results, [100_000, 1_000_000, 10_000_000]),
        "long": lambda: section_long(results),
        "reference": lambda: section_reference(results),
        "huge": lambda: section_huge(results, 65_536),
        "graded": lambda: section_graded(results, [384, 4096], 65_536),
    }
    if options.short:
        sections["batch"] = lambda: section_batch(results, [384, 4096], memory=True, short=True)
        sections["huge"] = lambda: say("\nbatches of 65,536 of the other losses are measured without --short")
    if options.quick:
        sections = {
            "batch": lambda: section_batch(results, [112, 384, 1024], memory=False),
            "list": lambda: section_list(results, [100_000, 1_000_000]),
        }
    wanted = options.only.split(",") if options.only else list(sections)
    if unknown := set(wanted) - set(sections):
        sys.exit(f"--only: unknown section {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
    for name in wanted:
        sections[name]()
        if machine() != results["machine"]:
            results["measured_later"][name] = machine()
    section_growth(results)
    if options.quick:
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    if "batch" in results:
        plot(results, options.out)
    say(f"\nwritten: {options.out}, {options.out.with_suffix('.png')}, {options.out.with_suffix('.svg')}")


if __name__ == "__main__":
    main()
