"""Saved results: their pages are those of the repository, and all can be drawn."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from studies import all_studies
from studies.study import (
    AGREES,
    AGREES_IN_PART,
    DOES_NOT_AGREE,
    INK,
    figure_style,
    read_results,
    render_page,
    render_svg,
)

DOCS = Path(__file__).parent.parent.parent / "docs"
PATHS = re.compile(r"/tmp/|/home/|/root/|/Users/|[A-Z]:\\")  # of the machine that made it
LINK = re.compile(r"\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[[^]]*\]\(([^)\s]+)\.svg\)")
LARGEST = 150_000  # bytes of results


@pytest.fixture(params=all_studies())
def study(request):
    return all_studies()[request.param]


@pytest.fixture
def saved(study):
    return read_saved(study.name)


def read_saved(name):
    return read_results(DOCS / "studies" / "results" / f"{name}.json", name)


def draw(study, saved):
    with figure_style():
        return study.draw(saved["found"])


def test_the_page_and_the_index_are_those_of_the_repository(study, saved):
    committed = (DOCS / "studies" / f"{study.name}.md").read_text(encoding="utf-8")
    names = [name.removeprefix(f"{study.name}-") for name in IMAGE.findall(committed)]
    text = render_page(study, saved, names, f"{study.name}-")
    assert text == committed, "run docs/build_studies.py"
    word = study.values(saved["found"])["verdict"]
    assert word in (AGREES, AGREES_IN_PART, DOES_NOT_AGREE)
    assert f"**{word}**" in text
    assert f"\n    python -m studies {study.name}\n" in text
    assert not PATHS.search(text)
    assert "nan" not in re.findall(r"[a-z]+", text)
    assert "}}" not in text
    links = [link for link in LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (DOCS / "studies" / link).exists()] == []
    index = (DOCS / "studies" / "README.md").read_text(encoding="utf-8")
    assert f"| [{study.title}]({study.name}.md) | {study.shows} | {word.lower()} |" in index


def test_results_are_plain_and_small(study):
    path = DOCS / "studies" / "results" / f"{study.name}.json"
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < LARGEST
    json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    assert not PATHS.search(text)


def test_figures_can_be_drawn(study, saved):
    figures = draw(study, saved)
    committed = (DOCS / "studies" / f"{study.name}.md").read_text(encoding="utf-8")
    assert IMAGE.findall(committed) == [f"{study.name}-{name}" for name in figures]
    for figure in figures.values():
        assert all(axis.has_data() or axis.texts for axis in figure.axes)


@pytest.mark.parametrize("name", ["smooth-ap-error", "rambo-speed"])
def test_a_figure_can_be_read_on_light_and_dark_pages(name):
    for place, figure in draw(all_studies()[name], read_saved(name)).items():
        svg = render_svg(figure)
        ElementTree.fromstring(svg)
        assert svg.count("@media (prefers-color-scheme: dark)") == 1
        assert INK in svg  # text and axes are of the colour that turns light
        assert not re.search(r"stroke: (#000000|black)|<dc:date>", svg)
        assert svg == (DOCS / "studies" / f"{name}-{place}.svg").read_text(encoding="utf-8"), "run build_studies.py"


def test_the_designer_is_that_of_the_repository():
    """It also pins every number of the toy: points, batches, weights."""
    study, path = all_studies()["pnp-designer"], DOCS / "studies" / "pnp-designer-designer.html"
    files = study.extra_files(read_saved(study.name)["found"])
    assert files["designer.html"] == path.read_bytes(), "run docs/build_studies.py"
