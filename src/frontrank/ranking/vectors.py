"""Embeddings as rows: a tensor, an array, or a memory-mapped file larger than memory, read a chunk at a time.

Rows are handed out at length 1, in float32 (float64 if that is what they are). `exact_scores` are cosines in
float64; how far any other way of computing them can be off is `slack`.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from frontrank.errors import InputError, InputTypeError
from frontrank.ranking.tiles import tiling_of

CHUNK = 8192  # rows read at once
_PAIRS = 512  # pairs scored at once on a CPU, so that they stay in the cache

Rows = slice | Tensor  # a range of rows, or their indices on the CPU


def slack(dim: int, dtype: torch.dtype) -> float:
    """How far a cosine of unit rows, summed in any order in this dtype, can be from the true one.

    dim roundings of a sum of products that is at most 1, and a few more for the lengths.
    """
    return (1.01 * dim + 16) * torch.finfo(dtype).eps / 2


@dataclass(frozen=True)
class Chunk:
    """Some rows: as they are, their lengths in float64 [row], and at length 1.

    The first two are on a device that has float64. Both kinds of rows are float32 or float64.
    """

    raw: Tensor
    length: Tensor
    unit: Tensor

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, rows: slice) -> "Chunk":
        return Chunk(self.raw[rows], self.length[rows], self.unit[rows])

    def exact_unit(self, length: float = 1.0) -> Tensor:
        """The rows at length 1, or at another that is a power of 2, in float64."""
        return self.raw.to(torch.float64, copy=True).div_((self.length / length)[:, None])


class Vectors:
    """Rows of floating point numbers under the name a user knows them by.

    >>> Vectors("embeddings", torch.tensor([[3.0, 4.0], [0.0, 2.0]])).unit()
    tensor([[0.6000, 0.8000],
            [0.0000, 1.0000]])
    """

    def __init__(self, name: str, data: object, device: torch.device | str | None = None) -> None:
        self.name = name
        self._data = _as_rows(name, data)
        self.shape = (len(self._data), self._data.shape[1])
        own_device = self._data.device if isinstance(self._data, Tensor) else torch.device("cpu")
        self.device = own_device if device is None else _device(device)
        wide = self._data.dtype == torch.float64 if isinstance(self._data, Tensor) else self._data.dtype.itemsize >= 8
        on_mps = self.device.type == "mps"  # which has no float64
        self.exact_device = torch.device("cpu") if on_mps else self.device
        self.dtype = torch.float64 if wide and not on_mps else torch.float32

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dim(self) -> int:
        return self.shape[1]

    def chunks(self, rows: int = CHUNK) -> Iterator[slice]:
        """Ranges of about so many rows that cover all."""
        return (slice(start, min(start + rows, len(self))) for start in range(0, len(self), rows))

    def read(self, rows: Rows) -> Chunk:
        """Return some rows; raise an error if any has no direction."""
        known = self._known_lengths
        if known is not None and isinstance(rows, Tensor):
            rows = rows.to(known.device, non_blocking=True)
        raw = self._read(rows)
        length = _lengths(raw) if known is None else known[rows]
        if known is None and not bool(_are_usual(length, raw.dtype)):
            self._raise_for_bad_rows()
            raw, length = _in_range(raw)
        return Chunk(raw, length, (raw * length.reciprocal().to(raw.dtype)[:, None]).to(self.device))

    @cached_property
    def _known_lengths(self) -> Tensor | None:
        """The lengths of all rows if none needs a closer look; None if that is to be seen when rows are read.

        Rows of an accelerator are looked at together, since the host waits for each look.
        """
        if not isinstance(self._data, Tensor) or tiling_of(self._data).waits:
            return None
        lengths = _join([_lengths(self._read(some)) for some in self.chunks()])
        return lengths if bool(_are_usual(lengths, self.dtype)) else None

    def unit(self, rows: Rows | None = None) -> Tensor:
        """Rows at length 1, all of them by default."""
        return self.read(slice(0, len(self)) if rows is None else rows).unit

    def check(self) -> None:
        """Raise an error if any row has no direction."""
        for rows in self.chunks():
            self.read(rows)

    def _read(self, rows: Rows) -> Tensor:
        if isinstance(self._data, Tensor):
            if isinstance(rows, slice):
                raw = self._data[rows].detach()
            else:  # not by brackets, which torch 2.7 has for no float of 8 bits
                raw = self._data.index_select(0, rows.to(self._data.device, non_blocking=True)).detach()
        else:
            kind = np.float64 if self.dtype == torch.float64 else np.float32
            picked = self._data[rows if isinstance(rows, slice) else rows.cpu().numpy()]
            raw = torch.from_numpy(np.array(picked, dtype=kind))
        return raw.to(self.exact_device, self.dtype)

    def _raise_for_bad_rows(self) -> None:
        """Raise an error that names the rows that are not finite, or zero."""
        not_finite, zero = [], []
        for rows in self.chunks():
            raw = self._read(rows)
            not_finite += [rows.start + i for i in (~torch.isfinite(raw)).any(1).nonzero()[:, 0].tolist()]
            zero += [rows.start + i for i in (raw == 0).all(1).nonzero()[:, 0].tolist()]
        if not_finite:
            raise InputError(
                f"{self.name} has NaN or infinite values in {_these(not_finite)}; "
                "drop those rows, or look at the images and the model that they come from"
            )
        if zero:
            raise InputError(
                f"{self.name} is all zeros in {_these(zero)}, which have no direction; "
                "drop those rows, or look at the images and the model that they come from"
            )


def as_array(name: str, data: object) -> "np.ndarray":
    """What a user gave, a tensor, an array or nested lists, as an array."""
    try:
        if isinstance(data, Tensor):
            here = data.detach().cpu()
            return (here.float() if here.dtype == torch.bfloat16 else here).numpy()
        if isinstance(data, list | tuple) and any(isinstance(x, Tensor) for x in data):
            return np.asarray([as_array(name, x) for x in data])
        return np.asarray(data)
    except ValueError as error:
        raise InputError(f"{name} must have rows of one length; {error}") from error
    except (TypeError, RuntimeError, NotImplementedError, OverflowError) as error:
        raise InputTypeError(f"{name} must be a dense array of plain numbers; {str(error).splitlines()[0]}") from error


def check_labels(name: str, labels: object, length: int, levels: bool = False) -> "np.ndarray":
    """Return labels, numbers or text, as an array; there must be one for each of so many rows.

    levels: labels of several levels are allowed [item, level]
    """
    array = as_array(name, labels)
    if array.dtype == object:
        if any(isinstance(x, set | frozenset | list | tuple) for x in array.ravel()):
            raise InputTypeError(f"{name} has several labels in a row; give one label per row")
        missing = [x is None or x != x for x in array.ravel()]
        array = array if any(missing) else np.asarray([str(x) for x in array.ravel()]).reshape(array.shape)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "latin1")
    if array.dtype.kind not in "iubUS":
        what = "missing entries" if array.dtype == object else f"{array.dtype}"
        raise InputTypeError(f"{name} must be whole numbers or text, got {what}; give one label per row")
    if array.ndim != 1 and not (levels and array.ndim == 2 and array.shape[1]):
        raise InputError(f"{name} must have the shape (items,), got {array.shape}; for several per item give relevant")
    if len(array) != length:
        raise InputError(f"{name} has {len(array):,} entries for {length:,} rows; give one label per row")
    return array


def _device(device: torch.device | str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(f"device {str(device)!r} cannot be used here; use cpu, or leave it out") from error


def _these(rows: list[int]) -> str:
    named = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    return f"{len(rows)} row{'s' * (len(rows) > 1)} (number {named})"


def _as_rows(name: str, data: object) -> "Tensor | np.ndarray":
    if not isinstance(data, Tensor | np.ndarray):
        data = as_array(name, data)
    if isinstance(data, Tensor) and data.layout != torch.strided:
        raise InputTypeError(f"{name} must be dense, got {data.layout}; use {name}.to_dense()")
    floating = data.dtype.is_floating_point if isinstance(data, Tensor) else data.dtype.kind == "f"
    if not floating:
        raise InputTypeError(f"{name} must be floating point numbers, got {data.dtype}; convert to float32")
    if data.ndim != 2 or data.shape[1] == 0:
        raise InputError(f"{name} must have the shape (items, dimensions), got {tuple(data.shape)}")
    if len(data) == 0:
        raise InputError(f"{name} has no rows; give at least one")
    return data


class VectorParts(Vectors):
    """Several sets of rows, one after the other, none of them copied."""

    def __init__(self, parts: Sequence[Vectors]) -> None:
        first = parts[0]
        self._data = np.empty((0, first.dim))  # the rows are those of the parts
        for part in parts[1:]:
            check_same_dimensions(first, part)
        self.name, self._parts = first.name, list(parts)
        self._starts = np.cumsum([0, *map(len, parts)]).tolist()
        self.shape = (self._starts[-1], first.dim)
        self.device, self.exact_device = first.device, first.exact_device
        self.dtype = torch.float64 if any(part.dtype == torch.float64 for part in parts) else first.dtype

    def chunks(self, rows: int = CHUNK) -> Iterator[slice]:
        for start, part in zip(self._starts, self._parts, strict=False):
            yield from (slice(start + some.start, start + some.stop) for some in part.chunks(rows))

    def _read(self, rows: Rows) -> Tensor:
        at = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.cpu()
        raw = torch.empty(len(at), self.dim, dtype=self.dtype, device=self.exact_device)
        for start, part in zip(self._starts, self._parts, strict=False):
            here = (at >= start) & (at < start + len(part))
            if bool(here.all()) and isinstance(rows, slice):
                return part._read(slice(rows.start - start, rows.stop - start)).to(self.dtype)
            if bool(here.any()):
                raw[here.to(raw.device)] = part._read(at[here] - start).to(self.dtype)
        return raw

    def _raise_for_bad_rows(self) -> None:
        for part in self._parts:
            part._raise_for_bad_rows()


def check_same_dimensions(first: Vectors, second: Vectors) -> None:
    """Raise an error if two sets of rows have different dimensions."""
    if first.dim != second.dim:
        raise InputError(
            f"{first.name} has {first.dim} dimensions and {second.name} has {second.dim}; "
            "both must come from the same model and the same whitening"
        )


def make_comparable(first: Vectors, second: Vectors) -> None:
    """Raise an error if two sets of rows cannot be compared; else let both use the wider dtype."""
    check_same_dimensions(first, second)
    first.dtype = second.dtype = torch.promote_types(first.dtype, second.dtype)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Products in the dtype of their factors, whatever shortcut the user allows elsewhere."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _in_range(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that are finite and not zero, scaled by powers of 2 where their squares would not be; and their lengths."""
    largest = rows.abs().amax(1, keepdim=True)
    mantissa, exponent = torch.frexp(largest)
    far = exponent.abs() > (60 if rows.dtype == torch.float32 else 500)
    scaled = torch.where(far, rows / (largest / (2 * mantissa)), rows)  # exact: a power of 2
    return scaled, _lengths(scaled)


def _are_usual(length: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether all lengths are finite, not 0, and their squares in the range of the dtype."""
    least = torch.finfo(dtype).tiny ** 0.5
    return ((length > least) & (length < 1 / least)).all()


def _lengths(rows: Tensor) -> Tensor:
    """Lengths of rows, in float64."""
    size = 256 * tiling_of(rows).pairs  # on a CPU what is made for one part stays in the cache
    return _join([torch.linalg.vector_norm(some.double(), dim=1) for some in rows.split(size)])


def _join(parts: list[Tensor]) -> Tensor:
    """One tensor of several, not copied if it is the only one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _few_pairs(of: Chunk, i: Tensor, j: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of rows, so many at a time as the device of these rows scores best."""
    size = _PAIRS * tiling_of(of.unit).pairs
    return zip(i.split(size), j.split(size), strict=True)


def quick_scores(first: Chunk, second: Chunk, i: Tensor, j: Tensor) -> Tensor:
    """Cosines of pairs of rows, summed in groups of at most 64, so no further off than slack(64) [pair]."""
    group = math.gcd(first.unit.shape[1], 64)
    parts = [
        first.unit[a]
        .mul_(second.unit[b])
        .unflatten(1, (-1, group))
        .sum(2)
        .to(first.raw.device)
        .sum(1, dtype=torch.float64)
        for a, b in _few_pairs(first, i, j)
    ]
    return _join(parts)


def exact_scores(first: Chunk, second: Chunk, i: Tensor, j: Tensor) -> Tensor:
    """Cosines in float64 of pairs of rows, i of the first and j of the second [pair]."""
    parts = [
        (first.raw[a].double() * second.raw[b].double()).sum(1) / (first.length[a] * second.length[b])
        for a, b in _few_pairs(first, i, j)
    ]
    return _join(parts)
