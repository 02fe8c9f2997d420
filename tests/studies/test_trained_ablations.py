"""smooth-ap-ablation and rambo-ablation: what is trained, with made-up runs in place of it, and the verdicts."""

from types import SimpleNamespace

import numpy as np
import pytest

from frontrank.build import build_images
from frontrank.data.image_table import ImageTable
from frontrank.jobs.comparison_checks import _parted, _steps
from frontrank.studies import rambo_ablation, smooth_ap_ablation, trained
from frontrank.studies.study import Effort
from tests.studies.made import without_training


@pytest.fixture
def effort(tmp_path, images, monkeypatch):
    """Nothing is trained."""
    without_training(monkeypatch)
    return Effort(work=tmp_path / "work", quick=True, data=images, show=False)


def test_smooth_ap_varies_one_setting_at_a_time(effort):
    found = smooth_ap_ablation.measure(effort)
    assert {name: [each["value"] for each in entries] for name, entries in found["columns"].items()} == {
        "temperature": ["0.001", "0.01", "0.1"],
        "positives": ["2", "4", "8"],
        "batch, same steps": ["8", "16", "32"],
        "batch, same images": ["8", "16", "32"],
    }
    middle = [entries[1]["mAP"] for entries in found["columns"].values()]
    assert middle == [middle[0]] * 4
    assert "before training mAP" in smooth_ap_ablation.told(found)
    assert smooth_ap_ablation.figures(found)


def test_rambo_is_trained_with_and_without_each(effort):
    found = rambo_ablation.measure(effort)
    assert [(each["margin"], each["memory"]) for each in found["entries"]] == list(rambo_ablation._WAYS)
    assert all(len(each["R@1"]) == 1 for each in found["entries"])
    assert rambo_ablation.figures(found)


@pytest.fixture
def plans(tmp_path, monkeypatch):
    """What whole studies would train on as many images as emoji have: (folder, settings, steps) of each run."""
    labels = np.repeat(np.arange(1786), np.arange(1786) % 5 + 4)
    paths, none = np.array([f"{row}.png" for row in range(len(labels))]), np.full(len(labels), "")
    splits = np.where(labels % 2 == 0, "train", "test")
    ImageTable(tmp_path, paths, labels.astype(str), none, splits, none).save(tmp_path / "images.csv")
    found = []

    def planned(plan, out, quiet):
        table = _parted(build_images(plan.base.data), plan)[0]
        found.extend((out.name, way.settings, _steps(plan, way, table)) for way in plan.ways)
        values = dict.fromkeys(rambo_ablation._METRICS, (0.5, 0.5, 0.5))
        more = {"lr": 1e-4, "seeds": (0, 1, 2), "values": values, "seconds": (), "megabytes": (), "failed": ""}
        entries = [SimpleNamespace(name=way.name, settings=way.settings, **more) for way in plan.ways]
        return SimpleNamespace(frozen=dict.fromkeys(values, 0.4), entries=entries)

    monkeypatch.setattr(trained, "compare", planned)
    effort = Effort(work=tmp_path / "work", data=str(tmp_path / "images.csv"), show=False)
    return lambda study: (study.measure(effort), found)[1]


def test_whole_ablation_of_smooth_ap(plans):
    runs = plans(smooth_ap_ablation)
    assert [
        (name, way["loss.temperature"], way["batches.size"], way["batches.per_class"], steps)
        for name, way, steps in runs
    ] == [
        *(("temperature", temperature, 128, 4, 80) for temperature in (0.001, 0.01, 0.1)),
        *(("positives", 0.01, 128, per_class, 80) for per_class in (2, 8)),
        *(("steps", 0.01, size, 4, 80) for size in (64, 256)),
        ("smaller", 0.01, 64, 4, 160),
        ("larger", 0.01, 256, 4, 40),
    ]


def test_whole_ablation_of_rambo(plans):
    runs = plans(rambo_ablation)
    assert [(way["loss.margin"], way["batches.memory"], steps) for _, way, steps in runs] == [
        (0.02, 784, 80),
        (0.02, 0, 80),
        (0.0, 784, 80),
        (0.0, 0, 80),
    ]
    assert {way["loss.lam"] for _, way, _ in runs} == {32.0}


def columns(temperatures, positives, sizes):
    def entries(names, means):
        return [{"value": name, "mAP": [mean], "R@1": [mean]} for name, mean in zip(names, means, strict=True)]

    batch = entries(("64", "128", "256"), sizes)
    return {
        "temperature": entries(("0.001", "0.01", "0.1"), temperatures),
        "positives": entries(("2", "4", "8"), positives),
        "batch, same steps": batch,
        "batch, same images": batch,
    }


@pytest.mark.parametrize(
    ("temperatures", "positives", "sizes", "verdict"),
    [
        ((0.4, 0.5, 0.3), (0.3, 0.5, 0.4), (0.4, 0.5, 0.6), "**Agrees**"),
        ((0.4, 0.5, 0.6), (0.3, 0.5, 0.4), (0.4, 0.5, 0.6), "**Agrees in part**"),
        ((0.6, 0.5, 0.6), (0.3, 0.5, 0.6), (0.6, 0.5, 0.4), "**Does not agree**"),
        ((0.5, 0.504, 0.5), (0.3, 0.5, 0.5), (0.5, 0.5, 0.6), "**Does not agree**"),  # less than half a point
    ],
)
def test_verdict_of_smooth_ap(temperatures, positives, sizes, verdict):
    found = {
        "columns": columns(temperatures, positives, sizes),
        "frozen": {"mAP": 0.3, "R@1": 0.4},
        "steps": 80,
        "seeds": 1,
    }
    assert verdict in smooth_ap_ablation.told(found)


@pytest.mark.parametrize(
    ("no_memory", "no_margin", "verdict"),
    [(0.4, [], "**Agrees**"), (0.4, [0.5], "**Agrees in part**"), (0.6, [0.6], "**Does not agree**")],
)
def test_verdict_of_rambo(no_memory, no_margin, verdict):
    def entry(margin, memory, values):
        return {"margin": margin, "memory": memory, "failed": "", **dict.fromkeys(rambo_ablation._METRICS, values)}

    entries = [
        entry(True, True, [0.5]),
        entry(True, False, [no_memory]),
        entry(False, True, no_margin),
        entry(False, False, [0.3]),
    ]
    found = {"entries": entries, "frozen": {"R@1": 0.4}}
    assert verdict in rambo_ablation.told(found)
    assert ("failed" in rambo_ablation.told(found)) is (not no_margin)
    assert rambo_ablation.figures(found)
