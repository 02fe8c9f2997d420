import re

import pytest

from frontrank.errors import InputError
from frontrank.tables import Table

TABLE = Table(
    ["", "R@1", "verdict"],
    [["PNP_D|q", "9.50", "-0.10"], ["[old] 5%", "100.00", "<0.1"]],
    "lrl",
    ("first 5% & more",),
    ("last_line",),
    frozenset({(1, 1)}),
)


def test_text():
    assert TABLE.render("text").split("\n") == [
        "first 5% & more",
        "",
        "             R@1  verdict",
        "PNP_D|q     9.50  -0.10",
        "[old] 5%  100.00  <0.1",
        "",
        "last_line",
    ]


def test_markdown():
    assert TABLE.render("markdown").split("\n") == [
        r"first 5% \& more",
        "",
        "|           |        R@1 | verdict |",
        "| --------- | ---------: | ------- |",
        r"| PNP\_D\|q |       9.50 | -0.10   |",
        r"| [old] 5%  | **100.00** | \<0.1   |",
        "",
        r"last\_line",
    ]


def test_latex():
    assert TABLE.render("latex").split("\n") == [
        "% first 5% & more",
        r"\begin{tabular}{lrl}",
        r"\toprule",
        r"                  &             R@1 & verdict        \\",
        r"\midrule",
        r"PNP\_D\textbar{}q &            9.50 & $-0.10$        \\",
        r"{}[old] 5\%       & \textbf{100.00} & \textless{}0.1 \\",
        r"\bottomrule",
        r"\end{tabular}",
        "% last_line",
    ]


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("a_b", r"a\_b"),
        ("50%", r"50\%"),
        ("a&b", r"a\&b"),
        ("#1", r"\#1"),
        ("$x$", r"\$x\$"),
        ("{x}", r"\{x\}"),
        ("a\\b", r"a\textbackslash{}b"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("resnet-50", "resnet-50"),
        ("-1.5", "$-1.5$"),
        ("[+1.00, -2.00]", "[$+1.00$, $-2.00$]"),
    ],
)
def test_latex_escapes(text, latex):
    assert f"x & {latex} " in Table(["a", "b"], [["x", text]], "ll").render("latex")


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("a|b", r"a\|b"),
        ("*a*", r"\*a\*"),
        ("`a`", r"\`a\`"),
        ("<b>", r"\<b\>"),
        ("[a](b)", r"\[a](b)"),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_markdown_escapes(text, markdown):
    assert f"| x | {markdown} |" in Table(["a", "b"], [["x", text]], "ll").render("markdown")


@pytest.mark.parametrize("format", ["text", "markdown", "latex"])
def test_line_breaks_do_not_break_the_table(format):
    broken = Table(["a\nb"], [["c\r\nd"]], "l", ("e\nf",), ("g\nh",)).render(format)
    for text in ("a b", "c d", "e f", "g h"):
        assert re.search(rf"^.*{text}", broken, re.MULTILINE)


@pytest.mark.parametrize("format", ["html", "", None, "Text"])
def test_unknown_format(format):
    with pytest.raises(InputError, match="format must be"):
        TABLE.render(format)
