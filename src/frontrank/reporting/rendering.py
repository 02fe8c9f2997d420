"""Pages from templates: one HTML file that needs nothing from outside, in which users' text is only ever text."""

import base64
import hashlib
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.errors import InputError
from frontrank.reporting.wording import cost_text, counted, fraction, metric_text, number, p_text, percent, points

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"


def rendered(template: str, **values: object) -> str:
    """The page that a template makes of some values; every value is escaped.

    The policy at its head lets a browser run the one script of the page, known by its hash, and load nothing.
    """
    script, style = (_TEMPLATES / "page.js").read_text("utf-8"), (_TEMPLATES / "style.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    page = _environment().get_template(template).render(script=script, style=style, script_hash=digest, **values)
    return page.encode("utf-8", "replace").decode("utf-8")  # a file name that is no UTF-8 cannot be written


@cache
def _environment() -> "Environment":
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise InputError("a report needs jinja2; pip install 'frontrank[report]'") from None
    found = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "number": number,
        "percent": percent,
        "metric_text": metric_text,
        "fraction": fraction,
        "points": points,
        "p_text": p_text,
        "cost_text": cost_text,
        "counted": counted,
        "place": place,
        "capfirst": _capitalised,
    }
    return found


def _capitalised(text: str) -> str:
    """With a capital first letter, unless it is a name such as mAP."""
    return text if text[1:2].isupper() else text[:1].upper() + text[1:]


def place(value: float, low: float = 0.0, high: float = 1.0) -> str:
    """Where a value lies between two others, in percent as a style sheet wants it.

    >>> place(0.25), place(3, 0, 2), place(float("nan"))
    ('25.00%', '100.00%', '0.00%')
    """
    if not math.isfinite(value) or high <= low:
        return "0.00%"
    return f"{100 * min(1.0, max(0.0, (value - low) / (high - low))):.2f}%"
