"""`python -m studies`: the list, a study, and what is refused."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from frontrank.errors import InterruptedRunError
from studies.__main__ import main
from tests.files import files
from tests.studies.samples import ENVIRONMENT, RESULTS, STUB

NAME = STUB.name
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """A function that runs the command in an empty folder and returns its status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def command(*words):
        try:
            status = main([str(word) for word in words])
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return SimpleNamespace(status=status, out=out, err=err)

    return command


@pytest.fixture
def stub(monkeypatch):
    """A function that puts a study that measures nothing in the place of every study."""

    def change(**changes):
        monkeypatch.setattr("studies.__main__.find_study", lambda name: replace(STUB, **changes))

    return change


@pytest.mark.processes
def test_a_real_study_is_run_and_drawn_again(run, tmp_path):
    words = [sys.executable, "-m", "studies", NAME, "--quick", "--seed", "3", "--out", str(tmp_path / "out")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert done.stdout.startswith(page)
    assert f"\n    python -m studies {NAME} --quick --seed 3\n" in page
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (saved["study"], saved["quick"], saved["seed"]) == (NAME, True, 3)
    before = files("out")
    assert set(before) == {"README.md", "results.json", "indicator.svg", "indicator.png"}
    for path in before:
        if path != "results.json":
            Path("out", path).unlink()
    done = run(NAME, "--redraw", "--quiet", "--out", "out")
    assert (done.status, done.out, done.err) == (0, "out/README.md\n", "")
    assert files("out") == before


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["smooth-ap-indicater"], NAME),
        ([NAME, "--redraw"], f"runs/studies/{NAME}/results.json"),
        ([NAME, "--redraw", "--out", "other"], "pnp-other"),
        ([NAME, "--redraw", "--out", "damaged"], "damaged/results.json"),
        ([NAME, "--out", "file"], "--out file"),
        ([NAME, "--seed", "-1"], "--seed"),
        (["grid", "--seeds", "3", "--quick"], "--quick"),
        (["pnp-circle", "--data", "mine"], "--data"),
        (["rambo-bias", "--data", "nowhere", "--out", "new/deep"], "nowhere"),
        (["pnp-designer", "--derivative", "1/(1+R"], "position 3"),
        (["--seed", "0"], "NAME"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_refusals_are_one_line_and_lose_nothing(run, words, named):
    for name, study, results in (("other", "pnp-other", {}), ("damaged", NAME, {**RESULTS, "curves": {"linear": {}}})):
        Path(name).mkdir()
        saved = {"study": study, "command": "x", **ENVIRONMENT, "found": results}
        Path(name, "results.json").write_text(json.dumps(saved))
    Path("file").write_text("mine")
    before, paths = files("."), set(Path().rglob("*"))
    done = run(*words)
    assert (done.status, done.out) == (2, "")
    assert named in done.err
    assert done.err.startswith("python -m studies: ")
    assert done.err.count("\n") == 1
    assert (files("."), set(Path().rglob("*"))) == (before, paths)


def test_a_study_that_was_stopped_continues(run, stub):
    def stop(effort):
        (effort.work / "half").mkdir(parents=True)
        (effort.work / "half" / "run.json").write_text("{}")
        raise InterruptedRunError("stopped, 1 of 4 runs are done; go on with: frontrank compare --resume x")

    stub(measure=stop)
    done = run(NAME, "--out", "long")
    assert (done.status, done.out) == (130, "")
    assert "compare" not in done.err  # the user did not start one
    stub()
    assert run(NAME, "--out", "long", "--quiet").out == "long/README.md\n"
    assert Path("long/work/half/run.json").is_file()
