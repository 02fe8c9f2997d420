"""What is said of a comparison: the same numbers in the table and on the page, and what they cannot say."""

import math
from dataclasses import replace

import numpy as np
import pytest

from frontrank.comparison.report import axis_plots, comparison_page, table_rows
from frontrank.comparison.results import Compared, Entry, _of_differences, comparison_table
from frontrank.reporting.findings import Curve
from tests.comparison.comparisons import plan_of


def entry_of(name, settings, *values):
    nothing = Curve(np.zeros(0), np.zeros(0))
    costs = (0.1, 0.3, 0.8)[: len(values)], (100.0, 200.0, 900.0)[: len(values)]
    return Entry(name, settings, 1e-3, {}, tuple(range(len(values))), {"R@1": values}, *costs, (nothing,) * len(values))


def compared_of(*entries, axis="", frozen=None):
    named = {"title": "t", "axis": axis, "metric": "R@1", "reference": "", "images": "i", "command": "c"}
    return Compared(**named, entries=entries, frozen=frozen or {}, settings="", versions={})


def test_time_and_memory_are_medians_in_the_table_and_on_the_page():
    entry = entry_of("a", {}, 0.5, 0.5, 0.6)
    assert comparison_table(compared_of(entry)).splitlines()[-1].split()[-2:] == ["0.3", "200"]
    (row,) = table_rows([entry], ["R@1"], "R@1")
    assert (row.milliseconds, row.megabytes) == (300.0, 200.0)


def test_a_metric_that_the_frozen_backbone_has_not():
    table = comparison_table(compared_of(entry_of("a", {}, 0.5), frozen={"mAP": 0.1}))
    assert next(line for line in table.splitlines() if line.startswith("frozen")).split() == ["frozen", "backbone", "-"]


TAU = "loss.temperature"


def test_an_axis_of_several_losses_has_a_line_for_each():
    entries = [
        entry_of(f"{loss}, {TAU}={x}", {TAU: x}, value, value + 0.02)
        for loss, first in (("SmoothAP", 0.5), ("PNP-D_q", 0.7))
        for x, value in ((0.01, first), (0.1, first + 0.1))
    ]
    (chart,) = axis_plots(TAU, entries, ["R@1"])
    assert {name for name, _ in chart.legend} == {"SmoothAP", "PNP-D_q"}
    drawn = [stroke for stroke in chart.strokes if stroke.dots]
    assert [len(stroke.dots) for stroke in drawn] == [2, 2]
    assert len({stroke.kind for stroke in drawn}) == 2
    page = comparison_page(compared_of(*entries, axis=TAU))
    assert "of 4 ways to train" in page
    one = [replace(entry, name=entry.name.split(", ")[1]) for entry in entries[:2]]
    assert f"of 2 values of {TAU}" in comparison_page(compared_of(*one, axis=TAU))
    (chart,) = axis_plots(TAU, one, ["R@1"])
    assert {name for name, _ in chart.legend} == {"mean", "seeds"}


@pytest.mark.parametrize(("classes", "seeds", "notes"), [(5, 3, 2), (6, 3, 1), (6, 1, 2), (5, 1, 3)])
def test_what_differences_cannot_say(classes, seeds, notes):
    found = _of_differences(plan_of("photos", seeds=seeds), classes)
    assert len(found) == notes
    assert found[0].startswith(f"intervals and p-values are of differences over {classes} test classes")
    assert (" and 3 seeds" in found[0]) == (seeds == 3)
    assert any("no p can be below 0.05" in note for note in found) == (classes == 5)
    assert any("of one seed nothing is known" in note for note in found) == (seeds == 1)
    assert _of_differences(plan_of("photos", "SmoothAP"), classes) == []
    assert math.ldexp(2, -5) > 0.05 > math.ldexp(2, -6)  # the least p of so many classes
