"""The answers of the JSON API, field by field."""

from pydantic import BaseModel, Field

from frontrank.gallery.hardest import Progress
from frontrank.gallery.search import Found
from frontrank.retrieval.items import Item


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
