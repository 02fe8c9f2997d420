"""Emoji as a data set: a class is an emoji, its images are the drawings of several vendors.

Pictures come from pinned registry packages (`frontrank.packages`) and are real, free to use and small; like the
data sets of the papers there are thousands of classes with a few images each, in coarser categories.
"""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrank.errors import InputError
from frontrank.packages import Package, members

if TYPE_CHECKING:
    from PIL.Image import Image
import hashlib
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import cast

import numpy as np

from frontrank.checks import check_number
from frontrank.data.images import require_pillow
from frontrank.data.table import ImageTable, shown
from frontrank.errors import FrontrankWarning, InputTypeError
from frontrank.packages import fetch, remedy
from frontrank.progress import progress
from frontrank.samples.folder import Source, Task, begun, finished, is_there, run_all, started, workers

# ==== The emoji sets of several vendors as they lie in their packages: which file draws which emoji, and its licence.


_JOINER, _VARIANT = "200D", "FE0F"
_NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'

NOTO = Package(
    "npm", "@iconify-json/noto", "1.2.9", "3e918d88fc945c0bb3d468dbace6f88caef67f01c9f0e7bcae0915a042e8f1ad", 3.1
)
NOTO_V1 = Package(
    "npm", "@iconify-json/noto-v1", "1.2.5", "2bf62c26c2c2884aa99e90aec942cdaee17a5921f05690694f4978ad4b017c37", 1.6
)
TWEMOJI = Package(
    "npm", "@twemoji/svg", "15.0.0", "1d2907557a422c7c4e3feca50ef915c39da1db3d76b4a4d7e73fb59bce4403c3", 1.5
)
OPENMOJI = Package("npm", "openmoji", "17.0.0", "55ee7d13485dec86e9f38c1f3a645a13382d33ff97c0cd845ee824b0aef45e68", 4.3)
FLUENT = Package(
    "npm", "@lobehub/fluent-emoji-3d", "1.1.0", "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58", 15.8
)
EMOJIONE_1 = Package(
    "npm", "emojione", "1.5.2", "1eaa2d59c663b22270ca7016c58e0b1e19be2376189e783299be050f1d67f390", 13.0
)
EMOJIONE_2 = Package(
    "npm", "emojione", "2.2.7", "5fe002738e6e276f49ac37783799d2feab99a6131fdedccfa56569d745449ae5", 94.2
)
FXEMOJI = Package(
    "npm", "svg-emojis", "0.0.8", "3c992c7763c1db80fbf85ec711ab65acdb1c57eedc2f3fb9f04da2a3b410ca67", 15.2
)
FLUENT_COLOR = Package(
    "npm",
    "@iconify-json/fluent-emoji",
    "1.2.7",
    "8044210dbf11e016d4de85f15d01a243423bd832457e7e2491df1b751c0e272b",
    14.3,
)
FLUENT_FLAT = Package(
    "npm",
    "@iconify-json/fluent-emoji-flat",
    "1.2.6",
    "7d064769dee690815f823bc5bcc511d957198caf9f5edd8dd9c1aa48a6aeb175",
    1.2,
)
FLUENT_CONTRAST = Package(
    "npm",
    "@iconify-json/fluent-emoji-high-contrast",
    "1.2.6",
    "0b92d48c90d2200bd499e3cdd09a127ca6a8c8ddefd34c35eb5a1e4994012ae0",
    1.1,
)

Archives = Mapping[Package, Path]
Drawings = Iterator[tuple[str, bytes]]  # the hexcode of an emoji, as the package writes it, and an .svg or raster file


@dataclass(frozen=True)
class Emoji:
    """One emoji: its label (code points without variation selectors, "1F636-200D-1F32B"), name and Unicode groups."""

    label: str
    name: str
    group: str
    subgroup: str
    toned: bool


@dataclass(frozen=True)
class Design:
    """One vendor's drawings.

    read:   all of them, out of the archives of its package and of those with names of emoji
    credit: who drew them, as the licence wants it said
    """

    name: str
    package: Package
    read: Callable[[Archives], Drawings]
    licence: str
    credit: str


def label_of(hexcode: str) -> str:
    """One spelling for the code points of an emoji, without the selector of its coloured form.

    >>> label_of("23-fe0f-20e3"), label_of("1F600")
    ('0023-20E3', '1F600')
    """
    points = (point.upper().lstrip("0").rjust(4, "0") for point in hexcode.split("-"))
    return "-".join(point for point in points if point != _VARIANT)


def read_emoji(archives: Archives) -> dict[str, Emoji]:
    """The emoji of Unicode by label, as the openmoji package lists them; its own additions are left out."""
    rows = _json(archives[OPENMOJI], "package/data/openmoji.json")
    found = {}
    for row in rows:
        if row["group"] != "component" and not row["group"].startswith("extras-"):
            label = label_of(row["hexcode"])
            found[label] = Emoji(label, row["annotation"], row["group"], row["subgroups"], bool(row["skintone"]))
    return found


def read_drawings(design: Design, archives: Archives, emoji: Iterable[str]) -> dict[str, bytes]:
    """The drawing of each emoji that the design has, by label.

    Older packages leave the joiners out of a sequence ("1F468-1F469-1F466"); such a name stands for the one with them.
    """
    labels = set(emoji)
    without = {label_of(label.replace(f"-{_JOINER}", "")): label for label in sorted(labels) if _JOINER in label}
    found: dict[str, bytes] = {}
    joined: dict[str, bytes] = {}
    for hexcode, drawing in design.read(archives):
        label = label_of(hexcode)
        if label in labels:
            found.setdefault(label, drawing)
        elif label in without:
            joined.setdefault(without[label], drawing)
    return {**joined, **found}


def draw(drawing: bytes, size: int) -> "Image":
    """An .svg or raster file as an RGB picture of size x size, in the middle of white."""
    from PIL import Image

    drawn = drawn_clear(drawing, size)
    on_white = Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
    scale = size / max(on_white.size)
    width, height = (max(1, round(side * scale)) for side in on_white.size)
    if on_white.size != (width, height):
        on_white = on_white.resize((width, height), Image.Resampling.LANCZOS)
    picture = Image.new("RGB", (size, size), "white")
    picture.paste(on_white, ((size - width) // 2, (size - height) // 2))
    return picture


def drawn_clear(drawing: bytes, size: int) -> "Image":
    """An .svg file at this size, or a raster file at its own, as RGBA."""
    import resvg_py
    from PIL import Image

    if drawing[:200].lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<"):
        text = drawing.decode()
        drawing = resvg_py.svg_to_bytes(svg_string=text, width=size, height=size, skip_system_fonts=True)
    return Image.open(io.BytesIO(drawing)).convert("RGBA")


def _json(archive: Path, name: str) -> Any:
    for _, content in members(archive, [name]):
        return json.loads(content)
    raise InputError(f"{archive} has no {name}; delete it, and run this again")


def _files(package: Package, folder: str, name: str) -> Callable[[Archives], Drawings]:
    """Drawings that are files named by their code points, which `name` finds."""
    pattern = re.compile(f"package/{folder}{name}")

    def read(archives: Archives) -> Drawings:
        for path, content in members(archives[package], lambda path: pattern.fullmatch(path) is not None):
            found = pattern.fullmatch(path)
            assert found is not None
            yield found[1], content

    return read


def _icons(package: Package, named_by: Package) -> Callable[[Archives], Drawings]:
    """Drawings in one file of icons, by names which one of such packages gives to code points."""

    def read(archives: Archives) -> Drawings:
        names = _json(archives[named_by], "package/chars.json")
        icons = _json(archives[package], "package/icons.json")
        return _drawings(names, icons)

    return read


def _drawings(names: Mapping[str, str], icons: Mapping[str, Any]) -> Drawings:
    """Those of a file of icons; 16 is the usual side there."""
    for hexcode, name in names.items():
        alias = icons.get("aliases", {}).get(name)
        icon = icons["icons"].get(name if alias is None else alias["parent"])
        if icon is not None:
            left, top, width, height = (
                icon.get(key, icons.get(key, usual))
                for key, usual in (("left", 0), ("top", 0), ("width", 16), ("height", 16))
            )
            head = f'<svg {_NAMESPACES} viewBox="{left} {top} {width} {height}">'
            yield hexcode, f"{head}{icon['body']}</svg>".encode()


_HEX = r"([0-9A-Fa-f]+(?:-[0-9A-Fa-f]+)*)"

INDEPENDENT = (
    Design("noto", NOTO, _icons(NOTO, NOTO), "Apache-2.0", "Noto Emoji, by Google"),
    Design("noto-v1", NOTO_V1, _icons(NOTO_V1, NOTO), "Apache-2.0", "Noto Emoji as of 2016 (blobs), by Google"),
    Design(
        "twemoji", TWEMOJI, _files(TWEMOJI, "", rf"{_HEX}\.svg"), "CC-BY-4.0", "Twemoji, by Twitter and contributors"
    ),
    Design(
        "openmoji",
        OPENMOJI,
        _files(OPENMOJI, "color/svg/", rf"{_HEX}\.svg"),
        "CC-BY-SA-4.0",
        "OpenMoji, the open-source emoji and icon project",
    ),
    Design(
        "fluent-3d",
        FLUENT,
        _files(FLUENT, "assets/", rf"{_HEX}\.webp"),
        "MIT",
        "Fluent Emoji, by Microsoft; packaged by LobeHub",
    ),
    Design(
        "emojione-1",
        EMOJIONE_1,
        _files(EMOJIONE_1, "assets/png/", rf"{_HEX}\.png"),
        "CC-BY-SA-4.0",
        "Emoji One 1, emojione.com",
    ),
    Design(
        "emojione-2",
        EMOJIONE_2,
        _files(EMOJIONE_2, "assets/png_128x128/", rf"{_HEX}\.png"),
        "CC-BY-4.0",
        "EmojiOne 2, emojione.com",
    ),
    Design(
        "fxemoji",
        FXEMOJI,
        _files(FXEMOJI, "fxemoji/", r"u([0-9A-Fa-f]+)-[^/]*\.svg"),
        "Apache-2.0",
        "FxEmojis, by Mozilla; packaged in svg-emojis",
    ),
)

RESTYLED = (
    Design(
        "openmoji-black",
        OPENMOJI,
        _files(OPENMOJI, "black/svg/", rf"{_HEX}\.svg"),
        "CC-BY-SA-4.0",
        "OpenMoji, the open-source emoji and icon project",
    ),
    Design(
        "emojione-2-bw",
        EMOJIONE_2,
        _files(EMOJIONE_2, "assets/svg_bw/", rf"{_HEX}\.svg"),
        "CC-BY-4.0",
        "EmojiOne 2, emojione.com",
    ),
    Design("fluent-color", FLUENT_COLOR, _icons(FLUENT_COLOR, FLUENT_FLAT), "MIT", "Fluent Emoji, by Microsoft"),
    Design("fluent-flat", FLUENT_FLAT, _icons(FLUENT_FLAT, FLUENT_FLAT), "MIT", "Fluent Emoji, by Microsoft"),
    Design(
        "fluent-contrast", FLUENT_CONTRAST, _icons(FLUENT_CONTRAST, FLUENT_FLAT), "MIT", "Fluent Emoji, by Microsoft"
    ),
)

DESIGNS: Mapping[str, tuple[Design, ...]] = {"independent": INDEPENDENT, "all": (*INDEPENDENT, *RESTYLED)}


PACKAGES = tuple(dict.fromkeys(design.package for design in INDEPENDENT))


# ==== Emoji as a data set: a class is an emoji, its images are the drawings of several vendors.


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
        check_number(name, value, at_least=least, at_most=most)
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
