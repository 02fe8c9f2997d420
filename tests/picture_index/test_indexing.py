"""Images become items of an index: each once, again only when they change, and never two in one place."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank import picture_index as indexing
from frontrank import progress as progress_bar
from frontrank.errors import InputError
from frontrank.picture_index import IndexSummary, index_images, item_ids, refuse_unreadable
from frontrank.retrieval.index import Index
from tests.cli.images import picture, small_model
from tests.data.files import written

CLASSES, EACH = ("cat", "dog", "Ünï 漢"), 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fr.Embedder.load(small_model(tmp_path_factory.mktemp("model") / "model"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made") / "photos"
    for number, name in enumerate(CLASSES):
        for i in range(EACH):
            picture(root / name / f"{i}.png", 10 * number + i, 70 * number + 40)
    return root


@pytest.fixture
def photos(made, tmp_path):
    """A folder of pictures of this test alone."""
    return Path(shutil.copytree(made, tmp_path / "photos"))


@pytest.fixture
def index(model):
    with Index(dim=model.dim, model=model.fingerprint) as found:
        yield found


@pytest.fixture
def embedded(monkeypatch):
    """The names of the images that are embedded, one list for each batch."""
    seen, own = [], indexing.embedded_batches

    def batches(model, table, **settings):
        start = 0
        for vectors in own(model, table, **settings):
            seen.append(table.paths[start : start + len(vectors)].tolist())
            start += len(vectors)
            yield vectors

    monkeypatch.setattr(indexing, "embedded_batches", batches)
    return seen


def put(model, index, *sources, **settings):
    tables = [source if isinstance(source, fr.data.ImageTable) else fr.data.read_folder(source) for source in sources]
    return index_images(model, tables, index, **{"workers": 0, "show": False, **settings})


def names(batches):
    return [name for batch in batches for name in batch]


def test_items_say_what_is_known_of_an_image(model, index, photos):
    table = fr.data.read_folder(photos)
    table = replace(
        table, extra={"year": np.arange(len(table)) + 2000, "note": np.array(["", "old"] * 6), "id": table.paths}
    )
    assert put(model, index, table) == IndexSummary(added=12)
    items = {item.id: item for item in index.items()}
    assert list(items) == sorted(f"photos/{path}" for path in table.paths)
    second = items["photos/cat/1.png"]
    assert (second.label, second.category, second.path) == ("cat", None, str(photos / "cat" / "1.png"))
    assert dict(second.metadata).keys() == {"year", "note", "sha256"}  # id is a field of its own
    assert (second.metadata["year"], second.metadata["note"]) == (2001, "old")
    assert "note" not in items["photos/cat/0.png"].metadata  # nothing is known
    vectors = fr.embed_table(model, table, workers=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(index.vectors(item_ids(table)), vectors, atol=1e-6)


def test_splits_and_categories(model, index, made, tmp_path):
    for split in ("train", "test"):
        shutil.copytree(made, tmp_path / "sorted" / split / f"of {split}")
    put(model, index, tmp_path / "sorted")
    assert index.values("split") == {"test": 12, "train": 12}
    assert index.values("category") == {"of test": 12, "of train": 12}
    assert index.count("label=of test/cat") == EACH


def test_only_what_is_new_or_has_changed_is_embedded(model, index, photos, embedded):
    put(model, index, photos)
    assert len(names(embedded)) == 12
    embedded.clear()
    assert put(model, index, photos) == IndexSummary(unchanged=12)
    assert embedded == []
    before = index.vectors(["photos/cat/0.png", "photos/cat/1.png"])
    picture(photos / "cat" / "0.png", 99)
    picture(photos / "cow" / "0.png", 100)
    (photos / "dog" / "0.png").touch()  # another time, the same content
    assert put(model, index, photos) == IndexSummary(added=1, changed=1, unchanged=11)
    assert names(embedded) == ["cat/0.png", "cow/0.png"]
    after = index.vectors(["photos/cat/0.png", "photos/cat/1.png"])
    assert not np.array_equal(before[0], after[0])
    assert np.array_equal(before[1], after[1])


def test_another_label_or_place_needs_no_embedding(model, index, photos, embedded, monkeypatch):
    monkeypatch.setattr(indexing, "_PAGE", 2)
    table = fr.data.read_folder(photos)
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


def test_a_whitened_index_keeps_its_vectors_when_labels_change(model, photos):
    table = fr.data.read_folder(photos)
    whitening = fr.Whitening.fit(fr.embed_table(model, table, workers=0), dim=4)
    with Index(dim=model.dim, whitening=whitening) as index:
        put(model, index, table)
        before = index.vectors(item_ids(table))
        assert put(model, index, replace(table, labels=table.labels + "s")).relabelled == 12
        assert np.array_equal(index.vectors(item_ids(table)), before)


def break_some(photos):
    """An image without a header, one without its end, one empty, one not there; gives what is said of them."""
    whole = (photos / "cat" / "1.png").read_bytes()
    (photos / "cat" / "1.png").write_bytes(b"no picture")
    (photos / "cat" / "2.png").write_bytes(whole[:-200])
    (photos / "dog" / "3.png").write_bytes(b"")
    (photos / "dog" / "link.png").symlink_to("nowhere")
    return ["cat/1.png is no image", "cat/2.png cannot be decoded", "dog/3.png is empty", "dog/link.png is not there"]


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_broken_images_are_named_and_the_others_kept(model, index, photos, batch_size):
    expected = break_some(photos)
    found = put(model, index, photos, batch_size=batch_size)
    assert (found.added, len(found.broken)) == (9, 4)
    for (file, reason), said in zip(found.broken, expected, strict=True):
        assert f"{file} {reason}".startswith(f"{photos}/{said}")
    assert index.count() == 9
    again = put(model, index, photos, batch_size=batch_size)
    assert (again.added, again.unchanged, again.broken) == (0, 9, found.broken)


def test_an_image_that_is_broken_by_now_stays_until_it_is_pruned(model, index, photos):
    put(model, index, photos)
    break_some(photos)
    assert len(put(model, index, photos).broken) == 4
    assert index.count() == 12
    found = put(model, index, photos, prune=True)
    assert (found.removed, index.count()) == (3, 9)
    assert index.get(["photos/cat/2.png"]) == [None]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_not_waited_for(model, index, photos):
    os.mkfifo(photos / "cat" / "pipe.jpg")
    (photos / "dog" / "folder.jpg").mkdir()
    paths = ["cat/0.png", "cat/pipe.jpg", "dog/folder.jpg"]
    found = put(model, index, fr.data.ImageTable(photos, paths, [""] * 3, [""] * 3, ["test"] * 3, [""] * 3))
    assert found.added == 1
    assert [reason for _, reason in found.broken] == [
        "is a pipe or a device, not an image",
        "is a folder, not an image",
    ]


def test_pruning_forgets_nothing_where_no_image_can_be_read(model, index, photos):
    put(model, index, photos)
    for file in photos.rglob("*.png"):
        file.write_bytes(file.read_bytes()[:-200])  # the headers are good
    found = put(model, index, photos, prune=True)
    assert (found.readable, found.removed, len(found.broken)) == (0, 0, 12)
    assert index.count() == 12


def test_images_of_which_none_can_be_read(photos, monkeypatch):
    """Only as many headers are looked at as are needed."""
    seen, own = [], indexing.image_fault
    monkeypatch.setattr(indexing, "image_fault", lambda file, decode: seen.append(file) or own(file, decode))
    table = fr.data.read_folder(photos)
    refuse_unreadable([table])
    assert len(seen) == 1
    (photos / "cat" / "0.png").write_bytes(b"")
    refuse_unreadable([table])
    assert len(seen) == 3
    for file in photos.rglob("*.png"):
        file.write_bytes(b"no picture")
    said = rf"none of the 12 images can be read \({photos}/cat/0.png is no image, not .*\); give others"
    with pytest.raises(InputError, match=said):
        refuse_unreadable([table])


def test_pruning_forgets_what_is_not_there(model, index, photos, monkeypatch):
    monkeypatch.setattr(indexing, "_PAGE", 3)
    put(model, index, photos)
    shutil.rmtree(photos / "dog")
    assert put(model, index, photos) == IndexSummary(unchanged=8)
    assert index.count() == 12
    assert put(model, index, photos, prune=True) == IndexSummary(unchanged=8, removed=4)
    assert index.labels() == {"cat": 4, "Ünï 漢": 4}


def test_stopped_in_the_middle_it_goes_on(model, index, photos, embedded, monkeypatch):
    monkeypatch.setattr(indexing, "_STORE_BATCHES", 1)
    own, calls = index.upsert, []

    def upsert(*given, **settings):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(own(*given, **settings))

    with monkeypatch.context() as patch:
        patch.setattr(index, "upsert", upsert)
        with pytest.raises(KeyboardInterrupt):
            put(model, index, photos, batch_size=2)
    kept = {item.id for item in index.items()}
    assert len(kept) == 4
    embedded.clear()
    assert put(model, index, photos, batch_size=2) == IndexSummary(added=8, unchanged=4)
    assert not kept & {f"photos/{name}" for name in names(embedded)}
    with Index(dim=model.dim) as whole:
        put(model, whole, photos, batch_size=2)
        ids = item_ids(fr.data.read_folder(photos))
        assert list(whole.items()) == list(index.items())
        assert np.array_equal(whole.vectors(ids), index.vectors(ids))


@pytest.mark.parametrize(("seconds", "writes"), [(0.0, [1] * 12), (60.0, [5, 5, 2])])
def test_slow_work_is_kept_more_often(model, index, photos, monkeypatch, seconds, writes):
    monkeypatch.setattr(indexing, "_STORE_BATCHES", 5)
    monkeypatch.setattr(indexing, "_STORE_SECONDS", seconds)
    own, sizes = index.upsert, []
    monkeypatch.setattr(index, "upsert", lambda rows, items: (sizes.append(len(items)), own(rows, items)))
    put(model, index, photos, batch_size=1)
    assert sizes == writes


def test_tables_are_taken_in_parts(model, index, photos, monkeypatch):
    monkeypatch.setattr(indexing, "_TABLE_ROWS", 5)
    break_some(photos)
    found = put(model, index, photos)
    assert (found.added, len(found.broken), index.count()) == (9, 4, 9)
    assert put(model, index, photos, prune=True).unchanged == 9


def test_the_same_names_are_refused(model, index, photos, tmp_path):
    other = Path(shutil.copytree(photos, tmp_path / "other" / "photos"))
    with pytest.raises(InputError, match=r"photos/cat/0.png is there twice, of .*; rename one of the folders, or make"):
        put(model, index, photos, other)
    with pytest.raises(InputError, match=r"photos/cat/0.png is there twice; name each image once"):
        put(model, index, photos, photos)
    assert index.count() == 0


def test_another_folder_of_the_same_name_replaces_nothing(model, index, photos, tmp_path):
    put(model, index, photos)
    before = list(index.items())
    other = tmp_path / "other" / "photos"
    picture(other / "cat" / "0.png", 77)
    said = rf"{other}/cat/0.png would take the place of {photos}/cat/0.png, as both are photos/cat/0.png in the index"
    with pytest.raises(InputError, match=said):
        put(model, index, other)
    assert list(index.items()) == before
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "photos").symlink_to(photos)  # the same folder under another name
    picture(photos / "cat" / "0.png", 78)
    assert put(model, index, tmp_path / "link" / "photos").changed == 1


def test_crops_of_one_image(model, index, photos):
    paths, nothing = ["cat/0.png", "cat/0.png", "cat/1.png", "cat/1.png"], [""] * 4
    boxes = np.array(["0 0 16 32", "16 0 32 32", "90 90 99 99", ""])
    found = put(
        model, index, fr.data.ImageTable(photos, paths, nothing, nothing, ["test"] * 4, nothing, {"box": boxes})
    )
    ids = ["photos/cat/0.png#0,0,16,32", "photos/cat/0.png#16,0,32,32", "photos/cat/1.png"]
    assert [item.id for item in index.items()] == ids
    ((file, reason),) = found.broken
    assert file == f"{photos}/cat/1.png"
    assert "90" in reason
    first, second, _ = index.vectors(ids)
    assert not np.allclose(first, second, atol=1e-6)


def test_names_that_no_index_could_hold(model, index, tmp_path):
    long = "x" * 200
    for seed, name in enumerate(
        [f"{long}/{long}/{long}.png", f"{long}/{long}/{long}y.png", f"{long}/line\nbreak/1.png"]
    ):
        picture(tmp_path / "p" / name, seed)
    assert put(model, index, tmp_path / "p") == IndexSummary(added=3)
    ids = [item.id for item in index.items()]
    assert len(set(ids)) == 3
    assert all(len(name) <= 512 and name.isprintable() for name in ids)
    assert put(model, index, tmp_path / "p") == IndexSummary(unchanged=3)


def test_metadata_that_no_index_could_hold_is_told(model, index, photos):
    table = fr.data.read_folder(photos)
    table = replace(table, extra={"size": np.array([2.0**60] + [1.0] * 10 + [np.inf])})
    found = put(model, index, table)
    assert found.added == 11
    assert [reason.partition(":")[0] for _, reason in found.broken] == ["cannot be kept"]


def test_numbers_of_a_parquet_table(model, index, photos):
    table = fr.data.read_folder(photos)
    columns = {"path": table.paths, "label": table.labels, "year": np.arange(12) + 2000, "good": np.arange(12) % 2 == 0}
    written(photos / "table.parquet", **columns)
    assert put(model, index, fr.data.read_table(photos / "table.parquet")) == IndexSummary(added=12)
    assert index.count("year>=2010") == 2
    assert index.count("good=true") == 6


def test_what_became_of_images_in_a_line():
    assert IndexSummary().describe() == "no images"
    found = IndexSummary(added=1, changed=2, relabelled=3, unchanged=4, removed=5, broken=[("a", "b")])
    assert found.describe() == "1 added, 2 changed, 3 relabelled, 4 unchanged, 5 removed, 1 broken"


def test_a_bar_for_all_of_the_images(model, index, photos, monkeypatch, capsys):
    monkeypatch.setattr(progress_bar, "_PATIENCE", -1.0)
    steps, own = [], progress_bar._Bar.advance
    monkeypatch.setattr(
        progress_bar._Bar,
        "advance",
        lambda bar, amount: (steps.append((bar._what, bar._total, amount)), own(bar, amount)),
    )
    monkeypatch.setattr(indexing, "_STORE_BATCHES", 1)
    break_some(photos)
    put(model, index, photos, batch_size=4, show=True)
    assert {(what, total) for what, total, _ in steps} == {("indexing", 13)}
    assert sum(amount for *_, amount in steps) == 13
    assert len(steps) > 3
    assert not sys.stderr.isatty()
    capsys.readouterr()
