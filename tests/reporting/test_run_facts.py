"""What a run's folder says of it, and the embeddings that are kept beside it."""

import json
import os

import numpy as np
import pytest

from frontrank.reporting.run import (
    count_designs,
    count_licences,
    images_digest,
    read_credits,
    read_or_make_embeddings,
    read_run_facts,
)
from frontrank.settings import DataConfig, LossConfig, ModelConfig, OptimizerConfig, TrainConfig
from tests.reporting.samples import table_of

IMAGES = table_of("abcdd", splits=["train", "train", "validation", "test", "test"])
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


def facts_of(folder, *data):
    return read_run_facts(folder, CONFIG, IMAGES, IMAGES.of("test"), "1 unseen class", *data)


def test_facts(folder):
    facts = facts_of(folder)
    assert facts.title == "PNP-D_q on emoji"
    assert facts.searched == "1 unseen class"
    assert facts.settings == "seed: 4\n"
    assert facts.command == "frontrank train --data 'my photos'"
    assert facts.versions == {"torch": "2.9", "commit": "2c3611f", "machine": "Linux-6"}
    assert (facts.designs, facts.credits, facts.licences) == ((), "", {})
    words = {
        "images": ("2 of", "1 unseen class"),
        "trained on": ("2 images", "2 classes"),
        "model": ("lite0", "gem", "64", "128 px"),
        "first weights": ("ImageNet",),
        "loss": ("PNP", "variant D_q", "alpha 4.0", "temperature 0.02"),
        "training": ("400 steps", "adam", "0.0003 (cosine)", "seed 4"),
        "checkpoint": ("step 300", "R@1 50.0 %", "1 held-out class", "25.0 %"),
        "time": ("2 min 11 s", "cpu"),
    }
    assert list(facts.facts) == list(words)
    for name, parts in words.items():
        assert all(part in facts.facts[name] for part in parts), facts.facts[name]


def test_curves_are_those_of_the_log(folder):
    curves = facts_of(folder).curves
    assert set(curves) == {"validation R@1", "validation mAP", "loss", "AP error", "learning rate"}
    points = {name: (curve.x.tolist(), curve.y.tolist()) for name, curve in curves.items()}
    assert points["loss"] == ([1, 3], [2.0, 1.0])  # the infinite one is left out
    assert points["validation R@1"] == ([0, 3], [0.25, 0.5])


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
    assert facts.facts["training"].startswith("not finished")


@pytest.mark.parametrize("column", ["licence", "license"])
def test_licences_are_counted(column):
    licences = count_licences(table_of("abcde", **{column: np.array(["MIT", "CC0-1.0", "MIT", " ", "CC0-1.0"])}))
    assert list(licences.items()) == [("CC0-1.0", 2), ("MIT", 2), ("not said", 1)]


def test_designs_have_their_licences():
    licence, design = np.array(["MIT", "CC0-1.0", "MIT", " "]), np.array(["b", "a", "b", ""])
    designs = count_designs(table_of("abcd", licence=licence, design=design))
    assert designs == (("a", "CC0-1.0", 1), ("b", "MIT", 2), ("not said", "not said", 1))
    assert count_designs(table_of("abcd", licence=licence)) == count_designs(table_of("abcd", design=design)) == ()


def test_credits_stand_beside_the_table(tmp_path):
    assert read_credits(str(tmp_path)) == ""
    (tmp_path / "LICENCES.md").write_bytes("drawn by Zoë".encode() + b"\xff")
    for path in (tmp_path, tmp_path / "images.csv"):
        assert read_credits(str(path)) == "drawn by Zoë\N{REPLACEMENT CHARACTER}"


# Embeddings are kept for the images and the model they are of, and for no others

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def table(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.png").write_text(name)
    return files_of(tmp_path)


def files_of(folder, **extra):
    return table_of("xxy", root=folder, paths=["a.png", "b.png", "c.png"], **extra)


class Maker:
    calls = 0

    def __call__(self):
        self.calls += 1
        return ROWS + self.calls


def embed(tmp_path, table, make, name="after", model="model"):
    return read_or_make_embeddings(tmp_path / "kept", name, model, table, make)


def touch(table):
    os.utime(table.root / "b.png", ns=(1, 1))
    return table


def move(table):
    (table.root / "elsewhere").mkdir()
    for name in "abc":
        (table.root / f"{name}.png").rename(table.root / "elsewhere" / f"{name}.png")
    return files_of(table.root / "elsewhere")


CHANGES = {
    "a picture": touch,
    "the order": lambda table: table.rows(np.array([1, 0, 2])),
    "the root": move,
    "a box": lambda table: files_of(table.root, box=np.array(["", "0 0 1 1", ""])),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_they_are_made_once_and_other_images_have_their_own(tmp_path, table, change):
    make = Maker()
    for _ in range(2):
        rows = embed(tmp_path, table, make)
        assert (make.calls, rows.dtype) == (1, np.float32)
        assert np.array_equal(rows, ROWS + 1)
    assert np.array_equal(embed(tmp_path, change(table), make), ROWS + 2)


def test_another_model_takes_the_place_of_the_first(tmp_path, table):
    make = Maker()
    for name, model in (("after", "one"), ("after", "two"), ("after", "two"), ("before", "one")):
        embed(tmp_path, table, make, name, model)
    assert make.calls == 3
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "kept").iterdir()) == ["after", "before"]


DAMAGES = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-4]),
    "other rows": lambda path: np.save(path, ROWS[:2]),
    "not finite": lambda path: np.save(path, ROWS * np.float32("nan")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_ones_are_made_again(tmp_path, table, damage):
    make = Maker()
    embed(tmp_path, table, make)
    damage(next((tmp_path / "kept").iterdir()))
    assert np.array_equal(embed(tmp_path, table, make), ROWS + 2)


def test_where_nothing_can_be_written_they_are_made_all_the_same(tmp_path, table):
    (tmp_path / "kept").write_text("a file")
    assert np.array_equal(embed(tmp_path, table, Maker()), ROWS + 1)
    assert (tmp_path / "kept").read_text() == "a file"


def test_a_picture_that_is_missing_has_a_digest_of_its_own(table):
    before = images_digest(table)
    (table.root / "c.png").unlink()
    assert images_digest(table) != before
