"""What an index knows of an image beside its vector."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from frontrank.errors import InputError, InputTypeError

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
