"""What all report pages share: templates, thumbnails, and numbers in words."""

import base64
import hashlib
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.checks import format_count, import_extra, printable
from frontrank.data.images import map_images
from frontrank.data.table import ImageTable
from frontrank.errors import InputError
from frontrank.evaluation.report import format_metric, is_distance
from frontrank.pictures.decode import read_image, require_pillow

if TYPE_CHECKING:
    from jinja2 import Environment
    from PIL.Image import Image

_TEMPLATES = Path(__file__).parent / "templates"
_QUALITY = 80  # of a thumbnail
_LEAST_P = 1 / 5000  # of 4,999 random sign patterns, and the one that was seen


def number(value: float) -> str:
    """Write a number of any size in a few letters.

    >>> [number(v) for v in (1234567, 12.3456, 0.25, 0.0001, 0, float("nan"))]
    ['1,234,567', '12.3', '0.25', '1e-4', '0', '-']
    """
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 100 or value == round(value):
        return f"{value:,.0f}"
    if abs(value) >= 1e-3:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def fraction(value: float) -> str:
    """Write a fraction in percent.

    >>> fraction(0.6123), fraction(float("nan"))
    ('61.2\u202f%', '-')
    """
    return f"{percent(value)}\N{NARROW NO-BREAK SPACE}%" if math.isfinite(value) else "-"


def percent(value: float) -> str:
    """Write a fraction in percent, without the sign.

    >>> percent(0.6123)
    '61.2'
    """
    return f"{100 * value:.1f}" if math.isfinite(value) else "-"


def points(difference: float) -> str:
    """Write a difference of fractions in percentage points, with its sign unless it is printed as 0.

    >>> points(0.2171), points(-0.004), points(0.00001)
    ('+21.7', '−0.4', '0.0')
    """
    text = f"{100 * difference:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def cost_text(cost: float) -> str:
    """Write what a wrong image costs, in points of AP, with two digits.

    >>> cost_text(0.125), cost_text(0.0042), cost_text(0.0000123), cost_text(0.9999), cost_text(1e-9)
    ('12', '0.42', '0.0012', '100', '0.00000010')
    """
    rounded = float(f"{100 * cost:.1e}")
    decimals = max(0, 1 - math.floor(math.log10(rounded))) if rounded > 0 else 0
    return f"{rounded:.{decimals}f}"


def p_text(p_value: float) -> str:
    """Write a p-value; the smallest that the test can find is written as a bound.

    >>> p_text(0.0002), p_text(0.0312)
    ('p\xa0≤\xa00.0002', 'p\xa0=\xa00.031')
    """
    value = f"≤ {_LEAST_P:g}" if p_value <= _LEAST_P * (1 + 1e-9) else f"= {p_value:.2g}"
    return f"p {value}".replace(" ", "\N{NO-BREAK SPACE}")


# Pages: one HTML file that needs nothing from outside, in which users' text is always escaped


def render_page(template: str, **values: object) -> str:
    """Render a template with values, all of which are escaped.

    The policy in the page's head lets a browser run the one script of the page, known by its hash, and load nothing.
    """
    script, style = (_TEMPLATES / "page.js").read_text("utf-8"), (_TEMPLATES / "style.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    page = _environment().get_template(template).render(script=script, style=style, script_hash=digest, **values)
    return page.encode("utf-8", "replace").decode("utf-8")  # a file name that is no UTF-8 cannot be written


@cache
def _environment() -> "Environment":
    jinja = import_extra("jinja2", "report", "a report")
    environment: Environment = jinja.Environment(
        loader=jinja.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (number, percent, fraction, points, p_text, cost_text, place)
    environment.filters |= {function.__name__: function for function in filters}
    environment.filters |= {
        "metric_text": partial(format_metric, decimals=1),
        "counted": format_count,
        "capfirst": lambda text: text if text[1:2].isupper() else text[:1].upper() + text[1:],  # not of mAP
    }
    environment.tests["distance"] = is_distance
    return environment


def place(value: float, low: float = 0.0, high: float = 1.0) -> str:
    """Return where a value lies between two others, in percent as CSS wants it.

    >>> place(0.25), place(3, 0, 2), place(float("nan"))
    ('25.00%', '100.00%', '0.00%')
    """
    if not math.isfinite(value) or high <= low:
        return "0.00%"
    return f"{100 * min(1.0, max(0.0, (value - low) / (high - low))):.2f}%"


# Thumbnails


@dataclass(frozen=True)
class Thumbnail:
    """A small picture; `uri` holds it as data, "" where its file could not be read."""

    width: int
    height: int
    uri: str


def make_thumbnails(table: ImageTable, sides: Mapping[int, int]) -> tuple[dict[int, Thumbnail], list[str]]:
    """Make a small picture of each row, and return these and the faults of files that could not be read.

    sides: row of the table ─► pixels of the longer side; a picture that is smaller stays as it is
    """
    require_pillow()
    rows = sorted(sides)
    files, boxes = table.files(), table.boxes()

    def make(row: str) -> tuple[Thumbnail, str]:
        file, side = files[int(row)], sides[int(row)]
        try:
            picture = read_image(file, boxes[int(row)], at_least=side)
        except InputError as error:
            fault = str(error).split(";")[0].replace(printable(file), printable(Path(file).name))
            return Thumbnail(side, side, ""), fault
        return Thumbnail(*_shrunk_size(picture.size, side), as_uri(picture, side)), ""

    results = list(map_images(make, [str(row) for row in rows], 2, "pictures"))
    pictures = {row: picture for row, (picture, _) in zip(rows, results, strict=True)}
    return pictures, [fault for _, fault in results if fault]


def faults_note(faults: Iterable[str]) -> tuple[str, ...]:
    """Return the note of a page about pictures that could not be read, if there are any."""
    faults = list(faults)
    if not faults:
        return ()
    one = len(faults) == 1
    frames = "is an empty frame" if one else "are empty frames"
    first = faults[0] if one else f"the first: {faults[0]}"
    count = format_count(len(faults), "picture")
    return (f"{count} could not be read when this page was made and {frames} here ({first}).",)


def _shrunk_size(size: tuple[int, int], side: int) -> tuple[int, int]:
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def as_uri(picture: "Image", side: int) -> str:
    """Return a picture as a data URI, made smaller where it has more pixels than `side` wide or high."""
    from PIL import Image, features

    small = picture.resize(_shrunk_size(picture.size, side), Image.Resampling.LANCZOS)
    kind = "webp" if features.check("webp") else "jpeg"
    file = io.BytesIO()
    small.save(file, kind, quality=_QUALITY)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
