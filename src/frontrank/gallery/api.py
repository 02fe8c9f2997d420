"""The JSON API under /api/v1. Every error is {"detail": one line}."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
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

from frontrank.gallery.pictures import read_form
from frontrank.gallery.search import (
    DEFAULT_K,
    MOST_CHARACTERS,
    MOST_FILTERS,
    HardestProgress,
    SearchResult,
    SearchState,
    Shown,
    check_text,
)
from frontrank.gallery.service import Service
from frontrank.retrieval.items import Item, check_id, is_field

# The answers, field by field


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str = Field(description="One line: what is wrong, and what to do about it.")


class Health(BaseModel):
    """The server runs."""

    status: str = Field(examples=["ok"])


class ItemAnswer(BaseModel):
    """An image of an index. Its path is not shown; its picture is at /picture?index=NAME&id=ID."""

    id: str
    label: str | None = None
    category: str | None = None
    metadata: dict[str, str | int | float | bool] = {}

    @classmethod
    def of(cls, item: Item) -> "ItemAnswer":
        """Return the answer for an item."""
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
    label: str | None = Field(None, description="The label that makes a result relevant.")
    results: list[Result]
    looked: int = Field(description="Number of places over which the average precision is computed.")
    relevant: int | None = Field(None, description="Relevant items in the index that pass the filters.")
    average_precision: float | None = None
    complete: bool = Field(description="False: not all relevant items were found, so the AP is a lower bound.")
    precision_recall: list[Point] = []
    milliseconds: float = Field(description="Time of the search in the index.")

    @classmethod
    def of(
        cls, index: str, result: SearchResult, query: Item | None, upload: str | None, label: str | None
    ) -> "SearchAnswer":
        """Return the answer for a search."""
        results = [
            Result(**ItemAnswer.of(row.item).model_dump(), place=row.place, score=row.score, relevant=row.relevant)
            for row in result.rows
        ]
        return cls(
            index=index,
            query=None if query is None else ItemAnswer.of(query),
            upload=upload or None,
            label=label,
            results=results,
            looked=result.depth,
            relevant=result.relevant,
            average_precision=result.average_precision,
            complete=result.complete,
            precision_recall=[Point(recall=recall, precision=precision) for recall, precision in result.points],
            milliseconds=round(result.milliseconds, 3),
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
    """The indexes of the server, and how busy it is."""

    indexes: list[IndexStats]
    searches: int = Field(description="Searches that run or wait.")
    uploads: int = Field(description="Uploads that are kept.")
    picture_bytes: int = Field(description="Memory of small pictures.")


class HardAnswer(BaseModel):
    """A hard query."""

    item: ItemAnswer
    average_precision: float
    complete: bool = Field(description="False: the average precision is a lower bound.")
    relevant: int


class HardestAnswer(BaseModel):
    """Queries from a sample, lowest average precision first; the first request starts the work."""

    index: str
    state: str = Field(description="running, done or failed")
    done: int
    total: int
    hardest: list[HardAnswer]

    @classmethod
    def of(cls, index: str, progress: HardestProgress, limit: int) -> "HardestAnswer":
        """Return the answer for the work so far."""
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


# The routes

_PROBLEMS = {
    400: "The body of the request cannot be read",
    401: "A token is needed: Authorization: Bearer TOKEN",
    403: "Sent by a page of another site",
    404: "There is no such index or item",
    408: "The body of the request took too long to arrive",
    410: "The upload is no longer kept",
    413: "The upload is too large",
    414: "The URL is too long",
    421: "Not served under this host name",
    422: "An argument is not valid",
    429: "Too much at once; Retry-After says when to ask again",
    500: "An error in the server",
    503: "The work took too long, or the index cannot answer",
}
_PROBLEM_HEADERS = {
    401: {"WWW-Authenticate": {"required": True, "description": "Bearer", "schema": {"type": "string"}}},
    429: {"Retry-After": {"required": True, "description": "Seconds to wait", "schema": {"type": "integer"}}},
}
_REMEDY = "send multipart/form-data with one file, image"
_ALWAYS = (414, 421, 429, 500)  # can come from any route
# for the description only: our own checks have better messages than a pattern
_PLAIN = {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"}
_FIELD = {"pattern": r"^(?!(id|path)$)[A-Za-z_][A-Za-z0-9_]{0,63}$"}

Text = Annotated[str, Query(max_length=MOST_CHARACTERS)]
Index = Annotated[str, Query(max_length=64, description="Name of the index; the first one by default.")]
Id = Annotated[str, Query(min_length=1, max_length=512, description="Id of an item.", json_schema_extra=_PLAIN)]
Label = Annotated[
    str,
    Query(
        max_length=MOST_CHARACTERS,
        description="Results with this label are relevant; by default, those with the label of the item.",
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
    """Route whose form has one file at most; FastAPI would accept a thousand and use the last."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_form(request: Request) -> Response:
            if request.method != "POST":
                return await handle(request)
            async with read_form(request, _REMEDY) as form:
                if not isinstance(form.get("image"), FormFile):
                    raise HTTPException(422, f"there is no image; {_REMEDY}")
                return await handle(request)

        return handle_form


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe errors of these statuses."""
    return {
        status: {"model": Problem, "description": _PROBLEMS[status], "headers": _PROBLEM_HEADERS.get(status, {})}
        for status in sorted(statuses)
    }


def api_router(service: Service, token: bool) -> APIRouter:
    """Return the routes of the API; token: whether one is needed."""
    router = APIRouter(prefix="/api/v1", tags=["search"], route_class=_Route)
    errors = partial(problems, *((401,) if token else ()), *_ALWAYS)
    Places = Annotated[int, Query(ge=1, le=service.limits.results, description="How many results.")]  # noqa: N806

    @router.get(
        "/search",
        summary="Search from an indexed item, or from an upload",
        responses=errors(404, 410, 422, 503),
    )
    async def search_item(
        item: Annotated[
            str, Query(max_length=512, description="Id of the item to search from.", json_schema_extra=_PLAIN)
        ] = "",
        upload: Annotated[str, Query(max_length=64, description="Name of the upload to search from.")] = "",
        index: Index = "",
        k: Places = DEFAULT_K,
        filter: Filters = [],  # noqa: B006
        expand: Expand = "",
        label: Label = "",
    ) -> SearchAnswer:
        if bool(item) == bool(upload):
            raise HTTPException(422, "give either item or upload")
        if item:
            check_id(item)
        return await run_search(service.get_index(index), SearchState(item, upload, label, k, tuple(filter), expand))

    @router.post(
        "/search",
        summary="Search from a picture that is sent as a form (multipart/form-data)",
        responses=errors(400, 403, 404, 408, 410, 413, 422, 503),
    )
    async def search_upload(
        image: Picture,
        index: Index = "",
        k: Places = DEFAULT_K,
        filter: Filters = [],  # noqa: B006
        expand: Expand = "",
        label: Label = "",
    ) -> SearchAnswer:
        shown = service.get_index(index)
        state = SearchState("", "", label, k, tuple(filter), expand)
        state.conditions()  # refuse a wrong filter before the picture is decoded
        name = await service.add_upload(await image.read())
        return await run_search(shown, replace(state, upload=name))

    async def run_search(shown: Shown, state: SearchState) -> SearchAnswer:
        for name, value in (("label", state.label), *(("filter", one) for one in state.filters)):
            check_text(name, value)
        side = (await service.search(replace(state, sides=(shown.name,))))[0]
        if side.result is None:
            raise HTTPException(422, side.fault)
        label = state.label or (side.item.label if side.item is not None else None)
        return SearchAnswer.of(shown.name, side.result, side.item, state.upload, label)

    @router.get("/item", summary="An item with its label, category and metadata", responses=errors(404, 422, 503))
    async def item(id: Id, index: Index = "") -> ItemAnswer:
        check_id(id)
        shown = service.get_index(index)
        return ItemAnswer.of(await service.run(lambda: service.get_item(shown, id)))

    @router.get("/values", summary="The values of a field, to filter by", responses=errors(404, 422, 503))
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
        shown = service.get_index(index)
        counts = await service.run(lambda: shown.index.values(field))  # the most frequent first
        top = [Count(value=value, items=count) for value, count in islice(counts.items(), limit)]
        return ValuesAnswer(index=shown.name, field=field, distinct=len(counts), values=top)

    @router.get("/hardest", summary="The queries with the lowest average precision", responses=errors(404, 422))
    async def hardest(
        index: Index = "",
        limit: Annotated[int, Query(ge=1, le=10_000)] = 50,
    ) -> HardestAnswer:
        name = service.get_index(index).name
        return HardestAnswer.of(name, service.hardest[name].progress(), limit)

    @router.get("/stats", summary="The indexes of the server, and how busy it is", responses=errors(503))
    async def stats() -> Stats:
        indexes = await service.run(lambda: [index_stats(one) for one in service.indexes.values()])
        return Stats(
            indexes=indexes,
            searches=service.searches.inside,
            uploads=len(service.uploads),
            picture_bytes=service.pictures.held_bytes,
        )

    @router.get("/health", summary="Whether the server runs; needs no token", responses=problems(*_ALWAYS))
    async def health() -> Health:
        return Health(status="ok")

    return router


def index_stats(shown: Shown) -> IndexStats:
    """Return the facts about an index."""
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
