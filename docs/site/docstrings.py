"""Docstrings of the package as Markdown, for the reference of the site."""

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^(\*{0,2}[A-Za-z_][\w, .*/()]*?):\s+(\S.*)$")


class Docstrings(griffe.Extension):
    """Make examples blocks, and lists of arguments tables, in every docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """Return a docstring of the package as Markdown."""
    return "\n\n".join(block(paragraph) for paragraph in re.split(r"\n\s*\n", text))


def block(paragraph: str) -> str:
    """Return a paragraph: an example, a list of arguments, or prose."""
    if paragraph.lstrip().startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    rows: list[list[str]] = []
    for line in paragraph.splitlines():
        argument = ARGUMENT.match(line)
        if argument:
            rows.append([argument[1], argument[2]])
        elif rows and line.startswith("  "):
            rows[-1][1] += f" {line.strip()}"
        else:
            return prose(paragraph)
    return "| argument | |\n|---|---|\n" + "\n".join(f"| `{name}` | {cell(text)} |" for name, text in rows)


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return prose(text).replace("|", "&#124;")


def prose(text: str) -> str:
    """Keep signs that Markdown would take for markup, outside code."""
    if text.startswith("    "):
        return text
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if index % 2 else re.sub(r"([*_<\[\]$])", r"\\\1", part) for index, part in enumerate(parts))
