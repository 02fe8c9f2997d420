"""The commands of docs/backbones.md run, on a small network."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frontrank.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "backbones.md"
COMMANDS = re.findall(r"^frontrank (train .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
SMALL = "--weights none --data.size 32 --data.workers 0 --data.validation 0.25 --model.dim 8 --iterations 1"


@pytest.mark.training
@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRONTRANK_CACHE", str(tmp_path / "cache"))
    if "lora" in command:
        pytest.importorskip("peft")
    for label in range(8):
        (tmp_path / "my_photos" / str(label)).mkdir(parents=True)
        for number in range(4):
            colours = np.random.default_rng(number).integers(0, 60, (32, 32, 3)) + label * 24
            Image.fromarray(colours.astype(np.uint8)).save(tmp_path / "my_photos" / str(label) / f"{number}.png")
    words = shlex.split(f"{command} {SMALL}")
    words[words.index("--backbone") + 1] = "test_vit"
    assert not main(words)
    out = Path(words[words.index("--out") + 1])
    counts = json.loads((out / "run.json").read_text())["parameters"]
    assert (counts["trained"] < counts["total"] / 2) == ("layer_decay" not in command)
    assert (out / "model" / "model.safetensors").is_file()
