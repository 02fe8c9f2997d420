"""The studies of AP_Q: what they count, and the verdicts."""

import numpy as np
import pytest
import torch
from torch import nn

from frontrank.data.splits import split_test_classes
from frontrank.data.table import ImageTable, read_table
from studies import apq_ablation, apq_triplet
from studies.apq_triplet import SNIPPETS, Budget, extra_lines, passes
from studies.study import AGREES, AGREES_IN_PART, DOES_NOT_AGREE, Effort
from tests.studies.samples import entries_over, entry, verdict


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
        ({"weights": 0.002}, AGREES_IN_PART, {"weights"}),
        ({"ties": -0.01}, AGREES_IN_PART, {"ties"}),
        ({"bins": 0.05}, AGREES_IN_PART, {"bins"}),
        ({"classes": -0.05}, AGREES_IN_PART, {"classes"}),
        ({"classes": 0.016}, AGREES_IN_PART, {"classes"}),  # as much as the paper calls important elsewhere
        (
            {"size": -0.02, "weights": -0.01, "ties": -0.01, "bins": 0.05, "classes": 0.05},
            DOES_NOT_AGREE,
            {"bins", "updates", "images", "classes", "weights", "ties"},
        ),
    ],
)
def test_verdict_on_the_ablation(changed, word, fails):
    results = ablation(**changed)
    assert verdict(apq_ablation.STUDY, results) == word
    assert {name for name, holds in apq_ablation.values(results)["claims"].items() if not holds} == fails


def test_figures_of_the_ablation():
    values = apq_ablation.values(ablation())
    assert values["positives"] == [1, 3]
    assert list(values["class_gaps"]) == [357]
    assert values["search"]["searches"] == 6  # bins and classes had no choice
    results = ablation()
    results["images"]["entries"][0]["lr"] = 1e-3
    assert apq_ablation.values(results)["search"]["ends"] == ["batches.size=28 (equal images)"]


@pytest.mark.parametrize(("ties", "agrees"), [(0.003, True), (0.002, False)])
def test_ties_are_judged_by_the_interval_of_the_mean(ties, agrees):
    """Each has an error of 0.16 points with 4 degrees of freedom, the mean of two 0.115 with 8: it reaches 0.27."""
    values = apq_ablation.values(ablation(ties=ties))
    assert values["mean_tie"].points == pytest.approx(100 * ties)
    assert values["claims"]["ties"] is agrees


def saved_table(folder, classes, splits):
    labels = np.repeat(list(classes), 4)
    nothing = np.full(len(labels), "")
    paths = np.array([f"{place}.png" for place in range(len(labels))])
    folder.mkdir()
    table = ImageTable(folder, paths, labels, nothing, np.array(splits), nothing)
    table.save(folder / "images.csv")
    return table


def class_sizes(table):
    return dict(zip(*np.unique(table.labels, return_counts=True), strict=True))


def test_every_second_training_class_is_cut_to_two_images(tmp_path):
    saved_table(tmp_path / "emoji", "abcd", ["train"] * 12 + ["test"] * 4)
    uneven = read_table(apq_ablation._uneven(str(tmp_path / "emoji"), Effort(tmp_path / "work")))
    assert class_sizes(uneven) == {"a": 4, "b": 2, "c": 4, "d": 4}


def test_test_classes_stay_whole_without_a_test_split(tmp_path):
    table = saved_table(tmp_path / "own", "abcdefgh", ["train"] * 32)
    uneven = read_table(apq_ablation._uneven(str(tmp_path / "own"), Effort(tmp_path / "work", seed=3)))
    test, train = (class_sizes(uneven.of(split)) for split in ("test", "train"))
    assert set(test.values()) == {4}
    assert set(test) == set(split_test_classes(table, seed=3).of("test").labels)
    assert train == {name: 2 if "abcdefgh".index(name) % 2 else 4 for name in train}


# Triplets


def test_passes_are_those_of_the_paper():
    """Table 1: AP_Q with 200 batches of 4,096 takes 819K backwards and, by multistage backprop, 1638K forwards."""
    counts = {"backwards": 819_200, "forwards": 1_638_400, "updates": 200}
    assert passes(Budget(4096, 200, 1, "")) == {"size": 4096, **counts}
    assert passes(Budget(112, 160, 0, ""))["forwards"] == passes(Budget(112, 160, 112, ""))["forwards"] == 17_920
    assert [passes(each)["backwards"] for each in apq_triplet.BUDGETS] == [17_920, 35_840, 17_920, 35_840]


def test_lines_are_counted():
    assert extra_lines("\n# why\nloss = A()\n\nb()\nc()\n") == 1
    assert {name: extra_lines(code) for name, code in SNIPPETS.items()} == {"AP_Q": 0, "triplet": 3}


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


def test_triplets_with_more_images_are_compared_with_as_many_of_ap_too():
    values = apq_triplet.values(
        triplets(
            row("AP_Q", 448, 17_920, 0.50),
            row("triplet", 448, 17_920, 0.4),
            row("triplet", 112, 17_920, 0.49),
            row("AP_Q", 448, 35_840, 0.53),
            row("triplet", 112, 35_840, 0.51),
        )
    )
    assert [round(values[name].points, 3) for name in ("above", "as_many")] == [-1.0, 2.0]
    assert values["best"]["backwards"] == values["effort"]["row"]["backwards"] == 35_840
    assert [claim["holds"] for claim in values["effort"]["claims"]] == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("ap", "forwards", "seconds", "holds"),
    [(0.55, 10_000, 0.1, [True] * 5), (0.45, 40_000, 9.0, [True, False, True, False, True])],
)
def test_claims_on_effort(ap, forwards, seconds, holds):
    results = triplets(
        row("AP_Q", 448, 17_920, ap, forwards=forwards, seconds=[seconds]),
        row("triplet", 112, 35_840, 0.5, forwards=35_840),
    )
    effort = apq_triplet.values(results)["effort"]
    assert [claim["holds"] for claim in effort["claims"]] == holds
    assert effort["is_better"] is (ap > 0.5)
