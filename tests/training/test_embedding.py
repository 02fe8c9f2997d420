import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from frontrank.data.images import read_image
from frontrank.data.table import ImageTable
from frontrank.data.transforms import evaluation_transform
from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.models import Embedder
from frontrank.training import distributed, embedding
from frontrank.training.embedding import embed_table, embed_to_folder, merge_embeddings, on_all_ranks
from tests.training.processes import run
from tests.training.small_model import SmallModel, noise_table, table_of


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return noise_table(tmp_path_factory.mktemp("images"), rows=11)


def one_by_one(model, table):
    """Each image by itself."""
    model.eval()
    transform = evaluation_transform(model.resize, model.image_size, model.mean, model.std)
    images = [transform(read_image(table.root / path)) for path in table.paths]
    with torch.no_grad():
        return np.stack([model(image[None])[0].numpy() for image in images])


@pytest.mark.parametrize(("batch_size", "workers"), [(4, 0), (4, 2), (1, 0), (50, 2)])
def test_every_image_in_the_order_of_the_table(table, batch_size, workers):
    model = SmallModel()
    found = embed_table(model, table, batch_size=batch_size, workers=workers)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, one_by_one(model, table), atol=1e-6)
    order = np.array([7, 2, 9])
    np.testing.assert_allclose(embed_table(model, table.rows(order), workers=0), found[order], atol=1e-6)


def test_an_embedder(table):
    model = Embedder("test_resnet", dim=8, image_size=32, resize=32)
    found = embed_table(model, table, workers=0)
    assert found.shape == (11, 8)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found, one_by_one(model, table), atol=1e-5)


def test_the_model_is_left_as_it_was(table):
    model = SmallModel()
    model.train()
    model.norm.eval()  # as a frozen BatchNorm is
    before = {name: value.clone() for name, value in model.state_dict().items()}
    embed_table(model, table, workers=0)
    assert (model.training, model.norm.training, model.dropout.training) == (True, False, True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())
    model.broken_rows = (model.seen,)
    with pytest.raises(InputError):
        embed_table(model, table, workers=0)
    assert (model.training, model.norm.training) == (True, False)


def test_what_a_model_keeps_can_be_trained_with(table):
    class Keeping(SmallModel):
        kept = None

        def forward(self, images):
            self.kept = torch.ones(1) if self.kept is None else self.kept
            return super().forward(images) * self.kept

    model = Keeping()
    embed_table(model, table, workers=0)
    model(torch.zeros(4, 3, 4, 4)).sum().backward()
    assert model.linear.weight.grad is not None


def test_precision(table):
    model = SmallModel()
    exact, half = (embed_table(model, table, workers=0, precision=name) for name in ("float32", "bf16"))
    assert half.dtype == np.float32
    assert 0 < np.abs(exact - half).max() < 0.05
    with pytest.raises(InputError, match="precision must be one of float32, bf16, fp16, got 'int8'"):
        embed_table(model, table, precision="int8")


def test_device(table):
    model = SmallModel()
    expected = embed_table(model, table, workers=0)
    np.testing.assert_array_equal(embed_table(model, table, workers=0, device="cpu"), expected)


def test_a_transform_of_ones_own(table):
    class Bare(nn.Module):
        def forward(self, images):
            return images.mean((2, 3))

    transform = evaluation_transform(4, 4, mean=(0.0,) * 3, std=(1.0,) * 3)
    found = embed_table(Bare(), table, workers=0, transform=transform)
    pixels = np.array(Image.open(table.root / table.paths[3]).resize((4, 4), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(found[3], pixels.reshape(-1, 3).mean(0) / 255, atol=1e-6)
    with pytest.raises(InputTypeError, match="Bare that does not say its resize, image_size, mean and std"):
        embed_table(Bare(), table)


def test_an_embedding_that_is_not_finite_names_the_image(table):
    model = SmallModel()
    model.broken_rows = (6, 8)
    with pytest.raises(InputError) as caught:
        embed_table(model, table, batch_size=4, workers=0)
    assert str(caught.value).startswith(f"the embedding of {table.root / table.paths[6]} is not finite; ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(3,), (4, 2, 2)], ids=str)
def test_a_model_of_the_wrong_shape(table, shape):
    class Wrong(SmallModel):
        def forward(self, images):
            return torch.zeros(shape)

    with pytest.raises(InputError, match=r"model gave the shape .* for 4 images; it must give \(images, dimensions\)"):
        embed_table(Wrong(), table, batch_size=4, workers=0)


def test_a_broken_image(table, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"nothing")
    bad = ImageTable(tmp_path, ["bad.png"], ["a"], [""], ["test"], [""])
    with pytest.raises(InputError, match=r"bad\.png"):
        embed_table(SmallModel(), bad, workers=0)


def test_no_images(table):
    with pytest.raises(InputError, match="the table has no images"):
        embed_table(SmallModel(), table.rows(np.arange(0)))


def test_progress_counts_the_images(table, monkeypatch):
    told = []

    class Bar:
        def __init__(self, what, total, show):
            told.append((what, total, show))

        def __enter__(self):
            return told.append

        def __exit__(self, *_):
            told.append("end")

    monkeypatch.setattr(embedding, "progress", Bar)
    embed_table(SmallModel(), table, batch_size=4, workers=0, show=True)
    assert told == [("embedding", 11, True), 4, 4, 3, "end"]


# Several processes, one after the other: what they would exchange is kept


@pytest.mark.parametrize(("world_size", "sizes"), [(2, [6, 5]), (3, [4, 4, 3]), (11, [1] * 11), (12, [11] * 12)])
def test_each_process_embeds_its_share(table, monkeypatch, world_size, sizes):
    shares = []
    monkeypatch.setattr(distributed, "world_size", lambda: world_size)
    monkeypatch.setattr(distributed, "any_rank", bool)
    monkeypatch.setattr(distributed, "gather_rows", lambda rows: rows)
    model = SmallModel()
    for rank in range(world_size):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shares.append(embed_table(model, table, workers=0))
    assert [len(share) for share in shares] == sizes
    whole = shares[0] if world_size > 11 else np.concatenate(shares)
    np.testing.assert_allclose(whole, one_by_one(model, table), atol=1e-6)


def test_what_fails_on_one_process_fails_on_all(monkeypatch):
    monkeypatch.setattr(distributed, "any_rank", lambda failed: True)
    with pytest.raises(FrontrankError, match="another process could not embed its images"), on_all_ranks():
        pass
    with pytest.raises(InputError, match="mine"), on_all_ranks():
        raise InputError("mine")


def embed_together(rank, world):
    """What each of two processes gets: all embeddings, and the message where one of them fails."""
    folder = Path(os.environ["FOLDER"])
    table = table_of(folder / "images", rows=11)
    whole = embed_table(SmallModel(), table, workers=0)
    embed_to_folder(SmallModel(), table, folder / "shards", shard_rows=2, workers=0)
    model = SmallModel()
    model.broken_rows = (0,) if rank == 1 else ()
    try:
        embed_table(model, table, workers=0)
    except FrontrankError as error:
        return whole, str(error)
    return whole, None


def test_two_processes(tmp_path):
    (tmp_path / "images").mkdir()
    table = noise_table(tmp_path / "images", rows=11)
    (first, _), (second, _) = run(embed_together, 2, tmp_path)
    expected = one_by_one(SmallModel(), table)
    for whole in (first[0], second[0], np.load(merge_embeddings(tmp_path / "shards", table, tmp_path / "all.npy"))):
        np.testing.assert_allclose(whole, expected, atol=1e-6)
    assert first[1] == "another process could not embed its images; its message says why"
    assert second[1].startswith(f"the embedding of {table.root / '6.png'} is not finite")
