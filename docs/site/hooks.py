"""What the site has beside the pages of docs/ (MkDocs calls these functions; scripts/docs builds the site).

- README.md is the home page; ARCHITECTURE.md, CONTRIBUTING.md and CHANGELOG.md are pages.
- Recipes, notebooks, the help of the commands and the public names become pages.
- A link to another file of the repository leads to a copy of it; a link to a folder leads to a list of its files.
- Formulas become MathML, which browsers draw without a script.
- Patterns in the nav, such as losses/*, become the pages that no other line of it names.
"""

import ast
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from fnmatch import fnmatch
from html import unescape
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import patch

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

import frontrank
from frontrank.cli import COMMANDS, parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
SLASH = '<mo lspace="0" rspace="0">/</mo>'  # browsers set it wide
ABOVE = {"README.md": "index.md"} | {name: name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")}
ACTIONS = {"data": ("check", "emoji", "glyphs", "emoji-scenes"), "detect": ("train", "evaluate", "predict")}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are generated and the files that links lead to, then find what the nav means."""
    pages = {uri: (ROOT / name).read_text(encoding="utf-8") for name, uri in ABOVE.items()}
    pages |= recipe_pages() | notebook_pages() | reference_pages() | {"commands.md": commands_page()}
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()} | pages
    for uri, text in texts.items():
        for target in link_targets(uri, text):
            own = site_uri(target)
            if target.is_dir():
                pages[own] = folder_page(target, own)
            elif files.get_file_from_path(own) is None and own not in pages:
                files.append(File.generated(config, own, abs_src_path=str(target)))
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    uris = [file.src_uri for file in files.documentation_pages()]
    config.nav = complete_nav(config.nav, uris)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to where their files are in the site; the page of a loss is found before those that name it."""
    uri = page.file.src_uri
    if uri.startswith("losses/"):
        page.meta["search"] = {"boost": 4}

    def point(link: re.Match[str]) -> str:
        path, hash_, anchor = link[2].partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return link[0]
        target = site_uri((source_folder(uri) / path).resolve())
        return f"{link[1]}{os.path.relpath(target, PurePosixPath(uri).parent)}{hash_}{anchor}{link[3]}"

    parts = CODE.split(markdown)
    return "".join(part if index % 2 else LINK.sub(point, part) for index, part in enumerate(parts))


def on_page_content(html: str, **_: Any) -> str:
    """Turn formulas into MathML."""

    def draw(formula: re.Match[str]) -> str:
        tex = unescape(formula[3]).strip()
        mathml = convert(tex, display="block" if formula[1] == "div" else "inline")
        return mathml.replace("<mo>/</mo>", SLASH).replace("<mo>&#x0002F;</mo>", SLASH)

    html = re.sub(r'<(div|span) class="arithmatex">\\(\[|\()(.*?)\\[\])]</\1>', draw, html, flags=re.DOTALL)
    if 'class="arithmatex"' in html:
        raise ValueError("a formula was not understood")
    return html


def source_folder(uri: str) -> Path:
    """Return the folder from which the links of a page are meant."""
    if uri in ABOVE.values():
        return ROOT
    generated = uri.split("/")[0] in ("recipes", "notebooks", "reference")
    return (ROOT if generated else DOCS) / PurePosixPath(uri).parent


def site_uri(target: Path) -> str:
    """Return where a file of the repository is in the site."""
    base = DOCS if target.is_relative_to(DOCS) else ROOT
    name = target.relative_to(base).as_posix()
    if target.is_dir():
        return f"{name}/README.md"
    if base is ROOT and name.startswith(("recipes/", "notebooks/")) and target.suffix != ".md":
        return str(PurePosixPath(name).with_suffix(".md"))
    return ABOVE.get(name, name) if base is ROOT else name


def link_targets(uri: str, text: str) -> Iterator[Path]:
    """Return the files and folders of the repository that a page links to."""
    for _, link, _ in LINK.findall(CODE.sub("", text)):
        path = link.partition("#")[0]
        if path and "://" not in link:
            target = (source_folder(uri) / path).resolve()
            if target.is_relative_to(ROOT) and target.exists():
                yield target


def folder_page(folder: Path, uri: str) -> str:
    """List the files of a folder; its README if there is one."""
    if (folder / "README.md").is_file():
        return (folder / "README.md").read_text(encoding="utf-8")
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix != ".py")
    lines = [f"- [{title_of(path)}]({path.name})" for path in paths]
    return f"# {folder.name.capitalize()}\n\n" + "\n".join(lines) + "\n"


def title_of(path: Path) -> str:
    """Return the heading of a page; of another file its name."""
    heading = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE) if path.suffix == ".md" else None
    return heading[1] if heading else path.name


def recipe_pages() -> dict[str, str]:
    """Return a page for each recipe, and one that lists them."""
    pages, lines = {}, []
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        title = text.splitlines()[0].removeprefix("# ")
        pages[f"recipes/{path.stem}.md"] = f"# {path.stem}\n\n{title}\n\n```yaml\n{text}```\n"
        lines.append(f"| [{path.stem}]({path.name}) | {title} |")
    head = (
        "# Recipes\n\nA recipe is a YAML file of the settings that differ from the defaults. `--recipe NAME` uses it; "
        "[training](../docs/train.md#recipes) says how to change it.\n\n| recipe | what it is |\n|---|---|\n"
    )
    return pages | {"recipes/README.md": head + "\n".join(lines) + "\n"}


def notebook_pages() -> dict[str, str]:
    """Return each notebook as a page."""
    pages = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        texts = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in sources]
        title, *rest = texts
        note = f"This page is the notebook `notebooks/{path.name}` of the repository."
        pages[f"notebooks/{path.stem}.md"] = "\n\n".join([title, note, *rest]) + "\n"
    return pages


def reference_pages() -> dict[str, str]:
    """Return a page for each public module, with the names it makes public."""
    pages = {}
    for module in frontrank._SUBMODULES:
        entries = [f"::: frontrank.{name}\n" for name in public_names(module)]
        path = ROOT / "src" / "frontrank" / module
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        doc = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
        pages[f"reference/{module}.md"] = "\n".join([f"# frontrank.{module}\n", f"{doc}\n", *entries])
    return pages


def public_names(module: str) -> list[str]:
    """Return the public names of a module, with their modules: those of its __all__, and those that frontrank has."""
    own = [(each, name) for each, names in frontrank._NAMES.items() for name in names.split()]
    names = {name: each for each, name in own if each.split(".")[0] == module}
    path = ROOT / "src" / "frontrank" / module / "__init__.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else ():
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            with suppress(ValueError):  # losses: sorted(...), all of which frontrank has
                names |= dict.fromkeys(ast.literal_eval(node.value), module)
    return [f"{names[name]}.{name}" for name in sorted(names, key=str.lower)]


def commands_page() -> str:
    """Return what --help says, of every command and action."""
    parts = ["# Commands\n\n`frontrank COMMAND --help` prints the same.\n"]
    for command, summary in COMMANDS.items():
        parts.append(f"## frontrank {command}\n\n{summary.capitalize()}.\n\n{help_of(command)}")
        parts += [
            f"### frontrank {command} {action}\n\n{help_of(command, action)}" for action in ACTIONS.get(command, ())
        ]
    return "\n".join(parts)


def help_of(*words: str) -> str:
    """Return the help of a command as a block."""
    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit), patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"):
        parse([*words, "--help"])
    return f"```text\n{text.getvalue()}```\n"


def complete_nav(nav: list[Any], uris: list[str]) -> list[Any]:
    """Replace patterns by the pages that no line names, and leave out lines whose page does not exist."""
    named = {line for line in lines_of(nav) if "*" not in line}
    folders = {line[:-2] for line in lines_of(nav) if line.endswith("/*")}

    def matching(pattern: str) -> list[str]:
        pages = [uri for uri in uris if uri not in named and fnmatch(uri, pattern)]
        if pattern == "*":
            pages = [uri for uri in pages if uri.split("/")[0] not in folders]
        return sorted(pages, key=lambda uri: (not uri.endswith(("README.md", "index.md")), uri))

    def complete(entry: Any) -> list[Any]:
        if isinstance(entry, str):
            return matching(entry) if "*" in entry else [entry][: entry in uris]
        ((title, inner),) = entry.items()
        if isinstance(inner, str) and "*" not in inner:
            return [entry][: inner in uris]
        inner = [each for part in ([inner] if isinstance(inner, str) else inner) for each in complete(part)]
        return [{title: inner}] if inner else []

    return [each for entry in nav for each in complete(entry)]


def lines_of(nav: Any) -> Iterator[str]:
    """Return the pages and patterns of the nav."""
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from lines_of(each)
