"""What scenes of emoji are made of: twenty classes, others that are no class, drawings of vendors, and photographs.

Scenes to train on and scenes for the test share neither a drawing nor a photograph. One vendor is in both: Google
drew its Noto of 2016 anew.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.data.emoji_designs import INDEPENDENT, OPENMOJI, Archives, Design, drawn_clear, read_drawings
from frontrank.errors import InputError
from frontrank.packages import Package, members

if TYPE_CHECKING:
    from PIL.Image import Image

CLASSES: Mapping[str, str] = {  # name -> code points; drawn by every vendor, spread over the groups of Unicode
    **{"heart-eyes": "1F60D", "crying": "1F62D", "heart": "2764"},
    **{"cat": "1F431", "dog": "1F436", "frog": "1F438", "rose": "1F339", "cactus": "1F335"},
    **{"apple": "1F34E", "pizza": "1F355", "hamburger": "1F354", "beer": "1F37A"},
    **{"car": "1F697", "airplane": "2708", "rocket": "1F680", "house": "1F3E0"},
    **{"soccer-ball": "26BD", "trophy": "1F3C6", "guitar": "1F3B8", "key": "1F511"},
}
OTHERS = (  # which lie about in scenes and are not to be found
    *("1F60E", "1F427", "1F41D", "1F422", "1F419", "1F33B", "1F34C", "1F369", "1F382", "1F6B2", "1F3C0", "1F388"),
    *("1F4F7", "1F4A1", "1F451", "1F514", "1F4D5", "1F3A9"),
)
_VENDORS = {"train": ("noto", "twemoji", "openmoji", "fluent-3d"), "test": ("noto-v1", "emojione-1", "fxemoji")}


@dataclass(frozen=True)
class Photographs:
    """Photographs of one package.

    of:     split -> files; they are landscapes, towns and things, without faces
    credit: who made the package, and what is known of the pictures
    """

    package: Package
    of: Mapping[str, tuple[str, ...]]
    licence: str
    credit: str


def _files(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"package/{folder}/{name}.jpg" for name in names.split())


PHOTOGRAPHS = (
    Photographs(
        Package("npm", "paper-kit-2", "2.1.0", "ea262b722403d0b838682218476775fe6500d13bc2b265000837cb613c8e7657", 5.7),
        {
            "train": _files(
                "assets/img",
                "antoine-barres bruno-abatti daniel-olahs fabio-mangione ilya-yakover login-image soroush-karimi",
            ),
            "test": _files("assets/img", "daniel-olahh federico-beccari joshua-stannard uriel-soberanes"),
        },
        "MIT (the package)",
        "Paper Kit 2, by Creative Tim; a photograph is named after its photographer",
    ),
    Photographs(
        Package(
            "npm", "material-kit", "2.0.4", "543712c988b2697c61a7ef6c9527ebf850b21b56e1bdfd7258fc6d333f725602", 5.7
        ),
        {"train": _files("assets/img", "bg2 bg7 profile_city"), "test": _files("assets/img", "bg3 city-profile")},
        "MIT (the package)",
        "Material Kit, by Creative Tim",
    ),
    Photographs(
        Package(
            "npm",
            "startbootstrap-creative",
            "7.0.7",
            "746c2e46c5292e797358c90533ed695fbeb6ceff58ad7fd43284d93e9c3d0555",
            2.4,
        ),
        {
            "train": _files("dist/assets/img/portfolio/fullsize", "1 3 4 6") + _files("dist/assets/img", "bg-masthead"),
            "test": _files("dist/assets/img/portfolio/fullsize", "2 5"),
        },
        "MIT (the package)",
        "Creative, by Start Bootstrap",
    ),
)


@dataclass(frozen=True)
class Parts:
    """What the scenes of one split are made of.

    classes: name -> its drawings, one per vendor; others: drawings that are of no class; photographs: backgrounds
    """

    classes: Mapping[str, tuple["Image", ...]]
    others: tuple["Image", ...]
    photographs: tuple["Image", ...]


def designs(split: str) -> tuple[Design, ...]:
    """The vendors of a split."""
    return tuple(design for design in INDEPENDENT if design.name in _VENDORS[split])


def packages() -> list[Package]:
    """All that is needed."""
    drawings = [design.package for split in _VENDORS for design in designs(split)]
    return list(dict.fromkeys([OPENMOJI, *drawings, *(each.package for each in PHOTOGRAPHS)]))


def read_parts(archives: Archives, split: str, side: int, shorter: int) -> Parts:
    """The drawings of a split at about `side` pixels, without empty margins, and its photographs.

    shorter: pixels of a photograph's shorter side that are enough
    """
    labels = [*CLASSES.values(), *OTHERS]
    drawn: dict[str, list[Image]] = {label: [] for label in labels}
    for design in designs(split):
        found = read_drawings(design, archives, labels)
        for label in labels:
            if label not in found:
                raise InputError(f"{design.package} has no drawing of {label}; use the version that frontrank names")
            drawn[label].append(_trimmed(found[label], side))
    classes = {name: tuple(drawn[label]) for name, label in CLASSES.items()}
    others = tuple(picture for label in OTHERS for picture in drawn[label])
    photographs = [
        picture for each in PHOTOGRAPHS for picture in _photographs(archives[each.package], each.of[split], shorter)
    ]
    return Parts(classes, others, tuple(photographs))


def _trimmed(drawing: bytes, side: int) -> "Image":
    picture = drawn_clear(drawing, side)
    return picture.crop(picture.getchannel("A").point(lambda alpha: 255 * (alpha >= 8)).getbbox())


def _photographs(archive: Path, names: Sequence[str], shorter: int) -> list["Image"]:
    from PIL import Image

    found = dict(members(archive, names))
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(f"{archive} has no {missing[0]}; delete it, and run this again")
    pictures = [Image.open(io.BytesIO(found[name])) for name in names]
    for picture in pictures:
        picture.draft("RGB", (shorter, shorter))  # decoded at 1/2, 1/4 or 1/8 as long as both sides have as much
    return [picture.convert("RGB") for picture in pictures]
