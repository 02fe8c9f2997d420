"""`python -m studies`: the list, a study, and what is refused."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from frontrank.errors import InputError, InterruptedRunError
from studies import all_studies
from studies.__main__ import EPILOG, main, make_parser

NAME = "smooth-ap-indicator"
ROOT = Path(__file__).parent.parent.parent
HELP = (
    "import sys; sys.path.insert(0, '.'); from studies.__main__ import main\n"
    "try: main(['--help'])\n"
    "except SystemExit: print({'torch', 'numpy', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
)


@pytest.fixture
def run(capsys):
    """A function that runs the command with these words and returns its status, stdout and stderr."""

    def command(*words):
        try:
            status = main([str(word) for word in words])
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return SimpleNamespace(status=status, out=out, err=err)

    return command


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of a quick study, run by the real command in a checkout."""
    out = tmp_path_factory.mktemp("studies") / "out"
    words = [sys.executable, "-m", "studies", NAME, "--quick", "--seed", "3", "--out", str(out)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith((out / "README.md").read_text(encoding="utf-8"))
    return out


@pytest.fixture
def here(results, tmp_path, monkeypatch):
    """A current folder with the results of a study where they are by default."""
    shutil.copytree(results, tmp_path / "here" / "runs" / "studies" / NAME)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def stub(monkeypatch):
    """A function that puts a changed study in the place of every study."""

    def change(**changes):
        study = replace(all_studies()[NAME], **changes)
        monkeypatch.setattr("studies.__main__.study_named", lambda name: study)

    return change


def files(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_it_lists_all_studies(run):
    done = run()
    assert (done.status, done.err) == (0, "")
    head, *rows = done.out.splitlines()
    assert head.split() == ["NAME", "PAPER", "THERE", "TAKES"]
    assert [row.split()[0] for row in rows] == list(all_studies())
    assert all(row.endswith(study.title) for row, study in zip(rows, all_studies().values(), strict=True))


@pytest.mark.processes
def test_a_study_writes_a_page_figures_and_results(results):
    assert f"\n    python -m studies {NAME} --quick --seed 3\n" in (results / "README.md").read_text(encoding="utf-8")
    saved = json.loads((results / "results.json").read_text())
    assert (saved["study"], saved["quick"], saved["seed"]) == (NAME, True, 3)
    assert {path.name for path in results.iterdir()} == {"README.md", "results.json", "indicator.svg", "indicator.png"}


@pytest.mark.processes
def test_redraw(here, run):
    folder = here / "runs" / "studies" / NAME
    before = files(folder)
    for path in folder.iterdir():
        if path.name != "results.json":
            path.unlink()
    done = run(NAME, "--redraw", "--quiet")
    assert (done.status, done.out, done.err) == (0, f"runs/studies/{NAME}/README.md\n", "")
    assert files(folder) == before


@pytest.mark.processes
def test_another_seed_is_another_result(here, run):
    assert run(NAME, "--quick", "--quiet", "--seed", 2**31 - 1, "--out", "second").status == 0
    first, second = (json.loads(Path(path, "results.json").read_text()) for path in (f"runs/studies/{NAME}", "second"))
    assert first["found"]["curves"]["linear"]["ap_error"] != second["found"]["curves"]["linear"]["ap_error"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["smooth-ap-indicater"], NAME),
        (["polish"], "polish"),
        ([NAME], f"runs/studies/{NAME}/results.json"),
        ([NAME, "--redraw", "--out", "new"], "new/results.json"),
        ([NAME, "--redraw", "--out", "other"], "pnp-other"),
        ([NAME, "--redraw", "--out", "broken"], "broken/results.json"),
        ([NAME, "--redraw", "--out", "file"], "file/results.json"),
        ([NAME, "--out", "file"], "--out file"),
        ([NAME, "--out", "mine"], "--out mine"),
        ([NAME, "--out", "file/x"], "--out file/x"),
        ([NAME, "--out", "a/" + "x" * 256], "--out a/x"),
        ([NAME, "--out", "x" * 256], "--out xx"),
        ([NAME, "--seed", "-1", "--out", "new"], "--seed"),
        ([NAME, "--seed", str(2**31), "--out", "new"], "--seed"),
        ([NAME, "--seed", "one"], "--seed"),
        (["grid", "--seeds", "0", "--out", "new"], "--seeds"),
        ([NAME, "--seeds", "3", "--out", "new"], "--seeds"),
        (["grid", "--seeds", "3", "--quick", "--out", "new"], "--quick"),
        (["pnp-circle", "--data", "mine", "--out", "new"], "--data"),
        (["grid", "--data", "nowhere", "--out", "new/deep"], "nowhere"),
        ([NAME, "--redraw", "--quick"], "--quick"),
        ([NAME, "--redraw", "--seed", "0"], "--seed"),
        ([NAME, "--derivative", "1"], "--derivative"),
        (["pnp-designer", "--derivative", "1/(1+R", "--out", "new"], "position 3"),
        (["pnp-designer", "--derivative=-1", "--out", "new"], "f'(0)"),
        (["--quick"], "NAME"),
        (["--seed", "0"], "NAME"),
        ([NAME, "--redrew"], "--redraw"),
        ([NAME, NAME], NAME),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_refusals_are_one_line_and_lose_nothing(here, run, words, named):
    for name, content in (("other", {"study": "pnp-other"}), ("broken", {"study": NAME})):
        Path(name).mkdir()
        rest = dict.fromkeys(("found", "command", "quick", "seed", "frontrank", "torch", "machine"), 0)
        Path(name, "results.json").write_text(json.dumps(content | (rest if name == "other" else {})))
    Path("file").write_text("mine")
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    before, paths = files(here), set(here.rglob("*"))
    done = run(*words)
    assert (done.status, done.out) == (2, "")
    assert named in done.err
    assert done.err.startswith("python -m studies: ")
    assert done.err.count("\n") == 1
    assert (files(here), set(here.rglob("*"))) == (before, paths)


@pytest.mark.processes
@pytest.mark.parametrize("damage", [[], {}, {"curves": []}, {"curves": {"linear": {}}}], ids=repr)
def test_damaged_results_are_not_drawn(here, run, damage):
    path = here / "runs" / "studies" / NAME / "results.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | {"found": damage}))
    before = files(here)
    done = run(NAME, "--redraw")
    assert (done.status, done.out) == (2, "")
    assert f"runs/studies/{NAME}/results.json" in done.err
    assert files(here) == before


def test_the_folder_exists_before_anything_is_measured(tmp_path, monkeypatch, run, stub):
    folders = []

    def refuse(effort):
        folders.append(effort.work.parent.is_dir())
        raise InputError("--data is wrong; give another")

    stub(measure=refuse)
    here = tmp_path / "here"
    (here / "mine").mkdir(parents=True)
    monkeypatch.chdir(here)
    for out in ("new/deep", "mine"):
        assert run(NAME, "--out", out).status == 2
    assert folders == [True, True]
    assert list(here.rglob("*")) == [here / "mine"]
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    assert "--out mine" in run(NAME, "--out", "mine").err
    assert len(folders) == 2


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "seeds", "data", "more"),
    [
        (["--seeds", "3"], 3, "", ""),
        (["--data", "my photos"], 3, "my photos", " --data 'my photos'"),
        (["--data", "x.csv", "--seeds", "5", "--seed", "2"], 5, "x.csv", " --seed 2 --seeds 5 --data x.csv"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_page_names_options_that_have_an_effect(here, run, stub, words, seeds, data, more):
    efforts, results = [], json.loads((here / "runs" / "studies" / NAME / "results.json").read_text())["found"]
    stub(
        takes=("data", "seeds"),
        measure=lambda effort: (efforts.append(effort), results)[1],
        figures=lambda results: {},
    )
    assert run(NAME, "--out", "out", *words).status == 0
    assert [(effort.seeds, effort.data) for effort in efforts] == [(seeds, data)]
    saved = json.loads(Path("out/results.json").read_text())
    assert saved["command"] == f"python -m studies {NAME}{more}"
    page = Path("out/README.md").read_text(encoding="utf-8")
    assert f"\n    {saved['command']}\n" in page
    assert ("--data" in page.splitlines()[-1]) is bool(data)


@pytest.mark.processes
def test_a_study_that_was_stopped_continues(here, run, stub):
    def stop(effort):
        (effort.work / "half").mkdir(parents=True)
        (effort.work / "half" / "run.json").write_text("{}")
        raise InterruptedRunError("stopped, 1 of 4 runs are done; go on with: frontrank compare --resume x")

    stub(measure=stop)
    done = run(NAME, "--out", "long")
    assert (done.status, done.out) == (130, "")
    assert "compare" not in done.err  # the user did not start one
    results = json.loads((here / "runs" / "studies" / NAME / "results.json").read_text())["found"]
    stub(measure=lambda effort: results)
    assert run(NAME, "--quick", "--out", "long", "--quiet").out == "long/README.md\n"
    assert Path("long/work/half/run.json").is_file()


@pytest.mark.processes
def test_help_needs_no_torch():
    done = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("usage: python -m studies [NAME]")
    assert (done.returncode, done.stderr) == (0, "set()\n")


def test_usage_names_every_option():
    parser = make_parser()
    for action in parser._actions[1:]:  # without --help
        assert f"[{(action.option_strings or [action.metavar])[0]}" in parser.usage


def test_examples_of_the_help_name_studies_that_exist():
    lines = [line.split() for line in EPILOG.splitlines() if line.startswith("  python -m studies ")]
    assert lines
    assert {words[3] for words in lines} <= set(all_studies())
