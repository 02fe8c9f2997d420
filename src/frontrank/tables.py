"""Tables as text, Markdown and LaTeX: columns are aligned in the source of all three."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from frontrank.errors import InputError

TableFormat = Literal["text", "markdown", "latex"]

_LATEX = {
    **{mark: f"\\{mark}" for mark in "{}$&#_%"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


@dataclass(frozen=True)
class Table:
    """Lines before, a header, rows of cells, and lines after; `align` has l or r for each column.

    `bold` holds the (row, column) of cells that stand out where the format can show it.

    >>> print(Table(["metric", "%"], [["R@1", "80.13"], ["R@100", "9.50"]], "lr").rendered("text"))
    metric      %
    R@1     80.13
    R@100    9.50
    """

    header: list[str]
    rows: list[list[str]]
    align: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    bold: frozenset[tuple[int, int]] = frozenset()

    def rendered(self, format: TableFormat) -> str:
        if format not in get_args(TableFormat):
            raise InputError(f'format must be "text", "markdown" or "latex", got {format!r}')
        return {"text": _text, "markdown": _markdown, "latex": _latex}[format](self._without_line_breaks())

    def _without_line_breaks(self) -> "Table":
        """A name or a note with a line break in it would end its row, or a LaTeX comment."""
        header, *rows = [[_one_line(cell) for cell in row] for row in (self.header, *self.rows)]
        before, after = (tuple(map(_one_line, lines)) for lines in (self.before, self.after))
        return replace(self, header=header, rows=rows, before=before, after=after)


def aligned(numbers: Iterable[str]) -> list[str]:
    """Numbers padded on the left to one width."""
    numbers = list(numbers)
    width = max(map(len, numbers), default=0)
    return [number.rjust(width) for number in numbers]


def joined(words: list[str]) -> str:
    """Words as in a sentence.

    >>> joined(["R@k", "mAP", "MRR"])
    'R@k, mAP and MRR'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _text(table: Table) -> str:
    lines = _padded([table.header, *table.rows], table.align)
    parts = (table.before, ["  ".join(line).rstrip() for line in lines], table.after)
    return "\n\n".join("\n".join(part) for part in parts if part)


def _markdown(table: Table) -> str:
    rows = _marked(table, _markdown_escaped, "**{}**")
    header, *rows = _padded([[_markdown_escaped(title) for title in table.header], *rows], table.align)
    rule = [
        "-" * (len(title) - 1) + ":" if a == "r" else "-" * len(title)
        for title, a in zip(header, table.align, strict=True)
    ]
    body = ["| " + " | ".join(line) + " |" for line in (header, rule, *rows)]
    before, after = ([_markdown_escaped(line) for line in lines] for lines in (table.before, table.after))
    return "\n\n".join([*before, "\n".join(body), *after])


def _latex(table: Table) -> str:
    rows = _marked(table, _latex_escaped, r"\textbf{{{}}}")
    header, *lines = _padded([_guarded(row) for row in ([*map(_latex_escaped, table.header)], *rows)], table.align)
    header_line, *body = [" & ".join(line) + r" \\" for line in (header, *lines)]
    return "\n".join(
        [
            *(f"% {line}" for line in table.before),
            rf"\begin{{tabular}}{{{table.align}}}",
            *(r"\toprule", header_line, r"\midrule", *body, r"\bottomrule"),
            r"\end{tabular}",
            *(f"% {line}" for line in table.after),
        ]
    )


def _guarded(row: list[str]) -> list[str]:
    """At the start of a row, [ or * would be an argument of the line break or the rule before it."""
    return ["{}" + row[0], *row[1:]] if row[0].startswith(("[", "*")) else row


def _marked(table: Table, escaped: Callable[[str], str], bold: str) -> list[list[str]]:
    return [
        [bold.format(escaped(cell)) if (i, j) in table.bold else escaped(cell) for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]


def _markdown_escaped(text: str) -> str:
    return re.sub(r"([\\`*_<>|~$&#]|\[(?=.*\]\())", r"\\\1", text)


def _latex_escaped(text: str) -> str:
    escaped = "".join(_LATEX.get(mark, mark) for mark in text)
    return re.sub(r"(?<![\w.])([+-][\d.]+)", r"$\1$", escaped)  # else a minus is a hyphen


def _padded(lines: list[list[str]], align: str) -> list[list[str]]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        [
            cell.rjust(width) if a == "r" else cell.ljust(width)
            for cell, width, a in zip(line, widths, align, strict=True)
        ]
        for line in lines
    ]
