"""smooth-ap-ablation and rambo-ablation: what is trained, with made-up runs in place of it, and the verdicts."""

import pytest

from frontrank.studies import rambo_ablation, smooth_ap_ablation
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
