"""The JSON API under /api/v1. Every error is {"detail": one line}."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Query, UploadFile
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile as FormFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from frontrank.gallery.pictures import read_form
from frontrank.gallery.search import DEFAULT_K, MOST_CHARACTERS, MOST_FILTERS, GalleryIndex, SearchState, check_text
from frontrank.gallery.service import Service
from frontrank.retrieval.items import is_field

# The answers, field by field


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str = Field(description="One line: what is wrong, and what to do about it.")


class Health(BaseModel):
    """The server runs."""

    status: str = Field(examples=["ok"])


class ItemAnswer(BaseModel):
    """An image of an index. Its path is not shown; its picture is at /picture?index=NAME&id=ID."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    label: str | None = None
    category: str | None = None
    metadata: dict[str, str | int | float | bool] = {}


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

    model_config = ConfigDict(from_attributes=True)

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
    415: "The body is no form",
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
    tuple[Text, ...],
    Query(max_length=MOST_FILTERS, description="As label=cat, label=cat|dog, label!=cat, year>=2020; all must hold."),
]
Expand = Annotated[
    str, Query(pattern="^(on|off|)$", description="Query expansion: on, off, or as stored with the index.")
]
Most = Annotated[int, Query(ge=1, le=10_000)]
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

    async def read_state(
        index: Index = "", k: Places = DEFAULT_K, filter: Filters = (), expand: Expand = "", label: Label = ""
    ) -> SearchState:
        """Read how to search; a wrong filter is refused before a picture is decoded."""
        for name, value in (("label", label), *(("filter", one) for one in filter)):
            check_text(name, value)
        state = SearchState("", "", label, k, filter, expand, (service.get_index(index).name,))
        state.conditions()
        return state

    State = Annotated[SearchState, Depends(read_state)]  # noqa: N806

    @router.get(
        "/search", summary="Search from an indexed item, or from an upload", responses=errors(404, 410, 422, 503)
    )
    async def search_item(
        state: State,
        item: Annotated[
            str, Query(max_length=512, description="Id of the item to search from.", json_schema_extra=_PLAIN)
        ] = "",
        upload: Annotated[str, Query(max_length=64, description="Name of the upload to search from.")] = "",
    ) -> SearchAnswer:
        if bool(item) == bool(upload):
            raise HTTPException(422, "give either item or upload")
        return await search(replace(state, item=item, upload=upload))

    @router.post(
        "/search",
        summary="Search from a picture that is sent as a form (multipart/form-data)",
        responses=errors(400, 403, 404, 408, 410, 413, 415, 422, 503),
    )
    async def search_upload(image: Picture, state: State) -> SearchAnswer:
        return await search(replace(state, upload=await service.add_upload(await image.read())))

    async def search(state: SearchState) -> SearchAnswer:
        (side,) = await service.search(state)
        result = side.result
        if result is None:
            raise HTTPException(422, side.fault)
        answer = {
            "index": side.source.name,
            "query": side.item,
            "upload": state.upload or None,
            "label": state.label or (side.item.label if side.item is not None else None),
            "results": [{**dict(ItemAnswer.model_validate(row.item)), **vars(row)} for row in result.rows],
            "looked": result.depth,
            "relevant": result.relevant,
            "average_precision": result.average_precision,
            "complete": result.complete,
            "precision_recall": [{"recall": recall, "precision": precision} for recall, precision in result.points],
            "milliseconds": round(result.milliseconds, 3),
        }
        return SearchAnswer.model_validate(answer)

    @router.get("/item", summary="An item with its label, category and metadata", responses=errors(404, 422, 503))
    async def item(id: Id, index: Index = "") -> ItemAnswer:
        return ItemAnswer.model_validate(await service.get_item(service.get_index(index), id))

    @router.get("/values", summary="The values of a field, to filter by", responses=errors(404, 422, 503))
    async def values(
        field: Annotated[
            str,
            Query(max_length=64, description="label, category, or a name of the metadata.", json_schema_extra=_FIELD),
        ] = "label",
        index: Index = "",
        limit: Most = 100,
    ) -> ValuesAnswer:
        if not is_field(field) or field in ("id", "path"):
            raise HTTPException(422, "field must be label, category, or a name of the metadata")
        source = service.get_index(index)
        counts = await service.run(lambda: source.index.values(field))  # the most frequent first
        top = [Count(value=value, items=count) for value, count in islice(counts.items(), limit)]
        return ValuesAnswer(index=source.name, field=field, distinct=len(counts), values=top)

    @router.get("/hardest", summary="The queries with the lowest average precision", responses=errors(404, 422))
    async def hardest(index: Index = "", limit: Most = 50) -> HardestAnswer:
        name = service.get_index(index).name
        progress = service.hardest[name].progress()
        return HardestAnswer.model_validate({**vars(progress), "index": name, "hardest": progress.hard[:limit]})

    @router.get("/stats", summary="The indexes of the server, and how busy it is", responses=errors(503))
    async def stats() -> Stats:
        return Stats(
            indexes=await service.run(lambda: [index_stats(source) for source in service.indexes.values()]),
            searches=service.searches.inside,
            uploads=len(service.uploads),
            picture_bytes=service.pictures.recent.held_bytes,
        )

    @router.get("/health", summary="Whether the server runs; needs no token", responses=problems(*_ALWAYS))
    async def health() -> Health:
        return Health(status="ok")

    return router


def index_stats(source: GalleryIndex) -> IndexStats:
    """Return the facts about an index."""
    settings = source.index.settings
    return IndexStats(
        name=source.name,
        items=source.index.count(),
        dim=settings.dim,
        engine=settings.engine,
        model=settings.model,
        expansion=bool(settings.expansion),
        takes_uploads=source.embed is not None,
    )
