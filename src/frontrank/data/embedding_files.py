"""Embeddings with their labels and ids, read from files; labels and ids may also be in text files.

The names of the arrays mean the same in all kinds of files. Rows are counted from 0. Nothing is ever unpickled.
"""

import csv
import os
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from frontrank.checks import import_extra, nearest_word, printable, shorten, suggestion
from frontrank.errors import FrontrankError, InputError
from frontrank.files import load_json, refuse_pipe

Array = np.ndarray | Tensor

_BATCH = 8192  # rows of a .parquet file decoded at once
_EMBEDDINGS = ("embeddings", "embedding")
_NAMES = {"labels": ("label", "labels"), "ids": ("ids", "id", "path")}
_COLUMN = re.compile(r"(.+?\.(?:csv|npz|parquet|safetensors)):(.+)", re.IGNORECASE)  # file:column
_LONG_TEXT, _MOST_TEXT_BYTES = 128, 1 << 30  # characters of an entry, and memory for all entries that are as long
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")

# The arrays of a .npy, .npz, .parquet or .safetensors file, by name and not read yet.


@dataclass(frozen=True)
class StoredArray:
    """An array that is not read yet; `description` is its kind and shape for an error message."""

    description: str
    dims: int
    rows: int
    floating: bool
    load: Callable[[], Array]


def check_file(path: Path, endings: Iterable[str], what: str) -> Path:
    """Return the path, or raise if there is no file with content and one of the endings."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; give a file of {what} in it")
    if not os.path.exists(path):
        raise InputError(f"{path} does not exist{_similar_file(path, endings)}")
    if path.suffix.lower() not in endings:
        raise InputError(f"{path} ends in {path.suffix!r}, but {what} are read from {', '.join(endings)}; convert it")
    refuse_pipe(path)
    try:
        with path.open("rb") as file:
            if file.read(1):
                return path
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    raise InputError(f"{path} is empty (0 bytes); write it again")


def _similar_file(path: Path, endings: Iterable[str]) -> str:
    try:
        files = [entry for entry in path.parent.iterdir() if entry.suffix.lower() in endings]
    except (OSError, ValueError):
        return f", and its folder {path.parent} cannot be read; check the path"
    files.sort(key=lambda file: file.suffix == path.suffix)  # the last of a stem stays
    by_stem = {file.stem: file.name for file in files}  # long endings are alike whatever the names are
    near = nearest_word(path.stem, by_stem)
    return f"; did you mean {by_stem[near]}?" if near else f"; check its name and the folder {path.parent}"


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Turn whatever a parser raises on a damaged file into an error of one line."""
    try:
        yield
    except FrontrankError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 ({error.reason}); save it as text in UTF-8") from error
    except MemoryError as error:
        fault = f"{path} does not fit into memory, or is damaged"
        raise InputError(f"{fault}; use .npy, which is read as needed") from error
    except Exception as error:
        text = "".join(character if character.isprintable() else " " for character in str(error))
        fault = f"{path} cannot be read ({' '.join(text.split())[:200] or type(error).__name__})"
        raise InputError(f"{fault}; is it a whole {path.suffix} file? Write it again") from error


def _full_name(path: Path, name: str) -> str:
    return f"{path}:{name}" if name else str(path)


def _row_list(rows: np.ndarray) -> str:
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:5]))}{', ...' * (len(rows) > 5)} (from 0)"


def _refuse_rows(where: str, fault: str, rows: np.ndarray) -> None:
    if len(rows):
        raise InputError(f"{where} {fault} in {_row_list(rows)}; fill or drop {'them' if len(rows) > 1 else 'it'}")


def _npy(path: Path) -> dict[str, StoredArray]:
    with path.open("rb") as file:
        return {"": _numpy_array(str(path), file, lambda: np.lib.format.open_memmap(path, mode="r"))}


def _npz(path: Path) -> dict[str, StoredArray]:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if member.endswith(".npy"):
                name = member.removesuffix(".npy")
                with archive.open(member) as file:
                    arrays[name] = _numpy_array(_full_name(path, name), file, partial(_npz_member, path, member))
    return arrays


def _npz_member(path: Path, member: str) -> np.ndarray:
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _numpy_array(where: str, file: IO[bytes], load: Callable[[], np.ndarray]) -> StoredArray:
    first_version = np.lib.format.read_magic(file) == (1, 0)
    header = np.lib.format.read_array_header_1_0 if first_version else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)

    def refuse() -> np.ndarray:
        raise InputError(f"{where} holds pickled objects, which are never loaded; save it as numbers or as dtype=str")

    description = f"{'pickled objects' if dtype.hasobject else dtype} of shape {shape}"
    floating = dtype.kind == "f" and dtype.itemsize <= 8
    return StoredArray(description, len(shape), shape[0] if shape else 0, floating, refuse if dtype.hasobject else load)


def _safetensors(path: Path) -> dict[str, StoredArray]:
    arrays = {}
    with _library(path, "safetensors").safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            tensor = file.get_slice(name)
            dtype, shape = tensor.get_dtype(), tuple(tensor.get_shape())
            floating, load = dtype in ("BF16", "F16", "F32", "F64"), partial(_safetensor, path, name)
            rows = shape[0] if shape else 0
            arrays[name] = StoredArray(f"{dtype} of shape {shape}", len(shape), rows, floating, load)
    return arrays


def _safetensor(path: Path, name: str) -> Tensor:
    with _library(path, "safetensors").safe_open(path, "pt") as file:
        return file.get_tensor(name)


def _parquet(path: Path) -> dict[str, StoredArray]:
    types = _library(path, "pyarrow").types
    arrays = {}
    with _library(path, "pyarrow.parquet").ParquetFile(path) as file:
        for field in file.schema_arrow:
            inner, dims = field.type, 1
            while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
                inner, dims = inner.value_type, dims + 1
            dims, rows = 0 if types.is_nested(inner) else dims, file.metadata.num_rows
            load = partial(_parquet_column if dims == 1 else _parquet_lists, path, field.name)
            arrays[field.name] = StoredArray(str(field.type), dims, rows, types.is_floating(inner), load)
    return arrays


def _parquet_lists(path: Path, name: str) -> np.ndarray:
    """Read a column of lists of one length [row, dimension], some rows at a time and never as Python objects."""
    where, rows, start = _full_name(path, name), np.empty((0, 0)), 0
    list_lengths = _library(path, "pyarrow.compute").list_value_length
    with _library(path, "pyarrow.parquet").ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH, columns=[name]):
            column = batch.column(name)
            _refuse_rows(where, "has no embedding", start + np.flatnonzero(column.is_null()))
            lengths = list_lengths(column).to_numpy(zero_copy_only=False)
            if start == 0:
                rows = np.empty((file.metadata.num_rows, lengths[0]), column.type.value_type.to_pandas_dtype())
            dim = rows.shape[1]
            for row in np.flatnonzero(lengths != dim)[:1]:
                raise InputError(
                    f"{where} has {lengths[row]} numbers in row {start + row}, but {dim} in row 0 (the first)"
                )
            numbers = column.flatten()
            _refuse_rows(where, "lacks numbers", start + np.unique(np.flatnonzero(numbers.is_null()) // dim))
            rows[start : start + len(column)] = numbers.to_numpy(zero_copy_only=False).reshape(len(column), dim)
            start += len(column)
    if start != len(rows):
        raise EOFError(f"{start} rows instead of {len(rows)}")
    return rows


def _parquet_column(path: Path, name: str) -> np.ndarray:
    """Read a column as numbers, or else as text."""
    arrow = _library(path, "pyarrow")
    with _library(path, "pyarrow.parquet").ParquetFile(path) as file:
        column = file.read(columns=[name]).column(name)
    _refuse_rows(_full_name(path, name), "has nothing", np.flatnonzero(column.is_null()))
    kind = column.type
    if arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind):
        return column.to_numpy()
    return column.cast(arrow.large_string()).to_numpy().astype(str)


def _library(path: Path, name: str) -> Any:
    return import_extra(name, "train", str(path))


_OPENERS = {".npy": _npy, ".npz": _npz, ".parquet": _parquet, ".safetensors": _safetensors}
ENDINGS = tuple(_OPENERS)
_LABEL_ENDINGS = (*ENDINGS, ".csv", ".json", ".txt")


def list_arrays(path: Path) -> dict[str, StoredArray]:
    """Return the arrays of a file by name; the only one of a .npy file is named ""."""
    return _OPENERS[path.suffix.lower()](path)


# Embeddings with labels and ids.


@dataclass(frozen=True, eq=False)
class EmbeddingFile:
    """Embeddings [row, dimension] of a file, and its labels and ids [row], int64 or text, if it has them.

    `columns` are its other arrays of one entry per row, each read when it is used.
    """

    path: Path
    embeddings: Array
    labels: np.ndarray | None
    ids: np.ndarray | None
    columns: Mapping[str, np.ndarray]


def read_embeddings(path: str | Path, key: str | None = None) -> EmbeddingFile:
    """Read the embeddings of a .npy, .npz, .parquet or .safetensors file, with their labels and ids.

    key: the name of the embeddings; None takes "embeddings", "embedding" or the only array they can be
    Labels have the name "label" or "labels", ids the name "ids", "id" or "path".

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/test.npz", embeddings=np.eye(3), labels=["cat", "cat", "dog"], split=[0, 0, 1])
    ...     file = read_embeddings(f"{folder}/test.npz")
    >>> file.embeddings.shape, file.labels.tolist(), list(file.columns)
    ((3, 3), ['cat', 'cat', 'dog'], ['split'])
    """
    path = check_file(Path(path), ENDINGS, "embeddings")
    with parsing(path):
        arrays = list_arrays(path)
        name = _embeddings_name(path, arrays, key)
        where, stored = _full_name(path, name), arrays.pop(name)
        if not stored.floating or stored.dims != 2:
            raise InputError(
                f"{where} must be float32 (or 16, 64) of shape (items, dimensions), got {stored.description}"
            )
        embeddings = stored.load() if stored.rows else np.empty((0, 0))
        if 0 in embeddings.shape:
            raise InputError(f"{where} has no numbers; write at least one row, and one number per row")
        rows = len(embeddings)
        labels, ids = (_pop_column(path, arrays, names, rows) for names in _NAMES.values())
    others = {name: stored for name, stored in arrays.items() if stored.dims == 1 and stored.rows == rows}
    return EmbeddingFile(path, embeddings, labels, ids, _Columns(path, others))


def read_labels(source: str | Path, file: EmbeddingFile | None, rows: int, what: str = "labels") -> np.ndarray:
    """Read labels, ids or another column, one entry per row, int64 or text.

    source: the name of an array in `file`; or a .npy, .txt (one per line) or .json file (a list); or a .csv, .npz,
            .parquet or .safetensors file as "file.csv:column", where a column "label" or "labels" may be left out
    what:   the name for error messages; for "ids" the column is "ids", "id" or "path", for another word that word
    """
    source, where, values = str(source), "", None
    if file is not None:
        known = dict.fromkeys(_NAMES["labels"], file.labels) | dict.fromkeys(_NAMES["ids"], file.ids)
        where = _full_name(file.path, source)
        values = file.columns[source] if source in file.columns else known.get(source)
    if values is None:
        where, values = _from_other_file(source, file, what)
    return _entries(f"{what}: {where}", values, rows)


def check_ids(ids: Sequence[object] | np.ndarray, what: str = "ids") -> None:
    """Raise if several rows have the same id."""
    ids = np.asarray(ids)
    _, first, counts = np.unique(ids, return_index=True, return_counts=True)
    repeated = np.sort(first[counts > 1])
    if len(repeated):
        named = [f"{ids.tolist()[row]!r} in {_row_list(np.flatnonzero(ids == ids[row]))}" for row in repeated[:3]]
        raise InputError(
            f"{what} must all differ, but {len(repeated)} occur{'s' * (len(repeated) == 1)} more than once: "
            f"{', '.join(named)}{', ...' * (len(repeated) > 3)}; drop the repeated rows, or rename them"
        )


class _Columns(Mapping[str, np.ndarray]):
    def __init__(self, path: Path, arrays: Mapping[str, StoredArray]) -> None:
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


def _embeddings_name(path: Path, arrays: Mapping[str, StoredArray], key: str | None) -> str:
    if key is not None:
        if "" in arrays and len(arrays) == 1:
            raise InputError(f"{path} holds one array without a name, so {key!r} cannot be picked; leave out the key")
        return _pick_name(path, arrays, (key,), "give another key")
    for name in ("", *_EMBEDDINGS):
        if name in arrays:
            return name
    possible = [name for name, stored in arrays.items() if stored.dims == 2 and stored.floating]
    if len(possible) != 1:
        held = ", ".join(f"{name!r} ({arrays[name].description})" for name in list(arrays)[:10]) or "nothing"
        raise InputError(f"{path} has no array 'embeddings', only {held}; give the key of the 2-D floating point array")
    return possible[0]


def _pop_column(path: Path, arrays: dict[str, StoredArray], names: Sequence[str], rows: int) -> np.ndarray | None:
    """Remove the first array that has one of these names, and return its values."""
    name = next((name for name in names if name in arrays), None)
    where = _full_name(path, name or "")
    return None if name is None else _entries(where, _load_column(where, arrays.pop(name)), rows)


def _load_column(where: str, stored: StoredArray) -> np.ndarray:
    if stored.dims != 1:
        raise InputError(f"{where} must have one entry per row, got {stored.description}; save it as one column")
    return _as_numpy(stored.load())


def _as_numpy(values: Array) -> np.ndarray:
    if isinstance(values, Tensor):
        return (values.double() if values.is_floating_point() else values).numpy()  # numpy has no bfloat16
    return values


def _entries(where: str, values: np.ndarray, rows: int) -> np.ndarray:
    """Return labels or ids as int64 or text; raise for other kinds, blank text, and another number of rows."""
    if len(values) != rows:
        raise InputError(f"{where} has {len(values)} entries for {rows} rows of embeddings; give one entry per row")
    if values.dtype.kind in "biu":
        if values.dtype.kind == "u" and (values > np.iinfo(np.int64).max).any():
            raise InputError(f"{where} has integers of more than 63 bits; save it as text")
        return np.array(values, dtype=np.int64)
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8")
    if values.dtype.kind != "U":
        raise InputError(f"{where} must be integers or text, got {values.dtype}; convert it with .astype(int) or (str)")
    _refuse_rows(where, "is blank", np.flatnonzero(np.char.strip(values) == ""))
    return values.astype(values.dtype.newbyteorder("="))


def _from_other_file(source: str, file: EmbeddingFile | None, what: str) -> tuple[str, np.ndarray]:
    """Return the full name and the values of labels in a file of their own."""
    split = None if os.path.exists(source) else _COLUMN.fullmatch(source)
    path, column = (Path(split[1]), split[2]) if split else (Path(source), None)
    ending = path.suffix.lower()
    if file is not None and ending not in _LABEL_ENDINGS and not os.path.exists(path):
        held = [*file.columns, *(kind for kind in _NAMES if getattr(file, kind) is not None)]
        near = suggestion(source, held) or "; give the name of an array, or of a file"
        raise InputError(f"{what}: {source!r} is no file, and {file.path} only has the arrays {name_list(held)}{near}")
    check_file(path, _LABEL_ENDINGS, what)
    kind = what.rpartition(" ")[2]  # of "gallery labels" too
    wanted = (column,) if column else _NAMES.get(kind, (kind,))
    with parsing(path):
        if ending == ".txt":
            return str(path), _numbers_or_text(path.read_text(encoding="utf-8-sig").rstrip().split("\n"))
        if ending == ".json":
            return str(path), _json_list(path)
        if ending == ".csv":
            return _csv_column(path, wanted)
        arrays = list_arrays(path)
        name = "" if ending == ".npy" else _pick_name(path, arrays, wanted, f"pick one as {path.name}:NAME")
        return _full_name(path, name), _load_column(_full_name(path, name), arrays[name])


def _pick_name(path: Path, names: Collection[str], wanted: Sequence[str], remedy: str) -> str:
    """Return the first wanted name that the file has."""
    for name in wanted:
        if name in names:
            return name
    near = suggestion(wanted[0], names) or f"; {remedy}"
    raise InputError(f"{path} has no {' or '.join(map(repr, wanted))}, only {name_list(names)}{near}")


def name_list(names: Iterable[str]) -> str:
    """Return the first ten names, quoted, for an error message."""
    return ", ".join(map(repr, list(names)[:10])) or "nothing"


def _numbers_or_text(entries: list[str]) -> np.ndarray:
    """Return stripped text, or int64 if all entries are integers of 64 bits and each is spelt in one way."""
    entries = [entry.strip() for entry in entries]
    if all(map(_INTEGER.fullmatch, entries)):
        numbers = list(map(int, entries))
        if len(set(numbers)) == len(set(entries)) and all(abs(number) < 2**63 for number in numbers):
            return np.array(numbers, dtype=np.int64)
    return text_array("it", entries)


def text_array(where: str, entries: Sequence[str]) -> np.ndarray:
    """Return entries as an array of text, whose longest entry sets the room that each of them takes."""
    longest = max(entries, key=len, default="")
    if 4 * len(longest) * len(entries) > _MOST_TEXT_BYTES and len(longest) > _LONG_TEXT:
        fault = f"{where} has an entry of {len(longest):,} characters ({shorten(repr(longest), 40)})"
        raise InputError(f"{fault}, and all would take as much memory; write a shorter one")
    return np.array(entries, dtype=str)


def _json_list(path: Path) -> np.ndarray:
    values = load_json(path, "utf-8-sig")
    if not isinstance(values, list):
        raise InputError(f"{path} must hold a list, got {type(values).__name__}; write [..., ...], one entry per row")
    _refuse_rows(str(path), "has null", np.flatnonzero([value is None for value in values]))
    kinds = {type(value) for value in values}
    if len(kinds) > 1 or kinds - {int, str}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"{path} must be a list of integers or a list of texts, got {names}; use one kind for all")
    return np.asarray(values) if values else np.empty(0, dtype=np.int64)


def _csv_column(path: Path, wanted: Sequence[str]) -> tuple[str, np.ndarray]:
    header, *lines = read_csv(path)
    name = _pick_name(path, header, wanted, f"pick one as {path.name}:COLUMN; the first line must name the columns")
    if header.count(name) > 1:
        raise InputError(f"{path} has {header.count(name)} columns {name!r}; rename all but one")
    while lines and not lines[-1]:  # blank lines at the end are no rows
        lines.pop()
    return _full_name(path, name), _numbers_or_text([line[header.index(name)] if line else "" for line in lines])


def read_csv(path: Path) -> list[list[str]]:
    """Return the names of the columns, and the fields of each line, none if it is blank."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        lines = [[name.strip() for name in next(reader, [])]]
        for line in reader:
            if line and len(line) != len(lines[0]):
                count = f"{len(line)} fields in line {reader.line_num}, but {len(lines[0])} columns"
                raise InputError(f"{printable(path)} has {count}; quote a field that has a comma")
            lines.append(line)
    return lines
