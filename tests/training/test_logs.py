import json
import math
import os
import resource
import sys
import time

import numpy as np
import pytest

from frontrank.errors import FrontrankWarning, InputError
from frontrank.training.logs import Log, check_trackers, line_text, read_log
from tests.errors import refusal


@pytest.fixture
def no_tensorboard(monkeypatch):
    """Only the file is tested: opening a writer of events takes most of the time."""
    monkeypatch.setattr("frontrank.training.logs._open_events", lambda *_: None)


def write(folder, steps, **settings):
    with Log(folder, **settings) as log:
        for step in steps:
            log.write(step, {"loss": 1 / step}, epoch=step / 10)


def steps_of(folder):
    return [line["step"] for line in read_log(folder / "log.jsonl")]


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def test_a_line_is_valid_json_and_comes_back(tmp_path, monkeypatch, no_tensorboard):
    monkeypatch.setattr("time.time", lambda: 1234.56789)
    path = tmp_path / "new" / "run" / "log.jsonl"
    with Log(path.parent) as log:
        log.write(3, {"loss": 0.25, "used": 1, "R@1": np.float64(0.5)}, epoch=1.5)
        log.write(4, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.5}, epoch=2.0)
        assert len(read_log(path)) == 2  # before it is closed
    first, second = path.read_text().splitlines()
    assert first == '{"step": 3, "epoch": 1.5, "time": 1234.568, "loss": 0.25, "used": 1, "R@1": 0.5}'
    line = json.loads(second, parse_constant=refuse)
    assert [line[name] for name in "abcd"] == [None, None, None, 0.5]
    assert line["not_finite"] == {"a": "nan", "b": "inf", "c": "-inf"}
    line_read = read_log(path)[1]
    assert math.isnan(line_read.pop("a"))
    assert line_read == {"step": 4, "epoch": 2.0, "time": 1234.568, "b": math.inf, "c": -math.inf, "d": 0.5}


def test_text_of_a_line():
    values = {"queries used": 112, "loss": math.nan, "images/s": 1234.5}
    text = "epoch 2.718  step 9/400  queries used 112  loss nan  1234 images/s"
    assert line_text(9, 400, 2.71828, values) == text


# Going on


@pytest.mark.parametrize(("resume", "kept_steps"), [(-1, []), (10, [10]), (25, [10, 20]), (99, [10, 20, 30])])
def test_a_run_that_goes_on_has_every_step_once(resume, kept_steps, tmp_path, no_tensorboard):
    write(tmp_path, (10, 20, 30))
    before = (tmp_path / "log.jsonl").read_bytes().splitlines()
    write(tmp_path, (31, 41), resume_step=resume)
    assert steps_of(tmp_path) == [*kept_steps, 31, 41]
    assert (tmp_path / "log.jsonl").read_bytes().splitlines()[: len(kept_steps)] == before[: len(kept_steps)]


def test_a_line_that_was_cut_off_anywhere(tmp_path, no_tensorboard):
    path = tmp_path / "log.jsonl"
    write(tmp_path, (10, 20))
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for end in (first, first + 1, first + 9, len(content) - 1):
        path.write_bytes(content[:end])
        assert steps_of(tmp_path) == [10]
        write(tmp_path, (20,), resume_step=15)
        assert steps_of(tmp_path) == [10, 20]


@pytest.mark.parametrize("damage", [b"", b"\xff", b"[]", b'{"step": true}', b'{"step": 1, "not_finite": {"a": "b"}}'])
def test_a_damaged_line_in_the_middle(damage, tmp_path, no_tensorboard):
    path = tmp_path / "log.jsonl"
    write(tmp_path, (10, 20))
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + damage + b"\n" + second)
    refusal(lambda: read_log(path), "log.jsonl line 2")
    with pytest.warns(FrontrankWarning, match=r"log\.jsonl"):
        write(tmp_path, (30,), resume_step=20)
    assert steps_of(tmp_path) == [10, 20, 30]


def test_the_old_log_survives_a_kill_while_it_is_shortened(tmp_path, monkeypatch, no_tensorboard):
    def killed(*args):
        raise KeyboardInterrupt

    write(tmp_path, (10, 20))
    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        Log(tmp_path, resume_step=10)
    assert steps_of(tmp_path) == [10, 20]
    assert os.listdir(tmp_path) == ["log.jsonl"]


def test_other_processes_write_nothing(tmp_path):
    write(tmp_path / "run", (1,), enabled=False)
    assert os.listdir(tmp_path) == []


def test_a_full_disk(tmp_path, no_tensorboard):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with Log(tmp_path) as log:
            log.write(1, {"x" * 1000: 1.0}, 0.1)
            refusal(lambda: log.write(2, {"x" * 3000: 1.0}, 0.2), "log.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert steps_of(tmp_path) == [1]


def test_paths_that_cannot_be_used(tmp_path):
    refusal(lambda: read_log(tmp_path / "none"), "none")
    (tmp_path / "file").write_text("")
    refusal(lambda: Log(tmp_path / "file"), "file/log.jsonl")


# TensorBoard


def events(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulator.EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    return {name: [(each.step, each.value) for each in reader.Scalars(name)] for name in reader.Tags()["scalars"]}


@pytest.mark.training
def test_tensorboard_says_the_same(tmp_path):
    with Log(tmp_path) as log:
        log.write(0, {"R@1": 0.125}, 0)
        log.write(10, {"loss": 0.5, "R@1": 0.25}, 1)
        log.write(20, {"loss": math.nan, "R@1": 1}, 2)
        assert len(events(tmp_path)["loss"]) == 2  # before it is closed
    for resume, expected in ((10, {"loss": [(10, 0.5), (20, 0.125)], "R@1": [(0, 0.125), (10, 0.25)]}), (-1, None)):
        time.sleep(1.1)  # the names of its files begin with the second, which is all that orders them
        with Log(tmp_path, resume_step=resume) as log:
            log.write(20, {"loss": 0.125}, 2)
        assert events(tmp_path) == (expected or {"loss": [(20, 0.125)], "R@1": []})


def test_without_tensorboard_there_is_the_file(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.warns(FrontrankWarning, match="tensorboard") as warnings:
        write(tmp_path, (1,))
    assert len(warnings) == 1
    assert os.listdir(tmp_path) == ["log.jsonl"]
    assert steps_of(tmp_path) == [1]


# Trackers


@pytest.mark.processes
def test_wandb_offline(tmp_path, monkeypatch):
    """A real run of the library, without its server; a run that continues keeps its id."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    for resume_step, step in ((-1, 1), (1, 2)):
        with Log(tmp_path, resume_step, trackers="wandb", settings={"loss.name": "PNP"}) as log:
            log.write(step, {"loss": 0.25, "validation R@1": 0.5}, epoch=1)
    files = list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert {path.stem for path in files} == {f"run-{(tmp_path / 'wandb.id').read_text().strip()}"}
    content = b"".join(path.read_bytes() for path in files)
    assert all(text in content for text in (b"validation R@1", b"loss.name", b"PNP"))
    assert steps_of(tmp_path) == [1, 2]


@pytest.mark.training
def test_mlflow_in_files(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # as the log sets it; this undoes it
    from mlflow import MlflowClient

    def stop(log):
        log.write(20, {"loss": 0.125}, epoch=2)
        raise KeyboardInterrupt

    with Log(tmp_path, trackers="mlflow", settings={"loss.name": "PNP"}) as log:
        log.write(10, {"loss": 0.25, "validation R@1 (level 2)": 0.5}, epoch=1)
    with pytest.raises(KeyboardInterrupt), Log(tmp_path, 10, trackers="mlflow") as log:
        stop(log)
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("frontrank").experiment_id])
    assert run.info.run_name == tmp_path.name
    assert run.info.status == "FAILED"
    assert run.data.params == {"loss.name": "PNP"}
    assert run.data.metrics == {"loss": 0.125, "validation R_at_1 level 2": 0.5}
    assert [each.step for each in client.get_metric_history(run.info.run_id, "loss")] == [10, 20]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"frontrank\[{name}\]"):
        check_trackers(f"tensorboard,{name}")


def test_a_tracker_that_cannot_be_reached(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    refusal(lambda: Log(tmp_path, trackers="mlflow"), "mlflow")
