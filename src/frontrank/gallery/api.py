"""The JSON API under /api/v1. Every error is {"detail": one line}."""

from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, File, Query, UploadFile
from fastapi.routing import APIRoute
from starlette.datastructures import UploadFile as FormFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from frontrank.gallery.answers import (
    Count,
    HardestAnswer,
    Health,
    IndexStats,
    ItemAnswer,
    Problem,
    SearchAnswer,
    Stats,
    ValuesAnswer,
)
from frontrank.gallery.search import Shown
from frontrank.gallery.service import Service
from frontrank.gallery.state import MOST_CHARACTERS, MOST_FILTERS, USUAL, Asked, check_text
from frontrank.gallery.uploads import sent_form
from frontrank.retrieval.items import check_id, is_field

_WHY = {
    400: "What was sent cannot be read",
    401: "A token is needed: Authorization: Bearer TOKEN",
    403: "Sent by another site's page",
    404: "There is no such index or item",
    408: "What was sent took too long to arrive",
    410: "The upload is kept no longer",
    413: "The upload is too large",
    414: "The URL is too long",
    421: "Not served under this host name",
    422: "An argument that cannot be used",
    429: "Too much at once; Retry-After says when to ask again",
    500: "A mistake of the server",
    503: "The work took too long, or the index cannot answer",
}
_SAID = {  # headers that come with a refusal
    401: {"WWW-Authenticate": {"required": True, "description": "Bearer", "schema": {"type": "string"}}},
    429: {"Retry-After": {"required": True, "description": "Seconds to wait", "schema": {"type": "integer"}}},
}
_REMEDY = "send multipart/form-data with one file, image"
_ANY = (414, 421, 429, 500)  # come before a route is looked at, or from any of them
# described only: what is checked says what is wrong better than a pattern would
_PLAIN = {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"}
_FIELD = {"pattern": r"^(?!(id|path)$)[A-Za-z_][A-Za-z0-9_]{0,63}$"}

Text = Annotated[str, Query(max_length=MOST_CHARACTERS)]
Index = Annotated[str, Query(max_length=64, description="Name of the index; the first one by default.")]
Id = Annotated[str, Query(min_length=1, max_length=512, description="Id of an item.", json_schema_extra=_PLAIN)]
Label = Annotated[
    str,
    Query(
        max_length=MOST_CHARACTERS,
        description="Judge results by this label instead of the item's own.",
        json_schema_extra=_PLAIN,
    ),
]
Filters = Annotated[
    list[Text],
    Query(max_length=MOST_FILTERS, description="As label=cat, label=cat|dog, label!=cat, year>=2020; all must hold."),
]
Expand = Annotated[
    str, Query(pattern="^(on|off|)$", description="Query expansion: on, off, or as stored with the index.")
]
Picture = Annotated[UploadFile, File(description="JPEG, PNG, WebP, BMP, GIF or TIFF.")]


class _Route(APIRoute):
    """A route whose form holds one file at most, where FastAPI would take a thousand and use the last."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def small(request: Request) -> Response:
            if request.method != "POST":
                return await handle(request)
            async with sent_form(request, _REMEDY) as form:
                if not isinstance(form.get("image"), FormFile):
                    raise HTTPException(422, f"there is no image; {_REMEDY}")
                return await handle(request)

        return small


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How refusals of these statuses are described."""
    return {
        status: {"model": Problem, "description": _WHY[status], "headers": _SAID.get(status, {})}
        for status in sorted(statuses)
    }


def api_router(service: Service, token: bool) -> APIRouter:
    """The routes of the API; token: whether one is needed."""
    router = APIRouter(prefix="/api/v1", tags=["search"], route_class=_Route)
    may = partial(problems, *((401,) if token else ()), *_ANY)
    Places = Annotated[int, Query(ge=1, le=service.limits.results, description="How many results.")]  # noqa: N806

    @router.get(
        "/search",
        summary="Search from an indexed item, or from an upload that is still kept",
        responses=may(404, 410, 422, 503),
    )
    async def search_item(
        item: Annotated[
            str, Query(max_length=512, description="Id of the item to search from.", json_schema_extra=_PLAIN)
        ] = "",
        upload: Annotated[str, Query(max_length=64, description="Name of the upload to search from.")] = "",
        index: Index = "",
        k: Places = USUAL,
        filter: Filters = [],  # noqa: B006
        expand: Expand = "",
        label: Label = "",
    ) -> SearchAnswer:
        if bool(item) == bool(upload):
            raise HTTPException(422, "give either item or upload")
        if item:
            check_id(item)
        return await answered(service.named(index), Asked(item, upload, label, k, tuple(filter), expand))

    @router.post(
        "/search",
        summary="Search from a picture that is sent as a form (multipart/form-data)",
        responses=may(400, 403, 404, 408, 410, 413, 422, 503),
    )
    async def search_upload(
        image: Picture,
        index: Index = "",
        k: Places = USUAL,
        filter: Filters = [],  # noqa: B006
        expand: Expand = "",
        label: Label = "",
    ) -> SearchAnswer:
        shown = service.named(index)
        asked = Asked("", "", label, k, tuple(filter), expand)
        asked.conditions()  # a filter that cannot be read is found before the picture is looked at
        name = await service.keep(await image.read())
        return await answered(shown, asked.but(upload=name))

    async def answered(shown: Shown, asked: Asked) -> SearchAnswer:
        for name, value in (("label", asked.label), *(("filter", one) for one in asked.filters)):
            check_text(name, value)
        side = (await service.search(asked.but(sides=(shown.name,))))[0]
        if side.found is None:
            raise HTTPException(422, side.fault)
        label = asked.label or (side.item.label if side.item is not None else None)
        return SearchAnswer.of(shown.name, side.found, side.item, asked.upload, label)

    @router.get("/item", summary="What is known of an item", responses=may(404, 422, 503))
    async def item(id: Id, index: Index = "") -> ItemAnswer:
        check_id(id)
        shown = service.named(index)
        return ItemAnswer.of(await service.ask(lambda: service.item(shown, id)))

    @router.get("/values", summary="The values of a field, to filter by", responses=may(404, 422, 503))
    async def values(
        field: Annotated[
            str,
            Query(max_length=64, description="label, category, or a name of the metadata.", json_schema_extra=_FIELD),
        ] = "label",
        index: Index = "",
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> ValuesAnswer:
        if not is_field(field) or field in ("id", "path"):
            raise HTTPException(422, "field must be label, category, or a name of the metadata")
        shown = service.named(index)
        counts = await service.ask(lambda: shown.index.values(field))  # the most frequent first
        found = [Count(value=value, items=count) for value, count in islice(counts.items(), limit)]
        return ValuesAnswer(index=shown.name, field=field, distinct=len(counts), values=found)

    @router.get("/hardest", summary="The queries whose average precision is lowest", responses=may(404, 422))
    async def hardest(
        index: Index = "",
        limit: Annotated[int, Query(ge=1, le=10_000)] = 50,
    ) -> HardestAnswer:
        name = service.named(index).name
        return HardestAnswer.of(name, service.hardest[name].progress(), limit)

    @router.get("/stats", summary="What the server holds, and how busy it is", responses=may(503))
    async def stats() -> Stats:
        indexes = await service.ask(lambda: [index_stats(one) for one in service.indexes.values()])
        return Stats(
            indexes=indexes,
            searches=service.searches.inside,
            uploads=len(service.uploads),
            picture_bytes=service.pictures.held_bytes,
        )

    @router.get("/health", summary="Whether the server is there; needs no token", responses=problems(*_ANY))
    async def health() -> Health:
        return Health(status="ok")

    return router


def index_stats(shown: Shown) -> IndexStats:
    """What is told of an index."""
    settings = shown.index.settings
    return IndexStats(
        name=shown.name,
        items=shown.index.count(),
        dim=settings.dim,
        engine=settings.engine,
        model=settings.model,
        expansion=bool(settings.expansion),
        takes_uploads=shown.embed is not None,
    )
