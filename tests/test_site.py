"""The site builds strictly, its links lead somewhere, it loads nothing from elsewhere; figures are those measured."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from runpy import run_path
from urllib.parse import unquote, urlsplit

import pytest

from tests import browser as chromium

browser = chromium.browser
ROOT = Path(__file__).parents[1]


def test_benchmarks_are_those_of_the_result_files() -> None:
    page = run_path(str(ROOT / "docs" / "benchmarks_page.py"))["build"]()
    assert page == (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"), "run python docs/benchmarks_page.py"


class Page(HTMLParser):
    """The links of a page within the site, and the anchors that links can lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str | None] = {"", "__comments"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {values.get("id"), values.get("name")}
        links = [values[name] for name in ("href", "src") if values.get(name)]
        self.links += [link for link in links if not urlsplit(link).scheme and not urlsplit(link).netloc]


def broken_links(site: Path) -> list[str]:
    """Follow every link, picture and script of every page; 404.html is for a server, and begins at its root."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            address = urlsplit(link)
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            known = pages[target].anchors if target in pages else {unquote(address.fragment)}
            if not target.is_file() or unquote(address.fragment) not in known:
                broken.append(f"{path.name}: {link}")
    return broken


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.processes
def test_the_site_builds_strictly_and_needs_no_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert pages
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//")
    assert not [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))]
    assert not broken_links(site)


@pytest.mark.browser
@pytest.mark.processes
def test_search_works_offline_from_a_folder(site: Path, browser) -> None:
    with chromium.visit(browser, site / "index.html", offline=True) as visited:
        page = visited.page
        page.locator("[data-md-component=search-query]").click()
        page.keyboard.type("smooth-ap", delay=20)
        hits = page.locator(".md-search-result__item a")
        hits.first.wait_for(timeout=60_000)
        assert any("smooth_ap" in address for address in hits.evaluate_all("all => all.map(a => a.href)"))
        hits.first.click()
        page.wait_for_url(lambda url: not url.endswith("index.html"))
        assert all(urlsplit(url).scheme in ("file", "data", "blob") for url in visited.requests)


@pytest.mark.browser
@pytest.mark.processes
@pytest.mark.parametrize("name", ["index", "install", "train", "losses/pnp", "results", "ledger", "commands"])
def test_a_phone_shows_the_whole_width_and_dark_is_dark(site: Path, browser, name: str) -> None:
    with chromium.visit(browser, site / f"{name}.html", width=390, height=800, color_scheme="dark") as visited:
        page = visited.page
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        style = "getComputedStyle(document.body)"
        colours = page.evaluate(f"[{style}.backgroundColor, {style}.color]")
        behind, text = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
        assert behind < 200 < text
