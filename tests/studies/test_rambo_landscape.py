"""The interpolations of rambo-landscape: by hand for two items, and against Algorithm 1."""

from pathlib import Path

import pytest
import torch

from studies.rambo_landscape import STUDY, interpolation, linearised, measure, package_slope
from studies.study import Effort
from tests.reference.lists import RankedList
from tests.reference.rambo import ranked

TWO = torch.tensor([True, False])


@pytest.mark.parametrize(
    ("score", "value", "slope"),
    [
        (0.4, 0.0, (0.0, 0.0)),  # the positive is first: no loss
        (-0.2, 0.1, (-0.5, 0.5)),  # to change places costs 0.2 / 2, less than the 1/2 that is lost
        (-0.6, 0.3, (-0.5, 0.5)),
        (-1.6, 0.5, (0.0, 0.0)),  # too far: 0.8 is more than 1/2
    ],
)
def test_whole_interpolation_of_a_positive_and_a_negative(score, value, slope):
    found, slopes = interpolation(torch.tensor([[score, 0.0]], dtype=torch.float64), TWO, 2.0)
    assert found.item() == pytest.approx(value)
    assert slopes[0].tolist() == pytest.approx(slope)


@pytest.mark.parametrize(
    ("score", "value"),
    [(0.4, 0.0), (-0.2, 0.35), (-1.6, 0.5)],  # the tangent at rank 2 has the slope 1/4: 1/4 + 0.2 / 2
)
def test_interpolation_of_the_tangent(score, value):
    found = linearised(torch.tensor([[score, 0.0]], dtype=torch.float64), TWO, 2.0)
    assert found.item() == pytest.approx(value)


def test_package_slopes_are_those_of_algorithm_1():
    y = torch.randn(20, 7, dtype=torch.float64)
    positive = torch.tensor([True, True, True, False, False, False, False])
    given = package_slope(y, positive, 2.0)
    for row, slope in zip(y, given, strict=True):
        leaf = row.clone().requires_grad_()
        in_all, among = ranked(RankedList(leaf[positive], leaf[~positive]), lam=2.0, margin=0.0)
        (1 - (among / in_all).mean()).backward()
        assert torch.allclose(leaf.grad, slope)
    assert (given != 0).any()


def test_whole_interpolation_is_continuous_and_not_above_the_loss():
    found = measure(Effort(Path("unused"), quick=True, seed=3))
    for each in found["interpolations"]:
        assert each["above"] < 1e-9
        assert each["same_slope"] == 1
        assert each["largest_jump"] < 0.1 * found["loss"]["largest_jump"]


def test_what_is_kept_is_told():
    found = measure(Effort(Path("unused"), quick=True))
    (kept,) = {frozenset(each) for each in found["interpolations"]}
    assert kept == {"lambda", "grid", "cut", "largest_jump", "above", "kept", "off", "sloped", "same_slope", "cosine"}
    head, line, *_ = STUDY.told(found).splitlines()
    assert head.count("|") == line.count("|") == 8
    for name in ("points where it equals the loss", "points where the package's gradient is the numerical one"):
        assert f"| {name} |" in head


def test_verdict_can_be_either():
    found = measure(Effort(Path("unused"), quick=True))
    assert "**Agrees**" in STUDY.told(found)
    found["interpolations"][0]["same_slope"] = 0.5
    assert "**Agrees in part**" in STUDY.told(found)
    for each in found["interpolations"]:
        each |= {"same_slope": 0.0, "largest_jump": 1.0, "sloped": 0.5}
    found["loss"]["flat"] = 0.0
    assert "**Does not agree**" in STUDY.told(found)
