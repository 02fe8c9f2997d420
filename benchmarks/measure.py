"""Seconds and peak extra memory of a piece of work, each in its own process where memory matters."""

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MB = 1 << 20


def interleaved(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each piece of work, best of each round, in turns: what disturbs one disturbs all alike.

    In a round, work is repeated for a tenth of a second, after one run that does not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            run()
            best, end = float("inf"), time.perf_counter() + 0.1
            while best == float("inf") or time.perf_counter() < end:
                start = time.perf_counter()
                run()
                best = min(best, time.perf_counter() - start)
            seconds[name].append(best)
    return seconds


def alternated(work: dict[str, Callable[[int], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each piece of work in each round; it is given the round's number, and who goes first takes turns."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    names = list(work)
    for name in names:
        work[name](0)
    for number in range(rounds):
        names.reverse()
        for name in names:
            start = time.perf_counter()
            work[name](number)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def resident(process: int | str = "self", kind: str = "VmRSS") -> int:
    """Bytes of memory that a process holds; RssAnon leaves out the pages of mapped files (Linux)."""
    return int(Path(f"/proc/{process}/status").read_text().split(f"{kind}:")[1].split()[0]) * 1024


def processor_seconds(process: int | str = "self") -> float:
    """Of all threads of a process, in steps of a hundredth: what else the machine does hardly changes it (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def extra_memory(run: Callable[[], object]) -> tuple[float, int]:
    """Seconds, and bytes by which the process's peak memory rose above what it held before."""
    before = _reset_peak()
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return seconds, max(0, _peak() - before)


def _reset_peak() -> int:
    """Set the peak back to what is held now (Linux); elsewhere the peak so far is the base."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def in_own_process(script: str, case: dict[str, object], seconds: float = 1800.0) -> dict[str, Any]:
    """Run `script --case JSON` and read the JSON object of its last line; an error becomes {"failed": why}."""
    command = [sys.executable, script, "--case", json.dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {seconds:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"failed": lines[-1][:120] if lines else f"ended with status {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def limit_memory(gigabytes: float) -> None:
    """Make allocations beyond a limit fail in this process instead of exhausting the machine."""
    limit = int(gigabytes * (1 << 30))
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    import torch

    model = ""
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else ""
    return {"cpu": model, "cores": os.cpu_count() or 0, "threads": torch.get_num_threads(), "torch": torch.__version__}


def held_memory(run: Callable[[], object], every: float = 0.005) -> tuple[float, int]:
    """Seconds, and bytes by which memory of the process's own rose; pages of mapped files are not counted (Linux)."""
    most, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(every):
            most[0] = max(most[0], _anonymous())

    before = _anonymous()
    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    return seconds, max(0, most[0] - before)


def _anonymous() -> int:
    return resident(kind="RssAnon")


def exponent(sizes: list[float], costs: list[float]) -> float:
    """The power of the size that the cost grows with: the slope of a line through their logarithms."""
    import numpy as np

    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def say(text: str) -> None:
    print(text, flush=True)
