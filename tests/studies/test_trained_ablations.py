"""smooth-ap-ablation and rambo-ablation: what is trained, with made-up runs in place of it, and the verdicts."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from frontrank.comparison.runner import _parted, _steps
from frontrank.data.table import ImageTable
from frontrank.training.run import build_images
from studies import rambo_ablation, smooth_ap_ablation, trained
from studies.study import Effort
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
    steps = {json.loads(path.read_text())["steps"] for path in effort.work.rglob("run.json")}
    assert steps == {found["steps"]} == {4}
    assert " 4 steps," in smooth_ap_ablation.told(found)
    assert "before training mAP" in smooth_ap_ablation.told(found)
    assert smooth_ap_ablation.figures(found)


def test_rambo_is_trained_with_and_without_each(effort):
    found = rambo_ablation.measure(effort)
    assert [(each["margin"], each["memory"]) for each in found["entries"]] == list(rambo_ablation._WAYS)
    assert all(len(each["R@1"]) == 1 for each in found["entries"])
    assert [each["lr"] for each in found["entries"]] == [3e-5] * 4  # the first of them, as it is quick
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
    assert trained.budget_steps(Effort(Path("unused"))) == 80
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
        return [{"value": name, "mAP": [mean] * 2, "R@1": [mean] * 2} for name, mean in zip(names, means, strict=True)]

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
        "seeds": 2,
    }
    assert verdict in smooth_ap_ablation.told(found)


def smooth_ap(temperatures=(0.4, 0.5, 0.3), positives=(0.3, 0.5, 0.4), sizes=(0.4, 0.5, 0.6)):
    made = columns(temperatures, positives, sizes)
    return {"columns": made, "frozen": {"mAP": 0.3, "R@1": 0.4}, "steps": 80, "seeds": 2}


@pytest.mark.parametrize(
    ("high", "said"),
    [(0.3, "yes, +20.0 ± 0.0"), (0.6, "no, the other way round, -10.0 ± 0.0"), (0.501, "not shown, -0.1 ± 0.0")],
)
def test_what_smooth_ap_does_not_show_is_told_from_the_other_way_round(high, said):
    text = smooth_ap_ablation.told(smooth_ap(temperatures=(0.4, 0.5, high)))
    assert f"- a temperature of 0.01 is better than 0.1: {said}\n" in text
    assert "- larger batches are better, by as many steps: yes, +10.0 ± 0.0 and +10.0 ± 0.0\n" in text


@pytest.mark.parametrize(("two", "worse"), [(0.3, True), (0.5, False), (0.6, False)])
def test_that_the_fewest_images_of_a_class_are_worse_is_told_where_they_are(two, worse):
    text = smooth_ap_ablation.told(smooth_ap(positives=(two, 0.5, 0.4)))
    assert ("Few images of a class are not better without end: 2 of them" in text) is worse
    assert ("The paper has no 2 images of a class; here they are" in text) is not worse


def test_runs_of_smooth_ap_that_diverged_are_told():
    found = smooth_ap()
    found["columns"]["temperature"][0].update(mAP=[], **{"R@1": []})
    found["columns"]["positives"][2].update(mAP=[0.4], planned=2, **{"R@1": [0.4]})
    found["columns"]["batch, same images"] = [
        {**each, "mAP": []} for each in columns(*[(0.1, 0.2, 0.3)] * 3)["positives"]
    ]
    text = smooth_ap_ablation.told(found)
    assert "| temperature | 0.001 | diverged |  | 83.9 |" in text
    assert "| images of a class in a batch | 8 | 40.0 (1 of 2 seeds) | 40.0 (1 of 2 seeds) | 83.3 |" in text
    assert "- a temperature of 0.01 is better than 0.001: yes, a setting diverged\n" in text
    assert "- 4 images of a class are better than 8: not shown, +10.0 (one seed)\n" in text
    assert "- larger batches are better, by as many images: no, a setting diverged\n" in text


def rambo(*values, widths=None, lr=3e-4):
    """Results of RaMBO: R@1 of each way over seeds, distances within its classes, a learning rate."""
    entries = []
    for place, ((margin, memory), own) in enumerate(zip(rambo_ablation._WAYS, values, strict=True)):
        made = {"margin": margin, "memory": memory, "lr": lr, **dict.fromkeys(rambo_ablation._METRICS, own)}
        made |= {"dists@intra": [widths[place]] * len(own)} if widths else {}
        entries.append(made)
    return {"entries": entries, "frozen": {"R@1": 0.4}}


@pytest.mark.parametrize(
    ("no_memory", "said"),
    [
        ([0.4], "**Agrees**: without a memory R@1 changes by"),
        ([0.5, 0.5], "which is no loss that counts"),
        ([], "**Agrees in part**: without a memory R@1 is not known, as 2 of 2 runs diverged, which is no loss"),
    ],
)
def test_without_a_memory_only_a_lower_recall_is_a_loss(no_memory, said):
    whole = [0.5, 0.5]
    assert said in rambo_ablation.told(rambo(whole, no_memory * (2 // max(1, len(no_memory))), [0.4, 0.4], whole))


def test_runs_that_diverge_without_a_memory_are_no_loss():
    said = rambo_ablation.told(rambo([0.5, 0.5], [0.5], [0.4, 0.4], [0.5, 0.5]))
    assert "**Agrees in part**" in said
    assert "1 of 2 runs diverged, which is no loss that counts; without a margin" in said


@pytest.mark.parametrize(
    ("widths", "collapses"),
    [((0.05, 0.3, 0.05, 0.3), True), ((0.05, 0.3, 0.2, 0.3), False), ((0.1, 0.3, 0.05, 0.3), False)],
)
def test_that_embeddings_end_up_close_together_is_told_where_they_do(widths, collapses):
    found = rambo(*[[0.5, 0.5]] * 4, widths=widths)
    assert ("all embeddings end up close together" in rambo_ablation.told(found)) is collapses
    assert ("The likely reason" in rambo_ablation.told(found)) is collapses


def test_without_distances_nothing_is_told_of_them():
    found = rambo([0.5, 0.5], [0.5, 0.5], [], [0.5, 0.5], widths=(0.05, 0.3, 0.05, 0.3))
    assert "close together" not in rambo_ablation.told(found)


@pytest.mark.parametrize(("lr", "ends"), [(3e-4, "all chose the lowest or the highest of 3 tried"), (1e-4, "none")])
def test_learning_rates_of_rambo_are_told_and_whether_they_are_at_an_end(lr, ends):
    said = rambo_ablation.told(rambo(*[[0.5, 0.5]] * 4, lr=lr))
    assert f" | 0.50 | {lr:g} | 64.0, 88.1, 78.6 |" in said
    assert "| between classes | lr | R@1 of the paper" in said
    assert f"Of 4 searches for a learning rate, {ends}" in said


@pytest.mark.parametrize(
    ("no_memory", "no_margin", "verdict"),
    [
        (0.4, [], "**Agrees**"),
        (0.4, [0.6], "**Agrees**"),  # one of two diverged
        (0.4, [0.5, 0.5], "**Agrees in part**"),
        (0.6, [0.6, 0.6], "**Does not agree**"),
    ],
)
def test_verdict_of_rambo(no_memory, no_margin, verdict):
    found = rambo([0.5, 0.5], [no_memory] * 2, no_margin, [0.3, 0.3])
    assert verdict in rambo_ablation.told(found)
    assert ("runs diverged" in rambo_ablation.told(found)) is (len(no_margin) < 2)
    assert rambo_ablation.figures(found)
