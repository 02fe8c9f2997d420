"""What `frontrank search` does: searches, prints a table or JSON, draws a contact sheet."""

import argparse
import json
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from frontrank.cli.rows import say
from frontrank.data.images import read_image
from frontrank.errors import InputError
from frontrank.files import atomic_write
from frontrank.picture_index import EmbedPicture, load_index_model, open_index, picture_embedder
from frontrank.reporting.contact_sheet import PER_LINE, Cell, contact_sheet
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Condition, Item, matches, read_filter
from frontrank.training.run import build_device

if TYPE_CHECKING:
    from PIL.Image import Image

_ID = "id:"
_LONGEST = 48  # characters of a column before the last
_MOST_LINES = 200  # of a sheet, which is then 36,000 pixels high
_SIDE = 256  # pixels of a picture that is kept for the sheet


@dataclass(frozen=True)
class Answer:
    """A query, and the items that were found with their scores, best first. item: the query, if it is indexed."""

    query: str
    label: str | None
    item: Item | None
    found: tuple[tuple[Item, float], ...]

    def right(self, item: Item) -> bool | None:
        """Whether an item is what was searched for; None where nobody knows."""
        return None if self.label is None or item.label is None else item.label == self.label


def run(options: argparse.Namespace) -> None:
    """Search, print, draw."""
    if options.sheet is not None:
        _require_target(Path(options.sheet), options)
    for query in options.queries:
        if not query.startswith(_ID) and not os.path.exists(query):
            raise InputError(f"{query} is not there; check its name, or write {_ID}{query} for an image of the index")
    conditions = read_filter(options.filter)
    with open_index(options.url) as index:
        search = _Search(index, options, conditions)
        answers = [search(query) for query in options.queries]
    if options.json:
        print(json.dumps([_plain(answer) for answer in answers], indent=2))
    else:
        print("\n\n".join(_table(answer, alone=len(answers) == 1) for answer in answers))
    if options.sheet is not None:
        sheet = _sheet(answers)
        atomic_write(options.sheet, lambda file: sheet.save(file, "PNG"))
        say(options.json, f"wrote {options.sheet}")


class _Search:
    """Searches of one index; its model is loaded for the first picture."""

    def __init__(self, index: Index, options: argparse.Namespace, conditions: tuple[Condition, ...]) -> None:
        self._index, self._options, self._conditions = index, options, conditions
        alpha = 2.0 if options.alpha is None else options.alpha
        self._expand = False if options.no_expand else None if options.expand is None else (options.expand, alpha)
        self._embed: EmbedPicture | None = None

    def __call__(self, query: str) -> Answer:
        k, label = self._options.k, self._options.label
        how: dict[str, Any] = {"filter": self._conditions, "expand": self._expand}
        if not query.startswith(_ID):
            (hits,) = self._index.search(self._embedded(query)[None], k, **how)
            return Answer(query, label, None, tuple(zip(hits.items, hits.scores.tolist(), strict=True)))
        (item,) = self._index.get([query.removeprefix(_ID)])
        if item is None:
            raise InputError(f"{query}: {self._index.where} has no item of this id; look at the ids of a search")
        own = matches(self._conditions, item)  # it would find itself
        (hits,) = self._index.search(self._index.vectors([item.id]), k + own, stored=True, **how)
        pairs = zip(hits.items, hits.scores.tolist(), strict=True)
        found = tuple(pair for pair in pairs if pair[0].id != item.id)[:k]
        return Answer(query, label or item.label, item, found)

    def _embedded(self, file: str) -> np.ndarray:
        picture = read_image(file)
        if self._embed is None:
            self._embed = picture_embedder(
                load_index_model(self._index, self._options.model, build_device(self._options.device))
            )
        return self._embed(picture)


def _table(answer: Answer, alone: bool) -> str:
    """The answer as lines of columns that stand under each other."""
    judged = any(answer.right(item) is not None for item, _ in answer.found)
    rows = [["", "score", *(["right"] if judged else []), "label", "category", "id"]]
    for place, (item, score) in enumerate(answer.found, 1):
        mark = {True: ["yes"], False: ["no"], None: [""]}[answer.right(item)] if judged else []
        rows.append([str(place), f"{score:.4f}", *mark, item.label or "", item.category or "", item.id])
    used = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    shown = [[*(_cut(_printable(row[column])) for column in used[:-1]), _printable(row[-1])] for row in rows]
    widths = [max(_width(row[place]) for row in shown) for place in range(len(used))]
    lines = ["  ".join(map(_filled, row, widths)).rstrip() for row in shown]
    heading = [] if alone else [_printable(answer.query)]
    return "\n".join([*heading, *(lines if answer.found else ["nothing matches"])])


def _printable(text: str) -> str:
    """A text of an index, as a terminal may get it: control characters would move its cursor, or worse."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _filled(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """The places that a text takes on a terminal; Han characters take two, accents that stand alone none."""
    return sum(0 if unicodedata.combining(x) else 1 + (unicodedata.east_asian_width(x) in "WF") for x in text)


def _plain(answer: Answer) -> dict[str, Any]:
    results = [
        {
            "place": place,
            "score": round(score, 6),
            "id": item.id,
            "path": item.path,
            "label": item.label,
            "category": item.category,
            "metadata": dict(item.metadata),
            "right": answer.right(item),
        }
        for place, (item, score) in enumerate(answer.found, 1)
    ]
    return {"query": answer.query, "label": answer.label, "results": results}


def _sheet(answers: Sequence[Answer]) -> "Image":
    rows = []
    for answer in answers:
        file = answer.query if answer.item is None else answer.item.path
        query = Cell(_picture(file), ("query", answer.label or Path(file).name))
        cells = [
            Cell(_picture(item.path), (f"{place}   {score:.3f}", item.label or Path(item.id).name), answer.right(item))
            for place, (item, score) in enumerate(answer.found, 1)
        ]
        rows.append((query, cells))
    return contact_sheet(rows)


def _picture(file: str) -> "Image | None":
    """A small copy of the picture, as there may be thousands; None if it cannot be read."""
    try:
        picture = read_image(file, at_least=_SIDE)
    except InputError:
        return None
    picture.thumbnail((_SIDE, _SIDE))
    return picture


def _require_target(sheet: Path, options: argparse.Namespace) -> None:
    lines = len(options.queries) * -(-options.k // PER_LINE)
    if sheet.suffix.lower() != ".png":
        raise InputError(f"--sheet {sheet} must end in .png; choose such a name")
    if lines > _MOST_LINES:
        raise InputError(
            f"--sheet could have {lines:,} lines, {_MOST_LINES} at most; give fewer queries, or a smaller -k"
        )
    if os.path.isdir(sheet):
        raise InputError(f"--sheet {sheet} is a folder; choose another name")
    if os.path.exists(sheet) and not options.force:
        raise InputError(f"--sheet: {sheet} exists already; choose another name, or add --force to replace it")
    if not os.path.isdir(sheet.parent):
        raise InputError(f"--sheet: the folder {sheet.parent} is not there; make it first")
    if not os.access(sheet.parent, os.W_OK):
        raise InputError(f"--sheet: nothing can be written to {sheet.parent}; choose another folder")
