import math
import re
from dataclasses import replace

import numpy as np
import pytest

from frontrank.comparison.report import axis_plots, comparison_page, seed_strip, table_rows, validation_plots
from frontrank.comparison.results import UNFINISHED
from frontrank.reporting.findings import Curve
from tests.reporting.samples import compared_of, entry_of, parsed
from tests.reporting.test_page import HOSTILE, plain, sections

REFERENCE = entry_of("Smooth-AP", (0.50, 0.52))
BETTER = entry_of("PNP", (0.60, 0.64), against=(0.11, 0.05, 0.17, 0.01))
ALIKE = entry_of("FastAP", (0.50, 0.50), against=(-0.01, -0.03, 0.01, 0.6))
WORSE = entry_of("triplet", (0.30, 0.34), against=(-0.19, -0.21, -0.17, 0.00001))
FAILED = entry_of("broken", (), searched={}, seconds=(), megabytes=(), failed="the loss became NaN at step 3")
ALL = REFERENCE, BETTER, ALIKE, WORSE, FAILED


def body_rows(page, number):
    table = list(page.all("table"))[number]
    return [
        [plain(cell.text) for cell in row.children if not isinstance(cell, str)] for row in table.one("tbody").all("tr")
    ]


def test_the_headline_names_the_winner_and_who_is_not_told_apart():
    page = parsed(comparison_page(compared_of(*ALL)))
    assert plain(page.one("h1").text) == "Highest R@1 of 4 ways to train: 62.0 % PNP"
    lead = plain(page.one("p", of="lead").text)
    assert lead.startswith("PNP reaches R@1 62.0 %, mean of 2 seeds with a standard deviation of 2.8 points;")
    assert "the backbone before training has 25.0 %." in lead
    assert "Against the reference Smooth-AP that is +11.0 points (+5.0 to +17.0, p = 0.01)." in lead
    assert lead.endswith("Not told apart from the reference: FastAP.")


def test_the_table_is_sorted_with_the_best_marked_in_words():
    page = parsed(comparison_page(compared_of(*ALL)))
    rows = body_rows(page, 0)
    assert [row[0] for row in rows] == ["PNP", "Smooth-APreference", "FastAP", "triplet", "before training"]
    assert rows[0][1] == "★ best: 62.0± 2.8"
    assert [row[1] for row in rows[1:]] == ["51.0± 1.4", "50.0± 0.0", "32.0± 2.8", "25.0"]
    more = body_rows(page, 1)
    assert [row[0] for row in more] == ["PNP", "Smooth-AP", "FastAP", "triplet", "before training"]
    assert more[0][1] == "0.310± 0.014"
    assert [row[2].split("higher")[0].split("lower")[0].split("no clear")[0].strip() for row in rows[:4]] == [
        "▲",
        "",
        "≈",
        "▼",
    ]
    assert rows[3][2].replace("\N{MINUS SIGN}", "-").endswith("-19.0-21.0 to -17.0, p ≤ 0.0002")


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
    (row,) = table_rows([entry_of("a", (0.5,), against=against)], ["R@1"], "R@1")
    assert row.verdict == verdict


def test_all_parts_are_there_and_in_the_contents():
    page = parsed(comparison_page(compared_of(*ALL)))
    assert sections(page) == ["result", "seeds", "validation", "cost", "rates", "failures", "facts"]
    assert [link.attributes["href"][1:] for link in page.one("nav").all("a")] == sections(page)
    failures = list(page.all("section"))[5]
    assert "the loss became NaN at step 3" in failures.text
    assert "a note of the comparison" in page.one("ul", of="notes").text


def test_every_seed_is_a_mark_on_one_scale():
    page = parsed(comparison_page(compared_of(*ALL)))
    rows = list(page.all("div", of="strip-row"))
    marks = [[mark.attributes["style"] for mark in row.all("i", of="seed")] for row in rows]
    assert [len(of) for of in marks] == [2, 2, 2, 2, 0]
    strip = seed_strip(ALL, "R@1", 0.25)
    assert (strip.low, strip.high) == pytest.approx((0.25 - 0.06 * 0.39, 0.64 + 0.06 * 0.39))
    assert marks[0][1] == f"left:{100 * (0.64 - strip.low) / (strip.high - strip.low):.2f}%"
    labels = [row.one("span", role="img").attributes["aria-label"] for row in rows[:4]]
    assert plain(labels[0]) == "PNP: 60.0 %, 64.0 %"


def test_the_chosen_learning_rate_is_marked():
    page = parsed(comparison_page(compared_of(*ALL)))
    table = list(page.all("table"))
    rates = next(i for i, one in enumerate(table) if "3e-4" in plain(one.text))
    assert body_rows(page, rates)[0] == ["Smooth-AP", "40.0", "✓ chosen 50.0"]
    assert body_rows(page, rates)[-1] == ["broken", "", ""]


def test_time_and_memory_are_bars_up_to_the_largest():
    slow = replace(BETTER, seconds=(0.2, 0.2), megabytes=(256.0, 256.0))
    page = parsed(comparison_page(compared_of(REFERENCE, slow)))
    cost = next(section for section in page.all("section") if section.attributes["id"] == "cost")
    rows = list(cost.one("tbody").all("tr"))
    widths = [[bar.attributes["style"] for bar in row.all("i")] for row in rows]
    assert widths == [["width:100.00%", "width:50.00%"], ["width:50.00%", "width:100.00%"]]
    assert [plain(cell.text) for cell in rows[0].all("td")] == ["200 ms", "256 MB"]


def test_no_distance_and_no_single_entry_is_best():
    rows = table_rows([REFERENCE, BETTER], ["R@1", "dists@intra"], "R@1")
    assert [[cell.best for cell in row.cells] for row in rows] == [[False, False], [True, False]]
    assert not any(cell.best for row in table_rows([BETTER], ["R@1"], "R@1") for cell in row.cells)


def test_the_number_of_seeds_has_a_column_where_it_differs():
    def heads(*entries):
        table = next(parsed(comparison_page(compared_of(*entries))).all("table"))
        return [plain(head.text) for head in table.one("thead").all("th")]

    assert heads(REFERENCE, BETTER) == ["trained with", "R@1", "to the reference"]
    assert heads(REFERENCE, entry_of("PNP", (0.6,))) == [*heads(REFERENCE, BETTER), "seeds"]


def test_means_that_are_printed_alike_are_both_best():
    rows = table_rows([entry_of("a", (0.6001,)), entry_of("b", (0.6002,))], ["R@1"], "R@1")
    assert [row.cells[0].best for row in rows] == [True, True]
    assert [row.cells[0].spread for row in rows] == ["", ""]


def test_a_metric_that_is_missing_or_not_finite_is_an_empty_cell():
    entries = [
        entry_of("a", (0.6,)),
        replace(entry_of("b", (0.5,)), values={"R@1": (math.nan,)}),
        replace(entry_of("c", ()), values={"mAP": (0.1,)}),
    ]
    rows = table_rows(entries, ["R@1", "mAP"], "R@1")
    assert [[cell and cell.text for cell in row.cells] for row in rows] == [
        ["60.0", None],
        [None, None],
        [None, "10.0"],
    ]
    page = parsed(comparison_page(compared_of(*entries)))
    assert "60.0 %" in plain(page.one("h1").text)
    page = parsed(comparison_page(compared_of(*reversed(entries))))
    assert body_rows(page, 0)[0][0] == "a"


@pytest.mark.parametrize("values", [(math.nan, math.nan), (0.5, math.nan), ()], ids=["nan", "one nan", "none"])
def test_a_metric_that_no_entry_has_is_an_empty_column(values):
    entries = [replace(entry, values={"R@1": (0.5, 0.6), "NMI": values}) for entry in (REFERENCE, BETTER)]
    page = parsed(comparison_page(compared_of(*entries)))
    assert [row[3] for row in body_rows(page, 0)[:2]] == ["-", "-"]


def test_metrics_of_detail_are_in_a_table_of_their_own():
    names = ("mAP@R", "dists@intra", "mAP", "R-precision", "R@1")
    entries = [replace(entry, values=dict.fromkeys(names, (0.5, 0.6))) for entry in (REFERENCE, BETTER)]
    tables = list(parsed(comparison_page(compared_of(*entries))).all("table"))
    heads = [[plain(head.text) for head in table.one("thead").all("th")] for table in tables[:2]]
    assert heads[0] == ["trained with", "R@1", "to the reference", "mAP"]
    assert heads[1] == ["trained with", "mAP@R", "dists@intracosine distance", "R-precision"]


def test_what_is_not_finished_has_not_failed():
    waiting = [replace(FAILED, name=name, failed=UNFINISHED) for name in ("FastAP", "RaMBO")]
    page = parsed(comparison_page(compared_of(REFERENCE, BETTER, *waiting)))
    assert "failures" not in sections(page)
    facts = plain(page.one("dl", of="facts").text)
    assert "compared2 of 4 done" in facts
    assert "failed" not in facts
    assert " Not finished yet: FastAP, RaMBO." in plain(page.one("p", of="lead").text)
    page = parsed(comparison_page(compared_of(REFERENCE, BETTER, waiting[0], FAILED)))
    assert "compared2 of 4 done, 1 failed" in plain(page.one("dl", of="facts").text)


@pytest.mark.parametrize(("frozen", "below"), [(0.7, True), (0.62, False), (0.2, False)])
def test_the_headline_says_where_training_has_not_helped(frozen, below):
    lead = plain(parsed(comparison_page(compared_of(*ALL, frozen={"R@1": frozen}))).one("p", of="lead").text)
    said = "That is below the backbone before training, which has 70.0 %: none of these ways to train raises R@1."
    assert (said in lead) == below
    assert ("; the backbone before training has" in lead) != below


def test_each_way_has_the_command_that_shows_its_pictures():
    entries = REFERENCE, replace(BETTER, folder="my runs/02-PNP/lr-0.1-seed-0")
    page = parsed(comparison_page(compared_of(*entries)))
    section = next(section for section in page.all("section") if section.attributes["id"] == "pictures")
    assert [plain(row.text) for row in section.one("tbody").all("tr")] == [
        "PNPfrontrank report 'my runs/02-PNP/lr-0.1-seed-0'"
    ]
    assert "pictures" not in sections(parsed(comparison_page(compared_of(*ALL))))


def test_validation_curves_are_one_chart_per_entry_before_all_others():
    plots = validation_plots([REFERENCE, BETTER], "R@1")
    assert [entry.name for entry, _ in plots] == ["Smooth-AP", "PNP"]
    assert [stroke.kind for stroke in plots[0][1].strokes] == ["faint"] * 2 + ["after"] * 2
    assert plots[0][1].y_ticks == plots[1][1].y_ticks
    assert validation_plots([replace(BETTER, curves=())], "R@1") == []


def axis_entries(values):
    return [entry_of(f"tau={value}", (0.4 + i / 10, 0.5 + i / 10), {"tau": value}) for i, value in enumerate(values)]


def test_an_axis_of_powers_is_logarithmic():
    first, _ = axis_plots("tau", axis_entries([0.001, 0.01, 0.1]), ["R@1", "dists@intra"])
    assert [tick.text for tick in first.x_ticks] == ["0.001", "0.01", "0.1"]
    at = [tick.at for tick in first.x_ticks]
    assert at[1] - at[0] == pytest.approx(at[2] - at[1], abs=0.2)
    assert [plain(cell) for cell in first.rows[0]] == [
        "0.001",
        "45.0 %",
        "40.0 %, 50.0 %",
    ]
    assert [name for name, _ in first.legend] == ["mean", "seeds"]


def test_titles_begin_with_a_capital_but_names_of_metrics_stay():
    entries = [replace(one, values={"mAP": (0.1,), "loss": (0.2,)}) for one in axis_entries([1, 2])]
    page = parsed(comparison_page(compared_of(*entries, axis="tau")))
    axis = next(section for section in page.all("section") if section.attributes["id"] == "axis")
    assert [title.text for title in axis.all("h3")] == ["mAP", "Loss"]


def test_an_axis_of_near_values_is_plain():
    found = axis_plots("tau", axis_entries([1, 2, 4]), ["R@1"])[0]
    at = [tick.at for tick in found.x_ticks]
    assert at[2] - at[1] == pytest.approx(2 * (at[1] - at[0]), abs=0.2)


@pytest.mark.parametrize("values", [["a", "b"], [True, False], [1, None], [2, 2]], ids=["text", "bool", "none", "same"])
def test_an_axis_that_is_no_number_has_no_chart(values):
    assert axis_plots("tau", axis_entries(values), ["R@1"]) == []
    assert "axis" not in sections(parsed(comparison_page(compared_of(*axis_entries(values), axis="tau"))))


def test_entries_of_an_axis_keep_their_order():
    page = parsed(comparison_page(compared_of(*axis_entries([0.1, 0.2, 0.3]), axis="tau", frozen={})))
    assert [row[0] for row in body_rows(page, 0)] == ["tau=0.1reference", "tau=0.2", "tau=0.3"]
    assert plain(page.one("h1").text) == "Highest R@1 of 3 values of tau: 65.0 % tau=0.3"
    assert sections(page)[1] == "axis"


def test_a_comparison_of_one_and_of_none():
    page = parsed(comparison_page(compared_of(entry_of("PNP", (0.6,)), frozen={})))
    assert plain(page.one("h1").text) == "R@1: 60.0 % PNP"
    assert "with one seed" in plain(page.one("p", of="lead").text)
    page = parsed(comparison_page(compared_of(FAILED, settings="", command="", versions={}, licences={}, notes=())))
    assert plain(page.one("h1").text) == "No way to train has a result yet"
    assert sections(page) == ["failures", "facts"]
    assert sections(parsed(comparison_page(compared_of()))) == ["facts"]


def test_users_text_stays_text():
    entries = [entry_of(text, (0.5, 0.6), failed=text) for text in HOSTILE]
    curve = Curve(np.arange(3.0), np.arange(3.0))
    entries = [replace(entry, curves=(curve,)) for entry in entries]
    hostile = {text: text for text in HOSTILE}
    text = comparison_page(
        compared_of(
            *entries, title=HOSTILE[0], images=HOSTILE[1], command=HOSTILE[0], versions=hostile, notes=tuple(HOSTILE)
        )
    )
    text.encode("utf-8")
    page = parsed(text)
    assert len(list(page.all("script"))) == 1
    allowed = {element.tag for element in parsed(comparison_page(compared_of(*ALL))).all()}
    assert {element.tag for element in page.all()} <= allowed
    assert not [name for element in page.all() for name in element.attributes if name.startswith("on")]
    assert HOSTILE[0] in page.one("p", of="eyebrow").text
    assert not re.search(r"<script>alert", text)


def test_a_page_is_the_same_every_time():
    assert comparison_page(compared_of(*ALL)) == comparison_page(compared_of(*ALL))
