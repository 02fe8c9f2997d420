"""Processes that are killed, two processes at once, and damaged files: nothing acknowledged is lost."""

import multiprocessing
import random
import shutil
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from frontrank.errors import InputError
from frontrank.files import folder_lock
from frontrank.retrieval import embedded as faiss_engine
from frontrank.retrieval import journal as index_folder
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.retrieval.index_engines import halves, some_items, unit
from tests.retrieval.kill_index import item_of, vector_of, write


@contextmanager
def writer(folder, seed):
    """A process that writes, and where it says so; it is forked from one that has imported all it needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.retrieval.kill_index"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=write, args=(folder, seed, there))
    process.start()
    there.close()
    with here:
        yield process, here
        process.join()


def rest_of(pipe):
    """The lines that were sent whole."""
    with suppress(EOFError, OSError):
        while True:
            yield from pipe.recv()


def acknowledged(lines, state):
    """What must be there: the version of each name, and for names of an unfinished call all that may be."""
    allowed = {name: {version} for name, version in state.items()}
    for line in lines:
        sign, _, rest = line.partition(" ")
        if sign == "?":
            name, version = (rest[2:], None) if rest.startswith("- ") else rest.rsplit(" ", 1)
            allowed.setdefault(name, {None}).add(version if version is None else int(version))
        elif sign in ("+", "-"):
            name, version = (rest, None) if sign == "-" else rest.rsplit(" ", 1)
            allowed[name] = {version if version is None else int(version)}
    return allowed


def check_whole(folder, allowed):
    """Every item is one that is allowed to be there, with its own vector; what is there, by name."""
    with Index.load(folder) as index:
        items = list(index.items())
        found = {item.id: item.metadata["version"] for item in items}
        vectors = index.vectors(list(found)) if found else []
        for item, vector in zip(items, vectors, strict=True):
            assert item == item_of(item.id, found[item.id])
            np.testing.assert_array_equal(vector, unit(vector_of(item.id, found[item.id])[None])[0])
        for name, versions in allowed.items():
            assert found.get(name) in versions, name
        if items:
            assert len(index.search(vectors[:1], k=500)[0]) == index.count() == len(items)
    return found


def kill_times(tmp_path, times, seed):
    folder, moments = tmp_path / "index", random.Random(seed)
    state = {}
    for turn in range(times):
        with writer(folder, turn + 1) as (process, pipe):
            assert pipe.recv() == ["open"]
            lines = []
            for _ in range(moments.randrange(40)):  # calls that are waited for: it is the one after them that is killed
                while not lines or lines[-1] != ".":
                    lines += pipe.recv()
                lines.append("")
            time.sleep(moments.uniform(0.0, 0.02))
            process.kill()
            lines += rest_of(pipe)
        state = check_whole(folder, acknowledged(lines, state))
        copy = Path(f"{folder}.copy")
        if copy.exists():
            with Index.load(copy) as index:
                assert all(item == item_of(item.id, item.metadata["version"]) for item in index.items())
    assert state


def test_killed_fifty_times_while_writing(tmp_path):
    kill_times(tmp_path, 50, seed=1)


STEPS = ["_write_rows", "write_journal", "sync_folder", "replace", "unlink"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_stopped_at_any_step_of_writing_anew(tmp_path, monkeypatch, step, after):
    """Writing anew ends before or after a step: the index is the old one or the new one, which have the same items."""
    monkeypatch.setattr(faiss_engine, "_LEAST_DEAD", 10)
    rows, items = halves(60), some_items(60)
    with Index(tmp_path / "index", dim=8) as index:
        index.add(rows, items)
        index.delete([item.id for item in items[:15]])  # too few yet
    holder = Path if step in ("replace", "unlink") else index_folder
    real = getattr(holder, step)
    taken = []

    def stopped(*given, **settings):
        taken.append(step)
        if after:
            real(*given, **settings)
        raise KeyboardInterrupt

    with Index.load(tmp_path / "index") as index, monkeypatch.context() as patch:
        patch.setattr(holder, step, stopped)
        with pytest.raises(KeyboardInterrupt):
            index.delete([item.id for item in items[15:25]])
    assert taken == [step]
    with Index.load(tmp_path / "index") as index:
        assert list(index.items()) == sorted(items[25:], key=lambda item: item.id)
        index.upsert(rows[:30], items[:30])
        index.delete([item.id for item in items[:30]])
    with Index.load(tmp_path / "index") as index:
        assert list(index.items()) == sorted(items[30:], key=lambda item: item.id)
    names = sorted(path.name.split(".")[0] for path in (tmp_path / "index").iterdir())
    assert names == ["journal", "vectors"]


@pytest.fixture
def kept(tmp_path):
    """A folder of an index with every kind of record, and its items."""
    with Index(tmp_path / "index", dim=8, model="abc") as index:
        index.add(halves(12), some_items(12))
        index.upsert(halves(2, seed=1), some_items(2))
        index.delete(["item-3"])
        items = list(index.items())
    return tmp_path / "index", items


def test_every_damaged_byte_is_noticed(kept):
    folder, _ = kept
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for place in range(0, len(whole), 1 if len(whole) < 2000 else 7):
            changed = bytearray(whole)
            changed[place] ^= 0x10
            file.write_bytes(changed)
            with pytest.raises(InputError, match=rf"{file.name} (is damaged|has version).*; (restore|update)"):
                Index.load(folder)
        file.write_bytes(whole)
    Index.load(folder).close()


def test_a_file_that_is_missing_or_cut_short(kept):
    folder, items = kept
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for size in (0, 1, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:size])
            with pytest.raises(InputError, match=rf"{file.name} is damaged"):
                Index(folder, dim=8)
        file.unlink()
        with pytest.raises(InputError, match=rf"{file.name} is damaged \(it is not there\)"):
            Index(folder, dim=8)
        file.write_bytes(whole)
    with Index.load(folder) as index:
        assert list(index.items()) == items


def test_what_an_unfinished_put_left_of_vectors_is_overwritten(kept):
    folder, items = kept
    with (folder / "vectors.000001").open("ab") as file:
        file.write(b"left by a process that was killed")
    with Index.load(folder) as index:
        assert list(index.items()) == items
        index.add(halves(1), [Item("new")])
    with Index.load(folder) as index:
        assert index.count() == 12
        np.testing.assert_array_equal(index.vectors(["new"]), halves(1))


def test_two_that_write_by_turns(tmp_path):
    """Each sees what the other wrote when it writes itself, or when it is told to look."""
    first, second = Index(tmp_path / "index", dim=8), Index(tmp_path / "index")
    rows = halves(6)
    first.add(rows[:2], [Item("a"), Item("b")])
    second.add(rows[2:3], [Item("c")])
    assert second.count() == 3
    with pytest.raises(InputError, match="the index has already \\('c'\\)"):
        first.add(rows[3:4], [Item("c")])
    assert first.count() == 3
    second.delete(["a"])
    assert first.count() == 3
    assert first.refresh()
    assert not first.refresh()
    assert first.count() == 2
    for index in (first, second):
        index.close()


def test_a_reader_follows_when_the_index_is_written_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(faiss_engine, "_LEAST_DEAD", 10)
    rows, items = halves(60), some_items(60)
    writing, reading = Index(tmp_path / "index", dim=8), Index(tmp_path / "index")
    writing.add(rows, items)
    reading.refresh()
    writing.delete([item.id for item in items[:40]])
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == ["journal", "vectors.000002"]
    assert reading.count() == 60
    assert reading.search(rows[:1], 60)[0].ids
    assert reading.refresh()
    assert list(reading.items()) == list(writing.items())
    reading.add(rows[:1], [Item("more")])
    writing.refresh()
    assert writing.count() == 21
    for index in (writing, reading):
        index.close()


def test_one_that_holds_the_lock_for_too_long(kept, monkeypatch):
    folder, items = kept
    monkeypatch.setattr(index_folder, "_LOCK_SECONDS", 0.1)
    with Index.load(folder) as index, folder_lock(folder):
        with pytest.raises(InputError, match="index is being written to by another process; try again"):
            index.delete(["item-1"])
        assert list(index.items()) == items


def test_two_processes_that_write_at_once(tmp_path):
    with writer(tmp_path / "index", 1) as (first, heard), writer(tmp_path / "index", 2) as (second, other):
        try:
            assert heard.recv() == other.recv() == ["open"]
            calls, start = Counter(), time.monotonic()
            while (took := time.monotonic() - start) < 1.5 or (took < 60 and min(calls[heard], calls[other]) < 2):
                for pipe in (heard, other):  # a writer that nobody listens to would stop
                    while pipe.poll():
                        calls[pipe] += "." in pipe.recv()
                with Index.load(tmp_path / "index") as index:
                    assert all(item == item_of(item.id, item.metadata["version"]) for item in index.items())
            assert min(calls[heard], calls[other]) > 1
        finally:
            first.kill()
            second.kill()
    assert check_whole(tmp_path / "index", {})


@pytest.mark.parametrize("call", ["add", "delete"])
def test_interrupted_between_the_disk_and_the_memory(kept, monkeypatch, call):
    """What the interrupted call wrote is there or not; whatever comes after it is right."""
    folder, items = kept
    with Index.load(folder) as index:
        with monkeypatch.context() as patch:
            patch.setattr(faiss_engine, "_apply_event", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                index.delete(["item-0"]) if call == "delete" else index.add(halves(1), [Item("b")])
        index.add(halves(2, seed=1), [Item("c"), Item("d")])
        np.testing.assert_array_equal(index.vectors(["c", "d"]), halves(2, seed=1))
        found = list(index.items())
    with Index.load(folder) as index:
        assert list(index.items()) == found
        assert len(found) == len(items) + (1 if call == "delete" else 3)


def test_a_folder_that_is_removed_meanwhile(kept):
    folder, _ = kept
    index = Index.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="index is not there any more; index the images again"):
        index.add(halves(1), [Item("a")])
    with pytest.raises(InputError, match="index is not there any more"):
        index.refresh()
    index.close()
