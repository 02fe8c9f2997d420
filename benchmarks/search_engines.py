"""Recall and time of a search by the three engines: faiss in this process, real servers of Milvus and PostgreSQL."""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import say
from search_vectors import PARTS, Results, clustered, fill, least_scores, recall, rows_of

import frontrank as fr
from frontrank.retrieval import embedded as faiss_engine

K, BATCH, DIM = 10, 64, 128
PART = 3  # a filter by it leaves a tenth of the items


def urls() -> dict[str, Callable[[], str | None]]:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.retrieval import servers

    return {
        "faiss": lambda: None,
        "faiss, graph": lambda: None,
        "pgvector": servers.postgres_url,
        "milvus": servers.milvus_url,
    }


def measured(index: fr.Index, rows: np.ndarray, queries: np.ndarray, condition: str, part: int | None) -> Results:
    """Recall over all queries, milliseconds of one at a time, and per query in batches."""
    asked = {"k": K, "filter": condition} if condition else {"k": K}
    index.search(queries[:BATCH], **asked)  # what a server loads or a filter builds once does not count
    single, found = [], []
    for number in range(len(queries)):
        start = time.perf_counter()
        found += index.search(queries[number : number + 1], **asked)
        single.append(time.perf_counter() - start)
    batches = []
    for first in range(0, len(queries) - BATCH + 1, BATCH):
        start = time.perf_counter()
        index.search(queries[first : first + BATCH], **asked)
        batches.append((time.perf_counter() - start) / BATCH)
    return {
        "recall@10": recall(rows, queries, rows_of(found), least_scores(rows, queries, K, part), K),
        "single_ms": 1000 * statistics.median(single),
        "single_90_ms": 1000 * float(np.quantile(single, 0.9)),
        "batch_ms": 1000 * statistics.median(batches),
    }


def section_engines(results: Results, size: int, queries: int) -> None:
    """The same vectors, items and queries, each engine with its defaults; "faiss, graph" with a graph forced on it."""
    rows, asked = clustered(size, DIM, queries)
    table: dict[str, Any] = {}
    usual = faiss_engine.EXACT_ROWS
    say(f"\nengines, {size:,} x {DIM}, k={K}, {queries} queries one at a time, then {BATCH} at once")
    say(f"  {'':13}{'':>9}  all items: {'':>21} a tenth, by a filter:")
    heads = f"{'recall':>8}{'1 query':>12}{'batches':>12}"
    say(f"  {'engine':13}{'filling':>9}{heads}{heads}")
    for name, url in urls().items():
        faiss_engine.EXACT_ROWS = size // 2 if name == "faiss, graph" else usual
        with fr.Index(url(), dim=DIM, progress=False) as index:
            start = time.perf_counter()
            fill(index, rows)
            index.prepare()
            seconds = time.perf_counter() - start
            plain = measured(index, rows, asked, "", None)
            chosen = measured(index, rows, asked, f"part={PART}", PART)
            facts = {key: value for key, value in index.settings.facts.items() if isinstance(value, str | int | float)}
        table[name] = {"fill_seconds": seconds, "plain": plain, "filtered": chosen, "facts": facts}
        told = [f"{of['recall@10']:8.3f}{of['single_ms']:9.2f} ms{of['batch_ms']:9.3f} ms" for of in (plain, chosen)]
        say(f"  {name:13}{seconds:7.1f} s{''.join(told)}")
    faiss_engine.EXACT_ROWS = usual
    results["engines"] = {
        "rows": size,
        "dim": DIM,
        "k": K,
        "batch": BATCH,
        "queries": queries,
        "parts": PARTS,
        "table": table,
    }
