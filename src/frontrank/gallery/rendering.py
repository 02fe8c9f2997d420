"""HTML from templates, in which users' text is only ever text, and the files that the pages ask for."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

import frontrank.reporting
from frontrank.gallery.facets import UNSAID
from frontrank.reporting.wording import cost_text, counted, fraction, number
from frontrank.retrieval.items import Item

_HERE = Path(__file__).parent
_REPORT = Path(frontrank.reporting.__file__).parent / "templates"  # the report's colours and charts are ours too
_FILES = {
    "base.css": (_REPORT / "style.css", "text/css"),
    "base.js": (_REPORT / "page.js", "text/javascript"),
    "gallery.css": (_HERE / "static" / "gallery.css", "text/css"),
    "gallery.js": (_HERE / "static" / "gallery.js", "text/javascript"),
    "icon.svg": (_HERE / "static" / "icon.svg", "image/svg+xml"),
}


@dataclass(frozen=True)
class StaticFile:
    """A file of ours as it is sent; `version` changes with what it holds."""

    data: bytes
    kind: str
    version: str


@cache
def static_files() -> dict[str, StaticFile]:
    """All files that pages may ask for, by name: there is no way to any other file."""
    found = {}
    for name, (path, kind) in _FILES.items():
        data = path.read_bytes()
        found[name] = StaticFile(data, kind, hashlib.sha256(data).hexdigest()[:12])
    return found


def page(template: str, status: int = 200, **values: object) -> HTMLResponse:
    """The page that a template makes of some values; every value is escaped."""
    text = _environment().get_template(template).render(status=status, **values)
    return HTMLResponse(text.encode("utf-8", "replace"), status)


def static_url(name: str) -> str:
    """Where a file of ours is; the URL changes with the file, so that browsers may keep it for ever."""
    return f"/static/{name}?v={static_files()[name].version}"


def picture_url(index: str, item: str, size: str = "small") -> str:
    """Where the picture of an item is.

    >>> picture_url("new", "cats/1&2")
    '/picture?index=new&id=cats%2F1%262&size=small'
    """
    return "/picture?" + urlencode({"index": index, "id": item, "size": size})


def named(item: Item) -> str:
    """What an item is called: what its metadata has as its name, as in reports, else its label, else its id.

    >>> named(Item("1", label="1F34A", metadata={"name": "tangerine"})), named(Item("1", label="cat")), named(Item("1"))
    ('tangerine', 'cat', '1')
    """
    return str(item.metadata.get("name") or item.label or item.id)


def told(metadata: Mapping[str, object]) -> dict[str, object]:
    """What people are told of an item beside its name.

    >>> told({"name": "tangerine", "year": 2020, "sha256": "c0ffee"})
    {'year': 2020}
    """
    return {field: value for field, value in metadata.items() if field not in ("name", *UNSAID)}


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader([_HERE / "templates", _REPORT]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "capfirst": lambda text: text[:1].upper() + text[1:],
        "cost_text": cost_text,
        "counted": counted,
        "fraction": fraction,
        "named": named,
        "number": number,
        "told": told,
    }
    found.globals |= {"static_url": static_url, "picture_url": picture_url}
    return found
