"""Several processes end where one does; a torchrun command saves its run when the whole group is told to stop."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

import frontrank as fr
from frontrank.errors import InputError
from frontrank.settings import as_yaml
from frontrank.training.logs import read_log
from tests.training.processes import run, torchrun_command
from tests.training.runs import config_of, differences, last_state, small_table

pytestmark = [pytest.mark.processes, pytest.mark.training]

SETTINGS = {  # uneven shares, chunks and a memory
    "optimizer": {"name": "sgd", "lr": 0.01},
    "batches": {"kind": "all-classes", "size": 35, "memory": 40, "chunk": 8},
    "loss": {"name": "SmoothAP", "variant": None},
}


def start_config(images, folder):
    """Settings of a model that has learnt a little: embeddings of a random one are so alike that rounding decides."""
    return config_of(images, iterations=6, model={"weights": str(folder / "start" / "model")}, **SETTINGS)


def all_runs(rank, world):
    """Runs of both processes together: whole, in two parts with dropout, and one whose images are broken."""
    folder = Path(os.environ["FOLDER"])
    images = str(folder / "glyphs" / "images.csv")
    fr.train(start_config(images, folder), folder / "two", quiet=True)
    config = config_of(images, iterations=4, evaluations=1, model={"dropout": 0.3}, data={"validation": 0.0})
    fr.train(config, folder / "whole", quiet=True)
    fr.train(config_of(images, iterations=2, **_groups(config)), folder / "parts", quiet=True)
    fr.resume(folder / "parts", {"iterations": "4"}, quiet=True)
    model = fr.Embedder.load(folder / "two" / "model")
    embeddings = fr.embed_table(model, fr.data.read_table(images), workers=0)
    try:
        fr.train(
            config_of(str(folder / "broken" / "images.csv"), data={"broken": "fail"}), folder / "never", quiet=True
        )
    except InputError as error:
        return embeddings, str(error)
    return embeddings, ""


def _groups(config):
    return {"evaluations": config.evaluations, "model": {"dropout": 0.3}, "data": {"validation": 0.0}}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What two processes returned, and their folder; starting them is what takes the time."""
    folder = tmp_path_factory.mktemp("both")
    os.environ["FRONTRANK_CACHE"] = str(folder / "cache")
    try:
        images = small_table(folder / "glyphs")
        broken = fr.data.read_table(small_table(folder / "broken")).of("train")
        Path(broken.files()[1]).write_bytes(b"")  # of the share of the second process
        live = {"batch_norm": "train"}
        start = config_of(images, iterations=15, model=live, optimizer={"lr": 1e-2}, data={"check": "none"})
        fr.train(start, folder / "start", quiet=True)
        results = run(all_runs, 2, folder)
    finally:
        del os.environ["FRONTRANK_CACHE"]
    assert not [each for pair in results for each in pair if isinstance(each, str)], results
    return [result for result, _ in results], folder


def test_two_processes_train_as_one(both, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = both[1]
    config = start_config(str(folder / "glyphs" / "images.csv"), folder)
    standing = fr.train(config, tmp_path / "one", quiet=True)
    one, two = last_state(tmp_path / "one"), last_state(folder / "two")
    assert two["standing"]["step"] == 6
    assert two["standing"]["before"] == standing.before
    for name, value in one["model"].items():
        torch.testing.assert_close(two["model"][name], value, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    start = fr.Embedder.load(folder / "start" / "model").state_dict()
    assert any(not torch.allclose(start[name], value, rtol=1e-3, atol=1e-4) for name, value in one["model"].items())
    assert torch.equal(one["memory"]["labels"], two["memory"]["labels"])


def test_two_processes_stopped_and_resumed_end_with_the_same_bits(both):
    one, other = (last_state(both[1] / name) for name in ("whole", "parts"))
    assert len(one["random"]) == 2  # each process has its own random numbers
    assert differences(one, other) == []


def test_two_processes_embed_as_one(both):
    results, folder = both
    table = fr.data.read_table(folder / "glyphs" / "images.csv")
    expected = fr.embed_table(fr.Embedder.load(folder / "two" / "model"), table, workers=0)
    for embeddings, _ in results:
        torch.testing.assert_close(torch.as_tensor(embeddings), torch.as_tensor(expected), atol=1e-6, rtol=0)


def test_an_error_in_one_process_ends_both(both):
    results, folder = both
    assert results[0][1] == results[1][1]
    assert "DejaVu" in results[0][1]  # the name of the broken image
    assert not (folder / "never").exists()


def test_torchrun_that_is_told_to_stop_saves_the_run(tmp_path):
    """A scheduler, and torchrun itself, signal the whole group of processes, workers too."""
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "run"
    images = small_table(tmp_path / "glyphs")
    recipe.write_text(as_yaml(config_of(images, iterations=5000, data={"workers": 1}), changed_only=True))
    process = subprocess.Popen(
        torchrun_command(2, "train", "--recipe", recipe, "--out", out),
        env={**os.environ, "OMP_NUM_THREADS": "1", "FRONTRANK_CACHE": str(tmp_path / "cache")},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    log, end = out / "log.jsonl", time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        if log.exists() and any(line["step"] >= 3 for line in read_log(log)):
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    printed = process.communicate(timeout=120)[1].decode()
    assert f"frontrank train --resume {out}" in printed
    assert printed.count("step 0/5000") == 1  # one process prints
    assert last_state(out)["standing"]["step"] >= 3
