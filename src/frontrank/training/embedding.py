"""The embeddings of all images of a table, by one process or several."""

import hashlib
import itertools
import json
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.checks import check_integer
from frontrank.data.loading import evaluation_loader
from frontrank.data.samplers import shard_bounds
from frontrank.data.table import ImageTable, shown
from frontrank.data.transforms import Transform, evaluation_transform
from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.files import atomic_write
from frontrank.progress import progress
from frontrank.training import distributed
from frontrank.training.checkpoints import is_whole, read_state, state_writer

# ==== The embeddings of all images of a table, by one process or several.


PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


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
    """The embedding of every image, in the order of the table [row, dimension], float32.

    Under several processes each embeds its share of the rows, and all get the whole.

    device: where to embed, and where the model then is; None leaves it where it is
    precision: of the forward pass, by autocast: float32, bf16 or fp16
    transform: None takes resize, image_size, mean and std of the model, as in evaluation
    show: the progress bar; None draws it on a terminal
    """
    alone = len(table) < distributed.world_size()  # too few for every process to have one: each embeds them all
    start, stop = (0, len(table)) if alone else shard_bounds(len(table), distributed.rank(), distributed.world_size())
    embed = partial(embedded_batches, transform=transform, device=device, precision=precision, show=show)
    with on_all_ranks():
        share = np.concatenate(
            list(embed(model, table.rows(np.arange(start, stop)), batch_size=batch_size, workers=workers))
        )
    return share if alone else distributed.gather_rows(torch.from_numpy(share)).cpu().numpy()


def embedded_batches(
    model: nn.Module,
    table: ImageTable,
    *,
    batch_size: int = 64,
    workers: int = 2,
    device: str | torch.device | None = None,
    precision: str = "float32",
    transform: Transform | None = None,
    show: bool | None = None,
) -> Iterator[np.ndarray]:
    """The embeddings of one batch of rows after another [row, dimension], float32, by this process alone."""
    if precision not in PRECISIONS:
        raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    transform = evaluation_transform(*model_sizes(model)) if transform is None else transform
    if device is not None:
        model.to(device)
    target, done = _device(model), 0
    with _evaluating(model), progress("embedding", len(table), show) as step:
        for images, _ in evaluation_loader(table, transform, batch_size, workers):
            embeddings = _embedded(model, images.to(target, non_blocking=True), PRECISIONS[precision])
            _check(embeddings, table, done, len(images))
            done += len(images)
            step(len(images))
            yield embeddings.numpy()


@contextmanager
def on_all_ranks() -> Iterator[None]:
    """What fails on one process fails on all: none is left to wait for it."""
    failed = None
    try:
        yield
    except FrontrankError as error:
        failed = error
    if distributed.any_rank(failed is not None):
        raise failed or FrontrankError("another process could not embed its images; its message says why")


def _embedded(model: nn.Module, images: Tensor, precision: torch.dtype | None) -> Tensor:
    # Not inference_mode: what a model keeps for later calls, such as position tables, could then not be trained with.
    with torch.no_grad(), torch.autocast(images.device.type, precision, enabled=precision is not None):
        return model(images).float().cpu()


def _check(embeddings: Tensor, table: ImageTable, start: int, rows: int) -> None:
    if embeddings.ndim != 2 or len(embeddings) != rows:
        shape = tuple(embeddings.shape)
        raise InputError(f"model gave the shape {shape} for {rows} images; it must give (images, dimensions)")
    bad = (~embeddings.isfinite()).any(1).nonzero()[:, 0].tolist()
    if bad:
        raise InputError(
            f"the embedding of {shown(table.root / str(table.paths[start + bad[0]]))} is not finite; "
            "embed with precision float32, or check the model's weights"
        )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode within, and in the mode it had afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _device(model: nn.Module) -> torch.device:
    held = next(model.parameters(), None)
    return torch.device("cpu") if held is None else held.device


def model_sizes(model: Any) -> tuple[int, int, Any, Any]:
    """How large a model wants its images before and after the crop, and the mean and std it wants them to have."""
    try:
        return model.resize, model.image_size, model.mean, model.std
    except AttributeError as error:
        raise InputTypeError(
            f"model is a {type(model).__name__} that does not say its resize, image_size, mean and std; "
            "give an Embedder, or a transform"
        ) from error


# ==== Embeddings of a table as one file that `frontrank evaluate` reads, written block by block.


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


# ==== The embeddings of a large table as a folder of shards: made by one process or several, stopped and continued a


_FORMAT = "frontrank embeddings 1"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """What the shards of a folder were made of.

    model: the fingerprint of the model, and images: how large and in which range it wants them
    table: a digest of root, paths, labels and boxes
    """

    format: str
    model: str
    images: str
    precision: str
    table: str
    rows: int
    shard_rows: int

    def shards(self) -> list[tuple[int, int]]:
        """The first row of each shard, and the one after its last."""
        starts = range(0, self.rows, self.shard_rows)
        return [(start, min(start + self.shard_rows, self.rows)) for start in starts]


def embed_to_folder(
    model: nn.Module,
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
    """Write the embeddings of all rows as shards, and give the folder; a second call goes on where the first stopped.

    A folder that another model, table or setting began is refused. An image that was replaced by another under its old
    name is not noticed. Under several processes each writes its share of the shards.
    """
    check_integer("shard_rows", shard_rows, at_least=1)
    out = Path(out)
    sizes = json.dumps(model_sizes(model), default=list)
    manifest = Manifest(_FORMAT, _fingerprint(model), sizes, precision, _digest(table), len(table), shard_rows)
    with on_all_ranks():
        if distributed.is_main():
            _begin(out, manifest)
    missing = _missing(out, manifest)
    distributed.barrier()  # all must have looked before the first of them writes
    mine = missing[slice(*shard_bounds(len(missing), distributed.rank(), distributed.world_size()))]
    embed = partial(
        embedded_batches, model, batch_size=batch_size, workers=workers, device=device, precision=precision, show=show
    )
    with on_all_ranks():
        if mine:
            _write_shards(embed, table, out, [manifest.shards()[number] for number in mine], shard_rows)
    return out


def merge_embeddings(
    folder: str | Path, table: ImageTable, path: str | Path, *, overwrite: bool = False, show: bool | None = None
) -> Path:
    """Make one file of all shards of a folder, as `write_embeddings` does; they are read one by one."""
    folder = Path(folder)
    manifest = _read_manifest(folder)
    if manifest.table != _digest(table):
        raise InputError(f"{folder} holds the embeddings of another table; give the one that was embedded")
    if missing := _missing(folder, manifest):
        raise InputError(
            f"{folder} lacks {len(missing)} of its {len(manifest.shards())} shards, the first being "
            f"{_shard(folder, missing[0]).name}; embed the rest first"
        )
    shards = (_read_shard(_shard(folder, number))["embeddings"] for number in range(len(manifest.shards())))
    return write_embeddings(path, shards, table, overwrite=overwrite, show=show)


def _write_shards(
    embed: Callable[[ImageTable], Iterator[np.ndarray]],
    table: ImageTable,
    out: Path,
    shards: list[tuple[int, int]],
    shard_rows: int,
) -> None:
    """All by one set of workers: batches go on over the ends of shards."""
    rows = np.concatenate([np.arange(*shard) for shard in shards])
    held: list[np.ndarray] = []
    waiting = iter(shards)
    start, stop = next(waiting)
    for block in embed(table.rows(rows)):
        held.append(block)
        while (start, stop) != (0, 0) and sum(map(len, held)) >= stop - start:
            embeddings = np.concatenate(held)
            state = {"embeddings": embeddings[: stop - start], "rows": (start, stop)}
            atomic_write(_shard(out, start // shard_rows), state_writer(state))
            held = [embeddings[stop - start :]]
            start, stop = next(waiting, (0, 0))


def _begin(out: Path, manifest: Manifest) -> None:
    """Make the folder, or see that it was begun with the same."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{out} cannot be made: {error.strerror}; give another folder") from error
        atomic_write(out / _MANIFEST, partial(write_json, asdict(manifest)))
        return
    found, wanted = asdict(_read_manifest(out)), asdict(manifest)
    differing = [name for name in wanted if found[name] != wanted[name]]
    if differing:
        raise InputError(
            f"{out} was begun with another {' and '.join(differing)}; give another folder, or delete this one"
        )


def _read_manifest(folder: Path) -> Manifest:
    try:
        return Manifest(**json.loads((folder / _MANIFEST).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(
            f"{folder} has no {_MANIFEST}; give a folder that embed_to_folder began, or a new one"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{folder / _MANIFEST} cannot be read; delete the folder, and embed again") from error


def _missing(folder: Path, manifest: Manifest) -> list[int]:
    """The numbers of the shards that are not there, or damaged."""
    found = enumerate(manifest.shards())
    return [number for number, rows in found if _read_shard(_shard(folder, number)).get("rows") != rows]


def _read_shard(path: Path) -> dict[str, Any]:
    """What a shard holds; nothing where it is not there, or damaged."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        return read_state(file) if is_whole(file) else {}


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.safetensors"


def _fingerprint(model: Any) -> str:
    """The model's own, or a digest of its weights."""
    if isinstance(getattr(model, "fingerprint", None), str):
        return model.fingerprint
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _digest(table: ImageTable) -> str:
    columns = [table.paths, table.labels, *([table.extra["box"]] if "box" in table.extra else [])]
    content = [str(table.root.resolve()), *(column.tolist() for column in columns)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
