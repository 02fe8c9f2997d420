"""The study of batches up to the whole training set."""

import numpy as np
import pytest

from frontrank.data.table import ImageTable
from frontrank.errors import InputError
from studies.batch_size import batch_sizes, equal_classes


def test_batch_sizes_grow_by_eight_up_to_half_of_all():
    assert batch_sizes(1791, 112) == [112]
    assert batch_sizes(1792, 112) == [112, 896]
    assert batch_sizes(4 * 10_186, 112) == [112, 896, 7168]


def table_of(sizes, splits):
    labels = np.repeat([f"class {place:03d}" for place in range(len(sizes))], sizes)
    paths = np.array([f"{row}.png" for row in range(len(labels))])
    nothing = np.full(len(labels), "")
    return ImageTable("many", paths, labels, nothing, np.repeat(splits, sizes), nothing)


def test_every_training_class_has_as_many_images():
    table = table_of([2, 4, 7] * 30 + [5] * 4, ["train"] * 90 + ["test"] * 4)
    cut = equal_classes(table, 4, 8)
    splits = "train", "validation", "test"
    counts = {split: np.unique(cut.of(split).labels, return_counts=True)[1].tolist() for split in splits}
    assert counts == {"train": [4] * 48, "validation": [4] * 6, "test": [5] * 4}
    assert not set(cut.of("train").labels) & set(cut.of("validation").labels)
    assert set(cut.paths) <= set(table.paths)
    assert len(set(cut.paths)) == len(cut)
    assert cut.paths.tolist() == equal_classes(table, 4, 8).paths.tolist()
    assert cut.paths.tolist() != equal_classes(table, 4, 8, seed=1).paths.tolist()


def test_too_few_classes_are_refused():
    with pytest.raises(InputError, match=r"18 .* 20"):
        equal_classes(table_of([4] * 18 + [5], ["train"] * 18 + ["test"]), 4, 8)
