"""Images of a table as batches of tensors, read by worker processes.

What is done to an image depends on its key (row, seed) alone, never on the worker, the process or the moment that reads
it: a run gives the same pictures with any number of workers and processes, and after it is resumed.

Workers are forked on Linux: they start in milliseconds and share the table, where a fresh process takes seconds to
import torch and gets a copy of the table. Forking is safe here because workers use one thread and no GPU. Elsewhere
they are fresh processes, as is usual there.
"""

import copy
import gc
import hashlib
import itertools
import math
import multiprocessing
import re
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from frontrank.checks import check_number
from frontrank.data.images import read_image
from frontrank.data.samplers import shard_bounds
from frontrank.data.table import ImageTable, shown
from frontrank.data.transforms import Transform, seeded
from frontrank.errors import FrontrankError, InputError, InputTypeError

Key = tuple[int, int]  # row, seed

_WORKER_DIED = re.compile(r"DataLoader worker.*(exited unexpectedly|killed by signal)", re.DOTALL)
_NO_SHARED_MEMORY = re.compile(r"shared memory|\bshm\b|</torch_|Bus error|No space left", re.IGNORECASE)


class Sampler(Protocol):
    """What `training_loader` asks of the samplers of `frontrank.data.samplers`."""

    def __len__(self) -> int: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def global_batches(self) -> Iterable[Sequence[int] | np.ndarray]: ...


def draw_seed(seed: int, epoch: int, batch: int, position: int) -> int:
    """The seed of one image of one batch, 64 bits: a hash, so that neighbours have nothing in common.

    >>> draw_seed(0, 0, 0, 0) == draw_seed(0, 0, 0, 1)
    False
    """
    numbers = f"{seed},{epoch},{batch},{position}".encode()
    return int.from_bytes(hashlib.blake2b(numbers, digest_size=8).digest(), "little")


class ImageDataset(Dataset[tuple[Tensor, int]]):
    """The images of a table by row, or by (row, seed) where the transform is random; each with its label's number.

    labels:   a number for each row; None takes `table.codes()`
    at_least: a JPEG may be decoded at a smaller size, as long as no side is less than this; None never does
    A table whose extra column "box" says left, top, right, bottom is cropped to it; "" is the whole image.
    """

    def __init__(
        self,
        table: ImageTable,
        transform: Transform,
        labels: Sequence[int] | np.ndarray | None = None,
        at_least: int | None = None,
    ) -> None:
        self.table, self.transform, self.at_least = table, transform, at_least
        self.labels = table.codes() if labels is None else np.asarray(labels, dtype=np.int64)
        if len(self.labels) != len(table):
            raise InputError(f"labels has {len(self.labels)} entries for {len(table)} images; give one per image")

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, key: int | Key) -> tuple[Tensor, int]:
        row, seed = key if isinstance(key, tuple) else (key, None)
        image = read_image(self.table.root / str(self.table.paths[row]), box=self._box(row), at_least=self.at_least)
        if seed is None:
            return self.transform(image), int(self.labels[row])
        with seeded(seed):
            return self.transform(image), int(self.labels[row])

    def _box(self, row: int) -> list[float] | None:
        """Left, top, right, bottom, which a table has as text or as four numbers."""
        column = self.table.extra.get("box")
        box = "" if column is None else column[row]
        numbers = box.replace(",", " ").split() if isinstance(box, str) else list(box)
        try:
            return [float(number) for number in numbers] or None
        except ValueError:
            raise InputError(
                f"{shown(self.table.paths[row])} has the box '{box}'; write left top right bottom"
            ) from None


def training_loader(
    table: ImageTable,
    sampler: Sampler,
    transform: Transform,
    *,
    seed: int = 0,
    workers: int = 2,
    start: int | None = None,
    stop: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    chunk: int | None = None,
    ahead: int = 2,
    channels_last: bool = False,
    at_least: int | None = None,
) -> Iterator[tuple[Tensor | list[Tensor], Tensor]]:
    """This process's images [image, 3, side, side] and labels [image] of one batch of the sampler after another.

    The workers live as long as the iterator: epochs follow each other without a new start. They read ahead of what is
    used, so the sampler is only looked at: its state is for the caller to move.

    start: batches since the start of epoch 0 that are done already; None begins where the sampler stands
    stop: the number of batches, counted alike, after which it ends; None goes on for ever
    rank, world_size: None asks torch.distributed
    chunk: give a list of chunks of so many images, read by several workers, in place of one tensor read by one
    ahead: batches, or chunks, that each worker holds ready
    """
    _check_loading(table, workers)
    dataset = WholeBatches(ImageDataset(table, transform, at_least=at_least), _channels_last if channels_last else None)
    keys = training_keys(sampler, seed, start, stop, rank, world_size)
    if chunk is None:
        return read_batches(dataset, keys, workers, ahead)
    _check_count("chunk", chunk, 1)
    counts: deque[int] = deque()
    return _together(read_batches(dataset, _in_chunks(keys, chunk, counts), workers, ahead), counts)


def evaluation_loader(
    table: ImageTable, transform: Transform, batch_size: int = 64, workers: int = 2, at_least: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels of all rows once, in the order of the table; the last batch may be smaller."""
    _check_loading(table, workers)
    _check_count("batch_size", batch_size, 1)
    starts = range(0, len(table), batch_size)
    keys = (range(start, min(start + batch_size, len(table))) for start in starts)
    return read_batches(
        WholeBatches(ImageDataset(table, transform, at_least=at_least)), keys, min(workers, len(starts))
    )


@contextmanager
def worker_errors(workers: int) -> Iterator[None]:
    """What torch raises where a worker dies, which may be at any moment in the main process, as one line.

    The loaders use it while they wait for a batch; a training loop puts it around all of its work.
    """
    try:
        yield
    except FrontrankError:
        raise
    except RuntimeError as error:
        if _WORKER_DIED.search(str(error)) is None:
            raise
        raise _worker_died(f"{error} {error.__cause__}", workers) from error  # the cause names the signal


def _worker_died(said: str, workers: int) -> FrontrankError:
    if _NO_SHARED_MEMORY.search(said):
        return FrontrankError(
            f"the {workers} workers that read images ran out of shared memory; "
            f"set workers to {workers // 2}, take a smaller batch, or give a container more (docker run --shm-size=8g)"
        )
    return FrontrankError(
        f"one of the {workers} workers that read images was killed, most often for want of memory; "
        f"set workers to {workers // 2}"
    )


def _check_loading(table: ImageTable, workers: int) -> None:
    _check_count("workers", workers, 0)
    if len(table) == 0:
        raise InputError("the table has no images; give one with at least one row")


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputTypeError(f"{name} must be a whole number, got {value!r}")
    check_number(name, value, at_least=least)


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if rank is None:
        rank = torch.distributed.get_rank() if distributed else 0
    if world_size is None:
        world_size = torch.distributed.get_world_size() if distributed else 1
    return rank, world_size


def training_keys(
    sampler: Sampler,
    seed: int,
    start: int | None = None,
    stop: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> Iterator[list[Key]]:
    """The keys of this process's share of each batch; all but the seed is as in `training_loader`."""
    sampler = copy.copy(sampler)
    if start is not None:
        epoch, position = divmod(start, len(sampler))
        sampler.load_state_dict({**sampler.state_dict(), "epoch": epoch, "position": position})
    keys = _endless_keys(sampler, seed, *_place(rank, world_size))
    if stop is None:
        return keys
    done = sampler.state_dict()["epoch"] * len(sampler) + sampler.state_dict()["position"]
    return itertools.islice(keys, max(0, stop - done))


def _endless_keys(sampler: Sampler, seed: int, rank: int, world_size: int) -> Iterator[list[Key]]:
    """The keys of this process's share of each batch, for ever; a seed goes by the place in the whole batch."""
    state = sampler.state_dict()
    first = state["position"]
    for epoch in itertools.count(state["epoch"]):
        if epoch > state["epoch"]:
            sampler.set_epoch(epoch)
            first = 0
        for number, rows in enumerate(sampler.global_batches(), start=first):
            places = range(*shard_bounds(len(rows), rank, world_size))
            yield [(int(rows[place]), draw_seed(seed, epoch, number, place)) for place in places]


def _in_chunks(batches: Iterator[list[Key]], chunk: int, counts: deque[int]) -> Iterator[list[Key]]:
    """The keys of each batch a chunk at a time; `counts` gets the number of chunks of each."""
    for keys in batches:
        counts.append(math.ceil(len(keys) / chunk))
        for start in range(0, len(keys), chunk):
            yield keys[start : start + chunk]


def _together(chunks: Iterator[tuple[Tensor, Tensor]], counts: deque[int]) -> Iterator[tuple[list[Tensor], Tensor]]:
    """The chunks of each batch as a list; they are read in order, and asked for before they are there."""
    for first in chunks:
        found = [first, *itertools.islice(chunks, counts.popleft() - 1)]
        yield [images for images, _ in found], torch.cat([labels for _, labels in found])


class WholeBatches(Dataset[Any]):
    """Batches by their keys, put together by the worker; a bad image is handed back as an error in its one line.

    collate: makes one batch of a list of what the dataset gives; None stacks them
    """

    def __init__(self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any] | None = None) -> None:
        self.dataset, self.collate = dataset, default_collate if collate is None else collate

    def __getitem__(self, keys: Iterable[int | Key]) -> Any:
        try:
            return self.collate([self.dataset[key] for key in keys])
        except FrontrankError as error:
            return error
        except RuntimeError as error:
            if _NO_SHARED_MEMORY.search(str(error)) is None:
                raise
            worker = torch.utils.data.get_worker_info()
            return _worker_died(str(error), worker.num_workers if worker else 0)


def _channels_last(parts: list[Any]) -> tuple[Tensor, Tensor]:
    images, labels = default_collate(parts)
    return images.contiguous(memory_format=torch.channels_last), labels


def read_batches(dataset: WholeBatches, batches: Iterator[Any], workers: int, ahead: int = 2) -> Iterator[Any]:
    """What the dataset gives for the keys of one batch after another, read by workers ahead of what is used."""
    with warnings.catch_warnings():
        # From Python 3.12 on a fork beside threads warns; the head of this module says why it is safe here.
        warnings.filterwarnings("ignore", "(?s).*fork", DeprecationWarning)
        # More workers than cores are the user's choice, whose disk may be slow.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        waiting: Any = iter(_data_loader(dataset, batches, workers, ahead))
    try:
        while True:
            with worker_errors(workers):
                found = next(waiting, None)
            if found is None:
                return
            if isinstance(found, FrontrankError):
                raise found
            yield found
    finally:
        if workers:  # left to the garbage collector, they could be ended by a later worker, whose children they are not
            waiting._shutdown_workers()


def _data_loader(dataset: WholeBatches, batches: Iterator[Any], workers: int, ahead: int) -> DataLoader[Any]:
    settings: dict[str, Any] = {}
    if workers:
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        settings = {"prefetch_factor": ahead, "worker_init_fn": _start_worker, "multiprocessing_context": context}
    return DataLoader(
        dataset,
        sampler=_Stream(batches),
        batch_size=None,
        num_workers=workers,
        collate_fn=_unchanged,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # torch draws a seed for the workers: not from the run's own random numbers
        **settings,
    )


class _Stream(torch.utils.data.Sampler[Any]):
    def __init__(self, keys: Iterator[Any]) -> None:
        self._keys = keys

    def __iter__(self) -> Iterator[Any]:
        return self._keys


def _unchanged(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # for the main process, which saves the run and ends its workers
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # what the main process left to be collected is not for a worker to collect
    torch.set_num_threads(1)
