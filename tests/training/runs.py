"""Small runs for tests: glyphs of 32 px, a tiny network, and what a run leaves behind."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from frontrank.settings import BatchConfig, DataConfig, LossConfig, ModelConfig, OptimizerConfig, TrainConfig
from frontrank.training.checkpoints import latest_checkpoint, read_state
from tests.pictures import glyph_pictures

SMALL = TrainConfig(
    data=DataConfig(validation=0.2, resize=32, size=32, augment="shift", workers=0),
    batches=BatchConfig(size=16, per_class=4),
    model=ModelConfig(backbone="test_resnet", weights="none", dim=16, batch_norm="frozen"),
    loss=LossConfig("PNP", variant="D_s", temperature=0.05),
    optimizer=OptimizerConfig(lr=1e-3),
    epochs=3,
    checkpoint_every=2,
    log_every=1,
    device="cpu",
)


def small_table(folder):
    """The path of a table of 80 images of 10 training classes, and as many for test."""
    glyph_pictures(folder, classes=20).save(Path(folder) / "images.csv")
    return str(Path(folder) / "images.csv")


def config_of(path, **groups):
    """The small settings with some changed, by group: batches={"chunk": 4}."""
    changed = {
        name: replace(getattr(SMALL, name), **value) if isinstance(value, dict) else value
        for name, value in groups.items()
    }
    config = replace(SMALL, **changed)
    return replace(config, data=replace(config.data, path=path))


def last_state(folder):
    """The state of the newest checkpoint of a run."""
    return read_state(latest_checkpoint(Path(folder) / "checkpoints"))


def differences(one, other, path="state"):
    """Where two nested states are not the same to the last bit."""
    if isinstance(one, torch.Tensor):
        same = isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        return [] if same else [path]
    if isinstance(one, dict):
        if not isinstance(other, dict) or one.keys() != other.keys():
            return [path]
        return [found for key in one for found in differences(one[key], other[key], f"{path}.{key}")]
    if isinstance(one, list | tuple):
        if type(one) is not type(other) or len(one) != len(other):
            return [path]
        return [
            found for i, pair in enumerate(zip(one, other, strict=True)) for found in differences(*pair, f"{path}[{i}]")
        ]
    return [] if np.array_equal(one, other) else [path]
