"""Facets, what is cached, and items to begin with."""

import logging
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from frontrank.gallery import service
from frontrank.gallery.service import Facets, TimedCache, count_facets, filter_for, make_facet, starters
from frontrank.retrieval.items import Item
from tests.gallery.samples import break_method, index_of, line, soon


def test_facets(folder):
    found = {one.field: one for one in count_facets(index_of(folder))}
    assert list(found) == ["label", "category", "year", "kind"]
    assert found["kind"].choices == (("kind=first", "first", 4), ("kind=plain", "plain", 8))
    assert all(one.short for one in found.values())
    many = make_facet("label", {f"v{i}": i for i in range(500)})  # not all are listed
    assert (many.short, many.distinct, len(many.choices), many.choices[0][1]) == (False, 500, 100, "v499")


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
    monkeypatch.setattr(service, "_FACET_WAIT", 0.05)
    found = Facets(index)
    assert found.get() == []
    monkeypatch.setattr(service, "_FACET_WAIT", 0.0)
    threads = threading.active_count()
    assert [found.get() for _ in range(5)] == [[]] * 5
    assert threading.active_count() == threads  # one counts for all
    go_on.set()
    assert [one.field for one in soon(found.get, bool)] == ["label"]
    assert counted == ["label", "category"]


def test_old_counts_are_shown_while_they_are_counted_anew(slow, monkeypatch):
    index, go_on, _ = slow
    monkeypatch.setattr(service, "_FACET_SECONDS", 0.0)
    go_on.set()
    found = Facets(index)
    before = soon(found.get, bool)
    go_on.clear()
    index.add(np.ones((1, 2), np.float32), [Item("new", label="C")])
    soon(lambda: (found.get(), found._running), lambda pair: pair[1])
    assert found.get() == before
    go_on.set()
    assert soon(found.get, lambda now: now != before)[0].distinct == 3


def test_counts_that_fail_are_tried_again(caplog):
    index = line("AAB")
    break_method(index, "values", lambda call: call == 1)
    found = Facets(index)
    with caplog.at_level(logging.ERROR, "frontrank.gallery"):
        assert found.get() == []
    assert "FrontrankError" in caplog.text
    assert soon(found.get, bool)[0].field == "label"


def test_a_value_is_computed_once_and_kept_from_the_end_of_its_work(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now[0]))
    cache = TimedCache(300.0)

    def compute():
        now[0] += 400.0
        return now[0]

    assert cache.get("a", compute) == 400.0
    now[0] = 699.0
    assert cache.get("a", compute) == 400.0
    now[0] = 700.0
    assert cache.get("a", compute) == 1100.0


def test_starters_differ_and_are_always_the_same(folder):
    index = index_of(folder)
    assert starters(index, 5) == starters(index, 5)
    assert len({item.id for item in starters(index, 50)}) == 12
