"""Emoji as a data set: a class is an emoji, its images are the drawings of several vendors.

Pictures come from pinned registry packages (`frontrank.packages`) and are real, free to use and small; like the
data sets of the papers there are thousands of classes with a few images each, in coarser categories.
"""

import hashlib
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

import numpy as np

from frontrank.data.built import Source, begun, finished, is_there, started
from frontrank.data.emoji_designs import (
    DESIGNS,
    OPENMOJI,
    Archives,
    Design,
    Emoji,
    draw,
    read_drawings,
    read_emoji,
)
from frontrank.data.image_table import ImageTable, shown
from frontrank.data.images import require_pillow
from frontrank.data.processes import Task, run_all, workers
from frontrank.errors import FrontrankWarning, InputError, InputTypeError, require_number
from frontrank.packages import fetch, remedy
from frontrank.progress import progress

SIZE = 72
LEAST = 4  # designs of a class
COUNTS: Mapping[tuple[str, bool], tuple[int, int]] = {  # (designs, skin tones): classes, images, at that size
    ("independent", False): (1_826, 11_586),
    ("independent", True): (3_216, 18_053),
    ("all", False): (1_875, 19_274),
}
_TOLERANCE = 0.01  # of these counts, beyond which something is wrong
_NOTES = """\
Each picture is a drawing of one of these sets, made small and laid on white, and not changed otherwise. Whoever passes
pictures on passes this list on with them. They were drawn by:"""
_CHUNK = 64  # pictures a process is given at once
_FEW = 8  # chunks that are not worth starting processes


@dataclass(frozen=True)
class _Job:
    """A picture that is to be there: one design's drawing of one emoji."""

    emoji: Emoji
    design: Design
    drawing: bytes

    @property
    def path(self) -> str:
        return f"images/{self.emoji.label}/{self.design.name}.png"


def build_emoji(
    out: str | os.PathLike[str],
    *,
    designs: str = "independent",
    skin_tones: bool = False,
    size: int = SIZE,
    classes: int | None = None,
    show: bool | None = None,
) -> ImageTable:
    """Emoji in the folder `out`, as pictures, a table images.csv and LICENCES.md; what is there already is kept.

    designs:    "independent", 8 sets that were drawn independently of each other; "all" has 5 more that are the same
                drawings in another style, which makes searching easier
    skin_tones: also the emoji that differ in the colour of skin only
    size:       pixels of a side; drawings are laid on white
    classes:    so many only, spread over all of them; pictures that occur twice are then looked for among these
    show:       progress, as in `frontrank.progress`

    A class has at least 4 designs. Pictures that are blank, or the same in two classes, are left out. About half of
    the classes are "train" and the others "test", by a hash of the label that stays the same for ever.
    """
    settings = _checked(designs, skin_tones, size, classes)
    folder = Path(out)
    table = started(folder, settings)
    if table is not None:
        return table
    with begun(folder, settings):
        chosen = DESIGNS[designs]
        packages = list(dict.fromkeys(design.package for design in chosen))
        archives = dict(zip(packages, fetch(packages, show=show), strict=True))
        jobs = _of_classes(_jobs(chosen, archives, skin_tones, show), classes)
        try:
            _draw_all(folder, [job for job in jobs if not is_there(folder / job.path)], size, show)
            jobs = _sifted(folder, jobs)
        except OSError as error:
            raise InputError(f"{shown(folder)} cannot be written ({error.strerror}); {remedy(error)}") from error
        table = _table(folder, jobs)
        if classes is None and size == SIZE:
            _check_counts(designs, skin_tones, table)
        sources = [Source(design.name, design.package, design.licence) for design in chosen]
        credits = "".join(f"\n- {design.name}: {design.credit}" for design in chosen)
        return finished(folder, table, settings, sources, [OPENMOJI], f"{_NOTES}\n{credits}")


def _checked(designs: str, skin_tones: bool, size: int, classes: int | None) -> dict[str, object]:
    """The settings as data.json has them, unless one of them cannot be, or a library is missing."""
    if designs not in DESIGNS:
        raise InputError(f"designs must be {' or '.join(map(repr, DESIGNS))}, got {designs!r}")
    for name, value, least, most in (("size", size, 8, 1024), ("classes", 2 if classes is None else classes, 2, 10**6)):
        require_number(name, value, at_least=least, at_most=most)
        if not isinstance(value, int):
            raise InputTypeError(f"{name} must be a whole number, got {value!r}")
    require_pillow()
    try:
        import_module("resvg_py")
    except ImportError:
        raise InputError("drawing emoji needs resvg_py; pip install 'frontrank[emoji]'") from None
    return {"data": "emoji", "designs": designs, "skin_tones": bool(skin_tones), "size": size, "classes": classes}


def _jobs(designs: Sequence[Design], archives: Archives, skin_tones: bool, show: bool | None) -> list[_Job]:
    """All pictures there can be, by label; those whose very file stands for two classes are left out here."""
    emoji = {label: each for label, each in read_emoji(archives).items() if skin_tones or not each.toned}
    jobs = []
    with progress("reading packages", len(designs), show) as advance:
        for design in designs:
            drawings = read_drawings(design, archives, emoji)
            jobs += [_Job(emoji[label], design, drawing) for label, drawing in drawings.items()]
            advance(1)
    jobs = _enough(jobs)
    return _enough(_of_one_class(jobs, [hashlib.sha256(job.drawing).digest() for job in jobs]))


def _split(label: str) -> str:
    """Half of all labels are one, half the other."""
    return "train" if hashlib.sha256(label.encode()).digest()[0] < 128 else "test"


def _enough(jobs: Sequence[_Job]) -> list[_Job]:
    """Those of classes with enough designs, by label."""
    counts = Counter(job.emoji.label for job in jobs)
    return sorted((job for job in jobs if counts[job.emoji.label] >= LEAST), key=lambda job: job.emoji.label)


def _of_classes(jobs: list[_Job], classes: int | None) -> list[_Job]:
    """Those of so many classes, half of each split, spread evenly over the sorted labels."""
    if classes is None:
        return jobs
    labels = sorted({job.emoji.label for job in jobs})
    chosen: set[str] = set()
    for split, many in (("train", classes - classes // 2), ("test", classes // 2)):
        those = [label for label in labels if _split(label) == split]
        if many > len(those):
            raise InputError(f"classes must be at most {2 * len(those):,}, got {classes:,}; leave it out for all")
        chosen |= {those[(2 * i + 1) * len(those) // (2 * many)] for i in range(many)}
    return [job for job in jobs if job.emoji.label in chosen]


def _draw_all(folder: Path, jobs: Sequence[_Job], size: int, show: bool | None) -> None:
    """Write the pictures, in several processes where there are many."""
    pictures = [(str(folder / job.path), job.drawing, size) for job in jobs]
    for place in {os.path.dirname(path) for path, _, _ in pictures}:
        os.makedirs(place, exist_ok=True)
    tasks: list[Task] = []
    for start in range(0, len(pictures), _CHUNK):
        some = pictures[start : start + _CHUNK]
        tasks.append((_draw, (some,), len(some)))
    if len(tasks) < _FEW:
        for function, arguments, _ in tasks:
            function(*arguments)
        return
    with workers() as pool:
        run_all(pool, tasks, f"drawing {len(pictures):,} emoji", show)


def _draw(pictures: Sequence[tuple[str, bytes, int]]) -> None:
    """Write some pictures, by path, drawing and size, that are not blank; each whole or not at all."""
    for path, drawing, size in pictures:
        try:
            picture = draw(drawing, size)
        except (ValueError, SyntaxError, OSError) as error:  # of resvg_py, and of Pillow
            raise InputError(f"{path} cannot be drawn ({error}); use the resvg_py that frontrank names") from None
        if any(low != high for low, high in cast("tuple[tuple[int, int], ...]", picture.getextrema())):
            unfinished = f"{path}.{os.getpid()}"
            picture.save(unfinished, "PNG")
            os.replace(unfinished, path)


def _sifted(folder: Path, jobs: Sequence[_Job]) -> list[_Job]:
    """The pictures that are kept; the files of the others are deleted."""
    drawn = [job for job in jobs if is_there(folder / job.path)]
    kept = _enough(_of_one_class(drawn, [hashlib.sha256((folder / job.path).read_bytes()).digest() for job in drawn]))
    for path in {job.path for job in drawn} - {job.path for job in kept}:
        (folder / path).unlink()
        with suppress(OSError):  # there are others in it
            (folder / path).parent.rmdir()
    for left in folder.glob("images/*/*.png.*"):  # of a build that was killed
        left.unlink()
    return kept


def _of_one_class(jobs: Sequence[_Job], prints: Sequence[bytes]) -> list[_Job]:
    """Those whose print occurs in no other class."""
    classes: dict[bytes, set[str]] = defaultdict(set)
    for job, each in zip(jobs, prints, strict=True):
        classes[each].add(job.emoji.label)
    return [job for job, each in zip(jobs, prints, strict=True) if len(classes[each]) == 1]


def _table(folder: Path, jobs: Sequence[_Job]) -> ImageTable:
    emoji = [job.emoji for job in jobs]
    extra = {
        "subcategory": [each.subgroup for each in emoji],
        "design": [job.design.name for job in jobs],
        "licence": [job.design.licence for job in jobs],
        "name": [each.name for each in emoji],
    }
    return ImageTable(
        folder,
        np.array([job.path for job in jobs], dtype=str),
        np.array([each.label for each in emoji], dtype=str),
        np.array([each.group for each in emoji], dtype=str),
        np.array([_split(each.label) for each in emoji], dtype=str),
        np.full(len(jobs), ""),
        extra={name: np.array(column, dtype=str) for name, column in extra.items()},
    )


def _check_counts(designs: str, skin_tones: bool, table: ImageTable) -> None:
    """Refuse a set that is not nearly what it was; the last few pictures depend on what draws them."""
    found, expected = (len(np.unique(table.labels)), len(table)), COUNTS.get((designs, skin_tones))
    if expected is None or found == expected:
        return
    said = f"there are {found[1]:,} emoji of {found[0]:,} classes, not {expected[1]:,} of {expected[0]:,}"
    because = "another resvg_py or pillow draws them otherwise"
    if any(abs(one / other - 1) > _TOLERANCE for one, other in zip(found, expected, strict=True)):
        raise InputError(f"{said}: {because}; use the versions that frontrank names")
    warnings.warn(f"{said}: {because}; compare figures of this machine only", FrontrankWarning, stacklevel=3)
