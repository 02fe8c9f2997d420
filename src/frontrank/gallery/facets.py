"""What a search can be narrowed by: the fields of the items and the values they have."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from frontrank.errors import InputError
from frontrank.retrieval.filters import Condition, parse_filter
from frontrank.retrieval.items import Item

if TYPE_CHECKING:
    from frontrank.retrieval.index import Index

T = TypeVar("T")

UNSAID = ("sha256",)  # of the file: by it an image is known again, but to people it says nothing
CHOICES = 100  # values that a list to choose from may have
_FIELDS, _SAMPLE = 8, 200  # fields that are offered; items that are asked which fields there are
_STARTERS = 2000  # items among which some are drawn to begin with
_SECONDS = 300.0  # after which values are counted anew
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
            rest = max(_SECONDS, 10 * (time.monotonic() - self._begun))  # slow counts shall not go on all the time
        except Exception as error:  # the page does without; the next one that is asked for tries again
            _log.error("counting the values of an index failed: %s", type(error).__name__)
        with self._lock:
            self._counting, self._due = False, time.monotonic() + rest
        self._first.set()


class Kept:
    """What takes a moment to find out, kept for a while; only one thread finds out the same at a time."""

    def __init__(self, seconds: float = _SECONDS) -> None:
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
