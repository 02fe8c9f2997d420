"""Items and filters as Milvus keeps and reads them.

Texts, numbers and true or false of the metadata are kept apart, as {"text": {"colour": "red"}, "number": {"n": 1}}, so
that no comparison mixes them. A missing label or category is an empty text.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from frontrank.errors import InputError
from frontrank.retrieval.filters import ORDER, Condition
from frontrank.retrieval.items import Item, Value
from frontrank.retrieval.milvus_server import LONGEST_TEXT

COLUMNS = ["id", "path", "label", "category", "metadata"]
_KINDS = {str: "text", bool: "flag", int: "number", float: "number"}
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_UNSAFE = re.compile(r"[^A-Za-z0-9 _./-]")


def row_of(item: Item, vector: np.ndarray) -> dict[str, Any]:
    """An item and its vector as a row."""
    kinds: dict[str, dict[str, Value]] = {}
    for name, value in item.metadata.items():
        kinds.setdefault(_KINDS[type(value)], {})[name] = value
    return {**_texts(item), "id": item.id, "metadata": kinds, "vector": vector}


def item_of(row: dict[str, Any]) -> Item:
    """The item of a row."""
    return Item(row["id"], row["path"], row["label"], row["category"], metadata_of(row))


def metadata_of(row: dict[str, Any]) -> dict[str, Value]:
    """The metadata of a row."""
    return {name: value for kind in row["metadata"].values() for name, value in kind.items()}


def refuse_long(item: Item) -> None:
    """Refuse an item with more text than a server keeps."""
    texts = _texts(item)
    if item.metadata:
        texts["metadata"] = json.dumps(row_of(item, np.empty(0))["metadata"])
    for name, text in texts.items():
        if len(text) > LONGEST_TEXT // 4 and len(text.encode()) > LONGEST_TEXT:
            raise InputError(f"{name} of {item.id!r:.80} is longer than the {LONGEST_TEXT} bytes of Milvus; shorten it")


def _texts(item: Item) -> dict[str, str]:
    return {"path": item.path, "label": item.label or "", "category": item.category or ""}


def expression(conditions: Iterable[Condition]) -> str | None:
    r"""The conditions as Milvus reads them, None if nothing can meet them.

    >>> expression([Condition("label", "=", ("cat", 'a"b'))])
    '(label in ["cat", "a\\u0022b"])'
    >>> expression([Condition("year", ">", (2020,))])
    '(metadata["number"]["year"] > 2020.0)'
    """
    written = [_written(condition) for condition in conditions]
    return None if None in written else " and ".join(f"({one})" for one in written if one)


def _written(condition: Condition) -> str | None:
    """One condition, "" if it always holds, None if it never does."""
    texts = [text for text in condition.values if not _UNSTORABLE.search(text)]  # the others no item has
    if condition.field in COLUMNS[:-1]:
        return _on_text(condition, texts)
    number = f'metadata["number"]["{condition.field}"]'
    if condition.operator in ORDER:
        return f"{number} {condition.operator} {condition.numbers[0]!r}"
    text, flag = number.replace("number", "text", 1), number.replace("number", "flag", 1)
    tests = [(flag, f"== {value}") for value in texts if value in ("true", "false")]
    if texts:
        tests.append((text, f"in {listed(texts)}"))
    if condition.numbers:
        tests.append((number, f"in [{', '.join(map(repr, condition.numbers))}]"))
    if condition.operator == "=":
        return " or ".join(f"{place} {test}" for place, test in tests) or None
    return " and ".join(f"(not (exists {place}) or not ({place} {test}))" for place, test in tests)


def _on_text(condition: Condition, texts: list[str]) -> str | None:
    if condition.field != "path":
        texts = [text for text in texts if text]  # an empty one stands for a missing one, which equals nothing
    if condition.operator in ORDER or not texts:
        return "" if condition.operator == "!=" else None
    return f"{condition.field} {'in' if condition.operator == '=' else 'not in'} {listed(texts)}"


def literal(text: str) -> str:
    """A text in an expression: all but letters, digits and a few signs is escaped."""
    return '"' + _UNSAFE.sub(_escaped, text) + '"'


def listed(texts: Iterable[str]) -> str:
    """Texts in an expression."""
    return f"[{', '.join(map(literal, texts))}]"


def _escaped(sign: re.Match[str]) -> str:
    code = ord(sign[0])
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
