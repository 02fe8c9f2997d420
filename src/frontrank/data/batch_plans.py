"""Which classes stand in which batch of an epoch: pure functions of class sizes, settings and a random generator.

Random numbers are only compared and counted, never put through a logarithm: a seed gives the same plan on any machine.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import combinations

import numpy as np


@dataclass(frozen=True, eq=False)
class Plan:
    """The batches of an epoch, as slots: a class and how many of its images.

    classes: of each slot, batch after batch [slot]
    counts:  images of each slot [slot]
    ends:    where in the slots each batch ends [batch]
    """

    classes: np.ndarray
    counts: np.ndarray
    ends: np.ndarray

    @classmethod
    def table(cls, classes: np.ndarray, counts: np.ndarray) -> "Plan":
        """The plan of batches that have the same number of classes: both [batch, class of the batch]."""
        ends = np.arange(1, len(classes) + 1) * classes.shape[1]
        return cls(classes.ravel(), counts.ravel(), ends)


def shuffled(segments: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The order that sorts the segments, whole numbers [item], and is random within each."""
    keys = (segments.astype(np.int64) << 32) + rng.integers(2**32, size=len(segments))
    return np.argsort(keys, kind="stable")


def level(capacity: np.ndarray, total: int) -> int:
    """The largest whole number such that giving each min(capacity, it) takes no more than the total.

    >>> level(np.array([1, 5, 5]), 8)  # 1 + 3 + 3, and one over
    3
    """
    return (
        bisect_right(range(int(capacity.max()) + 1), total, key=lambda each: int(np.minimum(capacity, each).sum())) - 1
    )


def even_shares(capacity: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers of a given sum, as equal as their capacities allow; who gets one more is random.

    >>> even_shares(np.array([1, 5, 5]), 7, np.random.default_rng(0)).tolist()
    [1, 3, 3]
    """
    each = level(capacity, total)
    shares = np.minimum(capacity, each)
    open_still = np.flatnonzero(capacity > each)
    shares[rng.permutation(open_still)[: total - shares.sum()]] += 1
    return shares


def spread(counts: np.ndarray, batches: int, rng: np.random.Generator) -> np.ndarray:
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
        order = shuffled(start, rng)
        owner, turns, start, length = owner[order], turns[order], start[order], length[order]
        if batches == 1 or length.max() == 1:
            return owner.reshape(batches, per_batch)
        half = length // 2
        shift = rng.integers(2**31, size=batches)[start]  # one of a run for all its classes, random modulo its length
        until = np.cumsum(turns) * half + shift
        first = until // length - (until - turns * half) // length
        owner, start = np.tile(owner, 2), np.concatenate([start, start + half])
        turns, length = np.concatenate([first, turns - first]), np.concatenate([half, length - half])
        kept = turns > 0
        owner, turns, start, length = owner[kept], turns[kept], start[kept], length[kept]


def rows_of_plan(plan: Plan, codes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The rows of all batches on end, and where each batch ends.

    codes: the class of each row [row]
    The images of a class are shuffled once and then taken in a circle, so none comes again before all have come, and a
    slot holds none twice unless it asks for more than there are.
    """
    sizes = np.bincount(codes)
    order, begin = shuffled(codes, rng), np.cumsum(sizes) - sizes
    by_class = np.argsort(plan.classes, kind="stable")
    taken = np.empty_like(by_class)
    taken[by_class] = np.cumsum(plan.counts[by_class]) - plan.counts[by_class]  # a circle may begin anywhere
    ends = np.cumsum(plan.counts)
    slot = np.repeat(np.arange(len(plan.counts)), plan.counts)
    turn = taken[slot] + np.arange(len(slot)) - (ends - plan.counts)[slot]
    classes = plan.classes[slot]
    return order[begin[classes] + turn % sizes[classes]], ends[plan.ends - 1]


def category_groups(categories: int, together: int, groups: int | None, rng: np.random.Generator) -> np.ndarray:
    """Categories that meet: all groups there are, or so many that name each category equally often [group, member]."""
    if groups is None:
        return np.array(list(combinations(range(categories), together)))
    return spread(even_shares(np.full(categories, groups), groups * together, rng), groups, rng)


def category_plan(
    room: np.ndarray, category_of: np.ndarray, groups: np.ndarray, total: int, rng: np.random.Generator
) -> Plan:
    """Fill each batch from its categories, an equal share each; the classes of a category take turns.

    room:        what a class takes of a batch, 0 leaves it out [class]
    category_of: the category of each class [class]
    groups:      the categories of each batch [batch, categories]
    total:       the room of a batch
    The counts of the plan are in units of room.
    """
    capacity = np.bincount(category_of, weights=room).astype(np.int64)
    usable = np.flatnonzero(room)
    queues = [usable[category_of[usable] == category] for category in range(len(capacity))]
    queues = [rng.permutation(queue) for queue in queues]
    at = np.zeros(len(queues), dtype=np.int64)
    classes, counts = [], []
    for group in groups:
        chosen = _with_room(group, capacity, total, rng)
        parts = []
        for category, share in zip(chosen, even_shares(capacity[chosen], total, rng), strict=True):
            parts.append(_turns(np.roll(queues[category], -at[category]), room, int(share)))
            at[category] = (at[category] + len(parts[-1][0])) % len(queues[category])
        order = rng.permutation(sum(len(part[0]) for part in parts))
        classes.append(np.concatenate([part[0] for part in parts])[order])
        counts.append(np.concatenate([part[1] for part in parts])[order])
    ends = np.cumsum([len(batch) for batch in classes])
    return Plan(np.concatenate(classes), np.concatenate(counts), ends)


def _with_room(group: np.ndarray, capacity: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """The group and, if it is too small for a batch, further categories at random until it is not."""
    if capacity[group].sum() >= total:
        return group
    order = np.concatenate([group, rng.permutation(np.setdiff1d(np.arange(len(capacity)), group))])
    return order[: np.searchsorted(np.cumsum(capacity[order]), total) + 1]


def _turns(queue: np.ndarray, room: np.ndarray, share: int) -> tuple[np.ndarray, np.ndarray]:
    """The next classes of a queue that fill a share, and the room of each; the last is cut to what is left.

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
