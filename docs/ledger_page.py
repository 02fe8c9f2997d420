"""docs/ledger.md: the tables of the five papers beside what was measured here."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from studies.trained import gap

HEAD = """\
# Ledger

Every table of the five papers, row by row, and how far this package has got with it: the paper's figures and how they
came about, our command, what was measured here, over how many seeds, on which machine, why it differs or is missing.

This page is generated from [ledger.yaml](ledger.yaml) and the files of results by `python docs/build_studies.py`, and
never edited by hand.

**What emoji can say.** The papers' data sets are not at hand, and there is no GPU. What could be trained here is a
small network on emoji: other pictures, other classes, a far smaller budget. So do not compare our *values* with those
of a paper. Only the *order* of the rows can be compared, and the lines below the tables count the pairs of rows that
agree. A pair of rows has an order here only if the difference is clear, by the rule of the studies: it is more than
0.5 points, and its 95 % interval over seeds (Welch's t) does not contain 0. With one seed no difference is clear. `±`
is the standard deviation over seeds. The column before the last has the number of seeds, or `failed` if no run was
completed. A table without a line `here` has not been run here.

**Commands.** A row names its recipe and options, or says why there is none. The commands below a table train with them
and test what was trained. RECIPE stands for the recipe, RUN for a new folder, PATH_TO for where a data set is.

A table shows the paper's own rows. Of the other methods in it, it shows those of the five papers, and those that beat
the best of the paper's own rows in some column. If there are none, it shows the best one.
"""
FRACTIONS = ("dists@intra", "dists@inter")  # columns that are never in percent
NONE = "-"  # of a cell without a figure
OF_CODE = "extra lines"  # a column that no run measures
COUNTS = ("backward passes", "forward passes", "updates", OF_CODE)
DURATION = "time"  # a column in seconds, if the table is not


@dataclass(frozen=True)
class Source:
    """A file of results; data: None where it does not exist yet."""

    name: str
    on: str
    text: str
    command: str
    machine: str
    file: str
    data: Any
    under: tuple[str, ...] = ()
    study: bool = False  # which leaves out of its lists what failed


def ledger(root: Path, results: Path) -> str:
    """Return the page; root: of the project; results: folder of the results of studies."""
    given = yaml.load((root / "docs" / "ledger.yaml").read_text(encoding="utf-8"), yaml.BaseLoader)
    sources = {name: _source(name, facts, root, results) for name, facts in given["sources"].items()}
    papers = [_paper(paper, sources, given, root) for paper in given["papers"]]
    return "\n".join([HEAD, _sources(list(sources.values())), *papers])


def _source(name: str, facts: Mapping[str, Any], root: Path, results: Path) -> Source:
    under = tuple(facts.get("under", ()))
    if "counts" in facts:
        from frontrank.data.published import PUBLISHED

        data: Any = {key: dataset.counts[0] for key, dataset in PUBLISHED.items()}
        return Source(name, facts["on"], facts["text"], facts["command"], "", "", data)
    if "study" in facts:
        study, path = facts["study"], results / f"{facts['study']}.json"
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        command, machine = (data["command"], data["machine"]) if data else (f"python -m studies {study}", "")
        text = f"{facts['text']}: [the study](studies/{study}.md)" if data else facts["text"]
        return Source(
            name, facts["on"], text, command, machine, f"studies/results/{study}.json", data, under, study=True
        )
    data = json.loads((root / facts["file"]).read_text(encoding="utf-8"))
    machine = facts.get("machine") or f"{data['machine']['cores']} cores of {data['machine']['cpu']}"
    file = facts["file"].removeprefix("docs/") if facts["file"].startswith("docs/") else f"../{facts['file']}"
    return Source(name, facts["on"], facts["text"], facts["command"], machine, file, data, under)


def _sources(sources: Sequence[Source]) -> str:
    lines = ["## What was run here", ""]
    for source in sources:
        lines += [
            f"### {source.name.capitalize()}",
            "",
            f"{source.text}.".replace("..", "."),
            "",
            f"    {source.command}",
            "",
        ]
        if source.data is None:
            lines += ["Not run yet.", ""]
        elif source.file:
            lines += [f"On {source.machine}. Every figure: [{Path(source.file).name}]({source.file}).", ""]
    return "\n".join(lines)


def _paper(paper: Mapping[str, Any], sources: Mapping[str, Source], given: Mapping[str, Any], root: Path) -> str:
    tables = [_table(paper["paper"], table, sources, given, root) for table in paper["tables"]]
    return "\n".join([f"## {paper['paper']}", "", f"{paper['by']}.", "", *tables])


def _table(
    paper: str, table: Mapping[str, Any], sources: Mapping[str, Source], given: Mapping[str, Any], root: Path
) -> str:
    columns, own = table["columns"], table.get("own", [])
    here = [_values_of(row, [*columns, *own], sources) for row in table["rows"]]
    width = len(columns) + len(own)
    lines = [
        f"### {paper}, Table {table['table']}: {table['shows']}",
        "",
        f"Protocol: {table['protocol']}.",
        "",
        "| | | " + " | ".join([*columns, *(f"{name} here" for name in own)]) + " | seeds | command |",
        "|---|---|" + "---:|" * (width + 1) + "---|",
    ]
    for row, measured in zip(table["rows"], here, strict=True):
        if "paper" in row:
            if len(row["paper"]) != len(columns):
                raise ValueError(f"{paper}, Table {table['table']}, {row['row']}: not as many figures as columns")
            cells = [*(value or NONE for value in row["paper"]), *[""] * len(own)]
            lines.append(f"| {row['row']} | paper | {' | '.join(cells)} | | {_command(row, root)} |")
        if measured is not None:
            lines.append(_row_here(row, table, measured, sources[row["here"]["source"]]))
    return "\n".join([*lines, "", *_below(table, here, sources, given, root), ""])


def _row_here(row: Mapping[str, Any], table: Mapping[str, Any], measured: Mapping[str, Any], source: Source) -> str:
    unit, names = table.get("unit", "percent"), [*table["columns"], *table.get("own", [])]
    cells = [_format_values(measured.get(name), unit, name) for name in names]
    seeds = max((len(values) for values in measured.values()), default=0)
    name = row.get("as", "" if "paper" in row else row["row"])
    kept = "failed" if not measured else str(seeds) if unit in ("percent", "fraction") else ""
    return f"| {name} | here, {source.on} | {' | '.join(cells)} | {kept} | [{source.name}](#{source.name}) |"


def _values_of(
    row: Mapping[str, Any], columns: Sequence[str], sources: Mapping[str, Source]
) -> dict[str, list[float]] | None:
    """Return our values by column, one per seed: none at all where all runs failed, None where nothing was run."""
    if "here" not in row or sources[row["here"]["source"]].data is None:
        return None
    source, here = sources[row["here"]["source"]], row["here"]
    if "entry" in here:
        values = _at(source.data, [*source.under, "entries", here["entry"], "values"])
        return {name: values[name] for name in columns if name in values}
    by_column: dict[str, list[float]] = {}
    for name, path in zip(columns, here["at"], strict=False):
        if path:
            joined, paths = ("sum", [path]) if isinstance(path, list) else next(iter(path.items()))
            parts = [_at(source.data, [*source.under, *each], may_lack=source.study) for each in paths]
            if None not in parts:
                by_column[name] = _join(joined, parts)
    by_column = {name: values for name, values in by_column.items() if values}  # runs that failed have none
    return by_column if {*by_column} - {OF_CODE} else {}


def _join(how: str, parts: Sequence[Any]) -> list[float]:
    """Return a value per seed of the figures that paths lead to; "product" multiplies the first by the others."""
    first, *others = parts
    values = first if isinstance(first, list) else [first]
    return [math.prod([value, *others]) if how == "product" else sum([value, *others]) for value in values]


def _at(data: Any, path: Sequence[str], *, may_lack: bool = False) -> Any:
    """Return what a path leads to; a list is entered by place, by the `name` of what it holds, or by key=value of it.

    may_lack: return None if a list lacks the element; else that is an error, as two such elements always are
    """
    for step in path:
        if isinstance(data, Mapping):
            data = data[step]
        elif step.isdigit():
            data = data[int(step)]
        else:
            wanted = dict(part.split("=", 1) for part in step.split(",")) if "=" in step else {"name": step}
            matches = [each for each in data if all(str(each[key]) == value for key, value in wanted.items())]
            if not matches and may_lack:
                return None
            if len(matches) != 1:
                raise ValueError(f"{' / '.join(path)}: {len(matches)} elements are {step}")
            (data,) = matches
    return data


def _format_values(values: Sequence[float] | None, unit: str, column: str) -> str:
    if not values:
        return NONE
    mean, spread = fmean(values), stdev(values) if len(values) > 1 else None
    if unit == "count" or column in COUNTS:
        return f"{round(mean):,}"
    if unit == "seconds":
        return f"{mean:.2f} s" if mean >= 1 else f"{1000 * mean:.1f} ms"
    if unit == "power":
        return f"n^{mean:.2f}"
    if column == DURATION:
        return f"{mean / 60:.1f} min"
    scale, digits = (1, 3) if unit == "fraction" or column in FRACTIONS else (100, 1)
    return f"{scale * mean:.{digits}f}" + ("" if spread is None else f" ± {scale * spread:.{digits}f}")


def _command(row: Mapping[str, Any], root: Path) -> str:
    """Return the last column of a row: its command, its recipe, or why there is neither."""
    if "command" in row:
        return f"`{row['command']}`"
    if "recipe" not in row:
        return str(row.get("why", ""))
    links = ", ".join(f"[{name}]({_recipe(name, root)})" for name in row["recipe"].split(", "))
    more = f" `{row['options']}`" if "options" in row else ""
    return links + more + (f", evaluated with `{row['evaluated']}`" if "evaluated" in row else "")


def commands(table: Mapping[str, Any], given: Mapping[str, Any], root: Path) -> list[list[str]]:
    """Return the commands of the recipes of a table, data set by data set: what trains, then what tests."""
    trained: dict[tuple[str, ...], list[str]] = {}
    names = [name for row in table["rows"] if "recipe" in row for name in row["recipe"].split(", ")]
    for name in dict.fromkeys(names):
        text = (root / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
        command = next(line for line in text.splitlines() if line.startswith("# command"))[9:].strip()
        command = command.replace(f"runs/{name}", "RUN").replace(name, "RECIPE")
        layout = yaml.load(text, yaml.BaseLoader)["data"]["layout"]
        same = trained.setdefault(tuple(table.get("evaluate") or given["evaluate"][layout]), [])
        if command not in same:
            same.append(command)
    return [[*own, *tests] for tests, own in trained.items()]


def _recipe(name: str, root: Path) -> str:
    if not (root / "recipes" / f"{name}.yaml").is_file():
        raise ValueError(f"there is no recipe {name}")
    return f"../recipes/{name}.yaml"


def _below(
    table: Mapping[str, Any],
    here: Sequence[Mapping[str, list[float]] | None],
    sources: Mapping[str, Source],
    given: Mapping[str, Any],
    root: Path,
) -> list[str]:
    """Return what stands below a table: the commands of its recipes, the gap, and why there is one."""
    lines = []
    if blocks := commands(table, given, root):
        lines += ["With the recipe and the options of a row:", ""]
        for block in blocks:
            lines += [*(f"    {line}" for line in block), ""]
    if differs := _gap(table, here):
        lines.append(f"- Gap: {differs}")
    waiting = {row["here"]["source"] for row in table["rows"] if "here" in row} & {
        n for n, s in sources.items() if s.data is None
    }
    lines += [f"- Not run yet: `{sources[name].command}`." for name in sorted(waiting)]
    if "needs" in table:
        lines.append(f"- Missing: {given['missing'][table['needs']]}")
    if "note" in table:
        lines.append(f"- Note: {table['note']}")
    return lines


def _gap(table: Mapping[str, Any], here: Sequence[Mapping[str, list[float]] | None]) -> str:
    """Return what differs, as far as figures can say it."""
    unit = table.get("unit", "percent")
    rows = [(row, measured) for row, measured in zip(table["rows"], here, strict=True) if measured and "paper" in row]
    if unit == "seconds":
        return _times(table, here)
    return _order(table, rows) if unit in ("percent", "fraction") and len(rows) > 1 else ""


def _times(table: Mapping[str, Any], here: Sequence[Mapping[str, list[float]] | None]) -> str:
    """Compare each of our rows with the first of the paper's."""
    theirs = dict(zip(table["columns"], table["rows"][0]["paper"], strict=True))
    ratios = []
    for row, measured in zip(table["rows"], here, strict=True):
        if measured:
            times = [f"{fmean(values) / _seconds(theirs[name]):.2f}" for name, values in measured.items()]
            ratios.append(f"{row.get('as', row['row'])} takes {', '.join(times)} times the paper's time")
    return f"on another processor, {'; '.join(ratios)}." if ratios else ""


def _seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"ms": 0.001, "s": 1.0}[unit]


def _order(table: Mapping[str, Any], rows: Sequence[tuple[Mapping[str, Any], Mapping[str, list[float]]]]) -> str:
    """Count pairs of rows that stand in the same order there and here, where the difference here counts."""
    theirs, ours = table.get("order") or (table["columns"][0], table["columns"][0])
    place, scale = table["columns"].index(theirs), 1 if table.get("unit") == "fraction" else 100
    both = [(row["row"], float(row["paper"][place]), measured[ours]) for row, measured in rows if ours in measured]
    if len(both) < 2:
        return ""
    same, turned, close = [], [], []
    for (a, there_a, here_a), (b, there_b, here_b) in combinations(both, 2):
        if there_a == there_b:
            continue
        ours_differ = gap(here_a, here_b)
        kind = close if not ours_differ.counts else same if ours_differ.is_more == (there_a > there_b) else turned
        kind.append(f"{a} and {b}")
    ranges = [max(values) - min(values) for values in zip(*((t, scale * fmean(h)) for _, t, h in both), strict=True)]
    name, digits = theirs if theirs == ours else f"{theirs} there and {ours} here", 1 if scale == 100 else 3
    pairs = f"{len(same)} of {len(same) + len(turned) + len(close)} pairs of rows that differ in the paper"
    text = f"by {name}, {pairs} stand in the same order here"
    text += f"; the other way round: {', '.join(turned)}" if turned else ""
    text += f"; no difference here that counts: {', '.join(close)}" if close else ""
    there, here = (f"{value:.{digits}f}" for value in ranges)
    return f"{text}. From the lowest to the highest of these rows: {there} there, {here} here."
