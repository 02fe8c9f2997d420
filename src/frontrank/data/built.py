"""The folder of a data set that is built here: what it was built from, whether that is finished, and its licences.

OUT/images.csv (or another name), OUT/LICENCES.md, OUT/data.json, and the pictures in OUT/images.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frontrank.data.folders import read_table
from frontrank.data.image_table import ImageTable, shown
from frontrank.errors import InputError
from frontrank.packages import Package

TABLE = "images.csv"
_FORMAT = "frontrank.data.1"
_STATE = "data.json"

Settings = Mapping[str, object]


@dataclass(frozen=True)
class Source:
    """Where the pictures of one design come from, and on which terms."""

    design: str
    package: Package
    licence: str


def started(out: str | os.PathLike[str], settings: Settings) -> ImageTable | None:
    """The table of a folder that is finished; None for one that is to be built, or gone on with.

    settings: all that decides what is built, "data" among it; a folder that was begun with others is refused, as is one
              that holds anything else
    """
    folder = Path(out)
    wanted = json.loads(json.dumps(dict(settings)))
    try:
        empty = not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir()))
        state = None if empty else _state(folder)
        if state is None and not empty:
            what = "holds something else" if folder.is_dir() else "is a file"
            raise InputError(f"{shown(folder)} {what}; give a new folder for the data")
        if state is None:
            folder.mkdir(parents=True, exist_ok=True)
            _write_state(folder, {"finished": False, "settings": wanted})
            return None
    except OSError as error:
        raise InputError(f"{shown(folder)} cannot be used ({error.strerror}); give another folder") from error
    held = state["settings"]
    if held != wanted:
        keys = [key for key in {**held, **wanted} if held.get(key) != wanted.get(key)]
        differing = ", ".join(f"{key} {_said(held.get(key))} (not {_said(wanted.get(key))})" for key in keys)
        raise InputError(f"{shown(folder)} is built with {differing}; give another folder, or delete it")
    if not state["finished"] or not (folder / TABLE).is_file():
        return None
    return replace(read_table(folder / TABLE), name=str(wanted["data"]))


def finished(
    out: str | os.PathLike[str],
    table: ImageTable,
    settings: Settings,
    sources: Sequence[Source],
    others: Sequence[Package] = (),
    notes: str = "",
) -> ImageTable:
    """Write the table, the licences and, last of all, that the folder is finished; and read the table again.

    table:   with the extra columns "design" and "licence"
    others:  packages that brought no pictures, such as the one with the names of the classes
    notes:   a paragraph for the file of licences
    """
    folder = Path(out)
    packages = list(dict.fromkeys([*(source.package for source in sources), *others]))
    try:
        table.save(folder / TABLE, overwrite=True)
        _write(folder / "LICENCES.md", _licences(str(settings["data"]), table, sources, others, notes))
        state = {
            "finished": True,
            "settings": dict(settings),
            "counts": [{key: value for key, value in row.items() if key != "role"} for row in table.counts()],
            "packages": [
                {key: getattr(each, key) for key in ("client", "name", "version", "sha256")} for each in packages
            ],
        }
        _write_state(folder, state)
    except OSError as error:
        raise InputError(f"{shown(folder)} cannot be written ({error.strerror}); make room there") from error
    again = started(folder, settings)
    if again is None:
        raise InputError(f"{shown(folder)} has changed while it was built; run this again")
    return again


def _state(folder: Path) -> dict[str, dict[str, object]] | None:
    try:
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        ours = state["format"] == _FORMAT and isinstance(state["settings"], dict) and "finished" in state
        return state if ours else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_state(folder: Path, state: Mapping[str, object]) -> None:
    _write(folder / _STATE, json.dumps({"format": _FORMAT, **state}, indent=1, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _said(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _licences(data: str, table: ImageTable, sources: Sequence[Source], others: Sequence[Package], notes: str) -> str:
    pictures = Counter(table.extra["design"].tolist())
    rows = [
        f"| {source.design} | {source.package} | {source.licence} | {pictures[source.design]:,} |"
        for source in sorted(sources, key=lambda source: source.design)
    ]
    also = "".join(f"\n{package} brought the names and groups of the classes.\n" for package in others)
    head = "| design | package | licence of the pictures | pictures |\n|---|---|---|---:|\n"
    said = f"\n{notes.strip()}\n" if notes else ""
    text = "Each picture keeps the licence of the art it is made from; `licence` in images.csv says which.\n"
    return f"# Licences of the {data} pictures\n\n{text}{said}\n{head}" + "\n".join(rows) + f"\n{also}"
