"""A small collection, a model and an index that are attacked, and commands that run as a user's do."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

import frontrank as fr

CLASSES, EACH, SIDE = 8, 6, 64

Row = tuple[str, int, int, str]  # what was attacked, how often, how often it failed, and what happened


@dataclass(frozen=True)
class Sample:
    """Folders: pictures by class, a model, an index of the pictures, and one for whatever the attacks write."""

    photos: Path
    model: Path
    index: Path
    work: Path


def make_sample(folder: Path) -> Sample:
    """Write the pictures, a small model with random weights, and an index."""
    sample = Sample(folder / "photos", folder / "model", folder / "photos.index", folder / "work")
    sample.work.mkdir()
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        (sample.photos / f"class{label}").mkdir(parents=True)
        colour = rng.uniform(0, 255, 3)
        for number in range(EACH):
            pixels = np.clip(colour + rng.normal(0, 60, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(sample.photos / f"class{label}" / f"{number}.png")
    fr.Embedder("test_resnet", dim=8, image_size=SIDE).save(sample.model)
    run_command(["index", str(sample.model), str(sample.photos), "--to", str(sample.index), "--quiet"])
    return sample


def start_command(words: list[str], output: Path) -> "subprocess.Popen[bytes]":
    """Start a command in a process group of its own; its output goes to a file."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "frontrank", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )


def run_command(words: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; RuntimeError if it fails."""
    result = subprocess.run(
        [sys.executable, "-m", "frontrank", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if result.returncode:
        raise RuntimeError(f"frontrank {' '.join(words)} ended with {result.returncode}: {result.stderr[-2000:]}")
    return result
