"""The page of a comparison: its numbers, what it says of them, and parts that are missing."""

from dataclasses import replace

import numpy as np
import pytest

from frontrank.comparison.report import axis_charts, render_comparison_page, seed_strip, table_rows, validation_charts
from frontrank.comparison.results import UNFINISHED, metric_column
from frontrank.reporting.findings import Curve
from tests.reporting.samples import HOSTILE, compared_of, entry_of, parsed, plain, sections

REFERENCE = entry_of("Smooth-AP", (0.50, 0.52))
BETTER = entry_of("PNP", (0.60, 0.64), against=(0.11, 0.05, 0.17, 0.01))
ALIKE = entry_of("FastAP", (0.50, 0.50), against=(-0.01, -0.03, 0.01, 0.6))
WORSE = entry_of("triplet", (0.30, 0.34), against=(-0.19, -0.21, -0.17, 0.00001))
FAILED = entry_of("broken", (), searched={}, seconds=(), megabytes=(), failed="the loss became NaN at step 3")
ALL = REFERENCE, BETTER, ALIKE, WORSE, FAILED


@pytest.fixture(scope="module")
def page():
    return page_of(*ALL)


def page_of(*entries, **others):
    return parsed(render_comparison_page(compared_of(*entries, **others)))


def rows_of(*entries, metrics=("R@1",)):
    return table_rows(entries, list(map(metric_column, metrics)), "R@1")


def body_rows(page, number):
    table = list(page.all("table"))[number]
    return [
        [plain(cell.text) for cell in row.children if not isinstance(cell, str)] for row in table.one("tbody").all("tr")
    ]


def heads(page, number):
    return [plain(head.text) for head in list(page.all("table"))[number].one("thead").all("th")]


def section(page, name):
    return next(section for section in page.all("section") if section.attributes["id"] == name)


def axis_entries(values):
    return [entry_of(f"tau={value}", (0.4 + i / 10, 0.5 + i / 10), {"tau": value}) for i, value in enumerate(values)]


def test_the_headline_names_the_winner_and_who_is_not_clear(page):
    assert plain(page.one("h1").text).endswith("62.0 % PNP")
    lead = plain(page.one("p", of="lead").text)
    for text in ("2 seeds", "2.8 points", "25.0 %", "+11.0 points (+5.0 to +17.0, p = 0.01)"):
        assert text in lead
    assert lead.endswith(": FastAP.")


def test_the_table_is_sorted_with_the_best_marked_in_words(page):
    rows = body_rows(page, 0)
    assert [row[0] for row in rows] == ["PNP", "Smooth-APreference", "FastAP", "triplet", "before training"]
    assert [row[1] for row in rows] == ["★ best: 62.0± 2.8", "51.0± 1.4", "50.0± 0.0", "32.0± 2.8", "25.0"]
    assert [row[2][:1] for row in rows[:4]] == ["▲", "", "≈", "▼"]
    assert rows[3][2].replace("\N{MINUS SIGN}", "-").endswith("-19.0-21.0 to -17.0, p ≤ 0.0002")
    assert body_rows(page, 1)[0] == ["PNP", "0.310± 0.014"]  # metrics of detail have a table of their own


@pytest.mark.parametrize(
    ("against", "verdict"),
    [
        ((0.1, 0.05, 0.2, 0.04), "higher"),
        ((-0.1, -0.2, -0.05, 0.04), "lower"),
        ((0.1, 0.05, 0.2, 0.05), "no clear difference"),
        ((0.1, -0.05, 0.2, 0.01), "no clear difference"),
        (None, ""),
    ],
)
def test_a_verdict_needs_the_interval_and_p(against, verdict):
    (row,) = rows_of(entry_of("a", (0.5,), against=against))
    assert row.verdict == verdict


def test_all_parts_are_there_and_in_the_contents(page):
    assert sections(page) == ["result", "seeds", "validation", "cost", "rates", "failures", "facts"]
    assert [link.attributes["href"][1:] for link in page.one("nav").all("a")] == sections(page)
    assert FAILED.failed in section(page, "failures").text
    assert "a note" in page.one("ul", of="notes").text
    other = page_of(REFERENCE, replace(BETTER, folder="my runs/02-PNP"))
    assert body_rows(section(other, "pictures"), 0) == [["PNP", "frontrank report 'my runs/02-PNP'"]]


def test_every_seed_is_a_mark_on_one_scale(page):
    rows = list(page.all("div", of="strip-row"))
    marks = [[mark.attributes["style"] for mark in row.all("i", of="seed")] for row in rows]
    assert [len(of) for of in marks] == [2, 2, 2, 2, 0]
    strip = seed_strip(ALL, "R@1", 0.25)
    assert (strip.low, strip.high) == pytest.approx((0.25 - 0.06 * 0.39, 0.64 + 0.06 * 0.39))
    assert marks[0][1] == f"left:{100 * (0.64 - strip.low) / (strip.high - strip.low):.2f}%"
    assert plain(rows[0].one("span", role="img").attributes["aria-label"]) == "PNP: 60.0 %, 64.0 %"


def test_the_chosen_learning_rate_is_marked(page):
    rows = body_rows(section(page, "rates"), 0)
    assert (rows[0], rows[-1]) == (["Smooth-AP", "40.0", "✓ chosen 50.0"], ["broken", "", ""])


def test_what_is_not_finished_has_not_failed():
    waiting = [replace(FAILED, name=name, failed=UNFINISHED) for name in ("FastAP", "RaMBO")]
    page = page_of(REFERENCE, BETTER, *waiting)
    assert "failures" not in sections(page)
    facts = plain(page.one("dl", of="facts").text)
    assert ("2 of 4" in facts, "failed" in facts) == (True, False)
    assert plain(page.one("p", of="lead").text).endswith(": FastAP, RaMBO.")
    page = page_of(REFERENCE, BETTER, waiting[0], FAILED)
    assert "1 failed" in plain(page.one("dl", of="facts").text)


def test_validation_curves_are_one_chart_per_entry_before_all_others():
    charts = validation_charts([REFERENCE, BETTER], "R@1")
    assert [entry.name for entry, _ in charts] == ["Smooth-AP", "PNP"]
    assert [stroke.kind for stroke in charts[0][1].strokes] == ["faint"] * 2 + ["after"] * 2
    assert charts[0][1].y_ticks == charts[1][1].y_ticks
    assert validation_charts([replace(BETTER, curves=())], "R@1") == []


# Axes


def test_an_axis_of_powers_is_logarithmic_and_one_of_near_values_is_not():
    first, _ = axis_charts("tau", axis_entries([0.001, 0.01, 0.1]), ["R@1", "dists@intra"])
    assert [tick.text for tick in first.x_ticks] == ["0.001", "0.01", "0.1"]
    at = [tick.at for tick in first.x_ticks]
    assert at[1] - at[0] == pytest.approx(at[2] - at[1], abs=0.2)
    assert [plain(cell) for cell in first.numbers.rows[0]] == ["0.001", "45.0 %", "40.0 %, 50.0 %"]
    assert [name for name, _ in first.legend] == ["mean", "seeds"]
    at = [tick.at for tick in axis_charts("tau", axis_entries([1, 2, 4]), ["R@1"])[0].x_ticks]
    assert at[2] - at[1] == pytest.approx(2 * (at[1] - at[0]), abs=0.2)


@pytest.mark.parametrize("values", [["a", "b"], [True, False], [1, None], [2, 2]], ids=["text", "bool", "none", "same"])
def test_an_axis_that_is_no_number_has_no_chart(values):
    assert axis_charts("tau", axis_entries(values), ["R@1"]) == []
    assert "axis" not in sections(page_of(*axis_entries(values), axis="tau"))


# Little, and users' text


def test_a_comparison_of_one_and_of_none():
    page = page_of(entry_of("PNP", (0.6,)), frozen={})
    assert plain(page.one("h1").text) == "R@1: 60.0 % PNP"
    assert "one seed" in plain(page.one("p", of="lead").text)
    page = page_of(FAILED, settings="", command="", versions={}, licences={}, notes=())
    assert sections(page) == ["failures", "facts"]
    assert sections(page_of()) == ["facts"]


def test_users_text_stays_text(page):
    curve = Curve(np.arange(3.0), np.arange(3.0))
    entries = [replace(entry_of(text, (0.5, 0.6), failed=text), curves=(curve,)) for text in HOSTILE]
    facts = {"title": HOSTILE[0], "images": HOSTILE[1], "command": HOSTILE[0], "notes": tuple(HOSTILE)}
    text = render_comparison_page(compared_of(*entries, versions={text: text for text in HOSTILE}, **facts))
    text.encode("utf-8")
    hostile = parsed(text)
    assert len(list(hostile.all("script"))) == 1
    assert {element.tag for element in hostile.all()} <= {element.tag for element in page.all()}
    assert not [name for element in hostile.all() for name in element.attributes if name.startswith("on")]
    assert HOSTILE[0] in hostile.one("p", of="eyebrow").text
