"""Splits into training, validation and test classes: whole classes move, drawn by a seed."""

from dataclasses import replace
from hashlib import blake2b

import numpy as np

from frontrank.checks import check_integer, check_number, format_count
from frontrank.data.table import ImageTable
from frontrank.errors import InputError

_LEAST = 2  # classes of two images or more that each side needs: one to find, and one to confuse it with


def hold_out_classes(table: ImageTable, share: float, seed: int = 0) -> ImageTable:
    """Move a share of the training classes to the split "validation", and return the new table.

    So the model is chosen on classes it has not seen, as it is tested. Classes are drawn at random, whatever the order
    of the rows; both sides have at least two classes of two images or more. A table that has a validation split
    already, or a share of 0, is returned as it is. Images without a label stay where they are.

    >>> labels = np.array(["a", "a", "b", "b", "c", "c", "d", "d", "e", "e"])
    >>> paths, nothing = np.arange(10).astype(str), np.full(10, "")
    >>> table = ImageTable("pets", paths, labels, nothing, np.full(10, "train"), nothing)
    >>> hold_out_classes(table, 0.4).of("validation").labels.tolist()
    ['b', 'b', 'e', 'e']
    """
    return _move_classes(table, "validation", share, seed)


def split_test_classes(table: ImageTable, share: float = 0.5, seed: int = 0) -> ImageTable:
    """Move a share of the training classes to the split "test", by the same rules as `hold_out_classes`."""
    return _move_classes(table, "test", share, seed)


def merge_classes(table: ImageTable, every: int = 3, seed: int = 0) -> ImageTable:
    """Merge every so many training classes into one, "a+b+c"; the last one may have fewer.

    Zhuo Li et al., "Rethinking the Optimization of Average Precision: Only Penalizing Negative Instances before
    Positive Ones is Enough", AAAI 2022 (Tables 6 and 7) merge every three classes of the training set, so that each
    has several centres, and test on the classes as they were. The paper does not say which classes go together; here
    they are drawn by the seed from all training classes, across categories. Images keep their category.

    >>> labels, nothing = np.array(["a", "b", "c", "d", "e"]), np.full(5, "")
    >>> table = ImageTable("pets", labels, labels, nothing, np.full(5, "train"), nothing)
    >>> merge_classes(table, every=3).labels.tolist()
    ['a+b', 'a+b', 'c+d+e', 'c+d+e', 'c+d+e']
    """
    check_integer("every", every, at_least=1)
    classes = _draw_order(table, "merge", seed)[0]
    if every == 1:
        return table
    table.require_one_label("data.merge_classes")
    groups = [sorted(classes[start : start + every]) for start in range(0, len(classes), every)]
    if len(groups) < 2:
        fault = f"every is {every}, but there are {len(classes)} training classes, too few for two merged ones"
        raise InputError(f"{fault}; use at most {max(1, len(classes) - 1)} (data.merge_classes)")
    merged = {label: "+".join(group) for group in groups for label in group}
    training = table.splits == "train"
    new = {"+".join(group) for group in groups if len(group) > 1}
    if len(set(merged.values())) < len(groups) or new & set(table.labels[~training].tolist()):
        raise InputError("labels with '+' in them become the same when they are merged; rename these classes")
    pairs = zip(table.labels.tolist(), training.tolist(), strict=True)
    return replace(table, labels=np.array([merged.get(label, label) if train else label for label, train in pairs]))


def _move_classes(table: ImageTable, to: str, share: float, seed: int) -> ImageTable:
    check_number("share", share, at_least=0, at_most=1)
    classes, sizes = _draw_order(table, to, seed)
    if share == 0 or (table.splits == to).any():
        return table
    table.require_one_label(f"drawing classes for {to} (data.{to}); a column split says instead what is {to}, and it")
    several = [label for label in classes if sizes[label] > 1]
    if len(several) < 2 * _LEAST:
        few = format_count(len(several), "class", "classes")
        fault = f"the training split has {few} of two images or more, too few to move some to {to!r}"
        raise InputError(f"{fault}: both sides need {_LEAST}; give more, or set the share to 0 (data.{to} 0)")
    first, last = several[:_LEAST], several[-_LEAST:]
    others = [label for label in classes if label not in first and label not in last]
    number = min(max(round(share * len(classes)), _LEAST), len(classes) - _LEAST)
    chosen = (first + others + last)[:number]
    moves = (table.splits == "train") & np.isin(table.labels, chosen)
    return replace(table, splits=np.where(moves, to, table.splits))


def _draw_order(table: ImageTable, purpose: str, seed: int) -> tuple[list[str], dict[str, int]]:
    """Return the training classes in an order drawn by the seed, and the number of images of each."""
    check_integer("seed", seed, at_least=0)
    labels, sizes = np.unique(table.labels[(table.splits == "train") & (table.labels != "")], return_counts=True)

    def lot(label: str) -> bytes:  # the same on any machine, whatever other classes there are
        return blake2b(f"{purpose}/{seed}/{label}".encode(errors="surrogatepass")).digest()

    return sorted(labels.tolist(), key=lot), dict(zip(labels.tolist(), sizes.tolist(), strict=True))
