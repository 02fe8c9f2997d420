"""`frontrank adapt`: from embeddings with labels to an adapter that the other commands read."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr

GUIDE = Path(__file__).parents[2] / "docs" / "your_own_embeddings.md"
QUICK = ("--steps", "3")
MODEL = "runs/first/model"


def test_says_how_held_out_classes_rank_before_and_after(folder, run, report):
    result = run("adapt", "train.npz", "--dims", "8,4", "--out", "new.safetensors", *QUICK, "--held-out", "0.5")
    assert result.status == 0, result.err
    assert re.search(r"^R@1 .*before|^metric +before +after", result.out, re.MULTILINE)
    adapter = fr.Adapter.load("new.safetensors")
    assert (adapter.in_dim, adapter.out_dim) == (20, 8)
    if adapter.chosen.start == "pca":
        assert re.search(r"^ *8 .* 32 +8$", result.out, re.MULTILINE)
        assert re.search(r"^ *4 .* 16 +4$", result.out, re.MULTILINE)
    data = np.load("test.npz")
    expected = fr.evaluate(adapter.truncate(4).apply(data["embeddings"]), data["labels"])
    words = ("--adapter", "new.safetensors", "--dim", "4")
    assert report("test.npz", *words).metrics == expected.metrics


def test_nothing_is_held_out(folder, run):
    result = run("adapt", "train.npz", "--out", "new.safetensors", *QUICK, "--held-out", "0", status=0)
    assert "before" not in result.out
    assert fr.Adapter.load("new.safetensors").chosen.steps == 3


def test_embed_and_index_apply_it(folder, run):
    words = ("--adapter", "photos_adapter.safetensors", "--dim", "5", "--workers", "0")
    for more in ((), words):
        name = "adapted.npz" if more else "plain.npz"
        assert run("embed", MODEL, "--data", "my_photos/test", "--out", name, *more).status == 0
    plain, adapted = (fr.data.read_embeddings(name) for name in ("plain.npz", "adapted.npz"))
    adapter = fr.Adapter.load("photos_adapter.safetensors").truncate(5)
    np.testing.assert_allclose(adapted.embeddings, adapter.transform(plain.embeddings), atol=1e-5)
    for _ in range(2):  # again, with the same adapter
        run("index", MODEL, "my_photos/test", "--to", "photos.index", *words, status=0)
    with fr.Index.load("photos.index") as index:
        np.testing.assert_allclose(
            index.vectors([f"test/{name}" for name in adapted.ids.tolist()]), adapted.embeddings, atol=1e-4
        )
    assert run("search", "photos.index", "my_photos/test/cup/1.png").status == 0
    other = run("index", MODEL, "my_photos/test", "--to", "photos.index", *words[:2], "--workers", "0")
    assert (other.status, "--adapter" in other.err) == (2, True)


@pytest.mark.parametrize("loss", ["pml.ContrastiveLoss", "triplet", "PNP-D_s"])
def test_a_loss_by_the_names_of_compare(folder, run, loss):
    words = ("--loss", loss, "--hidden", "4", "--onnx", "new.onnx", *QUICK)
    run("adapt", "train.npz", "--out", "new.safetensors", *words, status=0)
    assert Path("new.onnx").stat().st_size > 0


def test_several_labels_per_row_are_refused(folder, run):
    Path("several.txt").write_text("".join(json.dumps([f"a{i % 12}", "b"]) + "\n" for i in range(90)))
    result = run("adapt", "train.npz", "--labels", "several.txt", "--out", "new.safetensors", *QUICK)
    assert (result.status, "labels" in result.err) == (2, True)
    assert not Path("new.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("adapt test.npy --out new.safetensors", "--labels"),
        ("adapt train.npz --out new.npy", "--out"),
        ("adapt train.npz --out adapter.safetensors", "--force"),
        ("adapt train.npz --out new.safetensors --loss pnp", "mean PNP"),
        ("adapt train.npz --out new.safetensors --loss pml.ProxyAnchorLoss", "--loss"),
        ("adapt train.npz --out new.safetensors --dims 8,x", "--dims"),
        ("adapt train.npz --out new.safetensors --dim 21", "dim"),
        ("evaluate test.npz --adapter photos_adapter.safetensors", "photos_adapter"),
        ("evaluate test.npz --adapter adapter.safetensors --whiten train.npy", "--whiten"),
        (f"embed {MODEL} --data my_photos --out new.npz --dim 4", "--adapter"),
        (f"embed {MODEL} --data my_photos --out new.npz --adapter adapter.safetensors", "dimensions"),
        (f"index {MODEL} my_photos --to new.index --dim 4", "--adapter"),
    ],
)
def test_refused(folder, run, words, name):
    result = run(*words.split())
    assert result.status == 2
    assert name in result.err
    assert not list(Path().glob("new*"))


def test_the_guide(folder, run):
    """All its commands run, one after the other, on files as it names them."""
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    commands = "".join(blocks).replace("\\\n", " ").splitlines()
    assert len(commands) >= 6
    for command in commands:
        program, *words = shlex.split(command, comments=True)
        assert program == "frontrank"
        if words[0] == "adapt":
            words += QUICK
        if words[0] == "serve":  # which would not end
            words += ["--help"]
        result = run(*words)
        assert result.status == 0, (command, result.err)
