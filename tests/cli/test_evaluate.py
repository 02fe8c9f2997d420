"""`frontrank evaluate` prints and saves what the library computes, for every kind of file, option and model."""

import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank import machine
from frontrank.cli import evaluate as command
from frontrank.data import read_embeddings
from frontrank.errors import FrontrankWarning
from frontrank.evaluation import measures, protocols, read_ground_truth
from frontrank.evaluation.protocols import PROTOCOLS
from tests.cli.conftest import FACES, GALLERY_LABELS, GROUND_TRUTH, LABELS, QUERY_LABELS, examples, rows, same
from tests.cli.images import EACH, TEST, TINY, TRAIN, published, small_model
from tests.data.files import write_arrays
from tests.training.processes import torchrun

MODEL = "runs/first/model"
GALLERY = ("queries.parquet", "--gallery", "gallery.parquet")
REVISITED = ("q.npy", "--gallery", "g.npy", "--protocol", "revisited", "--ground-truth", "gnd_roxford5k.pkl")


def x_of_test():
    return np.load("test.npy")


def sides():
    return [read_embeddings(f"{name}.parquet").embeddings for name in ("queries", "gallery")]


# Help and guide


@pytest.mark.parametrize("words", examples(command.__doc__), ids=lambda words: " ".join(words[1:]))
def test_examples_of_the_help_run(folder, run, words):
    result = run(*words, status=0)
    assert re.search(r"^(\| )?mAP ", result.out, re.MULTILINE)
    assert result.err.startswith("read ")


def test_the_guide_shows_what_is_printed(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1]
    line, shown = re.search(r"```\n\$ frontrank (.*?)\n(.*?)```", guide, re.DOTALL).groups()
    exec(example, {})
    run()  # drops what the example has printed
    result = run(*line.split())
    assert result.err + result.out == shown


@pytest.mark.processes
def test_two_processes_print_the_report_of_one(folder, run):
    words = ["evaluate", "test.npz", "--metrics", "R@1,mAP,NMI", "--json"]
    result = run(*words, "one.json", status=0)
    status, text = torchrun(2, *words, "two.json")
    assert status == 0, text
    assert text.count(result.out) == text.count("wrote") == 1
    assert Path("two.json").read_text() == Path("one.json").read_text()


def test_protocols_are_listed(run):
    result = run("evaluate", "--protocols", status=0)
    assert [line.split()[0] for line in result.out.splitlines()] == list(PROTOCOLS)
    assert command.PROTOCOLS.replace(" -", " vehicleid-").split(", ") == list(PROTOCOLS)  # in the help


# Files


@pytest.mark.parametrize("ending", [".npy", ".npz", ".parquet", ".safetensors"])
def test_every_kind_of_file(folder, run, report, ending):
    x = rows(LABELS)
    beside = {} if ending == ".npy" else {"labels": LABELS}
    write_arrays(folder / f"mine{ending}", embeddings=x, **beside)
    words = [f"mine{ending}", *(["--labels", "labels.txt"] if ending == ".npy" else [])]
    expected = fr.evaluate(x, LABELS, name="mine")
    assert same(report(*words), expected)
    result = run("evaluate", *words)
    assert result.out == expected.table() + "\n"
    facts = ["36 rows of 20 dimensions", "float32", f"12 classes{' in labels.txt' if ending == '.npy' else ''}"]
    assert result.err == f"read mine{ending}: {', '.join(facts)}\n\n"


def test_labels_and_keys(folder, report):
    x = read_embeddings("other.npz").embeddings
    assert same(report("test.npz", "--labels", "group"), fr.evaluate(x_of_test(), LABELS % 4))
    assert same(report("test.npy", "--labels", "table.csv:product"), fr.evaluate(x_of_test(), LABELS))
    np.savez("two.npz", a=x, b=x_of_test(), labels=LABELS)
    assert same(report("two.npz", "--key", "a"), fr.evaluate(x, LABELS))
    assert same(report("two.npz:a"), fr.evaluate(x, LABELS))
    gallery = ["--gallery", "two.npz", "--gallery-key", "b", "--gallery-labels", "labels"]
    expected = fr.evaluate(x, LABELS, gallery=x_of_test(), gallery_labels=LABELS)
    assert same(report("two.npz", "--key", "a", *gallery), expected)


def test_levels(folder, report):
    columns = {"labels": LABELS.astype(str), "category": (LABELS % 2).astype(str)}
    np.savez("levels.npz", embeddings=x_of_test(), **columns)
    both = np.stack([LABELS, LABELS % 2], 1)
    metrics = [*measures.DEFAULT, "nDCG", "H-AP"]
    assert same(report("levels.npz"), fr.evaluate(x_of_test(), both, metrics=metrics))
    assert same(report("levels.npz", "--levels", "category"), fr.evaluate(x_of_test(), both, metrics=metrics))
    assert same(report("levels.npz", "--levels", "none"), fr.evaluate(x_of_test(), LABELS))


def test_several_labels_per_row(folder, run, report):
    texts = [f'["{label}", "{label % 2 + 100}"]' if row % 3 else str(label) for row, label in enumerate(LABELS)]
    np.savez("lists.npz", embeddings=x_of_test(), labels=np.array(texts))
    sets = [{str(label), str(label % 2 + 100)} if row % 3 else {str(label)} for row, label in enumerate(LABELS)]
    assert same(report("lists.npz"), fr.evaluate(x_of_test(), sets))
    result = run("evaluate", "lists.npz", "--protocol", "sop")
    assert (result.status, "--protocol" in result.err) == (2, True)


def test_gallery(folder, run, report):
    queries, gallery = sides()
    expected = fr.evaluate(queries, QUERY_LABELS, gallery=gallery, gallery_labels=GALLERY_LABELS)
    assert same(report(*GALLERY), expected)
    assert re.fullmatch(r".*queries.*\n.*gallery.*40 rows.*10 .*\n\n", run("evaluate", *GALLERY).err)


def test_queries_in_the_gallery_are_noted(folder, run):
    ids = np.array([f"{i}.jpg" for i in range(36)])
    np.savez("a.npz", embeddings=x_of_test(), labels=LABELS, ids=ids)
    np.savez("b.npz", embeddings=x_of_test(), labels=LABELS, ids=np.r_[ids[:2], [f"b{x}" for x in ids[2:]]])
    assert "note: 2 ids" in run("evaluate", "a.npz", "--gallery", "b.npz").err
    np.savez("c.npz", embeddings=x_of_test(), labels=LABELS, ids=np.arange(36))  # numbers may count anything
    assert "note" not in run("evaluate", "c.npz", "--gallery", "c.npz").err


# Metrics, tables, reports


def test_metrics_seed_and_device(folder, report):
    result = report("test.npz", "--metrics", "P@3, R@2,NMI,dists@intra", "--seed", "5", "--device", "cpu")
    assert same(result, fr.evaluate(x_of_test(), LABELS, metrics=["P@3", "R@2", "NMI", "dists@intra"], seed=5))
    assert result.settings == {"NMI seed": 5}


def test_tables(folder, run):
    expected = fr.evaluate(x_of_test(), LABELS, name="ours & theirs")
    for name in ("text", "markdown", "latex"):
        result = run("evaluate", "test.npz", "--table", name, "--name", "ours & theirs", "--quiet")
        assert (result.out, result.err) == (expected.table(name) + "\n", "")


def test_json_is_replaced_only_by_force(folder, run):
    target = folder / "new.json"
    target.write_text("mine")
    result = run("evaluate", "test.npz", "--json", "new.json")
    assert (result.status, result.out, target.read_text()) == (2, "", "mine")
    assert "--force" in result.err
    assert run("evaluate", "test.npz", "--json", "new.json", "--force").status == 0
    assert fr.Report.load(target).name == "test"


# What is done to embeddings first


def test_whitening(folder, run, report):
    queries, gallery = sides()
    white = fr.Whitening.fit(np.load("train.npy"), power=0.5, dim=8)
    words = ("--whiten", "train.npy", "--dim", "8", "--power=.5")
    result = report(*GALLERY, *words)
    labels = {"gallery_labels": GALLERY_LABELS}
    assert same(result, fr.evaluate(white.apply(queries), QUERY_LABELS, gallery=white.apply(gallery), **labels))
    assert result.settings == {"whitening": "train.npy, 8 dimensions, power 0.5"}
    white.save("white.safetensors")
    assert same(report(*GALLERY, "--whiten", "white.safetensors"), result)
    assert "white.safetensors: Whitening(20" in run("evaluate", *GALLERY, "--whiten", "white.safetensors").err
    plain = fr.Whitening.fit(np.load("train.npy"), power=0).apply(x_of_test())
    assert same(report("test.npz", "--whiten", "train.npy", "--power", "0"), fr.evaluate(plain, LABELS))
    more = read_embeddings("distractors.npz", "more").embeddings
    expected = fr.evaluate(fr.Whitening.fit(more).apply(x_of_test()), LABELS)
    assert same(report("test.npz", "--whiten", "distractors.npz:more"), expected)
    write_arrays(folder / "train.safetensors", embeddings=np.load("train.npy"))  # embeddings, and no whitening
    expected = fr.evaluate(fr.Whitening.fit(np.load("train.npy"), dim=5).apply(x_of_test()), LABELS)
    assert same(report("test.npz", "--whiten", "train.safetensors", "--dim", "5"), expected)


def test_augmentation_and_expansion_with_a_gallery(folder, report):
    queries, gallery = sides()
    labels = {"gallery_labels": GALLERY_LABELS}
    augmented = fr.augment_database(gallery, k=10, alpha=2.0)
    assert same(report(*GALLERY, "--augment"), fr.evaluate(queries, QUERY_LABELS, gallery=augmented, **labels))
    expanded = fr.expand_queries(queries, gallery, k=10, alpha=2.0)
    assert same(report(*GALLERY, "--expand"), fr.evaluate(expanded, QUERY_LABELS, gallery=gallery, **labels))
    augmented = fr.augment_database(gallery, k=3, alpha=1.0)
    expanded = fr.expand_queries(queries, augmented, k=4, alpha=1.0)
    result = report(*GALLERY, "--augment", "3", "--expand", "4", "--alpha", "1")
    assert same(result, fr.evaluate(expanded, QUERY_LABELS, gallery=augmented, **labels))
    assert result.settings == {"augmentation": "k 3, alpha 1", "expansion": "k 4, alpha 1"}


def test_augmentation_and_expansion_of_queries_that_are_the_gallery(folder, report):
    """Augmented, all rows move; expanded, only the queries do, and a query does not find its old self."""
    x = x_of_test()
    assert same(report("test.npz", "--augment", "2"), fr.evaluate(fr.augment_database(x, k=2), LABELS))
    own = {"gallery": x, "gallery_labels": LABELS, "ignored": [[i] for i in range(36)]}
    expanded = fr.evaluate(fr.expand_queries(x, k=2), LABELS, **own)
    assert same(report("test.npz", "--expand", "2"), expanded)
    assert expanded.positives.tolist() == [2] * 36
    assert report("test.npz", "--expand", "2", "--protocol", "sop")["R@1"] == expanded["R@1"]
    white = fr.Whitening.fit(np.load("train.npy")).apply(x)  # comes before augmentation
    expected = fr.evaluate(fr.augment_database(white, k=2), LABELS)
    assert same(report("test.npz", "--whiten", "train.npy", "--augment", "2"), expected)


def test_reranking(folder, report):
    result = report("test.npz", "--rerank", "--metrics", "R@1,mAP")
    assert same(result, fr.evaluate_scores(fr.rerank(x_of_test()), LABELS, metrics=("R@1", "mAP")))
    assert result.settings == {"re-ranking": "k1 20, k2 6, lam 0.3"}
    queries, gallery = sides()
    scores = fr.rerank(fr.expand_queries(queries, gallery, k=3), gallery)
    result = report(*GALLERY, "--expand", "3", "--rerank")
    assert same(result, fr.evaluate_scores(scores, QUERY_LABELS, gallery_labels=GALLERY_LABELS))


# Protocols


@pytest.mark.parametrize("name", [name for name, protocol in PROTOCOLS.items() if protocol.kind == "self"])
def test_protocols_of_one_set(folder, report, name):
    result, expected = report("test.npz", "--protocol", name), PROTOCOLS[name](x_of_test(), LABELS)
    assert same(result, expected)
    assert (result.name, result.notes) == (expected.name, expected.notes)


def test_metrics_and_name_come_before_those_of_a_protocol(folder, report):
    result = report(*GALLERY, "--protocol", "in-shop", "--metrics", "R@3", "--name", "mine")
    queries, gallery = sides()
    assert same(result, protocols.in_shop(queries, QUERY_LABELS, gallery, GALLERY_LABELS, metrics=["R@3"]))
    assert result.name == "mine"


@pytest.mark.parametrize("name", ["vggface2", "ijb-c"])
def test_protocols_of_templates(folder, report, name):
    x, templates = read_embeddings("faces.npz").embeddings, read_embeddings("faces.npz").columns["template"]
    assert same(report("faces.npz", "--protocol", name), PROTOCOLS[name](x, FACES))
    expected = PROTOCOLS[name](x, FACES, templates)
    assert expected.queries == 36  # of 72 rows
    expected.save("before.json")
    words = ("faces.npz", "--protocol", name, "--templates", "template", "--compare", "before.json")
    assert same(report(*words), expected)


def test_revisited_in_all_setups(folder, run):
    result = run("evaluate", *REVISITED, "--setup", "all", "--json", "out.json", "--whiten", "train.npy", status=0)
    white = fr.Whitening.fit(np.load("train.npy"))
    queries, gallery = white.apply(np.load("q.npy")), white.apply(np.load("g.npy"))
    tables = []
    for setup in ("easy", "medium", "hard"):
        report = fr.Report.load(f"out-{setup}.json")
        assert same(report, fr.evaluate_revisited(queries, gallery, GROUND_TRUTH, setup))
        assert (report.name, report.settings["setup"]) == (f"q ({setup})", setup)
        tables.append(report.table())
    assert result.out == "\n\n".join(tables) + "\n"
    assert not (folder / "out.json").exists()


def test_distractors_are_whitened_augmented_and_searched(folder, report):
    q, g, more = np.load("q.npy"), np.load("g.npy"), read_embeddings("distractors.npz", "more").embeddings
    words = (*REVISITED, "--distractors", "distractors.npz:more")
    assert same(report(*REVISITED), fr.evaluate_revisited(q, g, GROUND_TRUTH, "medium"))
    assert same(report(*words), fr.evaluate_revisited(q, g, GROUND_TRUTH, distractors=more))
    np.save("swapped.npy", more.astype(">f4"))  # a byte order that torch does not have
    expanded = fr.expand_queries(q, np.concatenate([g, more]), k=3)
    expected = fr.evaluate_revisited(expanded, g, GROUND_TRUTH, distractors=more)
    assert same(report(*REVISITED, "--distractors", "swapped.npy", "--expand", "3"), expected)
    white = fr.Whitening.fit(np.load("train.npy"))
    q, g, more = (white.apply(x) for x in (q, g, more))
    database = fr.augment_database(np.concatenate([g, more]), k=5)
    expanded = fr.expand_queries(q, database, k=3)
    expected = fr.evaluate_revisited(expanded, database[:40], GROUND_TRUTH, distractors=database[40:])
    assert same(report(*words, "--whiten", "train.npy", "--augment", "5", "--expand", "3"), expected)


# Comparisons


def reports():
    """Those of other.npz and of test.npz."""
    return [fr.evaluate(read_embeddings(f"{name}.npz").embeddings, LABELS, name=name) for name in ("other", "test")]


def test_compare_with_a_saved_report(folder, run):
    result = run("evaluate", "test.npy", "--labels", "labels.txt", "--compare", "old.json")
    ours = reports()[1]
    comparison = fr.compare(fr.Report.load("old.json"), ours, names=("older", "test"))
    assert result.out == f"{ours.table()}\n\n{comparison.table()}\n"
    assert re.search("old.json: .* 36 queries", result.err)
    assert run("evaluate", *GALLERY, "--json", "plain.json").status == 0
    result = run("evaluate", *GALLERY, "--expand", "3", "--whiten", "train.npy", "--compare", "plain.json", status=0)
    assert "queries against plain" in result.out


def test_compare_with_embeddings_of_the_same_rows(folder, run):
    result = run("evaluate", "test.npz", "--compare", "other.npz", "--table", "markdown", "--seed", "3")
    other, ours = reports()
    comparison = fr.compare(other, ours, names=("other", "test"), seed=3)
    assert result.out == f"{ours.table('markdown')}\n\n{comparison.table('markdown')}\n"
    words = ("--augment", "3", "--metrics", "mAP", "--protocol", "cub", "--labels", "group", "--name", "new")
    result = run("evaluate", "test.npz", "--compare", "other.npz", *words)  # both in the same way
    both = (fr.augment_database(read_embeddings(f"{name}.npz").embeddings, k=3) for name in ("other", "test"))
    other, ours = (fr.evaluate(x, LABELS % 4, metrics=["mAP"]) for x in both)
    assert result.out.endswith(f"\n\n{fr.compare(other, ours, names=('other', 'new')).table()}\n")


def test_the_report_is_printed_and_saved_before_the_comparison_fails(folder, run):
    fr.evaluate(x_of_test(), LABELS // 2).save("others.json")
    result = run("evaluate", "test.npz", "--compare", "others.json", "--json", "kept.json")
    assert result.status == 2
    assert "mAP" in result.out
    assert fr.Report.load("kept.json").queries == 36
    last = result.err.splitlines()[-1]
    assert all(name in last for name in ("--compare", "positives", "others.json", "test.npz"))


# A model and images


@pytest.fixture
def of_model(folder, report):
    """A function that returns the report of the model on some images."""
    return lambda path, *words: report(MODEL, "--data", path, "--workers", "0", *words)


def embed(table):
    return fr.embed_table(fr.Embedder.load(MODEL), table, workers=0)


def read_test(name, root):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrontrankWarning)
        return fr.data.read_published(name, root, allow_partial=True).of("test")


def test_images_search_each_other(of_model, run):
    table = fr.data.read_folder("my_photos").of("test")
    result = of_model("my_photos")
    assert same(result, fr.evaluate(embed(table), table.labels, metrics=tuple(result.metrics)))
    assert (result.name, result.queries) == ("first", len(TEST) * EACH)
    again = run("evaluate", MODEL, "--data", "my_photos", "--workers", "0", "--split", "all", "--batch-size", "5")
    assert again.err == f"read my_photos: {(len(TRAIN) + len(TEST)) * EACH} images\n"
    assert f"{(len(TRAIN) + len(TEST)) * EACH} queries" in again.out


def test_queries_and_gallery_of_a_table(of_model):
    table = fr.data.read_folder("my_photos").of("test")
    table = replace(table, roles=np.where(np.arange(len(table)) % 3 == 0, "query", "gallery"))
    table.save("sides.csv")
    queries, gallery = table.of(role="query"), table.of(role="gallery")
    searched = {"gallery": embed(gallery), "gallery_labels": gallery.labels}
    result = of_model("sides.csv", "--metrics", "mAP,R@1", "--name", "mine")
    assert same(result, fr.evaluate(embed(queries), queries.labels, **searched, metrics=("mAP", "R@1")))
    assert (result.name, result.queries, result.gallery_size) == ("mine", 4, 8)


def test_published_data_sets_bring_their_protocols(of_model, folder):
    published("in-shop", folder / "shop")
    table = read_test("in-shop", "shop")
    queries, gallery = table.of(role="query"), table.of(role="gallery")
    expected = protocols.in_shop(embed(queries), queries.labels, embed(gallery), gallery.labels)
    assert same(of_model("shop", "--allow-partial"), expected)
    published("sop", folder / "products")
    table = read_test("sop", "products")
    assert same(of_model("products", "--allow-partial"), protocols.sop(embed(table), table.labels))
    published("ijb-c", folder / "faces")
    table = read_test("ijb-c", "faces")
    expected = protocols.ijb_c(embed(table), table.labels, table.extra["template"])
    assert same(of_model("faces", "--allow-partial"), expected)
    assert expected.queries == 5  # three images and two videos, of three frames in six rows


def test_vehicleid_needs_one_of_its_lists(of_model, folder, run, refused):
    published("vehicleid", folder / "cars")
    table = read_test("vehicleid", "cars")
    table = table.rows(table.extra["small"].astype(bool))
    words = ("cars", "--allow-partial", "--protocol", "vehicleid-small")
    assert same(of_model(*words), protocols.vehicleid(embed(table), table.labels, "small"))
    refused(["evaluate", MODEL, "--data", "cars", "--allow-partial"], "--protocol")
    refused(["evaluate", MODEL, "--data", *words, "--split", "train"], "--data cars")


def test_revisited_images(of_model, folder):
    published("roxford5k", folder / "oxford", side=200)
    table = read_test("roxford5k", "oxford")
    queries, gallery = embed(table.of(role="query")), embed(table.of(role="gallery"))
    expanded = fr.expand_queries(queries, gallery, 2, alpha=2.0)
    truth = read_ground_truth("oxford/gnd_roxford5k.pkl").lists
    shutil.copy("oxford/gnd_roxford5k.pkl", "truth.pkl")
    expected = fr.evaluate_revisited(queries, gallery, truth, "medium")
    assert of_model("oxford", "--allow-partial").metrics == pytest.approx(expected.metrics)
    words = ("--setup", "easy", "--expand", "2", "--ground-truth", "truth.pkl")
    expected = fr.evaluate_revisited(expanded, gallery, truth, "easy")
    assert of_model("oxford", "--allow-partial", *words).metrics == pytest.approx(expected.metrics)


@pytest.mark.parametrize(("image", "side"), [("all_souls_000013", "gallery"), ("q", "query")])
def test_revisited_with_an_image_missing(folder, refused, monkeypatch, image, side):
    """Its ground truth counts images: with one missing every later one would be taken for another."""
    published("roxford5k", folder / "oxford", side=200)
    (folder / "oxford" / "jpg" / f"{image}.jpg").unlink()
    words = ["evaluate", MODEL, "--data", "oxford", "--allow-partial", "--workers", "0"]
    refused(words, f"some {side} images")
    monkeypatch.setitem(command._REVISITED, "roxford5k", "gnd_other.pkl")
    refused(words, "--ground-truth")  # which is missing


def test_compare_models(of_model, folder, run):
    small_model(folder / "runs" / "second" / "model", seed=1)
    old = of_model("my_photos", "--metrics", "mAP")
    Path("report-of-this.json").rename("first.json")
    words = ["--data", "my_photos", "--workers", "0", "--metrics", "mAP", "--quiet"]
    result = run("evaluate", "runs/second/model", *words, "--json", "new.json", "--compare", "first.json")
    assert (result.status, result.err) == (0, "")
    new = fr.Report.load("new.json")
    assert fr.compare(old, new, names=("first", "second")).table("text") in result.out
    assert " against first.json" in run("evaluate", MODEL, *words, "--compare", "first.json").out
    assert run("embed", "runs/second/model", "--data", "my_photos", "--out", "second.npz", "--workers", 0).status == 0
    files = run("evaluate", MODEL, *words, "--compare", "second.npz", "--name", "mine")
    assert fr.compare(new, old, names=("second", "mine")).table("text") in files.out
    other = run("evaluate", MODEL, *words, "--split", "all", "--compare", "first.json")
    assert other.status == 2
    assert "embeddings of my_photos" in other.err


@pytest.mark.training
def test_images_that_were_trained_on_are_warned_of(folder, run):
    words = ("evaluate", "run/model", "--data", "my_photos", "--workers", "0", "--quiet")
    assert run("train", "--data", "my_photos", *TINY, "--out", "run", "--quiet").status == 0
    trained = len(fr.data.read_table("run/images.csv").of("train"))
    every, unseen = run(*words, "--split", "all"), run(*words)
    assert (every.status, unseen.status, unseen.err) == (0, 0, "")
    assert every.err.startswith(f"frontrank evaluate: warning: {trained} of the 36 images")
    assert every.err.count("\n") == 1


# Refusals

G, R, M = " ".join(GALLERY), " ".join(REVISITED), f"{MODEL} --data my_photos"
REFUSALS = [
    # values
    ("test.npz --augment=x", "--augment"),
    ("nowhere.npz --metrics recall@1", "recall@1"),
    ("test.npz --whiten train.npy --dim 50", "train.npy: dim"),
    # options that need another
    ("test.npz --templates group", "--templates needs --protocol"),
    ("q.npy --protocol revisited --gallery g.npy", "--ground-truth"),
    # options that do not go together
    (f"{R} --rerank", "--rerank"),
    (f"{R} --setup all --compare old.json", "--compare"),
    (f"{G} --protocol sop", "--gallery"),
    ("faces.npz --protocol ijb-c --expand", "--expand"),
    (f"{G} --compare other.npz", "--gallery"),
    # files
    ("tset.npz", "test.npz?"),
    (f"{R}.gz", "gnd_roxford5k.pkl.gz"),
    ("distractors.npz:more --key more", "distractors.npz:more"),
    ("twice.npz", "ids in twice.npz"),
    ("nan.npz", "number 3"),
    # labels
    ("test.npy", "--labels"),
    ("q.npy --labels 4.txt --gallery g.npy --gallery-labels 4.txt", "gallery labels: 4.txt"),
    ("other.npz --labels text --gallery test.npz", "gallery_labels"),
    # files that do not go together
    ("test.npz --gallery narrow.npz", "narrow.npz"),
    ("test.npz --whiten white.safetensors --dim 2", "--dim"),
    ("test.npz --compare narrow.npz", "--compare"),
    (R.replace("q.npy", "g.npy"), "gnd_roxford5k.pkl"),
    ("ids.npz --compare shuffled.npz", "35.jpg"),
    ("test.npz --compare relabelled.npz", "labels"),
    # where to write
    ("test.npz --labels labels.json --json ./labels.json --force", "--json labels.json"),
    (f"{R} --setup all --json out.json", "--json out-hard.json"),
    # a model
    (MODEL, "--data"),
    ("test.npz --workers 0", "--workers"),
    ("my_photos --data my_photos", "my_photos"),
    (f"{M} --labels labels.txt", "--labels"),
    (f"{MODEL} --data more.csv", "--data more.csv"),
    (f"{MODEL} --data mixed.csv", "--data mixed.csv"),
]


@pytest.fixture(scope="module")
def more(copied):
    """A folder with files that some command lines cannot use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(copied)
        x, ids = x_of_test(), np.array([f"{i}.jpg" for i in range(36)])
        broken = x.copy()
        broken[3, 2] = np.nan
        np.savez("nan.npz", embeddings=broken, labels=LABELS)
        np.savez("test.npz", embeddings=x, labels=LABELS, group=LABELS % 4)
        np.savez("twice.npz", embeddings=x[:3], labels=LABELS[:3], ids=np.array(["a", "a", "b"]))
        np.savez("narrow.npz", embeddings=x[:5, :3], labels=LABELS[:5])
        np.savez("ids.npz", embeddings=x, labels=LABELS, ids=ids)
        np.savez("shuffled.npz", embeddings=x, ids=ids[::-1])
        np.savez("relabelled.npz", embeddings=x, labels=LABELS + 1)
        fr.Whitening.fit(np.load("train.npy"), dim=4).save("white.safetensors")
        for name, text in (("4.txt", "0\n1\n0\n1\n"), ("labels.json", f"{LABELS.tolist()}"), ("out-hard.json", "mine")):
            Path(name).write_text(text)
        table = fr.data.read_folder("my_photos").of("test")
        replace(table, roles=np.full(len(table), "distractor")).save("more.csv")
        replace(table, roles=np.where(np.arange(len(table)) < 8, "", "distractor")).save("mixed.csv")
    return copied


@pytest.mark.parametrize(("words", "name"), REFUSALS)
def test_refusals(more, refused, monkeypatch, words, name):
    monkeypatch.chdir(more)
    monkeypatch.setattr(fr, "embed_table", lambda *_, **__: pytest.fail("it embeds before it refuses"))
    refused(["evaluate", *words.split()], name)


def test_cheap_checks_come_before_reading(folder, run, monkeypatch):
    """The embeddings may be large: nothing is read that will be refused for another reason."""
    monkeypatch.setattr(command, "read_rows", lambda *_: pytest.fail("it reads before it checks"))
    for words in ("--json old.json", "--gallery zzz.npy", "--metrics x", "--compare z.npz"):
        assert run("evaluate", "test.npz", *words.split()).status == 2


@pytest.mark.parametrize(
    ("words", "size", "name"),
    [
        (f"{G} --rerank", 4 * 18 * 40, "--rerank"),
        ("test.npz --whiten train.npy --dim 5", 4 * 36 * 5, "--whiten"),
        (f"{R} --distractors distractors.npz --expand", 4 * 74 * 20, "--expand"),
    ],
)
def test_more_than_the_memory(folder, run, refused, monkeypatch, words, size, name):
    monkeypatch.setattr(machine, "total_memory", lambda: size)
    assert run("evaluate", *words.split()).status == 0
    monkeypatch.setattr(machine, "total_memory", lambda: size - 1)
    refused(["evaluate", *words.split()], name)
