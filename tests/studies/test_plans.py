"""Studies that train: every run of the whole study is planned, on as many images as emoji have, and none is run."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from frontrank.comparison.runner import split_table, steps_of_way
from frontrank.data.table import ImageTable
from studies import batch_size, fastap_batches, find_study, trained
from studies.study import Effort
from tests.studies.samples import render

CLASSES = 1786  # of emoji, half of which train
METRICS = ("R@1", "mAP", "dists@intra", "dists@inter")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table as large as that of emoji, whose files do not exist."""
    folder = tmp_path_factory.mktemp("many")
    classes = np.repeat(np.arange(CLASSES), np.arange(CLASSES) % 5 + 4)
    paths = np.array([f"{row}.png" for row in range(len(classes))])
    labels, groups = np.array([f"{each:04d}" for each in classes]), np.array([f"group {each % 9}" for each in classes])
    splits = np.where(classes % 2 == 0, "train", "test")
    ImageTable(folder, paths, labels, groups, splits, np.full(len(classes), "")).save(folder / "images.csv")
    return str(folder / "images.csv")


@pytest.fixture
def plan(table, tmp_path, monkeypatch):
    """A function that returns the comparisons of a study, by name: settings, steps and learning rates of each way."""
    plans = {}

    def compare(plan, out, quiet):
        split = split_table(trained.build_images(plan.base.data), plan)[0]
        assert out.name not in plans
        plans[out.name] = [(way.settings, steps_of_way(plan, way, split), len(way.lrs)) for way in plan.ways]
        costs = {"seeds": (0, 1, 2), "seconds": (0.1,), "megabytes": (9.0,), "failed": ""}
        values = dict.fromkeys(METRICS, (0.5, 0.5, 0.5))
        entries = [
            SimpleNamespace(name=way.name, settings=way.settings, values=values, lr=way.lrs[0], **costs)
            for way in plan.ways
        ]
        return SimpleNamespace(frozen=dict.fromkeys(METRICS, 0.4), entries=entries)

    hardness = {kind: {str(size): [0.5, 0.6] for size in (16, 32)} for kind in fastap_batches._KINDS}
    monkeypatch.setattr(trained.runner, "run_comparison", compare)
    monkeypatch.setattr(fastap_batches, "_hardness", lambda *_: hardness)
    monkeypatch.setattr(batch_size, "model_folders", lambda effort, name: [Path("a"), Path("b"), Path("c")])

    def measure(name, quick=False):
        study = find_study(name)
        results = study.measure(Effort(tmp_path / "work", quick, data=table, show=False))
        assert f"**{study.values(results)['verdict']}**" in render(study, results)
        return plans

    return measure


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("apq-triplet", {"32-images-4-updates": 2, "16-images-4-updates": 1}),
        ("fastap-ablation", {"updates": 2, "images": 2, "bins": 2}),
        ("fastap-batches", {"batches": 4}),
        ("grid", {"grid": 3}),
        ("pnp-ablation", {"alpha": 5, "b": 5, "per_class": 3}),
        ("pnp-merged", {"whole": 3, "merged": 3}),
        ("smooth-ap-ablation", {"temperature": 3, "positives": 2, "steps": 2, "smaller": 1, "larger": 1}),
        ("apq-ablation", {"bins": 4, "updates": 2, "images": 2, "classes": 2, "weights": 2}),
    ],
)
def test_numbers_of_settings_of_quick_studies(plan, name, counts):
    plans = plan(name, quick=True)
    assert {name: len(ways) for name, ways in plans.items()} == counts
    assert {steps for ways in plans.values() for _, steps, _ in ways} == {4}


def test_rambo_ablation(plan):
    (ways,) = plan("rambo-ablation").values()
    assert [(way["loss.margin"], way["batches.memory"], steps) for way, steps, _ in ways] == [
        *((0.2, memory, 80) for memory in (4480, 0)),
        *((0.0, memory, 80) for memory in (4480, 0)),
    ]


def test_batch_size(plan):
    plans = plan("batch-size")
    whole = 2688  # of 4 images of each of 803 classes, the largest multiple of 896
    sizes = (112, 896, whole)
    assert list(plans) == [
        *("112-images", "112-updates", "896-images", "896-updates", "2688-images"),
        *(f"{size}-after-{place}" for size in (112, whole) for place in range(3)),
    ]
    ways = {name: way for name, (way,) in plans.items()}
    assert {ways[f"{size}-images"][1] * size for size in sizes} == {10 * whole}  # to the last image
    assert {ways[f"{size}-updates"][1] for size in (112, 896)} == {10}
    assert {ways[f"{size}-after-{place}"][1] * size for size in (112, whole) for place in range(3)} == {5 * whole}
    assert [ways[f"{size}-after-{place}"][2] for size in (112, whole) for place in range(3)] == [3, 1, 1] * 2  # rates
    assert [ways[f"{size}-images"][0]["batches.chunk"] for size in sizes] == [0, 112, 112]
