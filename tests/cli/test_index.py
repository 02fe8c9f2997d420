"""`frontrank index`: what it stores and prints, on every engine, in two processes, and after a kill."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import frontrank as fr
from frontrank import picture_index
from frontrank.cli import index as command
from frontrank.retrieval.index import Index
from frontrank.training import distributed
from tests.cli.images import EACH, TEST, TRAIN, picture, published, small_model
from tests.data.files import many_scans
from tests.retrieval import servers

MODEL = "runs/first/model"
COUNT = (len(TRAIN) + len(TEST)) * EACH
SOME = len(TEST) * EACH


@pytest.fixture
def index(folder, run):
    """A function that indexes with these words, in a folder of its own; returns what `run` returns."""
    return lambda *words, **ends: run("index", MODEL, *words, "--workers", "0", "--device", "cpu", **ends)


def stored(url):
    """All items of an index, and their vectors."""
    with Index.load(url) as index:
        items = list(index.items())
        return items, index.vectors([item.id for item in items])


def same(one, other):
    return one[0] == other[0] and np.array_equal(one[1], other[1])


# On every engine


@pytest.mark.parametrize(
    "engine", ["faiss", *(pytest.param(name, marks=pytest.mark.servers) for name in ("pgvector", "milvus"))]
)
def test_from_a_folder_to_a_search_on_every_engine(folder, run, index, engine):
    url = {"faiss": lambda: "photos.index", "pgvector": servers.postgres_url, "milvus": servers.milvus_url}[engine]()
    try:
        check_engine(folder, run, index, url)
    finally:
        if engine == "milvus":
            servers.remove_collection(url)


def check_engine(folder, run, index, url):
    result = index("my_photos/test", "--to", url)
    assert (result.status, result.out) == (0, "")
    first, second, *_ = result.err.splitlines()
    assert first == f"read my_photos/test: {SOME} images"
    assert f": {SOME} added; {SOME} images" in second
    assert servers.PASSWORD not in result.err
    picture(folder / "my_photos" / "test" / "cup" / "1.png", 5)
    shutil.rmtree("my_photos/test/plate")
    result = index("my_photos/test", "--to", url, "--prune", "--yes")
    assert f"1 changed, {SOME - EACH - 1} unchanged, {EACH} removed" in result.err
    result = run("search", url, "my_photos/test/cup/1.png", "-k", "3", "--filter", "label=cup|plate", status=0)
    rows = [line.split() for line in result.out.splitlines()]
    assert rows[:2] == [["score", "label", "id"], ["1", "1.0000", "cup", "test/cup/1.png"]]
    assert [row[2] for row in rows[1:]] == ["cup"] * 3
    small_model(folder / "second", seed=1)
    result = run("index", "second", "my_photos/test", "--to", url, "--quiet")
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert str(folder / MODEL) in result.err


# What is stored


def test_labels_paths_and_where_things_are(index, folder):
    result = index("my_photos", "--to", "photos.index")
    assert " photos.index QUERY.jpg\n" in result.err
    with Index.load("photos.index") as photos:
        assert photos.labels() == dict.fromkeys([*TRAIN, *TEST], EACH)
        assert photos.values("split") == {"train": len(TRAIN) * EACH, "test": SOME}
        (item,) = photos.get(["my_photos/test/cup/0.png"])
        assert item.path == str(folder / "my_photos" / "test" / "cup" / "0.png")
        assert photos.settings.notes == {"model": str(folder / MODEL), "roots": (str(folder / "my_photos"),)}
        assert photos.settings.model == fr.Embedder.load(MODEL).fingerprint


def test_metadata_of_a_table_and_its_numbers(index, run):
    rows = [
        "path,label,year,code,price,shot at",
        "test/cup/0.png,cup,2019,007,1.50,Rome",
        "test/cup/1.png,cup,2020,12,2,",
        "test/plate/0.png,plate,,5,-3,",
    ]
    Path("my_photos/table.csv").write_text("\n".join(rows) + "\n")
    result = index("my_photos/table.csv", "--to", "t.index")
    assert "'shot at'" in result.err  # no filter could name it
    metadata = [{**item.metadata} for item in stored("t.index")[0]]
    assert [each.get("year") for each in metadata] == [2019, 2020, None]
    assert [each["code"] for each in metadata] == ["007", "12", "5"]  # the first is no number, so none is
    assert [each["price"] for each in metadata] == [1.5, 2, -3]
    assert not any("shot at" in each for each in metadata)
    for condition, lines in (("year>=2020", 1), ("price<2", 2), ("code=007", 1), ("label!=cup", 1)):
        result = run("search", "t.index", "my_photos/test/cup/0.png", "--filter", condition)
        assert len(result.out.splitlines()) == lines + 1, condition


def test_several_sources_and_no_labels(index, folder):
    for i in range(3):
        picture(folder / "loose" / f"{i}.png", i)
    files = [f"my_photos/test/cup/{i}.png" for i in range(2)]
    result = index("loose", *files, "my_photos/test/plate/0.png", "my_photos/train", "--to", "a.index", status=0)
    assert "loose: 3 images" in result.err
    with Index.load("a.index") as found:
        assert found.count() == 3 + 3 + len(TRAIN) * EACH
        ids = ["loose/0.png", "cup/1.png", "plate/0.png", f"train/{TRAIN[0]}/0.png"]
        assert [item and item.label for item in found.get(ids)] == [None, None, None, TRAIN[0]]
        parts = ("loose", "my_photos/test/cup", "my_photos/test/plate", "my_photos/train")
        assert found.settings.notes["roots"] == tuple(str(folder / part) for part in parts)


def test_one_split_and_a_published_data_set(index, folder):
    assert index("my_photos", "--split", "test", "--to", "a.index").status == 0
    assert len(stored("a.index")[0]) == SOME
    published("in-shop", folder / "shop")  # is not complete: refused, rather than taken for a folder without labels
    assert (index("shop", "--to", "b.index").status, Path("b.index").exists()) == (2, False)


def test_whitening_and_expansion_are_stored_with_the_index(index, folder):
    fr.Whitening.fit(np.random.default_rng(0).normal(size=(60, 8)), dim=3).save("white.safetensors")
    words = ("my_photos/test", "--to", "w.index", "--whiten", "white.safetensors", "--expand", "4", "--alpha", "1.5")
    assert index(*words).status == 0
    with Index.load("w.index") as found:
        assert found.settings.stored_dim == 3
        assert found.settings.expansion == (4, 1.5)
    assert f"{SOME} unchanged" in index(*words).err  # the same again
    assert f"{SOME} unchanged" in index("my_photos/test", "--to", "w.index").err  # or without them


def test_folders_that_pictures_are_in(tmp_path):
    for elsewhere, roots in (
        (["/data/a/1.jpg", "/data/b/c/2.jpg"], ["here", "/data"]),
        (["/data/a/1.jpg", "/srv/2.jpg"], ["here", "/data/a", "/srv"]),  # never the root of all
    ):
        empty = [""] * 4
        table = fr.ImageTable(tmp_path / "here", ["x/1.jpg", "2.jpg", *elsewhere], empty, empty, ["test"] * 4, empty)
        assert command.table_roots(table) == [str(tmp_path / root) for root in roots]


def test_files_that_are_no_pictures_add_no_folder(index, folder, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "passwd").write_text("root")
    picture(tmp_path / "elsewhere" / "1.png", 1)
    rows = [tmp_path / "secret" / "passwd", "../" * 30 + "etc/passwd", tmp_path / "elsewhere" / "1.png"]
    files = ["my_photos/test/cup/0.png", *map(str, rows)]
    (folder / "table.csv").write_text("path,label\n" + "".join(f"{file},cup\n" for file in files))
    assert index("table.csv", "--to", "t.index").status == 0
    with Index.load("t.index") as found:
        assert set(found.settings.notes["roots"]) == {str(folder), str(tmp_path / "elsewhere")}
        ids = [item.id for item in found.items()]
    assert len(ids) == 2
    assert not any(str(tmp_path) in each or ".." in each for each in ids)  # ids are public


def test_pruning_with_a_wrong_folder_needs_a_yes(index, folder, monkeypatch):
    assert index("my_photos/test", "--to", "photos.index", "--quiet").status == 0
    before = stored("photos.index")
    picture(folder / "wrong" / "cup" / "1.png", 1)
    result = index("wrong", "--to", "photos.index", "--prune")
    assert (result.status, f"{SOME} of {SOME} items" in result.err, "--yes" in result.err) == (2, True, True)
    assert same(before, stored("photos.index"))
    for answer, left in (("", SOME), ("maybe\n", SOME), ("y\n", 1)):  # on a terminal it asks
        shutil.copytree("photos.index", "asked.index", dirs_exist_ok=True)
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=lambda text=answer: text))
        assert index("wrong", "--to", "asked.index", "--prune").status == (2 if left == SOME else 0)
        assert len(stored("asked.index")[0]) == left
    assert index("wrong", "--to", "photos.index", "--prune", "--yes").status == 0
    assert len(stored("photos.index")[0]) == 1


# Broken images


def test_broken_images_are_all_named(index, folder):
    cups = folder / "my_photos" / "test" / "cup"
    for number in range(7):
        (cups / f"broken {number}.jpg").write_bytes(b"no picture" if number else many_scans())
    for words, lines in ((["--quiet"], 7), ([], 11)):  # they are missing from now on, so --quiet names them, too
        result = index("my_photos", "--to", "photos.index", *words)
        assert (result.status, result.out) == (0, "")
        assert len(result.err.splitlines()) == lines
        assert result.err.count("\n  broken: ") + result.err.startswith("  broken: ") == 7
    assert f"{COUNT} unchanged, 7 broken; {COUNT} images" in result.err


def test_broken_images_prune_nothing_if_there_are_no_others(index):
    assert index("my_photos/test", "--to", "photos.index", "--quiet").status == 0
    before = stored("photos.index")
    for file in Path("my_photos/test").rglob("*.png"):
        file.write_bytes(b"no picture")
    result = index("my_photos/test", "--to", "photos.index", "--quiet", "--prune")
    assert result.status == 2
    assert f"none of the {SOME} images" in result.err.splitlines()[-1]
    assert same(before, stored("photos.index"))
    assert index("my_photos/test", "--to", "new.index", "--quiet").status == 2
    assert not Path("new.index").exists()


# Stopped, killed, and several processes

SLOWLY = """
import sys, time
from frontrank import picture_index
from frontrank.cli import index as command
from frontrank.cli import main
from frontrank.retrieval.index import Index
picture_index._STORE_BATCHES = 1
own = Index.upsert
def upsert(index, *given, **settings):
    own(index, *given, **settings)
    print("stored", flush=True)
    time.sleep(0.01)
Index.upsert = upsert
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.processes
def test_killed_in_the_middle_it_ends_as_if_nothing_had_happened(index, folder, monkeypatch):
    monkeypatch.setattr(picture_index, "_STORE_BATCHES", 1)
    words = ["my_photos", "--batch-size", "1", "--to"]
    assert index(*words, "whole.index", "--quiet").status == 0
    program = [sys.executable, "-c", SLOWLY, "index", MODEL, *words, "killed.index", "--workers", "0", "--quiet"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        for _ in range(10):
            assert process.stdout.readline() == b"stored\n"
        process.send_signal(signal.SIGKILL)
    acknowledged, _ = stored("killed.index")
    assert 10 <= len(acknowledged) < COUNT
    seen, own = [], picture_index.embedded_batches

    def batches(model, table, **settings):
        seen.extend(picture_index.item_ids(table))
        return own(model, table, **settings)

    monkeypatch.setattr(picture_index, "embedded_batches", batches)
    assert f"{COUNT - len(acknowledged)} added, {len(acknowledged)} unchanged" in index(*words, "killed.index").err
    assert len(seen) == COUNT - len(acknowledged)
    assert not {item.id for item in acknowledged} & set(seen)
    assert same(stored("killed.index"), stored("whole.index"))


@pytest.mark.processes
def test_two_processes_make_the_same_index_as_one(index, folder, monkeypatch):
    """This process and another, as torchrun would start them."""
    (folder / "my_photos" / "test" / "cup" / "broken.jpg").write_bytes(b"no picture")
    words = ["my_photos", "--batch-size", "1", "--to"]
    assert index(*words, "one.index").status == 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    for name, value in {**address, "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "start", partial(distributed.start, timeout=300))
    program = [sys.executable, "-m", "frontrank", "index", MODEL, *words, "two.index", "--workers", "0"]
    other = {**os.environ, "RANK": "1", "LOCAL_RANK": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(program, env=other, stderr=subprocess.PIPE, text=True) as process:
        result = index(*words, "two.index")
        _, text = process.communicate(timeout=300)
    assert (result.status, process.returncode) == (0, 0), text
    assert f"two.index: {COUNT} added, 1 broken; {COUNT} images" in result.err
    assert text == ""  # one process speaks
    assert same(stored("two.index"), stored("one.index"))


def test_ctrl_c_says_that_it_can_go_on(index, monkeypatch):
    def interrupt(*given, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(picture_index, "index_images", interrupt)
    result = index("my_photos", "--to", "photos.index", "--quiet")
    assert (result.status, result.err.count("\n")) == (130, 1)
    assert "same command again" in result.err


# Refusals

ALL = f"{MODEL} my_photos --to a.index"
REFUSALS = [
    (f"{MODEL} my_photos", "--to"),
    ("my/lost/model my_photos --to a.index", "my/lost/model"),
    (f"{MODEL} nowhere --to a.index", "nowhere"),
    (f"{MODEL} empty --to a.index", "empty"),
    (f"{MODEL} my_photos my_photos --to a.index", "my_photos"),
    (f"{MODEL} my_photos ./my_photos --to a.index", "my_photos/test/a,b/0.png"),
    (f"{ALL} --whiten wide.safetensors", "whitening"),
    (f"{MODEL} my_photos --to milvs://localhost/x", "milvus?"),
    (f"{MODEL} my_photos --to postgresql://me:secret@127.0.0.1:1/x", "postgresql://"),
    (f"{MODEL} my_photos --to my_photos", "my_photos"),
    (f"{MODEL} my_photos --to plain.index --expand 5", "--expand: plain.index"),
    (f"{MODEL} my_photos --to plain.index --whiten white.safetensors", "--whiten: plain.index"),
    (f"{MODEL} my_photos --to other.index", "other.index"),
]


@pytest.fixture(scope="module")
def more(copied):
    """A folder with what some command lines cannot use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(copied)
        Path("empty").mkdir()
        for dim, name in ((8, "white"), (20, "wide")):
            fr.Whitening.fit(np.random.default_rng(0).normal(size=(60, dim)), dim=3).save(f"{name}.safetensors")
        Index("plain.index", dim=8, model=fr.Embedder.load(MODEL).fingerprint).close()
        Index("other.index", dim=9).close()
    return copied


@pytest.mark.parametrize(("words", "name"), REFUSALS)
def test_refusals(more, refused, monkeypatch, words, name):
    monkeypatch.chdir(more)
    assert "secret" not in refused(["index", *words.split()], name)
