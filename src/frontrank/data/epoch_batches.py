"""Batches by epoch: which come next, where training stands in them, and which share of each is one process's."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from frontrank.data.batch_arguments import whole
from frontrank.data.batch_plans import Plan, rows_of_plan
from frontrank.errors import InputError, InputTypeError

_VERSION = 1  # of the plans: a state taken when they were made otherwise is refused


def shard_bounds(size: int, rank: int, world_size: int) -> tuple[int, int]:
    """Where the share of one process starts and stops; shares differ by one at most, the larger ones come first.

    >>> [shard_bounds(8, rank, 3) for rank in range(3)]
    [(0, 3), (3, 6), (6, 8)]
    """
    each, over = divmod(size, world_size)
    start = rank * each + min(rank, over)
    return start, start + each + (rank < over)


class EpochBatches(Sampler[list[int]]):
    """What the three samplers share: epochs, the place in an epoch, and the share of one process.

    Iterating gives the batches from `position` of `epoch` on; at the end the next epoch is up, by itself. Of each batch
    a process gets its `shard_bounds`; without rank and world_size these are torch.distributed's, if that is running.
    """

    def __init__(
        self,
        codes: np.ndarray,
        length: int,
        least: int,
        settings: str,
        seed: int,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        self.seed = whole("seed", seed, 0)
        self.epoch, self.position = 0, 0
        self._codes, self._length, self._least = codes, length, least
        self._rank, self._world_size = rank, world_size
        said = f"{type(self).__name__} {_VERSION} seed={self.seed} {settings}"
        self._fingerprint = hashlib.sha256(said.encode() + codes.astype("<i8").tobytes()).hexdigest()[:16]
        self._planned: tuple[int, np.ndarray, np.ndarray] | None = None
        self._place()

    def _plan(self, rng: np.random.Generator) -> Plan:
        raise NotImplementedError

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        rank, world_size = self._place()
        epoch = self.epoch
        for position, batch in enumerate(self.global_batches(), self.position + 1):
            self.epoch, self.position = epoch, position
            start, stop = shard_bounds(len(batch), rank, world_size)
            yield batch[start:stop]
        self.epoch, self.position = epoch + 1, 0

    def global_batches(self) -> Iterator[list[int]]:
        """The batches that are left of this epoch, those of all processes together; moves nothing."""
        if self._planned is None or self._planned[0] != self.epoch:
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, self.epoch])))
            self._planned = self.epoch, *rows_of_plan(self._plan(rng), self._codes, rng)
        _, rows, ends = self._planned
        starts = np.concatenate([[0], ends[:-1]])
        bounds = zip(starts[self.position :].tolist(), ends[self.position :].tolist(), strict=True)
        return (rows[start:stop].tolist() for start, stop in bounds)

    def set_epoch(self, epoch: int) -> None:
        """Go to the first batch of an epoch; stay, if that epoch is under way (as after `load_state_dict`)."""
        epoch = whole("epoch", epoch, 0)
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def state_dict(self, *, epoch: int | None = None, position: int | None = None) -> dict[str, Any]:
        """What `load_state_dict` needs to go on from here, or from the given batch.

        A DataLoader with workers draws ahead of the training: give the epoch, and the number of its batches trained on.
        """
        return {
            "epoch": self.epoch if epoch is None else whole("epoch", epoch, 0),
            "position": self.position if position is None else whole("position", position, 0, len(self)),
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, on any number of processes; refuses the state of other labels or settings."""
        if not isinstance(state, Mapping):
            raise InputTypeError(f"state must be what state_dict() of a {type(self).__name__} returned, got {state!r}")
        missing = [key for key in ("epoch", "position", "fingerprint") if key not in state]
        if missing:
            raise InputError(f"state has no {missing[0]!r}; give what state_dict() of a {type(self).__name__} returned")
        if state["fingerprint"] != self._fingerprint:
            raise InputError(
                f"state was taken with other labels, settings or seed than this {type(self).__name__} has "
                f"({state['fingerprint']}, not {self._fingerprint}); give the same ones, or start without the state"
            )
        epoch, position = whole("epoch", state["epoch"], 0), whole("position", state["position"], 0, len(self))
        self.epoch, self.position = (epoch + 1, 0) if position == len(self) else (epoch, position)

    def _place(self) -> tuple[int, int]:
        """This process's number, and how many there are."""
        rank, world_size = self._rank, self._world_size
        if (rank is None) != (world_size is None):
            raise InputError("rank and world_size belong together; give both, or neither")
        if rank is None or world_size is None:
            running = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank = torch.distributed.get_rank() if running else 0
            world_size = torch.distributed.get_world_size() if running else 1
        world_size = whole("world_size", world_size, 1)
        if world_size > self._least:
            raise InputError(
                f"world_size {world_size} is more than the {self._least} images of the smallest batch; "
                "raise batch_size, or use fewer processes"
            )
        return whole("rank", rank, 0, world_size - 1), world_size
