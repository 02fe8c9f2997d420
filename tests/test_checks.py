"""Checks of what a user gives: the type of the error, and the argument's name in it."""

import numpy as np
import pytest

from frontrank.checks import (
    check_choice,
    check_integer,
    check_number,
    import_extra,
    join_words,
    nearest_word,
    shorten,
    suggestion,
)
from frontrank.errors import InputError, InputTypeError
from tests.errors import refusal


@pytest.mark.parametrize("value", [1, 7, np.int64(3), np.uint8(7)])
def test_integers_within_the_bounds_are_returned_as_int(value):
    result = check_integer("k", value, at_least=1, at_most=7)
    assert result == value
    assert type(result) is int


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, InputError),
        (8, InputError),
        (2.0, InputError),
        (float("nan"), InputError),
        (True, InputTypeError),
        ("3", InputTypeError),
        (None, InputTypeError),
        ([3], InputTypeError),
    ],
)
def test_other_integers_are_refused(value, error):
    with pytest.raises(error, match=r"^k"):
        check_integer("k", value, at_least=1, at_most=7)


@pytest.mark.parametrize("value", [0.5, 1, 1.0])
def test_numbers_within_the_bounds(value):
    assert check_number("lam", value, above=0, at_most=1) == value


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, InputError),
        (1.5, InputError),
        (float("inf"), InputError),
        (float("nan"), InputError),
        (True, InputTypeError),
        ("1", InputTypeError),
        (None, InputTypeError),
    ],
)
def test_other_numbers_are_refused(value, error):
    with pytest.raises(error, match=r"^lam"):
        check_number("lam", value, above=0, at_most=1)


def test_a_number_without_bounds_is_finite():
    refusal(lambda: check_number("mean", float("nan")), "finite")


def test_choices():
    assert check_choice("kind", "max", ("average", "max")) == "max"
    refusal(lambda: check_choice("kind", "maxx", ("average", "max")), "kind", "average", "max")
    refusal(lambda: check_choice("kind", 3, ("average", "max")), "kind", error=InputTypeError)


def test_words():
    assert join_words(["a"]) == "a"
    assert join_words(["a", "b", "c"], "and") == "a, b and c"
    assert nearest_word("trian", ["train", "embed"]) == "train"
    assert nearest_word("xyz", ["train", "embed"]) is None
    assert "train" in suggestion("trian", ["train", "embed"])
    assert suggestion("xyz", ["train", "embed"]) == ""
    assert shorten("x" * 80) == "x" * 80
    assert shorten("x" * 81) == "x" * 80 + "..."


def test_a_missing_package_names_its_extra():
    assert import_extra("json", "train", "this").loads("1") == 1
    refusal(lambda: import_extra("no_such_package.part", "report", "a report"), "no_such_package", "frontrank[report]")


@pytest.mark.parametrize("check", [check_integer, check_number])
def test_numbers_that_python_does_not_write(check):
    refusal(lambda: check("steps", -(16**5000), at_least=0), "steps")
