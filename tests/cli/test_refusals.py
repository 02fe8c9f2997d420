"""What `frontrank evaluate` refuses: one line that names the option or file and the remedy, and no traceback."""

import os

import numpy as np
import pytest

import frontrank as fr
from frontrank.cli import evaluation, evaluation_inputs
from tests.cli.conftest import LABELS

GALLERY = "queries.parquet --gallery gallery.parquet"
REVISITED = "q.npy --gallery g.npy --protocol revisited --ground-truth gnd_roxford5k.pkl"

CASES = [
    # what argparse finds
    (
        "test.npz --augment=x",
        "argument --augment: needs a whole number from 1, or nothing, got 'x'; put files before it",
    ),
    ("--expand test.npz", "argument --expand: needs a whole number from 1, or nothing, got 'test.npz'; put files"),
    ("test.npz --expand 0", "argument --expand: needs a whole number from 1, or nothing, got '0'"),
    ("test.npz --whiten train.npy --dim 0", "argument --dim: needs a whole number from 1, got '0'"),
    ("test.npz --seed=-1", "argument --seed: needs a whole number from 0 to 2147483647, got '-1'"),
    ("test.npz --seed 2147483648", "argument --seed: needs a whole number from 0 to 2147483647, got '2147483648'"),
    ("test.npz --power x", "argument --power: invalid float value: 'x'"),
    ("test.npz --table html", "argument --table: invalid choice: 'html'"),
    # options that need another
    ("test.npz --gallery-labels labels.txt", "--gallery-labels needs --gallery; add it, or leave both out"),
    ("test.npz --gallery-key a", "--gallery-key needs --gallery; "),
    ("test.npz --power 0.5", "--power needs --whiten; "),
    ("test.npz --dim 3", "--dim needs --whiten; "),
    ("test.npz --alpha 1", "--alpha needs --expand or --augment; "),
    ("test.npz --force", "--force needs --json; "),
    (
        "test.npz --ground-truth gnd_roxford5k.pkl",
        "--ground-truth is of the protocol revisited; add --protocol revisited",
    ),
    ("test.npz --setup hard", "--setup is of the protocol revisited; "),
    ("test.npz --protocol sop --distractors g.npy", "--distractors is of the protocol revisited; "),
    ("test.npz --templates group", "--templates is of the protocols vggface2 and ijb-c; add --protocol"),
    ("q.npy --protocol revisited --gallery g.npy", "--protocol revisited needs --ground-truth; add it"),
    ("q.npy --protocol revisited --ground-truth gnd_roxford5k.pkl", "--protocol revisited needs --gallery; add it"),
    ("queries.parquet --protocol in-shop", "--protocol in-shop needs --gallery; add it"),
    # options that do not go together
    (
        f"{REVISITED} --labels labels.txt",
        "--labels does not go with --protocol revisited, which has its own; leave it out",
    ),
    (f"{REVISITED} --gallery-labels a.txt", "--gallery-labels does not go with --protocol revisited"),
    (f"{REVISITED} --metrics R@1", "--metrics does not go with --protocol revisited"),
    (f"{REVISITED} --rerank", "--rerank does not go with --protocol; name the metrics by --metrics instead"),
    (f"{REVISITED} --setup all --compare old.json", "--compare needs one setup; give --setup easy, medium or hard"),
    (
        f"{REVISITED} --templates a",
        "--templates is of the protocols vggface2 and ijb-c, not of revisited; leave it out",
    ),
    (f"{GALLERY} --protocol sop", "--protocol sop searches the embeddings among themselves; leave out --gallery"),
    ("faces.npz --gallery g.npy --protocol ijb-c", "--protocol ijb-c searches the embeddings among themselves"),
    ("faces.npz --protocol ijb-c --expand", "--expand does not go with --protocol ijb-c, which averages rows"),
    ("faces.npz --protocol vggface2 --augment", "--augment does not go with --protocol vggface2"),
    ("test.npz --rerank --device cpu", "--rerank does not go with --device; it runs on the CPU"),
    ("test.npz --rerank --expand", "--rerank with --expand needs --gallery; leave one of them out"),
    (
        "test.npz --rerank --metrics NMI,R@1",
        "--metrics: NMI is of embeddings, not of a search; leave it or --rerank out",
    ),
    ("test.npz --expand --metrics dists@intra", "--metrics: dists@intra is of embeddings, not of a search"),
    (
        f"{GALLERY} --compare other.npz",
        "--compare with --gallery needs a saved report, since other.npz has no such file",
    ),
    (
        "test.npz --whiten train.npy --compare other.npz",
        "--compare with --whiten needs a saved report, since other.npz",
    ),
    # values
    ("test.npz --protocol cup", "--protocol 'cup' is not known; did you mean 'cub'?"),
    ("test.npz --protocol flowers", "--protocol 'flowers' is not known; there are sop, cub, "),
    ("test.npz --metrics recall@1", "metrics: 'recall@1' is not known; did you mean R@1?"),
    ("test.npz --metrics ,", 'metrics is empty; name at least one, such as "mAP"'),
    ("test.npz --whiten train.npy --power 2", "--power must be at least 0 and at most 1, got 2.0"),
    ("test.npz --expand --alpha=-1", "--alpha must be at least 0, got -1.0"),
    ("test.npz --expand --alpha nan", "--alpha must be at least 0, got nan"),
    ("test.npz --device gpu", "--device 'gpu' cannot be used (Expected one of cpu, cuda, "),
    ("test.npz --device meta", "--device 'meta' cannot be used ("),
    (
        "test.npz --whiten train.npy --dim 50",
        "train.npy: dim is 50, but the 90 rows of embeddings vary in 20 directions",
    ),
    # files
    ("tset.npz", "tset.npz is not there; did you mean 'test.npz'?"),
    (".", ". is a folder, as of a model, which needs --data; add it, or name a file"),
    ("labels.txt", "labels.txt ends in '.txt', but embeddings are read from .npy, .npz, .parquet, .safetensors"),
    ("test.npz --gallery galery.npy", "galery.npy is not there; did you mean 'gallery.npy'?"),
    ("test.npz --whiten trian.npy", "trian.npy is not there; did you mean 'train.npy'?"),
    ("test.npz --compare zzz.npz", "zzz.npz is not there; check its name and the folder ."),
    ("test.npz --compare zzz.json", "zzz.json cannot be read: No such file or directory"),
    ("test.npz --compare empty.json", "empty.json is not valid JSON, or only a part of a file; save the report again"),
    (f"{REVISITED}.gz", "gnd_roxford5k.pkl.gz cannot be read: No such file or directory; look at the path"),
    (
        "test.npy --key a --labels labels.txt",
        "test.npy holds one array without a name, so 'a' cannot be picked; leave out",
    ),
    (
        "test.npz --whiten distractors.npz:mroe",
        "distractors.npz has no 'mroe', only 'embeddings', 'more'; did you mean 'more'?",
    ),
    (
        "distractors.npz:more --key more",
        "distractors.npz:more names an array, and a key names 'more'; leave one of them",
    ),
    ("twice.npz", "ids in twice.npz must all differ, but 1 occurs more than once: 'a' in rows 0, 1 (from 0); drop"),
    ("nan.npz", "embeddings has NaN or infinite values in 1 row (number 3); drop those rows"),
    (
        "test.npz --whiten nan.npz",
        "nan.npz: embeddings has NaN or infinite values in 1 row (number 3); drop those rows",
    ),
    (
        "nan.npz --whiten train.npy",
        "nan.npz: embeddings has NaN or infinite values in 1 row (number 3); drop those rows",
    ),
    (
        "test.npz --compare nan.npz",
        "nan.npz: embeddings has NaN or infinite values in 1 row (number 3); drop those rows",
    ),
    # labels
    ("test.npy", "test.npy has no labels in it; give them by --labels, as a file or the name of a column"),
    (
        "test.npz --gallery g.npy",
        "g.npy has no labels in it; give them by --gallery-labels, as a file or the name of a",
    ),
    ("test.npz --labels gruop", "labels: 'gruop' is no file, and no array of one entry per row in test.npz, which has"),
    (
        "test.npz --labels queries.txt",
        "labels: queries.txt has 18 entries for 36 rows of embeddings; give one entry per row",
    ),
    ("q.npy --labels 4.txt --gallery g.npy --gallery-labels 4.txt", "gallery labels: 4.txt has 4 entries for 40 rows"),
    ("faces.npz --protocol ijb-c --templates zzz.txt", "zzz.txt is not there; check its name"),
    (
        "other.npz --labels text --gallery test.npz",
        "labels are text and gallery_labels are numbers; convert one to the other",
    ),
    ("test.npz --labels single", "no query has a relevant item, so there is nothing to rank; look at labels"),
    # files that do not go together
    (
        "test.npz --gallery narrow.npz",
        "test.npz has 20 dimensions and narrow.npz has 3; both must come from the same model",
    ),
    ("test.npz --whiten narrow.npz", "test.npz has 20 dimensions and narrow.npz has 3; both must come"),
    ("test.npz --whiten white.safetensors --dim 2", "--dim is for fitting, but white.safetensors is a saved whitening"),
    ("test.npz --whiten white.safetensors --power 0", "--power is for fitting, but white.safetensors is a saved"),
    (
        "narrow.npz --whiten white.safetensors",
        "narrow.npz has 3 dimensions, but the whitening of white.safetensors was",
    ),
    (
        "test.npz --compare narrow.npz",
        "--compare: test.npz has 36 rows and narrow.npz has 5; both must have the same rows",
    ),
    (
        "q.npy --labels 4.txt --compare old.json",
        "--compare: old.json is of 36 queries, but q.npy has 4 rows; both must be",
    ),
    (
        f"{REVISITED.replace('q.npy', 'g.npy')}",
        "gnd_roxford5k.pkl is of 4 queries, but g.npy has 40 rows; give a row per",
    ),
    (
        "ids.npz --compare shuffled.npz",
        "--compare: the ids of ids.npz and shuffled.npz differ in 36 of 36 rows, first in row 0 (0.jpg and 35.jpg); "
        "sort both by id, in the same order, in both",
    ),
    (
        "ids.npz --compare renamed.npz",
        "--compare: the ids of ids.npz and renamed.npz differ in 1 of 36 rows, first in row 3 (3.jpg and x.jpg); "
        "use the same rows, in the same order, in both",
    ),
    (
        "test.npz --compare relabelled.npz",
        "--compare: the labels of test.npz and relabelled.npz differ in 36 of 36 rows",
    ),
    # where to write
    ("test.npz --json out.txt", "--json out.txt must end in .json; choose such a name"),
    ("test.npz --json old.json", "--json old.json exists already; choose another name, or add --force to replace it"),
    ("test.npz --json missing/out.json", "--json: the folder missing is not there; make it first"),
    ("test.npz --json folder.json --force", "--json folder.json is a folder; choose another name"),
    (
        "test.npz --labels labels.json --json ./labels.json --force",
        "--json labels.json is read by this command; choose",
    ),
    (f"{REVISITED} --setup all --json out.json", "--json out-hard.json exists already; choose another name"),
]


@pytest.fixture
def more(folder):
    """Files that some command lines cannot use."""
    x, ids = np.load("test.npy"), np.array([f"{i}.jpg" for i in range(36)])
    broken = x.copy()
    broken[3, 2] = np.nan
    np.savez("nan.npz", embeddings=broken, labels=LABELS)
    np.savez("test.npz", embeddings=x, labels=LABELS, group=LABELS % 4, single=np.arange(36))
    np.savez("twice.npz", embeddings=x[:3], labels=LABELS[:3], ids=np.array(["a", "a", "b"]))
    np.savez("narrow.npz", embeddings=x[:5, :3], labels=LABELS[:5])
    np.savez("ids.npz", embeddings=x, labels=LABELS, ids=ids)
    np.savez("shuffled.npz", embeddings=x, ids=ids[::-1])
    np.savez("renamed.npz", embeddings=x, ids=np.r_[ids[:3], ["x.jpg"], ids[4:]])
    np.savez("relabelled.npz", embeddings=x, labels=LABELS + 1)
    fr.Whitening.fit(np.load("train.npy"), dim=4).save("white.safetensors")
    for name, text in (("4.txt", "0\n1\n0\n1\n"), ("labels.json", f"{LABELS.tolist()}"), ("out-hard.json", "mine")):
        (folder / name).write_text(text)
    (folder / "empty.json").write_text("")
    (folder / "folder.json").mkdir()
    return folder


@pytest.mark.parametrize(("words", "message"), CASES)
def test_refused_in_one_line(more, run, words, message):
    before = {path.name: path.stat().st_mtime_ns for path in more.iterdir()}
    found = run("evaluate", *words.split())
    said = [line for line in found.err.splitlines() if line and not line.startswith("read ")]
    assert found.status == 2
    assert len(said) == 1, found.err
    assert said[0].startswith(f"frontrank evaluate: {message}")
    late = "--compare nan.npz" in words  # what was asked for is known by then
    assert bool(found.out) == late
    assert {path.name: path.stat().st_mtime_ns for path in more.iterdir()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to(folder, run):
    (folder / "locked").mkdir(mode=0o500)
    assert (
        "nothing can be written to locked; choose another folder"
        in run("evaluate", "test.npz", "--json", "locked/a.json").err
    )


@pytest.mark.parametrize(
    ("words", "size", "message"),
    [
        ("test.npz --rerank", 4 * 36 * 36, "--rerank would hold 0.0 GB, and this machine has 0.0; leave it out"),
        ("queries.parquet --gallery gallery.parquet --rerank", 4 * 18 * 40, "--rerank would hold"),
        ("test.npz --whiten train.npy", 4 * 36 * 20, "--whiten would hold"),
        ("test.npz --whiten train.npy --dim 5", 4 * 36 * 5, "--whiten would hold"),
        ("queries.parquet --gallery gallery.parquet --augment", 4 * 58 * 20, "--augment would hold"),
        (f"{REVISITED} --distractors distractors.npz --expand", 4 * 74 * 20, "--expand would hold"),
    ],
)
def test_more_than_the_memory(folder, run, monkeypatch, words, size, message):
    monkeypatch.setattr(evaluation_inputs, "_memory", lambda: size)
    assert run("evaluate", *words.split()).status == 0
    monkeypatch.setattr(evaluation_inputs, "_memory", lambda: size - 1)
    found = run("evaluate", *words.split())
    assert found.status == 2
    assert f"frontrank evaluate: {message}" in found.err


def test_the_memory_of_this_machine(monkeypatch):
    assert 1e8 < evaluation_inputs._memory() < 1e16
    monkeypatch.delattr(os, "sysconf")
    assert evaluation_inputs._memory() == np.inf


@pytest.mark.parametrize(
    "words",
    ["test.npz --json old.json", "test.npz --gallery zzz.npy", "test.npz --metrics x", "test.npz --compare z.npz"],
)
def test_cheap_checks_come_before_reading(folder, run, monkeypatch, words):
    """The embeddings may be large: nothing is read that will be refused for another reason."""

    def read(*arguments):
        raise AssertionError("read")

    monkeypatch.setattr(evaluation_inputs, "read_rows", read)
    assert run("evaluate", *words.split()).status == 2


def test_files_that_do_not_fit_are_found_before_the_work(more, run, monkeypatch):
    def work(*arguments):
        raise AssertionError("worked")

    monkeypatch.setattr(evaluation, "read_steps", work)
    for words in (
        "test.npz --whiten narrow.npz",
        "ids.npz --compare shuffled.npz",
        "other.npz --labels text --gallery test.npz",
    ):
        assert run("evaluate", *words.split()).status == 2
