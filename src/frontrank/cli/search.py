"""Find the images of an index that are nearest to a query, best first. If the query has a label (--label, or it is in
the index itself), the column "right" shows which hits share it.

filters: label=cat  label=cat|dog  category!=birds  year>=2020; all must hold

examples:
  frontrank search photos.index query.jpg
  frontrank search photos.index query.jpg -k 20 --filter label=cat \\
      --sheet found.png
  frontrank search photos.index queries/*.jpg --json > found.json
  frontrank search photos.index id:my_photos/cat/1.jpg
  frontrank search milvus://localhost:19530/photos query.jpg --no-expand
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import frontrank as fr
from frontrank.checks import suggestion
from frontrank.cli.inputs import (
    add_expansion_arguments,
    add_running_arguments,
    check_output,
    number_type,
    read_expansion,
    refuse_options,
    say,
)
from frontrank.errors import InputError
from frontrank.files import atomic_write
from frontrank.tables import Table

if TYPE_CHECKING:
    from PIL.Image import Image

    from frontrank.retrieval.items import Conditions

_ID = "id:"
_SAMPLE = 200  # items that are read to learn which fields there are
_LONGEST = 48  # characters of a column before the last
_MOST_LINES = 200  # of a sheet, which is then 36,000 pixels high
_SIDE = 256  # pixels of a picture on the sheet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "frontrank search URL QUERY... [-k N] [--filter F] [options]"
    parser.add_argument("url", metavar="URL", help="the index, as for frontrank index --to")
    parser.add_argument("queries", metavar="QUERY", nargs="+", help="an image file, or id:ID for an image of the index")
    parser.add_argument("-k", metavar="N", type=number_type(int, at_least=1), default=10, help="hits; 10 by default")
    parser.add_argument("--filter", metavar="F", action="append", default=[], help="only such items; see filters")
    parser.add_argument("--label", metavar="TEXT", help="of the queries: shows which hits are right")
    add_expansion_arguments(parser, "query expansion")
    parser.add_argument("--no-expand", action="store_true", help="no query expansion, also if the index has one")
    parser.add_argument("--model", metavar="MODEL", help="where the index's model is now, if it was moved")
    parser.add_argument("--json", action="store_true", help="write JSON instead of a table")
    parser.add_argument("--sheet", metavar="PNG", help="draw the queries and their hits")
    parser.add_argument("--force", action="store_true", help="let --sheet replace a file")
    add_running_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Search, print, draw."""
    _check_options(options)
    from frontrank.picture_index import open_index
    from frontrank.retrieval.items import read_filter

    conditions = read_filter(options.filter)
    with open_index(options.url) as index:
        _check_fields(index, conditions)
        answers = _search(index, options, conditions)
    if options.json:
        print(json.dumps([_as_json(answer) for answer in answers], indent=2))
    else:
        print("\n\n".join(format_answer(answer, alone=len(answers) == 1) for answer in answers))
    if options.sheet is not None:
        sheet = _draw_sheet(answers)
        atomic_write(options.sheet, lambda file: sheet.save(file, "PNG"))
        say(options.json, f"wrote {options.sheet}")


def _check_options(options: argparse.Namespace) -> None:
    read_expansion(options)
    if options.no_expand:
        refuse_options(options, ["expand"], "does not go with --no-expand; leave one out")
    if options.sheet is not None:
        from frontrank.reporting.contact_sheet import PER_LINE

        check_output("--sheet", Path(options.sheet), [".png"], options.force)
        lines = len(options.queries) * -(-options.k // PER_LINE)
        if lines > _MOST_LINES:
            remedy = "give fewer queries, or a smaller -k"
            raise InputError(f"--sheet would have {lines:,} lines, {_MOST_LINES} at most; {remedy}")
    else:
        refuse_options(options, ["force"], "needs --sheet; add it, or leave out --force")
    for query in options.queries:
        if not query.startswith(_ID) and not os.path.exists(query):
            raise InputError(f"{query} does not exist; check its name, or use {_ID}{query} for an image of the index")


def _check_fields(index: fr.Index, conditions: Conditions) -> None:
    """Raise if no item has a field that a filter names: with = nothing would match, with != everything."""
    from frontrank.retrieval.items import FIELDS

    known = dict.fromkeys(FIELDS)
    for item in index.items(limit=_SAMPLE):
        known.update(dict.fromkeys(item.metadata))
    for field in dict.fromkeys(condition.field for condition in conditions):
        if field not in known and not index.values(field):  # items beyond the sample may have it
            near = suggestion(field, known) or f"; there are {', '.join(known)}"
            raise InputError(f"--filter: no item of {index.where} has the field {field!r}{near}")


@dataclass(frozen=True)
class Answer:
    """A query and its hits, items with their scores, best first. item: the query, if it is in the index."""

    query: str
    label: str | None
    item: fr.Item | None
    hits: tuple[tuple[fr.Item, float], ...]

    def is_right(self, item: fr.Item) -> bool | None:
        """Whether an item has the label of the query; None if one of the two has none."""
        return None if self.label is None or item.label is None else item.label == self.label


def _search(index: fr.Index, options: argparse.Namespace, conditions: Any) -> list[Answer]:
    from frontrank.data import read_image
    from frontrank.picture_index import load_index_model, picture_embedder
    from frontrank.retrieval.items import matches
    from frontrank.training.distributed import build_device

    how: dict[str, Any] = {"filter": conditions, "expand": False if options.no_expand else read_expansion(options)}

    @cache
    def embedder() -> Callable[[Any], Any]:  # loaded for the first picture only
        return picture_embedder(load_index_model(index, options.model, build_device(options.device)))

    def search(query: str) -> Answer:
        if not query.startswith(_ID):
            picture = read_image(query)
            (hits,) = index.search(embedder()(picture)[None], options.k, **how)
            return Answer(query, options.label, None, tuple(zip(hits.items, hits.scores.tolist(), strict=True)))
        (item,) = index.get([query.removeprefix(_ID)])
        if item is None:
            raise InputError(f"{query}: {index.where} has no item of this id; look at the ids of a search")
        itself = matches(conditions, item)  # it would find itself
        (hits,) = index.search(index.vectors([item.id]), options.k + itself, stored=True, **how)
        pairs = zip(hits.items, hits.scores.tolist(), strict=True)
        others = tuple(pair for pair in pairs if pair[0].id != item.id)[: options.k]
        return Answer(query, options.label or item.label, item, others)

    return [search(query) for query in options.queries]


def format_answer(answer: Answer, alone: bool) -> str:
    """Return the answer as lines of aligned columns, under the query if it is not alone."""
    heading = [] if alone else [_printable(answer.query)]
    if not answer.hits:
        return "\n".join([*heading, "nothing matches"])
    has_right = any(answer.is_right(item) is not None for item, _ in answer.hits)
    header = ["", "score", *(["right"] if has_right else []), "label", "category", "id"]
    rows = []
    for place, (item, score) in enumerate(answer.hits, 1):
        right = [{True: "yes", False: "no", None: ""}[answer.is_right(item)]] if has_right else []
        texts = [_printable(text or "") for text in (item.label, item.category)]
        texts = [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for text in texts]
        rows.append([str(place), f"{score:.4f}", *right, *texts, _printable(item.id)])
    columns = [column for column in range(len(header)) if any(row[column] for row in rows)]
    header, *rows = [[row[column] for column in columns] for row in (header, *rows)]
    return "\n".join([*heading, Table(header, rows, "l" * len(columns)).render("text")])


def _printable(text: str) -> str:
    """Return a text of an index as a terminal may get it: control characters would move its cursor, or worse."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _as_json(answer: Answer) -> dict[str, Any]:
    results = []
    for place, (item, score) in enumerate(answer.hits, 1):
        known = {name: getattr(item, name) for name in ("id", "path", "label", "category")}
        more = {"metadata": dict(item.metadata), "right": answer.is_right(item)}
        results.append({"place": place, "score": round(score, 6), **known, **more})
    return {"query": answer.query, "label": answer.label, "results": results}


def _draw_sheet(answers: Sequence[Answer]) -> Image:
    from frontrank.reporting.contact_sheet import Cell, contact_sheet

    rows = []
    for answer in answers:
        file = answer.query if answer.item is None else answer.item.path
        query = Cell(_thumbnail(file), ("query", answer.label or Path(file).name))
        cells = []
        for place, (item, score) in enumerate(answer.hits, 1):
            caption = f"{place}   {score:.3f}", item.label or Path(item.id).name
            cells.append(Cell(_thumbnail(item.path), caption, answer.is_right(item)))
        rows.append((query, cells))
    return contact_sheet(rows)


def _thumbnail(file: str) -> Image | None:
    """Return a small copy of the picture, as there may be thousands; None if it cannot be read."""
    from frontrank.data import read_image

    try:
        picture = read_image(file, at_least=_SIDE)
    except InputError:
        return None
    picture.thumbnail((_SIDE, _SIDE))
    return picture
