import errno
import hashlib
import io
import json
import math
import os
import pickle
import random
import resource
import subprocess
import sys
from collections import Counter, OrderedDict
from pathlib import Path
from types import SimpleNamespace
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.training import checkpoints
from frontrank.training.checkpoints import (
    latest_checkpoint,
    random_state,
    read_state,
    save_checkpoint,
    set_random_state,
    start_randomness,
    write_state,
)
from frontrank.training.loop import restore
from tests.errors import refusal
from tests.files import torch_file

ROOT = Path(__file__).parents[2]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fail(code):
    def call(path, *args, **kwargs):
        raise OSError(code, os.strerror(code), str(path))

    return call


# Which are kept, and which is the latest


def test_the_newest_are_kept(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    assert latest_checkpoint(folder) is None
    for step in (5, 10, 99_999_999, 100_000_000, 1_000_000_000):
        assert save_checkpoint(str(folder), step, step) == folder / f"step-{step:08d}.pt"
    assert names(folder) == [f"step-{step}.pt" for step in (100_000_000, 1_000_000_000)]
    assert read_state(latest_checkpoint(folder)) == 1_000_000_000
    save_checkpoint(folder, 1_000_000_000, "again")
    assert names(folder) == [f"step-{step}.pt" for step in (100_000_000, 1_000_000_000)]
    assert read_state(latest_checkpoint(folder)) == "again"


def test_an_earlier_step_deletes_neither_itself_nor_later_ones(tmp_path):
    for step in (20, 30, 10, 5, 15):
        save_checkpoint(tmp_path, step, step)
    assert [int(name[5:13]) for name in names(tmp_path)] == [10, 15, 20, 30]


def test_other_files_are_left_alone_and_leftovers_are_not(tmp_path):
    others = ["step-1.pt", "step-00000001.pt.txt", "xstep-00000001.pt", ".hidden", "notes"]
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / "step-00000009.pt").mkdir()
    (tmp_path / ".step-00000007.pt.4711.unfinished").write_text("half")
    assert latest_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, 11, {})
    assert names(tmp_path) == sorted([*others, "step-00000009.pt", "step-00000011.pt"])


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for call in (latest_checkpoint, lambda path: save_checkpoint(path, 1, {})):
        refusal(lambda call=call: call(tmp_path / "file"), "file")
    for call in (latest_checkpoint, read_state):
        with pytest.raises(InputTypeError, match=r"path|folder"):
            call(3)
    refusal(lambda: read_state(tmp_path / "none"), "none")


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"step": step}).write_bytes(b"damaged")
    with pytest.warns(FrontrankWarning), pytest.raises(InputError, match=r"step-00000001.*--restart"):
        latest_checkpoint(tmp_path)
    checkpoints.remove_checkpoints(tmp_path)
    assert latest_checkpoint(tmp_path) is None


def test_damaged_ones_are_passed_over(tmp_path):
    for step in (2, 3):
        save_checkpoint(tmp_path, step, step)
    newest = tmp_path / "step-00000003.pt"
    newest.write_bytes(newest.read_bytes()[:-3])
    (tmp_path / "step-00000004.pt").write_bytes(b"")
    with pytest.warns(FrontrankWarning) as warnings:
        assert read_state(latest_checkpoint(tmp_path)) == 2
    for warning, step in zip(warnings, (4, 3), strict=True):
        assert f"step-0000000{step}.pt" in str(warning.message)


# A state comes back as it was


keys = st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.none() | st.floats(allow_nan=False)
tensors = st.builds(
    lambda shape, dtype: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float64]),
)
states = st.recursive(
    keys | st.booleans() | st.floats() | st.binary() | tensors,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=20,
)


def as_text(value):
    return repr(value) if not isinstance(value, dict) else repr([(repr(key), as_text(value[key])) for key in value])


@given(states)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_state_comes_back(tmp_path, state):
    write_state(tmp_path / "state", state)
    assert as_text(read_state(tmp_path / "state")) == as_text(state)


class Code:
    """What a file must never run."""

    def __reduce__(self):
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    "value",
    [{1}, np.float64(0.1), np.zeros(2), Path("x"), Counter("a"), print, {(1, 2): object()}, Code()],
    ids=lambda value: type(value).__name__,
)
def test_values_that_could_not_be_read_back(value, tmp_path):
    save_checkpoint(tmp_path, 1, OrderedDict(good=1))
    refusal(lambda: save_checkpoint(tmp_path, 2, {"a": [value]}), "state['a'][0]", error=InputTypeError)
    assert names(tmp_path) == ["step-00000001.pt"]


# Damage


@pytest.fixture
def content(tmp_path):
    state = {"lr": 0.1, "weights": torch.randn(50), "flags": torch.tensor([True])}
    return save_checkpoint(tmp_path, 1, state).read_bytes()


def assert_refused(content, folder):
    path = folder / "step-00000009.pt"
    path.write_bytes(content)
    refusal(lambda: read_state(path), "step-00000009.pt")
    with pytest.warns(FrontrankWarning, match=r"step-00000009\.pt"):
        assert latest_checkpoint(folder).name == "step-00000001.pt"


def test_a_file_that_was_cut_off_or_grew(content, tmp_path):
    for position in (0, 20, checkpoints._HEADER_SIZE, len(content) // 2, len(content) - 1):
        assert_refused(content[:position], tmp_path)
        assert_refused(content[:position] + b"\1" * (len(content) - position), tmp_path)
    assert_refused(content + b"\0", tmp_path)


def test_a_flipped_bit_anywhere(content, tmp_path):
    assert checkpoints._is_whole(io.BufferedReader(io.BytesIO(content)))
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        assert not checkpoints._is_whole(io.BufferedReader(io.BytesIO(damaged))), position
        if position % 500 == 0:
            assert_refused(bytes(damaged), tmp_path)


@pytest.mark.parametrize(
    "body",
    [pickle.dumps(Code(), 2), torch_file(Code()), torch_file(np.float64(3)), b"nothing", b""],
    ids=["pickle", "code", "numpy", "bytes", "empty"],
)
def test_a_whole_file_of_something_else_is_refused(body, tmp_path):
    path = tmp_path / "odd"
    path.write_bytes(checkpoints._HEADER.format(hashlib.sha256(body).hexdigest()).encode() + body)
    refusal(lambda: read_state(path), "odd")


# A disk that fails


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_failing_disk_leaves_the_earlier_checkpoints(call, tmp_path, monkeypatch):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, step)
    with monkeypatch.context() as patch:
        patch.setattr(Path if call == "open" else os, call, fail(errno.ENOSPC))
        refusal(lambda: save_checkpoint(tmp_path, 3, 3), "step-00000003.pt")
    assert names(tmp_path) == ["step-00000001.pt", "step-00000002.pt"]
    assert read_state(latest_checkpoint(tmp_path)) == 2


def test_a_disk_that_is_full_in_the_middle_of_a_tensor(tmp_path):
    """No file may grow beyond 64 KB: a write beyond fails as on a full disk."""
    save_checkpoint(tmp_path, 1, {"small": torch.zeros(10)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        for size in (16_384, 20_000, 1_000_000):
            refusal(lambda size=size: save_checkpoint(tmp_path, 2, {"large": torch.zeros(size)}), "step-00000002.pt")
            assert names(tmp_path) == ["step-00000001.pt"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_order_of_what_makes_a_checkpoint_durable(tmp_path, monkeypatch):
    """The file, then its name, then the name in the folder; only then are old ones deleted."""
    calls = []

    def watch(owner, name, what):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: (calls.append(what(*args)), real(*args, **kwargs))[1])

    for step in (1, 2):
        save_checkpoint(tmp_path, step, step)
    watch(os, "fsync", lambda handle: "sync " + ("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file"))
    watch(os, "replace", lambda *paths: "rename")
    watch(os, "unlink", lambda path, **_: f"delete {Path(path).name}")
    save_checkpoint(tmp_path, 3, 3)
    assert calls == ["sync file", "rename", "sync folder", "delete step-00000001.pt"]


def test_files_that_cannot_be_deleted(tmp_path, monkeypatch):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, step)
    monkeypatch.setattr(os, "unlink", fail(errno.EACCES))
    refusal(lambda: save_checkpoint(tmp_path, 3, 3), "step-00000001.pt")
    assert read_state(latest_checkpoint(tmp_path)) == 3


def test_a_checkpoint_that_cannot_be_read(tmp_path, monkeypatch):
    path = save_checkpoint(tmp_path, 1, 1)
    monkeypatch.setattr(Path, "open", fail(errno.EACCES))
    for call, argument in ((latest_checkpoint, tmp_path), (read_state, path)):
        refusal(lambda argument=argument, call=call: call(argument), "step-00000001.pt")


@pytest.mark.processes
def test_killed_writers_leave_a_checkpoint_that_loads(tmp_path):
    command = [sys.executable, "-m", "tests.training.killed_writer", str(tmp_path), "20", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    kills, _, steps, _ = done.stdout.split()
    assert int(kills) == 40
    assert int(steps) > 5


# Randomness


def draw():
    legacy = np.random  # what libraries draw from
    return random.random(), random.gauss(0, 1), legacy.rand(), legacy.standard_normal(), torch.rand(2).tolist()


@pytest.fixture
def restored_randomness():
    before = random_state()
    yield
    set_random_state(before)


def test_random_numbers_go_on(restored_randomness, tmp_path):
    start_randomness(seed=1, step=2, rank=3, states=None)
    first = draw()
    path = save_checkpoint(tmp_path, 0, [random_state()])
    expected = [draw() for _ in range(3)]
    start_randomness(seed=1, step=2, rank=0, states=read_state(path))
    assert [draw() for _ in range(3)] == expected
    start_randomness(seed=1, step=2, rank=1, states=read_state(path))  # a process more than there were
    assert draw() not in (first, expected[0])
    start_randomness(seed=1, step=2, rank=3, states=None)
    assert draw() == first


def test_random_states_of_devices(monkeypatch):
    """No such device here: the calls are watched instead."""
    calls, device_states = [], [torch.tensor([1]), torch.tensor([2]), torch.tensor([3])]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: device_states)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: calls.append((int(state), device)))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: torch.tensor([7]))
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state: calls.append((int(state), "mps")))
    state = random_state()
    set_random_state(state)
    assert calls == [(1, 0), (2, 1), (7, "mps")]
    calls.clear()
    del state["cuda"], state["mps"]
    set_random_state(state)
    assert calls == []


def test_values_that_are_no_random_state():
    for name, value in (("python", None), ("numpy", torch.zeros(3)), ("torch", ("MT", 1))):
        refusal(lambda name=name, value=value: set_random_state(random_state() | {name: value}), "state")


def test_a_run_whose_checkpoints_were_deleted_says_that_it_begins_again(tmp_path):
    config = SimpleNamespace(checkpoint_every=2, iterations=10, evaluations=1)
    run = SimpleNamespace(folder=tmp_path, config=config, sampler=range(5), accumulate=1)
    for step, warnings in ((2, 0), (3, 1)):  # one that was killed while it wrote the first has lost nothing else
        (tmp_path / "log.jsonl").write_text(json.dumps({"step": step, "epoch": 0.5, "time": 1.0}) + "\n")
        with catch_warnings(record=True) as caught:
            simplefilter("always")
            assert restore(run)[0].step == 0
        assert len(caught) == warnings
