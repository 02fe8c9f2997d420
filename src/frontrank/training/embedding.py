"""Embed all images of a table, in one process or several; write embeddings to one file or to a folder of shards."""

import hashlib
import itertools
import json
import struct
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.checks import check_choice, check_integer, import_extra, join_words, printable
from frontrank.data.loading import evaluation_loader
from frontrank.data.samplers import shard_bounds
from frontrank.data.table import ImageTable
from frontrank.data.transforms import Transform, evaluation_transform
from frontrank.errors import DivergenceError, InputError, InputTypeError
from frontrank.files import atomic_write, read_json, write_json
from frontrank.models import Embedder
from frontrank.progress import progress
from frontrank.retrieval import Adapter
from frontrank.training import distributed
from frontrank.training.checkpoints import read_state, write_state

PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_ROOM = (
    2  # times the sides that a picture is resized to: what a JPEG has at least that is decoded at a part of its size
)


def embed_table(
    model: nn.Module,
    table: ImageTable,
    *,
    batch_size: int = 64,
    workers: int = 2,
    device: str | torch.device | None = None,
    precision: str = "float32",
    transform: Transform | None = None,
    show: bool | None = None,
) -> np.ndarray:
    """Return the embedding of every image, in the order of the table [row, dimension], float32.

    Under several processes each embeds its share of the rows, and all get the whole.

    device:    where to embed, and where the model is afterwards; None leaves it where it is
    precision: of the forward pass, by autocast: float32, bf16 or fp16
    transform: None takes resize, image_size, mean and std of the model, as in evaluation
    show:      the progress bar; None draws it on a terminal
    """
    alone = len(table) < distributed.world_size()  # too few for every process to have one: each embeds them all
    start, stop = (0, len(table)) if alone else shard_bounds(len(table), distributed.rank(), distributed.world_size())
    rows = table.rows(np.arange(start, stop))
    with distributed.fail_together():
        batches = embedded_batches(model, rows, batch_size, workers, device, precision, transform, show)
        share = np.concatenate(list(batches))
    return share if alone else distributed.gather_rows(torch.from_numpy(share)).cpu().numpy()


def embedded_batches(
    model: nn.Module,
    table: ImageTable,
    batch_size: int = 64,
    workers: int = 2,
    device: str | torch.device | None = None,
    precision: str = "float32",
    transform: Transform | None = None,
    show: bool | None = None,
) -> Generator[np.ndarray]:
    """Yield the embeddings of one batch of rows after another [row, dimension], float32, in this process alone."""
    autocast = PRECISIONS[check_choice("precision", precision, PRECISIONS)]
    at_least = None
    if transform is None:
        sizes = model_sizes(model)
        transform = evaluation_transform(*sizes, as_bytes=isinstance(model, Embedder))
        at_least = _ROOM * sizes[0]
    if device is not None:
        model.to(device)
    weight = next(model.parameters(), None)
    target = torch.device("cpu") if weight is None else weight.device
    done = 0
    with _evaluation_mode(model), progress("embedding", len(table), show) as step:
        for images, _ in evaluation_loader(table, transform, batch_size, workers, at_least):
            # Not inference_mode: a model could not be trained with what it keeps then, such as position tables.
            with torch.no_grad(), torch.autocast(target.type, autocast, enabled=autocast is not None):
                embeddings = model(images.to(target, non_blocking=True)).float().cpu()
            _check_embeddings(embeddings, table, done, len(images))
            done += len(images)
            step(len(images))
            yield embeddings.numpy()


def _check_embeddings(embeddings: Tensor, table: ImageTable, start: int, rows: int) -> None:
    if embeddings.ndim != 2 or len(embeddings) != rows:
        shape = tuple(embeddings.shape)
        raise InputError(f"model returned the shape {shape} for {rows} images; it must return (images, dimensions)")
    if bad_rows := (~embeddings.isfinite()).any(1).nonzero()[:, 0].tolist():
        image = printable(table.root / str(table.paths[start + bad_rows[0]]))
        remedy = "use precision float32, or check the model's weights"
        raise DivergenceError(f"the embedding of {image} is not finite; {remedy}")


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and back into its own mode at the end."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def model_sizes(model: Any) -> tuple[int, int, Any, Any, str]:
    """Return the size of a model's images before and after the crop, their mean and std, and the interpolation."""
    try:
        return model.resize, model.image_size, model.mean, model.std, getattr(model, "interpolation", "bilinear")
    except AttributeError as error:
        missing = f"model is a {type(model).__name__} without resize, image_size, mean or std"
        raise InputTypeError(f"{missing}; give an Embedder, or a transform") from error


# One file that `frontrank evaluate` reads, written block by block


_Blocks = Iterator[np.ndarray]
_Columns = dict[str, np.ndarray]
_COLUMNS = {"path": "paths", "category": "categories", "split": "splits", "role": "roles"}


def write_embeddings(
    path: Path, blocks: Iterable[np.ndarray], table: ImageTable, *, overwrite: bool = False, show: bool | None = None
) -> Path:
    """Write the embeddings of a table, given as blocks of rows [row, dimension], to one file that `evaluate` reads.

    path: .parquet and .npz hold path, label, category, split, role and the table's extra columns beside the embeddings.
        .npy and .safetensors can hold no text: NAME.labels.json and NAME.ids.json beside them hold labels and paths.
        .safetensors also has the labels as numbers, which depend on the text only and are the same in every file

    Labels are left out if no row has one. If only some rows have one, the others (distractors) get their path as the
    label, which no other row has.
    """
    ending = path.suffix.lower()
    if ending not in _WRITERS:
        raise InputError(f"{path} must end in {join_words(_WRITERS)}; rename it")
    columns = _columns(table)
    texts = {}
    if ending in (".npy", ".safetensors"):
        names = {"labels": "label", "ids": "path"}
        texts = {path.with_suffix(f".{kind}.json"): columns[name] for kind, name in names.items() if name in columns}
    for target in (path, *texts):
        if target.exists() and not overwrite:
            raise InputError(f"{target} exists already; give another path, or overwrite=True")
    with progress("writing", len(table), show) as step:
        rows = _check_rows(blocks, len(table), step)
        atomic_write(path, lambda file: _WRITERS[ending](file, rows, columns))
    for target, values in texts.items():
        atomic_write(target, json.dumps(values.tolist(), indent=1))
    return path


def _columns(table: ImageTable) -> _Columns:
    """Return the columns of a table by the names that readers of the file know."""
    columns = {name: getattr(table, column) for name, column in _COLUMNS.items()}
    blank = table.labels == ""
    if not blank.all():
        columns["label"] = np.where(blank, table.paths, table.labels)
    for name, column in table.extra.items():
        if name not in columns and column.ndim == 1 and column.dtype.kind in "biUf":
            columns[name] = column
    return columns


def _check_rows(blocks: Iterable[np.ndarray], rows: int, step: Callable[[float], None]) -> Iterator[np.ndarray]:
    """Yield the blocks as float32; raise at the end if they do not have this many rows together."""
    done = 0
    for block in blocks:
        done += len(block)
        if done <= rows:
            yield np.ascontiguousarray(block, dtype=np.float32)
        step(len(block))
    if done != rows:
        raise InputError(f"embeddings has {done} rows for {rows} images; give one per image")


def _shape(blocks: _Blocks, columns: _Columns) -> tuple[tuple[int, int], _Blocks]:
    first = next(blocks)
    return (len(columns["path"]), first.shape[1]), itertools.chain([first], blocks)


def _write_npy(file: Any, blocks: _Blocks, columns: _Columns) -> None:
    shape, blocks = _shape(blocks, columns)
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    for block in blocks:
        file.write(block.astype("<f4", copy=False).data)


def _write_npz(file: BinaryIO, blocks: _Blocks, columns: _Columns) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open("embeddings.npy", "w", force_zip64=True) as member:
            _write_npy(member, blocks, columns)
        for name, values in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


def _write_safetensors(file: BinaryIO, blocks: _Blocks, columns: _Columns) -> None:
    (rows, dim), blocks = _shape(blocks, columns)
    texts = columns["label"].tolist() if "label" in columns else []
    digests = (hashlib.blake2b(label.encode(), digest_size=8).digest() for label in texts)
    labels = np.array([int.from_bytes(digest, "little") >> 1 for digest in digests], dtype="<i8")
    ends = labels.nbytes, labels.nbytes + 4 * rows * dim
    entries: dict[str, Any] = {"embeddings": {"dtype": "F32", "shape": [rows, dim], "data_offsets": ends}}
    if len(labels):
        entries["labels"] = {"dtype": "I64", "shape": [rows], "data_offsets": (0, ends[0])}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    file.write(struct.pack("<Q", len(header)) + header + labels.tobytes())
    for block in blocks:
        file.write(block.astype("<f4", copy=False).data)


def _write_parquet(file: BinaryIO, blocks: _Blocks, columns: _Columns) -> None:
    pa = import_extra("pyarrow", "train", "writing .parquet")
    pq = import_extra("pyarrow.parquet", "train", "writing .parquet")
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


_WRITERS = {".npy": _write_npy, ".npz": _write_npz, ".parquet": _write_parquet, ".safetensors": _write_safetensors}


# A folder of shards: made by one process or several, stopped and continued at any time


_MANIFEST = "manifest.json"
_FORMAT = "embeddings in shards", 2  # 2: shards are files of `write_state`


@dataclass(frozen=True)
class Manifest:
    """What the shards of a folder were made of.

    model:  the fingerprint of the model
    images: the size, mean and std that it wants its images to have
    table:  a digest of root, paths, labels and boxes
    """

    model: str
    images: str
    precision: str
    table: str
    rows: int
    shard_rows: int

    def shards(self) -> list[tuple[int, int]]:
        """Return the first row of each shard, and the one after its last."""
        starts = range(0, self.rows, self.shard_rows)
        return [(start, min(start + self.shard_rows, self.rows)) for start in starts]


def embed_to_folder(
    model: Embedder,
    table: ImageTable,
    out: str | Path,
    *,
    shard_rows: int = 16384,
    batch_size: int = 64,
    workers: int = 2,
    device: str | torch.device | None = None,
    precision: str = "float32",
    show: bool | None = None,
) -> Path:
    """Write the embeddings of all rows as shards, and return the folder; a second call goes on where the first stopped.

    A folder that another model, table or setting began is refused. An image that was replaced by another under its old
    name is not noticed. Under several processes each writes its share of the shards.
    """
    check_integer("shard_rows", shard_rows, at_least=1)
    out = Path(out)
    sizes = json.dumps(model_sizes(model), default=list)
    manifest = Manifest(model.fingerprint, sizes, precision, _table_digest(table), len(table), shard_rows)
    with distributed.fail_together():
        if distributed.is_main():
            _begin_folder(out, manifest)
    missing = _missing_shards(out, manifest)
    distributed.barrier()  # all must have looked before the first of them writes
    mine = missing[slice(*shard_bounds(len(missing), distributed.rank(), distributed.world_size()))]
    with distributed.fail_together():
        if mine:
            shards = [manifest.shards()[number] for number in mine]
            rows = table.rows(np.concatenate([np.arange(*shard) for shard in shards]))
            with closing(embedded_batches(model, rows, batch_size, workers, device, precision, show=show)) as blocks:
                _write_shards(blocks, out, shards, shard_rows)
    return out


def merge_embeddings(
    folder: str | Path,
    table: ImageTable,
    path: str | Path,
    *,
    adapter: Adapter | None = None,
    overwrite: bool = False,
) -> Path:
    """Make one file of all shards of a folder, as `write_embeddings` does; they are read one by one.

    adapter: changes the embeddings
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    if manifest.table != _table_digest(table):
        raise InputError(f"{folder} holds the embeddings of another table; give the one that was embedded")
    if missing := _missing_shards(folder, manifest):
        raise InputError(
            f"{folder} lacks {len(missing)} of its {len(manifest.shards())} shards, the first is "
            f"{_shard(folder, missing[0]).name}; embed the rest first"
        )
    shards = (read_state(_shard(folder, number))["embeddings"].numpy() for number in range(len(manifest.shards())))
    if adapter is not None:
        shards = (adapter.transform(shard) for shard in shards)
    return write_embeddings(Path(path), shards, table, overwrite=overwrite)


def _write_shards(blocks: _Blocks, out: Path, shards: list[tuple[int, int]], shard_rows: int) -> None:
    """Write some shards; a block may span the end of one and the start of the next."""
    waiting: list[np.ndarray] = []
    for start, stop in shards:
        while sum(map(len, waiting)) < stop - start:
            waiting.append(next(blocks))
        embeddings = np.concatenate(waiting)
        state = {"embeddings": torch.from_numpy(embeddings[: stop - start]), "rows": (start, stop)}
        write_state(_shard(out, start // shard_rows), state)
        waiting = [embeddings[stop - start :]]


def _begin_folder(out: Path, manifest: Manifest) -> None:
    """Make the folder, or check that it was begun with the same manifest."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{out} cannot be made: {error.strerror}; give another folder") from error
        write_json(out / _MANIFEST, *_FORMAT, asdict(manifest), overwrite=False)
        return
    there, wanted = asdict(_read_manifest(out)), asdict(manifest)
    if differing := " and ".join(name for name in wanted if there[name] != wanted[name]):
        raise InputError(f"{out} was begun with another {differing}; give another folder, or delete this one")


def _read_manifest(folder: Path) -> Manifest:
    if not (folder / _MANIFEST).exists():
        raise InputError(f"{folder} has no {_MANIFEST}; give a folder that embed_to_folder began, or a new one")
    try:
        content = read_json(folder / _MANIFEST, *_FORMAT)
        return Manifest(**{name: value for name, value in content.items() if name not in ("format", "version")})
    except (InputError, TypeError) as error:
        raise InputError(f"{folder / _MANIFEST} is damaged; delete the folder, and embed again") from error


def _missing_shards(folder: Path, manifest: Manifest) -> list[int]:
    """Return the numbers of the shards that are not there, or damaged."""
    missing = set(range(len(manifest.shards())))
    for number, rows in enumerate(manifest.shards()):
        with suppress(InputError):
            if read_state(_shard(folder, number))["rows"] == rows:
                missing.remove(number)
    return sorted(missing)


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.pt"


def _table_digest(table: ImageTable) -> str:
    columns = [table.paths, table.labels, *([table.extra["box"]] if "box" in table.extra else [])]
    content = [str(table.root.resolve()), *(column.tolist() for column in columns)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
