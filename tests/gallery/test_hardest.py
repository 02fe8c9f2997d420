"""The hardest queries, facets, and what is kept."""

import logging
import threading
import time

import numpy as np
import pytest

from frontrank.errors import FrontrankError
from frontrank.gallery import search as facets
from frontrank.gallery.search import Facets, Hardest, Kept, facet, facets_of, filter_for, sample_items, starters
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.gallery.samples import index_of, soon


def done(hardest):
    return soon(hardest.progress, lambda progress: progress.state != "running")


def line(labels):
    """Items on an arc, in the order of the labels."""
    angles = np.linspace(0, 1, len(labels))
    index = Index(dim=2)
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    index.add(vectors, [Item(str(i), label=label) for i, label in enumerate(labels)])
    return index


def test_the_lowest_average_precision_comes_first():
    index = line("AABBA")
    progress = done(Hardest(index, 10, 10))
    assert (progress.state, progress.done, progress.total) == ("done", 5, 5)
    # the last A finds B, B, A, A: (1/3 + 2/4) / 2; the middle ones find their other first
    assert progress.hard[0].item.id == "4"
    assert progress.hard[0].average_precision == pytest.approx((1 / 3 + 2 / 4) / 2)
    assert progress.hard[0].first_wrong.label == "B"
    values = [hard.average_precision for hard in progress.hard]
    assert values == sorted(values)


def test_items_with_nothing_to_find_are_left_out():
    index = line("AB")
    progress = done(Hardest(index, 10, 10))
    assert (progress.state, progress.hard) == ("done", ())


def test_an_empty_index_is_soon_done():
    assert done(Hardest(Index(dim=2), 10, 10)).state == "done"


def test_an_index_that_fails_is_said_to():
    index = line("AABB")
    hardest = Hardest(index, 10, 10)
    index.items = None
    assert done(hardest).state == "failed"


def breaks(index, name, when):
    """From some call on, a method of the index fails."""
    method, calls = getattr(index, name), []

    def broken(*given, **more):
        calls.append(given)
        if when(len(calls)):
            raise FrontrankError("secret")
        return method(*given, **more)

    setattr(index, name, broken)


def test_a_search_that_fails_is_no_deleted_item(caplog):
    index = line("AABB")
    breaks(index, "search", lambda call: True)
    assert done(Hardest(index, 10, 10)).state == "failed"
    assert "FrontrankError" in caplog.text
    assert "secret" not in caplog.text


def test_an_item_that_is_deleted_meanwhile_is_left_out():
    index = line("AABB")
    vectors = index.vectors

    def deleted(names):
        if names == ["0"]:
            index.delete(names)
        return vectors(names)

    index.vectors = deleted
    progress = done(Hardest(index, 10, 10))
    assert (progress.state, progress.done) == ("done", 4)
    assert "0" not in {hard.item.id for hard in progress.hard}


def test_what_was_found_before_it_failed_is_kept():
    index = line("AB" * 10)
    breaks(index, "search", lambda call: call > 15)
    progress = done(Hardest(index, 20, 20))
    assert (progress.state, progress.done, progress.total, len(progress.hard)) == ("failed", 10, 20, 10)


def test_it_can_be_ended():
    index = line("AABB")
    hardest = Hardest(index, 10, 10)
    hardest.close()
    hardest.progress()
    time.sleep(0.05)
    assert hardest.progress().done == 0


def test_a_sample_is_always_the_same_and_of_labelled_items():
    index = line(["A", ""] * 200)
    some = sample_items(index, 30)
    assert some == sample_items(index, 30)
    assert len({item.id for item in some}) == 30
    assert all(item.label == "A" for item in some)
    assert len(sample_items(index, 1000)) == 200


def test_facets(folder):
    found = {one.field: one for one in facets_of(index_of(folder))}
    assert list(found) == ["label", "category", "year", "kind"]
    assert found["kind"].choices == (("kind=first", "first", 4), ("kind=plain", "plain", 8))
    assert found["year"].choices[0] == ("year=2000", "2000", 4)
    assert all(one.short for one in found.values())


def test_many_values_are_not_all_listed():
    found = facet("label", {f"v{i}": i for i in range(500)})
    assert (found.short, found.distinct, len(found.choices), found.choices[0][1]) == (False, 500, 100, "v499")


@pytest.mark.parametrize(
    ("value", "written"), [("a", "f=a"), ("a|b", "f=a\\|b"), ("=a", ""), (" a", ""), ("a=b", "f=a=b"), ("", "f=")]
)
def test_filters_that_can_be_written(value, written):
    assert filter_for("f", value) == written


@pytest.fixture
def slow():
    """An index whose values are counted when the event is set, the event, and what was counted."""
    index, go_on, counted = line("AAB"), threading.Event(), []
    values = index.values

    def slowly(field):
        assert go_on.wait(60)
        counted.append(field)
        return values(field)

    index.values = slowly
    yield index, go_on, counted
    go_on.set()


def test_a_count_that_takes_long_is_waited_for_but_once(slow, monkeypatch):
    index, go_on, counted = slow
    monkeypatch.setattr(facets, "_PATIENCE", 0.05)
    found = Facets(index)
    assert found.get() == []
    monkeypatch.setattr(facets, "_PATIENCE", 0.0)
    threads = threading.active_count()
    assert [found.get() for _ in range(5)] == [[]] * 5
    assert threading.active_count() == threads  # one counts for all
    go_on.set()
    assert [one.field for one in soon(found.get, bool)] == ["label"]
    assert counted == ["label", "category"]


def test_old_counts_are_shown_while_they_are_counted_anew(slow, monkeypatch):
    index, go_on, _ = slow
    monkeypatch.setattr(facets, "_SECONDS", 0.0)
    go_on.set()
    found = Facets(index)
    before = soon(found.get, bool)
    go_on.clear()
    index.add(np.ones((1, 2), np.float32), [Item("new", label="C")])
    soon(lambda: (found.get(), found._counting), lambda pair: pair[1])
    assert found.get() == before
    go_on.set()
    assert soon(found.get, lambda now: now != before)[0].distinct == 3


def test_counts_that_fail_are_tried_again(caplog):
    index = line("AAB")
    breaks(index, "values", lambda call: call == 1)
    found = Facets(index)
    with caplog.at_level(logging.ERROR, "frontrank.gallery"):
        assert found.get() == []
    assert "FrontrankError" in caplog.text
    assert soon(found.get, bool)[0].field == "label"


def test_slow_work_is_kept_from_its_end_on(monkeypatch):
    times = iter([0.0, 400.0, 500.0])
    monkeypatch.setattr(facets.time, "monotonic", lambda: next(times))
    kept = Kept()
    assert kept.get("a", lambda: facets.time.monotonic()) == 0.0  # it ends at 400
    assert kept.get("a", lambda: pytest.fail("made again")) == 0.0


def test_what_is_kept_is_made_once():
    made = []
    kept = Kept()
    assert [kept.get("a", lambda: made.append(1) or len(made)) for _ in range(3)] == [1, 1, 1]


def test_starters_differ_and_are_always_the_same(folder):
    index = index_of(folder)
    assert starters(index, 5) == starters(index, 5)
    assert len({item.id for item in starters(index, 50)}) == 12
