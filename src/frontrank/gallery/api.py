"""The JSON API under /api/v1. Every error is {"detail": one line}."""

from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, File, Query, UploadFile
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile as FormFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from frontrank.gallery.pictures import sent_form
from frontrank.gallery.search import (
    MOST_CHARACTERS,
    MOST_FILTERS,
    USUAL,
    Asked,
    Found,
    Progress,
    Service,
    Shown,
    check_text,
)
from frontrank.retrieval.items import Item, check_id, is_field

# ==== The answers of the JSON API, field by field.


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str = Field(description="One line: what is wrong, and what to do about it.")


class Health(BaseModel):
    """The server is there."""

    status: str = Field(examples=["ok"])


class ItemAnswer(BaseModel):
    """An image of an index. The path is not told; its picture is at /picture?index=NAME&id=ID."""

    id: str
    label: str | None = None
    category: str | None = None
    metadata: dict[str, str | int | float | bool] = {}

    @classmethod
    def of(cls, item: Item) -> "ItemAnswer":
        """What is told of an item."""
        return cls(id=item.id, label=item.label, category=item.category, metadata=dict(item.metadata))


class Result(ItemAnswer):
    """A result, from the first place on."""

    place: int
    score: float = Field(description="Cosine of query and item: higher is nearer.")
    relevant: bool | None = Field(None, description="Whether it has the query's label; null where that is not known.")


class Point(BaseModel):
    """A point of the precision-recall curve, at a relevant item."""

    recall: float
    precision: float


class SearchAnswer(BaseModel):
    """The results of one index for one query."""

    index: str
    query: ItemAnswer | None = Field(None, description="The item that was searched from, null for an upload.")
    upload: str | None = Field(None, description="The name of the upload, to search from it again.")
    label: str | None = Field(None, description="By which label results are judged.")
    results: list[Result]
    looked: int = Field(description="Places over which the average precision is computed.")
    relevant: int | None = Field(None, description="Relevant items in the index that pass the filters.")
    average_precision: float | None = None
    complete: bool = Field(description="False: not all relevant items were found, so the AP is a lower bound.")
    precision_recall: list[Point] = []
    milliseconds: float = Field(description="Time that the index took.")

    @classmethod
    def of(cls, index: str, found: Found, query: Item | None, upload: str | None, label: str | None) -> "SearchAnswer":
        """What is told of a search."""
        results = [
            Result(**ItemAnswer.of(row.item).model_dump(), place=row.place, score=row.score, relevant=row.relevant)
            for row in found.rows
        ]
        return cls(
            index=index,
            query=None if query is None else ItemAnswer.of(query),
            upload=upload or None,
            label=label,
            results=results,
            looked=found.looked,
            relevant=found.relevant,
            average_precision=found.average_precision,
            complete=found.complete,
            precision_recall=[Point(recall=recall, precision=precision) for recall, precision in found.points],
            milliseconds=round(found.milliseconds, 3),
        )


class Count(BaseModel):
    """A value of a field, and how many items have it."""

    value: str
    items: int


class ValuesAnswer(BaseModel):
    """The values of a field, the most frequent first."""

    index: str
    field: str
    distinct: int
    values: list[Count]


class IndexStats(BaseModel):
    """An index."""

    name: str
    items: int
    dim: int | None
    engine: str
    model: str | None = Field(description="Fingerprint of the model whose embeddings it holds.")
    expansion: bool = Field(description="Whether query expansion is stored with it.")
    takes_uploads: bool = Field(description="Whether there is a model to embed new pictures with.")


class Stats(BaseModel):
    """What the server holds and how busy it is."""

    indexes: list[IndexStats]
    searches: int = Field(description="Searches at work or waiting.")
    uploads: int = Field(description="Uploads that are kept.")
    picture_bytes: int = Field(description="Memory that small pictures take.")


class HardAnswer(BaseModel):
    """A hard query."""

    item: ItemAnswer
    average_precision: float
    complete: bool = Field(description="False: the average precision is a lower bound.")
    relevant: int


class HardestAnswer(BaseModel):
    """Queries in the order of their average precision, from a sample; the first request begins the work."""

    index: str
    state: str = Field(description="running, done or failed")
    done: int
    total: int
    hardest: list[HardAnswer]

    @classmethod
    def of(cls, index: str, progress: Progress, limit: int) -> "HardestAnswer":
        """What is told of the work so far."""
        hard = [
            HardAnswer(
                item=ItemAnswer.of(one.item),
                average_precision=one.average_precision,
                complete=one.complete,
                relevant=one.relevant,
            )
            for one in progress.hard[:limit]
        ]
        return cls(index=index, state=progress.state, done=progress.done, total=progress.total, hardest=hard)


# ==== The JSON API under /api/v1. Every error is {"detail": one line}.


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
