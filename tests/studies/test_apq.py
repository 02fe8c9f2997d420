"""The studies of AP_Q: what they count, and the verdicts."""

import numpy as np
import pytest
import torch
from torch import nn

from frontrank.data.table import ImageTable, read_table
from studies import apq_ablation, apq_triplet
from studies.apq_triplet import SNIPPETS, Budget, passes
from studies.study import AGREES, AGREES_IN_PART, DOES_NOT_AGREE, Effort
from tests.studies.samples import entries_over, entry, verdict

ALL_CLAIMS = {"bins", "updates", "images", "classes", "weights", "ties"}


def ablation(size=0.02, weights=0.02, ties=0.01, bins=0.0, classes=0.0):
    """By how much each thing helps."""
    by_bins = [
        *entries_over("loss.bins", {5: 0.5 - bins, 20: 0.5}, loss_tie_aware=False),
        *entries_over("loss.bins", {5: 0.5 - bins - ties, 20: 0.5 - ties}, loss_tie_aware=True),
    ]
    parts = {
        "bins": by_bins,
        "updates": entries_over("batches.size", {28: 0.5, 448: 0.5 + size}),
        "images": entries_over("batches.size", {28: 0.5, 448: 0.5 + size}),
        "classes": entries_over("batches.per_class", {2: 0.5, 4: 0.5 + classes}),
        "weights": entries_over("loss.balance_classes", {False: 0.5, True: 0.5 + weights}),
    }
    return {name: {"entries": entries} for name, entries in parts.items()} | {"wide": 1428}


@pytest.mark.parametrize(
    ("changed", "word", "fails"),
    [
        ({}, AGREES, set()),
        ({"size": -0.02}, AGREES_IN_PART, {"updates", "images"}),
        ({"size": -0.02, "weights": -0.01, "ties": -0.01, "bins": 0.05, "classes": 0.05}, DOES_NOT_AGREE, ALL_CLAIMS),
    ],
)
def test_verdict_on_the_ablation(changed, word, fails):
    results = ablation(**changed)
    assert verdict(apq_ablation.STUDY, results) == word
    assert {name for name, holds in apq_ablation.values(results)["claims"].items() if not holds} == fails


def test_every_second_training_class_is_cut_to_two_images(tmp_path):
    nothing, labels = np.full(16, ""), np.repeat(list("abcd"), 4)
    paths, splits = np.array([f"{place}.png" for place in range(16)]), np.repeat(["train", "test"], [12, 4])
    (tmp_path / "emoji").mkdir()
    ImageTable(tmp_path / "emoji", paths, labels, nothing, splits, nothing).save(tmp_path / "emoji" / "images.csv")
    uneven = read_table(apq_ablation._uneven(str(tmp_path / "emoji"), Effort(tmp_path / "work")))
    assert dict(zip(*np.unique(uneven.labels, return_counts=True), strict=True)) == {"a": 4, "b": 2, "c": 4, "d": 4}


# Triplets


def test_passes_are_those_of_the_paper():
    """Table 1: AP_Q with 200 batches of 4,096 takes 819K backwards and, by multistage backprop, 1638K forwards."""
    counts = {"backwards": 819_200, "forwards": 1_638_400, "updates": 200}
    assert passes(Budget(4096, 200, 1, "")) == {"size": 4096, **counts}
    assert passes(Budget(112, 160, 0, ""))["forwards"] == passes(Budget(112, 160, 112, ""))["forwards"] == 17_920
    assert [passes(each)["backwards"] for each in apq_triplet.BUDGETS] == [17_920, 35_840, 17_920, 35_840]


@pytest.mark.parametrize("name", SNIPPETS)
def test_the_lines_that_are_counted_run(name):
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import BatchHardMiner

    from frontrank import QuantizedAP, multistage_backward

    model = nn.Linear(4, 3)
    known = {each.__name__: each for each in (TripletMarginLoss, BatchHardMiner, QuantizedAP, multistage_backward)}
    batch = {"images": torch.randn(8, 4), "labels": torch.arange(8) // 2}
    exec(SNIPPETS[name], {"model": model, **known, **batch})
    assert model.weight.grad.abs().sum() > 0


def row(loss, size, images, mean, **more):
    counts = {"size": size, "backwards": images, "forwards": 2 * images, "updates": images // size}
    return {"loss": loss, **entry({}, mean, 0.001), **counts, **more}


def triplets(*rows):
    return {"rows": list(rows), "lines": {"AP_Q": 0, "triplet": 3}}


@pytest.mark.parametrize(
    ("ap", "larger", "word"),
    [(0.55, 0.5, AGREES), (0.55, 0.52, AGREES_IN_PART), (0.45, 0.5, AGREES_IN_PART), (0.45, 0.52, DOES_NOT_AGREE)],
)
def test_verdict_on_triplets(ap, larger, word):
    rows = row("AP_Q", 448, 17_920, ap), row("triplet", 448, 17_920, larger), row("triplet", 112, 17_920, 0.5)
    assert verdict(apq_triplet.STUDY, triplets(*rows)) == word
