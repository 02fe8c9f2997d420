"""A folder with what the examples of the commands' --help name, and some more."""

import pickle
import re
import shlex
import shutil
import warnings
from inspect import cleandoc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import frontrank as fr
from frontrank.cli import main
from frontrank.errors import FrontrankWarning
from tests.cli.images import photos, small_model
from tests.data.files import write_arrays

DIM = 20
RNG = np.random.default_rng(7)
CENTRES = RNG.normal(size=(12, DIM))


def rows(labels, noise=1.0):
    return (CENTRES[labels] + noise * RNG.normal(size=(len(labels), DIM))).astype(np.float32)


def lines(path, entries):
    path.write_text("\n".join(map(str, entries)) + "\n")


LABELS = np.arange(36) % 12
QUERY_LABELS, GALLERY_LABELS = np.arange(18) % 6, np.arange(40) % 10
FACES = np.arange(72) % 4
GROUND_TRUTH = [
    {"easy": np.arange(i, 40, 8), "hard": np.arange(i + 4, 32, 8), "junk": np.array([i + 36]), "bbx": [0, 0, 1, 1]}
    for i in range(4)
]


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    test = rows(LABELS)
    write_arrays(folder / "test.npy", embeddings=test)
    write_arrays(folder / "test.npz", embeddings=test, labels=LABELS, group=LABELS % 4)
    write_arrays(folder / "other.npz", embeddings=rows(LABELS, 1.6), labels=LABELS, text=LABELS.astype(str))
    lines(folder / "labels.txt", LABELS)
    (folder / "table.csv").write_text("path,product\n" + "".join(f"{i}.jpg,p{x}\n" for i, x in enumerate(LABELS)))
    training = rows(np.arange(90) % 12)
    write_arrays(folder / "train.npy", embeddings=training)
    write_arrays(folder / "train.npz", embeddings=training, labels=np.arange(90) % 12)
    fr.Adapter.fit(training, np.arange(90) % 12, held_out=0, steps=2).save(folder / "adapter.safetensors")
    for name, labels in (("queries", QUERY_LABELS), ("gallery", GALLERY_LABELS)):
        write_arrays(folder / f"{name}.npy", embeddings=rows(labels))
        lines(folder / f"{name}.txt", labels)
        ids = np.array([f"{name}/{i}.jpg" for i in range(len(labels))])
        write_arrays(folder / f"{name}.parquet", embedding=rows(labels), label=labels, path=ids)
    write_arrays(folder / "faces.npz", embeddings=rows(FACES), labels=FACES, template=np.arange(72) // 8 * 4 + FACES)
    write_arrays(folder / "q.npy", embeddings=rows(np.arange(4)))
    write_arrays(folder / "g.npy", embeddings=rows(np.arange(40) % 4))
    write_arrays(folder / "distractors.npz", embeddings=rows(np.full(30, 5)), more=rows(np.full(30, 6)))
    truth = {"imlist": [f"g{i}" for i in range(40)], "qimlist": list("abcd"), "gnd": GROUND_TRUTH}
    (folder / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(truth))
    fr.evaluate(rows(LABELS, 1.6), LABELS, name="older").save(folder / "old.json")
    photos(folder / "my_photos")
    small_model(folder / "runs" / "first" / "model")
    eight = fr.Adapter.fit(training[:, :8], np.arange(90) % 12, held_out=0, steps=2)  # as the model has
    eight.save(folder / "photos_adapter.safetensors")
    return folder


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """Which images can be read is remembered here, and not in the user's own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FRONTRANK_CACHE", raising=False)


@pytest.fixture
def folder(originals, tmp_path, monkeypatch):
    """A copy of the files, as the current folder."""
    path = tmp_path / "work"
    shutil.copytree(originals, path)
    monkeypatch.chdir(path)
    return path


@pytest.fixture(scope="module")
def copied(originals, tmp_path_factory):
    """A copy of the files that a module may add to."""
    return Path(shutil.copytree(originals, tmp_path_factory.mktemp("copied") / "files"))


@pytest.fixture
def here(originals, tmp_path, monkeypatch):
    """A current folder with my_photos in it."""
    folder = tmp_path / "here"
    shutil.copytree(originals / "my_photos", folder / "my_photos")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(capsys):
    """A function that runs `frontrank`, which must end with `status` if given; returns status, stdout and stderr."""

    def command(*words, status=None):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default", FrontrankWarning)  # a line of stderr, as a user gets it
                ended = main([str(word) for word in words])
        except SystemExit as end:
            ended = end.code
        out, err = capsys.readouterr()
        assert status in (None, ended), err
        return SimpleNamespace(status=ended, out=out, err=err)

    return command


@pytest.fixture
def refused(run):
    """A function that checks how a command refuses: status 2, one line that names `name`, and nothing is written."""

    def check(words, name):
        before = listing()
        result = run(*words)
        lines = [line for line in result.err.splitlines() if line and not re.search("^read |: warning: ", line)]
        assert (result.status, result.out) == (2, ""), result
        assert len(lines) == 1, lines
        assert lines[0].startswith(f"frontrank {words[0]}")
        assert name in lines[0]
        assert listing() == before
        return lines[0]

    return check


def listing():
    """The files below the current folder, with the time of their last change."""
    return {str(path): path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}


def examples(epilog):
    """The examples of a help text, as the words after `frontrank`."""
    text = cleandoc(epilog).split("examples:\n")[1].split("\n\n")[0].replace("\\\n", " ")
    lines = [shlex.split(line) for line in text.splitlines()]
    lines = [line[line.index("frontrank") + 1 :] for line in lines if "frontrank" in line]
    return [line[: line.index(">")] if ">" in line else line for line in lines]


@pytest.fixture
def report(run):
    """A function that runs `frontrank evaluate` with these words and returns its report."""

    def command(*words):
        out = Path("report-of-this.json")
        result = run("evaluate", *words, "--json", out, "--force")
        assert result.status == 0, result.err
        return fr.Report.load(out)

    return command


def same(a, b):
    """Whether two reports have the same values, per query too."""
    return (
        a.metrics == b.metrics
        and a.per_query.keys() == b.per_query.keys()
        and all(np.array_equal(a.per_query[name], b.per_query[name], equal_nan=True) for name in a.per_query)
        and np.array_equal(a.positives, b.positives)
        and a.gallery_size == b.gallery_size
    )
