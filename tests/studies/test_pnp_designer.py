"""pnp-designer: derivatives as text, the study, and its page in a real browser, compared with Python."""

import json
import math
import re

import pytest
import torch

import studies.pnp_circle as circle
from frontrank.errors import InputError
from studies.pnp_designer import PRESETS, STUDY, derivative, extra_files, loss_of
from studies.study import AGREES_IN_PART, Effort
from tests.browser import browser, contrasts, too_small, too_wide, unnamed, visit
from tests.studies.samples import verdict

__all__ = ["browser"]


VALID = {  # values at R = 0, 1, 3
    " 1 /\t(1+R) ": (1, 1 / 2, 1 / 4),
    "4/(1+R)^5": (4, 4 / 32, 4 / 1024),
    "1+log(1+R)": (1, 1 + math.log(2), 1 + math.log(4)),
    "2^3^2 - 2^9 + 1": (1, 1, 1),  # powers from the right
    "-2^2+5": (1, 1, 1),  # the sign after the power
    "--+-1+2": (1, 1, 1),
    "min(R, 2)+max(1,R)": (1, 2, 5),
    "sqrt(R)*1e1+.5e-1 + 2.": (2.05, 12.05, 10 * math.sqrt(3) + 2.05),
}
WRONG = {  # the position of what is wrong; one digit is not of ASCII, one blank does not break
    "": 1, "1/(1+": 6, "1/(1+R": 3, "1+*R": 3, "1)": 2, "(2R)": 3, "1 $ 2": 3, "1/r": 3, "constructor": 1,
    "1+exp R": 7, "exp(R,1)": 1, "1+max(R)": 3, "1e": 2, "1+\U0001f600\U0001f600": 3, "\u0661": 1, "1\u00a0+1": 2,
    "(" * 60 + "R" + ")" * 60: 51, "-" * 5000: 2000,
}  # fmt: skip
NOT_A_DERIVATIVE = ("R-1", "1/R", "1-R/1000", "exp(R)", "sqrt(0-1)")  # can be read, but not finite and at least 0
HOSTILE = "</script><script>alert(1)</script>"
R = [0.0, 0.1, 0.5, 1.0, 2.5, 7.0, 20.0, 47.9]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of a quick study."""
    return STUDY.measure(Effort(tmp_path_factory.mktemp("work"), quick=True, derivative="1/(1+R)^2"))


@pytest.fixture(scope="module")
def html(results, tmp_path_factory):
    path = tmp_path_factory.mktemp("designer") / "designer.html"
    path.write_bytes(extra_files(results)["designer.html"])
    return path


@pytest.fixture
def page(browser, html):
    with visit(browser, html) as visited:
        yield visited.page
        assert visited.errors == []


@pytest.fixture(scope="module")
def calculator(browser, html):
    """The page for what it computes, which changes nothing of it."""
    with visit(browser, html) as visited:
        yield visited.page


# Derivatives as text


@pytest.mark.parametrize("text", VALID)
def test_the_value_of_an_expression(text):
    values = derivative(text)(torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64))
    assert values.dtype == torch.float64
    assert values.tolist() == pytest.approx(VALID[text], abs=1e-12)


@pytest.mark.parametrize("text", WRONG, ids=lambda text: ascii(text[:20]))
def test_a_wrong_expression(text):
    with pytest.raises(InputError, match=f"^derivative '.*', position {WRONG[text]}: .+$") as error:
        derivative(text)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("text", NOT_A_DERIVATIVE)
def test_an_expression_that_is_no_derivative(text):
    with pytest.raises(InputError, match=re.escape(f"derivative {text!r}: f'")):
        loss_of(text)


# The study


@pytest.mark.training
def test_only_one_printed_derivative_is_not_that_of_its_loss(results):
    wrong = [name for name, gaps in results["printed"].items() if max(gaps.values()) > 1e-6]
    assert wrong == ["I_u"]
    assert results["derivative"] == results["curves"]["typed"]["expression"] == "1/(1+R)^2"
    assert results["curves"]["typed"]["f"][10] == pytest.approx(0.5)  # 1 - 1 / (1 + R) at R = 1
    assert verdict(STUDY, results) == AGREES_IN_PART


@pytest.mark.training
def test_an_expression_cannot_leave_its_place(results, monkeypatch):
    monkeypatch.setattr("studies.pnp_designer.loss_of", lambda text: loss_of("1"))
    text = extra_files({**results, "derivative": HOSTILE})["designer.html"].decode()
    assert HOSTILE not in text
    assert json.loads(re.search('<script type="application/json" id="toy">(.*?)</script>', text)[1])["expression"]


# The page beside Python


@pytest.mark.browser
def test_the_page_reads_and_integrates_as_python_does(calculator):
    r = torch.tensor(R, dtype=torch.float64)
    for text in (*(text for text, _ in PRESETS.values()), "sqrt(R)", "min(R,3)/(1+R)^2", "max(0,1-R/10)"):
        computed = calculator.evaluate("([text, r]) => designer.values(text, r)", [text, R])
        loss = loss_of(text)
        assert computed["slopes"] == pytest.approx(loss.metric.pair_slopes(r, r)[1].tolist(), rel=1e-12)
        assert computed["values"] == pytest.approx(loss.metric.pair_loss(r, r).tolist(), rel=1e-5, abs=1e-7)
    for text, values in VALID.items():
        assert calculator.evaluate("(t) => designer.values(t, [0, 1, 3]).slopes", text) == pytest.approx(values)
    for text in WRONG:
        with pytest.raises(InputError) as error:
            derivative(text)
        assert str(error.value).endswith(f"', {calculator.evaluate('(t) => designer.message(t)', text)}")
    for text in NOT_A_DERIVATIVE:
        assert "f'(" in calculator.evaluate("(t) => designer.message(t)", text)


@pytest.mark.browser
def test_the_page_trains_as_python_does(calculator):
    """In the first steps: after some dozens a change of 1e-15 in one weight changes everything, in Python too."""
    text, layout, steps, losses = "exp(-R/2)", "centres", 10, []
    loss, data = loss_of(text), circle.make_toy(layout, 0)

    def record(embeddings, labels):
        value = loss(embeddings, labels)
        losses.append(float(value.detach()))
        return value

    weights = circle.train(data, record, steps)
    computed = calculator.evaluate("([t, l, n]) => designer.train(t, l, n)", [text, layout, steps])
    assert computed["losses"] == pytest.approx(losses, rel=1e-7)
    for own, theirs in zip(weights, computed["weights"], strict=True):
        assert own.flatten().tolist() == pytest.approx(theirs, abs=1e-8)
    metrics = circle.evaluate_points(weights, data.test, ("R@1", "mAP"))
    assert {name: computed[name] for name in metrics} == pytest.approx(metrics, abs=2e-3)


# The page as a person uses it


def field(page):
    return page.locator("#expression")


@pytest.mark.browser
def test_it_opens_with_what_was_typed_and_loads_nothing(browser, html, results):
    with visit(browser, html) as visited:
        page = visited.page
        assert field(page).input_value() == "1/(1+R)^2"
        assert page.locator("#command").inner_text().endswith('--derivative "1/(1+R)^2"')
        assert page.locator("#pulls tr").nth(1).inner_text().split()[:2] == ["1", "0.25"]
        rows = page.locator("#results tr").all_inner_texts()
        assert [row.split()[0] for row in rows] == [*PRESETS, "1/(1+R)^2"]
        first = 100 * results["toy"]["centres"]["typed"]["mAP"][0]
        assert float(rows[-1].split()[2]) == pytest.approx(first, abs=0.051)
        assert page.locator("#now").inner_text().startswith("Step 0 of 10")
        assert visited.requests == [html.as_uri()]
        assert visited.errors == []


@pytest.mark.browser
def test_it_trains_live_and_keeps_the_result(page, results):
    page.locator("#go").click()
    page.get_by_role("button", name="Train again").wait_for()
    cells = page.locator("#results tr.own").first.locator("th, td").all_inner_texts()
    assert cells[0] == "1/(1+R)^2"
    first = [100 * results["toy"]["centres"]["typed"][metric][0] for metric in ("R@1", "mAP")]
    assert [float(cell) for cell in cells[1:3]] == pytest.approx(first, abs=0.25)
    assert page.locator("#now").inner_text().startswith("Step 10 of 10")
    page.locator("#over").click()
    assert page.locator("#now").inner_text().startswith("Step 0 of 10")
    page.locator("#layout").select_option("lines")
    assert page.locator("#results tr.own").count() == 0  # the others were on other points


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_it_can_be_read_and_pressed(browser, html, scheme, width):
    with visit(browser, html, width=width, has_touch=width == 360, color_scheme=scheme) as visited:
        page = visited.page
        assert too_wide(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert too_small(page) == []
        assert [one for one in contrasts(page) if one[0] < one[1]] == []
        assert unnamed(page) == []
        assert visited.errors == []
