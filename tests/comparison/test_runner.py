"""The runner of a comparison: images and settings are checked first, every run is done once, and it goes on."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from frontrank.comparison import runner
from frontrank.comparison.results import UNFINISHED, read_results
from frontrank.comparison.runner import prepare, resume_comparison, run_comparison, run_count
from frontrank.data import images as image_check
from frontrank.errors import InputError, InterruptedRunError
from frontrank.settings import read_config, read_recipe
from frontrank.training.peer_losses import PeerLoss
from tests.comparison.comparisons import METRICS, PER_QUERY, count_tasks, done_here, log_of, plan_of
from tests.errors import refusal


def folder_of(root, classes, each, images):
    """A folder of classes with pictures of glyphs."""
    pictures = sorted(Path(images).parent.rglob("*.png"))
    for number in range(classes):
        for place in range(each):
            target = root / f"class{number}" / f"{place}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(pictures[(number * 8 + place) % len(pictures)], target)
    return root


# Images and settings, before the work


def test_a_folder_without_test_images_gets_some(images, tmp_path):
    photos = folder_of(tmp_path / "photos", 12, 4, images)
    ready = prepare(plan_of(photos, "SmoothAP"))
    classes = {split: len(set(ready.table.of(split).labels)) for split in ("train", "validation", "test")}
    assert classes == {"train": 4, "validation": 2, "test": 6}
    assert len(ready.notes) == 1
    assert np.array_equal(prepare(plan_of(photos, "FastAP")).table.splits, ready.table.splits)
    other = prepare(plan_of(photos, "SmoothAP", {"data.test": "0.25"}))
    assert (len(set(other.table.of("test").labels)), other.notes) == (3, [])


def test_merged_classes_are_the_same_for_all_runs(images):
    ready = prepare(plan_of(images, "SmoothAP", {"data.merge_classes": "3", "batches.size": "0"}))
    merged = [
        {label.count("U+") for label in ready.table.of(split).labels} for split in ("train", "validation", "test")
    ]
    assert merged == [{2, 3}, {1}, {1}]  # of 8 training classes: 3, 3 and 2
    assert len(ready.notes) == 1


@pytest.mark.parametrize(
    ("classes", "each", "overrides", "names"),
    [
        (7, 4, {}, "photos .*7 classes"),
        (12, 4, {"batches.kind": "categories", "batches.size": "0"}, "SmoothAP: .*categories"),
        (12, 4, {"optimizer.warmup": "5"}, "SmoothAP: .*optimizer.warmup"),
        (12, 4, {"metric": "R@x"}, "R@x"),
        (12, 4, {"device": "nowhere"}, "nowhere"),
        (12, 4, {"model.backbone": "resnt50"}, "resnt50"),
        (8, 4, {"data.validation": "0"}, "data.validation"),
        (12, 4, {"batches.size": "64"}, "SmoothAP: .*64"),
    ],
)
def test_images_that_are_refused(images, tmp_path, classes, each, overrides, names):
    photos = folder_of(tmp_path / "photos", classes, each, images)
    with pytest.raises(InputError, match=names):
        run_comparison(plan_of(photos, "SmoothAP", overrides), tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_broken_images_are_found_before_the_work(images, tmp_path, monkeypatch):
    """Of 8 classes, one has a single good image: it is no class to draw from, and 7 are too few."""
    looks = []
    own = image_check.image_fault
    monkeypatch.setattr(image_check, "image_fault", lambda *a: looks.append(a) or own(*a))
    photos = folder_of(tmp_path / "photos", 9, 3, images)
    small = {"batches.size": "8"}
    for _ in range(2):
        assert len(prepare(plan_of(photos, "SmoothAP", small)).table) == 27
        assert len(looks) == 27  # good ones are remembered
    (photos / "class3" / "1.png").write_bytes(b"no image")
    refusal(lambda: prepare(plan_of(photos, "SmoothAP", {**small, "data.broken": "fail"})), "1 of 27")
    ready = prepare(plan_of(photos, "SmoothAP", {**small, "data.broken": "skip"}))
    assert (len(ready.table), len(ready.notes)) == (26, 2)
    for other in ("class3", "class4"):
        for place in (1, 2):
            (photos / other / f"{place}.png").write_bytes(b"no image")
    refusal(lambda: prepare(plan_of(photos, "SmoothAP", {**small, "data.broken": "skip"})), "7 classes")


@pytest.mark.parametrize(("axis", "varies"), [("data.size=24,32", True), ("model.dim=8,16", False)])
def test_no_line_of_a_backbone_that_varies(images, untrained, tmp_path, axis, varies):
    results = run_comparison(plan_of(images, None, axes=[axis], lrs="1e-3", seeds=1), tmp_path / "out", quiet=True)
    assert (results.frozen == {}) == varies
    assert any("backbone" in note for note in results.notes) == varies
    assert (untrained[0][0] == "frozen") != varies


# Runs


@pytest.mark.training
def test_every_run_is_done_once_and_the_search_counts_as_the_first_seed(trained):
    folder, results, tasks = trained
    lrs = [f"{entry.lr:g}" for entry in results.entries]
    ways = sorted(path.name for path in (folder / "runs").iterdir())
    assert tasks[0] == ("frozen", "out/frozen.json")
    assert [name for task, name in tasks if task == "train"] == [
        f"{way}/lr-{lr}-seed-0" for way in ways for lr in ("0.001", "0.01")
    ]
    assert [name for task, name in tasks if task == "test"] == [
        f"{way}/lr-{lr}-seed-{seed}" for seed in range(2) for way, lr in zip(ways, lrs, strict=True)
    ]
    assert run_count(plan_of(folder, lrs="1e-3,1e-2", seeds=2)) == 6
    untested = [run for run in folder.glob("runs/*/lr-*-seed-?") if not (run / "test.json").exists()]
    assert len(untested) == 2  # the learning rates that were not chosen never see the test images
    assert not list(folder.glob("runs/*/*/checkpoints"))


@pytest.mark.training
def test_runs_share_all_but_loss_learning_rate_and_seed(trained):
    folder = trained[0]
    configs = [read_config(read_recipe(path)) for path in sorted(folder.glob("runs/*/lr-*/config.yaml"))]
    assert len(configs) == 6
    assert len({(str(c.data), str(c.batches), str(c.model), c.iterations) for c in configs}) == 1
    assert configs[0].data.path == str(folder / "images.csv")
    assert len({path.read_text() for path in folder.glob("runs/*/lr-*/images.csv")}) == 1  # the same held-out classes
    first = {log_of(path)[0]["validation mAP"] for path in folder.glob("runs/*/lr-*-seed-0")}
    assert len(first) == 1  # of one seed all begin with the same weights


@pytest.mark.training
def test_two_classes_another_metric_and_a_loss_that_fails(images, monkeypatch, tmp_path):
    """Real runs of three losses, of which the second cannot rank a memory; there are no held-out classes."""
    tasks = count_tasks(monkeypatch, done_here)
    monkeypatch.setattr(PeerLoss, "try_out", lambda *_, **__: None)  # which would refuse it before the first run
    photos = folder_of(tmp_path / "photos" / "train", 2, 4, images).parent
    folder_of(photos / "test", 3, 2, images)
    overrides = {"data.validation": "0", "batches.size": "0", "batches.memory": "8", "metric": "P@2", "iterations": "2"}
    plan = plan_of(photos, "SmoothAP,pml.ProxyAnchorLoss,FastAP", overrides, lrs="1e-3", seeds=1)
    results = run_comparison(plan, tmp_path / "out", quiet=True)
    first, second, third = results.entries
    assert list(first.values) == list(third.values) == ["R@1", *PER_QUERY[2:], "P@2", *METRICS[5:]]
    assert ("ProxyAnchorLoss" in second.failed, second.values) == (True, {})
    assert results.reference == "SmoothAP"  # nothing is known of held-out classes: the first
    assert first.curves[0].x.size == 0
    assert list(third.against) == [*PER_QUERY[:1], *PER_QUERY[2:], "P@2"]
    assert any(note.startswith("pml.ProxyAnchorLoss:") for note in results.notes)
    tasks.clear()
    resume_comparison(tmp_path / "out", quiet=True)
    assert tasks == [("test", "02-pml.ProxyAnchorLoss/lr-0.001-seed-0")]  # tried again, and nothing else


def test_a_shorter_search_is_no_run_of_a_seed(images, untrained, tmp_path):
    plan = plan_of(images, "SmoothAP", lrs="1e-3,1e-2", seeds=1, search_steps=2)
    results = run_comparison(plan, tmp_path / "out", quiet=True)
    assert [task for task, _ in untrained] == ["frozen", "train", "train", "test"]
    assert run_count(plan) == 3
    assert set(results.entries[0].searched) == {1e-3, 1e-2}
    steps = {path.name: log_of(path)[-1]["step"] for path in tmp_path.glob("out/runs/*/lr-*") if path.is_dir()}
    lr = f"{results.entries[0].lr:g}"
    assert steps == {"lr-0.001-seed-0-search": 2, "lr-0.01-seed-0-search": 2, f"lr-{lr}-seed-0": 3}


# It goes on


@pytest.mark.training
def test_a_finished_comparison_takes_more_seeds_and_another_reference(trained, untrained, tmp_path):
    folder, results, _ = trained
    copy = shutil.copytree(folder, tmp_path / "copy")
    again = resume_comparison(copy, quiet=True)
    assert untrained == []
    assert again.entries[0].values == results.entries[0].values
    other = next(entry.name for entry in results.entries if entry.name != results.reference)
    again = resume_comparison(copy, seeds=3, reference=other, quiet=True)
    assert [task for task, _ in untrained] == ["test", "test"]
    assert again.entries[1].values["mAP"][:2] == results.entries[1].values["mAP"]
    assert again.entries[1].seeds == (0, 1, 2)
    assert again.reference == other == read_results(copy).reference
    refusal(lambda: resume_comparison(copy, seeds=2), "--seeds 2")
    refusal(lambda: resume_comparison(copy, reference="x"), "--reference")


def test_other_settings_are_refused_by_name(images, untrained, tmp_path):
    plan = plan_of(images, lrs="1e-3,1e-2", seeds=1)
    run_comparison(plan, tmp_path / "out", quiet=True)
    untrained.clear()
    for other, name in (
        (plan_of(images, lrs="1e-3,1e-2", overrides={"iterations": "5"}), "iterations is 3"),
        (plan_of(images, lrs="1e-3"), r"--lr of PNP-D_s\(temperature=0.05\)"),
        (plan_of(images, "FastAP", lrs="1e-3,1e-2"), "PNP-D_s"),
        (plan_of(images, lrs="1e-3,1e-2", search_steps=2), "--search-iterations"),
    ):
        with pytest.raises(InputError, match=name):
            run_comparison(other, tmp_path / "out", quiet=True)
    assert run_comparison(plan, tmp_path / "out", quiet=True).entries[0].seeds == (0,)
    assert untrained == []


def test_all_runs_fail_and_are_mended(images, untrained, monkeypatch, tmp_path):
    here = runner.run_task

    def full(task, config, target, beside, title, **others):
        beside.parent.mkdir(parents=True, exist_ok=True)
        return here(task, config, target, beside, title, **others) if task == "frozen" else "disk full"

    monkeypatch.setattr(runner, "run_task", full)
    results = run_comparison(plan_of(images, "SmoothAP", lrs="1e-3,1", seeds=1), tmp_path / "out", quiet=True)
    assert (results.entries[0].failed, results.entries[0].values) == ("disk full", {})
    assert np.isnan(results.entries[0].lr)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["entries"][0]["lr"] is None
    monkeypatch.setattr(runner, "run_task", here)
    mended = resume_comparison(tmp_path / "out", quiet=True)
    assert (mended.entries[0].failed, mended.entries[0].seeds) == ("", (0,))
    assert not any("failed" in note for note in mended.notes)
    monkeypatch.setattr(runner, "run_task", lambda *_, **__: "no memory")
    refusal(lambda: run_comparison(plan_of(images, "SmoothAP"), tmp_path / "other", quiet=True), "backbone")


def test_a_search_that_failed_for_a_passing_reason_is_tried_again(images, untrained, monkeypatch, tmp_path):
    """Else the rate would be chosen among the others for ever, because a machine ran full once."""
    passing = ["SIGKILL"]
    here = runner.run_task

    def full_once(task, config, target, beside, *rest, **others):
        beside.parent.mkdir(parents=True, exist_ok=True)
        if config.loss.name == "SmoothAP" and config.optimizer.lr == 1e-2 and passing:
            return passing[-1]
        return here(task, config, target, beside, *rest, **others)

    monkeypatch.setattr(runner, "run_task", full_once)
    first = run_comparison(plan_of(images, "SmoothAP,FastAP", lrs="1e-3,1e-2"), tmp_path / "out", quiet=True)
    assert (first.entries[0].failed, first.entries[0].searched.keys()) == (passing[0], {1e-3})
    assert first.entries[1].values
    again, twice = (shutil.copytree(tmp_path / "out", tmp_path / name) for name in ("again", "twice"))
    assert resume_comparison(twice, quiet=True).entries[0].lr == 1e-3  # failed twice: it is given up
    untrained.clear()
    passing.clear()
    mended = resume_comparison(again, quiet=True)
    assert untrained[0] == ("train", "01-SmoothAP/lr-0.01-seed-0")
    assert (mended.entries[0].searched.keys(), mended.entries[0].seeds) == ({1e-3, 1e-2}, (0, 1, 2))
    assert not any("failed" in note for note in mended.notes)


def test_differences_of_versions_and_pictures_are_noted(images, untrained, tmp_path):
    shutil.copytree(Path(images).parent, tmp_path / "glyphs")
    plan = plan_of(tmp_path / "glyphs" / "images.csv", lrs="1e-3", seeds=1)
    results = run_comparison(plan, tmp_path / "out", quiet=True)
    assert not any("different" in note or "pictures" in note for note in results.notes)
    run = next((tmp_path / "out").glob("runs/02-*/*/run.json"))
    facts = json.loads(run.read_text())
    run.write_text(json.dumps({**facts, "resumed": [{**facts, "commit": "b", "versions": {"torch": "3"}}]}))
    next((tmp_path / "glyphs").rglob("*.png")).touch()
    for _ in range(2):
        notes = resume_comparison(tmp_path / "out", quiet=True).notes
        words = ("commit: a, b", "torch: 2, 3", "pictures")
        assert [sum(word in note for note in notes) for word in words] == [1, 1, 1]
    assert untrained[1:] == [("test", f"{way.folder}/lr-0.001-seed-0") for way in plan.ways]


def test_stopped_between_runs(images, untrained, monkeypatch, tmp_path):
    here = runner.run_task
    monkeypatch.setattr(runner, "run_task", lambda *a, **k: None if len(untrained) == 2 else here(*a, **k))
    with pytest.raises(InterruptedRunError, match=r"1 of 2 .*compare --resume .*out"):
        run_comparison(plan_of(images, lrs="1e-3", seeds=1), tmp_path / "out", quiet=True)
    half = read_results(tmp_path / "out")
    assert [entry.failed for entry in half.entries] == ["", UNFINISHED]
    assert (tmp_path / "out" / "results.md").is_file()  # what there is so far
    monkeypatch.setattr(runner, "run_task", here)
    assert all(entry.values for entry in resume_comparison(tmp_path / "out", quiet=True).entries)
    assert len(untrained) == 3


def test_the_folder_is_locked_before_the_images_are_looked_at(images, untrained, monkeypatch, tmp_path):
    out, plan = tmp_path / "new" / "out", plan_of(images, lrs="1e-3", seeds=1)
    monkeypatch.setattr(runner, "_WAIT", 0.4)

    def look(plan, **others):
        refusal(lambda: run_comparison(plan, out, quiet=True), "another process")
        raise InputError("enough")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "prepare", look)
        refusal(lambda: run_comparison(plan, out, quiet=True), "enough")
    assert not (tmp_path / "new").exists()  # it leaves nothing
    assert run_comparison(plan, out, quiet=True).entries[0].values
    with runner._lock(out), pytest.raises(InputError, match="another process"):
        resume_comparison(out)


def test_a_folder_of_something_else(images, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    refusal(lambda: run_comparison(plan_of(images), out), "out")
    refusal(lambda: resume_comparison(out), "comparison.json")
    (out / "comparison.json").write_text('{"format": "frontrank comparison plan", "version": 1}')
    refusal(lambda: resume_comparison(out), "damaged")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refusal(lambda: resume_comparison(out), "torchrun")
