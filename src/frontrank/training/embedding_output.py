"""Embeddings of a table as one file that `frontrank evaluate` reads, written block by block."""

import hashlib
import itertools
import json
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from frontrank.data.image_table import ImageTable
from frontrank.errors import InputError
from frontrank.progress import progress
from frontrank.training.checkpoints import atomic_write

_COLUMNS = {"path": "paths", "category": "categories", "split": "splits", "role": "roles"}


def write_embeddings(
    path: str | Path,
    blocks: Iterable[np.ndarray],
    table: ImageTable,
    *,
    overwrite: bool = False,
    show: bool | None = None,
) -> Path:
    """Write the embeddings of a table, given as blocks of rows [row, dimension], as one file that `evaluate` reads.

    path: .parquet and .npz hold path, label, category, split, role and the table's extra columns beside the embeddings.
        The other two can hold no text: NAME.labels.json and NAME.ids.json beside them hold labels and paths.
        .safetensors has the labels as numbers too, made from the text alone, so that they are the same in every file
    Labels are left out where no row has one. Where some have none (distractors), these get their path, which no other
    row has, for a label.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in _WRITERS:
        raise InputError(f"{path} must end in {', '.join(_WRITERS)}; rename it")
    columns = _columns(table)
    beside = {} if ending in _WITH_COLUMNS else _beside(path, columns)
    for target in (path, *beside):
        if target.exists() and not overwrite:
            raise InputError(f"{target} exists already; give another path, or overwrite=True")
    with progress("writing", len(table), show) as step:
        counted = _counted(blocks, len(table), step)
        atomic_write(path, lambda file: _WRITERS[ending](file, counted, columns))
    for target, values in beside.items():
        atomic_write(target, partial(write_json, values))
    return path


def write_json(values: object, file: BinaryIO) -> None:
    """Write them to an open file."""
    file.write(json.dumps(values, indent=1).encode())


def _columns(table: ImageTable) -> dict[str, np.ndarray]:
    """The text of each row by the name a reader knows it by."""
    found = {name: getattr(table, column) for name, column in _COLUMNS.items()}
    blank = table.labels == ""
    if not blank.all():
        found["label"] = np.where(blank, table.paths, table.labels)
    for name, column in table.extra.items():
        if name not in found and column.ndim == 1 and column.dtype.kind in "biUf":
            found[name] = column
    return found


def _beside(path: Path, columns: dict[str, np.ndarray]) -> dict[Path, list[str]]:
    names = {"labels": "label", "ids": "path"}
    return {
        path.with_suffix(f".{kind}.json"): columns[name].tolist() for kind, name in names.items() if name in columns
    }


def _counted(blocks: Iterable[np.ndarray], rows: int, step: Callable[[float], None]) -> Iterator[np.ndarray]:
    done = 0
    for block in blocks:
        done += len(block)
        if done <= rows:
            yield np.ascontiguousarray(block, dtype=np.float32)
        step(len(block))
    if done != rows:
        raise InputError(f"embeddings has {done} rows for {rows} images; give one per image")


def _shape(
    blocks: Iterator[np.ndarray], columns: dict[str, np.ndarray]
) -> tuple[tuple[int, int], Iterator[np.ndarray]]:
    first = next(blocks)
    return (len(columns["path"]), first.shape[1]), itertools.chain([first], blocks)


def _write_npy(file: Any, blocks: Iterator[np.ndarray], columns: dict[str, np.ndarray]) -> None:
    shape, blocks = _shape(blocks, columns)
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    for block in blocks:
        file.write(block.astype("<f4", copy=False).data)


def _write_npz(file: BinaryIO, blocks: Iterator[np.ndarray], columns: dict[str, np.ndarray]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open("embeddings.npy", "w", force_zip64=True) as member:
            _write_npy(member, blocks, columns)
        for name, values in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


def _write_safetensors(file: BinaryIO, blocks: Iterator[np.ndarray], columns: dict[str, np.ndarray]) -> None:
    (rows, dim), blocks = _shape(blocks, columns)
    labels = np.array([_number(label) for label in columns.get("label", np.array([])).tolist()], dtype="<i8")
    ends = labels.nbytes, labels.nbytes + 4 * rows * dim
    entries: dict[str, Any] = {"embeddings": {"dtype": "F32", "shape": [rows, dim], "data_offsets": ends}}
    if len(labels):
        entries["labels"] = {"dtype": "I64", "shape": [rows], "data_offsets": (0, ends[0])}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    file.write(struct.pack("<Q", len(header)) + header + labels.tobytes())
    for block in blocks:
        file.write(block.astype("<f4", copy=False).data)


def _number(label: str) -> int:
    """63 bits of a digest."""
    return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little") >> 1


def _write_parquet(file: BinaryIO, blocks: Iterator[np.ndarray], columns: dict[str, np.ndarray]) -> None:
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("writing .parquet needs pyarrow; pip install 'frontrank[train]'") from None
    (_, dim), blocks = _shape(blocks, columns)
    types = {"U": pa.string(), "i": pa.int64(), "b": pa.bool_(), "f": pa.float64()}
    fields = [(name, types[values.dtype.kind]) for name, values in columns.items()]
    with pq.ParquetWriter(file, pa.schema([*fields, ("embeddings", pa.list_(pa.float32(), dim))])) as writer:
        start = 0
        for block in blocks:
            texts = [values[start : start + len(block)].tolist() for values in columns.values()]
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), dim)
            writer.write_batch(pa.record_batch([*map(pa.array, texts), vectors], schema=writer.schema))
            start += len(block)


_WRITERS: dict[str, Callable[[BinaryIO, Iterator[np.ndarray], dict[str, np.ndarray]], None]] = {
    ".npy": _write_npy,
    ".npz": _write_npz,
    ".parquet": _write_parquet,
    ".safetensors": _write_safetensors,
}
_WITH_COLUMNS = (".npz", ".parquet")
