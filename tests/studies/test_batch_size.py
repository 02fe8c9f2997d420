"""The study of batches up to the whole training set."""

import numpy as np
import pytest

from frontrank.data.table import ImageTable
from frontrank.errors import InputError
from studies import batch_size
from studies.batch_size import batch_sizes, equal_classes
from studies.study import AGREES, AGREES_IN_PART, DOES_NOT_AGREE
from tests.studies.samples import entry, verdict


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


def results_of(images, after, middle=0.69):
    """Means of batches of 112 with equal images, and trained on; that of the whole is 0.7, and 0.75 as a finish."""
    whole = 7168
    means = [
        *((112, "images", images), (896, "images", middle), (whole, "images", 0.7)),
        *((112, "updates", 0.5), (896, "updates", 0.6)),
        *((112, "after", after), (whole, "after", 0.75)),
    ]
    passes = {"images": 10, "after": 5}
    rows = []
    for size, budget, mean in means:
        updates = passes[budget] * whole // size if budget in passes else 10
        rows.append({"size": size, "budget": budget, "updates": updates, **entry({}, mean, 0.001)})
    facts = {"classes": 1792, "images": whole, "per_class": 4, "passes": 10, "more": 5}
    return {**facts, "frozen": {"mAP": 0.4, "R@1": 0.5}, "rows": rows}


@pytest.mark.parametrize(
    ("means", "word"),
    [
        ((0.6, 0.7, 0.69), AGREES),
        ((0.8, 0.7, 0.69), AGREES_IN_PART),
        ((0.6, 0.7, 0.72), AGREES_IN_PART),  # the largest is worse than the next
        ((0.8, 0.8, 0.69), DOES_NOT_AGREE),
    ],
)
def test_verdict(means, word):
    results = results_of(*means)
    assert verdict(batch_size.STUDY, results) == word
    values = batch_size.values(results)
    assert values["sizes"] == [112, 896, 7168]
    assert values["whole"].points == pytest.approx(100 * (0.7 - means[0]))
    assert values["finish"].points == pytest.approx(100 * (0.75 - means[1]))
    assert values["equal_updates"].points == pytest.approx(20)
