"""When a difference over seeds is called one, and what is made of several claims."""

import pytest

from frontrank.studies.over_seeds import by_setting, draw_over, gap, verdict
from frontrank.studies.style import panels
from tests.studies.made_up import entry, failed


def test_a_gap_is_in_points_with_its_standard_error():
    found = gap([0.61, 0.62, 0.63], [0.60, 0.60, 0.60])
    assert found.points == pytest.approx(2.0)
    assert found.error == pytest.approx(100 * 0.01 / 3**0.5, abs=1e-5)  # the spread of the first alone
    assert (found.counts, found.is_more, found.is_less) == (True, True, False)
    assert str(found) == "+2.0 ± 0.6"
    assert gap([0.6], [0.62]).is_less


def test_small_and_noisy_gaps_do_not_count():
    assert not gap([0.604], [0.6]).counts  # less than half a point
    assert gap([0.606], [0.6]).counts
    assert not gap([0.58, 0.62, 0.66], [0.6, 0.6, 0.6]).counts  # +2.0 ± 2.3


def test_values_by_a_setting_are_of_entries_that_came_to_an_end():
    entries = [
        entry({"loss.bins": 5, "loss.tie_aware": True}, 0.5),
        entry({"loss.bins": 5, "loss.tie_aware": False}, 0.6),
        failed({"loss.bins": 10, "loss.tie_aware": False}),
    ]
    assert by_setting(entries, "loss.bins", "mAP", loss_tie_aware=False) == {5: [0.6] * 3}


def test_a_line_has_means_and_whiskers_in_percent():
    _, axes = panels()
    draw_over(axes[0, 0], {4: [0.5, 0.7], 2: [0.4]}, "a", 0, logarithmic=True)
    line = axes[0, 0].lines[0]
    assert line.get_xdata().tolist() == [2, 4]
    assert line.get_ydata() == pytest.approx([40, 60])


@pytest.mark.parametrize(
    ("agreeing", "said"),
    [([True, True], "**Agrees**"), ([True, False], "**Agrees in part**"), ([False], "**Does not agree**")],
)
def test_the_verdict_on_several_claims(agreeing, said):
    assert verdict(agreeing) == said
