"""What a run does, writes and refuses."""

import contextlib
import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.errors import FrontrankWarning, InputError
from frontrank.settings import TrainConfig, read_config, read_recipe
from frontrank.training import loop
from frontrank.training import run as build
from frontrank.training.logs import read_log
from tests.training.runs import config_of, last_state, small_table


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return small_table(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def steps_of_log(folder, name):
    return [line["step"] for line in read_log(Path(folder) / "log.jsonl") if name in line]


def test_what_a_run_leaves(images, tmp_path):
    config = config_of(images, epochs=2)
    standing = fr.train(config, tmp_path / "run", quiet=True)
    assert standing.step == 10  # of 10 training classes, 8 images each make 5 batches of 4 x 4, twice
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"config.yaml", "run.json", "images.csv", "log.jsonl", "tensorboard", "checkpoints", "model"}
    assert read_config(read_recipe(tmp_path / "run" / "config.yaml")) == config
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert torch.__version__.startswith(facts["versions"]["torch"])
    assert (facts["best"], facts["steps"], facts["seed"]) == (standing.best, 10, 0)
    table = fr.data.read_table(tmp_path / "run" / "images.csv")
    assert set(table.splits) == {"train", "validation", "test"}
    lines = read_log(tmp_path / "run" / "log.jsonl")
    logged = {"loss", "queries_used", "queries_skipped", "AP error", "gradient norm", "learning rate", "images/s"}
    assert logged <= set(lines[1])
    steps = [line for line in lines if "loss" in line]
    assert all(line["seconds per step"] > 0 and line["peak MB"] >= 0 for line in steps)  # 0: there was room before
    assert steps_of_log(tmp_path / "run", "loss") == list(range(1, 11))
    assert steps_of_log(tmp_path / "run", "validation R@1") == [0, 5, 10]
    assert any((tmp_path / "run" / "tensorboard").iterdir())
    assert list((tmp_path / "run" / "model").iterdir())


def reports(monkeypatch, *found):
    """Let the held-out classes give these R@1 and mAP, one pair after another."""
    left = iter(found)
    monkeypatch.setattr(loop._Training, "_report", lambda self: dict(zip(("R@1", "mAP"), next(left), strict=True)))


def test_the_model_is_the_best_on_held_out_classes(images, tmp_path, monkeypatch):
    kept = []
    reports(monkeypatch, (0.9, 0.9), (0.5, 0.3), (0.4, 0.9), (0.5, 0.2), (0.5, 0.3), (0.1, 0.1))
    monkeypatch.setattr(loop._Training, "_keep_model", lambda self: kept.append(self.standing.step))
    standing = fr.train(config_of(images, epochs=5), tmp_path / "run", quiet=True)
    assert kept == [5, 20]  # never the one before training; of equal R@1 that of more mAP, then the later one
    assert (standing.before, standing.best, standing.best_step, standing.since_best) == (0.9, 0.5, 20, 1)
    assert [entry["R@1"] for entry in standing.history] == [0.9, 0.5, 0.4, 0.5, 0.5, 0.1]


def test_early_stop(images, tmp_path, monkeypatch):
    reports(monkeypatch, (0.2, 0.2), (0.5, 0.3), (0.4, 0.3), (0.5, 0.2))
    standing = fr.train(config_of(images, epochs=40, patience=2), tmp_path / "run", quiet=True)
    assert (standing.step, standing.stopped_early, standing.best_step) == (15, True, 5)


def test_without_held_out_classes_the_last_model_is_kept(images, tmp_path):
    standing = fr.train(config_of(images, epochs=1, data={"validation": 0.0}), tmp_path / "run", quiet=True)
    assert (standing.best, standing.before) == (None, None)
    model = fr.Embedder.load(tmp_path / "run" / "model")
    held = last_state(tmp_path / "run")["model"]
    assert all(torch.equal(value, held[name]) for name, value in model.state_dict().items())


def test_iterations_in_place_of_epochs(images, tmp_path):
    config = config_of(images, iterations=20, log_every=7, checkpoint_every=1000)
    fr.train(config, tmp_path / "run", quiet=True)
    assert steps_of_log(tmp_path / "run", "validation R@1") == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert steps_of_log(tmp_path / "run", "loss") == [1, 7, 14, 20]


@pytest.mark.parametrize(
    ("iterations", "evaluations", "steps"),
    [(7, 2, [0, 4, 7]), (6, 1, [0, 6]), (3, 10, [0, 1, 2, 3])],
    ids=["uneven", "once", "more-than-steps"],
)
def test_evaluations_of_a_run_counted_in_iterations(images, tmp_path, iterations, evaluations, steps):
    fr.train(config_of(images, iterations=iterations, evaluations=evaluations), tmp_path / "run", quiet=True)
    assert steps_of_log(tmp_path / "run", "validation R@1") == steps


def test_evaluation_every_other_epoch_with_accumulation(images, tmp_path):
    config = config_of(images, epochs=4, evaluate_every=2, batches={"accumulate": 2})
    standing = fr.train(config, tmp_path / "run", quiet=True)
    assert standing.step == 10  # 20 batches
    assert steps_of_log(tmp_path / "run", "validation R@1") == [0, 5, 10]


def test_learning_rates_of_a_run(images, tmp_path):
    schedule = {"lr": 0.01, "schedule": "multistep", "milestones": (1, 2), "gamma": 0.5, "warmup": 2}
    fr.train(config_of(images, optimizer=schedule), tmp_path / "run", quiet=True)
    rates = [line["learning rate"] for line in read_log(tmp_path / "run" / "log.jsonl") if "loss" in line]
    assert rates == pytest.approx([0.005, *[0.01] * 4, *[0.005] * 5, *[0.0025] * 5])


def test_accumulation_adds_up_gradients(images, tmp_path):
    """Two batches at half weight: the gradient is the mean of both, and the norm that is logged is of that."""
    gradients = {}
    for accumulate in (1, 2):
        found = []
        config = config_of(
            images,
            iterations=1,
            batches={"accumulate": accumulate},
            optimizer={"name": "sgd", "lr": 1.0, "weight_decay": 0.0},
        )
        run = build.build_run(config, tmp_path, torch.device("cpu"), quiet=True)
        before = {name: value.clone() for name, value in run.model.state_dict().items()}
        training = loop._Training(run)
        training._randomness = None
        training.network = run.model
        batches = list(training._batches())
        for pictures, labels in batches:
            run.model.zero_grad()
            training._gradient(pictures, labels)
            found.append(torch.cat([p.grad.flatten() for p in run.model.parameters() if p.grad is not None]))
        gradients[accumulate] = sum(found)
        assert before.keys() == run.model.state_dict().keys()
        assert len(batches) == accumulate
    config = config_of(
        images, iterations=1, batches={"accumulate": 2}, optimizer={"name": "sgd", "lr": 1.0, "weight_decay": 0.0}
    )
    fr.train(config, tmp_path / "run", quiet=True)
    (norm,) = [line["gradient norm"] for line in read_log(tmp_path / "run" / "log.jsonl") if "loss" in line]
    assert norm == pytest.approx(float(gradients[2].norm()), rel=1e-4)
    assert not torch.allclose(gradients[1], gradients[2])


def test_weights_move_by_the_clipped_gradient(images, tmp_path):
    config = config_of(
        images,
        iterations=1,
        data={"validation": 0.0},
        optimizer={"name": "sgd", "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "clip": 1e-3},
    )
    first = build.build_run(config, tmp_path, torch.device("cpu"), quiet=True).model.state_dict()
    first = {name: value.clone() for name, value in first.items()}
    fr.train(config, tmp_path / "run", quiet=True)
    last = last_state(tmp_path / "run")["model"]
    moved = torch.sqrt(sum(((last[name] - first[name]).double() ** 2).sum() for name in first))
    assert float(moved) == pytest.approx(1e-3, rel=1e-2)


LOSSES = {
    "PNP": {"variant": "D_q"},
    "SmoothAP": {},
    "FastAP": {},
    "QuantizedAP": {"tie_aware": True},
    "BlackboxRecall": {"weighting": "log"},
    "BlackboxAP": {},
    "pml.TripletMarginLoss": {"miner": "BatchHardMiner"},
    "pml.ArcFaceLoss": {},
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("batches", [{}, {"chunk": 6, "memory": 20}], ids=["plain", "chunks-and-memory"])
def test_every_loss_trains(name, batches, images, tmp_path):
    if name == "pml.ArcFaceLoss" and batches:
        batches = {"chunk": 6}  # it compares with class centres, not with images
    loss = {"variant": None, "temperature": None, "name": name, **LOSSES[name]}
    config = config_of(images, iterations=3, loss=loss, batches=batches)
    standing = fr.train(config, tmp_path / "run", quiet=True)
    lines = [line for line in read_log(tmp_path / "run" / "log.jsonl") if "loss" in line]
    assert standing.step == 3
    assert all(np.isfinite(line["loss"]) and line["gradient norm"] > 0 for line in lines)
    assert ("AP error" in lines[0]) == (not name.startswith("pml."))


def test_a_gradient_that_is_not_finite_ends_the_run(images, tmp_path, monkeypatch):
    own = loop._Training._gradient

    def gradient(self, *batch):
        step = own(self, *batch)
        if self.standing.step == 2:
            next(self.run.model.parameters()).grad.fill_(float("inf"))
        return step

    monkeypatch.setattr(loop._Training, "_gradient", gradient)
    with pytest.raises(InputError, match=r"the gradient is not finite at step 3; lower optimizer.lr"):
        fr.train(config_of(images), tmp_path / "run", quiet=True)
    assert last_state(tmp_path / "run")["standing"]["step"] == 2
    assert all(value.isfinite().all() for value in last_state(tmp_path / "run")["model"].values())


def test_two_runs_are_the_same_and_workers_do_not_matter(images, tmp_path):
    for name, workers in (("a", 0), ("b", 0), ("c", 2)):
        fr.train(config_of(images, epochs=1, data={"workers": workers}), tmp_path / name, quiet=True)
    states = [last_state(tmp_path / name)["model"] for name in "abc"]
    assert all(torch.equal(states[0][name], other[name]) for other in states[1:] for name in other)


# What is refused, before anything is written


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run"


def refused(config, out, match):
    with pytest.raises(InputError, match=match) as caught:
        fr.train(config, out, quiet=True)
    assert "\n" not in str(caught.value)
    assert not (Path(out) / "config.yaml").exists() or "holds a run" in match


def test_no_images(out):
    refused(TrainConfig(), out, "there are no images; give --data")


def test_images_that_are_not_there(out):
    refused(config_of("nowhere"), out, "--data nowhere is not there")


def test_a_layout_that_is_not_known(images, out):
    refused(
        config_of(images, data={"layout": "inshop"}), out, "data.layout 'inshop' is not known; did you mean in-shop?"
    )


def test_a_single_class(tmp_path, out):
    folder = tmp_path / "images" / "only"
    folder.mkdir(parents=True)
    source = next(Path(small_table(tmp_path / "glyphs")).parent.glob("*/*/*.png"))
    for number in range(3):
        shutil.copy(source, folder / f"{number}.png")
    refused(config_of(str(tmp_path / "images")), out, "class")


def test_only_test_images(images, tmp_path, out):
    table = fr.data.read_table(images)
    replace(table, splits=np.full(len(table), "test")).save(tmp_path / "test.csv")
    refused(config_of(str(tmp_path / "test.csv")), out, "has no images to train with")


def test_a_broken_image_fails_before_the_run_or_is_left_out(tmp_path, out):
    table = small_table(tmp_path / "glyphs")
    name = next(str(path) for path in fr.data.read_table(table).of("train").paths)
    (tmp_path / "glyphs" / name).write_bytes(b"no picture")
    refused(config_of(table), out, "is no image|cannot be read|broken")
    with pytest.warns(FrontrankWarning, match="^1 of 96 images cannot be read"):
        standing = fr.train(config_of(table, iterations=1, data={"broken": "skip"}), out, quiet=True)
    assert standing.step == 1
    assert len(fr.data.read_table(out / "images.csv")) == len(fr.data.read_table(table)) - 1


def test_broken_images_that_are_left_out_are_named_and_counted(tmp_path, out):
    table = small_table(tmp_path / "glyphs")
    names = [str(path) for path in fr.data.read_table(table).of("train").paths[:5]]
    for name in names:
        (tmp_path / "glyphs" / name).write_bytes(b"")
    with pytest.warns(FrontrankWarning, match="^5 of 96 images cannot be read: .*left out, and listed in") as caught:
        fr.train(config_of(table, iterations=1, data={"broken": "skip"}), out, quiet=True)
    assert all(name in str(caught[0].message) for name in names[:3])
    with (out / "broken.csv").open(newline="") as file:
        header, *listed = csv.reader(file)
    assert header == ["path", "reason"]
    assert [path for path, _ in listed] == sorted(names)
    assert json.loads((out / "run.json").read_text())["broken_images"] == 5


def test_classes_set_aside_as_test(tmp_path, out):
    table = fr.data.read_table(small_table(tmp_path / "glyphs"))
    replace(table, splits=np.full(len(table), "train")).save(tmp_path / "glyphs" / "plain.csv")
    config = config_of(str(tmp_path / "glyphs" / "plain.csv"), iterations=1, data={"test": 0.3})
    fr.train(config, out, quiet=True)
    found = fr.data.read_table(out / "images.csv")
    classes = {split: set(found.of(split).labels) for split in ("train", "validation", "test")}
    assert len(classes["test"]) == 6  # of 20
    assert not (classes["test"] & classes["train"])
    assert not (classes["test"] & classes["validation"])
    refused(
        config_of(str(tmp_path / "glyphs" / "images.csv"), data={"test": 0.3}),
        out.with_name("b"),
        "has test images already",
    )


def test_a_validation_split_without_a_class_of_two(images, tmp_path, out):
    table = fr.data.read_table(images)
    table = table.of("train")
    splits = table.splits.copy()
    splits[np.unique(table.labels, return_index=True)[1][:3]] = "validation"
    replace(table, splits=splits).save(tmp_path / "odd.csv")
    refused(config_of(str(tmp_path / "odd.csv")), out, "has no class of two images in its split validation")


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"batches": {"kind": "category"}}, "batches.kind must be"),
        ({"log_every": 0}, "log_every must be"),
        ({"checkpoint_every": 0}, "checkpoint_every must be"),
        ({"batches": {"accumulate": 0}}, "batches.accumulate must be"),
        ({"precision": "fp32"}, "precision must be float32, bf16 or fp16, got 'fp32'"),
        ({"epochs": 1.5}, "epochs must be a whole number, at least 1, got 1.5"),
        ({"metric": "dists@intra"}, "metric dists@intra cannot choose a checkpoint"),
        ({"metric": "R@one"}, "R@one"),
        ({"optimizer": {"warmup": 1000}}, "optimizer.warmup"),
        (
            {
                "loss": {
                    "name": "pml.TripletMarginLoss",
                    "variant": None,
                    "temperature": None,
                    "options": {"margin": "x"},
                }
            },
            "loss.options of TripletMarginLoss cannot be used",
        ),
    ],
    ids=range(10),
)
def test_settings_made_in_python_are_checked(changed, match, images, out, monkeypatch):
    monkeypatch.setattr("frontrank.training.run.build_model", None)  # before anything that takes long
    refused(config_of(images, **changed), out, match)


def test_an_image_that_breaks_during_the_run(tmp_path, out):
    table = small_table(tmp_path / "glyphs")
    config = config_of(table, data={"check": "none"})
    name = next(str(path) for path in fr.data.read_table(table).of("train").paths)
    (tmp_path / "glyphs" / name).unlink()
    with pytest.raises(InputError, match=Path(name).name) as caught:
        fr.train(config, out, quiet=True)
    assert "\n" not in str(caught.value)


def test_categories_that_are_not_there(images, tmp_path, out):
    table = fr.data.read_table(images)
    replace(table, categories=np.full(len(table), "")).save(tmp_path / "plain.csv")
    refused(config_of(str(tmp_path / "plain.csv"), batches={"kind": "categories"}), out, "needs images with categories")


def test_a_batch_of_more_classes_than_there_are(images, out):
    refused(config_of(images, batches={"size": 112}), out, "needs 28 classes, but labels holds 10")


def test_the_batch_size_that_is_left_open(images, out):
    fr.train(config_of(images, iterations=1, batches={"size": 0}), out, quiet=True)
    assert read_config(read_recipe(out / "config.yaml")).batches.size == 40  # 10 classes of 4 are fewer than 112


def test_a_folder_that_holds_something(images, tmp_path, out):
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    refused(config_of(images), out, "is not empty; choose another name")
    assert (out / "notes.txt").read_text() == "mine"


def test_a_folder_that_holds_a_run(images, out):
    fr.train(config_of(images, iterations=1), out, quiet=True)
    refused(config_of(images), out, f"holds a run; go on with --resume {out}, or choose another name")


def test_an_out_that_is_a_file(images, out):
    out.write_text("mine")
    refused(config_of(images), out, "is a file; choose another name")


def test_a_folder_that_cannot_be_made(images, tmp_path):
    (tmp_path / "file").write_text("")
    refused(config_of(images), tmp_path / "file" / "run", "cannot be written to")


def test_settings_of_another_loss(images, out):
    refused(
        config_of(images, loss={"bins": 10}), out, r"loss.bins is not a setting of PNP, which has variant, alpha, b"
    )


def test_a_loss_that_is_not_known(images, out):
    refused(config_of(images, loss={"name": "SmothAP"}), out, "loss.name 'SmothAP' is not known; did you mean SmoothAP")


def test_a_device_that_is_not_there(images, out):
    refused(config_of(images, device="cuda:7"), out, "device 'cuda:7' cannot be used")


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_on_stderr(terminal, images, tmp_path, monkeypatch, capsys):
    """On a terminal a bar shows the steps, and only what was found on held-out classes is a line."""
    monkeypatch.setattr(loop, "progress", lambda *_, **__: contextlib.nullcontext(lambda amount: None))
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    fr.train(config_of(images, iterations=2), tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert [("loss" in line, "validation R@1" in line) for line in lines if "loss" in line] == (
        [] if terminal else [(True, False)] * 2
    )
    assert sum("validation R@1" in line for line in lines) == 3
    fr.train(config_of(images, iterations=2), tmp_path / "silent", quiet=True)
    assert capsys.readouterr().err == ""
