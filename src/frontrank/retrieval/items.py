"""Items of an index, what is known of an image beside its vector, and filters on them."""

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from frontrank.errors import InputError, InputTypeError

# ==== What an index knows of an image beside its vector.


Value = str | int | float | bool
FIELDS = ("id", "path", "label", "category")  # every other field is metadata
ID_LENGTH = 512  # characters
_LARGEST = 2**53  # larger whole numbers are rounded by JSON and by some engines
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # the last are half characters, which no file can hold
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_NOTHING: Mapping[str, Value] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Item:
    """An image of an index.

    id:       1 to 512 characters without control characters, one of its kind in an index
    path:     where the image is
    label:    its class, None (or "") if it is not known
    category: what kind of class that is, None (or "") if there are no such kinds
    metadata: anything else by name: text, finite numbers, true or false

    >>> Item("cat-1", "cats/1.jpg", label="cat", metadata={"year": 2020}).metadata["year"]
    2020
    """

    id: str
    path: str = ""
    label: str | None = None
    category: str | None = None
    metadata: Mapping[str, Value] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        check_id(self.id)
        if not isinstance(self.path, str) or _UNSTORABLE.search(self.path):
            raise _bad_text(self.id, "path", self.path)
        for name in ("label", "category"):
            text = getattr(self, name)
            if text == "":
                object.__setattr__(self, name, None)
            elif text is not None and (not isinstance(text, str) or _UNSTORABLE.search(text)):
                raise _bad_text(self.id, name, text)
        if self.metadata is not _NOTHING:
            object.__setattr__(self, "metadata", _checked(self.id, self.metadata))

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple[type["Item"], tuple[object, ...]]:
        return Item, (self.id, self.path, self.label, self.category, dict(self.metadata))

    def value(self, name: str) -> Value | None:
        """What a field holds, of the item or of its metadata; None if it is missing."""
        return getattr(self, name) if name in FIELDS else self.metadata.get(name)


def check_id(name: object) -> None:
    """Refuse what cannot be the id of an item."""
    if not isinstance(name, str):
        raise InputTypeError(f"id must be text, got {name!r}; use str()")
    if not 1 <= len(name) <= ID_LENGTH:
        raise InputError(f"id {name[:40]!r} has {len(name)} characters; give 1 to {ID_LENGTH}")
    if _CONTROL.search(name):
        raise InputError(f"id {name!r} has a control character, or half of one that is no text; leave it out")


def check_ids(ids: object) -> list[str]:
    """Ids as a list; a single text is not taken for a list of letters."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise InputTypeError(f"ids must be a list of text, got {ids!r:.80}; put it into a list")
    found = list(ids)
    for name in found:
        check_id(name)
    return found


def refuse_repeats(ids: Sequence[str]) -> None:
    """Refuse an id that comes twice in one call."""
    if len(set(ids)) < len(ids):
        twice = next(name for name, times in Counter(ids).items() if times > 1)
        raise InputError(f"items has the id {twice!r} twice; give each id once")


def is_field(name: object) -> bool:
    """Whether a name can be that of a field: letters, digits and _, at most 64, a letter or _ first."""
    return isinstance(name, str) and _FIELD.fullmatch(name) is not None


def text_of(value: Value) -> str:
    """A value as a filter writes it: true and false, numbers in their shortest form.

    >>> text_of(True), text_of(2.0), text_of(0.5), text_of("a")
    ('true', '2', '0.5', 'a')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST:
        value = int(value)
    return value if isinstance(value, str) else repr(value)


def _checked(item: str, metadata: object) -> Mapping[str, Value]:
    if not isinstance(metadata, Mapping):
        raise InputTypeError(f"metadata of {item!r} must be a mapping of names to values, got {metadata!r:.80}")
    for name, value in metadata.items():
        if not is_field(name) or name in FIELDS:
            raise InputError(
                f"metadata of {item!r} has the name {name!r:.80}; use letters, digits and _ (no digit first), "
                f"and none of {', '.join(FIELDS)}"
            )
        if isinstance(value, str):
            if _UNSTORABLE.search(value):
                raise _bad_text(item, name, value)
        elif not isinstance(value, int | float):
            raise InputTypeError(f"{name} of {item!r} must be text, a number, True or False, got {value!r:.80}")
        elif not math.isfinite(value) or (isinstance(value, int) and abs(value) > _LARGEST):
            raise InputError(f"{name} of {item!r} is {value}; give finite numbers, whole ones up to 2^53, or text")
    return MappingProxyType(dict(metadata)) if metadata else _NOTHING


def _bad_text(item: str, name: str, text: object) -> InputError | InputTypeError:
    if not isinstance(text, str):
        return InputTypeError(f"{name} of {item!r} must be text, got {text!r:.80}")
    return InputError(f"{name} of {item!r} has a zero or half a character in it ({text!r:.80}); leave it out")


# ==== Conditions on the fields of items; `matches` is their definition, which every engine agrees with.


ORDER: dict[str, Callable[..., bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
OPERATORS = ("=", "!=", *ORDER)
_WRITTEN = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|!=|=|<|>)(.*)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Condition:
    """A field, an operator (= != < <= > >=) and the values it is compared with, as text.

    = holds for any of several values, != for none of them; the others take one number. How text and numbers compare
    is said by `matches`. Values that are no text are written as `text_of` does.

    >>> Condition("year", ">=", (2020,))
    Condition(field='year', operator='>=', values=('2020',))
    """

    field: str
    operator: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not is_field(self.field):
            raise InputError(
                f"filter has the field {self.field!r:.80}; use id, path, label, category or a metadata name"
            )
        if self.operator not in OPERATORS:
            raise InputError(f"filter has the operator {self.operator!r:.80}; use one of {' '.join(OPERATORS)}")
        if not isinstance(self.values, tuple | list) or not self.values:
            raise InputTypeError(f"values of the filter on {self.field} must be a tuple, got {self.values!r:.80}")
        for value in self.values:
            if not isinstance(value, str | int | float) or value != value:
                raise InputTypeError(f"filter compares {self.field} with {value!r:.80}; use text or numbers")
        object.__setattr__(self, "values", tuple(map(text_of, self.values)))
        if self.operator in ORDER and (len(self.values) > 1 or number_of(self.values[0]) is None):
            written = f"{self.field}{self.operator}{'|'.join(self.values):.80}"
            raise InputError(f"filter {written} must compare with one number; use = or != for text")

    @property
    def numbers(self) -> tuple[float, ...]:
        """Those of the values that read as numbers."""
        return tuple(number for value in self.values if (number := number_of(value)) is not None)


Filter = str | Condition | Iterable[str | Condition]


def parse_filter(text: str) -> Condition:
    r"""The condition that a text like label=cat, label=cat|dog, year>=2020 or label!=cat says.

    Blanks around a value do not count; \| is a bar that is part of a value.

    >>> parse_filter("label = cat|dog")
    Condition(field='label', operator='=', values=('cat', 'dog'))
    """
    if not isinstance(text, str):
        raise InputTypeError(f"filter must be text like label=cat, got {text!r:.80}")
    found = _WRITTEN.fullmatch(text)
    if found is None or found[3].startswith("="):
        raise InputError(f"filter {text!r:.80} cannot be read; write it like label=cat, label=cat|dog or year>=2020")
    values = (value.replace("\\|", "|").strip() for value in re.split(r"(?<!\\)\|", found[3]))
    return Condition(found[1], found[2], tuple(values))


def read_filter(filter: Filter) -> tuple[Condition, ...]:
    """The conditions of a filter: one or several, as text or as they are; all of them must hold."""
    if isinstance(filter, str | Condition):
        filter = (filter,)
    if not isinstance(filter, Iterable):
        raise InputTypeError(f"filter must be text like label=cat, or several such, got {filter!r:.80}")
    return tuple(one if isinstance(one, Condition) else parse_filter(one) for one in filter)


def number_of(text: str) -> float | None:
    """The finite number that a text says in decimal, None if it says none.

    >>> number_of("1e3"), number_of("nan"), number_of("cat")
    (1000.0, None, None)
    """
    if _NUMBER.fullmatch(text) is None:
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def matches(conditions: Iterable[Condition], item: Item) -> bool:
    """Whether an item meets all conditions.

    A number is compared with those values that read as numbers. Text, and true and false, compare as text, with = and
    != only: they meet none of < <= > >=. A missing field meets != and nothing else.

    >>> item = Item("1", label="7", metadata={"year": 2020})
    >>> matches([parse_filter("label=7"), parse_filter("year>2019.5"), parse_filter("colour!=red")], item)
    True
    >>> matches([parse_filter("label>6")], item)
    False
    """
    return all(_holds(condition, item.value(condition.field)) for condition in conditions)


def _holds(condition: Condition, value: object) -> bool:
    if condition.operator == "!=":
        return not _is_among(condition, value)
    if condition.operator == "=":
        return _is_among(condition, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return ORDER[condition.operator](value, condition.numbers[0])


def _is_among(condition: Condition, value: object) -> bool:
    if value is None:
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value in condition.numbers
    return (text_of(value) if isinstance(value, bool) else value) in condition.values
