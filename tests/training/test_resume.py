"""A run that is killed, stopped or interrupted goes on to the same weights, to the last bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import frontrank as fr
from frontrank.errors import FrontrankError, FrontrankWarning, InputError, InterruptedRunError
from frontrank.settings import as_yaml
from frontrank.training import loop
from frontrank.training.logs import read_log
from tests.training.runs import config_of, differences, last_state, small_table

VARIANTS = {
    "plain": {},
    "dropout": {"model": {"dropout": 0.3}},
    "memory": {"batches": {"memory": 40, "memory_after": 1}, "loss": {"name": "SmoothAP", "variant": None}},
    "multistage": {"batches": {"chunk": 5}, "model": {"dropout": 0.3}},
    "accumulate": {"batches": {"accumulate": 2}, "optimizer": {"clip": 0.1}},
    "schedule": {"optimizer": {"name": "adamw", "schedule": "cosine", "warmup": 3, "head_lr": 10.0}},
    "sgd": {"optimizer": {"name": "sgd", "schedule": "multistep", "milestones": (1, 2)}},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "categories": {"batches": {"kind": "categories", "per_group": 1, "per_class": 4}},
    "all classes": {"batches": {"kind": "all-classes", "size": 24}},
    "live BatchNorm": {"model": {"batch_norm": "train"}},
    "iterations": {"iterations": 7},
    "proxies": {"loss": {"name": "pml.ProxyAnchorLoss", "variant": None, "temperature": None}},
    "no validation": {"data": {"validation": 0.0}},
    "workers": {"data": {"workers": 2}, "model": {"dropout": 0.3}},
}


class Killed(BaseException):
    """What ends a run in these tests, as suddenly as a kill does."""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return small_table(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def killed_after(monkeypatch, steps):
    """Let a run die after so many steps of this process, at a random place in the step."""
    left = [steps]
    before = loop._Training._step, loop.save_checkpoint

    def step(self, batches):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        before[0](self, batches)

    monkeypatch.setattr(loop._Training, "_step", step)


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_at_random_steps_the_run_ends_with_the_same_bits(variant, images, tmp_path, monkeypatch):
    config = config_of(images, **VARIANTS[variant])
    whole = fr.train(config, tmp_path / "whole", quiet=True)
    rng = random.Random(variant)
    kills = 0
    with monkeypatch.context() as patch:
        killed_after(patch, rng.randint(0, 3))
        with pytest.raises(Killed):
            fr.train(config, tmp_path / "killed", quiet=True)
    while True:
        kills += 1
        with monkeypatch.context() as patch:
            killed_after(patch, rng.randint(2, 5) if kills < 3 else 1000)
            try:
                torch.rand(rng.randint(1, 9))  # the random numbers of the process are elsewhere
                again = fr.resume(tmp_path / "killed", quiet=True)
                break
            except Killed:
                continue
    assert kills >= 2 or whole.step < 4
    assert again == whole
    one, other = last_state(tmp_path / "whole"), last_state(tmp_path / "killed")
    assert one["standing"]["step"] == whole.step
    assert differences(one, other) == []
    models = [fr.Embedder.load(tmp_path / name / "model").fingerprint for name in ("whole", "killed")]
    assert models[0] == models[1]
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("whole", "killed")]
    measured = ("time", "images/s", "waiting for images", "seconds per step", "peak MB")
    timeless = [[{k: v for k, v in line.items() if k not in measured} for line in log] for log in logs]
    assert repr(timeless[0]) == repr(timeless[1])  # a step that overflows in fp16 has the norm NaN, which is not itself


def test_states_of_different_seeds_differ(images, tmp_path):
    """The comparison above can fail."""
    for seed in (0, 1):
        fr.train(config_of(images, seed=seed, epochs=1), tmp_path / str(seed), quiet=True)
    found = differences(last_state(tmp_path / "0"), last_state(tmp_path / "1"))
    assert any(".model." in path for path in found)


def test_kill_9_at_random_moments(images, tmp_path):
    config = config_of(images, iterations=24, data={"workers": 1}, model={"dropout": 0.3})
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(as_yaml(config, changed_only=True))
    whole = fr.train(config, tmp_path / "whole", quiet=True)
    rng, killed, out = random.Random(3), 0, tmp_path / "killed"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for attempt in range(8):
        arguments = (
            ["--resume", str(out)] if (out / "config.yaml").exists() else ["--recipe", str(recipe), "--out", str(out)]
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "frontrank", "train", *arguments, "--quiet"],
            env=environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if attempt < 3:
            _wait_for_steps(out, process, rng)
            os.killpg(process.pid, signal.SIGKILL)
        error = process.communicate(timeout=120)[1].decode()
        if process.returncode == 0:
            break
        killed += 1
        assert process.returncode == -signal.SIGKILL, error
    assert killed >= 2
    assert differences(last_state(tmp_path / "whole"), last_state(out)) == []
    assert last_state(out)["standing"]["step"] == whole.step == 24


def _wait_for_steps(out, process, rng):
    """Until the run has made a few more steps, or a moment longer."""
    count = _steps(out)
    wanted = count + rng.randint(1, 6)
    end = time.monotonic() + 60
    while process.poll() is None and _steps(out) < wanted and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(rng.random() * 0.05)


def _steps(out):
    path = Path(out) / "log.jsonl"
    return max((line["step"] for line in read_log(path)), default=0) if path.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_a_signal_saves_the_run(number, images, tmp_path, monkeypatch, capsys):
    config = config_of(images)
    whole = fr.train(config, tmp_path / "whole", quiet=True)
    own = loop._Training._gradient

    def gradient(self, *batch):
        if self.standing.step == 2:
            os.kill(os.getpid(), number)
        return own(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "_gradient", gradient)
        with pytest.raises(InterruptedRunError, match="stopped at step 3 of 15, and saved"):
            fr.train(config, tmp_path / "stopped", quiet=True)
    assert "to save the run" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert last_state(tmp_path / "stopped")["standing"]["step"] == 3
    assert fr.resume(tmp_path / "stopped", quiet=True) == whole
    assert differences(last_state(tmp_path / "whole"), last_state(tmp_path / "stopped")) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_the_signal_that_ends_a_job_reaches_the_workers_too(processes, images, tmp_path):
    """A scheduler, and torchrun itself, signal the whole group of processes; the run is saved all the same."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(as_yaml(config_of(images, iterations=5000, data={"workers": 2}), changed_only=True))
    launcher = (
        [] if processes == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    )
    process = subprocess.Popen(
        [
            sys.executable,
            *launcher,
            "-m",
            "frontrank",
            "train",
            "--recipe",
            str(recipe),
            "--out",
            str(tmp_path / "run"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    end = time.monotonic() + 120
    while process.poll() is None and _steps(tmp_path / "run") < 3 and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    said = process.communicate(timeout=120)[1].decode()
    assert "and saved; go on with: frontrank train --resume" in said
    assert last_state(tmp_path / "run")["standing"]["step"] >= 3
    if processes == 1:
        assert process.returncode == 130


def test_a_second_signal_stops_at_once(images, tmp_path, monkeypatch, capsys):
    def gradient(self, *batch):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop._Training, "_gradient", gradient)
    with pytest.raises(KeyboardInterrupt):
        fr.train(config_of(images), tmp_path / "run", quiet=True)


def test_a_half_written_checkpoint_is_never_loaded(images, tmp_path):
    config = config_of(images)
    whole = fr.train(config, tmp_path / "run", quiet=True)
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    before = last_state(tmp_path / "run")
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(FrontrankWarning, match="step-00000015.pt"):
        again = fr.resume(tmp_path / "run", quiet=True)
    assert again == whole
    assert differences(before, last_state(tmp_path / "run")) == []


def test_a_full_disk_is_one_line_and_the_checkpoint_before_survives(images, tmp_path, monkeypatch):
    config = config_of(images)
    whole = fr.train(config, tmp_path / "whole", quiet=True)
    own, calls = loop.save_checkpoint, []

    def save(folder, step, state):
        calls.append(step)
        if len(calls) < 3:
            return own(folder, step, state)
        monkeypatch.setattr(os, "fsync", _no_space)
        return own(folder, step, state)

    monkeypatch.setattr(loop, "save_checkpoint", save)
    with pytest.raises(FrontrankError, match="full") as caught:
        fr.train(config, tmp_path / "run", quiet=True)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert last_state(tmp_path / "run")["standing"]["step"] == calls[1]
    assert fr.resume(tmp_path / "run", quiet=True) == whole
    assert differences(last_state(tmp_path / "whole"), last_state(tmp_path / "run")) == []


def _no_space(file):
    raise OSError(28, "No space left on device")


def test_more_epochs_go_on_from_the_end(images, tmp_path):
    long = fr.train(config_of(images, epochs=4), tmp_path / "long", quiet=True)
    short = fr.train(config_of(images, epochs=3), tmp_path / "short", quiet=True)
    assert short.step < long.step
    assert fr.resume(tmp_path / "short", {"epochs": "4"}, quiet=True) == long
    assert differences(last_state(tmp_path / "long"), last_state(tmp_path / "short")) == []
    assert (
        fr.resume(tmp_path / "short", quiet=True) == long
    )  # the new number of epochs is kept, and nothing is left to do


def test_other_settings_cannot_change(images, tmp_path):
    fr.train(config_of(images, epochs=1), tmp_path / "run", quiet=True)
    with pytest.raises(InputError, match=r"--loss.temperature cannot change in a run that goes on; leave it out"):
        fr.resume(tmp_path / "run", {"loss.temperature": "1"}, quiet=True)


def test_other_images_are_refused(tmp_path):
    table = small_table(tmp_path / "glyphs")
    fr.train(config_of(table, epochs=1), tmp_path / "run", quiet=True)
    lines = Path(table).read_text().splitlines(keepends=True)
    Path(table).write_text("".join(line for line in lines if "DejaVuSansMono" not in line))
    with pytest.raises(InputError, match="was made with other images or batches than the run has now"):
        fr.resume(tmp_path / "run", {"epochs": "2"}, quiet=True)


def test_other_images_of_the_same_counts_are_refused(tmp_path):
    table = small_table(tmp_path / "glyphs")
    fr.train(config_of(table, epochs=1), tmp_path / "run", quiet=True)
    old = next(line for line in Path(table).read_text().splitlines() if ",validation," in line or ",train," in line)
    name = old.split(",")[0]
    (Path(table).parent / name).rename(Path(table).parent / f"{name}.png")
    Path(table).write_text(Path(table).read_text().replace(f"{name},", f"{name}.png,"))
    with pytest.raises(InputError, match="was made with other images or batches than the run has now"):
        fr.resume(tmp_path / "run", {"epochs": "2"}, quiet=True)


def test_the_unit_of_a_run_cannot_change(images, tmp_path):
    fr.train(config_of(images, epochs=1), tmp_path / "epochs", quiet=True)
    with pytest.raises(InputError, match=r"--iterations cannot be given to a run that counts epochs; give --epochs"):
        fr.resume(tmp_path / "epochs", {"iterations": "20"}, quiet=True)
    fr.train(config_of(images, iterations=1), tmp_path / "iterations", quiet=True)
    with pytest.raises(InputError, match=r"--epochs cannot be given to a run that counts iterations"):
        fr.resume(tmp_path / "iterations", {"epochs": "20"}, quiet=True)


def test_settings_that_were_edited_are_refused_in_one_line(images, tmp_path):
    fr.train(config_of(images, epochs=1), tmp_path / "run", quiet=True)
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("dim: 16", "dim: 8"))
    with pytest.raises(InputError, match="does not fit the settings of the run; undo what changed") as caught:
        fr.resume(tmp_path / "run", {"epochs": "2"}, quiet=True)
    assert "\n" not in str(caught.value)


def test_a_run_goes_on_from_another_folder_and_says_so(images, tmp_path, monkeypatch):
    fr.Embedder("test_resnet", dim=16, image_size=32, resize=32).save(tmp_path / "start")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["frontrank", "train", "--data", "a b"])
    fr.train(config_of(os.path.relpath(images), epochs=1, model={"weights": "start"}), "run", quiet=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert fr.resume(tmp_path / "run", {"epochs": "2"}, quiet=True).step == 10
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (facts["command"], len(facts["resumed"]), facts["steps"]) == ("frontrank train --data 'a b'", 1, 10)


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_is_no_run_is_refused(name, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no run \(there is no config.yaml\)"):
        fr.resume(tmp_path / name)
