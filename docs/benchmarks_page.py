# ruff: noqa: E501 (lines of the page are as long as those of other pages)
"""Write docs/benchmarks.md from benchmarks/results/*.json: python docs/benchmarks_page.py."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
Results = Mapping[str, Any]
HEAD = """\
# Speed and memory

Every table here is written from a file in `benchmarks/results` by `python docs/benchmarks_page.py`. The figures are those of one
shared machine without a GPU, so look at the ratios: both sides of a ratio were measured in the same run. Random numbers have fixed seeds, which the
scripts name.
"""


def build(results: Path = ROOT / "benchmarks" / "results") -> str:
    """Return the page."""
    read = {name: json.loads((results / f"{name}.json").read_text(encoding="utf-8")) for name in SECTIONS}
    parts = [section(read[name]) + source(name, read[name]) for name, section in SECTIONS.items()]
    return HEAD + "".join(parts)


def losses(found: Results) -> str:
    """Return the losses beside the bare products, and beside another library."""
    sizes = {row["size"]: row for row in found["batch"]}
    small, large = sizes[384], sizes[4096]
    products = median(found["huge"]["products_seconds"])
    rows = []
    for huge in found["huge"]["losses"]:
        name = huge["name"]
        own = small[name], large[name]
        rows.append(
            [
                f"`{name}`",
                f"{own[0]['ms']:.1f} ms",
                f"{own[1]['ms']:.0f} ms",
                f"{own[1]['ratio']:.2f}",
                megabytes(own[1]),
                f"{huge['seconds']:.0f} s",
                f"{huge['seconds'] / products:.2f}",
                megabytes(huge),
            ]
        )
    floor = small["floor"], large["floor"]
    times = f"{floor[0]['ms']:.1f} ms", f"{floor[1]['ms']:.0f} ms"
    rows.append(["floor, products", *times, "1", megabytes(floor[1]), f"{products:.0f} s", "1", ""])
    columns = ["loss", "batch 384", "batch 4,096", "x floor", "extra memory"]
    columns += ["batch 65,536", "x products", "extra memory"]
    lists = [
        [
            f"{row['length']:,}",
            f"{1000 * row['seconds']:,.0f} ms",
            f"{row['literal_seconds'] / row['seconds']:.1f} times",
        ]
        for row in found["list"]
    ]
    gallery = {row["name"]: row for row in found["reference"]}
    many = [
        [
            f"`{row['name']}`",
            *(f"{each['seconds']:.1f} s, {megabytes(each)}" for each in (row, gallery[row["name"]])),
            f"{row['ratio']:.1f}" if "ratio" in row else "",
        ]
        for row in found["classes"]
    ]
    return f"""
## Speed and memory of the losses

Forward and backward, float32, 512 dimensions, 4 images per class. *Floor*: the bare `E @ E.T` with its autograd backward, three matrix
products. *Products*: the same three, block by block. Extra memory is the rise of the process's peak.

{table(columns, rows)}

Batch 384 beside pytorch-metric-learning, for time and memory alone: the value of its `SmoothAPLoss` is wrong unless a batch has as many classes as images per class
([the example](losses/smooth_ap.md#cost)). Its `PNPLoss` and `SmoothAPLoss` hold the comparison of every two items of every list, its `FastAPLoss` a
matrix of the batch for each bin:

{table(["loss", "its time", "its extra memory", "x time of ours", "x memory of ours"], peers(small))}

{stops(found["peers_stop"])}

A batch of 4,096 in 16 classes of 256, where the work on ranks counts most, and 512 queries against a gallery of 1,000,000 (`ref_emb`).{where(found, "classes", "The large classes were measured")}

{table(["loss", "large classes", "large gallery", "large classes, x floor"], many)}
{long(found["long"]) if "long" in found else ""}
RaMBO's AP on one list with 1 % positives, one thread, beside its Algorithm 1 with sorting; the gradient is the same.{where(found, "list", "Both kinds of lists were measured")}

{table(["scores", "time", "Algorithm 1 takes"], lists)}

![time and memory by batch size](../benchmarks/results/losses.png)
{graded(found["graded"], where(found, "graded", "Measured").strip())}"""


def where(found: Results, section: str, measured: str) -> str:
    """Return the machine of a section that was measured later than the rest, elsewhere."""
    if section not in found.get("measured_later", {}):
        return ""
    machine = found["measured_later"][section]
    return f" {measured} later, on {machine['cores']} cores of {machine['cpu']} with torch {machine['torch']}."


def long(rows: Iterable[Results]) -> str:
    """Return lists with many positives beside lists with one."""
    cells = [
        [f"`{row['name']}`", f"{1000 * row['seconds']:,.0f} ms", f"{row['seconds'] / row['of_one_seconds']:.1f}"]
        for row in rows
    ]
    columns = ["loss", "1,000 positives", "x time of 1 positive"]
    return f"\nOne list of 100,000 given scores (`of_scores`):\n\n{table(columns, cells)}\n"


def accelerator(found: Results) -> str:
    """Return how many kernels, waits and bytes an accelerator would have."""
    rows = [[row["work"], f"{row['kernels']:,}", f"{row['waits']}", f"{row['mb']:,.0f} MB"] for row in found["rows"]]
    return f"""
## Work of an accelerator

Counted on a CPU with the tiles of an accelerator (`frontrank.ranking.tiling("cuda")`), not timed: kernels that are started, how often the
host waits for a result or a copy, and the bytes that kernels read and write. {found["dim"]} dimensions. `evaluate` and `nearest` run on
tensors that say they are on an accelerator; what they do on the host is not counted.

{table(["", "kernels", "waits", "bytes"], rows)}
"""


def graded(found: Results, where: str) -> str:
    """Return the losses of graded relevance and of later papers."""
    small, large = found["batch"]
    huge = {row["name"]: row for row in found["huge"]}
    products = huge.get("products", {}).get("seconds")
    rows = []
    for name in (name for name in large if name not in ("size", "floor")):
        own = [
            f"`{name}`",
            f"{small[name]['ms']:.1f} ms",
            f"{large[name]['ms']:,.0f} ms",
            f"{large[name]['ratio']:.2f}",
        ]
        own.append(megabytes(large[name]))
        if products:
            seconds = huge[name]["seconds"]
            own += [f"{seconds:.0f} s", f"{seconds / products:.2f}", megabytes(huge[name])]
        rows.append(own)
    floor = small["floor"], large["floor"]
    last = ["floor, products", f"{floor[0]['ms']:.1f} ms", f"{floor[1]['ms']:,.0f} ms", "1", megabytes(floor[1])]
    rows.append([*last, f"{products:.0f} s", "1", ""] if products else last)
    columns = ["loss", "batch 384", "batch 4,096", "x floor", "extra memory"]
    columns += ["batch 65,536", "x products", "extra memory"] if products else []
    levels = [[f"`{row['name']}`", f"{row['seconds']:.0f} s", megabytes(row)] for row in found["levels"]]
    return f"""
### Losses of later papers
{where}

{table(columns, rows)}

`RecallAtK` written as it is described, with all comparisons batch x gallery x gallery held at once, takes {small["plain RecallAtK"]["ms"]:,.0f} ms at batch 384.

Three levels with 4, 64 and 512 images per class, batch 4,096, so that a query has 511 positives:

{table(["loss", "time, one run", "extra memory"], levels)}
"""


def peers(small: Results) -> list[list[str]]:
    """Return the losses of the other library at this batch size."""
    rows = []
    for name, ours in {"PNPLoss": "PNP", "SmoothAPLoss": "SmoothAP", "FastAPLoss": "FastAP"}.items():
        peer, own = small[f"PML {name}"], small[ours]
        ratios = [f"{peer['ms'] / own['ms']:.1f}", f"{peer['extra_mb'] / own['extra_mb']:.0f}"]
        rows.append([f"`{name}`", f"{peer['ms']:,.0f} ms", megabytes(peer), *ratios])
    return rows


def stops(rows: Iterable[Results]) -> str:
    """Say at which batch size a loss of the other library first ran out of memory."""
    script = (ROOT / "benchmarks" / "losses.py").read_text(encoding="utf-8")
    limit = re.search(r"^PEER_LIMIT_GB = (\d+)", script, re.MULTILINE)[1]  # type: ignore[index]
    first: dict[str, int] = {}
    for row in rows:
        if "failed" in row:
            first.setdefault(row["name"].removeprefix("PML "), row["size"])
    sentences = [f"With {limit} GB its `{name}` does not finish a batch of {size:,}." for name, size in first.items()]
    return " ".join(sentences)


def evaluation(found: Results) -> str:
    """Return exact evaluation beside the bare product and other libraries."""
    names = {
        "bare product": "the bare product, thrown away",
        "frontrank": "`fr.evaluate`: R@1, 10, 100, 1000, full mAP, mAP@R",
        "faiss top 1,000": "faiss `IndexFlatIP`, top 1,000 (no metrics yet)",
        "PML AccuracyCalculator": "pytorch-metric-learning's `AccuracyCalculator`: P@1, R-precision, mAP@R",
    }
    own, mapped = found["self"], found["mapped"]
    product = own["rows"]["bare product"]["seconds"]
    rows = [
        [text, f"{row['seconds']:.1f} s", f"{row['seconds'] / product:.2f}", megabytes(row)]
        for name, text in names.items()
        for row in [own["rows"][name]]
    ]
    quality = [
        [row["mAP"] if isinstance(row["mAP"], str) else f"{row['mAP']:.2f}", f"{row['ratio']:.1f}"]
        for row in found["quality"]
    ]
    sizes = [[f"{row['per_class']}", f"{row['mAP']:.2f}", f"{row['ratio']:.1f}"] for row in found["classes"]]
    exponents = found["growth"]["exponents"]
    large = ""
    if "large" in found:
        cells = [
            [f"{row['per_class']}", f"{row['mAP']:.2f}", f"{row['ratio']:.1f}", megabytes(row)]
            for row in found["large"]
        ]
        columns = ["images per class", "mAP", "x product", "extra memory"]
        later = where(found, "large", "Measured")
        large = f"\nBy processor time, 16,000 x 256.{later}\n\n{table(columns, cells)}\n"
    if "vggface" in found:
        row = found["vggface"]
        large += (
            f"\nThe size of VGGFace2's test set, {row['items']:,} x {row['dim']} in 500 classes (mAP {row['mAP']:.2f}): "
            f"{row['seconds']:,.0f} s, {row['ratio']:.1f} times the product's processor time, {megabytes(row)}.\n"
        )
    return f"""
## Speed and memory of evaluation

{own["items"]:,} x 512, every item a query (the size of SOP's test set; mAP {own["metrics"]["mAP"]:.2f}):

{table(["", "time", "x product", "extra memory"], rows)}

A memory-mapped gallery of {mapped["items"]:,} x 512 (the size of R1M) with {mapped["queries"]} queries: {mapped["seconds"]:.1f} s, {mapped["held_mb"]:.0f} MB held
beside the mapped pages. Reading the file takes {mapped["read_seconds"]:.2f} s, reading and multiplying {mapped["product_seconds"]:.2f} s.
From 10,000 to 100,000 items the time grows with the power {exponents["frontrank"]:.2f} (bare product {exponents["bare product"]:.2f}).

Worse embeddings take longer, because more items stand near their positives (20,000 x 512). So do larger classes.{where(found, "classes", "Both measured")}

{table(["mAP", "x product"], quality)}

{table(["images per class", "mAP", "x product"], sizes)}
{large}
![time and memory of exact evaluation](../benchmarks/results/evaluation.png)
"""


def training(found: Results) -> str:
    """Return what chunks, the loss, loading and processes cost in training."""
    multistage, memory = found["multistage"], found["multistage"]["memory"]
    shares = [row["share"] for row in found["loss"]["rows"].values()]
    processes = found["processes"]
    parts = " and ".join(f"{memory[name]['extra_mb']:,.0f}" for name in ("multistage", "chunk"))
    rows = [
        [
            f"batch {multistage['batch']:,} in chunks of {multistage['chunk']}, peak memory",
            f"{multistage['memory_ratio']:.2f} times that of a plain batch of {multistage['chunk']} ({parts} MB with weights "
            f"and gradients, the images apart; the batch in one pass takes {memory['plain']['extra_mb']:,.0f} MB)",
        ],
        ["the same, time", f"{multistage['time_ratio']:.2f} times forward and backward over the same images"],
        [
            f"the loss's share of a step, batch {found['loss']['batch']}",
            f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %, over {len(shares)} losses",
        ],
        [
            f"waiting for images, {found['loading']['workers']} workers, small JPEGs, batch 128",
            f"{100 * found['loading']['waiting_share']:.1f} % of the time",
        ],
        [
            f"2 processes against 1 on the same batch of {processes['batch']}",
            f"{processes['ratio']:.2f} times the time, of which the exchange of embeddings is "
            f"{100 * processes['exchange_share']:.1f} %",
        ],
    ]
    return f"""
## Speed and memory of training

ResNet-18 at 64 px, a head of 512 dimensions, float32. What the options mean: [training](train.md#batches-of-any-size).

{table(["", ""], rows)}
"""


def search(found: Results) -> str:
    """Return the embedded index beside bare faiss, the engines beside each other, and the server."""
    names = {"faiss": "faiss (exact at this size)", "faiss, graph": "faiss, a graph forced on it"}
    engines = []
    for name, row in found["engines"]["table"].items():
        plain, filtered = row["plain"], row["filtered"]
        title = names.get(name) or row["facts"]["server"]
        cells = [title, f"{row['fill_seconds']:.0f} s", f"{plain['recall@10']:.3f}", f"{plain['single_ms']:.2f} ms"]
        cells += [f"{plain['batch_ms']:.2f} ms", f"{filtered['recall@10']:.3f}", f"{filtered['single_ms']:.2f} ms"]
        engines.append(cells)
    columns = ["engine", "filled in", "recall@10", "one query", "of 64 at once"]
    columns += ["with a filter for a tenth: recall@10", "one query"]
    embedded, graph = found["embedded"], found["embedded"]["graph"]
    ratios = [[f"exact, {row['rows']:,} x {row['dim']}", *both_ratios(row)] for row in embedded["flat"]]
    for effort in (str(graph["effort"]), "32"):
        row = graph["efforts"][effort]
        recall = row["recall@10"]["frontrank"]
        ratios.append(
            [f"graph, {graph['rows']:,} x {graph['dim']}, effort {effort}, recall@10 {recall:.3f}", *both_ratios(row)]
        )
    ways = []
    for name, row in found["million"]["ways"].items():
        one = row["queries"]["1"]
        cells = [f"{name} ({row['facts']['search']})", f"{row['disk_mb']:,.0f} MB", f"{row['all_mb']:,.0f} MB"]
        cells += [f"{row['peak_mb']:,.0f} MB", f"{row['build_seconds']:.0f} s", f"{row['recall@10']:.3f}"]
        ways.append([*cells, f"{one['frontrank_ms']:.1f} ms", f"{one['ratio']:.2f}"])
    million = ["vectors", "on disk", "in memory", "while built", "built in", "recall@10", "one query", "x bare faiss"]
    server = found["server"]
    indexing = [
        [f"{row['backbone']} at {row['size']} px", f"{100 * row['outside']:.1f} %"] for row in found["indexing"]["rows"]
    ]
    return f"""
## Speed and memory of search

The time of `Index.search`, embedded, as a multiple of bare faiss at the same effort:

{table(["index", "1 query", "64 queries at once"], ratios)}

{found["engines"]["rows"]:,} clustered vectors of {found["engines"]["dim"]} dimensions. Each engine has its default settings, and the servers run on the same 2 cores.
The queries are not in the index; recall@10 counts ties as found:

{table(columns, engines)}

A million vectors of {found["million"]["dim"]} dimensions in a folder:

{table(million, ways)}

The server adds {server["item"]["own"]:.1f} ms (from an item) or {server["picture"]["own"]:.1f} ms (from an upload) to a search, medians of {server["rounds"]} requests. From request
1,000 to {server["memory"]["requests"]:,} its memory grew by {server["memory"]["growth_mb"]:.1f} MB of {max(server["memory"]["mb"].values()):.0f}.

The share of `frontrank index` outside the model. With a small network, two cores have less time to hide the decoding:

{table(["model", "outside the model"], indexing)}

![time beside bare faiss, recall and time of the engines, memory of the server](../benchmarks/results/search.png)
"""


def detection(found: Results) -> str:
    """Return the share of the ranking loss in a step of a detector."""
    share = found["share"]
    return f"""
## Speed and memory of detection

The ranking loss takes {100 * share["share"]:.1f} % of a step of Faster R-CNN at {share["short_side"]} px ({share["scores"]:,} scores), and its memory of scores
{share["memory_megabytes"]:.1f} MB. [Training a detector](detect.md).
"""


SECTIONS = {
    "losses": losses,
    "accelerator": accelerator,
    "evaluation": evaluation,
    "training": training,
    "search": search,
    "detection": detection,
}


def both_ratios(row: Results) -> list[str]:
    """Return the time of 1 and of 64 queries as multiples of bare faiss."""
    return [f"{row['queries'][count]['ratio']:.2f}" for count in ("1", "64")]


def megabytes(row: Results) -> str:
    """Return the memory that a row says."""
    return f"{row['extra_mb']:,.0f} MB"


def source(name: str, found: Results) -> str:
    """Say what was run, and where."""
    machine = found["machine"]
    torch = machine["torch"].partition("+")[0]
    return (
        f"\nMeasured by `{found['command']}` on {machine['cores']} cores of a shared {machine['cpu']}, "
        f"torch {torch}. All of it: [{name}.json](../benchmarks/results/{name}.json).\n"
    )


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))


if __name__ == "__main__":
    PAGE.write_text(build(), encoding="utf-8")
