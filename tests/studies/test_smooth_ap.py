"""The studies of Smooth-AP: what they measure by hand and against references."""

import pytest

from studies.smooth_ap_indicator import STUDY as INDICATOR
from studies.smooth_ap_indicator import _ap, _lists
from studies.study import AGREES, Effort
from tests.reference.evaluation import in_order, value
from tests.studies.samples import verdict


def test_ap_with_the_step_is_exact():
    scores, positive = _lists(20, seed=1)
    ap = _ap(scores, positive, lambda x: (x > 0).double())
    relevant = set(positive.nonzero().flatten().tolist())
    assert ap.tolist() == pytest.approx([value("mAP", in_order(row.tolist(), relevant)) for row in scores])


def test_the_indicator_is_measured_and_judged(tmp_path):
    results = INDICATOR.measure(Effort(tmp_path, quick=True))
    assert verdict(INDICATOR, results) == AGREES
