"""One search: its state in a URL, average precision by hand and as of `evaluate`, the hardest queries."""

from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.errors import InputError
from frontrank.evaluation import evaluate_scores
from frontrank.gallery.search import (
    GalleryIndex,
    HardestQueries,
    SearchQuery,
    SearchState,
    evaluate_hits,
    parse_state,
    ranks_in_list,
    sample_items,
    search,
)
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item, parse_filter
from tests.gallery.samples import break_method, index_of, line, soon

# The state

TEXTS = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)


@given(
    st.builds(
        SearchState,
        item=TEXTS,
        label=st.just("") | TEXTS,
        k=st.integers(1, 200),
        filters=st.lists(TEXTS, max_size=4, unique=True).map(tuple),
        expand=st.sampled_from(["", "on", "off"]),
        sides=st.lists(TEXTS, max_size=2, unique=True).map(tuple),
    )
)
def test_a_url_holds_the_whole_state(state):
    assert parse_state(urlsplit(state.url()).query, 200) == state


def test_defaults_are_left_out_and_unknown_parameters_ignored():
    assert SearchState().url() == "/"
    assert SearchState(item="a").url() == "/?item=a"
    assert parse_state("utm_source=x&item=a&&=", 200) == SearchState(item="a")


@pytest.mark.parametrize(
    ("pairs", "name"),
    [
        ([("k", "0")], "k"),
        ([("k", "٣")], "k"),
        ([("k", "9" * 5000)], "k"),
        ([("expand", "yes")], "expand"),
        ([("item", "a"), ("upload", "b")], "item and upload"),
        ([("item", "a\0b")], "item"),
        ([("a\nb", "\n")], "parameter"),
        ([("filter", f"a={i}") for i in range(17)], "filter"),
        ([(f"a{i}", "b") for i in range(65)], "parameters"),
    ],
)
def test_states_that_are_refused(pairs, name):
    with pytest.raises(InputError, match=f"^(the URL has )?.*{name}") as caught:
        parse_state(urlencode(pairs), 200)
    assert "\n" not in str(caught.value)


# Average precision


def pairs_of(labels, scores=None):
    scores = scores or [1 - place / 10 for place in range(len(labels))]
    return [(Item(str(i), label=label), score) for i, (label, score) in enumerate(zip(labels, scores, strict=True))]


@pytest.mark.parametrize(
    ("labels", "total", "expected"),
    [
        ("WR", 1, 1 / 2),
        ("RWR", 2, (1 + 2 / 3) / 2),
        ("WRWR", 2, (1 / 2 + 2 / 4) / 2),
        ("RWW", 2, 1 / 2),  # one of two was not result: its precision is 0
        ("WWW", 2, 0.0),
        ("RRR", 3, 1.0),
    ],
)
def test_average_precision_by_hand(labels, total, expected):
    result = evaluate_hits(pairs_of(labels), 10, "R", total)
    assert result.average_precision == pytest.approx(expected)
    assert result.complete == (labels.count("R") == total)
    assert [row.relevant for row in result.rows] == [label == "R" for label in labels]


def test_costs_add_up_to_what_is_missing():
    result = evaluate_hits(pairs_of("WRWRW"), 10, "R", 2)
    assert [row.cost for row in result.rows] == [0.375, None, 0.125, None, 0.0]  # (1/2 + 1/4) / 2, 1/4 / 2
    assert sum(row.cost or 0 for row in result.rows) == pytest.approx(1 - result.average_precision)
    cut = evaluate_hits(pairs_of("WRWR"), 10, "R", 4)  # two are not in the list: no costs
    assert [row.cost for row in cut.rows] == [None] * 4
    assert cut.points == ((0.25, 0.5), (0.5, 0.5))  # recall and precision
    assert evaluate_hits(pairs_of("RR"), 10, "R", 1).points[-1] == (1.0, 1.0)  # one was added meanwhile


def test_without_a_label_nothing_is_judged():
    result = evaluate_hits(pairs_of("RW"), 1, None, None)
    assert (result.relevant, result.average_precision, result.points, result.complete) == (None, None, (), False)
    assert [row.relevant for row in result.rows] == [None]
    result = evaluate_hits(pairs_of("WW"), 10, "R", 0)  # with one, but nothing to be found
    assert (result.relevant, result.average_precision) == (0, None)


ROWS = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=30)


@given(ROWS.filter(lambda rows: any(right for right, _ in rows)))
def test_equals_evaluate(rows):
    rows = sorted(rows, key=lambda row: -row[1])
    right, scores = (np.array(column) for column in zip(*rows, strict=True))
    report = evaluate_scores(scores[None].astype(np.float64), relevant=right[None], metrics=("mAP",))
    pairs = pairs_of(["R" if one else "W" for one in right], (scores / 10).tolist())
    assert evaluate_hits(pairs, 5, "R", int(right.sum())).average_precision == pytest.approx(report["mAP"])
    assert ranks_in_list(scores.astype(np.float64), right).valid.all()


def query_of(index, name="red/0.png", label=None):
    item = index.get([name])[0]
    return SearchQuery(index.vectors([name])[0], item, label or item.label)


def test_the_query_is_not_among_its_results(folder):
    index = index_of(folder)
    result = search(index, query_of(index), 24, depth=100)
    assert [row.item.id for row in result.rows[:2]] == ["red/1.png", "red/2.png"]
    assert "red/0.png" not in {row.item.id for row in result.rows}
    assert (len(result.rows), result.relevant, result.average_precision) == (11, 2, 1.0)
    assert search(index, query_of(index, label="blue"), 24, depth=100).relevant == 3  # another label than its own


def test_filters_bound_what_is_relevant(folder):
    index = index_of(folder)
    result = search(index, query_of(index), 24, [parse_filter("year>=2002")], depth=100)
    assert [row.place for row in result.rows] == [1, 2, 3, 4]
    assert result.relevant == 1  # the query itself does not pass the filter and is not counted
    result = search(index, query_of(index), 24, [parse_filter("year<2002")], depth=100)
    assert (result.relevant, len(result.rows)) == (1, 7)


@pytest.mark.parametrize("name", ["", "a" * 65, "a/b", "<b>", "a\n", "a&b"])
def test_names_that_cannot_be_used(name):
    with pytest.raises(InputError, match="name"):
        GalleryIndex(name, Index(dim=2))


# The hardest queries


def done(hardest):
    return soon(hardest.progress, lambda progress: progress.state != "running")


def test_the_lowest_average_precision_comes_first():
    index = line("AABBA")
    progress = done(HardestQueries(index, 10, 10))
    assert (progress.state, progress.done, progress.total) == ("done", 5, 5)
    # the last A finds B, B, A, A: (1/3 + 2/4) / 2; the middle ones find their other first
    assert progress.hard[0].item.id == "4"
    assert progress.hard[0].average_precision == pytest.approx((1 / 3 + 2 / 4) / 2)
    assert progress.hard[0].first_wrong.label == "B"
    values = [hard.average_precision for hard in progress.hard]
    assert values == sorted(values)


def test_an_item_that_is_deleted_meanwhile_is_left_out():
    index = line("AABB")
    vectors = index.vectors

    def deleted(names):
        if names == ["0"]:
            index.delete(names)
        return vectors(names)

    index.vectors = deleted
    progress = done(HardestQueries(index, 10, 10))
    assert (progress.state, progress.done) == ("done", 4)
    assert "0" not in {hard.item.id for hard in progress.hard}


def test_what_was_found_before_it_failed_is_kept(caplog):
    index = line("AB" * 10)
    break_method(index, "search", lambda call: call > 15)
    progress = done(HardestQueries(index, 20, 20))
    assert (progress.state, progress.done, progress.total, len(progress.hard)) == ("failed", 10, 20, 10)
    assert "FrontrankError" in caplog.text
    assert "secret" not in caplog.text


def test_a_sample_is_always_the_same_and_of_labelled_items():
    index = line(["A", ""] * 200)
    some = sample_items(index, 30)
    assert some == sample_items(index, 30)
    assert len({item.id for item in some}) == 30
    assert all(item.label == "A" for item in some)
    assert len(sample_items(index, 1000)) == 200
