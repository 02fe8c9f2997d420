"""The page for everybody: by keyboard, on a phone, with a screen reader, in light and dark."""

from itertools import pairwise

import pytest

from tests.browser import contrasts, picture_widths, too_small, too_wide, unnamed, visit
from tests.gallery.live import ap_text, asked, hits, ranked_by_hand
from tests.gallery.samples import embed

QUERY = "red/4.png"
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


def called(item):
    return item.removesuffix(".png").replace("/", " ")


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
        for place, (name, score, right) in enumerate(ranked[:24], 1):
            link = results.get_by_role("link").nth(place - 1)
            words = f'link "{place}: {called(name)} {"right" if right else "wrong"} score {score:.3f}'
            assert words in link.aria_snapshot()
        assert page.get_by_role("img", name="Query: red 4").count() == 1
        assert page.get_by_role("img", name="Precision over recall of this query").count() == 1
        assert page.get_by_role("complementary", name="Query").count() == 1
        page.locator(".hit a").first.click()
        first = ranked[0][0]
        told = f"24 results for {called(first)}. AP {ap_text(ranked_by_hand(one, first, embed))}"
        page.get_by_role("status").get_by_text(told).wait_for(state="attached")
        assert page.evaluate("document.activeElement.tagName") == "H1"  # reading goes on at the top of what is new


def test_the_keyboard_goes_from_picture_to_picture_and_searches(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page, all_links = seen.page, links(seen.page)
        columns = page.evaluate(
            "getComputedStyle(document.querySelector('.hits')).gridTemplateColumns.split(' ').length"
        )
        assert columns == 6
        place = 0
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
        target = hits(page)[place]
        page.keyboard.press("Enter")
        page.wait_for_url(asked(item=[target]))
        assert hits(page) == [name for name, *_ in ranked_by_hand(one, target, embed)][:24]
        page.go_back()
        page.wait_for_function("(href) => document.activeElement.getAttribute('href') === href", arg=all_links[place])


def test_the_arrows_cross_from_one_index_to_the_other(browser, two):
    with visit(browser, two.of(item=QUERY)) as seen:
        page, each = seen.page, links(seen.page)
        columns = len({box["x"] for box in (one.bounding_box() for one in page.locator(".side .hit").all())}) // 2
        page.keyboard.press("ArrowRight")
        for _ in range(columns):
            page.keyboard.press("ArrowRight")
        assert href(page) == each[24]
        page.keyboard.press("ArrowLeft")
        assert href(page) == each[columns - 1]


def test_single_keys_do_what_the_help_says_and_can_be_turned_off(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page = seen.page
        page.on("filechooser", lambda chooser: None)  # else the key could overtake what asks the browser to tell of it
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "filter"
        page.keyboard.type("u?/")  # in a field they are text
        assert page.locator("#filter").input_value() == "u?/"
        assert page.locator("#help").is_hidden()
        page.keyboard.press("Control+A")
        page.keyboard.press("Delete")  # as it was: nothing is asked for anew
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.tagName") == "BODY"
        with page.expect_file_chooser() as opened:
            page.keyboard.press("u")
        assert opened.value.element.get_attribute("name") == "image"
        opened.value.set_files(one.folder / QUERY)
        page.wait_for_url("**/?upload=*")
        page.keyboard.press("?")
        page.get_by_role("dialog", name="Keys").wait_for()
        assert unnamed(page) == []
        page.get_by_role("checkbox", name="Use the keys").uncheck()
        page.keyboard.press("Escape")
        assert page.locator("#help").is_hidden()
        page.keyboard.press("?")
        page.keyboard.press("/")
        assert page.locator("#help").is_hidden()
        assert page.evaluate("document.activeElement.id") != "filter"
        page.reload()
        page.keyboard.press("?")
        assert page.locator("#help").is_hidden()
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
        assert [at["text"] for at in reached[:5]] == [
            "Skip to the content",
            "Frontrank",
            "Search",
            "Hardest queries",
            "API",
        ]
        tags = [at["tag"] for at in reached]
        assert tags.count("SELECT") >= 4
        assert tags.count("INPUT") == 2  # the chooser of files and the filter
        assert sum(tag == "A" for tag in tags) == 5 + 24
        assert [at for at in reached if not at["seen"]] == []
        page.keyboard.press("Tab")
        page.wait_for_function("() => document.querySelector('.skip').getBoundingClientRect().top >= 0")  # it glides
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("width", [390, 320])
def test_it_fits_a_phone_and_a_finger(browser, two, width):
    with visit(browser, two.url, **PHONE | {"width": width}) as seen:
        page = seen.page
        for path in each_page(seen, two):
            page.evaluate(OPEN_ALL)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert too_wide(page) == [], path
            assert too_small(page) == [], path


@pytest.mark.parametrize("sides", [1, 2])
def test_what_a_wrong_result_costs_is_explained_where_it_is_shown(browser, two, sides):
    with visit(browser, two.of(item=QUERY, side=["colours"] if sides == 1 else [])) as seen:
        page, told = seen.page, set()
        for width in (320, 390, 600, 700, 800, 900, 1000, 1200, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            shown = page.locator(".hit .price").evaluate_all("(all) => all.filter((one) => one.offsetWidth > 1).length")
            assert page.locator(".keys .price").is_visible() == (shown > 0), width
            told.add(shown > 0)
        assert told == {True, False}


def test_shift_and_an_arrow_do_not_go_to_another_picture(browser, one):
    with visit(browser, one.of(item=QUERY)) as seen:
        page = seen.page
        page.keyboard.press("ArrowRight")
        at = href(page)
        page.keyboard.press("Shift+ArrowRight")
        assert href(page) == at


def test_the_theme_can_be_chosen(browser, one):
    with visit(browser, one.url, color_scheme="light") as seen:
        page = seen.page
        ground = "getComputedStyle(document.body).backgroundColor"
        button = page.get_by_role("button", name="Theme")
        for theme in ("light", "dark"):
            button.click()
            assert button.locator("b").inner_text() == theme
        assert page.evaluate(ground) == "rgb(14, 16, 20)"
        page.locator(".hit a").first.click()
        page.wait_for_url("**/?item=*")
        page.reload()
        assert (button.locator("b").inner_text(), page.evaluate(ground)) == ("dark", "rgb(14, 16, 20)")


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
