"""pnp-designer: the study, and the page in a real browser, held to what Python computes."""

import copy
import json
import re

import pytest
import torch

from studies import circle, pnp_designer
from studies.pnp_designer import PRESETS, STUDY, loss_of
from studies.study import Effort, run_study
from tests.browser import browser, contrasts, too_small, too_wide, unnamed, visit
from tests.studies.expressions import NEGATIVE, RIGHT, WRONG

__all__ = ["browser"]

HOSTILE = "</script><script>alert(1)</script>"
R = [0.0, 0.1, 0.5, 1.0, 2.5, 7.0, 20.0, 47.9]
TYPED = ["exp(-R/2)", "sqrt(R)", "min(R,3)/(1+R)^2", "max(0,1-R/10)", "1/(1+R)^2"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a quick study."""
    out = tmp_path_factory.mktemp("designer") / "out"
    run_study(STUDY, out, Effort(out / "work", quick=True, derivative="1/(1+R)^2"), "python -m studies pnp-designer")
    return out


@pytest.fixture
def page(browser, made):
    with visit(browser, made / "designer.html") as seen:
        yield seen.page
        assert seen.errors == []


@pytest.fixture(scope="module")
def calculator(browser, made):
    """The page for what it computes, which changes nothing of it."""
    with visit(browser, made / "designer.html") as seen:
        yield seen.page


@pytest.fixture(scope="module")
def found(made):
    return json.loads((made / "results.json").read_text())["found"]


# The study


def test_what_the_paper_prints_is_its_loss_but_for_one(found):
    apart = [name for name, gaps in found["printed"].items() if max(gaps.values()) > 1e-6]
    assert apart == ["I_u"]
    assert found["derivative"] == found["curves"]["typed"]["expression"] == "1/(1+R)^2"
    assert found["curves"]["typed"]["f"][10] == pytest.approx(0.5)  # 1 - 1 / (1 + R) at R = 1


@pytest.mark.parametrize("name", PRESETS)
def test_a_typed_preset_trains_as_the_package_does(name, found):
    text, ours = PRESETS[name]
    data = circle.toy("centres", 0)
    one, other = (circle.train(data, loss, 3) for loss in (loss_of(text), ours))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


def test_verdict(found):
    assert (
        "**Agrees in part**: 4 of 5 derivatives make the loss that is printed beside them; not so: I_u (Eq. 6, 7)."
        in STUDY.told(found)
    )
    changed = copy.deepcopy(found)
    changed["printed"]["I_u"] = {"value": 0.0, "gradient": 0.0}
    assert "**Agrees**: 5 of 5 derivatives" in STUDY.told(changed)
    changed["printed"] = {name: {"value": 0.1, "gradient": 0.0} for name in changed["printed"]}
    assert "**Does not agree**" in STUDY.told(changed)


# The page, beside Python


@pytest.mark.parametrize("text", [*(text for text, _ in PRESETS.values()), *TYPED])
def test_the_page_integrates_as_python_does(calculator, text):
    said = calculator.evaluate("([text, r]) => designer.values(text, r)", [text, R])
    loss, r = loss_of(text), torch.tensor(R, dtype=torch.float64)
    assert said["slopes"] == pytest.approx(loss.metric.pair_slopes(r, r)[1].tolist(), rel=1e-12)
    assert said["values"] == pytest.approx(loss.metric.pair_loss(r, r).tolist(), rel=1e-5, abs=1e-7)


def test_the_page_reads_what_python_reads(calculator):
    for text, values in RIGHT.items():
        if min(values) >= 0 and text != "0^R":  # 0^R jumps, and has no integral worth the name
            assert calculator.evaluate("(t) => designer.values(t, [0, 1, 3]).slopes", text) == pytest.approx(values)
    for text, said in WRONG.items():
        assert calculator.evaluate("(t) => designer.said(t)", text) == said
    for text in NEGATIVE:
        said = calculator.evaluate("(t) => designer.said(t)", text)
        assert said.startswith("f'(R) must be finite and at least 0 for every R ≥ 0, but f'(")


@pytest.mark.parametrize("layout", circle.LAYOUTS)
@pytest.mark.parametrize("text", [PRESETS["I_b"][0], PRESETS["D_q"][0], "exp(-R/2)"])
def test_the_page_trains_as_python_does(calculator, layout, text):
    """In the first steps: after some dozens a change of 1e-15 in one weight changes everything, in Python too."""
    steps, losses = 10, []
    loss, data = loss_of(text), circle.toy(layout, 0)

    def kept(embeddings, labels):
        value = loss(embeddings, labels)
        losses.append(float(value.detach()))
        return value

    weights = circle.train(data, kept, steps)
    said = calculator.evaluate("([t, l, n]) => designer.train(t, l, n)", [text, layout, steps])
    assert said["losses"] == pytest.approx(losses, rel=1e-7)
    for own, theirs in zip(weights, said["weights"], strict=True):
        assert own.flatten().tolist() == pytest.approx(theirs, abs=1e-8)
    judged = circle.judged(weights, data.test)
    assert {metric: said[metric] for metric in ("R@1", "mAP")} == pytest.approx(
        {metric: judged[metric] for metric in ("R@1", "mAP")}, abs=2e-3
    )


# The page, as a person uses it


def field(page):
    return page.locator("#expression")


def test_it_opens_with_what_was_typed_and_loads_nothing(browser, made):
    with visit(browser, made / "designer.html") as seen:
        assert field(seen.page).input_value() == "1/(1+R)^2"
        assert seen.page.locator("#command").inner_text().endswith('--derivative "1/(1+R)^2"')
        assert seen.requests == [(made / "designer.html").as_uri()]
        assert seen.errors == []


def test_presets_follow_their_parameters(page):
    page.get_by_role("button", name="D_q").click()
    assert field(page).input_value() == "4/(1+R)^5"
    assert page.get_by_role("button", name="D_q").get_attribute("aria-pressed") == "true"
    page.locator("#alpha").fill("1.5")
    assert field(page).input_value() == "1.5/(1+R)^2.5"
    page.locator("#alpha").fill("")  # on the way to another number
    assert field(page).input_value() == "1.5/(1+R)^2.5"
    page.locator("#b").fill("0.5")
    assert field(page).input_value() == "R/(1+0.5*R)"
    assert page.locator("#pulls tr").nth(1).inner_text().split()[:2] == ["1", "0.667"]


def test_a_wrong_expression_is_told_and_nothing_can_be_trained(page):
    field(page).fill("1/(1+R")
    assert page.locator("#said").inner_text() == "position 3: this ( is never closed"
    assert page.locator("#go").is_disabled()
    field(page).fill("1/(1+R)")
    assert page.locator("#said").inner_text() == ""
    assert page.locator("#go").is_enabled()


def test_drawing_makes_an_expression_that_python_reads(page):
    page.get_by_role("button", name="O", exact=True).click()
    box = page.locator("#draw").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 120, steps=8)
    page.mouse.move(box["x"] + box["width"] - 16, box["y"] + 190, steps=8)
    page.mouse.up()
    text = field(page).input_value()
    assert text.startswith("max(0,")
    loss, r = loss_of(text), torch.tensor([0.0, 1.0, 8.0, 48.0, 1e4], dtype=torch.float64)
    slopes = loss.metric.pair_slopes(r, r)[1].tolist()
    assert slopes[:4] == sorted(slopes[:4], reverse=True)
    assert slopes[3] == pytest.approx(slopes[4], abs=1e-3)  # level after the last point
    said = page.evaluate("([text, r]) => designer.values(text, r)", [text, [0.0, 1.0, 8.0, 48.0]])
    assert said["slopes"] == pytest.approx(slopes[:4])
    knots = [float(one.get_attribute("aria-valuenow")) for one in page.locator(".knot").all()]
    assert knots == pytest.approx(
        loss.metric.f_prime(torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 48]).double()).tolist(), abs=2e-3
    )


def test_a_finger_draws_as_well(browser, made):
    with visit(browser, made / "designer.html", width=360, has_touch=True) as seen:
        seen.page.get_by_role("button", name="O", exact=True).tap()
        box = seen.page.locator("#draw").bounding_box()
        seen.page.touchscreen.tap(box["x"] + box["width"] * 0.5, box["y"] + box["height"] - 45)
        assert field(seen.page).input_value().startswith("max(0,1")
        assert min(float(one.get_attribute("aria-valuenow")) for one in seen.page.locator(".knot").all()) < 0.1
        assert seen.errors == []


def test_points_are_moved_by_keys(page):
    page.get_by_role("button", name="O", exact=True).click()
    page.locator("#expression").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "f'(R) at R = 0"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "f'(R) at R = 1"
    page.keyboard.press("Home")
    at_one = page.evaluate("document.activeElement.getAttribute('aria-valuenow')")
    assert (at_one, page.evaluate("designer.values(document.getElementById('expression').value, [0, 1]).slopes")) == (
        "0",
        pytest.approx([1, 0], abs=1e-4),
    )
    page.keyboard.press("PageUp")
    page.keyboard.press("ArrowUp")
    assert float(page.evaluate("document.activeElement.getAttribute('aria-valuenow')")) == pytest.approx(0.12 * 1.2)
    page.keyboard.press("End")
    assert float(page.evaluate("document.activeElement.getAttribute('aria-valuenow')")) == pytest.approx(1.2)


def test_it_trains_live_and_keeps_what_came_out(page, found):
    page.locator("#go").click()
    page.get_by_role("button", name="Train again").wait_for()
    cells = page.locator("#results tr.own").first.locator("th, td").all_inner_texts()
    assert cells[0] == "1/(1+R)^2"
    first = {metric: 100 * found["toy"]["centres"]["typed"][metric][0] for metric in ("R@1", "mAP")}
    assert [float(cell) for cell in cells[1:3]] == pytest.approx([first["R@1"], first["mAP"]], abs=0.25)
    assert page.locator("#now").inner_text().startswith("Step 10 of 10: test R@1 ")
    rows = page.locator("#results tr:not(.own)")
    assert rows.count() == len(PRESETS)
    assert rows.nth(4).inner_text().split()[0] == "D_q"
    page.locator("#layout").select_option("lines")
    assert page.locator("#results tr.own").count() == 0  # the others were on other points
    assert page.locator("#now").inner_text().startswith("Step 0 of 10")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_and_pressed_on_a_phone(browser, made, scheme):
    for width in (1280, 800, 360):
        touch = {"has_touch": width == 360, "color_scheme": scheme}
        with visit(browser, made / "designer.html", width=width, **touch) as seen:
            assert too_wide(seen.page) == []
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
            assert too_small(seen.page) == []
            assert [one for one in contrasts(seen.page) if one[0] < one[1]] == []
            assert unnamed(seen.page) == []


def test_an_expression_cannot_leave_its_place(found):
    text = pnp_designer.more({**found, "derivative": HOSTILE})["designer.html"].decode()
    assert HOSTILE not in text
    held = re.search('<script type="application/json" id="toy">(.*?)</script>', text)[1]
    assert json.loads(held)["expression"] == HOSTILE
