"""Batch samplers for torch's DataLoader: which images learn together."""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from frontrank.checks import check_choice, check_integer
from frontrank.errors import InputError, InputTypeError
from frontrank.ranking.vectors import as_array, check_labels

__all__ = ["AllClassesBatches", "BalancedBatches", "CategoryBatches", "shard_bounds"]

Labels = Sequence[int] | Sequence[str] | np.ndarray | Tensor

_VERSION = 1  # of the plans: a state of another version is refused
_MOST_BATCHES = 100_000  # of an epoch of CategoryBatches: more is a forgotten groups_per_epoch


def _read_codes(name: str, labels: object) -> tuple[np.ndarray, np.ndarray]:
    """Return the different labels, sorted, and for each row the number of its label among them."""
    array = as_array(name, labels)
    entries = array.tolist() if array.dtype == object else labels
    if isinstance(entries, list | tuple):  # numpy would make text of numbers beside text
        if len({isinstance(entry, str) for entry in entries}) > 1:
            raise InputTypeError(f"{name} holds text and other things; give whole numbers, or text, one per row")
        array = np.asarray(entries) if array.dtype == object else array
    if array.ndim and not len(array):
        raise InputError(f"{name} is empty; give one entry per row")
    names, codes = np.unique(check_labels(name, array, len(array) if array.ndim else 1), return_inverse=True)
    return names, codes.astype(np.int64)


def _read_classes(labels: object) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, sorted, and the number of each row's class."""
    names, codes = _read_codes("labels", labels)
    if names.dtype.kind == "U" and names[0] == "":
        raise InputError(f"labels has an empty entry in row {np.argmin(codes)}; leave out rows without a class")
    if len(names) < 2:
        raise InputError("labels has 1 class, so that no batch has a negative; give at least 2 classes")
    return names, codes


def _read_categories(labels: object, categories: object) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each row's class, and of each class's category."""
    names, codes = _read_classes(labels)
    kinds, of_row = _read_codes("categories", categories)
    if len(of_row) != len(codes):
        raise InputError(f"categories has {len(of_row):,} entries but labels has {len(codes):,}; give one per row")
    of_class = np.empty(len(names), dtype=np.int64)
    of_class[codes] = of_row
    wrong = np.flatnonzero(of_class[codes] != of_row)
    if len(wrong):
        name, kind = names[codes[wrong[0]]], kinds[of_row[wrong[0]]]
        raise InputError(f"categories puts class {name} into {str(kind)!r} and another; give each class one category")
    return codes, of_class


def _classes_per_batch(batch_size: object, per_class: int, least: int = 2) -> int:
    """Return how many classes make a batch, at least so many."""
    size = check_integer("batch_size", batch_size, at_least=least * per_class)
    if size % per_class:
        raise InputError(f"batch_size {size} is no multiple of per_class {per_class}; use {size - size % per_class}")
    return size // per_class


# Which classes are in which batch of an epoch: pure functions of class sizes, settings and a random generator.


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """The batches of an epoch as slots; a slot is a class and a number of its images.

    classes: of each slot, batch after batch [slot]
    counts:  images of each slot [slot]
    ends:    where in the slots each batch ends [batch]
    """

    classes: np.ndarray
    counts: np.ndarray
    ends: np.ndarray

    @classmethod
    def table(cls, classes: np.ndarray, counts: np.ndarray) -> "BatchPlan":
        """Return the plan of batches with the same number of classes; both are [batch, class of the batch]."""
        ends = np.arange(1, len(classes) + 1) * classes.shape[1]
        return cls(classes.ravel(), counts.ravel(), ends)


def shuffle_within(segments: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the order that sorts the segments, whole numbers [item], and is random within each."""
    keys = (segments.astype(np.int64) << 32) + rng.integers(2**32, size=len(segments))
    return np.argsort(keys, kind="stable")


def level(capacity: np.ndarray, total: int) -> int:
    """Return the largest whole number n such that the sum of min(capacity, n) is no more than the total.

    >>> level(np.array([1, 5, 5]), 8)  # 1 + 3 + 3, and one over
    3
    """
    levels = range(int(capacity.max()) + 1)
    return bisect_right(levels, total, key=lambda each: int(np.minimum(capacity, each).sum())) - 1


def even_shares(capacity: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Return whole numbers of a given sum, as equal as their capacities allow; who gets one more is random.

    >>> even_shares(np.array([1, 5, 5]), 7, np.random.default_rng(0)).tolist()
    [1, 3, 3]
    """
    each = level(capacity, total)
    shares = np.minimum(capacity, each)
    below = np.flatnonzero(capacity > each)
    shares[rng.permutation(below)[: total - shares.sum()]] += 1
    return shares


def deal_classes(counts: np.ndarray, batches: int, rng: np.random.Generator) -> np.ndarray:
    """Deal class c out counts[c] times, so that all batches are equally full and none has a class twice.

    counts: at most `batches` each, their sum a multiple of `batches` [class]
    Returns the classes of each batch [batch, sum / batches].

    The run of batches is halved again and again. Of a class with n turns in a run of L batches, the first H batches get
    n H / L turns, rounded up or down by systematic sampling: how many multiples of L the running sum of n H passes, the
    classes in a random order and the sum begun at a random number below L. So both halves are exactly full, no class
    has more turns than there are batches, each class is in each batch with probability counts[c] / batches, and its
    turns are spread over all batches. All runs are halved at once: the work is O(sum log batches).
    """
    per_batch = int(counts.sum()) // batches
    owner = np.flatnonzero(counts)
    turns, start, length = counts[owner], np.zeros_like(owner), np.full_like(owner, batches)
    while True:
        order = shuffle_within(start, rng)
        owner, turns, start, length = owner[order], turns[order], start[order], length[order]
        if batches == 1 or length.max() == 1:
            return owner.reshape(batches, per_batch)
        half = length // 2
        shift = rng.integers(2**31, size=batches)[start]  # the same for all classes of a run, random modulo its length
        until = np.cumsum(turns) * half + shift
        first = until // length - (until - turns * half) // length
        owner, start = np.tile(owner, 2), np.concatenate([start, start + half])
        turns, length = np.concatenate([first, turns - first]), np.concatenate([half, length - half])
        left = turns > 0
        owner, turns, start, length = owner[left], turns[left], start[left], length[left]


def plan_rows(plan: BatchPlan, codes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of all batches one after another, and where each batch ends.

    codes: the class of each row [row]
    The images of a class are shuffled once and then taken in a circle: none comes again before all have come, and a
    slot has none twice unless it has more places than the class has images.
    """
    sizes = np.bincount(codes)
    order, begin = shuffle_within(codes, rng), np.cumsum(sizes) - sizes
    by_class = np.argsort(plan.classes, kind="stable")
    taken = np.empty_like(by_class)
    taken[by_class] = np.cumsum(plan.counts[by_class]) - plan.counts[by_class]  # a circle may begin anywhere
    ends = np.cumsum(plan.counts)
    slot = np.repeat(np.arange(len(plan.counts)), plan.counts)
    turn = taken[slot] + np.arange(len(slot)) - (ends - plan.counts)[slot]
    classes = plan.classes[slot]
    return order[begin[classes] + turn % sizes[classes]], ends[plan.ends - 1]


def category_groups(categories: int, together: int, groups: int | None, rng: np.random.Generator) -> np.ndarray:
    """Return the categories that meet [group, member]: all groups, or some with each category equally often."""
    if groups is None:
        return np.array(list(combinations(range(categories), together)))
    return deal_classes(even_shares(np.full(categories, groups), groups * together, rng), groups, rng)


def category_plan(
    room: np.ndarray, category_of: np.ndarray, groups: np.ndarray, total: int, rng: np.random.Generator
) -> BatchPlan:
    """Fill each batch from its categories in equal shares; the classes of a category take turns.

    room:        the places a class takes in a batch, 0 leaves it out [class]
    category_of: the category of each class [class]
    groups:      the categories of each batch [batch, categories]
    total:       the room of a batch
    The counts of the plan are in units of room.
    """
    capacity = np.bincount(category_of, weights=room).astype(np.int64)
    usable = np.flatnonzero(room)
    queues = [rng.permutation(usable[category_of[usable] == category]) for category in range(len(capacity))]
    at = np.zeros(len(queues), dtype=np.int64)
    classes, counts = [], []
    for group in groups:
        chosen = group
        if capacity[group].sum() < total:  # further categories join at random
            order = np.concatenate([group, rng.permutation(np.setdiff1d(np.arange(len(capacity)), group))])
            chosen = order[: np.searchsorted(np.cumsum(capacity[order]), total) + 1]
        parts = []
        for category, share in zip(chosen, even_shares(capacity[chosen], total, rng), strict=True):
            parts.append(_turns(np.roll(queues[category], -at[category]), room, int(share)))
            at[category] = (at[category] + len(parts[-1][0])) % len(queues[category])
        slots, places = map(np.concatenate, zip(*parts, strict=True))
        order = rng.permutation(len(slots))
        classes.append(slots[order])
        counts.append(places[order])
    ends = np.cumsum([len(batch) for batch in classes])
    return BatchPlan(np.concatenate(classes), np.concatenate(counts), ends)


def _turns(queue: np.ndarray, room: np.ndarray, share: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the next classes of a queue that fill a share, and the room of each; the last is cut to what is left.

    A class cut to a single image would have no positive: the largest of the others gives up a place, if it has three.
    """
    filled = np.cumsum(room[queue])
    classes = queue[: np.searchsorted(filled, share) + 1]
    counts = room[classes]
    counts[-1] -= filled[len(classes) - 1] - share
    if counts[-1] == 1 < room[classes[-1]] and counts.max() >= 3:
        counts[counts.argmax()] -= 1
        counts[-1] += 1
    return classes, counts


def shard_bounds(size: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return start and stop of the share of one process; shares differ by one at most, the larger ones come first.

    >>> [shard_bounds(8, rank, 3) for rank in range(3)]
    [(0, 3), (3, 6), (6, 8)]
    """
    each, over = divmod(size, world_size)
    start = rank * each + min(rank, over)
    return start, start + each + (rank < over)


def process_group() -> tuple[int, int]:
    """Return the rank of this process and the number of processes of torch.distributed; 0 and 1 if it is not used."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class EpochBatches(Sampler[list[int]]):
    """Base of the three samplers: epochs, the place in an epoch, and the share of one process.

    Iterating yields the batches from `position` of `epoch` on; at the end `epoch` moves to the next. A process gets its
    `shard_bounds` of each batch; without rank and world_size these are torch.distributed's, if that is running.
    """

    def __init__(
        self, codes: np.ndarray, length: int, least: int, text: str, seed: int, rank: int | None, world_size: int | None
    ) -> None:
        self.seed = check_integer("seed", seed, at_least=0)
        self.epoch, self.position = 0, 0
        self._codes, self._length, self._least = codes, length, least
        self._rank, self._world_size = rank, world_size
        settings = f"{type(self).__name__} {_VERSION} seed={self.seed} {text}".encode()
        self._fingerprint = hashlib.sha256(settings + codes.astype("<i8").tobytes()).hexdigest()[:16]
        self._epoch_rows: tuple[int, np.ndarray, np.ndarray] | None = None
        self._process()

    def _plan(self, rng: np.random.Generator) -> BatchPlan:
        raise NotImplementedError

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        rank, world_size = self._process()
        epoch = self.epoch
        for position, batch in enumerate(self.global_batches(), self.position + 1):
            self.epoch, self.position = epoch, position
            start, stop = shard_bounds(len(batch), rank, world_size)
            yield batch[start:stop]
        self.epoch, self.position = epoch + 1, 0

    def global_batches(self) -> Iterator[list[int]]:
        """Return the batches that are left of this epoch, of all processes together; the position does not move."""
        if self._epoch_rows is None or self._epoch_rows[0] != self.epoch:
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, self.epoch])))
            self._epoch_rows = self.epoch, *plan_rows(self._plan(rng), self._codes, rng)
        _, rows, ends = self._epoch_rows
        starts = np.concatenate([[0], ends[:-1]])
        bounds = zip(starts[self.position :].tolist(), ends[self.position :].tolist(), strict=True)
        return (rows[start:stop].tolist() for start, stop in bounds)

    def set_epoch(self, epoch: int) -> None:
        """Go to the first batch of an epoch; in the current epoch, stay where it is (as after `load_state_dict`)."""
        epoch = check_integer("epoch", epoch, at_least=0)
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def state_dict(self, *, epoch: int | None = None, position: int | None = None) -> dict[str, Any]:
        """Return the state for `load_state_dict` to go on from here, or from the given batch.

        A DataLoader with workers draws ahead of the training: give the epoch, and the number of its batches trained on.
        """
        epoch, position = self.epoch if epoch is None else epoch, self.position if position is None else position
        return {**self._check_place(epoch, position), "fingerprint": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, with any number of processes; raise if it is of other labels or settings."""
        source = f"state_dict() of a {type(self).__name__}"
        if not isinstance(state, Mapping):
            raise InputTypeError(f"state must be what {source} returned, got {state!r}")
        if missing := [key for key in ("epoch", "position", "fingerprint") if key not in state]:
            raise InputError(f"state has no {missing[0]!r}; give what {source} returned")
        if state["fingerprint"] != self._fingerprint:
            raise InputError(f"state is from {source} with other labels, settings or seed; give the same, or no state")
        epoch, position = self._check_place(state["epoch"], state["position"]).values()
        self.epoch, self.position = (epoch + 1, 0) if position == len(self) else (epoch, position)

    def _check_place(self, epoch: object, position: object) -> dict[str, int]:
        return {
            "epoch": check_integer("epoch", epoch, at_least=0),
            "position": check_integer("position", position, at_least=0, at_most=len(self)),
        }

    def _process(self) -> tuple[int, int]:
        """Return this process's number, and the number of processes."""
        rank, world_size = self._rank, self._world_size
        if (rank is None) != (world_size is None):
            raise InputError("rank and world_size belong together; give both, or neither")
        if rank is None or world_size is None:
            rank, world_size = process_group()
        world_size = check_integer("world_size", world_size, at_least=1)
        if world_size > self._least:
            raise InputError(f"world_size {world_size} is more than the {self._least} images of the smallest batch")
        return check_integer("rank", rank, at_least=0, at_most=world_size - 1), world_size


class BalancedBatches(EpochBatches):
    """Sampler of batches of batch_size / per_class random classes, with per_class images of each side by side.

    labels:            the class of each row, whole numbers or text
    small:             for a class of fewer than per_class images: "repeat" its images, "shrink" the batch (an image
                       alone in its class then has no positive), or "drop" the class
    batches_per_epoch: None is the fewest that hold every image

    In each batch no class comes twice. In each epoch every image comes, and none comes again before all of its class
    have come; some classes come again, evenly, if batches would not be full otherwise. The turns of a class are spread
    over the epoch. With fewer batches_per_epoch than all images need, an epoch is the first part of such an epoch.

    >>> batches = BalancedBatches(["a", "a", "b", "b", "b", "c", "c"], batch_size=4, per_class=2)
    >>> len(batches), list(batches)
    (2, [[0, 1, 4, 2], [6, 5, 3, 4]])
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int = 112,
        per_class: int = 4,
        *,
        small: Literal["repeat", "shrink", "drop"] = "repeat",
        batches_per_epoch: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        codes = _read_classes(labels)[1]
        sizes = np.bincount(codes)
        per_class = check_integer("per_class", per_class, at_least=2)
        self._classes = _classes_per_batch(batch_size, per_class)
        check_choice("small", small, ("repeat", "shrink", "drop"))
        used = sizes >= per_class if small == "drop" else sizes > 0
        if used.sum() < self._classes:
            raise _large_batch(batch_size, per_class, int(used.sum()))
        self._counts = np.minimum(sizes, per_class) if small == "shrink" else np.full_like(sizes, per_class)
        self._groups = np.where(used, -(-sizes // per_class), 0)
        needed = max(math.ceil(self._groups.sum() / self._classes), int(self._groups.max()))
        length = _check_count("batches_per_epoch", batches_per_epoch) or needed
        self._batches = max(needed, length)
        least = int(np.sort(self._counts[used])[: self._classes].sum())
        settings = f"size={self._classes * per_class} per_class={per_class} small={small} batches={length}"
        super().__init__(codes, length, least, settings, seed, rank, world_size)

    def _plan(self, rng: np.random.Generator) -> BatchPlan:
        more = np.where(self._groups > 0, self._batches - self._groups, 0)
        again = even_shares(more, self._batches * self._classes - int(self._groups.sum()), rng)
        classes = deal_classes(self._groups + again, self._batches, rng)[: len(self)]
        return BatchPlan.table(classes, self._counts[classes])


class CategoryBatches(EpochBatches):
    """Sampler of batches of classes from a few categories, which makes them hard; categories share a batch evenly.

    labels:               the class of each row, whole numbers or text
    categories:           the category of each row; "" is a category like the others. A class has one category
    per_class:            images of each class; None takes whole classes, and leaves out classes of one image
    categories_per_batch: categories that meet in a batch
    batches_per_group:    batches of each group of categories in an epoch
    groups_per_epoch:     None is all groups there are (12 categories: 66 pairs); else so many are drawn at random, such
                          that each category comes equally often

    In each batch no class comes twice, the images of a class stand side by side, and there are batch_size images: with
    whole classes the last of a category is cut to what is left of its share (if that is one image, the largest class
    of the share gives it a place, if it has three), and with per_class a smaller class repeats images. A category too
    small for its share leaves the rest to the others; if all of them are too small, further categories join at random.

    In each epoch the classes of a category take turns in a random order, and so do the images of a class: none comes
    again before all have come. All classes of a category come if its batches have room, share x batches >= its images.
    Where classes are about as large as a share, whole ones leave few classes to a batch: give per_class.

    Fatih Cakir et al., "Deep Metric Learning to Rank", CVPR 2019, Sec. 4.2: 66 pairs x 5 batches of 256 on Stanford
    Online Products, 253 pairs x 2 on In-Shop.

    >>> labels, categories = [0, 0, 1, 1, 2, 2, 3, 3], ["cup", "cup", "cup", "cup", "pan", "pan", "pan", "pan"]
    >>> batches = CategoryBatches(labels, categories, batch_size=4, batches_per_group=3)
    >>> len(batches), list(batches)
    (3, [[5, 4, 3, 2], [6, 7, 0, 1], [3, 2, 5, 4]])
    """

    def __init__(
        self,
        labels: Labels,
        categories: Labels,
        batch_size: int = 256,
        per_class: int | None = None,
        categories_per_batch: int = 2,
        batches_per_group: int = 5,
        *,
        groups_per_epoch: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        codes, category_of = _read_categories(labels, categories)
        sizes = np.bincount(codes)
        self._together = check_integer("categories_per_batch", categories_per_batch, at_least=1)
        self._repeats = check_integer("batches_per_group", batches_per_group, at_least=1)
        self._drawn = _check_count("groups_per_epoch", groups_per_epoch)
        if per_class is None:
            self._each, self._total = 1, check_integer("batch_size", batch_size, at_least=2 * self._together)
            self._room = np.where(sizes > 1, sizes, 0)
        else:
            self._each = check_integer("per_class", per_class, at_least=2)
            self._total = _classes_per_batch(batch_size, self._each, max(2, self._together))
            self._room = np.ones_like(sizes)
        used, self._category_of = self._room > 0, np.zeros_like(category_of)
        kinds, self._category_of[used] = np.unique(category_of[used], return_inverse=True)
        self._categories = len(kinds)
        if self._categories < self._together:
            raise InputError(
                f"categories_per_batch is {self._together}, but {self._categories} categories have classes to draw; "
                "lower it, give finer categories, or use BalancedBatches"
            )
        if self._room.sum() < self._total:
            raise _large_batch(self._total * self._each, self._each, int(self._room.sum()))
        groups = self._drawn or math.comb(self._categories, self._together)
        if groups * self._repeats > _MOST_BATCHES:
            raise InputError(
                f"groups_per_epoch {self._drawn} makes {groups:,} groups of {self._categories:,} categories, too many; "
                f"with {self._categories} each category comes {self._together} x {self._repeats} times in an epoch"
            )
        settings = f"size={self._total} x {self._each} groups={self._together},{self._repeats},{self._drawn}"
        settings += f" room={self._room.tolist()} categories={self._category_of.tolist()}"
        super().__init__(codes, groups * self._repeats, self._total * self._each, settings, seed, rank, world_size)

    def _plan(self, rng: np.random.Generator) -> BatchPlan:
        groups = category_groups(self._categories, self._together, self._drawn, rng)
        groups = rng.permutation(np.repeat(groups, self._repeats, axis=0))
        plan = category_plan(self._room, self._category_of, groups, self._total, rng)
        return BatchPlan(plan.classes, plan.counts * self._each, plan.ends)


class AllClassesBatches(EpochBatches):
    """Sampler of batches with images of every class, as many of each as of the others.

    labels:            the class of each row, whole numbers or text
    batches_per_epoch: None is images / batch_size, rounded up

    In each batch no image comes twice, and the images of a class stand side by side. A class that has fewer images than
    its share is there with all of them, and the others share the rest. Places that are left go, one image each, to
    classes that take turns. In each epoch no image comes again before all of its class have come. Epochs are
    independent of each other: for every image of a large class to come, make the epoch long.

    Jérôme Revaud et al., "Learning with Average Precision: Training Image Retrieval with a Listwise Loss", ICCV 2019,
    Sec. 4.2: batches of 4,096 with images of all 586 classes. Theirs have more of large classes, which the loss weights
    down (`QuantizedAP(balance_classes=True)`); here the shares are equal, so weights matter for small classes only.

    >>> batches = AllClassesBatches(["a", "a", "a", "b", "b", "b", "b", "c"], batch_size=6)
    >>> len(batches), list(batches)
    (2, [[1, 2, 0, 5, 4, 7], [3, 6, 5, 7, 1, 2]])
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int = 4096,
        *,
        batches_per_epoch: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        codes = _read_classes(labels)[1]
        batch_size = check_integer("batch_size", batch_size, at_least=2)
        self._sizes, self._batch_size = np.bincount(codes), batch_size
        least, most = 2 * len(self._sizes), len(codes)
        if not least <= batch_size <= most:
            raise InputError(
                f"batch_size must be from {least} (two images for each of the {least // 2:,} classes) to {most} (all), "
                f"got {batch_size}; change it, or use BalancedBatches"
            )
        length = _check_count("batches_per_epoch", batches_per_epoch) or math.ceil(most / batch_size)
        super().__init__(codes, length, batch_size, f"size={batch_size} batches={length}", seed, rank, world_size)

    def _plan(self, rng: np.random.Generator) -> BatchPlan:
        each = level(self._sizes, self._batch_size)
        counts = np.tile(np.minimum(self._sizes, each), (len(self), 1))
        over = self._batch_size - int(counts[0].sum())
        if over:
            turns = even_shares(np.where(self._sizes > each, len(self), 0), over * len(self), rng)
            counts[np.arange(len(self))[:, None], deal_classes(turns, len(self), rng)] += 1
        order = rng.permuted(np.tile(np.arange(len(self._sizes)), (len(self), 1)), axis=1)
        return BatchPlan.table(order, np.take_along_axis(counts, order, axis=1))


def _check_count(name: str, count: int | None) -> int | None:
    return None if count is None else check_integer(name, count, at_least=1)


def _large_batch(size: int, per_class: int, count: int) -> InputError:
    needs = f"{size // per_class} {'images' if per_class == 1 else 'classes'}"
    return InputError(f"batch_size {size} needs {needs}, but {count} can be drawn; use at most {count * per_class}")
