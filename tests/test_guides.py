"""The commands of the guides run as they stand, on small pictures and a small network.

Those of docs/your_own_embeddings.md are in tests/cli/test_adapt.py.
"""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frontrank.cli import main

DOCS = Path(__file__).parents[1] / "docs"
SMALL = "--weights none --data.size 32 --data.workers 0 --data.validation 0.25 --model.dim 8"


def commands(page):
    return re.findall(r"^frontrank .*$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a command of a guide in a folder with my_photos."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRONTRANK_CACHE", str(tmp_path / "cache"))
    for label in range(8):
        (tmp_path / "my_photos" / str(label)).mkdir(parents=True)
        for number in range(4):
            colours = np.random.default_rng(number).integers(0, 60, (32, 32, 3)) + label * 24
            Image.fromarray(colours.astype(np.uint8)).save(tmp_path / "my_photos" / str(label) / f"{number}.png")

    def run(command, backbone="test_resnet", more=""):
        words = shlex.split(command)[1:]
        if words[0] == "train":
            words += shlex.split(f"{SMALL} {more} --backbone {backbone}")
        assert not main(words), command
        return words

    return run


@pytest.mark.training
@pytest.mark.parametrize("command", commands("backbones.md"))
def test_backbones(command, run):
    if "lora" in command:
        pytest.importorskip("peft")
    words = run(command, "test_vit", "--iterations 1")
    out = Path(words[words.index("--out") + 1])
    counts = json.loads((out / "run.json").read_text())["parameters"]
    assert (counts["trained"] < counts["total"] / 2) == ("layer_decay" not in command)
    assert (out / "model" / "model.safetensors").is_file()


@pytest.mark.training
def test_your_own_photos(run, capsys):
    lines = commands("your_own_photos.md")
    assert {line.split()[1] for line in lines} == {"train", "evaluate"}
    for line in lines:
        run(line.replace("--minutes 10", "--minutes 0.02"))
    assert "R@1" in capsys.readouterr().out
