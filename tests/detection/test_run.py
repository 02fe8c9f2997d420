"""A run of a detector: it learns, chooses, logs, continues with the same bits, and names what cannot be."""

import csv
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.detection import Detector, evaluate_detections, find_objects, read_scenes
from frontrank.detection.model import ProposalAP, RankedRoIHeads
from frontrank.detection.run import build_detection_run, resume_detector, split_scenes, train_detector
from frontrank.errors import InputError, InterruptedRunError
from frontrank.training import distributed
from frontrank.training.logs import read_log
from frontrank.training.loop import train_loop
from tests.detection.runs import CLASSES, config_of, draw_scenes
from tests.detection.small import pictures, torchvision_heads
from tests.errors import refusal
from tests.training.processes import run
from tests.training.runs import differences, last_state, signal_at, timeless_log

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return draw_scenes(tmp_path_factory.mktemp("scenes"))


def run_of(config, folder):
    return build_detection_run(config, folder, CPU, quiet=True)


# Training


@pytest.mark.training
@pytest.mark.parametrize("loss", ["RaMBO", "cross-entropy"])
def test_it_learns(loss, scenes, tmp_path):
    """All else is equal: one setting chooses the loss."""
    optimizer = {"name": "adamw", "lr": 2e-3, "warmup": 0}
    model = {"head_dim": 32, "channels": 32, "samples": 32, "proposals": 60}
    settings = {"optimizer": optimizer, "model": model, "iterations": 60, "checkpoint_every": 100}
    train_detector(config_of(scenes, loss={"name": loss}, **settings), tmp_path / "run", quiet=True)
    lines = read_log(tmp_path / "run" / "log.jsonl")
    first, last = (np.mean([line["classifier"] for line in part]) for part in (lines[:5], lines[-5:]))
    assert last < 0.75 * first
    detector = Detector.load(tmp_path / "run" / "model")
    table = read_scenes(scenes)
    assert evaluate_detections(table, find_objects(detector, table, workers=0, device="cpu"))["AP50"] > 0.3


@pytest.fixture(scope="module")
def whole(scenes, tmp_path_factory):
    """A run of three epochs of two steps, with held-out pictures."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, train_detector(config_of(scenes, data={"validation": 0.3}, epochs=3), out, quiet=True)


@pytest.mark.training
def test_what_a_run_leaves(whole):
    out, standing = whole
    assert standing.step == 6
    assert [each["step"] for each in standing.history] == [2, 4, 6]
    assert standing.best == max(each["AP50"] for each in standing.history)
    facts = json.loads((out / "run.json").read_text())
    assert (facts["kind"], facts["classes"], facts["steps"]) == ("detection", list(CLASSES), 6)
    assert facts["pictures"] == {"train": 8, "validation": 4}
    assert (facts["best"], facts["metric"], "before" in facts) == (standing.best, "AP50", False)
    lines = read_log(out / "log.jsonl")
    steps = [line for line in lines if "loss" in line]
    values = {"loss", "classifier", "boxes", "objectness", "proposals", "classes_used", "learning rate", "images/s"}
    assert all(values <= line.keys() for line in steps)
    assert [line["step"] for line in lines if "validation AP50" in line] == [2, 4, 6]
    for line in steps:
        parts = sum(line[name] for name in ("classifier", "boxes", "objectness", "proposals"))
        assert line["loss"] == pytest.approx(parts, rel=1e-5)
    assert [line["learning rate"] for line in steps] == pytest.approx([0.005, *[0.01] * 5])  # two steps of warm-up
    rows = (out / "scenes.csv").read_text().splitlines()
    assert rows[0] == "path,split"
    assert sum(row.endswith(",validation") for row in rows) == 4
    assert Detector.load(out / "model").classes == CLASSES


@pytest.mark.parametrize("loss", ["cross-entropy", "RaMBO"])
def test_numbers_that_are_not_finite_are_one_line(loss, scenes, tmp_path):
    run = run_of(config_of(scenes, loss={"name": loss}), tmp_path / "run")
    with torch.no_grad():
        run.model.network.roi_heads.box_predictor.cls_score.bias.fill_(torch.nan)
    refusal(lambda: train_loop(run), "step 1;", "optimizer.lr")


@pytest.mark.training
def test_the_margin_grows_and_then_memory_begins(scenes, tmp_path):
    run = run_of(config_of(scenes, loss={"warmup": 4, "margin": 0.2, "memory": 2}, iterations=7), tmp_path / "run")
    loss, margins, sizes = run.model.classifier_loss, [], []
    begin = loss.begin_step

    def begin_step(step):
        begin(step)
        margins.append(loss.ap.margin)
        sizes.append(len(loss.state_dict()["_extra_state"]["scores"]))

    loss.begin_step = begin_step
    train_loop(run)
    assert margins == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2, 0.2, 0.2])
    assert sizes == [0, 0, 0, 0, 1, 2, 2]


# Settings to objects


def test_held_out_pictures_are_chosen_by_the_seed(scenes):
    table = read_scenes(scenes)
    files = [split_scenes(table, 0.25, seed)[1].files for seed in (0, 0, 1)]
    assert files[0] == files[1] != files[2]
    training, held_out = split_scenes(table, 0.25, 0)
    assert (len(training), len(held_out)) == (9, 3)
    assert not set(training.files) & set(held_out.files)
    assert len(split_scenes(table, 0.0, 0)[1]) == 0
    refusal(lambda: split_scenes(table, 0.01, 0), "data.validation 0.01")
    with pytest.raises(InputError, match=table.name):
        split_scenes(table.rows([0]), 0.0, 0)  # a picture without objects
    empty = next(seed for seed in range(99) if np.random.default_rng([seed, 12]).permutation(12)[0] == 0)
    refusal(lambda: split_scenes(table, 0.08, empty), "data.validation 0.08")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"batch": 13}, "batch"),
        ({"optimizer": {"warmup": 100}}, "optimizer.warmup"),
        ({"model": {"backbone": "smal"}}, "did you mean small?"),
        ({"model": {"samples": 100}}, "model.samples"),
        ({"loss": {"lam": 0.0}}, "loss.lam"),
        ({"loss": {"name": "AP"}}, "loss.name"),
        ({"data": {"path": ""}}, "--data"),
    ],
    ids=str,
)
def test_refused_before_anything_is_written(changes, match, scenes, tmp_path):
    path = changes.get("data", {}).get("path", scenes)
    with pytest.raises(InputError) as caught:
        train_detector(config_of(path, **changes), tmp_path / "run", quiet=True)
    assert match in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_batch_that_cannot_be_shared_is_refused(scenes, tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    refusal(lambda: run_of(config_of(scenes, batch=3), tmp_path / "run"), "batch 3")


def test_batch_norm_is_settled_by_the_weights(scenes, tmp_path):
    run = run_of(config_of(scenes), tmp_path / "run")
    assert run.config.model.batch_norm == run.model.settings.batch_norm == "train"
    run.model.save(tmp_path / "start")
    again = run_of(config_of(scenes, model={"weights": str(tmp_path / "start")}), tmp_path / "again")
    assert again.config.model.batch_norm == again.model.settings.batch_norm == "frozen"
    assert again.model.classifier_loss.ap.memory == 2


# Resumption


@pytest.mark.training
@pytest.mark.parametrize("step", [1, 3])
def test_stopped_and_resumed_it_is_the_same(step, scenes, whole, tmp_path, monkeypatch):
    """Weights, momentum, remembered scores, random numbers, the log: all of it; and workers make no difference."""
    out, standing = whole
    config = config_of(scenes, data={"validation": 0.3, "workers": int(step == 3)}, epochs=3)
    with monkeypatch.context() as patch:
        signal_at(patch, step, signal.SIGINT)
        with pytest.raises(InterruptedRunError, match=f"step {step} of 6"):
            train_detector(config, tmp_path / "run", quiet=True)
    assert last_state(tmp_path / "run")["standing"]["step"] == step
    assert resume_detector(tmp_path / "run", quiet=True) == standing
    assert differences(last_state(out), last_state(tmp_path / "run")) == []
    assert timeless_log(out) == timeless_log(tmp_path / "run")
    assert len(last_state(out)["loss"]["_extra_state"]["scores"]) == 2


@pytest.mark.training
def test_what_cannot_change(scenes, tmp_path):
    out = tmp_path / "run"
    train_detector(config_of(scenes, iterations=1, optimizer={"warmup": 0}), out, quiet=True)
    for name, match in (("loss.lam", "--loss.lam"), ("epochs", "--iterations")):
        refusal(lambda name=name: resume_detector(out, {name: "3"}, quiet=True), match)
    text = (out / "config.yaml").read_text()
    for old, new in (("channels: 16", "channels: 8"), ("RaMBO", "cross-entropy")):
        (out / "config.yaml").write_text(text.replace(old, new))
        refusal(lambda: resume_detector(out, {"iterations": "2"}, quiet=True), "config.yaml")


@pytest.mark.training
def test_a_run_continues_with_moved_pictures_and_not_with_other_boxes(tmp_path):
    out = tmp_path / "run"
    scenes = Path(draw_scenes(tmp_path / "scenes"))
    train_detector(config_of(str(scenes), epochs=1), out, quiet=True)
    moved = scenes.rename(tmp_path / "moved")
    assert resume_detector(out, {"epochs": "2", "data.path": str(moved)}, quiet=True).step == 6
    with (out / "scenes.csv").open() as file:  # what was trained on is known by its place
        assert {Path(row["path"]).parent for row in csv.DictReader(file)} == {moved / "JPEGImages"}
    path = moved / "Annotations" / "0003.xml"
    path.write_text(path.read_text().replace("<xmin>2<", "<xmin>3<"))
    refusal(lambda: resume_detector(out, {"epochs": "3"}, quiet=True), "step-00000006")


# Two processes rank one global batch: the same loss, the same gradients, the same memory as one process has

SCORES = ("softmax", "logits")
OBJECTS = (2, 0, 3, 1)  # of the pictures of a batch
SHARES = {"even": [(0, 1), (2, 3)], "uneven": [(0,), (1, 2, 3)], "one without objects": [(1,), (0, 2, 3)]}


class ClassifierLoss(torch.nn.Module):
    """Heads that are called as DistributedDataParallel calls a model, and return the classifier's loss alone."""

    def __init__(self, scores):
        super().__init__()
        self.heads = RankedRoIHeads(torchvision_heads(), scores).train()
        self.heads.classifier_loss = ProposalAP(fr.ClassifierAP(relative=True), scores)

    def forward(self, *batch):
        losses = self.heads(*batch)[1]
        return losses["loss_classifier"] + 0.0 * losses["loss_box_reg"]


def two_steps(scores, rows):
    """Losses, changes of the weights, and remembered scores of two steps with these pictures of each batch."""
    model = ClassifierLoss(scores)
    network = distributed.wrap_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    before = torch.cat([each.detach().flatten() for each in model.parameters()])
    losses = []
    for number in range(2):
        features, proposals, shapes, targets = pictures(4, OBJECTS, seed=10 + number)
        own = [[part[row] for row in rows] for part in (proposals, shapes, targets)]
        optimizer.zero_grad()
        loss = network({"0": features["0"][list(rows)]}, *own)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    changes = torch.cat([each.detach().flatten() for each in model.parameters()]) - before
    memory = model.heads.classifier_loss.state_dict()["_extra_state"]["scores"]
    return {"losses": torch.stack(losses), "changes": changes, "memory": torch.cat(memory)}


def all_steps(rank, world):
    return {(scores, name): two_steps(scores, SHARES[name][rank]) for scores in SCORES for name in SHARES}


def all_runs(rank, world):
    """A run, and one that is stopped and continues, of both processes together."""
    folder = Path(os.environ["FOLDER"])
    scenes = str(folder / "scenes")
    train_detector(config_of(scenes, data={"validation": 0.3}, iterations=4), folder / "whole", quiet=True)
    train_detector(config_of(scenes, data={"validation": 0.3}, iterations=2), folder / "parts", quiet=True)
    resume_detector(folder / "parts", {"iterations": "4"}, quiet=True)
    return True


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What two processes returned, and their folder; starting them is what takes the time."""
    folder = tmp_path_factory.mktemp("both")
    draw_scenes(folder / "scenes")
    results = run(all_steps, 2, folder, then=all_runs)
    assert not [each for pair in results for each in pair if isinstance(each, str)], results
    return [steps for steps, _ in results], folder


@pytest.mark.processes
def test_the_ranked_lists_span_the_global_batch(both):
    results, _ = both
    halves = two_steps("logits", (0, 1))  # a list of its own: this comparison can fail
    assert not torch.allclose(halves["losses"], two_steps("logits", (0, 1, 2, 3))["losses"])
    for scores in SCORES:
        for name, shares in SHARES.items():
            expected = two_steps(scores, [row for share in shares for row in share])
            assert expected["changes"].norm() > 1e-3
            for each in results:
                for part in ("losses", "changes", "memory"):
                    torch.testing.assert_close(each[scores, name][part], expected[part], rtol=1e-10, atol=1e-12)
            assert torch.equal(results[0][scores, name]["changes"], results[1][scores, name]["changes"])


@pytest.mark.processes
@pytest.mark.training
def test_two_processes_stop_and_go_on_with_the_same_bits(both):
    one, other = (last_state(both[1] / name) for name in ("whole", "parts"))
    assert one["standing"]["step"] == 4
    assert len(one["random"]) == 2
    # a run that is over is evaluated: that of the first part is in its history too
    assert [each for each in differences(one, other) if ".standing" not in each] == []
    assert one["loss"]["_extra_state"]["scores"][0].shape[0] > 4 * 8  # proposals of all four pictures of a batch
