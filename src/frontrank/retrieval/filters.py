"""Conditions on the fields of items; `matches` is their definition, which every engine agrees with."""

import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from frontrank.errors import InputError, InputTypeError
from frontrank.retrieval.items import Item, is_field, text_of

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
