"""The one line of an error."""

import pytest

from frontrank.errors import InputError


def refusal(call, *parts, error=InputError):
    """The one line of an error, which has these names or values."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message
    return message


def message_of(call, *args, **more):
    """The message of the InputError, which is one line of printable text."""
    with pytest.raises(InputError) as caught:
        call(*args, **more)
    assert str(caught.value).isprintable()
    return str(caught.value)
