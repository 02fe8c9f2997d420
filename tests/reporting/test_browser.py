"""The pages in a real browser: nothing fails, nothing is loaded, everything can be seen, reached and read."""

from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from frontrank.comparison.report import render_comparison_page
from frontrank.reporting.run import render_run_page
from tests.browser import contrasts, picture_widths, stop_clock, too_wide, visit
from tests.comparison.test_report import ALL, axis_entries
from tests.reporting.samples import HOSTILE, compared_of, facts_of, findings_of

pytestmark = pytest.mark.browser
FACTS = facts_of(
    versions={
        "frontrank": "0.1.0",
        "commit": "2c3611f60ced415163b3caffe8d3e452fb348da4",
        "machine": "Linux-6.18-x86_64",
    },
    designs=(("emojione-2", "CC-BY-SA-4.0 or later", 12345),),
    credits="| design | package | licence of the pictures |\n|---|---|---|\n" + "x" * 150,
)
PAGES = ("run", "comparison", "axis", "hostile")
NAMES_OF_IMAGES = """[...document.querySelectorAll("img, [role=img]")].map(
  (e) => e.getAttribute("alt") ?? e.getAttribute("aria-label") ?? e.querySelector("title")?.textContent ?? "")"""
POINTED_AT = """["aria-labelledby", "aria-describedby"].flatMap(
  (name) => [...document.querySelectorAll(`[${name}]`)].map((e) => e.getAttribute(name)))"""
FOCUSED = """(() => {
  const e = document.activeElement;
  return [e.tagName, e.getAttribute("class"), e.textContent.trim().slice(0, 20), getComputedStyle(e).outlineStyle];
})()"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    hostile = findings_of(folder, classes=8, labels=[*HOSTILE[:7], "plain"], categories=HOSTILE[:7])
    texts = {
        "run": render_run_page(findings_of(folder), FACTS),
        "comparison": render_comparison_page(compared_of(*ALL)),
        "axis": render_comparison_page(compared_of(*axis_entries([0.001, 0.01, 0.1]), axis="loss.temperature")),
        "hostile": render_run_page(hostile, facts_of(title="x" * 500, command="y" * 500, facts={"z" * 100: "z" * 300})),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize("name", PAGES)
def test_nothing_fails_nothing_is_loaded_and_nothing_is_too_wide(browser, paths, name):
    with visit(browser, paths[name]) as seen:
        widths = picture_widths(seen.page)
        assert all(width > 0 for width in widths)
        assert bool(widths) == (name in ("run", "hostile"))
        for width in (1280, 800, 360):
            seen.page.set_viewport_size({"width": width, "height": 800})
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
            assert too_wide(seen.page) == []
        assert [url for url in seen.requests if not url.startswith("data:")] == [paths[name].as_uri()]
        assert seen.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run", "comparison"])
def test_text_has_contrast_enough(browser, paths, name, scheme):
    with visit(browser, paths[name], color_scheme=scheme) as seen:
        seen.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        found = contrasts(seen.page)
        assert len(found) > 100
        assert [one for one in found if one[0] < one[1]] == []


def test_light_and_dark_differ_and_the_choice_is_remembered(browser, paths, tmp_path):
    def brightness(page):
        page.screenshot(path=tmp_path / "shot.png")
        return np.asarray(Image.open(tmp_path / "shot.png").convert("L")).mean()

    with visit(browser, paths["run"], color_scheme="light") as seen:
        page, button = seen.page, seen.page.get_by_role("button", name="Theme")
        assert brightness(page) > 200
        assert button.inner_text() == "Theme: auto"
        page.emulate_media(color_scheme="dark")
        assert brightness(page) < 80
        button.click()
        assert button.inner_text() == "Theme: light"
        assert brightness(page) > 200
        page.reload()
        assert brightness(page) > 200
        page.get_by_role("button", name="Theme").click()
        page.emulate_media(color_scheme="light")
        assert page.get_by_role("button", name="Theme").inner_text() == "Theme: dark"
        assert brightness(page) < 80


@pytest.mark.parametrize("name", PAGES)
def test_a_screen_reader_finds_its_way(browser, paths, name):
    with visit(browser, paths[name]) as seen:
        page = seen.page
        levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map((h) => Number(h.tagName[1]))")
        assert levels.count(1) == 1
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        for role in ("main", "navigation", "banner", "contentinfo"):
            assert page.get_by_role(role).count() == 1
        assert all(name.strip() for name in page.evaluate(NAMES_OF_IMAGES))
        assert page.evaluate("[...document.querySelectorAll('th')].every((th) => th.scope)")
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
        assert len(ids) == len(set(ids))
        assert set(page.evaluate(POINTED_AT)) <= set(ids)


def test_the_keyboard_reaches_everything_in_order(browser, paths):
    with visit(browser, paths["run"]) as seen:
        page, reached = seen.page, []
        for _ in range(80):
            page.keyboard.press("Tab")
            at = page.evaluate(FOCUSED)
            if at[0] == "BODY":
                break
            reached.append(at)
        assert reached[0][1] == "skip"
        assert reached[1][1] == "theme"
        assert [text for tag, _, text, _ in reached if tag == "A"][1:3] == ["Result", "Ranked pictures"]
        assert {"SUMMARY", "INPUT", "PRE"} <= {tag for tag, *_ in reached}
        assert any(of == "copy" for _, of, *_ in reached)
        assert all(outline == "solid" or tag == "INPUT" for tag, _, _, outline in reached)


def test_it_is_whole_without_javascript(browser, paths):
    with visit(browser, paths["run"], java_script_enabled=False) as seen:
        page = seen.page
        assert page.get_by_role("button").count() == 0
        assert page.locator("article svg.picture").first.is_visible()
        assert page.locator(".map .names text").first.is_visible()
        page.check("#map-pictures")
        assert page.locator(".map .pictures use").first.is_visible()


def test_pointing_at_the_map_shows_the_image_and_its_class_on_both_sides(browser, paths):
    with visit(browser, paths["run"], has_touch=True) as seen:
        page = seen.page
        page.locator("#map").scroll_into_view_if_needed()
        box = page.locator(".map").first.bounding_box()
        x, y = page.evaluate("JSON.parse(document.getElementById('map-points').textContent).sides[0][4]")
        page.mouse.move(box["x"] + x * box["width"] / 480, box["y"] + y * box["height"] / 480)
        assert page.locator(".tip").inner_text() == "class 1"
        assert page.locator(".tip use").get_attribute("href") == "#p4"
        assert [page.locator(".found").nth(i).locator("circle").count() for i in (0, 1)] == [3, 3]
        page.mouse.move(1, 1)
        assert page.locator(".tip").is_hidden()
        page.touchscreen.tap(box["x"] + x * box["width"] / 480, box["y"] + y * box["height"] / 480)
        assert page.locator(".tip").inner_text() == "class 1"  # a finger leaves it there
        assert seen.errors == []


SORTED = """([column, texts]) => {
  const table = document.querySelector("#result table.sortable"), rows = () => [...table.tBodies[0].rows];
  rows().forEach((row, i) => { row.cells[column].textContent = row.cells[column].dataset.value = texts[i]; });
  return [0, 1].map(() => {
    table.tHead.rows[0].cells[column].querySelector("button").click();
    return rows().map((row) => row.cells[column].textContent);
  });
}"""


def test_what_is_missing_is_last_and_names_are_no_numbers(browser, paths):
    with visit(browser, paths["comparison"]) as seen:
        down, up = seen.page.evaluate(SORTED, [1, ["0.5", "", "-3", "nan", "12"]])
        _, names = seen.page.evaluate(SORTED, [0, ["3d b", "20 a", "x", "3d a", "y"]])
        assert seen.page.locator("#result th[aria-sort]").get_attribute("aria-sort") == "ascending"
    assert (down[:3], up[:3]) == (["12", "0.5", "-3"], ["-3", "0.5", "12"])
    assert set(down[3:]) == set(up[3:]) == {"", "nan"}
    assert names == ["20 a", "3d a", "3d b", "x", "y"]


def test_what_can_be_pressed_is_large_enough(browser, paths):
    for name in ("run", "comparison"):
        with visit(browser, paths[name], width=360) as seen:
            small = seen.page.evaluate("""[...document.querySelectorAll("a, button, summary, input, label")]
              .filter((e) => e.checkVisibility() && !e.classList.contains("skip"))
              .map((e) => [e.outerHTML.slice(0, 60), e.getBoundingClientRect()])
              .filter(([, box]) => box.width < 24 || box.height < 24).map(([text]) => text)""")
            assert small == []


def test_the_command_can_be_copied(browser, paths):
    with visit(browser, paths["run"], permissions=["clipboard-read", "clipboard-write"]) as seen:
        stop_clock(seen.page)  # it is shown for two seconds
        seen.page.get_by_role("button", name="Copy").click()
        seen.page.get_by_role("button", name="Copied").wait_for()
        seen.page.clock.run_for(2000)
        seen.page.get_by_role("button", name="Copy", exact=True).wait_for()
        assert seen.page.evaluate("navigator.clipboard.readText()") == "frontrank train --data colours"
