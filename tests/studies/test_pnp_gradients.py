"""pnp-gradients: values by hand, and that the verdict follows from them."""

import copy
from pathlib import Path

import pytest

from studies.pnp_gradients import measure, told
from studies.study import Effort


@pytest.fixture(scope="module")
def found():
    return measure(Effort(Path("unused"), quick=True))


def test_gradients_by_hand(found):
    at = [found["R"].index(r) for r in (0.0, 1.0, 3.0)]
    of = {name: [own["slope"][i] for i in at] for name, own in found["variants"].items()}
    assert of["O"] == [1, 1, 1]
    assert of["I_b"] == pytest.approx([0, 1 / 3, 3 / 7])
    assert of["D_s"] == pytest.approx([1, 1 / 2, 1 / 4])
    assert of["D_q"] == pytest.approx([2, 2 / 8, 2 / 64])
    assert found["variants"]["I_u"]["slope"][0] == pytest.approx(1)
    ap = {before: [own["slope"][i] for i in at] for before, own in found["ap"].items()}
    assert ap["0"] == pytest.approx([1, 1 / 4, 1 / 16])
    assert ap["3"] == pytest.approx([4 / 16, 4 / 25, 4 / 49])
    assert found["ap"]["3"]["fall"] == pytest.approx(4 / 16 - 4 / 49)
    assert found["d"]["D_q, alpha = 2"]["left"] == pytest.approx(1 / 64)


def test_directions_and_equation_6(found):
    assert [own["rises"] for own in found["variants"].values()] == [0, 1, 1, -1, -1]
    assert found["gap_eq_6"] == pytest.approx(1)
    assert max(own["gap_integral"] for own in found["variants"].values()) < 1e-8
    assert max(own["gap_f_prime"] for own in found["variants"].values()) < 1e-12


def test_verdict(found):
    assert "**Agrees**" in told(found)
    flat = copy.deepcopy(found)
    flat["d"]["D_q, alpha = 2"]["fall"] = 0.1
    assert "**Agrees in part**" in told(flat)
    flat["variants"]["I_u"]["rises"] = None
    assert "**Does not agree**" in told(flat)
    assert "| I_u | rises | rises and falls |" in told(flat)
