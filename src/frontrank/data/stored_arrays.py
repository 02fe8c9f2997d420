"""The arrays of a .npy, .npz, .parquet or .safetensors file by name, not read yet, and never unpickled.

.npy and .safetensors are mapped into memory, so they may be larger than it.
"""

import difflib
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from frontrank.errors import FrontrankError, InputError

Array = np.ndarray | Tensor

_BATCH = 8192  # rows of a .parquet file decoded at once


@dataclass(frozen=True)
class Stored:
    """An array that is not read yet; `said` is what it looks like to a user."""

    said: str
    dims: int
    rows: int
    floating: bool
    load: Callable[[], Array]


def stored_arrays(path: Path) -> dict[str, Stored]:
    """The arrays of a file; the one of a .npy file is named ""."""
    return _OPENERS[path.suffix.lower()](path)


def existing_file(path: Path, endings: Iterable[str], what: str) -> Path:
    """The path, if there is a file with something in it that ends as it must."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; give a file of {what} in it")
    if not os.path.exists(path):
        raise InputError(f"{path} is not there; {_nearest(path, endings)}")
    if path.suffix.lower() not in endings:
        raise InputError(
            f"{path} ends in {path.suffix!r}, but {what} are read from {', '.join(endings)}; save them as one of these"
        )
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({error.strerror}); see that you may read it") from error
    if empty:
        raise InputError(f"{path} is empty (0 bytes); write it again")
    return path


def _nearest(path: Path, endings: Iterable[str]) -> str:
    try:
        files = [entry for entry in path.parent.iterdir() if entry.suffix.lower() in endings]
    except (OSError, ValueError):
        return f"nor can its folder {path.parent} be read: check the path"
    files.sort(key=lambda file: file.suffix == path.suffix)  # the last of a stem stays
    by_stem = {file.stem: file.name for file in files}  # long endings are alike whatever the names are
    near = difflib.get_close_matches(path.stem, by_stem, n=1)
    return f"did you mean {by_stem[near[0]]!r}?" if near else f"check its name and the folder {path.parent}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question that suggests the nearest of the names, or nothing."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Whatever a parser raises on a damaged file as one line; they raise almost anything."""
    try:
        yield
    except FrontrankError:
        raise
    except MemoryError as error:
        raise InputError(
            f"{path} does not fit into memory, or is damaged; save the embeddings as .npy, which is read as needed"
        ) from error
    except Exception as error:
        said = "".join(character if character.isprintable() else " " for character in str(error))
        reason = " ".join(said.split())[:200] or type(error).__name__
        raise InputError(
            f"{path} cannot be read ({reason}); it is damaged, cut short or no {path.suffix} file: write it again"
        ) from error


def part(path: Path, name: str) -> str:
    """How an array of a file is written: file:name."""
    return f"{path}:{name}" if name else str(path)


def these(rows: np.ndarray) -> str:
    """Some row numbers in words."""
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:5]))}{', ...' * (len(rows) > 5)} (from 0)"


def refuse_rows(where: str, fault: str, rows: np.ndarray) -> None:
    """An error that names rows, if there are any."""
    if len(rows):
        raise InputError(f"{where} {fault} in {these(rows)}; fill or drop {'them' if len(rows) > 1 else 'it'}")


def _npy(path: Path) -> dict[str, Stored]:
    with path.open("rb") as file:
        return {"": _numpy_array(str(path), file, lambda: np.lib.format.open_memmap(path, mode="r"))}


def _npz(path: Path) -> dict[str, Stored]:
    found = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if member.endswith(".npy"):
                name = member.removesuffix(".npy")
                with archive.open(member) as file:
                    found[name] = _numpy_array(part(path, name), file, partial(_npz_member, path, member))
    return found


def _npz_member(path: Path, member: str) -> np.ndarray:
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _numpy_array(where: str, file: IO[bytes], load: Callable[[], np.ndarray]) -> Stored:
    first_version = np.lib.format.read_magic(file) == (1, 0)
    header = np.lib.format.read_array_header_1_0 if first_version else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)

    def refused() -> np.ndarray:
        raise InputError(f"{where} holds pickled objects, which are never loaded; save it as numbers or as dtype=str")

    said = f"{'pickled objects' if dtype.hasobject else dtype} of shape {shape}"
    floating = dtype.kind == "f" and dtype.itemsize <= 8
    return Stored(said, len(shape), shape[0] if shape else 0, floating, refused if dtype.hasobject else load)


def _safetensors(path: Path) -> dict[str, Stored]:
    found = {}
    with _library(path, "safetensors").safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            tensor = file.get_slice(name)
            dtype, shape = tensor.get_dtype(), tuple(tensor.get_shape())
            floating = dtype in ("BF16", "F16", "F32", "F64")
            load = partial(_safetensor, path, name)
            found[name] = Stored(f"{dtype} of shape {shape}", len(shape), shape[0] if shape else 0, floating, load)
    return found


def _safetensor(path: Path, name: str) -> Tensor:
    with _library(path, "safetensors").safe_open(path, "pt") as file:
        return file.get_tensor(name)


def _parquet(path: Path) -> dict[str, Stored]:
    types = _library(path, "pyarrow").types
    found = {}
    with _library(path, "pyarrow.parquet").ParquetFile(path) as file:
        for field in file.schema_arrow:
            inner, dims = field.type, 1
            while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
                inner, dims = inner.value_type, dims + 1
            dims = 0 if types.is_nested(inner) else dims
            load = partial(_parquet_column if dims == 1 else _parquet_lists, path, field.name)
            found[field.name] = Stored(str(field.type), dims, file.metadata.num_rows, types.is_floating(inner), load)
    return found


def _parquet_lists(path: Path, name: str) -> np.ndarray:
    """A column of lists of one length [row, dimension], some rows at a time and never as Python objects."""
    where, found, start = part(path, name), np.empty((0, 0)), 0
    list_lengths = _library(path, "pyarrow.compute").list_value_length
    with _library(path, "pyarrow.parquet").ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH, columns=[name]):
            column = batch.column(name)
            refuse_rows(where, "has no embedding", start + _true(column.is_null()))
            lengths = list_lengths(column).to_numpy(zero_copy_only=False)
            if start == 0:
                found = np.empty((file.metadata.num_rows, lengths[0]), column.type.value_type.to_pandas_dtype())
            dim = found.shape[1]
            for row in np.flatnonzero(lengths != dim)[:1]:
                raise InputError(
                    f"{where} has {lengths[row]} numbers in row {start + row} and {dim} in row 0 (the first); "
                    "all rows must come from the same model"
                )
            numbers = column.flatten()
            refuse_rows(where, "lacks numbers", start + np.unique(_true(numbers.is_null()) // dim))
            found[start : start + len(column)] = numbers.to_numpy(zero_copy_only=False).reshape(len(column), dim)
            start += len(column)
    if start != len(found):
        raise EOFError(f"{start} rows instead of {len(found)}")
    return found


def _parquet_column(path: Path, name: str) -> np.ndarray:
    """A column of numbers, or of anything else as text."""
    arrow = _library(path, "pyarrow")
    with _library(path, "pyarrow.parquet").ParquetFile(path) as file:
        column = file.read(columns=[name]).column(name)
    refuse_rows(part(path, name), "has nothing", _true(column.is_null()))
    kind = column.type
    if arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind):
        return column.to_numpy()
    return column.cast(arrow.large_string()).to_numpy().astype(str)


def _true(mask: Any) -> np.ndarray:
    return np.flatnonzero(np.asarray(mask))


def _library(path: Path, name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise FrontrankError(
            f"{path} needs {name.partition('.')[0]}, which cannot be imported; run pip install 'frontrank[train]'"
        ) from error


_OPENERS: dict[str, Callable[[Path], dict[str, Stored]]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".parquet": _parquet,
    ".safetensors": _safetensors,
}
ENDINGS = tuple(_OPENERS)
