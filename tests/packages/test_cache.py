"""Archives are fetched once and checked always, whatever happens while they are fetched."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import frontrank as fr
from frontrank.errors import InputError
from frontrank.packages import _ABANDONED, cache_folder, fetch, is_cached
from tests.errors import refusal
from tests.packages.fakes import calls, client, package, stored, tgz

CONTENT = tgz({"package/a": b"1"})
OTHER = tgz({"package/a": b"2"})


@pytest.fixture
def npm(clients, tmp_path):
    """A client that has CONTENT."""
    archive = stored(tmp_path / "registry", "thing.tgz", CONTENT)
    client(clients, "npm", f'cp "{archive}" thing-1.0.tgz')
    return clients


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for own, home, expected in (
        ("", "", tmp_path / ".cache/frontrank"),
        ("", "relative/is/ignored", tmp_path / ".cache/frontrank"),
        ("", str(tmp_path / "xdg"), tmp_path / "xdg/frontrank"),
        ("~/own", str(tmp_path / "xdg"), tmp_path / "own"),
        ("own", "", Path.cwd() / "own"),
    ):
        monkeypatch.setenv("FRONTRANK_CACHE", own)
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        assert cache_folder() == expected
    monkeypatch.setattr(Path, "expanduser", lambda path: (_ for _ in ()).throw(RuntimeError("no home")))
    monkeypatch.setenv("FRONTRANK_CACHE", "~/own")
    refusal(cache_folder, "FRONTRANK_CACHE")


def test_fetched_and_read_once(npm, cache, monkeypatch):
    thing = package(CONTENT)
    assert not is_cached(thing)
    (path,) = fetch([thing])
    assert path.read_bytes() == CONTENT
    assert is_cached(thing)
    assert fetch([thing, thing]) == [path, path]
    assert len(calls(npm)) == 1
    assert fetch([]) == []
    assert names(cache) == [path.name, f"{path.name}.json"]
    assert path.name == "npm-thing-1.0.tgz"
    monkeypatch.setattr("frontrank.packages.file_digest", lambda path: 1 / 0)
    assert fetch([thing]) == [path]


@pytest.mark.parametrize("damage", [b"", CONTENT[:-1], OTHER], ids=["empty", "short", "other"])
def test_a_damaged_archive_is_fetched_again(npm, cache, damage):
    (path,) = fetch([package(CONTENT)])
    path.write_bytes(damage)
    os.utime(path, ns=(1, 1))
    assert not is_cached(package(CONTENT))
    assert fetch([package(CONTENT)])[0].read_bytes() == CONTENT
    assert len(calls(npm)) == 2


@pytest.mark.parametrize("stamp", [None, "[]", '{"size": 1', '{"size": 1, "time": 2, "sha256": "x"}'])
def test_a_good_archive_is_not_fetched_again(npm, cache, stamp):
    (path,) = fetch([package(CONTENT)])
    note = path.with_name(f"{path.name}.json")
    note.unlink()
    if stamp is not None:
        note.write_text(stamp)
    assert fetch([package(CONTENT)]) == [path]
    assert len(calls(npm)) == 1
    assert '"sha256"' in note.read_text()


def test_another_checksum(npm, cache):
    """A release that pins another sha256 of the same version does not get a file that is there already."""
    theirs, ours = (hashlib.sha256(content).hexdigest()[:12] for content in (CONTENT, OTHER))
    for any_version in (False, True):  # which is about apt only
        with pytest.raises(InputError, match=f"sha256 {theirs}.*{ours}"):
            fetch([package(OTHER)], any_version=any_version)
    assert names(cache) == []
    fetch([package(CONTENT)])
    refusal(lambda: fetch([package(OTHER)]), "thing 1.0 (npm)")


def test_one_fails_and_the_others_stay(npm, cache, monkeypatch):
    """What has arrived is not fetched again once the mistake is mended."""
    refusal(lambda: fetch([package(CONTENT), package(OTHER, name="wrong", version="2")]), "wrong 2 (npm)")
    fetch([package(CONTENT)])
    assert sum("thing@" in call for call in calls(npm)) <= 2
    assert not list(cache.glob(".fetch-*"))
    monkeypatch.setattr("frontrank.packages._fetch_all", lambda *_: None)  # another process deletes what it fetched
    refusal(lambda: fetch([package(OTHER, name="gone")]), "gone 1.0 (npm)")


def test_no_room(npm, cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 299_000_000))
    with pytest.raises(InputError, match=f"{cache} .*299 MB .*300 MB .*FRONTRANK_CACHE"):
        fetch([package(CONTENT, megabytes=100), package(CONTENT, name="more", megabytes=50)])
    assert calls(npm) == []
    fetch([package(CONTENT, megabytes=149)])


def test_a_cache_that_cannot_be_written(npm, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("FRONTRANK_CACHE", str(tmp_path / "file"))
    refusal(lambda: fetch([package(CONTENT)]), "file/packages", "FRONTRANK_CACHE")
    assert not is_cached(package(CONTENT))
    assert (tmp_path / "file").read_text() == "mine"


def test_what_killed_calls_left(npm, cache):
    """Old folders go; one that another process may be working in stays."""
    for name, age in ((".fetch-old", 2 * _ABANDONED), (".fetch-new", 60)):
        (cache / name / "npm").mkdir(parents=True)
        (cache / name / "half.tgz").write_bytes(CONTENT[:9])
        for path in (cache / name / "npm", cache / name / "half.tgz", cache / name):
            os.utime(path, (time.time() - age, time.time() - age))
    fetch([package(CONTENT)])
    assert [path.name for path in cache.glob(".fetch-*")] == [".fetch-new"]


def test_at_the_same_time(npm, cache, tmp_path):
    archive = tmp_path / "registry" / "thing.tgz"
    client(npm, "npm", f'cp "{archive}" thing-1.0.tgz', "sleep 0.2")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: fetch([package(CONTENT)])[0].read_bytes(), range(4)))
    assert found == [CONTENT] * 4
    assert len(calls(npm)) > 1  # or nothing was tested
    assert names(cache) == ["npm-thing-1.0.tgz", "npm-thing-1.0.tgz.json"]


SCRIPT = """
import sys, types
sys.modules["frontrank"] = types.ModuleType("frontrank")  # without its __init__, which takes seconds
sys.modules["frontrank"].__path__ = [sys.argv[2]]
from frontrank.packages import Package, fetch
try:
    fetch([Package("npm", "thing", "1.0", sys.argv[1], 0.001)])
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.processes
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_ended_half_way(npm, cache, tmp_path, how):
    """By Ctrl-C or a kill: nothing half is taken for whole, and Ctrl-C leaves nothing behind."""
    client(npm, "npm", "echo half > thing-1.0.tgz", f'echo $$ > "{tmp_path}/pid"', "exec sleep 300")
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, sha256, fr.__path__[0]], stderr=subprocess.PIPE, text=True
    )
    wait_for((tmp_path / "pid").exists)
    client_id = int(wait_for(lambda: (tmp_path / "pid").read_text().strip()))
    process.send_signal(getattr(signal, how))
    output = process.communicate(timeout=60)[1]
    assert "Traceback" not in output
    if how == "SIGINT":
        assert process.returncode == 130
        assert names(cache) == []
        with pytest.raises(ProcessLookupError):
            os.kill(client_id, 0)
    else:
        os.kill(client_id, signal.SIGKILL)
    assert not is_cached(package(CONTENT))
    client(npm, "npm", f'cp "{tmp_path}/registry/thing.tgz" thing-1.0.tgz')
    assert fetch([package(CONTENT)])[0].read_bytes() == CONTENT


def wait_for(ask):
    for _ in range(1200):
        if found := ask():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")
