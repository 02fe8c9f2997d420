"""One search as the page shows it: its state in a URL, ranked rows, average precision, and the hardest queries."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import torch
from numpy.typing import NDArray

from frontrank.errors import FrontrankError, InputError
from frontrank.ranking import Ranks, average_precision, precision
from frontrank.retrieval.items import Condition, Item, matches, parse_filter

if TYPE_CHECKING:
    from PIL.Image import Image

    from frontrank.retrieval.index import Index

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

DEFAULT_K = 24  # results
MOST_FILTERS = 16
MOST_CHARACTERS = 1024
_MOST_PARAMETERS = 64
_HARDEST_SECONDS = 900.0  # after which the work is done again, as the index may have changed
_SCANNED = 100_000  # items among which the sample is drawn: reading all of a large index would take too long
_log = logging.getLogger("frontrank.gallery")

# The state of the page, as it stands in a URL: a link that is passed on shows the same


@dataclass(frozen=True)
class SearchState:
    """The query and how it is searched for.

    item, upload: the id of an indexed item, or the name of an upload; both "" if nothing is searched for yet
    label:        of an upload, where the user knows it
    filters:      such as "label=cat"; all of them must hold
    expand:       query expansion "on", "off", or "" as it is stored with the index
    sides:        names of the indexes that are shown, () for all
    """

    item: str = ""
    upload: str = ""
    label: str = ""
    k: int = DEFAULT_K
    filters: tuple[str, ...] = ()
    expand: str = ""
    sides: tuple[str, ...] = ()

    def conditions(self) -> tuple[Condition, ...]:
        """Parse the filters."""
        return tuple(parse_filter(text) for text in self.filters)

    def url(self, **changes: Any) -> str:
        """Return the URL of the page that shows it, with some changes; defaults are left out.

        >>> SearchState(item="a/1", k=10).url(filters=("label=x&y",))
        '/?item=a%2F1&k=10&filter=label%3Dx%26y'
        """
        state = replace(self, **changes)
        pairs = [(name, getattr(state, name)) for name in ("item", "upload", "label")]
        pairs += [("k", state.k if state.k != DEFAULT_K else ""), *(("filter", one) for one in state.filters)]
        pairs += [("expand", state.expand), *(("side", one) for one in state.sides)]
        query = urlencode([(name, value) for name, value in pairs if value != ""])
        return f"/?{query}" if query else "/"


def parse_state(query: str, most: int) -> SearchState:
    """Read the state from a query string; most: results that may be asked for.

    >>> parse_state("item=a&k=10&filter=&filter=label%3Dcat", 100)
    SearchState(item='a', upload='', label='', k=10, filters=('label=cat',), expand='', sides=())
    """
    try:
        pairs = parse_qsl(query, max_num_fields=_MOST_PARAMETERS)  # leaves out what is empty
    except ValueError:
        raise InputError(f"the URL has more than {_MOST_PARAMETERS} parameters; leave some out") from None
    for name, value in pairs:
        check_text(name if name.isidentifier() else "a parameter", value)
    last = dict(pairs)
    filters, sides = (tuple(dict.fromkeys(value for name, value in pairs if name == key)) for key in ("filter", "side"))
    if len(filters) > MOST_FILTERS:
        raise InputError(f"filter is given {len(filters)} times; give at most {MOST_FILTERS}")
    if last.get("expand", "on") not in ("on", "off"):
        raise InputError("expand must be on or off; leave it out for what is stored with the index")
    k = last.get("k", str(DEFAULT_K))
    if not (k.isascii() and k.isdecimal() and len(k) < 7 and 1 <= int(k) <= most):
        raise InputError(f"k must be a whole number from 1 to {most}")
    if "item" in last and "upload" in last:
        raise InputError("item and upload are both given; leave out one")
    texts = {name: last.get(name, "") for name in ("item", "upload", "label", "expand")}
    return SearchState(**texts, k=int(k), filters=filters, sides=sides)


def check_text(name: str, value: str) -> None:
    """Refuse text that is too long, or has control characters."""
    if len(value) > MOST_CHARACTERS:
        raise InputError(f"{name} has {len(value):,} characters; give at most {MOST_CHARACTERS:,}")
    if not value.isprintable() and any(ord(each) < 32 or 127 <= ord(each) < 160 for each in value):
        raise InputError(f"{name} has control characters; leave them out")


# One search


@dataclass(frozen=True, eq=False)
class GalleryIndex:
    """An index as the page shows it.

    name:  its name on the page; letters, digits, blanks and . _ -
    embed: returns the embedding of a picture; None if only indexed pictures can be searched from
    roots: folders whose files may be shown; paths of items are relative to them
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
    """Refuse a name that the page cannot use for an index."""
    if not (0 < len(name) <= 64 and all(each.isalnum() or each in " ._-" for each in name)):
        raise InputError(f"name {name!r} must be 1 to 64 letters, digits, blanks or . _ -; choose another one")


@dataclass(frozen=True, eq=False)
class SearchQuery:
    """Embedding to search from, with its item and its label, if they are known.

    stored: it is a vector as the index keeps it, so that it is not whitened again
    """

    vector: NDArray[Any]
    item: Item | None = None
    label: str | None = None
    model: str | None = None
    stored: bool = False


@dataclass(frozen=True)
class ResultRow:
    """A result. relevant: None if labels are not known; cost: a wrong one's share of the lost AP.

    half: wrong, but of the query's category
    """

    place: int
    item: Item
    score: float
    relevant: bool | None = None
    cost: float | None = None
    half: bool = False


@dataclass(frozen=True)
class SearchResult:
    """The results of one index.

    depth:    number of places that were searched; `rows` are the first of them
    relevant: right items in all of the index that pass the filters; None without labels
    points:   (recall, precision) at each right item of these places, in their order
    average_precision: right items beyond these places count as never found, so it can be a lower bound
    """

    rows: tuple[ResultRow, ...]
    depth: int
    milliseconds: float = 0.0
    relevant: int | None = None
    points: tuple[tuple[float, float], ...] = ()
    average_precision: float | None = None

    @property
    def complete(self) -> bool:
        """Whether every right item was found, so that the average precision is the true one."""
        return self.relevant is not None and len(self.points) == self.relevant


def search(
    index: "Index",
    query: SearchQuery,
    k: int,
    conditions: Sequence[Condition] = (),
    expand: bool | tuple[int, float] | None = None,
    depth: int = 0,
) -> SearchResult:
    """Return the first k items without the query itself; AP is computed by its label over the first `depth` places."""
    label = query.label
    own = query.item is not None and matches(conditions, query.item)
    wanted = max(k, depth if label is not None else 0)
    started = time.perf_counter()
    hits = index.search(
        query.vector[None], wanted + own, filter=conditions, expand=expand, model=query.model, stored=query.stored
    )[0]
    total = None
    if label is not None:
        total = index.count((*conditions, Condition("label", "=", (label,))))
        total -= own and query.item is not None and query.item.label == label
    seconds = time.perf_counter() - started
    pairs = list(zip(hits.items, map(float, hits.scores), strict=True))
    pairs = [pair for pair in pairs if query.item is None or pair[0].id != query.item.id][:wanted]
    category = next((item.category for item in (query.item, *hits.items) if item and item.label == label), None)
    return evaluate_hits(pairs, k, label, total, 1000 * seconds, category)


def evaluate_hits(
    pairs: Sequence[tuple[Item, float]],
    k: int,
    label: str | None,
    total: int | None,
    milliseconds: float = 0.0,
    category: str | None = None,
) -> SearchResult:
    """Return the first k of some items, best score first, with the average precision of all.

    label: of right items; total: right items in the index; category: a wrong item of it is half right

    >>> pairs = [(Item("a", label="cat"), 0.9), (Item("b", label="dog"), 0.8), (Item("c", label="cat"), 0.7)]
    >>> result = evaluate_hits(pairs, 2, "cat", 2)
    >>> [(row.item.id, row.relevant) for row in result.rows], round(result.average_precision, 4)  # (1/1 + 2/3) / 2
    ([('a', True), ('b', False)], 0.8333)
    """
    if label is None or total is None:
        rows = tuple(ResultRow(place, item, score) for place, (item, score) in enumerate(pairs[:k], 1))
        return SearchResult(rows, len(pairs), milliseconds)
    right = np.array([item.label == label for item, _ in pairs], dtype=bool)
    scores = np.array([score for _, score in pairs], dtype=np.float64)
    total = max(total, int(right.sum()))  # an item may have been added between the search and the count
    ranks = ranks_in_list(scores, right)
    # what a wrong item of a complete list takes from the AP: 1 / place of every right item after it
    costs = np.cumsum((right / np.arange(1, len(right) + 1))[::-1])[::-1] / max(1, total)
    complete = right.sum() == total
    rows = tuple(
        ResultRow(
            i + 1,
            item,
            score,
            bool(right[i]),
            float(costs[i]) if complete and not right[i] else None,
            bool(category) and item.category == category and not right[i],
        )
        for i, (item, score) in enumerate(pairs[:k])
    )
    precisions = precision(ranks.before_pos, ranks.before_neg)[0].tolist()
    points = tuple(((j + 1) / total, value) for j, value in enumerate(precisions))
    # a mean over those found, scaled to a mean over all: what was not found has a precision of 0
    value = float(average_precision(ranks)[0]) * len(points) / total if points else 0.0
    return SearchResult(rows, len(pairs), milliseconds, total, points, value if total else None)


def ranks_in_list(scores: Floats, right: Flags) -> Ranks:
    """Count what is before each right item of a list, best first; ties count against it, as in `evaluate`.

    >>> ranks_in_list(np.array([0.9, 0.5, 0.5]), np.array([False, True, False])).before_neg
    tensor([[2.]], dtype=torch.float64)
    """
    wrong = np.sort(-scores[~right])
    before_neg = np.searchsorted(wrong, -scores[right], side="right")
    before_pos = np.arange(int(right.sum()))
    pos, neg = (torch.from_numpy(one.astype(np.float64))[None] for one in (before_pos, before_neg))
    return Ranks(pos, neg, torch.ones_like(pos, dtype=torch.bool))


# The hardest queries: where average precision is lost, by a search from a sample of the indexed items


@dataclass(frozen=True)
class HardQuery:
    """A query, its average precision (a lower bound unless complete), and the first wrong item."""

    item: Item
    average_precision: float
    relevant: int
    complete: bool
    first_wrong: Item | None = None


@dataclass(frozen=True)
class HardestProgress:
    """How far the work is; state: "waiting", "running", "done" or "failed"; hard: lowest AP first."""

    state: str
    done: int = 0
    total: int = 0
    hard: tuple[HardQuery, ...] = ()


class HardestQueries:
    """The hardest queries of one index, computed in a thread of their own after the first request for them."""

    def __init__(self, index: "Index", sample: int, depth: int) -> None:
        self._index, self._sample, self._depth = index, sample, depth
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._progress, self._started = HardestProgress("waiting"), 0.0

    def progress(self) -> HardestProgress:
        """Return how far it is; the first call starts the work, and so does one long after its end."""
        with self._lock:
            old = self._progress.state != "running" and time.monotonic() - self._started > _HARDEST_SECONDS
            if self._progress.state == "waiting" or old:
                self._started = time.monotonic()
                self._progress = HardestProgress("running")
                threading.Thread(target=self._run, name="hardest queries", daemon=True).start()
            return self._progress

    def close(self) -> None:
        """Stop the work at its next query."""
        self._stop.set()

    def _run(self) -> None:
        try:
            self._search_all()
        except Exception as error:  # the page must not wait for ever for an index that is gone
            _log.error("searching for the hardest queries failed: %s", type(error).__name__)
            self._progress = replace(self._progress, state="failed")

    def _search_all(self) -> None:
        items = sample_items(self._index, self._sample)
        hard: list[HardQuery] = []
        self._progress = HardestProgress("running" if items else "done", 0, len(items))
        for done, item in enumerate(items, 1):
            if self._stop.is_set():
                return
            try:
                query = SearchQuery(self._index.vectors([item.id])[0], item, item.label, stored=True)
                result = search(self._index, query, self._depth, depth=self._depth)
            except FrontrankError:
                if self._index.get([item.id])[0] is not None:
                    raise
                result = SearchResult((), 0)  # it was deleted after it was drawn
            if result.average_precision is not None and result.relevant:
                wrong = next((row.item for row in result.rows if not row.relevant), None)
                hard.append(HardQuery(item, result.average_precision, result.relevant, result.complete, wrong))
            if done % 10 == 0 or done == len(items):
                hard.sort(key=lambda one: (one.average_precision, one.item.id))
                state = "done" if done == len(items) else "running"
                self._progress = HardestProgress(state, done, len(items), tuple(hard))


def sample_items(index: "Index", count: int) -> list[Item]:
    """Draw some labelled items among the first 100,000, all equally likely; always the same ones of the same index."""
    rng, sample = Random(0), list[Item]()
    labelled = (item for item in index.items(limit=_SCANNED) if item.label is not None)
    for number, item in enumerate(labelled):
        if number < count:
            sample.append(item)
        elif (place := rng.randrange(number + 1)) < count:
            sample[place] = item
    return sorted(sample, key=lambda item: item.id)
