import errno
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.training.checkpoints import (
    atomic_write,
    latest_checkpoint,
    load_checkpoint,
    random_state,
    save_checkpoint,
    set_random_state,
)

ROOT = Path(__file__).parents[2]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("step", "keep", "error", "says"),
    [
        (-1, 2, InputError, "step must be at least 0, got -1"),
        (1.5, 2, InputTypeError, "step must be a whole number, got 1.5"),
        (True, 2, InputTypeError, "step must be a whole number, got True"),
        (1, 0, InputError, "keep must be at least 1, got 0"),
        (1, None, InputTypeError, "keep must be a whole number, got None"),
    ],
)
def test_settings(step, keep, error, says, tmp_path):
    with pytest.raises(error, match=says):
        save_checkpoint(tmp_path / "new", step, {}, keep=keep)
    assert names(tmp_path) == []


@pytest.mark.parametrize("call", [latest_checkpoint, load_checkpoint, lambda path: save_checkpoint(path, 0, {})])
def test_paths_are_paths(call):
    with pytest.raises(InputTypeError, match=r"(path|folder) must be a path, got 3"):
        call(3)


# Which are kept, and which is the latest


def test_the_newest_are_kept(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    for step in (5, 10, 99_999_999, 100_000_000, 1_000_000_000):
        assert save_checkpoint(str(folder), step, step, keep=3) == folder / f"step-{step:08d}.safetensors"
    assert names(folder) == [f"step-{step}.safetensors" for step in (100_000_000, 1_000_000_000, 99_999_999)]
    assert load_checkpoint(latest_checkpoint(folder)) == 1_000_000_000
    save_checkpoint(folder, 1_000_000_001, "last", keep=1)
    assert names(folder) == ["step-1000000001.safetensors"]


def test_an_earlier_step_deletes_neither_itself_nor_later_ones(tmp_path):
    for step in (10, 20, 30):
        save_checkpoint(tmp_path, step, step, keep=9)
    save_checkpoint(tmp_path, 15, 15, keep=1)
    assert [int(name[5:13]) for name in names(tmp_path)] == [15, 20, 30]


def test_a_step_can_be_written_again(tmp_path):
    save_checkpoint(tmp_path, 3, "first")
    save_checkpoint(tmp_path, 3, "second")
    assert names(tmp_path) == ["step-00000003.safetensors"]
    assert load_checkpoint(latest_checkpoint(tmp_path)) == "second"


def test_other_files_are_left_alone_and_leftovers_are_not(tmp_path):
    others = ["step-1.safetensors", "step-00000001.safetensors.txt", "xstep-00000001.safetensors", ".hidden", "notes"]
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / "step-00000009.safetensors").mkdir()
    (tmp_path / ".step-00000007.safetensors.4711.unfinished").write_text("half")
    assert latest_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, 11, {}, keep=1)
    assert names(tmp_path) == sorted([*others, "step-00000009.safetensors", "step-00000011.safetensors"])


def test_no_checkpoint_is_none(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "none") is None


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file cannot be read: Not a directory; give a folder of checkpoints"):
        latest_checkpoint(tmp_path / "file")
    with pytest.raises(InputError, match="file cannot be written: File exists; choose another folder"):
        save_checkpoint(tmp_path / "file", 1, {})


def test_damaged_ones_are_passed_over(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, step, keep=3)
    newest = tmp_path / "step-00000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-3])
    (tmp_path / "step-00000004.safetensors").write_bytes(b"")
    with pytest.warns(FrontrankWarning) as seen:
        assert load_checkpoint(latest_checkpoint(tmp_path)) == 2
    assert [str(each.message) for each in seen] == [
        f"{tmp_path / name} is damaged; an earlier checkpoint is used, if there is one"
        for name in ("step-00000004.safetensors", "step-00000003.safetensors")
    ]


# A disk that fails

FAILURES = {
    errno.ENOSPC: "No space left on device; free some space, or choose another folder",
    errno.EDQUOT: "Disk quota exceeded; free some space, or choose another folder",
    errno.EROFS: "Read-only file system; make the folder writable, or choose another folder",
    errno.EACCES: "Permission denied; make the folder writable, or choose another folder",
    errno.EIO: "Input/output error; choose another folder",
}


@pytest.mark.parametrize("code", FAILURES, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_failing_disk_leaves_the_earlier_checkpoints(code, call, tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    for step in (1, 2):
        save_checkpoint(tmp_path, step, step)
    with monkeypatch.context() as patch:
        patch.setattr(Path if call == "open" else os, call, fails)
        with pytest.raises(InputError, match=rf"step-00000003.safetensors cannot be written: {FAILURES[code]}$"):
            save_checkpoint(tmp_path, 3, 3)
    assert names(tmp_path) == ["step-00000001.safetensors", "step-00000002.safetensors"]
    assert load_checkpoint(latest_checkpoint(tmp_path)) == 2


@pytest.fixture
def small_files():
    """No file may grow beyond 64 KB: a write beyond fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_in_the_middle_of_a_tensor(small_files, tmp_path):
    save_checkpoint(tmp_path, 1, {"small": torch.zeros(10)})
    for size in (16_384, 20_000, 1_000_000):
        with pytest.raises(
            InputError, match="cannot be written: File too large; free some space, or choose another folder"
        ):
            save_checkpoint(tmp_path, 2, {"large": torch.zeros(size)})
        assert names(tmp_path) == ["step-00000001.safetensors"]
    save_checkpoint(tmp_path, 2, {"small": torch.zeros(10)})
    assert latest_checkpoint(tmp_path).name == "step-00000002.safetensors"


def test_a_folder_whose_names_cannot_be_synced(tmp_path, monkeypatch):
    """Some network file systems refuse it; a real error is told."""
    real = os.fsync

    def fails(handle, code):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(code, os.strerror(code))
        real(handle)

    monkeypatch.setattr(os, "fsync", lambda handle: fails(handle, errno.EINVAL))
    save_checkpoint(tmp_path, 1, 1)
    assert load_checkpoint(latest_checkpoint(tmp_path)) == 1
    save_checkpoint(tmp_path, 2, 2)
    monkeypatch.setattr(os, "fsync", lambda handle: fails(handle, errno.EIO))
    with pytest.raises(InputError, match="cannot be written: Input/output error"):
        save_checkpoint(tmp_path, 3, 3)
    assert {"step-00000001.safetensors", "step-00000002.safetensors"} <= set(names(tmp_path))


def test_order_of_what_makes_a_checkpoint_durable(tmp_path, monkeypatch):
    """The file, then its name, then the name in the folder; only then are old ones deleted."""
    calls = []

    def watched(owner, name, what):
        real = getattr(owner, name)

        def call(*args, **kwargs):
            calls.append(what(*args))
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    save_checkpoint(tmp_path, 1, 1)
    watched(os, "fsync", lambda handle: "sync " + ("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file"))
    watched(os, "replace", lambda *paths: "rename")
    watched(os, "unlink", lambda path, **_: f"delete {Path(path).name}")
    save_checkpoint(tmp_path, 2, 2, keep=1)
    assert calls == ["sync file", "rename", "sync folder", "delete step-00000001.safetensors"]


def test_files_that_cannot_be_deleted_are_told(tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    save_checkpoint(tmp_path, 1, 1)
    monkeypatch.setattr(os, "unlink", fails)
    with pytest.raises(
        InputError, match=r"step-00000001.safetensors cannot be written: Permission denied; make the folder"
    ):
        save_checkpoint(tmp_path, 2, 2, keep=1)
    assert load_checkpoint(latest_checkpoint(tmp_path)) == 2


def test_a_checkpoint_that_cannot_be_read(tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    path = save_checkpoint(tmp_path, 1, 1)
    monkeypatch.setattr(Path, "open", fails)
    for call, argument in ((latest_checkpoint, tmp_path), (load_checkpoint, path)):
        with pytest.raises(InputError, match=r"step-00000001.safetensors cannot be read: Permission denied; "):
            call(argument)


def test_killed_writers_leave_a_checkpoint_that_loads(tmp_path):
    command = [sys.executable, "-m", "tests.training.killed_writer", str(tmp_path), "30", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    kills, _, checkpoints, _ = done.stdout.split()
    assert int(kills) == 70
    assert int(checkpoints) > 10


# Any file


def test_a_file_is_replaced_at_once_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    atomic_write(path, b"first")
    atomic_write(str(path), lambda file: file.write(b"second"))
    assert path.read_bytes() == b"second"

    def breaks_off(file):
        file.write(b"thi")
        assert path.read_bytes() == b"second"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(path, breaks_off)
    assert path.read_bytes() == b"second"
    assert names(tmp_path) == ["file"]
    with pytest.raises(
        InputError, match="none/file cannot be written: No such file or directory; choose another folder"
    ):
        atomic_write(tmp_path / "none" / "file", b"")


# Randomness


def drawn():
    legacy = np.random  # what libraries draw from
    return random.random(), random.gauss(0, 1), legacy.rand(), legacy.standard_normal(), torch.rand(2).tolist()


def test_random_numbers_go_on(tmp_path):
    before = random_state()
    try:
        random.seed(1)
        np.random.seed(2)  # noqa: NPY002
        torch.manual_seed(3)
        drawn()
        path = save_checkpoint(tmp_path, 0, random_state())
        expected = [drawn() for _ in range(3)]
        assert expected[0] != expected[1]
        set_random_state(load_checkpoint(path))
        assert [drawn() for _ in range(3)] == expected
    finally:
        set_random_state(before)


def test_random_states_of_devices(monkeypatch):
    """No such device here: the calls are watched instead."""
    given, held = [], [torch.tensor([1]), torch.tensor([2]), torch.tensor([3])]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: held)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: given.append((int(state), device)))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: torch.tensor([7]))
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state: given.append((int(state), "mps")))
    state = random_state()
    set_random_state(state)
    assert given == [(1, 0), (2, 1), (7, "mps")]
    given.clear()
    del state["cuda"], state["mps"]
    set_random_state(state)
    assert given == []


def test_the_state_of_devices_that_are_not_here_is_left_out():
    state = random_state() | {"cuda": [torch.tensor([1])], "mps": torch.tensor([1])}
    set_random_state(state)
    assert torch.equal(random_state()["torch"], state["torch"])


@pytest.mark.parametrize("missing", ["python", "numpy", "torch"])
@pytest.mark.parametrize("value", [None, 3, torch.zeros(3), ("MT", 1)], ids=["none", "number", "tensor", "tuple"])
def test_what_is_no_random_state(missing, value):
    state = random_state()
    with pytest.raises(
        InputError, match=r"state is no random state of these versions \(.*\); give one of random_state\(\)"
    ):
        set_random_state(state | {missing: value})
    del state[missing]
    with pytest.raises(InputError, match="state is no random state"):
        set_random_state(state)
