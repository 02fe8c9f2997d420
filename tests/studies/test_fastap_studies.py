"""The two studies of FastAP: perfect lists by hand, and that verdicts follow from what was measured."""

import pytest
import torch

from studies import fastap_ablation, fastap_batches
from studies.fastap_ablation import perfect_lists, trade_off
from tests.studies.made_up import entry, over

# The ablation


def test_perfect_lists_have_the_margin():
    drawn = torch.rand(3, 64, dtype=torch.float64)
    scores = perfect_lists(drawn, torch.full((3, 1), 1.0, dtype=torch.float64), 0.25)
    distance = 2 - 2 * scores
    assert distance[:, :4].amax(1).tolist() == pytest.approx([0.875] * 3)
    assert distance[:, 4:].amin(1).tolist() == pytest.approx([1.125] * 3)
    assert float(distance.min()) >= 0.675
    assert float(distance.max()) <= 2.625


@pytest.mark.parametrize(("bins", "loss", "without_slope"), [(4, 0.0, 1.0), (2, 0.25 * 2.25 / 3.25, 0.0)])
def test_bins_that_keep_positives_and_negatives_apart_teach_nothing(bins, loss, without_slope):
    """A positive at squared distance 0.5, three negatives at 2.5.

    Four bins have centres at 0, 1, 2 ...: the kinds share none, and AP is 1. Two have centres at 0, 2 and 4: three
    quarters of the positive are at 0, where precision is 1; one is at 2, where three quarters of each negative are too,
    and precision is 1 / (1 + 2.25).
    """
    scores = torch.tensor([[0.75, -0.25, -0.25, -0.25]], dtype=torch.float64)
    relevant = torch.tensor([[True, False, False, False]])
    found = fastap_ablation._of_perfect(scores, relevant, bins)
    assert found == (pytest.approx(loss), without_slope)


def test_fine_bins_leave_more_perfect_lists_without_a_slope():
    found = trade_off(50, 0)
    shares = [found["without slope"][str(bins)] for bins in (2, 10, 80)]
    assert all(a <= b <= c for a, b, c in zip(*shares, strict=True))
    assert shares[0][-1] < shares[2][-1] == 1.0
    assert all(value >= 0 for of in found["loss"].values() for value in of)


def ablation(size=0.02, best=10, edge=0.05, flat=False):
    bins = {each: 0.5 if each == best else 0.5 - edge for each in (2, 5, 10, 20, 40, 80)}
    sizes = over("batches.size", {28: 0.5, 112: 0.5 + size / 2, 448: 0.5 + size})
    trade = trade_off(20, 0)
    if flat:
        trade["without slope"] = {name: [0.0] * len(trade["margins"]) for name in trade["without slope"]}
    parts = {"updates": sizes, "images": sizes, "bins": over("loss.bins", bins)}
    return {name: {"entries": entries} for name, entries in parts.items()} | {"trade-off": trade}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "**Agrees**: 4 of 4"),
        ({"size": -0.02}, "**Agrees in part**: 2 of 4"),
        ({"best": 80}, "**Agrees in part**: 3 of 4"),
        ({"edge": 0.001}, "**Agrees in part**: 3 of 4"),
        ({"size": 0.0, "best": 2, "flat": True}, "**Does not agree**: 0 of 4"),
    ],
)
def test_the_ablation_follows_from_what_was_measured(changed, said):
    found = ablation(**changed)
    assert said in fastap_ablation.told(found)
    assert set(fastap_ablation.figures(found)) == {"ablation"}


def test_the_ablation_tells_its_criteria_and_which_searches_could_still_gain(monkeypatch):
    found = ablation()
    said = fastap_ablation.told(found)
    assert "Bins agree if the best number is from 5 to 20" in said
    assert "Perfect lists agree if at no margin" in said
    assert (
        "Only two learning rates were tried, so none is known to be the best: 6 chose the lower, 0 the higher." in said
    )
    monkeypatch.setattr(fastap_ablation, "_LRS", "1e-4,3e-4,1e-3")
    assert "Of 6 searches for a learning rate, none chose" in fastap_ablation.told(found)
    found["images"] = {"entries": [{**each, "lr": 1e-3} for each in found["images"]["entries"]]}
    said = fastap_ablation.told(found)
    assert (
        "3 chose the lowest or the highest of 3 tried, so these could still gain: batches.size=28 (equal images);"
        in said
    )


@pytest.mark.parametrize(
    ("best", "edge", "said"),
    [
        (5, 0.05, "; best 5, +5.0 ± 0.2 against 10, which counts |"),
        (5, 0.004, "; best 5, +0.4 ± 0.2 against 10, which does not count |"),
        (10, 0.05, "; best 10 |"),
    ],
)
def test_whether_another_peak_than_10_counts_is_told(best, edge, said):
    assert said in fastap_ablation.told(ablation(best=best, edge=edge))


# Batches


def batches(gains, inside=0.1):
    sizes = list(gains)
    entries = [entry({"batches.kind": "balanced", "batches.size": size}, 0.5, 0.001) for size in sizes]
    entries += [entry({"batches.kind": "categories", "batches.size": s}, 0.5 + gains[s], 0.001) for s in sizes]
    hardness = {
        "balanced": {str(size): [0.6, 0.61] for size in sizes},
        "categories": {str(size): [0.6 - inside, 0.61 - inside] for size in sizes},
    }
    return {"frozen": {}, "entries": entries, "hardness": hardness}


@pytest.mark.parametrize(
    ("gains", "inside", "said"),
    [
        ({56: 0.02, 112: 0.02}, 0.1, "**Agrees**: Of 2 batch sizes, R@1 is better with two categories at 2."),
        (
            {56: 0.02, 112: -0.02},
            0.1,
            "**Does not agree**: Of 2 batch sizes, R@1 is better with two categories at 1, and worse at 112.",
        ),
        ({56: 0.02, 112: 0.0}, 0.1, "**Agrees in part**: Of 2 batch sizes, R@1 is better with two categories at 1."),
        ({56: -0.02, 112: 0.0}, -0.1, "**Does not agree**"),
    ],
)
def test_the_verdict_on_batches_follows_from_what_was_measured(gains, inside, said):
    found = batches(gains, inside)
    assert said in fastap_batches.told(found)
    assert set(fastap_batches.figures(found)) == {"batches"}


@pytest.mark.parametrize(
    ("in_map", "said"),
    [
        (0.5, "In mAP it is neither better nor worse at any size; the verdict is by R@1."),
        (0.48, "In mAP it is worse at 112 (-2.0 ± 0.1), which counts against the claim; the verdict is by R@1."),
        (0.52, "In mAP it is better at 112 (+2.0 ± 0.1); the verdict is by R@1."),
    ],
)
def test_what_map_says_of_batches_is_told(in_map, said):
    found = batches({56: 0.0, 112: 0.0})
    found["entries"][-1]["values"] = {**found["entries"][-1]["values"], "mAP": [in_map - 0.001, in_map, in_map + 0.001]}
    assert said in fastap_batches.told(found)


def test_learning_rates_of_batches_are_told():
    said = fastap_batches.told(batches({56: 0.02, 112: 0.02}))
    assert "among 3e-4 and 1e-3, for each kind and size. Only two learning rates were tried" in said


@pytest.mark.parametrize("inside", [0.1, 0.0, -0.1])
def test_why_batches_are_harder_is_told_only_where_they_are(inside):
    said = fastap_batches.told(batches({56: 0.02, 112: 0.02}, inside))
    assert ("an image finds its class less well" in said) is (inside > 0)
    assert ("are not harder at every size" in said) is (inside <= 0)
