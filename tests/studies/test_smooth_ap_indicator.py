"""smooth_ap_indicator: regions of a gradient and errors of AP, against values by hand and a slow reference."""

import math

import pytest
import torch

from studies.smooth_ap_indicator import _ap, _approximations, _lists, _region, figures, measure, told
from studies.study import Effort
from tests.reference.evaluation import in_order, value


def test_the_region_of_a_straight_line_holds_nine_tenths():
    d = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    assert _region(d, torch.full_like(d, 0.5)) == pytest.approx(1.8, abs=2e-3)


def test_the_region_of_a_sigmoid():
    """Nine tenths of its slope lie within +- t ln(19), where it is 0.05 and 0.95."""
    d = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    for temperature in (0.01, 0.1):
        value = torch.sigmoid(d / temperature)
        found = _region(d, value * (1 - value) / temperature)
        assert found == pytest.approx(2 * temperature * math.log(19), rel=0.01)


def test_ap_with_the_step_is_exact():
    scores, positive = _lists(20, seed=1)
    found = _ap(scores, positive, lambda x: (x > 0).double())
    relevant = set(positive.nonzero().flatten().tolist())
    assert found.tolist() == pytest.approx([value("mAP", in_order(row.tolist(), relevant)) for row in scores])


def test_approximations_by_hand():
    curves = {name: function(torch.tensor([-1.0, 0.0, 1.0])).tolist() for name, function in _approximations().items()}
    assert curves["linear"] == [0.0, 0.5, 1.0]
    assert curves["exponential"] == pytest.approx([math.exp(-2), math.exp(-1), 1.0])
    assert curves["sigmoid, τ = 0.1"] == pytest.approx([1 / (1 + math.exp(10)), 0.5, 1 / (1 + math.exp(-10))])


def test_the_verdict_can_be_either(tmp_path):
    found = measure(Effort(tmp_path, quick=True))
    assert "**Agrees**" in told(found)
    errors = found["curves"]["sigmoid, τ = 0.001"], found["curves"]["sigmoid, τ = 0.1"]
    errors[0]["ap_error"], errors[1]["ap_error"] = errors[1]["ap_error"], errors[0]["ap_error"]
    assert "**Does not agree**" in told(found)


def test_derivatives_are_drawn_from_0(tmp_path):
    drawn = figures(measure(Effort(tmp_path, quick=True)))["indicator"].axes[6:]
    assert all(axis.get_ylim()[0] <= 0 for axis in drawn)
    step, *_, linear, _ = drawn
    assert step.get_yticks().tolist() == [0]  # the derivative of the step has no height
    assert [text.get_text() for text in step.texts] == ["", "∞"]
    assert linear.get_ylim()[1] > 0.5
