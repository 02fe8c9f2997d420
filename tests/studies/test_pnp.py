"""The study pnp-gradients: values by hand."""

from pathlib import Path

import pytest

from studies import pnp_gradients
from studies.study import AGREES, Effort
from tests.studies.samples import verdict


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
