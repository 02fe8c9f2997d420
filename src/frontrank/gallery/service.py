"""What pages and API have in common: the indexes, the uploads, the pictures, and the gates before all work."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from frontrank.errors import FrontrankError, InputError
from frontrank.gallery.facets import Facets, Kept
from frontrank.gallery.files import Encoded, Pictures, encoded
from frontrank.gallery.hardest import Hardest
from frontrank.gallery.limits import Gate, Limits
from frontrank.gallery.search import EXPANDED, Expansion, Found, Query, Shown, search
from frontrank.gallery.state import Asked
from frontrank.gallery.uploads import PREVIEW, Upload, Uploads, decoded
from frontrank.retrieval.filters import Condition
from frontrank.retrieval.items import Item

if TYPE_CHECKING:
    from PIL.Image import Image

    from frontrank.retrieval.index import Index

T = TypeVar("T")

_log = logging.getLogger("frontrank.gallery")

GONE = "this upload is kept no longer (the server keeps the last few, until it ends); send the picture again"
LOOK = 30.0  # seconds after which a search looks for what other processes have written to an index
_ELSEWHERE = "This item is not in this index."
MISSING = "there is no item with this id; it may have been deleted since"


@dataclass(frozen=True, eq=False)
class Side:
    """What one index answers: results, or a line that says why there are none."""

    shown: Shown
    found: Found | None = None
    item: Item | None = None
    fault: str = ""


class Service:
    """Everything the server holds; its methods are called by one request each."""

    def __init__(self, indexes: Sequence[Shown], limits: Limits) -> None:
        self.indexes = {shown.name: shown for shown in indexes}
        if not 1 <= len(indexes) <= 2:
            raise InputError(f"indexes must be one or two, got {len(indexes)}; leave out the others")
        if len(self.indexes) < len(indexes):
            raise InputError(f"indexes are both called {indexes[0].name!r}; give them different names")
        for shown in indexes:
            _check_model(shown)
        self.limits = limits
        self.searches = Gate(limits.workers, limits.waiting, limits.seconds)
        self.drawing = Gate(limits.workers, limits.waiting, limits.seconds)
        self.uploads = Uploads(limits.kept_uploads, limits.kept_bytes)
        self.pictures = Pictures(limits.picture_bytes, limits.upload_pixels)
        self.kept = Kept()
        self.looked = Kept(LOOK)
        self.facets = {name: Facets(shown.index) for name, shown in self.indexes.items()}
        self.hardest = {
            name: Hardest(shown.index, limits.hardest, limits.depth) for name, shown in self.indexes.items()
        }

    def close(self) -> None:
        """End what goes on in the background."""
        for one in self.hardest.values():
            one.close()
        self.searches.close()
        self.drawing.close()

    @property
    def can_upload(self) -> bool:
        """Whether there is a model that a picture can be embedded by."""
        return any(shown.embed is not None for shown in self.indexes.values())

    def named(self, name: str) -> Shown:
        """The index of this name, the first one for ""; 404 if there is none."""
        if not name:
            return next(iter(self.indexes.values()))
        if name not in self.indexes:
            raise HTTPException(404, f"there is no such index; choose from {', '.join(self.indexes)}")
        return self.indexes[name]

    def chosen(self, asked: Asked) -> list[Shown]:
        """The indexes that are asked for, all of them by default, in their own order."""
        names = {self.named(name).name for name in asked.sides} or set(self.indexes)
        return [shown for name, shown in self.indexes.items() if name in names]

    async def ask(self, work: Callable[[], T]) -> T:
        """What some work with an index finds out; 503 if the index fails."""
        return await self.searches.run(partial(_asked, work))

    async def keep(self, data: bytes) -> str:
        """Decode and embed an uploaded picture; the name under which it is kept."""
        if not self.can_upload:
            raise HTTPException(422, "this server has no model for new pictures; search from an indexed one")
        if len(data) > self.limits.upload_bytes:
            raise HTTPException(413, f"the image is too large; send at most {self.limits.upload_bytes:,} bytes")

        def work() -> Upload:
            picture = decoded(data, self.limits.upload_pixels)
            able = (shown for shown in self.indexes.values() if shown.embed is not None)
            vectors = {shown.name: embedding(shown, picture) for shown in able}
            small = encoded(picture, PREVIEW)
            return Upload(small.data, small.kind, vectors)

        return self.uploads.keep(await self.searches.run(work))

    def upload(self, name: str) -> Upload:
        """The upload of this name; 410 if it is kept no longer."""
        found = self.uploads.get(name)
        if found is None:
            raise HTTPException(410, GONE)
        return found

    async def search(self, asked: Asked) -> list[Side]:
        """What each index that is asked for answers; 404 if none has the item, 410 if the upload is gone."""
        chosen, conditions = self.chosen(asked), asked.conditions()
        upload = self.upload(asked.upload) if asked.upload else None
        if not (asked.item or asked.upload):
            raise HTTPException(422, "nothing to search from; give item, the id of an indexed one, or upload a picture")

        def work() -> list[Side]:
            return [self._side(shown, asked, upload, conditions) for shown in chosen]

        sides = await self.ask(work)
        if asked.item and all(side.fault == _ELSEWHERE for side in sides):
            raise HTTPException(404, MISSING)
        return sides

    def _side(self, shown: Shown, asked: Asked, upload: Upload | None, conditions: Sequence[Condition]) -> Side:
        self.looked.get(shown.name, shown.index.refresh)
        query = self._uploaded(shown, asked, upload) if upload is not None else self._indexed(shown, asked)
        if isinstance(query, str):
            return Side(shown, fault=query)
        way = expansion(shown.index, asked.expand)
        return Side(shown, search(shown.index, query, asked.k, conditions, way, self.limits.depth), query.item)

    def _uploaded(self, shown: Shown, asked: Asked, upload: Upload) -> Query | str:
        vector = upload.vectors.get(shown.name)
        if vector is None:
            return "This index has no model for new pictures."
        return Query(vector, None, asked.label or None, shown.model)

    def _indexed(self, shown: Shown, asked: Asked) -> Query | str:
        """The item as a query; one that only the other index has is embedded anew, if there is a model for it."""
        item = shown.index.get([asked.item])[0]
        if item is not None:
            try:
                vector = shown.index.vectors([item.id])[0]
            except InputError:
                if shown.index.get([item.id])[0] is not None:
                    raise
                return _ELSEWHERE  # deleted since it was looked up
            return Query(vector, item, asked.label or item.label, stored=True)
        others = ((one, one.index.get([asked.item])[0]) for one in self.indexes.values() if one is not shown)
        owner, item = next((pair for pair in others if pair[1] is not None), (shown, None))
        if item is None or shown.embed is None:
            return _ELSEWHERE
        try:
            vector = embedding(shown, self.pictures.whole(item.path, owner.roots))
        except InputError as error:
            return f"This item cannot be searched from: {error}."
        return Query(vector, None, asked.label or item.label, shown.model)

    def item(self, shown: Shown, name: str) -> Item:
        """An item by its id; 404 if it is not there."""
        found = shown.index.get([name])[0] if name else None
        if found is None:
            raise HTTPException(404, MISSING)
        return found

    async def picture(self, shown: Shown, name: str, size: str) -> Encoded:
        """The picture of an item, made small; 404 if it cannot be shown."""

        def work() -> Encoded:
            item = _asked(lambda: self.item(shown, name))
            try:
                return self.pictures.picture(item.path, shown.roots, size)
            except InputError as error:
                raise HTTPException(404, str(error)) from None

        return await self.drawing.run(work)


def expansion(index: "Index", way: str) -> Expansion:
    """Query expansion as the index takes it: what is stored, none, or a usual one where none is stored."""
    if way == "off":
        return False
    return EXPANDED if way == "on" and not index.settings.expansion else None


def _asked(work: Callable[[], T]) -> T:
    """What an index says was checked before it was asked: a refusal is its own trouble, and may name its place."""
    try:
        return work()
    except FrontrankError as error:
        said = "".join(each if each.isprintable() else " " for each in str(error))  # it may quote what people sent
        _log.error("an index failed: %s", said[:500])
        raise HTTPException(503, "the index cannot answer; the log of the server says why") from None


def _check_model(shown: Shown) -> None:
    made_with = shown.index.settings.model
    if shown.model is not None and shown.model != made_with:
        raise InputError(
            f"model of {shown.name} has the fingerprint {shown.model}, but its index was made with "
            f"{made_with or 'none'}; take the model that it was made with"
        )


def embedding(shown: Shown, picture: "Image") -> NDArray[np.float32]:
    """The embedding of a picture by the model of an index; InputError if it has no direction."""
    if shown.embed is None:
        raise InputError("there is no model to embed its picture by")
    vector = flat(shown.embed(picture))
    if not (np.isfinite(vector).all() and vector.any()):
        raise InputError("the model makes nothing of the image; send another one")
    return vector


def flat(vector: NDArray[Any]) -> NDArray[np.float32]:
    """An embedding as numbers in a row, whatever brackets its model puts around it."""
    return np.asarray(vector, dtype=np.float32).reshape(-1)
