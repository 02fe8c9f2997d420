"""Images of a table as batches of tensors, read by worker processes.

A picture depends on its key (row, seed) alone, never on the worker or process that reads it: a run has the same
pictures with any number of workers and processes, and after it is resumed.

Workers are forked on Linux: they start in milliseconds and share the table, while a fresh process takes seconds to
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
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from frontrank.checks import check_integer
from frontrank.data.samplers import process_group, shard_bounds
from frontrank.data.table import ImageTable
from frontrank.data.transforms import Transform, random_seed
from frontrank.errors import FrontrankError, InputError
from frontrank.pictures.decode import read_image

Key = tuple[int, int]  # row, seed

_WORKER_DIED = re.compile(r"DataLoader worker.*(exited unexpectedly|killed by signal)", re.DOTALL)
_NO_SHARED_MEMORY = re.compile(r"shared memory|\bshm\b|</torch_|Bus error|No space left", re.IGNORECASE)


class Sampler(Protocol):
    """The methods of a batch sampler that `training_loader` uses."""

    def __len__(self) -> int: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def global_batches(self) -> Iterable[Sequence[int] | np.ndarray]: ...


def draw_seed(seed: int, epoch: int, batch: int, position: int) -> int:
    """Return the seed of one image of one batch, 64 bits: a hash, so that neighbours have nothing in common.

    >>> draw_seed(0, 0, 0, 0) == draw_seed(0, 0, 0, 1)
    False
    """
    numbers = f"{seed},{epoch},{batch},{position}".encode()
    return int.from_bytes(hashlib.blake2b(numbers, digest_size=8).digest(), "little")


class ImageDataset(Dataset[tuple[Tensor, int]]):
    """The images of a table by row, or by (row, seed) where the transform is random; each with its label's number.

    Images are cropped to the boxes of the table.

    at_least: sides that a JPEG must have at least; a larger one may be decoded at a part of its size
    """

    def __init__(self, table: ImageTable, transform: Transform, at_least: int | None = None) -> None:
        self.table, self.transform, self.labels, self.at_least = table, transform, table.codes(), at_least

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, key: int | Key) -> tuple[Tensor, int]:
        row, seed = key if isinstance(key, tuple) else (key, None)
        image = read_image(self.table.root / str(self.table.paths[row]), self.table.box(row), self.at_least)
        with nullcontext() if seed is None else random_seed(seed):
            return self.transform(image), int(self.labels[row])


def training_loader(
    table: ImageTable,
    sampler: Sampler,
    transform: Transform,
    *,
    seed: int = 0,
    workers: int = 2,
    start: int | None = None,
    stop: int | None = None,
    chunk: int | None = None,
    ahead: int = 2,
    channels_last: bool = False,
) -> Iterator[tuple[Tensor | list[Tensor], Tensor]]:
    """Yield this process's images [image, 3, side, side] and labels [image], batch after batch of the sampler.

    The workers live as long as the iterator: there is no restart between epochs. They read ahead of the training, so
    the state of the sampler is not changed here: the caller does that.

    start: batches since the start of epoch 0 that are done already; None begins at the sampler's state
    stop:  the number of batches since the start of epoch 0 after which it ends; None never ends
    chunk: yield a list of chunks of so many images, read by several workers, instead of one tensor
    ahead: batches, or chunks, that each worker holds ready
    """
    _check_loading(table, workers)
    dataset = WholeBatches(ImageDataset(table, transform), _channels_last if channels_last else default_collate)
    keys = training_keys(sampler, seed, start, stop)
    if chunk is None:
        return read_batches(dataset, keys, workers, ahead)
    check_integer("chunk", chunk, at_least=1)
    counts: deque[int] = deque()
    return _join_chunks(read_batches(dataset, _split_keys(keys, chunk, counts), workers, ahead), counts)


def evaluation_loader(
    table: ImageTable, transform: Transform, batch_size: int = 64, workers: int = 2, at_least: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images and labels of all rows once, in the order of the table; the last batch may be smaller.

    at_least: see `ImageDataset`
    """
    _check_loading(table, workers)
    check_integer("batch_size", batch_size, at_least=1)
    starts = range(0, len(table), batch_size)
    keys = (range(start, min(start + batch_size, len(table))) for start in starts)
    return read_batches(WholeBatches(ImageDataset(table, transform, at_least)), keys, min(workers, len(starts)))


@contextmanager
def worker_errors(workers: int) -> Iterator[None]:
    """Turn the error of torch after the death of a worker into one of one line.

    It can come at any moment in the main process: the loaders use this while they wait for a batch, a training loop
    puts it around all of its work.
    """
    try:
        yield
    except FrontrankError:
        raise
    except RuntimeError as error:
        if _WORKER_DIED.search(str(error)) is None:
            raise
        raise _death_error(f"{error} {error.__cause__}", workers) from error  # the cause names the signal


def _death_error(reason: str, workers: int) -> FrontrankError:
    fault, remedy = "was killed, most often because memory ran out", ""
    if _NO_SHARED_MEMORY.search(reason):
        fault, remedy = "ran out of shared memory", ", or give a container more (docker run --shm-size=8g)"
    return FrontrankError(
        f"one of the {workers} workers that read images {fault}; set workers to {workers // 2}{remedy}"
    )


def _check_loading(table: ImageTable, workers: int) -> None:
    check_integer("workers", workers, at_least=0)
    if len(table) == 0:
        raise InputError("the table has no images; give one with at least one row")


def training_keys(
    sampler: Sampler, seed: int, start: int | None = None, stop: int | None = None
) -> Iterator[list[Key]]:
    """Yield the keys of this process's share of each batch; the arguments are those of `training_loader`."""
    sampler = copy.copy(sampler)
    if start is not None:
        epoch, position = divmod(start, len(sampler))
        sampler.load_state_dict({**sampler.state_dict(), "epoch": epoch, "position": position})
    state = sampler.state_dict()
    done = state["epoch"] * len(sampler) + state["position"]
    left = None if stop is None else max(0, stop - done)
    return itertools.islice(_endless_keys(sampler, seed, state["epoch"], state["position"]), left)


def _endless_keys(sampler: Sampler, seed: int, epoch: int, position: int) -> Iterator[list[Key]]:
    """Yield the keys without end; seeds depend on the place in the batch."""
    rank, world_size = process_group()
    while True:
        for number, rows in enumerate(sampler.global_batches(), start=position):
            places = range(*shard_bounds(len(rows), rank, world_size))
            yield [(int(rows[place]), draw_seed(seed, epoch, number, place)) for place in places]
        epoch, position = epoch + 1, 0
        sampler.set_epoch(epoch)


def _split_keys(batches: Iterator[list[Key]], chunk: int, counts: deque[int]) -> Iterator[list[Key]]:
    """Yield the keys of each batch a chunk at a time; `counts` gets the number of chunks of each batch."""
    for keys in batches:
        counts.append(math.ceil(len(keys) / chunk))
        for start in range(0, len(keys), chunk):
            yield keys[start : start + chunk]


def _join_chunks(chunks: Iterator[tuple[Tensor, Tensor]], counts: deque[int]) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield the chunks of each batch as a list; keys are drawn ahead of the chunks, so `counts` is filled before."""
    for first in chunks:
        parts = [first, *itertools.islice(chunks, counts.popleft() - 1)]
        yield [images for images, _ in parts], torch.cat([labels for _, labels in parts])


class WholeBatches(Dataset[Any]):
    """Data set of whole batches by their keys; a bad image is returned as an error, for the main process to raise.

    collate: makes one batch of a list of items
    """

    def __init__(self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any] = default_collate) -> None:
        self.dataset, self.collate = dataset, collate

    def __getitem__(self, keys: Iterable[int | Key]) -> Any:
        try:
            return self.collate([self.dataset[key] for key in keys])
        except FrontrankError as error:
            return error
        except RuntimeError as error:
            if _NO_SHARED_MEMORY.search(str(error)) is None:
                raise
            worker = torch.utils.data.get_worker_info()
            return _death_error(str(error), worker.num_workers if worker else 0)


def _channels_last(parts: list[Any]) -> tuple[Tensor, Tensor]:
    images, labels = default_collate(parts)
    return images.contiguous(memory_format=torch.channels_last), labels


def read_batches(dataset: WholeBatches, batches: Iterator[Any], workers: int, ahead: int = 2) -> Iterator[Any]:
    """Yield dataset[keys] for the keys of one batch after another, read ahead by workers."""
    with warnings.catch_warnings():
        # From Python 3.12 on a fork beside threads warns; the head of this module says why it is safe here.
        warnings.filterwarnings("ignore", "(?s).*fork", DeprecationWarning)
        # More workers than cores are the user's choice, whose disk may be slow.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        settings: dict[str, Any] = {}
        if workers:
            context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
            settings = {"prefetch_factor": ahead, "worker_init_fn": _start_worker, "multiprocessing_context": context}
        loader = DataLoader(
            dataset,
            sampler=batches,
            batch_size=None,
            num_workers=workers,
            collate_fn=_identity,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # torch draws a seed for the workers: not from the run's own random numbers
            **settings,
        )
        waiting: Any = iter(loader)
    try:
        while True:
            with worker_errors(workers):
                batch = next(waiting, None)
            if batch is None:
                return
            if isinstance(batch, FrontrankError):
                raise batch
            yield batch
    finally:
        if workers:  # left to the garbage collector, they could be ended by a later worker, whose children they are not
            waiting._shutdown_workers()


def _identity(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the main process handles them, and ends its workers
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # a worker must not collect objects of the main process
    torch.set_num_threads(1)
