"""pnp_ablation and pnp_merged: their verdicts follow from what was measured."""

import pytest

from studies import pnp_ablation, pnp_merged
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
        ({"alpha": {1: 0.6, 4: 0.6}, "per_class": {2: 0.6, 4: 0.602, 8: 0.58}}, "**Agrees in part**"),  # than 8 alone
        ({"alpha": {1: 0.6, 4: 0.6}, "per_class": {2: 0.6, 4: 0.6, 8: 0.6}}, "**Does not agree**"),
    ],
)
def test_verdict_of_the_ablation(changed, verdict):
    assert f"\n{verdict}:\n" in pnp_ablation.told(ablation(**changed))


def test_what_the_ablation_tells():
    said = pnp_ablation.told(ablation())
    assert "| alpha | 4 | 62.0 ± 0.2 |" in said
    assert (
        "- a larger alpha is better: yes; from 1 to 16 R@1 changes by +3.0 ± 0.2, and 16 is best, +3.0 ± 0.2 points "
        "above 1. None diverged up to 16: where training breaks was not reached." in said
    )
    assert "- b: 1 is best, +2.0 ± 0.2 points above 0.5, which counts" in said
    assert "- 4 images of a class are better than 2: yes, +2.0 ± 0.2." in said
    assert "- 4 images of a class are better than 8: yes, +3.0 ± 0.2." in said


@pytest.mark.parametrize(
    ("alpha", "said"),
    [
        ({1: 0.60, 4: 0.602, 16: 0.60}, "better: not shown; from 1 to 16 R@1 changes by +0.0 ± 0.2"),
        ({1: 0.62, 2: 0.61, 4: 0.60}, "better: no, the other way round; from 1 to 4 R@1 changes by -2.0 ± 0.2, and 1"),
        ({1: 0.60, 2: 0.57, 4: 0.62}, "better: no; from 1 to 4 R@1 changes by +2.0 ± 0.2"),
    ],
)
def test_what_is_not_shown_is_told_from_the_other_way_round(alpha, said):
    assert said in pnp_ablation.told(ablation(alpha=alpha))


def test_another_number_of_images_that_is_best_is_told():
    said = pnp_ablation.told(ablation(per_class={2: 0.6, 4: 0.6, 8: 0.62}))
    assert "- 4 images of a class are better than 2: not shown, +0.0 ± 0.2." in said
    assert "- 4 images of a class are better than 8: no, the other way round, -2.0 ± 0.2; 8 is best." in said


def test_seeds_that_diverged_are_told():
    found = ablation()
    for part in found.values():
        part["entries"] = [{**each, "planned": 3} for each in part["entries"]]
    assert "diverged:" not in pnp_ablation.told(found)
    last = found["alpha"]["entries"][-1]
    last.update(seeds=[0, 1], values={metric: values[:2] for metric, values in last["values"].items()})
    said = pnp_ablation.told(found)
    assert "| alpha | 16 | 62.9 ± 0.1 (2 of 3 seeds) |" in said
    assert "Runs that diverged: alpha = 16 (1 of 3 seeds)." in said
    assert "was not reached" not in said


def test_an_alpha_that_broke_is_told():
    found = ablation()
    found["alpha"]["entries"][-1] = failed({"loss.alpha": 16})
    said = pnp_ablation.told(found)
    assert "| alpha | 16 |" not in said
    assert "Runs that diverged: alpha = 16." in said
    assert "a larger alpha is better: yes; from 1 to 8" in said
    assert "was not reached" not in said


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
    assert " | 0.0003 | 0.0001 | 80.1 | 73.2 | -6.9 | -5.0, -4.7, -6.7 |" in said
    assert (
        "Only two learning rates were tried, so none is known to be the best: 1 chose the lower, 5 the higher." in said
    )
    monkeypatch.setattr(pnp_merged, "_LRS", "1e-4,3e-4,1e-3")
    assert "1 chose the lowest or the highest of 3 tried, so these could still gain: SmoothAP (merged classes)." in (
        pnp_merged.told(found)
    )


def test_both_tables_of_the_paper_are_told():
    said = pnp_merged.told(merged((0.63, 0.62, 0.54), (0.60, 0.58, 0.49)))
    assert [line.split(" | ")[-1] for line in said.splitlines()[2:5]] == [
        "-2.0, -2.1, -2.8 |",
        "-5.0, -4.7, -6.7 |",
        "-5.5, -5.4, -6.8 |",
    ]
    assert "Smooth-AP loses 1.9 points less than I_u on SOP, but only 0.1 to 0.7 less on VehicleID" in said
