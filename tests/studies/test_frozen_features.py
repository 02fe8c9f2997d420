"""Linear heads on frozen features: what training does."""

import numpy as np
import pytest
import torch

from frontrank.losses import SmoothAP
from studies.frozen_features import Part, train_heads
from studies.study import Effort


def part(seed):
    """16 classes of 4 images in 16 dimensions, and two levels."""
    generator = torch.Generator().manual_seed(seed)
    classes = np.repeat(np.arange(16), 4)
    features = torch.randn(16, 16, generator=generator)[classes] + torch.randn(64, 16, generator=generator)
    return Part(features, np.stack([classes, classes // 4], 1).astype(str))


@pytest.mark.parametrize("mix", [False, True])
def test_a_result_is_kept(tmp_path, mix):
    parts = {name: part(seed) for seed, name in enumerate(("train", "validation", "test"))}
    effort = Effort(tmp_path, quick=True, show=False)
    options = {"metrics": ("R@1",), "metric": "H-AP", "mix": mix}
    result = train_heads(effort, parts, "a", lambda temperature: SmoothAP(temperature), 16, **options)
    assert set(result["values"]) == {"R@1", "R@1 (level 2)"}
    again = train_heads(effort, {}, "a", lambda temperature: SmoothAP(temperature), 16, **options)
    assert again["values"] == result["values"]
