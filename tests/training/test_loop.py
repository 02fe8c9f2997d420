"""The loop on a toy run and on real ones: steps, evaluations, logs, checkpoints, and stops."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import frontrank as fr
from frontrank.errors import FrontrankError, InterruptedRunError
from frontrank.settings import as_yaml
from frontrank.training import loop
from frontrank.training.logs import read_log
from frontrank.training.loop import Budget, StopRequest, restore, train_loop
from tests.errors import refusal
from tests.training.runs import (
    Killed,
    ToyRun,
    config_of,
    differences,
    kill_after,
    last_state,
    no_space,
    signal_at,
    small_table,
    steps_with,
    timeless_log,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return small_table(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# Steps, evaluations and logs


def test_a_run_logs_evaluates_and_saves(tmp_path):
    run = ToyRun(tmp_path)
    standing = train_loop(run)
    assert (standing.step, standing.before, standing.best, standing.best_step) == (10, 0.5, 0.5, 10)
    assert run.seen == list(range(10))
    lines = read_log(tmp_path / "log.jsonl")
    steps = [line for line in lines if "loss" in line]
    names = "loss", "gradient norm", "learning rate", "images/s", "waiting for images", "seconds per step", "peak MB"
    assert tuple(steps[0])[3:] == names
    assert [(line["step"], line["epoch"]) for line in steps] == [(n, n / 5) for n in range(1, 11)]
    assert all(line["images/s"] > 0 and line["seconds per step"] > 0 and line["peak MB"] >= 0 for line in steps)
    assert steps_with(tmp_path, "validation R@1") == [0, 5, 10]
    assert differences(run.saved[-1], run.model.state_dict()) == []
    checkpoints = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert checkpoints == ["step-00000008.pt", "step-00000010.pt"]


def test_the_model_is_the_best_on_held_out_images(tmp_path):
    values = [(0.2, 0.9), (0.5, 0.3), (0.4, 0.9), (0.5, 0.2), (0.5, 0.3), (0.1, 0.1)]
    run = ToyRun(tmp_path, values, epochs=5)
    standing = train_loop(run)
    assert len(run.saved) == 3  # the first one too; of equal R@1 that of more mAP, then the later one
    assert (standing.before, standing.best, standing.best_step, standing.since_best) == (0.2, 0.5, 20, 1)
    assert [entry["R@1"] for entry in standing.history] == [value for value, _ in values]


def test_a_run_that_did_not_help_keeps_the_model_before_it(tmp_path):
    run = ToyRun(tmp_path, [(0.9, 0.9), (0.5, 0.3), (0.9, 0.8)])
    standing = train_loop(run)
    assert (standing.before, standing.best, standing.best_step, len(run.saved)) == (0.9, 0.9, 0, 1)


def test_a_run_without_a_tie_breaker_and_a_first_evaluation(tmp_path):
    run = ToyRun(tmp_path, [(0.5, 0.9), (0.5, 0.1)])
    run.tie_breaker, run.evaluate_first = "", False
    standing = train_loop(run)
    assert (standing.before, standing.best_step, len(run.saved)) == (None, 10, 2)
    assert steps_with(tmp_path, "validation R@1") == [5, 10]


def test_patience(tmp_path):
    run = ToyRun(tmp_path, [(0.2, 0.2), (0.5, 0.3), (0.4, 0.3), (0.5, 0.2)], epochs=40, patience=2)
    standing = train_loop(run)
    assert (standing.step, standing.stopped_early, standing.best_step) == (15, True, 5)
    again = ToyRun(tmp_path, epochs=40, patience=2)
    assert train_loop(again, *restore(again)) == standing  # it does not go on
    assert again.seen == []


def test_without_held_out_images_the_last_model_is_saved(tmp_path):
    run = ToyRun(tmp_path, ())
    standing = train_loop(run)
    assert (standing.best, standing.before, len(run.saved)) == (None, None, 1)
    assert differences(run.saved[0], last_state(tmp_path)["model"]) == []


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"iterations": 20}, list(range(0, 21, 2))),
        ({"iterations": 7, "evaluations": 2}, [0, 4, 7]),
        ({"iterations": 3, "evaluations": 10}, [0, 1, 2, 3]),
        ({"epochs": 4, "evaluate_every": 2, "accumulate": 2}, [0, 5, 10]),
        ({"epochs": 3, "evaluate_every": 2}, [0, 10, 15]),
    ],
    ids=str,
)
def test_steps_of_evaluations(changes, steps, tmp_path):
    standing = train_loop(ToyRun(tmp_path, **changes))
    assert steps_with(tmp_path, "validation R@1") == [entry["step"] for entry in standing.history] == steps


def test_lines_of_the_log_and_checkpoints(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(loop, "save_checkpoint", lambda folder, step, state: saved.append(step))
    train_loop(ToyRun(tmp_path, iterations=20, evaluations=1, log_every=7, checkpoint_every=8))
    assert steps_with(tmp_path, "loss") == [1, 7, 14, 20]
    assert saved == [8, 16, 20]


@pytest.mark.parametrize(("steps", "seconds"), [(60, 0.02), (4, 0.0)], ids=["too many", "too few"])
def test_a_budget_corrects_the_number_of_steps(steps, seconds, tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    run = ToyRun(tmp_path, iterations=steps, evaluations=1, optimizer={"schedule": "cosine"})
    own, rates = run.gradient, []

    def gradient(*parts):
        clock[0] += seconds or 0.001
        rates.append(run.optimizer.param_groups[0]["lr"])
        return own(*parts)

    def change_steps(steps):
        run.config = replace(run.config, iterations=steps)

    run.gradient, run.budget = gradient, Budget(0.4, 0.0, 50, change_steps)
    standing = train_loop(run)
    assert standing.step in ((19, 20) if seconds else (50,))
    assert clock[0] <= 0.4 + 1e-6
    assert rates[-1] < 0.02 * max(rates)


def test_learning_rates(tmp_path):
    schedule = {"lr": 0.01, "schedule": "multistep", "milestones": (1, 2), "gamma": 0.5, "warmup": 2}
    train_loop(ToyRun(tmp_path / "batches", epochs=3, optimizer=schedule))
    rates = [line["learning rate"] for line in read_log(tmp_path / "batches" / "log.jsonl") if "loss" in line]
    assert rates == pytest.approx([0.005, *[0.01] * 4, *[0.005] * 5, *[0.0025] * 5])


def test_accumulation_and_clipping(tmp_path):
    """The step is along the sum of the gradients of its batches, cut to the norm that is asked for."""
    run = ToyRun(tmp_path, iterations=1, accumulate=2, optimizer={"lr": 1.0, "clip": 1e-3})
    run.model.eval()
    expected = ToyRun(tmp_path)
    expected.model[1].p = run.model[1].p = 0.0
    for batch in (0, 1):
        ((expected.model(torch.full((4, 3), 1 / (batch + 1))) - 1).square().mean() / 2).backward()
    gradient = torch.cat([weight.grad.flatten() for weight in expected.model.parameters()])
    before = torch.cat([weight.detach().flatten() for weight in run.model.parameters()])
    train_loop(run)
    moved = torch.cat([weight.detach().flatten() for weight in run.model.parameters()]) - before
    torch.testing.assert_close(moved, -1e-3 * gradient / gradient.norm(), rtol=1e-3, atol=1e-7)
    (norm,) = [line["gradient norm"] for line in read_log(tmp_path / "log.jsonl") if "loss" in line]
    assert norm == pytest.approx(float(gradient.norm()), rel=1e-5)
    assert run.seen == [0, 1]


def test_a_gradient_that_is_not_finite_ends_the_run(tmp_path):
    run = ToyRun(tmp_path)
    run.bad_batch = 2
    refusal(lambda: train_loop(run), "step 3", "optimizer.lr")
    state = last_state(tmp_path)
    assert state["standing"]["step"] == 2
    assert all(value.isfinite().all() for value in state["model"].values())


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_on_stderr(terminal, tmp_path, monkeypatch, capsys):
    """On a terminal a bar shows the steps, and only evaluations are lines."""
    monkeypatch.setattr(loop, "progress", lambda *_, **__: contextlib.nullcontext(lambda *_: None))
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    run = ToyRun(tmp_path, iterations=2)
    run.quiet = False
    train_loop(run)
    lines = capsys.readouterr().err.splitlines()
    assert sum("validation R@1" in line for line in lines) == 3
    assert sum("loss" in line for line in lines) == (0 if terminal else 2)
    assert not any("peak MB" in line for line in lines)
    monkeypatch.setenv("COLUMNS", "10")  # a line has as many metrics as fit, and always the one that chooses
    loop._print(run, loop.Standing(), {"validation mAP": 0.5, "validation R@1": 0.5})
    assert ("mAP" in capsys.readouterr().err) is not terminal
    train_loop(ToyRun(tmp_path / "quiet", iterations=2))
    assert capsys.readouterr().err == ""


# Checkpoints: a run that is killed, stopped or interrupted ends with the same bits


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, train_loop(ToyRun(folder))


def test_killed_after_any_step_a_run_ends_with_the_same_bits(whole, tmp_path, monkeypatch):
    for steps in (0, 1, 5, 8):
        folder = tmp_path / str(steps)
        with monkeypatch.context() as patch:
            kill_after(patch, steps)
            with pytest.raises(Killed):
                train_loop(ToyRun(folder))
        torch.rand(steps + 1)  # the random numbers of the process are elsewhere
        run = ToyRun(folder, seed=0)
        assert train_loop(run, *restore(run)) == whole[1]
        assert differences(last_state(whole[0]), last_state(folder)) == []
        assert timeless_log(whole[0]) == timeless_log(folder)
    train_loop(ToyRun(tmp_path / "other", seed=1))  # the comparison can fail
    assert any(".model." in path for path in differences(last_state(whole[0]), last_state(tmp_path / "other")))


VARIANTS = {
    "dropout, chunks, accumulation, workers": {
        "data": {"workers": 1},
        "model": {"dropout": 0.3},
        "batches": {"chunk": 5, "accumulate": 2},
        "optimizer": {"name": "adamw", "schedule": "cosine", "warmup": 3, "head_lr": 10.0, "clip": 0.1},
    },
    "memory, all classes": {
        "batches": {"kind": "all-classes", "size": 24, "memory": 40, "memory_after": 1},
        "loss": {"name": "SmoothAP", "variant": None},
        "optimizer": {"name": "sgd"},
    },
    "fp16, no validation": {"precision": "fp16", "data": {"validation": 0.0}},
    "proxies, live BatchNorm": {
        "loss": {"name": "pml.ProxyAnchorLoss", "variant": None, "temperature": None},
        "model": {"batch_norm": "train"},
    },
}


@pytest.mark.training
@pytest.mark.parametrize("variant", VARIANTS)
def test_real_runs_that_are_killed_end_with_the_same_bits(variant, images, tmp_path, monkeypatch):
    config = config_of(images, iterations=4, evaluations=2, **VARIANTS[variant])
    whole = fr.train(config, tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patch:
        kill_after(patch, random.Random(variant).randint(2, 3))
        with pytest.raises(Killed):
            fr.train(config, tmp_path / "killed", quiet=True)
    assert fr.resume(tmp_path / "killed", quiet=True) == whole
    one, other = last_state(tmp_path / "whole"), last_state(tmp_path / "killed")
    assert one["standing"]["step"] == 4
    assert differences(one, other) == []
    models = [fr.Embedder.load(tmp_path / name / "model").fingerprint for name in ("whole", "killed")]
    assert models[0] == models[1]
    logs = [repr(timeless_log(tmp_path / name)) for name in ("whole", "killed")]
    assert logs[0] == logs[1]  # as text: a step that overflows in fp16 has the norm NaN, which is not itself


@pytest.mark.processes
@pytest.mark.training
def test_kill_9_of_the_command(images, tmp_path):
    config = config_of(images, iterations=12, data={"workers": 1}, model={"dropout": 0.3})
    (tmp_path / "recipe.yaml").write_text(as_yaml(config, changed_only=True))
    whole = fr.train(config, tmp_path / "whole", quiet=True)
    out, command = tmp_path / "killed", [sys.executable, "-m", "frontrank", "train", "--quiet"]
    start = [*command, "--recipe", str(tmp_path / "recipe.yaml"), "--out", str(out)]
    process = subprocess.Popen(start, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while process.poll() is None and _logged_steps(out) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    error = process.communicate(timeout=60)[1].decode()
    assert process.returncode == -signal.SIGKILL, error
    subprocess.run([*command, "--resume", str(out)], check=True, stdout=subprocess.DEVNULL, timeout=120)
    assert differences(last_state(tmp_path / "whole"), last_state(out)) == []
    assert last_state(out)["standing"]["step"] == whole.step == 12


def _logged_steps(out):
    path = Path(out) / "log.jsonl"
    return max((line["step"] for line in read_log(path)), default=0) if path.exists() else 0


def test_a_full_disk_is_one_line_and_the_checkpoint_before_survives(whole, tmp_path, monkeypatch):
    own, calls = loop.save_checkpoint, []

    def save(folder, step, state):
        calls.append(step)
        if len(calls) == 3:
            monkeypatch.setattr(os, "fsync", no_space)
        return own(folder, step, state)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", save)
        with pytest.raises(FrontrankError, match="No space") as caught:
            train_loop(ToyRun(tmp_path))
    monkeypatch.undo()
    assert "\n" not in str(caught.value)
    assert last_state(tmp_path)["standing"]["step"] == calls[1]
    again = ToyRun(tmp_path)
    assert train_loop(again, *restore(again)) == whole[1]
    assert differences(last_state(whole[0]), last_state(tmp_path)) == []


def test_more_epochs_continue_from_the_end(tmp_path):
    long = train_loop(ToyRun(tmp_path / "long", epochs=4))
    train_loop(ToyRun(tmp_path / "short", epochs=3))
    for _ in range(2):  # the second time nothing is left to do
        run = ToyRun(tmp_path / "short", epochs=4)
        assert train_loop(run, *restore(run)) == long
    assert differences(last_state(tmp_path / "long"), last_state(tmp_path / "short")) == []


def test_a_checkpoint_of_other_data_or_another_model_is_refused(tmp_path):
    assert restore(ToyRun(tmp_path)) == (loop.Standing(), None)
    train_loop(ToyRun(tmp_path, epochs=1))
    other = ToyRun(tmp_path)
    other.data = "other numbers"
    refusal(lambda: restore(other), "step-00000005.pt")
    other = ToyRun(tmp_path)
    other.model = nn.Sequential(nn.Linear(3, 4))
    refusal(lambda: restore(other), "config.yaml")


# Requests to stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_a_signal_saves_the_run(number, whole, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        signal_at(patch, 3, number)
        with pytest.raises(InterruptedRunError, match="step 3 of 10"):
            train_loop(ToyRun(tmp_path))
    assert "stopping" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert last_state(tmp_path)["standing"]["step"] == 3
    run = ToyRun(tmp_path)
    assert train_loop(run, *restore(run)) == whole[1]
    assert differences(last_state(whole[0]), last_state(tmp_path)) == []


def test_a_signal_in_the_last_step_is_too_late(tmp_path, monkeypatch):
    signal_at(monkeypatch, 10, signal.SIGINT)
    assert train_loop(ToyRun(tmp_path)).step == 10


def test_a_second_signal_stops_at_once(tmp_path, monkeypatch, capsys):
    signal_at(monkeypatch, 3, signal.SIGTERM, signal.SIGINT)
    run = ToyRun(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train_loop(run)
    assert run.seen == [0, 1]
    assert capsys.readouterr().err.count("stopping") == 1


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_handlers_come_back_after_an_error():
    before, stop = handlers(), StopRequest()
    with contextlib.suppress(ValueError), stop:
        assert handlers() == [stop._ask, stop._ask]
        raise ValueError("of the run")
    assert handlers() == before


def test_in_another_thread_nothing_changes():
    before, results = handlers(), []

    def work():
        with StopRequest() as stop:
            results.extend([handlers() == before, stop.asked])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [True, False]
