"""The two studies of AP_Q: what is counted, and that their verdicts follow from what was measured."""

import numpy as np
import pytest
import torch
from torch import nn

from frontrank.data.splits import split_test_classes
from frontrank.data.table import ImageTable, read_table
from studies import apq_ablation, apq_triplet
from studies.apq_triplet import SNIPPETS, Budget, extra_lines, passes
from studies.study import Effort
from tests.studies.made_up import entry, over

# The ablation


def ablation(size=0.02, weights=0.02, ties=0.01, bins=0.0, classes=0.0):
    """Made-up results, by how much each thing helps."""
    by_bins = [
        *over("loss.bins", {5: 0.5 - bins, 20: 0.5}, loss_tie_aware=False),
        *over("loss.bins", {5: 0.5 - bins - ties, 20: 0.5 - ties}, loss_tie_aware=True),
    ]
    parts = {
        "bins": by_bins,
        "updates": over("batches.size", {28: 0.5, 448: 0.5 + size}),
        "images": over("batches.size", {28: 0.5, 448: 0.5 + size}),
        "classes": over("batches.per_class", {2: 0.5, 4: 0.5 + classes}),
        "weights": over("loss.balance_classes", {False: 0.5, True: 0.5 + weights}),
    }
    return {name: {"entries": entries} for name, entries in parts.items()} | {"wide": 1428}


def test_the_ablation_agrees_where_all_claims_hold():
    said = apq_ablation.told(ablation())
    assert "**Agrees**: 6 of 6 rows" in said
    assert "M = 5: 50.0 ± 0.2, M = 20: 50.0 ± 0.2" in said
    assert "all 714 classes: 50.0 ± 0.2; 357: +0.0" in said


@pytest.mark.parametrize(
    ("changed", "rows"),
    [
        ({"size": -0.02}, 4),
        ({"weights": 0.002}, 5),
        ({"ties": -0.01}, 5),
        ({"bins": 0.05}, 5),
        ({"classes": -0.05}, 5),
        ({"classes": 0.016}, 5),  # as much as the paper calls important elsewhere
    ],
)
def test_each_claim_can_fail(changed, rows):
    assert f"**Agrees in part**: {rows} of 6 rows" in apq_ablation.told(ablation(**changed))


def test_the_ablation_may_not_agree_at_all():
    worst = ablation(size=-0.02, weights=-0.01, ties=-0.01, bins=0.05, classes=0.05)
    assert "**Does not agree**: 0 of 6 rows" in apq_ablation.told(worst)
    assert set(apq_ablation.figures(worst)) == {"bins", "batches"}


def test_the_ablation_tells_its_rates_and_which_searches_could_still_gain():
    found = ablation()
    said = apq_ablation.told(found)
    assert "is chosen among 1e-4, 3e-4, 1e-3 on held-out classes, all others have 3e-4." in said
    assert "Of 6 searches for a learning rate, none chose the lowest or the highest of 3 tried." in said
    found["images"]["entries"][0]["lr"] = 1e-3
    found["bins"]["entries"][0]["lr"] = 1e-3  # which had no choice
    assert "so these could still gain: batches.size=28 (equal images)." in apq_ablation.told(found)


def test_what_the_row_on_ties_requires_is_told():
    assert "The row on ties agrees if plain is better for every number of bins" in apq_ablation.told(ablation())


@pytest.mark.parametrize(("ties", "agrees"), [(0.01, True), (0.003, True), (0.002, False)])
def test_ties_are_judged_by_the_interval_of_the_mean(ties, agrees):
    """Each has an error of 0.16 points with 4 degrees of freedom, the mean of two 0.115 with 8: it reaches 0.27."""
    claim, said, held = apq_ablation._on_ties(ablation(ties=ties))
    assert "always" in claim
    assert f"mean +{100 * ties:.1f} ± 0.1" in said
    assert held is agrees


def test_ties_are_never_judged_by_one_seed():
    found = ablation(ties=0.05)
    for each in found["bins"]["entries"]:
        each["values"] = {metric: values[:1] for metric, values in each["values"].items()}
    _, said, held = apq_ablation._on_ties(found)
    assert "mean +5.0 (one seed)" in said
    assert not held


def test_that_fewer_classes_are_more_positives_is_told():
    assert "fewer classes also give a query more positives: 1, 3;" in apq_ablation.told(ablation())


def test_every_second_class_is_cut_to_two_pictures_that_train(tmp_path):
    labels = np.array([name for name in "abcd" for _ in range(4)])
    paths = np.array([f"{place}.png" for place in range(16)])
    splits = np.array(["train"] * 12 + ["test"] * 4)
    nothing = np.full(16, "")
    (tmp_path / "emoji").mkdir()
    ImageTable(tmp_path / "emoji", paths, labels, nothing, splits, nothing).save(tmp_path / "emoji" / "images.csv")
    found = read_table(apq_ablation._uneven(str(tmp_path / "emoji"), Effort(tmp_path / "work")))
    counted = dict(zip(*np.unique(found.labels, return_counts=True), strict=True))
    assert counted == {"a": 4, "b": 2, "c": 4, "d": 4}


def test_classes_that_test_stay_whole_where_the_table_has_no_test_split(tmp_path):
    labels = np.array([name for name in "abcdefgh" for _ in range(4)])
    paths = np.array([f"{place}.png" for place in range(32)])
    nothing = np.full(32, "")
    (tmp_path / "own").mkdir()
    table = ImageTable(tmp_path / "own", paths, labels, nothing, np.full(32, "train"), nothing)
    table.save(tmp_path / "own" / "images.csv")
    found = read_table(apq_ablation._uneven(str(tmp_path / "own"), Effort(tmp_path / "work", seed=3)))
    tested, learned = (
        dict(zip(*np.unique(found.of(split).labels, return_counts=True), strict=True)) for split in ("test", "train")
    )
    assert set(tested.values()) == {4}
    assert set(tested) == set(split_test_classes(table, seed=3).of("test").labels)
    assert learned == {name: 2 if "abcdefgh".index(name) % 2 else 4 for name in learned}


# The table


def test_passes_are_those_of_the_paper():
    """Table 1: AP_Q with 200 batches of 4,096 takes 819K backwards and, by multistage backprop, 1638K forwards."""
    assert passes(Budget(4096, 200, 1, "")) == {
        "size": 4096,
        "backwards": 819_200,
        "forwards": 1_638_400,
        "updates": 200,
    }
    assert passes(Budget(112, 160, 0, ""))["forwards"] == passes(Budget(112, 160, 112, ""))["forwards"] == 17_920


def test_both_budgets_are_of_equal_images():
    images = [passes(each)["backwards"] for each in apq_triplet.BUDGETS]
    assert images == [17_920, 35_840, 17_920, 35_840]


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


def row(loss, size, images, mean, lr=3e-4):
    counted = {"size": size, "backwards": images, "forwards": 2 * images, "updates": images // size}
    return {"loss": loss, **entry({}, mean, 0.001), **counted, "lr": lr}


@pytest.mark.parametrize(
    ("ap", "larger", "said"),
    [
        (0.55, 0.5, "**Agrees**"),
        (0.55, 0.52, "**Agrees in part**"),
        (0.45, 0.5, "**Agrees in part**"),
        (0.45, 0.52, "**Does not agree**"),
    ],
)
def test_the_table_follows_from_what_was_measured(ap, larger, said):
    rows = [row("AP_Q", 448, 17_920, ap), row("triplet", 448, 17_920, larger), row("triplet", 112, 17_920, 0.5)]
    found = {"rows": rows, "lines": {"AP_Q": 0, "triplet": 3}}
    assert f"{said}: AP_Q with 17,920 images" in apq_triplet.told(found)
    assert "| AP_Q, 448 |" in apq_triplet.told(found)
    assert set(apq_triplet.figures(found)) == {"triplet"}


@pytest.mark.parametrize(
    ("lr", "said"),
    [(3e-4, "none chose the lowest or the highest"), (1e-4, "could still gain: triplet, 112, 160 updates.")],
)
def test_searches_of_triplets_that_could_still_gain(lr, said):
    rows = [row("AP_Q", 448, 17_920, 0.5), row("triplet", 112, 17_920, 0.5, lr)]
    assert said in apq_triplet.told({"rows": rows, "lines": {"AP_Q": 0, "triplet": 3}})


def test_triplets_with_more_images_are_set_against_as_many_of_ap_too():
    first = [row("AP_Q", 448, 17_920, 0.50), row("triplet", 448, 17_920, 0.4), row("triplet", 112, 17_920, 0.49)]
    rows = [*first, row("AP_Q", 448, 35_840, 0.53), row("triplet", 112, 35_840, 0.51)]
    text = apq_triplet.told({"rows": rows, "lines": {"AP_Q": 0, "triplet": 3}})
    assert "is -1.0 ± 0.1 points of mAP against the best of triplets, which had 35,840: fewer backward passes" in text
    assert "(with as many, it is +2.0 ± 0.1)" in text
    assert "AP_Q with 35,840 images (the fewest with which it is better: +2.0 ± 0.1) beside the best triplets" in text
    assert "- half of the backward passes (at most 0.6 times as many): 35,840 and 35,840, does not hold" in text
    assert "- far fewer updates (at most half): 80 and 320, holds" in text


@pytest.mark.parametrize(
    ("ap", "forwards", "seconds", "held"),
    [(0.55, 10_000, 0.1, [True] * 5), (0.45, 40_000, 9.0, [True, False, True, False, True])],
)
def test_each_claim_on_effort_is_told_to_hold_or_not(ap, forwards, seconds, held):
    rows = [
        {**row("AP_Q", 448, 17_920, ap), "forwards": forwards, "seconds": [seconds]},
        {**row("triplet", 112, 35_840, 0.5), "forwards": 35_840},
    ]
    text = apq_triplet.told({"rows": rows, "lines": {"AP_Q": 0, "triplet": 3}})
    lines = [line for line in text.splitlines() if line.endswith(("holds", "does not hold"))]
    assert [line.endswith(", holds") for line in lines] == held
    assert ("its best, which is not better: -5.0 ± 0.1" in text) is (ap < 0.5)


def test_all_triplets_of_the_paper_are_told():
    rows = [row("AP_Q", 448, 17_920, 0.5), row("triplet", 112, 17_920, 0.5)]
    text = apq_triplet.told({"rows": rows, "lines": {"AP_Q": 0, "triplet": 3}})
    assert "| triplets, batches of 512 | 65.8 / 77.6 | 2,359K | 3,319K | 1,536 | 175 | 3 |" in text
