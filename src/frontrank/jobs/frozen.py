"""The model that a run began with, as what it learnt is measured against."""

from dataclasses import replace
from pathlib import Path

import torch

from frontrank.build import build_model
from frontrank.config import TrainConfig
from frontrank.models import Embedder


def frozen_model(config: TrainConfig) -> Embedder:
    """The first weights of a run, without a head that starts anew: a random projection would only blur the features.

    A saved model whose own head goes on is taken with it. Where the weights are random, they are those of the seed.
    """
    weights = config.model.weights
    with torch.random.fork_rng(devices=[]):
        if weights not in ("none", "pretrained", "package") and not Path(weights).is_file():
            torch.manual_seed(config.seed)
            model = build_model(config.model, config.data)
            if model.origin.startswith("backbone and head"):
                return model.eval()
        torch.manual_seed(config.seed)
        bare = replace(config.model, dim=0, layer_norm=False, dropout=0.0)
        return build_model(bare, config.data).eval()


def frozen_title(config: TrainConfig) -> str:
    """What to call it.

    >>> frozen_title(TrainConfig())
    'resnet50, not trained further'
    """
    random = config.model.weights == "none"
    return f"{config.model.backbone}{' with random weights' if random else ', not trained further'}"
