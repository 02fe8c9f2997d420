"""The files of an embedded index: nothing acknowledged is lost, whatever is killed, damaged or full."""

import multiprocessing
import os
import random
import shutil
import time
from collections import Counter
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from frontrank.files import folder_lock
from frontrank.retrieval import embedded, journal
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from frontrank.retrieval.journal import Journal, is_index, write_journal
from tests.errors import refusal
from tests.retrieval.engines import halves, some_items, unit
from tests.retrieval.kill_index import item_of, vector_of, write

RECORDS = [(0, b"head"), (1, b""), (255, b"x" * 60)]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def disk_full(*given):
    raise OSError(28, "No space left on device")


# The journal by itself


@pytest.fixture
def path(tmp_path):
    write_journal(tmp_path / "journal", RECORDS)
    return tmp_path / "journal"


def read(path):
    with closing(Journal(path)) as journal:
        return list(journal.read())


def append(path, records):
    with closing(Journal(path)) as journal:
        list(journal.read())
        journal.append(records)


def test_reads_records_and_goes_on_where_it_was(path):
    assert is_index(path.parent)
    reader = Journal(path)
    assert list(reader.read()) == RECORDS
    assert list(reader.read()) == []
    append(path, [(2, b"more"), (3, b"still more")])
    append(path, [])
    assert list(reader.read()) == [(2, b"more"), (3, b"still more")]
    assert read(path) == [*RECORDS, (2, b"more"), (3, b"still more")]
    assert not reader.is_replaced()
    write_journal(path.with_name("new"), [(0, b"other")])
    path.with_name("new").replace(path)
    assert reader.is_replaced()
    assert list(reader.read()) == []
    reader.close()


def test_a_record_cut_off_before_it_was_acknowledged(path):
    """As if the process was killed at any byte of its writing: the mark still stands before the record."""
    before = path.read_bytes()
    append(path, [(2, b"more")])
    after = path.read_bytes()
    for size in range(len(before), len(after)):
        path.write_bytes(before + after[len(before) : size])
        assert read(path) == RECORDS
        append(path, [(3, b"another")])
        assert read(path) == [*RECORDS, (3, b"another")]
    path.write_bytes(before + after[len(before) :])
    assert read(path) == [*RECORDS, (2, b"more")]  # complete, so it counts, though nobody was told


def test_every_byte_counts(path):
    """A file with another byte, or that ends early, lacks something that was acknowledged."""
    append(path, [(2, b"more")])
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= (0x01, 0x80, 0xFF)[place % 3]
        for content in (changed, whole[:place]):
            path.write_bytes(content)
            refusal(lambda: read(path), "journal")


def test_an_old_record_at_the_wrong_place_does_not_count(path):
    before = path.read_bytes()
    append(path, [(2, b"a"), (2, b"b")])
    after = path.read_bytes()
    second = after[len(before) + (len(after) - len(before)) // 2 :]
    path.write_bytes(before + second)
    assert read(path) == RECORDS


def test_a_full_disk_takes_back_what_was_written(path, monkeypatch):
    opened = Journal(path)
    list(opened.read())
    with monkeypatch.context() as patch:
        patch.setattr(journal, "sync_data", disk_full)
        with pytest.raises(OSError, match="No space left"):
            opened.append([(2, b"more")])
    assert read(path) == RECORDS
    opened.append([(3, b"later")])
    assert list(opened.read()) == []
    assert read(path) == [*RECORDS, (3, b"later")]
    opened.close()


def test_files_that_are_not_a_journal(path, monkeypatch):
    (path.parent / "text").write_text("hello")
    assert not any(map(is_index, (path.parent / "none", path, path.parent / "text")))
    refusal(lambda: Journal(path.parent / "text"), "text is damaged")
    monkeypatch.setattr(journal, "_VERSION", 2)
    refusal(lambda: read(path), "journal", "version 1")


# Processes that are killed, and two at once


@contextmanager
def writer(folder, seed):
    """A process that writes, and the pipe that it sends to; forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.retrieval.kill_index"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=write, args=(folder, seed, there))
    process.start()
    there.close()
    with here:
        yield process, here
        process.join()


def possible_versions(calls, versions):
    """The version that each name must have; of names in an unfinished call all that it may have."""
    possible = {name: {version} for name, version in versions.items()}
    for is_done, names, version in calls:
        for name in names:
            possible[name] = {version} if is_done else {version} | possible.get(name, {None})
    return possible


def check_index(folder, possible):
    """Every item has a possible version and its own vector; returns the version of each name."""
    with Index.load(folder) as index:
        items = list(index.items())
        versions = {item.id: item.metadata["version"] for item in items}
        vectors = index.vectors(list(versions)) if versions else []
        for item, vector in zip(items, vectors, strict=True):
            assert item == item_of(item.id, versions[item.id])
            np.testing.assert_array_equal(vector, unit(vector_of(item.id, versions[item.id])[None])[0])
        for name, some in possible.items():
            assert versions.get(name) in some, name
        if items:
            assert len(index.search(vectors[:1], k=500)[0]) == index.count() == len(items)
    return versions


@pytest.mark.processes
@pytest.mark.parametrize(("times", "most_calls"), [(12, 25), pytest.param(50, 40, marks=pytest.mark.slow)])
def test_killed_while_writing(tmp_path, times, most_calls):
    folder, moments, versions = tmp_path / "index", random.Random(1), {}
    for turn in range(times):
        with writer(folder, turn + 1) as (process, pipe):
            assert pipe.recv() == "open"
            calls = []
            for _ in range(moments.randrange(most_calls)):  # it is a call after these that is killed
                calls += pipe.recv(), pipe.recv()
            time.sleep(moments.uniform(0.0, 0.02))
            process.kill()
            with suppress(EOFError, OSError):
                while True:
                    calls.append(pipe.recv())
        versions = check_index(folder, possible_versions(calls, versions))
        copy = Path(f"{folder}.copy")
        if copy.exists():
            with Index.load(copy) as index:
                assert all(item == item_of(item.id, item.metadata["version"]) for item in index.items())
    assert versions


@pytest.mark.processes
def test_two_processes_that_write_at_once(tmp_path):
    with writer(tmp_path / "index", 1) as (first, pipe), writer(tmp_path / "index", 2) as (second, other_pipe):
        try:
            assert pipe.recv() == other_pipe.recv() == "open"
            calls, start = Counter(), time.monotonic()
            while (seconds := time.monotonic() - start) < 60 and (seconds < 0.7 or min(calls.values(), default=0) < 2):
                for one in (pipe, other_pipe):  # a writer would stop if nobody read
                    while one.poll():
                        calls[one] += one.recv()[0]
                with Index.load(tmp_path / "index") as index:
                    assert all(item == item_of(item.id, item.metadata["version"]) for item in index.items())
            assert len(calls) == 2
            assert min(calls.values()) > 1
        finally:
            first.kill()
            second.kill()
    assert check_index(tmp_path / "index", {})


@pytest.mark.parametrize("step", ["_write_rows", "write_journal", "sync_folder", "replace", "unlink"])
@pytest.mark.parametrize("after", [False, True])
def test_stopped_at_any_step_of_rewriting(tmp_path, monkeypatch, step, after):
    """The index is the old one or the new one, which have the same items."""
    monkeypatch.setattr(embedded, "_LEAST_DEAD", 10)
    rows, items = halves(60), some_items(60)
    with Index(tmp_path / "index", dim=8) as index:
        index.add(rows, items)
        index.delete([item.id for item in items[:15]])  # too few yet
    holder = Path if step in ("replace", "unlink") else journal
    real = getattr(holder, step)
    steps = []

    def stop(*given, **settings):
        steps.append(step)
        if after:
            real(*given, **settings)
        raise KeyboardInterrupt

    with Index.load(tmp_path / "index") as index, monkeypatch.context() as patch:
        patch.setattr(holder, step, stop)
        with pytest.raises(KeyboardInterrupt):
            index.delete([item.id for item in items[15:25]])
    assert steps == [step]
    with Index.load(tmp_path / "index") as index:
        assert list(index.items()) == sorted(items[25:], key=lambda item: item.id)
        index.upsert(rows[:30], items[:30])
        index.delete([item.id for item in items[:30]])
    with Index.load(tmp_path / "index") as index:
        assert list(index.items()) == sorted(items[30:], key=lambda item: item.id)
    assert [name.split(".")[0] for name in names(tmp_path / "index")] == ["journal", "vectors"]


# Damaged files, locks, and other indexes at the same place


@pytest.fixture
def stored(tmp_path):
    """A folder of an index with every kind of record, and its items."""
    with Index(tmp_path / "index", dim=8, model="abc") as index:
        index.add(halves(12), some_items(12))
        index.upsert(halves(2, seed=1), some_items(2))
        index.delete(["item-3"])
        items = list(index.items())
    return tmp_path / "index", items


def test_damaged_bytes_are_noticed(stored):
    folder, _ = stored
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for place in (*range(40), *range(40, len(whole), 13)):
            changed = bytearray(whole)
            changed[place] ^= 0x10
            file.write_bytes(changed)
            refusal(lambda: Index.load(folder), file.name)
        file.write_bytes(whole)
    Index.load(folder).close()


def test_a_file_that_is_missing_or_cut_short_or_too_long(stored):
    folder, items = stored
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for size in (0, 1, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:size])
            refusal(lambda: Index(folder, dim=8), f"{file.name} is damaged")
        file.unlink()
        refusal(lambda: Index(folder, dim=8), f"{file.name} is damaged")
        file.write_bytes(whole)
    with (folder / "vectors.000001").open("ab") as file:
        file.write(b"left by a process that was killed")
    with Index.load(folder) as index:
        assert list(index.items()) == items
        index.add(halves(1), [Item("new")])
    with Index.load(folder) as index:
        assert index.count() == 12
        np.testing.assert_array_equal(index.vectors(["new"]), halves(1))


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records[1:],  # no head
        lambda records: [*records, (9, b"")],  # of a kind that there is not
        lambda records: [*records, (3, b"not JSON")],
        lambda records: [*records[:2], *records[3:]],  # rows that no put has
    ],
)
def test_records_that_make_no_sense(stored, change):
    """Their checksums fit: such a journal was written by a mistake."""
    folder, _ = stored
    write_journal(folder / "journal", change(read(folder / "journal")))
    refusal(lambda: Index.load(folder), "journal is damaged")


def test_another_process_holds_the_lock_for_too_long(stored, monkeypatch):
    folder, items = stored
    monkeypatch.setattr(journal, "_LOCK_SECONDS", 0.1)
    with Index.load(folder) as index, folder_lock(folder):
        refusal(lambda: index.delete(["item-1"]), "index", "another process")
        assert list(index.items()) == items


@pytest.mark.parametrize("call", ["add", "delete"])
def test_interrupted_between_disk_and_memory(stored, monkeypatch, call):
    """What the interrupted call wrote is there or not; whatever comes after it is right."""
    folder, items = stored
    with Index.load(folder) as index:
        with monkeypatch.context() as patch:
            patch.setattr(embedded.ItemRows, "apply", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                index.delete(["item-0"]) if call == "delete" else index.add(halves(1), [Item("b")])
        index.add(halves(2, seed=1), [Item("c"), Item("d")])
        np.testing.assert_array_equal(index.vectors(["c", "d"]), halves(2, seed=1))
        in_memory = list(index.items())
    with Index.load(folder) as index:
        assert list(index.items()) == in_memory
        assert len(in_memory) == len(items) + (1 if call == "delete" else 3)


def test_a_folder_that_is_removed_meanwhile(stored):
    folder, _ = stored
    index = Index.load(folder)
    shutil.rmtree(folder)
    for call in (index.refresh, lambda: index.add(halves(1), [Item("a")])):
        refusal(call, "index", "any more")
    index.close()


def save_over(folder):
    with Index(dim=5, model="another") as other:
        other.add(np.eye(5), some_items(5, "other"))
        other.save(folder, overwrite=True)


def make_again(folder):
    shutil.rmtree(folder)
    with Index(folder, dim=8, model="another") as other:
        other.add(halves(5), some_items(5, "other"))


@pytest.mark.parametrize("replace", [save_over, make_again])
def test_an_index_that_was_replaced_by_another_is_not_written_to(stored, replace):
    """Its vectors would be those of two models."""
    folder, items = stored
    with Index.load(folder) as index:
        replace(folder)
        for call in (
            lambda: index.add(halves(1), [Item("new")]),
            lambda: index.delete(["item-0"]),
            index.refresh,
            lambda: index.note(a="b"),
        ):
            refusal(call, "index was replaced")
        assert list(index.items()) == items  # as it was
    with Index.load(folder) as other:
        assert other.settings.model == "another"
        assert [item.id for item in other.items()] == [f"other-{i}" for i in range(5)]


# Where an index can be made


def test_old_unfinished_folders_are_removed(tmp_path):
    old, new = tmp_path / ".index.1.frontrank-new", tmp_path / ".index.2.frontrank-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "vectors.000001").write_text("x")
    for path in (old / "vectors.000001", old):
        os.utime(path, (0, 0))
    Index(tmp_path / "index", dim=8).close()
    assert names(tmp_path) == [new.name, "index"]


def test_folders_that_are_not_an_index(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file"):
        refusal(lambda name=name: Index(tmp_path / name, dim=8), name)
    refusal(lambda: Index.load(tmp_path / "none"), "none")
    with Index(tmp_path / "empty", dim=8) as index:
        index.add(halves(1), [Item("a")])
        refusal(lambda: index.save(tmp_path / "full", overwrite=True), "full")
    assert names(tmp_path) == ["empty", "file", "full"]
    assert names(tmp_path / "full") == ["precious"]


# Full disks


def test_a_full_disk_while_rewriting_or_adding(tmp_path, monkeypatch):
    """The write itself was done, and returns."""

    def fill_up(path, records):
        path.write_bytes(b"half")
        next(iter(records))
        disk_full()

    monkeypatch.setattr(embedded, "_LEAST_DEAD", 10)
    with Index(tmp_path / "index", dim=8) as index:
        index.add(halves(60), some_items(60))
        with monkeypatch.context() as patch:
            patch.setattr(journal, "write_journal", fill_up)
            assert index.delete([item.id for item in some_items(40)]) == 40
        assert names(tmp_path / "index") == ["journal", "vectors.000001"]
        assert (index.count(), index.settings.facts["dead rows"]) == (20, 40)
        with monkeypatch.context() as patch:
            patch.setattr(journal, "_write_rows", disk_full)
            refusal(lambda: index.add(halves(1), [Item("new")]), "index", "written")
        assert index.count() == 20
        index.add(halves(1), [Item("new")])
        assert index.settings.facts["dead rows"] == 0
    with Index.load(tmp_path / "index") as index:
        assert index.count() == 21


DEEP = b"[" * 100_000
ITEM = b'["0","p",null,null,{}]'
CRAFTED = {
    "an empty head": (0, b"{}"),
    "a list as head": (0, b"[]"),
    "a deep head": (0, DEEP),
    "dim that is no whole number": (0, b'{"dim":2.9,"number":1}'),
    "dim 0": (0, b'{"dim":0,"number":1}'),
    "a long number": (0, b'{"dim":' + b"9" * 5000 + b',"number":1}'),
    "deep settings": (1, DEEP),
    "deletion of a number": (3, b"5"),
    "deletion of lists": (3, b"[[1]]"),
    "deep deletion": (3, DEEP),
    "fewer items than rows": (2, b"[]"),
    "more items than rows": (2, b"[" + ITEM + b',["1","p",null,null,{}]]'),
    "deep items": (2, DEEP),
}


@pytest.mark.parametrize(("kind", "payload"), CRAFTED.values(), ids=CRAFTED)
def test_records_that_somebody_crafted_with_valid_checksums(tmp_path, kind, payload):
    folder = tmp_path / "i"
    with Index(folder, dim=2) as index:
        index.add(np.eye(2)[:1], [Item("0")])
    with closing(Journal(folder / "journal")) as file:
        records = list(file.read())
    own = next((place for place, record in enumerate(records) if record[0] == kind), len(records))
    start = records[own][1][: journal._ROW_RANGE.size] if kind == 2 else b""
    records[own : own + 1] = [(kind, start + payload)]
    write_journal(folder / "journal", records)
    refusal(lambda: Index.load(folder), str(folder))
