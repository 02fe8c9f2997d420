"""Where an embedded index can be made, and what is left alone."""

import os
import shutil

import pytest

from frontrank.errors import InputError
from frontrank.retrieval import faiss_engine
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.retrieval.index_engines import halves


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
