"""ARCHITECTURE.md and CONTRIBUTING.md describe the tree as it is."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "frontrank"
ARCHITECTURE, CONTRIBUTING = (ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"))
ADDITIONS = ["a loss", "a metric", "a data set", "an engine", "a command"]


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def tree() -> list[str]:
    """The names that the tree of ARCHITECTURE.md lists within the package."""
    block = text(ARCHITECTURE).split("src/frontrank/\n", 1)[1].split("```", 1)[0]
    lines = [line for line in block.splitlines() if re.match(r"  \S", line)]
    return [name for line in lines for name in re.findall(r"[\w/]+(?:\.py|/)", line.split("   ")[0])]


def find(path: str) -> Path | None:
    return next((each for each in (PACKAGE / path, ROOT / path) if each.exists()), None)


def test_the_tree_lists_every_folder_and_module_of_the_package() -> None:
    present = {f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    present |= {path.name for path in PACKAGE.glob("*.py") if path.name != "__main__.py"}
    assert sorted(tree()) == sorted(present)


@pytest.mark.parametrize("page", [ARCHITECTURE, CONTRIBUTING], ids=lambda page: page.name)
def test_every_path_exists(page: Path) -> None:
    paths = re.findall(r"`([\w./-]+(?:\.py|\.md|\.yaml|\.toml|/))`|\b((?:[a-z_]+/)+[a-z_]+\.py)\b", text(page))
    missing = [path for pair in paths for path in pair if path and find(path.rstrip("/")) is None]
    assert paths
    assert not missing


@pytest.mark.parametrize("page", [ARCHITECTURE, CONTRIBUTING], ids=lambda page: page.name)
def test_every_name_is_where_the_page_says(page: Path) -> None:
    """`name` (path.py) says that the module defines the name."""
    pairs = re.findall(r"`([\w.]+)(?:\(\))?` \(`?([\w/]+\.py)`?\)", text(page))
    assert pairs
    for name, path in pairs:
        module = find(path)
        assert module is not None, path
        last = name.rpartition(".")[2]
        definition = rf"^\s*(?:async def|def|class) {last}\b|^{last}\b.*="
        assert re.search(definition, text(module), re.MULTILINE), f"{name} in {path}"


@pytest.mark.parametrize("what", ADDITIONS)
def test_additions_take_at_most_five_lines(what: str) -> None:
    section = re.search(rf"^## Add {what}\n(.*?)(?=^## |\Z)", text(CONTRIBUTING), re.MULTILINE | re.DOTALL)
    assert section is not None
    lines = [line for line in section[1].splitlines() if line.strip()]
    assert 1 <= len(lines) <= 5
