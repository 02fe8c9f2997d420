"""`frontrank index`: what it keeps and says, on every engine, in two processes, and after a kill."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank import picture_index as job
from frontrank.cli import _parser, indexing
from frontrank.cli import index as command
from frontrank.retrieval.index import Index
from tests.cli.images import EACH, TEST, TRAIN, picture, published, small_model, tree
from tests.retrieval import servers
from tests.training.processes import torchrun

MODEL = "runs/first/model"
COUNT = (len(TRAIN) + len(TEST)) * EACH
SOME = len(TEST) * EACH
URLS = {
    "faiss": lambda: "photos.index",
    "pgvector": servers.postgres_url,
    "milvus": servers.milvus_url,
}


@pytest.fixture
def index(folder, run):
    """A function that indexes with these words, in a folder of its own; gives what `run` gives."""
    return lambda *words: run("index", MODEL, *words, "--workers", "0", "--device", "cpu")


def kept(url):
    """All items of an index, and their vectors."""
    with Index.load(url) as found:
        items = list(found.items())
        return items, found.vectors([item.id for item in items])


def same(one, other):
    return one[0] == other[0] and np.array_equal(one[1], other[1])


# Help


def examples():
    shown = command.EPILOG.split("examples:\n")[1].replace("\\\n", " ")
    return [shlex.split(line) for line in shown.splitlines()]


def test_help(run):
    found = run("index", "--help")
    assert (found.status, found.err) == (0, "")
    assert found.out.endswith(command.EPILOG)
    assert max(map(len, found.out.splitlines())) <= 86
    assert all(option in found.out for option in ("--to URL", "--prune", "--whiten FILE", "--expand [K]", "--quiet"))


def test_examples_of_the_help(folder, run):
    """One after the other, as they build on each other; the one of several processes here with one."""
    shutil.copytree("my_photos/test", "more_photos")
    fr.data.read_folder("my_photos").save("table.csv", overwrite=True)
    shutil.copy("my_photos/test/cup/0.png", "query.jpg")
    ran = []
    for words in examples():
        words = words[words.index("frontrank") + 1 :]
        ran.append(words[0])
        if words[0] == "serve":
            parser, commands = _parser()
            from frontrank.cli import serve

            serve.add_arguments(commands["serve"])
            assert commands["serve"].read(parser, words).urls == ["photos.index"]
            continue
        found = run(*words, *(["--workers", "0"] if words[0] == "index" else []))
        assert found.status == 0, found.err
    assert ran == ["index"] * 4 + ["search", "serve"]
    with Index.load("expanded.index") as expanded:
        assert expanded.settings.expansion == (10, 2.0)
        assert expanded.count() == COUNT


# On every engine


@pytest.mark.parametrize("engine", URLS)
def test_from_a_folder_to_a_search_on_every_engine(folder, run, index, engine):
    url = URLS[engine]()
    try:
        _from_a_folder_to_a_search(folder, run, index, url)
    finally:
        if engine == "milvus":
            servers.remove_collection(url)


def _from_a_folder_to_a_search(folder, run, index, url):
    found = index("my_photos/test", "--to", url)
    assert (found.status, found.out) == (0, "")
    first, second, *_ = found.err.splitlines()
    assert first == f"read my_photos/test: {SOME} images"
    assert f": {SOME} added; {SOME} images in it, " in second
    assert "secret" not in found.err
    assert servers.PASSWORD not in found.err
    picture(folder / "my_photos" / "test" / "cup" / "1.png", 5)
    found = index("my_photos/test", "--to", url, "--quiet")
    assert (found.status, found.err) == (0, "")
    assert f": {SOME} unchanged; " in index("my_photos/test", "--to", url).err
    query = "my_photos/test/cup/1.png"
    found = run("search", url, query, "-k", "3", "--filter", "label=cup|plate")
    assert found.status == 0, found.err
    rows = [line.split() for line in found.out.splitlines()]
    assert rows[0] == ["score", "label", "id"]
    assert rows[1] == ["1", "1.0000", "cup", "test/cup/1.png"]
    assert {row[2] for row in rows[1:]} <= {"cup", "plate"}
    assert len(rows) == 4
    shutil.rmtree("my_photos/test/plate")
    assert f"{SOME - EACH} unchanged, {EACH} removed" in index("my_photos/test", "--to", url, "--prune").err
    small_model(folder / "second", seed=1)
    found = run("index", "second", "my_photos/test", "--to", url, "--quiet")
    assert (found.status, found.err.count("\n")) == (2, 1)
    assert found.err.startswith("frontrank index: second is not the model of ")
    assert f", {folder / MODEL}; give that one, or another --to" in found.err


# What is kept


def test_labels_paths_and_where_things_are(index, folder):
    found = index("my_photos", "--to", "photos.index")
    assert found.err == (
        f"read my_photos: {COUNT} images\n"
        f"photos.index: {COUNT} added; {COUNT} images in it, exact search\n"
        "try: frontrank search photos.index QUERY.jpg\n"
        "     frontrank serve photos.index --open\n"
    )
    with Index.load("photos.index") as kept_index:
        assert kept_index.labels() == dict.fromkeys([*TRAIN, *TEST], EACH)
        assert kept_index.values("split") == {"train": len(TRAIN) * EACH, "test": SOME}
        (item,) = kept_index.get(["my_photos/test/cup/0.png"])
        assert item.path == str(folder / "my_photos" / "test" / "cup" / "0.png")
        notes = kept_index.settings.notes
        assert notes == {"model": str(folder / MODEL), "roots": (str(folder / "my_photos"),)}
        assert kept_index.settings.model == fr.Embedder.load(MODEL).fingerprint


def test_metadata_of_a_table_and_its_numbers(index, run):
    rows = [
        "test/cup/0.png,cup,2019,007,1.50,",
        "test/cup/1.png,cup,2020,12,2,red",
        "test/plate/0.png,plate,,5,-3,blue",
    ]
    Path("my_photos/table.csv").write_text("\n".join(["path,label,year,code,price,colour", *rows]) + "\n")
    assert index("my_photos/table.csv", "--to", "t.index").status == 0
    with Index.load("t.index") as found:
        metadata = [{**item.metadata} for item in found.items()]
        assert [each.get("year") for each in metadata] == [2019, 2020, None]
        assert [each["code"] for each in metadata] == ["007", "12", "5"]  # the first is no number, so none is
        assert [each["price"] for each in metadata] == [1.5, 2, -3]
    query = "my_photos/test/cup/0.png"
    for condition, lines in (("year>=2020", 1), ("price<2", 2), ("code=007", 1), ("colour!=red", 2)):
        found = run("search", "t.index", query, "--filter", condition)
        assert len(found.out.splitlines()) == lines + 1, condition


def test_columns_that_no_filter_could_name_are_left_out_and_named(index):
    table = Path("my_photos/table.csv")
    table.write_text("path,label,shot at,year\ntest/cup/0.png,cup,Rome,2019\n")
    found = index(table, "--to", "t.index")
    assert "left out: the column 'shot at'; name it by letters, digits and _ to filter by it\n" in found.err
    assert kept("t.index")[0][0].metadata.keys() == {"year", "sha256"}
    assert "left out" not in index(table, "--to", "t.index", "--quiet").err


def test_several_sources_and_no_labels(index, folder):
    for i in range(3):
        picture(folder / "loose" / f"{i}.png", i)
    files = [f"my_photos/test/cup/{i}.png" for i in range(2)]
    found = index("loose", *files, "my_photos/test/plate/0.png", "my_photos/train", "--to", "a.index")
    assert found.status == 0
    assert "read loose: 3 images, without labels: loose/0.png is in no folder of a class; put the images" in found.err
    with Index.load("a.index") as kept_index:
        assert kept_index.count() == 3 + 3 + len(TRAIN) * EACH
        ids = ["loose/0.png", "cup/1.png", "plate/0.png", f"train/{TRAIN[0]}/0.png"]
        assert [item and item.label for item in kept_index.get(ids)] == [None, None, None, TRAIN[0]]
        roots = [
            str(folder / part) for part in ("loose", "my_photos/test/cup", "my_photos/test/plate", "my_photos/train")
        ]
        assert kept_index.settings.notes["roots"] == tuple(roots)


def test_one_split_and_a_published_data_set(index, folder):
    assert index("my_photos", "--split", "test", "--to", "a.index").status == 0
    assert len(kept("a.index")[0]) == SOME
    published("in-shop", folder / "shop")
    found = index("shop", "--to", "b.index")
    assert "is not as published" in found.err  # rather than taken for a folder without labels
    assert not Path("b.index").exists()


def test_whitening_and_expansion_are_kept_with_the_index(index, folder):
    fr.Whitening.fit(np.random.default_rng(0).normal(size=(60, 8)), dim=3).save("white.safetensors")
    words = ("my_photos/test", "--to", "w.index", "--whiten", "white.safetensors", "--expand", "4", "--alpha", "1.5")
    assert index(*words).status == 0
    with Index.load("w.index") as kept_index:
        assert kept_index.settings.stored_dim == 3
        assert kept_index.settings.expansion == (4, 1.5)
    assert f"{SOME} unchanged" in index(*words).err  # the same again
    assert f"{SOME} unchanged" in index("my_photos/test", "--to", "w.index").err  # or nothing said of it


@pytest.mark.parametrize(
    ("elsewhere", "roots"),
    [
        ([], ["here"]),
        (["/data/a/1.jpg", "/data/b/c/2.jpg"], ["here", "/data"]),
        (["/data/a/1.jpg", "/srv/2.jpg"], ["here", "/data/a", "/srv"]),  # never the root of all
    ],
)
def test_folders_that_pictures_are_in(tmp_path, elsewhere, roots):
    paths = ["x/1.jpg", "2.jpg", *elsewhere]
    nothing = [""] * len(paths)
    table = fr.data.ImageTable(tmp_path / "here", paths, nothing, nothing, ["test"] * len(paths), nothing)
    assert indexing.roots_of(table) == [str(tmp_path / root) for root in roots]


# Broken images


def test_broken_images_are_named_each(index, folder):
    cups = folder / "my_photos" / "test" / "cup"
    for number in range(7):
        (cups / f"broken {number}.jpg").write_bytes(b"no picture")
    for words, lines in ((["--quiet"], 7), ([], 11)):  # they are missing from now on: that is told in any case
        found = index("my_photos", "--to", "photos.index", *words)
        assert (found.status, found.out) == (0, "")
        assert len(found.err.splitlines()) == lines
        for number in range(7):
            assert f"  broken: my_photos/test/cup/broken {number}.jpg is no image, not JPEG, PNG" in found.err
    assert f"photos.index: {COUNT} unchanged, 7 broken; {COUNT} images in it" in found.err


def test_nothing_but_broken_images_is_an_error(index, folder):
    (folder / "bad").mkdir()
    (folder / "bad" / "1.jpg").write_bytes(b"no picture")
    found = index("bad", "--to", "photos.index", "--quiet")
    assert found.status == 2
    assert found.err == (
        "frontrank index: none of the 1 images can be read (bad/1.jpg is no image, not JPEG, PNG, WebP, BMP, GIF or "
        "TIFF); give others\n"
    )
    assert not Path("photos.index").exists()
    status, said = torchrun(2, "index", MODEL, "bad", "--to", "photos.index", "--device", "cpu")
    assert status != 0
    assert said.count("none of the 1 images can be read (bad/1.jpg is no image") == 1
    assert not Path("photos.index").exists()


@pytest.mark.parametrize("header", [False, True])
def test_broken_images_prune_nothing_if_there_are_no_others(index, header):
    assert index("my_photos/test", "--to", "photos.index", "--quiet").status == 0
    before = kept("photos.index")
    for file in Path("my_photos/test").rglob("*.png"):
        file.write_bytes(file.read_bytes()[:-200] if header else b"no picture")
    found = index("my_photos/test", "--to", "photos.index", "--quiet", "--prune")
    assert found.status == 2
    assert found.err.splitlines()[-1].startswith(f"frontrank index: none of the {SOME} images can be read")
    assert same(before, kept("photos.index"))


# Stopped, killed, and several processes

SLOWLY = """
import sys, time
from frontrank.cli import main
from frontrank.jobs import indexing
from frontrank.retrieval.index import Index
indexing._STORE_BATCHES = 1
own = Index.upsert
def upsert(index, *given, **settings):
    own(index, *given, **settings)
    print("kept", flush=True)
    time.sleep(0.01)
Index.upsert = upsert
sys.exit(main(sys.argv[1:]))
"""


def test_killed_in_the_middle_it_ends_as_if_nothing_had_been(index, folder, monkeypatch):
    monkeypatch.setattr(job, "_STORE_BATCHES", 1)
    words = ["my_photos", "--batch-size", "1", "--to"]
    assert index(*words, "whole.index", "--quiet").status == 0
    program = [sys.executable, "-c", SLOWLY, "index", MODEL, *words, "killed.index", "--workers", "0", "--quiet"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        for _ in range(10):
            assert process.stdout.readline() == b"kept\n"
        process.send_signal(signal.SIGKILL)
    acknowledged, _ = kept("killed.index")
    assert 10 <= len(acknowledged) < COUNT
    seen, own = [], job.embedded_batches

    def batches(model, table, **settings):
        seen.extend(job.item_ids(table))
        return own(model, table, **settings)

    monkeypatch.setattr(job, "embedded_batches", batches)
    assert f"{COUNT - len(acknowledged)} added, {len(acknowledged)} unchanged" in index(*words, "killed.index").err
    assert len(seen) == COUNT - len(acknowledged)
    assert not {item.id for item in acknowledged} & set(seen)
    assert same(kept("killed.index"), kept("whole.index"))


def test_ctrl_c_says_that_it_can_go_on(index, monkeypatch):
    def interrupted(*given, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(indexing, "index_images", interrupted)
    found = index("my_photos", "--to", "photos.index", "--quiet")
    assert (found.status, found.err) == (
        130,
        "frontrank index: interrupted; the same command again goes on from there\n",
    )


def test_two_processes_make_the_same_index_as_one(index, folder, monkeypatch):
    (folder / "my_photos" / "test" / "cup" / "broken.jpg").write_bytes(b"no picture")
    words = ("my_photos", "--batch-size", "1", "--to")
    assert index(*words, "one.index").status == 0
    status, said = torchrun(2, "index", MODEL, *words, "two.index", "--workers", "0", "--device", "cpu")
    assert status == 0, said
    assert said.count(f"two.index: {COUNT} added, 1 broken; {COUNT} images in it") == 1  # one process speaks
    assert said.count("broken: my_photos/test/cup/broken.jpg") == 1
    assert same(kept("two.index"), kept("one.index"))


def test_the_other_processes_do_not_wait_for_the_graph(index, monkeypatch):
    over, own = [], indexing.processes

    @contextmanager
    def processes(device):
        with own(device) as found:
            yield found
        over.append(True)

    prepare = Index.prepare
    monkeypatch.setattr(indexing, "processes", processes)
    monkeypatch.setattr(Index, "prepare", lambda index: over.append("prepared") or prepare(index))
    assert index("my_photos/test", "--to", "photos.index", "--quiet").status == 0
    assert over == [True, "prepared"]


# Refused

LONG = "x" * 300
ALL = f"{MODEL} my_photos --to a.index"
CASES = [
    (f"{MODEL} my_photos", "the following arguments are required: --to; see frontrank index --help"),
    (f"{MODEL} --to a.index", "the following arguments are required: IMAGES; see"),
    ("my/lost/model my_photos --to a.index", "my/lost/model does not exist"),
    ("my_photos my_photos --to a.index", "my_photos has no config.json; give the folder of a saved model"),
    ("test.npy my_photos --to a.index", "test.npy is a file; give the folder of a saved model"),
    (f"{MODEL} nowhere --to a.index", "nowhere is not there; give a folder of images, a table, or a data set's root"),
    (f"{MODEL} empty --to a.index", "empty has no images but no files; images end in .jpg"),
    (f"{MODEL} runs --to a.index", "runs has no images but 3 other files; images end in .jpg"),
    (
        f"{MODEL} labels.txt --to a.index",
        "labels.txt ends in '.txt', but tables of images are read from .csv, .parquet",
    ),
    (f"{MODEL} table.csv --to a.index", "table.csv has no column 'label', only 'path', 'product'"),
    (f"{MODEL} my_photos my_photos --to a.index", "my_photos is there twice; name it once"),
    (f"{MODEL} my_photos ./my_photos --to a.index", "my_photos/test/a,b/0.png is there twice; name each image once"),
    (f"{ALL} --batch-size 0", "--batch-size must be at least 1, got 0"),
    (f"{ALL} --batch-size x", "argument --batch-size: invalid int value: 'x'; see"),
    (f"{ALL} --workers -1", "--workers must be at least 0, got -1"),
    (f"{ALL} --split tset", "--split 'tset' is not known; there are train, validation, test and all"),
    (f"{ALL} --split validation", "my_photos has no images of the split validation; leave out --split, or use all"),
    (f"{ALL} --layout sopp", "--layout 'sopp' is not known; did you mean sop"),
    (f"{ALL} --device gpu", "device 'gpu' cannot be used ("),
    (f"{ALL} --purne", "there is no option --purne; did you mean --prune? See"),
    (f"{ALL} --alpha 1", "--alpha is of --expand; add that, or leave it out"),
    (f"{ALL} --expand --alpha nan", "--alpha must be at least 0, got nan"),
    (f"{ALL} --expand 0", "argument --expand: needs a whole number from 1, or nothing, got '0'; put images before it"),
    (f"{ALL} --whiten lost.safetensors", "lost.safetensors is not a file; give the path of a saved whitening"),
    (f"{ALL} --whiten test.npy", "test.npy is damaged, or no whitening ("),
    (f"{ALL} --whiten wide.safetensors", "whitening is of 20 dimensions, but dim is 8; use those of one model"),
    (
        f"{MODEL} my_photos --to milvs://localhost/x",
        "url milvs://localhost/x begins with milvs://; did you mean milvus://?",
    ),
    (f"{MODEL} my_photos --to milvus://127.0.0.1:1/x", "milvus://127.0.0.1:1 does not answer; start the server, or "),
    (f"{MODEL} my_photos --to milvus://127.0.0.1:1", "url has the collection ''; use letters, digits and _"),
    (f"{MODEL} my_photos --to postgresql://me:secret@127.0.0.1:1/x", "postgresql://127.0.0.1:1/x cannot be used: "),
    (f"{MODEL} my_photos --to my_photos", "my_photos holds something else than an index; give another folder"),
    (f"{MODEL} my_photos --to labels.txt", "labels.txt is a file; give a folder"),
    (f"{MODEL} my_photos --to test.npy/a.index", "test.npy/a.index cannot be written: Not a directory; make room"),
    (f"{MODEL} my_photos --to {LONG}", f"{LONG} cannot be written: File name too long; make room there, or give"),
    (f"{MODEL} {LONG} --to a.index", f"{LONG} is not there; give a folder of images, a table, or a data set's root"),
    (f"{MODEL} my_photos --to damaged.index", "damaged.index/journal is damaged ("),
    (f"{MODEL} my_photos --to plain.index --expand 5", "--expand: plain.index was made without it; leave it out, or"),
    (f"{MODEL} my_photos --to plain.index --whiten white.safetensors", "--whiten: plain.index was made without it; "),
    (f"{MODEL} my_photos --to other.index", f"{MODEL} is not the model of other.index; give that one, or another --to"),
]


@pytest.fixture
def more(folder):
    """What some command lines cannot use."""
    (folder / "empty").mkdir()
    for dim, name in ((8, "white"), (20, "wide")):
        fr.Whitening.fit(np.random.default_rng(0).normal(size=(60, dim)), dim=3).save(f"{name}.safetensors")
    Index("plain.index", dim=8, model=fr.Embedder.load(MODEL).fingerprint).close()
    Index("other.index", dim=9).close()
    shutil.copytree("plain.index", "damaged.index")
    Path("damaged.index/journal").write_bytes(b"damaged")
    return folder


@pytest.mark.parametrize(("words", "message"), CASES)
def test_refused_in_one_line(more, run, words, message):
    before = tree(more)
    found = run("index", *words.split())
    (said,) = [line for line in found.err.splitlines() if not line.startswith("read ")]
    assert (found.status, found.out) == (2, "")
    assert said.startswith(f"frontrank index: {message}")
    assert "secret" not in found.err
    assert tree(more) == before


@pytest.mark.parametrize(
    ("library", "url", "extra"),
    [
        ("faiss", "a.index", "search"),
        ("pymilvus", "milvus://h/x", "milvus"),
        ("psycopg", "postgresql://h/x", "pgvector"),
    ],
)
def test_a_library_that_is_missing_is_named(index, monkeypatch, library, url, extra):
    monkeypatch.setitem(sys.modules, library, None)
    found = index("my_photos", "--to", url, "--quiet")
    assert found.status == 2
    assert found.err.endswith(f" needs {library}; pip install 'frontrank[{extra}]'\n")
    assert found.err.count("\n") == 1
    assert not Path("a.index").exists()


def test_a_full_disk_is_one_line_and_what_was_kept_stays(index, folder):
    assert index("my_photos/test", "--to", "photos.index", "--quiet").status == 0
    before = kept("photos.index")
    program = (
        "import resource, sys; from frontrank.cli import main; size = int(sys.argv[1]); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)); sys.exit(main(sys.argv[2:]))"
    )
    size = max(file.stat().st_size for file in Path("photos.index").iterdir()) + 100
    words = ["index", MODEL, "my_photos/train", "--to", "photos.index", "--workers", "0", "--quiet"]
    found = subprocess.run([sys.executable, "-c", program, str(size), *words], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("frontrank index: photos.index cannot be written: File too large; make room")
    assert found.stderr.count("\n") == 1
    after = kept("photos.index")
    assert same(before, after)
