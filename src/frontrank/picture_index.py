"""Pictures and an index: put pictures into it, and search it with a picture."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from frontrank.checks import printable, suggestion
from frontrank.data.samplers import shard_bounds
from frontrank.data.table import ImageTable
from frontrank.data.transforms import evaluation_transform
from frontrank.errors import FrontrankError, InputError
from frontrank.files import file_digest
from frontrank.models import Embedder
from frontrank.pictures.decode import box_faults, image_fault
from frontrank.progress import progress
from frontrank.retrieval.engine import split_batches
from frontrank.retrieval.index import Index, url_scheme
from frontrank.retrieval.items import FIELDS, ID_LENGTH, Item, Value, is_field
from frontrank.retrieval.journal import is_index, list_folder
from frontrank.training import distributed
from frontrank.training.defaults import load_model
from frontrank.training.embedding import embedded_batches, model_sizes

if TYPE_CHECKING:
    from PIL.Image import Image

CONTENT = "sha256"  # of the file, in the metadata: a later call sees by it that an image has not changed
_TABLE_ROWS = 32_768  # images compared with the index before some of them are embedded
_PAGE = 1000  # items, or vectors, read from the index at once
_STORE_BATCHES = 16  # batches between two writes, or
_STORE_SECONDS = 2.0  # of work: what a killed process loses at most
_READERS = 4  # threads that read files
_OWN_NAMES = "rename one of the folders, or make an index of each"

Embed = Callable[[ImageTable], Iterator[np.ndarray]]
EmbedPicture = Callable[["Image"], np.ndarray]


@dataclass
class IndexSummary:
    """How many images of each kind there were.

    relabelled: the same image, with another label or other metadata
    broken:     files that cannot be read, and why
    """

    added: int = 0
    changed: int = 0
    relabelled: int = 0
    unchanged: int = 0
    removed: int = 0
    broken: list[tuple[str, str]] = field(default_factory=list)

    @property
    def readable(self) -> int:
        """How many images could be read."""
        return self.added + self.changed + self.relabelled + self.unchanged

    def describe(self) -> str:
        """Return all of it in one line.

        >>> IndexSummary(added=3, unchanged=1200, broken=[("a.jpg", "is empty")]).describe()
        '3 added, 1,200 unchanged, 1 broken'
        """
        counts = {**vars(self), "broken": len(self.broken)}
        return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "no images"


def index_images(
    model: Embedder,
    tables: Sequence[ImageTable],
    index: Index | None,
    *,
    batch_size: int = 64,
    workers: int = 2,
    prune: bool = False,
    check_prune: Callable[[int, int], None] | None = None,
    show: bool | None = None,
) -> IndexSummary:
    """Embed the images that are new or have changed, and store them in the index.

    If it is stopped at any moment, a second call goes on: an image that is in the index with the same content is not
    embedded again. Of several processes each reads and embeds a share; only the first has the index, the others pass
    None.

    prune: delete items that are not among these images, or whose image is broken now. If no image can be read, nothing
           is deleted.
    check_prune: called with how many of how many items would be deleted, before work begins, and again if more images
           turn out to be broken; what it raises keeps them
    """
    refuse_repeats(tables)
    ids_of_tables = [item_ids(table) for table in tables]
    embed = partial(embedded_batches, model, batch_size=batch_size, workers=workers, show=False)
    summary, wanted = IndexSummary(), set[str]().union(*ids_of_tables)
    planned = 0
    with distributed.fail_together():
        if prune and index is not None and check_prune is not None:
            planned = sum(item.id not in wanted for item in index.items())
            check_prune(planned, index.count())
    with progress("indexing", sum(map(len, tables)), show if distributed.is_main() else False) as step:
        for table, ids in zip(tables, ids_of_tables, strict=True):
            for start in range(0, len(table), _TABLE_ROWS):
                part = table.rows(np.arange(start, min(start + _TABLE_ROWS, len(table))))
                images = _Images(part, ids[start : start + _TABLE_ROWS], index, model.dim, batch_size)
                wanted -= images.update_index(embed, summary, step)
    with distributed.fail_together():
        if prune and index is not None and wanted:
            gone = [item.id for item in index.items() if item.id not in wanted]
            if check_prune is not None and len(gone) > planned:
                check_prune(len(gone), index.count())
            summary.removed = sum(map(index.delete, split_batches(gone, _PAGE)))
    return summary


def item_ids(table: ImageTable) -> list[str]:
    """Return an id for each image: the name of its folder and the path in it, which stays the same if that moves.

    An image outside the folder has the name of its own folder and a digest of where that is: ids are public, and do not
    show the paths of a machine. The id of a crop ends with its box.
    """
    root, folder, ids = os.path.abspath(table.root), table.root.resolve().name, []
    for path, box in zip(map(str, table.paths), table.boxes(), strict=True):
        place = os.path.normpath(os.path.join(root, path))
        inside = os.path.relpath(place, root)
        name = f"{folder}/{inside}"
        if inside.startswith(os.pardir):
            parent, file = os.path.split(place)
            digest = hashlib.sha256(parent.encode(errors="surrogateescape")).hexdigest()[:8]
            name = f"{os.path.basename(parent)}~{digest}/{file}"
        if box is not None:
            name += "#" + ",".join(f"{side:g}" for side in box)
        text = "".join(letter if letter.isprintable() else "?" for letter in name)
        if len(text) > ID_LENGTH or text != name:
            digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16]
            text = f"{text[: ID_LENGTH - len(digest) - 1]}~{digest}"
        ids.append(text)
    return ids


def refuse_repeats(tables: Sequence[ImageTable]) -> None:
    """Raise if two images would have the same id."""
    root_of: dict[str, Path] = {}
    for table in tables:
        for name in item_ids(table):
            if name in root_of:
                first, second = printable(root_of[name]), printable(table.root)
                remedy = "give each image once" if first == second else f"from {first} and {second}; {_OWN_NAMES}"
                raise InputError(f"{printable(name)} comes twice; {remedy}")
            root_of[name] = table.root


def refuse_unreadable(tables: Sequence[ImageTable]) -> None:
    """Raise if no image can be read; reads headers until one is good."""
    files = [file for table in tables for file in table.files()]
    if files and all(image_fault(file, decode=False) for file in files):
        first = f"{printable(files[0])} {image_fault(files[0], decode=False)}"
        raise InputError(f"none of the {len(files):,} images can be read ({first}); give others")


@dataclass
class _Share:
    """Embeddings that one process made, the rows of the table they belong to, and the faults of unreadable rows."""

    rows: list[int]
    vectors: np.ndarray
    faults: dict[int, str]


class _Images:
    """Some images on their way into the index; each process reads and embeds a share, the first one stores."""

    def __init__(self, table: ImageTable, ids: Sequence[str], index: Index | None, dim: int, batch_size: int) -> None:
        self._table, self._ids, self._index, self._batch_size = table, ids, index, batch_size
        self._files, self._boxes = table.files(), table.boxes()
        self._no_vectors = np.zeros((0, dim), np.float32)

    def update_index(self, embed: Embed, summary: IndexSummary, step: Callable[[float], None]) -> set[str]:
        """Store what is new or has changed, and count it in the summary; return the ids of broken images."""
        stored: list[Item | None] = []
        with distributed.fail_together():
            share = self._read_items(range(*_share_bounds(len(self._ids))))
        items: list[Any] = [item for part in distributed.gather_objects(share) for item in part]
        with distributed.fail_together():
            if self._index is not None:
                for some in split_batches(self._ids, _PAGE):
                    stored += self._index.get(some)
                _refuse_other_files(items, stored)
        stored = distributed.from_main(stored)
        new = [row for row, item in enumerate(items) if isinstance(item, Item) and _is_other_image(item, stored[row])]
        others = sorted(set(range(len(items))).difference(new))
        relabelled = [items[row] for row in others if isinstance(items[row], Item) and items[row] != stored[row]]
        with distributed.fail_together():
            if self._index is not None:
                for some in split_batches(relabelled, _PAGE):  # the vectors stay
                    self._index.upsert(self._index.vectors([item.id for item in some]), some, stored=True)
        broken = {row: item for row, item in enumerate(items) if isinstance(item, str)}
        summary.relabelled += len(relabelled)
        summary.unchanged += len(items) - len(new) - len(relabelled) - len(broken)
        step(len(items) - len(new))
        batches = self._embed(embed, new[slice(*_share_bounds(len(new)))])
        while shares := self._gather_next(batches):
            rows = [row for part in shares for row in part.rows]
            with distributed.fail_together():
                if self._index is not None and rows:
                    self._index.upsert(np.concatenate([part.vectors for part in shares]), [items[row] for row in rows])
            known = sum(stored[row] is not None for row in rows)
            summary.added, summary.changed = summary.added + len(rows) - known, summary.changed + known
            for part in shares:
                broken |= part.faults
            step(len(rows) + sum(len(part.faults) for part in shares))
        summary.broken += [(printable(self._files[row]), broken[row]) for row in sorted(broken)]
        return {self._ids[row] for row in broken}

    def _read_items(self, rows: Sequence[int]) -> list[Item | str]:
        """Return the item of each image, or the reason why its file cannot be read or stored."""
        with ThreadPoolExecutor(_READERS) as pool:
            digests = list(pool.map(_read_digest, [self._files[row] for row in rows]))
        table, has_splits = self._table, len(set(self._table.splits)) > 1
        names = [name for name in table.extra if is_field(name) and name not in (*FIELDS, CONTENT)]
        items: list[Item | str] = []
        for row, (digest, fault) in zip(rows, digests, strict=True):
            metadata = {name: _to_value(table.extra[name][row]) for name in names}
            if has_splits:
                metadata["split"] = str(table.splits[row])
            metadata = {name: value for name, value in metadata.items() if value != ""} | {CONTENT: digest}
            path, label, category = os.path.abspath(self._files[row]), str(table.labels[row]), table.categories[row]
            try:
                items.append(fault or Item(self._ids[row], path, label, str(category), metadata))
            except FrontrankError as error:  # its name, or the table, has what no index can hold
                items.append(f"cannot be stored: {error}")
        return items

    def _gather_next(self, batches: Iterator[_Share]) -> list[_Share]:
        """Return the next embeddings of every process; empty when none has any."""
        some, until = [], time.monotonic() + _STORE_SECONDS
        with distributed.fail_together():
            for part in islice(batches, _STORE_BATCHES):
                some.append(part)
                if time.monotonic() >= until:
                    break
        return [part for parts in distributed.gather_objects(some) for part in parts]

    def _embed(self, embed: Embed, rows: Sequence[int]) -> Iterator[_Share]:
        """Yield batches of embeddings of these rows.

        Images are decoded once, while others are embedded: only if that fails, those of the batch are checked.
        """
        faults = self._find_faults(rows, decode=False)
        if faults:
            yield _Share([], self._no_vectors, faults)
        left = [row for row in rows if row not in faults]
        while left:
            done = 0
            try:
                for vectors in embed(self._table.rows(np.array(left))):
                    yield _Share(left[done : done + len(vectors)], vectors, {})
                    done += len(vectors)
                return
            except InputError:
                faults = self._find_faults(left[done : done + self._batch_size], decode=True)
                if not faults:
                    raise
                yield _Share([], self._no_vectors, faults)
                left = [row for row in left[done:] if row not in faults]

    def _find_faults(self, rows: Sequence[int], decode: bool) -> dict[int, str]:
        def find(row: int) -> str | None:
            file, box = self._files[row], self._boxes[row]
            return image_fault(file, decode=decode) or (None if box is None else box_faults(file, [box])[0])

        with ThreadPoolExecutor(_READERS) as pool:
            return {row: fault for row, fault in zip(rows, pool.map(find, rows), strict=True) if fault is not None}


def _share_bounds(count: int) -> tuple[int, int]:
    return shard_bounds(count, distributed.rank(), distributed.world_size())


def _is_other_image(item: Item, stored: Item | None) -> bool:
    return stored is None or item.metadata[CONTENT] != stored.metadata.get(CONTENT)


def _refuse_other_files(items: Sequence[Item | str], stored: Sequence[Item | None]) -> None:
    """Raise if an image would replace another one, as of a second folder of the same name."""
    for item, old in zip(items, stored, strict=True):
        if isinstance(item, str) or old is None or old.path == item.path or not _is_other_image(item, old):
            continue
        with suppress(OSError):  # the old file does not exist: its folder was moved, and has changed since
            if not os.path.samefile(old.path, item.path):
                fault = f"{printable(item.path)} would replace {printable(old.path)}, both are {printable(item.id)}"
                raise InputError(f"{fault}; {_OWN_NAMES}")


def _read_digest(file: str) -> tuple[str, str]:
    """Return the digest of a file, and "" or the reason why there is none."""
    if not os.path.isfile(file):  # opening a pipe could take forever
        return "", image_fault(file, decode=False) or "does not exist"
    try:
        return file_digest(file), ""
    except (OSError, ValueError) as error:
        return "", f"cannot be read ({getattr(error, 'strerror', None) or error})"


def _to_value(cell: Any) -> Value:
    """Return a cell of a table as a value of metadata."""
    value = cell.item() if isinstance(cell, np.generic) else cell
    return value if isinstance(value, str | int | float | bool) else str(value)


# A picture as a query.


def open_index(url: str) -> Index:
    """Open the index at a URL; if there is no such folder, the error suggests an index beside it."""
    folder = Path(url)
    if not url_scheme(url) and not is_index(folder) and not list_folder(folder):
        fault = "does not exist" if not os.path.exists(url) else "is a file" if os.path.isfile(url) else "is empty"
        beside: list[str] = []
        with suppress(InputError):  # the folder around it cannot be read
            around = [folder.parent / name for name in list_folder(folder.parent)]
            beside = [str(path) for path in around if is_index(path)]
        remedy = suggestion(url, beside) or "; make it first: frontrank index MODEL IMAGES --to URL"
        raise InputError(f"{url} {fault}{remedy}")
    return Index.load(url)


def load_index_model(index: Index, folder: str | None, device: str | torch.device) -> Embedder:
    """Load the model that an index was made with, from where it was then, or from the given folder.

    Another model is an error: its embeddings mean nothing to this index.
    """
    settings = index.settings
    path = folder or str(settings.notes.get("model", ""))
    if not path:
        raise InputError(f"{index.where} does not say where its model is; give --model")
    if folder is None and os.path.isabs(path) and not os.path.isdir(path):  # else it is a name on a hub
        raise InputError(f"the model of {index.where} is no longer at {path}; give --model")
    model = load_model(path, device)
    if settings.model is not None and model.fingerprint != settings.model:
        raise InputError(f"{path} is not the model that {index.where} was made with; give that one by --model")
    if model.dim != settings.dim:
        fault = f"{path} makes embeddings of {model.dim} dimensions, {index.where} has {settings.dim}"
        raise InputError(f"{fault}; give the model that it was made with by --model")
    return model


def picture_embedder(model: Embedder) -> EmbedPicture:
    """Return a function that embeds a picture as an indexed one [dimension], float32; several threads may call it."""
    model.eval()
    transform = evaluation_transform(*model_sizes(model))
    device = next(model.parameters()).device

    def embed(picture: "Image") -> np.ndarray:
        with torch.no_grad():
            embedding = model(transform(picture)[None].to(device))
        return np.asarray(embedding[0].float().cpu().numpy())

    return embed
