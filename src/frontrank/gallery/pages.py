"""The pages that people open, and what these pages load."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import numpy as np
from fastapi import APIRouter, Query, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

import frontrank.reporting
from frontrank.gallery.guard import Guard, cookie_name
from frontrank.gallery.pictures import sent_form
from frontrank.gallery.search import MOST_CHARACTERS, UNSAID, Asked, Facet, Service, Shown, Side, read_asked, starters
from frontrank.reporting.charts import Chart, Line, Scale, chart
from frontrank.reporting.findings import Curve
from frontrank.reporting.pages import cost_text, format_count, fraction, number
from frontrank.retrieval.items import Item, check_id

# ==== HTML from templates, in which users' text is only ever text, and the files that the pages ask for.


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
        "counted": format_count,
        "fraction": fraction,
        "named": named,
        "number": number,
        "told": told,
    }
    found.globals |= {"static_url": static_url, "picture_url": picture_url}
    return found


# ==== The pages that people open, and what these pages load.


_STARTERS = 24
_HARDEST = 60  # shown on their page
_DOTTED = 30  # points that can be told apart
_FOR_EVER = "private, max-age=31536000, immutable"
_AN_HOUR = "private, max-age=3600"

Name = Annotated[str, Query(max_length=64)]


def page_router(service: Service, signed_in: bool) -> APIRouter:
    """The routes of all pages; signed_in: there is a token, so that one can sign out."""
    router = APIRouter(include_in_schema=False)
    common: dict[str, Any] = {"service": service, "signed_in": signed_in}

    @router.get("/")
    async def search_page(request: Request) -> Response:
        asked = read_asked(request.url.query, service.limits.results)
        chosen = service.chosen(asked)
        if len(chosen) == len(service.indexes):
            asked = asked.but(sides=())
        if asked.item:
            check_id(asked.item)
        sides = await service.search(asked) if asked.item or asked.upload else []
        offered = await service.ask(lambda: _offered(service, chosen, begins=not sides))
        return page(
            "search.html.j2",
            **common,
            asked=asked,
            chosen=chosen,
            sides=sides,
            looks=_looks(sides),
            query=_query(sides),
            curve=curve_chart(sides),
            **offered,
            unlisted=unlisted(asked.filters, offered["facets"]),
            title=_title(sides),
        )

    @router.post("/upload")
    async def upload(request: Request) -> Response:
        async with sent_form(request, "choose one file, and send it again") as form:
            image, state = form.get("image"), form.get("state", "")
            if not isinstance(image, UploadFile) or not isinstance(state, str):
                raise HTTPException(422, "there is no image; choose a file first")
            asked = read_asked(state, service.limits.results)
            name = await service.keep(await image.read())
        return RedirectResponse(asked.url(upload=name, item="", label=""), 303)

    @router.get("/hardest")
    async def hardest(index: Name = "") -> Response:
        shown = service.named(index)
        progress = service.hardest[shown.name].progress()
        return page(
            "hardest.html.j2", **common, shown=shown, progress=progress, hard=progress.hard[:_HARDEST], asked=Asked()
        )

    @router.get("/picture")
    async def picture(
        id: Annotated[str, Query(min_length=1, max_length=512)],
        index: Name = "",
        size: Literal["small", "large"] = "small",
    ) -> Response:
        check_id(id)
        found = await service.picture(service.named(index), id, size)
        return Response(found.data, media_type=found.kind, headers={"Cache-Control": _AN_HOUR})

    @router.get("/uploaded/{name}")
    async def uploaded(name: str) -> Response:
        found = service.upload(name)
        return Response(found.preview, media_type=found.kind, headers={"Cache-Control": _AN_HOUR})

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        found = static_files().get(name)
        if found is None:
            raise HTTPException(404, "there is no such file")
        return Response(found.data, media_type=found.kind, headers={"Cache-Control": _FOR_EVER})

    @router.get("/api")
    async def api(request: Request) -> Response:
        return page("api.html.j2", **common, described=request.app.openapi(), base=str(request.base_url))

    return router


def login_router() -> APIRouter:
    """The routes by which one gets in and out where there is a token."""
    router = APIRouter(include_in_schema=False)

    @router.get("/login")
    async def login_page(next: Annotated[str, Query(max_length=8192 + MOST_CHARACTERS)] = "/") -> Response:
        return page("login.html.j2", next=local(next), wrong=False)

    @router.post("/login")
    async def login(request: Request) -> Response:
        async with sent_form(request, "open the page again, and give the token there") as form:
            token, onward = form.get("token"), form.get("next", "/")
        guard: Guard = request.scope["frontrank.guard"]
        onward = local(onward if isinstance(onward, str) else "/")
        if not isinstance(token, str) or not guard.is_token(token.strip()):
            return page("login.html.j2", 401, next=onward, wrong=True)
        response = RedirectResponse(onward, 303)
        scheme = request.headers.get("x-forwarded-proto", request.url.scheme)  # of a proxy that does the encrypting
        response.set_cookie(
            cookie_name(request.scope),
            guard.session,
            httponly=True,
            samesite="strict",
            secure=scheme.startswith("https"),
            path="/",
        )
        return response

    @router.post("/logout")
    async def logout(request: Request) -> Response:
        response = RedirectResponse("/login", 303)
        response.delete_cookie(cookie_name(request.scope), path="/", httponly=True, samesite="strict")
        return response

    return router


def local(path: str) -> str:
    r"""A path of this server, "/" for what leads elsewhere.

    >>> local("/?item=a"), local("//evil.example"), local("/\\evil.example"), local("https://evil.example")
    ('/?item=a', '/', '/', '/')
    """
    fine = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if fine and path.isascii() else "/"


def curve_chart(sides: Sequence[Side]) -> Chart | None:
    """Precision over recall of the query, a line per index; None where no label is known."""
    lines, said = [], []
    for side, look in zip(sides, _looks(sides), strict=True):
        found = side.found
        if found is None or not found.points:
            continue
        recall, precision = (np.array(column) for column in zip(*found.points, strict=True))
        name = side.shown.name if len(sides) > 1 else ""
        lines.append(Line(name, Curve(recall, precision), look, dotted=len(recall) <= _DOTTED))
        first, last = (f"{fraction(precision[i])} at recall {fraction(recall[i])}" for i in (0, -1))
        said.append(f"{name or 'Precision'}: {first}" + (f", {last}" if len(recall) > 1 else ""))
    span = (0.0, 1.0)
    summary = f"Precision over recall of this query. {'; '.join(said)}."
    axes = (Scale(name, percent=True, span=span, marks=(0.0, 0.5, 1.0)) for name in ("recall", "precision"))
    return chart("precision over recall", lines, *axes, size=(300.0, 190.0), summary=summary)


def _offered(service: Service, chosen: Sequence[Shown], begins: bool) -> dict[str, Any]:
    """What can be asked of the indexes, kept for a while: fields, pictures to begin with, whether they expand."""
    first, keep = chosen[0], service.kept.get
    ways = {keep(("expands", one.name), partial(_expands, one)) for one in chosen}
    return {
        "facets": service.facets[first.name].get(),
        "stored": tuple(sorted(ways)),
        "starters": keep(("starters", first.name), lambda: starters(first.index, _STARTERS)) if begins else [],
        "sizes": [keep(("size", one.name), one.index.count) for one in chosen] if begins else [],
    }


def _expands(shown: Shown) -> bool:
    return bool(shown.index.settings.expansion)


def unlisted(filters: Sequence[str], facets: Sequence[Facet]) -> list[str]:
    """The filters that are none of the choices of the lists."""
    listed = {text for facet in facets if facet.short for text, _, _ in facet.choices}
    return [one for one in filters if one not in listed]


def _looks(sides: Sequence[Side]) -> list[str]:
    """The looks of the sides, as in a report: that of the last one is the strong one."""
    return ["after" if side is sides[-1] else "before" for side in sides]


def _query(sides: Sequence[Side]) -> tuple[str, Item] | None:
    """The item that was searched from, and the index that has it."""
    return next(((side.shown.name, side.item) for side in sides if side.item is not None), None)


def _title(sides: Sequence[Side]) -> str:
    if not sides:
        return "Search"
    query = _query(sides)
    of = "an uploaded picture" if query is None else named(query[1])
    shown = max((len(side.found.rows) for side in sides if side.found is not None), default=0)
    return f"{format_count(shown, 'result')} for {of}"
