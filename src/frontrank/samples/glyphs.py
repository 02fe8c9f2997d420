"""Han characters in many typefaces: a real data set of the size of Stanford Online Products.

A class is a character, and its pictures are drawings of it in different typefaces, from pinned Debian packages that are
fetched and read, not installed. A category is a Kangxi radical.
"""

import bz2
import hashlib
import io
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from frontrank.checks import check_integer, import_extra, printable, suggestion
from frontrank.data.table import ImageTable
from frontrank.errors import InputError, InputTypeError
from frontrank.files import PathLike, atomic_write, write_errors
from frontrank.packages import Package, actual_package, fetch, members, require_room
from frontrank.pictures.decode import require_pillow
from frontrank.samples.build import (
    PINNED,
    SOURCES,
    WORK,
    PictureSource,
    RunTasks,
    Work,
    check_counts,
    finish_table,
    has_content,
    label_split,
    picture_table,
    read_built,
    start_build,
    start_workers,
)

# Han characters in Unicode: the radical, the other strokes, and the meaning.

_FILES = ("Unihan_IRGSources.txt", "Unihan_RadicalStrokeCounts.txt", "Unihan_Readings.txt")
_FIELDS = re.compile(r"^U\+(\w+)\t(kRSUnicode|kDefinition)\t(.*)$", re.MULTILINE)
_ASIDE = re.compile(r"\([^)]*\)")  # such as (same as U+7360)


@dataclass(frozen=True)
class Character:
    """A Han character: its Kangxi radical (1 to 214), the strokes beside that, and the first of its meanings, if any.

    >>> ocean = Character(85, 6, "ocean")
    >>> ocean.category, ocean.subcategory
    ('085 water', '085 water +6')
    """

    radical: int
    strokes: int
    meaning: str

    @property
    def category(self) -> str:
        name = unicodedata.name(chr(0x2EFF + self.radical)).removeprefix("KANGXI RADICAL ")
        return f"{self.radical:03d} {name.lower()}"

    @property
    def subcategory(self) -> str:
        return f"{self.category} {self.strokes:+d}"


def read_characters(archive: Path) -> dict[int, Character]:
    """Read all Han characters by code point, from the fields kRSUnicode and kDefinition of the package unicode-data.

    Compatibility ideographs are left out: they are other codes for the same characters.
    """
    radicals, meanings = dict[int, tuple[int, int]](), dict[int, str]()
    for name, content in members(archive, [f"*/{file}{ending}" for file in _FILES for ending in ("", ".bz2")]):
        try:
            text = (bz2.decompress(content) if name.endswith(".bz2") else content).decode("utf-8")
            for code, field, value in _FIELDS.findall(text):
                if field == "kRSUnicode":  # such as "120'.3": an apostrophe marks a simplified form of the radical
                    radical, strokes = value.split()[0].replace("'", "").split(".")
                    radicals[int(code, 16)] = int(radical), int(strokes)
                else:
                    meanings[int(code, 16)] = _ASIDE.sub("", value).replace(";", ",").split(",")[0].strip()
        except (ValueError, OSError) as error:
            raise InputError(f"{archive}: {name} cannot be read ({error}); delete it, and run this again") from error
    if not radicals:
        raise InputError(f"{archive} has no radicals of Han characters (kRSUnicode in Unihan_*.txt); fetch it again")
    codes = [code for code in radicals if unicodedata.is_normalized("NFC", chr(code))]
    return {code: Character(*radicals[code], meanings.get(code, "")) for code in codes}


# The typefaces: their packages, licences and characters.


@dataclass(frozen=True)
class Typeface(PictureSource):
    """One design: fonts of one package; the first font that has a character draws it.

    files: their names in the package
    index: of the font in a collection (.ttc)
    """

    files: tuple[str, ...]
    index: int


UNICODE_DATA = PINNED["unicode-data"]
TYPEFACES = {
    name: Typeface(name, PINNED[package], licence, tuple(files), index)
    for name, package, files, index, licence in SOURCES["glyphs"]["typefaces"]
}
SMALL = ("motoya-cedar", "motoya-maruberi", "sawarabi-gothic", "sawarabi-mincho")  # 5 MB of packages
TEST_PACKAGES = (*(TYPEFACES[name].package for name in SMALL), UNICODE_DATA)


def font_characters(font: bytes, index: int = 0) -> np.ndarray:
    """Return the code points that a font has a glyph for, sorted [character], int64.

    index: of the font in a collection

    Raises ValueError for what is no such font.
    """
    ttlib = import_extra("fontTools.ttLib", "samples", "reading fonts")
    try:
        with ttlib.TTFont(io.BytesIO(font), fontNumber=index, lazy=True) as opened:
            glyphs = range(opened["maxp"].numGlyphs)
            opened.setGlyphOrder([str(glyph) for glyph in glyphs])  # their own names are not needed, and slow to read
            cmap = opened.getBestCmap()
    except Exception as error:  # a damaged font makes fontTools raise almost anything
        raise ValueError(f"it is damaged, or no such font ({type(error).__name__}: {error})") from error
    if cmap is None:
        raise ValueError("it has no table of Unicode characters")
    return np.array(sorted(code for code, glyph in cmap.items() if glyph != "0"), dtype=np.int64)


# Pictures of single characters

_EM = 5 / 6  # of the side of a picture: most glyphs then have a margin, as printed characters have


def draw_glyph(font: Any, character: str, size: int) -> Any:
    """Draw a character in black in the middle of a white picture; return None if the font draws nothing.

    font: of Pillow, with 5/6 of `size` as its size; a character that is still larger than the picture is shrunk
    """
    from PIL import Image, ImageChops, ImageDraw

    canvas = Image.new("L", (4 * size, 4 * size))
    ImageDraw.Draw(canvas).text((3 * size // 2, 3 * size // 2), character, fill=255, font=font)
    box = canvas.getbbox()
    if box is None:
        return None
    ink = canvas.crop(box)
    if max(ink.size) > size:
        ink.thumbnail((size, size), Image.Resampling.BOX)
    picture = Image.new("L", (size, size))
    picture.paste(ink, ((size - ink.width) // 2, (size - ink.height) // 2))
    return ImageChops.invert(picture)


@lru_cache(maxsize=2)
def open_font(file: str, index: int, size: int) -> Any:
    """Open a font with Pillow for pictures of this size."""
    from PIL import ImageFont

    try:
        return ImageFont.truetype(file, round(size * _EM), index=index, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise InputError(f"{printable(file)} cannot be read as a font ({error}); leave that typeface out") from error


def fingerprints(file: str, index: int, size: int, codes: np.ndarray, cache: Path) -> np.ndarray:
    """Return a number for each character [character], the same for the same pixels; 0 if the font draws nothing.

    cache: a file with the result for the next call
    """
    if cache.exists():
        return np.load(cache)
    font, numbers = open_font(file, index, size), np.zeros(len(codes), dtype=np.uint64)
    for place, code in enumerate(codes.tolist()):
        picture = draw_glyph(font, chr(code), size)
        if picture is not None:
            digest = hashlib.blake2b(picture.tobytes(), digest_size=8).digest()
            numbers[place] = int.from_bytes(digest, "big")
    _write_file(cache, partial(np.save, arr=numbers))
    return numbers


def write_pictures(file: str, index: int, size: int, codes: np.ndarray, targets: Sequence[str]) -> None:
    """Write characters as PNG files."""
    font = open_font(file, index, size)
    for code, target in zip(codes.tolist(), targets, strict=True):
        _write_file(Path(target), partial(draw_glyph(font, chr(code), size).save, format="png"))


def _write_file(path: Path, content: Any) -> None:
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, content, sync=False)


# The fonts of packages as files, and the Han characters of each.

_COPYRIGHT = "copyright"  # the notice of a Debian package


@dataclass(frozen=True)
class Font:
    """A font on disk, the start of the names of its cache files, and the characters it draws [character]."""

    typeface: Typeface
    file: Path
    cache: Path
    codes: np.ndarray


def _unpack_fonts(
    run: RunTasks, faces: Iterable[Typeface], archives: Mapping[Package, Path], characters: Iterable[int], folder: Path
) -> list[Font]:
    """Unpack the fonts of typefaces, and the copyright notices of all packages.

    characters: code points that are wanted; a font has those that no earlier file of its typeface has
    """
    work = folder / WORK
    tasks: list[Work] = []
    for package in sorted(archives, key=lambda package: -package.megabytes):  # or all wait for the longest at the end
        files = {name for face in faces if face.package == package for name in face.files}
        notice = folder / "licences" / f"{package.name}.txt"
        tasks.append((_unpack, (archives[package], files, work, notice), package.megabytes))
    run(tasks, "unpacking typefaces")
    fonts = []
    for face in faces:
        left = np.array(sorted(characters), dtype=np.int64)
        for name in face.files:
            file = work / archives[face.package].name / name
            try:
                codes = np.intersect1d(left, font_characters(file.read_bytes(), face.index))
            except ValueError as error:
                raise InputError(f"{name} of {face.package} cannot be used: {error}; leave {face.name} out") from error
            left = np.setdiff1d(left, codes)
            fonts.append(Font(face, file, file.with_name(f"{face.name}-{name}"), codes))
    return fonts


def _unpack(archive: Path, names: set[str], work: Path, notice: Path) -> None:
    """Write some files of a package into a folder of its name, and its copyright notice into another."""
    targets = {name: work / archive.name / name for name in names} | {_COPYRIGHT: notice}
    missing = {name: target for name, target in targets.items() if not target.exists()}
    files = members(archive, lambda path: path.split("/")[-1] in missing) if missing else iter(())
    while missing and (entry := next(files, None)):
        _write_file(missing.pop(entry[0].split("/")[-1]), entry[1])
    if missing.keys() - {_COPYRIGHT}:
        raise InputError(f"{archive.name} has no file {min(missing.keys() - {_COPYRIGHT})}; leave that typeface out")


# The choice of pictures: distinct ones, fixed splits, and as many as are asked for.

LIKE_SOP = {"train": (11_318, 59_551), "test": (11_316, 60_502)}  # classes, images
MISSING = 0x10FFFF  # no character: its picture is that of every character that a font does not have
_LEAST, _MOST = 2, 12  # images of a class, there
_KNOWN = 6  # typefaces that a character must have there; else the size of a class would show how rare it is


def character_label(code: int) -> str:
    """Return the label of a character.

    >>> character_label(ord("水"))
    'U+6C34'
    """
    return f"U+{code:04X}"


def choose_pictures(
    codes: np.ndarray, designs: np.ndarray, prints: np.ndarray, like: str | None = None, classes: int | None = None
) -> np.ndarray:
    """Return the rows of the pictures of the data set, sorted by code point and design.

    codes, designs, prints: code point (or MISSING), name of the typeface and fingerprint (0 if blank) of each [row]
    like, classes:          as of `build_glyphs`

    >>> codes = np.array([0x6C34, 0x6C34, 0x6C34, 0x706B, 0x706B, 0x571F])
    >>> designs, prints = np.array(["a", "b", "c", "a", "b", "a"]), np.array([1, 2, 2, 3, 0, 4])
    >>> choose_pictures(codes, designs, prints)  # without one that comes twice, and a blank one
    array([0, 1])
    """
    rows = np.lexsort((designs, codes))
    rows = rows[_distinct(codes[rows], prints[rows])]
    rows = rows[_counts(codes[rows]) >= _LEAST]
    if like is None and classes is None:
        return rows
    known = _counts(codes[rows]) >= (_LEAST if like is None else _KNOWN)
    rows, chosen = rows[known], []
    for place, split in enumerate(("train", "test")):
        here = _by_lot(rows, codes, split)
        if classes is None:
            chosen += _like_sop(here, split, codes, designs)
        else:
            wanted = (classes + 1 - place) // 2
            _require(len(here), wanted, f"classes={classes} needs {wanted:,} {split} classes")
            chosen += here[:wanted]
    return rows[np.isin(rows, np.concatenate(chosen))]


def first_by_lot(codes: np.ndarray, count: int) -> np.ndarray:
    """Return the characters that occur twice or more, at most so many of each split, in the order of their lots."""
    rows = np.argsort(codes)
    rows = rows[_counts(codes[rows]) >= _LEAST]
    groups = [group for split in ("train", "test") for group in _by_lot(rows, codes, split)[:count]]
    return np.array([codes[group[0]] for group in groups], dtype=np.int64)


def _lot(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _distinct(codes: np.ndarray, prints: np.ndarray) -> np.ndarray:
    """Return whether a picture is not blank, is in no other class, and is the first of its kind in its own [row].

    This removes placeholders too: one is the picture of many characters, or of MISSING.
    """
    kinds = np.unique(prints, return_inverse=True)[1]
    size = kinds.max(initial=0) + 1
    least, most = np.full(size, codes.max(initial=0)), np.zeros(size, codes.dtype)
    np.minimum.at(least, kinds, codes)
    np.maximum.at(most, kinds, codes)
    first = np.zeros(len(codes), dtype=bool)
    first[np.unique(kinds, return_index=True)[1]] = True
    return (prints != 0) & (codes != MISSING) & (least == most)[kinds] & first


def _counts(codes: np.ndarray) -> np.ndarray:
    """Count the rows with the code of each row [row]."""
    kinds = np.unique(codes, return_inverse=True)[1]
    return np.bincount(kinds)[kinds] if len(codes) else kinds


def _by_lot(rows: np.ndarray, codes: np.ndarray, split: str) -> list[np.ndarray]:
    """Return the rows of each class of a split, the classes in the order of their lots."""
    labels, starts = np.unique(codes[rows], return_index=True)
    parts = np.split(rows, starts[1:]) if len(rows) else []
    groups = dict(zip(map(character_label, labels.tolist()), parts, strict=True))
    return [groups[label] for label in sorted(groups, key=_lot) if label_split(label) == split]


def _like_sop(classes: list[np.ndarray], split: str, codes: np.ndarray, designs: np.ndarray) -> list[np.ndarray]:
    """Return two pictures of each class, and others by lot; the most a class may have is drawn by lot too."""
    number, images = LIKE_SOP[split]
    needs = f"like='sop' needs {number:,} {split} classes of {_KNOWN} typefaces or more"
    _require(len(classes), number, needs)
    chosen: list[int] = []
    others: list[tuple[int, int]] = []
    for group in classes[:number]:
        label = character_label(int(codes[group[0]]))
        pairs = zip(designs[group].tolist(), group.tolist(), strict=True)
        by_lot = sorted((_lot(f"{label} {design}"), row) for design, row in pairs)
        most = _LEAST + _lot(f"{label} size") % (_MOST - _LEAST + 1)
        chosen += [row for _, row in by_lot[:_LEAST]]
        others += by_lot[_LEAST:most]
    _require(len(chosen) + len(others), images, f"{needs} and {images:,} images")
    return [np.array(chosen + [row for _, row in sorted(others)[: images - len(chosen)]])]


def _require(count: int, least: int, needs: str) -> None:
    if count < least:
        raise InputError(f"{needs}, {count:,} are available; use more typefaces, or ask for less")


# The data set

_COUNTS = {"train": (34_945, 285_369), "test": (35_068, 286_763)}  # classes, images of the whole set at 48 pixels
_SLACK = 3  # this many times the wanted classes are drawn to choose from
_CHUNK = 1000  # characters that a worker draws at a time
_BYTES = 4096  # that a picture takes on disk
_NOTES = (
    "The pictures are drawn from fonts, which are not part of this folder. "
    "The notices of their packages are in the folder licences."
)


def build_glyphs(
    out: PathLike,
    *,
    like: Literal["sop"] | None = None,
    typefaces: Sequence[str] | Literal["small"] | None = None,
    classes: int | None = None,
    size: int = 48,
    any_version: bool = False,
    show: bool | None = None,
) -> ImageTable:
    """Draw Han characters into a folder, with a table of them in images.csv; a complete folder is only read.

    like:        "sop" for exactly the numbers of classes and images of Stanford Online Products
    typefaces:   names of `TYPEFACES`; only their packages are fetched. "small" for four small ones, None for all
    classes:     only so many, half for training and half for the test; None for all
    size:        of the pictures in pixels
    any_version: accept other versions of packages than the pinned ones, with a warning

    Every class has two pictures or more. Blank pictures, placeholders and all pictures that are in two classes are left
    out; a picture that is twice in a class is taken once. Half of the characters, by a hash of their code point, are
    for training and the others for the test. If a call is interrupted, the next one goes on with it.
    """
    faces = _find_typefaces(typefaces)
    if like not in (None, "sop"):
        raise InputError(f"like must be 'sop' or nothing, got {like!r}")
    check_integer("size", size, at_least=8, at_most=512)
    if classes is not None:
        check_integer("classes", classes, at_least=2)
        if like is not None:
            raise InputError("like has its own number of classes; leave out classes, or like")
    require_pillow()
    named = None if len(faces) == len(TYPEFACES) else list(faces)
    settings: dict[str, object] = {"data": "glyphs", "like": like, "typefaces": named, "classes": classes, "size": size}
    settings["any_version"] = bool(any_version)
    folder = Path(out)
    table = read_built(folder, settings)
    if table is None:
        with start_build(folder, settings):
            packages = list(dict.fromkeys([UNICODE_DATA, *(face.package for face in faces.values())]))
            archives = dict(zip(packages, fetch(packages, any_version=any_version, show=show), strict=True))
            characters = read_characters(archives[UNICODE_DATA])
            with start_workers(show) as run:
                fonts = _unpack_fonts(run, faces.values(), archives, characters, folder)
                codes, drawers = _choose(run, fonts, like, classes, size)
                rows = []
                for code, drawer in zip(codes.tolist(), drawers.tolist(), strict=True):
                    label, here, face = character_label(code), characters[code], fonts[drawer].typeface
                    path = f"images/{code >> 8:03X}/{label}-{face.name}.png"  # 256 characters share a folder
                    name = f"{chr(code)} {here.meaning}".strip()
                    rows.append((path, label, here.category, here.subcategory, face, name))
                table = picture_table(folder, rows)
                _write_missing(run, table, fonts, codes, drawers, size)
            if like or (named is None and size == 48 and not (classes or any_version)):
                for split, known in (LIKE_SOP if like else _COUNTS).items():
                    check_counts(f"the {split} split", table.of(split), known)
            used = {package: actual_package(package, path) for package, path in archives.items()}
            sources = [replace(face, package=used[face.package]) for face in faces.values()]
            table = finish_table(folder, table, settings, sources, used[UNICODE_DATA], _NOTES)
    shutil.rmtree(folder / WORK, ignore_errors=True)
    return table


def _find_typefaces(names: Sequence[str] | None) -> dict[str, Typeface]:
    """Return the typefaces of these names, in the order of the table."""
    names = SMALL if names == "small" else names
    if names is None:
        return dict(TYPEFACES)
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputTypeError(f"typefaces must be a list of names or 'small', got {names!r}")
    for name in names:
        if name not in TYPEFACES:
            near = suggestion(name, TYPEFACES) or f"; use some of {', '.join(TYPEFACES)}"
            raise InputError(f"typefaces has {name!r}, which is not a known typeface{near}")
    if len(set(names)) < 2:
        raise InputError("typefaces must have two names or more, as a class has a picture of each; add one")
    return {name: face for name, face in TYPEFACES.items() if name in names}


def _choose(
    run: RunTasks, fonts: Sequence[Font], like: str | None, classes: int | None, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the code point and the number of the font of each chosen picture.

    For few classes only some characters are drawn first; if too many of those are blank, then all of them.
    """
    names = np.array([font.typeface.name for font in fonts])

    def choose(fonts: Sequence[Font]) -> tuple[np.ndarray, np.ndarray]:
        codes, drawers, prints = _survey(run, fonts, size)
        rows = choose_pictures(codes, names[drawers], prints, like, classes)
        if not len(rows):
            raise InputError("no character is in two of these typefaces; use more of them")
        return codes[rows], drawers[rows]

    if classes is not None:
        some = first_by_lot(np.concatenate([font.codes for font in fonts]), _SLACK * classes)
        with suppress(InputError):
            return choose([replace(font, codes=np.intersect1d(font.codes, some)) for font in fonts])
    return choose(fonts)


def _survey(run: RunTasks, fonts: Sequence[Font], size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the code point, the number of the font and the fingerprint of all possible pictures, one per row."""
    tasks: list[Work] = []
    codes, drawers = [], []
    for number, font in enumerate(fonts):
        for place, part in _chunks(np.append(font.codes, MISSING)):
            cache = font.cache.with_name(f"{font.cache.name}-{len(font.codes)}-{place}.npy")
            tasks.append((fingerprints, (str(font.file), font.typeface.index, size, part, cache), len(part)))
            codes.append(part)
            drawers.append(np.full(len(part), number))
    prints = run(tasks, f"comparing {sum(map(len, codes)):,} glyphs")
    return np.concatenate(codes), np.concatenate(drawers), np.concatenate(prints)


def _write_missing(
    run: RunTasks, table: ImageTable, fonts: Sequence[Font], codes: np.ndarray, drawers: np.ndarray, size: int
) -> None:
    """Write the pictures that do not exist yet."""
    files = table.files()
    missing = np.array([not has_content(file) for file in files])
    require_room(table.root, int(missing.sum()) * _BYTES / 1e6)
    tasks: list[Work] = []
    for number, font in enumerate(fonts):
        for _, rows in _chunks(np.flatnonzero(missing & (drawers == number))):
            targets = [files[row] for row in rows]
            arguments = (str(font.file), font.typeface.index, size, codes[rows], targets)
            tasks.append((write_pictures, arguments, len(rows)))
    run(tasks, f"writing {missing.sum():,} pictures")


def _chunks(items: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    return ((start, items[start : start + _CHUNK]) for start in range(0, len(items), _CHUNK))
