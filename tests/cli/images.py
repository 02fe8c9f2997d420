"""Small pictures, data sets and models for the commands that read images."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import frontrank as fr
from frontrank.data.table import IMAGE_ENDINGS
from tests.data.published_trees import TREES

_SETTINGS = {
    **{"model.backbone": "test_resnet", "model.weights": "none", "model.dim": "8", "data.size": "32"},
    "model.batch_norm": "frozen",
    **{"data.resize": "32", "data.workers": "0", "data.validation": "0.34", "batches.size": "8", "iterations": "2"},
    "device": "cpu",
}
TINY = [word for name, value in _SETTINGS.items() for word in (f"--{name}", value)]  # a run of a moment
TRAIN = ("a b", "line\nbreak", "Ünï 漢字", "it's", "#5", "-x")  # names of classes that folders may have
TEST = ("cup", "a,b", "plate")
EACH = 4


def picture(path, seed, colour=128, side=32):
    """Noise around a colour, always the same for a seed; a .jpg is stored without loss too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-60, 60, (side, side, 3)) + colour
    Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(path, "PNG")


def photos(root):
    """Folders train/<class> and test/<class> of four pictures each."""
    for split, classes in (("train", TRAIN), ("test", TEST)):
        for number, name in enumerate(classes):
            for i in range(EACH):
                picture(root / split / name / f"{i}.png", 100 * number + i + 1000 * (split == "test"), 40 * number + 30)
    return root


def small_model(folder, seed=0):
    """A network with random weights, saved."""
    torch.manual_seed(seed)
    model = fr.Embedder("test_resnet", dim=8, image_size=32, resize=32)
    model.save(folder)
    return folder


def published(name, root, side=64):
    """A small published data set in its official layout, with pictures in it."""
    TREES[name](root)
    for seed, path in enumerate(sorted(root.rglob("*"))):
        if path.suffix.lower() in IMAGE_ENDINGS:
            picture(path, seed, 20 * seed % 256, side)
    return root


def tree(folder):
    """All that is below a folder, with what it holds."""
    return {str(path): path.is_file() and path.read_bytes() for path in Path(folder).rglob("*")}
