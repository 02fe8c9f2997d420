"""What a run's folder says of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from frontrank.data.table import ImageTable
from frontrank.reporting.run import count_designs, count_licences, read_credits, read_run_facts
from frontrank.settings import DataConfig, LossConfig, ModelConfig, OptimizerConfig, TrainConfig


def table_of(splits, labels, **extra):
    nothing = np.full(len(labels), "")
    return ImageTable(
        Path("x"), np.array([f"{i}.png" for i in range(len(labels))]), labels, nothing, splits, nothing, extra
    )


IMAGES = table_of(["train", "train", "validation", "test", "test"], ["a", "b", "c", "d", "d"])
CONFIG = TrainConfig(
    data=DataConfig(path="/data/emoji/images.csv", size=128),
    model=ModelConfig("lite0", weights="package", pooling="gem", dim=64),
    loss=LossConfig("PNP", variant="D_q", temperature=0.02),
    optimizer=OptimizerConfig(lr=3e-4, schedule="cosine"),
    seed=4,
)
LOG = [
    {"step": 0, "epoch": 0, "time": 100.0, "validation R@1": 0.25, "validation mAP": 0.2},
    {"step": 1, "epoch": 0.1, "time": 150.0, "loss": 2.0, "learning rate": 0.1, "images/s": 9.0, "queries": 5},
    {"step": 2, "epoch": 0.2, "time": 225.0, "loss": None, "not_finite": {"loss": "inf"}, "learning rate": 0.2},
    {"step": 3, "epoch": 0.3, "time": 231.0, "loss": 1.0, "validation R@1": 0.5, "AP error": 0.125},
]
RUN = {
    "command": "/opt/bin/frontrank train --data 'my photos'",
    "versions": {"torch": "2.9"},
    "device": "cpu",
    "commit": "2c3611f",
    "machine": "Linux-6",
}
ENDED = {"metric": "R@1", "steps": 400, "before": 0.25, "best": 0.5, "best_step": 300}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 4\n")
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG))
    (tmp_path / "run.json").write_text(json.dumps(RUN | ENDED))
    return tmp_path


def facts_of(folder, config=CONFIG, images=IMAGES):
    return read_run_facts(folder, config, images, images.of("test"), "1 unseen class")


def test_facts(folder):
    facts = facts_of(folder)
    assert facts.title == "PNP-D_q on emoji"
    assert facts.searched == "1 unseen class"
    assert facts.settings == "seed: 4\n"
    assert facts.command == "frontrank train --data 'my photos'"
    assert facts.versions == {"torch": "2.9", "commit": "2c3611f", "machine": "Linux-6"}
    assert (facts.designs, facts.credits) == ((), "")
    assert facts.licences == {}
    assert facts.facts == {
        "images": "2 of 1 unseen class",
        "trained on": "2 images of 2 classes",
        "model": "lite0, gem pooling, 64 dimensions; images of 128 px",
        "first weights": "ImageNet, from a registry package",
        "loss": "PNP (variant D_q, alpha 4.0, b 2.0, temperature 0.02, include_query False)",
        "training": "400 steps of 0 images, adam, learning rate 0.0003 (cosine), seed 4",
        "checkpoint": "step 300: R@1 50.0 % on 1 held-out class, from 25.0 %",
        "time": "2 min 11 s on cpu",
    }


def test_curves_are_those_of_the_log(folder):
    curves = facts_of(folder).curves
    assert set(curves) == {"validation R@1", "validation mAP", "loss", "AP error", "learning rate"}
    assert (curves["loss"].x.tolist(), curves["loss"].y.tolist()) == (
        [1, 3],
        [2.0, 1.0],
    )  # the infinite one is left out
    assert (curves["validation R@1"].x.tolist(), curves["validation R@1"].y.tolist()) == ([0, 3], [0.25, 0.5])


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/usr/lib/frontrank/__main__.py train --data x", "frontrank train --data x"),
        ("/usr/bin/pytest tests", "frontrank train --recipe {}/config.yaml --out NEW"),
        ("it's", "frontrank train --recipe {}/config.yaml --out NEW"),
    ],
    ids=["module", "another program", "cut off"],
)
def test_command_makes_the_run_again(folder, command, expected):
    (folder / "run.json").write_text(json.dumps({"command": command}))
    assert facts_of(folder).command == expected.format(folder)


@pytest.mark.parametrize("content", [None, "[]", "{", '{"versions": 3, "best": "x"}'])
def test_a_damaged_run_file_says_nothing(folder, content):
    (folder / "run.json").unlink()
    if content is not None:
        (folder / "run.json").write_text(content)
    facts = facts_of(folder)
    assert facts.versions == {}
    assert "checkpoint" not in facts.facts
    assert facts.facts["training"].startswith("not finished; adam")


@pytest.mark.parametrize(
    ("times", "text"),
    [((0, 0.2), None), ((0, 42), "42 s on cpu"), ((5, 7505), "2 h 5 min on cpu"), ((1,), None)],
    ids=["a moment", "seconds", "hours", "one line"],
)
def test_time(folder, times, text):
    (folder / "log.jsonl").write_text("".join(json.dumps({"step": i, "time": t}) + "\n" for i, t in enumerate(times)))
    assert facts_of(folder).facts.get("time") == text


def test_a_run_that_was_resumed_has_no_time(folder):
    (folder / "run.json").write_text(json.dumps(RUN | ENDED | {"resumed": [{}]}))
    assert "time" not in facts_of(folder).facts


@pytest.mark.parametrize("column", ["licence", "license"])
def test_licences_are_counted(column):
    table = table_of(["test"] * 5, list("abcde"), **{column: np.array(["MIT", "CC0-1.0", "MIT", " ", "CC0-1.0"])})
    assert count_licences(table) == {"CC0-1.0": 2, "MIT": 2, "not said": 1}
    assert list(count_licences(table)) == ["CC0-1.0", "MIT", "not said"]


def test_designs_have_their_licences():
    licence, design = np.array(["MIT", "CC0-1.0", "MIT", " "]), np.array(["b", "a", "b", ""])
    table = table_of(["test"] * 4, list("abcd"), licence=licence, design=design)
    assert count_designs(table) == (("a", "CC0-1.0", 1), ("b", "MIT", 2), ("not said", "not said", 1))
    assert count_designs(table_of(["test"] * 4, list("abcd"), licence=licence)) == ()
    assert count_designs(table_of(["test"] * 4, list("abcd"), design=design)) == ()


def test_credits_stand_beside_the_table(tmp_path):
    assert read_credits(str(tmp_path)) == ""
    (tmp_path / "LICENCES.md").write_bytes("drawn by Zoë".encode() + b"\xff")
    for path in (tmp_path, tmp_path / "images.csv"):
        assert read_credits(str(path)) == "drawn by Zoë\N{REPLACEMENT CHARACTER}"


def test_other_images_are_named(folder):
    facts = read_run_facts(folder, CONFIG, IMAGES, IMAGES.of("test"), "1 class", "/d/my.photos")
    assert facts.title == "PNP-D_q on my.photos"
    assert facts.facts["images"] == "2 of 1 class of my.photos"
    assert facts.facts["trained on"] == "2 images of 2 classes of emoji"
