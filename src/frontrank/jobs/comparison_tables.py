"""Tables and files of what a comparison found."""

import csv
import io
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from frontrank.evaluation.fields import is_distance
from frontrank.evaluation.report import percent
from frontrank.evaluation.tables import Table, TableFormat
from frontrank.reporting.compared import UNFINISHED, Compared, Entry
from frontrank.training.checkpoints import atomic_write

_SHOWN = ("R@1", "R@10", "R@100", "mAP", "NMI", "dists@intra", "dists@inter")


def spread(name: str, values: tuple[float, ...]) -> str:
    """The mean, and how far seeds differ: the standard deviation, or of fewer than three the least and the most.

    >>> spread("R@1", (0.5, 0.52, 0.51)), spread("mAP", (0.5, 0.52)), spread("mAP", (0.5,))
    ('51.00 ± 1.00', '51.00 (50.00 .. 52.00)', '50.00')
    """
    said = percent(name, fmean(values))
    if len(values) == 1:
        return said
    if len(values) == 2:
        return f"{said} ({percent(name, min(values))} .. {percent(name, max(values))})"
    return f"{said} ± {percent(name, stdev(values))}"


def comparison_table(compared: Compared, format: TableFormat = "text", *, metrics: tuple[str, ...] = _SHOWN) -> str:
    """A row for each entry: what it reaches on the test images, over seeds, what it costs, and how sure it is.

    metrics: those shown, as far as they are there
    """
    known = dict.fromkeys(name for entry in compared.entries for name in entry.values) or dict.fromkeys(compared.frozen)
    names = [name for name in metrics if name in known]
    of_queries = {name for entry in compared.entries for name in entry.against}
    judged = compared.metric if compared.metric in of_queries else "R@1"
    header = ["", *names, f"{judged} against {compared.reference}", "p", "lr", "s/step", "MB"]
    rows = [["frozen backbone", *_frozen_cells(compared, names), "", "", "", "", ""]]
    rows = rows if compared.frozen else []
    first = len(rows)
    for entry in compared.entries:
        lr = "" if math.isnan(entry.lr) else f"{entry.lr:g}"
        if not entry.values:
            said = UNFINISHED if entry.failed == UNFINISHED else "failed"
            rows.append([entry.name, *("-" for _ in names), said, "", lr, "", ""])
            continue
        found = [spread(name, entry.values[name]) for name in names]
        costs = [f"{median(entry.seconds):.3g}", f"{median(entry.megabytes):,.0f}"]
        rows.append([entry.name, *found, *_judged(compared, entry, judged), lr, *costs])
    best = {
        (first + i, j)
        for j, name in enumerate(names, 1)
        for i, entry in enumerate(compared.entries)
        if entry.values and not is_distance(name) and fmean(entry.values[name]) == _most(compared, name)
    }
    unit = "dists@* are cosine distances, other metrics are in %; differences are in percentage points"
    before = (compared.images, unit)
    return Table(header, rows, "l" + "r" * (len(header) - 1), before, compared.notes, frozenset(best)).rendered(format)


def _frozen_cells(compared: Compared, names: list[str]) -> list[str]:
    return [percent(name, compared.frozen[name]) if name in compared.frozen else "-" for name in names]


def _judged(compared: Compared, entry: Entry, metric: str) -> list[str]:
    if metric not in entry.against:
        return ["reference" if entry.name == compared.reference else "", ""]
    found = entry.against[metric]
    ends = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    return [f"{100 * found.difference:+.2f} {ends}", "<0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}"]


def _most(compared: Compared, name: str) -> float:
    return max(fmean(entry.values[name]) for entry in compared.entries if entry.values)


def write_results(out: Path, compared: Compared) -> None:
    """Write results.json, results.csv (a line per run) and results.md."""
    atomic_write(out / "results.json", (json.dumps(_as_json(compared), indent=1) + "\n").encode())
    everything = tuple(dict.fromkeys(name for entry in compared.entries for name in entry.values))
    text = f"# {compared.title}\n\n{comparison_table(compared, 'markdown', metrics=everything or _SHOWN)}\n\n"
    text += f"```\n{compared.command}\n```\n"
    atomic_write(out / "results.md", text.encode())
    file = io.StringIO(newline="")
    lines = csv.writer(file)
    lines.writerow(["name", "lr", "seed", *everything, "seconds per step", "peak MB"])
    if compared.frozen:
        lines.writerow(["frozen backbone", "", "", *(compared.frozen.get(name, "") for name in everything), "", ""])
    for entry in compared.entries:
        for i, seed in enumerate(entry.seeds):
            values = (of[i] for of in entry.values.values())
            lines.writerow([entry.name, entry.lr, seed, *values, entry.seconds[i], entry.megabytes[i]])
    atomic_write(out / "results.csv", file.getvalue().encode())


def _as_json(compared: Compared) -> dict[str, Any]:
    entries = []
    for entry in compared.entries:
        curves = [{"x": curve.x.tolist(), "y": curve.y.tolist()} for curve in entry.curves]
        against = {name: each._asdict() for name, each in entry.against.items()}
        means = {name: fmean(values) for name, values in entry.values.items()}
        own: dict[str, Any] = {"name": entry.name}
        own |= {"settings": dict(entry.settings), "lr": None if math.isnan(entry.lr) else entry.lr}
        own |= {"searched": [{"lr": lr, "value": value} for lr, value in entry.searched.items()]}
        own |= {"seeds": entry.seeds, "mean": means, "values": dict(entry.values), "seconds per step": entry.seconds}
        own |= {"peak MB": entry.megabytes, "curves": curves, "against": against, "failed": entry.failed}
        entries.append(own)
    plain = {key: value for key, value in asdict(replace(compared, entries=())).items() if key != "entries"}
    return {"format": "frontrank comparison results", "version": 1, **plain, "entries": entries}


def write_page(out: Path, compared: Compared) -> Path:
    """Write report.html, the page of a comparison."""
    from frontrank.reporting.comparison_page import comparison_page

    page = out / "report.html"
    atomic_write(page, comparison_page(compared).encode())
    return page
