import os

import pytest

from frontrank.errors import InputError
from frontrank.retrieval.journal import Journal, is_journal, write_journal

RECORDS = [(0, b"head"), (1, b""), (255, b"x" * 100)]


@pytest.fixture
def path(tmp_path):
    write_journal(tmp_path / "journal", RECORDS)
    return tmp_path / "journal"


def read(path):
    journal = Journal(path)
    try:
        return list(journal.read())
    finally:
        journal.close()


def append(path, records):
    journal = Journal(path)
    list(journal.read())
    journal.append(records)
    journal.close()


def test_what_was_written_is_read(path):
    assert read(path) == RECORDS
    assert is_journal(path)
    append(path, [(2, b"more"), (3, b"still more")])
    append(path, [])
    append(path, [(4, b"last")])
    assert read(path) == [*RECORDS, (2, b"more"), (3, b"still more"), (4, b"last")]


def test_goes_on_reading_where_it_was(path):
    reader = Journal(path)
    assert list(reader.read()) == RECORDS
    assert list(reader.read()) == []
    append(path, [(2, b"more")])
    assert list(reader.read()) == [(2, b"more")]
    assert not reader.is_replaced()
    write_journal(path.with_name("new"), [(0, b"other")])
    path.with_name("new").replace(path)
    assert reader.is_replaced()
    assert list(reader.read()) == []
    reader.close()


def test_a_record_that_was_cut_off_before_it_was_acknowledged(path):
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
    assert read(path) == [*RECORDS, (2, b"more")]  # whole, so it counts, though nobody was told


def test_a_file_that_lost_its_end(path):
    """What was acknowledged is not there, so the file is damaged, wherever it ends."""
    append(path, [(2, b"more")])
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"journal is damaged \(.*\); restore the folder from a copy, or index"):
            read(path)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_byte_counts(path, flip):
    append(path, [(2, b"more")])
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= flip
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"journal (is damaged|has version)"):
            read(path)


def test_what_a_killed_process_left_is_not_taken_for_a_later_record(path):
    """A whole record of an earlier life, at the wrong place, does not count."""
    before = path.read_bytes()
    append(path, [(2, b"a"), (2, b"b")])
    after = path.read_bytes()
    second = after[len(before) + (len(after) - len(before)) // 2 :]
    path.write_bytes(before + second)
    assert read(path) == RECORDS


def test_other_versions_are_named(path, monkeypatch):
    monkeypatch.setattr("frontrank.retrieval.journal._VERSION", 2)
    with pytest.raises(InputError, match="journal has version 1 of the format, this is 2; update frontrank"):
        read(path)


def test_a_disk_that_is_full(path, monkeypatch):
    """Whatever could be written is taken back."""
    journal = Journal(path)
    list(journal.read())

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("frontrank.retrieval.journal.sync_data", full)
        with pytest.raises(OSError, match="No space left"):
            journal.append([(2, b"more")])
    assert read(path) == RECORDS
    journal.append([(3, b"later")])
    assert list(journal.read()) == []
    assert read(path) == [*RECORDS, (3, b"later")]
    journal.close()


def test_what_is_no_journal(tmp_path):
    assert not is_journal(tmp_path / "none")
    assert not is_journal(tmp_path)
    (tmp_path / "text").write_text("hello")
    assert not is_journal(tmp_path / "text")
    with pytest.raises(InputError, match=r"text is damaged \(it does not begin as an index does\)"):
        Journal(tmp_path / "text")


def test_reading_never_writes(path):
    path.chmod(0o444)
    kept = path.read_bytes(), os.stat(path).st_mtime_ns
    assert read(path) == RECORDS
    assert (path.read_bytes(), os.stat(path).st_mtime_ns) == kept
