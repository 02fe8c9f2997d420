"""What a user hands to a batch sampler, checked once: labels, categories and numbers, and their messages."""

import operator

import numpy as np

from frontrank.errors import InputError, InputTypeError
from frontrank.ranking.vectors import as_array


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """A whole number within its bounds."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InputTypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be {bounds}, got {number}")
    return number


def read_codes(name: str, labels: object) -> tuple[np.ndarray, np.ndarray]:
    """The different labels, sorted, and the number of each row's among them."""
    found = as_array(name, labels)
    given = found if found.dtype == object else labels
    if isinstance(given, list | tuple | np.ndarray) and not (isinstance(given, np.ndarray) and given.dtype != object):
        text = {isinstance(label, str) for label in given}
        if len(text) > 1:
            raise InputTypeError(f"{name} holds text and other things; give whole numbers, or text, one per row")
        found = np.asarray(list(given)) if found.dtype == object else found
    if found.ndim != 1:
        raise InputError(f"{name} must have the shape (rows,), got {found.shape}; give one entry per row")
    if not len(found):
        raise InputError(f"{name} is empty; give one entry per row")
    if found.dtype.kind not in "iubU":
        nan = found.dtype.kind == "f" and bool(np.isnan(found).any())
        what = "missing entries" if found.dtype == object else f"{found.dtype}" + " with NaN" * nan
        raise InputTypeError(f"{name} must be whole numbers or text, got {what}; give one entry per row")
    names, codes = np.unique(found, return_inverse=True)
    return names, codes.astype(np.int64)


def read_labels(labels: object) -> tuple[np.ndarray, np.ndarray]:
    """The classes, sorted, and the number of each row's."""
    names, codes = read_codes("labels", labels)
    if names.dtype.kind == "U" and names[0] == "":
        row = int(np.argmin(codes))
        raise InputError(f"labels has an empty entry in row {row}; leave out rows without a class, such as distractors")
    if len(names) < 2:
        raise InputError("labels holds 1 class, and no batch of it has a negative; give at least 2 classes")
    return names, codes


def read_categories(labels: object, categories: object) -> tuple[np.ndarray, np.ndarray]:
    """The number of each row's class, and of each class's category."""
    names, codes = read_labels(labels)
    kinds, of_row = read_codes("categories", categories)
    if len(of_row) != len(codes):
        raise InputError(f"categories has {len(of_row):,} entries but labels has {len(codes):,}; give one per row")
    of_class = np.empty(len(names), dtype=np.int64)
    of_class[codes] = of_row
    wrong = np.flatnonzero(of_class[codes] != of_row)
    if len(wrong):
        row = wrong[0]
        pair = sorted([kinds[of_row[row]], kinds[of_class[codes[row]]]])
        raise InputError(
            f"categories puts class {names[codes[row]]} into both {_said(pair[0])} and {_said(pair[1])}; "
            "give each class one category, or each its own label"
        )
    return codes, of_class


def classes_per_batch(batch_size: object, per_class: int, least: int = 2) -> int:
    """How many classes make a batch; at least so many."""
    size = whole("batch_size", batch_size, least * per_class)
    if size % per_class:
        near = size - size % per_class
        raise InputError(
            f"batch_size {size} is no multiple of per_class {per_class}; use {near} or {near + per_class}, "
            "or another per_class"
        )
    return size // per_class


def _said(category: object) -> str:
    return repr(str(category)) if isinstance(category, str) else str(category)
