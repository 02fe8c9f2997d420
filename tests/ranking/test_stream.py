import pytest
import torch

from frontrank.ranking import unit_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_rows_are_normalised(dtype):
    x = torch.randn(7, 5, dtype=dtype)
    rows, _ = unit_rows(x)
    torch.testing.assert_close(rows, torch.nn.functional.normalize(x))


def test_zero_rows_stay_zero_and_get_no_gradient():
    x = torch.randn(3, 4)
    x[1] = 0
    rows, undo = unit_rows(x)
    assert (rows[1] == 0).all()
    gradient = undo(torch.ones(3, 4))
    assert (gradient[1] == 0).all()
    assert (gradient[[0, 2]] != 0).any(1).all()


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
def test_gradient_back_through_the_length(scale):
    x = (torch.randn(7, 5, dtype=torch.float64) * scale).requires_grad_()
    incoming = torch.randn(7, 5, dtype=torch.float64)
    [expected] = torch.autograd.grad((x / x.norm(dim=1, keepdim=True) * incoming).sum(), x)
    _, undo = unit_rows(x.detach())
    torch.testing.assert_close(undo(incoming.clone()) * scale, expected * scale, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_widened(dtype):
    x = torch.randn(7, 5).to(dtype)
    rows, _ = unit_rows(x)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, torch.nn.functional.normalize(x.float()))
