import re

import pytest

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
        ("$x$", r"\$x\$"),
        ("{x}", r"\{x\}"),
        ("a\\b", r"a\textbackslash{}b"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("-1.5", "$-1.5$"),
        ("[+1.00, -2.00]", "[$+1.00$, $-2.00$]"),
    ],
)
def test_latex_escapes(text, latex):
    assert f"x & {latex} " in Table(["a", "b"], [["x", text]], "ll").render("latex")


@pytest.mark.parametrize(
    ("text", "markdown"), [("a|b", r"a\|b"), ("<b>", r"\<b\>"), ("[a](b)", r"\[a](b)"), ("[1, 2]", "[1, 2]")]
)
def test_markdown_escapes(text, markdown):
    assert f"| x | {markdown} |" in Table(["a", "b"], [["x", text]], "ll").render("markdown")


@pytest.mark.parametrize("format", ["text", "markdown", "latex", "csv", "html"])
def test_line_breaks_do_not_break_the_table(format):
    broken = Table(["a\nb"], [["c\r\nd"]], "l", ("e\nf",), ("g\nh",)).render(format)
    for text in ("a b", "c d", *(() if format == "csv" else ("e f", "g h"))):
        assert re.search(rf"^.*{text}", broken, re.MULTILINE)


def test_csv_and_html():
    assert TABLE.render("csv").splitlines() == [",R@1,verdict", "PNP_D|q,9.50,-0.10", "[old] 5%,100.00,<0.1"]
    assert Table(["a"], [['x, "y"']], "l").render("csv").splitlines()[1] == '"x, ""y"""'
    assert TABLE.render("html").splitlines() == [
        "<p>first 5% &amp; more</p>",
        "<table>",
        '<thead><tr><th scope="col"></th><th scope="col" class="n">R@1</th><th scope="col">verdict</th></tr></thead>',
        "<tbody>",
        '<tr><th scope="row">PNP_D|q</th><td class="n">9.50</td><td>-0.10</td></tr>',
        '<tr><th scope="row">[old] 5%</th><td class="n"><b>100.00</b></td><td>&lt;0.1</td></tr>',
        "</tbody>",
        "</table>",
        "<p>last_line</p>",
    ]
