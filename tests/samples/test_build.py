import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from frontrank.data.table import read_table
from frontrank.errors import InputError
from frontrank.packages import Package
from frontrank.samples import build as module
from frontrank.samples.build import (
    PictureSource,
    finish_table,
    label_split,
    picture_table,
    read_built,
    resume_command,
    start_build,
    start_workers,
)
from tests.data.test_table import assert_same
from tests.errors import refusal

SETTINGS = {"data": "boxes", "size": 8, "classes": None}
ART, NAMES = Package("npm", "@art/boxes", "1.2", "a" * 64, 1.5), Package("apt", "names", "3-1", "b" * 64, 2)
SOURCES = [PictureSource("round", ART, "MIT"), PictureSource("flat", ART, "CC-BY-4.0")]


def table_in(folder, name="of a"):
    round_, flat = SOURCES
    rows = [("a", flat), ("a", round_), ("b", flat)]
    return picture_table(
        Path(folder), [(f"images/{label}-{of.name}.png", label, "x", "y", of, name) for label, of in rows]
    )


def build(folder, settings=SETTINGS):
    assert read_built(folder, settings) is None
    with start_build(folder, settings):
        draw(folder)
        return finish_table(folder, table_in(folder), settings, SOURCES, NAMES, "Drawn by hand.")


def draw(folder):
    for path in table_in(folder).files():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(b"drawn")


def state_of(folder):
    return json.loads((folder / "data.json").read_text())


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_a_folder_from_begin_to_end(tmp_path, there):
    out = tmp_path / "deep" / "out"
    if there:
        out.mkdir(parents=True)
    assert read_built(out, SETTINGS) is None
    assert out.exists() == there  # nothing is written before it has to be
    with start_build(out, SETTINGS):
        assert state_of(out) == {"format": "frontrank.data.1", "finished": False, "settings": SETTINGS}
    assert read_built(out, SETTINGS) is None  # to be gone on with
    table = build(out)
    assert table.name == "boxes"
    assert table.splits.tolist() == [label_split(label) for label in "aab"]
    assert table.extra["licence"].tolist() == ["CC-BY-4.0", "MIT", "CC-BY-4.0"]
    for again in (table_in(out), read_built(str(out), SETTINGS), read_table(out / "images.csv")):
        assert_same(again, table)
        assert again.root == out
    assert sorted(path.name for path in out.iterdir()) == ["LICENCES.md", "data.json", "images", "images.csv"]


@pytest.mark.parametrize("done", [False, True], ids=["begun", "finished"])
def test_other_settings(tmp_path, done):
    out = tmp_path / "out"
    if done:
        build(out)
    else:
        with start_build(out, SETTINGS):
            draw(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    other = {**SETTINGS, "size": 16}
    refusal(lambda: read_built(out, other), out, "size 8 (not 16)")
    refusal(lambda: start_build(out, other).__enter__(), out, "size 8 (not 16)")
    refusal(lambda: read_built(out, {**SETTINGS, "like": "sop"}), "like null (not sop)")
    refusal(lambda: read_built(out, {**SETTINGS, "classes": ["a" * 99]}), 'classes null (not ["aaa', "...)")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_what_a_killed_build_left(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".data.json.123.abc.unfinished").write_text("{")  # killed in its first moment
    build(out)
    (out / "images" / ".a.png.1.abc.unfinished").touch()
    with start_build(out, SETTINGS):
        assert not list(out.rglob(".*"))


def test_two_at_once(tmp_path, monkeypatch):
    """The second is refused, whatever it asks for; unless the first is about to end."""
    out, other = tmp_path / "out", {**SETTINGS, "size": 16}  # though nothing is drawn yet
    with ThreadPoolExecutor(1) as pool:
        with start_build(out, SETTINGS):
            monkeypatch.setattr(module, "_PATIENCE", 0.1)
            for settings in (SETTINGS, other):
                entering = start_build(out, settings)
                refusal(entering.__enter__, "out", "another process")
            assert state_of(out)["settings"] == SETTINGS
            monkeypatch.setattr(module, "_PATIENCE", 60.0)
            waiting = pool.submit(build, out)
        assert len(waiting.result()) == 3


def test_a_table_that_was_changed(tmp_path):
    """Rows that somebody took out are not put back without asking, nor is another set taken for this one."""
    build(tmp_path / "out")
    path = tmp_path / "out" / "images.csv"
    text = path.read_bytes()
    path.write_bytes(text[: text.rindex(b"images/")])
    refusal(lambda: read_built(tmp_path / "out", SETTINGS), "images.csv")
    path.write_bytes(text)
    assert len(read_built(tmp_path / "out", SETTINGS)) == 3


def test_the_command_that_goes_on(tmp_path):
    out = tmp_path / "a b"
    settings = {"data": "x", "like": None, "any_version": True, "tones": False, "names": ["p", "q"], "size": 8}
    assert resume_command(out) is None
    with start_build(out, settings):
        draw(out)
        assert resume_command(out) == f"frontrank data x '{out}' --any-version --names p,q --size 8"
        finish_table(out, table_in(out), settings, SOURCES, NAMES, "")
    assert resume_command(out) is None
    (out / "images.csv").unlink()
    assert resume_command(out) == f"frontrank data x '{out}' --any-version --names p,q --size 8"


SETTINGS_OF_NONE = '{"format": "frontrank.data.1", "settings": 3, "finished": true}'
OTHER_FORMAT = '{"format": "another", "settings": {}, "finished": true}'


def test_a_folder_of_something_else_or_none(tmp_path):
    out = tmp_path / "else"
    out.mkdir()
    for name, text in ((".hidden.jpg", "x"), *(("data.json", text) for text in ("[1", SETTINGS_OF_NONE, OTHER_FORMAT))):
        (out / name).write_text(text)
        refusal(lambda: read_built(out, SETTINGS), out)
        assert {path.name: path.read_text() for path in out.iterdir()} == {name: text}
        (out / name).unlink()
    (tmp_path / "file").write_text("mine")
    refusal(lambda: read_built(tmp_path / "file", SETTINGS), "file")
    refusal(lambda: start_build(tmp_path / "file" / "below", SETTINGS).__enter__(), "below")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refusal(lambda: read_built(tmp_path / "link", SETTINGS), "link")
    assert (tmp_path / "file").read_text() == "mine"


def test_no_room(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        refusal(lambda: start_build(out, SETTINGS).__enter__(), "No space left")
    assert list(out.iterdir()) == []
    with start_build(out, SETTINGS):
        draw(out)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        refusal(lambda: finish_table(out, table_in(out), SETTINGS, SOURCES, NAMES, ""), "No space left")
    assert read_built(out, SETTINGS) is None


# Processes


def square(number):
    time.sleep(0.02 * (number % 3))
    return number * number


def fail(message):
    raise InputError(message)


def mark(path):
    time.sleep(0.01)
    path.touch()


def end_with(number):
    os.kill(os.getpid(), number)


@pytest.mark.processes
def test_results_come_in_the_order_of_the_tasks():
    with start_workers() as run:
        assert run([(square, (number,), 1) for number in range(20)], "squares") == [n * n for n in range(20)]
        assert run([], "nothing") == []
        pids = set(run([(os.getpid, (), 1)] * 10, "looking"))
        assert run([(end_with, (signal.SIGINT,), 1), (square, (3,), 1)], "interrupted") == [None, 9]
    assert os.getpid() not in pids
    assert len(pids) <= len(os.sched_getaffinity(0))


@pytest.mark.processes
def test_an_error_of_a_task_or_a_kill_ends_all(tmp_path):
    def work(*tasks):
        with start_workers() as run:
            run(tasks, "working")

    marks = [(mark, (tmp_path / str(number),), 1) for number in range(1000)]
    assert refusal(lambda: work((fail, ("wrong",), 1), *marks)) == "wrong"
    assert len(list(tmp_path.iterdir())) < 1000
    refusal(lambda: work((end_with, (signal.SIGKILL,), 1)), "killed")
