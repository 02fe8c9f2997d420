"""The command under torchrun: two processes end where one does."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.settings import as_yaml
from tests.training.runs import config_of, differences, last_state, small_table

VARIANTS = {
    "plain": {"optimizer": {"name": "sgd", "lr": 0.01}},
    "uneven, memory, chunks": {
        "optimizer": {"name": "sgd", "lr": 0.01},
        "batches": {"kind": "all-classes", "size": 35, "memory": 40, "chunk": 8},
        "loss": {"name": "SmoothAP", "variant": None},
    },
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return small_table(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture(scope="module")
def start(images, tmp_path_factory):
    """Weights that have learnt a little: the embeddings of a random network are so alike that rounding decides."""
    out = tmp_path_factory.mktemp("start")
    config = config_of(
        images, iterations=15, model={"batch_norm": "train"}, optimizer={"lr": 1e-2}, data={"check": "none"}
    )
    fr.train(config, out / "run", quiet=True)
    return str(out / "run" / "model")


def torchrun(processes, *arguments):
    """Run a command of frontrank in so many processes; gives what they print."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "-m", "frontrank", *arguments], capture_output=True, text=True, env=environment, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("variant", [pytest.param("plain", marks=pytest.mark.slow), "uneven, memory, chunks"])
def test_two_processes_train_as_one(variant, images, start, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = config_of(images, iterations=6, model={"weights": start}, **VARIANTS[variant])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(as_yaml(config, changed_only=True))
    one = fr.train(config, tmp_path / "one", quiet=True)
    status, said = torchrun(2, "train", "--recipe", str(recipe), "--out", str(tmp_path / "two"), "--quiet")
    assert status == 0, said
    assert said.count("trained 6 steps") == 1  # one process speaks
    first, second = last_state(tmp_path / "one"), last_state(tmp_path / "two")
    assert second["standing"]["step"] == 6
    assert second["standing"]["before"] == one.before
    for name, value in first["model"].items():
        torch.testing.assert_close(
            second["model"][name], value, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    begun = fr.Embedder.load(start).state_dict()
    assert any(not torch.allclose(begun[name], value, rtol=1e-3, atol=1e-4) for name, value in first["model"].items())
    if config.batches.memory:
        assert torch.equal(first["memory"]["labels"], second["memory"]["labels"])
    status, said = torchrun(2, "train", "--resume", str(tmp_path / "two"), "--iterations", "7", "--quiet")
    assert status == 0, said
    assert last_state(tmp_path / "two")["standing"]["step"] == 7


def test_two_processes_stopped_and_resumed_end_with_the_same_bits(images, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(as_yaml(config_of(images, iterations=6, model={"dropout": 0.3}), changed_only=True))
    for name, iterations in (("whole", ["6"]), ("parts", ["3", "6"])):
        status, said = torchrun(
            2, "train", "--recipe", str(recipe), "--out", str(tmp_path / name), "--quiet", "--iterations", iterations[0]
        )
        assert status == 0, said
        if len(iterations) > 1:
            status, said = torchrun(
                2, "train", "--resume", str(tmp_path / name), "--iterations", iterations[1], "--quiet"
            )
            assert status == 0, said
    one, other = last_state(tmp_path / "whole"), last_state(tmp_path / "parts")
    assert len(one["random"]) == 2  # each process has its own random numbers
    assert differences(one["model"], other["model"]) == []
    assert differences(one["random"], other["random"]) == []


def test_two_processes_embed_as_one(images, tmp_path):
    model = fr.Embedder("test_resnet", dim=8, image_size=32, resize=32)
    model.save(tmp_path / "model")
    for processes in (1, 2):
        out = tmp_path / f"{processes}.npz"
        status, said = torchrun(processes, "embed", str(tmp_path / "model"), "--data", images, "--out", str(out))
        assert status == 0, said
    one, two = (np.load(tmp_path / f"{n}.npz") for n in (1, 2))
    np.testing.assert_allclose(one["embeddings"], two["embeddings"], atol=1e-6)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "1.npz", tmp_path / "2.npz", tmp_path / "model"]


def test_an_error_ends_all_processes(images, tmp_path):
    status, said = torchrun(2, "train", "--data", images, "--out", str(tmp_path / "run"), "--loss.name", "SmothAP")
    assert status != 0
    assert "did you mean SmoothAP?" in said
