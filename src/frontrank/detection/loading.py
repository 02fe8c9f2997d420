"""Pictures of a table with their boxes as batches, read by worker processes.

What is done to a picture depends on its key (row, seed) alone, as in `frontrank.data.loading`: a run gives the same
pictures with any number of workers and processes, and after it is resumed.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from frontrank.data.batch_plans import Plan
from frontrank.data.epoch_batches import EpochBatches
from frontrank.data.image_table import shown
from frontrank.data.images import read_image
from frontrank.data.loading import Key, WholeBatches, read_batches, training_keys
from frontrank.detection.scenes import SceneTable
from frontrank.errors import InputError

Target = dict[str, Tensor]
Batch = tuple[list[Tensor], list[Target]]


class SceneBatches(EpochBatches):
    """All pictures in a random order, so many at a time; what is left over at the end of an epoch is left out of it.

    >>> batches = SceneBatches(pictures=7, size=3)
    >>> len(batches), [len(batch) for batch in batches]
    (2, [3, 3])
    """

    def __init__(
        self, pictures: int, size: int, seed: int = 0, rank: int | None = None, world_size: int | None = None
    ) -> None:
        if size > pictures:
            raise InputError(f"batch is {size}, but there are {pictures} pictures to train with; make it less")
        self.size = size
        codes = np.zeros(pictures, dtype=np.int64)
        super().__init__(codes, pictures // size, size, f"size={size}", seed, rank, world_size)

    def _plan(self, rng: np.random.Generator) -> Plan:
        one = np.zeros((len(self), 1), dtype=np.int64)
        return Plan.table(one, np.full_like(one, self.size))


class SceneDataset(Dataset[tuple[Tensor, Target]]):
    """Pictures [3, height, width] as bytes, with the boxes and labels that are trained on, by (row, seed).

    flip: mirror half of them; which, the seed says
    Objects that the table says to ignore are left out: what covers them counts as background.
    """

    def __init__(self, table: SceneTable, flip: bool) -> None:
        self.table, self.flip = table, flip

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, key: Key) -> tuple[Tensor, Target]:
        row, seed = key
        kept = ~self.table.ignored[row]
        boxes = torch.from_numpy(self.table.boxes[row][kept].astype(np.float32))
        target = {"boxes": boxes, "labels": torch.from_numpy(self.table.labels[row][kept].astype(np.int64))}
        picture = read_scene(self.table, row)
        if self.flip and np.random.default_rng(seed).random() < 0.5:
            return mirrored(picture, target)
        return picture, target


def read_scene(table: SceneTable, row: int) -> Tensor:
    """A picture as bytes [3, height, width]; refused if it is not as large as its annotation says."""
    picture = read_image(table.files[row])
    expected = tuple(int(side) for side in table.sizes[row])
    if picture.size != expected:
        raise InputError(
            f"{shown(table.files[row])} is {picture.width} x {picture.height} px (turned upright, where it says so), "
            f"but its boxes are for {expected[0]} x {expected[1]}; mend the annotation, or leave the picture out"
        )
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def mirrored(picture: Tensor, target: Target) -> tuple[Tensor, Target]:
    """The picture and its boxes, left and right exchanged.

    >>> _, target = mirrored(torch.zeros(3, 4, 10), {"boxes": torch.tensor([[1.0, 0.0, 4.0, 2.0]])})
    >>> target["boxes"]
    tensor([[6., 0., 9., 2.]])
    """
    left, top, right, bottom = target["boxes"].unbind(1)
    width = picture.shape[-1]
    return picture.flip(-1), target | {"boxes": torch.stack([width - right, top, width - left, bottom], 1)}


def training_scenes(
    table: SceneTable,
    sampler: SceneBatches,
    *,
    seed: int = 0,
    flip: bool = True,
    workers: int = 2,
    start: int | None = None,
    stop: int | None = None,
) -> Iterator[Batch]:
    """This process's pictures and targets of one batch of the sampler after another.

    start, stop: batches since the start of epoch 0 that are done already, and after which it ends
    """
    dataset = WholeBatches(SceneDataset(table, flip), _as_lists)
    return read_batches(dataset, training_keys(sampler, seed, start, stop), workers)


def all_scenes(table: SceneTable, size: int = 8, workers: int = 2) -> Iterator[list[Tensor]]:
    """The pictures of all rows once, in order, so many at a time."""
    starts = range(0, len(table), size)
    keys = ([(row, 0) for row in range(start, min(start + size, len(table)))] for start in starts)
    for pictures, _ in read_batches(
        WholeBatches(SceneDataset(table, False), _as_lists), keys, min(workers, len(starts))
    ):
        yield pictures


def _as_lists(parts: list[Any]) -> Batch:
    return [picture for picture, _ in parts], [target for _, target in parts]


def check_boxes(table: SceneTable) -> None:
    """Refuse objects without an area or outside of their picture, which readers have clipped or left out."""
    for row, file in enumerate(table.files):
        boxes, (width, height) = table.boxes[row], table.sizes[row]
        left, top, right, bottom = boxes.T if len(boxes) else np.zeros((4, 0))
        wrong = ~((left >= 0) & (top >= 0) & (right <= width) & (bottom <= height) & (left < right) & (top < bottom))
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"{shown(file)}: object {place + 1} has the box {boxes[place].tolist()}, without an area or not within "
                f"{width} x {height}; clip it, or leave it out"
            )
