"""The packages of emoji in small: archives in their layout, with drawings made here."""

import io
import json

from PIL import Image

from frontrank.samples import emoji as real
from frontrank.samples.build import PINNED
from tests.packages.fakes import tgz

CLASSES = {  # label: Unicode group, subgroup; each design draws it, unless OMITTED
    "0023-20E3": ("symbols", "keycap"),
    "1F431": ("animals-nature", "animal-mammal"),
    "1F46A": ("people-body", "family"),
    "1F468-200D-1F469-200D-1F466": ("people-body", "family"),
    "1F600": ("smileys-emotion", "face-smiling"),
    "1F601": ("smileys-emotion", "face-smiling"),
    "1F602": ("smileys-emotion", "face-smiling"),
    "1F603": ("smileys-emotion", "face-smiling"),
    "1F604": ("smileys-emotion", "face-smiling"),
    "1F605": ("smileys-emotion", "face-smiling"),
}
TONED = {"1F44B-1F3FB": ("people-body", "hand"), "1F44B-1F3FC": ("people-body", "hand")}
OTHERS = {"1F3FB": ("component", "skin-tone"), "E000": ("extras-openmoji", "brand"), "1F16F": ("extras-unicode", "x")}
ALL = {**CLASSES, **TONED, **OTHERS}
OMITTED = {
    **{("fxemoji", label): 1 for label in ALL if "-" in label},  # whose files are named by one code point
    **{(design, "1F605"): 1 for design in ("noto", "noto-v1", "twemoji", "fluent-3d")},
    **{(design, "1F46A"): 1 for design in ("noto", "noto-v1", "twemoji", "fluent-3d", "fxemoji")},
}


def colour(label, design):
    number = list(ALL).index(label) * 16 + design
    return f"#{number * 7 % 256:02x}{number * 13 % 256:02x}{number % 256:02x}"


def svg(colour, more=""):
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10">{more}{square(colour)}</svg>'.encode()


def square(colour):
    return f'<path d="M2 2h6v6h-6z" fill="{colour}"/>'


def raster(colour, kind, size=(20, 20)):
    stream = io.BytesIO()
    picture = Image.new("RGBA", size, (0, 0, 0, 0))
    picture.paste(Image.new("RGBA", (10, 10), colour), (5, 5))
    picture.save(stream, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return stream.getvalue()


def drawings(design, name, changed):
    """(label, colour) of all emoji that a design has."""
    for label in ALL:
        if (name, label) not in OMITTED:
            yield label, changed.get((name, label), colour(label, design))


def archives(changed=None):
    """Each package's content; `changed` has colours by (design, label)."""
    changed = changed or {}
    of = {design.name: list(drawings(i, design.name, changed)) for i, design in enumerate(real.DESIGNS["all"])}
    rows = [
        {
            "hexcode": label.replace("0023-", "0023-FE0F-"),
            "group": group,
            "subgroups": subgroup,
            "annotation": f"name of {label}",
            "skintone": "1" if label in TONED else "",
        }
        for label, (group, subgroup) in ALL.items()
    ]
    names = {label.lower(): f"icon-{label}" for label in ALL}
    return {
        PINNED["openmoji"]: {
            "package/data/openmoji.json": json.dumps(rows).encode(),
            **{f"package/color/svg/{label}.svg": svg(paint) for label, paint in of["openmoji"]},
            **{f"package/black/svg/{label}.svg": svg(paint) for label, paint in of["openmoji-black"]},
        },
        PINNED["noto"]: {"package/chars.json": json.dumps(names).encode(), "package/icons.json": icons(of["noto"])},
        PINNED["noto-v1"]: {"package/chars.json": b"{}", "package/icons.json": icons(of["noto-v1"])},
        PINNED["fluent-color"]: {"package/chars.json": b"{}", "package/icons.json": icons(of["fluent-color"])},
        PINNED["fluent-flat"]: {
            "package/chars.json": json.dumps(names).encode(),
            "package/icons.json": icons(of["fluent-flat"]),
        },
        PINNED["fluent-contrast"]: {
            "package/chars.json": b"{}",
            "package/icons.json": icons(of["fluent-contrast"], aliases=False),
        },
        PINNED["twemoji"]: {f"package/{label.lower()}.svg": svg(paint) for label, paint in of["twemoji"]}
        | {"package/license": b"MIT"},
        PINNED["fluent-3d"]: {
            f"package/assets/{label.lower().replace('0023-', '0023-fe0f-')}.webp": raster(paint, "WEBP")
            for label, paint in of["fluent-3d"]
        },
        PINNED["emojione-1"]: {
            f"package/assets/png/{label.replace('-200D', '')}.png": raster(paint, "PNG")
            for label, paint in of["emojione-1"]
        },
        PINNED["emojione-2"]: {
            f"package/assets/png_128x128/{label.replace('-200D', '').lower()}.png": raster(paint, "PNG", (20, 26))
            for label, paint in of["emojione-2"]
        }
        | {f"package/assets/svg_bw/{label.lower()}.svg": svg(paint) for label, paint in of["emojione-2-bw"]}
        | {"package/assets/png_512x512/1f600.png": b"another size"},
        PINNED["svg-emojis"]: {f"package/fxemoji/u{label}-facade.svg": svg(paint) for label, paint in of["fxemoji"]}
        | {"package/twemoji/1f600.svg": b"another design", "package/fxemoji/chineseflag.svg": svg("red")},
    }


def icons(drawn, aliases=True):
    """A file of icons, in which one is an alias, or which knows of none."""
    found = {f"icon-{label}": {"body": square(paint)} for label, paint in drawn}
    file = {"icons": found, "width": 10, "height": 10}
    if aliases:
        first = next(iter(found))
        file["aliases"] = {first: {"parent": "first"}}
        found["first"] = found.pop(first)
    return json.dumps(file).encode()


def write_archives(folder, changed=None):
    """The archives as files, by package."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for package, files in archives(changed).items():
        paths[package] = folder / package.file_name()
        paths[package].write_bytes(tgz(files))
    return paths
