"""The page in a real browser, on a real server: searches, for everybody, and where something goes wrong."""

import base64
from contextlib import ExitStack
from itertools import pairwise
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.browser import contrasts, picture_widths, stop_clock, too_small, too_wide, unnamed, visit
from tests.gallery.live import (
    LIMITS,
    ap_by_hand,
    ap_text,
    asked,
    brightness,
    curve_by_hand,
    hits,
    ranked_by_hand,
    site_of,
    verdict_by_hand,
)
from tests.gallery.samples import TOKEN, embed, soon

pytestmark = pytest.mark.browser

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
def test_a_picture_is_searched_with_however_it_comes(browser, one, way):
    with visit(browser, one.of(item="blue/1.png"), **CLIPBOARD) as seen:
        way(seen.page, one.folder / QUERY)
        seen.page.wait_for_url("**/?upload=*")
        assert hits(seen.page)[0] == QUERY  # the picture itself is in the index
        assert hits(seen.page)[1:] == names(ranked_by_hand(one, QUERY, embed), 23)
        assert all(width == 64 for width in picture_widths(seen.page))
        assert seen.page.locator("body.dropping").count() == 0
        assert seen.errors == []


def test_results_of_an_upload_are_right_or_wrong_once_its_label_is_known(browser, one):
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
        place = page.evaluate("(window.same = true, scrollY)")
        assert place > 100
        link.click()
        page.wait_for_url(asked(item=[before[17]]))
        assert hits(page) == names(ranked_by_hand(one, before[17], embed))
        assert page.title().startswith("24 results for ")
        assert page.evaluate("scrollY") == 0
        page.go_back()
        drawn(page, QUERY)
        assert page.url == one.of(item=QUERY)
        assert hits(page) == before
        page.wait_for_function("(place) => scrollY === place", arg=place)
        assert page.evaluate("document.activeElement.getAttribute('href')") == link.get_attribute("href")
        page.go_forward()
        drawn(page, before[17])
        assert hits(page) == names(ranked_by_hand(one, before[17], embed))
        assert page.evaluate("window.same")  # it was never loaded again
        assert seen.errors == []


def drawn(page, item):
    """Wait until the results for an item are there."""
    page.wait_for_function("(title) => document.title === title", arg=f"24 results for {named(item)} · Frontrank")


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

        soon(counted, lambda counts: max(counts.values(), default=0) >= 7)
        for _ in range(5):  # and then no more: a fourth time would come after 6 s
            counts = counted()
        large = next(url for url in counts if "size=large" in url)
        assert 1 <= counts[large] <= 2  # once, and looked at once more if it failed after the script had begun
        assert max(counts.values()) == 7  # a busy server is asked three times more, each time looked at first


def named(item):
    label, number = item.removesuffix(".png").split("/")
    return f"{label} {number}"


def test_results_have_scores_and_say_which_are_right_by_colour_and_sign(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page, ranked = seen.page, ranked_by_hand(one, QUERY, embed)[:24]
        assert page.locator(".hit .score").all_inner_texts() == [f"score\n{score:.3f}" for _, score, _ in ranked]
        signs = page.locator(".hit a b").evaluate_all("(all) => all.map((one) => one.textContent)")
        words = [verdict_by_hand(one, QUERY, name) for name, *_ in ranked]
        assert signs == [
            f"{'✕' if word == 'wrong' else '½' if word.startswith('half') else '✓'} {word}" for word in words
        ]
        assert {"right", "wrong"} < {*words}
        looks = page.locator(".hit .shot").evaluate_all(
            "(all) => all.map(getComputedStyle).map((style) => `${style.borderTopColor} ${style.borderTopStyle}`)"
        )
        by_word = dict(zip(words, looks, strict=True))
        assert looks == [by_word[word] for word in words]
        assert (by_word["right"], by_word["wrong"]) == ("rgb(17, 117, 58) solid", "rgb(180, 35, 31) dashed")
        assert len(set(looks)) == 3


def test_average_precision_and_curve_are_those_by_hand(browser, one):
    ranked = ranked_by_hand(one, QUERY, embed)
    points = curve_by_hand(ranked)
    assert len(points) == 8
    assert 0.3 < ap_by_hand(ranked) < 0.95
    with visit(browser, one.of(item=QUERY)) as seen:
        page = seen.page
        assert page.locator(".measure strong").inner_text() == ap_text(ranked)
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
        page.get_by_label("Query expansion").select_option("off")  # the stored one would be hard by hand
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
    with visit(browser, one.of(item=QUERY)) as seen:
        page, before = seen.page, hits(seen.page)
        page.get_by_label("Category").focus()
        page.get_by_label("Category").select_option("coloured (27)")
        page.wait_for_url(asked(filter=["category=coloured"]))
        assert page.evaluate("document.activeElement.name") == "filter"  # who chose can go on from there
        page.get_by_label("Filter", exact=True).fill("year>=2001")
        page.keyboard.press("Enter")
        page.wait_for_url(asked(filter=["category=coloured", "year>=2001"]))
        keep = lambda item: item.category == "coloured" and item.metadata["year"] >= 2001  # noqa: E731
        late = ranked_by_hand(one, QUERY, embed, keep)
        assert hits(page) == names(late)
        assert page.locator(".measure strong").inner_text() == ap_text(late)
        assert page.locator(".controls .on").inner_text() == "2 filters"
        page.locator("#filter").fill("label=violet")
        page.keyboard.press("Enter")
        page.locator(".side .empty").wait_for()
        page.locator(".side").get_by_role("link", name="Clear filters").click()
        page.wait_for_url(one.of(item=QUERY))
        assert hits(page) == before
        assert seen.errors == []


def test_the_hardest_queries_come_first_and_can_be_looked_at(browser, one):
    ranked = {item.id: ranked_by_hand(one, item.id, embed) for item in one.items}
    hardest = min(ranked, key=lambda item: ap_by_hand(ranked[item]))
    with visit(browser, f"{one.url}/hardest") as seen:
        page = seen.page
        page.wait_for_function("() => document.querySelectorAll('.ap-value').length === 36")
        values = page.locator(".ap-value").all_inner_texts()
        assert values == [
            f"AP {ap_text(ranked[item])}" for item in sorted(ranked, key=lambda one: ap_by_hand(ranked[one]))
        ]
        wrong = next(name for name, _, right in ranked[hardest] if not right)
        assert named(wrong) in page.locator(".hit").first.inner_text()
        page.locator(".hit a").first.click()
        page.wait_for_url(asked(item=[hardest]))
        assert page.locator(".measure strong").inner_text() == ap_text(ranked[hardest])
        assert page.locator("nav [aria-current]").inner_text() == "Search"
        page.go_back()
        page.get_by_role("heading", name="Hardest queries").wait_for()
        assert page.locator("nav [aria-current]").inner_text() == "Hardest queries"
        assert seen.errors == []


def test_a_link_that_is_passed_on_shows_the_same(browser, two):
    with visit(browser, two.of(item="green/2.png", filter="year!=2000", expand="on", k=12), **CLIPBOARD) as seen:
        page = seen.page
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


# For everybody: by keyboard, on a phone, with a screen reader, in light and dark

FOUND = f"/?item={QUERY}"
PAGES = ("/", FOUND, "/hardest", "/api", "/?item=none", "/nowhere")
PHONE = {"width": 390, "height": 800, "has_touch": True, "is_mobile": True}
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
FOCUSED = """() => {
  const at = document.activeElement, box = at.getBoundingClientRect();
  const style = getComputedStyle(at.closest(".file") ?? at);
  return {
    tag: at.tagName,
    text: (at.getAttribute("aria-label") ?? at.closest("label")?.textContent ?? at.textContent).trim(),
    seen: style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2,
    within: box.top >= 0 && box.bottom <= innerHeight + 1,
  };
}"""


def href(page):
    return page.evaluate("document.activeElement.getAttribute('href')")


def links(page):
    return page.locator(".hit a").evaluate_all("(all) => all.map((one) => one.getAttribute('href'))")


def each_page(seen, site, pages=PAGES):
    """Goes from page to page in one window, which is quicker than a window for each; yields paths."""
    for path in pages:
        seen.page.goto(site.url + path)
        yield path


def test_nothing_fails_and_all_comes_from_the_server_itself(browser, two):
    with visit(browser, two.url) as seen:
        for path in each_page(seen, two):
            seen.page.wait_for_load_state("networkidle")
            assert all(width > 0 for width in picture_widths(seen.page)), path
        refused = [error for error in seen.errors if "404" in error]
        assert len(refused) == 2  # the pages that are not there: the console has it so, too
        assert seen.errors == refused
        assert len(seen.requests) > 60
        assert all(url.startswith(two.url) for url in seen.requests)


def test_a_screen_reader_finds_its_way(browser, two):
    with visit(browser, two.url) as seen:
        page = seen.page
        for path in each_page(seen, two):
            assert unnamed(page) == [], path
            headings = page.locator("#main").locator("h1, h2, h3, h4")
            levels = [int(tag[1]) for tag in headings.evaluate_all("(all) => all.map((one) => one.tagName)")]
            assert levels.count(1) == 1, path
            assert levels[0] == 1, path
            assert all(after <= before + 1 for before, after in pairwise(levels)), path
            for role in ("main", "banner", "contentinfo", "status"):
                assert page.get_by_role(role).count() == 1, path
            assert page.get_by_role("navigation", name="Pages").count() == 1, path
            assert page.evaluate("[...document.images].every((one) => one.hasAttribute('alt'))"), path
            assert page.evaluate("[...document.querySelectorAll('[tabindex]')].every((one) => one.tabIndex <= 0)"), path
            ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
            assert len(ids) == len(set(ids)), path


def test_a_screen_reader_is_told_of_results_and_their_places(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page, ranked = seen.page, ranked_by_hand(one, QUERY, embed)
        results = page.get_by_role("region", name="Results").get_by_role("list")
        assert results.get_by_role("listitem").count() == 24
        for place, (name, score, _) in enumerate(ranked[:24], 1):
            link = results.get_by_role("link").nth(place - 1)
            words = f'link "{place}: {named(name)} {verdict_by_hand(one, QUERY, name)} score {score:.3f}'
            assert words in link.aria_snapshot()
        assert page.get_by_role("img", name="Query: red 4").count() == 1
        assert page.get_by_role("img", name="Precision over recall").count() == 1
        assert page.get_by_role("complementary", name="Query").count() == 1
        page.locator(".hit a").first.click()
        first = ranked[0][0]
        text = f"24 results for {named(first)}. AP {ap_text(ranked_by_hand(one, first, embed))}"
        page.get_by_role("status").get_by_text(text).wait_for(state="attached")
        assert page.evaluate("document.activeElement.tagName") == "H1"  # reading goes on at the top of what is new


def test_the_keyboard_goes_from_picture_to_picture_and_searches(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page, all_links = seen.page, links(seen.page)
        place, columns = 0, 6
        page.keyboard.press("ArrowRight")
        assert href(page) == all_links[0]
        steps = {"Right": 1, "Down": columns, "Left": -1, "Up": -columns}
        for key in ("Right", "Right", "Down", "Down", "Left", "Up"):
            page.keyboard.press(f"Arrow{key}")
            place += steps[key]
            assert href(page) == all_links[place]
            at = page.evaluate(FOCUSED)
            assert at["seen"]
            assert at["within"]
        page.keyboard.press("Shift+ArrowRight")  # selects text
        assert href(page) == all_links[place]
        target = hits(page)[place]
        page.keyboard.press("Enter")
        page.wait_for_url(asked(item=[target]))
        assert hits(page) == [name for name, *_ in ranked_by_hand(one, target, embed)][:24]
        page.go_back()
        page.wait_for_function("(href) => document.activeElement.getAttribute('href') === href", arg=all_links[place])


def test_single_keys_do_what_the_help_says_and_can_be_turned_off(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page = seen.page
        page.on("filechooser", lambda chooser: None)  # else the key could overtake what asks the browser to tell of it
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "filter"
        page.keyboard.type("u?/")  # in a field they are text
        assert page.locator("#filter").input_value() == "u?/"
        assert page.locator("#help").is_hidden()
        page.locator("#filter").fill("")  # as it was: nothing is asked for anew
        page.keyboard.press("Escape")
        with page.expect_file_chooser() as opened:
            page.keyboard.press("u")
        opened.value.set_files(one.folder / QUERY)
        page.wait_for_url("**/?upload=*")
        page.keyboard.press("?")
        page.get_by_role("dialog", name="Keys").wait_for()
        assert unnamed(page) == []
        page.get_by_role("checkbox", name="Use the keys").uncheck()
        page.keyboard.press("Escape")
        page.reload()
        for key in "?/":
            page.keyboard.press(key)
        assert page.locator("#help").is_hidden()
        assert page.evaluate("document.activeElement.id") != "filter"
        page.get_by_role("button", name="Keyboard help").click()
        page.get_by_role("dialog").get_by_role("button", name="Close").click()
        assert page.locator("#help").is_hidden()
        assert seen.errors == []


def test_tab_reaches_everything_in_order_and_where_it_is_can_be_seen(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page, reached = seen.page, []
        for _ in range(60):
            page.keyboard.press("Tab")
            at = page.evaluate(FOCUSED)
            if at["tag"] == "BODY":
                break
            reached.append(at)
        assert [at["text"] for at in reached[1:5]] == ["Frontrank", "Search", "Hardest queries", "API"]
        tags = [at["tag"] for at in reached]
        assert tags.count("SELECT") >= 4
        assert tags.count("INPUT") == 2  # the chooser of files and the filter
        assert sum(tag == "A" for tag in tags) == 5 + 24
        assert [at for at in reached if not at["seen"]] == []
        page.keyboard.press("Tab")
        page.wait_for_function("() => document.querySelector('.skip').getBoundingClientRect().top >= 0")  # it glides
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"


def test_it_fits_a_phone_and_a_finger(browser, two):
    with visit(browser, two.url, **PHONE | {"width": 320}) as seen:
        page = seen.page
        for path in each_page(seen, two):
            page.evaluate(OPEN_ALL)
            assert page.evaluate("document.documentElement.scrollWidth") <= 320, path
            assert too_wide(page) == [], path
            assert too_small(page) == [], path


def test_a_tap_on_a_phone_shows_results_above_their_filters(browser, two):
    with visit(browser, two.url, **PHONE) as seen:
        page = seen.page
        page.locator(".hit a").first.tap()
        page.wait_for_url("**/?item=*")
        assert not page.locator(".controls").evaluate("(one) => one.open")
        assert page.locator(".side .hit").first.bounding_box()["y"] < 600
        left, right = (page.locator(".side").nth(side).bounding_box() for side in (0, 1))
        assert left["x"] + left["width"] <= right["x"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_enough_in_light_and_dark(browser, two, scheme):
    with visit(browser, two.url, color_scheme=scheme) as seen:
        page = seen.page
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(246, 247, 249)", "dark": "rgb(14, 16, 20)"}[scheme]
        for path in each_page(seen, two, (*PAGES, f"{FOUND}&filter=label=none")):
            page.evaluate(OPEN_ALL)
            found = contrasts(page)
            assert len(found) > 5
            assert [one for one in found if one[0] < one[1]] == [], path
        page.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": b"none"})
        page.locator("#trouble").wait_for()
        page.keyboard.press("?")
        assert [one for one in contrasts(page) if one[0] < one[1]] == []


# Where something is missing or goes wrong


def test_it_works_without_javascript(browser, two):
    with visit(browser, two.of(item=QUERY), java_script_enabled=False) as seen:
        page = seen.page
        assert len(hits(page, 1)) == 24
        with page.expect_navigation():
            page.locator(".hit a").first.click()
        assert page.url.startswith(f"{two.url}/?item=")
        page.get_by_label("Category").select_option("coloured (27)")
        page.get_by_label("Filter", exact=True).fill("label!=blue")
        with page.expect_navigation():
            page.get_by_role("button", name="Apply").click()
        assert {name.split("/")[0] for name in hits(page, 1)} == {"red", "green"}
        page.set_input_files("input[type=file]", two.folder / QUERY)
        with page.expect_navigation():
            page.get_by_role("button", name="Search with it").click()
        assert page.url.startswith(f"{two.url}/?upload=")
        assert hits(page, 1)[0] == QUERY
        assert {name.split("/")[0] for name in hits(page, 1)} == {"red", "green"}  # the filters stay
        assert page.get_by_role("button", name="Copy link").count() == 0  # nothing is there that would not work
        page.goto(f"{two.url}/hardest?index=colours")
        while page.locator("[data-poll]").count():
            with page.expect_navigation():
                page.get_by_role("link", name="Look again").click()
        assert page.locator(".ap-value").count() == 36
        assert seen.errors == []


@pytest.fixture
def asking(browser, one):
    """A page with results, to which something then happens; they must still be there."""
    with visit(browser, one.of(item=QUERY)) as seen:
        before = hits(seen.page)
        yield seen.page
        assert hits(seen.page) == before
        assert seen.page.url == one.of(item=QUERY)


def test_what_is_no_picture_is_refused_in_a_line(asking):
    box = asking.locator("#main").bounding_box()
    asking.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": b"just text"})
    line = asking.get_by_role("alert")
    line.wait_for()
    assert "\n" not in line.locator("p").inner_text()
    assert asking.locator("#main").bounding_box() == box  # nothing moves
    close = asking.get_by_role("button", name="Close this message")
    close.focus()
    asking.keyboard.press("Enter")
    close.wait_for(state="hidden")
    assert asking.evaluate("document.activeElement.id") == "main"


def test_a_file_that_is_too_large_is_not_even_sent_and_a_wrong_filter_stays(asking):
    sent = []
    asking.on("request", lambda request: sent.append(request.url))
    large = {"name": "a.png", "mimeType": "image/png", "buffer": bytes(LIMITS.upload_bytes + 1)}
    asking.set_input_files("input[type=file]", large)
    asking.get_by_role("alert").get_by_text("0.1 MB").wait_for()
    assert sent == []
    asking.keyboard.press("Escape")
    assert asking.get_by_role("alert").is_hidden()
    asking.get_by_label("Filter", exact=True).fill("nonsense")
    asking.keyboard.press("Enter")
    asking.get_by_role("alert").get_by_text("filter").wait_for()
    assert asking.get_by_label("Filter", exact=True).input_value() == "nonsense"  # to be mended


def test_a_server_that_stops_and_comes_back(browser, pictures):
    with ExitStack() as first:
        site = first.enter_context(site_of(*pictures, "colours"))
        with visit(browser, site.url) as seen:
            page, line = seen.page, seen.page.get_by_role("alert")
            page.set_input_files("input[type=file]", site.folder / QUERY)
            page.wait_for_url("**/?upload=*")
            before, url = hits(page), page.url
            first.close()
            page.get_by_label("Query expansion").select_option("on")
            line.wait_for()
            assert (hits(page), page.url) == (before, url)
            with site_of(*pictures, "colours", port=urlsplit(site.url).port):
                line.get_by_role("button", name="Try again").click()
                line.get_by_role("button", name="Send it again").click()
                page.wait_for_url(asked(expand=["on"]))
                assert hits(page)[0] == QUERY
                assert line.is_hidden()


def test_who_has_no_token_signs_in_first(browser, pictures):
    with site_of(*pictures, "colours", token=TOKEN) as site, visit(browser, site.of(item=QUERY)) as seen:
        page = seen.page
        assert page.url.startswith(f"{site.url}/login?next=")
        assert unnamed(page) == []
        assert page.evaluate("document.activeElement.name") == "token"
        page.keyboard.type("not-the-token")
        page.keyboard.press("Enter")
        page.locator("#wrong").wait_for()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert [one for one in contrasts(page) if one[0] < one[1]] == []
        page.set_viewport_size({"width": 390, "height": 800})
        assert (too_wide(page), too_small(page)) == ([], [])
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(site.of(item=QUERY))
        assert len(hits(page)) == 24
        page.context.clear_cookies()
        page.set_input_files("input[type=file]", site.folder / QUERY)
        page.get_by_role("alert").get_by_role("button", name="Sign in").click()  # signed out meanwhile
        page.wait_for_url(f"{site.url}/login?next=*")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(site.of(item=QUERY))
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{site.url}/login")
        page.goto(site.of(item=QUERY))
        assert page.url.startswith(f"{site.url}/login?next=")
