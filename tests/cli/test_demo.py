"""`frontrank demo` as a new user runs it, small: real emoji, real weights, a run, a report."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

import frontrank as fr
from frontrank.cli import main, parse
from frontrank.data.table import read_table
from frontrank.packages import cache_folder
from frontrank.settings import read_config, read_recipe
from tests.extras import needed, packages
from tests.fetch import NEEDED, require_packages

pytestmark = pytest.mark.training
CACHE = cache_folder()  # as it is before a test hides it
SMALL = ["--out", "out", "--classes", "40", "--iterations", "2"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder of a small demonstration, and what it printed."""
    require_packages(NEEDED)
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch, (folder / "printed").open("w") as printed:
        patch.chdir(folder)
        patch.setenv("FRONTRANK_CACHE", str(CACHE))
        patch.setattr("sys.stdout", printed)
        assert main(["demo", *SMALL]) == 0
    return folder, (folder / "printed").read_text()


@pytest.fixture
def here(demo, monkeypatch):
    monkeypatch.chdir(demo[0])
    monkeypatch.setenv("FRONTRANK_CACHE", str(CACHE))
    return demo[0]


def test_it_ends_with_a_report_and_prints_its_figures(demo):
    folder, text = demo
    page = (folder / "out/run/report.html").read_text(encoding="utf-8")
    assert "out/run/report.html" in text
    assert page.count("data:image/") > 20
    figures = re.search(r"R@1 .* ([\d.]+)% before, ([\d.]+)% after", text).groups()
    reports = [fr.Report.load(folder / f"out/run/report.{side}.json") for side in ("before", "after")]
    assert [float(each) / 100 for each in figures] == pytest.approx([each["R@1"] for each in reports], abs=0.00051)


def test_the_emoji_of_the_report_were_never_trained_on(demo):
    images = read_table(demo[0] / "out/run/images.csv")
    test, others = set(images.of("test").labels), set(images.labels[images.splits != "test"])
    assert len(test) > 10
    assert len(others) > 10
    assert not test & others
    config = read_config(read_recipe(demo[0] / "out/run/config.yaml"))
    assert config.batches.size == 4 * len(set(images.of("train").labels)) < 448  # a batch has all classes


def test_the_commands_to_try_next(demo, here, run):
    assert max(map(len, demo[1].partition("try next")[2].splitlines())) <= 80
    text = demo[1].replace("\\\n", " ")
    lines = {line.split()[0]: line for line in re.findall(r"^ +frontrank (.*)$", text, re.MULTILINE)}
    assert [*lines] == ["index", "serve", "train", "report", "compare", "evaluate"]
    for line in lines.values():
        assert needed(shlex.split(line)) <= packages(["demo"])
    index = lines["index"]
    assert run(*shlex.split(index), "--workers", "0").status == 0
    url = parse(shlex.split(lines["serve"]))[1].urls[0]
    with fr.Index.load(url) as index:
        assert index.count() == len(read_table("out/emoji-40/images.csv"))
    run(*shlex.split(lines["evaluate"]), "--json", "again.json", "--workers", "0", status=0)
    after = fr.Report.load("out/run/report.after.json")
    assert fr.Report.load("again.json")["mAP"] == pytest.approx(after["mAP"], abs=1e-6)
    run(*shlex.split(lines["train"].replace("MY_PHOTOS", "out/emoji-40")), "--dry-run", status=0)


def test_a_second_time_it_goes_on_with_a_run_that_was_stopped(here, run):
    first = (here / "out/run/report.html").read_bytes()
    stopped = here / "out/run-2"
    shutil.copytree(here / "out/run", stopped)
    (stopped / "report.html").unlink()
    facts = json.loads((stopped / "run.json").read_text())
    for name in ("steps", "best", "before", "best_step", "metric"):
        del facts[name]  # as if it had been killed before its end
    (stopped / "run.json").write_text(json.dumps(facts))
    result = run("demo", *SMALL, status=0)
    assert "out/run-2/report.html" in result.out
    assert json.loads((stopped / "run.json").read_text())["resumed"]
    assert (here / "out/run/report.html").read_bytes() == first
    assert not (here / "out/run-3").exists()


@pytest.mark.processes
def test_ctrl_c_in_each_stage_and_the_same_command_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("FRONTRANK_CACHE", str(CACHE))
    require_packages(NEEDED)
    folder = tmp_path / "with a space"
    command = [sys.executable, "-m", "frontrank", "demo", "--out", folder, "--classes", "60", "--iterations", "2"]
    for stage in ("1 of 3", "2 of 3", ""):
        process = subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        if stage:
            assert any(line.startswith(stage) for line in process.stdout)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to the processes that decode, too
        out, err = process.communicate(timeout=300)
        if stage:
            (line,) = err.splitlines()
            assert (process.returncode, "same command" in line) == (130, True), err
    assert process.returncode == 0, err
    assert f"{folder}/run/report.html" in out
    commands = (
        out.partition("try next")[2].replace("\\\n", "").splitlines()
    )  # as a shell joins them when they are pasted
    (evaluate,) = (shlex.split(line) for line in commands if "frontrank evaluate" in line)
    assert evaluate[2:] == [f"{folder}/run/model", "--data", f"{folder}/emoji-60"]


@pytest.mark.parametrize(
    ("words", "name"),
    [("--classes 3", "--classes"), ("--iterations 0", "--iterations"), ("--out taken", "--out taken")],
)
def test_refusals(refused, tmp_path, monkeypatch, words, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("mine")
    refused(["demo", *words.split()], name)
