"""`frontrank report`: the report of a run or a comparison, and what it prints. That of a detector: test_detect.py."""

import json
from pathlib import Path

import pytest

import frontrank as fr
from frontrank.cli import main
from tests.cli.images import TINY, photos

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with photos and a run on them."""
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
    result = run("report", "runs/first")
    assert (result.status, result.err) == (0, "")
    assert "12 queries" in result.out.splitlines()[0]
    assert "\nnote: " in result.out
    assert "\nreport: runs/first/report.html " in result.out
    assert Path("runs/first/report.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    after = fr.Report.load("runs/first/report.after.json")
    assert f"{100 * after['mAP']:.2f}" in result.out
    assert run("evaluate", "runs/first/model", "--data", "my_photos", "--json", "e.json", "--force").status == 0
    evaluated = fr.Report.load("e.json")  # on the same images
    assert (after["mAP"], after["R@1"]) == (evaluated["mAP"], evaluated["R@1"])


def test_only_the_trained_model_and_only_the_path(here, run):
    result = run("report", "runs/first", "--no-before")
    assert "before" not in result.out
    result = run("report", "runs/first", "--quiet", "--no-before", "--out", "x.html")
    assert (result.status, result.out, result.err) == (0, "x.html\n", "")
    assert not Path("x.before.json").exists()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("runs/second", "runs/second"),
        ("my_photos", "config.yaml"),
        ("runs/first --data nothing", "--data nothing"),
        ("runs/first --device tpu", "tpu"),
        ("", "RUN"),
    ],
)
def test_refusals(here, refused, words, name):
    refused(["report", *words.split()], name)


@pytest.fixture
def comparison(tmp_path, monkeypatch):
    folder = tmp_path / "losses"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({}))
    monkeypatch.setattr("frontrank.comparison.results.read_results", lambda out: f"compared {Path(out).name}")
    page = '<!doctype html><meta name="generator" content="Frontrank">'
    monkeypatch.setattr("frontrank.comparison.report.render_comparison_page", lambda compared: page + compared)
    return folder


def test_report_of_a_comparison(comparison, run):
    for _ in range(2):  # a report is replaced
        result = run("report", comparison)
        assert (result.status, result.err) == (0, "")
        assert result.out.startswith(f"report: {comparison / 'report.html'} ")
        assert (comparison / "report.html").read_text().endswith("compared losses")
    (comparison / "report.html").write_text("mine")
    result = run("report", comparison)
    assert (result.status, (comparison / "report.html").read_text()) == (2, "mine")
    assert "--overwrite" in result.err


def test_options_of_a_run_do_not_go_with_a_comparison(comparison, refused):
    refused(["report", comparison, "--no-before"], "--no-before")
    refused(["report", comparison, "--data", "x"], "--data")
