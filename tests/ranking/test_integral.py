"""PNP from any f': f is the integral to 1e-8, the slope is f' itself, wrong functions are named."""

import math

import pytest
import torch

import frontrank as fr
from frontrank.errors import InputError, InputTypeError
from frontrank.ranking import IntegratedPenalty


def _stairs(r):
    """The integral of 1 on [0, 1), 2 on [1, 2), ... 5 from 4 on."""
    return sum((r - k).clamp(min=0) for k in range(5))


KNOWN = {
    "O": (torch.ones_like, lambda r: r),
    "I_u": (lambda r: 1 + torch.log1p(r), lambda r: (1 + r) * torch.log1p(r)),
    "I_b": (lambda r: r / (1 + 2 * r), lambda r: (2 * r - torch.log1p(2 * r)) / 4),
    "D_s": (lambda r: 1 / (1 + r), torch.log1p),
    "D_q": (lambda r: 4 / (1 + r) ** 5, lambda r: 1 - (1 + r) ** -4),
    "jump up at 5": (lambda r: (r > 5).double(), lambda r: (r - 5).clamp(min=0)),
    "jump at 0.5": (lambda r: (r > 0.5).to(r.dtype), lambda r: (r - 0.5).clamp(min=0)),
    "jump at 96": (lambda r: (r >= 96).to(r.dtype), lambda r: (r - 96).clamp(min=0)),
    "stairs": (lambda r: 1 + torch.floor(r.clamp(max=4)), lambda r: _stairs(r)),
    "jump down at 2.7": (lambda r: (r < 2.7).to(r.dtype), lambda r: r.clamp(max=2.7)),
    "jump at 1000.3": (lambda r: (r > 1000.3).to(r.dtype), lambda r: (r - 1000.3).clamp(min=0)),
    "kink at 3": (lambda r: r.clamp(max=3), lambda r: torch.where(r < 3, r**2 / 2, 3 * r - 4.5)),
    "sharp": (lambda r: torch.exp(-50 * r), lambda r: -torch.expm1(-50 * r) / 50),
    "constant number": (lambda r: 2.0, lambda r: 2 * r),
    "square": (lambda r: r**2, lambda r: r**3 / 3),
    "square root": (torch.sqrt, lambda r: r**1.5 / 1.5),
    "waves": (lambda r: 1 + torch.cos(r), lambda r: r + torch.sin(r)),
    "zero": (torch.zeros_like, torch.zeros_like),
}
# waves of a fixed length need as many panels as there are waves
SLOW_BEYOND = {"waves": 2e3}


def f_of(f_prime):
    """f as a function of R; how many positives come before does not matter."""
    metric = IntegratedPenalty(f_prime)
    return lambda r: metric.pair_loss(torch.full_like(r, 3), r)


def ranks(limit=1e5):
    fixed = [
        0, 1e-12, 1e-6, 0.01, 0.5, 1, 2, 2.7, 3, math.pi, 4, 5, 5.0001, 8, 100, 1000.3, 1024, 12_345.6, 65_536, 1e5,
    ]  # fmt: skip
    chosen = torch.cat([torch.tensor(fixed, dtype=torch.float64), torch.rand(200, dtype=torch.float64) * 20])
    return chosen[chosen <= limit]


@pytest.mark.parametrize("name", KNOWN)
def test_value_is_the_integral(name):
    f_prime, f = KNOWN[name]
    r = ranks(SLOW_BEYOND.get(name, 1e5))
    actual = f_of(f_prime)(r)
    expected = f(r)
    assert actual.dtype == torch.float64
    assert ((actual - expected).abs() <= 1e-8 * expected.abs().clamp(min=1)).all(), (actual - expected).abs().max()


@pytest.mark.parametrize("name", ["D_q", "jump down at 2.7", "stairs", "square root"])
def test_value_does_not_depend_on_what_was_asked_before(name):
    f_prime, _ = KNOWN[name]
    r = ranks(1000.0)
    at_once = f_of(f_prime)(r)
    grown = f_of(f_prime)
    one_by_one = torch.stack([grown(x) for x in r.sort()[0]])
    torch.testing.assert_close(one_by_one, at_once.sort()[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", KNOWN)
def test_slope_is_f_prime_itself(name):
    f_prime, _ = KNOWN[name]
    r = ranks()
    expected = torch.as_tensor(f_prime(r), dtype=torch.float64).expand(r.shape)
    in_pos, in_neg = IntegratedPenalty(f_prime).pair_slopes(torch.zeros_like(r), r)
    assert in_pos is None
    assert torch.equal(in_neg, expected)


def test_gradient_of_the_loss_uses_f_prime():
    """One positive, one negative before it by temperature * log 3: R = 3/4."""
    seen = []

    def f_prime(r):
        seen.append(r)
        return (r > 0.5).to(r.dtype) * 7

    scores = torch.tensor([[0.0, 0.2 * math.log(3)]], dtype=torch.float64, requires_grad=True)
    loss = fr.PNP.from_derivative(f_prime, temperature=0.2).of_scores(scores, torch.tensor([[True, False]]))
    loss.backward()
    assert seen
    assert loss.item() == pytest.approx(7 * 0.25, abs=1e-8)
    slope = 7 * (3 / 16) / 0.2
    torch.testing.assert_close(scores.grad, torch.tensor([[-slope, slope]], dtype=torch.float64))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (1,), (3, 4), (2, 0)])
def test_shapes(shape):
    r = torch.rand(shape)
    f = f_of(lambda r: 1 / (1 + r))(r)
    assert f.shape == r.shape
    assert f.dtype == torch.float32
    torch.testing.assert_close(f, torch.log1p(r))


def test_integers_of_blackbox_ranks_up_to_a_large_gallery():
    r = torch.arange(0, 100_000, 7, dtype=torch.float64)
    f = f_of(lambda r: 1 / (1 + r))(r)
    torch.testing.assert_close(f, torch.log1p(r), rtol=0, atol=1e-8)


def _several_lines(r):
    raise RuntimeError("first line\nsecond line")


WRONG = {
    "negative everywhere": (lambda r: -torch.ones_like(r), ValueError, "at least 0"),
    "negative for large R": (lambda r: 100 - r, ValueError, "at least 0"),
    "NaN at 0": (lambda r: r / r, ValueError, "finite"),
    "infinite at 0": (lambda r: 1 / r, ValueError, "finite"),
    "infinite for large R": (lambda r: torch.exp(r), ValueError, "finite"),
    "not a function": (0.5, TypeError, "function"),
    "sums up": (lambda r: r.sum()[None], ValueError, "shape"),
    "one axis more": (lambda r: r[..., None], ValueError, "shape"),
    "wild": (lambda r: 1 + torch.sin(1e7 * r), ValueError, "smooth"),
    "python branch": (lambda r: 1.0 if r > 3 else 0.0, ValueError, "torch operations"),
    "no argument": (lambda: 1.0, (TypeError, ValueError), ""),
    "error of several lines": (_several_lines, ValueError, "first line"),
    "returns a word": (lambda r: "steep", (TypeError, ValueError), ""),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_derivative(what):
    f_prime, kind, says = WRONG[what]
    with pytest.raises((InputError, InputTypeError)) as caught:
        fr.PNP.from_derivative(f_prime)(torch.randn(6, 3), torch.arange(6) // 2)
    message = str(caught.value)
    assert isinstance(caught.value, kind)
    assert "f_prime" in message
    assert says in message
    assert "\n" not in message
