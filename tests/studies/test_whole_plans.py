"""The whole studies: every run of them is planned, on as many images as there are of emoji, and none is run."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from frontrank.comparison.runner import _parted, _steps
from frontrank.data.table import ImageTable
from studies import batch_size, fastap_batches, study_named, trained
from studies.study import Effort

CLASSES = 1786  # of emoji, half of which train


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A table as large as that of emoji, whose files are not there."""
    folder = tmp_path_factory.mktemp("many")
    sizes = np.arange(CLASSES) % 5 + 4
    classes = np.repeat(np.arange(CLASSES), sizes)
    paths = np.array([f"{row}.png" for row in range(len(classes))])
    labels, groups = np.array([f"{each:04d}" for each in classes]), np.array([f"group {each % 9}" for each in classes])
    splits = np.where(classes % 2 == 0, "train", "test")
    table = ImageTable(folder, paths, labels, groups, splits, np.full(len(classes), ""))
    table.save(folder / "images.csv")
    return folder


@pytest.fixture
def plans(images, monkeypatch):
    """A function that gives the comparisons of a study, by name: the settings, steps and learning rates of each way."""
    found = {}

    def planned(plan, out, quiet):
        table = _parted(trained.build_images(plan.base.data), plan)[0]
        ways = [(way.settings, _steps(plan, way, table), len(way.lrs)) for way in plan.ways]
        assert out.name not in found
        found[out.name] = ways
        costs = {"lr": 1e-3, "seeds": (0, 1, 2), "seconds": (0.1,), "megabytes": (9.0,), "failed": ""}
        values = dict.fromkeys(("R@1", "mAP"), (0.5, 0.5, 0.5))
        entries = [SimpleNamespace(name=w.name, settings=w.settings, values=values, **costs) for w in plan.ways]
        return SimpleNamespace(frozen={"R@1": 0.4, "mAP": 0.3}, entries=entries)

    monkeypatch.setattr(trained, "compare", planned)
    monkeypatch.setattr(fastap_batches, "_hardness", lambda *_: {})

    def of(name, folder):
        study_named(name).measure(Effort(Path(folder), data=str(images), show=False))
        return found

    return of


def steps_by(ways, setting):
    return {settings[setting]: steps for settings, steps, _ in ways}


def test_apq_ablation(plans, tmp_path):
    found = plans("apq-ablation", tmp_path)
    assert {name: len(ways) for name, ways in found.items()} == {
        **{"bins": 8, "updates": 3, "images": 3},
        **{"classes": 3, "weights": 2},
    }
    assert set(steps_by(found["updates"], "batches.size").values()) == {80}
    seen = [size * steps for size, steps in steps_by(found["images"], "batches.size").items()]
    assert max(seen) < 1.1 * min(seen)
    assert {settings["batches.size"] for settings, *_ in found["classes"]} == {1428}  # two of each of 714 classes


def test_apq_triplet(plans, tmp_path):
    found = plans("apq-triplet", tmp_path)
    seen = [settings["batches.size"] * steps for ways in found.values() for settings, steps, _ in ways]
    assert sorted(seen) == [17_920] * 3 + [35_840] * 2


def test_fastap(plans, tmp_path):
    found = dict(plans("fastap-ablation", tmp_path / "a"))
    assert {name: len(ways) for name, ways in found.items()} == {"updates": 3, "images": 3, "bins": 6}
    assert len(plans("fastap-batches", tmp_path / "b")["batches"]) == 6


def test_grid(plans, tmp_path):
    assert len(plans("grid", tmp_path)["grid"]) == 22


def test_batch_size(plans, monkeypatch, tmp_path):
    monkeypatch.setattr(batch_size, "trained_models", lambda effort, name: [Path("a"), Path("b"), Path("c")])
    found = plans("batch-size", tmp_path)
    whole = 2688  # of 4 images of each of 803 classes, what is a multiple of 896
    sizes = (112, 896, whole)
    assert list(found) == [
        *("112-images", "112-updates", "896-images", "896-updates", "2688-images"),
        *(f"{size}-after-{place}" for size in (112, whole) for place in range(3)),
    ]
    of = {name: ways[0] for name, ways in found.items() if len(ways) == 1}
    assert len(of) == len(found)
    assert {of[f"{size}-images"][1] * size for size in sizes} == {10 * whole}  # to the last image
    assert {of[f"{size}-updates"][1] for size in (112, 896)} == {10}
    assert {of[f"{size}-after-{place}"][1] * size for size in (112, whole) for place in range(3)} == {5 * whole}
    assert [of[f"{size}-after-{place}"][2] for size in (112, whole) for place in range(3)] == [3, 1, 1] * 2  # rates
    assert [of[f"{size}-images"][0]["batches.chunk"] for size in sizes] == [0, 112, 112]
    assert {rates for name, (*_, rates) in of.items() if "after" not in name} == {3}
