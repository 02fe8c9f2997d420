"""Batch samplers for torch's DataLoader: which images learn together.

    BalancedBatches    random classes, the same number of images each              (PNP, Smooth-AP)
    CategoryBatches    classes of a few categories, which are hard to tell apart   (FastAP, RaMBO)
    AllClassesBatches  some images of every class                                  (AP_Q)

All are iterables of lists of row numbers. The batches of an epoch depend on labels, settings, seed and epoch alone.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from frontrank.data.batch_arguments import classes_per_batch, read_categories, read_labels, whole
from frontrank.data.batch_plans import Plan, category_groups, category_plan, even_shares, level, spread
from frontrank.data.epoch_batches import EpochBatches, shard_bounds
from frontrank.errors import InputError

__all__ = ["AllClassesBatches", "BalancedBatches", "CategoryBatches", "shard_bounds"]

Labels = Sequence[int] | Sequence[str] | np.ndarray | Tensor

_MOST_BATCHES = 100_000  # of an epoch of CategoryBatches: more is a forgotten groups_per_epoch


class BalancedBatches(EpochBatches):
    """Batches of batch_size / per_class random classes, per_class images of each, side by side.

    labels:            the class of each row, whole numbers or text
    small:             what a class of fewer than per_class images does: "repeat" them, "shrink" the batch (an image
                       alone in its class then has no positive), or "drop" out
    batches_per_epoch: None is the fewest that hold every image

    In each batch no class comes twice. In each epoch every image comes, and none comes again before all of its class
    have come; some classes come again, evenly, where batches would not be full otherwise. The turns of a class are
    spread over the epoch. With fewer batches_per_epoch than all images take, an epoch is the first part of such a one.

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
        codes = read_labels(labels)[1]
        sizes = np.bincount(codes)
        per_class = whole("per_class", per_class, 2)
        self._classes = classes_per_batch(batch_size, per_class)
        if small not in ("repeat", "shrink", "drop"):
            raise InputError(f"small must be repeat, shrink or drop, got {small!r}")
        used = sizes >= per_class if small == "drop" else sizes > 0
        if used.sum() < self._classes:
            what = f" of at least {per_class} images" if small == "drop" else ""
            raise InputError(
                f"batch_size {batch_size} with per_class {per_class} needs {self._classes} classes, but labels holds "
                f"{used.sum()}{what}; {_remedy(int(used.sum()), per_class)}"
            )
        self._counts = np.minimum(sizes, per_class) if small == "shrink" else np.full_like(sizes, per_class)
        self._groups = np.where(used, -(-sizes // per_class), 0)
        needed = max(math.ceil(self._groups.sum() / self._classes), int(self._groups.max()))
        length = needed if batches_per_epoch is None else whole("batches_per_epoch", batches_per_epoch, 1)
        self._batches = max(needed, length)
        least = int(np.sort(self._counts[used])[: self._classes].sum())
        settings = f"size={self._classes * per_class} per_class={per_class} small={small} batches={length}"
        super().__init__(codes, length, least, settings, seed, rank, world_size)

    def _plan(self, rng: np.random.Generator) -> Plan:
        more = np.where(self._groups > 0, self._batches - self._groups, 0)
        again = even_shares(more, self._batches * self._classes - int(self._groups.sum()), rng)
        classes = spread(self._groups + again, self._batches, rng)[: len(self)]
        return Plan.table(classes, self._counts[classes])


class CategoryBatches(EpochBatches):
    """Batches of classes from a few categories each, which makes them hard; the categories share a batch evenly.

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
        codes, category_of = read_categories(labels, categories)
        sizes = np.bincount(codes)
        self._together = whole("categories_per_batch", categories_per_batch, 1)
        self._repeats = whole("batches_per_group", batches_per_group, 1)
        self._drawn = None if groups_per_epoch is None else whole("groups_per_epoch", groups_per_epoch, 1)
        if per_class is None:
            self._each, self._total = 1, whole("batch_size", batch_size, 2 * self._together)
            self._room = np.where(sizes > 1, sizes, 0)
        else:
            self._each = whole("per_class", per_class, 2)
            self._total = classes_per_batch(batch_size, self._each, max(2, self._together))
            self._room = np.ones_like(sizes)
        self._check_room(category_of)
        used, self._category_of = self._room > 0, np.zeros_like(category_of)
        self._category_of[used] = np.unique(category_of[used], return_inverse=True)[1]
        self._categories = int(self._category_of.max()) + 1
        groups = self._count_groups()
        settings = f"size={self._total} x {self._each} groups={self._together},{self._repeats},{self._drawn}"
        settings += f" room={self._room.tolist()} categories={self._category_of.tolist()}"
        super().__init__(codes, groups * self._repeats, self._total * self._each, settings, seed, rank, world_size)

    def _check_room(self, category_of: np.ndarray) -> None:
        count, room = len(np.unique(category_of[self._room > 0])), int(self._room.sum())
        if count < self._together:
            raise InputError(
                f"categories holds {count} with classes to draw, but categories_per_batch is {self._together}; "
                "lower it, give finer categories, or use BalancedBatches"
            )
        if room < self._total:
            raise InputError(
                f"batch_size {self._total * self._each} is more than all classes can fill; "
                + (f"use at most {room}" if self._each == 1 else _remedy(room, self._each))
            )

    def _count_groups(self) -> int:
        groups = math.comb(self._categories, self._together) if self._drawn is None else self._drawn
        if groups * self._repeats > _MOST_BATCHES:
            raise InputError(
                f"groups_per_epoch {self._drawn} makes {groups:,} groups of {self._categories:,} categories, too many; "
                f"with {self._categories} each category comes {self._together} x {self._repeats} times in an epoch"
            )
        return groups

    def _plan(self, rng: np.random.Generator) -> Plan:
        groups = category_groups(self._categories, self._together, self._drawn, rng)
        groups = rng.permutation(np.repeat(groups, self._repeats, axis=0))
        plan = category_plan(self._room, self._category_of, groups, self._total, rng)
        return Plan(plan.classes, plan.counts * self._each, plan.ends)


class AllClassesBatches(EpochBatches):
    """Batches with images of every class, as many of each as of the others.

    labels:            the class of each row, whole numbers or text
    batches_per_epoch: None is images / batch_size, rounded up

    In each batch no image comes twice, and the images of a class stand side by side. A class that has fewer images than
    its share gives all it has, and the others share the rest. What is over goes, one image each, to classes that take
    turns. In each epoch no image comes again before all of its class have come. Epochs are independent of each other:
    for every image of a large class to come, make the epoch long.

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
        codes = read_labels(labels)[1]
        batch_size = whole("batch_size", batch_size, 2)
        self._sizes, self._batch_size = np.bincount(codes), batch_size
        least, most = 2 * len(self._sizes), len(codes)
        if batch_size < least:
            raise InputError(
                f"batch_size {batch_size} is less than two images for each of the {least // 2:,} classes; "
                f"use at least {least}, or BalancedBatches"
            )
        if batch_size > most:
            raise InputError(f"batch_size {batch_size} is more than the {most:,} images; use at most {most}")
        length = math.ceil(most / batch_size)
        length = length if batches_per_epoch is None else whole("batches_per_epoch", batches_per_epoch, 1)
        super().__init__(codes, length, batch_size, f"size={batch_size} batches={length}", seed, rank, world_size)

    def _plan(self, rng: np.random.Generator) -> Plan:
        each = level(self._sizes, self._batch_size)
        counts = np.tile(np.minimum(self._sizes, each), (len(self), 1))
        over = self._batch_size - int(counts[0].sum())
        if over:
            turns = even_shares(np.where(self._sizes > each, len(self), 0), over * len(self), rng)
            counts[np.arange(len(self))[:, None], spread(turns, len(self), rng)] += 1
        order = rng.permuted(np.tile(np.arange(len(self._sizes)), (len(self), 1)), axis=1)
        return Plan.table(order, np.take_along_axis(counts, order, axis=1))


def _remedy(classes: int, per_class: int) -> str:
    return f"use a batch_size of at most {classes * per_class}, or a smaller batch with a larger per_class"
