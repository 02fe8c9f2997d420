"""Models small enough to be built in every test."""

import torch

from frontrank.models import Embedder

SIZE = 64


def small(backbone="test_resnet", **more):
    return Embedder(backbone, **{"dim": 8, "image_size": SIZE, **more})


def images(count=2, size=SIZE):
    return torch.randn(count, 3, size, size)


def names(folder):
    return sorted(path.name for path in folder.iterdir())
