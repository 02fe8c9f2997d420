"""Pages opened in headless Chromium, as a person's browser would; it must be installed."""

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Visit:
    """A page that is open, what its console said (of what its policy forbids, too), and the URLs that it asked for."""

    page: object
    errors: list = field(default_factory=list)
    requests: list = field(default_factory=list)


@pytest.fixture(scope="module")  # Playwright's loop would be in the way of asyncio.run in the tests of other modules
def browser():
    """Chromium with an empty profile of its own."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.fail(f"there is no Chromium ({', '.join(_NAMES)}); run scripts/test, which installs it")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("there is no playwright; run scripts/test, which installs it")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=list(_FLAGS))
        yield chromium
        chromium.close()


@contextmanager
def visit(browser, where, *, width=1280, height=900, **context):
    """The file or URL opened in a window of some size; `context` as for Playwright's new_context, e.g. color_scheme."""
    opened = browser.new_context(viewport={"width": width, "height": height}, **context)
    try:
        page = opened.new_page()
        visited = Visit(page)
        page.on("console", lambda said: visited.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: visited.errors.append(str(error)))
        page.on("request", lambda asked: visited.requests.append(asked.url))
        page.goto(where if isinstance(where, str) else where.as_uri())
        yield visited
    finally:
        opened.close()


def stop_clock(page):
    """From now on time passes for the scripts of the page only by page.clock.run_for."""
    page.clock.install(time=0)
    page.clock.pause_at(3600)  # which must be in the page's future, however long we took to get here


def contrasts(page):
    """Of each piece of text that can be seen: its contrast with what is behind it, the least that WCAG AA asks, itself.

    Text in the sticky bar and in SVG is measured like any other; what is drawn behind text by SVG is not seen.
    """
    return sorted(tuple(one) for one in page.evaluate(_CONTRASTS))


def too_wide(page):
    """What reaches beyond the right edge of the window, but for the inside of boxes that scroll."""
    return page.evaluate(_TOO_WIDE)


def too_small(page, least=24):
    """What can be pressed but is narrower or lower than a finger needs, but for links within a line of text.

    Of a field in a label it is the label that is pressed.
    """
    return page.evaluate(_TOO_SMALL, least)


def unnamed(page):
    """Roles of what a screen reader meets in the page without a name, in the tree that Chromium gives to it."""
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    told = ((node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"])
    return [role for role, name in told if role in _NAMED and not name.strip()]


def picture_widths(page):
    """The width in pixels of each picture in the page; fails where one cannot be decoded."""
    return page.evaluate(_PICTURE_WIDTHS)


_CONTRASTS = """() => {
  // a canvas turns what a browser computes, of whatever colour space, into pixels
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const brush = canvas.getContext("2d", { willReadFrequently: true });
  const pixel = (colour) => {
    brush.clearRect(0, 0, 1, 1);
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 1, 1);
    return [...brush.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = pixel(getComputedStyle(at).backgroundColor);
      if (found[3] > 200) return found;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility() || element.closest("script, title, .sr")) continue;
    const style = getComputedStyle(element);
    const colour = pixel(element instanceof SVGElement ? style.fill : style.color);
    const [dark, light] = [luminance(colour), luminance(behind(element))].sort((a, b) => a - b);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    found.push([(light + 0.05) / (dark + 0.05), large ? 3 : 4.5, text.slice(0, 40)]);
  }
  return found;
}"""
_TOO_WIDE = """() => [...document.querySelectorAll("body *")]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
  .filter((e) => !e.closest(".scroll, .contents ol, .symbols, .sr"))
  .map((e) => e.outerHTML.slice(0, 80))"""
_TOO_SMALL = """(least) => [...document.querySelectorAll("a, button, summary, input, select, label")]
  .filter((e) => e.checkVisibility() && !e.matches(".skip, label input[type=file]"))
  .filter((e) => !(e.matches("p a, td a") && getComputedStyle(e).display === "inline"))
  .map((e) => [e.outerHTML.slice(0, 80), (e.closest("label") ?? e).getBoundingClientRect()])
  .filter(([, box]) => box.width < least || box.height < least).map(([text]) => text)"""
_NAMED = ("button", "checkbox", "combobox", "dialog", "image", "img", "link", "progressbar", "region", "textbox")
_PICTURE_WIDTHS = """() => Promise.all([...document.querySelectorAll("img, symbol image")].map(async (one) => {
  const image = new Image();
  image.src = one.getAttribute("src") ?? one.getAttribute("href");
  await image.decode();
  return image.naturalWidth;
}))"""
