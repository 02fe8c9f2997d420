"""The exceptions and warnings of the package.

FrontrankError
├── InputError           (also a ValueError)  a value, shape or length that cannot be used
├── InputTypeError       (also a TypeError)   a dtype or kind of object that cannot be used
└── InterruptedRunError                       a run was asked to stop, and has saved where it is

FrontrankWarning         (a UserWarning)      the work goes on, but something was probably not meant

Every message is one line: the argument, what is wrong with it, and the remedy.
"""


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
