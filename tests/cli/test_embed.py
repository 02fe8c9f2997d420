"""`frontrank embed`: what it writes, what it refuses, and that it goes on where it was."""

import json
import os
import shlex
import warnings
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank.cli import embed as command
from frontrank.cli import embedding
from frontrank.errors import FrontrankWarning, InputError
from frontrank.training import embedding as embedding_folder
from tests.cli.images import EACH, TEST, TRAIN, published, small_model, tree

MODEL = "runs/first/model"
WORKERS = ("--workers", "0")


@pytest.fixture
def embed(folder, run):
    """A function that embeds my_photos, in the current folder, with more words."""
    return lambda *words: run("embed", MODEL, "--data", "my_photos", *WORKERS, *words)


def expected(split="test", batch_size=64):
    table = fr.data.read_folder("my_photos").of(split)
    return fr.embed_table(fr.Embedder.load(MODEL), table, workers=0, batch_size=batch_size), table


def examples():
    shown = command.EPILOG.split("examples:\n")[1].replace("\\\n", " ")
    return [shlex.split(line) for line in shown.splitlines()]


def test_examples_of_the_help(folder, run):
    """One after the other, as they build on each other; the one of several processes here with one."""
    fr.data.read_folder("my_photos").save("table.csv", overwrite=True)
    assert len(examples()) == 4
    for words in examples():
        words = words[words.index("frontrank") + 1 :]
        more = [] if words[0] == "evaluate" else [*WORKERS, *(["--force"] if Path(words[-1]).exists() else [])]
        found = run(*words, *more)
        assert found.status == 0, found.err
        assert "wrote " in found.err or "mAP" in found.out
    for name in ("photos.safetensors", "test.npz"):
        assert np.array_equal(fr.data.read_embeddings(name).embeddings, expected()[0])


def test_help(run):
    found = run("embed", "--help")
    assert (found.status, found.err) == (0, "")
    assert found.out.endswith(command.EPILOG)
    assert max(map(len, found.out.splitlines())) <= 80


@pytest.mark.parametrize("ending", command.ENDINGS)
def test_every_ending_can_be_evaluated(embed, report, ending):
    found = embed("--out", f"out{ending}")
    assert (found.status, found.out) == (0, "")
    rows = len(TEST) * EACH
    assert found.err == f"read my_photos: {rows} images of test\nwrote out{ending}: {rows} x 8\n"
    embeddings, table = expected()
    kept = fr.data.read_embeddings(f"out{ending}")
    assert np.array_equal(np.asarray(kept.embeddings), embeddings)
    if ending == ".safetensors":  # which holds no text
        ids, labels = (json.loads(Path(f"out.{name}.json").read_text()) for name in ("ids", "labels"))
        assert report("out.safetensors", "--labels", "out.labels.json").queries == rows
    else:
        ids, labels = kept.ids.tolist(), kept.labels.tolist()
    assert labels == table.labels.tolist()
    assert ids == table.paths.tolist()
    assert report(f"out{ending}").metrics == fr.evaluate(embeddings, table.labels).metrics
    assert not list(Path().glob("*.parts"))


@pytest.mark.parametrize(
    ("split", "rows", "said"),
    [
        ("train", len(TRAIN) * EACH, " of train"),
        ("test", len(TEST) * EACH, " of test"),
        ("all", (len(TRAIN) + len(TEST)) * EACH, ""),
    ],
)
def test_splits(embed, split, rows, said):
    found = embed("--out", "out.npz", "--split", split, "--batch-size", "5")
    assert found.err == f"read my_photos: {rows} images{said}\nwrote out.npz: {rows} x 8\n"
    embeddings, _ = expected(None if split == "all" else split, batch_size=5)
    assert np.array_equal(fr.data.read_embeddings("out.npz").embeddings, embeddings)


@pytest.mark.parametrize(
    ("given", "how"),
    [
        ({"batch_size": None, "workers": None, "quiet": False}, {"batch_size": 64, "workers": 2, "show": None}),
        ({"batch_size": 5, "workers": 0, "quiet": True}, {"batch_size": 5, "workers": 0, "show": False}),
    ],
)
def test_how_images_are_read(given, how):
    assert embedding._how(Namespace(**given)) == how


def test_without_test_images_all_are_embedded(folder, run):
    found = run("embed", MODEL, "--data", "my_photos/train", "--out", "out.npz", *WORKERS, "--quiet")
    assert (found.status, found.out, found.err) == (0, "", "")
    assert len(fr.data.read_embeddings("out.npz").embeddings) == len(TRAIN) * EACH


def test_a_layout_and_a_published_data_set(folder, run):
    published("in-shop", folder / "shop")
    words = ["embed", MODEL, "--data", "shop", *WORKERS, "--out", "out.npz"]
    assert "is not as published" in run(*words).err
    with warnings.catch_warnings():
        warnings.simplefilter("default", FrontrankWarning)
        found = run(*words, "--allow-partial", "--layout", "in-shop", "--quiet")
    assert found.status == 0
    assert found.err.startswith("frontrank embed: warning: In-Shop Clothes in shop")
    assert len(fr.data.read_embeddings("out.npz").embeddings) == 3


# Stopped and continued


def test_it_goes_on_where_it_was(embed, monkeypatch):
    embeddings, table = expected(batch_size=4)
    monkeypatch.setattr(embedding, "embed_to_folder", partial(embedding_folder.embed_to_folder, shard_rows=4))
    seen, own = [], embedding_folder.embedded_batches

    def batches(model, table, fails, **options):
        for number, block in enumerate(own(model, table, **options)):
            if fails and number == 2:
                raise KeyboardInterrupt
            seen.extend(table.paths[4 * number :][: len(block)].tolist())
            yield block

    words = ("--out", "out.npz", "--batch-size", "4")
    monkeypatch.setattr(embedding_folder, "embedded_batches", partial(batches, fails=True))
    assert embed(*words).status == 130
    assert not Path("out.npz").exists()
    assert len(list(Path("out.npz.parts").glob("shard-*"))) == 2
    monkeypatch.setattr(embedding_folder, "embedded_batches", partial(batches, fails=False))
    assert embed(*words).status == 0
    assert seen == table.paths.tolist()  # each once
    assert np.array_equal(fr.data.read_embeddings("out.npz").embeddings, embeddings)
    assert not Path("out.npz.parts").exists()


def test_parts_of_another_model_are_not_gone_on_with(embed, folder, monkeypatch):
    def full(*_, **__):
        raise InputError("out.npz cannot be written (No space left on device); free some")

    with monkeypatch.context() as patch:
        patch.setattr(embedding, "merge_embeddings", full)
        assert embed("--out", "out.npz").err.endswith("No space left on device); free some\n")
    small_model(folder / "second", seed=1)
    found = embed("--out", "out.npz", "--split", "all")
    assert found.status == 2
    assert found.err.endswith(
        "out.npz.parts was begun with another table and rows; give another folder, or delete this one\n"
    )
    assert embed("--out", "out.npz").status == 0


def test_force_replaces_a_file(embed, folder):
    (folder / "out.npz").write_text("mine")
    found = embed("--out", "out.npz")
    assert (found.status, (folder / "out.npz").read_text()) == (2, "mine")
    assert found.err == (
        "frontrank embed: --out: out.npz exists already; choose another name, or add --force to replace it\n"
    )
    assert embed("--out", "out.npz", "--force").status == 0
    assert len(fr.data.read_embeddings("out.npz").embeddings) == len(TEST) * EACH


def test_a_file_that_appears_during_the_work_is_kept(embed, folder, monkeypatch):
    def work(*arguments, **options):
        (folder / "out.npz").write_text("mine")
        return embedding_folder.embed_to_folder(*arguments, **options)

    monkeypatch.setattr(embedding, "embed_to_folder", work)
    found = embed("--out", "out.npz")
    assert (found.status, (folder / "out.npz").read_text()) == (2, "mine")
    assert "out.npz exists already" in found.err


def test_a_file_beside_it_is_not_replaced_either(embed, folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(embedding, "read_images", None)  # it is refused before any work
        for name in ("out.labels.json", "out.ids.json"):
            (folder / name).write_text("mine")
            found = embed("--out", "out.safetensors")
            assert found.err.startswith(f"frontrank embed: --out: {name} exists already; choose another name")
            (folder / name).rename("other")
    (folder / "out.ids.json").write_text("mine")
    assert embed("--out", "out.safetensors", "--force").status == 0
    assert len(json.loads((folder / "out.ids.json").read_text())) == len(TEST) * EACH


# Refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("runs/first/model --data my_photos", "the following arguments are required: --out; see"),
        ("runs/first/model --out a.npz", "the following arguments are required: --data; see"),
        ("--data my_photos --out a.npz", "the following arguments are required: MODEL; see"),
        ("runs/first/model --data my_photos --out a.npy", "--out a.npy must end in .safetensors, .npz, "),
        ("runs/first/model --data my_photos --out a", "--out a must end in"),
        ("runs/first/model --data my_photos --out no/a.npz", "--out: the folder no is not there; make it first"),
        ("runs/first/model --data nowhere --out a.npz", "--data nowhere is not there; give a folder of images"),
        ("ALL --split tset", "--split 'tset' is not known; there are train, "),
        ("ALL --split validation", "--data my_photos has no images of the"),
        ("ALL --batch-size 0", "--batch-size must be at least 1, got 0"),
        ("ALL --workers -1", "--workers must be at least 0, got -1"),
        ("ALL --batch-size x", "argument --batch-size: invalid int value"),
        ("ALL --layout sopp", "data.layout 'sopp' is not known; did you mean sop"),
        ("ALL --device cuda:9", "device 'cuda:9' cannot be used"),
        ("ALL --sharts 3", "there is no option --sharts"),
        ("runs/first --data my_photos --out a.npz", "runs/first has no config.json; give the folder of a saved model"),
        ("test.npy --data my_photos --out a.npz", "test.npy is a file; give the folder of a saved model"),
        ("my/lost/model --data my_photos --out a.npz", "my/lost/model does not exist"),
        ("runs/first/model --data labels.txt --out a.npz", "labels.txt"),
    ],
)
def test_refused_in_one_line(folder, run, words, message):
    before = tree(folder)
    found = run("embed", *words.replace("ALL", "runs/first/model --data my_photos --out a.npz").split())
    (said,) = [line for line in found.err.splitlines() if not line.startswith("read ")]
    assert (found.status, found.out) == (2, "")
    assert said.startswith(f"frontrank embed: {message}")
    assert tree(folder) == before


def test_a_folder_that_cannot_be_written_to(embed, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "--out: nothing can be written to .; choose another folder" in embed("--out", "out.npz").err


@pytest.mark.parametrize("ending", command.ENDINGS)
def test_names_that_are_not_utf8(embed, folder, ending):
    (folder / "my_photos" / "test" / "cup").rename(folder / "my_photos" / "test" / os.fsdecode(b"caf\xe9"))
    found = embed("--out", f"out{ending}")
    if ending == ".npz":
        assert found.status == 0
        assert fr.data.read_embeddings("out.npz").labels.tolist().count("caf\udce9") == EACH
    else:
        said = r"'test/caf\udce9/0.png' has a name that is not UTF-8, and out"
        assert found.err.splitlines()[-1] == f"frontrank embed: {said}{ending} cannot hold it; use .npz"
        assert not list(folder.glob("out*"))


def test_a_broken_image(embed, folder):
    (folder / "my_photos" / "test" / "cup" / "1.png").write_bytes(b"no picture")
    found = embed("--out", "out.npz")
    assert (found.status, Path("out.npz").exists()) == (2, False)
    assert "cup/1.png" in found.err.splitlines()[-1]


def test_a_folder_without_classes(folder, run):
    found = run("embed", MODEL, "--data", f"my_photos/train/{TRAIN[0]}", *WORKERS, "--out", "loose.npz")
    assert found.status == 0, found.err
    table = fr.data.read_unlabelled([f"my_photos/train/{TRAIN[0]}"])
    stored = np.load("loose.npz")
    assert np.array_equal(stored["embeddings"], fr.embed_table(fr.Embedder.load(MODEL), table, workers=0))
    assert "labels" not in stored
    assert "label" not in stored
