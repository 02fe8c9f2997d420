"""`frontrank evaluate MODEL --data`: the images are embedded, and then all is as with files of embeddings."""

import json
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank.cli import embedding
from frontrank.data.ground_truth import read_ground_truth
from frontrank.errors import FrontrankWarning
from frontrank.evaluation import protocols
from tests.cli.conftest import same
from tests.cli.images import EACH, TEST, TINY, TRAIN, picture, published, small_model, tree

MODEL = "runs/first/model"
WORKERS = ("--workers", "0")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Nothing is left behind where temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


@pytest.fixture
def data(folder, report):
    """A function that gives the report of the model on some images."""

    def of(path, *words):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FrontrankWarning)
            return report(MODEL, "--data", path, *WORKERS, *words)

    return of


def embedded(table):
    return fr.embed_table(fr.Embedder.load(MODEL), table, workers=0)


def read(name, root):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrontrankWarning)
        return fr.data.read_published(name, root, allow_partial=True).of("test")


def named(report):
    return (report.name, report.queries, report.gallery_size)


# What is evaluated


def test_images_search_each_other(data, folder, run):
    table = fr.data.read_folder("my_photos").of("test")
    found = data("my_photos")
    assert same(found, fr.evaluate(embedded(table), table.labels, metrics=tuple(found.metrics)))
    assert named(found) == ("first", len(TEST) * EACH, len(TEST) * EACH)
    again = run("evaluate", MODEL, "--data", "my_photos", *WORKERS)
    assert again.err == f"read my_photos: {len(TEST) * EACH} images of test\n"
    assert again.out.startswith("first: ") or "first" in again.out.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "split"), [("--split train", "train"), ("--split all", None), ("--split test --batch-size 5", "test")]
)
def test_splits(data, words, split):
    table = fr.data.read_folder("my_photos").of(split)
    found = data("my_photos", *words.split(), "--metrics", "R@1,mAP")
    assert found.metrics == pytest.approx(
        fr.evaluate(embedded(table), table.labels, metrics=("R@1", "mAP")).metrics, abs=1e-6
    )
    assert found.queries == len(table)


def test_queries_and_gallery_of_a_table(data):
    table = fr.data.read_folder("my_photos").of("test")
    roles = np.where(np.arange(len(table)) % 3 == 0, "query", "gallery")
    table = replace(table, roles=roles)
    table.save("sides.csv")
    queries, gallery = table.of(role="query"), table.of(role="gallery")
    expected = fr.evaluate(
        embedded(queries),
        queries.labels,
        gallery=embedded(gallery),
        gallery_labels=gallery.labels,
        metrics=("mAP", "R@1"),
    )
    found = data("sides.csv", "--metrics", "mAP,R@1", "--name", "mine")
    assert same(found, expected)
    assert named(found) == ("mine", 4, 8)


def test_in_shop(data, folder):
    published("in-shop", folder / "shop")
    table = read("in-shop", "shop")
    queries, gallery = table.of(role="query"), table.of(role="gallery")
    found = data("shop", "--allow-partial")
    assert same(found, protocols.in_shop(embedded(queries), queries.labels, embedded(gallery), gallery.labels))
    assert named(found) == ("first", 1, 2)
    assert "not comparable with published figures" in found.notes[0]


def test_sop(data, folder):
    published("sop", folder / "products")
    table = read("sop", "products")
    found = data("products", "--allow-partial")
    assert list(found.metrics) == ["R@1", "R@10", "R@100", "R@1000", "mAP", "mAP@R", "R-precision"]
    assert same(found, protocols.sop(embedded(table), table.labels))


@pytest.mark.parametrize(("size", "rows"), [("small", 2), ("medium", 3)])
def test_vehicleid(data, folder, size, rows):
    published("vehicleid", folder / "cars")
    table = read("vehicleid", "cars")
    assert len(table) == 5  # of the three lists together
    table = table.rows(table.extra[size].astype(bool))
    found = data("cars", "--allow-partial", "--protocol", f"vehicleid-{size}")
    assert found.queries == rows
    assert same(found, protocols.vehicleid(embedded(table), table.labels, size))


def test_vehicleid_needs_a_size(folder, run):
    published("vehicleid", folder / "cars")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrontrankWarning)
        found = run("evaluate", MODEL, "--data", "cars", "--allow-partial", *WORKERS)
        trained = run("evaluate", MODEL, "--data", "cars", "--allow-partial", "--split", "train", "--protocol",
                      "vehicleid-small")  # fmt: skip
    assert found.status == 2
    assert found.err.splitlines()[-1] == (
        "frontrank evaluate: VehicleID has three test lists; add --protocol vehicleid-small, -medium or -large"
    )
    assert trained.err.splitlines()[-1].startswith("frontrank evaluate: --data cars has no images that search others")


def test_templates_of_ijb_c(data, folder):
    published("ijb-c", folder / "faces")
    table = read("ijb-c", "faces")
    found = data("faces", "--allow-partial")
    assert same(found, protocols.ijb_c(embedded(table), table.labels, table.extra["template"]))
    assert found.queries == 5  # three images and two videos, of three frames in six rows


@pytest.mark.parametrize("words", ["", "--protocol revisited", "--setup hard", "--setup easy --expand 2"])
def test_revisited(data, folder, words):
    published("roxford5k", folder / "oxford", side=200)
    table = read("roxford5k", "oxford")
    queries, gallery = embedded(table.of(role="query")), embedded(table.of(role="gallery"))
    setup = words.split()[1] if words.startswith("--setup") else "medium"
    if "expand" in words:
        queries = fr.expand_queries(queries, gallery, 2, alpha=2.0)
    truth = read_ground_truth("oxford/gnd_roxford5k.pkl").lists
    found = data("oxford", "--allow-partial", *words.split())
    assert found.metrics == pytest.approx(fr.evaluate_revisited(queries, gallery, truth, setup).metrics)
    assert (found.queries, found.gallery_size) == (2, 3)


def test_revisited_with_a_file_of_its_own(data, folder):
    published("roxford5k", folder / "oxford", side=200)
    kept = data("oxford", "--allow-partial")
    (folder / "oxford" / "gnd_roxford5k.pkl").rename("truth.pkl")
    (folder / "gnd_roxford5k.pkl").write_bytes(Path("truth.pkl").read_bytes())
    Path("truth.pkl").rename("oxford/gnd_roxford5k.pkl")
    assert same(data("oxford", "--allow-partial", "--ground-truth", "gnd_roxford5k.pkl"), kept)


@pytest.mark.parametrize(("image", "side"), [("all_souls_000013", "gallery"), ("b", "gallery"), ("q", "query")])
def test_revisited_with_an_image_missing(folder, run, image, side):
    """Its ground truth counts images: with one missing every later one would be taken for another."""
    published("roxford5k", folder / "oxford", side=200)
    (folder / "oxford" / "jpg" / f"{image}.jpg").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrontrankWarning)
        found = run("evaluate", MODEL, "--data", "oxford", "--allow-partial", *WORKERS)
    assert found.status == 2
    assert found.err.splitlines()[-1] == (
        f"frontrank evaluate: ROxford5k lacks some {side} images, and its protocol needs all; unpack it again"
    )


# Reports


def test_json_and_compare(data, folder, run):
    small_model(folder / "runs" / "second" / "model", seed=1)
    old = data("my_photos", "--metrics", "mAP")
    Path("report-of-this.json").rename("first.json")
    words = ["--data", "my_photos", *WORKERS, "--metrics", "mAP", "--quiet"]
    found = run("evaluate", "runs/second/model", *words, "--json", "new.json", "--compare", "first.json")
    assert (found.status, found.err) == (0, "")
    assert fr.compare(old, fr.Report.load("new.json"), names=("first", "second")).table("text") in found.out
    assert json.loads(Path("new.json").read_text())["name"] == "second"
    same_name = run("evaluate", MODEL, *words, "--compare", "first.json")
    assert same_name.status == 0
    assert "first (new) against first.json on the same 12 queries\n" in same_name.out
    assert run("embed", "runs/second/model", "--data", "my_photos", "--out", "second.npz", *WORKERS).status == 0
    files = run("evaluate", MODEL, *words, "--compare", "second.npz", "--name", "mine")
    assert fr.compare(fr.Report.load("new.json"), old, names=("second", "mine")).table("text") in files.out


def test_a_report_of_other_queries(data, folder, run):
    data("my_photos")
    found = run(
        "evaluate", MODEL, "--data", "my_photos", "--split", "all", *WORKERS, "--compare", "report-of-this.json"
    )
    rows = (len(TRAIN) + len(TEST)) * EACH
    assert found.status == 2
    assert found.err.splitlines()[-1] == (
        "frontrank evaluate: --compare: report-of-this.json is of 12 queries, but embeddings of my_photos has "
        f"{rows} rows; both must be of the same queries in the same order"
    )


def test_whitening_and_reranking(data, folder):
    table = fr.data.read_folder("my_photos")
    train, test = embedded(table.of("train")), embedded(table.of("test"))
    np.save("train-of-model.npy", train)
    found = data("my_photos", "--whiten", "train-of-model.npy", "--dim", "4", "--metrics", "mAP")
    whitened = fr.Whitening.fit(train, dim=4).apply(test)
    assert found.metrics == pytest.approx(
        fr.evaluate(whitened, table.of("test").labels, metrics="mAP").metrics, rel=1e-4
    )
    assert data("my_photos", "--rerank", "--metrics", "mAP").settings["re-ranking"]


# Refused, before anything is embedded

MODEL_WORDS = f"{MODEL} --data my_photos"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (MODEL, f"{MODEL} is a folder, as of a model, which needs --data; add it, or name a file"),
        ("test.npz --data my_photos", "--data goes with a model, and test.npz is no folder; leave it out"),
        ("test.npz --split test", "--split goes with a model, and test.npz is no folder; leave it out"),
        ("test.npz --batch-size 3", "--batch-size goes with a model"),
        ("test.npz --workers 0", "--workers goes with a model"),
        ("test.npz --layout sop", "--layout goes with a model"),
        ("test.npz --allow-partial", "--allow-partial goes with a model"),
        ("nowhere --data my_photos", "--data goes with a model, and nowhere is no folder; leave it out"),
        ("my_photos --data my_photos", "my_photos has no config.json; give the folder of a saved model"),
        (f"{MODEL} --data nowhere", "--data nowhere is not there"),
        (f"{MODEL_WORDS} --split tset", "--split 'tset' is not known; there are train, validation, test and all"),
        (f"{MODEL_WORDS} --split validation", "--data my_photos has no images of the split validation; leave out"),
        (f"{MODEL_WORDS} --labels labels.txt", "--labels does not go with --data, which has its own; leave it out"),
        (f"{MODEL_WORDS} --gallery g.npy", "--gallery does not go with --data"),
        (f"{MODEL_WORDS} --gallery-labels g.npy", "--gallery-labels does not go with --data"),
        (f"{MODEL_WORDS} --gallery-key a", "--gallery-key does not go with --data"),
        (f"{MODEL_WORDS} --key a", "--key does not go with --data"),
        (f"{MODEL_WORDS} --distractors g.npy", "--distractors does not go with --data"),
        (f"{MODEL_WORDS} --batch-size 0", "--batch-size must be at least 1, got 0"),
        (f"{MODEL_WORDS} --workers -1", "--workers must be at least 0, got -1"),
        (f"{MODEL_WORDS} --device cuda:9", "device 'cuda:9' cannot be used"),
        (f"{MODEL_WORDS} --device auto", "--device 'auto' cannot be used"),
        (f"{MODEL_WORDS} --json old.json", "--json old.json exists already; choose another name, or add --force"),
        (f"{MODEL_WORDS} --json no/new.json", "--json: the folder no is not there; make it first"),
        (f"{MODEL_WORDS} --force", "--force needs --json; add it, or leave both out"),
        (f"{MODEL_WORDS} --metrics R@x", "R@x"),
        (f"{MODEL_WORDS} --protocol sopp", "--protocol 'sopp' is not known; did you mean"),
        (f"{MODEL_WORDS} --protocol in-shop", "--protocol in-shop needs --gallery; add it"),
        (f"{MODEL_WORDS} --setup hard", "--setup is of the protocol revisited; add --protocol revisited"),
        (f"{MODEL_WORDS} --power 0.5", "--power needs --whiten; add it, or leave both out"),
        (f"{MODEL_WORDS} --whiten train.npy --power 2", "--power must be at least 0 and at most 1, got 2"),
        (f"{MODEL_WORDS} --whiten zzz.npy", "zzz.npy is not there"),
        (f"{MODEL_WORDS} --compare zzz.npz", "zzz.npz is not there"),
        (f"{MODEL_WORDS} --rerank --protocol sop", "--rerank does not go with --protocol"),
        (f"{MODEL_WORDS} --templates template", "--templates is of the protocols vggface2 and ijb-c; add --protocol"),
        (f"{MODEL} --data more.csv", "--data more.csv has no images that search others; give some with another role"),
        (f"{MODEL} --data mixed.csv", "--data mixed.csv has distractors, which only the protocol revisited"),
    ],
)
def test_refused_before_the_work(folder, run, monkeypatch, words, message):
    def work(*_, **__):
        raise AssertionError("worked")

    table = fr.data.read_folder("my_photos").of("test")
    replace(table, roles=np.full(len(table), "distractor")).save("more.csv")
    replace(table, roles=np.where(np.arange(len(table)) < 8, "", "distractor")).save("mixed.csv")
    monkeypatch.setattr(embedding, "embed_table", work)
    before = tree(folder)
    found = run("evaluate", *words.split())
    (said,) = [line for line in found.err.splitlines() if not line.startswith("read ")]
    assert (found.status, found.out) == (2, "")
    assert said.startswith("frontrank evaluate: ")
    assert message in said
    assert tree(folder) == before


def test_a_ground_truth_that_is_not_there(folder, run, monkeypatch):
    """The list was found by its old name, and is gone when it is looked for again."""
    published("roxford5k", folder / "oxford", side=200)
    monkeypatch.setitem(embedding._REVISITED, "roxford5k", "gnd_other.pkl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrontrankWarning)
        found = run("evaluate", MODEL, "--data", "oxford", "--allow-partial", *WORKERS)
    assert found.err.endswith("oxford has no gnd_other.pkl; give it by --ground-truth\n")


def test_a_broken_image_is_named_and_nothing_is_left(folder, run):
    (folder / "my_photos" / "test" / "cup" / "1.png").write_bytes(b"no picture")
    found = run("evaluate", MODEL, "--data", "my_photos", *WORKERS)
    assert (found.status, found.out) == (2, "")
    assert "cup/1.png" in found.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("path", "name"), [("runs/first/model", "first"), ("saved", "saved"), (".", "first"), ("../model", "first")]
)
def test_the_name_of_a_model(folder, monkeypatch, path, name):
    if path.startswith("."):
        monkeypatch.chdir(folder / "runs" / "first" / "model")
    assert embedding._model_name(Path(path)) == name


def test_a_class_of_one_image(data, folder):
    """It is searched, and searches nothing: its query has no relevant image."""
    picture(folder / "my_photos" / "test" / "single" / "1.png", 5)
    assert data("my_photos", "--metrics", "mAP").gallery_size == len(TEST) * EACH + 1


def test_images_that_were_trained_on_are_told_of(folder, run):
    words = ("evaluate", "run/model", "--data", "my_photos", "--workers", "0", "--quiet")
    assert run("train", "--data", "my_photos", *TINY, "--out", "run", "--quiet").status == 0
    trained = len(fr.data.read_table("run/images.csv").of("train"))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        every, unseen = run(*words, "--split", "all"), run(*words)
    assert (every.status, unseen.status, unseen.err) == (0, 0, "")
    assert every.err.startswith(f"frontrank evaluate: warning: {trained} of the 36 images were trained on, which makes")
    assert every.err.count("\n") == 1
