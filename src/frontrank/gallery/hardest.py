"""The hardest queries: where average precision is lost, found by searching from a sample of the indexed items."""

import logging
import threading
import time
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from frontrank.errors import FrontrankError
from frontrank.gallery.search import Query, search
from frontrank.retrieval.items import Item

if TYPE_CHECKING:
    from frontrank.retrieval.index import Index

_SECONDS = 900.0  # after which an index may have changed
_SCANNED = 100_000  # items among which the sample is drawn: reading all of a large index would take too long
_log = logging.getLogger("frontrank.gallery")


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
            old = self._progress.state != "running" and time.monotonic() - self._begun > _SECONDS
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
