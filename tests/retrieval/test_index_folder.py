"""Where an embedded index can be made, and what is left alone."""

import json
import os
import shutil
import subprocess

import numpy as np
import pytest

from frontrank.errors import InputError
from frontrank.retrieval import embedded as faiss_engine
from frontrank.retrieval import journal as index_folder
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from frontrank.retrieval.journal import Journal, write_journal
from tests.retrieval.index_engines import halves, some_items


def test_two_that_make_the_same_index_at_once(tmp_path, monkeypatch):
    real = faiss_engine.create_folder

    def slow(folder, dim, settings):
        real(folder, dim, settings)  # by the other process, just before
        real(folder, dim, settings)

    monkeypatch.setattr(faiss_engine, "create_folder", slow)
    with Index(tmp_path / "index", dim=8) as index:
        index.add(halves(1), [Item("a")])
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_what_was_left_of_unfinished_folders_goes(tmp_path):
    old, new = tmp_path / ".index.1.frontrank-new", tmp_path / ".index.2.frontrank-new"
    for room in (old, new):
        room.mkdir()
        (room / "vectors.000001").write_text("x")
    for path in (old / "vectors.000001", old):
        os.utime(path, (0, 0))
    Index(tmp_path / "index", dim=8).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.name, "index"]


def test_folders_that_are_no_index(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="full holds something else than an index; give another folder"):
        Index(tmp_path / "full", dim=8)
    with pytest.raises(InputError, match="file is a file; give a folder"):
        Index(tmp_path / "file", dim=8)
    with pytest.raises(InputError, match="none holds no index; make one by frontrank index"):
        Index.load(tmp_path / "none")
    with Index(tmp_path / "empty", dim=8) as index:
        index.add(halves(1), [Item("a")])
        with pytest.raises(InputError, match="full holds something else"):
            index.save(tmp_path / "full", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "full"]
    shutil.rmtree(tmp_path / "empty")


@pytest.mark.skipif(os.name != "posix", reason="file URLs of other systems are not tested")
def test_file_urls(tmp_path):
    with Index(f"file://{tmp_path}/a%20b", dim=8) as index:
        index.add(halves(1), [Item("a")])
    assert (tmp_path / "a b" / "journal").exists()
    with pytest.raises(InputError, match="names another machine"):
        Index("file://host/a", dim=8)
    with pytest.raises(InputError, match="begins with ftp://; give a folder"):
        Index("ftp://user:secret@host/a", dim=8)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# Another index at the same place


def saved_over(folder):
    with Index(dim=5, model="another") as other:
        other.add(np.eye(5), some_items(5, "other"))
        other.save(folder, overwrite=True)


def made_anew(folder):
    shutil.rmtree(folder)
    with Index(folder, dim=8, model="another") as other:
        other.add(halves(5), some_items(5, "other"))


@pytest.mark.parametrize("replace", [saved_over, made_anew])
def test_an_index_that_another_took_the_place_of_is_not_written_to(tmp_path, replace):
    """Its vectors would be those of two models."""
    folder = tmp_path / "index"
    with Index(folder, dim=8, model="one") as index:
        index.add(halves(3), some_items(3))
        replace(folder)
        for write in (
            lambda: index.add(halves(1), [Item("new")]),
            lambda: index.delete(["item-0"]),
            index.refresh,
            lambda: index.note(a="b"),
        ):
            with pytest.raises(InputError, match="index was replaced by another index; open it again"):
                write()
        assert index.count() == 3  # as it was
    with Index.load(folder) as other:
        assert other.settings.model == "another"
        assert [item.id for item in other.items()] == [f"other-{i}" for i in range(5)]


def test_a_folder_that_does_not_say_which_index_it_is(tmp_path, monkeypatch):
    """As older ones do not."""
    monkeypatch.setattr(faiss_engine, "_LEAST_DEAD", 10)
    folder = tmp_path / "index"
    with Index(folder, dim=8) as index:
        index.add(halves(60), some_items(60))
    journal = Journal(folder / "journal")
    (kind, head), *records = journal.read()
    journal.close()
    head = {name: value for name, value in json.loads(head).items() if name != "made"}
    write_journal(folder / "journal", [(kind, json.dumps(head).encode()), *records])
    with Index.load(folder) as writing, Index.load(folder) as reading:
        writing.delete([item.id for item in some_items(40)])
        assert names(folder) == ["journal", "vectors.000002"]
        assert reading.refresh()
        reading.add(halves(1), [Item("new")])
        assert reading.count() == 21


# Full disks


def test_what_cannot_be_written_anew_leaves_nothing(tmp_path, monkeypatch):
    def full(path, records):
        path.write_bytes(b"half")
        next(iter(records))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(faiss_engine, "_LEAST_DEAD", 10)
    with Index(tmp_path / "index", dim=8) as index:
        index.add(halves(60), some_items(60))
        with monkeypatch.context() as patch:
            patch.setattr(index_folder, "write_journal", full)
            assert index.delete([item.id for item in some_items(40)]) == 40
        assert names(tmp_path / "index") == ["journal", "vectors.000001"]
        assert index.count() == 20


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True).returncode
    ):
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_can_still_be_written_to_after_it_was_to_be_written_anew(small_disk, monkeypatch):
    monkeypatch.setattr(faiss_engine, "_LEAST_DEAD", 10)
    rows = np.random.default_rng(0).normal(size=(2600, 64))
    with Index(small_disk / "index", dim=64) as index:
        index.add(rows, some_items(2600))
        assert index.delete([item.id for item in some_items(900)]) == 900
        assert index.settings.facts["dead rows"] == 900  # there was no room
        assert names(small_disk / "index") == ["journal", "vectors.000001"]
        index.add(rows[:1], [Item("new")])
        with pytest.raises(InputError, match="index cannot be written: No space left on device; make room there"):
            index.add(rows, some_items(2600, "more"))
    with Index.load(small_disk / "index") as index:
        assert index.count() == 1701


# Names and rights


def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "index").mkdir()

    def refused(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.listdir", refused)
    with pytest.raises(InputError, match="index cannot be read: Permission denied; see to its name and permissions"):
        Index.load(tmp_path / "index")


def test_a_name_that_is_too_long(tmp_path):
    with pytest.raises(InputError, match="holds no index; make one by frontrank index"):
        Index.load(tmp_path / ("x" * 300))
    with pytest.raises(InputError, match="cannot be written: File name too long; make room there, or give another"):
        Index(tmp_path / ("x" * 300), dim=8)
