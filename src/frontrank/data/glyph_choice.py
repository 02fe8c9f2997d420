"""Which of all glyphs make the data set: distinct pictures, fixed splits, and as many as are asked for.

Whatever is drawn by lot is drawn by hashes of the code point and the typeface, so that it is the same everywhere.
"""

import hashlib

import numpy as np

from frontrank.errors import InputError

LIKE_SOP = {"train": (11_318, 59_551), "test": (11_316, 60_502)}  # classes, images
MISSING = 0x10FFFF  # no character: what a font draws for one that it does not have
_LEAST, _MOST = 2, 12  # images of a class, there
_KNOWN = 6  # typefaces that a character has that is taken there, or the size of a class would tell how rare it is


def label_of(code: int) -> str:
    """The label of a character.

    >>> label_of(ord("水"))
    'U+6C34'
    """
    return f"U+{code:04X}"


def split_of(code: int) -> str:
    """Whether a character is for training or for the test, whatever else is in the data set.

    >>> split_of(ord("水")), split_of(ord("金"))
    ('train', 'test')
    """
    return "train" if _lot(label_of(code)) < 2**63 else "test"


def choose(
    codes: np.ndarray, designs: np.ndarray, prints: np.ndarray, like: str | None = None, classes: int | None = None
) -> np.ndarray:
    """The rows of the pictures that make the data set, sorted by code point and design.

    codes, designs, prints: code point (or MISSING), name of the typeface and fingerprint (0 if blank) of each [row]
    like, classes:          as of `build_glyphs`

    >>> codes = np.array([0x6C34, 0x6C34, 0x6C34, 0x706B, 0x706B, 0x571F])
    >>> choose(codes, np.array(["a", "b", "c", "a", "b", "a"]), np.array([1, 2, 2, 3, 0, 4]))  # two same, a blank one
    array([0, 1])
    """
    rows = np.lexsort((designs, codes))
    rows = rows[_distinct(codes[rows], prints[rows])]
    rows = rows[_counts(codes[rows]) >= _LEAST]
    if like is None and classes is None:
        return rows
    known = _counts(codes[rows]) >= (_LEAST if like is None else _KNOWN)
    rows, kept = rows[known], []
    for place, split in enumerate(("train", "test")):
        here = _by_lot(rows, codes, split)
        if classes is not None:
            wanted = (classes + 1 - place) // 2
            _require(
                len(here) >= wanted,
                f"classes={classes} needs {wanted:,} of the {split} split, {len(here):,} can be had",
            )
            kept += here[:wanted]
        else:
            kept += _like_sop(here, split, codes, designs)
    return rows[np.isin(rows, np.concatenate(kept))]


def first_by_lot(codes: np.ndarray, count: int) -> np.ndarray:
    """The characters that occur twice or more, so many of each split at most, in the order of their lots."""
    labels, counts = np.unique(codes, return_counts=True)
    lots = sorted(labels[counts >= _LEAST].tolist(), key=lambda code: _lot(label_of(code)))
    splits = [[code for code in lots if split_of(code) == split] for split in ("train", "test")]
    return np.array([code for split in splits for code in split[:count]], dtype=np.int64)


def _lot(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _distinct(codes: np.ndarray, prints: np.ndarray) -> np.ndarray:
    """Whether a picture shows something, is in no other class, and is the first of its kind in its own [row].

    Placeholders go with this: one is the picture of many characters, or of MISSING.
    """
    kinds = np.unique(prints, return_inverse=True)[1]
    least, most = (
        np.full(kinds.max(initial=0) + 1, codes.max(initial=0)),
        np.zeros(kinds.max(initial=0) + 1, codes.dtype),
    )
    np.minimum.at(least, kinds, codes)
    np.maximum.at(most, kinds, codes)
    first = np.zeros(len(codes), dtype=bool)
    first[np.unique(kinds, return_index=True)[1]] = True
    return (prints != 0) & (codes != MISSING) & (least == most)[kinds] & first


def _counts(codes: np.ndarray) -> np.ndarray:
    """How many rows have the code of each row [row]."""
    kinds = np.unique(codes, return_inverse=True)[1]
    return np.bincount(kinds)[kinds] if len(codes) else kinds


def _by_lot(rows: np.ndarray, codes: np.ndarray, split: str) -> list[np.ndarray]:
    """The rows of each class of a split, the classes in the order of their lots."""
    labels, starts = np.unique(codes[rows], return_index=True)
    classes = zip(labels.tolist(), np.split(rows, starts[1:]), strict=True) if len(rows) else ()
    return [
        group for code, group in sorted(classes, key=lambda each: _lot(label_of(each[0]))) if split_of(code) == split
    ]


def _like_sop(classes: list[np.ndarray], split: str, codes: np.ndarray, designs: np.ndarray) -> list[np.ndarray]:
    """Two pictures of each class, and others by lot; a lot of the class says how many it may have at most."""
    number, images = LIKE_SOP[split]
    said = f"like='sop' needs {number:,} {split} classes of {_KNOWN} typefaces or more"
    _require(len(classes) >= number, f"{said}, {len(classes):,} can be had")
    kept, others, lots = [], [], []
    for group in classes[:number]:
        label = label_of(int(codes[group[0]]))
        drawn = sorted(
            (_lot(f"{label} {design}"), row)
            for design, row in zip(designs[group].tolist(), group.tolist(), strict=True)
        )
        most = _LEAST + _lot(f"{label} size") % (_MOST - _LEAST + 1)
        kept.append(np.array([row for _, row in drawn[:_LEAST]]))
        lots += [lot for lot, _ in drawn[_LEAST:most]]
        others += [row for _, row in drawn[_LEAST:most]]
    missing = images - _LEAST * number
    _require(len(others) >= missing, f"{said} and {images:,} images, {len(others) + _LEAST * number:,} can be had")
    return [*kept, np.array(others)[np.argsort(np.array(lots, dtype=np.uint64))[:missing]]]


def _require(enough: bool, said: str) -> None:
    if not enough:
        raise InputError(f"{said}; use more typefaces, or ask for less")
