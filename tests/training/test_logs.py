import json
import math
import os
import resource
import sys
import time

import numpy as np
import pytest
import torch

from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.training.logs import Log, line_text, read_log


def plain_log(folder, **settings):
    return Log(folder, tensorboard=False, **settings)


def write(folder, steps, **settings):
    with plain_log(folder, **settings) as log:
        for step in steps:
            log.write(step, {"loss": 1 / step}, epoch=step / 10)


def steps_of(folder):
    return [line["step"] for line in read_log(folder / "log.jsonl")]


# Lines


def test_a_line_is_an_object(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1234.56789)
    with plain_log(tmp_path / "new" / "run") as log:
        log.write(3, {"loss": 0.25, "R@1": 1, "what": "best", "late": False}, epoch=1.5)
        log.write(4, {})
        assert len(read_log(tmp_path / "new" / "run" / "log.jsonl")) == 2  # before it is closed
    text = (tmp_path / "new" / "run" / "log.jsonl").read_text()
    assert text == (
        '{"step": 3, "epoch": 1.5, "time": 1234.568, "loss": 0.25, "R@1": 1, "what": "best", "late": false}\n'
        '{"step": 4, "epoch": null, "time": 1234.568}\n'
    )
    assert read_log(tmp_path / "new" / "run" / "log.jsonl")[1] == {"step": 4, "epoch": None, "time": 1234.568}


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def test_what_is_not_finite_is_valid_json_and_comes_back(tmp_path):
    with plain_log(tmp_path) as log:
        log.write(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.5})
    line = json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=refuse)
    assert [line[name] for name in "abcd"] == [None, None, None, 0.5]
    assert line["not_finite"] == {"a": "nan", "b": "inf", "c": "-inf"}
    (line_read,) = read_log(tmp_path / "log.jsonl")
    assert math.isnan(line_read["a"])
    assert (line_read["b"], line_read["c"], line_read["d"]) == (math.inf, -math.inf, 0.5)
    assert "not_finite" not in line_read


def test_numbers_of_other_libraries(tmp_path):
    with plain_log(tmp_path) as log:
        log.write(
            1,
            {
                "t": torch.tensor(0.5, requires_grad=True),
                "i": torch.tensor([3]),
                "n": np.float32(0.25),
                "d": np.float64(2),
                "f": np.float32(math.inf),
            },
        )
    (line,) = read_log(tmp_path / "log.jsonl")
    assert [line[name] for name in "tindf"] == [0.5, 3, 0.25, 2.0, math.inf]


@pytest.mark.parametrize("value", [None, torch.zeros(2), np.zeros(2), np.complex64(1)], ids=range(4))
def test_values_that_are_no_numbers(value, tmp_path):
    with plain_log(tmp_path) as log, pytest.raises(InputTypeError, match="loss"):
        log.write(1, {"loss": value})
    assert steps_of(tmp_path) == []


@pytest.mark.parametrize("name", ["step", "not_finite"])
def test_names_that_every_line_has(name, tmp_path):
    with plain_log(tmp_path) as log, pytest.raises(InputError, match=name):
        log.write(1, {"loss": 1.0, name: 1.0})
    assert steps_of(tmp_path) == []


# Going on


def test_a_log_is_not_overwritten(tmp_path):
    write(tmp_path, (1, 2))
    with pytest.raises(InputError, match=r"log\.jsonl"):
        plain_log(tmp_path)
    assert steps_of(tmp_path) == [1, 2]


@pytest.mark.parametrize(("resume", "kept_steps"), [(0, []), (10, [10]), (25, [10, 20]), (99, [10, 20, 30])])
def test_a_run_that_goes_on_has_every_step_once(resume, kept_steps, tmp_path):
    write(tmp_path, (10, 20, 30))
    before = (tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)
    write(tmp_path, (31, 41), resume_step=resume)
    assert steps_of(tmp_path) == [*kept_steps, 31, 41]
    assert (tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)[: len(kept_steps)] == before[
        : len(kept_steps)
    ]


def test_a_run_that_begins_anew_has_no_lines_from_before(tmp_path):
    for _ in range(2):
        with Log(tmp_path, resume_step=0) as log:
            log.write(0, {"R@1": 0.25})
            log.write(1, {"loss": 0.5})
    assert steps_of(tmp_path) == [0, 1]
    assert events(tmp_path) == {"R@1": [(0, 0.25)], "loss": [(1, 0.5)]}
    write(tmp_path, (2,), resume_step=1)
    assert steps_of(tmp_path) == [0, 1, 2]


def test_a_line_that_was_cut_off_anywhere(tmp_path):
    path = tmp_path / "log.jsonl"
    write(tmp_path, (10, 20))
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for end in (first, first + 1, first + 9, len(content) - 1):
        path.write_bytes(content[:end])
        assert steps_of(tmp_path) == [10]
        write(tmp_path, (20,), resume_step=15)
        assert steps_of(tmp_path) == [10, 20]


DAMAGE = [b"", b"\xff", b"[]", b'{"epoch": 1}', b'{"step": true}', b'{"step": 1, "not_finite": {"a": "b"}}']


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_line_in_the_middle(damage, tmp_path):
    path = tmp_path / "log.jsonl"
    write(tmp_path, (10, 20))
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + damage + b"\n" + second)
    with pytest.raises(InputError, match=r"log\.jsonl line 2"):
        read_log(path)
    with pytest.warns(FrontrankWarning, match=r"log\.jsonl"):
        write(tmp_path, (30,), resume_step=20)
    assert steps_of(tmp_path) == [10, 20, 30]


def test_the_old_log_survives_a_kill_while_it_is_shortened(tmp_path, monkeypatch):
    def killed(*args):
        raise KeyboardInterrupt

    write(tmp_path, (10, 20))
    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        plain_log(tmp_path, resume_step=10)
    assert steps_of(tmp_path) == [10, 20]
    assert os.listdir(tmp_path) == ["log.jsonl"]


def test_other_processes_write_nothing(tmp_path, capsys):
    with Log(tmp_path / "run", enabled=False) as log:
        log.write(1, {"loss": 0.5})
    log.close()
    assert os.listdir(tmp_path) == []
    assert capsys.readouterr() == ("", "")


# A disk that fails


def test_a_full_disk(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with plain_log(tmp_path) as log:
        log.write(1, {"note": "x" * 1000})
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        try:
            with pytest.raises(InputError, match=r"log\.jsonl.*File too large"):
                log.write(2, {"note": "x" * 3000})
            log.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert steps_of(tmp_path) == [1]


def test_paths_that_cannot_be_used(tmp_path):
    with pytest.raises(InputError, match="none"):
        read_log(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/log\.jsonl"):
        plain_log(tmp_path / "file")


# TensorBoard


def events(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulator.EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    return {name: [(each.step, each.value) for each in reader.Scalars(name)] for name in reader.Tags()["scalars"]}


def test_tensorboard_says_the_same(tmp_path):
    with Log(tmp_path) as log:
        log.write(10, {"loss": 0.5, "R@1": 0.25, "what": "text"})
        log.write(20, {"loss": math.nan, "R@1": 1})
        assert len(events(tmp_path)["loss"]) == 2  # before it is closed
    time.sleep(1.1)  # the names of its files begin with the second, which is all that orders them
    with Log(tmp_path, resume_step=10) as log:
        log.write(20, {"loss": 0.125})
        log.write(30, {"loss": 0.0625})
    assert events(tmp_path) == {"loss": [(10, 0.5), (20, 0.125), (30, 0.0625)], "R@1": [(10, 0.25)]}
    assert steps_of(tmp_path) == [10, 20, 30]


def test_without_tensorboard_there_is_the_file(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.warns(FrontrankWarning, match="tensorboard") as warnings, Log(tmp_path) as log:
        log.write(1, {"loss": 0.5})
    assert len(warnings) == 1
    assert os.listdir(tmp_path) == ["log.jsonl"]
    assert steps_of(tmp_path) == [1]


def test_text_of_a_line():
    values = {"queries used": 112, "loss": torch.tensor(math.nan), "images/s": 1234.5, "note": "best"}
    text = "epoch 2.718  step 9/400  queries used 112  loss nan  1234 images/s  note best"
    assert line_text(9, 400, 2.71828, values) == text
