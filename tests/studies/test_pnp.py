"""The studies pnp-gradients, pnp-ablation and pnp-merged: values by hand, and the verdicts."""

import copy
from pathlib import Path

import pytest

from studies import pnp_ablation, pnp_gradients, pnp_merged
from studies.study import AGREES, AGREES_IN_PART, DOES_NOT_AGREE, Effort
from tests.studies.samples import entries_over, entry, verdict

# Gradients


@pytest.fixture(scope="module")
def gradients():
    return pnp_gradients.measure(Effort(Path("unused"), quick=True))


def test_gradients_by_hand(gradients):
    at = [gradients["R"].index(r) for r in (0.0, 1.0, 3.0)]
    of = {name: [own["slope"][i] for i in at] for name, own in gradients["variants"].items()}
    assert of["O"] == [1, 1, 1]
    assert of["I_b"] == pytest.approx([0, 1 / 3, 3 / 7])
    assert of["D_s"] == pytest.approx([1, 1 / 2, 1 / 4])
    assert of["D_q"] == pytest.approx([2, 2 / 8, 2 / 64])
    assert gradients["variants"]["I_u"]["slope"][0] == pytest.approx(1)
    ap = {before: [own["slope"][i] for i in at] for before, own in gradients["ap"].items()}
    assert ap["0"] == pytest.approx([1, 1 / 4, 1 / 16])
    assert ap["3"] == pytest.approx([4 / 16, 4 / 25, 4 / 49])
    assert gradients["ap"]["3"]["fall"] == pytest.approx(4 / 16 - 4 / 49)
    assert gradients["d"]["D_q, alpha = 2"]["left"] == pytest.approx(1 / 64)


def test_directions_and_equation_6(gradients):
    assert [own["rises"] for own in gradients["variants"].values()] == [0, 1, 1, -1, -1]
    assert gradients["gap_eq_6"] == pytest.approx(1)
    assert max(own["gap_integral"] for own in gradients["variants"].values()) < 1e-8
    assert max(own["gap_f_prime"] for own in gradients["variants"].values()) < 1e-12


def test_verdict_on_gradients(gradients):
    assert verdict(pnp_gradients.STUDY, gradients) == AGREES
    flat = copy.deepcopy(gradients)
    flat["d"]["D_q, alpha = 2"]["fall"] = 0.1
    assert verdict(pnp_gradients.STUDY, flat) == AGREES_IN_PART
    flat["variants"]["I_u"]["rises"] = None
    assert verdict(pnp_gradients.STUDY, flat) == DOES_NOT_AGREE


# The ablation


ALPHA = {1: 0.60, 2: 0.61, 4: 0.62, 8: 0.625, 16: 0.63}
B = {0.5: 0.50, 1: 0.52, 4: 0.51}
PER_CLASS = {2: 0.60, 4: 0.62, 8: 0.59}


def ablation(alpha=None, b=None, per_class=None):
    return {
        "alpha": {"entries": entries_over("loss.alpha", alpha or ALPHA)},
        "b": {"entries": entries_over("loss.b", b or B)},
        "per_class": {"entries": entries_over("batches.per_class", per_class or PER_CLASS)},
    }


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, AGREES),
        ({"alpha": {1: 0.60, 4: 0.62, 16: 0.59}}, AGREES_IN_PART),  # it falls without diverging
        ({"alpha": {1: 0.6, 4: 0.6}, "per_class": {2: 0.6, 4: 0.6, 8: 0.6}}, DOES_NOT_AGREE),
    ],
)
def test_verdict_on_the_ablation(changed, word):
    assert verdict(pnp_ablation.STUDY, ablation(**changed)) == word


# Merged classes


def merged(whole, after):
    def entries(means):
        return [{**entry({}, mean, 0.002), "name": name} for name, mean in zip(pnp_merged._LOSSES, means, strict=True)]

    return {"whole": {"entries": entries(whole)}, "merged": {"entries": entries(after)}}


@pytest.mark.parametrize(
    ("whole", "after", "word"),
    [
        ((0.63, 0.62, 0.54), (0.60, 0.58, 0.49), AGREES),
        ((0.63, 0.62, 0.50), (0.60, 0.58, 0.49), AGREES_IN_PART),  # they lose more than I_u
        ((0.63, 0.62, 0.54), (0.50, 0.58, 0.56), DOES_NOT_AGREE),
    ],
)
def test_verdict_on_merged_classes(whole, after, word):
    assert verdict(pnp_merged.STUDY, merged(whole, after)) == word
