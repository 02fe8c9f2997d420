import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from frontrank.data.embedding_files import read_embeddings, read_labels
from frontrank.data.table import ImageTable
from frontrank.data.transforms import evaluation_transform
from frontrank.errors import InputError, InputTypeError
from frontrank.pictures.decode import read_image
from frontrank.training.embedding import embed_table, embed_to_folder, merge_embeddings, write_embeddings
from tests.errors import refusal
from tests.training.small_model import SmallModel, noise_table


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return noise_table(tmp_path_factory.mktemp("images"), rows=11)


def one_by_one(model, table):
    """Return the embedding of each image by itself."""
    model.eval()
    transform = evaluation_transform(model.resize, model.image_size, model.mean, model.std)
    images = [transform(read_image(table.root / path)) for path in table.paths]
    with torch.no_grad():
        return np.stack([model(image[None])[0].numpy() for image in images])


# In memory


@pytest.mark.parametrize(("batch_size", "workers"), [(4, 1), (50, 0)])
def test_every_image_in_the_order_of_the_table(table, batch_size, workers):
    model = SmallModel()
    embeddings = embed_table(model, table, batch_size=batch_size, workers=workers, device="cpu")
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, one_by_one(model, table), atol=1e-6)
    order = np.array([7, 2, 9])
    np.testing.assert_allclose(embed_table(model, table.rows(order), workers=0), embeddings[order], atol=1e-6)


def test_the_model_is_left_as_it_was(table):
    model = SmallModel()
    model.train()
    model.norm.eval()  # as a frozen BatchNorm is
    before = {name: value.clone() for name, value in model.state_dict().items()}
    embed_table(model, table, workers=0)
    assert (model.training, model.norm.training, model.dropout.training) == (True, False, True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    model.broken_rows = (model.seen + 6, model.seen + 8)
    refusal(lambda: embed_table(model, table, batch_size=4, workers=0), "6.png")
    assert (model.training, model.norm.training) == (True, False)


def test_what_a_model_keeps_can_be_trained_with(table):
    class Keeping(SmallModel):
        factor = None

        def forward(self, images):
            self.factor = torch.ones(1) if self.factor is None else self.factor
            return super().forward(images) * self.factor

    model = Keeping()
    embed_table(model, table, workers=0)
    model(torch.zeros(4, 3, 4, 4)).sum().backward()
    assert model.linear.weight.grad is not None


def test_precision(table):
    model = SmallModel()
    exact, half = (embed_table(model, table, workers=0, precision=name) for name in ("float32", "bf16"))
    assert half.dtype == np.float32
    assert 0 < np.abs(exact - half).max() < 0.05
    refusal(lambda: embed_table(model, table, precision="int8"), "precision")


def test_a_transform_of_ones_own(table):
    class Bare(nn.Module):
        def forward(self, images):
            return images.mean((2, 3))

    transform = evaluation_transform(4, 4, mean=(0.0,) * 3, std=(1.0,) * 3)
    embeddings = embed_table(Bare(), table, workers=0, transform=transform)
    pixels = np.array(Image.open(table.root / table.paths[3]).resize((4, 4), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(embeddings[3], pixels.reshape(-1, 3).mean(0) / 255, atol=1e-6)
    refusal(lambda: embed_table(Bare(), table), "Bare", error=InputTypeError)


def test_models_and_images_that_cannot_be_used(table, tmp_path):
    model = SmallModel()
    model.forward = lambda images: torch.zeros(4, 2, 2)
    refusal(lambda: embed_table(model, table, batch_size=4, workers=0), "model")
    (tmp_path / "bad.png").write_bytes(b"nothing")
    bad = ImageTable(tmp_path, ["bad.png"], ["a"], [""], ["test"], [""])
    refusal(lambda: embed_table(SmallModel(), bad, workers=0), "bad.png")
    refusal(lambda: embed_table(SmallModel(), table.rows(np.arange(0))), "table")


# One file


ENDINGS = (".npy", ".npz", ".parquet", ".safetensors")
ROWS = 7
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def seven(table):
    return table.rows(np.arange(ROWS))


def blocks(*sizes):
    return iter(np.split(X, np.cumsum(sizes)[:-1]))


def read(path):
    """Return embeddings, labels and ids, from the file or from those beside it."""
    file = read_embeddings(path)
    texts = {"labels": file.labels, "ids": file.ids}
    for kind in texts:
        beside = path.with_suffix(f".{kind}.json")
        if beside.exists():
            texts[kind] = read_labels(beside, file, len(file.embeddings), kind)
    return np.asarray(file.embeddings), texts["labels"], texts["ids"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("sizes", [(1, 5, 1), (0, 7, 0)], ids=str)
def test_a_file_is_read_as_it_was_written(seven, tmp_path, ending, sizes):
    path = tmp_path / f"test{ending}"
    texts = ["чай", "a, b", 'say "x"', "é", "e\u0301", "花", "a, b"]
    assert write_embeddings(path, blocks(*sizes), replace(seven, labels=texts)) == path
    embeddings, labels, ids = read(path)
    np.testing.assert_array_equal(embeddings, X)
    assert embeddings.dtype == np.float32
    assert labels.tolist() == texts
    assert ids.tolist() == seven.paths.tolist()


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_the_other_columns_are_there_too(seven, tmp_path, ending):
    roles, frames = ["query"] * 3 + ["gallery"] * 4, list(range(ROWS))
    extra = {"frame": frames, "small": [True] * ROWS, "box": np.ones((ROWS, 4)), "path": ["x"] * ROWS}
    table = replace(seven, roles=roles, extra=extra)
    file = read_embeddings(write_embeddings(tmp_path / f"x{ending}", blocks(3, 4), table))
    assert file.ids.tolist() == seven.paths.tolist()
    assert {name: file.columns[name].tolist() for name in sorted(file.columns)} == {
        "category": ["all"] * ROWS,
        "frame": frames,
        "role": roles,
        "small": [True] * ROWS,
        "split": ["test"] * ROWS,
    }
    assert [path.name for path in tmp_path.iterdir()] == [f"x{ending}"]


def test_labels_of_safetensors_are_numbers_that_depend_on_the_text_only(seven, tmp_path):
    """So that queries and gallery in two files go together."""
    whole = read_embeddings(write_embeddings(tmp_path / "whole.safetensors", blocks(7), seven)).labels
    assert whole.dtype == np.int64
    np.testing.assert_array_equal(whole[:, None] == whole, seven.codes()[:, None] == seven.codes())
    last = write_embeddings(tmp_path / "last.SAFETENSORS", iter([X[4:]]), seven.rows(np.arange(4, 7)))
    np.testing.assert_array_equal(read_embeddings(last).labels, whole[4:])


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_rows_without_a_label(seven, tmp_path, ending):
    some = replace(seven, labels=["a", "", "a", "b", "", "b", "b"])
    _, labels, _ = read(write_embeddings(tmp_path / f"some{ending}", blocks(7), some))
    assert labels.tolist() == ["a", "1.png", "a", "b", "4.png", "b", "b"]
    _, labels, ids = read(write_embeddings(tmp_path / f"none{ending}", blocks(7), replace(seven, labels=[""] * ROWS)))
    assert labels is None
    assert ids.tolist() == seven.paths.tolist()


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_nothing_is_overwritten_without_asking(seven, tmp_path, ending):
    path = write_embeddings(tmp_path / f"x{ending}", blocks(7), seven)
    contents = {entry: entry.read_bytes() for entry in tmp_path.iterdir()}
    for entry, content in contents.items():  # one that is left is enough to refuse
        for other in contents:
            other.unlink(missing_ok=True)
        entry.write_bytes(content)
        refusal(lambda: write_embeddings(path, blocks(7), seven), entry.name)
    write_embeddings(path, iter([2 * X]), seven, overwrite=True)
    np.testing.assert_array_equal(read(path)[0], 2 * X)


@pytest.mark.parametrize(
    ("ending", "sizes"), [(".npy", (3, 3)), (".npz", (7, 2)), (".parquet", ()), (".safetensors", (3, 3))]
)
def test_another_number_of_rows_leaves_no_file(seven, tmp_path, ending, sizes):
    with pytest.raises(InputError, match=f"embeddings has {sum(sizes)} rows"):
        write_embeddings(tmp_path / f"x{ending}", (np.ones((size, 4)) for size in sizes), seven)
    assert not list(tmp_path.iterdir())


def test_files_that_cannot_be_written(seven, tmp_path, monkeypatch):
    refusal(lambda: write_embeddings(tmp_path / "x.csv", blocks(7), seven), "x.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refusal(lambda: write_embeddings(tmp_path / "x.parquet", blocks(7), seven), "pyarrow")
    assert not list(tmp_path.iterdir())


# A folder of shards


def embed(table, out, model=None, **changes):
    arguments = {"shard_rows": 4, "batch_size": 3, "workers": 0, **changes}
    return embed_to_folder(model or SmallModel(), table, out, **arguments)


def shards(folder):
    return sorted(path.name for path in folder.glob("shard-*"))


def assert_whole(folder, table):
    merged = read_embeddings(merge_embeddings(folder, table, folder / "all.npy", overwrite=True))
    np.testing.assert_allclose(merged.embeddings, embed_table(SmallModel(), table, workers=0), atol=1e-6)


@settings(max_examples=10)
@given(rows=st.integers(1, 11), shard_rows=st.integers(1, 12), batch_size=st.integers(1, 12))
def test_shards_of_any_size(table, tmp_path_factory, rows, shard_rows, batch_size):
    part = table.rows(np.arange(rows))
    folder = tmp_path_factory.mktemp("any") / "new"
    assert embed(part, folder, shard_rows=shard_rows, batch_size=batch_size) == folder
    assert shards(folder) == [f"shard-{number:05d}.pt" for number in range(-(-rows // shard_rows))]
    assert json.loads((folder / "manifest.json").read_text())["rows"] == rows
    assert_whole(folder, part)


def test_it_goes_on_where_it_stopped(table, tmp_path):
    model = SmallModel()
    model.fails_at = 8  # in the batch of rows 6 to 8, which would have filled the second shard
    with pytest.raises(KeyboardInterrupt):
        embed(table, tmp_path, model)
    assert shards(tmp_path) == ["shard-00000.pt"]
    first = (tmp_path / "shard-00000.pt").read_bytes()
    model = SmallModel()
    embed(table, tmp_path, model)
    assert model.seen == 7
    assert (tmp_path / "shard-00000.pt").read_bytes() == first
    assert_whole(tmp_path, table)
    embed(table, tmp_path, model)
    assert model.seen == 7  # nothing was left to do


def test_missing_and_damaged_shards_are_made_again(table, tmp_path):
    embed(table, tmp_path)
    path = tmp_path / "shard-00001.pt"
    content = path.read_bytes()
    flipped = content[:-300] + bytes([content[-300] ^ 16]) + content[-299:]
    for damage in (None, b"", content[:-5], flipped, (tmp_path / "shard-00000.pt").read_bytes()):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        refusal(lambda: merge_embeddings(tmp_path, table, tmp_path / "no.npy"), path.name)
        model = SmallModel()
        embed(table, tmp_path, model)
        assert model.seen == 4
        assert_whole(tmp_path, table)


def test_another_model_table_or_setting_is_refused(table, tmp_path):
    embed(table, tmp_path)
    other = SmallModel()
    other.image_size = 3
    cases = {
        "model": lambda: embed(table, tmp_path, SmallModel(seed=1)),
        "images": lambda: embed(table, tmp_path, other),
        "precision": lambda: embed(table, tmp_path, precision="bf16"),
        "shard_rows": lambda: embed(table, tmp_path, shard_rows=5),
        "table": lambda: embed(table.rows(np.arange(11)[::-1]), tmp_path),
        "table and rows": lambda: embed(table.rows(np.arange(10)), tmp_path),
    }
    for what, call in cases.items():
        refusal(call, f"another {what};")
    refusal(lambda: embed(table, tmp_path / "out", shard_rows=0), "shard_rows")
    assert not (tmp_path / "out").exists()
    for changed in (replace(table, labels=["x"] * 11), replace(table, extra={"box": ["0 0 3 3"] * 11})):
        for call in (lambda t: embed(t, tmp_path), lambda t: merge_embeddings(tmp_path, t, tmp_path / "all.npy")):
            refusal(lambda call=call, changed=changed: call(changed), "another table")


def test_a_folder_of_something_else(table, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    for call in (lambda: embed(table, tmp_path), lambda: merge_embeddings(tmp_path, table, tmp_path / "all.npy")):
        refusal(call, "manifest.json")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    for out in (tmp_path / "thesis.txt", tmp_path / "thesis.txt" / "deeper"):
        refusal(lambda out=out: embed(table, out), "thesis.txt")


@pytest.mark.parametrize("content", ["", "[]", '{"rows": 3}', '{"format": "frontrank embeddings 1", "rows": 11}'])
def test_a_manifest_that_is_damaged_or_old(table, tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    refusal(lambda: embed(table, tmp_path), "manifest.json")
