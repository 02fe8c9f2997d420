"""`frontrank compare`: its options, the plan it prints, and what it refuses."""

import json
import re

import pytest

from frontrank.cli import parse
from frontrank.comparison import runner
from frontrank.losses.registry import presets
from frontrank.settings import settings
from tests.cli.images import TINY
from tests.comparison.comparisons import count_tasks, done_without_training

SMALL = [word for pair in zip(TINY[::2], TINY[1::2], strict=True) if pair[0] != "--iterations" for word in pair]


def test_every_setting_is_an_option_and_every_loss_is_in_the_help(run):
    text = run("compare", "--help").out
    assert "--optimizer.lr" not in text
    assert [name for name in presets() if name not in text] == []
    names = [name for name in settings() if name not in ("data.path", "data.allow_partial")]
    options = parse(["compare", *(word for name in names for word in (f"--{name}", "1"))])[1]
    assert all(getattr(options, name) == "1" for name in names)


def test_the_plan(here, run):
    words = ("--losses", "PNP-D_q(alpha=2),triplet", "--seeds", "2", "--iterations", "30", *SMALL, "--dry-run")
    result = run("compare", "--data", "my_photos", *words, "--out", "out", status=0)
    assert re.search(r"\nPNP-D_q\(alpha=2\) .*5e-05.*0.00015.*0.00045.*PNP", result.out)
    assert re.fullmatch("8 runs .*30 .*2 seeds.* out", result.out.splitlines()[-1])
    result = run("compare", "--data", "my_photos", *words, "--search-iterations", "5")
    last = "10 runs of 30 iterations, of 5 .*; 2 seeds; .*comparisons/2-losses-on-my_photos"
    assert re.fullmatch(last, result.out.splitlines()[-1])


@pytest.mark.training
def test_from_the_command_to_the_page_and_on(here, run, monkeypatch):
    tasks = count_tasks(monkeypatch)
    words = ("--data", "my_photos", "--losses", "SmoothAP,FastAP", "--lr", "1e-3", "--out", "out", *TINY)
    result = run("compare", *words, "--seeds", "1", status=0)
    assert "\nresults: out/results.md" in result.out
    assert "\nreport: out/report.html\n" in result.out
    assert re.search("run 1 of 2: SmoothAP, .* 0.001, seed 0\n", result.err)
    assert "SmoothAP" in (here / "out" / "report.html").read_text(encoding="utf-8")
    assert len(tasks) == 3

    monkeypatch.setattr(runner, "run_task", lambda *a, **k: tasks.append(a[0]) or done_without_training(*a, **k))
    again = run("compare", *words, "--seeds", "2", "--quiet", "--reference", "FastAP")  # the same command, more seeds
    assert (again.status, again.err, len(tasks)) == (0, "", 5)
    assert json.loads((here / "out" / "results.json").read_text())["reference"] == "FastAP"
    last = run("compare", "--resume", "out")
    assert (last.out, len(tasks)) == (again.out, 5)
    other = run("compare", *words, "--seeds", "2", "--batches.per_class", "2")
    assert (other.status, other.out, other.err.count("\n")) == (2, "", 1)
    assert "batches.per_class" in other.err


def test_no_entry_has_a_result(here, run, monkeypatch):
    def fail(task, config, target, beside, what, **others):
        beside.parent.mkdir(parents=True, exist_ok=True)
        return done_without_training(task, config, target, beside, what) if task == "frozen" else "disk full"

    monkeypatch.setattr(runner, "run_task", fail)
    result = run("compare", "--data", "my_photos", "--losses", "SmoothAP", "--lr", "1e-3", "--out", "out", *TINY)
    assert result.status == 2
    assert "SmoothAP: disk full" in result.err
    assert "--resume out" in result.err
    assert "failed" in result.out


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("", "--data"),
        ("--data nowhere", "nowhere"),
        ("--data my_photos --losses smothap", "SmoothAP?"),
        ("--data my_photos --recipe pnp-sopp", "pnp-sop?"),
        ("--data my_photos --out my_photos", "--out my_photos"),
        ("--resume my_photos", "my_photos"),
        ("--resume x --data y", "--data"),
        ("--resume x --iterations 3", "--iterations"),
    ],
)
def test_refusals(here, refused, words, name):
    refused(["compare", *words.split()], name)
