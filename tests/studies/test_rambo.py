"""The studies of RaMBO: what they measure by hand and against references."""

from pathlib import Path

import pytest
import torch

from studies import rambo_collapse
from studies.rambo_collapse import FREE, free_scores
from studies.rambo_landscape import STUDY as LANDSCAPE
from studies.rambo_landscape import interpolation, linear_loss, package_slope
from studies.rambo_speed import STUDY as SPEED
from studies.study import AGREES, Effort
from tests.reference.lists import RankedList
from tests.reference.rambo import ranked
from tests.studies.samples import verdict


def test_a_step_by_hand(monkeypatch):
    """A negative before the positive, and a lambda that makes them change places."""
    monkeypatch.setattr(rambo_collapse, "_ITEMS", 2)
    monkeypatch.setattr(rambo_collapse, "_POSITIVES", 1)

    def drawn(seed):
        return torch.randn(2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    seed = next(seed for seed in range(99) if drawn(seed)[0] < drawn(seed)[1])
    path, shrinks = free_scores(0.0, 1, seed)
    assert path[0].tolist() == drawn(seed).tolist()
    assert (path[1] - path[0]).tolist() == pytest.approx([FREE.lr / FREE.lam, -FREE.lr / FREE.lam])
    assert shrinks == 1


TWO = torch.tensor([True, False])


@pytest.mark.parametrize(
    ("score", "value", "slope", "tangent"),
    [
        (0.4, 0.0, (0.0, 0.0), 0.0),  # the positive is first: no loss
        (-0.2, 0.1, (-0.5, 0.5), 0.35),  # to change places costs 0.2 / 2; the tangent at rank 2 has the slope 1/4
        (-1.6, 0.5, (0.0, 0.0), 0.5),  # too far: 0.8 is more than the 1/2 that is lost
    ],
)
def test_interpolations_of_a_positive_and_a_negative(score, value, slope, tangent):
    y = torch.tensor([[score, 0.0]], dtype=torch.float64)
    values, slopes = interpolation(y, TWO, 2.0)
    assert values.item() == pytest.approx(value)
    assert slopes[0].tolist() == pytest.approx(slope)
    assert linear_loss(y, TWO, 2.0).item() == pytest.approx(tangent)


def test_package_slopes_are_those_of_algorithm_1():
    y = torch.randn(20, 7, dtype=torch.float64)
    positive = torch.tensor([True, True, True, False, False, False, False])
    slopes = package_slope(y, positive, 2.0)
    for row, slope in zip(y, slopes, strict=True):
        leaf = row.clone().requires_grad_()
        in_all, among = ranked(RankedList(leaf[positive], leaf[~positive]), lam=2.0, margin=0.0)
        (1 - (among / in_all).mean()).backward()
        assert torch.allclose(leaf.grad, slope)
    assert (slopes != 0).any()


def test_the_landscape_is_measured_and_judged():
    results = LANDSCAPE.measure(Effort(Path("unused"), quick=True, seed=3))
    for each in results["interpolations"]:
        assert each["above"] < 1e-9
        assert each["same_slope"] == 1
        assert each["largest_jump"] < 0.1 * results["loss"]["largest_jump"]
    assert verdict(LANDSCAPE, results) == AGREES


def test_short_lists_are_measured():
    results = SPEED.measure(Effort(Path("unused"), quick=True))
    assert [each["length"] for each in results["rows"]] == [1_000, 10_000]
    assert all(each["with_slope"] > each["positives"] // 10 for each in results["rows"])
    assert results["left_out"] == []
