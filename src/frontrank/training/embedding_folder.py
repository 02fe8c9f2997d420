"""The embeddings of a large table as a folder of shards: made by one process or several, stopped and continued at will.

manifest.json              what was embedded, by which model
shard-00000.safetensors    the embeddings of the first rows, and so on
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from frontrank.data.batches import shard_bounds
from frontrank.data.image_table import ImageTable
from frontrank.errors import InputError
from frontrank.retrieval.arguments import require_count
from frontrank.training import distributed
from frontrank.training.checkpoints import atomic_write
from frontrank.training.embedding import embedded_batches, model_sizes, on_all_ranks
from frontrank.training.embedding_output import write_embeddings, write_json
from frontrank.training.state_files import is_whole, read_state, state_writer

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
    require_count("shard_rows", shard_rows)
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
