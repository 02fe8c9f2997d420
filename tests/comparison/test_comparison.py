"""`compare`: real small runs; what is printed is computed again from what the runs left."""

import csv
import json
from statistics import fmean, stdev

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.comparison.results import Entry, _against, comparison_table
from frontrank.comparison.runner import run_count
from frontrank.comparison.tasks import choose_lr, chosen_lr
from frontrank.data.table import read_table
from frontrank.evaluation.report import Report, percent
from frontrank.settings import read_config, read_recipe
from frontrank.training.embedding import embed_table
from tests.comparison.comparisons import METRICS, PER_QUERY, log_of, plan_of
from tests.reference import paired_classes as reference


def test_learning_rates_are_chosen_by_the_held_out_classes(compared_before):
    folder, compared, _ = compared_before
    for entry, way in zip(compared.entries, sorted((folder / "runs").iterdir()), strict=True):
        best = {}
        for run in way.glob("lr-*-seed-0"):
            lr = float(run.name.split("-seed")[0].removeprefix("lr-"))
            values = [
                (line["validation R@1"], line["validation mAP"]) for line in log_of(run)[1:] if "loss" not in line
            ]
            best[lr] = max(values)
        assert {lr: value for lr, (value, _) in best.items()} == entry.searched
        assert best[entry.lr] == max(best.values())
        assert f"{entry.name}: the learning rate chosen, {entry.lr:g}, is the" in "\n".join(compared.notes)  # of two


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ({1e-3: (0.5, 0.2), 1e-2: (0.4, 0.9), 1e-1: (0.3, 0.1)}, 1e-3),  # the metric comes first
        ({1e-3: (0.5, 0.2), 1e-2: (0.5, 0.3), 1e-1: (0.4, 0.9)}, 1e-2),  # of equal ones that of more mAP
        ({1e-3: (0.4, 0.2), 1e-2: (0.5, 0.3), 1e-1: (0.5, 0.3)}, 1e-2),  # then the smaller one
        ({1e-2: (0.1, 0.3)}, 1e-2),  # the others failed
        ({}, None),
    ],
    ids=["metric", "mAP", "smaller", "others failed", "all failed"],
)
def test_the_choice_of_a_learning_rate(tmp_path, found, chosen):
    """What runs would leave, for cases that real ones rarely give."""
    plan = plan_of(tmp_path, "SmoothAP", lrs="1e-3,1e-2,1e-1")
    for lr, (best, average) in found.items():
        run = tmp_path / "runs" / plan.ways[0].folder / f"lr-{lr:g}-seed-0"
        (run / "model").mkdir(parents=True)
        (run / "cost.json").write_text("{}")
        (run / "run.json").write_text(json.dumps({"best": best, "best_step": 2}))
        lines = ({"step": step, "validation mAP": average if step == 2 else 1.0} for step in (1, 2, 3))
        (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for lr in {1e-3, 1e-2, 1e-1} - set(found):
        failed = tmp_path / "runs" / plan.ways[0].folder / f"lr-{lr:g}-seed-0.failed"
        failed.parent.mkdir(parents=True, exist_ok=True)
        failed.write_text("the gradient is not finite at step 3\n")
    assert choose_lr(plan, plan.ways[0], tmp_path) == chosen
    assert chosen_lr(plan.ways[0], tmp_path) == chosen  # and kept
    models = [f"lr-{lr:g}-seed-0" for lr in found if lr == chosen]
    assert [path.parent.name for path in tmp_path.glob("runs/*/*/model")] == models  # others are of no use


def test_values_are_those_of_the_kept_models_on_the_test_images(compared_before):
    folder, compared, _ = compared_before
    test = read_table(folder / "images.csv").of("test")
    assert len(test) == 64
    for entry, way in zip(compared.entries, sorted((folder / "runs").iterdir()), strict=True):
        assert entry.seeds == (0, 1, 2)
        assert list(entry.values) == METRICS
        for place, seed in enumerate(entry.seeds):
            model = fr.Embedder.load(way / f"lr-{entry.lr:g}-seed-{seed}" / "model")
            report = fr.evaluate(embed_table(model, test, workers=0, show=False), test.labels, metrics=METRICS)
            for name in METRICS:
                assert entry.values[name][place] == pytest.approx(report[name], abs=1e-6)


def test_the_frozen_backbone_is_that_of_the_first_weights(compared_before):
    folder, compared, _ = compared_before
    test = read_table(folder / "images.csv").of("test")
    torch.manual_seed(0)
    model = fr.Embedder("test_resnet", dim=0, batch_norm="frozen", image_size=32, resize=32)
    report = fr.evaluate(embed_table(model, test, workers=0, show=False), test.labels, metrics=METRICS)
    assert dict(compared.frozen) == pytest.approx(dict(report), abs=1e-6)


def test_differences_are_over_seeds_and_classes(compared_before):
    folder, compared, _ = compared_before
    labels = read_table(folder / "images.csv").of("test").labels
    means = {}
    for entry, way in zip(compared.entries, sorted((folder / "runs").iterdir()), strict=True):
        reports = [fr.Report.load(way / f"lr-{entry.lr:g}-seed-{seed}" / "test.json") for seed in range(3)]
        means[entry.name] = {name: np.array([r.per_query[name] for r in reports]) for name in PER_QUERY}
        best = [json.loads((way / f"lr-{entry.lr:g}-seed-{s}" / "run.json").read_text())["best"] for s in range(3)]
        means[entry.name]["validation"] = fmean(best)
    chosen = max(means, key=lambda name: means[name]["validation"])
    assert compared.reference == chosen
    (other,) = (entry for entry in compared.entries if entry.name != chosen)
    (itself,) = (entry for entry in compared.entries if entry.name == chosen)
    assert itself.against == {}
    assert list(other.against) == PER_QUERY
    for name, found in other.against.items():
        ours, theirs = means[other.name][name], means[chosen][name]
        assert found.difference == pytest.approx(fmean(other.values[name]) - fmean(itself.values[name]), abs=1e-9)
        low, high, p_value = reference.over_seeds(theirs, ours, labels, 0.95, 1000, 0)  # of 8 classes, one other entry
        assert (found.low, found.high, found.p_value) == pytest.approx((low, high, p_value), rel=1e-4)


def test_costs_are_those_of_the_logs(compared_before):
    folder, compared, _ = compared_before
    for entry, way in zip(compared.entries, sorted((folder / "runs").iterdir()), strict=True):
        for place, seed in enumerate(entry.seeds):
            lines = [line for line in log_of(way / f"lr-{entry.lr:g}-seed-{seed}") if "loss" in line]
            assert len(lines) == 4
            assert entry.seconds[place] == pytest.approx(np.median([line["seconds per step"] for line in lines[1:]]))
            assert entry.megabytes[place] == max(line["peak MB"] for line in lines)
            curve = entry.curves[place]
            points = [
                (x["step"], x["validation R@1"])
                for x in log_of(way / f"lr-{entry.lr:g}-seed-{seed}")
                if "validation R@1" in x
            ]
            assert list(zip(curve.x.tolist(), curve.y.tolist(), strict=True)) == points


def test_every_run_is_done_once_and_the_search_counts_as_the_first_seed(compared_before):
    folder, compared, tasks = compared_before
    trained = [name for task, name in tasks if task == "train"]
    tested = [name for task, name in tasks if task == "test"]
    lrs = [f"{entry.lr:g}" for entry in compared.entries]
    ways = sorted(path.name for path in (folder / "runs").iterdir())
    assert tasks[0] == ("frozen", "out/frozen.json")
    assert trained == [f"{way}/lr-{lr}-seed-0" for way in ways for lr in ("0.001", "0.01")]
    assert tested == [f"{way}/lr-{lr}-seed-{seed}" for seed in range(3) for way, lr in zip(ways, lrs, strict=True)]
    assert run_count(plan_of(folder, lrs="1e-3,1e-2", seeds=3)) == 8
    untested = [run for run in folder.glob("runs/*/lr-*-seed-?") if not (run / "test.json").exists()]
    assert len(untested) == 2  # the learning rates that were not chosen never see the test images


def test_runs_share_all_but_loss_learning_rate_and_seed(compared_before):
    folder, _, _ = compared_before
    configs = [read_config(read_recipe(path)) for path in sorted(folder.glob("runs/*/lr-*/config.yaml"))]
    assert len(configs) == 8
    assert len({str(config.data) for config in configs}) == 1
    assert len({(str(config.batches), str(config.model), config.iterations) for config in configs}) == 1
    assert configs[0].data.path == str(folder / "images.csv")
    tables = {path.read_text() for path in folder.glob("runs/*/lr-*/images.csv")}
    assert len({tuple(sorted(read_table(path).splits)) for path in folder.glob("runs/*/lr-*/images.csv")}) == 1
    assert len(tables) == 1  # the same classes are held out for every seed
    first = {log_of(path)[0]["validation mAP"] for path in folder.glob("runs/*/lr-*-seed-0")}
    assert len(first) == 1  # of one seed all begin with the same weights
    assert not list(folder.glob("runs/*/*/checkpoints"))


def test_tables_and_files(compared_before):
    folder, compared, _ = compared_before
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["frozen backbone", *(e.name for e in compared.entries for _ in range(3))]
    assert [float(row["mAP"]) for row in rows[1:4]] == list(compared.entries[0].values["mAP"])
    assert [row["seed"] for row in rows] == ["", "0", "1", "2", "0", "1", "2"]
    stored = json.loads((folder / "results.json").read_text())
    assert stored["entries"][1]["values"]["R@1"] == list(compared.entries[1].values["R@1"])
    assert stored["entries"][1]["mean"]["R@1"] == fmean(compared.entries[1].values["R@1"])
    assert stored["reference"] == compared.reference
    table = comparison_table(compared)
    for entry in compared.entries:
        (line,) = (line for line in table.splitlines() if line.startswith(entry.name) and "chosen" not in line)
        for name in ("R@1", "R@10", "mAP", "NMI", "dists@intra", "dists@inter"):
            values = entry.values[name]
            assert f"{percent(name, fmean(values))} ± {percent(name, stdev(values))}" in line
    markdown = (folder / "results.md").read_text()
    assert "frontrank compare ..." in markdown
    assert all(entry.name.split("(")[0].replace("_", "\\_") in markdown for entry in compared.entries)
    assert "8 test classes and 3 seeds" in markdown
    assert compared.images.startswith(
        "64 images of 8 classes to test; 64 images of 8 classes to train with; 32 images of 4"
    )


def test_p_values_are_corrected_for_the_number_of_entries():
    """Six classes of one query: all up is 2 of 64 patterns, four up and two equal is 2 of 16."""
    classes = np.array(list("abcdef"))
    hits = {"all": np.ones(6), "some": np.array([1.0, 1, 1, 1, 0, 0]), "none": np.zeros(6), "failed": None}
    reports = {n: {} if x is None else {0: Report.of({"R@1": x}, [1] * 6, 6)} for n, x in hits.items()}
    entries = [Entry(name, {}, 1.0, {}, (), {}, (), (), ()) for name in hits]
    found = {entry.name: entry.against for entry in _against(entries, reports, "none", classes)}
    assert (found["none"], found["failed"]) == ({}, {})
    assert found["all"]["R@1"] == (1.0, 1.0, 1.0, 2 * 2 / 64)
    assert found["some"]["R@1"].p_value == 2 / 16
    assert found["some"]["R@1"].difference == 4 / 6
    assert all(entry.against == {} for entry in _against(entries, reports, "failed", classes))
