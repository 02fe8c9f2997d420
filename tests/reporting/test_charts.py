import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.reporting.charts import Line, Scale, chart, log_ticks, running_mean, tick_texts, ticks
from frontrank.reporting.findings import Curve

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


def test_the_range_goes_on_to_the_next_ticks():
    found = chart("a", [Line("", curve([0, 1], [0.477, 0.98]))], X, Scale("R@k", percent=True))
    assert [tick.text for tick in found.y_ticks] == ["40 %", "60 %", "80 %", "100 %"]
    assert found.y_ticks[0].at == found.bottom
    assert found.y_ticks[-1].at == 27


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


def test_an_area_is_closed_on_the_ground():
    found = chart("a", [Line("", curve([0, 1, 2], [1, 3, 2]), filled=True)], X, Scale("density", span=(0, 4)))
    stroke = found.strokes[0]
    assert stroke.area.startswith(stroke.path)
    assert stroke.area.endswith("Z")
    assert points(stroke.area)[-2:] == [(found.right, found.bottom), (found.left, found.bottom)]


def test_a_noisy_line_is_faint_below_its_running_mean():
    y = np.tile([0.0, 2.0], 30)
    faint, mean = chart("a", [Line("loss", curve(range(60), y), smooth=True)], X, Y).strokes
    assert (faint.kind, mean.kind) == ("faint", "after")
    assert len({at for _, at in points(faint.path)}) == 2
    inner = [at for _, at in points(mean.path)][5:-5]
    assert max(inner) - min(inner) < 0.5 * (points(faint.path)[0][1] - points(faint.path)[1][1])
    assert len(chart("a", [Line("loss", curve(range(29), range(29)), smooth=True)], X, Y).strokes) == 1


def test_a_long_line_is_thinned_but_keeps_its_ends():
    found = chart("a", [Line("", curve(range(10_000), np.linspace(0, 1, 10_000)))], X, Y)
    drawn = points(found.strokes[0].path)
    assert len(drawn) == 400
    assert (drawn[0][0], drawn[-1][0]) == (found.left, found.right)
    assert (len(found.numbers.rows), found.numbers.rows[0][0], found.numbers.rows[-1][0]) == (13, "0", "9,999")


def test_the_legend_names_each_look_once_in_order():
    lines = [
        Line(name, curve([0, 1], [0, 1]), kind) for name, kind in (("b", "before"), ("a", "after"), ("c", "after"))
    ]
    assert chart("a", lines, X, Y).legend == (("b", "before"), ("a", "after"))
    assert chart("a", lines[1:2], X, Y).legend == (("a", "after"),)
    assert chart("a", [Line("", lines[0].curve)], X, Y).legend == ()


def test_what_is_behind_is_drawn_first_and_in_no_table():
    own, other = Line("own", curve([0, 1], [0, 1])), Line("", curve([0, 1], [1, 0]), "faint")
    found = chart("a", [own], X, Y, behind=[other, Line("", curve([], []), "faint")])
    assert [stroke.kind for stroke in found.strokes] == ["faint", "after"]
    assert found.numbers.header == ["step", "own"]
    assert found.numbers.rows == [["0", "0"], ["1", "1"]]


def test_words_and_numbers_say_what_is_drawn():
    lines = [Line("before", curve([1, 10], [0.5, 0.25]), "before"), Line("after", curve([10], [1]), dotted=True)]
    found = chart("R@k", lines, Scale("k"), Scale("R@k", percent=True))
    text = found.summary.replace("\u202f", " ")
    assert text == "R@k. before: 50.0 % at k 1, 25.0 % at 10, highest 50.0 % at 1; after: 100.0 % at k 10."
    assert [[cell.replace("\u202f", " ") for cell in row] for row in found.numbers.rows] == [
        ["1", "50.0 %", ""],
        ["10", "25.0 %", "100.0 %"],
    ]
    assert found.strokes[1].dots[0].text.replace("\u202f", " ") == "after: 100.0 % at k 10"


def test_several_values_at_one_place_are_all_in_the_table():
    assert chart("a", [Line("", curve([1, 1, 2], [3, 4, 5]))], X, Y).numbers.rows == [["1", "3, 4"], ["2", "5"]]


def test_marks_are_ticks_where_asked():
    scale = Scale("x", log=True, marks=(0.001, 0.05, 1.0, 99.0))
    found = chart("a", [Line("", curve([0.001, 0.05, 1], [1, 2, 3]))], scale, Y)
    assert [tick.text for tick in found.x_ticks] == ["0.001", "0.05", "1"]


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


def test_texts_of_an_axis_have_the_same_decimals():
    assert tick_texts([0, 2.5, 5]) == ["0.0", "2.5", "5.0"]
    assert tick_texts([1000, 2000]) == ["1,000", "2,000"]
    assert tick_texts(ticks(0.99981, 0.99989)) == ["0.99982", "0.99984", "0.99986", "0.99988"]
    assert tick_texts(ticks(0.9996, 0.9999), percent=True) == ["99.96 %", "99.97 %", "99.98 %", "99.99 %"]
    assert tick_texts([0, 5e-4]) == ["0", "5e-4"]
    assert tick_texts([0.125, 0.25], percent=True) == ["12.5 %", "25.0 %"]
