"""Searching in a real browser, on a real server: pictures come in by every way, and what is shown is right."""

import base64
import time

import numpy as np
import pytest

from tests.browser import picture_widths, stop_clock, visit
from tests.gallery.live import (
    ap_by_hand,
    ap_text,
    asked,
    brightness,
    curve_by_hand,
    hits,
    ranked_by_hand,
)
from tests.gallery.samples import embed

QUERY = "red/4.png"
PERCENT = "\N{NARROW NO-BREAK SPACE}%"
CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}
COPY_PICTURE = """async (data) => {
  const blob = new Blob([Uint8Array.from(atob(data), (each) => each.charCodeAt(0))], { type: "image/png" });
  await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
}"""


def names(ranked, most=24):
    return [name for name, *_ in ranked[:most]]


def dropped(page, path):
    """Drag a file from outside over the page and let it go, as the window system would tell the browser."""
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": 600, "y": 500, "data": data})
    page.locator("body.dropping").wait_for()
    session.send("Input.dispatchDragEvent", {"type": "drop", "x": 600, "y": 500, "data": data})


def pasted(page, path):
    page.evaluate(COPY_PICTURE, base64.b64encode(path.read_bytes()).decode())
    page.keyboard.press("Control+V")


def picked(page, path):
    page.set_input_files("input[type=file]", path)


@pytest.mark.parametrize("way", [dropped, pasted, picked])
@pytest.mark.parametrize("start", [{}, {"item": "blue/1.png"}])
def test_a_picture_is_searched_with_however_it_comes(browser, one, way, start):
    with visit(browser, one.of(**start), **CLIPBOARD) as seen:
        way(seen.page, one.folder / QUERY)
        seen.page.wait_for_url("**/?upload=*")
        assert hits(seen.page)[0] == QUERY  # the picture itself is in the index
        assert hits(seen.page)[1:] == names(ranked_by_hand(one, QUERY, embed), 23)
        assert all(width == 64 for width in picture_widths(seen.page))
        assert seen.page.locator("body.dropping").count() == 0
        assert seen.errors == []


def test_an_uploaded_picture_is_judged_once_its_label_is_known(browser, one):
    with visit(browser, one.url) as seen:
        page = seen.page
        picked(page, one.folder / QUERY)
        page.wait_for_url("**/?upload=*")
        assert page.locator(".hit:is(.right, .wrong), .measure, .curve").count() == 0
        page.get_by_label("Its label").fill("red")
        page.keyboard.press("Enter")
        page.wait_for_url(asked(label=["red"]))
        ranked = [(QUERY, 1.0, True), *ranked_by_hand(one, QUERY, embed)]
        assert page.locator(".measure strong").inner_text() == ap_text(ranked)
        assert page.locator(".grid .hit.right").count() == sum(right for *_, right in ranked[:24])


def test_a_click_searches_from_a_result_and_back_returns_to_the_place(browser, one):
    with visit(browser, one.of(item=QUERY), height=500) as seen:
        page, before = seen.page, hits(seen.page)
        link = page.locator(".hit a").nth(17)
        link.scroll_into_view_if_needed()
        place = page.evaluate("scrollY")
        assert place > 100
        link.click()
        page.wait_for_url(asked(item=[before[17]]))
        assert hits(page) == names(ranked_by_hand(one, before[17], embed))
        assert page.title().startswith("24 results for ")
        assert page.evaluate("scrollY") == 0
        page.go_back()
        page.wait_for_function("(title) => document.title === title", arg=f"24 results for {named(QUERY)} · Frontrank")
        assert page.url == one.of(item=QUERY)
        assert hits(page) == before
        page.wait_for_function("(place) => scrollY === place", arg=place)
        assert page.evaluate("document.activeElement.getAttribute('href')") == link.get_attribute("href")
        page.go_forward()
        drawn(page, before[17])
        assert hits(page) == names(ranked_by_hand(one, before[17], embed))
        assert seen.errors == []


def drawn(page, item):
    """Wait until the results for an item are there."""
    page.wait_for_function("(title) => document.title === title", arg=f"24 results for {named(item)} · Frontrank")


def test_back_and_forward_return_to_the_place(browser, one):
    with visit(browser, one.of(item=QUERY), height=500) as seen:
        page = seen.page
        second = hits(page)[0]
        page.locator(".hit a").first.click()  # may scroll to it
        drawn(page, second)
        page.evaluate("scrollTo(0, 300)")
        page.get_by_role("combobox", name="Results").evaluate("(one) => one.focus({ preventScroll: true })")
        page.go_back()
        drawn(page, QUERY)
        page.evaluate("scrollTo(0, 200)")
        page.go_forward()
        drawn(page, second)
        page.wait_for_function("() => scrollY === 300")
        page.go_back()
        drawn(page, QUERY)
        page.wait_for_function("() => scrollY === 200")


def until(page, right):
    """Wait until something is so, while the handlers of the page's requests are called."""
    deadline = time.monotonic() + 60
    while not right():
        assert time.monotonic() < deadline, "it does not come"
        page.wait_for_timeout(20)


def test_back_and_forward_before_the_answer_leave_the_page(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page = seen.page
        page.locator(".hit a").first.click()
        page.wait_for_url(lambda url: not asked(item=[QUERY])(url))
        before, url, held = hits(page), page.url, []
        page.route("**/?item=*", lambda route: held.append(route))
        page.evaluate("history.back()")
        page.wait_for_url(asked(item=[QUERY]))
        page.evaluate("history.forward()")
        page.wait_for_url(url)
        page.wait_for_function("() => document.querySelector('.waiting')")
        until(page, lambda: held)
        held[0].continue_()
        page.wait_for_function("() => !document.querySelector('.waiting')")
        assert (hits(page), page.url) == (before, url)


def test_arrow_keys_in_a_list_are_one_search(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page = seen.page
        entries, searches = page.evaluate("history.length"), len([url for url in seen.requests if "/?" in url])
        page.get_by_role("combobox", name="Results").focus()
        stop_clock(page)  # however long the keys take
        for _ in range(3):
            page.keyboard.press("ArrowDown")
        assert page.get_by_role("combobox", name="Results").input_value() == "200"
        page.clock.run_for(399)
        assert len([url for url in seen.requests if "/?" in url]) == searches
        page.clock.run_for(1)
        page.wait_for_url(asked(k=["200"]))
        assert page.evaluate("history.length") == entries + 1
        assert len([url for url in seen.requests if "/?" in url]) == searches + 1


def test_a_drag_that_never_ended_is_over_at_the_next_press(browser, one):
    with visit(browser, one.url) as seen:
        seen.page.evaluate("dispatchEvent(new Event('dragstart'))")  # its picture is gone: no dragend
        seen.page.mouse.click(2, 400)
        dropped(seen.page, one.folder / QUERY)
        seen.page.wait_for_url("**/?upload=*")


def test_a_picture_that_is_not_there_is_not_asked_for_again_and_again(browser, one):
    with visit(browser, "about:blank") as seen:
        page, asked_for = seen.page, []
        page.clock.install()

        def refuse(route):
            asked_for.append(route.request.url)
            route.fulfill(status=404 if "red" in route.request.url else 429)

        page.route("**/picture?*", refuse)
        page.goto(one.of(item="red/1.png", k=12))

        def counted():
            page.wait_for_timeout(250)
            page.clock.run_for(1500)
            return {url: len([one for one in asked_for if one.split("&again")[0] == url]) for url in asked_for}

        until(page, lambda: max(counted().values(), default=0) >= 7)
        for _ in range(5):  # and then no more: a fourth time would come after 6 s
            counts = counted()
        large = next(url for url in counts if "size=large" in url)
        assert 1 <= counts[large] <= 2  # once, and looked at once more if it failed after the script had begun
        assert max(counts.values()) == 7  # a busy server is asked three times more, each time looked at first


def named(item):
    label, number = item.removesuffix(".png").split("/")
    return f"{label} {number}"


def test_the_page_never_loads_anew_between_searches(browser, one):
    with visit(browser, one.url) as seen:
        page = seen.page
        page.evaluate("window.same = true")
        page.locator(".hit a").first.click()
        page.wait_for_url("**/?item=*")
        page.locator(".hit a").first.click()
        page.wait_for_function("() => history.length >= 3")
        assert page.evaluate("window.same")


def test_results_have_scores_and_say_which_are_right_by_colour_and_sign(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page, ranked = seen.page, ranked_by_hand(one, QUERY, embed)[:24]
        assert {right for *_, right in ranked} == {True, False}
        assert page.locator(".hit .score").all_inner_texts() == [f"score\n{score:.3f}" for _, score, _ in ranked]
        signs = page.locator(".hit a b").evaluate_all("(all) => all.map((one) => one.textContent)")
        assert signs == ["✓ right" if right else "✕ wrong" for *_, right in ranked]
        looks = page.locator(".hit .shot").evaluate_all(
            "(all) => all.map(getComputedStyle).map((style) => [style.borderTopColor, style.borderTopStyle])"
        )
        of = {state: {tuple(look) for look, (*_, right) in zip(looks, ranked, strict=True) if right is state}
              for state in (True, False)}  # fmt: skip
        assert of == {True: {("rgb(17, 117, 58)", "solid")}, False: {("rgb(180, 35, 31)", "dashed")}}


def test_average_precision_and_curve_are_those_by_hand(browser, one):
    ranked = ranked_by_hand(one, QUERY, embed)
    points = curve_by_hand(ranked)
    assert len(points) == 8
    assert 0.3 < ap_by_hand(ranked) < 0.95
    with visit(browser, one.of(item=QUERY)) as seen:
        page = seen.page
        assert page.locator(".measure strong").inner_text() == ap_text(ranked)
        assert page.locator(".summary").inner_text().startswith("All 8 right images found among 35.")
        dots = page.locator(".curve circle").evaluate_all(
            "(all) => all.map((one) => [one.cx, one.cy].map((each) => each.baseVal.value))"
        )
        drawn, meant = np.array(dots), np.array(points)  # the same up to the scales of the axes
        drawn, meant = ((one - one.min(0)) / np.ptp(one, axis=0) for one in (drawn * [1, -1], meant))
        assert drawn == pytest.approx(meant, abs=0.01)
        page.locator(".curve summary").click()
        cells = page.locator(".curve tbody").locator("th, td").all_inner_texts()
        assert cells == [f"{100 * value:.1f}{PERCENT}" for point in points for value in point]


def test_two_indexes_answer_the_same_query_side_by_side(browser, two):
    with visit(browser, two.of(item=QUERY)) as seen:
        page = seen.page
        pair = {"brightness": ranked_by_hand(two, QUERY, brightness), "colours": ranked_by_hand(two, QUERY, embed)}
        assert [one.split("\n")[0] for one in page.locator(".side h2").all_inner_texts()] == list(pair)
        assert hits(page, 1) == names(pair["colours"])
        assert page.locator(".side").nth(1).locator(".measure strong").inner_text() == ap_text(pair["colours"])
        left, right = (page.locator(".side").nth(i).locator(".hit").first.bounding_box() for i in (0, 1))
        assert left["x"] + left["width"] < right["x"]
        assert left["y"] == right["y"]
        assert page.locator(".curve .line").count() == 4  # two curves and their legend
        page.get_by_label("Query expansion").select_option(
            "off"
        )  # what is stored with one of the two would be hard by hand
        page.wait_for_url(asked(expand=["off"]))
        assert hits(page, 0) == names(pair["brightness"])
        assert page.locator(".side").nth(0).locator(".measure strong").inner_text() == ap_text(pair["brightness"])
        page.get_by_role("checkbox", name="brightness").uncheck()
        page.wait_for_url(asked(side=["colours"]))
        assert page.locator(".side").count() == 1
        assert hits(page) == names(pair["colours"])
        page.get_by_role("checkbox", name="brightness").check()
        page.wait_for_url(asked(side=None))
        assert page.locator(".side").count() == 2


def test_filters_are_chosen_written_and_cleared(browser, one):
    def ranked(keep):
        return ranked_by_hand(one, QUERY, embed, keep)

    with visit(browser, one.of(item=QUERY)) as seen:
        page, before = seen.page, hits(seen.page)
        page.get_by_label("Category").focus()
        page.get_by_label("Category").select_option("coloured (27)")
        page.wait_for_url(asked(filter=["category=coloured"]))
        coloured = ranked(lambda item: item.category == "coloured")
        assert hits(page) == names(coloured)
        assert page.evaluate("document.activeElement.name") == "filter"  # who chose can go on from there
        page.get_by_label("Filter", exact=True).fill("year>=2001")
        page.keyboard.press("Enter")
        page.wait_for_url(asked(filter=["category=coloured", "year>=2001"]))
        late = ranked(lambda item: item.category == "coloured" and item.metadata["year"] >= 2001)
        assert hits(page) == names(late)
        assert page.locator(".measure strong").inner_text() == ap_text(late)
        assert page.locator(".controls .on").inner_text() == "2 filters"
        page.get_by_role("link", name="Clear filters").click()
        page.wait_for_url(one.of(item=QUERY))
        assert hits(page) == before
        page.get_by_label("Filter", exact=True).fill("label=violet")
        page.keyboard.press("Enter")
        page.get_by_text("Nothing in this index passes the filters.").wait_for()
        page.locator(".side").get_by_role("link", name="Clear filters").click()
        page.wait_for_url(one.of(item=QUERY))
        assert hits(page) == before
        assert seen.errors == []


def test_query_expansion_changes_the_url_and_the_results(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page, plain = seen.page, hits(seen.page)
        page.get_by_label("Query expansion").select_option("on")
        page.wait_for_url(asked(expand=["on"], item=[QUERY]))
        on = hits(page)
        assert on != plain
        page.locator(".hit a").first.click()
        page.wait_for_url(asked(item=[on[0]]))
        assert asked(expand=["on"])(page.url)  # it is kept from query to query
        page.go_back()
        page.get_by_role("heading", name=f"24 results for {named(QUERY)}").wait_for(state="attached")
        page.get_by_label("Query expansion").select_option("off")
        page.wait_for_url(asked(expand=["off"]))
        assert hits(page) == plain


def test_the_number_of_results(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        seen.page.get_by_role("combobox", name="Results").select_option("12")
        seen.page.wait_for_url(asked(k=["12"]))
        assert hits(seen.page) == names(ranked_by_hand(one, QUERY, embed), 12)


def test_the_hardest_queries_come_first_and_can_be_looked_at(browser, one):
    ranked = {item.id: ranked_by_hand(one, item.id, embed) for item in one.items}
    hardest = min(ranked, key=lambda item: ap_by_hand(ranked[item]))
    with visit(browser, f"{one.url}/hardest") as seen:
        page = seen.page
        page.locator("#main").get_by_text("36 queries searched; all are shown.").wait_for()
        values = page.locator(".ap-value").all_inner_texts()
        assert values == [
            f"AP {ap_text(ranked[item])}" for item in sorted(ranked, key=lambda one: ap_by_hand(ranked[one]))
        ]
        wrong = next(name for name, _, right in ranked[hardest] if not right)
        assert f"first taken for {named(wrong)}" in page.locator(".hit").first.inner_text()
        page.locator(".hit a").first.click()
        page.wait_for_url(asked(item=[hardest]))
        assert page.locator(".measure strong").inner_text() == ap_text(ranked[hardest])
        assert page.locator("nav [aria-current]").inner_text() == "Search"
        page.go_back()
        page.get_by_role("heading", name="Hardest queries").wait_for()
        assert page.locator("nav [aria-current]").inner_text() == "Hardest queries"
        assert seen.errors == []


@pytest.mark.parametrize("upload", [False, True])
def test_a_link_that_is_passed_on_shows_the_same(browser, two, upload):
    with visit(browser, two.of(item="green/2.png", filter="year!=2000", expand="on", k=12), **CLIPBOARD) as seen:
        page = seen.page
        if upload:
            picked(page, two.folder / QUERY)
            page.wait_for_url("**/?upload=*")
        stop_clock(page)  # it is shown for two seconds
        page.get_by_role("button", name="Copy link").click()
        page.get_by_role("button", name="Copied").wait_for()
        page.clock.run_for(2000)
        page.get_by_role("button", name="Copy link").wait_for()
        link = page.evaluate("navigator.clipboard.readText()")
        assert asked(filter=["year!=2000"], expand=["on"], k=["12"])(link)
        found = [hits(page, side) for side in (0, 1)]
        assert all(len(side) == 12 for side in found)
        with visit(browser, link) as other:
            assert [hits(other.page, side) for side in (0, 1)] == found
            assert other.page.title() == page.title()
            assert all(width == 64 for width in picture_widths(other.page))
