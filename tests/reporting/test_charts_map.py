import re
from dataclasses import replace

import numpy as np
import pytest

from frontrank.reporting.charts import SIZE, display_name, draw_map
from tests.reporting.samples import findings_of


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
        drawn = {look: starts(path) for look, path in side.marks}
        expected = [
            [
                tuple(at)
                for at, look in zip(found.points["sides"][number], found.points["looks"], strict=True)
                if look == i
            ]
            for i in (0, 1)
        ]
        assert [sorted(drawn[i]) for i in (0, 1)] == [sorted(one) for one in expected]


def test_one_scale_for_both_axes_and_both_sides(findings):
    places = np.array([[i, 10 * (i % 3)] for i in range(12)], float)
    sides = tuple(replace(side, places=of) for side, of in zip(findings.sides, (places, 7 + places / 2), strict=True))
    wide, small = (np.array(xy) for xy in draw_map(replace(findings, sides=sides)).points["sides"])
    scale = (SIZE - 36) / 20
    for xy, factor in ((wide, 1), (small, 0.5)):
        assert np.ptp(xy, axis=0) == pytest.approx([11 * scale * factor, 20 * scale * factor], abs=0.11)
        assert (xy.min(0) + xy.max(0)) / 2 == pytest.approx([SIZE / 2, SIZE / 2], abs=0.11)
    assert np.argsort(wide[:, 0]).tolist() == list(range(12))


def test_together_is_the_share_of_points_beside_their_class(findings):
    """Rows are three of each class; two of a class lie beside each other, the third beside another class."""
    labels = np.array(list("aabbccaabbcc"))
    table = replace(findings.table, labels=labels)
    line = [[x, 0.0] for x in (0, 1, 10, 11, 20, 21, 30, 40, 31, 41, 60, 60.5)]
    found = draw_map(with_places(replace(findings, table=table), line))
    assert found.sides[0].together == pytest.approx(8 / 12)


def test_a_point_without_a_place_is_left_out_on_both_sides(findings):
    places = np.random.default_rng(0).normal(size=(12, 2))
    places[4, 1] = np.nan
    sides = replace(findings.sides[0], places=places), findings.sides[1]
    found = draw_map(replace(findings, sides=sides))
    assert found.points["rows"] == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert [len(xy) for xy in found.points["sides"]] == [11, 11]


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


def test_without_categories_the_colours_are_few_classes_or_none(tmp_path):
    few = draw_map(findings_of(tmp_path, categories=()))
    assert (few.by, [group.name for group in few.groups]) == ("class", [f"class {i}" for i in range(4)])
    many = draw_map(findings_of(tmp_path, categories=(), classes=12, per_class=2))
    assert (many.by, len(many.groups), many.sides[0].names) == ("", 1, ())


def test_names_and_pictures_do_not_cover_each_other(tmp_path):
    findings = findings_of(tmp_path, classes=40, per_class=8, categories=("a long name", "b", "another name", "d"))
    for side in draw_map(findings).sides:
        assert len(side.names) == 4
        for i, a in enumerate(side.names):
            for b in side.names[:i]:
                assert abs(a.y - b.y) > 19 or abs(a.x - b.x) > 3.9 * (len(a.text) + len(b.text))
        assert 20 < len(side.pictures) <= 160
        for i, a in enumerate(side.pictures):
            assert all(max(abs(a.x - b.x), abs(a.y - b.y)) >= 25.8 for b in side.pictures[:i])


def test_a_side_has_no_more_pictures_than_a_page_can_hold(findings):
    many = replace(findings, table=findings.table.rows(np.zeros(256, dtype=int)), mapped=np.arange(256))
    found = draw_map(with_places(many, [divmod(i, 16) for i in range(256)]))
    for side in found.sides:
        assert len(side.pictures) == 160
        assert 60 <= sum(placed.row >= 128 for placed in side.pictures) <= 100  # not in the order of the table


def test_a_name_stands_where_its_category_is_densest(findings):
    cold = findings.table.categories == "cold"
    places = np.where(cold[:, None], [[0.0, 0.0]], [[10.0, 10.0]]) + np.random.default_rng(0).normal(size=(12, 2)) / 9
    places[np.flatnonzero(cold)[0]] = [10, 10]
    side = draw_map(with_places(findings, places)).sides[0]
    at = {placed.text: (placed.x, placed.y) for placed in side.names}
    assert max(at["cold"]) < SIZE / 2 < min(at["warm"])


def test_an_image_is_called_by_its_name_or_its_label(findings):
    names = np.array(["grinning face", " ", *[""] * 10])
    table = replace(findings.table, extra={"name": names}, labels=np.array([*["a"] * 11, ""]))
    assert [display_name(table, row) for row in (0, 1, 2, 11)] == ["grinning face", "a", "a", "no label"]
    assert display_name(findings.table, 5) == "class 1"
