"""What is asked of the page, as it stands in a URL: a link that is passed on shows the same."""

from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from frontrank.errors import InputError
from frontrank.retrieval.filters import Condition, parse_filter

USUAL = 24  # results
MOST_FILTERS = 16
MOST_CHARACTERS = 1024
_PARAMETERS = 64
_WAYS = ("on", "off")


@dataclass(frozen=True)
class Asked:
    """The query and how it is searched for.

    item, upload: the id of an indexed item, or the name of an upload; both "" for nothing yet
    label:        of an upload, where who asks knows it
    filters:      as "label=cat"; all of them hold
    expand:       query expansion "on", "off", or "" as it is stored with the index
    sides:        names of the indexes that are shown, () for all
    """

    item: str = ""
    upload: str = ""
    label: str = ""
    k: int = USUAL
    filters: tuple[str, ...] = ()
    expand: str = ""
    sides: tuple[str, ...] = ()

    def conditions(self) -> tuple[Condition, ...]:
        """The filters, read."""
        return tuple(parse_filter(text) for text in self.filters)

    def but(self, **changes: Any) -> "Asked":
        """The same with some changes."""
        return replace(self, **changes)

    def url(self, **changes: Any) -> str:
        """The page that shows it, with some changes; what is as by default is left out.

        >>> Asked(item="a/1", k=10).url(filters=("label=x&y",))
        '/?item=a%2F1&k=10&filter=label%3Dx%26y'
        """
        asked = self.but(**changes)
        pairs = [(name, getattr(asked, name)) for name in ("item", "upload", "label")]
        pairs += [("k", asked.k if asked.k != USUAL else ""), *(("filter", one) for one in asked.filters)]
        pairs += [("expand", asked.expand), *(("side", one) for one in asked.sides)]
        query = urlencode([(name, value) for name, value in pairs if value != ""])
        return f"/?{query}" if query else "/"


def read_asked(query: str, most: int) -> Asked:
    """What a query string asks for; InputError for what nobody could have meant.

    most: results that may be asked for

    >>> read_asked("item=a&k=10&filter=&filter=label%3Dcat", 100)
    Asked(item='a', upload='', label='', k=10, filters=('label=cat',), expand='', sides=())
    """
    values: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(query, max_num_fields=_PARAMETERS)  # leaves out what is empty
    except ValueError:
        raise InputError(f"the URL has more than {_PARAMETERS} parameters; leave some out") from None
    for name, value in pairs:
        check_text(name if name.isidentifier() else "a parameter", value)
        values.setdefault(name, []).append(value)
    one = {name: some[-1] for name, some in values.items()}
    filters = tuple(dict.fromkeys(values.get("filter", ())))
    if len(filters) > MOST_FILTERS:
        raise InputError(f"filter is given {len(filters)} times; leave out all but {MOST_FILTERS}")
    if one.get("expand", "on") not in _WAYS:
        raise InputError("expand must be on or off; leave it out for what is stored with the index")
    asked = Asked(
        item=one.get("item", ""),
        upload=one.get("upload", ""),
        label=one.get("label", ""),
        k=_number(one.get("k", str(USUAL)), most),
        filters=filters,
        expand=one.get("expand", ""),
        sides=tuple(dict.fromkeys(values.get("side", ()))),
    )
    if asked.item and asked.upload:
        raise InputError("item and upload are both given; leave out one")
    return asked


def check_text(name: str, value: str) -> None:
    """Refuse text that is too long, or that no name holds."""
    if len(value) > MOST_CHARACTERS:
        raise InputError(f"{name} has {len(value):,} characters; give at most {MOST_CHARACTERS:,}")
    if not value.isprintable() and any(ord(each) < 32 or 127 <= ord(each) < 160 for each in value):
        raise InputError(f"{name} holds control characters; leave them out")


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and 1 <= int(text) <= most):
        raise InputError(f"k must be a whole number from 1 to {most}")
    return int(text)
