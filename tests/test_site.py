"""The site builds without a warning and loads nothing from elsewhere; its benchmarks are those of the result files."""

import os
import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[1]


def test_benchmarks_are_those_of_the_result_files() -> None:
    page = run_path(str(ROOT / "docs" / "benchmarks_page.py"))["build"]()
    assert page == (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"), "run python docs/benchmarks_page.py"


@pytest.mark.processes
def test_the_site_builds_strictly_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert pages
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//")
    assert not [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))]
