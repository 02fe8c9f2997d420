"""Images become items of an index, each once; and a picture is a query with the model of the index."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank import picture_index
from frontrank.errors import FrontrankError, InputError
from frontrank.picture_index import IndexSummary, item_ids, load_index_model, open_index, picture_embedder
from frontrank.pictures.decode import read_image
from frontrank.retrieval.index import Index
from tests.cli.images import picture, small_model
from tests.errors import refusal

EACH = 4


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models, as folders."""
    folder = tmp_path_factory.mktemp("models")
    return small_model(folder / "first"), small_model(folder / "second", seed=1)


@pytest.fixture(scope="module")
def model(models):
    return fr.Embedder.load(models[0])


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("originals") / "photos"
    for number, name in enumerate(("cat", "dog", "Ünï 漢")):
        for i in range(EACH):
            picture(root / name / f"{i}.png", 10 * number + i, 70 * number + 40)
    return root


@pytest.fixture
def photos(originals, tmp_path):
    """A folder of pictures of this test alone."""
    return Path(shutil.copytree(originals, tmp_path / "photos"))


@pytest.fixture
def index(model):
    with Index(dim=model.dim, model=model.fingerprint) as memory:
        yield memory


@pytest.fixture
def embedded(monkeypatch):
    """The names of the images that are embedded."""
    names, own = [], picture_index.embedded_batches

    def batches(model, table, **settings):
        start = 0
        for vectors in own(model, table, **settings):
            names.extend(table.paths[start : start + len(vectors)].tolist())
            start += len(vectors)
            yield vectors

    monkeypatch.setattr(picture_index, "embedded_batches", batches)
    return names


def put(model, index, *sources, **settings):
    tables = [source if isinstance(source, fr.data.ImageTable) else fr.data.read_folder(source) for source in sources]
    return picture_index.index_images(model, tables, index, **{"workers": 0, "show": False, **settings})


def break_some(photos):
    """Make an image without a header, one without its end, an empty one and a missing one; returns their names."""
    whole = (photos / "cat" / "1.png").read_bytes()
    (photos / "cat" / "1.png").write_bytes(b"no picture")
    (photos / "cat" / "2.png").write_bytes(whole[:-200])
    (photos / "dog" / "3.png").write_bytes(b"")
    (photos / "dog" / "link.png").symlink_to("nowhere")
    return [str(photos / name) for name in ("cat/1.png", "cat/2.png", "dog/3.png", "dog/link.png")]


def test_items_hold_what_is_known_about_an_image(model, index, photos):
    table = fr.data.read_folder(photos)
    own = {"year": np.arange(12) + 2000, "good": np.arange(12) % 2 == 0, "note": np.array(["", "old"] * 6)}
    table = replace(table, extra={**own, "id": table.paths})
    refusal(lambda: put(model, index, table, batch_size=0), "batch_size")
    assert put(model, index, table) == IndexSummary(added=12)
    items = {item.id: item for item in index.items()}
    assert list(items) == sorted(f"photos/{path}" for path in table.paths)
    second = items["photos/cat/1.png"]
    assert (second.label, second.category, second.path) == ("cat", None, str(photos / "cat" / "1.png"))
    assert dict(second.metadata).keys() == {"year", "good", "note", "sha256"}  # id is a field of its own
    assert (second.metadata["year"], second.metadata["note"]) == (2001, "old")
    assert (index.count("year>=2010"), index.count("good=true")) == (2, 6)
    assert "note" not in items["photos/cat/0.png"].metadata  # it is empty
    vectors = fr.embed_table(model, table, workers=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(index.vectors(item_ids(table)), vectors, atol=1e-6)
    for split in ("train", "test"):
        shutil.copytree(photos, photos.parent / "sorted" / split / f"of {split}")
    put(model, index, photos.parent / "sorted")
    assert index.values("split") == {"test": 12, "train": 12}
    assert index.values("category") == {"of test": 12, "of train": 12}
    assert index.count("label=of test/cat") == EACH


def test_only_new_and_changed_images_are_embedded(model, index, photos, embedded):
    put(model, index, photos)
    assert len(embedded) == 12
    embedded.clear()
    assert put(model, index, photos) == IndexSummary(unchanged=12)
    assert embedded == []
    before = index.vectors(["photos/cat/0.png", "photos/cat/1.png"])
    picture(photos / "cat" / "0.png", 99)
    picture(photos / "cow" / "0.png", 100)
    (photos / "dog" / "0.png").touch()  # another time, the same content
    assert put(model, index, photos) == IndexSummary(added=1, changed=1, unchanged=11)
    assert embedded == ["cat/0.png", "cow/0.png"]
    after = index.vectors(["photos/cat/0.png", "photos/cat/1.png"])
    assert not np.array_equal(before[0], after[0])
    assert np.array_equal(before[1], after[1])


def test_another_label_or_place_needs_no_embedding(model, photos, embedded, monkeypatch):
    """Also in an index with whitening, which stores vectors that are already whitened."""
    monkeypatch.setattr(picture_index, "_PAGE", 2)
    table = fr.data.read_folder(photos)
    whitening = fr.Whitening.fit(fr.embed_table(model, table, workers=0), dim=4)
    with Index(dim=model.dim, whitening=whitening) as index:
        put(model, index, table)
        vectors = index.vectors(item_ids(table))
        embedded.clear()
        labels = np.where(table.labels == "cat", "lion", table.labels)
        assert put(model, index, replace(table, labels=labels)) == IndexSummary(relabelled=EACH, unchanged=8)
        assert index.labels() == {"dog": 4, "lion": 4, "Ünï 漢": 4}
        (photos.parent / "elsewhere").mkdir()
        moved = photos.rename(photos.parent / "elsewhere" / "photos")
        assert put(model, index, moved) == IndexSummary(relabelled=12)
        assert index.get(["photos/dog/0.png"])[0].path == str(moved / "dog" / "0.png")
        assert embedded == []
        assert np.array_equal(index.vectors(item_ids(table)), vectors)


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_broken_images_are_named_and_the_others_stored(model, index, photos, batch_size, monkeypatch):
    monkeypatch.setattr(picture_index, "_TABLE_ROWS", 5)
    monkeypatch.setattr(picture_index, "_STORE_SECONDS", batch_size - 5)  # with batches of 5, each is stored by itself
    names = break_some(photos)
    summary = put(model, index, photos, batch_size=batch_size)
    assert (summary.added, [file for file, _ in summary.broken], index.count()) == (9, names, 9)
    again = put(model, index, photos, batch_size=batch_size, prune=True)
    assert (again.added, again.unchanged, again.removed, again.broken) == (0, 9, 0, summary.broken)


def test_pruning_deletes_what_is_broken_or_missing(model, index, photos, monkeypatch):
    monkeypatch.setattr(picture_index, "_PAGE", 3)
    put(model, index, photos)
    break_some(photos)
    assert len(put(model, index, photos).broken) == 4
    assert index.count() == 12
    asked = []
    assert put(model, index, photos, prune=True, check_prune=lambda *counts: asked.append(counts)).removed == 3
    assert asked == [(0, 12), (3, 12)]  # before images are read, and when three are broken
    assert index.get(["photos/cat/2.png"]) == [None]
    shutil.rmtree(photos / "dog")
    put(model, index, photos)
    assert index.labels() == {"Ünï 漢": 4, "dog": 3, "cat": 2}
    assert put(model, index, photos, prune=True).removed == 3
    assert index.labels() == {"Ünï 漢": 4, "cat": 2}
    for file in photos.rglob("*.png"):
        file.write_bytes(file.read_bytes()[:-200])  # the headers are good
    summary = put(model, index, photos, prune=True)
    assert (summary.readable, summary.removed, index.count()) == (0, 0, 6)  # nothing is left to be sure of


def test_two_images_never_have_one_id(model, index, photos, tmp_path):
    other = tmp_path / "other" / "photos"
    picture(other / "cat" / "0.png", 77)
    for sources in ((photos, other), (photos, photos)):
        refusal(lambda sources=sources: put(model, index, *sources), "photos/cat/0.png")
    assert index.count() == 0
    put(model, index, photos)
    before = list(index.items())
    with pytest.raises(InputError, match=f"{other}/cat/0.png .*{photos}/cat/0.png"):
        put(model, index, other)
    assert list(index.items()) == before
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "photos").symlink_to(photos)  # the same folder under another name
    picture(photos / "cat" / "0.png", 78)
    assert put(model, index, tmp_path / "link" / "photos").changed == 1


def test_crops_of_one_image(model, index, photos):
    paths, nothing = ["cat/0.png", "cat/0.png", "cat/1.png", "cat/1.png"], [""] * 4
    boxes = np.array(["0 0 16 32", "16 0 32 32", "90 90 99 99", ""])
    table = fr.data.ImageTable(photos, paths, nothing, nothing, ["test"] * 4, nothing, {"box": boxes})
    summary = put(model, index, table)
    ids = ["photos/cat/0.png#0,0,16,32", "photos/cat/0.png#16,0,32,32", "photos/cat/1.png"]
    assert [item.id for item in index.items()] == ids
    assert [file for file, _ in summary.broken] == [f"{photos}/cat/1.png"]
    first, second, _ = index.vectors(ids)
    assert not np.allclose(first, second, atol=1e-6)


def test_names_and_metadata_that_no_index_can_hold(model, index, tmp_path):
    long = "x" * 200
    for seed, name in enumerate((f"{long}/{long}/{long}.png", f"{long}/{long}/{long}y.png", f"{long}/a\nb/1.png")):
        picture(tmp_path / "p" / name, seed)
    assert put(model, index, tmp_path / "p") == IndexSummary(added=3)
    ids = [item.id for item in index.items()]
    assert len(set(ids)) == 3
    assert all(len(name) <= 512 and name.isprintable() for name in ids)
    assert put(model, index, tmp_path / "p") == IndexSummary(unchanged=3)
    table = replace(fr.data.read_folder(tmp_path / "p"), extra={"size": np.array([2.0, 3.0, np.inf])})
    summary = put(model, index, table)
    assert (summary.relabelled, len(summary.broken)) == (2, 1)
    assert "size" in summary.broken[0][1]


# A picture as a query


def test_the_model_of_an_index(index, models, tmp_path, monkeypatch):
    def load(folder=None):
        return load_index_model(index, folder, "cpu").fingerprint

    refusal(load, "--model")  # nothing is known about it
    index.note(model=str(models[0]))
    assert load() == index.settings.model
    index.note(model=str(tmp_path / "gone"))
    with pytest.raises(InputError, match=f"{tmp_path}/gone.*--model"):
        load()
    assert load(str(shutil.copytree(models[0], tmp_path / "moved"))) == index.settings.model
    refusal(lambda: load(str(models[1])), "second", "--model")  # another model
    index.note(model="owner/name")  # not a folder, but a name on a hub
    names, own = [], fr.Embedder.load
    monkeypatch.setattr(fr.Embedder, "load", lambda name, device: names.append(name) or own(models[0], device=device))
    assert load() == index.settings.model
    assert names == ["owner/name"]
    monkeypatch.undo()  # without a fingerprint the dimensions must fit
    assert load_index_model(Index(dim=8), str(models[1]), "cpu").dim == 8
    refusal(lambda: load_index_model(Index(dim=9), str(models[0]), "cpu"), "first", "--model")


def test_a_picture_is_embedded_as_an_indexed_one(models, tmp_path):
    model = fr.Embedder.load(models[0]).train()
    for i, side in enumerate((32, 57)):
        picture(tmp_path / f"{i}.png", i, side=side)
    expected = fr.embed_table(model, fr.data.read_unlabelled([tmp_path]), workers=0, batch_size=1)
    model.train()
    embed = picture_embedder(model)
    for i in range(2):
        embedding = embed(read_image(tmp_path / f"{i}.png"))
        assert (embedding.dtype, embedding.shape) == (np.float32, (8,))
        np.testing.assert_allclose(embedding, expected[i], atol=1e-6)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with an index and what is not one."""
    monkeypatch.chdir(tmp_path)
    Index("photos.index", dim=8).close()
    Path("empty").mkdir()
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    Path("file.txt").write_text("mine")
    return tmp_path


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("photos.indx", r"^photos.indx .*photos.index\?"),
        ("zzz", "^zzz does not exist"),
        ("empty", "^empty is empty"),
        ("file.txt", "^file.txt is a file"),
        ("mine", "^mine "),
        ("", "^url"),
    ],
)
def test_urls_without_an_index(folder, url, message):
    for good in ("photos.index", str(folder / "photos.index"), f"file://{folder}/photos.index"):
        open_index(good).close()
    with pytest.raises(FrontrankError, match=message):
        open_index(url)
    assert not Path("zzz").exists()
