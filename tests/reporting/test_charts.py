import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.reporting.charts import Line, Scale, chart, display_name, draw_map, log_ticks, running_mean, ticks
from frontrank.reporting.findings import Curve
from tests.reporting.samples import findings_of

X, Y = Scale("step"), Scale("value")


def curve(x, y):
    return Curve(np.array(x, dtype=float), np.array(y, dtype=float))


def points(path):
    """The points of a path, as numbers."""
    return [tuple(map(float, point.split())) for point in re.split("[ML]", path.rstrip("Z"))[1:]]


def test_points_lie_where_the_scales_put_them():
    found = chart("a", [Line("", curve([0, 5, 10], [0, 0.5, 1]))], X, Y, size=(420, 260))
    assert [tick.text for tick in found.y_ticks] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert found.left == 14 + 7.2 * 3
    middle = (found.left + 406) / 2
    assert points(found.strokes[0].path) == [(35.6, 220), (round(middle, 1), 123.5), (406, 27)]
    assert [(tick.at, tick.text) for tick in found.x_ticks][::5] == [(35.6, "0"), (406, "10")]


def test_a_logarithmic_scale_gives_each_power_as_much_room():
    found = chart("a", [Line("", curve([1, 10, 100], [0, 1, 2]))], Scale("k", log=True), Y)
    (a, _), (b, _), (c, _) = points(found.strokes[0].path)
    assert b - a == pytest.approx(c - b, abs=0.1)
    assert [tick.text for tick in found.x_ticks] == ["1", "10", "100"]


@pytest.mark.parametrize("x", [[0, 10, 100], [-1, 1, 2], [3, 3]], ids=["zero", "negative", "one value"])
def test_a_logarithmic_scale_that_cannot_be_is_plain(x):
    plain = chart("a", [Line("", curve(x, range(len(x))))], X, Y)
    assert chart("a", [Line("", curve(x, range(len(x))))], Scale("step", log=True), Y) == plain


def test_values_that_are_not_finite_are_left_out_and_counted():
    found = chart("a", [Line("", curve([1, 2, 3, 4], [1, math.nan, math.inf, 2]))], X, Y, note="So.")
    assert len(points(found.strokes[0].path)) == 2
    assert found.note.startswith("So. 2 ")
    assert [row[0] for row in found.numbers.rows] == ["1", "4"]


@pytest.mark.parametrize(
    "lines", [[], [Line("", curve([], []))], [Line("", curve([1], [math.nan]))]], ids=["none", "empty", "nan"]
)
def test_nothing_to_draw(lines):
    assert chart("a", lines, X, Y) is None


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-12, 1e12])
def test_a_single_point_is_a_dot_inside_the_frame(value):
    found = chart("a", [Line("", curve([7], [value]))], X, Y)
    (dot,) = found.strokes[0].dots
    assert found.left <= dot.x <= found.right
    assert 27 <= dot.y <= found.bottom


def test_a_noisy_line_is_faint_below_its_running_mean():
    y = np.tile([0.0, 2.0], 30)
    faint, mean = chart("a", [Line("loss", curve(range(60), y), smooth=True)], X, Y).strokes
    assert (faint.kind, mean.kind) == ("faint", "after")
    assert len({at for _, at in points(faint.path)}) == 2
    inner = [at for _, at in points(mean.path)][5:-5]
    assert max(inner) - min(inner) < 0.5 * (points(faint.path)[0][1] - points(faint.path)[1][1])
    assert len(chart("a", [Line("loss", curve(range(29), range(29)), smooth=True)], X, Y).strokes) == 1


def test_words_and_numbers_say_what_is_drawn():
    assert chart("a", [Line("", curve([1, 1, 2], [3, 4, 5]))], X, Y).numbers.rows == [["1", "3, 4"], ["2", "5"]]
    lines = [Line("before", curve([1, 10], [0.5, 0.25]), "before"), Line("after", curve([10], [1]), dotted=True)]
    found = chart("R@k", lines, Scale("k"), Scale("R@k", percent=True))
    numbers = [[float(each) for each in re.findall(r"[\d.]+\b", part)] for part in found.summary.split(";")]
    assert numbers == [[50, 1, 25, 10, 50, 1], [100, 10]]  # first, last and highest, and where
    assert [[cell.replace("\u202f", " ") for cell in row] for row in found.numbers.rows] == [
        ["1", "50.0 %", ""],
        ["10", "25.0 %", "100.0 %"],
    ]
    assert found.strokes[1].dots[0].text.startswith("after: 100.0")


def test_running_mean_equals_a_loop():
    values = np.random.default_rng(0).normal(size=17)
    slow = [values[max(0, i - 2) : i + 3].mean() for i in range(17)]
    assert running_mean(values, 5) == pytest.approx(slow)


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6))
def test_ticks_are_few_even_and_inside(low, width):
    found = ticks(low, low + width)
    assert 2 <= len(found) <= 6
    slack = 1e-6 * max(abs(low), width)
    assert low - slack <= found[0] <= found[-1] <= low + width + slack
    assert np.diff(found) == pytest.approx(found[1] - found[0], rel=1e-3)


@given(low=st.floats(1e-6, 1e3), factor=st.floats(1.01, 1e8))
def test_log_ticks_are_few_and_inside(low, factor):
    found = log_ticks(low, low * factor)
    assert 2 <= len(found) <= 7
    assert found == sorted(found)
    assert low * 0.99 <= found[0] <= found[-1] <= low * factor * 1.01


# The map of embeddings


@pytest.fixture
def findings(tmp_path):
    return findings_of(tmp_path)


def with_places(findings, places):
    return replace(findings, sides=tuple(replace(side, places=np.array(places, float)) for side in findings.sides))


def starts(path):
    return [tuple(map(float, at)) for at in re.findall(r"M([-\d.]+) ([-\d.]+)", path)]


def test_every_point_is_drawn_once_per_side_with_the_look_of_its_category(findings):
    found = draw_map(findings)
    assert found.by == "category"
    assert [(group.name, group.look, group.count) for group in found.groups] == [("cold", 0, 6), ("warm", 1, 6)]
    for number, side in enumerate(found.sides):
        points = list(zip(found.points["looks"], found.points["sides"][number], strict=True))
        for look, path in side.marks:
            assert sorted(starts(path)) == sorted(tuple(at) for of, at in points if of == look)


def test_together_is_the_share_of_points_beside_their_class(findings):
    """Rows are three of each class; two of a class lie beside each other, the third beside another class."""
    labels = np.array(list("aabbccaabbcc"))
    table = replace(findings.table, labels=labels)
    line = [[x, 0.0] for x in (0, 1, 10, 11, 20, 21, 30, 40, 31, 41, 60, 60.5)]
    found = draw_map(with_places(replace(findings, table=table), line))
    assert found.sides[0].together == pytest.approx(8 / 12)


@pytest.mark.parametrize("count", [0, 2])
def test_too_few_points_are_no_map(findings, count):
    sides = tuple(replace(side, places=side.places[:count]) for side in findings.sides)
    assert draw_map(replace(findings, mapped=findings.mapped[:count], sides=sides)) is None
    assert draw_map(replace(findings, mapped=findings.mapped[:5])) is None  # places of other rows


def test_the_largest_categories_have_looks(findings):
    names = np.array([f"c{i:02}" for i in range(10)] + ["c09", "c09"])
    found = draw_map(replace(findings, table=replace(findings.table, categories=names)))
    assert [(group.name, group.count) for group in found.groups] == [
        *((f"c{i:02}", 1) for i in range(8)),
        ("c09", 3),
        ("all others", 1),
    ]
    names = np.array(["", "", "", "", "", *["a"] * 4, *["b"] * 3])
    found = draw_map(replace(findings, table=replace(findings.table, categories=names)))
    assert [(group.name, group.count) for group in found.groups] == [("a", 4), ("b", 3), ("all others", 5)]


def test_an_image_is_called_by_its_name_or_its_label(findings):
    names = np.array(["grinning face", " ", *[""] * 10])
    table = replace(findings.table, extra={"name": names}, labels=np.array([*["a"] * 11, ""]))
    assert [display_name(table, row) for row in (0, 1, 2, 11)] == ["grinning face", "a", "a", "no label"]
    assert display_name(findings.table, 5) == "class 1"
