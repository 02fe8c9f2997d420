"""`frontrank study`: the list, a study, and what is refused."""

import argparse
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from frontrank.cli.study import add_arguments
from frontrank.errors import InputError, InterruptedRunError
from studies import all_studies
from studies.study import Effort
from tests.cli.test_main import WITHOUT_TORCH

NAME = "smooth-ap-indicator"


@pytest.fixture(scope="module")
def made_study(tmp_path_factory):
    """A folder with a quick study in it."""
    from frontrank.cli import main

    folder = tmp_path_factory.mktemp("studied")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["study", NAME, "--quick", "--quiet"]) == 0
    return folder


@pytest.fixture
def here(made_study, tmp_path, monkeypatch):
    shutil.copytree(made_study, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def files(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_it_lists_all(run):
    found = run("study")
    assert (found.status, found.err) == (0, "")
    head, *rows = found.out.splitlines()
    assert head.split() == ["NAME", "PAPER", "THERE", "TAKES"]
    assert [row.split()[0] for row in rows] == list(all_studies())
    assert all(row.endswith(study.title) for row, study in zip(rows, all_studies().values(), strict=True))


def test_a_study(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    found = run("study", NAME, "--quick", "--seed", "3", "--out", "mine/first")
    assert (found.status, found.err) == (0, "")
    page = Path("mine/first/README.md").read_text(encoding="utf-8")
    assert found.out.startswith(page)
    assert found.out.endswith("page: mine/first/README.md    figures, as SVG and PNG, and results.json are beside it\n")
    assert f"\n    frontrank study {NAME} --quick --seed 3\n" in page
    kept = json.loads(Path("mine/first/results.json").read_text())
    assert (kept["study"], kept["quick"], kept["seed"]) == (NAME, True, 3)
    assert {path.name for path in Path("mine/first").iterdir()} == {
        "README.md",
        "results.json",
        "indicator.svg",
        "indicator.png",
    }


def test_quiet_is_the_path_alone(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    found = run("study", NAME, "--quick", "--quiet")
    assert (found.status, found.out, found.err) == (0, f"studies/{NAME}/README.md\n", "")


def test_redraw(here, run):
    folder = here / "studies" / NAME
    before = files(folder)
    for path in folder.iterdir():
        if path.name != "results.json":
            path.unlink()
    found = run("study", NAME, "--redraw")
    assert (found.status, found.err) == (0, "")
    assert files(folder) == before


def test_another_seed_is_another_result(here, run):
    assert run("study", NAME, "--quick", "--seed", "1", "--out", "second").status == 0
    first, second = (json.loads(Path(path, "results.json").read_text()) for path in (f"studies/{NAME}", "second"))
    assert first["found"]["curves"]["linear"]["ap_error"] != second["found"]["curves"]["linear"]["ap_error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["smooth-ap-indicater"], f"there is no study 'smooth-ap-indicater'; did you mean {NAME}?"),
        (["polish"], "there is no study 'polish'; frontrank study lists them"),
        ([NAME], f"studies/{NAME}/results.json is there already; give --redraw to draw it again, or another --out"),
        ([NAME, "--redraw", "--out", "new"], "new/results.json is not there; run the study first, without --redraw"),
        ([NAME, "--redraw", "--out", "other"], "other/results.json holds the results of pnp-other, not of"),
        ([NAME, "--redraw", "--out", "broken"], "broken/results.json does not hold the results of a study"),
        ([NAME, "--out", "file"], "--out file is a file; choose another name"),
        ([NAME, "--redraw", "--out", "file"], "file/results.json does not hold the results of a study"),
        ([NAME, "--out", "mine"], "--out mine is not empty; choose another name"),
        ([NAME, "--seed", "-1", "--out", "new"], "--seed must be at least 0, got -1"),
        ([NAME, "--seeds", "0", "--out", "new"], "--seeds must be at least 1, got 0"),
        ([NAME, "--seed", str(2**31), "--out", "new"], "--seed must be at most 2147483647, got 2147483648"),
        ([NAME, "--seeds", "3", "--out", "new"], f"--seeds has no effect on {NAME}; leave it out"),
        (["rambo-bias", "--seeds", "2", "--out", "new"], "--seeds has no effect on rambo-bias; leave it out"),
        (["pnp-circle", "--data", "mine", "--out", "new"], "--data has no effect on pnp-circle; leave it out"),
        (["rambo-collapse", "--data", "mine", "--out", "new"], "--data has no effect on rambo-collapse; leave it out"),
        (["grid", "--seeds", "3", "--quick", "--out", "new"], "--seeds has no effect beside --quick, which has one"),
        (["grid", "--data", "nowhere", "--out", "new/deep"], "nowhere is not there; give a folder of images"),
        ([NAME, "--out", "file/x"], "--out file/x cannot be written to (Not a directory); choose another folder"),
        ([NAME, "--out", "x" * 256], "cannot be used (File name too long); choose another folder"),
        ([NAME, "--out", "a/" + "x" * 256], "cannot be written to (File name too long); choose another folder"),
        ([NAME, "--seed", "one"], "argument --seed: invalid int value: 'one'"),
        *(
            (
                [NAME, "--redraw", *words],
                f"{words[0]} has no effect beside --redraw, which measures nothing; leave one out",
            )
            for words in (["--quick"], ["--seed", "0"])
        ),
        (["grid", "--redraw", "--seeds", "3"], "--seeds has no effect beside --redraw, which measures nothing"),
        (["grid", "--redraw", "--data", "mine"], "--data has no effect beside --redraw, which measures nothing"),
        (
            ["pnp-designer", "--redraw", "--derivative", "1"],
            "--derivative has no effect beside --redraw, which measures",
        ),
        *(
            (words, f"{words[0]} has no effect without NAME, which study to do; leave it out, or give one")
            for words in (["--quick"], ["--seed", "0"], ["--out", "new"], ["--redraw"], ["--quiet"], ["--data", "mine"])
        ),
        (
            ["pnp-designer", "--derivative=-1", "--out", "new"],
            "f' must be finite and at least 0 for every R >= 0, but f'(0)",
        ),
        ([NAME, "--redrew"], "there is no option --redrew; did you mean --redraw?"),
        ([NAME, NAME], f"{NAME!r} is one argument too many"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals_are_one_line_and_lose_nothing(here, run, words, said):
    for name, content in (("other", {"study": "pnp-other"}), ("broken", {"study": NAME})):
        Path(name).mkdir()
        rest = dict.fromkeys(("found", "command", "quick", "seed", "frontrank", "torch", "machine"), 0)
        Path(name, "results.json").write_text(json.dumps(content | (rest if name == "other" else {})))
    Path("file").write_text("mine")
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    before, paths = files(here), set(here.rglob("*"))
    found = run("study", *words)
    assert (found.status, found.out) == (2, "")
    assert said in found.err
    assert found.err.startswith("frontrank study: ")
    assert found.err.count("\n") == 1
    assert files(here) == before
    assert set(here.rglob("*")) == paths


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: [],
        lambda found: {},
        lambda found: {**found, "curves": []},
        lambda found: {**found, "curves": {"linear": {}}},
        lambda found: {
            **found,
            "curves": {name: {**curve, "ap_error": "much"} for name, curve in found["curves"].items()},
        },
    ],
    ids=["a list", "nothing", "no names", "a part", "words"],
)
def test_damaged_results_are_not_drawn(here, run, damage):
    path = here / "studies" / NAME / "results.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"found": damage(kept["found"])}))
    before = files(here)
    found = run("study", NAME, "--redraw")
    assert (found.status, found.out) == (2, "")
    assert found.err == (
        f"frontrank study: studies/{NAME}/results.json does not hold what this version of {NAME} draws; "
        "run it again into another --out\n"
    )
    assert files(here) == before


def test_the_folder_is_there_before_anything_is_measured(tmp_path, monkeypatch, run):
    seen = []

    def refused(effort):
        seen.append(effort.work.parent.is_dir())
        raise InputError("--data is wrong; give another")

    changed = replace(all_studies()[NAME], measure=refused)
    monkeypatch.setattr("frontrank.cli.studying.study_named", lambda name: changed)
    here = tmp_path / "here"
    (here / "mine").mkdir(parents=True)
    monkeypatch.chdir(here)
    for out in ("new/deep", "mine"):
        assert run("study", NAME, "--out", out).status == 2
    assert seen == [True, True]
    assert list(here.rglob("*")) == [here / "mine"]
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    found = run("study", NAME, "--out", "mine")
    assert found.err == "frontrank study: --out mine cannot be written to; choose another folder\n"
    assert len(seen) == 2


def test_the_largest_seed(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    assert run("study", NAME, "--quick", "--quiet", "--seed", str(2**31 - 1)).status == 0


@pytest.mark.parametrize(
    ("words", "seeds", "data", "named"),
    [
        ([], 3, "", ""),
        (["--seeds", "3"], 3, "", ""),
        (["--seeds", "1"], 1, "", " --seeds 1"),
        (["--data", "my photos"], 3, "my photos", " --data 'my photos'"),
        (["--data", "x.csv", "--seeds", "5", "--seed", "2"], 5, "x.csv", " --seed 2 --seeds 5 --data x.csv"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_heeded_is_named(tmp_path, monkeypatch, run, words, seeds, data, named):
    efforts = []
    study = all_studies()[NAME]
    found = study.measure(Effort(tmp_path, quick=True))
    changed = {"takes": ("data", "seeds"), "measure": lambda effort: (efforts.append(effort), found)[1]}
    changed = replace(study, **changed, figures=lambda found: {})
    monkeypatch.setattr("frontrank.cli.studying.study_named", lambda name: changed)
    monkeypatch.chdir(tmp_path)
    assert run("study", NAME, "--out", "out", *words).status == 0
    assert [(effort.seeds, effort.data) for effort in efforts] == [(seeds, data)]
    kept = json.loads(Path("out/results.json").read_text())
    assert kept["command"] == f"frontrank study {NAME}{named}"
    page = Path("out/README.md").read_text(encoding="utf-8")
    assert f"\n    {kept['command']}\n" in page
    said = "The images are those of --data: what is said above of emoji or glyphs may not hold for them."
    assert page.splitlines()[-1].endswith(said) is bool(data)
    assert run("study", NAME, "--out", "out", "--redraw").status == 0
    assert Path("out/README.md").read_text(encoding="utf-8") == page


def test_stopped(tmp_path, monkeypatch, run):
    def stopped(effort):
        (effort.work / "half").mkdir(parents=True)
        (effort.work / "half" / "run.json").write_text("{}")
        raise InterruptedRunError("stopped, 1 of 4 runs are done; go on with: frontrank compare --resume x")

    study = all_studies()[NAME]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "frontrank.cli.studying.study_named", lambda name: type(study)(**{**vars(study), "measure": stopped})
    )
    found = run("study", NAME, "--out", "long")
    assert (found.status, found.out) == (130, "")
    assert found.err == "frontrank study: stopped, 1 of 4 runs are done; the same command goes on where it was\n"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run("study", NAME, "--quick", "--out", "long", "--quiet").out == "long/README.md\n"
    assert Path("long/work/half/run.json").is_file()


def test_help_shows_examples_without_torch():
    found = subprocess.run([*WITHOUT_TORCH, "study", "--help"], capture_output=True, text=True)
    assert f"frontrank study {NAME}" in found.stdout
    assert (found.returncode, found.stderr) == (0, "set()\n")


def test_usage_names_every_option():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for action in parser._actions[1:]:  # but --help
        assert f"[{(action.option_strings or [action.metavar])[0]}" in parser.usage


def test_examples_of_the_help_name_studies_that_exist():
    from frontrank.cli.study import EPILOG

    named = {line.split()[2] for line in EPILOG.splitlines() if line.startswith("  frontrank study ")}
    assert named <= set(all_studies())
