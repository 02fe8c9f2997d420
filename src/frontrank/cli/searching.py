"""What `frontrank search` does: searches, prints a table or JSON, draws a contact sheet."""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from frontrank.build import build_device
from frontrank.cli.rows import say
from frontrank.data.images import read_image
from frontrank.errors import InputError
from frontrank.jobs.searching import EmbedPicture, index_model, picture_embedder
from frontrank.reporting.contact_sheet import Cell, contact_sheet
from frontrank.retrieval.filters import matches, read_filter
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item

if TYPE_CHECKING:
    from PIL.Image import Image

_ID = "id:"
_LONGEST = 48  # characters of a column


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
        _require_target(Path(options.sheet), options.force)
    with Index.load(options.url) as index:
        search = _Search(index, options)
        answers = [search(query) for query in options.queries]
    if options.sheet is not None:
        _sheet(answers).save(options.sheet)
        say(options.json, f"wrote {options.sheet}")
    if options.json:
        print(json.dumps([_plain(answer) for answer in answers], indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(_table(answer, alone=len(answers) == 1) for answer in answers))


class _Search:
    """Searches of one index; its model is loaded for the first picture."""

    def __init__(self, index: Index, options: argparse.Namespace) -> None:
        self._index, self._options = index, options
        self._conditions = read_filter(options.filter)
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
                index_model(self._index, self._options.model, build_device(self._options.device))
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
    shown = [[_printable(row[column]) for column in used] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(used))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
    heading = [] if alone else [_printable(answer.query, len(answer.query))]
    return "\n".join([*heading, *(lines if answer.found else ["nothing matches"])])


def _printable(text: str, longest: int = _LONGEST) -> str:
    """A text of an index, as a terminal may get it: control characters would move its cursor, or worse."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= longest else f"...{text[3 - longest :]}"


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
    try:
        return read_image(file, at_least=256)
    except InputError:
        return None


def _require_target(sheet: Path, force: bool) -> None:
    if sheet.suffix.lower() != ".png":
        raise InputError(f"--sheet {sheet} must end in .png; choose such a name")
    if sheet.exists() and not force:
        raise InputError(f"--sheet: {sheet} exists already; choose another name, or add --force to replace it")
    if not os.path.isdir(sheet.parent):
        raise InputError(f"--sheet: the folder {sheet.parent} is not there; make it first")
