"""When a difference over seeds is called one, and what is made of several claims."""

import pytest

from studies.over_seeds import RULE, answer, by_setting, draw_over, gap, gap_of_gaps, mean_of_gaps, verdict
from studies.style import panels
from tests.studies.made_up import entry, failed


def test_a_gap_is_in_points_with_its_standard_error():
    found = gap([0.63, 0.64, 0.65], [0.60, 0.60, 0.60])
    assert found.points == pytest.approx(4.0)
    assert found.error == pytest.approx(100 * 0.01 / 3**0.5, abs=1e-5)  # the spread of the first alone
    assert (found.counts, found.is_more, found.is_less) == (True, True, False)
    assert str(found) == "+4.0 ± 0.6"
    assert gap([0.6, 0.6], [0.62, 0.62]).is_less


def test_small_and_noisy_gaps_do_not_count():
    assert not gap([0.604, 0.604], [0.6, 0.6]).counts  # less than half a point
    assert gap([0.606, 0.606], [0.6, 0.6]).counts
    assert not gap([0.58, 0.62, 0.66], [0.6, 0.6, 0.6]).counts  # +2.0 ± 2.3


def test_few_seeds_count_by_the_interval_of_welch():
    """Held to tables of Student's t: 4.303 of 2 degrees of freedom, 2.776 of 4."""
    one_sided = gap([0.61, 0.62, 0.63], [0.60, 0.60, 0.60])  # the spread of one alone: 2 degrees
    assert one_sided.freedom == pytest.approx(2)
    assert one_sided.reach == pytest.approx(4.3027 * one_sided.error, rel=1e-4)
    both = gap([0.61, 0.62, 0.63], [0.60, 0.61, 0.62])  # equal spreads: 4
    assert both.freedom == pytest.approx(4)
    assert both.reach == pytest.approx(2.7764 * both.error, rel=1e-4)
    assert both.points > both.error  # so 1.2 errors, which are not enough
    assert not both.counts
    between = gap([0.61, 0.62, 0.63], [0.6, 0.605, 0.61])
    variances = 1 / 3, 0.25 / 3  # of the means, in squared points
    assert between.freedom == pytest.approx(sum(variances) ** 2 / sum(each**2 / 2 for each in variances), abs=1e-4)


def test_the_gap_of_two_gaps_has_the_errors_of_both():
    lost, other = gap([0.5, 0.51, 0.52], [0.6, 0.6, 0.6]), gap([0.4, 0.41, 0.42], [0.6, 0.61, 0.62])
    found = gap_of_gaps(lost, other)
    assert found.points == pytest.approx(11.0)
    assert found.error == pytest.approx((lost.error**2 + other.error**2) ** 0.5)
    variances = lost.error**2, other.error**2
    by_hand = sum(variances) ** 2 / (variances[0] ** 2 / 2 + variances[1] ** 2 / 4)
    assert found.freedom == pytest.approx(by_hand, rel=1e-4)
    assert not gap_of_gaps(lost, gap([0.5], [0.6])).counts


def test_the_mean_of_gaps_has_the_errors_of_all():
    """By hand: errors of 1 / sqrt(3) and 0 points, of 2 degrees of freedom, so half of the first."""
    noisy, exact = gap([0.61, 0.62, 0.63], [0.6, 0.6, 0.6]), gap([0.61, 0.61, 0.61], [0.6, 0.6, 0.6])
    found = mean_of_gaps([noisy, exact])
    assert found.points == pytest.approx(1.5)
    assert found.error == pytest.approx(0.5 / 3**0.5, abs=1e-5)
    assert found.freedom == pytest.approx(2, abs=1e-4)
    both = mean_of_gaps([noisy, noisy])  # independent: the error shrinks, the degrees of freedom add up
    assert both.error == pytest.approx(noisy.error / 2**0.5, abs=1e-5)
    assert both.freedom == pytest.approx(4, abs=1e-4)
    one_seed = mean_of_gaps([gap([0.7], [0.6]), gap([0.7], [0.6])])
    assert one_seed.points == pytest.approx(10)
    assert not one_seed.points > one_seed.reach


def test_an_answer_tells_what_is_not_shown_from_the_other_way_round():
    more, less, none = (gap([0.6 + by] * 3, [0.6] * 3) for by in (0.02, -0.02, 0.001))
    assert answer([more, more]) == "yes"
    assert answer([less]) == "no, the other way round"
    assert answer([more, less]) == answer([none, less]) == "no"
    assert answer([none]) == answer([more, none]) == "not shown"


def test_what_the_interval_leaves_out_is_told():
    assert "over training seeds, on these test classes: other classes, and the number of comparisons" in RULE


def test_one_seed_is_no_evidence():
    assert not gap([0.9], [0.6]).counts
    assert not gap([0.9, 0.9, 0.9], [0.6]).counts
    assert str(gap([0.606], [0.6])) == "+0.6 (one seed)"


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


def test_without_claims_there_is_no_verdict():
    with pytest.raises(ValueError, match="no claim"):
        verdict([])
