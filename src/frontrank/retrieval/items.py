"""Items of an index (what is known about an image besides its vector), and filters on their fields."""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from frontrank.errors import InputError, InputTypeError

Value = str | int | float | bool
FIELDS = ("id", "path", "label", "category")  # every other field is metadata
ID_LENGTH = 512  # characters
LARGEST_INTEGER = 2**53  # larger whole numbers are rounded by JSON and by some engines
FIELD_NAMES = "id, path, label, category or a metadata name"
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # the last range is surrogates, which no file can hold
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_NO_METADATA: Mapping[str, Value] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Item:
    """An image of an index.

    id:       1 to 512 characters without control characters, unique in an index
    path:     where the image is
    label:    its class, None (or "") if it is not known
    category: the kind of that class, None (or "") if there are no kinds
    metadata: anything else by name: text, finite numbers, true or false

    >>> Item("cat-1", "cats/1.jpg", label="cat", metadata={"year": 2020}).metadata["year"]
    2020
    """

    id: str
    path: str = ""
    label: str | None = None
    category: str | None = None
    metadata: Mapping[str, Value] = field(default_factory=lambda: _NO_METADATA)

    def __post_init__(self) -> None:
        check_id(self.id)
        _check_text(self.id, "path", self.path)
        for name in ("label", "category"):
            if getattr(self, name) == "":
                object.__setattr__(self, name, None)
            elif getattr(self, name) is not None:
                _check_text(self.id, name, getattr(self, name))
        if self.metadata is not _NO_METADATA:
            object.__setattr__(self, "metadata", _read_metadata(self.id, self.metadata))

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple[type["Item"], tuple[object, ...]]:
        return Item, (self.id, self.path, self.label, self.category, dict(self.metadata))

    def value(self, name: str) -> Value | None:
        """Return the value of a field or of a metadata name, None if it is missing."""
        return getattr(self, name) if name in FIELDS else self.metadata.get(name)


def check_id(name: object) -> None:
    """Raise if this cannot be the id of an item."""
    if not isinstance(name, str):
        raise InputTypeError(f"id must be text, got {name!r:.80}; use str()")
    if not 1 <= len(name) <= ID_LENGTH:
        raise InputError(f"id {name[:40]!r} has {len(name)} characters; give 1 to {ID_LENGTH}")
    if _CONTROL.search(name):
        raise InputError(f"id {name!r} has a control character or half a surrogate pair; remove it")


def read_ids(ids: object) -> list[str]:
    """Return ids as a list; a single text is an error, not a list of letters."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise InputTypeError(f"ids must be a list of text, got {ids!r:.80}; put it into a list")
    names = list(ids)
    for name in names:
        check_id(name)
    return names


def is_field(name: object) -> bool:
    """Return whether a name can be that of a field: letters, digits and _, at most 64, no digit first."""
    return isinstance(name, str) and _FIELD.fullmatch(name) is not None


def text_of(value: Value) -> str:
    """Return a value as a filter writes it: true and false, numbers in their shortest form.

    >>> text_of(True), text_of(2.0), text_of(0.5), text_of("a")
    ('true', '2', '0.5', 'a')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST_INTEGER:
        value = int(value)
    return value if isinstance(value, str) else repr(value)


def _read_metadata(item: str, metadata: object) -> Mapping[str, Value]:
    if not isinstance(metadata, Mapping):
        raise InputTypeError(f"metadata of {item!r} must be a mapping of names to values, got {metadata!r:.80}")
    for name, value in metadata.items():
        if not is_field(name) or name in FIELDS:
            rule = f"use letters, digits and _ (no digit first), and none of {', '.join(FIELDS)}"
            raise InputError(f"metadata of {item!r} has the name {name!r:.80}; {rule}")
        if isinstance(value, str):
            _check_text(item, name, value)
        elif not isinstance(value, int | float):
            raise InputTypeError(f"{name} of {item!r} must be text, a number, True or False, got {value!r:.80}")
        elif not math.isfinite(value) or (isinstance(value, int) and abs(value) > LARGEST_INTEGER):
            raise InputError(f"{name} of {item!r} is {value}; give finite numbers, whole ones up to 2^53, or text")
    return MappingProxyType(dict(metadata)) if metadata else _NO_METADATA


def _check_text(item: str, name: str, text: object) -> None:
    if not isinstance(text, str):
        raise InputTypeError(f"{name} of {item!r} must be text, got {text!r:.80}")
    if _UNSTORABLE.search(text):
        raise InputError(f"{name} of {item!r} has a zero byte or half a surrogate pair ({text!r:.80}); remove it")


# Filters. `matches` defines what a condition means; every engine agrees with it.

ORDER: dict[str, Callable[..., bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
OPERATORS = ("=", "!=", *ORDER)
_FILTER_TEXT = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|!=|=|<|>)(.*)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Condition:
    """A field, an operator (= != < <= > >=) and the values to compare with, as text.

    = holds for any of several values, != for none of them; the others take one number. `matches` defines how text and
    numbers compare. Values that are not text are written as `text_of` does.

    >>> Condition("year", ">=", (2020,))
    Condition(field='year', operator='>=', values=('2020',))
    """

    field: str
    operator: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not is_field(self.field):
            raise InputError(f"filter has the field {self.field!r:.80}; use {FIELD_NAMES}")
        if self.operator not in OPERATORS:
            raise InputError(f"filter has the operator {self.operator!r:.80}; use one of {' '.join(OPERATORS)}")
        if not isinstance(self.values, tuple | list) or not self.values:
            raise InputTypeError(f"values of the filter on {self.field} must be a tuple, got {self.values!r:.80}")
        for value in self.values:
            if not isinstance(value, str | int | float) or value != value:
                raise InputTypeError(f"filter compares {self.field} with {value!r:.80}; use text or numbers")
        object.__setattr__(self, "values", tuple(map(text_of, self.values)))
        if self.operator in ORDER and (len(self.values) > 1 or number_of(self.values[0]) is None):
            text = f"{self.field}{self.operator}{'|'.join(self.values):.80}"
            raise InputError(f"filter {text} must compare with one number; use = or != for text")

    @property
    def numbers(self) -> tuple[float, ...]:
        """The values that read as numbers."""
        return tuple(number for value in self.values if (number := number_of(value)) is not None)

    @property
    def storable_values(self) -> list[str]:
        """The values that an item can have; the others may not even be sent to a server."""
        return [value for value in self.values if not _UNSTORABLE.search(value)]


Conditions = tuple[Condition, ...]
Filter = str | Condition | Iterable[str | Condition]


def parse_filter(text: str) -> Condition:
    r"""Return the condition of a text like label=cat, label=cat|dog, year>=2020 or label!=cat.

    Blanks around a value are ignored; \| is a bar that is part of a value.

    >>> parse_filter("label = cat|dog")
    Condition(field='label', operator='=', values=('cat', 'dog'))
    """
    if not isinstance(text, str):
        raise InputTypeError(f"filter must be text like label=cat, got {text!r:.80}")
    match = _FILTER_TEXT.fullmatch(text)
    if match is None or match[3].startswith("="):
        raise InputError(f"filter {text!r:.80} cannot be read; write it like label=cat, label=cat|dog or year>=2020")
    values = (value.replace("\\|", "|").strip() for value in re.split(r"(?<!\\)\|", match[3]))
    return Condition(match[1], match[2], tuple(values))


def read_filter(filter: Filter) -> Conditions:
    """Return the conditions of a filter, which is one or several texts or conditions; all of them must hold."""
    if isinstance(filter, str | Condition):
        filter = (filter,)
    if not isinstance(filter, Iterable):
        raise InputTypeError(f"filter must be text like label=cat, or several such, got {filter!r:.80}")
    return tuple(one if isinstance(one, Condition) else parse_filter(one) for one in filter)


def number_of(text: str) -> float | None:
    """Return the finite number that a text writes in decimal, None if it is not a number.

    >>> number_of("1e3"), number_of("nan"), number_of("cat")
    (1000.0, None, None)
    """
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else None


def matches(conditions: Iterable[Condition], item: Item) -> bool:
    """Return whether an item meets all conditions.

    A number is compared with those values that read as numbers. Text, true and false compare as text, with = and !=
    only: they never meet < <= > >=. A missing field meets != and nothing else.

    >>> item = Item("1", label="7", metadata={"year": 2020})
    >>> matches([parse_filter("label=7"), parse_filter("year>2019.5"), parse_filter("colour!=red")], item)
    True
    >>> matches([parse_filter("label>6")], item)
    False
    """
    return all(_holds(condition, item.value(condition.field)) for condition in conditions)


def _holds(condition: Condition, value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if condition.operator in ORDER:
        return is_number and ORDER[condition.operator](value, condition.numbers[0])
    text = text_of(value) if isinstance(value, bool) else value
    is_among = value in condition.numbers if is_number else text in condition.values
    return is_among == (condition.operator == "=")
