"""The studies of Smooth-AP: what they measure by hand and against references, and their verdicts."""

import pytest

from studies import smooth_ap_error
from studies.smooth_ap_indicator import STUDY as INDICATOR
from studies.smooth_ap_indicator import _ap, _lists
from studies.study import AGREES, AGREES_IN_PART, DOES_NOT_AGREE, Effort
from tests.reference.evaluation import in_order, value
from tests.studies.samples import verdict

# What takes the place of the step


def test_ap_with_the_step_is_exact():
    scores, positive = _lists(20, seed=1)
    ap = _ap(scores, positive, lambda x: (x > 0).double())
    relevant = set(positive.nonzero().flatten().tolist())
    assert ap.tolist() == pytest.approx([value("mAP", in_order(row.tolist(), relevant)) for row in scores])


def test_the_indicator_is_measured_and_judged(tmp_path):
    results = INDICATOR.measure(Effort(tmp_path, quick=True))
    assert verdict(INDICATOR, results) == AGREES
    low, high = results["curves"]["sigmoid, τ = 0.001"], results["curves"]["sigmoid, τ = 0.1"]
    low["ap_error"], high["ap_error"] = high["ap_error"], low["ap_error"]
    assert verdict(INDICATOR, results) == DOES_NOT_AGREE


# The error in training


@pytest.mark.parametrize(
    ("errors", "word"),
    [
        (([0.1] * 57, [0.2] * 57, [0.3] * 57), AGREES),
        (([0.1] * 8, [0.3] * 8, [0.2] * 8), DOES_NOT_AGREE),
        (([0.1, 0.1], [0.05, 0.5]), AGREES_IN_PART),  # lines cross
    ],
)
def test_verdict_on_the_error(errors, word):
    results = {"seeds": [0], "errors": {str(place): [each] for place, each in enumerate(errors)}}
    assert verdict(smooth_ap_error.STUDY, results) == word


# The ablation
