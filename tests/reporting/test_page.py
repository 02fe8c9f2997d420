import base64
import builtins
import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from frontrank.errors import InputError
from frontrank.reporting import pages as rendering
from frontrank.reporting import run as page_module
from frontrank.reporting.findings import CategoryResult, Curve, Query, Ranked, Shown
from frontrank.reporting.run import (
    meaning,
    metric_rows,
    overlap,
    past,
    precision_chart,
    recall_chart,
    run_page,
    score_charts,
    training_charts,
)
from tests.reporting.samples import facts_of, findings_of, parsed, report_of

HOSTILE = [
    "<script>alert(1)</script>",
    "\"onload='x'</title></svg></style>",
    "\u202egnirts\u202c \u05d0\u05d1\u05d2",
    "x" * 3000,
    "\U0001f1e9\U0001f1ea & \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "{{ 7 * 7 }}{% raw %}",
    "-->]]><![CDATA[",
    "\udcff\x00",
]


@pytest.fixture
def findings(tmp_path):
    return findings_of(tmp_path)


def sections(page):
    return [section.attributes["id"] for section in page.all("section")]


def plain(text):
    return re.sub(r"\s+", " ", text).strip()


def test_the_headline_is_the_numbers_of_both_sides_with_interval_and_change(findings):
    page = parsed(run_page(findings, facts_of()))
    assert plain(page.one("h1").text) == "R@1 on 4 unseen classes: 25.0 %→ then 75.0 %"
    lead = plain(page.one("p", of="lead").text)
    low, high = findings.sides[1].intervals["R@1"]
    assert (
        f"right for 75.0 % of 12 queries (95 % interval over classes {100 * low:.1f} % to {100 * high:.1f} %)" in lead
    )
    assert "before 25.0 %" in lead
    change = findings.change["R@1"]
    assert f"+50.0 points ({100 * change.low:+.1f} to {100 * change.high:+.1f}, p = {change.p_value:.2g})" in lead
    assert lead.endswith(f": {change.verdict}.")


def test_all_parts_are_there_in_order_and_in_the_contents(findings):
    page = parsed(run_page(findings, facts_of()))
    assert sections(page) == ["result", "queries", "map", "curves", "categories", "training", "facts"]
    links = [link.attributes["href"] for link in page.one("nav").all("a")]
    assert links == [f"#{name}" for name in sections(page)]


def test_the_table_has_every_metric_with_values_intervals_and_change(findings):
    page = parsed(run_page(findings, facts_of()))
    rows = list(page.one("table", of="metrics").one("tbody").all("tr"))
    cells = [[plain(cell.text) for cell in row.children if not isinstance(cell, str)] for row in rows]
    assert [row[0].split("the")[0].split("mean")[0].split("cosine")[0] for row in cells] == [
        "R@1",
        "mAP",
        "dists@intra",
    ]
    assert cells[0][1].startswith("25.0")
    assert cells[0][2].startswith("75.0")
    assert cells[0][4].startswith("+50.0")
    assert "▲ better" in cells[0][5]
    assert cells[2][1:3] == ["0.250", "0.250"]
    assert cells[2][4:] == ["", ""]


def test_metric_rows_without_a_metric_on_the_other_side(findings):
    before = replace(findings.sides[0], report=report_of([1] * 12))
    del before.report.metrics["dists@intra"]
    rows = metric_rows(replace(findings, sides=(before, findings.sides[1])))
    assert rows[-1].texts == ("-", "0.250")


def test_every_ranked_image_says_label_place_right_or_wrong_and_score(findings):
    page = parsed(run_page(findings, facts_of()))
    cards = list(page.all("article"))
    assert [card.attributes["aria-label"] for card in cards] == [
        "Query class 1, most improved",
        "Query class 0, best",
        "Query class 0, typical",
        "Query class 0, worst",
    ]
    before, after = cards[0].all("ol", of="hits")
    expected = [
        "class 0, place 1, right, score 0.90",
        "class 1, place 2, wrong, score 0.80",
        "class 2, place 3, wrong, score 0.70",
    ]
    for row in (before, after):
        assert [picture.one("title").text for picture in row.all("svg", role="img")] == expected
        assert [plain(says.text) for says in row.all("span", of="says")] == ["✓0.90", "✕0.80", "✕0.70"]
        assert [hit.classes[1] for hit in row.all("li")] == ["right", "wrong", "wrong"]


def test_only_the_worst_show_what_each_wrong_image_costs(findings):
    page = parsed(run_page(findings, facts_of()))
    assert [len(list(card.all("span", of="price"))) for card in page.all("article")] == [0, 0, 0, 6]
    worst = list(page.all("article"))[-1].one("div", of="n2")
    (first, _), (further, _) = worst.all("ol", of="hits"), worst.all("ul", of="hits")
    assert [title.text for title in first.all("title")] == [
        "class 0, place 1, right, score 0.90",
        "class 1, place 2, wrong, score 0.80, costs 12 points of AP",
        "class 2, place 3, wrong, score 0.70, costs 6.2 points of AP",
    ]
    assert [title.text for title in further.all("title")] == [
        "class 0, place 9, wrong, score 0.10, costs 0.040 points of AP"
    ]
    assert [price.text for price in worst.all("span", of="price")][:3] == [
        f"\N{MINUS SIGN}{c}" for c in ("12", "6.2", "0.040")
    ]


def test_a_wrong_image_after_all_right_ones_looks_and_reads_so(findings):
    shown = Ranked(1.0, (Shown(1, 1, 0.9, True), Shown(5, 2, 0.8, False)), ())
    page = parsed(run_page(replace(findings, queries={"best": (Query(0, 1, (shown, shown)),)}), facts_of()))
    hits = list(next(page.one("article").all("ol", of="hits")).all("li"))
    assert [hit.classes[1] for hit in hits] == ["right", "past"]
    assert hits[1].one("title").text == "class 1, place 2, wrong, but all right ones are found, score 0.80"


def test_a_small_cost_is_shown_with_its_digits(findings):
    wrong = tuple(Shown(i, i + 1, 0.5, False, 0.0000123) for i in range(3))
    query = Query(0, 1, (Ranked(0.001, wrong, wrong, 900, Shown(5, 900, 0.1, True)),) * 2)
    page = parsed(run_page(replace(findings, queries={"worst": (query,)}), facts_of()))
    assert [price.text for price in page.all("span", of="price")] == ["\N{MINUS SIGN}0.0012"] * 6


def test_the_first_right_image_is_a_tile_at_the_end_where_none_is_among_the_first(findings):
    wrong = tuple(Shown(i, i + 1, 0.5, False) for i in range(3))
    lists = Ranked(0.001, wrong, (), 4059, Shown(9, 4059, 0.1, True)), Ranked(1.0, (Shown(8, 1, 0.9, True),), (), 1)
    one = replace(findings, queries={"best": (Query(0, 1, lists),)}, mapped=np.arange(0))
    page = parsed(run_page(one, facts_of()))
    before, after = page.one("article").all("ol", of="hits")
    assert [len(list(row.all("li"))) for row in (before, after)] == [4, 1]
    last = list(before.all("li"))[-1]
    assert last.classes == ["hit", "late", "right"]
    assert plain(last.one("span", of="says").text) == "place 4,059 ✓"
    assert "p9" in {symbol.attributes["id"] for symbol in page.all("symbol")}
    assert last.one("title").text == "class 3, place 4059, right, score 0.10"
    assert [plain(p.text) for p in page.one("article").all("p", of="ap")] == [
        "before AP 0.1 %first right image at place 4,059",
        "after AP 100.0 %",
    ]


def test_only_two_queries_of_a_kind_are_open(findings):
    (query,) = findings.queries["best"]
    page = parsed(run_page(replace(findings, queries={"best": (query,) * 4, "worst": (query,) * 2}), facts_of()))
    more = page.one("details", of="more")
    assert plain(more.one("summary").text) == "2 more"
    assert (len(list(more.all("article"))), len(list(page.all("article")))) == (2, 6)


def test_licences_of_designs_and_credits_are_shown(findings):
    designs = (("noto", "Apache-2.0", 1200), ("twemoji", "CC-BY-4.0", 3))
    page = parsed(run_page(findings, facts_of(designs=designs, credits="drawn by <b>A & B</b>")))
    (card,) = [card for card in page.all("div", of="card") if "Licences of" in card.text]
    rows = [[plain(cell.text) for cell in row.children if not isinstance(cell, str)] for row in card.all("tr")]
    assert rows == [["design", "licence", "images"], ["noto", "Apache-2.0", "1,200"], ["twemoji", "CC-BY-4.0", "3"]]
    assert card.one("details").one("pre").text == "drawn by <b>A & B</b>"
    page = parsed(run_page(findings, facts_of()))
    (card,) = [card for card in page.all("div", of="card") if "Licences of" in card.text]
    assert not list(card.all("details"))
    assert "CC0-1.0" in card.text
    assert "by whom" in run_page(findings, facts_of(licences={}, credits="by whom"))


def test_every_image_on_the_map_has_a_picture(tmp_path):
    findings = findings_of(tmp_path, classes=12, per_class=50)
    page = parsed(run_page(findings, facts_of()))
    assert {int(symbol.attributes["id"][1:]) for symbol in page.all("symbol")} == set(range(600))


def test_the_map_says_what_it_shows(findings):
    page = parsed(run_page(findings, facts_of()))
    labels = [svg.attributes["aria-label"] for svg in page.all("svg", of="map")]
    assert plain(labels[0]).startswith("Map before: 12 images as points, those with similar embeddings close together,")
    assert re.search(
        r"coloured by category: cold, warm\. For [\d.]+ % of them the nearest point is of", plain(labels[1])
    )


def test_the_teaser_has_a_caption(findings):
    page = parsed(run_page(findings, facts_of()))
    assert plain(page.one("div", of="teaser").one("p").text) == "The query that improved most: before → after"


def test_cells_of_tables_are_not_hidden_from_screen_readers(findings):
    page = parsed(run_page(findings, facts_of()))
    assert not [cell for cell in page.all("td") if "aria-hidden" in cell.attributes]
    assert all(
        one.attributes.get("role") == "list" for one in page.all("ol", of="hits") if "teaser" not in one.parent.classes
    )


def test_the_place_of_the_first_right_image_is_said_where_it_is_not_the_first(findings):
    page = parsed(run_page(findings, facts_of()))
    card = next(page.all("article"))
    assert [plain(p.text) for p in card.all("p", of="ap")] == [
        "before AP 25.0 %",
        "after AP 75.0 %first right image at place 2",
    ]


def test_wrong_images_behind_the_last_right_one_are_told_apart():
    def ranked(*right):
        return Ranked(0.5, tuple(Shown(i, i + 1, 0.5, of) for i, of in enumerate(right)), ())

    assert past(Query(0, 1, ()), ranked(True, False, False)) == 2
    assert past(Query(0, 2, ()), ranked(True, False, True)) == 4
    assert past(Query(0, 3, ()), ranked(True, False, True)) == 4
    assert past(Query(0, 0, ()), ranked(False, False)) == 3
    assert past(Query(0, 1, ()), ranked()) == 1


def test_each_picture_is_in_the_file_once(findings):
    text = run_page(findings, facts_of())
    page = parsed(text)
    symbols = [symbol.attributes["id"] for symbol in page.all("symbol")]
    assert len(symbols) == len(set(symbols)) == text.count("data:image/")
    used = {use.attributes["href"][1:] for use in page.all("use") if use.attributes.get("href")}
    assert used <= set(symbols)
    assert used >= {"p0", "p1", "p2", "p3", "p5", "p7"}


def test_what_the_page_uses_is_in_it_and_large_where_it_is_ranked(tmp_path):
    findings = findings_of(tmp_path, per_class=4)
    for path in findings.table.paths:
        Image.new("RGB", (300, 300)).save(tmp_path / path)
    places = [side.places[:4] for side in findings.sides]  # only rows 0 to 3 are on the map; 8 is only costly
    sides = tuple(replace(side, places=of) for side, of in zip(findings.sides, places, strict=True))
    costly = replace(findings.queries["worst"][0], ranked=(Ranked(0.1, (), (Shown(8, 5, 0.1, False, 0.1),)),) * 2)
    findings = replace(findings, sides=sides, mapped=np.arange(4), queries={"worst": (costly,)})
    page = parsed(run_page(findings, facts_of()))
    boxes = {symbol.attributes["id"]: symbol.attributes["viewbox"] for symbol in page.all("symbol")}
    small = dict.fromkeys(["p0", "p1", "p3"], "0 0 40 40")
    assert boxes == {**small, "p2": "0 0 128 128", "p8": "0 0 128 128"}


def test_many_pictures_are_smaller(findings, monkeypatch):
    monkeypatch.setattr(page_module, "_MANY", 5)
    Image.new("RGB", (300, 300)).save(findings.table.root / "0-0.png")
    page = parsed(run_page(findings, facts_of()))
    assert page.one("symbol", id="p0").attributes["viewbox"] == "0 0 96 96"


def test_the_page_loads_nothing_and_runs_only_its_script(findings):
    text = run_page(findings, facts_of())
    page = parsed(text)
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


def test_the_same_findings_make_the_same_page(findings):
    assert run_page(findings, facts_of()) == run_page(findings, facts_of())


def test_users_text_stays_text(tmp_path):
    findings = findings_of(tmp_path, classes=8, labels=[*HOSTILE[:7], "plain"], categories=HOSTILE[:7])
    extra = {"name": np.array([HOSTILE[i % 7] for i in range(len(findings.table))])}
    findings = replace(findings, table=replace(findings.table, extra=extra), notes=tuple(HOSTILE))
    hostile = {text: text for text in HOSTILE}
    facts = facts_of(
        title=HOSTILE[0],
        command="\n".join(HOSTILE),
        settings=HOSTILE[1],
        facts=hostile,
        versions=hostile,
        licences=dict.fromkeys(HOSTILE, 1),
        searched=HOSTILE[0],
        curves={text: Curve(np.arange(3.0), np.arange(3.0)) for text in HOSTILE},
    )
    text = run_page(findings, facts)
    page = parsed(text)
    text.encode("utf-8")
    assert len(list(page.all("script"))) == 2
    assert {element.tag for element in page.all()} <= {
        element.tag for element in parsed(run_page(findings_of(tmp_path), facts_of())).all()
    }
    assert "49" not in page.one("p", of="eyebrow").text
    assert HOSTILE[0] in page.one("h1").text
    points = json.loads(page.one("script", id="map-points").text)
    assert points["names"][0] == HOSTILE[0]
    assert "</script" not in page.one("script", id="map-points").text


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("bare", [False, True])
def test_a_page_of_one_side_or_with_parts_missing(tmp_path, sides, bare):
    findings = findings_of(tmp_path, sides=sides, **({"categories": ()} if bare else {}))
    facts = facts_of()
    if bare:
        findings = replace(findings, queries={}, mapped=findings.mapped[:0], notes=())
        facts = facts_of(curves={}, facts={}, versions={}, licences={}, command="", settings="", searched="")
    page = parsed(run_page(findings, facts))
    head = plain(page.one("h1").text)
    assert head.endswith("75.0 %")
    assert ("→" in head) == (sides == 2)
    parts = (
        ["result", "curves", "facts"]
        if bare
        else ["result", "queries", "map", "curves", "categories", "training", "facts"]
    )
    assert sections(page) == parts
    assert len(list(page.all("th", scope="col"))) > 2
    if bare:
        assert "R@1 on 4 classes" in head


def test_one_query_of_one_class(tmp_path):
    findings = findings_of(tmp_path, sides=1, classes=1, per_class=1)
    side = replace(findings.sides[0], report=report_of([1]))
    nothing = Query(0, 0, (Ranked(float("nan"), (), ()),))
    findings = replace(findings, sides=(side,), queries={"typical": (nothing,)})
    page = parsed(run_page(findings, facts_of(searched="")))
    assert plain(page.one("h1").text) == "R@1 on 1 class: 100.0 %"
    assert "of 1 query." in plain(page.one("p", of="lead").text)
    assert "AP -" in plain(page.one("article").text)
    assert "map" not in sections(page)


def test_classes_are_counted_without_distractors(findings):
    table = replace(findings.table, labels=np.array(["a", "b", *[""] * 10]))
    page = parsed(run_page(replace(findings, table=table), facts_of(searched="")))
    assert plain(page.one("h1").text).startswith("R@1 on 2 classes:")


def test_no_side_is_refused(findings):
    with pytest.raises(InputError, match=r"findings\.sides is empty; give at least one side"):
        run_page(replace(findings, sides=()), facts_of())


def test_pictures_that_have_gone_are_empty_frames_with_a_note(findings):
    (findings.table.root / "0-1.png").unlink()
    page = parsed(run_page(findings, facts_of()))
    (gone,) = [symbol for symbol in page.all("symbol") if not list(symbol.all("image"))]
    assert gone.attributes["id"] == "p1"
    notes = [plain(note.text) for note in page.one("ul", of="notes").all("li")]
    assert notes[0] == "a note of the findings"
    assert "0-1.png is not there" in notes[-1]


def test_notes_of_the_reports_are_shown_once(findings):
    sides = tuple(replace(side, report=side.report.with_notes(("ties are misses",))) for side in findings.sides)
    change = replace(findings.change, notes=("the galleries differ",))
    page = parsed(run_page(replace(findings, sides=sides, change=change), facts_of()))
    notes = [plain(note.text) for note in page.one("ul", of="notes").all("li")]
    assert notes == ["a note of the findings", "ties are misses", "the galleries differ"]


def test_categories_come_best_first_and_undefined_last(findings):
    found = [
        CategoryResult(name, 1, 1, (0.1, value), (0.1, 0.2)) for name, value in (("a", 0.2), ("b", np.nan), ("c", 0.9))
    ]
    page = parsed(run_page(replace(findings, categories=tuple(found)), facts_of()))
    (table,) = page.all("table", of="sortable")
    rows = list(table.one("tbody").all("tr"))
    assert [plain(row.one("th").text) for row in rows] == ["c", "a", "b"]
    assert [plain(cell.text) for cell in rows[0].all("td")] == ["10.0", "90.0", "", "10.0", "20.0", "1", "1"]
    assert [plain(cell.text) for cell in rows[2].all("td")][:2] == ["10.0", "-"]


def test_curves_of_validation_share_a_chart():
    charts = training_charts(facts_of().curves)
    assert [one.title for one in charts] == ["loss", "validation", "learning rate"]
    assert [name for name, _ in charts[1].legend] == ["R@1", "mAP"]
    assert charts[1].y_ticks[-1].text == "80 %"
    assert [stroke.kind for stroke in charts[0].strokes] == ["faint", "after"]
    assert [stroke.kind for stroke in charts[2].strokes] == ["after"]
    assert charts[0].note == "The strong line is a running mean, the faint one what was logged."
    assert charts[2].note == ""
    assert charts[1].y_label == "metrics on held-out classes"
    many = training_charts({f"validation R@{k}": facts_of().curves["loss"] for k in range(1, 8)})[0]
    assert len({kind for _, kind in many.legend}) == 7
    short = Curve(np.arange(3.0), np.arange(3.0))
    assert training_charts({"loss": short})[0].note == ""
    (one,) = training_charts({"validation R@1": short})
    assert (one.title, one.y_label, one.legend) == ("validation R@1", "R@1 on held-out classes", (("R@1", "hue0"),))
    assert training_charts({}) == []
    assert training_charts({"validation R@1": Curve(np.zeros(0), np.zeros(0))}) == []
    (alone,) = training_charts({"validation loss": Curve(np.arange(2.0), np.array([1.0, 3.0]))})
    assert alone.y_ticks[-1].text == "3.0"


def test_recall_and_precision_have_a_line_per_side(findings):
    recall, precision = recall_chart(findings.sides), precision_chart(findings.sides)
    for one in (recall, precision):
        assert one.legend == (("before", "before"), ("after", "after"))
    assert [tick.text for tick in recall.x_ticks] == ["1", "10", "100"]
    assert [len(stroke.dots) for stroke in recall.strokes] == [3, 3]
    assert (precision.x_ticks[-1].text, precision.y_ticks[-1].text) == ("100 %", "100 %")
    assert [stroke.kind for stroke in recall_chart(findings.sides[1:]).strokes] == ["after"]


def test_scores_of_both_sides_are_on_the_same_axes(findings):
    before, after = score_charts(findings.sides)
    assert (before.title, after.title) == ("scores before", "scores after")
    assert before.x_ticks == after.x_ticks
    assert before.y_ticks == after.y_ticks
    assert [stroke.kind for stroke in after.strokes] == ["wrong", "right"]
    shares = [float(re.search(r"overlap in ([\d.]+)", one.note)[1]) for one in (before, after)]
    assert shares[0] > 20 > shares[1]
    said = "Scores after: right images score 0.80 most often, the middle half of them 0.70 to 0.90; wrong images"
    assert after.summary.startswith(said)
    assert after.summary.endswith(after.note)
    even = replace(findings.sides[1], positive_scores=Curve(np.linspace(0, 1, 101), np.ones(101)))
    assert "the middle half of them 0.25 to 0.75; wrong" in score_charts([even])[0].summary
    flat = Curve(np.zeros(1), np.zeros(1))
    assert score_charts([replace(side, positive_scores=flat, negative_scores=flat) for side in findings.sides]) == []


def test_overlap_of_densities():
    box = Curve(np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    assert overlap(box, box) == 1
    assert overlap(box, Curve(np.array([2.0, 3.0]), np.array([1.0, 1.0]))) == 0
    assert overlap(box, Curve(np.array([0.5, 1.5]), np.array([7.0, 7.0]))) == pytest.approx(0.5, abs=0.01)
    assert overlap(box, Curve(np.array([0.5, 1.5]), np.array([0.1, 0.1]))) == pytest.approx(0.5, abs=0.01)
    assert overlap(box, Curve(np.array([0.5, 1.5]), np.zeros(2))) is None
    assert overlap(box, Curve(np.zeros(0), np.zeros(0))) is None


@pytest.mark.parametrize(
    "name", ["R@1", "R@1000", "P@5", "mAP", "mAP@R", "R-precision", "MRR", "NMI", "dists@intra", "dists@inter"]
)
def test_every_metric_has_a_meaning(name):
    assert meaning(name)
    assert meaning("R@1000") == "a right image is among the first 1000"
    assert meaning("my metric") == ""


def test_without_jinja_names_the_extra(findings, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("jinja2"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    rendering._environment.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"frontrank\[report\]"):
        run_page(findings, facts_of())
