"""`frontrank detect train`: from its options to a run's folder, and what it refuses before it works."""

import json
import os
import re
import shlex
import signal
from pathlib import Path

import pytest

from frontrank.cli import _parser
from frontrank.cli import detect as command
from frontrank.detection import Detector
from frontrank.detection.settings import DetectConfig
from frontrank.settings import read_config, read_recipe, recipe_names, settings
from frontrank.training import loop
from tests.cli.images import tree
from tests.detection.runs import draw_scenes

TINY = shlex.split(
    "--backbone small --weights none --model.channels 16 --model.head_dim 16 --model.anchor_scale 4 "
    "--model.proposals 40 --model.proposals_test 30 --model.samples 16 --data.short_side 48 --data.long_side 64 "
    "--data.workers 0 --batch 4 --iterations 2 --optimizer.warmup 0 --device cpu"
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_scenes(tmp_path_factory.mktemp("drawn"))


@pytest.fixture
def here(drawn, tmp_path, monkeypatch):
    """A current folder with scenes in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "scenes").symlink_to(drawn)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def refused(run, here):
    """A function that runs the command and gives the one line it refuses by; nothing is written."""

    def line(*words):
        before = tree(here)
        found = run("detect", "train", *words)
        assert (found.status, found.out) == (2, ""), found.err
        assert found.err.count("\n") == 1
        assert tree(here) == before
        return re.sub(r"^frontrank detect( train)?: ", "", found.err).rstrip("\n")

    return line


def test_help_names_every_setting_and_its_examples_parse(run):
    found = run("detect", "train", "--help")
    assert found.status == 0
    for name in settings(DetectConfig):
        assert name in ("data.path", "data.allow_partial") or f"--{name} " in found.out
    lines = re.findall(r"^  (?:torchrun .* -m )?(frontrank .*)$", command.TRAIN_EPILOG, re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        parser, commands = _parser()
        command.add_arguments(commands["detect"])
        options = commands["detect"].read(parser, shlex.split(line)[1:])
        assert options.data or options.resume
        if options.recipe:
            assert options.recipe in recipe_names(DetectConfig)


def test_the_command_without_an_action_and_with_a_wrong_one(run):
    assert "train" in run("detect", "--help").out
    assert run("detect").status == 2
    assert run("detect", "trian").status == 2


def test_recipes_are_listed(run):
    found = run("detect", "train", "--recipes")
    assert [line.split()[0] for line in found.out.splitlines()] == list(recipe_names(DetectConfig))


REFUSALS = [
    ("--loss.lamb 1", "there is no option --loss.lamb; did you mean --loss.lam?"),
    ("--loss.lam much", "loss.lam must be"),
    ("--loss.name AP", "loss.name must be"),
    ("--loss.scores sigmoid", "loss.scores must be"),
    ("--batch 0", "batch must be"),
    ("--batch 40", "batch is 40, but there are 12 pictures to train with"),
    ("--backbone resnet5", "backbone 'resnet5' is not known; did you mean resnet50?"),
    ("--weights package", "weights package are by timm's names"),
    ("--weights nowhere", "weights 'nowhere' is no file or folder"),
    ("--data.validation 0.01", "data.validation 0.01 of 12 pictures is 0; take another share"),
    ("--data.layout coco8", "layout must be one of"),
    ("--optimizer.warmup 9", "optimizer.warmup"),
    ("--device rocket", "device 'rocket' cannot be used"),
    ("--out scenes", "--out scenes is not empty; choose another name"),
    ("--out scenes --dry-run", "--out scenes is not empty; choose another name"),
    ("--recipe pnp-sop", "recipe pnp-sop is for frontrank train; use that"),
    ("--recipe detect-emoji-rmbo", "there is no recipe 'detect-emoji-rmbo'; did you mean detect-emoji-rambo?"),
]


@pytest.mark.parametrize(("words", "message"), REFUSALS)
def test_refused_in_one_line(refused, words, message):
    given = words.split(" ")
    small = [word for pair in zip(TINY[::2], TINY[1::2], strict=True) if pair[0] not in given for word in pair]
    assert message in refused("--data", "scenes", *small, *given)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "there are no pictures; give --data, a folder in the layout of Pascal VOC or COCO"),
        ("--recipe detect-emoji-rambo", "there are no pictures; give --data"),
        ("--data nowhere", "nowhere is not there"),
        ("--resume nowhere", "--resume nowhere holds no run"),
        ("--resume scenes --recipe x", "--recipe does not go with --resume"),
        ("--resume scenes --dry-run", "--dry-run does not go with --resume"),
    ],
)
def test_refused_without_more(refused, words, message):
    assert message in refused(*words.split())


def test_dry_run_says_all_and_writes_nothing(here, run, tmp_path):
    before = tree(tmp_path)
    found = run("detect", "train", "--data", "scenes", *TINY, "--dry-run", "--data.validation", "0.25")
    assert found.status == 0, found.err
    assert tree(tmp_path) == before
    said, _, recipe = found.out.partition("settings, as a recipe:\n\n")
    lines = dict(line.split(None, 1) for line in said.splitlines() if line[:1].isalpha() and "  " in line)
    assert "9 to train with, 3 held out to choose the checkpoint" in said
    assert "4 pictures each, 2 an epoch; 2 steps" in lines["batches"]
    assert "ProposalAP(" in lines["loss"]
    # 4 pictures x 16 proposals x 3 classes, and seven such batches in the memory at 5 bytes each
    assert lines["lists"] == "up to 1,536 scores a step; those of past batches take 0.0 MB"
    assert lines["out"] == "runs/scenes-RaMBO" or lines["out"].startswith("runs/")
    (here / "plan.yaml").write_text(recipe)
    config = read_config(read_recipe(here / "plan.yaml", DetectConfig), None, DetectConfig)
    assert (config.batch, config.data.validation, config.model.batch_norm) == (4, 0.25, "train")


def test_what_a_run_prints_and_leaves(here, run):
    found = run("detect", "train", "--data", "scenes", *TINY, "--data.validation", "0.25", "--out", "my run")
    assert found.status == 0, found.err
    first, second = found.out.splitlines()
    assert re.fullmatch(r"trained 2 steps; held-out pictures: AP50 \d\.\d{4} at the best checkpoint \(step \d\)", first)
    assert second == "detector: 'my run/model'    try: frontrank detect evaluate 'my run'"
    assert "step 1/2" in found.err  # a line per logged step, where there is no terminal
    assert Detector.load("my run/model").classes == ("blue", "green", "red")
    assert json.loads(Path("my run/run.json").read_text())["steps"] == 2
    again = run("detect", "train", "--data", "scenes", *TINY, "--out", "my run")
    assert again.status == 2
    assert "holds a run; go on with --resume" in again.err


def test_a_run_is_resumed(here, run, monkeypatch):
    own = loop.take_step

    def step(*parts):
        os.kill(os.getpid(), signal.SIGINT)
        return own(*parts)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", step)
        found = run("detect", "train", "--data", "scenes", *TINY, "--out", "run", "--quiet")
    assert found.status == 130
    assert found.err.endswith("stopped at step 1 of 2, and saved; go on with: frontrank detect train --resume run\n")
    found = run("detect", "train", "--resume", "run", "--quiet")
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith("trained 2 steps\n")


def test_cross_entropy_by_one_option(here, run):
    found = run("detect", "train", "--data", "scenes", *TINY, "--loss.name", "cross-entropy", "--quiet")
    assert found.status == 0, found.err
    lines = Path("runs/scenes-cross-entropy/log.jsonl")
    assert lines.exists() or list(Path("runs").glob("*-cross-entropy/log.jsonl"))
