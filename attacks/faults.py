"""Load with faults: a full disk, and an engine that goes away and comes back, while somebody writes and reads."""

import argparse
import importlib
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

import frontrank as fr
from attacks.sample import Row, Sample
from attacks.uploads import Searcher, ask, serve
from frontrank.errors import FrontrankError

_BATCH, _DIM = 200, 8
_AWAY, _PATIENCE = 3.0, 60.0  # seconds that an engine is away, and in which the page must have recovered
_PAUSE = 2.0  # seconds between two faults


def attack(sample: Sample, options: argparse.Namespace) -> list[Row]:
    """Fill up the disk, and take Milvus and PostgreSQL away again and again."""
    share = 60 * options.minutes / 3
    kinds = options.faults.split(",")
    rows = [_fill_disk(sample, share)] if "disk" in kinds else []
    return rows + [_cut_engine(name, sample, share) for name in ("postgres", "milvus") if name in kinds]


def _vectors(first: int) -> tuple[np.ndarray, list[fr.Item]]:
    vectors = np.random.default_rng(first).normal(size=(_BATCH, _DIM)).astype(np.float32)
    return vectors, [fr.Item(f"{row}", label=str(row % 5)) for row in _rows(first)]


def _rows(first: int) -> range:
    return range(first, first + _BATCH)


_WRITER = """
import resource, sys
import numpy as np
import frontrank as fr
from attacks.faults import _BATCH, _vectors
from frontrank.errors import FrontrankError
url, first, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with fr.Index(url, dim=8) as index:
    while True:
        try:
            index.add(*_vectors(first))
        except FrontrankError as error:
            print("refused", str(error).count("\\n"), flush=True)
            break
        first += _BATCH
        print("stored", first, flush=True)
"""


def _fill_disk(sample: Sample, seconds: float) -> Row:
    """Write with a limit on the size of files, which fails like a full disk, then with a larger one."""
    url, first, rounds, failed, note = str(sample.work / "full.index"), 0, 0, 0, ""
    until = time.monotonic() + seconds
    limit = 300_000
    while time.monotonic() < until or rounds == 0:
        rounds += 1
        done = subprocess.run(
            [sys.executable, "-c", _WRITER, url, str(first), str(limit)], capture_output=True, text=True, check=False
        )
        lines = [line.split() for line in done.stdout.splitlines()]
        first = max([first, *(int(line[1]) for line in lines if line[0] == "stored")])
        with fr.Index.load(url) as index:
            count = index.count()
        if done.returncode or ["refused", "0"] not in lines or count != first:
            failed += 1
            note = note or f"{count:,} items, {first:,} acknowledged; {done.stderr.strip()[-200:]}"
        limit += 60_000
        time.sleep(_PAUSE)
    return (
        "a full disk",
        rounds,
        failed,
        note or f"all {first:,} acknowledged items are there",
    )


def _cut_engine(name: str, sample: Sample, seconds: float) -> Row:
    """Serve an index on a server that goes away and comes back."""
    servers: Any = importlib.import_module("tests.retrieval.servers")
    home = getattr(servers, name)()
    relay = servers.Relay(home)
    address = relay.address
    url = getattr(servers, f"{name}_url")(name="attacked", address=address)
    model, first, failures, cuts, worst = fr.Embedder.load(sample.model), 0, list[str](), 0, 0.0
    with fr.Index(url, dim=_DIM, model=model.fingerprint) as index:
        index.add(*_vectors(0))
    first, statuses = _BATCH, Counter[int]()
    until = time.monotonic() + seconds
    try:
        path = "/api/v1/search?item=5"
        with serve(url, sample) as page, Searcher(page, path, 0.5) as searcher:
            while time.monotonic() < until or cuts == 0:
                cuts += 1
                first = _write_until_cut(url, first, relay)
                status, _, body = ask(page, "GET", path)
                statuses[status] += 1
                if status != 503 or b"the index cannot answer" not in body:
                    failures.append(f"the page answers {status} while the engine is away")
                time.sleep(_AWAY)
                relay = _new_relay(servers, home, address)
                start = time.monotonic()
                while (status := ask(page, "GET", path)[0]) != 200 and time.monotonic() < start + _PATIENCE:
                    time.sleep(0.2)
                worst = max(worst, time.monotonic() - start)
                if status != 200:
                    failures.append(f"the page answers {status}, {_PATIENCE:g} s after the engine is back")
                missing = _count_missing(url, first)
                if missing:
                    failures.append(f"{missing} acknowledged items are missing")
                time.sleep(_PAUSE)
    finally:
        relay.cut()
    if others := set(searcher.statuses) - {200, 503}:
        failures.append(f"searches were answered by {others}")
    note = f"{first:,} acknowledged items are there; away: {dict(statuses)}; back after {worst:.1f} s at most"
    note += f"; searches: {dict(searcher.statuses)}"
    return f"{name} away and back", cuts, len(failures), failures[0] if failures else note


def _count_missing(url: str, count: int) -> int:
    """Return how many of the first items are not there; on a busy machine the engine may need several tries."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            with fr.Index.load(url) as index:
                batches = [[str(row) for row in _rows(first)] for first in range(0, count, _BATCH)]
                return sum(index.get(batch).count(None) for batch in batches)
        except FrontrankError:
            if time.monotonic() > until:
                return count
            time.sleep(1)


def _write_until_cut(url: str, first: int, relay: Any) -> int:
    """Add batches; cut the connection after the second; return what was acknowledged."""
    try:
        with fr.Index.load(url) as index:
            for number in range(4):
                index.upsert(*_vectors(first))
                first += _BATCH
                if number == 1:
                    relay.cut()
    except FrontrankError:
        pass
    return first


def _new_relay(servers: Any, home: tuple[str, int], address: tuple[str, int]) -> Any:
    socket: Any = importlib.import_module("socket")
    until = time.monotonic() + 30
    while True:
        try:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            return servers.Relay(home, listener)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
