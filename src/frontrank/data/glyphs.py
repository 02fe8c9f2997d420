"""Han characters in many typefaces: a real data set of the size of Stanford Online Products.

A class is a character and its pictures are drawings of it by different hands: the typefaces of pinned Debian packages,
which are fetched and read, not installed. A category is a Kangxi radical.
"""

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from frontrank.data.built import WORK, Source, begun, finished, is_there, started
from frontrank.data.font_files import Font, unpack_fonts
from frontrank.data.glyph_choice import LIKE_SOP, MISSING, choose, first_by_lot, label_of, split_of
from frontrank.data.glyph_pictures import fingerprints, write_pictures
from frontrank.data.image_table import ImageTable, shown
from frontrank.data.images import require_pillow
from frontrank.data.processes import Task, run_all, workers
from frontrank.data.stored_arrays import did_you_mean
from frontrank.data.typefaces import SMALL, TYPEFACES, UNICODE_DATA, Typeface
from frontrank.data.unihan import Character, read_characters
from frontrank.errors import FrontrankWarning, InputError, InputTypeError, require_number
from frontrank.packages import Package, as_found, fetch

_COUNTS = {"train": (34_945, 285_369), "test": (35_068, 286_763)}  # classes, images of the whole set at 48 pixels
_TOLERANCE = 0.01  # of these counts, beyond which something is wrong
_SLACK = 3  # times the classes that are wanted are looked at
_CHUNK = 1000  # characters that a worker draws at a time
_BYTES = 4096  # that a picture takes on disk
_NOTES = (
    "The pictures are drawn from fonts, which are not part of this folder. "
    "The notices of their packages are in the folder licences."
)


def build_glyphs(
    out: str | os.PathLike[str],
    *,
    like: Literal["sop"] | None = None,
    typefaces: Sequence[str] | Literal["small"] | None = None,
    classes: int | None = None,
    size: int = 48,
    any_version: bool = False,
    show: bool | None = None,
) -> ImageTable:
    """Draw Han characters into a folder, with a table of them in images.csv; a finished folder is read at once.

    like:        "sop" for the numbers of classes and images of Stanford Online Products, to the last one
    typefaces:   names of `TYPEFACES`; only their packages are fetched. "small" for four small ones, None for all
    classes:     so many of them, half for training and half for the test; None for all
    size:        of the pictures in pixels
    any_version: go on where apt has other versions than the pinned ones, with a warning

    Every class has two pictures or more. Left out is what a font draws as nothing or as one placeholder for many
    characters, and generally a picture that occurs in two classes; one that occurs twice in a class is taken once.
    Half of the characters, by a hash of their code point, are for training and the others for the test. A call that was
    ended early is gone on with by the next.
    """
    faces = _typefaces(typefaces)
    _check(like, classes, size)
    require_pillow()
    named = None if len(faces) == len(TYPEFACES) else list(faces)
    settings: dict[str, object] = {"data": "glyphs", "like": like, "typefaces": named, "classes": classes, "size": size}
    settings["any_version"] = bool(any_version)
    folder, work = Path(out), Path(out) / WORK
    table = started(folder, settings)
    if table is None:
        with begun(folder, settings):
            packages = list(dict.fromkeys([UNICODE_DATA, *(face.package for face in faces.values())]))
            archives = dict(zip(packages, fetch(packages, any_version=any_version, show=show), strict=True))
            table = _drawn(folder, work, list(faces.values()), archives, like, classes, size, show)
            if like or (named is None and size == 48 and not (classes or any_version)):
                _check_counts(table, LIKE_SOP if like else _COUNTS)
            used = {package: as_found(package, path) for package, path in archives.items()}
            sources = [Source(face.name, used[face.package], face.licence) for face in faces.values()]
            table = finished(folder, table, settings, sources, [used[UNICODE_DATA]], _NOTES)
    shutil.rmtree(work, ignore_errors=True)
    return table


def _drawn(
    folder: Path,
    work: Path,
    faces: Sequence[Typeface],
    archives: Mapping[Package, Path],
    like: str | None,
    classes: int | None,
    size: int,
    show: bool | None,
) -> ImageTable:
    """The pictures, written, and their table."""
    characters = read_characters(archives[UNICODE_DATA])
    with workers() as pool:
        fonts = unpack_fonts(pool, faces, archives, characters, work, folder / "licences", show)
        codes, drawers = _chosen(pool, fonts, like, classes, size, show)
        names = [fonts[each].typeface.name for each in drawers.tolist()]
        paths = [_path(code, name) for code, name in zip(codes.tolist(), names, strict=True)]
        _write(pool, folder, work, fonts, codes, drawers, paths, size, show)
    return _table(folder, paths, codes.tolist(), [fonts[each].typeface for each in drawers.tolist()], characters)


def _typefaces(names: Sequence[str] | None) -> dict[str, Typeface]:
    """The typefaces of these names, in the order of the table."""
    names = SMALL if names == "small" else names
    if names is None:
        return dict(TYPEFACES)
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputTypeError(f"typefaces must be a list of names or 'small', got {names!r}")
    for name in names:
        if name not in TYPEFACES:
            remedy = did_you_mean(name, TYPEFACES) or f"use some of {', '.join(TYPEFACES)}"
            raise InputError(f"typefaces has {name!r}, which is none; {remedy}")
    if len(set(names)) < 2:
        raise InputError("typefaces must name two or more, as a class has a picture of each; add one")
    return {name: face for name, face in TYPEFACES.items() if name in names}


def _check(like: str | None, classes: int | None, size: int) -> None:
    if like not in (None, "sop"):
        raise InputError(f"like must be 'sop' or nothing, got {like!r}")
    require_number("size", size, at_least=8, at_most=512)
    if classes is not None:
        require_number("classes", classes, at_least=2)
        if like is not None:
            raise InputError("like has a number of classes of its own; leave out classes, or like")
    for name, number in (("size", size), ("classes", classes)):
        if number is not None and not isinstance(number, int):
            raise InputTypeError(f"{name} must be a whole number, got {number!r}")


def _chosen(
    pool: ProcessPoolExecutor,
    fonts: Sequence[Font],
    like: str | None,
    classes: int | None,
    size: int,
    show: bool | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The code point and the number of the font of each picture that is taken.

    For few classes only some characters are looked at; if that is not enough, as many are blank, then all of them.
    """
    names = np.array([font.typeface.name for font in fonts])
    tries = [fonts]
    if classes is not None:
        some = first_by_lot(np.concatenate([font.codes for font in fonts]), _SLACK * classes)
        tries = [[replace(font, codes=np.intersect1d(font.codes, some)) for font in fonts], fonts]
    while True:
        codes, drawers, prints = _survey(pool, tries.pop(0), size, show)
        try:
            rows = choose(codes, names[drawers], prints, like, classes)
        except InputError:
            if not tries:
                raise
            continue
        if not len(rows):
            raise InputError("no character is in two of these typefaces; use more of them")
        return codes[rows], drawers[rows]


def _survey(
    pool: ProcessPoolExecutor, fonts: Sequence[Font], size: int, show: bool | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pictures there could be, one per row: the code point, the number of the font, and the fingerprint."""
    tasks: list[Task] = []
    codes, drawers = [], []
    for number, font in enumerate(fonts):
        for place, part in _chunks(np.append(font.codes, MISSING)):
            kept = font.kept.with_name(f"{font.kept.name}-{len(font.codes)}-{place}.npy")
            tasks.append((fingerprints, (str(font.file), font.typeface.index, size, part, kept), len(part)))
            codes.append(part)
            drawers.append(np.full(len(part), number))
    prints = run_all(pool, tasks, f"looking at {sum(map(len, codes)):,} glyphs", show)
    return np.concatenate(codes), np.concatenate(drawers), np.concatenate(prints)


def _write(
    pool: ProcessPoolExecutor,
    folder: Path,
    work: Path,
    fonts: Sequence[Font],
    codes: np.ndarray,
    drawers: np.ndarray,
    paths: Sequence[str],
    size: int,
    show: bool | None,
) -> None:
    """Write the pictures that are not there."""
    missing = np.array([not is_there(folder / path) for path in paths])
    need, free = int(missing.sum()) * _BYTES, shutil.disk_usage(folder).free
    if free < need:
        raise InputError(
            f"{shown(folder)} has {free / 1e6:,.0f} MB of room, {need / 1e6:,.0f} MB are needed; make room"
        )
    tasks: list[Task] = []
    for number, font in enumerate(fonts):
        for _, rows in _chunks(np.flatnonzero(missing & (drawers == number))):
            targets = [str(folder / paths[row]) for row in rows]
            arguments = (str(font.file), font.typeface.index, size, codes[rows], targets, work)
            tasks.append((write_pictures, arguments, len(rows)))
    run_all(pool, tasks, f"writing {missing.sum():,} pictures", show)


def _chunks(items: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    return ((start, items[start : start + _CHUNK]) for start in range(0, len(items), _CHUNK))


def _path(code: int, design: str) -> str:
    """Where a picture is: 256 characters share a folder."""
    return f"images/{code >> 8:03X}/{label_of(code)}-{design}.png"


def _table(
    folder: Path,
    paths: Sequence[str],
    codes: Sequence[int],
    faces: Sequence[Typeface],
    characters: Mapping[int, Character],
) -> ImageTable:
    here = [characters[code] for code in codes]
    extra = {
        "subcategory": [each.subcategory for each in here],
        "design": [face.name for face in faces],
        "licence": [face.licence for face in faces],
        "name": [f"{chr(code)} {each.meaning}".strip() for code, each in zip(codes, here, strict=True)],
    }
    return ImageTable(
        folder,
        np.array(paths),
        labels=np.array([label_of(code) for code in codes]),
        categories=np.array([each.category for each in here]),
        splits=np.array([split_of(code) for code in codes]),
        roles=np.full(len(codes), ""),
        extra={name: np.array(column) for name, column in extra.items()},
        name="glyphs",
    ).check()


def _check_counts(table: ImageTable, known: Mapping[str, tuple[int, int]]) -> None:
    """Refuse a set that is not nearly what it was; the last few pictures depend on how FreeType draws.

    known: classes and images of each split
    """
    for split, numbers in known.items():
        part = table.of(split)
        found = len(np.unique(part.labels)), len(part)
        if found != numbers:
            known_as = f"{numbers[0]:,} and {numbers[1]:,}"
            said = f"the {split} split has {found[0]:,} classes and {found[1]:,} images, not {known_as}"
            if any(abs(one / other - 1) > _TOLERANCE for one, other in zip(found, numbers, strict=True)):
                raise InputError(f"{said}: this Pillow draws glyphs otherwise; use the version that frontrank names")
            warnings.warn(f"{said}, as this Pillow draws some glyphs otherwise", FrontrankWarning, stacklevel=3)
