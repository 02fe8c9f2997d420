"""Linear heads on frozen features: what training does, and the verdicts of the studies that train them."""

import numpy as np
import pytest
import torch

from frontrank.losses import SmoothAP
from studies.frozen_features import (
    HIERARCHICAL_AP,
    LARGE_BATCHES,
    LEVEL_COLUMNS,
    LOSSES,
    SIMIX,
    Part,
    train_heads,
)
from studies.study import AGREES, AGREES_IN_PART, DOES_NOT_AGREE, Effort
from tests.studies.samples import verdict

FACTS = {
    "parts": {name: {"images": 8, "classes": 4} for name in ("train", "validation", "test")},
    **{"levels": [4, 2], "steps": 40, "features": 256, "dim": 128, "temperatures": [0.01, 0.05, 0.1]},
}


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


def rows_of(means, metrics, **settings):
    values = {name: [means.get(name, 0.5) + step for step in (-0.001, 0.0, 0.001)] for name in metrics}
    return {**settings, "lr": 0.01, "temperature": 0.05, "values": values}


@pytest.mark.parametrize(
    ("recall", "sup", "word"),
    [(0.1, 0.1, AGREES), (0.1, 0.0, AGREES_IN_PART), (0.0, -0.1, DOES_NOT_AGREE)],
)
def test_verdict_on_large_batches(recall, sup, word):
    gains = {"Recall@k": {"R@1": recall}, "SupAP": {"mAP@R": sup}}
    rows = [
        rows_of(
            {metric: 0.5 + (gain if metric == "mAP@R" or size > 112 else 0) for metric, gain in gains[name].items()}
            if name in gains
            else {},
            ("R@1", "mAP", "mAP@R"),
            loss=name,
            size=size,
        )
        for size in (112, 448)
        for name in LOSSES
    ]
    results = {"rows": rows, "frozen": {"R@1": 0.4, "mAP@R": 0.3}, **FACTS}
    assert verdict(LARGE_BATCHES, results) == word


@pytest.mark.parametrize(("gain", "word"), [(0.1, AGREES), (0.0, DOES_NOT_AGREE)])
def test_verdict_on_simix(gain, word):
    metrics = ("R@1", "mAP", "mAP@R")
    rows = [
        rows_of({"R@1": 0.5 + gain * mix}, metrics, mix=mix, size=size) for size in (112, 448) for mix in (False, True)
    ]
    assert verdict(SIMIX, {"rows": rows, "frozen": {}, **FACTS}) == word


@pytest.mark.parametrize(
    ("gains", "word"),
    [
        (dict.fromkeys(("H-AP", "mAP (level 2)", "mAP (level 3)"), 0.6), AGREES),
        ({"H-AP": 0.6, "R@1": 0.4}, AGREES_IN_PART),
        ({"R@1": 0.4}, DOES_NOT_AGREE),
    ],
)
def test_verdict_on_levels(gains, word):
    shown = LEVEL_COLUMNS
    rows = [rows_of({}, shown, loss="Smooth-AP"), rows_of(gains, shown, loss="hierarchical AP")]
    assert verdict(HIERARCHICAL_AP, {"rows": rows, "frozen": dict.fromkeys(shown, 0.4), **FACTS}) == word
