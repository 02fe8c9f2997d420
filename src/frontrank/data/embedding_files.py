"""Embeddings with their labels and ids as a user has them on disk; labels and ids may also be in files of text.

What is picked by which name is the same for all kinds of files. Rows are counted from 0.
"""

import csv
import difflib
import json
import os
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from frontrank.errors import FrontrankError, InputError

# ==== The arrays of a .npy, .npz, .parquet or .safetensors file by name, not read yet, and never unpickled.


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


# ==== Embeddings with their labels and ids as a user has them on disk; labels and ids may also be in files of text.


_EMBEDDINGS = ("embeddings", "embedding")
_NAMES = {"labels": ("label", "labels"), "ids": ("ids", "id", "path")}
_LABEL_ENDINGS = (*ENDINGS, ".csv", ".json", ".txt")
_PART = re.compile(r"(.+?\.(?:csv|npz|parquet|safetensors)):(.+)", re.IGNORECASE)  # file:column
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(frozen=True, eq=False)
class EmbeddingFile:
    """What a file holds: embeddings [row, dimension], and labels and ids [row], int64 or text, if it has them.

    `columns` are its other arrays of one entry per row, each read when it is asked for.
    """

    path: Path
    embeddings: Array
    labels: np.ndarray | None
    ids: np.ndarray | None
    columns: Mapping[str, np.ndarray]


def read_embeddings(path: str | Path, key: str | None = None) -> EmbeddingFile:
    """The embeddings of a .npy, .npz, .parquet or .safetensors file, and the labels and ids beside them.

    key: the name of the embeddings; else "embeddings", "embedding" or the only array they can be.
    Labels go by the name "label" or "labels", ids by "ids", "id" or "path".

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/test.npz", embeddings=np.eye(3), labels=["cat", "cat", "dog"], split=[0, 0, 1])
    ...     file = read_embeddings(f"{folder}/test.npz")
    >>> file.embeddings.shape, file.labels.tolist(), list(file.columns)
    ((3, 3), ['cat', 'cat', 'dog'], ['split'])
    """
    path = existing_file(Path(path), ENDINGS, "embeddings")
    with parsing(path):
        arrays = stored_arrays(path)
        name = _embeddings_name(path, arrays, key)
        embeddings = _embeddings(part(path, name), arrays.pop(name))
        rows = len(embeddings)
        labels, ids = (_beside(path, arrays, names, rows) for names in _NAMES.values())
    others = {name: stored for name, stored in arrays.items() if stored.dims == 1 and stored.rows == rows}
    return EmbeddingFile(path, embeddings, labels, ids, _Columns(path, others))


def read_labels(source: str | Path, file: EmbeddingFile | None, rows: int, what: str = "labels") -> np.ndarray:
    """One entry per row, int64 or text: an array of the embeddings file, or a file of its own.

    source: the name of an array in `file`; or a .npy, .txt (one per line) or .json file (a list); or a .csv, .npz,
    .parquet or .safetensors file, as "file.csv:column", or without where the column is "label" or "labels".
    what: what a message calls them; of "ids" the column is "ids", "id" or "path", of any other word that word.
    """
    source = str(source)
    found = None if file is None else _inside(source, file)
    where, values = found or _outside(source, file, what)
    values = _entries(f"{what}: {where}", values)
    _check_length(f"{what}: {where}", len(values), rows)
    return values


def check_ids(ids: Sequence[object] | np.ndarray, what: str = "ids") -> None:
    """Refuse ids that several rows share."""
    ids = np.asarray(ids)
    _, first, counts = np.unique(ids, return_index=True, return_counts=True)
    repeated = np.sort(first[counts > 1])
    if len(repeated):
        named = [f"{ids.tolist()[row]!r} in {these(np.flatnonzero(ids == ids[row]))}" for row in repeated[:3]]
        raise InputError(
            f"{what} must all differ, but {len(repeated)} occur{'s' * (len(repeated) == 1)} more than once: "
            f"{', '.join(named)}{', ...' * (len(repeated) > 3)}; drop the rows that are there twice, or rename them"
        )


class _Columns(Mapping[str, np.ndarray]):
    def __init__(self, path: Path, arrays: Mapping[str, Stored]) -> None:
        self._path, self._arrays = path, arrays

    def __getitem__(self, name: str) -> np.ndarray:
        stored = self._arrays[name]
        with parsing(self._path):
            return _as_numpy(stored.load())

    def __contains__(self, name: object) -> bool:  # the one of Mapping would read the array
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _embeddings_name(path: Path, arrays: Mapping[str, Stored], key: str | None) -> str:
    if key is not None:
        if "" in arrays and len(arrays) == 1:
            raise InputError(f"{path} holds one array without a name, so {key!r} cannot be picked; leave out the key")
        return _picked(path, arrays, (key,), "give another key")
    for name in ("", *_EMBEDDINGS):
        if name in arrays:
            return name
    possible = [name for name, stored in arrays.items() if stored.dims == 2 and stored.floating]
    if len(possible) != 1:
        said = ", ".join(f"{name!r} ({arrays[name].said})" for name in list(arrays)[:10]) or "nothing"
        raise InputError(
            f"{path} has no array named 'embeddings' and {len(possible) or 'none'} that could be meant; "
            f"it holds {said}; name the 2-D floating point array to use by its key"
        )
    return possible[0]


def _embeddings(where: str, stored: Stored) -> Array:
    if not stored.floating:
        raise InputError(
            f"{where} must be floating point numbers (16, 32 or 64 bits), got {stored.said}; save it as float32"
        )
    if stored.dims != 2:
        raise InputError(f"{where} must have the shape (items, dimensions), got {stored.said}; save one row per item")
    if stored.rows == 0:
        raise InputError(f"{where} has no rows; write at least one")
    embeddings = stored.load()
    if embeddings.shape[1] == 0:
        raise InputError(f"{where} has rows of no numbers; write at least one dimension")
    return embeddings


def _beside(path: Path, arrays: dict[str, Stored], names: Sequence[str], rows: int) -> np.ndarray | None:
    """The array of one of these names, which is taken out."""
    for name in names:
        if name in arrays:
            values = _entries(part(path, name), _loaded_entries(part(path, name), arrays.pop(name)))
            _check_length(part(path, name), len(values), rows)
            return values
    return None


def _loaded_entries(where: str, stored: Stored) -> np.ndarray:
    if stored.dims != 1:
        raise InputError(f"{where} must have one entry per row, got {stored.said}; save it as one column")
    return _as_numpy(stored.load())


def _as_numpy(values: Array) -> np.ndarray:
    if isinstance(values, Tensor):
        return (values.double() if values.is_floating_point() else values).numpy()  # numpy has no bfloat16
    return values


def _entries(where: str, values: np.ndarray) -> np.ndarray:
    """Labels or ids as int64 or text; refuses what is neither, and text that is empty."""
    if values.dtype.kind in "biu":
        if values.dtype.kind == "u" and (values > np.iinfo(np.int64).max).any():
            raise InputError(f"{where} has integers of more than 63 bits; save it as text")
        return np.array(values, dtype=np.int64)
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8")
    if values.dtype.kind != "U":
        raise InputError(f"{where} must be integers or text, got {values.dtype}; convert it with .astype(int) or (str)")
    refuse_rows(where, "is blank", np.flatnonzero(np.char.strip(values) == ""))
    return values.astype(values.dtype.newbyteorder("="))


def _check_length(where: str, length: int, rows: int) -> None:
    if length != rows:
        raise InputError(f"{where} has {length} entries for {rows} rows of embeddings; give one entry per row")


def _inside(name: str, file: EmbeddingFile) -> tuple[str, np.ndarray] | None:
    """Where an array of the embeddings file is, and what it holds."""
    known = dict.fromkeys(_NAMES["labels"], file.labels) | dict.fromkeys(_NAMES["ids"], file.ids)
    values = file.columns[name] if name in file.columns else known.get(name)
    return None if values is None else (part(file.path, name), values)


def _outside(source: str, file: EmbeddingFile | None, what: str) -> tuple[str, np.ndarray]:
    """Where a file of labels has them, and what they are."""
    split = None if os.path.exists(source) else _PART.fullmatch(source)
    path, column = (Path(split[1]), split[2]) if split else (Path(source), None)
    ending = path.suffix.lower()
    if file is not None and ending not in _LABEL_ENDINGS and not os.path.exists(path):
        _refuse_name(source, file, what)
    existing_file(path, _LABEL_ENDINGS, what)
    kind = what.rpartition(" ")[2]  # of "gallery labels" too
    wanted = (column,) if column else _NAMES.get(kind, (kind,))
    with parsing(path):
        if ending == ".txt":
            return str(path), _numbers_or_text(_lines(path))
        if ending == ".json":
            return str(path), _json_list(path)
        if ending == ".csv":
            return _csv_column(path, wanted)
        arrays = stored_arrays(path)
        name = "" if ending == ".npy" else _picked(path, arrays, wanted, f"pick one as {path.name}:NAME")
        return part(path, name), _loaded_entries(part(path, name), arrays[name])


def _refuse_name(source: str, file: EmbeddingFile, what: str) -> None:
    held = [*file.columns, *(kind for kind in _NAMES if getattr(file, kind) is not None)]
    remedy = did_you_mean(source, held) or "give the name of an array, or of a file"
    raise InputError(
        f"{what}: {source!r} is no file, and no array of one entry per row in {file.path}, "
        f"which has {', '.join(map(repr, held[:10])) or 'none'}; {remedy}"
    )


def _picked(path: Path, names: Collection[str], wanted: Sequence[str], remedy: str) -> str:
    """The first wanted name that there is."""
    for name in wanted:
        if name in names:
            return name
    held = ", ".join(map(repr, list(names)[:10])) or "nothing"
    remedy = did_you_mean(wanted[0], names) or remedy
    raise InputError(f"{path} has no {' or '.join(map(repr, wanted))}, only {held}; {remedy}")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8-sig").rstrip().split("\n")


def _numbers_or_text(entries: list[str]) -> np.ndarray:
    """Stripped text, or int64 if all are integers of 64 bits, none of them spelt in two ways."""
    entries = [entry.strip() for entry in entries]
    if all(map(_INTEGER.fullmatch, entries)):
        numbers = list(map(int, entries))
        if len(set(numbers)) == len(set(entries)) and all(abs(number) < 2**63 for number in numbers):
            return np.array(numbers, dtype=np.int64)
    return np.array(entries, dtype=str)


def _json_list(path: Path) -> np.ndarray:
    values = json.loads(path.read_text(encoding="utf-8-sig"))
    if not isinstance(values, list):
        raise InputError(f"{path} must hold a list, got {type(values).__name__}; write [..., ...], one entry per row")
    refuse_rows(str(path), "has null", np.flatnonzero([value is None for value in values]))
    kinds = {type(value) for value in values}
    if len(kinds) > 1 or kinds - {int, str}:
        said = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"{path} must be a list of integers or a list of texts, got {said}; write all of them one way")
    return np.asarray(values) if values else np.empty(0, dtype=np.int64)


def _csv_column(path: Path, wanted: Sequence[str]) -> tuple[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, strict=True)
        header = [name.strip() for name in next(lines, [])]
        name = _picked(path, header, wanted, f"pick one as {path.name}:COLUMN; the first line must name the columns")
        if header.count(name) > 1:
            raise InputError(f"{path} has {header.count(name)} columns {name!r}; rename all but one")
        values: list[str] = []
        blank = 0  # lines, of which those at the end are no rows
        for line in lines:
            if line and len(line) != len(header):
                raise InputError(
                    f"{path} has {len(line)} fields in line {lines.line_num} and {len(header)} in its first; "
                    "write as many in each, and quote a field that has a comma"
                )
            if line:
                values += [""] * blank + [line[header.index(name)]]
            blank = 0 if line else blank + 1
    return part(path, name), _numbers_or_text(values)
