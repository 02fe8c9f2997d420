"""Small runs for tests: glyphs of 32 px, a tiny network, a run without images, and what a run leaves behind."""

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from frontrank.settings import BatchConfig, DataConfig, LossConfig, ModelConfig, OptimizerConfig, TrainConfig
from frontrank.training import loop
from frontrank.training.checkpoints import latest_checkpoint, read_state
from frontrank.training.logs import read_log
from frontrank.training.optimizers import build_optimizer
from tests.pictures import glyph_pictures

SMALL = TrainConfig(
    data=DataConfig(
        validation=0.2, resize=32, size=32, interpolation="bilinear", augment="shift", flip=True, workers=0
    ),
    batches=BatchConfig(size=16, per_class=4, chunk=0),
    model=ModelConfig(backbone="test_resnet", weights="none", pooling="average", stage=0, dim=16, batch_norm="frozen"),
    loss=LossConfig("PNP", variant="D_s", temperature=0.05),
    optimizer=OptimizerConfig("adam", lr=1e-3, head_lr=1.0, weight_decay=4e-4, schedule="constant", warmup=0),
    epochs=3,
    head="random",
    checkpoint_every=2,
    log_every=1,
    device="cpu",
)


def small_table(folder):
    """The path of a table of 80 images of 10 training classes, and as many for test."""
    glyph_pictures(folder, classes=20).save(Path(folder) / "images.csv")
    return str(Path(folder) / "images.csv")


def config_of(path, small=SMALL, **groups):
    """The small settings with some changed, by group: batches={"chunk": 4}."""
    changed = {
        name: replace(getattr(small, name), **value) if isinstance(value, dict) else value
        for name, value in groups.items()
    }
    config = replace(small, **changed)
    return replace(config, data=replace(config.data, path=path))


class ToyRun:
    """A run of a linear model on numbers: what the loop does, without images.

    values: the (R@1, mAP) that its evaluations return, one pair after another; () if nothing is held out
    """

    metric, tie_breaker, evaluate_first, scaler, budget = "R@1", "mAP", True, None, None
    device, quiet = torch.device("cpu"), True

    def __init__(self, folder, values=None, **changes):
        optimizer = {"name": "sgd", "lr": 0.1, "weight_decay": 0.0, **changes.pop("optimizer", {})}
        self.accumulate, self.patience = changes.pop("accumulate", 1), changes.get("patience", 0)
        self.config = config_of("numbers", optimizer=optimizer, **{"epochs": 2, **changes})
        self.folder, self.sampler, self.data = Path(folder), range(5), "numbers"
        self.validation = range(3) if values is None or len(values) else ()
        self.values = None if values is None else iter(values)
        torch.manual_seed(self.config.seed)
        self.model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
        self.optimizer = build_optimizer(self.config.optimizer, list(self.model.named_parameters()), [])
        self.saved, self.bad_batch, self.seen = [], None, []

    def batches(self, start, stop):
        yield from range(start, stop)

    def gradient(self, network, batch, step):
        self.seen.append(batch)
        loss = (network(torch.full((4, 3), 1 / (batch + 1))) - 1).square().mean() / self.accumulate
        loss.backward()
        if batch == self.bad_batch:
            self.model[0].weight.grad.fill_(math.inf)
        return 4, lambda: {"loss": float(loss.detach()) * self.accumulate}

    def evaluate(self):
        return dict(zip(("R@1", "mAP"), (0.5, 0.5) if self.values is None else next(self.values), strict=True))

    def save_model(self):
        self.saved.append({name: value.clone() for name, value in self.model.state_dict().items()})

    def state(self):
        return {"model": self.model.state_dict()}

    def load_state(self, state):
        self.model.load_state_dict(state["model"])

    def fingerprints(self):
        return {"data": self.data}

    def facts(self):
        return {}

    def write_data(self):
        pass


class Killed(BaseException):
    """Ends a run in tests, as suddenly as a kill does."""


def kill_after(patch, steps):
    """Let a run die after so many steps of this process."""
    left, own = [steps], loop.take_step

    def step(*parts):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return own(*parts)

    patch.setattr(loop, "take_step", step)


def signal_at(patch, step, *numbers):
    """Send signals to this process during a step of its run."""
    own = loop.take_step

    def take(run, standing, *rest):
        if standing.step == step - 1:
            for number in numbers:
                os.kill(os.getpid(), number)
        return own(run, standing, *rest)

    patch.setattr(loop, "take_step", take)


def no_space(file):
    """Takes the place of os.fsync on a full disk."""
    raise OSError(28, "No space left on device")


def steps_with(folder, name):
    """The steps whose line of the log has a value of this name."""
    return [line["step"] for line in read_log(Path(folder) / "log.jsonl") if name in line]


def timeless_log(folder):
    """The lines of a log without what is measured in seconds and bytes."""
    measured = ("time", "images/s", "waiting for images", "seconds per step", "peak MB")
    return [{k: v for k, v in line.items() if k not in measured} for line in read_log(Path(folder) / "log.jsonl")]


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
