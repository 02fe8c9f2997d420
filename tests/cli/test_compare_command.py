"""`frontrank compare`: its options, the plan it prints, and what it refuses."""

import json
import shlex
import shutil
import subprocess

import pytest

from frontrank.cli import _parser
from frontrank.cli import compare as command
from frontrank.comparison import runner as comparison
from frontrank.losses.registry import presets
from frontrank.settings import settings
from tests.cli.images import TINY, tree
from tests.cli.test_main import WITHOUT_TORCH
from tests.comparison.comparisons import count_tasks, done_without_training

SMALL = [word for pair in zip(TINY[::2], TINY[1::2], strict=True) if pair[0] != "--iterations" for word in pair]


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A current folder with my_photos in it."""
    folder = tmp_path / "here"
    shutil.copytree(made / "my_photos", folder / "my_photos")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def tasks(monkeypatch):
    return count_tasks(monkeypatch)


def examples():
    shown = command.EPILOG.split("examples:\n")[1].split("\n\n")[0].replace("\\\n", " ")
    return [" ".join(line.split()) for line in shown.splitlines()]


@pytest.mark.parametrize("example", [each for each in examples() if "--resume" not in each])
def test_examples_of_the_help(here, run, example):
    """As they stand they parse, and their plans can be made with few images."""
    words = shlex.split(example)[1:]
    parser, commands = _parser()
    command.add_arguments(commands["compare"])
    commands["compare"].read(parser, words)
    small = ["--batches.size", "0"] if "--data.merge_classes" in words else []
    found = run(*words, *SMALL, *small, *(() if "--dry-run" in words else ("--dry-run",)))
    assert found.status == 0, found.err
    assert " runs of " in found.out
    assert not (here / "comparisons").exists()


def test_help_is_short_and_names_every_loss(run):
    found = run("compare", "--help")
    assert found.status == 0
    assert found.out.endswith(command.EPILOG)
    assert "--optimizer.lr" not in found.out
    assert all(name in " ".join(command.EPILOG.split()) for name in presets())
    assert max(map(len, found.out.splitlines())) <= 84
    parser, commands = _parser()
    command.add_arguments(commands["compare"])
    words = [
        word for name in settings() if name not in ("data.path", "data.allow_partial") for word in (f"--{name}", "1")
    ]
    commands["compare"].read(parser, ["compare", *words])  # all of them are options all the same


def test_help_needs_no_torch():
    found = subprocess.run([*WITHOUT_TORCH, "compare", "--help"], capture_output=True, text=True)
    assert found.stdout.startswith("usage: frontrank compare")
    assert (found.returncode, found.stderr) == (0, "set()\n")


def test_the_plan(here, run):
    words = ("--losses", "PNP-D_q(alpha=2),triplet", "--seeds", "2", "--iterations", "30")
    found = run("compare", "--data", "my_photos", *words, *SMALL, "--out", "out", "--dry-run")
    assert found.status == 0, found.err
    lines = found.out.splitlines()
    assert lines[0].startswith("split ")
    assert any(
        line.startswith("PNP-D_q(alpha=2)  learning rate 3.3e-06 or 1e-05 or 3e-05; loss.name PNP") for line in lines
    )
    assert lines[-1] == "8 runs of 30 iterations; 2 seeds; into out"
    found = run("compare", "--data", "my_photos", *words, *SMALL, "--search-iterations", "5", "--dry-run")
    last = "10 runs of 30 iterations, of 5 iterations in a search; 2 seeds; into comparisons/2-losses-on-my_photos\n"
    assert found.out.endswith(last)


def test_from_the_command_to_the_page_and_on(here, run, tasks, monkeypatch):
    words = ("--data", "my_photos", "--losses", "SmoothAP,FastAP", "--lr", "1e-3", "--out", "out", *TINY)
    found = run("compare", *words, "--seeds", "1")
    assert found.status == 0, found.err
    assert found.out.startswith("2 losses on my_photos\n12 images of 3 classes to test; ")
    assert "frozen backbone" in found.out
    assert "results: out/results.md, .csv and .json\nreport: out/report.html\n" in found.out
    assert "run 1 of 2: SmoothAP, learning rate 0.001, seed 0\n" in found.err
    page = (here / "out" / "report.html").read_text(encoding="utf-8")
    assert "SmoothAP" in page
    assert len(tasks) == 3

    monkeypatch.setattr(comparison, "done_apart", lambda *a, **k: tasks.append(a[0]) or done_without_training(*a, **k))
    again = run("compare", *words, "--seeds", "2", "--quiet", "--reference", "FastAP")  # the same command, more seeds
    assert (again.status, again.err, len(tasks)) == (0, "", 5)
    assert json.loads((here / "out" / "results.json").read_text())["reference"] == "FastAP"

    last = run("compare", "--resume", "out")
    assert last.out == again.out
    assert len(tasks) == 5

    other = run("compare", *words, "--seeds", "2", "--batches.per_class", "2")
    assert (other.status, other.out) == (2, "")
    assert "--out out holds another comparison: batches.per_class is 4 there and 2 now; choose another" in other.err
    assert other.err.count("\n") == 1


def test_stopped(here, run, monkeypatch):
    monkeypatch.setattr(comparison, "done_apart", lambda *_, **__: None)
    found = run("compare", "--data", "my_photos", "--losses", "SmoothAP", "--out", "o u t", *TINY)
    assert found.status == 130
    assert "0 of 5 runs are done; go on with: frontrank compare --resume " in found.err
    assert found.err.endswith("/here/o u t'\n")


def test_nothing_came_out(here, run, monkeypatch):
    monkeypatch.setattr(comparison, "done_apart", failing)
    found = run("compare", "--data", "my_photos", "--losses", "SmoothAP", "--lr", "1e-3", "--out", "out", *TINY)
    assert found.status == 2
    assert found.err.endswith(": no entry has a result (SmoothAP: the disk is full); mend it, then --resume out\n")
    assert "failed" in found.out


def failing(task, config, target, beside, what, **others):
    beside.parent.mkdir(parents=True, exist_ok=True)
    return done_without_training(task, config, target, beside, what) if task == "frozen" else "the disk is full"


REFUSALS = [
    ((), "there are no images; give --data"),
    (("--data", "nowhere"), "nowhere is not there"),
    (("--data", "my_photos", "--losses", "smothap"), "there is no loss 'smothap'; did you mean SmoothAP?"),
    (("--data", "my_photos", "--seeds", "many"), "argument --seeds: invalid int value: 'many'"),
    (("--data", "my_photos", "--loses", "x"), "there is no option --loses; did you mean --losses?"),
    (("--data", "my_photos", "--recipe", "pnp-sopp"), "there is no recipe 'pnp-sopp'; did you mean pnp-sop?"),
    (("--resume", "my_photos"), "my_photos holds no comparison (there is no comparison.json)"),
    (("--resume", "x", "--losses", "y"), "--losses does not go with --resume"),
    (("--resume", "x", "--data", "y"), "--data does not go with --resume"),
    (("--resume", "x", "--search-iterations", "3"), "--search-iterations does not go with --resume"),
    (("--resume", "x", "--iterations", "3"), "--iterations does not go with --resume"),
    (("--resume", "x", "--dry-run"), "--dry-run does not go with --resume"),
    (("--data", "my_photos", "--out", "my_photos"), "--out my_photos is not empty; choose another name"),
]


@pytest.mark.parametrize(("words", "message"), REFUSALS, ids=[row[1][:50] for row in REFUSALS])
def test_refused_in_one_line(here, run, words, message):
    before = tree(here)
    found = run("compare", *words)
    assert (found.status, found.out) == (2, ""), found.err
    assert found.err.count("\n") == 1
    assert message in found.err
    assert tree(here) == before
