"""The lists that come with data sets: files of text, one image per line; an error names the file and the line.

That a file cannot be opened is an OSError, for the caller to say what it was needed for.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from frontrank.data.image_table import shown
from frontrank.errors import InputError


def first_there(root: Path, *names: str) -> Path:
    """The first of some files that is there; else a FileNotFoundError of the first."""
    for name in names:
        if (root / name).is_file():
            return root / name
    raise FileNotFoundError(root / names[0])


def read_text(path: Path) -> str:
    """A file of UTF-8, with or without a mark at its start."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise wrong_line(path, line, "is not UTF-8 text") from None


def wrong_line(path: Path, line: int, said: str) -> InputError:
    """The error of a line that cannot be used."""
    return InputError(f"{shown(path)} line {line} {said}; copy the file again")


def read_lines(path: Path) -> list[tuple[int, str]]:
    """The number and the text of each line; blank ones at the end are no lines, others are refused."""
    lines = [(number, line.strip()) for number, line in enumerate(read_text(path).rstrip().split("\n"), 1)]
    if lines == [(1, "")]:
        raise InputError(f"{shown(path)} is empty; copy the file again")
    for number, line in lines:
        if not line:
            raise wrong_line(path, number, "is blank")
    return lines


def read_fields(
    path: Path, names: Sequence[str], *, header: bool = False, counted: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """The number of each line and its fields, which white space parts.

    names:   of the fields, as many as each line has
    header:  a line of these names comes first
    counted: before that, a line says how many there are
    """
    lines = read_lines(path)
    told = lines.pop(0)[1] if counted else None
    if header:
        line, said = lines.pop(0) if lines else (2, "")
        if said.split() != list(names):
            raise wrong_line(path, line, f"must be the header {' '.join(names)!r}, not {said[:60]!r}")
    if told is not None and told != str(len(lines)):
        raise InputError(
            f"{shown(path)} line 1 says {told[:20]!r}, but {len(lines):,} images follow; copy the file again"
        )
    for line, said in lines:
        fields = said.split()
        if len(fields) != len(names):
            raise wrong_line(path, line, f"has {len(fields)} of {len(names)} fields ({' '.join(names)}): {said[:60]!r}")
        yield line, fields


def read_pairs(path: Path, names: tuple[str, str]) -> dict[str, tuple[int, str]]:
    """The number of the line and the second field, by the first, which no two lines share."""
    found: dict[str, tuple[int, str]] = {}
    for line, (key, value) in read_fields(path, names):
        if key in found:
            raise wrong_line(path, line, f"has the {names[0]} {key[:40]!r} of line {found[key][0]} again")
        found[key] = line, value
    return found


def a_number(path: Path, line: int, name: str, text: str) -> str:
    """The text of a field that must be a whole number."""
    if not (text.isascii() and text.isdigit()):
        raise wrong_line(path, line, f"has {text[:40]!r} as {name}, which must be a whole number")
    return text


def an_image(path: Path, line: int, name: str) -> str:
    """The name of an image that must be inside the data set's folder, with forward slashes."""
    outside = name.startswith("/") or (".." in name and ".." in name.split("/"))
    if outside or "\\" in name or not name.isprintable():
        raise wrong_line(path, line, f"names the image {name[:60]!r}, which is no path inside the data set's folder")
    return name


def names_in(folder: Path) -> set[str]:
    """The names in a folder; none if it is not there."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return set()
