"""The documentation holds what it promises: its examples run, its links lead somewhere, its maths survives Markdown."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from frontrank.cli import parse
from tests.extras import EXTRAS, needed, packages

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
ABOVE = [README, *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG"))]
LOSS_PAGES = sorted((ROOT / "docs" / "losses").glob("*.md"))

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def examples() -> list:
    pages = [*PAGES, *([README] if README.exists() else [])]
    found = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for block in FENCE.finditer(text):
            if block[1] == "python":
                line = text.count("\n", 0, block.start()) + 2
                marks = [pytest.mark.training] if page.parent.name == "integrations" else []
                found.append(pytest.param(page, line, block[2], id=f"{name(page)}:{line}", marks=marks))
    return found


def prose(page: Path) -> str:
    """The page without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize(("page", "line", "code"), examples())
def test_example_runs(page: Path, line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example that writes a file writes it here
    namespace = {"__name__": "example"}
    with torch.random.fork_rng(devices=[]):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)  # errors name the page and its line
    assert any(key in namespace for key in ("frontrank", "fr")), "an example of frontrank that does not use it"


def commands(page: Path) -> list[list[str]]:
    """The words after `frontrank` of each command that a page shows."""
    text = page.read_text(encoding="utf-8")
    blocks = [block[2] for block in FENCE.finditer(text) if block[1] in ("", "sh", "bash")]
    blocks += re.findall(r"(?:^    \S.*\n)+", FENCE.sub("", text), re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    shown = [re.match(r"\s*(?:\$ )?(?:torchrun [-\w ]*-m )?frontrank (\w.*)", line) for line in lines]
    return [shlex.split(line[1].split(" > ")[0], comments=True) for line in shown if line]


def inline_commands(page: Path) -> list[list[str]]:
    """The same of the commands within a line that have an option with a value; others are mentions."""
    text = page.read_text(encoding="utf-8")
    inline = [shlex.split(line) for line in re.findall(r"`frontrank (\w[^`\n]*)`", FENCE.sub("", text))]
    return [words for words in inline if any(word.startswith("--") for word in words[1:-1])]


def test_commands_are_understood() -> None:
    for page in [*PAGES, *ABOVE]:
        for words in commands(page) + inline_commands(page):
            if "..." not in words and "[options]" not in words:  # a line of usage
                parse(words)


def test_the_extras_that_a_page_names_are_enough_for_its_commands() -> None:
    for page in [*PAGES, README]:
        groups = re.findall(r"(?:'\.|frontrank)\[([\w,]+)\]", page.read_text(encoding="utf-8"))
        extras = {extra for group in groups for extra in group.split(",")}
        assert extras <= set(EXTRAS), name(page)
        had = packages(extras)
        shown = [words for words in commands(page) if extras and "..." not in words]
        assert not [words for words in shown if not needed(words) <= had], name(page)
    assert all(
        needed(["data", sample, "out"]) <= packages(["samples"]) for sample in ("emoji", "glyphs", "emoji-scenes")
    )


def test_scripts_exist() -> None:
    for page in [*PAGES, *ABOVE]:
        text = page.read_text(encoding="utf-8")
        programs = re.findall(r"(?:^|[\s`])(scripts/\w+|(?<=python )\w+/\w+\.py)", text, re.MULTILINE)
        assert not [program for program in programs if not (ROOT / program).is_file()], name(page)


def test_every_loss_page_has_an_example_that_asserts() -> None:
    for page in LOSS_PAGES:
        code = [block[2] for block in FENCE.finditer(page.read_text(encoding="utf-8")) if block[1] == "python"]
        assert any("assert " in block for block in code), name(page)


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    for page in [*PAGES, *ABOVE]:
        links = [link.partition("#")[::2] for link in LINK.findall(prose(page)) if "://" not in link]
        targets = [((page.parent / path) if path else page, anchor) for path, anchor in links]
        assert not [path for path, _ in targets if not path.exists()], name(page)
        with_anchor = [(path, anchor) for path, anchor in targets if anchor and path.suffix == ".md"]
        assert not [anchor for path, anchor in with_anchor if anchor not in anchors(path)], name(page)


def test_maths_survives_markdown() -> None:
    """Markdown eats a backslash before punctuation and may take an underscore after punctuation for emphasis."""
    for page in PAGES:
        text = prose(page)
        assert text.count("$") % 2 == 0, name(page)
        formulas = [display or inline for display, inline in MATH.findall(text)]
        wrong = [formula for formula in formulas if re.search(r"\\[^A-Za-z\s]|[^A-Za-z0-9]_|\*|<|>", formula)]
        assert not wrong, name(page)
        rows = [row for row in text.splitlines() if row.startswith("|")]
        assert not [row for row in rows if any("|" in formula[1] for formula in MATH.findall(row))], name(page)


def test_loss_pages_are_indexed() -> None:
    index = ROOT / "docs" / "losses" / "README.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(prose(index))}
    assert {page for page in LOSS_PAGES if page != index} <= linked


def test_figures_are_used_and_have_both_formats() -> None:
    figures = ROOT / "docs" / "figures"
    drawn = {path.stem for path in figures.glob("*.svg")}
    assert drawn == {path.stem for path in figures.glob("*.png")}
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert drawn
    assert not [figure for figure in drawn if f"figures/{figure}.png" not in text]
    assert not [path.name for path in figures.iterdir() if path.stat().st_size > 150_000]
