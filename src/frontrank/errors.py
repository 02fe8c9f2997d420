"""The exceptions and warnings of the package.

FrontrankError
├── InputError           (also a ValueError)  a value, shape or length that cannot be used
│   └── DivergenceError                       numbers of a model that are not finite
├── InputTypeError       (also a TypeError)   a dtype or kind of object that cannot be used
└── InterruptedRunError                       a run was stopped, and has saved its state

FrontrankWarning         (a UserWarning)      the work goes on, but something is probably wrong

Every message is one line: the argument, what is wrong with its value, and what to do.
"""


class FrontrankError(Exception):
    """Root of all errors that this package raises on purpose."""


class InputError(FrontrankError, ValueError):
    """A value, shape or length that cannot be used."""


class DivergenceError(InputError):
    """Numbers of a model are not finite: its training diverged, and would again with the same settings."""


class InputTypeError(FrontrankError, TypeError):
    """A dtype or kind of object that cannot be used."""


class InterruptedRunError(FrontrankError):
    """A run was stopped, and has saved its state."""


class FrontrankWarning(UserWarning):
    """The work goes on, but something is probably wrong."""
