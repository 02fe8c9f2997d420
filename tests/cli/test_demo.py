"""`frontrank demo` as a new user runs it, small: real emoji, real weights, a run, a report."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml

import frontrank as fr
from frontrank.cli import _parser
from frontrank.cli import serve as serve_command
from frontrank.data.table import read_table
from frontrank.packages import cache_folder
from tests.fetch import NEEDED, require_packages

CACHE = cache_folder()  # as it is before a test hides it
SMALL = ["--classes", "60", "--iterations", "6"]


def demo(folder, *words):
    command = [sys.executable, "-m", "frontrank", *words]
    environment = {**os.environ, "FRONTRANK_CACHE": str(CACHE), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A finished small demonstration, and what it printed."""
    require_packages(NEEDED)
    folder = tmp_path_factory.mktemp("demo")
    done = demo(folder, "demo", "--out", "out", *SMALL)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def reports(folder, run="run"):
    return [fr.Report.load(folder / f"out/{run}/report.{side}.json") for side in ("before", "after")]


def test_it_ends_with_a_report_and_says_where_it_is(shown):
    folder, said = shown
    page = (folder / "out/run/report.html").read_text(encoding="utf-8")
    assert "out/run/report.html" in said
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert page.count("data:image/") > 20


def test_the_figures_it_prints_are_those_of_the_reports(shown):
    folder, said = shown
    printed = re.search(r"R@1 on unseen emoji: ([\d.]+)% before, ([\d.]+)% after", said)
    assert [float(each) / 100 for each in printed.groups()] == pytest.approx(
        [report["R@1"] for report in reports(folder)], abs=0.00051
    )


def test_batches_have_all_classes_where_those_are_few(shown):
    classes = len(set(read_table(shown[0] / "out/run/images.csv").of("train").labels))
    settings = yaml.safe_load((shown[0] / "out/run/config.yaml").read_text(encoding="utf-8"))
    assert settings["batches"]["size"] == 4 * classes < 448


def test_the_emoji_it_reports_on_were_never_trained_on(shown):
    images = read_table(shown[0] / "out/run/images.csv")
    test, others = set(images.of("test").labels), set(images.labels[images.splits != "test"])
    assert len(test) > 10
    assert len(others) > 10
    assert not test & others


def test_what_it_offers_to_try_works_and_finds_the_same_figures(shown):
    folder, said = shown
    offered = re.findall(r"^ +frontrank (.*)$", said, re.MULTILINE)
    evaluate = next(line for line in offered if line.startswith("evaluate"))
    done = demo(folder, *shlex.split(evaluate), "--json", "again.json")
    assert done.returncode == 0, done.stderr
    assert fr.Report.load(folder / "again.json")["mAP"] == pytest.approx(reports(folder)[1]["mAP"], abs=1e-6)
    for line in offered:
        train = shlex.split(line)
        if train[0] in ("train", "compare") and "MY_PHOTOS" not in train:
            planned = demo(folder, *train, "--dry-run")
            assert planned.returncode == 0, planned.stderr


def test_two_commands_lead_from_its_model_to_the_page(shown):
    folder, said = shown
    lines = re.findall(r"^ +frontrank (index|serve) (.*)$", said, re.MULTILINE)
    assert [name for name, _ in lines] == ["index", "serve"]
    index, serve = (shlex.split(words) for _, words in lines)
    done = demo(folder, "index", *index)
    assert done.returncode == 0, done.stderr
    assert f"frontrank serve {serve[0]} --open" in done.stderr
    parser, commands = _parser()
    serve_command.add_arguments(commands["serve"])
    options = commands["serve"].read(parser, ["serve", *serve])
    assert options.open
    with fr.Index.load(folder / options.urls[0]) as found:
        assert found.count() == len(read_table(folder / "out/emoji-60/images.csv"))
        assert len(found.labels()) == 60


def test_a_second_time_it_keeps_the_first_run_and_goes_on_with_one_that_was_stopped(shown):
    folder, _ = shown
    first = (folder / "out/run/report.html").read_bytes()
    begun = folder / "out/run-2"
    shutil.copytree(folder / "out/run", begun)
    (begun / "report.html").unlink()
    facts = json.loads((begun / "run.json").read_text())
    for name in ("steps", "best", "before", "best_step", "metric"):
        del facts[name]  # as if it had been killed before its end
    (begun / "run.json").write_text(json.dumps(facts))
    done = demo(folder, "demo", "--out", "out", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "out/run-2/report.html" in done.stdout
    assert json.loads((begun / "run.json").read_text())["resumed"]
    assert (folder / "out/run/report.html").read_bytes() == first
    assert not (folder / "out/run-3").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--classes", "3"], "--classes must be at least 40, got 3"),
        (["--iterations", "0"], "--iterations must be at least 1, got 0"),
        (["--out", "taken"], "--out taken is a file; choose another name"),
        (["--clases", "50"], "there is no option --clases; did you mean --classes?"),
    ],
    ids=["classes", "iterations", "file", "misspelt"],
)
def test_refusals(run, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("mine")
    found = run("demo", *words)
    assert found.status == 2
    assert said in found.err
    assert len(found.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
