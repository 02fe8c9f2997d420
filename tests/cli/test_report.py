"""`frontrank report`: the report of a run or a comparison, and what it says."""

import json
import subprocess
from pathlib import Path

import pytest

import frontrank as fr
from tests.cli.images import TINY, photos
from tests.cli.test_main import WITHOUT_TORCH


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with photos and a run on them."""
    from frontrank.cli import main

    folder = tmp_path_factory.mktemp("reported")
    photos(folder / "my_photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        assert main(["train", "--data", "my_photos", "--out", "runs/first", "--quiet", *TINY]) == 0
    return folder


@pytest.fixture
def here(trained, monkeypatch):
    monkeypatch.chdir(trained)
    monkeypatch.setenv("XDG_CACHE_HOME", str(trained / "cache"))
    for path in (trained / "runs" / "first").glob("report.*"):
        path.unlink()
    return trained


def test_report_of_a_run(here, run):
    found = run("report", "runs/first")
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith("after against before on the same 12 queries\n")
    assert "\nintervals and p are over 3 classes, as queries of a class are alike\n" in found.out
    assert "note: the map shows all 12 images by the first two principal components\n" in found.out
    assert found.out.endswith("\nreport: runs/first/report.html    open it in a browser\n")
    page = Path("runs/first/report.html").read_text(encoding="utf-8")
    assert "frontrank train --data my_photos" in page or "--recipe" in page
    after = fr.Report.load("runs/first/report.after.json")
    assert after.queries == 12
    assert f"{100 * after['mAP']:.2f}" in found.out


def test_the_same_images_as_evaluate(here, run):
    run("report", "runs/first")
    assert run("evaluate", "runs/first/model", "--data", "my_photos", "--json", "e.json", "--force").status == 0
    evaluated, reported = fr.Report.load("e.json"), fr.Report.load("runs/first/report.after.json")
    assert reported["mAP"] == evaluated["mAP"]
    assert reported["R@1"] == evaluated["R@1"]


def test_quiet_is_the_path_alone(here, run):
    found = run("report", "runs/first", "--quiet", "--no-before", "--out", "x.html")
    assert (found.status, found.out, found.err) == (0, "x.html\n", "")
    assert not Path("x.before.json").exists()


def test_only_the_trained_model(here, run):
    found = run("report", "runs/first", "--no-before")
    assert "12 queries, gallery of 12 items" in found.out
    assert "before" not in found.out


def test_other_images(here, run):
    found = run("report", "runs/first", "--data", "my_photos/train", "--out", "other.html", "--overwrite")
    assert found.status == 0
    assert "of the 24 images were trained on: the figures are too good" in found.out


def test_a_file_of_mine_is_kept_unless_i_say_so(here, run):
    Path("mine.html").write_text("mine")
    found = run("report", "runs/first", "--out", "mine.html")
    assert found.status == 2
    expected = "mine.html is no report of Frontrank; choose another name, or add --overwrite"
    assert found.err == f"frontrank report: {expected}\n"
    assert Path("mine.html").read_text() == "mine"
    assert run("report", "runs/first", "--out", "mine.html", "--overwrite").status == 0
    assert run("report", "runs/first", "--out", "mine.html").status == 0  # a report now


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs/second"], "runs/second is not there, or no folder; give the folder of a run, as of --out"),
        (["my_photos"], "my_photos holds no run (there is no config.yaml); give the folder of --out of a run"),
        (["runs/first", "--data", "nothing"], "--data nothing is not there; "),
        (["runs/first", "--device", "tpu"], "device 'tpu' cannot be used"),
        (["runs/first", "--befor"], "there is no option --befor"),
        ([], "the following arguments are required: RUN"),
    ],
    ids=["not there", "no run", "no data", "no device", "no option", "nothing"],
)
def test_refusals_are_one_line(here, run, words, said):
    found = run("report", *words)
    assert found.status == 2
    assert found.out == ""
    assert said in found.err
    assert found.err.count("\n") == 1


@pytest.fixture
def comparison(here, tmp_path, monkeypatch):
    folder = tmp_path / "losses"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({}))
    monkeypatch.setattr("frontrank.comparison.results.read_comparison", lambda out: f"compared {Path(out).name}")
    page = '<!doctype html><meta name="generator" content="Frontrank">'
    monkeypatch.setattr("frontrank.comparison.report.comparison_page", lambda compared: page + compared)
    return folder


def test_report_of_a_comparison(comparison, run):
    for _ in range(2):  # a report is replaced
        found = run("report", comparison)
        assert (found.status, found.err) == (0, "")
        assert found.out == f"report: {comparison / 'report.html'}    open it in a browser\n"
        assert (comparison / "report.html").read_text().endswith("compared losses")


def test_a_page_of_mine_is_not_replaced_by_a_comparison(comparison, run):
    (comparison / "report.after.json").write_text("mine")  # not written beside the page of a comparison
    assert run("report", comparison).status == 0
    (comparison / "report.html").write_text("mine")
    found = run("report", comparison)
    assert found.status == 2
    assert "is no report of Frontrank; choose another name, or add --overwrite" in found.err
    assert (comparison / "report.html").read_text() == (comparison / "report.after.json").read_text() == "mine"


@pytest.mark.parametrize("words", [["--no-before"], ["--data", "x"]], ids=["no-before", "data"])
def test_options_of_a_run_do_not_go_with_a_comparison(comparison, run, words):
    found = run("report", comparison, *words)
    assert found.status == 2
    assert found.err.startswith(f"frontrank report: {words[0]} is of a run's report, and {comparison} holds")


def test_help_shows_examples_without_torch():
    found = subprocess.run([*WITHOUT_TORCH, "report", "--help"], capture_output=True, text=True)
    assert "frontrank report runs/first --out first.html --no-before" in found.stdout
    assert (found.returncode, found.stderr) == (0, "set()\n")
