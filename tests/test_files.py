"""Files: written whole or not at all, JSON that names its format, locks between processes."""

import errno
import fcntl
import os
import stat
import subprocess
import sys

import pytest

import frontrank as fr
from frontrank.errors import InputError, InputTypeError
from frontrank.files import as_path, atomic_write, folder_lock, read_json, remove_stale, write_json
from tests.errors import refusal


@pytest.mark.parametrize("content", [b"new", "new", lambda file: file.write(b"new")], ids=["bytes", "text", "writer"])
@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_whole(tmp_path, content, sync):
    path = tmp_path / "file"
    path.write_text("old")
    atomic_write(path, content, sync=sync)
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(file):
        file.write(b"half of the n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(path, fail)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_no_clock_removes_what_is_being_written(tmp_path):
    stale = tmp_path / "stale"
    stale.mkdir()

    def write(file):
        left = list(tmp_path.glob("*.unfinished")) + list(tmp_path.glob(".*.unfinished"))
        with folder_lock(tmp_path / "held"):
            remove_stale([*left, stale, tmp_path / "held"], seconds=-7200)  # a clock that jumped by two hours
        file.write(b"new")

    (tmp_path / "held").mkdir()
    atomic_write(tmp_path / "file", write)
    assert sorted(os.listdir(tmp_path)) == ["file", "held"]


def test_pipes_are_not_opened(tmp_path):
    for name in ("t.csv", "e.npy", "l.txt", "journal", "r.json", "config.json"):
        os.mkfifo(tmp_path / name)
    calls = [
        lambda: fr.data.read_table(tmp_path / "t.csv"),
        lambda: fr.data.read_embeddings(tmp_path / "e.npy"),
        lambda: fr.data.read_labels(str(tmp_path / "l.txt"), None, 3),
        lambda: fr.Index.load(tmp_path),
        lambda: fr.Report.load(tmp_path / "r.json"),
        lambda: fr.Embedder.load(tmp_path),
    ]
    for call in calls:
        with pytest.raises(InputError, match=tmp_path.name):
            call()


def failing(code, folders_only=False):
    """A function that takes an open file or its number, and fails as the system does."""

    def fail(file, *_):
        if not folders_only or stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(code, os.strerror(code))

    return fail


def test_a_full_disk_is_an_error_of_the_file(tmp_path, monkeypatch):
    refusal(lambda: atomic_write(tmp_path / "file", failing(errno.ENOSPC)), "file")
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(os, "fsync", failing(errno.EIO, folders_only=True))
    refusal(lambda: atomic_write(tmp_path / "file", "x"), "file")


def test_systems_and_disks_that_cannot_lock_or_sync_a_folder(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", failing(errno.ENOLCK))
        patch.setattr(os, "fsync", failing(errno.EINVAL, folders_only=True))
        atomic_write(tmp_path / "file", "old")
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.delattr(os, "O_DIRECTORY")
    atomic_write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_an_existing_file_is_kept_unless_asked_and_a_missing_folder_is_named(tmp_path):
    path = tmp_path / "file"
    atomic_write(path, "old", overwrite=False)
    refusal(lambda: atomic_write(path, "new", overwrite=False), "file")
    assert path.read_text() == "old"
    refusal(lambda: atomic_write(tmp_path / "nowhere" / "file", "x"), "nowhere")


@pytest.mark.parametrize(("path", "error"), [(3, InputTypeError), ("", InputError), ("a\0b", InputError)])
def test_paths_that_cannot_be(path, error):
    refusal(lambda: as_path("target", path), "target", error=error)


def test_json_comes_back_unless_it_is_too_large(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_json(path, "thing", 2, {"rows": [1, 2]}, overwrite=False)
    assert read_json(path, "thing", 2)["rows"] == [1, 2]
    monkeypatch.setattr("frontrank.files._MOST_JSON", path.stat().st_size - 1)
    refusal(lambda: read_json(path, "thing", 2), "file.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"format": "frontrank other", "version": 1}',
        '{"format": "frontrank thing", "version": 3}',
        '{"format": "frontrank thing", "version": "1"}',
        '{"format": "frontrank thing", "version": 1, "value": NaN}',
    ],
    ids=["empty", "cut", "list", "deep", "other", "newer", "version", "NaN"],
)
def test_other_json_is_refused(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_text(text)
    refusal(lambda: read_json(path, "thing", 2), "file.json")


@pytest.mark.processes
def test_a_lock_goes_with_the_process_that_holds_it(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from frontrank.files import folder_lock\n"
        f"with folder_lock(pathlib.Path({str(tmp_path)!r})) as had:\n"
        "    print(had, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "True\n"
        with folder_lock(tmp_path, patience=0) as had:
            assert not had
        asked = []
        with folder_lock(tmp_path, give_up=lambda: asked.append(1) or len(asked) == 2) as had:
            assert not had
        other.kill()
    with folder_lock(tmp_path, patience=5) as had:
        assert had
    assert os.listdir(tmp_path) == []
