"""The notebooks run from top to bottom, with small settings."""

import json
import re
import shlex
from pathlib import Path

import pytest

from frontrank.cli import main
from frontrank.packages import cache_folder
from tests.fetch import NEEDED, require_packages

CACHE = cache_folder()
FOLDER = Path(__file__).parents[1] / "notebooks"
SMALL = {"CLASSES": 40, "STEPS": 2, "SEEDS": 1}


@pytest.mark.training
@pytest.mark.parametrize(
    "name",
    ["folder_to_search_page", pytest.param("comparing_losses", marks=pytest.mark.processes)],  # a run is a process
)
def test_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that begins with ! is a command with {names} of Python, as in Jupyter."""
    require_packages(NEEDED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRONTRANK_CACHE", str(CACHE))
    namespace: dict = {}

    def command(line: str) -> None:
        assert main(shlex.split(line.format(**namespace))) == 0, line

    namespace["command"] = command
    for cell in json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            source = "".join(cell["source"])
            code = re.sub(r"^!frontrank (.*)$", lambda line: f"command({line[1]!r})", source, flags=re.MULTILINE)
            exec(code, namespace)
            if "parameters" in cell["metadata"].get("tags", ()):
                namespace |= {key: SMALL[key] for key in SMALL if key in namespace}
