"""`frontrank evaluate --compare`: with a saved report, and with embeddings of the same rows."""

import numpy as np

import frontrank as fr
from frontrank.data import read_embeddings
from tests.cli.conftest import LABELS


def reports():
    """Those of other.npz and of test.npz."""
    return [fr.evaluate(read_embeddings(f"{name}.npz").embeddings, LABELS, name=name) for name in ("other", "test")]


def test_with_a_saved_report(folder, run):
    found = run("evaluate", "test.npy", "--labels", "labels.txt", "--compare", "old.json")
    old, ours = fr.Report.load("old.json"), reports()[1]
    comparison = fr.compare(old, ours, names=("older", "test"))
    assert found.out == f"{ours.table()}\n\n{comparison.table()}\n"
    assert "test against older on the same 36 queries" in found.out
    assert "read old.json: a report of 36 queries" in found.err


def test_with_embeddings_of_the_same_rows(folder, run):
    found = run("evaluate", "test.npz", "--compare", "other.npz", "--table", "markdown", "--seed", "3")
    other, ours = reports()
    comparison = fr.compare(other, ours, names=("other", "test"), seed=3)
    assert found.out == f"{ours.table('markdown')}\n\n{comparison.table('markdown')}\n"
    assert comparison["mAP"].difference > 0  # test.npz has less noise
    assert "read other.npz: 36 rows of 20 dimensions, float32\n" in found.err


def test_both_are_evaluated_in_the_same_way(folder, run):
    words = ("--augment", "3", "--metrics", "mAP", "--protocol", "cub", "--labels", "group", "--name", "new")
    found = run("evaluate", "test.npz", "--compare", "other.npz", *words)
    other, ours = (
        fr.evaluate(fr.augment_database(read_embeddings(f"{name}.npz").embeddings, k=3), LABELS % 4, metrics=["mAP"])
        for name in ("other", "test")
    )
    assert found.out.endswith(f"\n\n{fr.compare(other, ours, names=('other', 'new')).table()}\n")


def test_arrays_of_one_file(folder, run):
    np.savez(
        "both.npz", a=read_embeddings("test.npz").embeddings, b=read_embeddings("other.npz").embeddings, labels=LABELS
    )
    found = run("evaluate", "both.npz", "--key", "a", "--compare", "both.npz:b")
    assert "both:a against both:b on the same 36 queries" in found.out
    other, ours = reports()
    assert found.out.endswith(f"\n\n{fr.compare(other, ours, names=('both:b', 'both:a')).table()}\n")


def test_names_tell_the_two_apart(folder, run):
    """A protocol names its reports after the data set, and files in two folders may have one name."""
    run("evaluate", "other.npz", "--protocol", "sop", "--json", "baseline.json")
    found = run("evaluate", "test.npz", "--protocol", "sop", "--compare", "baseline.json")
    assert "test against baseline on the same 36 queries" in found.out
    (folder / "before").mkdir()
    np.savez("before/test.npz", embeddings=read_embeddings("other.npz").embeddings)
    found = run("evaluate", "test.npz", "--compare", "before/test.npz")
    assert "test.npz against before/test.npz on" in found.out


def test_a_saved_report_with_a_gallery(folder, run):
    words = ("evaluate", "queries.parquet", "--gallery", "gallery.parquet")
    assert run(*words, "--json", "plain.json").status == 0
    found = run(*words, "--expand", "3", "--whiten", "train.npy", "--compare", "plain.json")
    assert found.status == 0
    assert "queries against plain on the same 18 queries" in found.out


def test_ids_may_be_in_one_file_only_and_labels_of_another_kind_do_not_count(folder, run):
    ids = np.array([f"{i}.jpg" for i in range(36)])
    np.savez("a.npz", embeddings=np.load("test.npy"), labels=LABELS, ids=ids)
    np.savez("b.npz", embeddings=np.load("test.npy"), labels=np.array([f"{x}" for x in LABELS]), ids=ids)
    assert run("evaluate", "a.npz", "--compare", "b.npz").status == 0
    assert run("evaluate", "a.npz", "--compare", "other.npz").status == 0
    np.savez("c.npz", embeddings=np.load("test.npy"), labels=LABELS + 100)
    assert run("evaluate", "a.npz", "--compare", "c.npz").status == 2
    assert run("evaluate", "a.npz", "--compare", "c.npz", "--labels", "labels.txt").status == 0


def test_the_report_is_printed_and_saved_before_the_comparison_fails(folder, run):
    fr.evaluate(np.load("test.npy"), LABELS // 2).save("others.json")
    found = run("evaluate", "test.npz", "--compare", "others.json", "--json", "kept.json")
    assert found.status == 2
    assert "mAP" in found.out
    assert fr.Report.load("kept.json").queries == 36
    last = found.err.splitlines()[-1]
    assert last.startswith("frontrank evaluate: --compare: positives differ for ")
    assert last.endswith("(report_a is others.json, report_b is test.npz)")
