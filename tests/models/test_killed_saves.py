"""Saves that are killed at any of their steps, and what the next one makes of it."""

import os
import random
import sys
import time
import warnings

import pytest
import torch

from frontrank.errors import InputError
from frontrank.models import storage

SETTINGS = {
    "backbone": "b",
    "pooling": "max",
    "image_size": 8,
    "resize": 8,
    "mean": [0.5, 0.5, 0.5],
    "std": [1.0, 1.0, 1.0],
}
STEPS = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "open"}
KILLED = 9

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def save(folder, number, overwrite=True):
    storage.save(folder, SETTINGS, {"number": torch.tensor([number])}, 4, overwrite)


def load(folder):
    return int(storage.read(storage.find(folder))[1]["number"])


def save_and_die(folder, number, step):
    """Save in a process that ends, with nothing cleaned up, before the step of this number; whether it came to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads; none is needed here
        process = os.fork()
    if process == 0:
        seen = [0]

        def count(event, _):
            if event in STEPS:
                seen[0] += 1
                if seen[0] == step:
                    os._exit(KILLED)

        try:
            sys.addaudithook(count)
            save(folder, number)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status in (0, KILLED)
    return status == KILLED


def model_with_more(parent):
    save(parent / "model", 1)
    (parent / "model" / "notes.txt").write_text("mine")
    (parent / "model" / "logs").mkdir()
    (parent / "model" / "logs" / "a").write_text("log")
    return parent / "model"


def nothing_else_is_lost(folder):
    return (folder / "notes.txt").read_text() == "mine" and (folder / "logs" / "a").read_text() == "log"


def later(monkeypatch):
    now = time.time() + 7200
    monkeypatch.setattr(storage.time, "time", lambda: now)


def test_a_model_that_is_replaced(tmp_path, monkeypatch):
    step, found = 1, []
    while True:
        parent = tmp_path / f"{step}"
        folder = model_with_more(parent)
        killed = save_and_die(folder, 2, step)
        found.append(load(folder) if folder.exists() else None)
        if found[-1] is None:
            with pytest.raises(InputError) as caught:
                load(folder)
            said = f"is not there, since a save was killed; rename {parent / '.model.frontrank-old'}, the model before"
            assert str(caught.value) == f"{folder} {said} it, to that"
        with pytest.raises(InputError, match="exists already"):
            save(folder, 3, overwrite=False)
        assert load(folder) == (found[-1] or 1)
        assert nothing_else_is_lost(folder)
        save(folder, 3)
        assert load(folder) == 3
        with monkeypatch.context() as patch:
            later(patch)
            save(folder, 4)
        assert load(folder) == 4
        assert nothing_else_is_lost(folder)
        assert [path.name for path in parent.iterdir()] == ["model"]
        if not killed:
            break
        step += 1
    assert step > 10
    assert found.count(None) == 1  # between the two renames
    assert found == sorted(found, key=[1, None, 2].index)
    assert {1, 2} <= set(found)


def test_a_model_that_is_new(tmp_path):
    step, found = 1, []
    while True:
        folder = tmp_path / f"{step}" / "model"
        killed = save_and_die(folder, 2, step)
        found.append(folder.exists() and load(folder) == 2)
        save(folder, 3)
        assert load(folder) == 3
        if not killed:
            break
        step += 1
    assert step > 5
    assert found == sorted(found)
    assert found[-1]


@pytest.mark.parametrize("seed", range(10))
def test_one_kill_after_another(tmp_path, seed):
    folder, draw = model_with_more(tmp_path), random.Random(seed)
    for number in range(2, 12):
        before = load(folder) if folder.exists() else None
        save_and_die(folder, number, draw.randint(1, 25))
        if folder.exists():
            assert load(folder) in (before or load(folder), number)
    save(folder, 99)
    assert load(folder) == 99
    assert nothing_else_is_lost(folder)


def test_leftovers_of_processes_that_may_be_alive_are_kept(tmp_path, monkeypatch):
    ours, other = tmp_path / ".model.abc.frontrank-new", tmp_path / ".other.abc.frontrank-new"
    for folder in (ours, other):
        (folder / "model").mkdir(parents=True)
    save(tmp_path / "model", 1)
    assert ours.exists()
    later(monkeypatch)
    save(tmp_path / "model", 2)
    assert not ours.exists()
    assert other.exists()


def test_nothing_is_overwritten_by_what_is_put_back(tmp_path):
    folder = model_with_more(tmp_path)
    folder.rename(tmp_path / ".model.frontrank-old")
    save(tmp_path / "new", 2)
    (tmp_path / "new").rename(folder)
    (folder / "notes.txt").write_text("later")
    save(folder, 3)
    assert (folder / "notes.txt").read_text() == "later"
    assert (folder / "notes.txt.old").read_text() == "mine"
    assert (folder / "logs" / "a").read_text() == "log"


def test_through_a_link_to_a_folder_that_is_gone(tmp_path):
    save(tmp_path / ".model.frontrank-old", 1)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "latest").symlink_to(tmp_path / "model")
    with pytest.raises(InputError, match=r"latest is not there, since a save was killed; rename .*\.model\.front"):
        load(tmp_path / "links" / "latest")
    save(tmp_path / "links" / "latest", 2)
    assert load(tmp_path / "model") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["links", "model"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_stopped_by_hand_between_the_renames(tmp_path, monkeypatch, moment):
    folder = model_with_more(tmp_path)
    rename = type(folder).rename

    def stop(self, target):
        if not self.parent.name.endswith(".frontrank-new"):
            return rename(self, target)
        if moment == "after":
            rename(self, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(folder), "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        save(folder, 2)
    assert load(folder) == (1 if moment == "before" else 2)
    assert nothing_else_is_lost(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_folder_has_the_usual_permissions(tmp_path, mask):
    before = os.umask(mask)
    try:
        save(tmp_path / "model", 1)
        (tmp_path / "plain").mkdir()
    finally:
        os.umask(before)
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_leftovers_of_a_name_with_brackets(tmp_path, monkeypatch):
    (tmp_path / ".m[1].abc.frontrank-new").mkdir()
    later(monkeypatch)
    save(tmp_path / "m[1]", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["m[1]"]
