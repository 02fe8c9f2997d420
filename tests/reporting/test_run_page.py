"""The page of a run: its numbers, its ranked pictures, its charts, and parts that are missing."""

import base64
import hashlib
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from frontrank.reporting import pages
from frontrank.reporting import run as module
from frontrank.reporting.findings import Curve, QueryExample, RankedImage, RankedList
from frontrank.reporting.run import rank_charts, render_run_page
from tests.errors import refusal
from tests.reporting.samples import HOSTILE, facts_of, findings_of, parsed, plain, sections


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    return findings_of(tmp_path_factory.mktemp("colours"))


@pytest.fixture(scope="module")
def text(findings):
    return render_run_page(findings, facts_of())


@pytest.fixture(scope="module")
def page(text):
    return parsed(text)


def page_of(findings, **facts):
    return parsed(render_run_page(findings, facts_of(**facts)))


def cells_of(row):
    return [plain(cell.text) for cell in row.children if not isinstance(cell, str)]


def titles(element):
    return [title.text for title in element.all("title")]


# Numbers


def test_the_headline_is_the_numbers_of_both_sides_with_interval_and_change(page, findings):
    assert re.fullmatch("R@1 .*4 .*: 25.0 %.* 75.0 %", plain(page.one("h1").text))
    lead = plain(page.one("p", of="lead").text)
    low, high = findings.sides[1].intervals["R@1"]
    change = findings.change["R@1"]
    for part in (
        f"{100 * low:.1f} % to {100 * high:.1f} %)",
        "before 25.0 %",
        f"+50.0 points ({100 * change.low:+.1f} to {100 * change.high:+.1f}, p = {change.p_value:.2g})",
    ):
        assert part in lead
    assert lead.endswith(f": {change.verdict}.")


def test_all_parts_are_there_in_order_and_in_the_contents(page):
    assert sections(page) == ["result", "queries", "map", "curves", "categories", "training", "facts"]
    assert [link.attributes["href"][1:] for link in page.one("nav").all("a")] == sections(page)


def test_the_table_has_every_metric_with_values_intervals_and_change(page):
    rows = [cells_of(row) for row in page.one("table", of="metrics").one("tbody").all("tr")]
    assert [row[0][:3] for row in rows] == ["R@1", "mAP", "dis"]
    assert (rows[0][1][:4], rows[0][2][:4], rows[0][4][:5], rows[0][5][:8]) == ("25.0", "75.0", "+50.0", "▲ better")
    assert (rows[2][1:3], rows[2][4:]) == (["0.250", "0.250"], ["", ""])
    assert not [cell for cell in page.all("td") if "aria-hidden" in cell.attributes]


# Ranked pictures


def test_every_ranked_image_says_label_place_right_or_wrong_and_score(page):
    cards = list(page.all("article"))
    names = [card.attributes["aria-label"].rsplit(", ", 1)[1] for card in cards]
    assert names == ["most improved", "best", "typical", "worst"]
    for row in cards[0].all("ol", of="hits"):
        facts = [re.findall(r"\d[\d.]*|right|wrong", title) for title in titles(row)]  # class, place, score
        assert facts == [["0", "1", "right", "0.90"], ["1", "2", "wrong", "0.80"], ["2", "3", "wrong", "0.70"]]
        assert [plain(says.text) for says in row.all("span", of="says")] == ["✓0.90", "✕0.80", "✕0.70"]
        assert [hit.classes[1] for hit in row.all("li")] == ["right", "wrong", "wrong"]
    aps = [plain(p.text) for p in cards[0].all("p", of="ap")]
    assert (aps[0], aps[1].endswith("place 2")) == ("before AP 25.0 %", True)


def test_only_the_worst_show_what_each_wrong_image_costs(page):
    assert [len(list(card.all("span", of="price"))) for card in page.all("article")] == [0, 0, 0, 6]
    worst = list(page.all("article"))[-1].one("div", of="n2")
    (first, _), (further, _) = worst.all("ol", of="hits"), worst.all("ul", of="hits")
    costs = [re.search(r"costs ([\d.]+)", title) for title in (*titles(first), *titles(further))]
    assert [cost and cost[1] for cost in costs] == [None, "12", "6.2", "0.040"]
    prices = [price.text for price in worst.all("span", of="price")][:3]
    assert prices == [f"\N{MINUS SIGN}{cost}" for cost in ("12", "6.2", "0.040")]


def test_the_first_right_image_is_a_tile_at_the_end_where_none_is_among_the_first(findings):
    wrong = tuple(RankedImage(i, i + 1, 0.5, False) for i in range(3))
    lists = (
        RankedList(0.001, wrong, (), 4059, RankedImage(9, 4059, 0.1, True)),
        RankedList(1.0, (RankedImage(8, 1, 0.9, True),), (), 1),
    )
    page = page_of(replace(findings, queries={"best": (QueryExample(0, 1, lists),)}, mapped=np.arange(0)))
    before, after = page.one("article").all("ol", of="hits")
    assert [len(list(row.all("li"))) for row in (before, after)] == [4, 1]
    last = list(before.all("li"))[-1]
    assert last.classes == ["hit", "late", "right"]
    assert plain(last.one("span", of="says").text) == "place 4,059 ✓"
    assert [title.split(", ")[0] for title in titles(last)] == ["class 3"]


def test_only_two_queries_of_a_kind_are_open(findings):
    (query,) = findings.queries["best"]
    page = page_of(replace(findings, queries={"best": (query,) * 4, "worst": (query,) * 2}))
    assert (len(list(page.one("details", of="more").all("article"))), len(list(page.all("article")))) == (2, 6)


def test_each_picture_is_in_the_file_once_and_large_where_it_is_ranked(tmp_path, text, page, monkeypatch):
    symbols = [symbol.attributes["id"] for symbol in page.all("symbol")]
    assert len(symbols) == len(set(symbols)) == text.count("data:image/")
    used = {use.attributes["href"][1:] for use in page.all("use") if use.attributes.get("href")}
    assert used >= {f"p{row}" for row in range(12)}  # all are on the map
    findings = findings_of(tmp_path, per_class=4)
    for path in findings.table.paths:
        Image.new("RGB", (300, 300)).save(tmp_path / path)
    sides = tuple(replace(side, places=side.places[:4]) for side in findings.sides)  # only rows 0 to 3 are on the map
    costly = RankedList(0.1, (), (RankedImage(8, 5, 0.1, False, 0.1),))  # and 8 is only costly
    query = findings.queries["worst"][0]._replace(ranked=(costly,) * 2)
    findings = replace(findings, sides=sides, mapped=np.arange(4), queries={"worst": (query,)})

    def boxes():
        return {symbol.attributes["id"]: symbol.attributes["viewbox"] for symbol in page_of(findings).all("symbol")}

    small = dict.fromkeys(["p0", "p1", "p3"], "0 0 40 40")
    assert boxes() == {**small, "p2": "0 0 128 128", "p8": "0 0 128 128"}
    monkeypatch.setattr(module, "_MANY", 1)
    assert boxes() == {**small, "p2": "0 0 96 96", "p8": "0 0 96 96"}


def test_pictures_that_have_gone_are_empty_frames_with_a_note(tmp_path):
    findings = findings_of(tmp_path)
    (tmp_path / "0-1.png").unlink()
    page = page_of(findings)
    (gone,) = [symbol for symbol in page.all("symbol") if not list(symbol.all("image"))]
    assert gone.attributes["id"] == "p1"
    notes = [plain(note.text) for note in page.one("ul", of="notes").all("li")]
    assert (notes[0], "0-1.png" in notes[-1]) == ("a note", True)


# Facts


def test_licences_of_designs_and_credits_are_shown(findings, page):
    def card_of(page):
        return next(card for card in page.all("div", of="card") if "Licences" in card.text)

    designs = (("noto", "Apache-2.0", 1200), ("twemoji", "CC-BY-4.0", 3))
    card = card_of(page_of(findings, designs=designs, credits="drawn by <b>A & B</b>"))
    rows = [cells_of(row) for row in card.all("tr")]
    assert rows == [["design", "licence", "images"], ["noto", "Apache-2.0", "1,200"], ["twemoji", "CC-BY-4.0", "3"]]
    assert card.one("details").one("pre").text == "drawn by <b>A & B</b>"
    assert (list(card_of(page).all("details")), "CC0-1.0" in card_of(page).text) == ([], True)
    assert card_of(page_of(findings, licences={}, credits="by Ann")).one("pre").text == "by Ann"


# Charts


def test_recall_and_precision_have_a_line_per_side(findings):
    recall, precision = rank_charts(findings.sides)
    assert recall.legend == precision.legend == (("before", "before"), ("after", "after"))
    assert [tick.text for tick in recall.x_ticks] == ["1", "10", "100"]
    assert [len(stroke.dots) for stroke in recall.strokes] == [3, 3]
    assert (precision.x_ticks[-1].text, precision.y_ticks[-1].text) == ("100 %", "100 %")
    assert [stroke.kind for stroke in rank_charts(findings.sides[1:])[0].strokes] == ["after"]


# Little, and users' text


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("bare", [False, True])
def test_a_page_of_one_side_or_with_parts_missing(tmp_path, page, sides, bare):
    findings = findings_of(tmp_path, sides=sides, **({"categories": ()} if bare else {}))
    empty = {"curves": {}, "facts": {}, "versions": {}, "licences": {}, "command": "", "settings": "", "searched": ""}
    if bare:
        findings = replace(findings, queries={}, mapped=findings.mapped[:0], notes=())
    one = page_of(findings, **(empty if bare else {}))
    head = plain(one.one("h1").text)
    assert (head.endswith("75.0 %"), "→" in head, "on 4 classes" in head) == (True, sides == 2, bare)
    assert sections(one) == (["result", "curves", "facts"] if bare else sections(page))


def test_no_side_and_no_jinja_are_refused(findings, monkeypatch):
    refusal(lambda: page_of(replace(findings, sides=())), "findings.sides")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    pages._environment.cache_clear()
    refusal(lambda: page_of(findings), "frontrank[report]")


def test_the_page_loads_nothing_and_runs_only_its_script(page, text):
    (policy,) = [meta.attributes["content"] for meta in page.all("meta") if "http-equiv" in meta.attributes]
    script = next(script.text for script in page.all("script") if "type" not in script.attributes)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert f"script-src 'sha256-{digest}';" in policy
    for element in page.all():
        for name, value in element.attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "action", "data"):
                assert value.startswith(("#", "data:image/"))
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org)", text)


def test_users_text_stays_text(tmp_path, page):
    findings = findings_of(tmp_path, classes=8, labels=[*HOSTILE[:7], "plain"], categories=HOSTILE[:7])
    extra = {"name": np.array([HOSTILE[i % 7] for i in range(len(findings.table))])}
    findings = replace(findings, table=replace(findings.table, extra=extra), notes=tuple(HOSTILE))
    texts = {text: text for text in HOSTILE}
    facts = {"title": HOSTILE[0], "command": "\n".join(HOSTILE), "settings": HOSTILE[1], "searched": HOSTILE[0]}
    curves = {text: Curve(np.arange(3.0), np.arange(3.0)) for text in HOSTILE}
    licences = dict.fromkeys(HOSTILE, 1)
    text = render_run_page(findings, facts_of(**facts, facts=texts, versions=texts, licences=licences, curves=curves))
    text.encode("utf-8")
    hostile = parsed(text)
    assert len(list(hostile.all("script"))) == 2
    assert {element.tag for element in hostile.all()} <= {element.tag for element in page.all()}
    assert "49" not in hostile.one("p", of="eyebrow").text
    assert HOSTILE[0] in hostile.one("h1").text
    points = hostile.one("script", id="map-points").text
    assert (json.loads(points)["names"][0], "</script" in points) == (HOSTILE[0], False)
