"""The index at a URL, its model, and pictures as queries: only what belongs together is used."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank.data.images import read_image
from frontrank.errors import InputError
from frontrank.picture_index import load_index_model, open_index, picture_embedder
from frontrank.retrieval.index import Index
from tests.cli.images import picture, small_model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models, as folders."""
    folder = tmp_path_factory.mktemp("models")
    return small_model(folder / "first"), small_model(folder / "second", seed=1)


@pytest.fixture
def index(models, tmp_path):
    with Index(tmp_path / "photos.index", dim=8, model=fr.Embedder.load(models[0]).fingerprint) as found:
        yield found


def test_the_model_is_where_it_was(index, models):
    index.note(model=str(models[0]))
    assert load_index_model(index, None, "cpu").fingerprint == index.settings.model


def test_the_model_that_was_moved_is_given(index, models, tmp_path):
    index.note(model=str(tmp_path / "gone"))
    with pytest.raises(InputError, match=rf"the model of .*photos.index is no longer at {tmp_path}/gone; give --model"):
        load_index_model(index, None, "cpu")
    moved = shutil.copytree(models[0], tmp_path / "moved")
    assert load_index_model(index, str(moved), "cpu").fingerprint == index.settings.model


def test_nothing_is_known_of_the_model(index):
    with pytest.raises(InputError, match=r"photos.index does not say where its model is; give --model"):
        load_index_model(index, None, "cpu")


def test_a_name_on_a_hub_is_not_taken_for_a_folder(index, models, monkeypatch):
    index.note(model="owner/name")
    asked, own = [], fr.Embedder.load
    monkeypatch.setattr(fr.Embedder, "load", lambda name, device: asked.append(name) or own(models[0], device=device))
    load_index_model(index, None, "cpu")
    assert asked == ["owner/name"]


@pytest.mark.parametrize("noted", [True, False])
def test_another_model_is_refused(index, models, noted):
    if noted:
        index.note(model=str(models[1]))
    with pytest.raises(
        InputError, match=r"second is not the model that .*photos.index was made with; give that one by"
    ):
        load_index_model(index, None if noted else str(models[1]), "cpu")


def test_without_a_fingerprint_the_dimensions_must_fit(models, tmp_path):
    with Index(tmp_path / "a.index", dim=8) as index:
        assert load_index_model(index, str(models[1]), "cpu").dim == 8
    with (
        Index(tmp_path / "b.index", dim=9) as index,
        pytest.raises(
            InputError, match=r"first makes embeddings of 8 dimensions, .*b.index has 9; give the model that"
        ),
    ):
        load_index_model(index, str(models[0]), "cpu")


def test_a_picture_is_embedded_as_an_indexed_one(models, tmp_path):
    model = fr.Embedder.load(models[0]).train()
    for i, side in enumerate((32, 57)):
        picture(tmp_path / f"{i}.png", i, side=side)
    expected = fr.embed_table(model, fr.data.read_unlabelled([tmp_path]), workers=0, batch_size=1)
    model.train()
    embed = picture_embedder(model)
    for i in range(2):
        found = embed(read_image(tmp_path / f"{i}.png"))
        assert (found.dtype, found.shape) == (np.float32, (8,))
        np.testing.assert_allclose(found, expected[i], atol=1e-6)


def test_indexes_by_url(index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("photos.index", str(tmp_path / "photos.index"), f"file://{tmp_path}/photos.index"):
        with open_index(url) as found:
            assert found.settings.dim == 8


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("photos.indx", "photos.indx is not there; did you mean 'photos.index'?"),
        ("zzz", "zzz is not there; make it first: frontrank index MODEL IMAGES --to URL"),
        ("no/photos.index", "no/photos.index is not there; make it first"),
        ("empty", "empty is empty; make it first"),
        ("file.txt", "file.txt is a file; make it first"),
        ("mine", "mine holds no index; make one by frontrank index"),
        ("mlvus://localhost/x", r"url mlvus://localhost/x begins with mlvus://; did you mean milvus://\?"),
        ("", "url must be a folder or a URL, got ''"),
    ],
)
def test_where_no_index_is(index, tmp_path, monkeypatch, url, said):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    Path("file.txt").write_text("mine")
    with pytest.raises(fr.FrontrankError, match=said):
        open_index(url)
    assert not Path("zzz").exists()


def test_folders_that_cannot_be_read(tmp_path, monkeypatch):
    Index(tmp_path / "photos.index", dim=8).close()
    (tmp_path / "closed").mkdir()
    own = os.listdir

    def refused(folder):
        if Path(folder) in (tmp_path / "closed", tmp_path):
            raise PermissionError(13, "Permission denied")
        return own(folder)

    monkeypatch.setattr("os.listdir", refused)
    with pytest.raises(InputError, match="closed cannot be read: Permission denied; see to its name and permissions"):
        open_index(str(tmp_path / "closed"))
    with pytest.raises(InputError, match=r"photos.indx is not there; make it first"):  # nothing beside it is seen
        open_index(str(tmp_path / "photos.indx"))
