"""The hardest queries, facets, and what is kept."""

import time

import numpy as np
import pytest

from frontrank.gallery.facets import Kept, facet, facets_of, filter_for, starters
from frontrank.gallery.hardest import Hardest, sample_items
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.gallery.samples import index_of


def done(hardest):
    for _ in range(500):
        progress = hardest.progress()
        if progress.state != "running":
            return progress
        time.sleep(0.01)
    pytest.fail("the work does not end")


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


def test_what_is_kept_is_made_once():
    made = []
    kept = Kept()
    assert [kept.get("a", lambda: made.append(1) or len(made)) for _ in range(3)] == [1, 1, 1]


def test_starters_differ_and_are_always_the_same(folder):
    index = index_of(folder)
    assert starters(index, 5) == starters(index, 5)
    assert len({item.id for item in starters(index, 50)}) == 12
