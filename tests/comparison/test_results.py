"""The results of a comparison: real small runs, whose numbers are computed again from what the runs left."""

import csv
import json
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.comparison import results as module
from frontrank.comparison.results import (
    ComparisonResults,
    Entry,
    compare_with_reference,
    comparison_table,
    note_differences,
)
from frontrank.data.table import read_table
from frontrank.evaluation.report import Report
from frontrank.reporting.findings import Curve
from frontrank.training.embedding import embed_table
from tests.comparison.comparisons import METRICS, OF_LEVELS, PER_QUERY, log_of, plan_of
from tests.reference import paired_classes as reference


def entry_of(name, *values, **others):
    curves = (Curve(np.zeros(0), np.zeros(0)),) * len(values)
    costs = (0.1, 0.3, 0.8)[: len(values)], (100.0, 200.0, 900.0)[: len(values)]
    return Entry(name, {}, 1e-3, {}, tuple(range(len(values))), {"R@1": values}, *costs, curves, **others)


def results_of(*entries, **others):
    named = {"title": "t", "axis": "", "metric": "R@1", "reference": "", "images": "i", "command": "c", "frozen": {}}
    return ComparisonResults(**{**named, "entries": entries, "settings": "", "versions": {}, **others})


# Of real runs


def values_of(model, test):
    embeddings = embed_table(model, test, workers=0, show=False)
    values = dict(fr.evaluate(embeddings, test.labels, metrics=METRICS))
    both = np.stack([test.labels, test.categories], 1)
    return values | dict(fr.evaluate(embeddings, both, metrics=["R@1", "mAP", "nDCG", "H-AP"]))


@pytest.mark.training
def test_values_are_those_of_the_models_on_the_test_images(trained):
    folder, results, _ = trained
    test = read_table(folder / "images.csv").of("test")
    for entry, way in zip(results.entries, sorted((folder / "runs").iterdir()), strict=True):
        assert (entry.seeds, list(entry.values)) == ((0, 1), [*PER_QUERY, *OF_LEVELS, *METRICS[5:]])
        for place, seed in enumerate(entry.seeds):
            model = fr.Embedder.load(way / f"lr-{entry.lr:g}-seed-{seed}" / "model")
            values = {name: of[place] for name, of in entry.values.items()}
            assert values == pytest.approx(values_of(model, test), abs=1e-6)
    torch.manual_seed(0)
    model = fr.Embedder("test_resnet", dim=0, batch_norm="frozen", image_size=32, resize=32)
    assert dict(results.frozen) == pytest.approx(values_of(model, test), abs=1e-6)  # of the first weights


@pytest.mark.training
def test_differences_are_over_seeds_and_classes(trained):
    folder, results, _ = trained
    labels = read_table(folder / "images.csv").of("test").labels
    values, validation = {}, {}
    for entry, way in zip(results.entries, sorted((folder / "runs").iterdir()), strict=True):
        runs = [way / f"lr-{entry.lr:g}-seed-{seed}" for seed in range(2)]
        reports = [fr.Report.load(run / "test.json") for run in runs]
        values[entry.name] = {name: np.array([r.per_query[name] for r in reports]) for name in [*PER_QUERY, *OF_LEVELS]}
        validation[entry.name] = fmean(json.loads((run / "run.json").read_text())["best"] for run in runs)
    best = max(validation, key=validation.get)
    assert results.reference == best
    (other,) = (entry for entry in results.entries if entry.name != best)
    (itself,) = (entry for entry in results.entries if entry.name == best)
    assert (itself.against, list(other.against)) == ({}, [*PER_QUERY, *OF_LEVELS])
    for name, change in other.against.items():
        assert change.difference == pytest.approx(fmean(other.values[name]) - fmean(itself.values[name]), abs=1e-9)
        expected = reference.over_seeds(values[best][name], values[other.name][name], labels, 0.95, 1000, 0)
        assert (change.low, change.high, change.p_value) == pytest.approx(expected, rel=1e-4)  # one other entry


@pytest.mark.training
def test_learning_rates_costs_and_curves_are_those_of_the_logs(trained):
    folder, results, _ = trained
    for entry, way in zip(results.entries, sorted((folder / "runs").iterdir()), strict=True):
        best = {}
        for run in way.glob("lr-*-seed-0"):
            tested = [line for line in log_of(run) if "loss" not in line]
            best[float(run.name.split("-")[1])] = max((x["validation R@1"], x["validation mAP"]) for x in tested)
        assert {lr: value for lr, (value, _) in best.items()} == entry.searched
        assert best[entry.lr] == max(best.values())
        for place, seed in enumerate(entry.seeds):
            log = log_of(way / f"lr-{entry.lr:g}-seed-{seed}")
            steps = [line for line in log if "loss" in line]
            assert entry.seconds[place] == pytest.approx(np.median([line["seconds per step"] for line in steps[1:]]))
            assert entry.megabytes[place] == max(line["peak MB"] for line in steps)
            points = [(x["step"], x["validation R@1"]) for x in log if "validation R@1" in x]
            curve = entry.curves[place]
            assert list(zip(curve.x.tolist(), curve.y.tolist(), strict=True)) == points


@pytest.mark.training
def test_files(trained):
    folder, results, _ = trained
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["frozen backbone", *(e.name for e in results.entries for _ in range(2))]
    assert [float(row["mAP"]) for row in rows[1:3]] == list(results.entries[0].values["mAP"])
    assert [float(row["peak MB"]) for row in rows[1:3]] == list(results.entries[0].megabytes)
    assert [row["seed"] for row in rows] == ["", "0", "1", "0", "1"]
    stored = json.loads((folder / "results.json").read_text())
    assert stored["entries"][1]["values"]["R@1"] == list(results.entries[1].values["R@1"])
    assert stored["entries"][1]["mean"]["R@1"] == fmean(results.entries[1].values["R@1"])
    assert (stored["reference"], stored["frozen"]) == (results.reference, results.frozen)
    markdown = (folder / "results.md").read_text()
    assert results.command in markdown
    assert all(name in markdown for name in METRICS)
    assert results.images.startswith("64 images")


# Of entries that are made up


def test_the_table_of_results():
    against = {"R@1": module.PairedDifference(-0.25, -0.5, 0.125, 0.0004)}
    entries = (
        entry_of("a", 0.5, 0.5, 0.6),
        entry_of("b", 0.25, 0.27, against=against),
        replace(entry_of("c"), values={}, failed="no memory"),
        replace(entry_of("d"), values={}, failed=module.UNFINISHED, lr=float("nan")),
    )
    results = results_of(*entries, reference="a", frozen={"mAP": 0.1})
    lines = [line.split("  ") for line in comparison_table(results).splitlines()[3:]]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [
        ["R@1", "R@1 against a", "p", "lr", "s/step", "MB"],
        ["frozen backbone", "-"],
        ["a", "53.33 ± 5.77", "reference", "0.001", "0.3", "200"],  # medians
        ["b", "26.00 (25.00 .. 27.00)", "-25.00 [-50.00, +12.50]", "<0.001", "0.001", "0.2", "150"],
        ["c", "-", "failed", "0.001"],
        ["d", "-", module.UNFINISHED],
    ]
    assert "**53.33 ± 5.77**" in comparison_table(results, "markdown")


def test_p_values_are_corrected_for_the_number_of_entries():
    """Six classes of one query: all up is 2 of 64 patterns, four up and two equal is 2 of 16."""
    classes = np.array(list("abcdef"))
    hits = {"all": np.ones(6), "some": np.array([1.0, 1, 1, 1, 0, 0]), "none": np.zeros(6), "failed": None}
    reports = {n: {} if x is None else {0: Report.of({"R@1": x}, [1] * 6, 6)} for n, x in hits.items()}
    entries = [entry_of(name) for name in hits]
    against = {entry.name: entry.against for entry in compare_with_reference(entries, reports, "none", classes)}
    assert (against["none"], against["failed"]) == ({}, {})
    assert against["all"]["R@1"] == (1.0, 1.0, 1.0, 2 * 2 / 64)
    assert (against["some"]["R@1"].difference, against["some"]["R@1"].p_value) == (4 / 6, 2 / 16)
    assert all(entry.against == {} for entry in compare_with_reference(entries, reports, "failed", classes))


@pytest.mark.parametrize(("classes", "seeds", "notes"), [(5, 3, 2), (6, 3, 1), (6, 1, 2), (5, 1, 3)])
def test_what_differences_cannot_say(classes, seeds, notes):
    """With 5 classes the least p is 2 / 2^5, which is above 0.05."""
    texts = note_differences(plan_of("photos", seeds=seeds), classes)
    assert len(texts) == notes
    assert [any(word in text for text in texts) for word in ("--seeds", "0.05")] == [seeds == 1, classes == 5]
    assert note_differences(plan_of("photos", "SmoothAP"), classes) == []
