"""The embedded engine beside bare faiss, and at a million vectors."""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from measure import MB, alternated, in_own_process, resident, say
from search_vectors import Clusters, Results, clustered, fill, items, least_scores, recall, rows_of

import frontrank as fr
from frontrank.retrieval import embedded as faiss_engine

K = 10
MILLION_DIM = 128
_SCRIPT = str(Path(__file__).with_name("search.py"))
TARGET = 1.2  # times the seconds of bare faiss


def beside(index: fr.Index, bare: Any, queries: np.ndarray, rounds: dict[int, tuple[int, int]]) -> dict[str, Any]:
    """Milliseconds of our search and of the bare one, and their ratio, by the number of queries at once.

    rounds: how many different batches are asked for, and how often. The best time of each batch counts, which is that
        in which nothing else had the core, and of these the median. Between two times of a batch, also by the other,
        come many others: neither finds in the cache what the other has left there.
    """
    rows = {}
    for count, (batches, times) in rounds.items():
        asked = [queries[start : start + count] for start in range(0, batches * count, count)]
        work = {
            "faiss": lambda number, asked=asked: bare(asked[number % len(asked)]),
            "frontrank": lambda number, asked=asked: index.search(asked[(number + len(asked) // 2) % len(asked)], k=K),
        }
        seconds = alternated(work, batches * times)
        best = {name: np.array(of).reshape(times, batches).min(0) for name, of in seconds.items()}
        row = {f"{name}_ms": 1000 * float(np.median(of)) for name, of in best.items()}
        row["ratio"] = row["frontrank_ms"] / row["faiss_ms"]
        rows[str(count)] = {**row, "batches": batches, "times": times}
        say(
            f"  {count:3} at once: faiss {row['faiss_ms']:8.3f} ms, frontrank {row['frontrank_ms']:8.3f} ms, "
            f"{row['ratio']:.2f} x (target {TARGET})"
        )
    return rows


def graph_of(index: fr.Index) -> Any:
    """The graph by which an index proposes rows; there is no public way to it."""
    engine = index._engine
    assert isinstance(engine, faiss_engine.FaissEngine)
    assert engine._graph is not None
    return engine._graph


def bare_graph(graph: Any) -> Any:
    """The same index object of faiss, asked for the K nearest by itself, with the same effort."""
    if graph.kind == "hnsw":
        settings = faiss.SearchParametersHNSW(efSearch=max(graph.effort, 2 * K + 8))
    else:
        settings = faiss.SearchParametersIVF(nprobe=graph.effort)
    return lambda queries: graph.index.search(queries, K, params=settings)


def section_embedded(results: Results, flat: list[tuple[int, int]], graph: tuple[int, int], quick: bool) -> None:
    """Exact: IndexFlatIP over the same vectors. Approximate: the index's own HNSW object with the same efSearch."""
    found: dict[str, Any] = {"k": K, "target": TARGET, "flat": []}
    rounds = {1: (50, 3), 64: (4, 3)} if quick else {1: (200, 7), 64: (8, 7)}
    for size, dim in flat:
        rows, queries = clustered(size, dim, 4096)
        index, bare = fr.Index(dim=dim, progress=False), faiss.IndexFlatIP(dim)
        fill(index, rows)
        bare.add(rows)
        say(f"\nexact search, {size:,} x {dim}, k={K}, beside IndexFlatIP")
        counts = beside(index, lambda asked, bare=bare: bare.search(asked, K), queries, rounds)
        found["flat"].append({"rows": size, "dim": dim, "queries": counts})
        index.close()
        del index, bare
    found["graph"] = beside_graph(*graph, quick)
    results["embedded"] = found


def beside_graph(size: int, dim: int, quick: bool) -> dict[str, Any]:
    """Beside the same graph with the effort that the index chose, and with others: the less work, the more we add."""
    if quick:  # a small graph is as good for a look
        faiss_engine.EXACT_ROWS = size // 2
    rows, queries = clustered(size, dim, 2048)
    tried = {}
    with fr.Index(dim=dim, progress=False) as index:
        fill(index, rows)
        index.prepare()
        chosen = graph_of(index)
        least = least_scores(rows, queries[:500], K)
        for effort in sorted({32, 64, 128, chosen.effort}):
            graph = index._engine._graph = replace(chosen, effort=effort)
            bare = bare_graph(graph)
            mark = ", chosen by the index" if effort == chosen.effort else ""
            say(f"\napproximate search, {size:,} x {dim}, k={K}, {graph.kind} beside itself at effort {effort}{mark}")
            counts = beside(index, bare, queries, {1: (50, 3), 64: (4, 3)} if quick else {1: (500, 7), 64: (16, 7)})
            ours = recall(rows, queries[:500], rows_of(index.search(queries[:500], k=K)), least, K)
            theirs = recall(rows, queries[:500], bare(queries[:500])[1].tolist(), least, K)
            say(f"  recall@{K}: faiss {theirs:.3f}, frontrank {ours:.3f}")
            tried[str(effort)] = {"queries": counts, "recall@10": {"faiss": theirs, "frontrank": ours}}
    return {"rows": size, "dim": dim, "kind": chosen.kind, "effort": chosen.effort, "efforts": tried}


def case_million(folder: str, size: int, limit: float | None) -> dict[str, Any]:
    """An index of many vectors in a folder, made where there is none; limit: bytes that vectors may take in memory."""
    if size <= faiss_engine.EXACT_ROWS:
        faiss_engine.EXACT_ROWS = size // 2
    if limit is not None:
        faiss_engine.memory_for_vectors = lambda: limit
    made = Clusters(size, MILLION_DIM)
    queries = made.drawn(2048, seed=1)
    bare_process = resident(kind="RssAnon")
    start = time.perf_counter()
    index = fr.Index(folder, dim=MILLION_DIM, progress=False)
    opened = time.perf_counter()
    found: dict[str, Any] = {"open_seconds": opened - start}
    if not len(index):
        for first in range(0, size, 10_000):
            index.add(made.drawn(10_000, seed=2 + first), items(10_000, first))
        found["add_seconds"] = time.perf_counter() - opened
    held = resident(kind="RssAnon")
    begun = time.perf_counter()
    facts = index.prepare().facts
    found["build_seconds"] = time.perf_counter() - begun
    found |= {"facts": dict(facts), "rows_mb": (held - bare_process) / MB}
    found["all_mb"] = (resident(kind="RssAnon") - bare_process) / MB
    found["peak_mb"] = resident(kind="VmHWM") / MB
    graph = graph_of(index)
    if graph.index is not None:
        found["queries"] = beside(index, bare_graph(graph), queries, {1: (200, 5), 64: (3, 5)})
    rows = index._engine._rows.vectors.rows
    asked = queries[:200]
    found["recall@10"] = recall(rows, asked, rows_of(index.search(asked, k=K)), least_scores(rows, asked, K), K)
    found["disk_mb"] = sum(file.stat().st_size for file in Path(folder).iterdir()) / MB
    index.close()
    return found


def section_million(results: Results, size: int) -> None:
    """The index as it is by default, then the same folder where its vectors may not be held in memory."""
    rows = {}
    say(f"\n{size:,} x {MILLION_DIM} in a folder")
    with tempfile.TemporaryDirectory() as folder:
        for name, limit in (("in memory", None), ("vectors left in their file", size * MILLION_DIM)):
            case = {"kind": "million", "folder": f"{folder}/index", "size": size, "limit": limit}
            row = rows[name] = in_own_process(_SCRIPT, case, seconds=7200.0)
            if "failed" in row:
                say(f"  {name}: failed: {row['failed']}")
                continue
            say_million(name, row)
    results["million"] = {"rows": size, "dim": MILLION_DIM, "ways": rows}


def say_million(name: str, row: dict[str, Any]) -> None:
    kind, effort = row["facts"]["search"], row["facts"].get("effort")
    how = f"added in {row['add_seconds']:.0f} s" if "add_seconds" in row else f"opened in {row['open_seconds']:.1f} s"
    say(f"  {name}: {kind}, effort {effort}, recall@{K} {row['recall@10']:.3f}")
    say(f"    {how}, built in {row['build_seconds']:.0f} s, on disk {row['disk_mb']:.0f} MB")
    say(f"    memory {row['all_mb']:.0f} MB, of these rows {row['rows_mb']:.0f}; at the most {row['peak_mb']:.0f}")
    for count, of in row.get("queries", {}).items():
        say(f"    {count:>2} at once: {of['frontrank_ms']:.2f} ms, {of['ratio']:.2f} x the bare {kind}")
