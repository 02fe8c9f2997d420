"""Tables that render as text, Markdown, LaTeX, CSV and HTML."""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from html import escape
from typing import Literal, get_args

from frontrank.checks import check_choice

TableFormat = Literal["text", "markdown", "latex", "csv", "html"]

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
    """Header, rows of cells, and lines of text before and after; `align` has l or r for each column.

    `bold` holds the (row, column) of cells that stand out where the format can show it. CSV has header and rows only.

    >>> print(Table(["metric", "%"], [["R@1", "80.13"], ["R@100", "9.50"]], "lr").render("text"))
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

    def render(self, format: TableFormat) -> str:
        """Return the table in a format: "text", "markdown", "latex" (booktabs), "csv" or "html"."""
        check_choice("format", format, get_args(TableFormat))
        # every cell and line of text is put on one line: a line break would end a row, or a LaTeX comment
        header, *rows = [[_one_line(cell) for cell in row] for row in (self.header, *self.rows)]
        before, after = (tuple(map(_one_line, lines)) for lines in (self.before, self.after))
        table = replace(self, header=header, rows=rows, before=before, after=after)
        return {"text": _text, "markdown": _markdown, "latex": _latex, "csv": _csv, "html": _html}[format](table)


def align_right(numbers: Iterable[str]) -> list[str]:
    """Pad numbers on the left to one width."""
    numbers = list(numbers)
    width = max(map(len, numbers), default=0)
    return [number.rjust(width) for number in numbers]


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _text(table: Table) -> str:
    lines = _pad([table.header, *table.rows], table.align)
    parts = (table.before, ["  ".join(line).rstrip() for line in lines], table.after)
    return "\n\n".join("\n".join(part) for part in parts if part)


def _markdown(table: Table) -> str:
    rows = _cells(table, _escape_markdown, "**{}**")
    header, *rows = _pad([[_escape_markdown(title) for title in table.header], *rows], table.align)
    rule = [
        "-" * (len(title) - 1) + ":" if a == "r" else "-" * len(title)
        for title, a in zip(header, table.align, strict=True)
    ]
    body = ["| " + " | ".join(line) + " |" for line in (header, rule, *rows)]
    before, after = ([_escape_markdown(line) for line in lines] for lines in (table.before, table.after))
    return "\n\n".join([*before, "\n".join(body), *after])


def _latex(table: Table) -> str:
    rows = _cells(table, _escape_latex, r"\textbf{{{}}}")
    lines = _pad([_protect_start(row) for row in ([*map(_escape_latex, table.header)], *rows)], table.align)
    header, *body = [" & ".join(line) + r" \\" for line in lines]
    return "\n".join(
        [
            *(f"% {line}" for line in table.before),
            rf"\begin{{tabular}}{{{table.align}}}",
            *(r"\toprule", header, r"\midrule", *body, r"\bottomrule"),
            r"\end{tabular}",
            *(f"% {line}" for line in table.after),
        ]
    )


def _csv(table: Table) -> str:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([table.header, *table.rows])
    return file.getvalue()


def _html(table: Table) -> str:
    """A right-aligned cell has the class "n"; the first cell of a row is its header."""
    classes = [' class="n"' if a == "r" else "" for a in table.align]
    header = "".join(
        f'<th scope="col"{of}>{escape(title)}</th>' for title, of in zip(table.header, classes, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row"{classes[0]}>{first}</th>'
        + "".join(f"<td{of}>{cell}</td>" for cell, of in zip(rest, classes[1:], strict=True))
        + "</tr>\n"
        for first, *rest in _cells(table, escape, "<b>{}</b>")
    )
    before, after = ([f"<p>{escape(line)}</p>" for line in lines] for lines in (table.before, table.after))
    return "\n".join([*before, f"<table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>", *after])


def _cells(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    return [
        [bold.format(escape(cell)) if (i, j) in table.bold else escape(cell) for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]


def _protect_start(row: list[str]) -> list[str]:
    """At the start of a row, [ or * would be an argument of the line break or the rule before it."""
    return ["{}" + row[0], *row[1:]] if row[0].startswith(("[", "*")) else row


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_<>|~$&#]|\[(?=.*\]\())", r"\\\1", text)


def _escape_latex(text: str) -> str:
    escaped = "".join(_LATEX.get(mark, mark) for mark in text)
    return re.sub(r"(?<![\w.])([+-][\d.]+)", r"$\1$", escaped)  # else a minus is a hyphen


def _pad(lines: list[list[str]], align: str) -> list[list[str]]:
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    return [
        [
            " " * (width - _width(cell)) + cell if a == "r" else cell + " " * (width - _width(cell))
            for cell, width, a in zip(line, widths, align, strict=True)
        ]
        for line in lines
    ]


def _width(text: str) -> int:
    """Return how many places a text takes on a terminal; Han characters take two, accents that stand alone none."""
    return sum(0 if unicodedata.combining(x) else 1 + (unicodedata.east_asian_width(x) in "WF") for x in text)
