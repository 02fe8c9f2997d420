"""A derivative f'(R) typed as text: read by a small grammar, never run as code.

    sum     = product (("+" | "-") product)*
    product = signed (("*" | "/") signed)*
    signed  = ("+" | "-") signed | power
    power   = atom ("^" signed)?                    2^3^2 is 2^(3^2), -R^2 is -(R^2)
    atom    = number | "R" | name "(" sum ("," sum)* ")" | "(" sum ")"
    name    = exp, log, sqrt with one argument; min, max with two

The page of the designer reads the same grammar, with the same messages.
"""

import re
from collections.abc import Callable

import torch
from torch import Tensor

from frontrank.errors import InputError

Function = Callable[[Tensor], Tensor]
_ONE: dict[str, Function] = {"exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt}
_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"min": torch.minimum, "max": torch.maximum}
_TOKEN = re.compile(r"\s*(?:((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|([A-Za-z_]+)|(.))", re.ASCII)
_LONGEST, _DEEPEST = 2000, 50
_VALUE = "a number, R, a function or ("


def derivative(text: str) -> Function:
    """The function of R that a text stands for, elementwise on tensors.

    >>> derivative("1/(1+R)^2")(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 0.2500])
    """
    return _Reader(text).whole()


def _constant(value: float) -> Function:
    return lambda r: torch.full_like(r, value, dtype=torch.float64).to(r.dtype)  # infinite where it is too large


def _of_two(operation: Callable[[Tensor, Tensor], Tensor], left: Function, right: Function) -> Function:
    return lambda r: operation(left(r), right(r))


def _of_one(operation: Function, inner: Function) -> Function:
    return lambda r: operation(inner(r))


class _Reader:
    """Goes through a text token by token; each method reads one rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > _LONGEST:
            raise self._wrong(_LONGEST, f"it is longer than {_LONGEST} characters")
        self._tokens: list[tuple[str, str, int]] = []  # kind, text, position from 1
        end = len(text.rstrip(" \t\n\r\f\v"))
        at = 0
        while at < end and (found := _TOKEN.match(text, at)):
            kind = ("number", "name", "sign")[(found.lastindex or 1) - 1]
            self._tokens.append((kind, found[found.lastindex or 1], found.start(found.lastindex or 1) + 1))
            at = found.end()
        self._tokens.append(("end", "", end + 1))
        self._place = self._depth = 0

    def whole(self) -> Function:
        found = self._sum()
        kind, word, at = self._now
        if kind != "end":
            raise self._wrong(
                at, "this ) closes nothing" if word == ")" else f'an operator must come here, not "{word}"'
            )
        return found

    @property
    def _now(self) -> tuple[str, str, int]:
        return self._tokens[self._place]

    def _takes(self, *words: str) -> str:
        """The sign that stands here, if it is one of these; it is then passed."""
        kind, word, _ = self._now
        if kind != "sign" or word not in words:
            return ""
        self._place += 1
        return word

    def _sum(self) -> Function:
        found = self._product()
        while sign := self._takes("+", "-"):
            found = _of_two(torch.add if sign == "+" else torch.subtract, found, self._product())
        return found

    def _product(self) -> Function:
        found = self._signed()
        while sign := self._takes("*", "/"):
            found = _of_two(torch.multiply if sign == "*" else torch.divide, found, self._signed())
        return found

    def _signed(self) -> Function:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong(self._now[2], f"more than {_DEEPEST} things are inside each other here")
        if sign := self._takes("+", "-"):
            found = self._signed()
            found = _of_one(torch.negative, found) if sign == "-" else found
        else:
            found = self._atom()
            if self._takes("^"):
                found = _of_two(torch.pow, found, self._signed())
        self._depth -= 1
        return found

    def _atom(self) -> Function:
        kind, word, at = self._now
        self._place += kind != "end"
        if kind == "number":
            return _constant(float(word))
        if kind == "name":
            return self._named(word, at)
        if word == "(":
            found = self._sum()
            self._close(at)
            return found
        raise self._wrong(at, f"{_VALUE} must come here, " + (f'not "{word}"' if word else "but the expression ends"))

    def _named(self, word: str, at: int) -> Function:
        if word == "R":
            return lambda r: r
        if word not in _ONE and word not in _TWO:
            raise self._wrong(at, f'there is no "{word}"; there are R, {", ".join((*_ONE, *_TWO))}')
        opened = self._now[2]
        if not self._takes("("):
            raise self._wrong(opened, f"{word} needs ( ) around its argument")
        inner = [self._sum()]
        while self._takes(","):
            inner.append(self._sum())
        self._close(opened)
        needed = 1 if word in _ONE else 2
        if len(inner) != needed:
            raise self._wrong(at, f"{word} takes {needed} argument{'s' * (needed > 1)}, not {len(inner)}")
        return _of_one(_ONE[word], *inner) if needed == 1 else _of_two(_TWO[word], *inner)

    def _close(self, opened: int) -> None:
        kind, word, at = self._now
        if not self._takes(")"):
            if kind == "end":
                raise self._wrong(opened, "this ( is never closed")
            raise self._wrong(at, f'an operator must come here, not "{word}"')

    def _wrong(self, at: int, what: str) -> InputError:
        shown = self._text if len(self._text) <= 60 else f"{self._text[:57]}..."
        return InputError(f"derivative {shown!r}, position {at}: {what}")
