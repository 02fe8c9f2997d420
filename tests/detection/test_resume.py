"""A run that was stopped ends with the same bits as one that was not."""

import csv
import os
import signal
from pathlib import Path

import pytest

from frontrank.detection import run as loop
from frontrank.detection.run import resume_detector, train_detector
from frontrank.errors import FrontrankError, FrontrankWarning, InputError, InterruptedRunError
from frontrank.training.logs import read_log
from tests.detection.runs import config_of, draw_scenes
from tests.training.runs import differences, last_state

MEASURED = ("time", "images/s", "waiting for images", "seconds per step", "peak MB")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return draw_scenes(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def whole(scenes, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, train_detector(config_of(scenes, data={"validation": 0.3}, epochs=3), out, quiet=True)


def timeless(folder):
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in read_log(Path(folder) / "log.jsonl")]


def stopped(config, out, step, monkeypatch, number=signal.SIGINT):
    own = loop._Training._losses

    def losses(self, *batch):
        if self.standing.step == step - 1:
            os.kill(os.getpid(), number)
        return own(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "_losses", losses)
        with pytest.raises(InterruptedRunError, match=f"stopped at step {step} of 6, and saved"):
            train_detector(config, out, quiet=True)


@pytest.mark.parametrize(("step", "number"), [(1, signal.SIGINT), (3, signal.SIGTERM), (5, signal.SIGINT)])
def test_stopped_and_resumed_it_is_the_same(step, number, scenes, whole, tmp_path, monkeypatch):
    """Weights, momentum, remembered scores, random numbers, the log: all of it."""
    out, standing = whole
    stopped(config_of(scenes, data={"validation": 0.3}, epochs=3), tmp_path / "run", step, monkeypatch, number)
    assert last_state(tmp_path / "run")["standing"]["step"] == step
    assert resume_detector(tmp_path / "run", quiet=True) == standing
    assert differences(last_state(out), last_state(tmp_path / "run")) == []
    assert timeless(out) == timeless(tmp_path / "run")
    assert len(last_state(out)["loss"]["_extra_state"]["scores"]) == 2


@pytest.mark.parametrize("changed", [{"seed": 1}, {"loss": {"lam": 5.0}}])
def test_other_settings_give_other_states(changed, scenes, whole, tmp_path):
    """The comparison above can fail."""
    train_detector(config_of(scenes, data={"validation": 0.3}, epochs=3, **changed), tmp_path / "run", quiet=True)
    found = differences(last_state(whole[0]), last_state(tmp_path / "run"))
    assert any(".detector." in path for path in found)


def test_workers_make_no_difference(scenes, whole, tmp_path):
    config = config_of(scenes, data={"validation": 0.3, "workers": 1}, epochs=3)
    train_detector(config, tmp_path / "run", quiet=True)
    assert differences(last_state(whole[0]), last_state(tmp_path / "run")) == []


def test_more_epochs_go_on_from_the_end(scenes, whole, tmp_path):
    config = config_of(scenes, data={"validation": 0.3}, epochs=2)
    train_detector(config, tmp_path / "run", quiet=True)
    assert resume_detector(tmp_path / "run", {"epochs": "3"}, quiet=True) == whole[1]
    assert differences(last_state(whole[0]), last_state(tmp_path / "run")) == []
    assert resume_detector(tmp_path / "run", quiet=True) == whole[1]  # nothing is left to do


def test_a_half_written_checkpoint_is_never_loaded(scenes, whole, tmp_path):
    config = config_of(scenes, data={"validation": 0.3}, epochs=3)
    train_detector(config, tmp_path / "run", quiet=True)
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-50])
    with pytest.warns(FrontrankWarning, match="is damaged"):
        assert resume_detector(tmp_path / "run", quiet=True) == whole[1]
    assert differences(last_state(whole[0]), last_state(tmp_path / "run")) == []


def test_a_full_disk_is_one_line_and_the_checkpoint_before_survives(scenes, whole, tmp_path, monkeypatch):
    own, calls = loop.save_checkpoint, []

    def save(folder, step, state):
        calls.append(step)
        if len(calls) > 1:
            monkeypatch.setattr(os, "fsync", _no_space)
        return own(folder, step, state)

    monkeypatch.setattr(loop, "save_checkpoint", save)
    with pytest.raises(FrontrankError, match="free some space"):
        train_detector(config_of(scenes, data={"validation": 0.3}, epochs=3), tmp_path / "run", quiet=True)
    monkeypatch.undo()
    assert last_state(tmp_path / "run")["standing"]["step"] == calls[0]
    assert resume_detector(tmp_path / "run", quiet=True) == whole[1]


def _no_space(file):
    raise OSError(28, "No space left on device")


def test_what_cannot_change(scenes, tmp_path):
    train_detector(config_of(scenes, iterations=1, optimizer={"warmup": 0}), tmp_path / "run", quiet=True)
    for name, message in (
        ("loss.lam", "--loss.lam cannot change in a run that goes on; leave it out"),
        ("epochs", "--epochs cannot be given to a run that counts iterations; give --iterations"),
    ):
        with pytest.raises(InputError, match=message):
            resume_detector(tmp_path / "run", {name: "3"}, quiet=True)
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("channels: 16", "channels: 8"))
    with pytest.raises(InputError, match="does not fit the settings of the run; undo what changed"):
        resume_detector(tmp_path / "run", {"iterations": "2"}, quiet=True)
    path.write_text(path.read_text().replace("channels: 8", "channels: 16").replace("RaMBO", "cross-entropy"))
    with pytest.raises(InputError, match="does not fit the settings of the run; undo what changed"):
        resume_detector(tmp_path / "run", {"iterations": "2"}, quiet=True)
    with pytest.raises(InputError, match=r"holds no run \(there is no config.yaml\)"):
        resume_detector(tmp_path / "nowhere")


def test_other_boxes_are_refused(tmp_path):
    scenes = draw_scenes(tmp_path / "scenes")
    train_detector(config_of(scenes, epochs=1), tmp_path / "run", quiet=True)
    path = Path(scenes) / "Annotations" / "0003.xml"
    path.write_text(path.read_text().replace("<xmin>2<", "<xmin>3<"))
    with pytest.raises(InputError, match="was made with other pictures, boxes or batches than the run has now"):
        resume_detector(tmp_path / "run", {"epochs": "2"}, quiet=True)


def test_a_run_goes_on_with_moved_pictures(tmp_path):
    scenes = Path(draw_scenes(tmp_path / "scenes"))
    train_detector(config_of(str(scenes), epochs=1), tmp_path / "run", quiet=True)
    scenes.rename(tmp_path / "moved")
    resumed = resume_detector(tmp_path / "run", {"epochs": "2", "data.path": str(tmp_path / "moved")}, quiet=True)
    assert resumed.step == 6
    with (tmp_path / "run" / "scenes.csv").open() as file:  # what was trained on is known by its place
        assert {Path(row["path"]).parent for row in csv.DictReader(file)} == {tmp_path / "moved" / "JPEGImages"}
