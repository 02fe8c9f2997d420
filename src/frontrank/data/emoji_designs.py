"""The emoji sets of several vendors as they lie in their packages: which file draws which emoji, and its licence."""

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
