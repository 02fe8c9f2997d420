"""`frontrank evaluate` says what the library says, for every kind of file and every option."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank.cli import evaluate as command
from frontrank.data import read_embeddings
from frontrank.evaluation.protocols import PROTOCOLS
from tests.cli.conftest import FACES, GALLERY_LABELS, GROUND_TRUTH, LABELS, QUERY_LABELS, rows, same
from tests.data.files import write_arrays


def x_of_test():
    return np.load("test.npy")


def examples():
    shown = command.EPILOG.split("examples:\n")[1].replace("\\\n", " ")
    return [" ".join(line.split()) for line in shown.splitlines()]


@pytest.mark.parametrize("example", examples())
def test_examples_of_the_help(folder, run, example):
    before, *words = shlex.split(example)
    assert before == "frontrank"
    found = run(*words)
    assert found.status == 0, found.err
    assert re.search(r"^(\| )?mAP ", found.out, re.MULTILINE)
    assert found.err.startswith("read ")


def test_help(run):
    found = run("evaluate", "--help")
    assert found.status == 0
    assert found.out.endswith(command.EPILOG)
    assert max(map(len, found.out.splitlines())) <= 82


def test_the_guide_shows_what_is_printed(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1]
    line, shown = re.search(r"```\n\$ frontrank (.*?)\n(.*?)```", guide, re.DOTALL).groups()
    exec(example, {})
    run()  # what the example has printed
    found = run(*line.split())
    assert found.err + found.out == shown


def test_protocols_are_listed(run):
    found = run("evaluate", "--protocols")
    assert found.status == 0
    assert [line.split()[0] for line in found.out.splitlines()] == list(PROTOCOLS)
    named = command.PROTOCOLS.replace(" -", " vehicleid-").split(", ")
    assert named == list(PROTOCOLS)  # in the help, which does not import them


@pytest.mark.parametrize("ending", [".npy", ".npz", ".parquet", ".safetensors"])
def test_every_kind_of_file(folder, run, report, ending):
    x = rows(LABELS)
    beside = {} if ending == ".npy" else {"labels": LABELS}
    write_arrays(folder / f"mine{ending}", embeddings=x, **beside)
    words = [f"mine{ending}", *(["--labels", "labels.txt"] if ending == ".npy" else [])]
    expected = fr.evaluate(x, LABELS, name="mine")
    assert same(report(*words), expected)
    found = run("evaluate", *words)
    assert found.out == expected.table() + "\n"
    where = " in labels.txt" if ending == ".npy" else ""
    assert found.err == f"read mine{ending}: 36 rows of 20 dimensions, float32, 12 classes{where}\n\n"


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


def test_gallery(folder, run, report):
    queries, gallery = (read_embeddings(f"{name}.parquet").embeddings for name in ("queries", "gallery"))
    expected = fr.evaluate(queries, QUERY_LABELS, gallery=gallery, gallery_labels=GALLERY_LABELS)
    assert same(report("queries.parquet", "--gallery", "gallery.parquet"), expected)
    said = run("evaluate", "queries.parquet", "--gallery", "gallery.parquet").err
    assert "read gallery.parquet: 40 rows of 20 dimensions, float32, 10 classes\n" in said
    assert "note" not in said


@pytest.mark.parametrize(("count", "said"), [(1, "1 id is in both"), (2, "2 ids are in both")])
def test_queries_in_the_gallery_are_noted(folder, run, count, said):
    ids = np.array([f"{i}.jpg" for i in range(36)])
    np.savez("a.npz", embeddings=x_of_test(), labels=LABELS, ids=ids)
    np.savez("b.npz", embeddings=x_of_test(), labels=LABELS, ids=np.r_[ids[:count], [f"b{x}" for x in ids[count:]]])
    assert (
        f"note: {said} queries and gallery; such a query finds itself"
        in run("evaluate", "a.npz", "--gallery", "b.npz").err
    )
    np.savez("c.npz", embeddings=x_of_test(), labels=LABELS, ids=np.arange(36))  # numbers may count anything
    assert "note" not in run("evaluate", "c.npz", "--gallery", "c.npz").err


def test_metrics_and_seed(folder, report):
    found = report("test.npz", "--metrics", "P@3, R@2,NMI,dists@intra", "--seed", "5")
    assert same(found, fr.evaluate(x_of_test(), LABELS, metrics=["P@3", "R@2", "NMI", "dists@intra"], seed=5))
    assert found.settings == {"NMI seed": 5}
    assert report("test.npz", "--metrics", "NMI", "--seed", "0").settings == {"NMI seed": 0}


@pytest.mark.parametrize("name", ["text", "markdown", "latex"])
def test_tables(folder, run, name):
    found = run("evaluate", "test.npz", "--table", name, "--name", "ours & theirs")
    assert found.out == fr.evaluate(x_of_test(), LABELS, name="ours & theirs").table(name) + "\n"


def test_quiet(folder, run):
    found = run("evaluate", "test.npz", "--quiet", "--json", "a.json")
    assert found.err == ""
    assert found.out.startswith("test\n36 queries")


def test_json_is_replaced_only_by_force(folder, run):
    target = folder / "new.json"
    target.write_text("mine")
    found = run("evaluate", "test.npz", "--json", "new.json")
    assert (found.status, found.out) == (2, "")
    assert found.err == (
        "frontrank evaluate: --json new.json exists already; choose another name, or add --force to replace it\n"
    )
    assert target.read_text() == "mine"
    assert run("evaluate", "test.npz", "--json", "new.json", "--force").status == 0
    assert fr.Report.load(target).name == "test"


def test_json_that_appears_during_the_work_is_not_replaced(folder, run, monkeypatch):
    def evaluated(*arguments, **options):
        (folder / "new.json").write_text("mine")
        return report

    report = fr.evaluate(x_of_test(), LABELS)
    monkeypatch.setattr(fr, "evaluate", evaluated)
    found = run("evaluate", "test.npz", "--json", "new.json")
    assert (found.status, (folder / "new.json").read_text()) == (2, "mine")
    assert found.out == report.table() + "\n"
    assert "frontrank evaluate: new.json exists already; choose another name" in found.err


def test_the_table_is_printed_even_if_it_cannot_be_saved(folder, run, monkeypatch):
    def full(self, path, overwrite):
        raise fr.FrontrankError(f"{path} cannot be written: no space left")

    monkeypatch.setattr(fr.Report, "save", full)
    found = run("evaluate", "test.npz", "--json", "new.json")
    assert found.status == 2
    assert "mAP" in found.out
    assert found.err.endswith("frontrank evaluate: new.json cannot be written: no space left\n")


def test_device(folder, report):
    assert same(report("test.npz", "--device", "cpu"), fr.evaluate(x_of_test(), LABELS))


def test_whitening_that_is_fitted(folder, report):
    white = fr.Whitening.fit(np.load("train.npy"), power=0.5, dim=8)
    found = report(
        "queries.parquet", "--gallery", "gallery.parquet", "--whiten", "train.npy", "--dim", "8", "--power=.5"
    )
    queries, gallery = (read_embeddings(f"{name}.parquet").embeddings for name in ("queries", "gallery"))
    expected = fr.evaluate(
        white.apply(queries), QUERY_LABELS, gallery=white.apply(gallery), gallery_labels=GALLERY_LABELS
    )
    assert same(found, expected)
    assert found.settings == {"whitening": "train.npy, 8 dimensions, power 0.5"}


def test_whitening_of_power_0(folder, report):
    white = fr.Whitening.fit(np.load("train.npy"), power=0)
    assert same(
        report("test.npz", "--whiten", "train.npy", "--power", "0"), fr.evaluate(white.apply(x_of_test()), LABELS)
    )


def test_whitening_that_is_saved(folder, run, report):
    white = fr.Whitening.fit(np.load("train.npy"), dim=6)
    white.save("white.safetensors")
    assert same(report("test.npz", "--whiten", "white.safetensors"), fr.evaluate(white.apply(x_of_test()), LABELS))
    said = run("evaluate", "test.npz", "--whiten", "white.safetensors").err
    assert "read white.safetensors: Whitening(20 -> 6 dimensions, power=0.25)\n" in said


def test_whitening_fitted_on_a_part_of_a_file(folder, report):
    x = read_embeddings("distractors.npz", "more").embeddings
    found = report("test.npz", "--whiten", "distractors.npz:more")
    assert same(found, fr.evaluate(fr.Whitening.fit(x).apply(x_of_test()), LABELS))
    write_arrays(folder / "train.safetensors", embeddings=np.load("train.npy"))
    found = report("test.npz", "--whiten", "train.safetensors", "--dim", "5")
    assert same(found, fr.evaluate(fr.Whitening.fit(np.load("train.npy"), dim=5).apply(x_of_test()), LABELS))


def test_augmentation_and_expansion_with_a_gallery(folder, report):
    queries, gallery = (read_embeddings(f"{name}.parquet").embeddings for name in ("queries", "gallery"))
    words = ("queries.parquet", "--gallery", "gallery.parquet")
    labels = {"gallery_labels": GALLERY_LABELS}
    augmented = fr.augment_database(gallery, k=10, alpha=2.0)
    assert same(report(*words, "--augment"), fr.evaluate(queries, QUERY_LABELS, gallery=augmented, **labels))
    expanded = fr.expand_queries(queries, gallery, k=10, alpha=2.0)
    assert same(report(*words, "--expand"), fr.evaluate(expanded, QUERY_LABELS, gallery=gallery, **labels))
    augmented = fr.augment_database(gallery, k=3, alpha=1.0)
    expanded = fr.expand_queries(queries, augmented, k=4, alpha=1.0)
    found = report(*words, "--augment", "3", "--expand", "4", "--alpha", "1")
    assert same(found, fr.evaluate(expanded, QUERY_LABELS, gallery=augmented, **labels))
    assert found.settings == {"augmentation": "k 3, alpha 1", "expansion": "k 4, alpha 1"}


def test_augmentation_and_expansion_of_queries_that_are_the_gallery(folder, report):
    """Augmented, all rows move; expanded, the queries alone do, and a query does not find its old self."""
    x = x_of_test()
    assert same(report("test.npz", "--augment", "2"), fr.evaluate(fr.augment_database(x, k=2), LABELS))
    own = {"gallery": x, "gallery_labels": LABELS, "ignored": [[i] for i in range(36)]}
    expanded = fr.evaluate(fr.expand_queries(x, k=2), LABELS, **own)
    assert same(report("test.npz", "--expand", "2"), expanded)
    assert expanded.positives.tolist() == [2] * 36
    assert report("test.npz", "--expand", "2", "--protocol", "sop")["R@1"] == expanded["R@1"]
    assert report("test.npz", "--expand", "2")["mAP"] != report("test.npz", "--augment", "2")["mAP"]


def test_whitening_comes_before_augmentation(folder, report):
    white = fr.Whitening.fit(np.load("train.npy")).apply(x_of_test())
    found = report("test.npz", "--whiten", "train.npy", "--augment", "2")
    assert same(found, fr.evaluate(fr.augment_database(white, k=2), LABELS))


def test_reranking(folder, report):
    found = report("test.npz", "--rerank", "--metrics", "R@1,mAP")
    assert same(found, fr.evaluate_scores(fr.rerank(x_of_test()), LABELS, metrics=("R@1", "mAP")))
    assert found.settings == {"re-ranking": "k1 20, k2 6, lam 0.3"}
    queries, gallery = (read_embeddings(f"{name}.parquet").embeddings for name in ("queries", "gallery"))
    expanded = fr.expand_queries(queries, gallery, k=3)
    scores = fr.rerank(expanded, gallery)
    found = report("queries.parquet", "--gallery", "gallery.parquet", "--expand", "3", "--rerank")
    assert same(found, fr.evaluate_scores(scores, QUERY_LABELS, gallery_labels=GALLERY_LABELS))


@pytest.mark.parametrize("name", [name for name, protocol in PROTOCOLS.items() if protocol.kind == "self"])
def test_protocols_of_one_set(folder, report, name):
    found = report("test.npz", "--protocol", name)
    expected = PROTOCOLS[name](x_of_test(), LABELS)
    assert same(found, expected)
    assert (found.name, found.notes) == (expected.name, expected.notes)
    assert list(report("test.npz", "--protocol", name, "--metrics", "R@3")) == ["R@3"]
    assert report("test.npz", "--protocol", name, "--name", "mine").name == "mine"


def test_protocol_of_queries_and_gallery(folder, report):
    queries, gallery = (read_embeddings(f"{name}.parquet").embeddings for name in ("queries", "gallery"))
    found = report("queries.parquet", "--gallery", "gallery.parquet", "--protocol", "in-shop")
    assert same(found, fr.evaluation.protocols.in_shop(queries, QUERY_LABELS, gallery, GALLERY_LABELS))


@pytest.mark.parametrize("name", ["vggface2", "ijb-c"])
def test_protocols_of_templates(folder, report, name):
    x, templates = read_embeddings("faces.npz").embeddings, read_embeddings("faces.npz").columns["template"]
    assert same(report("faces.npz", "--protocol", name), PROTOCOLS[name](x, FACES))
    expected = PROTOCOLS[name](x, FACES, templates)
    assert same(report("faces.npz", "--protocol", name, "--templates", "template"), expected)
    assert expected.queries == 36  # of 72 rows
    expected.save("before.json")
    words = ("faces.npz", "--protocol", name, "--templates", "template", "--compare", "before.json")
    assert same(report(*words), expected)


REVISITED = ("q.npy", "--gallery", "g.npy", "--protocol", "revisited", "--ground-truth", "gnd_roxford5k.pkl")


@pytest.mark.parametrize("setup", [None, "easy", "medium", "hard"])
def test_revisited(folder, report, setup):
    words = [] if setup is None else ["--setup", setup]
    expected = fr.evaluate_revisited(np.load("q.npy"), np.load("g.npy"), GROUND_TRUTH, setup or "medium")
    found = report(*REVISITED, *words)
    assert same(found, expected)
    assert found.settings == {"setup": setup or "medium"}


def test_revisited_in_all_setups(folder, run):
    found = run("evaluate", *REVISITED, "--setup", "all", "--json", "out.json", "--whiten", "train.npy")
    assert found.status == 0, found.err
    white = fr.Whitening.fit(np.load("train.npy"))
    sides = white.apply(np.load("q.npy")), white.apply(np.load("g.npy"))
    tables = []
    for setup in ("easy", "medium", "hard"):
        saved = fr.Report.load(f"out-{setup}.json")
        assert same(saved, fr.evaluate_revisited(*sides, GROUND_TRUTH, setup))
        assert (saved.name, saved.settings["setup"]) == (f"q ({setup})", setup)
        tables.append(saved.table())
        assert f"wrote out-{setup}.json" in found.err
    assert found.out == "\n\n".join(tables) + "\n"
    assert not (folder / "out.json").exists()


def test_distractors_are_whitened_augmented_and_searched(folder, report):
    q, g, more = np.load("q.npy"), np.load("g.npy"), read_embeddings("distractors.npz", "more").embeddings
    words = (*REVISITED, "--distractors", "distractors.npz:more")
    expected = fr.evaluate_revisited(q, g, GROUND_TRUTH, distractors=more)
    assert same(report(*words), expected)
    assert expected.gallery_size == 70
    white = fr.Whitening.fit(np.load("train.npy"))
    q, g, more = (white.apply(x) for x in (q, g, more))
    database = fr.augment_database(np.concatenate([g, more]), k=5)
    expanded = fr.expand_queries(q, database, k=3)
    expected = fr.evaluate_revisited(expanded, database[:40], GROUND_TRUTH, distractors=database[40:])
    assert same(report(*words, "--whiten", "train.npy", "--augment", "5", "--expand", "3"), expected)


def test_distractors_of_any_byte_order(folder, report):
    more = read_embeddings("distractors.npz").embeddings
    np.save("swapped.npy", more.astype(">f4"))
    expanded = fr.expand_queries(np.load("q.npy"), np.concatenate([np.load("g.npy"), more]), k=3)
    expected = fr.evaluate_revisited(expanded, np.load("g.npy"), GROUND_TRUTH, distractors=more)
    assert same(report(*REVISITED, "--distractors", "swapped.npy", "--expand", "3"), expected)


def test_rows_and_files_in_words(folder, run):
    """One of each, and a wide type."""
    np.save("one.npy", np.ones((1, 1)))
    write_arrays(folder / "two.npz", embeddings=np.array([[1.0], [-1.0]]), labels=np.array([4, 5]))
    lines = run("evaluate", "one.npy", "--labels", "one.txt", "--gallery", "two.npz").err
    assert "one.txt is not there" in lines
    (folder / "one.txt").write_text("4\n")
    lines = run("evaluate", "one.npy", "--labels", "one.txt", "--gallery", "two.npz").err.splitlines()
    assert lines[:2] == [
        "read one.npy: 1 row of 1 dimension, float64, 1 class in one.txt",
        "read two.npz: 2 rows of 1 dimension, float64, 2 classes",
    ]
