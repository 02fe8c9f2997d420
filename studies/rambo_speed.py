"""How long AP of one list takes, forward and backward, by its length (RaMBO, Table 6)."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from frontrank.losses import BlackboxAP
from studies.over_seeds import verdict
from studies.study import Effort, Results, Study
from studies.style import COLOURS, INK, MARKS, STYLES, panels

_LENGTHS = (100_000, 1_000_000, 10_000_000, 100_000_000)
_PAPER = {100_000: 0.033, 1_000_000: 0.331, 10_000_000: 3.86, 100_000_000: 36.4}  # seconds, Table 6, on one core
_SHARE = 100  # one item in so many is positive
_POWER = 1.2  # of the length, below which time grows about as length does
_GUESS = "A guess, which was not measured: the working memory of the longest list is what makes it slow. "
_BYTES = 80  # of memory for each item of a list, with what sorting it takes; a generous guess


def measure(effort: Effort) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": [], "left_out": []}
    with one_thread():
        for length in (1_000, 10_000) if effort.quick else _LENGTHS:
            if reason := too_large(length, free_memory()):
                found["left_out"].append({"length": length, "reason": reason})
                continue
            found["rows"].append({"length": length, **_timed(length, effort.seed)})
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Within, torch works with one thread, as in the paper."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be had, where the system tells; in a container no more than its limit leaves, or it is killed.

    root: where /proc and /sys are
    """
    free, group = [], root / "sys/fs/cgroup"
    with suppress(OSError, ValueError, IndexError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        free.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError):  # there is no such file, or it says "max"
        limit, taken = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        free.append(max(0, limit - taken))
    return min(free, default=None)


def too_large(length: int, free: int | None) -> str:
    """Why a list of this length is left out, or nothing."""
    if free is None:
        return "it is not known how much memory there is" if length > _LENGTHS[1] else ""
    needed = length * _BYTES
    return f"it may take {needed / 1e9:.0f} GB, and {free / 1e9:.0f} are free" if needed > free else ""


def _timed(length: int, seed: int) -> dict[str, Any]:
    """Median seconds of the loss with its gradient, and of sorting the same list, in turns."""
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
    """How time grows from the shortest list to the longest: 1 is in proportion to the length."""
    first, last = rows[0], rows[-1]
    return math.log(last[name] / first[name]) / math.log(last["length"] / first["length"])


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(size=(5.6, 4.0))
    (axis,) = axes.flat
    lengths = [row["length"] for row in found["rows"]]
    for place, (name, label) in enumerate(
        (("seconds", "AP, forward + backward"), ("sort_seconds", "torch.sort of the list"))
    ):
        look = {"color": COLOURS[place], "marker": MARKS[place], "linestyle": STYLES[place]}
        axis.plot(lengths, [row[name] for row in found["rows"]], label=label, **look)
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


def told(found: Results) -> str:
    rows = [
        f"| {row['length']:,} | {_time(row['seconds'])} | {_time(row['sort_seconds'])} | "
        f"{row['seconds'] / row['sort_seconds']:.2f} "
        f"| {_time(_PAPER[row['length']]) if row['length'] in _PAPER else ''} |"
        for row in found["rows"]
    ]
    steps = [list(pair) for pair in pairwise(found["rows"])]
    worst = max(steps, key=exponent)
    slowest = max(row["seconds"] / row["sort_seconds"] for row in found["rows"])
    linear, cheap = exponent(worst) < _POWER, slowest <= 4
    left_out = [f"A list of {each['length']:,} was left out: {each['reason']}.\n" for each in found["left_out"]]
    return "\n".join(
        [
            "| items | AP, forward + backward | torch.sort | ratio | the paper, another machine |",
            "|---:|---:|---:|---:|---:|",
            *rows,
            "",
            "One thread, float32, one item in a hundred positive, λ a tenth of the length. Medians of "
            f"at least {min(row['repeats'] for row in found['rows'])} runs, in turns. The ratio to sorting the same "
            "list "
            "depends less on the machine than seconds do.",
            "",
            *left_out,
            f"{verdict([linear, cheap])}: from one length to the next the time grows at most as the length to the "
            f"power {exponent(worst):.2f}, from {worst[0]['length']:,} to {worst[1]['length']:,} items (the criterion: "
            f"below {_POWER:g} from each to the next; sorting has {exponent(worst, 'sort_seconds'):.2f} there); from "
            f"the shortest to the longest it is {exponent(found['rows']):.2f} (sorting: "
            f"{exponent(found['rows'], 'sort_seconds'):.2f}). {'' if linear or worst is not steps[-1] else _GUESS}"
            f"It is at most {slowest:.2f} times that of sorting the list once "
            "(the criterion: 4, as many sorts as Algorithm 1 has by argsort of argsort, before and after the "
            "perturbation). "
            "Here only positives are sorted, and negatives find their place among them. There is no row for a GPU.",
        ]
    )


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


STUDY = Study(
    name="rambo-speed",
    paper="RaMBO",
    shows="Table 6",
    title="AP of lists of millions",
    claim="The gradient of a ranking needs nothing but a second ranking, so AP of a long list costs a few sorts: a "
    "list of a million takes 331 ms forward and backward on "
    "one core, and time grows about as length does.",
    minutes=5,
    measure=measure,
    figures=figures,
    told=told,
)
