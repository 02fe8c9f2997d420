"""Emoji as a data set: a class is an emoji, its images are the drawings of several vendors.

Pictures come from pinned registry packages (`frontrank.packages`). They are real, free to use and small. As in the data
sets of the papers there are thousands of classes with a few images each, in coarser categories.
"""

import hashlib
import io
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from frontrank.checks import check_choice, check_integer, import_extra
from frontrank.data.table import ImageTable
from frontrank.errors import InputError
from frontrank.files import PathLike, atomic_write, file_digest, write_errors
from frontrank.packages import Package, fetch, members
from frontrank.pictures.decode import require_pillow
from frontrank.progress import progress
from frontrank.samples.build import (
    PINNED,
    SOURCES,
    PictureSource,
    check_counts,
    finish_table,
    has_content,
    label_split,
    picture_table,
    read_built,
    start_build,
    start_workers,
)

if TYPE_CHECKING:
    from PIL.Image import Image

# The emoji sets of several vendors in their packages: which file draws which emoji, and its licence.

_JOINER, _VARIANT = "200D", "FE0F"
_NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'

OPENMOJI = PINNED["openmoji"]

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
class Design(PictureSource):
    """One vendor's drawings.

    credit: who drew them, as the licence demands
    files:  pattern of the paths of its drawings, with the code points as HEX or as its group
    icons:  the package with the names of its drawings, if they are all in one file
    """

    credit: str
    files: str
    icons: Package | None

    def read(self, archives: Archives) -> Drawings:
        """Yield all drawings."""
        if self.icons is not None:
            names = _read_json(archives[self.icons], "package/chars.json")
            yield from _drawings(names, _read_json(archives[self.package], "package/icons.json"))
            return
        pattern = re.compile("package/" + self.files.replace("HEX", r"([0-9A-Fa-f]+(?:-[0-9A-Fa-f]+)*)"))
        for path, content in members(archives[self.package], lambda path: pattern.fullmatch(path) is not None):
            yield pattern.sub(r"\1", path), content


def emoji_label(hexcode: str) -> str:
    """Return the label of an emoji: its code points in one spelling, without the selector of the coloured form.

    >>> emoji_label("23-fe0f-20e3"), emoji_label("1F600")
    ('0023-20E3', '1F600')
    """
    points = (point.upper().lstrip("0").rjust(4, "0") for point in hexcode.split("-"))
    return "-".join(point for point in points if point != _VARIANT)


def read_emoji(archives: Archives) -> dict[str, Emoji]:
    """Return the emoji of Unicode by label, from the openmoji package; its own additions are left out."""
    emoji = {}
    for row in _read_json(archives[OPENMOJI], "package/data/openmoji.json"):
        if row["group"] != "component" and not row["group"].startswith("extras-"):
            label = emoji_label(row["hexcode"])
            emoji[label] = Emoji(label, row["annotation"], row["group"], row["subgroups"], bool(row["skintone"]))
    return emoji


def read_drawings(design: Design, archives: Archives, emoji: Iterable[str]) -> dict[str, bytes]:
    """Return the drawing of each emoji that the design has, by label.

    Older packages leave the joiners out of a sequence ("1F468-1F469-1F466"); such a name is the one with joiners.
    """
    labels = set(emoji)
    without = {emoji_label(label.replace(f"-{_JOINER}", "")): label for label in sorted(labels) if _JOINER in label}
    exact, unjoined = dict[str, bytes](), dict[str, bytes]()
    for hexcode, drawing in design.read(archives):
        label = emoji_label(hexcode)
        if label in labels:
            exact.setdefault(label, drawing)
        elif label in without:
            unjoined.setdefault(without[label], drawing)
    return {**unjoined, **exact}


def draw_emoji(drawing: bytes, size: int) -> "Image":
    """Draw an .svg or raster file as an RGB picture of size x size, in the middle of white."""
    from PIL import Image

    clear = draw_transparent(drawing, size)
    on_white = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    scale = size / max(on_white.size)
    width, height = (max(1, round(side * scale)) for side in on_white.size)
    if on_white.size != (width, height):
        on_white = on_white.resize((width, height), Image.Resampling.LANCZOS)
    picture = Image.new("RGB", (size, size), "white")
    picture.paste(on_white, ((size - width) // 2, (size - height) // 2))
    return picture


def draw_transparent(drawing: bytes, size: int) -> "Image":
    """Draw an .svg file at this size, or a raster file at its own, as RGBA."""
    import resvg_py
    from PIL import Image

    if drawing[:200].lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<"):
        text = drawing.decode()
        drawing = resvg_py.svg_to_bytes(svg_string=text, width=size, height=size, skip_system_fonts=True)
    return Image.open(io.BytesIO(drawing)).convert("RGBA")


def require_emoji_drawing() -> None:
    """Raise if a library that draws emoji is not installed."""
    require_pillow()
    import_extra("resvg_py", "samples", "drawing emoji")


def _read_json(archive: Path, name: str) -> Any:
    for _, content in members(archive, [name]):
        return json.loads(content)
    raise InputError(f"{archive} has no {name}; delete it, and run this again")


def _drawings(names: Mapping[str, str], icons: Mapping[str, Any]) -> Drawings:
    """Yield the drawings of a file of icons; a side is 16 if the file does not set it."""
    usual = {"left": 0, "top": 0, "width": 16, "height": 16, **icons}
    for hexcode, name in names.items():
        icon = icons["icons"].get(icons.get("aliases", {}).get(name, {"parent": name})["parent"])
        if icon is not None:
            box = " ".join(str(icon.get(key, usual[key])) for key in ("left", "top", "width", "height"))
            yield hexcode, f'<svg {_NAMESPACES} viewBox="{box}">{icon["body"]}</svg>'.encode()


def _read_design(row: Mapping[str, str]) -> Design:
    package, icons = PINNED[row["package"]], PINNED.get(row.get("icons", ""))
    return Design(row["name"], package, row["licence"], row["credit"], row.get("files", ""), icons)


INDEPENDENT, _RESTYLED = (tuple(map(_read_design, SOURCES["emoji"][kind])) for kind in ("independent", "restyled"))
DESIGNS: Mapping[str, tuple[Design, ...]] = {"independent": INDEPENDENT, "all": (*INDEPENDENT, *_RESTYLED)}
PACKAGES = tuple(dict.fromkeys(design.package for design in INDEPENDENT))


# The data set

SIZE = 72
LEAST = 4  # designs of a class
COUNTS: Mapping[tuple[str, bool], tuple[int, int]] = {  # (designs, skin tones): classes, images, at that size
    ("independent", False): (1_826, 11_586),
    ("independent", True): (3_216, 18_053),
    ("all", False): (1_875, 19_274),
}
_NOTES = """\
Each picture is a drawing of one of these sets, made small and laid on white, and not changed otherwise. Whoever passes
pictures on passes this list on with them. They were drawn by:"""
_CHUNK = 64  # pictures a process is given at once
_FEW = 8  # chunks that are not worth starting processes


@dataclass(frozen=True)
class _Job:
    """A picture to draw: one design's drawing of one emoji."""

    emoji: Emoji
    design: Design
    drawing: bytes

    @property
    def path(self) -> str:
        return f"images/{self.emoji.label}/{self.design.name}.png"


def build_emoji(
    out: PathLike,
    *,
    designs: str = "independent",
    skin_tones: bool = False,
    size: int = SIZE,
    classes: int | None = None,
    show: bool | None = None,
) -> ImageTable:
    """Draw emoji into the folder `out`: pictures, a table images.csv and LICENCES.md; existing pictures are kept.

    designs:    "independent", 8 sets that were drawn independently of each other; "all" has 5 more that are the same
                drawings in another style, which makes searching easier
    skin_tones: also the emoji that differ in the colour of skin only
    size:       pixels of a side; drawings are laid on white
    classes:    only so many, spread over all of them; pictures that occur twice are then searched among these
    show:       progress, as in `frontrank.progress`

    A class has at least 4 designs. Pictures that are blank, or the same in two classes, are left out. About half of
    the classes are "train" and the others "test", by a hash of the label that never changes.
    """
    check_choice("designs", designs, DESIGNS)
    check_integer("size", size, at_least=8, at_most=1024)
    if classes is not None:
        check_integer("classes", classes, at_least=2, at_most=10**6)
    require_emoji_drawing()
    settings = {"data": "emoji", "designs": designs, "skin_tones": bool(skin_tones), "size": size, "classes": classes}
    folder = Path(out)
    if (table := read_built(folder, settings)) is not None:
        return table
    with start_build(folder, settings):
        vendors = DESIGNS[designs]
        packages = list(dict.fromkeys(design.package for design in vendors))
        archives = dict(zip(packages, fetch(packages, show=show), strict=True))
        jobs = _pick_classes(_list_jobs(vendors, archives, skin_tones, show), classes)
        with write_errors(folder):
            _draw_all(folder, [job for job in jobs if not has_content(folder / job.path)], size, show)
            jobs = _keep_distinct(folder, jobs)
        each = ((job.path, job.emoji, job.design) for job in jobs)
        table = picture_table(folder, ((path, of.label, of.group, of.subgroup, by, of.name) for path, of, by in each))
        if classes is None and size == SIZE and (designs, skin_tones) in COUNTS:
            check_counts("emoji", table, COUNTS[designs, skin_tones])
        credits = "".join(f"\n- {design.name}: {design.credit}" for design in vendors)
        return finish_table(folder, table, settings, vendors, OPENMOJI, f"{_NOTES}\n{credits}")


def _list_jobs(designs: Sequence[Design], archives: Archives, skin_tones: bool, show: bool | None) -> list[_Job]:
    """Return all possible pictures, by label, without files that are the same for two classes."""
    emoji = {label: each for label, each in read_emoji(archives).items() if skin_tones or not each.toned}
    jobs = []
    with progress("reading packages", len(designs), show) as advance:
        for design in designs:
            drawings = read_drawings(design, archives, emoji)
            jobs += [_Job(emoji[label], design, drawing) for label, drawing in drawings.items()]
            advance(1)
    jobs = _enough(jobs)
    return _of_one_class(jobs, [hashlib.sha256(job.drawing).hexdigest() for job in jobs])


def _enough(jobs: Sequence[_Job]) -> list[_Job]:
    """Return the jobs of classes with enough designs, sorted by label."""
    counts = Counter(job.emoji.label for job in jobs)
    return sorted((job for job in jobs if counts[job.emoji.label] >= LEAST), key=lambda job: job.emoji.label)


def _pick_classes(jobs: list[_Job], classes: int | None) -> list[_Job]:
    """Return the jobs of so many classes, half of each split, spread evenly over the sorted labels."""
    if classes is None:
        return jobs
    labels = sorted({job.emoji.label for job in jobs})
    picks: set[str] = set()
    for split, many in (("train", classes - classes // 2), ("test", classes // 2)):
        candidates = [label for label in labels if label_split(label) == split]
        if many > len(candidates):
            raise InputError(f"classes must be at most {2 * len(candidates):,}, got {classes:,}; leave it out for all")
        picks |= {candidates[(2 * i + 1) * len(candidates) // (2 * many)] for i in range(many)}
    return [job for job in jobs if job.emoji.label in picks]


def _draw_all(folder: Path, jobs: Sequence[_Job], size: int, show: bool | None) -> None:
    """Write the pictures, in several processes where there are many."""
    pictures = [(str(folder / job.path), job.drawing, size) for job in jobs]
    for place in {os.path.dirname(path) for path, _, _ in pictures}:
        os.makedirs(place, exist_ok=True)
    chunks = [pictures[start : start + _CHUNK] for start in range(0, len(pictures), _CHUNK)]
    if len(chunks) < _FEW:
        for chunk in chunks:
            _draw_chunk(chunk)
        return
    with start_workers(show) as run:
        run([(_draw_chunk, (chunk,), len(chunk)) for chunk in chunks], f"drawing {len(pictures):,} emoji")


def _draw_chunk(pictures: Sequence[tuple[str, bytes, int]]) -> None:
    """Write some pictures, given by path, drawing and size, that are not blank."""
    for path, drawing, size in pictures:
        try:
            picture = draw_emoji(drawing, size)
        except (ValueError, SyntaxError, OSError) as error:  # of resvg_py, and of Pillow
            raise InputError(f"{path} cannot be drawn ({error}); use the resvg_py that frontrank names") from None
        if any(low != high for low, high in cast("tuple[tuple[int, int], ...]", picture.getextrema())):
            atomic_write(path, partial(picture.save, format="PNG"), sync=False)


def _keep_distinct(folder: Path, jobs: Sequence[_Job]) -> list[_Job]:
    """Return the jobs whose pictures are in one class only, and delete the files of the others."""
    drawn = [job for job in jobs if has_content(folder / job.path)]
    distinct = _of_one_class(drawn, [file_digest(folder / job.path) for job in drawn])
    for path in {job.path for job in drawn} - {job.path for job in distinct}:
        (folder / path).unlink()
        with suppress(OSError):  # there are others in it
            (folder / path).parent.rmdir()
    return distinct


def _of_one_class(jobs: Sequence[_Job], digests: Sequence[str]) -> list[_Job]:
    """Return the jobs whose digest is in no other class, of classes that then have enough designs."""
    classes: dict[str, set[str]] = defaultdict(set)
    for job, each in zip(jobs, digests, strict=True):
        classes[each].add(job.emoji.label)
    return _enough([job for job, each in zip(jobs, digests, strict=True) if len(classes[each]) == 1])
