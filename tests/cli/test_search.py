"""`frontrank search`: a table, JSON and a contact sheet of the hits; what is refused before."""

import json
import shutil
import zlib

import numpy as np
import pytest
from PIL import Image

import frontrank as fr
from frontrank.cli import search as command
from frontrank.picture_index import index_images, picture_embedder
from frontrank.pictures.decode import read_image
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.cli.images import EACH, TEST, small_model
from tests.gallery.samples import chunk, png

QUERY = "my_photos/test/cup/0.png"
SOME = len(TEST) * EACH


@pytest.fixture(scope="module")
def indexed(originals, tmp_path_factory):
    """An index of the test photos of `originals`, with a year for each; its model is in `originals`."""
    where = tmp_path_factory.mktemp("indexed") / "photos.index"
    table = fr.data.read_folder(originals / "my_photos" / "test")
    table.extra["year"] = np.arange(len(table)) + 2000
    model = fr.Embedder.load(originals / "runs" / "first" / "model")
    with Index(where, dim=8, model=model.fingerprint) as index:
        index_images(model, [table], index, workers=0, show=False)
        index.note(model=str(originals / "runs" / "first" / "model"))
    return where


@pytest.fixture
def here(folder, indexed):
    shutil.copytree(indexed, "photos.index")
    return folder


@pytest.fixture
def search(here, run):
    """A function that searches photos.index with these words; returns what `run` returns."""
    return lambda *words, **ends: run("search", "photos.index", *words, "--device", "cpu", **ends)


@pytest.fixture
def results(search):
    """A function that returns the results of a search for one query."""

    def of_one(*words):
        answered = search(*words, "--json")
        assert (answered.status, answered.err) == (0, "")
        (answer,) = json.loads(answered.out)
        return answer["results"]

    return of_one


# What is printed


def test_a_table_of_what_is_nearest(search, here):
    result = search(QUERY, "-k", "3")
    assert (result.status, result.err) == (0, "")
    header, *rows = [line.split(maxsplit=3) for line in result.out.splitlines()]
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


def test_labels_say_what_is_right(search, results):
    lines = search(QUERY, "--label", "cup", "-k", str(SOME)).out.splitlines()
    assert lines[0].split() == ["score", "right", "label", "id"]
    assert all(("yes" in line) == ("test/cup/" in line) and ("no " in line) != ("yes" in line) for line in lines[1:])
    right = {each["label"]: each["right"] for each in results(QUERY, "--label", "cup", "-k", str(SOME))}
    assert right == {"cup": True, "a,b": False, "plate": False}
    assert {each["right"] for each in results(QUERY)} == {None}


def test_an_image_of_the_index_as_the_query(search, results, here):
    result = search("id:test/cup/0.png", "-k", "3")
    assert "test/cup/0.png" not in result.out  # it would find itself
    assert len(result.out.splitlines()) == 4
    assert "right" in result.out  # its label is known
    asked = results("id:test/cup/0.png", "-k", str(SOME))
    assert len(asked) == SOME - 1
    others = [each for each in results(QUERY, "-k", str(SOME)) if each["id"] != "test/cup/0.png"]
    assert [each["id"] for each in asked] == [each["id"] for each in others]
    assert [each["score"] for each in asked] == pytest.approx([each["score"] for each in others], abs=1e-5)
    assert len(results("id:test/cup/0.png", "-k", "2", "--filter", "label=plate")) == 2
    shutil.rmtree("runs")  # no model is needed for that
    assert search("id:test/cup/0.png").status == 0


def test_filters(results, search):
    everything = ("-k", str(SOME))
    assert {each["label"] for each in results(QUERY, *everything, "--filter", "label=plate|a,b")} == {"plate", "a,b"}
    assert {each["metadata"]["year"] for each in results(QUERY, *everything, "--filter", "year>=2010")} == {2010, 2011}
    both = results(QUERY, *everything, "--filter", "label=cup", "--filter", "year!=2004")
    assert len(both) == len(results(QUERY, *everything, "--filter", "label=cup")) - 1
    assert search(QUERY, "--filter", "label=spoon").out == "nothing matches\n"
    assert results(QUERY, "--filter", "label=spoon") == []
    for unknown, near in (("yaer>=2010", "year"), ("colour!=red", "label")):
        result = search(QUERY, "--filter", unknown)
        assert (result.status, near in result.err) == (2, True)


def test_several_queries_and_json(search, here):
    result = search(QUERY, "id:test/plate/1.png", "-k", "2").out
    first, second = result.split("\n\n")
    assert first.splitlines()[0] == QUERY
    assert second.splitlines()[0] == "id:test/plate/1.png"
    answers = json.loads(search(QUERY, "id:test/plate/1.png", "-k", "2", "--json").out)
    assert [answer["query"] for answer in answers] == [QUERY, "id:test/plate/1.png"]
    assert [answer["label"] for answer in answers] == [None, "plate"]
    best = answers[0]["results"][0]
    assert best.keys() == {"place", "score", "id", "path", "label", "category", "metadata", "right"}
    assert (best["place"], best["id"], best["label"], best["metadata"]["year"]) == (1, "test/cup/0.png", "cup", 2004)
    assert best["path"].endswith("my_photos/test/cup/0.png")


def test_expansion_as_stored_on_and_off(here, run):
    model = fr.Embedder.load("runs/first/model")
    table = fr.data.read_folder("my_photos/test")
    with Index("e.index", dim=8, model=model.fingerprint, expansion=(5, 1.0)) as index:
        index_images(model, [table], index, workers=0, show=False)
        index.note(model=str(here / "runs/first/model"))

    def scores(url, *words):
        result = run("search", url, QUERY, "--json", *words, status=0)
        return [each["score"] for each in json.loads(result.out)[0]["results"]]

    plain, stored = scores("photos.index"), scores("e.index")
    assert stored != plain
    assert scores("e.index", "--no-expand") == pytest.approx(plain, abs=1e-5)
    assert scores("photos.index", "--expand", "5", "--alpha", "1") == pytest.approx(stored, abs=1e-5)
    assert scores("photos.index", "--expand") not in (plain, stored)  # 10, 2


def test_text_of_an_index_moves_no_cursor_and_stays_in_its_column(tmp_path, run):
    with Index(tmp_path / "t.index", dim=2) as index:
        labels = ["漢字", "plain", "\x1b[31mred\nline", "x" * 80]
        items = [Item(f"{i}{'é' * 60}", label=label) for i, label in enumerate(labels)]
        index.add(np.eye(2)[[0, 0, 0, 1]] + 0.1, items)
    result = run("search", tmp_path / "t.index", f"id:0{'é' * 60}", status=0)
    assert "\x1b" not in result.out
    rows = result.out.splitlines()[1:]
    assert len(rows) == 3
    assert all("é" * 60 in row for row in rows)  # an id can be copied as it is
    assert f" {'x' * 45}...  3é" in rows[-1]
    hits = tuple((Item(str(i), label=label), 1.0) for i, label in enumerate(labels[:2]))
    wide = command.format_answer(command.Answer("q", None, None, hits), alone=True)
    assert wide == "   score   label  id\n1  1.0000  漢字   0\n2  1.0000  plain  1"


# The sheet


def test_a_sheet_of_pictures(search, here):
    result = search(QUERY, "id:test/plate/1.png", "-k", "3", "--sheet", "out.png")
    assert (result.status, result.err) == (0, "wrote out.png\n")
    with Image.open("out.png") as sheet:
        assert (sheet.format, sheet.size) == ("PNG", (2 * 14 + 4 * 150, 14 + 2 * 182 + 14))
    again = search(QUERY, "--sheet", "out.png")
    assert (again.status, again.out) == (2, "")
    assert "--sheet out.png" in again.err
    assert search(QUERY, "-k", "3", "--sheet", "out.png", "--force", "--json").err == ""
    with Image.open("out.png") as sheet:
        assert sheet.height == 14 + 182
    assert not list(here.glob(".out*"))


# Refusals

LONG = "x" * 300
REFUSALS = [
    ("photos.index", "QUERY"),
    ("photos.indx Q", "photos.index?"),
    ("damaged.index Q", "damaged.index/journal"),
    ("postgresql://me:secret@127.0.0.1:1/x Q", "postgresql://"),
    ("photos.index Q nowhere.jpg", "nowhere.jpg"),
    (f"photos.index {LONG}", LONG),
    ("photos.index id:nowhere", "id:nowhere"),
    ("photos.index bomb.png", "bomb.png"),
    ("photos.index my_photos", "my_photos"),
    ("photos.index Q --filter label~cup", "label~cup"),
    ("photos.index Q --expand 3 --no-expand", "--no-expand"),
    ("photos.index Q --model second", "second"),
    ("photos.index Q --force", "--force"),
    ("photos.index Q --sheet out.jpg", "--sheet out.jpg"),
    ("photos.index Q -k 9000 --sheet out.png", "--sheet"),
]


@pytest.fixture(scope="module")
def more(copied, indexed):
    """A folder with what some command lines cannot use."""
    for name in ("photos", "damaged"):
        shutil.copytree(indexed, copied / f"{name}.index")
    (copied / "damaged.index/journal").write_bytes(b"damaged")
    (copied / "bomb.png").write_bytes(png(60_000, 60_000, chunk(b"IDAT", zlib.compress(b""))))
    small_model(copied / "second", seed=1)
    return copied


@pytest.mark.parametrize(("words", "name"), REFUSALS)
def test_refusals(more, refused, monkeypatch, words, name):
    monkeypatch.chdir(more)
    line = refused(["search", *(QUERY if word == "Q" else word for word in words.split())], name)
    assert "secret" not in line


def test_a_model_that_is_gone(here, run, refused):
    with Index("photos.index") as index:
        index.note(model=str(here / "gone"))
    assert "--model" in refused(["search", "photos.index", QUERY], f"{here}/gone")
    assert run("search", "photos.index", QUERY, "--model", "runs/first/model").status == 0
