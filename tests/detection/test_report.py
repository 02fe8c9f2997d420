"""The page of a detector: its numbers are those of the report, its pictures those that are worth a look."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from frontrank.detection.evaluation import Tally, evaluate_detections
from frontrank.detection.report import choose_scenes, detection_findings, detection_page
from frontrank.reporting.findings import Curve
from frontrank.reporting.run import RunFacts
from tests.browser import contrasts, picture_widths, too_wide, visit
from tests.detection.scenes import CLASSES, found_of, random_scenes, table_of

STEPS = np.arange(10.0, 110, 10)
CURVES = {
    "loss": Curve(STEPS, 1 / STEPS),
    "classifier": Curve(STEPS, 0.5 / STEPS),
    "boxes": Curve(STEPS, 0.4 / STEPS),
    "validation AP50": Curve(STEPS[4::5], np.array([0.3, 0.5])),
}


def facts(**changed):
    given = {"title": "RaMBO on scenes", "command": "frontrank detect train --data scenes", "settings": "batch: 8"}
    given |= {"curves": CURVES, "facts": {"pictures": "12"}, "versions": {"torch": "2.0"}}
    return RunFacts(**(given | changed))


def made(folder, classes=CLASSES, seed=2):
    objects, found = random_scenes(np.random.default_rng(seed), pictures=20)
    objects.append([([10, 10, 40, 40], 1, False), ([50, 50, 80, 80], 2, False)])
    found.append([([10, 10, 40, 40], 1, 0.99), ([50, 50, 80, 80], 2, 0.98)])
    table = table_of(objects, classes=classes)
    files = tuple(str(folder / file) for file in table.files)
    for number, file in enumerate(files):
        Image.new("RGB", (100, 100), (9 * number, 120, 200)).save(file)
    return replace(table, files=files), found_of(found)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return made(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def page(scenes):
    return detection_page(detection_findings(*scenes, evaluate_detections(*scenes), show=False), facts())


def test_the_numbers_of_the_page(scenes, page):
    report = evaluate_detections(*scenes)
    text = re.sub(r"<[^>]+>|\s+", " ", page)
    assert f"{100 * report['AP50']:.1f}" in text
    assert f"{100 * report['mAP']:.1f}" in text
    for name in CLASSES:
        row = re.search(rf"<th scope=\"row\"><bdi>{name}</bdi></th>.*?</tr>", page, re.DOTALL)[0]
        values = [float(value) for value in re.findall(r"<td class=\"n\">(?:<b>)?([\d.]+)", row)]
        of = report.per_class[name]
        expected = [*(of.metrics[metric] for metric in ("AP50", "AP50-07", "mAP", "AP75")), of.recall]
        assert values[:-1] == pytest.approx([round(100 * value, 1) for value in expected])
        assert values[-1] == of.objects


def test_the_parts_of_the_page(scenes, page):
    assert page.count('<figure class="card scene">') == page.count("data:image/") > 6
    for said in ("All found", "Sure and wrong", "Missed", "Parts"):
        assert f"<h3>{said}" in page
    assert "held-out pictures" in page
    assert "held-out classes" not in page
    of = evaluate_detections(*scenes).per_class
    order = sorted(CLASSES, key=lambda name: page.index(f"<h3>{name.capitalize()}</h3>"))
    assert order == sorted(CLASSES, key=lambda name: -of[name].metrics["AP50"])  # the best class first


def test_which_pictures_are_shown():
    counts = [Tally(2, 0, 0, 0.0), Tally(5, 0, 0, 0.0), Tally(1, 1, 4, 0.6), Tally(0, 2, 1, 0.9), Tally(0, 0, 3, 0.0)]
    counts += [Tally(0, 0, 0, 0.0)]  # nothing there, nothing found: nothing to see
    assert choose_scenes(counts) == {"all found": [1, 0], "sure and wrong": [3, 2], "missed": [4]}
    assert choose_scenes(counts, size=1) == {"all found": [1], "sure and wrong": [3], "missed": [2]}


def test_nothing_found_and_pictures_that_cannot_be_read(tmp_path):
    table, found = made(tmp_path)
    empty = found_of([[] for _ in found])
    first = f"{max(range(len(table)), key=lambda row: (~table.ignored[row]).sum())}.jpg"  # with the most to miss
    (tmp_path / first).write_bytes(b"")
    report = replace(evaluate_detections(table, empty), notes=("a note",))
    findings = detection_findings(table, empty, report, show=False)
    text = detection_page(findings, facts(curves={}))
    assert "a note" in text
    assert "0.0\N{NARROW NO-BREAK SPACE}%" in text
    assert 'id="training"' not in text
    assert "Sure and wrong" not in text
    assert [scene.uri == "" for of in findings.scenes.values() for scene in of if scene.name == first] == [True]
    assert text.count(first) > 1  # in its place, and in a note


def test_names_are_text(tmp_path):
    table, found = made(tmp_path, classes=("<script>alert(1)</script>", "&amp;", "x" * 300))
    findings = detection_findings(table, found, evaluate_detections(table, found), show=False)
    text = detection_page(findings, facts(title="<b>"))
    assert "<script>alert" not in text
    assert "<b>" not in re.search(r"<title>(.*?)</title>", text)[1]


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(browser, page, tmp_path, scheme):
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    with visit(browser, path, color_scheme=scheme) as seen:
        assert all(width > 0 for width in picture_widths(seen.page))
        seen.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert [one for one in contrasts(seen.page) if one[0] < one[1]] == []
        levels = seen.page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))")
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert all(seen.page.evaluate("[...document.querySelectorAll('img')].map((one) => one.alt)"))
        for width in (1280, 800, 360):
            seen.page.set_viewport_size({"width": width, "height": 800})
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
            assert too_wide(seen.page) == []
        assert seen.errors == []
        assert all(url.startswith(("data:", "file:")) for url in seen.requests)
