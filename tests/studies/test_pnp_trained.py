"""pnp_ablation and pnp_merged: their verdicts follow from what was measured."""

import pytest

from frontrank.studies import pnp_ablation, pnp_merged
from tests.studies.made_up import entry, failed, over

ALPHA = {1: 0.60, 2: 0.61, 4: 0.62, 8: 0.625, 16: 0.63}
B = {0.5: 0.50, 1: 0.52, 4: 0.51}
PER_CLASS = {2: 0.60, 4: 0.62, 8: 0.59}


def ablation(alpha=None, b=None, per_class=None):
    return {
        "alpha": {"entries": over("loss.alpha", alpha or ALPHA)},
        "b": {"entries": over("loss.b", b or B)},
        "per_class": {"entries": over("batches.per_class", per_class or PER_CLASS)},
    }


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "**Agrees**"),
        ({"b": {0.5: 0.5, 4: 0.503}}, "**Agrees**"),  # of which one data set can say nothing
        ({"alpha": {1: 0.62, 2: 0.61, 4: 0.60}}, "**Agrees in part**"),
        ({"alpha": {1: 0.60, 2: 0.57, 4: 0.62}}, "**Agrees in part**"),  # not at every step
        ({"alpha": {1: 0.60, 4: 0.62, 16: 0.59}}, "**Agrees in part**"),  # and falls without diverging
        ({"per_class": {2: 0.60, 4: 0.61, 8: 0.62}}, "**Agrees in part**"),
        ({"alpha": {1: 0.6, 4: 0.6}, "per_class": {2: 0.6, 4: 0.6, 8: 0.6}}, "**Does not agree**"),
    ],
)
def test_verdict_of_the_ablation(changed, verdict):
    assert f"\n{verdict}:\n" in pnp_ablation.told(ablation(**changed))


def test_what_the_ablation_tells():
    said = pnp_ablation.told(ablation())
    assert "| alpha | 4 | 62.0 ± 0.2 |" in said
    assert "- alpha: R@1 rises from 1 to 16 (+3.0 ± 0.2 points); 16 is best, +3.0 ± 0.2 points above 1." in said
    assert "- b: 1 is best, +2.0 ± 0.2 points above 0.5" in said
    assert "Here 4 is; 4 is +2.0 ± 0.2 points above 2, +3.0 ± 0.2 points above 8." in said


def test_an_alpha_that_broke_is_told():
    found = ablation()
    found["alpha"]["entries"][-1] = failed({"loss.alpha": 16})
    said = pnp_ablation.told(found)
    assert "| alpha | 16 |" not in said
    assert "Runs that diverged: alpha = 16." in said
    assert "R@1 rises from 1 to 8" in said


def test_without_what_the_others_are_set_against_there_is_no_verdict():
    found = ablation()
    found["per_class"]["entries"][1] = failed({"batches.per_class": 4})
    said = pnp_ablation.told(found)
    assert said.startswith("**Not measured**")
    assert "Runs that diverged: |P| = 4" in said


def merged(whole, after):
    def entries(means):
        return [{**entry({}, mean, 0.002), "name": name} for name, mean in zip(pnp_merged._LOSSES, means, strict=True)]

    return {"whole": {"entries": entries(whole)}, "merged": {"entries": entries(after)}}


@pytest.mark.parametrize(
    ("whole", "after", "verdict"),
    [
        ((0.63, 0.62, 0.54), (0.60, 0.58, 0.49), "**Agrees**"),
        ((0.63, 0.62, 0.54), (0.60, 0.60, 0.49), "**Agrees in part**"),  # level with Smooth-AP
        ((0.63, 0.62, 0.54), (0.63, 0.58, 0.49), "**Agrees in part**"),  # loses nothing
        ((0.63, 0.62, 0.50), (0.60, 0.58, 0.49), "**Agrees in part**"),  # they lose more than I_u
        ((0.63, 0.62, 0.54), (0.50, 0.58, 0.56), "**Does not agree**"),
    ],
)
def test_verdict_of_merged_classes(whole, after, verdict):
    assert f"\n{verdict}: " in pnp_merged.told(merged(whole, after))


def test_both_learning_rates_of_merged_classes_are_told(monkeypatch):
    found = merged((0.63, 0.62, 0.54), (0.60, 0.58, 0.49))
    found["merged"]["entries"][1]["lr"] = 1e-4
    said = pnp_merged.told(found)
    assert " | lr, as they are | lr, merged | " in said
    assert " | 0.0003 | 0.0001 | 80.1 | 73.2 | -6.9 |" in said
    assert "Of 6 searches for a learning rate, all chose the lowest or the highest of 2 tried" in said
    monkeypatch.setattr(pnp_merged, "_LRS", "1e-4,3e-4,1e-3")
    assert "1 chose the lowest or the highest of 3 tried, so these could still gain: SmoothAP (merged classes)." in (
        pnp_merged.told(found)
    )
