import math

import pytest
import torch

import frontrank as fr
from tests.cases import unequal_classes, value_and_gradients
from tests.reference.lists import lists_of_batch, mean_over_queries
from tests.reference.sigmoid_ranks import negatives_before

YES, NO = True, False

# one positive with two negatives before it by temperature * log 3: R = 3/4 + 3/4
R = 1.5
BY_HAND = [
    ({"variant": "O"}, R, 1),
    ({"variant": "I_u"}, 2.5 * math.log(2.5), 1 + math.log(2.5)),
    ({"variant": "I_b", "b": 2.0}, (3 - math.log(4)) / 4, 1.5 / 4),
    ({"variant": "I_b", "b": 1.0}, 1.5 - math.log(2.5), 1.5 / 2.5),
    ({"variant": "D_s"}, math.log(2.5), 1 / 2.5),
    ({"variant": "D_q", "alpha": 1.0}, 1 - 1 / 2.5, 1 / 2.5**2),
    ({"variant": "D_q"}, 1 - 1 / 2.5**4, 4 / 2.5**5),
    ({}, 1 - 1 / 2.5**4, 4 / 2.5**5),
]


@pytest.mark.parametrize(("settings", "value", "slope"), BY_HAND)
def test_by_hand(settings, value, slope):
    up = 0.2 * math.log(3)
    scores = torch.tensor([[up, 0.0, up]], dtype=torch.float64, requires_grad=True)
    loss = fr.PNP(temperature=0.2, **settings).of_scores(scores, torch.tensor([[NO, YES, NO]]))
    loss.backward()
    assert loss.item() == pytest.approx(value, abs=1e-12)
    each = slope * (3 / 16) / 0.2
    torch.testing.assert_close(scores.grad, torch.tensor([[each, -2 * each, each]], dtype=torch.float64))


def test_from_derivative_takes_the_value_from_the_integral_and_the_gradient_from_f_prime():
    embeddings, more = unequal_classes()

    def reference(embeddings, labels):
        def of_list(one):
            r = torch.stack([negatives_before(one, i, 0.1) for i in range(len(one.positive))])
            return (r + r**3 / 3).mean()

        return mean_over_queries(of_list, lists_of_batch(embeddings, labels))

    loss = fr.PNP.from_derivative(lambda r: 1 + r**2, temperature=0.1)
    for actual, expected in zip(
        value_and_gradients(loss, embeddings, more), value_and_gradients(reference, embeddings, more), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_from_derivative_shows_in_repr():
    def my_slope(r):
        return 1 / (1 + r)

    shown = repr(fr.PNP.from_derivative(my_slope))
    assert "my_slope" in shown
    assert "D_q" not in shown, "the variant is not what this loss computes"
