"""The study of batches up to the whole training set."""

from dataclasses import replace

import numpy as np
import pytest

from frontrank.data.table import ImageTable
from frontrank.errors import InputError
from frontrank.settings import DataConfig
from frontrank.training.run import build_images
from studies import batch_size
from studies.batch_size import batch_sizes, equal_classes
from studies.study import Effort
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
    assert "| equal images, equal updates | 7,168, all | 10 | 70.00 ± 0.10 |" in text
    assert f"all images in one batch against the smallest batches {100 * (0.7 - images):+.2f} ± 0.08." in text
    assert "| after small batches | 112 | 320 |" in text
    figures = batch_size.figures(found)
    assert set(figures) == {"batch-size"}
    for axes in figures["batch-size"].axes:
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["112", "896", "7,168"]


def test_the_answer_depends_on_rates_at_an_end():
    found = results(0.6, 0.7)  # 3e-4 everywhere
    (answer,) = [line for line in batch_size.told(found).splitlines() if line.startswith("What the exact gradient")]
    named = "896, equal images; 7,168, equal images; 112, equal updates; 896, equal updates; 112, after small batches"
    assert f"6 chose the lowest or the highest of 3 tried, so these could still gain: {named}; 7,168, after" in answer
    assert answer.endswith(
        "The answer depends on it: with other rates to choose from, sizes may stand in another order."
    )
    found["rows"][0]["lr"] = 1e-3
    assert "Of 7 searches for a learning rate, all chose" in batch_size.told(found)
    for row in found["rows"]:
        row["lr"] = 1e-4 if row["budget"] == "after" else 3e-4 if row["updates"] >= 300 else 1e-3
    assert "Of 7 searches for a learning rate, none chose" in batch_size.told(found)
    assert "The answer depends on it" not in batch_size.told(found)


def test_other_images_do_not_mix_with_those_of_runs_that_are_kept(tmp_path, images, monkeypatch):
    class StoppedError(Exception):
        pass

    def stopped(effort, name, data, *others):
        raise StoppedError(data)

    monkeypatch.setattr(batch_size, "_trained", stopped)
    effort = Effort(tmp_path / "work", quick=True, data=images, show=False)
    cut = tmp_path / "work" / "cut"
    for _ in range(2):  # the same command goes on
        with pytest.raises(StoppedError, match=r"work/cut/images\.csv"):
            batch_size.measure(effort)
    before = (cut / "images.csv").read_bytes()
    build_images(DataConfig(path=images)).rows(range(8, 480)).save(tmp_path / "others.csv")
    for other in (replace(effort, data=str(tmp_path / "others.csv")), replace(effort, seed=1)):
        with pytest.raises(InputError, match=r"work holds runs on other images than --data, --seed and --quick give n"):
            batch_size.measure(other)
    assert [(path.name, path.read_bytes()) for path in cut.iterdir()] == [("images.csv", before)]


def test_memory_is_drawn_with_its_unit():
    axes = batch_size.figures(results(0.6, 0.7))["batch-size"].axes
    assert [each.get_ylabel() for each in axes] == ["mAP, %", "R@1, %", "GB"]
    assert [len(each.lines) for each in axes][-1] == 1


def test_one_seed_is_no_evidence():
    found = results(0.6, 0.7)
    for row in found["rows"]:
        row["values"] = {name: values[:1] for name, values in row["values"].items()}
    assert "**Does not agree** with" in batch_size.told(found)
