"""`frontrank search`: a table, JSON and a contact sheet of what the index finds; what is refused before."""

import json
import os
import shlex
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import frontrank as fr
from frontrank.cli import _parser, searching
from frontrank.cli import search as command
from frontrank.data.images import read_image
from frontrank.errors import InputError
from frontrank.picture_index import index_images, picture_embedder
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.cli.images import EACH, TEST, picture, small_model, tree
from tests.gallery.samples import chunk, png

QUERY = "my_photos/test/cup/0.png"
SOME = len(TEST) * EACH


@pytest.fixture(scope="module")
def indexed(made, tmp_path_factory):
    """An index of the test photos of `made`, with a year for each; its model is in `made`."""
    where = tmp_path_factory.mktemp("indexed") / "photos.index"
    table = fr.data.read_folder(made / "my_photos" / "test")
    table.extra["year"] = np.arange(len(table)) + 2000
    model = fr.Embedder.load(made / "runs" / "first" / "model")
    with Index(where, dim=8, model=model.fingerprint) as index:
        index_images(model, [table], index, workers=0, show=False)
        index.note(model=str(made / "runs" / "first" / "model"))
    return where


@pytest.fixture
def here(folder, indexed):
    shutil.copytree(indexed, "photos.index")
    return folder


@pytest.fixture
def search(here, run):
    """A function that searches photos.index with these words; gives what `run` gives."""
    return lambda *words: run("search", "photos.index", *words, "--device", "cpu")


@pytest.fixture
def found(search):
    """A function that gives the results of a search for one query."""

    def results(*words):
        answered = search(*words, "--json")
        assert (answered.status, answered.err) == (0, "")
        (answer,) = json.loads(answered.out)
        return answer["results"]

    return results


# Help


def examples():
    return [shlex.split(line) for line in command.EPILOG.split("examples:\n")[1].splitlines()]


def test_help(run):
    shown = run("search", "--help")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.endswith(command.EPILOG)
    assert max(map(len, shown.out.splitlines())) <= 84


@pytest.mark.parametrize("words", examples(), ids=" ".join)
def test_examples_of_the_help(here, run, words):
    """Those of the folder run; the one of a server parses."""
    before, *words = words
    assert before == "frontrank"
    words = words[: words.index(">")] if ">" in words else words
    if "milvus" in words[1]:
        parser, commands = _parser()
        command.add_arguments(commands["search"])
        assert commands["search"].read(parser, words).no_expand
        return
    shutil.copy(QUERY, "query.jpg")
    words = [word.replace("queries/*.jpg", "query.jpg").replace("id:my_photos/cat", "id:test/cup") for word in words]
    words = [word.replace("1.jpg", "1.png").replace("label=cat", "label=cup") for word in words]
    shown = run(*words)
    assert shown.status == 0, shown.err
    assert "test/cup/" in shown.out
    assert Path("found.png").exists() == ("--sheet" in words)


# What is printed


def test_a_table_of_what_is_nearest(search, here):
    shown = search(QUERY, "-k", "3")
    assert (shown.status, shown.err) == (0, "")
    header, *rows = [line.split(maxsplit=3) for line in shown.out.splitlines()]
    assert header == ["score", "label", "id"]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert rows[0] == ["1", "1.0000", "cup", "test/cup/0.png"]
    with Index.load("photos.index") as index:
        vector = picture_embedder(fr.Embedder.load("runs/first/model"))(read_image(QUERY))
        (hits,) = index.search(vector[None], 3)
    assert [row[3] for row in rows] == list(hits.ids)
    assert [float(row[1]) for row in rows] == pytest.approx(hits.scores.tolist(), abs=1e-4)
    assert len(search(QUERY).out.splitlines()) == 11  # ten are found unless told otherwise
    assert len(search(QUERY, "-k", "1000").out.splitlines()) == 1 + SOME


def test_labels_say_what_is_right(search, found):
    shown = search(QUERY, "--label", "cup", "-k", str(SOME)).out.splitlines()
    assert shown[0].split() == ["score", "right", "label", "id"]
    assert all(("yes" in line) == ("test/cup/" in line) and ("no " in line) != ("yes" in line) for line in shown[1:])
    assert {each["label"]: each["right"] for each in found(QUERY, "--label", "cup", "-k", str(SOME))} == {
        "cup": True,
        "a,b": False,
        "plate": False,
    }
    assert {each["right"] for each in found(QUERY)} == {None}


def test_an_image_of_the_index_as_the_query(search, found, here):
    shown = search("id:test/cup/0.png", "-k", "3")
    assert "test/cup/0.png" not in shown.out  # it would find itself
    assert len(shown.out.splitlines()) == 4
    assert "right" in shown.out  # its label is known
    asked = found("id:test/cup/0.png", "-k", str(SOME))
    assert len(asked) == SOME - 1
    others = [each for each in found(QUERY, "-k", str(SOME)) if each["id"] != "test/cup/0.png"]
    assert [each["id"] for each in asked] == [each["id"] for each in others]
    assert [each["score"] for each in asked] == pytest.approx([each["score"] for each in others], abs=1e-5)
    assert len(found("id:test/cup/0.png", "-k", "2", "--filter", "label=plate")) == 2
    shutil.rmtree("runs")  # no model is needed for that
    assert search("id:test/cup/0.png").status == 0


def test_filters(found, search):
    everything = ("-k", str(SOME))
    assert {each["label"] for each in found(QUERY, *everything, "--filter", "label=plate|a,b")} == {"plate", "a,b"}
    assert {each["metadata"]["year"] for each in found(QUERY, *everything, "--filter", "year>=2010")} == {2010, 2011}
    both = found(QUERY, *everything, "--filter", "label=cup", "--filter", "year!=2004")
    assert len(both) == len(found(QUERY, *everything, "--filter", "label=cup")) - 1
    assert search(QUERY, "--filter", "label=spoon").out == "nothing matches\n"
    assert found(QUERY, "--filter", "label=spoon") == []


def test_several_queries_and_json(search, here):
    shown = search(QUERY, "id:test/plate/1.png", "-k", "2").out
    first, second = shown.split("\n\n")
    assert first.splitlines()[0] == QUERY
    assert second.splitlines()[0] == "id:test/plate/1.png"
    answers = json.loads(search(QUERY, "id:test/plate/1.png", "-k", "2", "--json").out)
    assert [answer["query"] for answer in answers] == [QUERY, "id:test/plate/1.png"]
    assert [answer["label"] for answer in answers] == [None, "plate"]
    best = answers[0]["results"][0]
    assert best.keys() == {"place", "score", "id", "path", "label", "category", "metadata", "right"}
    assert (best["place"], best["id"], best["label"], best["metadata"]["year"]) == (1, "test/cup/0.png", "cup", 2004)
    assert best["path"].endswith("my_photos/test/cup/0.png")


def test_a_query_whose_name_is_no_text(search, here):
    name = os.fsdecode(b"\xff \xe6\xbc\xa2.png")
    shutil.copy(QUERY, name)
    shown = search(name, "-k", "1", "--json")
    assert shown.status == 0, shown.err
    assert shown.out.isascii()
    assert [answer["query"] for answer in json.loads(shown.out)] == [name]


def test_expansion_as_stored_on_and_off(here, run):
    model = fr.Embedder.load("runs/first/model")
    table = fr.data.read_folder("my_photos/test")
    with Index("e.index", dim=8, model=model.fingerprint, expansion=(5, 1.0)) as index:
        index_images(model, [table], index, workers=0, show=False)
        index.note(model=str(here / "runs/first/model"))

    def scores(url, *words):
        shown = run("search", url, QUERY, "--json", *words)
        assert shown.status == 0, shown.err
        return [each["score"] for each in json.loads(shown.out)[0]["results"]]

    plain, stored = scores("photos.index"), scores("e.index")
    assert stored != plain
    assert scores("e.index", "--no-expand") == pytest.approx(plain, abs=1e-5)
    assert scores("photos.index", "--expand", "5", "--alpha", "1") == pytest.approx(stored, abs=1e-5)
    assert scores("photos.index", "--expand") not in (plain, stored)  # 10, 2


def test_text_of_an_index_moves_no_cursor_and_stays_in_its_column(tmp_path, run):
    with Index(tmp_path / "t.index", dim=2) as index:
        labels = ["漢字", "plain", "\x1b[31mred\nline", "x" * 80]
        index.add(
            np.eye(2)[[0, 0, 0, 1]] + 0.1, [Item(f"{i}{'é' * 60}", label=label) for i, label in enumerate(labels)]
        )
    shown = run("search", tmp_path / "t.index", f"id:0{'é' * 60}")
    assert shown.status == 0
    assert "\x1b" not in shown.out
    rows = shown.out.splitlines()[1:]
    assert len(rows) == 3
    assert all("é" * 60 in row for row in rows)  # an id can be copied as it is
    assert f" {'x' * 45}...  3é" in rows[-1]
    wide = searching._table(
        searching.Answer(
            "q", None, None, tuple((Item(str(i), label=label), 1.0) for i, label in enumerate(labels[:2]))
        ),
        alone=True,
    )
    assert wide == "   score   label  id\n1  1.0000  漢字   0\n2  1.0000  plain  1"


# The sheet


def test_a_sheet_of_pictures(search, here):
    shown = search(QUERY, "id:test/plate/1.png", "-k", "3", "--sheet", "out.png")
    assert (shown.status, shown.err) == (0, "wrote out.png\n")
    with Image.open("out.png") as sheet:
        assert (sheet.format, sheet.size) == ("PNG", (2 * 14 + 4 * 150, 14 + 2 * 182 + 14))
    again = search(QUERY, "--sheet", "out.png")
    assert (again.status, again.out) == (2, "")
    assert again.err == (
        "frontrank search: --sheet: out.png exists already; choose another name, or add --force to replace it\n"
    )
    assert search(QUERY, "-k", "3", "--sheet", "out.png", "--force", "--json").err == ""
    with Image.open("out.png") as sheet:
        assert sheet.height == 14 + 182
    assert not list(here.glob(".out*"))


def test_pictures_that_are_gone_are_left_blank(search, here, indexed, made, monkeypatch):
    gone = []
    own = searching.read_image

    def read(file, **settings):
        if "plate" in str(file):
            gone.append(file)
            raise InputError("is not there")
        return own(file, **settings)

    monkeypatch.setattr(searching, "read_image", read)
    assert search(QUERY, "-k", str(SOME), "--sheet", "out.png").status == 0
    assert len(gone) == EACH


def test_a_full_disk_leaves_no_half_of_a_sheet(search, here, monkeypatch):
    def full(*given, **settings):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    shown = search(QUERY, "--sheet", "out.png")
    assert shown.status == 2
    assert shown.err.startswith("frontrank search: out.png cannot be written")
    assert shown.err.count("\n") == 1
    assert "test/cup/0.png" in shown.out  # what was found is not lost with it
    assert not [path for path in here.iterdir() if "out.png" in path.name]


def test_a_sheet_whose_name_is_too_long(search):
    shown = search(QUERY, "--sheet", f"{LONG}.png")
    assert (shown.status, shown.err.count("\n")) == (2, 1)
    assert shown.err.startswith(f"frontrank search: {LONG}.png cannot be written: File name too long; choose")


# Refused

LONG = "x" * 300
CASES = [
    ("photos.index", "the following arguments are required: QUERY; see frontrank search --help"),
    ("photos.indx Q", "photos.indx is not there; did you mean 'photos.index'?"),
    ("my_photos Q", "my_photos holds no index; make one by frontrank index"),
    ("labels.txt Q", "labels.txt is a file; make it first"),
    (f"{LONG} Q", f"{LONG} is not there; make it first"),
    (f"photos.index {LONG}", f"{LONG} is not there; check its name"),
    (f"photos.index Q --sheet {LONG}/a.png", f"--sheet: the folder {LONG} is not there; make it first"),
    ("damaged.index Q", "damaged.index/journal is damaged ("),
    ("cut.index Q", "cut.index/vectors.000001 is damaged (it ends before row "),
    ("milvis://localhost/x Q", "url milvis://localhost/x begins with milvis://; did you mean milvus://?"),
    ("milvus://127.0.0.1:1/x Q", "milvus://127.0.0.1:1 does not answer; start the server, or correct host and port"),
    ("postgresql://me:secret@127.0.0.1:1/x Q", "postgresql://127.0.0.1:1/x cannot be used: connection"),
    ("photos.index nowhere.jpg", "nowhere.jpg is not there; check its name, or write id:nowhere.jpg for an image of"),
    ("photos.index Q nowhere.jpg", "nowhere.jpg is not there; check its name, or write id:nowhere.jpg"),
    ("photos.index id:nowhere", "id:nowhere: photos.index has no item of this id; look at the ids of a search"),
    ("photos.index id:", "id '' has 0 characters; give 1 to 512"),
    ("photos.index labels.txt", "labels.txt is no image, not JPEG, PNG, WebP, BMP, GIF or TIFF; replace it, or"),
    ("photos.index drawing.svg", "drawing.svg is an SVG drawing, not JPEG, PNG, WebP, BMP, GIF or TIFF"),
    ("photos.index bomb.png", "bomb.png has more pixels than Pillow's limit of "),
    ("photos.index empty.jpg", "empty.jpg is empty (0 bytes)"),
    ("photos.index my_photos", "my_photos is a folder, not an image"),
    ("photos.index Q -k 0", "-k must be at least 1, got 0"),
    ("photos.index Q -k -1", "-k must be at least 1, got -1"),
    ("photos.index Q -k ten", "argument -k: invalid int value: 'ten'; see"),
    ("photos.index Q --filter label~cup", "filter 'label~cup' cannot be read; write it like label=cat, label=cat|dog"),
    ("photos.index Q --filter year>old", "filter year>old must compare with one number; use = or != for text"),
    ("photos.index Q --expand 0", "argument --expand: needs a whole number from 1, or nothing, got '0'"),
    ("photos.index Q --alpha 1", "--alpha is of --expand; add that, or leave it out"),
    ("photos.index Q --expand 3 --alpha -1", "--alpha must be at least 0, got -1.0"),
    ("photos.index Q --expand 3 --no-expand", "--expand and --no-expand exclude each other; leave one out"),
    ("photos.index Q --model second", "second is not the model that photos.index was made with; give that one by"),
    ("photos.index Q --model my/lost/one", "my/lost/one does not exist"),
    ("photos.index Q --device gpu", "device 'gpu' cannot be used ("),
    ("photos.index Q --force", "--force is of --sheet; add that, or leave it out"),
    ("photos.index Q --sheet out.jpg", "--sheet out.jpg must end in .png; choose such a name"),
    ("photos.index Q --sheet bomb.png", "--sheet: bomb.png exists already; choose another name, or add --force"),
    ("photos.index Q --sheet folder.png --force", "--sheet folder.png is a folder; choose another name"),
    ("photos.index Q --sheet no/out.png", "--sheet: the folder no is not there; make it first"),
    (
        "photos.index Q -k 9000 --sheet out.png",
        "--sheet could have 900 lines, 200 at most; give fewer queries, or a smaller -k",
    ),
]


@pytest.fixture
def more(here):
    """What some command lines cannot use."""
    for name in ("damaged", "cut"):
        shutil.copytree("photos.index", f"{name}.index")
    Path("damaged.index/journal").write_bytes(b"damaged")
    vectors = Path("cut.index/vectors.000001")
    vectors.write_bytes(vectors.read_bytes()[:-5])
    Path("drawing.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    Path("bomb.png").write_bytes(png(60_000, 60_000, chunk(b"IDAT", zlib.compress(b""))))
    Path("empty.jpg").write_bytes(b"")
    Path("folder.png").mkdir()
    small_model(here / "second", seed=1)
    return here


@pytest.mark.parametrize(("words", "message"), CASES)
def test_refused_in_one_line(more, run, words, message):
    before = tree(more)
    shown = run("search", *(QUERY if word == "Q" else word for word in words.split()))
    assert (shown.status, shown.out) == (2, "")
    assert shown.err.startswith(f"frontrank search: {message}")
    assert shown.err.count("\n") == 1
    assert "secret" not in shown.err
    assert tree(more) == before


def test_a_folder_that_cannot_be_written_to(search, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "--sheet: nothing can be written to .; choose another folder" in search(QUERY, "--sheet", "out.png").err


def test_a_model_that_is_gone(here, run):
    with Index("photos.index") as index:
        index.note(model=str(here / "gone"))
    shown = run("search", "photos.index", QUERY)
    assert (shown.status, shown.err.count("\n")) == (2, 1)
    assert shown.err.startswith(
        f"frontrank search: the model of photos.index is no longer at {here}/gone; give --model"
    )
    assert run("search", "photos.index", QUERY, "--model", "runs/first/model").status == 0


def test_without_faiss(search, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    shown = search(QUERY)
    assert shown.status == 2
    assert shown.err.endswith("needs faiss; pip install 'frontrank[search]'\n")


def test_cheap_checks_come_before_the_index_is_read(here, run, monkeypatch):
    def load(*given, **settings):
        raise AssertionError("read")

    monkeypatch.setattr(Index, "load", load)
    picture(here / "out.png", 1)
    for words in ("nowhere.jpg", f"{QUERY} --filter label~cup", f"{QUERY} --sheet out.png", f"{QUERY} -k 0"):
        assert run("search", "photos.index", *words.split()).status == 2
