"""A run of a detector: it learns, chooses, logs, and says what cannot be."""

import json
import math

import numpy as np
import pytest
import torch

from frontrank.detection import Detector, evaluate_detections, find_objects, read_scenes
from frontrank.detection import run as loop
from frontrank.detection.run import build_detection_run, split_scenes, train_detector
from frontrank.errors import FrontrankWarning, InputError
from frontrank.training.logs import read_log
from tests.detection.runs import CLASSES, config_of, draw_scenes


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return draw_scenes(tmp_path_factory.mktemp("scenes"))


def run_of(config, folder):
    return build_detection_run(config, folder, torch.device("cpu"), quiet=True)


@pytest.mark.parametrize("loss", ["RaMBO", "cross-entropy"])
def test_it_learns(loss, scenes, tmp_path):
    """All else is equal: one setting chooses the loss."""
    optimizer = {"name": "adamw", "lr": 2e-3, "warmup": 0}
    model = {"head_dim": 32, "channels": 32, "samples": 32, "proposals": 60}
    config = config_of(
        scenes, loss={"name": loss}, iterations=60, optimizer=optimizer, model=model, checkpoint_every=100
    )
    train_detector(config, tmp_path / "run", quiet=True)
    lines = read_log(tmp_path / "run" / "log.jsonl")
    first, last = (np.mean([line["classifier"] for line in part]) for part in (lines[:5], lines[-5:]))
    assert last < 0.75 * first
    detector = Detector.load(tmp_path / "run" / "model")
    table = read_scenes(scenes)
    assert evaluate_detections(table, find_objects(detector, table, workers=0))["AP50"] > 0.3


def test_what_a_run_leaves(scenes, tmp_path):
    config = config_of(scenes, data={"validation": 0.3})
    standing = train_detector(config, tmp_path / "run", quiet=True)
    assert standing.step == 4
    assert [each["step"] for each in standing.history] == [2, 4]
    assert standing.best == max(each["AP50"] for each in standing.history)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (facts["kind"], facts["classes"], facts["steps"]) == ("detection", list(CLASSES), 4)
    assert facts["pictures"] == {"train": 8, "validation": 4}
    assert facts["best"] == standing.best
    lines = read_log(tmp_path / "run" / "log.jsonl")
    wanted = {"loss", "classifier", "boxes", "objectness", "proposals", "classes_used", "learning rate", "images/s"}
    assert all(wanted <= line.keys() for line in lines if "loss" in line)
    assert [line["step"] for line in lines if "validation AP50" in line] == [2, 4]
    for line in lines:
        if "loss" in line:
            parts = sum(line[name] for name in ("classifier", "boxes", "objectness", "proposals"))
            assert line["loss"] == pytest.approx(parts, rel=1e-5)
    rates = [line["learning rate"] for line in lines if "loss" in line]
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.01])  # two steps of warm-up
    rows = (tmp_path / "run" / "scenes.csv").read_text().splitlines()
    assert rows[0] == "path,split"
    assert sum(row.endswith(",validation") for row in rows) == 4
    assert (tmp_path / "run" / "model" / "config.json").exists()


def test_the_best_model_is_kept(scenes, tmp_path, monkeypatch):
    values = iter([0.2, 0.5, 0.3])
    monkeypatch.setattr(loop, "evaluate_detections", lambda table, found: {"AP50": next(values)})
    kept = []
    monkeypatch.setattr(Detector, "save", lambda self, folder, overwrite: kept.append(folder.name))
    standing = train_detector(config_of(scenes, data={"validation": 0.3}, epochs=3), tmp_path / "run", quiet=True)
    assert (standing.best, standing.best_step, len(kept)) == (0.5, 4, 2)


def test_the_weight_of_the_classifier(scenes, tmp_path):
    for weight in (1.0, 3.0):
        config = config_of(scenes, loss={"weight": weight}, iterations=1, optimizer={"warmup": 0})
        train_detector(config, tmp_path / str(weight), quiet=True)
    one, three = (read_log(tmp_path / name / "log.jsonl")[0] for name in ("1.0", "3.0"))
    assert three["loss"] - one["loss"] == pytest.approx(2 * one["classifier"], rel=1e-5)


def test_evaluations_of_a_run_of_iterations(scenes, tmp_path):
    config = config_of(scenes, data={"validation": 0.3}, iterations=5, evaluations=2)
    assert [each["step"] for each in train_detector(config, tmp_path / "run", quiet=True).history] == [3, 5]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("cross-entropy", "the gradient is not finite at step 1; lower optimizer.lr, or set optimizer.clip"),
        ("RaMBO", "the scores of classes are not finite at step 1; lower optimizer.lr, or set optimizer.clip"),
    ],
)
def test_numbers_that_are_not_finite_are_one_line(loss, message, scenes, tmp_path):
    run = run_of(config_of(scenes, loss={"name": loss}), tmp_path / "run")
    with torch.no_grad():
        run.detector.network.roi_heads.box_predictor.cls_score.bias.fill_(torch.nan)
    with pytest.raises(InputError, match=message):
        loop.run_detector_loop(run)


def test_pictures_without_any_object_in_a_batch(tmp_path):
    """Batches of one picture, of which the first has no object: no proposal is a positive, and none is remembered."""
    scenes = draw_scenes(tmp_path / "scenes", count=2)
    config = config_of(scenes, batch=1, iterations=4, optimizer={"warmup": 0}, loss={"memory": 0})
    with pytest.warns(FrontrankWarning, match="positive"):
        train_detector(config, tmp_path / "run", quiet=True)
    lines = read_log(tmp_path / "run" / "log.jsonl")
    assert all(math.isfinite(line["loss"]) for line in lines)
    without = [line for line in lines if line["classes_used"] == 0]
    assert {(line["boxes"], line["classifier"]) for line in without} == {(0.0, 0.0)}
    assert len(without) == 2


# Pictures


def test_held_out_pictures_are_chosen_by_the_seed(scenes):
    table = read_scenes(scenes)
    files = [split_scenes(table, 0.25, seed)[1].files for seed in (0, 0, 1)]
    assert files[0] == files[1] != files[2]
    training, held_out = split_scenes(table, 0.25, 0)
    assert (len(training), len(held_out)) == (9, 3)
    assert not set(training.files) & set(held_out.files)
    assert len(split_scenes(table, 0.0, 0)[1]) == 0
    with pytest.raises(InputError, match=r"data.validation 0.01 of 12 pictures is 0; take another share"):
        split_scenes(table, 0.01, 0)
    with pytest.raises(InputError, match="has no object to train with"):
        split_scenes(table.rows([0]), 0.0, 0)
    empty = next(seed for seed in range(99) if np.random.default_rng([seed, 12]).permutation(12)[0] == 0)
    said = (
        r"data.validation 0.08: there is no object to find in the 1 held-out pictures; take a larger share, or another"
    )
    with pytest.raises(InputError, match=said):
        split_scenes(table, 0.08, empty)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 13}, "batch is 13, but there are 12 pictures"),
        ({"optimizer": {"warmup": 100}}, "optimizer.warmup is 100, but there are 6 steps"),
        ({"model": {"backbone": "smal"}}, "backbone 'smal' is not known; did you mean small?"),
        ({"model": {"samples": 100}}, "model.samples 100 is more than model.proposals 40"),
        ({"loss": {"lam": 0.0}}, "loss.lam must be"),
        ({"loss": {"name": "AP"}}, "loss.name must be"),
        ({"data": {"long_side": 20}}, "data.long_side 20 is less than data.short_side 48"),
    ],
)
def test_refused_before_anything_is_written(changed, message, scenes, tmp_path):
    with pytest.raises(InputError, match=message):
        train_detector(config_of(scenes, **changed), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_batch_norm_is_settled_by_the_weights(scenes, tmp_path):
    run = run_of(config_of(scenes), tmp_path / "run")
    assert run.config.model.batch_norm == run.detector.settings.batch_norm == "train"
    run.detector.save(tmp_path / "start")
    again = run_of(config_of(scenes, model={"weights": str(tmp_path / "start")}), tmp_path / "again")
    assert again.config.model.batch_norm == again.detector.settings.batch_norm == "frozen"
    assert again.detector.classifier_loss.ap.memory == 2


def test_the_margin_grows_and_then_memory_begins(scenes, tmp_path):
    run = run_of(config_of(scenes, loss={"warmup": 4, "margin": 0.2, "memory": 2}, iterations=7), tmp_path / "run")
    loss, margins, kept = run.detector.classifier_loss, [], []
    begin = loss.begin_step

    def begin_step(step):
        begin(step)
        margins.append(loss.ap.margin)
        kept.append(len(loss.state_dict()["_extra_state"]["scores"]))

    loss.begin_step = begin_step
    loop.run_detector_loop(run)
    assert margins == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2, 0.2, 0.2])
    assert kept == [0, 0, 0, 0, 1, 2, 2]
