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

from frontrank.data.embedding_files import did_you_mean
from frontrank.data.images import box_faults, image_fault
from frontrank.data.samplers import shard_bounds
from frontrank.data.table import ImageTable, shown
from frontrank.data.transforms import evaluation_transform
from frontrank.errors import FrontrankError, InputError
from frontrank.models import Embedder
from frontrank.progress import progress
from frontrank.retrieval.folder import is_index, names_in
from frontrank.retrieval.index import Index, scheme
from frontrank.retrieval.items import FIELDS, ID_LENGTH, Item, Value, is_field
from frontrank.training import distributed
from frontrank.training.embedding import embedded_batches, model_sizes, on_all_ranks

if TYPE_CHECKING:
    from PIL.Image import Image


# ==== A collection of images in an index: what is new or has changed is embedded, what is broken is named and left out.


CONTENT = "sha256"  # of the file, in the metadata: by it a later call knows that an image has not changed
_AT_ONCE = 32_768  # images that are looked at before those of them that need it are embedded
_PAGE = 1000  # items that are asked of the index, or of which the vectors are, at once
_KEPT_AFTER = 16  # batches, or
_KEPT_SECONDS = 2.0  # of work: what a process that is killed has embedded for nothing
_READERS = 4  # threads that read files for their digests

Embed = Callable[[ImageTable], Iterator[np.ndarray]]
Fault = tuple[str, str]  # a file, and what is wrong with it


@dataclass
class Indexed:
    """What became of the images. relabelled: the same image, but something else is known of it."""

    added: int = 0
    changed: int = 0
    relabelled: int = 0
    unchanged: int = 0
    removed: int = 0
    broken: list[Fault] = field(default_factory=list)

    @property
    def read(self) -> int:
        """How many images could be read."""
        return self.added + self.changed + self.relabelled + self.unchanged

    def describe(self) -> str:
        """All of it in a line.

        >>> Indexed(added=3, unchanged=1200, broken=[("a.jpg", "is empty")]).describe()
        '3 added, 1,200 unchanged, 1 broken'
        """
        counts = {name: getattr(self, name) for name in ("added", "changed", "relabelled", "unchanged", "removed")}
        counts["broken"] = len(self.broken)
        return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "no images"


@dataclass
class _Part:
    """Embeddings that one process made, the rows of the table they are of, and why it could not read other rows."""

    rows: list[int]
    vectors: np.ndarray
    faults: dict[int, str]


def index_images(
    model: Embedder,
    tables: Sequence[ImageTable],
    index: Index | None,
    *,
    batch_size: int = 64,
    workers: int = 2,
    prune: bool = False,
    show: bool | None = None,
) -> Indexed:
    """Embed the images that the index does not have as they are now, and keep them there.

    Stopped at any moment, a second call goes on: what the index has with the same content is not embedded again.
    Under several processes each reads and embeds its share; the first one alone has the index, the others give None.

    prune: forget items of the index that are not among these images, or whose image is broken by now: what is left is
           what a new index of these images would have; nothing is forgotten where no image can be read
    """
    names = [item_ids(table) for table in tables]
    refuse_repeats(tables)
    embed = partial(embedded_batches, model, batch_size=batch_size, workers=workers, show=False)
    found, wanted = Indexed(), {name for ids in names for name in ids}
    with progress("indexing", sum(map(len, tables)), show if distributed.is_main() else False) as step:
        for table, ids in zip(tables, names, strict=True):
            for start in range(0, len(table), _AT_ONCE):
                part = table.rows(np.arange(start, min(start + _AT_ONCE, len(table))))
                images = _Images(part, ids[start : start + _AT_ONCE], index, model.dim, batch_size)
                wanted -= images.bring_up_to_date(embed, found, step)
    with on_all_ranks():
        if prune and index is not None and wanted:
            found.removed = _forget_others(index, wanted)
    return found


def item_ids(table: ImageTable) -> list[str]:
    """An id for each image: the name of its folder and the path in it, so that it stays the same where that moves.

    A crop has its box beside it.
    """
    folder, boxes = table.root.resolve().name, table.boxes()
    return [_id(folder, str(path), box) for path, box in zip(table.paths, boxes, strict=True)]


def _id(folder: str, path: str, box: Sequence[float] | None) -> str:
    name = path if Path(path).is_absolute() else f"{folder}/{path}"
    if box is not None:
        name += "#" + ",".join(f"{side:g}" for side in box)
    text = "".join(letter if letter.isprintable() else "?" for letter in name)
    if len(text) > ID_LENGTH or text != name:
        digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16]
        text = f"{text[: ID_LENGTH - len(digest) - 1]}~{digest}"
    return text


def refuse_repeats(tables: Sequence[ImageTable]) -> None:
    """Refuse two images that would have the same id."""
    seen: dict[str, Path] = {}
    for table in tables:
        for name in item_ids(table):
            if name in seen:
                if seen[name] == table.root:
                    raise InputError(f"{shown(name)} is there twice; name each image once")
                raise InputError(
                    f"{shown(name)} is there twice, of {shown(seen[name])} and of {shown(table.root)}; rename one "
                    "of the folders, or make an index of each"
                )
            seen[name] = table.root


def refuse_unreadable(tables: Sequence[ImageTable]) -> None:
    """Refuse images of which none can be read; looks at headers until one is good."""
    files = [file for table in tables for file in table.files()]
    if files and all(image_fault(file, decode=False) for file in files):
        first = f"{shown(files[0])} {image_fault(files[0], decode=False)}"
        raise InputError(f"none of the {len(files):,} images can be read ({first}); give others")


class _Images:
    """Some images on their way into the index; each process looks at its share and embeds it, the first one keeps."""

    def __init__(self, table: ImageTable, ids: Sequence[str], index: Index | None, dim: int, batch_size: int) -> None:
        self._table, self._ids, self._index, self._batch_size = table, ids, index, batch_size
        self._files, self._boxes = table.files(), table.boxes()
        self._nothing = np.zeros((0, dim), np.float32)

    def bring_up_to_date(self, embed: Embed, found: Indexed, step: Callable[[float], None]) -> set[str]:
        """Keep what is new or has changed; gives the ids of images that are broken."""
        with on_all_ranks():
            looked = self._looked_at(range(*_share(len(self._ids))))
        items: list[Any] = [item for part in distributed.gather_objects(looked) for item in part]
        stored = self._stored()
        with on_all_ranks():
            if self._index is not None:
                _refuse_other_files(items, stored)
        new = [row for row, item in enumerate(items) if isinstance(item, Item) and _differs(item, stored[row])]
        others = set(range(len(items))) - set(new)
        again = [row for row in sorted(others) if isinstance(items[row], Item) and items[row] != stored[row]]
        self._keep_vectors([items[row] for row in again])
        broken = {row: item for row, item in enumerate(items) if isinstance(item, str)}
        found.relabelled += len(again)
        found.unchanged += len(items) - len(new) - len(again) - len(broken)
        step(len(items) - len(new))
        batches = self._embedded(embed, new[slice(*_share(len(new)))])
        while parts := self._together(batches):
            rows = [row for part in parts for row in part.rows]
            with on_all_ranks():
                if self._index is not None and rows:
                    self._index.upsert(np.concatenate([part.vectors for part in parts]), [items[row] for row in rows])
            known = sum(stored[row] is not None for row in rows)
            found.added, found.changed = found.added + len(rows) - known, found.changed + known
            for part in parts:
                broken |= part.faults
            step(len(rows) + sum(len(part.faults) for part in parts))
        found.broken += [(shown(self._files[row]), broken[row]) for row in sorted(broken)]
        return {self._ids[row] for row in broken}

    def _looked_at(self, rows: Sequence[int]) -> list[Item | str]:
        """What the index is to know of each image; the reason where its file cannot be read."""
        with ThreadPoolExecutor(_READERS) as pool:
            digests = list(pool.map(_digest, [self._files[row] for row in rows]))
        table, several = self._table, len(set(self._table.splits)) > 1
        extra = [name for name in table.extra if is_field(name) and name not in (*FIELDS, CONTENT)]
        found: list[Item | str] = []
        for row, (digest, fault) in zip(rows, digests, strict=True):
            metadata = {name: _plain(table.extra[name][row]) for name in extra}
            if several:
                metadata["split"] = str(table.splits[row])
            metadata = {name: value for name, value in metadata.items() if value != ""} | {CONTENT: digest}
            path = os.path.abspath(self._files[row])
            item = partial(Item, self._ids[row], path, str(table.labels[row]), str(table.categories[row]), metadata)
            found.append(fault or _made(item))
        return found

    def _stored(self) -> list[Item | None]:
        """What the index has of each image."""
        stored: list[Item | None] = []
        with on_all_ranks():
            if self._index is not None:
                for start in range(0, len(self._ids), _PAGE):
                    stored += self._index.get(self._ids[start : start + _PAGE])
        return distributed.from_main(stored)

    def _keep_vectors(self, items: Sequence[Any]) -> None:
        """Keep what else is known of images beside the vectors that are there."""
        with on_all_ranks():
            for start in range(0, len(items) if self._index is not None else 0, _PAGE):
                some = items[start : start + _PAGE]
                assert self._index is not None
                self._index.upsert(self._index.vectors([item.id for item in some]), some, stored=True)

    def _together(self, batches: Iterator[_Part]) -> list[_Part]:
        """The next embeddings of every process; empty when none has any."""
        with on_all_ranks():
            some = _of_some_seconds(islice(batches, _KEPT_AFTER))
        rows = [row for part in some for row in part.rows]
        vectors = np.concatenate([self._nothing, *(part.vectors for part in some)])
        if not distributed.any_rank(bool(some)):
            return []
        all_vectors = distributed.gather_rows(torch.from_numpy(vectors)).numpy()
        faults = {row: fault for part in some for row, fault in part.faults.items()}
        parts = distributed.gather_objects(_Part(rows, vectors[:0], faults))
        ends = np.cumsum([len(part.rows) for part in parts])
        for part, end in zip(parts, ends, strict=True):
            part.vectors = all_vectors[end - len(part.rows) : end]
        return parts

    def _embedded(self, embed: Embed, rows: Sequence[int]) -> Iterator[_Part]:
        """Batches of embeddings of these rows.

        Images are decoded once, while others are embedded: only where that fails are those of the batch looked at.
        """
        bad = self._faults(rows, decode=False)
        if bad:
            yield _Part([], self._nothing, bad)
        left = [row for row in rows if row not in bad]
        while left:
            done = 0
            try:
                for vectors in embed(self._table.rows(np.array(left))):
                    yield _Part(left[done : done + len(vectors)], vectors, {})
                    done += len(vectors)
                return
            except InputError:
                bad = self._faults(left[done : done + self._batch_size], decode=True)
                if not bad:
                    raise
                yield _Part([], self._nothing, bad)
                left = [row for row in left[done:] if row not in bad]

    def _faults(self, rows: Sequence[int], decode: bool) -> dict[int, str]:
        with ThreadPoolExecutor(_READERS) as pool:
            found = pool.map(partial(self._fault, decode=decode), rows)
            return {row: fault for row, fault in zip(rows, found, strict=True) if fault is not None}

    def _fault(self, row: int, decode: bool) -> str | None:
        file, box = self._files[row], self._boxes[row]
        return image_fault(file, decode=decode) or (None if box is None else box_faults(file, [box])[0])


def _share(count: int) -> tuple[int, int]:
    return shard_bounds(count, distributed.rank(), distributed.world_size())


def _differs(item: Item, stored: Item | None) -> bool:
    """Whether the picture is another one than the index has."""
    return stored is None or item.metadata[CONTENT] != stored.metadata.get(CONTENT)


def _refuse_other_files(items: Sequence[Item | str], stored: Sequence[Item | None]) -> None:
    """Refuse to put an image in the place of another one, as of a second folder of the same name."""
    for item, there in zip(items, stored, strict=True):
        if isinstance(item, str) or there is None or there.path == item.path or not _differs(item, there):
            continue
        with suppress(OSError):  # the other one is not there any more: its folder was moved, and changed since
            if not os.path.samefile(there.path, item.path):
                raise InputError(
                    f"{shown(item.path)} would take the place of {shown(there.path)}, as both are {shown(item.id)} in "
                    "the index; rename one of the folders, or make an index of each"
                )


def _of_some_seconds(batches: Iterator[_Part]) -> list[_Part]:
    """The first batches, as many as take that long."""
    some, until = [], time.monotonic() + _KEPT_SECONDS
    for part in batches:
        some.append(part)
        if time.monotonic() >= until:
            break
    return some


def _made(item: Callable[[], Item]) -> Item | str:
    """The item, or what its file's name or its table has that no index can hold."""
    try:
        return item()
    except FrontrankError as error:
        return f"cannot be kept: {error}"


def _digest(file: str) -> tuple[str, str]:
    """The content's sha256, or why there is none."""
    if not os.path.isfile(file):  # of a pipe, opening alone could take forever
        return "", image_fault(file, decode=False) or "is not there"
    try:
        with open(file, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest(), ""
    except (OSError, ValueError) as error:
        return "", f"cannot be read ({getattr(error, 'strerror', None) or error})"


def _plain(value: Any) -> Value:
    """A cell of a table as metadata has it."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float | bool) else str(value)


def _forget_others(index: Index, wanted: set[str]) -> int:
    gone = [item.id for item in index.items() if item.id not in wanted]
    return sum(index.delete(gone[start : start + _PAGE]) for start in range(0, len(gone), _PAGE))


# ==== Pictures as queries of an index: the model it was made with, and what that makes of a picture.


EmbedPicture = Callable[["Image"], np.ndarray]


def open_index(url: str) -> Index:
    """The index at a URL; where there is no such folder, the name of one beside it that is an index is suggested."""
    folder = Path(url)
    if not scheme(url) and not is_index(folder) and not names_in(folder):
        what = "is not there" if not os.path.exists(url) else "is a file" if os.path.isfile(url) else "is empty"
        remedy = did_you_mean(url, _beside(folder)) or "make it first: frontrank index MODEL IMAGES --to URL"
        raise InputError(f"{url} {what}; {remedy}")
    return Index.load(url)


def _beside(folder: Path) -> list[str]:
    """The indexes in the folder around this one, as far as it can be read."""
    with suppress(InputError):
        return [str(folder.parent / name) for name in names_in(folder.parent) if is_index(folder.parent / name)]
    return []


def index_model(index: Index, given: str | None, device: str | torch.device) -> Embedder:
    """The model that an index was made with, from where it was then, or from the folder that is given.

    Another model is refused: what it makes of a picture means nothing to this index.
    """
    settings = index.settings
    path = given or str(settings.notes.get("model", ""))
    if not path:
        raise InputError(f"{index.where} does not say where its model is; give --model")
    if given is None and os.path.isabs(path) and not os.path.isdir(path):  # else it is a name on a hub
        raise InputError(f"the model of {index.where} is no longer at {path}; give --model")
    model = Embedder.load(path, device=device)
    if settings.model is not None and model.fingerprint != settings.model:
        raise InputError(f"{path} is not the model that {index.where} was made with; give that one by --model")
    if model.dim != settings.dim:
        raise InputError(
            f"{path} makes embeddings of {model.dim} dimensions, {index.where} has {settings.dim}; "
            "give the model that it was made with by --model"
        )
    return model


def picture_embedder(model: Embedder) -> EmbedPicture:
    """What the model makes of a picture [dimension], float32, as it does of an indexed one; for several threads."""
    model.eval()
    transform = evaluation_transform(*model_sizes(model))
    device = next(model.parameters()).device

    def embed(picture: "Image") -> np.ndarray:
        with torch.no_grad():
            embedding = model(transform(picture)[None].to(device))
        return np.asarray(embedding[0].float().cpu().numpy())

    return embed
