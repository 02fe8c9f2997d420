"""Han characters in many typefaces: a real data set of the size of Stanford Online Products.

A class is a character and its pictures are drawings of it by different hands: the typefaces of pinned Debian packages,
which are fetched and read, not installed. A category is a Kangxi radical.
"""

import bz2
import hashlib
import os
import re
import shutil
import struct
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from frontrank.checks import check_number
from frontrank.data.embedding_files import did_you_mean
from frontrank.data.images import require_pillow
from frontrank.data.table import ImageTable, shown
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.packages import Package, as_found, fetch, members, remedy
from frontrank.samples.folder import WORK, Source, Task, begun, finished, is_there, run_all, started, workers

# ==== Han characters as Unicode knows them: the radical, the other strokes, and what they mean.


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
    """All Han characters by code point, from the fields kRSUnicode and kDefinition of the package unicode-data.

    Left out is what is only another code for one of them (compatibility ideographs, which Unicode normalises away).
    """
    radicals: dict[int, tuple[int, int]] = {}
    meanings: dict[int, str] = {}
    for name, content in members(archive, [f"*/{file}{ending}" for file in _FILES for ending in ("", ".bz2")]):
        try:
            _read(bz2.decompress(content) if name.endswith(".bz2") else content, radicals, meanings)
        except (ValueError, OSError) as error:
            raise InputError(f"{archive}: {name} cannot be read ({error}); delete it, and run this again") from error
    if not radicals:
        raise InputError(f"{archive} has no radicals of Han characters (kRSUnicode in Unihan_*.txt); fetch it again")
    return {
        code: Character(radical, strokes, meanings.get(code, ""))
        for code, (radical, strokes) in radicals.items()
        if unicodedata.is_normalized("NFC", chr(code))
    }


def _read(content: bytes, radicals: dict[int, tuple[int, int]], meanings: dict[int, str]) -> None:
    for code, field, value in _FIELDS.findall(content.decode("utf-8")):
        if field == "kRSUnicode":  # such as "120'.3": an apostrophe marks a simplified form of the radical
            radical, strokes = value.split()[0].replace("'", "").split(".")
            radicals[int(code, 16)] = int(radical), int(strokes)
        else:
            meanings[int(code, 16)] = _ASIDE.sub("", value).replace(";", ",").split(",")[0].strip()


# ==== The typefaces that Han glyphs are drawn with: where they come from, their licences, and what characters they h


_PINNED = (  # name, version, sha256 of the .deb file, MB
    ("fonts-aoyagi-kouzan-t", "20160404-6", "6e961f85ca7cd69e9357666db55f3409bea3619abc123cb3a168823e55a2a90d", 1.2),
    ("fonts-aoyagi-soseki", "20070207-17", "d5d32b6d26155a5731c1a766d0e66ccd63778c5eebc955cf868a63b86c269585", 3.1),
    ("fonts-arphic-ukai", "0.2.20080216.2-5", "b9db73184895b067f7911f9adbf3b137df99c2d4ec5425b4ad779a9834b7110b", 8.4),
    (
        "fonts-arphic-uming",
        "0.2.20080216.2-11",
        "2676b21b90df94f23418610291b71b43720c95cdccb420b97ab56edfd3ce4cf5",
        7.9,
    ),
    ("fonts-babelstone-han", "15.0.5-2", "c7b7f9b5b78ad14c94d7e6d2b103307a7a643844c7db856fb97611d9d8a80589", 11.3),
    ("fonts-baekmuk", "2.2-13", "19dbd99e597a35c8f63a36b3e880d8f3df61099e1cb92c5744146240fc4bee55", 8.8),
    ("fonts-cwtex-fs", "1.0-4", "94b4ce9d2fd613e04bcf2e293011ca5099b43d8a8a97c090580fe25d31845850", 5.6),
    ("fonts-cwtex-heib", "1.0-4", "ead954743ecf0069bb8a381ac17f131a69e4ccce28db92a115ae8f13e9ada925", 3.0),
    ("fonts-cwtex-kai", "1.0-4", "7b0ac26332e88a2f4fd95af076e5a7776af4cf9578042017dafc0a59dbdb8bfc", 6.1),
    ("fonts-cwtex-ming", "1.0-4", "c6641f5d8d438d4bfa912e06204211b3d81fb167a586d09424922e0de42dac6e", 6.7),
    ("fonts-cwtex-yen", "1.0-4", "c400c0c11897adc5d5846833cda6698c2e71f005f0a29f4060cb7b2e0dde8c48", 4.6),
    ("fonts-droid-fallback", "1:6.0.1r16-1.1", "d2096d4edde128fedf6749be2dd204a5810210a6201126d99b8d412344f71056", 1.8),
    ("fonts-hanazono", "20170904-2.1", "a6943366b4f5a6cec34221f8b4eb22555a628f0ee6ef4e3d3401cabe9363aeae", 22.3),
    ("fonts-ipaexfont-gothic", "00401-5", "0e3d7f1f7449ca6424fbe52788dcfe69f65636a9641be1f7cc62bd6cc20f3fd8", 3.3),
    ("fonts-ipamj-mincho", "005.01-2.1", "0dd4990be8d010f13921b1bcac2f9c684e007deae17282cd07dbbfd5b2cd08cb", 25.2),
    ("fonts-konatu", "20121218-11", "72163bf8300a59c53438d510c564eb4c35439e6ac56bda2f5cc04052c9850a98", 2.1),
    ("fonts-kouzan-mouhitsu", "20170411-3", "924536ceff9359b99996e56cd24633df67d696a343ba46f9e3106e8cee228dbe", 11.0),
    ("fonts-lxgw-wenkai", "1.250+repack-1", "6d1e4c4aac78ad32062aefa2c836ee4d6e58f9dcf8b3f4407c9eefe304615318", 51.6),
    ("fonts-motoya-l-cedar", "1.01-5", "e107f9eca4c82752feed9917311a5dee8a98d7c762ca824d85b40cbf32e53cd1", 1.1),
    ("fonts-motoya-l-maruberi", "1.01-5", "22af24c8dd84ace4709b4a8e899f81e8d290c0c36c0f43c49af2c185c9988c31", 1.5),
    ("fonts-mplus", "063+git20221017+ds-1", "d84cf5bc7ba7ff4cc95bc23177eb9354aae8d8965490059ef54b3951ba14f61b", 24.7),
    (
        "fonts-noto-cjk",
        "1:20220127+repack1-1",
        "4a2515eb6db3978b897fef9709ed0d2b1f4c6c4df4d83d6c4ef65f71f1b1f502",
        56.5,
    ),
    ("fonts-sawarabi-gothic", "20161015-4", "2fe2add38a94ba26a86f18727583821201f8f46691ebb1c01e85b9f2b236cb96", 0.9),
    ("fonts-sawarabi-mincho", "20220815-1", "a63cca0c7da5d6de86824060c79ee4628beea54f701a8f49196d73337d01d5e7", 0.8),
    ("fonts-seto", "6.20-8", "1ce0b6124d635036d64462d7f0bece68d79608713a51d0664d4aa03da882fe2c", 7.1),
    ("fonts-unifont", "1:15.0.01-2", "cd46245f1b228d1277ed2b453ce893fde1cf4bf4ec317e82b0079395bdc9c2b5", 2.0),
    ("fonts-vlgothic", "20220612-1", "81b0a42456747e7ec2f801028b254c33f8c720a99e15140c23f0861329687448", 2.2),
    ("fonts-wqy-zenhei", "0.9.45-8", "cfed2c29164ff2f133e40ed2046610b172b8618d174840936ac4ec9b6fd668e7", 7.5),
    ("unicode-data", "15.0.0-1", "5efef23bbb1c6a133ecbdd63a2cfa07159ccacf5466a49e2426101c5ecd691fc", 8.0),
)
_DRAWN = (  # typeface, package, its files, number of the font in a collection, licence of the font
    ("noto-sans", "fonts-noto-cjk", "NotoSansCJK-Regular.ttc", 2, "OFL-1.1"),
    ("noto-serif", "fonts-noto-cjk", "NotoSerifCJK-Regular.ttc", 2, "OFL-1.1"),
    ("lxgw-wenkai", "fonts-lxgw-wenkai", "LXGWWenKai-Regular.ttf", 0, "OFL-1.1"),
    (
        "babelstone-han",
        "fonts-babelstone-han",
        "BabelStoneHan.ttf",
        0,
        "Arphic-1999 AND (CC-BY-SA-3.0 OR CC-BY-SA-4.0)",
    ),
    ("hanazono", "fonts-hanazono", "HanaMinA.ttf HanaMinB.ttf", 0, "Hanazono-Font-License OR OFL-1.1"),
    ("droid-fallback", "fonts-droid-fallback", "DroidSansFallbackFull.ttf", 0, "Apache-2.0"),
    ("wqy-zenhei", "fonts-wqy-zenhei", "wqy-zenhei.ttc", 0, "GPL-2.0-only WITH Font-exception-2.0 AND mplus"),
    ("unifont", "fonts-unifont", "unifont.otf unifont_upper.otf", 0, "GPL-2.0-or-later"),
    ("arphic-ukai", "fonts-arphic-ukai", "ukai.ttc", 0, "Arphic-1999"),
    ("arphic-uming", "fonts-arphic-uming", "uming.ttc", 0, "Arphic-1999"),
    ("ipamj-mincho", "fonts-ipamj-mincho", "ipamjm.ttf", 0, "IPA"),
    ("ipaex-gothic", "fonts-ipaexfont-gothic", "ipaexg.ttf", 0, "IPA"),
    ("cwtex-fangsong", "fonts-cwtex-fs", "cwfs.ttf", 0, "GPL-2.0-or-later"),
    ("cwtex-hei", "fonts-cwtex-heib", "cwheib.ttf", 0, "GPL-2.0-or-later"),
    ("cwtex-kai", "fonts-cwtex-kai", "cwkai.ttf", 0, "GPL-2.0-or-later"),
    ("cwtex-ming", "fonts-cwtex-ming", "cwming.ttf", 0, "GPL-2.0-or-later"),
    ("cwtex-yen", "fonts-cwtex-yen", "cwyen.ttf", 0, "GPL-2.0-or-later"),
    ("seto", "fonts-seto", "setofont.ttf", 0, "OFL-1.1"),
    ("kouzan-kaisho", "fonts-kouzan-mouhitsu", "kouzan-mouhitsu.ttf", 0, "public domain"),
    ("kouzan-gyosho", "fonts-kouzan-mouhitsu", "kouzan-mouhitsu-gyosho.ttf", 0, "public domain"),
    ("kouzan-sosho", "fonts-kouzan-mouhitsu", "KouzanBrushFontSousyo.ttf", 0, "public domain"),
    ("aoyagi-kouzan", "fonts-aoyagi-kouzan-t", "AoyagiKouzanT.ttf", 0, "public domain"),
    ("aoyagi-soseki", "fonts-aoyagi-soseki", "aoyagi-soseki.ttf", 0, "public domain"),
    ("konatu", "fonts-konatu", "Konatu.ttf", 0, "MIT"),
    ("vl-gothic", "fonts-vlgothic", "VL-Gothic-Regular.ttf", 0, "mplus AND Sazanami AND BSD-3-Clause"),
    ("mplus-1", "fonts-mplus", "Mplus1-Regular.otf", 0, "OFL-1.1"),
    ("motoya-cedar", "fonts-motoya-l-cedar", "MTLc3m.ttf", 0, "Apache-2.0"),
    ("motoya-maruberi", "fonts-motoya-l-maruberi", "MTLmr3m.ttf", 0, "Apache-2.0"),
    ("sawarabi-gothic", "fonts-sawarabi-gothic", "sawarabi-gothic-medium.ttf", 0, "CC-BY-3.0"),
    ("sawarabi-mincho", "fonts-sawarabi-mincho", "sawarabi-mincho-medium.ttf", 0, "CC-BY-SA-3.0 OR OFL-1.1"),
    ("baekmuk-batang", "fonts-baekmuk", "batang.ttf", 0, "Baekmuk"),
    ("baekmuk-dotum", "fonts-baekmuk", "dotum.ttf", 0, "Baekmuk"),
    ("baekmuk-gulim", "fonts-baekmuk", "gulim.ttf", 0, "Baekmuk"),
)


@dataclass(frozen=True)
class Typeface:
    """One design: fonts of one package, of which the first that has a character draws it.

    files: their names in the package
    index: of the font in a collection (.ttc)
    """

    name: str
    package: Package
    files: tuple[str, ...]
    index: int
    licence: str


PACKAGES = {name: Package("apt", name, version, sha256, size) for name, version, sha256, size in _PINNED}
UNICODE_DATA = PACKAGES["unicode-data"]
TYPEFACES = {
    name: Typeface(name, PACKAGES[package], tuple(files.split()), index, licence)
    for name, package, files, index, licence in _DRAWN
}
SMALL = ("motoya-cedar", "motoya-maruberi", "sawarabi-gothic", "sawarabi-mincho")  # 5 MB of packages
TEST_PACKAGES = (*(TYPEFACES[name].package for name in SMALL), UNICODE_DATA)


def mapped_characters(font: bytes, index: int = 0) -> np.ndarray:
    """The code points that a font has a glyph for, sorted [character], int64; by the widest Unicode table of its cmap.

    index: of the font in a collection

    Raises ValueError for what is no such font. Tables of the formats 4 and 12 are read, one of which every font has
    that holds Han characters.
    """
    try:
        cmap = _font_table(font, _start(font, index), b"cmap")
        found = [
            (kind == 12, place)
            for platform, encoding, place, kind in _subtables(font, cmap)
            if kind in (4, 12) and (platform == 0 or (platform == 3 and encoding in (1, 10)))
        ]
        if not found:
            raise ValueError("it has no table of Unicode characters")
        wide, place = max(found, key=lambda each: each[0])
        return _format_12(font, place) if wide else _format_4(font, place)
    except (struct.error, IndexError) as error:
        raise ValueError(f"it is damaged ({error})") from error


def _start(font: bytes, index: int) -> int:
    if font[:4] != b"ttcf":
        if index:
            raise ValueError("it is no collection of fonts")
        return 0
    fonts = struct.unpack_from(">I", font, 8)[0]
    if index >= fonts:
        raise ValueError(f"it has {fonts} fonts, none has the number {index}")
    return int(struct.unpack_from(">I", font, 12 + 4 * index)[0])


def _font_table(font: bytes, start: int, wanted: bytes) -> int:
    for number in range(struct.unpack_from(">H", font, start + 4)[0]):
        name, _, place, _ = struct.unpack_from(">4sIII", font, start + 12 + 16 * number)
        if name == wanted:
            return int(place)
    raise ValueError(f"it has no table {wanted.decode()!r}")


def _subtables(font: bytes, cmap: int) -> Iterator[tuple[int, int, int, int]]:
    """Platform, encoding, place and format of each."""
    for number in range(struct.unpack_from(">H", font, cmap + 2)[0]):
        platform, encoding, offset = struct.unpack_from(">HHI", font, cmap + 4 + 8 * number)
        yield platform, encoding, cmap + offset, struct.unpack_from(">H", font, cmap + offset)[0]


def _array(font: bytes, place: int, count: int, kind: str) -> np.ndarray:
    if place + count * np.dtype(kind).itemsize > len(font):
        raise ValueError("it is cut short")
    return np.frombuffer(font, kind, count, place).astype(np.int64)


def _format_12(font: bytes, place: int) -> np.ndarray:
    """Groups of characters that follow each other, as their glyphs do; glyph 0 is none."""
    groups = _array(font, place + 16, 3 * struct.unpack_from(">I", font, place + 12)[0], ">u4").reshape(-1, 3)
    groups = groups[(groups[:, 0] <= groups[:, 1]) & (groups[:, 1] <= 0x10FFFF)]
    parts = [np.arange(first + (glyph == 0), last + 1) for first, last, glyph in groups.tolist()]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))


def _format_4(font: bytes, place: int) -> np.ndarray:
    """Segments of characters; the glyph is the character plus a number, or is looked up behind the segments."""
    count = struct.unpack_from(">H", font, place + 6)[0] // 2
    ends = _array(font, place + 14, count, ">u2")
    starts = _array(font, place + 16 + 2 * count, count, ">u2")
    deltas = _array(font, place + 16 + 4 * count, count, ">u2")
    offsets = place + 16 + 6 * count
    parts = []
    for number, offset in enumerate(_array(font, offsets, count, ">u2").tolist()):
        characters = np.arange(starts[number], ends[number] + 1)
        glyphs = characters
        if offset and len(characters):
            glyphs = _array(font, offsets + 2 * number + offset, len(characters), ">u2")
            characters, glyphs = characters[glyphs > 0], glyphs[glyphs > 0]
        parts.append(characters[(glyphs + deltas[number]) % 65536 > 0])
    found = np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))
    return found[found < 0xFFFF]  # which only ends the table


# ==== Pictures of single characters: looked at by their fingerprints, and written.


_EM = 5 / 6  # of the side of a picture: most glyphs then have a margin, as printed characters have


def draw_glyph(font: Any, character: str, size: int) -> Any:
    """A character as a white picture with the ink black and in the middle; None where the font draws nothing.

    font: of Pillow, with 5/6 of `size` as its size; what is larger than the picture all the same is shrunk to fit
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
    """A font of Pillow for pictures of this size."""
    from PIL import ImageFont

    try:
        return ImageFont.truetype(file, round(size * _EM), index=index, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise InputError(f"{shown(file)} cannot be read as a font ({error}); leave that typeface out") from error


def fingerprints(file: str, index: int, size: int, codes: np.ndarray, kept: Path) -> np.ndarray:
    """A number for the pixels of each character [character], the same for the same pixels; 0 if the font draws nothing.

    kept: a file that remembers the result, for the next call
    """
    if kept.exists():
        return np.load(kept)
    font, found = open_font(file, index, size), []
    for code in codes.tolist():
        picture = draw_glyph(font, chr(code), size)
        digest = b"" if picture is None else hashlib.blake2b(picture.tobytes(), digest_size=8).digest()
        found.append(int.from_bytes(digest, "big"))
    numbers = np.array(found, dtype=np.uint64)
    with written(kept, kept.parent) as unfinished, unfinished.open("wb") as stream:
        np.save(stream, numbers)
    return numbers


def write_pictures(file: str, index: int, size: int, codes: np.ndarray, targets: Sequence[str], work: Path) -> None:
    """Write characters as PNG files."""
    font = open_font(file, index, size)
    for code, target in zip(codes.tolist(), targets, strict=True):
        with written(Path(target), work) as unfinished:
            draw_glyph(font, chr(code), size).save(unfinished, format="png")


@contextmanager
def written(path: Path, work: Path) -> Iterator[Path]:
    """A place in the folder `work` to write a file at; it goes to its path when it is whole."""
    unfinished = work / f"{os.getpid()}.unfinished"
    try:
        work.mkdir(parents=True, exist_ok=True)
        yield unfinished
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.replace(path)
    except OSError as error:
        raise InputError(f"{shown(path)} cannot be written ({error.strerror}); {remedy(error)}") from error


# ==== The fonts of packages as files, and which Han characters each of them draws.


_COPYRIGHT = "copyright"  # the notice of a Debian package


@dataclass(frozen=True)
class Font:
    """A font on disk, the start of the names of what is kept of it, and the characters it draws [character]."""

    typeface: Typeface
    file: Path
    kept: Path
    codes: np.ndarray


def unpack_fonts(
    pool: ProcessPoolExecutor,
    faces: Sequence[Typeface],
    archives: Mapping[Package, Path],
    characters: Iterable[int],
    work: Path,
    notices: Path,
    show: bool | None = None,
) -> list[Font]:
    """The fonts of typefaces, each with the characters that no earlier file of its typeface has.

    characters: code points that are wanted
    work:       a folder for the files
    notices:    a folder for the copyright notices of all packages
    """
    files: dict[Package, set[str]] = {package: set() for package in archives}
    for face in faces:
        files[face.package].update(face.files)
    tasks: list[Task] = [
        (_unpack, (archives[package], names, work, notices / f"{package.name}.txt"), package.megabytes)
        for package, names in files.items()
    ]
    tasks.sort(key=lambda task: -task[2])  # the longest first, or the others wait for it in the end
    run_all(pool, tasks, "unpacking typefaces", show)
    known, fonts = np.array(sorted(characters), dtype=np.int64), []
    for face in faces:
        left = known
        for name in face.files:
            file = work / archives[face.package].name / name
            try:
                codes = np.intersect1d(left, mapped_characters(file.read_bytes(), face.index))
            except ValueError as error:
                said = f"{name} of {face.package} is no font to use: {error}"
                raise InputError(f"{said}; leave {face.name} out") from error
            left = np.setdiff1d(left, codes)
            fonts.append(Font(face, file, file.with_name(f"{face.name}-{name}"), codes))
    return fonts


def _unpack(archive: Path, names: set[str], work: Path, notice: Path) -> None:
    """Bring some files of a package into a folder of its name, and its copyright notice to where it stays."""
    targets = {name: work / archive.name / name for name in names} | {_COPYRIGHT: notice}
    missing = {name for name, target in targets.items() if not target.exists()}
    if not missing:
        return
    for path, content in members(archive, lambda path: path.split("/")[-1] in missing):
        name = path.split("/")[-1]
        with written(targets[name], work) as unfinished:
            unfinished.write_bytes(content)
        missing.discard(name)
        if not missing:
            return
    if missing != {_COPYRIGHT}:
        raise InputError(f"{archive.name} has no file {min(missing - {_COPYRIGHT})}; leave that typeface out")


# ==== Which of all glyphs make the data set: distinct pictures, fixed splits, and as many as are asked for.


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


# ==== Han characters in many typefaces: a real data set of the size of Stanford Online Products.


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
    check_number("size", size, at_least=8, at_most=512)
    if classes is not None:
        check_number("classes", classes, at_least=2)
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
