"""How long AP of one list takes, forward and backward, by its length (RaMBO, Table 6)."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from frontrank.losses import BlackboxAP
from frontrank.machine import free_memory
from studies.study import COLOURS, INK, MARKS, STYLES, Effort, Results, Study, panels, verdict

_LENGTHS = (100_000, 1_000_000, 10_000_000, 100_000_000)
_PAPER = {100_000: 0.033, 1_000_000: 0.331, 10_000_000: 3.86, 100_000_000: 36.4}  # seconds, Table 6, on one core
_SHARE = 100  # one item in so many is positive
_POWER = 1.2  # of the length, below which time grows about as length does
_BYTES = 80  # of memory for each item of a list, with what sorting it takes; a generous guess


def measure(effort: Effort) -> dict[str, Any]:
    results: dict[str, Any] = {"rows": [], "left_out": []}
    with one_thread():
        for length in (1_000, 10_000) if effort.quick else _LENGTHS:
            if reason := too_large(length, free_memory(torch.device("cpu"))):
                results["left_out"].append({"length": length, "reason": reason})
                continue
            results["rows"].append({"length": length, **_measure_times(length, effort.seed)})
    return results


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch work with one thread, as in the paper."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def too_large(length: int, free: int | None) -> str:
    """Return why a list of this length is left out, or an empty text."""
    if free is None:
        return "it is not known how much memory there is" if length > _LENGTHS[1] else ""
    needed = length * _BYTES
    return f"it may take {needed / 1e9:.0f} GB, and {free / 1e9:.0f} are free" if needed > free else ""


def _measure_times(length: int, seed: int) -> dict[str, Any]:
    """Measure the loss with its gradient, and sorting the same list, in turns; return median seconds."""
    generator = torch.Generator().manual_seed(seed)
    relevant = torch.zeros(length, dtype=torch.bool)
    relevant[torch.randint(length, (length // _SHARE,), generator=generator)] = True
    scores = (0.2 * torch.randn(length, generator=generator) + 0.3 * relevant).requires_grad_()
    loss = BlackboxAP(lam=length / 10)  # so far that many positives overtake something
    slopes = torch.zeros(0)

    def forward_backward() -> None:
        nonlocal slopes
        (slopes,) = torch.autograd.grad(loss.of_scores(scores[None], relevant[None]), scores)

    work: dict[str, Callable[[], object]] = {
        "seconds": forward_backward,
        "sort_seconds": lambda: torch.sort(scores.detach(), descending=True),
    }
    repeats = 3 if length > 10_000_000 else 5 if length > 1_000_000 else 11
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, run in work.items():
            started = time.perf_counter()
            run()
            if turn:  # the first is to warm up
                taken[name].append(time.perf_counter() - started)
    return {
        **{name: median(times) for name, times in taken.items()},
        "repeats": repeats,
        "positives": int(relevant.sum()),
        "with_slope": int((slopes != 0).sum()),
    }


def exponent(rows: list[Results], name: str = "seconds") -> float:
    """Return the power of the length with which time grows, from the shortest list to the longest."""
    first, last = rows[0], rows[-1]
    return math.log(last[name] / first[name]) / math.log(last["length"] / first["length"])


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(size=(5.6, 4.0))
    (axis,) = axes.flat
    lengths = [row["length"] for row in results["rows"]]
    for place, (name, label) in enumerate(
        (("seconds", "AP, forward + backward"), ("sort_seconds", "torch.sort of the list"))
    ):
        look = {"color": COLOURS[place], "marker": MARKS[place], "linestyle": STYLES[place]}
        axis.plot(lengths, [row[name] for row in results["rows"]], label=label, **look)
    if shown := [length for length in lengths if length in _PAPER]:
        axis.plot(
            shown,
            [_PAPER[each] for each in shown],
            color=INK,
            linestyle=":",
            marker="x",
            label="the paper, on its machine",
        )
    axis.set(xscale="log", yscale="log", xlabel="items of the list", ylabel="seconds")
    axis.legend()
    return {"speed": figure}


def values(results: Results) -> dict[str, Any]:
    rows = results["rows"]
    steps = [list(pair) for pair in pairwise(rows)]
    worst = max(steps, key=exponent)
    ratio = max(row["seconds"] / row["sort_seconds"] for row in rows)
    linear, cheap = exponent(worst) < _POWER, ratio <= 4
    return {
        "verdict": verdict([linear, cheap]),
        "rows": [
            {
                "length": row["length"],
                "time": _format_time(row["seconds"]),
                "sort": _format_time(row["sort_seconds"]),
                "ratio": row["seconds"] / row["sort_seconds"],
                "paper": _format_time(_PAPER[row["length"]]) if row["length"] in _PAPER else "",
            }
            for row in rows
        ],
        "repeats": min(row["repeats"] for row in rows),
        "worst": worst,
        "power": {"limit": _POWER, "worst": exponent(worst), "all": exponent(rows)},
        "sort_power": {"worst": exponent(worst, "sort_seconds"), "all": exponent(rows, "sort_seconds")},
        "longest_is_slow": not linear and worst is steps[-1],
        "highest_ratio": ratio,
    }


def _format_time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


STUDY = Study(
    name="rambo-speed",
    paper="RaMBO",
    shows="Table 6",
    title="AP of lists of millions",
    minutes=5,
    measure=measure,
    draw=draw,
    values=values,
)
