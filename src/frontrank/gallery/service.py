"""What pages and API share: the indexes, their facets, uploads, pictures, and the limits on all work."""

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from frontrank.errors import FrontrankError, InputError
from frontrank.gallery.guard import Limits, Slots, WorkerPool
from frontrank.gallery.pictures import SIZES, Pictures, RecentValues, Upload, decode_upload, encode_picture
from frontrank.gallery.search import GalleryIndex, HardestQueries, SearchQuery, SearchResult, SearchState, search
from frontrank.pictures.processes import DecodePool
from frontrank.retrieval.items import Condition, Item, check_id, parse_filter

if TYPE_CHECKING:
    from PIL.Image import Image

    from frontrank.retrieval.index import Index

T = TypeVar("T")

HIDDEN_FIELDS = ("sha256",)  # of the file: it identifies an image, but says nothing to people
LONGEST_LIST = 100  # values that a list to choose from may have
REFRESH_SECONDS = 30.0  # after which a search looks for what other processes have written to an index
MISSING = "there is no item with this id; it may have been deleted"
_EXPANSION = (10, 2.0)  # neighbours and the power of their scores, if an index has no expansion of its own
_NOT_IN_INDEX = "This item is not in this index."
_FIELDS, _SAMPLE = 8, 200  # fields that are offered; items that are read to learn which fields there are
_STARTERS = 2000  # items among which some are drawn to begin with
_FACET_SECONDS = 300.0  # after which values are counted again
_FACET_WAIT = 2.0  # seconds that a page waits for the first count
_log = logging.getLogger("frontrank.gallery")


# Fields that a search can be narrowed by, with their values


@dataclass(frozen=True)
class Facet:
    """A field, and filters for its most frequent values: (filter, value, number of items)."""

    field: str
    choices: tuple[tuple[str, str, int], ...]
    distinct: int

    @property
    def short(self) -> bool:
        """Whether all its values can be offered in one list."""
        return self.distinct <= LONGEST_LIST


def count_facets(index: "Index") -> list[Facet]:
    """Return the facets of an index, label and category first; no field that has another value for each item."""
    names = dict.fromkeys(["label", "category"])
    for item in index.items(limit=_SAMPLE):
        names.update(dict.fromkeys(name for name in item.metadata if name not in HIDDEN_FIELDS))
    counts = {name: index.values(name) for name in list(names)[:_FIELDS]}
    return [
        make_facet(name, values)
        for name, values in counts.items()
        if len(values) > 1 and (name == "label" or len(values) < sum(values.values()))
    ]


def make_facet(field: str, counts: Mapping[str, int]) -> Facet:
    """Return the facet of a field: all values in the order of their names, or the most frequent ones.

    >>> make_facet("label", {"dog": 2, "cat": 5}).choices
    (('label=cat', 'cat', 5), ('label=dog', 'dog', 2))
    """
    top = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:LONGEST_LIST]
    if len(counts) <= LONGEST_LIST:
        top.sort()
    choices = ((filter_for(field, value), value, count) for value, count in top)
    return Facet(field, tuple((text, value, count) for text, value, count in choices if text), len(counts))


def filter_for(field: str, value: str) -> str:
    r"""Return the text of a filter that lets one value pass; "" if there is none.

    >>> filter_for("label", "cat|dog")
    'label=cat\\|dog'
    """
    text = f"{field}={value}".replace("|", "\\|")
    try:
        return text if parse_filter(text) == Condition(field, "=", (value,)) else ""
    except InputError:
        return ""


class Facets:
    """The facets of one index, counted in a thread of their own: a large index on a server takes minutes."""

    def __init__(self, index: "Index") -> None:
        self._index, self._lock, self._first = index, threading.Lock(), threading.Event()
        self._facets: list[Facet] = []
        self._running, self._started, self._due = False, 0.0, 0.0

    def get(self) -> list[Facet]:
        """Return the last count, nothing before the first; the first call starts it, and so does one long after it."""
        with self._lock:
            if not self._running and time.monotonic() >= self._due:
                self._running, self._started = True, time.monotonic()
                threading.Thread(target=self._count, name="facets", daemon=True).start()
        self._first.wait(max(0.0, self._started + _FACET_WAIT - time.monotonic()))
        return self._facets

    def _count(self) -> None:
        pause = 0.0
        try:
            self._facets = count_facets(self._index)
            # slow counts must not run all the time
            pause = max(_FACET_SECONDS, 10 * (time.monotonic() - self._started))
        except Exception as error:  # the page does without; the next request tries again
            _log.error("counting the values of an index failed: %s", type(error).__name__)
        with self._lock:
            self._running, self._due = False, time.monotonic() + pause
        self._first.set()


class TimedCache:
    """Values that are computed again after some time; only one thread computes the same one at a time."""

    def __init__(self, seconds: float = _FACET_SECONDS) -> None:
        self._seconds = seconds
        self._values: dict[Hashable, tuple[float, Any]] = {}
        self._locks: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of a key; compute it if it is missing or too old."""
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self._values or time.monotonic() - self._values[key][0] >= self._seconds:
                fresh = compute()
                self._values[key] = time.monotonic(), fresh
            value: T = self._values[key][1]
            return value


def starters(index: "Index", count: int) -> list[Item]:
    """Draw some items to begin with from the first ones: of different labels, and of every category in turn."""
    items = list(index.items(limit=_STARTERS))
    Random(0).shuffle(items)
    seen, turns = Counter[tuple[str, str | None]](), []
    for item in items:
        keys = ("label", item.label), ("category", item.category)
        turns.append(tuple(seen[key] for key in keys))
        seen.update(keys)
    order = sorted(range(len(items)), key=turns.__getitem__)
    return [items[i] for i in order[:count]]


# The service


@dataclass(frozen=True, eq=False)
class SideResult:
    """What one index answers: results, or a line that says why there are none."""

    source: GalleryIndex
    result: SearchResult | None = None
    item: Item | None = None
    fault: str = ""


class Service:
    """Everything the server holds; each request calls its methods."""

    def __init__(self, indexes: Sequence[GalleryIndex], limits: Limits) -> None:
        self.indexes = {source.name: source for source in indexes}
        if not 1 <= len(indexes) <= 2:
            raise InputError(f"indexes must be one or two, got {len(indexes)}; leave out the others")
        if len(self.indexes) < len(indexes):
            raise InputError(f"indexes have the same name {indexes[0].name!r}; give them different names")
        for one in indexes:
            stored = one.index.settings.model
            if one.model is not None and one.model != stored:
                raise InputError(
                    f"model of {one.name} has the fingerprint {one.model}, but its index was made with "
                    f"{stored or 'none'}; give the model that it was made with"
                )
        self.limits = limits
        self.searches = WorkerPool(limits.workers, limits.waiting, limits.seconds)
        self.drawing = WorkerPool(limits.workers, limits.waiting, limits.seconds)
        self.uploads = RecentValues[Upload](limits.kept_bytes, limits.kept_uploads)
        self._uploading = WorkerPool(limits.workers, limits.waiting, limits.seconds)
        self._places = Slots(limits.uploads)
        self._decoding = DecodePool(2 * limits.workers, limits.decode_seconds)  # for uploads and for drawing
        self.pictures = Pictures(limits.picture_bytes, limits.upload_pixels, self._decoding)
        self.cache = TimedCache()
        self._refreshed = TimedCache(REFRESH_SECONDS)
        self.facets = {one.name: Facets(one.index) for one in indexes}
        self.hardest = {one.name: HardestQueries(one.index, limits.hardest, limits.depth) for one in indexes}

    def close(self) -> None:
        """Stop what runs in the background."""
        for one in self.hardest.values():
            one.close()
        for pool in (self.searches, self.drawing, self._uploading, self._decoding):
            pool.close()

    @property
    def can_upload(self) -> bool:
        """Whether there is a model that can embed a picture."""
        return any(source.embed is not None for source in self.indexes.values())

    def get_index(self, name: str) -> GalleryIndex:
        """Return the index of this name, the first one for ""; 404 if there is none."""
        name = name or next(iter(self.indexes))
        if name not in self.indexes:
            raise HTTPException(404, f"there is no such index; choose from {', '.join(self.indexes)}")
        return self.indexes[name]

    def indexes_of(self, state: SearchState) -> list[GalleryIndex]:
        """Return the indexes that a state names, all of them by default, in their own order."""
        names = {self.get_index(name).name for name in state.sides} or set(self.indexes)
        return [source for name, source in self.indexes.items() if name in names]

    async def run(self, work: Callable[[], T]) -> T:
        """Run some work with an index; 503 if the index fails."""
        return await self.searches.run(partial(_hide_errors, work))

    async def add_upload(self, data: bytes) -> str:
        """Decode and embed an uploaded picture; return the name under which it is kept."""
        if not self.can_upload:
            raise HTTPException(422, "this server has no model for new pictures; search from an indexed one")
        if len(data) > self.limits.upload_bytes:
            raise HTTPException(413, f"the image is too large; send at most {self.limits.upload_bytes:,} bytes")

        def embed(picture: "Image") -> dict[str, NDArray[np.float32]]:
            able = {name: source.embed for name, source in self.indexes.items() if source.embed is not None}
            return {name: embed_picture(one, picture) for name, one in able.items()}

        def decode() -> tuple["Image", bytes]:
            picture = decode_upload(data, self.limits.upload_pixels, self._decoding)
            return picture, encode_picture(picture, SIZES["preview"])

        with self._places:
            picture, preview = await self._uploading.run(decode)  # not where searches wait
            upload = Upload(preview, await self.searches.run(partial(embed, picture)))
        name = secrets.token_urlsafe(12)
        self.uploads.add(name, upload, len(upload.preview) + sum(vector.nbytes for vector in upload.vectors.values()))
        return name

    def get_upload(self, name: str) -> Upload:
        """Return the upload of this name; 410 if it is no longer kept."""
        upload = self.uploads.get(name)
        if upload is None:
            raise HTTPException(410, "this upload is no longer kept, only the last few are; send the picture again")
        return upload

    async def search(self, state: SearchState) -> list[SideResult]:
        """Search each index that the state names; 404 if none has the item, 410 if the upload is gone."""
        indexes, conditions = self.indexes_of(state), state.conditions()
        upload = self.get_upload(state.upload) if state.upload else None
        if upload is None:
            check_id(state.item)
        sides = await self.run(lambda: [self._search_index(source, state, upload, conditions) for source in indexes])
        if upload is None and all(side.fault == _NOT_IN_INDEX for side in sides):
            raise HTTPException(404, MISSING)
        return sides

    def _search_index(
        self, source: GalleryIndex, state: SearchState, upload: Upload | None, conditions: Sequence[Condition]
    ) -> SideResult:
        self._refreshed.get(source.name, source.index.refresh)
        query: SearchQuery | str
        if upload is None:
            query = self._query_from_item(source, state)
        elif source.name in upload.vectors:
            query = SearchQuery(upload.vectors[source.name], None, state.label or None, source.model)
        else:
            query = "This index has no model for new pictures."
        if isinstance(query, str):
            return SideResult(source, fault=query)
        # on: as it is stored, or the usual one if none is
        expand = {"off": False, "on": None if source.index.settings.expansion else _EXPANSION}.get(state.expand)
        result = search(source.index, query, state.k, conditions, expand, self.limits.depth)
        return SideResult(source, result, query.item)

    def _query_from_item(self, source: GalleryIndex, state: SearchState) -> SearchQuery | str:
        """Return the item as a query; one that only the other index has is embedded again, if there is a model."""
        item = source.index.get([state.item])[0]
        if item is not None:
            try:
                vector = source.index.vectors([item.id])[0]
            except InputError:
                if source.index.get([item.id])[0] is not None:
                    raise
                return _NOT_IN_INDEX  # deleted after it was looked up
            return SearchQuery(vector, item, state.label or item.label, stored=True)
        others = ((one, one.index.get([state.item])[0]) for one in self.indexes.values() if one is not source)
        owner, item = next((pair for pair in others if pair[1] is not None), (source, None))
        if item is None or source.embed is None:
            return _NOT_IN_INDEX
        try:
            vector = embed_picture(source.embed, self.pictures.read(item.path, owner.roots))
        except InputError as error:
            return f"This item cannot be searched from: {error}."
        return SearchQuery(vector, None, state.label or item.label, source.model)

    async def get_item(self, source: GalleryIndex, name: str) -> Item:
        """Return an item by its id; 404 if it does not exist."""
        check_id(name)
        return await self.searches.run(partial(_find_item, source, name))

    async def get_picture(self, source: GalleryIndex, name: str, size: str) -> bytes:
        """Return the picture of an item, made small; 404 if it cannot be shown."""
        check_id(name)

        def work() -> bytes:
            item = _find_item(source, name)
            try:
                return self.pictures.get(item.path, source.roots, size)
            except InputError as error:
                raise HTTPException(404, str(error)) from None

        return await self.drawing.run(work)


def _find_item(source: GalleryIndex, name: str) -> Item:
    item = _hide_errors(lambda: source.index.get([name])[0])
    if item is None:
        raise HTTPException(404, MISSING)
    return item


def _hide_errors(work: Callable[[], T]) -> T:
    """Run work with an index. Its arguments were checked before, so an error is the index's own, and may name paths."""
    try:
        return work()
    except FrontrankError as error:
        message = "".join(each if each.isprintable() else " " for each in str(error))  # it may quote what people sent
        _log.error("an index failed: %s", message[:500])
        raise HTTPException(503, "the index cannot answer; the log of the server says why") from None


def embed_picture(embed: "Callable[[Image], NDArray[Any]]", picture: "Image") -> NDArray[np.float32]:
    """Return the embedding of a picture by the model of an index; InputError if it has no direction."""
    vector = np.asarray(embed(picture), dtype=np.float32).reshape(-1)  # some models return [1, dim]
    if not (np.isfinite(vector).all() and vector.any()):
        raise InputError("the model cannot embed the image; send another one")
    return vector
