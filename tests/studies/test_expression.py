"""Derivatives as text: what they mean, and where they are wrong."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrank.errors import InputError
from studies.expression import derivative
from studies.pnp_designer import loss_of
from tests.studies.expressions import NEGATIVE, RIGHT, WRONG


@pytest.mark.parametrize("text", RIGHT)
def test_what_it_means(text):
    found = derivative(text)(torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64))
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(RIGHT[text], abs=1e-12)


@pytest.mark.parametrize("text", WRONG)
def test_where_it_is_wrong(text):
    with pytest.raises(InputError) as error:
        derivative(text)
    said = str(error.value)
    assert said.startswith("derivative '")
    assert said.endswith(f", {WRONG[text]}")
    assert "\n" not in said


def test_a_long_text_is_told_by_its_beginning():
    with pytest.raises(InputError, match=r"derivative '1\+1\+[1+]*\.\.\.', position 101: ") as error:
        derivative("1+" * 50)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("text", NEGATIVE)
def test_a_derivative_that_cannot_be(text):
    with pytest.raises(InputError, match=r"finite and at least 0 for every R >= 0, but f'\(") as error:
        loss_of(text)
    assert str(error.value).startswith(f"derivative {text!r}: ")
    assert "\n" not in str(error.value)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="R01.e+-*/^(), expmaxlogsqrtin$\n", max_size=40))
def test_any_text_is_read_or_refused_in_one_line(text):
    said, r = "", torch.tensor([0.0, 2.0])
    try:
        assert derivative(text)(r).shape == r.shape
    except InputError as error:
        said = str(error)
    assert "\n" not in said
