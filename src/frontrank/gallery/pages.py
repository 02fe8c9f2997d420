"""The pages for people, made from templates, and the files that they load."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
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
from frontrank.checks import format_count
from frontrank.gallery.api import Id, Index
from frontrank.gallery.guard import Guard, cookie_name
from frontrank.gallery.pictures import JPEG, read_form
from frontrank.gallery.search import MOST_CHARACTERS, GalleryIndex, SearchState, parse_state
from frontrank.gallery.service import HIDDEN_FIELDS, Service, SideResult, starters
from frontrank.reporting.charts import Chart, Line, Scale, chart
from frontrank.reporting.findings import Curve
from frontrank.reporting.pages import cost_text, fraction, number
from frontrank.retrieval.items import Item

_HERE = Path(__file__).parent
_REPORT = Path(frontrank.reporting.__file__).parent / "templates"  # pages have the colours and charts of reports
_FILES = {
    "base.css": (_REPORT / "style.css", "text/css"),
    "base.js": (_REPORT / "page.js", "text/javascript"),
    "gallery.css": (_HERE / "static" / "gallery.css", "text/css"),
    "gallery.js": (_HERE / "static" / "gallery.js", "text/javascript"),
    "icon.svg": (_HERE / "static" / "icon.svg", "image/svg+xml"),
}


@cache
def static_files() -> dict[str, bytes]:
    """Return all files that pages load, by name; no other file can be requested."""
    return {name: path.read_bytes() for name, (path, _) in _FILES.items()}


def page_response(template: str, status: int = 200, **values: object) -> HTMLResponse:
    """Return the page of a template; every value is escaped."""
    text = _environment().get_template(template).render(status=status, **values)
    return HTMLResponse(text.encode("utf-8", "replace"), status)


@cache
def static_url(name: str) -> str:
    """Return the URL of a file of ours; it changes with the file, so that browsers may keep it for ever."""
    return f"/static/{name}?v={hashlib.sha256(static_files()[name]).hexdigest()[:12]}"


def picture_url(index: str, item: str, size: str = "small") -> str:
    """Return the URL of the picture of an item.

    >>> picture_url("new", "cats/1&2")
    '/picture?index=new&id=cats%2F1%262&size=small'
    """
    return "/picture?" + urlencode({"index": index, "id": item, "size": size})


def item_name(item: Item) -> str:
    """Return the name of an item: "name" of its metadata, as in reports, else its label, else its id.

    >>> item_name(Item("1", label="1F34A", metadata={"name": "tangerine"})), item_name(Item("1", label="cat"))
    ('tangerine', 'cat')
    """
    return str(item.metadata.get("name") or item.label or item.id)


def visible_metadata(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return the metadata that the page shows beside the name.

    >>> visible_metadata({"name": "tangerine", "year": 2020, "sha256": "c0ffee"})
    {'year': 2020}
    """
    return {field: value for field, value in metadata.items() if field not in ("name", *HIDDEN_FIELDS)}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader([_HERE / "templates", _REPORT]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "capfirst": lambda text: text[:1].upper() + text[1:],
        "cost_text": cost_text,
        "format_count": format_count,
        "fraction": fraction,
        "item_name": item_name,
        "number": number,
        "visible_metadata": visible_metadata,
    }
    environment.globals |= {"static_url": static_url, "picture_url": picture_url}
    return environment


_STARTERS, _HARDEST = 24, 60  # pictures to begin with, and hardest queries, on their pages
_FIELDS = "application/x-www-form-urlencoded"  # the kind of a form without a file
_DOTTED = 30  # points of a curve that are drawn as dots
_FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}
_AN_HOUR = {"Cache-Control": "private, max-age=3600"}


def page_router(service: Service, signed_in: bool) -> APIRouter:
    """Return the routes of all pages; signed_in: there is a token, so that people can sign out."""
    router = APIRouter(include_in_schema=False)
    common: dict[str, Any] = {"service": service, "signed_in": signed_in}
    start = SearchState()

    @router.get("/")
    async def search_page(request: Request) -> Response:
        state = parse_state(request.url.query, service.limits.results)
        indexes = service.indexes_of(state)
        if len(indexes) == len(service.indexes):
            state = replace(state, sides=())
        sides = await service.search(state) if state.item or state.upload else []
        choices = await service.run(lambda: _choices(service, indexes, is_start=not sides))
        listed = {text for facet in choices["facets"] if facet.short for text, _, _ in facet.choices}
        return page_response(
            "search.html.j2",
            **common,
            state=state,
            indexes=indexes,
            sides=sides,
            styles=_styles(sides),
            query=_query(sides),
            curve=curve_chart(sides),
            **choices,
            other_filters=[one for one in state.filters if one not in listed],
            title=_title(sides),
        )

    @router.post("/upload")
    async def upload(request: Request) -> Response:
        async with read_form(request, "choose one file, and send it again") as form:
            image, query = form.get("image"), form.get("state", "")
            if not isinstance(image, UploadFile) or not isinstance(query, str):
                raise HTTPException(422, "there is no image; choose a file first")
            state = parse_state(query, service.limits.results)
            name = await service.add_upload(await image.read())
        return RedirectResponse(state.url(upload=name, item="", label=""), 303)

    @router.get("/hardest")
    async def hardest(index: Index = "") -> Response:
        source = service.get_index(index)
        progress = service.hardest[source.name].progress()
        hard = progress.hard[:_HARDEST]
        return page_response("hardest.html.j2", source=source, progress=progress, hard=hard, state=start, **common)

    @router.get("/picture")
    async def picture(id: Id, index: Index = "", size: Literal["small", "large"] = "small") -> Response:
        data = await service.get_picture(service.get_index(index), id, size)
        return Response(data, media_type=JPEG, headers=_AN_HOUR)

    @router.get("/uploaded/{name}")
    async def query_picture(name: str) -> Response:
        return Response(service.get_upload(name).preview, media_type=JPEG, headers=_AN_HOUR)

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in _FILES:
            raise HTTPException(404, "there is no such file")
        return Response(static_files()[name], media_type=_FILES[name][1], headers=_FOR_EVER)

    @router.get("/api")
    async def api(request: Request) -> Response:
        return page_response("api.html.j2", **common, api=request.app.openapi(), base=str(request.base_url))

    return router


def login_router() -> APIRouter:
    """Return the routes to sign in and out, if there is a token."""
    router = APIRouter(include_in_schema=False)

    @router.get("/login")
    async def login_page(next: Annotated[str, Query(max_length=8192 + MOST_CHARACTERS)] = "/") -> Response:
        return page_response("login.html.j2", next=local_path(next), wrong=False)

    @router.post("/login")
    async def login(request: Request) -> Response:
        async with read_form(request, "open the page again, and give the token there", _FIELDS) as form:
            token, target = form.get("token"), form.get("next", "/")
        guard: Guard = request.scope["frontrank.guard"]
        target = local_path(target if isinstance(target, str) else "/")
        if not isinstance(token, str) or not guard.is_token(token.strip(), request.scope):
            return page_response("login.html.j2", 401, next=target, wrong=True)
        response = RedirectResponse(target, 303)
        secure = request.headers.get("x-forwarded-proto", request.url.scheme).startswith("https")  # or of a proxy
        response.set_cookie(
            cookie_name(request.scope), guard.start_session(), secure=secure, httponly=True, samesite="strict"
        )
        return response

    @router.post("/logout")
    async def logout(request: Request) -> Response:
        guard: Guard = request.scope["frontrank.guard"]
        guard.end_session(request.scope)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(cookie_name(request.scope), httponly=True, samesite="strict")
        return response

    return router


def local_path(path: str) -> str:
    r"""Return a path of this server; "/" for one that leads elsewhere.

    >>> local_path("/?item=a"), local_path("//evil.example"), local_path("/\\evil.example")
    ('/?item=a', '/', '/')
    """
    fine = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if fine and path.isascii() else "/"


def curve_chart(sides: Sequence[SideResult]) -> Chart | None:
    """Return the chart of precision over recall, a line per index; None if no label is known."""
    lines, texts = [], []
    for side, style in zip(sides, _styles(sides), strict=True):
        if side.result is None or not side.result.points:
            continue
        recall, precision = (np.array(column) for column in zip(*side.result.points, strict=True))
        name = side.source.name if len(sides) > 1 else ""
        lines.append(Line(name, Curve(recall, precision), style, dotted=len(recall) <= _DOTTED))
        first, last = (f"{fraction(precision[i])} at recall {fraction(recall[i])}" for i in (0, -1))
        texts.append(f"{name or 'Precision'}: {first}" + (f", {last}" if len(recall) > 1 else ""))
    summary = f"Precision over recall of this query. {'; '.join(texts)}."
    axes = (Scale(name, percent=True, span=(0.0, 1.0), marks=(0.0, 0.5, 1.0)) for name in ("recall", "precision"))
    return chart("precision over recall", lines, *axes, size=(300.0, 190.0), summary=summary)


def _choices(service: Service, indexes: Sequence[GalleryIndex], is_start: bool) -> dict[str, Any]:
    """Return what people can choose from, cached for a while: fields, pictures to begin with, query expansion."""
    first, cached = indexes[0], service.cache.get
    return {
        "facets": service.facets[first.name].get(),
        "stored": tuple(sorted({bool(one.index.settings.expansion) for one in indexes})),
        "starters": cached(("starters", first.name), lambda: starters(first.index, _STARTERS)) if is_start else [],
        "sizes": [cached(("size", one.name), one.index.count) for one in indexes] if is_start else [],
    }


def _styles(sides: Sequence[SideResult]) -> list[str]:
    """Return the style of each side, as in a report: the last one stands out."""
    return ["after" if side is sides[-1] else "before" for side in sides]


def _query(sides: Sequence[SideResult]) -> tuple[str, Item] | None:
    """Return the item that was searched from, and the index that has it."""
    return next(((side.source.name, side.item) for side in sides if side.item is not None), None)


def _title(sides: Sequence[SideResult]) -> str:
    if not sides:
        return "Search"
    query = _query(sides)
    name = "an uploaded picture" if query is None else item_name(query[1])
    count = max((len(side.result.rows) for side in sides if side.result is not None), default=0)
    return f"{format_count(count, 'result')} for {name}"
