import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning import losses

import frontrank as fr
from tests.reference import exact

YES, NO = True, False


def test_two_equal_scores_by_hand():
    """R_N = G(0) = 1/2, so AP = 1 / (1 + 1/2)."""
    value = fr.SmoothAP().of_scores(torch.zeros(1, 2), torch.tensor([[YES, NO]]))
    assert value.item() == pytest.approx(1 - 1 / 1.5)


def test_one_negative_by_hand():
    """A negative ahead by temperature * log 3 counts 3/4."""
    scores = torch.tensor([[0.0, 0.2 * math.log(3)]], dtype=torch.float64)
    value = fr.SmoothAP(temperature=0.2).of_scores(scores, torch.tensor([[YES, NO]]))
    assert value.item() == pytest.approx(1 - 1 / 1.75, abs=1e-12)


def test_two_positives_by_hand():
    """Gaps of temperature * log 3: the neighbours count 3/4 or 1/4, those two steps away 9/10 or 1/10."""
    step = 0.2 * math.log(3)
    scores = torch.tensor([[2 * step, step, 0.0]], dtype=torch.float64)  # positive, negative, positive
    value = fr.SmoothAP(temperature=0.2).of_scores(scores, torch.tensor([[YES, NO, YES]]))
    first = (1 + 1 / 10) / (1 + 1 / 10 + 1 / 4)
    second = (1 + 9 / 10) / (1 + 9 / 10 + 3 / 4)
    assert value.item() == pytest.approx(1 - (first + second) / 2, abs=1e-12)


def test_gradient_by_hand():
    """AP = 1 / (1 + R): d loss / d R = 1 / (1 + R)^2, and G' = 3/4 * 1/4 / temperature."""
    scores = torch.tensor([[0.0, 0.2 * math.log(3)]], dtype=torch.float64, requires_grad=True)
    fr.SmoothAP(temperature=0.2).of_scores(scores, torch.tensor([[YES, NO]])).backward()
    slope = 1 / 1.75**2 * (3 / 16) / 0.2
    torch.testing.assert_close(scores.grad, torch.tensor([[-slope, slope]], dtype=torch.float64))


@st.composite
def distinct_lists(draw):
    places = draw(st.lists(st.integers(-100, 100), min_size=2, max_size=20, unique=True))
    relevant = draw(st.lists(st.booleans(), min_size=len(places), max_size=len(places)))
    relevant[draw(st.integers(0, len(places) - 1))] = True
    return places, relevant


@given(distinct_lists())
def test_becomes_exact_ap_as_the_temperature_falls(one):
    places, relevant = one
    scores = torch.tensor([places], dtype=torch.float64) / 100
    value = fr.SmoothAP(temperature=1e-4).of_scores(scores, torch.tensor([relevant]))
    assert value.item() == pytest.approx(1 - exact.average_precision(places, relevant), abs=1e-12)


@pytest.mark.parametrize(("classes", "size"), [(28, 4), (4, 28), (16, 7)])
def test_perfect_clusters_have_no_loss(classes, size):
    """Where classes and samples per class are not the same number, a library's port says otherwise (below)."""
    embeddings = torch.eye(classes).repeat_interleave(size, 0).requires_grad_()
    loss = fr.SmoothAP()(embeddings, torch.arange(classes).repeat_interleave(size))
    loss.backward()
    assert abs(loss.item()) < 1e-6
    assert embeddings.grad.abs().max() < 1e-6


@pytest.mark.parametrize(("classes", "size", "theirs"), [(4, 4, 0.0), (16, 4, 0.5217), (28, 4, 0.6154)])
def test_the_port_of_pytorch_metric_learning_is_wrong(classes, size, theirs):
    """As docs/losses/smooth_ap.md and a warning say; if this fails, it is mended, and both can go."""
    embeddings, labels = torch.eye(classes).repeat_interleave(size, 0), torch.arange(classes).repeat_interleave(size)
    assert losses.SmoothAPLoss()(embeddings, labels).item() == pytest.approx(theirs, abs=1e-4)
    assert fr.SmoothAP()(embeddings, labels).item() == pytest.approx(0, abs=1e-6)
