"""Speed, recall and memory of search, as ratios in one run where that is what counts.

    python benchmarks/search.py            everything, twenty minutes on 2 quiet cores, 2 GB of disk
    python benchmarks/search.py --quick    small indexes, a minute
    python benchmarks/search.py --only embedded,server

embedded   an index in memory beside bare faiss: IndexFlatIP, and the index's own graph with the same effort
indexing   the model's share of the time of indexing images
server     what the server adds to a search, and its memory over many requests
engines    recall and time of faiss, PostgreSQL with pgvector, and Milvus; real servers, started for it
million    memory, recall and time at a million vectors, with and without room for them

Prints tables; writes benchmarks/results/search.json and search.png / .svg (not with --quick; with --only those
sections of the file are replaced).
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import machine, say
from search_embedded import case_million, section_embedded, section_million
from search_engines import section_engines
from search_indexing import section_indexing
from search_server import case_serve, section_server
from search_vectors import Results

CASES: dict[str, Callable[..., dict[str, Any]]] = {"million": case_million, "serve": case_serve}
OURS, OTHERS = "#0072B2", "#999999"


def plot(results: Results, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "frontrank", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    plot_ratios(left, results["embedded"])
    plot_engines(middle, results["engines"])
    held = results["server"]["memory"]["mb"]
    right.plot([int(number) for number in held], list(held.values()), "o-", color=OURS)
    right.set(xlabel="requests", ylim=(0, 1.2 * max(held.values())))
    right.grid(alpha=0.25)
    right.set_title("memory of the server, MB", loc="left")
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=110)


def plot_ratios(axes: Any, found: Results) -> None:
    graph = found["graph"]
    cases = [(f"exact, {row['rows'] // 1000}k x {row['dim']}", row["queries"]) for row in found["flat"]]
    chosen = graph["efforts"][str(graph["effort"])]["queries"]
    cases.append((f"graph, {graph['rows'] // 1000}k x {graph['dim']}", chosen))
    bars = {f"{name}, {count} at once": of["ratio"] for name, counts in cases for count, of in counts.items()}
    drawn = axes.barh(list(bars), list(bars.values()), color=OURS)
    axes.bar_label(drawn, fmt="%.2f", padding=3)
    axes.axvline(1, color=OTHERS, linewidth=1)
    axes.axvline(found["target"], color=OTHERS, linewidth=1, linestyle="--")
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set_title("seconds, as a multiple of bare faiss", loc="left")


def plot_engines(axes: Any, found: Results) -> None:
    for name, of in found["table"].items():
        colour = OURS if name.startswith("faiss") else OTHERS
        for kind, style in (("plain", "o"), ("filtered", "s")):
            axes.plot(of[kind]["single_ms"], of[kind]["recall@10"], style, color=colour)
            said = name if kind == "plain" else "" if name == "faiss, graph" else f"{name}, filter"
            place = (-30, 6) if said == "faiss, filter" else (4, -11)  # beside the graph's, which is as good
            point = of[kind]["single_ms"], of[kind]["recall@10"]
            axes.annotate(said, point, place, textcoords="offset points", fontsize=7)
    axes.set(xscale="log", xlabel="milliseconds of one query")
    axes.grid(alpha=0.25)
    axes.margins(x=0.3, y=0.15)
    axes.set_title(f"recall@10, {found['rows'] // 1000}k x {found['dim']}", loc="left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small indexes, nothing written")
    parser.add_argument("--only", help="sections: embedded,indexing,server,engines,million")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "search.json")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case = json.loads(options.case)
        print("\n" + json.dumps(CASES[case.pop("kind")](**case)))
        return
    results: Results = {}
    if options.only and options.out.exists():
        results = json.loads(options.out.read_text())
    results |= {"machine": machine(), "command": "python benchmarks/search.py"}
    say(f"{results['machine']}")
    sections: dict[str, Callable[[], None]] = {
        "embedded": lambda: section_embedded(results, [(100_000, 128), (100_000, 512)], (250_000, 128), quick=False),
        "indexing": lambda: section_indexing(
            results, [("resnet50", 224, 500, 192), ("resnet18", 96, 160, 1280), ("resnet18", 64, 96, 1280)], rounds=3
        ),
        "server": lambda: section_server(results, 100_000, rounds=300, requests=10_000, warm=1000),
        "engines": lambda: section_engines(results, 100_000, queries=256),
        "million": lambda: section_million(results, 1_000_000),
    }
    if options.quick:
        sections = {
            "embedded": lambda: section_embedded(results, [(20_000, 128)], (10_000, 128), quick=True),
            "indexing": lambda: section_indexing(results, [("resnet18", 64, 96, 128)], rounds=1),
            "server": lambda: section_server(results, 10_000, rounds=30, requests=300, warm=100),
            "engines": lambda: section_engines(results, 10_000, queries=64),
            "million": lambda: section_million(results, 20_000),
        }
    wanted = options.only.split(",") if options.only else list(sections)
    if unknown := set(wanted) - set(sections):
        sys.exit(f"--only: unknown section {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        sections[name]()
        if not options.quick:
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    if options.quick:
        return
    if {"embedded", "server", "engines"} <= set(results):
        plot(results, options.out)
    say(f"\nwritten: {options.out}")


if __name__ == "__main__":
    main()
