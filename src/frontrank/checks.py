"""Checks of what a user gives: numbers, choices, names that are nearly right, packages that are not installed.

Every check raises an error of one line: the argument, what is wrong with its value, and what to do.
"""

import math
import operator
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from types import ModuleType

from frontrank.errors import InputError, InputTypeError

_MOST_WORDS = 2000  # that are looked at for one that is meant: a file can have 200,000 names of columns


def check_integer(name: str, value: object, *, at_least: int | None = None, at_most: int | None = None) -> int:
    """Return value as an int, or raise if it is not a whole number within the bounds.

    >>> check_integer("bins", 0, at_least=1)
    Traceback (most recent call last):
    frontrank.errors.InputError: bins must be a whole number, at least 1, got 0
    """
    number = _as_integer(value)
    fits = number is not None and (at_least is None or number >= at_least) and (at_most is None or number <= at_most)
    if number is not None and fits:
        return number
    bounds = [f"{word} {bound}" for word, bound in (("at least", at_least), ("at most", at_most)) if bound is not None]
    message = f"{name} must be a whole number{', ' if bounds else ''}{' and '.join(bounds)}, got {quote_value(value)}"
    is_number = isinstance(value, float) or number is not None
    raise InputError(message) if is_number else InputTypeError(message)


def _as_integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_number(
    name: str, value: object, *, above: float = -math.inf, at_least: float = -math.inf, at_most: float = math.inf
) -> float:
    """Return value as a float, or raise if it is not a finite number within the bounds.

    >>> check_number("temperature", -1, above=0)
    Traceback (most recent call last):
    frontrank.errors.InputError: temperature must be a number greater than 0, got -1
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputTypeError(f"{name} must be a number, got {quote_value(value)}")
    finite = abs(value) <= sys.float_info.max  # math.isfinite fails on whole numbers that are too large for a float
    if not (finite and value > above and at_least <= value <= at_most):
        bounds = {"greater than": above, "at least": at_least, "at most": at_most}
        limits = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))
        kind = f"number {limits}" if limits else "finite number"
        raise InputError(f"{name} must be a {kind}, got {quote_value(value)}")
    return float(value)


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return value, or raise if it is none of the choices.

    >>> check_choice("pooling", "maxx", ("average", "max", "gem"))
    Traceback (most recent call last):
    frontrank.errors.InputError: pooling must be average, max or gem, got 'maxx'; did you mean max?
    """
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    message = f"{name} must be {join_words(known)}, got {quote_value(value)}"
    if not isinstance(value, str):
        raise InputTypeError(message)
    raise InputError(message + suggestion(value, known))


def join_words(words: Iterable[str], conjunction: str = "or") -> str:
    """Join words as in a sentence: a, b or c."""
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def format_count(count: int, what: str, several: str = "") -> str:
    """Write a number of things.

    >>> format_count(1, "query", "queries"), format_count(5770, "image")
    ('1 query', '5,770 images')
    """
    return f"{count:,} {what if count == 1 else several or what + 's'}"


def nearest_word(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one of the words that is most like this one, if any is, in upper or lower case."""
    by_lower = {each.lower(): each for each in islice(words, _MOST_WORDS)}
    return next((by_lower[each] for each in get_close_matches(word.lower(), by_lower, 1, cutoff)), None)


def suggestion(word: str, words: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" for an error message, or nothing if no word is near.

    >>> suggestion("trian", ["train", "embed"])
    '; did you mean train?'
    """
    near = nearest_word(word, words, cutoff)
    return f"; did you mean {near}?" if near is not None else ""


def shorten(text: str, most: int = 80) -> str:
    """Cut a text that is too long for an error message."""
    return text if len(text) <= most else f"{text[:most]}..."


def quote_value(value: object) -> str:
    """Return a value for an error message, cut if it is long."""
    try:
        return shorten(repr(value))
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"


def printable(path: object) -> str:
    """Return a path for an error message: in one line, whatever characters its name has.

    >>> printable("a\\nb.jpg")
    "'a\\\\nb.jpg'"
    """
    text = str(path)
    return text if text.isprintable() else repr(text)


def require_extra(modules: Iterable[str], extra: str, purpose: str) -> None:
    """Raise an error that names the extra to install if one of its modules is missing; imports none of them."""
    for module in modules:
        if find_spec(module) is None:
            raise InputError(f"{purpose} needs {module}; pip install 'frontrank[{extra}]'")


def import_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module of an optional dependency, or raise an error that names the extra to install.

    purpose: what needs it, such as "a report"
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = (error.name or module).partition(".")[0]
        raise InputError(f"{purpose} needs {package}; pip install 'frontrank[{extra}]'") from error
