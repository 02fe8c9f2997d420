"""Searches of the page: what a URL asks for, ranked rows, facets, the hardest queries, the service behind them."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from frontrank.errors import InputError
from frontrank.retrieval.items import Condition, Item, parse_filter

if TYPE_CHECKING:
    from frontrank.retrieval.index import Index
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from frontrank.ranking import Ranks, average_precision, precision
from frontrank.retrieval.items import matches

if TYPE_CHECKING:
    from PIL.Image import Image

    from frontrank.retrieval.index import Index
from typing import TYPE_CHECKING

from frontrank.errors import FrontrankError

if TYPE_CHECKING:
    from frontrank.retrieval.index import Index
from functools import partial
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from frontrank.gallery.guard import Gate, Limits
from frontrank.gallery.pictures import PREVIEW, Encoded, Pictures, Upload, Uploads, decoded, encoded

if TYPE_CHECKING:
    from PIL.Image import Image

    from frontrank.retrieval.index import Index


# ==== What is asked of the page, as it stands in a URL: a link that is passed on shows the same.


USUAL = 24  # results
MOST_FILTERS = 16
MOST_CHARACTERS = 1024
_PARAMETERS = 64
_WAYS = ("on", "off")


@dataclass(frozen=True)
class Asked:
    """The query and how it is searched for.

    item, upload: the id of an indexed item, or the name of an upload; both "" for nothing yet
    label:        of an upload, where who asks knows it
    filters:      as "label=cat"; all of them hold
    expand:       query expansion "on", "off", or "" as it is stored with the index
    sides:        names of the indexes that are shown, () for all
    """

    item: str = ""
    upload: str = ""
    label: str = ""
    k: int = USUAL
    filters: tuple[str, ...] = ()
    expand: str = ""
    sides: tuple[str, ...] = ()

    def conditions(self) -> tuple[Condition, ...]:
        """The filters, read."""
        return tuple(parse_filter(text) for text in self.filters)

    def but(self, **changes: Any) -> "Asked":
        """The same with some changes."""
        return replace(self, **changes)

    def url(self, **changes: Any) -> str:
        """The page that shows it, with some changes; what is as by default is left out.

        >>> Asked(item="a/1", k=10).url(filters=("label=x&y",))
        '/?item=a%2F1&k=10&filter=label%3Dx%26y'
        """
        asked = self.but(**changes)
        pairs = [(name, getattr(asked, name)) for name in ("item", "upload", "label")]
        pairs += [("k", asked.k if asked.k != USUAL else ""), *(("filter", one) for one in asked.filters)]
        pairs += [("expand", asked.expand), *(("side", one) for one in asked.sides)]
        query = urlencode([(name, value) for name, value in pairs if value != ""])
        return f"/?{query}" if query else "/"


def read_asked(query: str, most: int) -> Asked:
    """What a query string asks for; InputError for what nobody could have meant.

    most: results that may be asked for

    >>> read_asked("item=a&k=10&filter=&filter=label%3Dcat", 100)
    Asked(item='a', upload='', label='', k=10, filters=('label=cat',), expand='', sides=())
    """
    values: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(query, max_num_fields=_PARAMETERS)  # leaves out what is empty
    except ValueError:
        raise InputError(f"the URL has more than {_PARAMETERS} parameters; leave some out") from None
    for name, value in pairs:
        check_text(name if name.isidentifier() else "a parameter", value)
        values.setdefault(name, []).append(value)
    one = {name: some[-1] for name, some in values.items()}
    filters = tuple(dict.fromkeys(values.get("filter", ())))
    if len(filters) > MOST_FILTERS:
        raise InputError(f"filter is given {len(filters)} times; leave out all but {MOST_FILTERS}")
    if one.get("expand", "on") not in _WAYS:
        raise InputError("expand must be on or off; leave it out for what is stored with the index")
    asked = Asked(
        item=one.get("item", ""),
        upload=one.get("upload", ""),
        label=one.get("label", ""),
        k=_number(one.get("k", str(USUAL)), most),
        filters=filters,
        expand=one.get("expand", ""),
        sides=tuple(dict.fromkeys(values.get("side", ()))),
    )
    if asked.item and asked.upload:
        raise InputError("item and upload are both given; leave out one")
    return asked


def check_text(name: str, value: str) -> None:
    """Refuse text that is too long, or that no name holds."""
    if len(value) > MOST_CHARACTERS:
        raise InputError(f"{name} has {len(value):,} characters; give at most {MOST_CHARACTERS:,}")
    if not value.isprintable() and any(ord(each) < 32 or 127 <= ord(each) < 160 for each in value):
        raise InputError(f"{name} holds control characters; leave them out")


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and 1 <= int(text) <= most):
        raise InputError(f"k must be a whole number from 1 to {most}")
    return int(text)


# ==== What a search can be narrowed by: the fields of the items and the values they have.


T = TypeVar("T")

UNSAID = ("sha256",)  # of the file: by it an image is known again, but to people it says nothing
CHOICES = 100  # values that a list to choose from may have
_FIELDS, _SAMPLE = 8, 200  # fields that are offered; items that are asked which fields there are
_STARTERS = 2000  # items among which some are drawn to begin with
_FACET_SECONDS = 300.0  # after which values are counted anew
_PATIENCE = 2.0  # seconds that a page waits for the first count
_log = logging.getLogger("frontrank.gallery")


@dataclass(frozen=True)
class Facet:
    """A field, and filters for its most frequent values: (filter, value, items that have it)."""

    field: str
    choices: tuple[tuple[str, str, int], ...]
    distinct: int

    @property
    def short(self) -> bool:
        """Whether all its values can be offered in one list."""
        return self.distinct <= CHOICES


def facets_of(index: "Index") -> list[Facet]:
    """The fields that tell items apart, label and category first, but none that has a value of its own for each."""
    names = dict.fromkeys(["label", "category"])
    for item in index.items(limit=_SAMPLE):
        names.update(dict.fromkeys(name for name in item.metadata if name not in UNSAID))
    counted = {name: index.values(name) for name in list(names)[:_FIELDS]}
    return [
        facet(name, counts)
        for name, counts in counted.items()
        if len(counts) > 1 and (name == "label" or len(counts) < sum(counts.values()))
    ]


def facet(field: str, counts: Mapping[str, int]) -> Facet:
    """The facet of a field, its values in the order of their names if all are there, else the most frequent ones.

    >>> facet("label", {"dog": 2, "cat": 5}).choices
    (('label=cat', 'cat', 5), ('label=dog', 'dog', 2))
    """
    top = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:CHOICES]
    if len(counts) <= CHOICES:
        top.sort()
    written = ((filter_for(field, value), value, count) for value, count in top)
    return Facet(field, tuple((text, value, count) for text, value, count in written if text), len(counts))


def filter_for(field: str, value: str) -> str:
    r"""A filter as it is written, that lets through one value; "" if it cannot be written.

    >>> filter_for("label", "cat|dog")
    'label=cat\\|dog'
    """
    text = f"{field}={value}".replace("|", "\\|")
    try:
        return text if parse_filter(text) == Condition(field, "=", (value,)) else ""
    except InputError:
        return ""


class Facets:
    """The facets of one index, counted by a thread of its own: in a large one on a server, that takes minutes."""

    def __init__(self, index: "Index") -> None:
        self._index, self._lock, self._first = index, threading.Lock(), threading.Event()
        self._found: list[Facet] = []
        self._counting, self._begun, self._due = False, 0.0, 0.0

    def get(self) -> list[Facet]:
        """Those that were counted last, none before; the first call begins the work, and so does one long after it."""
        with self._lock:
            if not self._counting and time.monotonic() >= self._due:
                self._counting, self._begun = True, time.monotonic()
                threading.Thread(target=self._count, name="facets", daemon=True).start()
        self._first.wait(max(0.0, self._begun + _PATIENCE - time.monotonic()))
        return self._found

    def _count(self) -> None:
        rest = 0.0
        try:
            self._found = facets_of(self._index)
            rest = max(
                _FACET_SECONDS, 10 * (time.monotonic() - self._begun)
            )  # slow counts shall not go on all the time
        except Exception as error:  # the page does without; the next one that is asked for tries again
            _log.error("counting the values of an index failed: %s", type(error).__name__)
        with self._lock:
            self._counting, self._due = False, time.monotonic() + rest
        self._first.set()


class Kept:
    """What takes a moment to find out, kept for a while; only one thread finds out the same at a time."""

    def __init__(self, seconds: float = _FACET_SECONDS) -> None:
        self._seconds = seconds
        self._kept: dict[Hashable, tuple[float, Any]] = {}
        self._locks: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept under a key, or what is made then."""
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self._kept or time.monotonic() - self._kept[key][0] >= self._seconds:
                made = make()
                self._kept[key] = time.monotonic(), made
            found: T = self._kept[key][1]
            return found


def starters(index: "Index", count: int) -> list[Item]:
    """Some items to begin with, drawn from the first ones: of different labels, and of every category in turn."""
    some = list(index.items(limit=_STARTERS))
    Random(0).shuffle(some)
    seen, turns = Counter[tuple[str, str | None]](), []
    for item in some:
        keys = ("label", item.label), ("category", item.category)
        turns.append(tuple(seen[key] for key in keys))
        seen.update(keys)
    order = sorted(range(len(some)), key=turns.__getitem__)
    return [some[i] for i in order[:count]]


# ==== A search as the page shows it: ranked rows, which of them are right, and the average precision of the query.


Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Expansion = bool | tuple[int, float] | None

EXPANDED = (10, 2.0)  # neighbours and the power of their scores, where an index has no expansion of its own


@dataclass(frozen=True, eq=False)
class Shown:
    """An index as the page shows it.

    name:  what the page calls it; letters, digits, blanks and . _ -
    embed: the embedding of a picture; None if only indexed pictures can be searched from
    roots: folders whose files may be shown; paths of items are seen from them
    model: the fingerprint of the model behind `embed`; the index refuses another one than its own
    """

    name: str
    index: "Index"
    embed: "Callable[[Image], NDArray[Any]] | None" = None
    roots: Sequence[Path] = ()
    model: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)


def check_name(name: str) -> None:
    """Refuse what the page cannot call an index."""
    if not (0 < len(name) <= 64 and all(each.isalnum() or each in " ._-" for each in name)):
        raise InputError(f"name {name!r} must be 1 to 64 letters, digits, blanks or . _ -; choose another one")


@dataclass(frozen=True, eq=False)
class Query:
    """What is searched from: an embedding, and the item and the label that it has, if they are known.

    stored: it is a vector as the index keeps it, so that it is not whitened again
    """

    vector: NDArray[Any]
    item: Item | None = None
    label: str | None = None
    model: str | None = None
    stored: bool = False


@dataclass(frozen=True)
class Row:
    """A result. `relevant` is None where labels are not known; `cost` is a wrong one's share of the AP that is lost."""

    place: int
    item: Item
    score: float
    relevant: bool | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Found:
    """The results of one index.

    looked:   places that were looked at, of which `rows` are the first
    relevant: right items in all of the index, as far as the filters let them through; None without labels
    points:   (recall, precision) at each right item that was found, in the order of the places
    average_precision: a right item beyond the places looked at counts as never found, so it is a lower bound then
    """

    rows: tuple[Row, ...]
    looked: int
    milliseconds: float = 0.0
    relevant: int | None = None
    points: tuple[tuple[float, float], ...] = ()
    average_precision: float | None = None

    @property
    def complete(self) -> bool:
        """Whether every right item was found, so that the average precision is the true one."""
        return self.relevant is not None and len(self.points) == self.relevant


def search(
    index: "Index", query: Query, k: int, conditions: Sequence[Condition] = (), expand: Expansion = None, depth: int = 0
) -> Found:
    """The first k items for a query without the query itself, judged by its label over the first `depth` places."""
    label = query.label
    own = query.item is not None and matches(conditions, query.item)
    wanted = max(k, depth if label is not None else 0)
    started = time.perf_counter()
    hits = index.search(
        np.asarray(query.vector)[None],
        wanted + own,
        filter=tuple(conditions),
        expand=expand,
        model=query.model,
        stored=query.stored,
    )[0]
    total = None
    if label is not None:
        alike = Condition("label", "=", (label,))
        total = index.count((*conditions, alike))
        total -= own and query.item is not None and query.item.label == label
    seconds = time.perf_counter() - started
    pairs = list(zip(hits.items, map(float, hits.scores), strict=True))
    pairs = [pair for pair in pairs if query.item is None or pair[0].id != query.item.id][:wanted]
    return judged(pairs, k, label, total, 1000 * seconds)


def judged(
    pairs: Sequence[tuple[Item, float]], k: int, label: str | None, total: int | None, milliseconds: float = 0.0
) -> Found:
    """The first k of some items in the order of their scores, each right if it has the label; total: of such items.

    >>> pairs = [(Item("a", label="cat"), 0.9), (Item("b", label="dog"), 0.8), (Item("c", label="cat"), 0.7)]
    >>> found = judged(pairs, 2, "cat", 2)
    >>> [(row.item.id, row.relevant) for row in found.rows], round(found.average_precision, 4)  # (1/1 + 2/3) / 2
    ([('a', True), ('b', False)], 0.8333)
    """
    if label is None or total is None:
        rows = tuple(Row(place, item, score) for place, (item, score) in enumerate(pairs[:k], 1))
        return Found(rows, len(pairs), milliseconds)
    right = np.array([item.label == label for item, _ in pairs], dtype=bool)
    scores = np.array([score for _, score in pairs], dtype=np.float64)
    total = max(total, int(right.sum()))  # an item may have been added between the search and the count
    ranks = ranks_of(scores, right)
    costs = _costs(right, total) if right.sum() == total else None
    rows = tuple(
        Row(i + 1, item, score, bool(right[i]), None if costs is None or right[i] else float(costs[i]))
        for i, (item, score) in enumerate(pairs[:k])
    )
    precisions = precision(ranks.before_pos, ranks.before_neg)[0].tolist()
    points = tuple(((j + 1) / total, value) for j, value in enumerate(precisions))
    # a mean over those found, scaled to a mean over all: what was not found has a precision of 0
    value = float(average_precision(ranks)[0]) * len(points) / total if points else 0.0
    return Found(rows, len(pairs), milliseconds, total, points, value if total else None)


def ranks_of(scores: Floats, right: Flags) -> Ranks:
    """What stands before each right item of a list, best first; ties are settled against it, as in `evaluate`.

    >>> ranks_of(np.array([0.9, 0.5, 0.5]), np.array([False, True, False])).before_neg
    tensor([[2.]], dtype=torch.float64)
    """
    wrong = np.sort(-scores[~right])
    before_neg = np.searchsorted(wrong, -scores[right], side="right")
    before_pos = np.arange(int(right.sum()))
    pos, neg = (torch.from_numpy(one.astype(np.float64))[None] for one in (before_pos, before_neg))
    return Ranks(pos, neg, torch.ones_like(pos, dtype=torch.bool))


def _costs(right: Flags, total: int) -> Floats:
    """What each wrong item of a complete list takes from the AP: 1 / place of every right item after it, / total."""
    share = right / np.arange(1, len(right) + 1, dtype=np.float64)
    return np.asarray(np.cumsum(share[::-1])[::-1] / max(1, total))


# ==== The hardest queries: where average precision is lost, found by searching from a sample of the indexed items.


_HARDEST_SECONDS = 900.0  # after which an index may have changed
_SCANNED = 100_000  # items among which the sample is drawn: reading all of a large index would take too long


@dataclass(frozen=True)
class Hard:
    """A query, its average precision (a lower bound unless complete), and the wrong item that stands first."""

    item: Item
    average_precision: float
    relevant: int
    complete: bool
    first_wrong: Item | None = None


@dataclass(frozen=True)
class Progress:
    """How far the work is; `state` is "waiting", "running", "done" or "failed"; `hard` is in the order of AP."""

    state: str
    done: int = 0
    total: int = 0
    hard: tuple[Hard, ...] = ()


class Hardest:
    """The hardest queries of one index, computed by a thread of its own when they are first asked for."""

    def __init__(self, index: "Index", sample: int, depth: int) -> None:
        self._index, self._sample, self._depth = index, sample, depth
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._progress, self._begun = Progress("waiting"), 0.0

    def progress(self) -> Progress:
        """How far it is; the first call begins the work, and so does one long after its end."""
        with self._lock:
            old = self._progress.state != "running" and time.monotonic() - self._begun > _HARDEST_SECONDS
            if self._progress.state == "waiting" or old:
                self._begun = time.monotonic()
                self._progress = Progress("running")
                threading.Thread(target=self._work, name="hardest queries", daemon=True).start()
            return self._progress

    def close(self) -> None:
        """End the work at its next query."""
        self._stop.set()

    def _work(self) -> None:
        try:
            self._search_all()
        except Exception as error:  # an index that is gone must not leave a page that waits for ever
            _log.error("searching for the hardest queries failed: %s", type(error).__name__)
            self._set(replace(self._progress, state="failed"))

    def _search_all(self) -> None:
        chosen = sample_items(self._index, self._sample)
        found: list[Hard] = []
        self._set(Progress("running", 0, len(chosen)))
        for done, item in enumerate(chosen, 1):
            if self._stop.is_set():
                return
            try:
                vector = self._index.vectors([item.id])[0]
                one = hard_query(self._index, Query(vector, item, item.label, stored=True), self._depth)
            except FrontrankError:
                if self._index.get([item.id])[0] is not None:
                    raise
                one = None  # deleted since it was drawn
            if one is not None:
                found.append(one)
            if done % 10 == 0 or done == len(chosen):
                found.sort(key=lambda hard: (hard.average_precision, hard.item.id))
                state = "done" if done == len(chosen) else "running"
                self._set(Progress(state, done, len(chosen), tuple(found)))
        if not chosen:
            self._set(Progress("done"))

    def _set(self, progress: Progress) -> None:
        with self._lock:
            self._progress = progress


def hard_query(index: "Index", query: Query, depth: int) -> Hard | None:
    """The average precision of searching from an item; None if there is nothing right to be found."""
    found = search(index, query, depth, depth=depth)
    if query.item is None or found.average_precision is None or not found.relevant:
        return None
    wrong = next((row.item for row in found.rows if not row.relevant), None)
    return Hard(query.item, found.average_precision, found.relevant, found.complete, wrong)


def sample_items(index: "Index", count: int, seed: int = 0) -> list[Item]:
    """Some labelled items, each as likely as any other of the first 100,000, always the same ones of the same index."""
    lot, chosen = Random(seed), list[Item]()
    labelled = (item for item in index.items(limit=_SCANNED) if item.label is not None)
    for seen, item in enumerate(labelled):
        if seen < count:
            chosen.append(item)
        elif (place := lot.randrange(seen + 1)) < count:
            chosen[place] = item
    return sorted(chosen, key=lambda item: item.id)


# ==== What pages and API have in common: the indexes, the uploads, the pictures, and the gates before all work.


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
