"""`frontrank embed`: what it writes, what it refuses, and that it goes on where it was."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank.cli import embed as command
from frontrank.errors import InputError
from frontrank.training import embedding
from frontrank.training.defaults import load_model
from tests.cli.images import EACH, TEST, TRAIN, published
from tests.data.files import many_scans

MODEL = "runs/first/model"
WORKERS = ("--workers", "0")
ROWS = len(TEST) * EACH


@pytest.fixture
def embed(folder, run):
    """A function that embeds my_photos, in the current folder, with more words."""
    return lambda *words, **ends: run("embed", MODEL, "--data", "my_photos", *WORKERS, *words, **ends)


def expected(split="test", batch_size=64):
    table = fr.data.read_folder("my_photos").of(split)
    return fr.embed_table(load_model(MODEL), table, workers=0, batch_size=batch_size), table


@pytest.mark.parametrize("ending", command.ENDINGS)
def test_every_ending_can_be_evaluated(embed, report, ending):
    result = embed("--out", f"out{ending}")
    assert (result.status, result.out) == (0, "")
    assert re.fullmatch(f".*my_photos: {ROWS} .*\n.*out{ending}: {ROWS} x 8\n", result.err)
    embeddings, table = expected()
    file = fr.data.read_embeddings(f"out{ending}")
    assert np.array_equal(np.asarray(file.embeddings), embeddings)
    if ending == ".safetensors":  # which holds no text
        ids, labels = (json.loads(Path(f"out.{name}.json").read_text()) for name in ("ids", "labels"))
        assert report("out.safetensors", "--labels", "out.labels.json").queries == ROWS
    else:
        ids, labels = file.ids.tolist(), file.labels.tolist()
    assert labels == table.labels.tolist()
    assert ids == table.paths.tolist()
    assert report(f"out{ending}").metrics == fr.evaluate(embeddings, table.labels).metrics
    assert not list(Path().glob("*.parts"))


def test_without_test_images_all_are_embedded(folder, run):
    words = ("--out", "out.npz", *WORKERS, "--quiet", "--batch-size", "5", "--force")
    for data in (["my_photos/train"], ["my_photos", "--split", "train"]):
        result = run("embed", MODEL, "--data", *data, *words)
        assert (result.status, result.out, result.err) == (0, "", "")
        embeddings, _ = expected("train", batch_size=5)
        assert np.array_equal(fr.data.read_embeddings("out.npz").embeddings, embeddings)


def test_broken_images_are_named_and_left_out(embed, run):
    Path("my_photos/test/cup/bomb.jpg").write_bytes(many_scans())
    result = embed("--out", "out.npz", "--quiet")
    assert (result.status, result.err.count("\n"), "bomb.jpg" in result.err) == (0, 1, True)
    assert len(np.load("out.npz")["embeddings"]) == ROWS
    for file in Path("my_photos").rglob("*.png"):
        file.write_bytes(b"no picture")
    result = embed("--out", "none.npz", "--quiet")
    assert (result.status, Path("none.npz").exists()) == (2, False)


def test_one_that_was_killed_when_the_file_was_written_goes_on(embed, monkeypatch):
    def end(folder):
        raise InputError("ended")

    with monkeypatch.context() as patch:
        patch.setattr(command.shutil, "rmtree", end)
        assert embed("--out", "out.npz", "--quiet").status == 2
    assert embed("--out", "out.npz", "--quiet").status == 0
    assert np.array_equal(fr.data.read_embeddings("out.npz").embeddings, expected()[0])
    assert embed("--out", "out.npz", "--quiet").status == 2  # now it is finished


def test_a_folder_without_classes(folder, run):
    run("embed", MODEL, "--data", f"my_photos/train/{TRAIN[0]}", *WORKERS, "--out", "loose.npz", status=0)
    table = fr.data.read_unlabelled([f"my_photos/train/{TRAIN[0]}"])
    stored = np.load("loose.npz")
    assert np.array_equal(stored["embeddings"], fr.embed_table(load_model(MODEL), table, workers=0))
    assert not {"labels", "label"} & {*stored}


def test_a_published_data_set_that_is_not_complete(folder, run):
    published("in-shop", folder / "shop")
    words = ["embed", MODEL, "--data", "shop", *WORKERS, "--out", "out.npz"]
    assert run(*words).status == 2
    result = run(*words, "--allow-partial", "--layout", "in-shop", "--quiet", status=0)
    assert "warning: In-Shop Clothes" in result.err
    assert len(fr.data.read_embeddings("out.npz").embeddings) == 3


def test_a_full_disk_keeps_what_was_embedded(embed, monkeypatch):
    def fail(*_, **__):
        raise InputError("out.npz cannot be written")

    with monkeypatch.context() as patch:
        patch.setattr(embedding, "merge_embeddings", fail)
        assert embed("--out", "out.npz").status == 2
    assert "out.npz.parts" in embed("--out", "out.npz", "--split", "all").err  # begun with other images
    monkeypatch.setattr(embedding, "embedded_batches", lambda *_, **__: pytest.fail("it embeds again"))
    assert embed("--out", "out.npz").status == 0


def test_existing_files_are_replaced_only_by_force(embed, folder, monkeypatch):
    (folder / "out.ids.json").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(command, "read_images", lambda *_, **__: pytest.fail("it reads before it refuses"))
        result = embed("--out", "out.safetensors")
    assert (result.status, (folder / "out.ids.json").read_text()) == (2, "mine")
    assert "out.ids.json" in result.err
    assert embed("--out", "out.safetensors", "--force").status == 0
    assert len(json.loads((folder / "out.ids.json").read_text())) == ROWS


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("runs/first/model --out a.npz", "--data"),
        ("runs/first/model --data my_photos --out a.npy", "--out a.npy"),
        ("runs/first/model --data my_photos --out no/a.npz", "--out"),
        ("runs/first/model --data nowhere --out a.npz", "--data nowhere"),
        ("ALL --split tset", "--split"),
        ("ALL --split validation", "validation"),
        ("ALL --batch-size 0", "--batch-size"),
        ("my/lost/model --data my_photos --out a.npz", "my/lost/model"),
    ],
)
def test_refusals(originals, refused, monkeypatch, words, name):
    monkeypatch.chdir(originals)
    refused(["embed", *words.replace("ALL", "runs/first/model --data my_photos --out a.npz").split()], name)
