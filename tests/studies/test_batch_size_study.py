"""The study of batches up to the whole training set."""

import numpy as np
import pytest

from frontrank.data.image_table import ImageTable
from frontrank.errors import InputError
from frontrank.studies import batch_size
from frontrank.studies.batch_size import batch_sizes, equal_classes
from tests.studies.made_up import entry


def test_batch_sizes_grow_by_eight_up_to_half_of_all():
    assert batch_sizes(1791, 112) == [112]
    assert batch_sizes(1792, 112) == [112, 896]
    assert batch_sizes(4 * 10_186, 112) == [112, 896, 7168]
    assert batch_sizes(100, 112) == [112]


def table_of(sizes, splits):
    labels = np.repeat([f"class {place:03d}" for place in range(len(sizes))], sizes)
    paths = np.array([f"{row}.png" for row in range(len(labels))])
    nothing = np.full(len(labels), "")
    return ImageTable("many", paths, labels, nothing, np.repeat(splits, sizes), nothing)


def test_every_class_that_trains_has_as_many_images():
    sizes = [2, 4, 7] * 30 + [5] * 4
    table = table_of(sizes, ["train"] * 90 + ["test"] * 4)
    cut = equal_classes(table, 4, 8)
    parts = ("train", "validation", "test")
    counts = {split: np.unique(cut.of(split).labels, return_counts=True)[1] for split in parts}
    assert (counts["validation"] == 4).all()
    assert len(counts["validation"]) == 6
    assert (counts["train"] == 4).all()
    assert len(counts["train"]) == 48
    assert counts["test"].tolist() == [5] * 4  # as they are
    assert not set(cut.of("train").labels) & set(cut.of("validation").labels)
    assert set(cut.paths) <= set(table.paths)
    assert len(set(cut.paths)) == len(cut)
    assert cut.paths.tolist() == equal_classes(table, 4, 8).paths.tolist()
    assert cut.paths.tolist() != equal_classes(table, 4, 8, seed=1).paths.tolist()


def test_too_few_classes_are_refused():
    with pytest.raises(InputError, match=r"18 training classes have 4 images or more, and the study needs 20;"):
        equal_classes(table_of([4] * 18 + [5], ["train"] * 18 + ["test"]), 4, 8)


def test_runs_of_a_seed_each_are_one_row():
    runs = [{"size": 8, "lr": 0.1, **entry({}, mean)} for mean in (0.5, 0.6)]
    for run in runs:
        run["values"] = {name: values[:1] for name, values in run["values"].items()}
        run["seconds"], run["megabytes"] = [0.1], [9.0]
    joined = batch_size._joined(runs)
    assert joined["values"] == {"mAP": [0.5, 0.6], "R@1": [0.5, 0.6]}
    assert (joined["size"], joined["seconds"]) == (8, [0.1, 0.1])


def results(images, after, middle=0.69):
    """Means of batches of 112 with equal images, and trained on; that of the whole is 0.7, and 0.75 as a finish."""
    whole = 7168
    rows = [
        *((112, "images", images), (896, "images", middle), (whole, "images", 0.7)),
        *((112, "updates", 0.5), (896, "updates", 0.6)),
        *((112, "after", after), (whole, "after", 0.75)),
    ]
    passes = {"images": 10, "after": 5}
    made = []
    for size, budget, mean in rows:
        updates = passes[budget] * whole // size if budget in passes else 10
        made.append({"size": size, "budget": budget, "updates": updates, **entry({}, mean, 0.001)})
    facts = {"classes": 1792, "images": whole, "per_class": 4, "passes": 10, "more": 5}
    return {**facts, "frozen": {"mAP": 0.4, "R@1": 0.5}, "rows": made}


@pytest.mark.parametrize(
    ("images", "after", "middle", "said", "begin", "end"),
    [
        (0.6, 0.7, 0.69, "**Agrees** with", "from the beginning more than", "it gains,"),
        (0.8, 0.7, 0.69, "**Agrees in part** with", "from the beginning more than", "it gains,"),
        (0.6, 0.7, 0.72, "**Agrees in part** with", "from the beginning less than", "it gains,"),
        (0.6, 0.75, 0.7, "**Agrees in part** with", "neither more nor less than", "it neither gains nor loses,"),
        (0.8, 0.8, 0.69, "**Does not agree** with", "from the beginning more than", "it loses,"),
    ],
)
def test_the_verdict_follows_from_what_was_measured(images, after, middle, said, begin, end):
    found = results(images, after, middle)
    text = batch_size.told(found)
    assert said in text
    assert begin in text
    assert end in text
    assert "| equal images, equal updates | 7,168, all | 10 | 70.0 ± 0.1 |" in text
    assert "| after small batches | 112 | 320 |" in text
    figures = batch_size.figures(found)
    assert set(figures) == {"batch-size"}
    for axes in figures["batch-size"].axes:
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["112", "896", "7,168"]


def test_rates_at_an_end_are_named():
    found = results(0.6, 0.7)
    assert "Of 7 searches 6 chose the lowest or the highest of three: " in batch_size.told(found)  # 3e-4 everywhere
    for row in found["rows"]:
        row["lr"] = 1e-4 if row["budget"] == "after" else 3e-4 if row["updates"] >= 300 else 1e-3
    assert "Of 7 searches 0 chose the lowest or the highest of three. Times" in batch_size.told(found)


def test_one_seed_is_no_evidence():
    found = results(0.6, 0.7)
    for row in found["rows"]:
        row["values"] = {name: values[:1] for name, values in row["values"].items()}
    assert "**Does not agree** with" in batch_size.told(found)
