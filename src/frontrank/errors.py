"""The exceptions and warnings of the package.

FrontrankError
├── InputError           (also a ValueError)  a value, shape or length that cannot be used
├── InputTypeError       (also a TypeError)   a dtype or kind of object that cannot be used
└── InterruptedRunError                       a run was asked to stop, and has saved where it is

FrontrankWarning         (a UserWarning)      the work goes on, but something was probably not meant

Every message is one line: the argument, what is wrong with it, and the remedy.
"""

import math


class FrontrankError(Exception):
    """Root of everything this package raises on purpose."""


class InputError(FrontrankError, ValueError):
    """A value, shape or length that cannot be used."""


class InputTypeError(FrontrankError, TypeError):
    """A dtype or kind of object that cannot be used."""


class InterruptedRunError(FrontrankError):
    """A run was asked to stop, and has saved where it is."""


class FrontrankWarning(UserWarning):
    """The work goes on, but something was probably not meant."""


def require_number(
    name: str, value: object, *, above: float = -math.inf, at_least: float = -math.inf, at_most: float = math.inf
) -> None:
    """Refuse a setting that is not a finite number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputTypeError(f"{name} must be a number, got {value!r}")
    if not (math.isfinite(value) and value > above and at_least <= value <= at_most):
        bounds = {"greater than": above, "at least": at_least, "at most": at_most}
        said = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))
        raise InputError(f"{name} must be {said}, got {value}")
